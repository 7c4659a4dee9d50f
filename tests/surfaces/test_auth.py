"""The auth hook, on clients of both families and transports that use bodies up."""

from __future__ import annotations

import io
import logging
import random
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import ModuleType
from typing import Any, NoReturn, TypeAlias
from urllib.parse import urlsplit

import anyio
import httpx
import httpx2
import pytest

from freshtoken import (
    FreshTokenError,
    MemoryStore,
    MisconfiguredError,
    SignInRequiredError,
    StoreError,
    TokenManager,
)
from freshtoken.abc import ReadResult, Record, SwapResult
from freshtoken.testing import FakeClock, MockGrant, MockIdP, MockRequest, MockResponse
from freshtoken.testing.transport import make_transport

# Of either family, which share no classes.
Client: TypeAlias = Any
Family: TypeAlias = Any
Message: TypeAlias = Any
Options: TypeAlias = Any
Answer: TypeAlias = Callable[[MockRequest], Awaitable[MockResponse]]

API = "https://api.example.com"
URL = f"{API}/orders"
LIFETIME = 300.0


class ApiDouble:
    """An API without sockets: keeps what reaches it, and answers by a script.

    Attributes:
        script: Answers to the next requests, in order.
        answer: Answers the others.
    """

    issuer = "the API"

    def __init__(self) -> None:
        self.requests: list[MockRequest] = []
        self.script: list[MockResponse] = []
        self.answer: Answer = fine

    async def handle(self, request: MockRequest) -> MockResponse:
        self.requests.append(request)
        if self.script:
            return self.script.pop(0)
        return await self.answer(request)

    @property
    def tokens(self) -> list[str | None]:
        """The Authorization header of each request."""
        return [request.header("authorization") for request in self.requests]


async def fine(request: MockRequest) -> MockResponse:
    return MockResponse(200)


async def unauthorized(request: MockRequest) -> MockResponse:
    return MockResponse(401)


def refusing_dead_tokens(idp: MockIdP) -> Answer:
    """Answer as an API does that knows which tokens live."""

    async def answer(request: MockRequest) -> MockResponse:
        scheme, _, token = (request.header("authorization") or "").partition(" ")
        alive = scheme == "Bearer" and idp.is_active(token)
        return MockResponse(200 if alive else 401)

    return answer


class Router:
    """One transport to the API and to the authorization server."""

    issuer = "both"

    def __init__(self, idp: MockIdP, api: ApiDouble) -> None:
        self._idp = idp
        self._api = api

    async def handle(self, request: MockRequest) -> MockResponse:
        at_idp = request.origin == self._idp.issuer
        return await (self._idp if at_idp else self._api).handle(request)


class BrittleStore(MemoryStore):
    """Fails as long as it is told to."""

    broken = False

    async def read(self, key: str) -> ReadResult:
        self._check()
        return await super().read(key)

    async def swap(
        self,
        key: str,
        expect: tuple[str, int] | None,
        record: Record,
        *,
        lease_for: float | None = None,
        keep_for: float | None = None,
    ) -> SwapResult:
        self._check()
        return await super().swap(
            key, expect, record, lease_for=lease_for, keep_for=keep_for
        )

    def _check(self) -> None:
        if self.broken:
            message = "the disk is full"
            raise StoreError(message)


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def family(request: pytest.FixtureRequest) -> ModuleType:
    module = request.param
    assert isinstance(module, ModuleType)
    return module


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def idp(clock: FakeClock) -> Iterator[MockIdP]:
    server = MockIdP(clock=clock, rng=random.Random(7), access_token_lifetime=LIFETIME)
    yield server
    server.assert_no_pending_faults()


@pytest.fixture
def store(clock: FakeClock) -> BrittleStore:
    return BrittleStore(clock=clock)


@pytest.fixture
def make_manager(
    clock: FakeClock, idp: MockIdP, store: BrittleStore
) -> Callable[..., TokenManager]:
    """Make managers over one store: each is one worker."""

    def make(**options: Options) -> TokenManager:
        settings: dict[str, Any] = {
            "store": store,
            "http_client": idp.http_client(),
            "clock": clock,
            "rng": random.Random(3),
        }
        return TokenManager(idp.client(), **(settings | options))

    return make


@pytest.fixture
async def tokens(
    make_manager: Callable[..., TokenManager],
) -> AsyncIterator[TokenManager]:
    async with make_manager() as manager:
        yield manager


@pytest.fixture
async def grant(tokens: TokenManager, idp: MockIdP, clock: FakeClock) -> MockGrant:
    """A session ``crm`` whose access token has just been issued."""
    grant = idp.new_grant()
    await tokens.add_session(
        "crm",
        refresh_token=grant.refresh_token or "",
        access_token=grant.access_token,
        expires_at=clock.time() + LIFETIME,
    )
    return grant


@pytest.fixture
def api() -> ApiDouble:
    return ApiDouble()


@pytest.fixture
async def client(family: ModuleType, api: ApiDouble) -> AsyncIterator[Client]:
    """A client of either family that reaches the API only."""
    async with open_client(family, api) as made:
        yield made


def open_client(family: Family, server: Options, **options: Options) -> Client:
    return family.AsyncClient(transport=make_transport(family, server), **options)


# -- The header ---------------------------------------------------------------------


async def test_a_request_carries_the_token_once(
    tokens: TokenManager, grant: MockGrant, api: ApiDouble, client: Client
) -> None:
    await client.get(URL, auth=tokens.auth("crm", origins=[API]))

    names = [(name.lower(), value) for name, value in api.requests[0].headers]
    sent = [value for name, value in names if name == "authorization"]
    assert sent == [f"Bearer {grant.access_token}"]


async def test_the_hook_may_be_the_client_s_own(
    family: ModuleType, tokens: TokenManager, grant: MockGrant, api: ApiDouble
) -> None:
    hook = tokens.auth("crm", origins=[API])
    async with open_client(family, api, auth=hook, base_url=API) as client:
        await client.get("/orders")
        await client.post("/orders", json={})

    assert api.tokens == [f"Bearer {grant.access_token}"] * 2


async def test_the_scheme_is_spelled_as_apis_compare_it(
    tokens: TokenManager, idp: MockIdP, api: ApiDouble, client: Client
) -> None:
    """Servers say ``bearer``; many APIs know ``Bearer`` alone."""
    idp.reshape_next(merge={"token_type": "bearer"})
    await idp.new_session(tokens, "crm")

    await client.get(URL, auth=tokens.auth("crm", origins=[API]))

    assert api.tokens == [f"Bearer {idp.grant('crm').access_token}"]


@pytest.mark.spec("RFC 6750 §2.1")
async def test_a_token_with_a_blank_is_not_sent(
    tokens: TokenManager, idp: MockIdP, api: ApiDouble, client: Client
) -> None:
    idp.reshape_next(merge={"access_token": "two words"})
    await idp.new_session(tokens, "crm")

    with pytest.raises(MisconfiguredError) as caught:
        await client.get(URL, auth=tokens.auth("crm", origins=[API]))

    assert caught.value.setting == "access_token"
    assert "two words" not in str(caught.value)
    assert api.requests == []


async def test_the_next_token_is_sent_once_the_old_one_has_ended(
    tokens: TokenManager,
    grant: MockGrant,
    api: ApiDouble,
    client: Client,
    clock: FakeClock,
) -> None:
    first = grant.access_token
    hook = tokens.auth("crm", origins=[API])
    await client.get(URL, auth=hook)

    await clock.advance(LIFETIME + 1)
    await client.get(URL, auth=hook)

    assert grant.access_token != first
    assert api.tokens == [f"Bearer {first}", f"Bearer {grant.access_token}"]


async def test_resource_and_scope_pick_the_token(
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
) -> None:
    """Also where the API rejects it."""
    resource = "https://api.example.com/"
    hook = tokens.auth("crm", origins=[API], resource=resource, scope="profile")
    api.script = [MockResponse(401)]

    response = await client.get(URL, auth=hook)

    assert response.status_code == 200
    asked = [(one.form["resource"], one.form["scope"]) for one in idp.requests("token")]
    assert asked == [(resource, "profile")] * 2
    default = await tokens.get_token("crm")
    assert f"Bearer {default.reveal()}" not in api.tokens


# -- Origins ------------------------------------------------------------------------

BUECHER = "https://b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example"
SUB_BUECHER = BUECHER.replace("//", "//api.")

ALLOWED = [
    (API, "https://api.example.com:443/x"),
    (API, "HTTPS://API.Example.COM/x"),
    (API, "https://user:word@api.example.com/x"),
    ("https://API.EXAMPLE.COM:443/", "https://api.example.com/x"),
    ("https://api.example.com:8443", "https://api.example.com:8443/x"),
    ("https://my_api.example.com", "https://my_api.example.com/x"),
    ("https://192.0.2.7", "https://192.0.2.7/x"),
    ("https://[2001:db8::1]", "https://[2001:DB8::1]:443/x"),
    ("https://[2001:DB8::1]:8443", "https://[2001:db8::1]:8443/x"),
    ("http://localhost:8000", "http://LOCALHOST:8000/x"),
    ("http://127.0.0.1", "http://127.0.0.1:80/x"),
    ("http://127.8.9.10:5000", "http://127.8.9.10:5000/x"),
    ("http://[::1]:9000", "http://[::1]:9000/x"),
    (BUECHER, "https://xn--bcher-kva.example/x"),
    ("https://xn--bcher-kva.example", f"{BUECHER}/x"),
    (BUECHER.upper().replace("HTTPS", "https"), f"{BUECHER}/x"),
    (SUB_BUECHER, "https://api.xn--bcher-kva.example/x"),
    ("https://api.xn--bcher-kva.example", f"{SUB_BUECHER}/x"),
]


@pytest.mark.parametrize(("origin", "url"), ALLOWED)
async def test_a_listed_origin_gets_the_token_however_it_is_spelled(
    *,
    origin: str,
    url: str,
    tokens: TokenManager,
    grant: MockGrant,
    api: ApiDouble,
    client: Client,
) -> None:
    await client.get(url, auth=tokens.auth("crm", origins=["https://b.test", origin]))

    assert api.tokens == [f"Bearer {grant.access_token}"]


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com@evil.test/x",
        "https://api.example.com:443@evil.test/x",
        "https://evil.test/https://api.example.com",
        "https://evil.test/?https://api.example.com",
        "https://evil.test#@api.example.com",
        "https://api.example.com.evil.test/x",
        "https://evil-api.example.com/x",
        "https://sub.api.example.com/x",
        "https://example.com/x",
        "https://api.example.com./x",
        "https://api.example.com%2eevil.test/x",
        "https://api.example.com:8443/x",
        "https://api.example.com:0/x",
        "https://api.example.com:80/x",
        "http://api.example.com/x",
        "http://api.example.com:443/x",
        "http://localhost/x",
        "https://\N{CYRILLIC SMALL LETTER A}pi.example.com/x",
        "ftp://api.example.com/x",
        "/orders",
    ],
)
async def test_another_origin_is_refused_before_anything_is_sent(
    *,
    url: str,
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        await client.get(url, auth=tokens.auth("crm", origins=[API]))

    assert caught.value.setting == "origins"
    assert caught.value.session_id == "crm"
    assert api.requests == []
    assert idp.requests() == []


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "api.example.com",
        "//api.example.com",
        "https://",
        "https:///orders",
        "https://:443",
        "ftp://api.example.com",
        "wss://api.example.com",
        "http://api.example.com",
        "http://0.0.0.0:8000",
        "http://localhost.evil.test",
        "http://127.0.0.1.evil.test",
        "http://127.1",
        "http://2130706433",
        "http://10.0.0.1",
        "http://[::2]",
        "https://*",
        "https://*.example.com",
        "https://api.example.com/v1",
        "https://api.example.com?",
        "https://api.example.com/?page=1",
        "https://api.example.com#",
        "https://user@api.example.com",
        "https://user:word@api.example.com",
        "https://@api.example.com",
        "https://api.example.com:0",
        "https://api.example.com:99999",
        "https://api.example.com:https",
        "https://[::1",
        "https://[::g]",
        "https://300.1.2.3",
        " https://api.example.com",
        "https://api.example.com ",
        "https://api.exam\nple.com",
        "https://api.example.com\\.evil.test",
        "https://api.example.com%2eevil.test",
        "https://xn--\N{LATIN SMALL LETTER U WITH DIAERESIS}.example",
        None,
        7,
        b"https://api.example.com",
    ],
)
def test_an_origin_of_no_use_is_refused_when_the_hook_is_made(
    origin: Options, make_manager: Callable[..., TokenManager]
) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        make_manager().auth("crm", origins=[API, origin])

    assert caught.value.setting == "origins"


@pytest.mark.parametrize("origins", [API, "", [], (), frozenset()])
def test_origins_are_a_list_that_is_not_empty(
    origins: Options, make_manager: Callable[..., TokenManager]
) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        make_manager().auth("crm", origins=origins)

    assert caught.value.setting == "origins"


# -- One way of authentication ------------------------------------------------------


@pytest.mark.parametrize("name", ["Authorization", "authorization"])
async def test_a_request_with_a_header_of_its_own_is_refused(
    name: str, tokens: TokenManager, grant: MockGrant, api: ApiDouble, client: Client
) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        await client.get(
            URL, headers={name: "Basic eDp5"}, auth=tokens.auth("crm", origins=[API])
        )

    assert caught.value.setting == "auth"
    assert api.requests == []


async def test_a_default_header_of_the_client_is_refused(
    family: ModuleType, tokens: TokenManager, grant: MockGrant, api: ApiDouble
) -> None:
    headers = {"authorization": "Basic eDp5"}
    async with open_client(family, api, headers=headers) as client:
        with pytest.raises(MisconfiguredError) as caught:
            await client.get(URL, auth=tokens.auth("crm", origins=[API]))

    assert caught.value.setting == "auth"
    assert api.requests == []


@pytest.mark.spec("RFC 6750 §2.3")
@pytest.mark.parametrize("query", ["access_token=x", "page=1&access_token=x"])
async def test_a_token_in_the_query_is_refused(
    query: str, tokens: TokenManager, grant: MockGrant, api: ApiDouble, client: Client
) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        await client.get(f"{URL}?{query}", auth=tokens.auth("crm", origins=[API]))

    assert caught.value.setting == "auth"
    assert api.requests == []


async def test_a_parameter_of_a_similar_name_is_none_of_our_business(
    tokens: TokenManager, grant: MockGrant, api: ApiDouble, client: Client
) -> None:
    url = f"{URL}?no_access_token=1&access_tokens=2"
    await client.get(url, auth=tokens.auth("crm", origins=[API]))

    assert len(api.requests) == 1


async def test_a_request_may_be_sent_again_by_its_owner(
    tokens: TokenManager,
    grant: MockGrant,
    api: ApiDouble,
    client: Client,
    clock: FakeClock,
) -> None:
    """A retry loop of the application reuses the request, header and all."""
    first = grant.access_token
    hook = tokens.auth("crm", origins=[API])
    request = client.build_request("GET", URL)
    await client.send(request, auth=hook)

    await clock.advance(LIFETIME + 1)
    await client.send(request, auth=hook)

    assert api.tokens == [f"Bearer {first}", f"Bearer {grant.access_token}"]


async def test_a_header_put_into_a_used_request_is_refused(
    tokens: TokenManager, grant: MockGrant, api: ApiDouble, client: Client
) -> None:
    hook = tokens.auth("crm", origins=[API])
    request = client.build_request("GET", URL)
    await client.send(request, auth=hook)
    request.headers["Authorization"] = "Bearer of-somebody-else"

    with pytest.raises(MisconfiguredError):
        await client.send(request, auth=hook)

    assert len(api.requests) == 1


# -- Redirects ----------------------------------------------------------------------


def redirect(location: str, status: int = 302) -> MockResponse:
    return MockResponse(status, (("Location", location),))


@pytest.mark.parametrize("location", ["/new", f"{API}/new", f"{API}:443/new"])
async def test_a_redirect_within_the_origin_keeps_the_token(
    location: str,
    tokens: TokenManager,
    grant: MockGrant,
    api: ApiDouble,
    client: Client,
) -> None:
    api.script = [redirect(location)]
    hook = tokens.auth("crm", origins=[API])

    response = await client.get(URL, auth=hook, follow_redirects=True)

    assert response.status_code == 200
    assert api.tokens == [f"Bearer {grant.access_token}"] * 2


@pytest.mark.spec("RFC 6750 §5.3")
@pytest.mark.parametrize(
    "location",
    [
        "https://cdn.other.test/f",
        "https://sub.api.example.com/f",
        "https://api.example.com:8443/f",
        "http://api.example.com/f",
        "https://api.example.com@evil.test/f",
        "https://listed.test/f",
    ],
)
async def test_a_redirect_to_another_origin_goes_on_without_the_token(
    location: str,
    tokens: TokenManager,
    grant: MockGrant,
    api: ApiDouble,
    client: Client,
) -> None:
    """Even to one that is listed: whoever redirects does not decide that."""
    api.script = [redirect(location, 307)]
    hook = tokens.auth("crm", origins=[API, "https://listed.test"])

    response = await client.post(URL, auth=hook, content=b"body", follow_redirects=True)

    assert response.status_code == 200
    assert api.tokens == [f"Bearer {grant.access_token}", None]
    assert urlsplit(api.requests[1].url).path == "/f"


@pytest.mark.parametrize("location", ["https://cdn.other.test/f", "/new"])
async def test_a_401_of_a_redirect_s_target_does_not_reject_the_token(
    *,
    location: str,
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
) -> None:
    api.script = [redirect(location), MockResponse(401)]
    hook = tokens.auth("crm", origins=[API])

    response = await client.get(URL, auth=hook, follow_redirects=True)

    assert response.status_code == 401
    assert len(api.requests) == 2
    assert idp.requests("token") == []


async def test_a_redirect_may_be_followed_by_hand(
    tokens: TokenManager, grant: MockGrant, api: ApiDouble, client: Client
) -> None:
    api.script = [redirect("/new")]
    hook = tokens.auth("crm", origins=[API])

    response = await client.get(URL, auth=hook, follow_redirects=False)
    await client.send(response.next_request, auth=hook)

    assert api.tokens == [f"Bearer {grant.access_token}"] * 2


# -- What a 401 means ---------------------------------------------------------------

INVALID = 'Bearer error="invalid_token"'


@pytest.mark.spec("RFC 6750 §3.1")
@pytest.mark.parametrize(
    "challenges",
    [
        [],
        ["Bearer"],
        ['Bearer realm="orders", scope="read"'],
        [INVALID],
        ['bearer error="invalid_token", error_description="expired"'],
        ["BEARER error=invalid_token"],
        ["DPoP"],
        ['dPoP algs="ES256", error="invalid_token"'],
        [f'Basic realm="x", {INVALID}'],
        [f'{INVALID}, Basic realm="x"'],
        ['Basic realm="x"', INVALID],
        ["Negotiate abc==", "Bearer"],
    ],
)
async def test_a_rejected_token_is_replaced_and_the_request_sent_again(
    *,
    challenges: list[str],
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
) -> None:
    first = grant.access_token
    headers = tuple(("WWW-Authenticate", value) for value in challenges)
    api.script = [MockResponse(401, headers)]

    response = await client.get(URL, auth=tokens.auth("crm", origins=[API]))

    assert response.status_code == 200
    assert api.tokens == [f"Bearer {first}", f"Bearer {grant.access_token}"]
    assert len(idp.requests("token")) == 1


@pytest.mark.spec("RFC 6750 §3.1")
@pytest.mark.parametrize(
    ("status", "challenges"),
    [
        (401, ['Bearer error="insufficient_scope", scope="write"']),
        (401, ['bearer ERROR="Insufficient_Scope"']),
        (401, ['Bearer error="invalid_request"']),
        (401, ['Bearer error="insufficient_user_authentication", max_age="5"']),
        (401, ['DPoP error="use_dpop_nonce"']),
        (401, ['Basic realm="x"']),
        (401, ["Negotiate abc=="]),
        (401, ['Bearer error="insufficient_scope"', 'DPoP error="invalid_token"']),
        (403, []),
        (403, [INVALID]),
        (403, ['Bearer error="insufficient_scope"']),
        (400, [INVALID]),
        (407, [INVALID]),
        (503, [INVALID]),
        (200, [INVALID]),
    ],
)
async def test_no_other_answer_rejects_the_token(
    *,
    status: int,
    challenges: list[str],
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
) -> None:
    headers = tuple(("WWW-Authenticate", value) for value in challenges)
    api.script = [MockResponse(status, headers)]

    response = await client.get(URL, auth=tokens.auth("crm", origins=[API]))

    assert response.status_code == status
    assert len(api.requests) == 1
    assert idp.requests("token") == []


# -- What follows a rejected token --------------------------------------------------


async def test_the_second_401_is_the_caller_s(
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
) -> None:
    api.answer = unauthorized

    response = await client.get(URL, auth=tokens.auth("crm", origins=[API]))

    assert response.status_code == 401
    assert len(set(api.tokens)) == len(api.requests) == 2
    assert len(idp.requests("token")) == 1


async def test_twenty_rejections_at_once_cause_one_refresh(
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
) -> None:
    idp.revoke_access_token(grant.access_token)
    api.answer = refusing_dead_tokens(idp)
    seen: list[int] = []

    async def call() -> None:
        hook = tokens.auth("crm", origins=[API])
        seen.append((await client.get(URL, auth=hook)).status_code)

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(call)

    assert seen == [200] * 20
    assert len(api.requests) == 40
    assert len(idp.requests("token")) == 1


async def test_a_late_rejection_takes_the_token_that_is_there(
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
) -> None:
    """The answer to a request of long ago is about a token that is replaced."""
    go_on = anyio.Event()
    statuses: list[int] = []

    async def late(request: MockRequest) -> MockResponse:
        await go_on.wait()
        return MockResponse(401)

    async def call() -> None:
        response = await client.get(URL, auth=tokens.auth("crm", origins=[API]))
        statuses.append(response.status_code)

    async with anyio.create_task_group() as group:
        api.answer = late
        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        api.answer = fine
        api.script = [MockResponse(401)]
        await call()
        go_on.set()

    assert statuses == [200, 200]
    assert len(idp.requests("token")) == 1
    assert api.tokens[-1] == f"Bearer {grant.access_token}"


async def test_a_newer_token_in_the_store_saves_the_request(
    *,
    make_manager: Callable[..., TokenManager],
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
) -> None:
    """Another worker has refreshed meanwhile."""
    old = await tokens.get_token("crm")
    async with make_manager() as other:
        await other.get_token("crm", rejected=old)
    assert len(idp.requests("token")) == 1
    api.answer = refusing_dead_tokens(idp)
    idp.revoke_access_token(old.reveal())

    response = await client.get(URL, auth=tokens.auth("crm", origins=[API]))

    assert response.status_code == 200
    assert api.tokens == [f"Bearer {old.reveal()}", f"Bearer {grant.access_token}"]
    assert len(idp.requests("token")) == 1


async def test_forced_refreshes_keep_their_distance(
    *,
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
    clock: FakeClock,
) -> None:
    """An API that refuses everything does not drive the token endpoint."""
    hook = tokens.auth("crm", origins=[API])
    api.answer = unauthorized
    await client.get(URL, auth=hook)

    await clock.advance(29.9)
    early = await client.get(URL, auth=hook)
    assert early.status_code == 401
    assert (len(api.requests), len(idp.requests("token"))) == (3, 1)

    await clock.advance(0.1)
    await client.get(URL, auth=hook)
    assert (len(api.requests), len(idp.requests("token"))) == (5, 2)


FAILURES: dict[str, dict[str, Any]] = {
    "RETRY": {"status": 503, "count": None},
    "DENIED": {"status": 403, "error": "account_locked"},
    "UNCLEAR": {"status": 400, "body": b"no"},
    "MISCONFIGURED": {"error": "invalid_scope"},
    "CLIENT_REJECTED": {"status": 401, "error": "invalid_client"},
}


@pytest.mark.parametrize("disposition", FAILURES)
async def test_the_401_is_the_caller_s_where_the_refresh_fails(
    *,
    disposition: str,
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
    clock: FakeClock,
) -> None:
    fault = idp.fail_next(**FAILURES[disposition])
    api.answer = unauthorized
    statuses: list[int] = []

    async def call() -> None:
        response = await client.get(URL, auth=tokens.auth("crm", origins=[API]))
        statuses.append(response.status_code)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await clock.advance(10)

    assert statuses == [401]
    assert len(api.requests) == 1
    assert fault.met >= 1


async def test_the_401_is_the_caller_s_where_the_store_is_down(
    *,
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
    clock: FakeClock,
    store: BrittleStore,
) -> None:
    store.broken = True
    api.answer = unauthorized
    statuses: list[int] = []

    async def call() -> None:
        response = await client.get(URL, auth=tokens.auth("crm", origins=[API]))
        statuses.append(response.status_code)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await clock.advance(20)

    assert statuses == [401]
    assert len(api.requests) == 1
    assert idp.requests("token") == []


async def test_a_session_that_is_over_raises_and_the_next_call_sends_nothing(
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
) -> None:
    idp.revoke_grant(grant)
    api.answer = refusing_dead_tokens(idp)
    hook = tokens.auth("crm", origins=[API])

    with pytest.raises(SignInRequiredError) as caught:
        await client.get(URL, auth=hook)
    assert caught.value.cleared
    assert caught.value.error == "invalid_grant"
    assert (len(api.requests), len(idp.requests("token"))) == (1, 1)

    with pytest.raises(SignInRequiredError):
        await client.get(URL, auth=hook)
    assert (len(api.requests), len(idp.requests("token"))) == (1, 1)


async def test_no_token_means_an_error_never_a_bare_request(
    tokens: TokenManager, grant: MockGrant, api: ApiDouble, client: Client
) -> None:
    await tokens.end_session("crm")

    with pytest.raises(SignInRequiredError) as caught:
        await client.get(URL, auth=tokens.auth("crm", origins=[API]))

    assert caught.value.reason == "signed_out"
    assert api.requests == []


async def test_an_unknown_session_raises(
    tokens: TokenManager, api: ApiDouble, client: Client
) -> None:
    with pytest.raises(SignInRequiredError) as caught:
        await client.get(URL, auth=tokens.auth("nobody", origins=[API]))

    assert caught.value.reason == "unknown_session"
    assert api.requests == []


async def test_a_manager_that_is_not_entered_is_named(
    make_manager: Callable[..., TokenManager], api: ApiDouble, client: Client
) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        await client.get(URL, auth=make_manager().auth("crm", origins=[API]))

    assert caught.value.setting == "async with"
    assert api.requests == []


# -- Bodies -------------------------------------------------------------------------


async def chunks() -> AsyncIterator[bytes]:
    yield b"first,"
    yield b"second"


class AsyncFile:
    """A file as anyio opens it: read once, from the beginning to the end."""

    def __init__(self) -> None:
        self._file = io.BytesIO(b"first,second")

    def __aiter__(self) -> AsyncFile:
        return self

    async def __anext__(self) -> bytes:
        chunk = self._file.read(5)
        if not chunk:
            raise StopAsyncIteration
        return chunk


STREAMS: dict[str, Callable[[], dict[str, Any]]] = {
    "generator": lambda: {"content": chunks()},
    "file": lambda: {"content": AsyncFile()},
    "multipart file": lambda: {"files": {"f": io.BytesIO(b"first,second")}},
    "multipart": lambda: {"files": {"f": b"first,second"}, "data": {"a": "b"}},
}


@pytest.mark.spec("RFC 9110 §9.2.2")
@pytest.mark.parametrize("kind", STREAMS)
async def test_a_streamed_body_is_refreshed_for_and_never_sent_again(
    *,
    kind: str,
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
) -> None:
    first = grant.access_token
    hook = tokens.auth("crm", origins=[API])
    api.script = [MockResponse(401, body=b"sorry")]

    response = await client.post(URL, auth=hook, **STREAMS[kind]())

    assert (response.status_code, response.content) == (401, b"sorry")
    assert len(api.requests) == 1
    assert b"first,second" in api.requests[0].body
    assert len(idp.requests("token")) == 1

    await client.post(URL, auth=hook, **STREAMS[kind]())
    assert api.tokens == [f"Bearer {first}", f"Bearer {grant.access_token}"]
    assert b"first,second" in api.requests[1].body


@pytest.mark.parametrize(
    "body",
    [
        {"content": b"\x00bytes"},
        {"content": "text"},
        {"json": {"a": [1, None]}},
        {"data": {"a": "b c"}},
        {},
    ],
    ids=["bytes", "text", "json", "form", "none"],
)
async def test_a_body_at_hand_is_sent_again_whole(
    *,
    body: dict[str, Any],
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
) -> None:
    api.script = [MockResponse(401)]

    response = await client.post(URL, auth=tokens.auth("crm", origins=[API]), **body)

    assert response.status_code == 200
    first, second = api.requests
    assert first.body == second.body
    assert bool(first.body) == bool(body)
    assert first.header("content-type") == second.header("content-type")
    assert first.header("content-length") == second.header("content-length")
    assert api.tokens[1] == f"Bearer {grant.access_token}"


async def test_the_answer_may_be_streamed(
    tokens: TokenManager, grant: MockGrant, api: ApiDouble, client: Client
) -> None:
    api.script = [MockResponse(401, body=b"no"), MockResponse(200, body=b"yes")]
    hook = tokens.auth("crm", origins=[API])

    async with client.stream("GET", URL, auth=hook) as response:
        body = b"".join([chunk async for chunk in response.aiter_bytes()])

    assert body == b"yes"


# -- Cancelled, closed, shared ------------------------------------------------------


async def test_a_request_cancelled_under_way_leaves_nothing_behind(
    tokens: TokenManager, grant: MockGrant, api: ApiDouble, client: Client
) -> None:
    hook = tokens.auth("crm", origins=[API])

    async def hang(request: MockRequest) -> NoReturn:
        await anyio.sleep_forever()
        raise AssertionError

    api.answer = hang
    async with anyio.create_task_group() as group:

        async def call() -> None:
            await client.get(URL, auth=hook)

        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()

    api.answer = fine
    assert (await client.get(URL, auth=hook)).status_code == 200
    assert api.tokens == [f"Bearer {grant.access_token}"] * 2


async def test_a_caller_cancelled_during_the_refresh_loses_nothing(
    *,
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
    clock: FakeClock,
) -> None:
    hook = tokens.auth("crm", origins=[API])
    fault = idp.hold_next()
    api.script = [MockResponse(401)]
    async with anyio.create_task_group() as group:

        async def call() -> None:
            await client.get(URL, auth=hook)

        group.start_soon(call)
        await fault.reached()
        group.cancel_scope.cancel()

    fault.release()
    await clock.settle()
    assert (await client.get(URL, auth=hook)).status_code == 200
    assert api.tokens[-1] == f"Bearer {grant.access_token}"
    assert len(idp.requests("token")) == 1


async def test_others_go_on_while_a_refresh_is_under_way(
    *,
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
    api: ApiDouble,
    client: Client,
    clock: FakeClock,
) -> None:
    """The event loop is not blocked, nor is another session."""
    other = idp.new_grant("user-2")
    await tokens.add_session(
        "other",
        refresh_token=other.refresh_token or "",
        access_token=other.access_token,
        expires_at=clock.time() + LIFETIME,
    )
    fault = idp.hold_next()
    api.script = [MockResponse(401)]

    async def call() -> None:
        await client.get(URL, auth=tokens.auth("crm", origins=[API]))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await fault.reached()
        for _ in range(3):
            await client.get(URL, auth=tokens.auth("other", origins=[API]))
        fault.release()

    assert api.tokens[1:4] == [f"Bearer {other.access_token}"] * 3
    assert api.tokens[4] == f"Bearer {grant.access_token}"


async def test_a_client_closed_under_way_does_not_harm_the_manager(
    family: ModuleType, tokens: TokenManager, grant: MockGrant, api: ApiDouble
) -> None:
    hook = tokens.auth("crm", origins=[API])
    go_on = anyio.Event()

    async def late(request: MockRequest) -> MockResponse:
        await go_on.wait()
        return MockResponse(401)

    api.answer = late
    first = open_client(family, api)

    async def call() -> None:
        await first.get(URL, auth=hook)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        await first.aclose()
        api.answer = fine
        go_on.set()

    async with open_client(family, api) as second:
        assert (await second.get(URL, auth=hook)).status_code == 200


@pytest.mark.parametrize("rejected", [False, True])
async def test_the_flow_may_be_closed_in_another_task(
    *,
    rejected: bool,
    family: Family,
    tokens: TokenManager,
    grant: MockGrant,
    idp: MockIdP,
) -> None:
    """Nothing is held at a ``yield``: neither a lock nor a task's scope."""
    flow = tokens.auth("crm", origins=[API]).async_auth_flow(family.Request("GET", URL))
    request = await flow.__anext__()
    if rejected:
        request = await flow.asend(family.Response(401, request=request))

    async with anyio.create_task_group() as group:
        group.start_soon(flow.aclose)

    with pytest.raises(StopAsyncIteration):
        await flow.__anext__()
    token = await tokens.get_token("crm")
    assert request.headers["Authorization"] == f"Bearer {token.reveal()}"
    assert len(idp.requests("token")) == int(rejected)


async def test_one_hook_serves_many_requests_at_once(
    tokens: TokenManager, grant: MockGrant, api: ApiDouble, client: Client
) -> None:
    hook = tokens.auth("crm", origins=[API])

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(
                lambda path: client.get(f"{API}/{path}", auth=hook), str(number)
            )

    assert {request.path for request in api.requests} == {f"/{n}" for n in range(20)}
    assert set(api.tokens) == {f"Bearer {grant.access_token}"}


async def test_the_token_endpoint_s_own_client_does_not_recurse(
    family: ModuleType,
    make_manager: Callable[..., TokenManager],
    idp: MockIdP,
    api: ApiDouble,
) -> None:
    """One client for everything, with the hook as its default."""
    async with (
        open_client(family, Router(idp, api)) as shared,
        make_manager(http_client=shared) as tokens,
    ):
        session = await idp.new_session(tokens)
        shared.auth = tokens.auth(session.id, origins=[API, idp.issuer])
        with anyio.fail_after(20):
            response = await shared.get(URL)

    assert response.status_code == 200
    (sent,) = idp.requests("token")
    assert sent.headers["authorization"].startswith("Basic ")
    assert api.tokens == [f"Bearer {idp.grant(session.id).access_token}"]


async def test_event_hooks_of_the_client_see_every_try(
    family: ModuleType, tokens: TokenManager, grant: MockGrant, api: ApiDouble
) -> None:
    first = grant.access_token
    seen: list[str | int] = []

    async def before(request: Message) -> None:
        seen.append(request.headers["Authorization"])

    async def after(response: Message) -> None:
        seen.append(response.status_code)

    api.script = [MockResponse(401)]
    hooks = {"request": [before], "response": [after]}
    async with open_client(family, api, event_hooks=hooks) as client:
        await client.get(URL, auth=tokens.auth("crm", origins=[API]))

    second = grant.access_token
    assert seen == [f"Bearer {first}", 401, f"Bearer {second}", 200]


async def test_an_event_hook_that_raises_keeps_its_exception(
    family: Family, tokens: TokenManager, grant: MockGrant, idp: MockIdP, api: ApiDouble
) -> None:
    """It takes the 401 before the auth hook sees it: then there is no refresh."""

    async def strict(response: Message) -> None:
        response.raise_for_status()

    api.script = [MockResponse(401)]
    hook = tokens.auth("crm", origins=[API])
    async with open_client(family, api, event_hooks={"response": [strict]}) as client:
        with pytest.raises(family.HTTPStatusError):
            await client.get(URL, auth=hook)
        response = await client.get(URL, auth=hook)

    assert response.status_code == 200
    assert idp.requests("token") == []


# -- Synchronous clients ------------------------------------------------------------


def test_a_synchronous_client_is_refused(
    family: Family, make_manager: Callable[..., TokenManager], api: ApiDouble
) -> None:
    hook = make_manager().auth("crm", origins=[API])
    sent: list[object] = []

    def answer(request: object) -> Message:
        sent.append(request)
        return family.Response(200)

    with family.Client(transport=family.MockTransport(answer)) as client:
        with pytest.raises(TypeError, match=r"freshtoken\.sync"):
            client.get(URL, auth=hook)
        with (
            pytest.raises(TypeError, match=r"freshtoken\.sync"),
            client.stream("POST", URL, content=b"x", auth=hook),
        ):
            pass

    assert sent == []


def test_the_plain_flow_is_refused(
    family: Family, make_manager: Callable[..., TokenManager]
) -> None:
    """What other clients of the ``Auth`` interface call."""
    hook = make_manager().auth("crm", origins=[API])

    with pytest.raises(TypeError, match=r"freshtoken\.sync"):
        next(hook.auth_flow(family.Request("GET", URL)))


# -- Cost and secrecy ---------------------------------------------------------------


def test_a_hook_is_made_without_io_loop_or_client(
    make_manager: Callable[..., TokenManager],
    monkeypatch: pytest.MonkeyPatch,
    idp: MockIdP,
    store: BrittleStore,
) -> None:
    manager = make_manager()
    store.broken = True

    def refuse(*args: object, **options: object) -> NoReturn:
        message = "a hook needs no client"
        raise AssertionError(message)

    for made in (httpx.AsyncClient, httpx.Client, httpx2.AsyncClient, httpx2.Client):
        monkeypatch.setattr(made, "__init__", refuse)
    monkeypatch.setattr(ssl, "create_default_context", refuse)

    hooks = [manager.auth(f"user-{n}", origins=[API]) for n in range(1000)]

    assert len({type(hook) for hook in hooks}) == 1
    assert isinstance(hooks[0], httpx.Auth)
    assert isinstance(hooks[0], httpx2.Auth)
    assert idp.requests() == []


async def test_neither_repr_nor_errors_show_the_token(
    tokens: TokenManager, grant: MockGrant, client: Client
) -> None:
    hook = tokens.auth("crm", origins=[API, "http://[::1]:8000"])
    request = client.build_request("GET", URL)
    await client.send(request, auth=hook)
    shown = [repr(hook), str(hook), f"{hook}", repr(request.extensions)]

    with pytest.raises(FreshTokenError) as caught:
        await client.get("https://evil.test/?secret=1", auth=hook)
    shown += [str(caught.value), repr(caught.value)]

    assert all(grant.access_token not in text for text in shown)
    assert "secret" not in str(caught.value)
    assert "'crm'" in shown[0]
    assert "https://api.example.com, " not in shown[0].replace(
        "http://[::1]:8000, ", ""
    )
    assert "http://[::1]:8000" in shown[0]


async def test_no_log_shows_a_token(
    tokens: TokenManager,
    grant: MockGrant,
    api: ApiDouble,
    client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = [grant.access_token, grant.refresh_token or ""]
    api.script = [MockResponse(401)]

    await client.get(URL, auth=tokens.auth("crm", origins=[API]))

    secrets += [grant.access_token, grant.refresh_token or ""]
    text = "\n".join(f"{vars(record)}" for record in caplog.records)
    assert "401" in text
    assert [secret for secret in secrets if secret in text] == []


# -- What is installed --------------------------------------------------------------

PROGRAM = """
import sys
{before}
import anyio
import httpx
from freshtoken import TokenManager
from freshtoken.testing import MockIdP, MockResponse
from freshtoken.testing.transport import make_transport

class Api:
    issuer = "api"
    seen = []

    async def handle(self, request):
        self.seen.append(request.header("authorization"))
        return MockResponse(200)

async def main():
    idp = MockIdP()
    client = idp.http_client()
    async with TokenManager(idp.client(), http_client=client) as tokens:
        session = await idp.new_session(tokens)
        assert sys.modules.get("httpx2") is None
        hook = tokens.auth(session.id, origins=["https://api.test"])
        for family in ({families}):
            transport = make_transport(family, Api())
            async with family.AsyncClient(transport=transport) as api:
                assert isinstance(hook, family.Auth)
                await api.get("https://api.test/x", auth=hook)
    token = idp.grant(session.id).access_token
    assert Api.seen == ["Bearer " + token] * len(({families})), len(Api.seen)
    print("done", [base.__module__ for base in type(hook).__mro__])

anyio.run(main)
"""

BLOCKED = 'sys.modules["httpx2"] = None'
BROKEN = """
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "httpx2":
            raise ImportError("half installed")

sys.meta_path.insert(0, Broken())
"""


def run_program(before: str, families: str) -> str:
    program = PROGRAM.format(before=before, families=families)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("before", [BLOCKED, BROKEN], ids=["absent", "broken"])
def test_httpx_alone_is_enough(before: str) -> None:
    assert "httpx2" not in run_program(before, "httpx,")


def test_one_hook_fits_both_families() -> None:
    """The second family is not imported before a hook is made."""
    assert "'httpx2'" in run_program("", '__import__("httpx2"), httpx')

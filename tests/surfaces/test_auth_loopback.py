"""The auth hook over real sockets, against an API that refuses dead tokens."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, TypeAlias, cast

import anyio
import httpx
import httpx2
import pytest

from freshtoken import MisconfiguredError, Session, TokenManager
from freshtoken.testing import MockIdP, MockRequest, MockResponse
from freshtoken.testing.server import serve
from tests.wire.tcp import OK, Peer, answering

pytestmark = pytest.mark.loopback

# Of either family, which share no classes.
Client: TypeAlias = Any
Family: TypeAlias = Any

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


class APIServer:
    """An API that asks the authorization server whether a token lives.

    Attributes:
        seen: Path, Authorization header, body and status of each request.
    """

    def __init__(self, idp: MockIdP) -> None:
        self._idp = idp
        self.seen: list[tuple[str, str | None, bytes, int]] = []
        self.redirect_to = ""

    async def handle(self, request: MockRequest) -> MockResponse:
        header = request.header("authorization")
        alive = self._idp.is_active((header or "").removeprefix("Bearer "))
        response = MockResponse(200 if alive else 401, body=b"orders")
        if request.path == "/redirect":
            response = MockResponse(302, (("Location", self.redirect_to),))
        self.seen.append((request.path, header, request.body, response.status))
        if request.path == "/hang":
            await anyio.sleep_forever()
        return response

    @property
    def statuses(self) -> list[int]:
        return [status for _, _, _, status in self.seen]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve as the mock server does; connections stay open."""
        async with serve(cast("MockIdP", self), keep_alive=True) as url:
            yield url


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def family(request: pytest.FixtureRequest) -> ModuleType:
    module = request.param
    assert isinstance(module, ModuleType)
    return module


@pytest.fixture
async def idp() -> AsyncIterator[MockIdP]:
    server = MockIdP(access_token_lifetime=300.0)
    async with server.serve():
        yield server
    server.assert_no_pending_faults()


@pytest.fixture
async def tokens(idp: MockIdP) -> AsyncIterator[TokenManager]:
    async with TokenManager(idp.client()) as manager:
        yield manager


@pytest.fixture
async def session(tokens: TokenManager, idp: MockIdP) -> Session:
    """A session with a live token: one token request was made."""
    session = await idp.new_session(tokens)
    await tokens.get_token(session.id)
    return session


@pytest.fixture
def api(idp: MockIdP) -> APIServer:
    return APIServer(idp)


@pytest.fixture
async def url(api: APIServer) -> AsyncIterator[str]:
    async with api.serve() as base:
        yield base


@pytest.fixture
async def client(family: Family) -> AsyncIterator[Client]:
    async with family.AsyncClient() as made:
        yield made


async def test_a_token_that_ended_early_is_replaced(
    *,
    tokens: TokenManager,
    session: Session,
    idp: MockIdP,
    api: APIServer,
    url: str,
    client: Client,
) -> None:
    """The servers' clocks are ahead: they refuse what still lives here."""
    first = await tokens.get_token(session.id)
    idp.clock_skew = 400.0

    response = await client.post(
        f"{url}/orders", content=b"order", auth=tokens.auth(session.id, origins=[url])
    )

    assert (response.status_code, response.content) == (200, b"orders")
    second = idp.grant(session.id).access_token
    assert api.seen == [
        ("/orders", f"Bearer {first.reveal()}", b"order", 401),
        ("/orders", f"Bearer {second}", b"order", 200),
    ]
    assert len(idp.requests("token")) == 2


async def test_no_call_fails_while_tokens_come_and_go(
    idp: MockIdP, api: APIServer, url: str, client: Client
) -> None:
    """Five workers for four lifetimes of a token, and not one 401."""
    idp.rules.access_token_lifetime = 1.0
    async with TokenManager(idp.client()) as tokens:
        session = await idp.new_session(tokens)

        async def work() -> None:
            with anyio.move_on_after(4):
                while True:
                    hook = tokens.auth(session.id, origins=[url])
                    await client.get(f"{url}/orders", auth=hook)
                    await anyio.sleep(0.01)

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(work)

    assert len(api.seen) > 100
    assert set(api.statuses) == {200}
    assert 4 <= len(idp.requests("token")) <= 8
    assert len({header for _, header, _, _ in api.seen}) >= 4


async def test_a_streamed_body_goes_over_the_wire_once(
    *,
    tokens: TokenManager,
    session: Session,
    idp: MockIdP,
    api: APIServer,
    url: str,
    client: Client,
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"first,"
        yield b"second"

    hook = tokens.auth(session.id, origins=[url])
    idp.revoke_access_token(idp.grant(session.id).access_token)

    refused = await client.post(f"{url}/upload", content=chunks(), auth=hook)
    accepted = await client.post(f"{url}/upload", content=chunks(), auth=hook)

    assert (refused.status_code, accepted.status_code) == (401, 200)
    assert [body for _, _, body, _ in api.seen] == [b"first,second"] * 2
    assert len(idp.requests("token")) == 2


async def test_a_redirect_to_another_port_goes_without_the_token(
    *,
    tokens: TokenManager,
    session: Session,
    idp: MockIdP,
    api: APIServer,
    url: str,
    client: Client,
) -> None:
    elsewhere = APIServer(idp)
    async with elsewhere.serve() as other:
        api.redirect_to = f"{other}/there"
        response = await client.get(
            f"{url}/redirect",
            auth=tokens.auth(session.id, origins=[url, other]),
            follow_redirects=True,
        )

    assert response.status_code == 401
    assert elsewhere.seen == [("/there", None, b"", 401)]
    assert len(api.seen) == 1
    assert len(idp.requests("token")) == 1


async def test_a_request_cancelled_on_the_wire_leaves_nothing_behind(
    tokens: TokenManager, session: Session, api: APIServer, url: str, client: Client
) -> None:
    hook = tokens.auth(session.id, origins=[url])
    with anyio.move_on_after(0.3) as patience:
        await client.get(f"{url}/hang", auth=hook)
    assert patience.cancelled_caught

    response = await client.get(f"{url}/orders", auth=hook)

    assert response.status_code == 200
    assert [path for path, _, _, _ in api.seen] == ["/hang", "/orders"]


async def test_a_client_closed_on_the_wire_leaves_nothing_behind(
    family: Family, tokens: TokenManager, session: Session, api: APIServer, url: str
) -> None:
    hook = tokens.auth(session.id, origins=[url])
    first = family.AsyncClient()
    ended = anyio.Event()

    async def call() -> None:
        try:
            await first.get(f"{url}/hang", auth=hook)
        except Exception:  # noqa: BLE001 -- each backend has its own
            ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        while not api.seen:  # noqa: ASYNC110 -- it is seen in another thread
            await anyio.sleep(0.01)
        await first.aclose()
        with anyio.move_on_after(5):
            await ended.wait()
        group.cancel_scope.cancel()

    async with family.AsyncClient() as second:
        response = await second.get(f"{url}/orders", auth=hook)
    assert response.status_code == 200


async def test_a_proxy_never_sees_the_token_for_loopback(
    *,
    family: Family,
    tokens: TokenManager,
    session: Session,
    api: APIServer,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both families send loopback through ``HTTP_PROXY`` unless told otherwise."""
    hook = tokens.auth(session.id, origins=[url])
    with Peer(answering(OK)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        async with family.AsyncClient() as client:
            # The proxy is used indeed, and its connection is up already.
            assert (await client.get(f"{url}/orders")).content == b"{}"
            with pytest.raises(MisconfiguredError) as caught:
                await client.get(f"{url}/orders", auth=hook)

    assert caught.value.setting == "trust_env"
    assert b"/orders" in proxy.received[0]
    assert all(b"earer" not in received for received in proxy.received)
    assert api.seen == []


async def test_a_client_that_avoids_the_proxy_is_served(
    *,
    family: Family,
    tokens: TokenManager,
    session: Session,
    api: APIServer,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller's own trace goes on, also when a request is sent twice."""
    events: list[str] = []

    async def trace(event: str, info: object) -> None:
        events.append(event.rpartition(".")[2])

    hook = tokens.auth(session.id, origins=[url])
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with family.AsyncClient() as client:
        request = client.build_request(
            "GET", f"{url}/orders", extensions={"trace": trace}
        )
        await client.send(request, auth=hook)
        guard = request.extensions["trace"]
        assert "started" in events
        events.clear()
        await client.send(request, auth=hook)

    assert api.statuses == [200, 200]
    assert "started" in events
    assert request.extensions["trace"] is guard


async def test_no_log_shows_a_token(
    *,
    tokens: TokenManager,
    session: Session,
    idp: MockIdP,
    url: str,
    client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not even the wire's own, at DEBUG."""
    caplog.set_level(logging.DEBUG)
    grant = idp.grant(session.id)
    secrets = [grant.access_token, grant.refresh_token or ""]
    idp.revoke_access_token(grant.access_token)

    await client.get(f"{url}/orders", auth=tokens.auth(session.id, origins=[url]))

    secrets += [grant.access_token, grant.refresh_token or ""]
    names = {record.name.partition(".")[0] for record in caplog.records}
    assert names & {"httpcore", "httpcore2"}
    text = "\n".join(
        f"{vars(record)} {record.getMessage()}" for record in caplog.records
    )
    assert [secret for secret in secrets if secret in text] == []

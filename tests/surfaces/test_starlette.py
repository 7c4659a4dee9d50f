"""Login, callback and logout routes, and the session of a request."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from urllib.parse import parse_qs, quote, urlsplit

import anyio
import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from freshtoken import (
    FreshTokenError,
    MemoryStore,
    MisconfiguredError,
    Session,
    TokenManager,
)
from freshtoken._web import is_local
from freshtoken.abc import ReadResult
from freshtoken.starlette import SignInRoutes
from freshtoken.testing import FakeClock, MockIdP
from freshtoken.testing.browser import CallbackForm

BROWSER = {"Accept": "text/html,application/xhtml+xml", "Sec-Fetch-Mode": "navigate"}
SCRIPT = {"Accept": "*/*", "Sec-Fetch-Mode": "cors"}

Handler = Callable[[Request], Awaitable[Response]]


class FailingStore(MemoryStore):
    """A store that can be down."""

    down = False

    async def read(self, key: str) -> ReadResult:
        if self.down:
            raise OSError
        return await super().read(key)


class Site:
    """An application with one page of its own, and a browser before it."""

    def __init__(self, tokens: TokenManager, idp: MockIdP, **options: Any) -> None:  # noqa: ANN401 -- handed on
        self.tokens = tokens
        self.idp = idp
        self.auth = SignInRoutes(tokens, **options)
        self.page: Handler = self.who
        self.app: ASGIApp = Starlette(
            routes=self.routes(),
            exception_handlers=self.auth.exception_handlers,
        )
        self.browser = self.new_browser()

    def routes(self) -> list[BaseRoute]:
        async def page(request: Request) -> Response:
            return await self.page(request)

        methods = ["GET", "POST"]
        return [*self.auth.routes, Route("/orders", page, methods=methods)]

    async def who(self, request: Request) -> Response:
        session = await self.auth.session(request)
        return PlainTextResponse(str(session.claims["sub"]))

    def new_browser(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app)
        return httpx.AsyncClient(
            transport=transport, base_url="https://app.test", headers=BROWSER
        )

    async def begin(self, path: str = "/login") -> httpx.Response:
        """Visit the login, and let the server send the browser back."""
        away = await self.browser.get(path)
        assert away.status_code == 303, away.text
        return away

    async def come_back(self, away: httpx.Response, **options: Any) -> httpx.Response:  # noqa: ANN401 -- handed on
        callback = await self.idp.browse(away.headers["location"], **options)
        if isinstance(callback, CallbackForm):
            return await self.browser.post(callback.url, data=dict(callback))
        return await self.browser.get(callback)

    async def sign_in(self, path: str = "/login") -> httpx.Response:
        return await self.come_back(await self.begin(path))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def idp(clock: FakeClock) -> Iterator[MockIdP]:
    server = MockIdP(clock=clock, rng=random.Random(7))
    yield server
    server.assert_no_pending_faults()


@pytest.fixture
def store(clock: FakeClock) -> FailingStore:
    return FailingStore(clock=clock)


@pytest.fixture
def tokens(idp: MockIdP, clock: FakeClock, store: FailingStore) -> TokenManager:
    return TokenManager(
        idp.client(),
        http_client=idp.http_client(),
        clock=clock,
        store=store,
        rng=random.Random(1),
    )


@asynccontextmanager
async def running(
    tokens: TokenManager,
    idp: MockIdP,
    **options: Any,  # noqa: ANN401 -- handed on
) -> AsyncIterator[Site]:
    async with tokens:
        site = Site(tokens, idp, **options)
        async with site.browser:
            yield site


def cookies_of(response: httpx.Response) -> dict[str, str]:
    """Return the ``Set-Cookie`` fields by the cookie's name."""
    fields = response.headers.get_list("set-cookie")
    return {field.partition("=")[0]: field for field in fields}


# Signing in


async def test_browser_signs_in_and_comes_back_to_where_it_was(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp) as site:
        refused = await site.browser.get("/orders?page=2")
        back = await site.sign_in(refused.headers["location"])
        page = await site.browser.get(back.headers["location"])

    assert refused.status_code == 303
    assert refused.headers["location"] == "/login?return_to=%2Forders%3Fpage%3D2"
    assert (back.status_code, back.headers["location"]) == (303, "/orders?page=2")
    assert (page.status_code, page.text) == (200, "alice")


async def test_cookies_are_for_this_host_and_no_script(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp) as site:
        away = await site.begin()
        back = await site.come_back(away)

    (sign_in,) = cookies_of(away).items()
    session = cookies_of(back)["__Host-session"]
    assert sign_in[0].startswith("__Host-session-sign-in-")
    for field in (sign_in[1], session):
        parts = {part.strip().lower() for part in field.split(";")[1:]}
        assert {"httponly", "secure", "path=/", "samesite=lax"} <= parts
        assert not any(part.startswith("domain") for part in parts)
    assert "max-age=600" in sign_in[1].lower()
    assert "max-age=2592000" in session.lower()
    assert "max-age=0" in cookies_of(back)[sign_in[0]].lower()
    for response in (away, back):
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["referrer-policy"] == "no-referrer"


async def test_session_cookie_is_the_handle_and_never_the_id(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp) as site:
        await site.sign_in()
        handle = site.browser.cookies["__Host-session"]
        session = await tokens.get_session(handle=handle)

    assert session.id != handle
    assert session.claims["sub"] == "alice"


async def test_form_post_needs_a_cookie_for_other_sites(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp, response_mode="form_post") as site:
        away = await site.begin()
        back = await site.come_back(away)
        by_get = await site.browser.get("/callback?state=x&code=y")

    (field,) = cookies_of(away).values()
    assert "samesite=none" in field.lower()
    assert back.status_code == 303
    assert "samesite=lax" in cookies_of(back)["__Host-session"].lower()
    assert by_get.status_code == 405


async def test_two_tabs_sign_in_side_by_side(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp) as site:
        first, second = await site.begin(), await site.begin()
        assert (await site.come_back(second)).status_code == 303
        assert (await site.come_back(first)).status_code == 303
        assert (await site.browser.get("/orders")).text == "alice"


async def test_new_sign_in_ends_the_session_that_was_there(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp) as site:
        await site.sign_in()
        old = site.browser.cookies["__Host-session"]
        await site.sign_in()

        with pytest.raises(FreshTokenError) as caught:
            await tokens.get_session(handle=old)
        assert (await site.browser.get("/orders")).text == "alice"
    assert getattr(caught.value, "reason", None) == "replaced"


async def test_too_many_sign_ins_under_way_give_way_to_the_newest(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp) as site:
        for _ in range(11):
            await site.begin()
        newest = await site.begin()
        held = [name for name in site.browser.cookies if "sign-in" in name]
        back = await site.come_back(newest)

    assert len(held) == 5
    assert back.status_code == 303


@pytest.mark.parametrize("method", ["HEAD"])
@pytest.mark.parametrize("path", ["/login", "/callback?state=x&code=y"])
async def test_a_look_ahead_begins_and_completes_nothing(
    tokens: TokenManager, idp: MockIdP, path: str, method: str
) -> None:
    async with running(tokens, idp) as site:
        response = await site.browser.request(method, path)

    assert response.status_code == 405
    assert idp.requests() == []


async def test_application_under_a_path_leads_to_its_own_login(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp) as site:
        app = Starlette(routes=[Mount("/app", app=site.app)])
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="https://app.test"
        ) as browser:
            refused = await browser.get("/app/orders", headers=BROWSER)

    location = urlsplit(refused.headers["location"])
    assert location.path == "/app/login"
    assert parse_qs(location.query) == {"return_to": ["/app/orders"]}


# Who is there


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (BROWSER, 303),
        ({"Accept": "text/html"}, 303),
        (SCRIPT, 401),
        ({"Accept": "text/html", "Sec-Fetch-Mode": "cors"}, 401),
        ({"Accept": "text/html", "X-Requested-With": "XMLHttpRequest"}, 401),
        ({"Accept": "application/json"}, 401),
        ({"Accept": "*/*"}, 401),
    ],
)
async def test_browsers_are_led_to_the_login_and_others_get_a_401(
    tokens: TokenManager, idp: MockIdP, headers: dict[str, str], status: int
) -> None:
    async with running(tokens, idp) as site:
        site.browser.headers = httpx.Headers(headers)
        response = await site.browser.get("/orders")

    assert response.status_code == status
    assert ("location" in response.headers) == (status == 303)
    assert ("www-authenticate" in response.headers) == (status == 401)
    assert response.headers["cache-control"] == "no-store"


async def test_form_that_was_posted_is_not_gone_back_to(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp) as site:
        response = await site.browser.post("/orders")

    assert (response.status_code, response.headers["location"]) == (303, "/login")


@pytest.mark.parametrize(
    "cookie", ["", "x", "x" * 43, "x" * 5000, "å" * 43, "'; drop table", "x" * 42 + "="]
)
async def test_forged_cookie_is_nobody(
    tokens: TokenManager, idp: MockIdP, cookie: str
) -> None:
    async with running(tokens, idp) as site:
        header = f"__Host-session={cookie}".encode()
        response = await site.browser.get("/orders", headers=[(b"Cookie", header)])

    assert response.status_code == 303


async def test_session_id_in_the_cookie_opens_nothing(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp) as site:
        await site.sign_in()
        handle = site.browser.cookies["__Host-session"]
        session = await tokens.get_session(handle=handle)
        header = {"Cookie": f"__Host-session={session.id[:43]}"}
        site.browser.cookies.clear()
        response = await site.browser.get("/orders", headers=header)

    assert response.status_code == 303


async def test_store_that_is_down_is_a_503_and_signs_nobody_out(
    tokens: TokenManager, idp: MockIdP, store: FailingStore
) -> None:
    async with running(tokens, idp) as site:
        await site.sign_in()
        store.down = True
        during = await site.browser.get("/orders")
        login = await site.browser.get("/login")
        logout = await site.browser.post("/logout")
        store.down = False
        after = await site.browser.get("/orders")

    assert (during.status_code, logout.status_code) == (503, 503)
    assert login.status_code == 303
    assert int(during.headers["retry-after"]) > 0
    assert (after.status_code, after.text) == (200, "alice")


async def test_fastapi_takes_the_session_as_a_dependency(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with tokens:
        auth = SignInRoutes(tokens)
        app = FastAPI(routes=auth.routes)

        async def me(session: Any) -> dict[str, object]:  # noqa: ANN401 -- set below
            return {"sub": session.claims["sub"]}

        # An annotation in a function is text here, which FastAPI could not resolve.
        me.__annotations__["session"] = Annotated[Session, Depends(auth.session)]
        app.get("/me")(me)

        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="https://app.test"
        ) as browser:
            before = await browser.get("/me", headers=SCRIPT)
            away = await browser.get("/login")
            callback = await idp.browse(away.headers["location"])
            assert isinstance(callback, str)
            await browser.get(callback)
            after = await browser.get("/me")

    assert before.status_code == 401
    assert after.json() == {"sub": "alice"}


@pytest.mark.parametrize(
    ("tenant", "login"),
    [
        ("%5Cevil.test", "/%5Cevil.test/login"),
        ("a%0d%0aSet-Cookie:%20x=1", "/a%0D%0ASet-Cookie%3A%20x%3D1/login"),
        ("%E4%BD%A0", "/%E4%BD%A0/login"),
    ],
)
@pytest.mark.parametrize("headers", [BROWSER, SCRIPT])
async def test_mount_path_that_the_visitor_chose_leads_nowhere_else(
    tokens: TokenManager,
    idp: MockIdP,
    *,
    tenant: str,
    login: str,
    headers: dict[str, str],
) -> None:
    async with running(tokens, idp) as site:
        app = Starlette(routes=[Mount("/{tenant}", routes=site.routes())])
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="https://app.test"
        ) as browser:
            response = await browser.get(f"/{tenant}/orders", headers=headers)

    place = response.headers.get("location") or response.headers["www-authenticate"]
    assert login in place
    assert place.isascii()
    assert "\r" not in place


@pytest.mark.parametrize("path", ["/callback", "/orders", "/login"])
async def test_query_of_odd_octets_is_no_servers_error(
    tokens: TokenManager, idp: MockIdP, path: str
) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:  # noqa: ANN401 -- of the protocol
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "headers": [(b"accept", b"text/html"), (b"host", b'a"\\b')],
        "query_string": b"state=\xff&code=\xff",
    }
    async with running(tokens, idp) as site:
        await site.app(scope, receive, send)

    assert sent[0]["status"] in {303, 400}


async def test_cookies_of_odd_names_are_left_alone(
    tokens: TokenManager, idp: MockIdP
) -> None:
    names = [f"__Host-session-sign-in-({n})=x" for n in range(9)]
    async with running(tokens, idp) as site:
        away = await site.browser.get("/login", headers={"Cookie": "; ".join(names)})

    assert away.status_code == 303
    assert len(cookies_of(away)) == 1


async def test_session_of_another_client_is_nobody_here(
    tokens: TokenManager, idp: MockIdP, store: FailingStore, clock: FakeClock
) -> None:
    idp.add_client("other", client_secret="x" * 40)
    others = TokenManager(
        idp.client(client_id="other"),
        http_client=idp.http_client(),
        clock=clock,
        store=store,
    )
    async with others:
        session = await idp.sign_in(others)
        assert session.handle is not None
        header = {"Cookie": f"__Host-session={session.handle.reveal()}"}
        async with running(tokens, idp) as site:
            page = await site.browser.get("/orders", headers=header)
            out = await site.browser.post("/logout", headers=header)
        assert (await others.get_session(session.id)).id == session.id

    assert (page.status_code, out.status_code) == (303, 303)
    assert "__Host-session" in cookies_of(out)


async def test_session_that_is_over_at_once_is_no_loop(
    tokens: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """The server signs the browser in again and again, and its tokens never do."""
    async with running(tokens, idp) as site:

        async def page(request: Request) -> Response:
            session = await site.auth.session(request)
            await tokens.get_token(session.id)
            return PlainTextResponse("fresh")

        site.page = page
        await site.sign_in()
        for grant in idp.ledger.grants.values():
            idp.revoke_grant(grant)
        await clock.advance(400.0)
        first = await site.browser.get("/orders")
        idp.reshape_next("token", merge={"expires_in": 0}, remove=["refresh_token"])
        await site.sign_in()
        second = await site.browser.get("/orders")

    assert first.status_code == 401
    assert second.status_code == 401
    assert "location" not in second.headers


# Addresses to go back to


HOSTILE = [
    "https://evil.test/",
    "//evil.test/",
    "/\\evil.test/",
    "\\\\evil.test",
    "/\t/evil.test",
    "/\n/evil.test",
    "javascript:alert(1)",
    "evil.test",
    "",
    "?x",
    "/" + "x" * 2048,
    "/\r\nSet-Cookie: x=y",
    "/\x00",
    "/\ud800",
]


@pytest.mark.parametrize("address", HOSTILE)
async def test_address_of_another_site_is_refused_and_nothing_stored(
    tokens: TokenManager, idp: MockIdP, address: str
) -> None:
    query = quote(address.encode("utf-8", "surrogatepass"))
    async with running(tokens, idp) as site:
        response = await site.browser.get(f"/login?return_to={query}")

    good = address.encode("utf-8", "replace").decode() != address
    if good:  # Half a surrogate pair cannot come over the wire as itself.
        assert response.status_code in {303, 400}
        return
    assert response.status_code == 400
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize("address", HOSTILE)
def test_address_of_another_site_is_not_local(address: str) -> None:
    assert not is_local(address)


@pytest.mark.parametrize("address", ["/", "/a/b?c=d&e=%2F%2Fx#f", "/ä", "/a//b"])
def test_path_of_this_site_is_local(address: str) -> None:
    assert is_local(address)


# What goes wrong


async def test_callback_that_is_replayed_is_refused_and_the_session_goes_on(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp) as site:
        away = await site.begin()
        callback = await idp.browse(away.headers["location"])
        assert isinstance(callback, str)
        first = await site.browser.get(callback)
        second = await site.browser.get(callback)
        page = await site.browser.get("/orders")

    assert (first.status_code, second.status_code) == (303, 400)
    assert page.text == "alice"
    assert len(idp.requests("token")) == 1


async def test_callback_in_another_browser_is_refused(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp) as site:
        away = await site.begin()
        callback = await idp.browse(away.headers["location"])
        assert isinstance(callback, str)
        async with site.new_browser() as other:
            refused = await other.get(callback)
        mine = await site.browser.get(callback)

    assert refused.status_code == 400
    assert "set-cookie" not in refused.headers or "__Host-session=" not in str(
        refused.headers
    )
    assert mine.status_code == 303


@pytest.mark.parametrize(
    "query",
    [
        "",
        "state=x&code=y",
        "code=y",
        "state=x&state=y&code=z",
        "error=access_denied",
        "%ff=%ff&state=x",
        "state=" + "x" * 60_000,
    ],
)
async def test_callback_with_a_foreign_answer_is_a_400(
    tokens: TokenManager, idp: MockIdP, query: str
) -> None:
    async with running(tokens, idp) as site:
        await site.begin()
        response = await site.browser.get(f"/callback?{query}")

    assert response.status_code == 400
    assert idp.requests("token") == []


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data; boundary=x", b"--x--"),
        ("application/x-www-form-urlencoded", b"state=%ff"),
        ("application/x-www-form-urlencoded", b"\xff"),
        ("application/x-www-form-urlencoded", b"a=b&" * 200),
        ("", b"state=x"),
    ],
)
async def test_what_is_no_form_is_a_400(
    tokens: TokenManager, idp: MockIdP, content_type: str, body: bytes
) -> None:
    async with running(tokens, idp, response_mode="form_post") as site:
        response = await site.browser.post(
            "/callback", content=body, headers={"Content-Type": content_type}
        )

    assert response.status_code == 400


async def test_form_that_is_too_large_is_not_read_to_its_end(
    tokens: TokenManager, idp: MockIdP
) -> None:
    """By hand: an HTTP client for tests hands the whole body over at once."""
    received, sent = [], []

    async def receive() -> dict[str, Any]:
        received.append(b"x" * 7_000)
        return {"type": "http.request", "body": received[-1], "more_body": True}

    async def send(message: Any) -> None:  # noqa: ANN401 -- of the protocol
        sent.append(message)

    label = (b"content-type", b"application/x-www-form-urlencoded")
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/callback",
        "headers": [label],
        "query_string": b"",
    }
    async with running(tokens, idp, response_mode="form_post") as site:
        await site.app(scope, receive, send)

    assert sent[0]["status"] == 400
    assert len(received) == 10


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("access_denied", 403),
        ("login_required", 401),
        ("temporarily_unavailable", 503),
        ("invalid_scope", 500),
        ("vendor_thing", 400),
    ],
)
async def test_error_of_the_server_has_its_status_and_is_no_redirect(
    tokens: TokenManager, idp: MockIdP, error: str, status: int
) -> None:
    idp.answer_authorization_with(error=error, error_description="<script>alert(1)")

    async with running(tokens, idp) as site:
        response = await site.sign_in()

    assert response.status_code == status
    assert "location" not in response.headers
    assert "script" not in response.text
    assert ("retry-after" in response.headers) == (status == 503)


async def test_id_token_that_is_refused_is_a_bad_gateway(
    tokens: TokenManager, idp: MockIdP
) -> None:
    idp.forge_next_id_token(claims={"aud": "other"})

    async with running(tokens, idp) as site:
        response = await site.sign_in()

    assert response.status_code == 502
    assert "__Host-session" not in site.browser.cookies


async def test_wrong_client_secret_is_a_server_error_and_never_a_loop(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp) as site:
        away = await site.begin()
        idp.fail_next("token", error="invalid_client", status=401)
        back = await site.come_back(away)
        again = await site.browser.get("/login")

    assert (back.status_code, again.status_code) == (500, 500)
    assert "location" not in again.headers
    assert "href" not in again.text


async def test_error_page_is_the_applications_own(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async def page(request: Request, error: FreshTokenError, status: int) -> Response:
        return JSONResponse({"error": type(error).__name__}, status)

    def plain(request: Request, error: FreshTokenError, status: int) -> Response:
        return JSONResponse({"status": status}, status)

    async with running(tokens, idp, error_page=page) as site:
        one = await site.browser.get("/callback?state=x&code=y")
        second = Site(tokens, idp, error_page=plain)
        other = await second.browser.get("/callback?state=x&code=y")

    assert one.json() == {"error": "AuthorizationResponseError"}
    assert other.json() == {"status": 400}
    assert one.headers["cache-control"] == "no-store"


# Errors of the application's own calls


async def test_session_that_is_over_leads_to_the_login_again(
    tokens: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with running(tokens, idp) as site:
        await site.sign_in()

        async def page(request: Request) -> Response:
            session = await site.auth.session(request)
            await tokens.get_token(session.id)
            return PlainTextResponse("fresh")

        site.page = page
        assert (await site.browser.get("/orders")).text == "fresh"
        # A browser drops it after a minute.
        site.browser.cookies.delete("__Host-session-fresh")
        for grant in idp.ledger.grants.values():
            idp.revoke_grant(grant)
        await clock.advance(400.0)
        browser = await site.browser.get("/orders")
        script = await site.browser.get("/orders", headers=SCRIPT)

    assert (browser.status_code, script.status_code) == (303, 401)
    assert browser.headers["location"].startswith("/login?")


@pytest.mark.parametrize(
    ("fault", "status"),
    [({"status": 503, "count": 4}, 503), ({"error": "invalid_client"}, 500)],
)
async def test_other_errors_are_a_servers_errors(
    tokens: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    *,
    fault: dict[str, Any],
    status: int,
) -> None:
    responses: list[httpx.Response] = []
    async with running(tokens, idp) as site:
        await site.sign_in()
        handle = site.browser.cookies["__Host-session"]
        session = await tokens.get_session(handle=handle)

        async def page(request: Request) -> Response:
            await tokens.get_token(session.id)
            return PlainTextResponse("fresh")

        async def visit() -> None:
            responses.append(await site.browser.get("/orders"))

        site.page = page
        idp.fail_next("token", **fault)
        await clock.advance(400.0)
        async with anyio.create_task_group() as group:
            group.start_soon(visit)
            for _ in range(30):
                await clock.advance(1.0)

    assert responses[0].status_code == status


async def test_an_error_that_is_not_ours_is_not_swallowed(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp) as site:
        handler = site.auth.exception_handlers[FreshTokenError]
        request = Request({"type": "http", "method": "GET", "headers": []})
        with pytest.raises(KeyError):
            await handler(request, KeyError("x"))


# Signing out


async def test_logout_ends_the_session_here_and_at_the_server(
    tokens: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with running(tokens, idp) as site:
        await site.sign_in()
        handle = site.browser.cookies["__Host-session"]
        out = await site.browser.post("/logout")
        site.browser.cookies.set("__Host-session", handle, domain="app.test")
        page = await site.browser.get("/orders")
        await clock.settle()

    assert (out.status_code, out.headers["location"]) == (303, "/")
    assert "max-age=0" in cookies_of(out)["__Host-session"].lower()
    assert page.status_code == 303
    assert [grant.active for grant in idp.ledger.grants.values()] == [False]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 303),
        ({"Sec-Fetch-Site": "none"}, 303),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://app.test"}, 303),
        ({"Origin": "https://evil.test"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({}, 303),
    ],
)
async def test_logout_is_for_pages_of_this_site(
    tokens: TokenManager, idp: MockIdP, headers: dict[str, str], status: int
) -> None:
    async with running(tokens, idp) as site:
        await site.sign_in()
        out = await site.browser.post("/logout", headers=headers)
        page = await site.browser.get("/orders")

    assert out.status_code == status
    assert page.status_code == (200 if status == 403 else 303)


async def test_logout_by_get_does_nothing(tokens: TokenManager, idp: MockIdP) -> None:
    async with running(tokens, idp) as site:
        await site.sign_in()
        out = await site.browser.get("/logout")
        page = await site.browser.get("/orders")

    assert (out.status_code, page.status_code) == (405, 200)


async def test_logout_without_a_session_is_harmless(
    tokens: TokenManager, idp: MockIdP
) -> None:
    async with running(tokens, idp) as site:
        out = await site.browser.post("/logout")

    assert out.status_code == 303
    assert idp.requests() == []


# Settings


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"login_path": "login"}, "login_path"),
        ({"login_path": "//evil.test"}, "login_path"),
        ({"login_path": "/x?y"}, "login_path"),
        ({"callback_path": "https://evil.test/"}, "callback_path"),
        ({"logout_path": "/login"}, "login_path"),
        ({"home": "https://evil.test"}, "home"),
        ({"cookie_name": "a b"}, "cookie_name"),
        ({"cookie_name": ""}, "cookie_name"),
        ({"session_max_age": 0}, "session_max_age"),
        ({"session_max_age": "1"}, "session_max_age"),
    ],
)
def test_bad_setting_is_named(
    tokens: TokenManager, options: dict[str, Any], setting: str
) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        SignInRoutes(tokens, **options)

    assert caught.value.setting == setting


def test_client_without_redirect_uri_cannot_sign_in(
    idp: MockIdP, clock: FakeClock
) -> None:
    tokens = TokenManager(idp.client(redirect_uri=None), clock=clock)

    with pytest.raises(MisconfiguredError) as caught:
        SignInRoutes(tokens)

    assert caught.value.setting == "redirect_uri"

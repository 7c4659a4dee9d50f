"""The authorization server as a process shares it."""

from __future__ import annotations

import email.utils
import random
import ssl
from collections.abc import AsyncIterator, Callable

import anyio
import anyio.lowlevel
import httpx
import pytest

from freshtoken._foundation.records import Failure
from freshtoken._foundation.secret import Secret
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.exchange import ExchangeError, Response
from freshtoken._wire.server import AuthorizationServer
from freshtoken._wire.skew import measure_skew
from freshtoken.errors import Disposition, MisconfiguredError
from freshtoken.testing.clock import FakeClock
from tests.wire.families import SECRET
from tests.wire.idp import ISSUER, Answer, Server, busy, refusal
from tests.wire.test_http_secrets import reachable_from


@pytest.fixture
async def idp(clock: FakeClock) -> AsyncIterator[Server]:
    server = Server(clock)
    async with server.client:
        yield server


@pytest.fixture
def make(clock: FakeClock, rng: random.Random) -> Callable[..., AuthorizationServer]:
    def make(secret: object = "s3cret") -> AuthorizationServer:
        client = OAuthClient(
            ISSUER,
            client_id="web",
            client_secret=secret,  # type: ignore[arg-type]  # bad ones, too
        )
        return AuthorizationServer(client, clock=clock, rng=rng)

    return make


@pytest.fixture
def server(make: Callable[..., AuthorizationServer]) -> AuthorizationServer:
    return make()


async def refresh(server: AuthorizationServer, idp: Server, name: str = "a") -> None:
    await server.refresh(idp.http, refresh_token=SECRET, session_id=name)


async def failing(
    server: AuthorizationServer, idp: Server, *answers: Answer, name: str = "a"
) -> Failure:
    idp.tokens.extend(answers)
    with pytest.raises(ExchangeError) as caught:
        await refresh(server, idp, name)
    return caught.value.failure


async def test_refresh_is_one_request(server: AuthorizationServer, idp: Server) -> None:
    assert server.metadata is None
    assert server.issuer == ISSUER
    await server.prepare(idp.http)
    assert server.metadata is not None

    tokens = await server.refresh(
        idp.http,
        refresh_token=Secret(SECRET),
        session_id="a",
        scope="x y",
        resource="https://api.example",
    )

    assert tokens.access_token == "at"
    assert idp.requests[1:] == ["/token"]
    [form] = idp.forms
    assert form["refresh_token"] == [SECRET]
    assert form["scope"] == ["x y"]
    assert form["resource"] == ["https://api.example"]


async def test_refresh_without_preparation_fetches_first(
    server: AuthorizationServer, idp: Server
) -> None:
    await refresh(server, idp)

    assert idp.count("/token") == 1


async def test_client_credentials_and_revocation(
    server: AuthorizationServer, idp: Server
) -> None:
    tokens = await server.client_credentials(idp.http, session_id="c", scope=["x"])
    await server.revoke(idp.http, token=SECRET)

    assert tokens.access_token == "at"
    assert [form.get("grant_type") for form in idp.forms] == [
        ["client_credentials"],
        None,
    ]
    assert idp.forms[1]["token"] == [SECRET]


async def test_failing_revocation_touches_no_breaker(
    server: AuthorizationServer, idp: Server
) -> None:
    idp.tokens.extend([refusal("invalid_client", 401), busy()])
    for _ in range(2):
        with pytest.raises(ExchangeError):
            await server.revoke(idp.http, token=SECRET)

    assert not server.client_refused
    assert server.breaker.failures == 0


async def test_nothing_is_repeated_here(
    server: AuthorizationServer, idp: Server
) -> None:
    failure = await failing(server, idp, httpx.ReadError)

    assert failure.in_doubt
    assert idp.count("/token") == 1


@pytest.mark.parametrize("error", [ZeroDivisionError, MisconfiguredError])
async def test_guard_is_handed_on(
    server: AuthorizationServer, idp: Server, error: type[Exception]
) -> None:
    def guard() -> None:
        raise error

    with pytest.raises(error) as caught:
        await server.refresh(
            idp.http, refresh_token=SECRET, session_id="a", guard=guard
        )

    assert idp.count("/token") == 0
    assert not [text for text in reachable_from(caught.value) if SECRET in text]
    assert server.breaker.failures == 0


async def test_closed_client_is_told_before_a_lease_is_taken(
    server: AuthorizationServer, idp: Server
) -> None:
    await idp.client.aclose()

    with pytest.raises(MisconfiguredError) as caught:
        await server.prepare(idp.http)
    assert caught.value.setting == "http_client"
    failure = await failing(server, idp)
    assert failure.setting == "http_client"


# Credentials


async def later() -> str:
    await anyio.lowlevel.checkpoint()
    return "late"


@pytest.mark.parametrize(
    "source",
    ["now", Secret("now"), lambda: "now", lambda: Secret("now"), later],
    ids=["text", "secret", "function", "function of secret", "coroutine"],
)
async def test_secret_may_come_from_a_function(
    make: Callable[..., AuthorizationServer], idp: Server, source: object
) -> None:
    await refresh(make(source), idp)

    assert idp.count("/token") == 1


async def test_function_is_asked_at_each_request(
    make: Callable[..., AuthorizationServer], idp: Server
) -> None:
    asked: list[int] = []

    def source() -> str:
        asked.append(1)
        return "x"

    server = make(source)
    await refresh(server, idp)
    await refresh(server, idp)

    assert len(asked) == 2


async def explode() -> str:
    raise ZeroDivisionError(SECRET)


@pytest.mark.parametrize(
    "source",
    [explode, lambda: [][len(SECRET)], lambda: 3, str, lambda: f"{SECRET}\n"],
    ids=["raises", "raises at once", "number", "empty", "line break"],
)
async def test_function_that_fails_is_misconfigured_and_leaks_nothing(
    make: Callable[..., AuthorizationServer], idp: Server, source: object
) -> None:
    server = make(source)
    with pytest.raises(ExchangeError) as caught:
        await refresh(server, idp)

    failure = caught.value.failure
    assert failure.disposition is Disposition.MISCONFIGURED
    assert (failure.setting, failure.sent, failure.in_doubt) == (
        "client_secret",
        False,
        False,
    )
    assert idp.count("/token") == 0
    assert not [text for text in reachable_from(caught.value) if SECRET in text]


async def test_function_that_hangs_is_given_up(
    make: Callable[..., AuthorizationServer], idp: Server, clock: FakeClock
) -> None:
    server = make(anyio.sleep_forever)
    failures: list[Failure] = []

    async def run() -> None:
        failures.append(await failing(server, idp))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await clock.advance(10.1)

    assert failures[0].setting == "client_secret"


@pytest.mark.parametrize(
    "answer", [httpx.ReadError, busy(), refusal("invalid_grant"), refusal("x", 404)]
)
async def test_no_secret_can_be_reached_from_an_error(
    server: AuthorizationServer, idp: Server, answer: Answer
) -> None:
    idp.tokens.append(answer)
    with pytest.raises(ExchangeError) as caught:
        await refresh(server, idp)

    shown = list(reachable_from(caught.value))
    assert not [text for text in shown if SECRET in text]


# Breakers


async def fail_times(server: AuthorizationServer, idp: Server, times: int) -> None:
    for number in range(times):
        await failing(server, idp, busy(), name="ab"[number % 2])


async def test_server_that_does_not_answer_is_left_alone(
    server: AuthorizationServer, idp: Server, clock: FakeClock
) -> None:
    await fail_times(server, idp, 4)
    assert server.refused("c") is None

    await failing(server, idp, httpx.ConnectError, name="a")
    failure = server.refused("c")

    assert failure is not None
    assert failure.disposition is Disposition.RETRY
    assert not failure.sent
    assert failure.retry_after == pytest.approx(1.0)
    await clock.advance(1.0)
    assert server.refused("c") is None, "c probes"
    assert server.refused("d") is not None
    server.release("c")
    assert server.refused("d") is None, "d probes"
    await refresh(server, idp, "d")
    assert server.refused("e") is None


@pytest.mark.parametrize("error", ["invalid_grant", "invalid_client", "invalid_scope"])
async def test_any_answer_shows_that_the_server_is_there(
    server: AuthorizationServer, idp: Server, error: str
) -> None:
    await fail_times(server, idp, 4)

    await failing(server, idp, refusal(error))

    assert server.breaker.failures == 0


async def test_own_faults_say_nothing_of_the_server(
    make: Callable[..., AuthorizationServer], idp: Server
) -> None:
    secrets = iter(["x", "x", "x", "x", ""])
    server = make(lambda: next(secrets))
    await fail_times(server, idp, 4)

    await failing(server, idp)

    assert server.breaker.failures == 4


async def test_bad_certificate_says_nothing_of_the_server(
    server: AuthorizationServer, idp: Server
) -> None:
    await server.prepare(idp.http)

    async def distrust() -> None:
        raise httpx.ConnectError("TLS") from ssl.SSLCertVerificationError("expired")

    idp.before = distrust
    failure = await failing(server, idp)

    assert failure.disposition is Disposition.MISCONFIGURED
    assert not failure.sent
    assert server.breaker.failures == 0


async def test_retry_after_of_two_sessions_pauses_all(
    server: AuthorizationServer, idp: Server, clock: FakeClock
) -> None:
    await failing(server, idp, busy(retry_after=30), name="a")
    assert server.refused("c") is None

    await failing(server, idp, busy(retry_after=30), name="b")
    failure = server.refused("c")

    assert failure is not None
    assert failure.retry_after == pytest.approx(30.0)
    await clock.advance(30.0)
    assert server.refused("c") is None


async def test_refused_credentials_clear_one_session(
    server: AuthorizationServer, idp: Server, clock: FakeClock
) -> None:
    first = await failing(server, idp, refusal("invalid_client", 401), name="a")

    assert first.disposition is Disposition.CLIENT_REJECTED
    assert server.client_refused
    assert not server.rejected_first("b")
    assert server.rejected_first("a")
    assert not server.rejected_first("a"), "told once"
    failure = server.refused("b")
    assert failure is not None
    assert failure.disposition is Disposition.CLIENT_REJECTED
    assert (failure.sent, failure.status) == (False, 401)
    assert failure.retry_after == pytest.approx(60.0)

    await clock.advance(60.0)
    assert server.refused("b") is None
    await failing(server, idp, refusal("invalid_client", 401), name="b")
    assert not server.rejected_first("b")

    await clock.advance(60.0)
    assert server.refused("b") is None
    await refresh(server, idp, "b")
    assert not server.client_refused


async def test_request_with_refused_credentials_is_not_sent(
    make: Callable[..., AuthorizationServer], idp: Server
) -> None:
    """Where nobody asked before: a function's answer is known only at the request."""
    secret = "old"
    server = make(lambda: secret)
    await failing(server, idp, refusal("invalid_client", 401), name="a")

    assert server.refused("b") is None
    with pytest.raises(ExchangeError) as caught:
        await server.prepare(idp.http, session_id="b")
    assert caught.value.failure.disposition is Disposition.CLIENT_REJECTED
    failure = await failing(server, idp, name="b")
    assert not failure.sent
    assert idp.count("/token") == 1

    secret = "new"
    await server.prepare(idp.http, session_id="b")
    await refresh(server, idp, "b")
    assert not server.client_refused


async def test_probe_of_the_credentials_that_fails_otherwise_is_given_back(
    server: AuthorizationServer, idp: Server, clock: FakeClock
) -> None:
    await failing(server, idp, refusal("invalid_client", 401), name="a")
    await clock.advance(60.0)
    assert server.refused("a") is None

    await failing(server, idp, busy(), name="a")

    assert server.refused("b") is None


# Clocks


def dated(date: str, sent: float = 999.0, got: float = 1001.0, **more: str) -> Response:
    headers = (("Date", date), *more.items())
    return Response(200, headers, b"", sent_at=sent, received_at=got)


@pytest.mark.parametrize(
    ("date", "skew"),
    [
        ("Thu, 01 Jan 1970 00:16:40 GMT", 0.5),
        ("Thu, 01 Jan 1970 00:17:40 GMT", 60.5),
        ("Thu, 01 Jan 1970 00:15:40 GMT", -59.5),
        ("Thursday, 01-Jan-70 00:16:40 GMT", 0.5),
        ("", None),
        ("yesterday", None),
        ("Thu, 99 Jan 1970 00:16:40 GMT", None),
        ("Thu, 01 Jan 99999999 00:16:40 GMT", None),
    ],
)
def test_skew_is_read_from_the_date(date: str, skew: float | None) -> None:
    assert measure_skew(dated(date)) == skew


def test_answer_from_a_cache_tells_no_time() -> None:
    date = "Thu, 01 Jan 1970 00:16:40 GMT"

    assert measure_skew(dated(date, Age="9")) is None
    assert measure_skew(dated(date, Age="0")) == 0.5
    assert measure_skew(Response(200, (), b"", sent_at=0.0)) is None


@pytest.mark.parametrize("answer", [None, refusal("invalid_grant")])
async def test_skew_is_measured_by_every_answer(
    server: AuthorizationServer,
    idp: Server,
    clock: FakeClock,
    answer: httpx.Response | None,
) -> None:
    told: list[float] = []
    date = email.utils.formatdate(clock.time() + 90, usegmt=True)
    idp.headers["Date"] = date
    await server.revoke(idp.http, token=SECRET)
    assert server.skew is not None
    server.on_skew = told.append
    if answer is not None:
        answer.headers["Date"] = date
        await failing(server, idp, answer)
    else:
        await refresh(server, idp)

    assert server.skew == pytest.approx(90.5)
    assert told == [server.skew]

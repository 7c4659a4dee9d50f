"""Authorization codes: redeemed with one request, and told to one breaker only."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

import anyio
import httpx
import pytest

from freshtoken._foundation.records import Failure, TokenSet
from freshtoken._foundation.secret import Secret
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._wire.server import AuthorizationServer
from freshtoken.errors import Disposition, MisconfiguredError
from freshtoken.testing.clock import FakeClock
from tests.wire.families import SECRET
from tests.wire.idp import ISSUER, Answer, Server, busy, refusal
from tests.wire.test_http_secrets import reachable_from

CALLBACK = "https://app.example/callback"
CODE = f"code-{SECRET}"
VERIFIER = f"verifier-{SECRET}".ljust(43, "x")
INVALID_CLIENT = refusal("invalid_client", 401)

MakeServer = Callable[..., AuthorizationServer]


@pytest.fixture
async def idp(clock: FakeClock) -> AsyncIterator[Server]:
    server = Server(clock)
    async with server.client:
        yield server


@pytest.fixture
def make(clock: FakeClock, rng: random.Random) -> MakeServer:
    def make(secret: object = "s3cret") -> AuthorizationServer:
        client = OAuthClient(
            ISSUER,
            client_id="web",
            client_secret=secret,  # type: ignore[arg-type]  # functions, too
        )
        return AuthorizationServer(client, clock=clock, rng=rng)

    return make


@pytest.fixture
def server(make: MakeServer) -> AuthorizationServer:
    return make()


async def exchange(server: AuthorizationServer, idp: Server) -> TokenSet:
    return await server.exchange_code(
        idp.http,
        code=Secret(CODE),
        code_verifier=Secret(VERIFIER),
        redirect_uri=CALLBACK,
        scope=("openid", "profile"),
        resource=("https://a.example", "https://b.example"),
    )


async def failing(
    server: AuthorizationServer, idp: Server, *answers: Answer
) -> ExchangeError:
    idp.tokens.extend(answers)
    with pytest.raises(ExchangeError) as caught:
        await exchange(server, idp)
    return caught.value


async def refresh(server: AuthorizationServer, idp: Server, name: str = "a") -> None:
    await server.refresh(idp.http, refresh_token=SECRET, session_id=name)


async def failing_refresh(
    server: AuthorizationServer, idp: Server, *answers: Answer, name: str = "a"
) -> Failure:
    idp.tokens.extend(answers)
    with pytest.raises(ExchangeError) as caught:
        await refresh(server, idp, name)
    return caught.value.failure


async def test_code_is_redeemed_with_one_request(
    server: AuthorizationServer, idp: Server
) -> None:
    tokens = await exchange(server, idp)

    assert tokens.access_token == "at"
    assert idp.count("/token") == 1
    [form] = idp.forms
    assert form == {
        "grant_type": ["authorization_code"],
        "code": [CODE],
        "code_verifier": [VERIFIER],
        "redirect_uri": [CALLBACK],
        "resource": ["https://a.example", "https://b.example"],
    }
    assert server.limiter.in_use == 0


@pytest.mark.spec("HTTP-retry")
@pytest.mark.parametrize(
    "answer",
    [
        httpx.ReadError,
        httpx.ConnectError,
        busy(),
        busy(retry_after=1),
        refusal("invalid_grant"),
        INVALID_CLIENT,
        httpx.Response(200, text="<html>"),
    ],
    ids=["cut", "no connection", "503", "later", "grant", "client", "page"],
)
async def test_code_is_sent_once_and_its_failure_shows_no_secret(
    server: AuthorizationServer, idp: Server, answer: Answer
) -> None:
    error = await failing(server, idp, answer)

    assert idp.count("/token") == 1
    assert server.limiter.in_use == 0
    assert not [text for text in reachable_from(error) if SECRET in text]


async def test_code_exchanges_have_slots_of_their_own(
    server: AuthorizationServer, idp: Server, clock: FakeClock
) -> None:
    """A fleet that refreshes keeps nobody from signing in."""
    async with anyio.create_task_group() as group:

        async def hold() -> None:
            async with server.limiter.slot():
                await anyio.sleep_forever()

        for _ in range(200):
            group.start_soon(hold)
        await clock.settle()
        assert server.limiter.waiting == 125

        await exchange(server, idp)

        assert server.limiter.in_use == 75
        group.cancel_scope.cancel()


async def test_twenty_six_codes_wait_for_each_other_behind_a_fleet(
    server: AuthorizationServer, idp: Server, clock: FakeClock
) -> None:
    async with anyio.create_task_group() as group:

        async def hold() -> None:
            async with server.limiter.slot():
                await anyio.sleep_forever()

        for _ in range(75):
            group.start_soon(hold)
        await server.prepare(idp.http)
        idp.before = lambda: clock.sleep(1.0)
        for _ in range(26):
            group.start_soon(exchange, server, idp)
        await clock.settle()
        assert idp.count("/token") == 25
        await clock.advance(1.0)
        assert idp.count("/token") == 26
        group.cancel_scope.cancel()


# Breakers


@pytest.mark.parametrize("answer", [busy(), httpx.ReadError, httpx.ConnectError])
async def test_failing_code_exchanges_do_not_count_for_the_server_breaker(
    server: AuthorizationServer, idp: Server, answer: Answer
) -> None:
    for _ in range(10):
        await failing(server, idp, answer)

    assert server.breaker.failures == 0
    assert server.refused("a") is None


async def test_retry_after_of_code_exchanges_pauses_no_session(
    server: AuthorizationServer, idp: Server
) -> None:
    for _ in range(3):
        await failing(server, idp, busy(retry_after=60))

    assert server.refused("a") is None


async def test_code_goes_out_although_the_server_is_left_alone_and_wakes_it(
    server: AuthorizationServer, idp: Server
) -> None:
    for number in range(5):
        await failing_refresh(server, idp, busy(), name="ab"[number % 2])
    assert server.refused("c") is not None

    await exchange(server, idp)

    assert server.refused("c") is None


async def test_refused_credentials_open_the_breaker_and_clear_nobody(
    server: AuthorizationServer, idp: Server
) -> None:
    assert server.sign_in_refused() is None

    error = await failing(server, idp, INVALID_CLIENT)

    assert error.failure.disposition is Disposition.CLIENT_REJECTED
    assert error.failure.sent
    assert server.client_refused
    refused = server.refused("a")
    assert refused is not None
    assert refused.disposition is Disposition.CLIENT_REJECTED
    assert not server.rejected_first("a")


async def test_no_session_is_cleared_after_a_code_exchange_met_the_refusal(
    make: MakeServer, idp: Server, clock: FakeClock
) -> None:
    server = make()
    await failing(server, idp, INVALID_CLIENT)
    await clock.advance(60.0)

    failure = await failing_refresh(server, idp, INVALID_CLIENT, name="a")

    assert failure.disposition is Disposition.CLIENT_REJECTED
    assert not server.rejected_first("a")


async def test_code_is_not_sent_with_refused_credentials_until_a_probe_is_due(
    server: AuthorizationServer, idp: Server, clock: FakeClock
) -> None:
    await failing(server, idp, INVALID_CLIENT)
    await clock.advance(59.999)

    error = await failing(server, idp)

    assert error.failure.disposition is Disposition.CLIENT_REJECTED
    assert (error.failure.sent, error.failure.status) == (False, 401)
    assert error.failure.retry_after == pytest.approx(0.001)
    assert idp.count("/token") == 1
    assert not [text for text in reachable_from(error) if SECRET in text]
    await clock.advance(0.001)
    await exchange(server, idp)
    assert not server.client_refused


async def test_changed_credential_is_tried_at_once(
    make: MakeServer, idp: Server
) -> None:
    secret = "old"
    server = make(lambda: secret)
    await failing(server, idp, INVALID_CLIENT)
    await failing(server, idp)
    assert idp.count("/token") == 1

    secret = "new"
    await exchange(server, idp)

    assert not server.client_refused


@pytest.mark.parametrize("answer", [busy(), refusal("invalid_grant")])
async def test_probe_that_a_code_exchange_did_not_use_up_goes_to_others(
    server: AuthorizationServer, idp: Server, clock: FakeClock, answer: Answer
) -> None:
    await failing(server, idp, INVALID_CLIENT)
    await clock.advance(60.0)

    await failing(server, idp, answer)

    assert server.refused("a") is None


async def test_cancelled_probe_goes_to_others(
    server: AuthorizationServer, idp: Server, clock: FakeClock
) -> None:
    await failing(server, idp, INVALID_CLIENT)
    await clock.advance(60.0)
    idp.before = anyio.sleep_forever

    async with anyio.create_task_group() as group:
        group.start_soon(exchange, server, idp)
        await clock.settle()
        assert server.refused("a") is not None
        group.cancel_scope.cancel()

    assert server.limiter.in_use == 0
    assert server.refused("a") is None


async def test_exchange_that_could_not_be_built_says_nothing_of_the_client(
    make: MakeServer, idp: Server
) -> None:
    def explode() -> str:
        raise ZeroDivisionError

    server = make(explode)

    error = await failing(server, idp)

    assert error.failure.setting == "client_secret"
    assert not server.client_refused
    assert idp.count("/token") == 0


# Before the browser is sent away


async def test_sign_in_cannot_begin_while_the_credentials_are_refused(
    server: AuthorizationServer, idp: Server, clock: FakeClock
) -> None:
    metadata = await server.prepare_sign_in(idp.http)
    assert metadata is server.metadata
    await failing_refresh(server, idp, INVALID_CLIENT)

    failure = server.sign_in_refused()
    with pytest.raises(ExchangeError) as caught:
        await server.prepare_sign_in(idp.http)

    assert failure is not None
    assert failure == caught.value.failure
    assert failure.disposition is Disposition.CLIENT_REJECTED
    assert not failure.sent
    assert failure.retry_after == pytest.approx(60.0)
    await clock.advance(59.999)
    assert server.sign_in_refused() is not None
    await clock.advance(0.001)
    assert server.sign_in_refused() is None


async def test_looking_takes_nobodys_probe(
    server: AuthorizationServer, idp: Server, clock: FakeClock
) -> None:
    await failing_refresh(server, idp, INVALID_CLIENT)
    await clock.advance(60.0)
    assert server.sign_in_refused() is None
    assert server.sign_in_refused() is None

    assert server.refused("a") is None, "a probes"
    assert server.sign_in_refused() is not None
    assert server.refused("a") is None


async def test_credential_that_takes_asking_for_counts_as_the_refused_one(
    make: MakeServer, idp: Server, clock: FakeClock
) -> None:
    secret = "old"
    server = make(lambda: secret)
    await failing(server, idp, INVALID_CLIENT)
    await clock.advance(59.0)
    secret = "new"
    assert server.sign_in_refused() is not None

    await server.prepare_sign_in(idp.http)

    assert server.sign_in_refused() is None
    await exchange(server, idp)
    assert not server.client_refused


async def test_unknown_credential_counts_as_the_refused_one(
    make: MakeServer, idp: Server, clock: FakeClock
) -> None:
    """It was asked for so long ago that it may have changed since."""
    server = make(lambda: "x")
    await server.prepare(idp.http)
    idp.before = lambda: clock.sleep(20.0)
    async with anyio.create_task_group() as group:
        group.start_soon(failing, server, idp, INVALID_CLIENT)
        await clock.advance(20.0)

    await clock.advance(59.999)
    failure = server.sign_in_refused()

    assert failure is not None
    assert failure.retry_after == pytest.approx(0.001)
    await clock.advance(0.001)
    assert server.sign_in_refused() is None


async def test_closed_client_is_told_before_the_browser_is_sent_away(
    server: AuthorizationServer, idp: Server
) -> None:
    await idp.client.aclose()

    with pytest.raises(MisconfiguredError) as caught:
        await server.prepare_sign_in(idp.http)

    assert caught.value.setting == "http_client"

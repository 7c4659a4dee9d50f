"""What ID tokens are verified with: the server's keys, or the client secret."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable

import pytest

from freshtoken._foundation.secret import Secret
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._protocol.jwks import verify_jwt
from freshtoken._protocol.jws import parse_jwt
from freshtoken._protocol.signing import sign_compact
from freshtoken._wire.credential import AT_HAND_FOR
from freshtoken._wire.key_sets import KeySnapshot
from freshtoken._wire.server import AuthorizationServer
from freshtoken.errors import Disposition, RejectionReason, TokenRejectedError
from freshtoken.testing.clock import FakeClock
from freshtoken.testing.keys import signing_key
from tests.wire.idp import DOCUMENT, ISSUER, Server

RS256 = ("RS256",)
HS256 = ("HS256",)
LONG = "0123456789abcdef0123456789abcdef"  # 32 octets, as HS256 asks for
K1 = signing_key("RS256", "k1")

MakeServer = Callable[..., AuthorizationServer]


@pytest.fixture
async def idp(clock: FakeClock) -> AsyncIterator[Server]:
    server = Server(clock)
    server.keys = [K1.public_jwk()]
    async with server.client:
        yield server


@pytest.fixture
def make(clock: FakeClock, rng: random.Random) -> MakeServer:
    def make(secret: object = LONG, **document: object) -> AuthorizationServer:
        client = OAuthClient(
            ISSUER,
            client_id="web",
            client_secret=secret,  # type: ignore[arg-type]  # functions, too
            metadata={**DOCUMENT, **document},
            discovery=None,
        )
        return AuthorizationServer(client, clock=clock, rng=rng)

    return make


def verifies(snapshot: KeySnapshot | None, secret: str) -> bool:
    """Tell whether a token with an HMAC of *secret* is accepted."""
    assert snapshot is not None
    token = sign_compact(Secret(secret), "HS256", {"alg": "HS256"}, {"sub": "u1"})
    jwt = parse_jwt(token)
    key = snapshot.keys.select(kid=None, alg="HS256")
    return key.verify("HS256", jwt.signing_input, jwt.signature)


async def test_public_keys_come_from_the_servers_key_set(
    make: MakeServer, idp: Server
) -> None:
    server = make()
    assert server.id_token_keys_at_hand(RS256) is None

    snapshot = await server.id_token_keys(idp.http, RS256)

    assert snapshot is server.key_sets.snapshot
    assert server.id_token_keys_at_hand(RS256) is snapshot
    verify_jwt(parse_jwt(K1.sign({})), snapshot.keys, algorithms=RS256)
    assert idp.requests == ["/keys"]


async def test_newer_public_keys_are_fetched(make: MakeServer, idp: Server) -> None:
    server = make()
    first = await server.id_token_keys(idp.http, RS256)
    idp.keys = [signing_key("RS256", "k2").public_jwk()]

    newer = await server.newer_id_token_keys(idp.http, RS256, first.generation)

    assert newer is not None
    assert newer.generation > first.generation


async def test_keys_that_are_due_are_still_at_hand(
    make: MakeServer, idp: Server, clock: FakeClock
) -> None:
    """Nothing may stand between the answer to a refresh and its save."""
    server = make()
    first = await server.id_token_keys(idp.http, RS256)

    await clock.advance(5 * 3600.0)

    assert server.id_token_keys_at_hand(RS256) is first


@pytest.mark.spec("JWKS-absent")
async def test_server_without_a_key_set_is_a_wrong_setting(
    make: MakeServer, idp: Server
) -> None:
    server = make(jwks_uri=None)

    with pytest.raises(ExchangeError) as caught:
        await server.id_token_keys(idp.http, RS256)

    assert caught.value.failure.disposition is Disposition.MISCONFIGURED
    assert caught.value.failure.setting == "jwks_uri"
    assert idp.requests == []


async def test_key_set_is_found_by_discovery(
    clock: FakeClock, rng: random.Random, idp: Server
) -> None:
    client = OAuthClient(ISSUER, client_id="web")
    server = AuthorizationServer(client, clock=clock, rng=rng)

    await server.id_token_keys(idp.http, RS256)

    assert idp.requests == ["/.well-known/openid-configuration", "/keys"]


async def test_client_secret_is_the_key_of_an_hmac(
    make: MakeServer, idp: Server
) -> None:
    server = make()

    snapshot = await server.id_token_keys(idp.http, HS256)

    assert verifies(snapshot, LONG)
    assert not verifies(snapshot, LONG[::-1])
    assert (snapshot.generation, snapshot.due_at) == (0, math.inf)
    assert verifies(server.id_token_keys_at_hand(HS256), LONG)
    assert idp.requests == []


async def test_there_is_never_a_newer_secret(make: MakeServer, idp: Server) -> None:
    server = make()

    assert await server.newer_id_token_keys(idp.http, HS256, 0) is None
    assert idp.requests == []


async def test_secret_from_a_function_is_at_hand_for_a_while_after_it_was_asked_for(
    make: MakeServer, idp: Server, clock: FakeClock
) -> None:
    secrets = [LONG[::-1], LONG]
    server = make(secrets.pop)
    assert server.id_token_keys_at_hand(HS256) is None

    await server.refresh(idp.http, refresh_token="rt", session_id="a")

    assert verifies(server.id_token_keys_at_hand(HS256), LONG)
    await clock.advance(AT_HAND_FOR - 0.001)
    assert verifies(server.id_token_keys_at_hand(HS256), LONG)
    await clock.advance(0.001)
    assert server.id_token_keys_at_hand(HS256) is None
    assert verifies(await server.id_token_keys(idp.http, HS256), LONG[::-1])
    assert secrets == []


async def test_secret_that_is_too_short_is_no_key(
    make: MakeServer, idp: Server
) -> None:
    server = make(LONG[1:])

    with pytest.raises(TokenRejectedError) as caught:
        await server.id_token_keys(idp.http, HS256)

    assert caught.value.reason is RejectionReason.UNFIT_KEY


async def test_client_without_a_secret_has_no_key_for_an_hmac(
    make: MakeServer, idp: Server
) -> None:
    server = make(None)

    with pytest.raises(ExchangeError) as caught:
        await server.id_token_keys(idp.http, HS256)
    with pytest.raises(ExchangeError):
        server.id_token_keys_at_hand(HS256)

    assert caught.value.failure.setting == "client_secret"
    assert not caught.value.failure.sent


async def test_function_that_fails_is_a_wrong_setting(
    make: MakeServer, idp: Server
) -> None:
    def explode() -> str:
        raise ZeroDivisionError

    with pytest.raises(ExchangeError) as caught:
        await make(explode).id_token_keys(idp.http, HS256)

    assert caught.value.failure.setting == "client_secret"

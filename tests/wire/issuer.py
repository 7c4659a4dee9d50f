"""An issuer whose keys change, and tokens that are verified with what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anyio
import pytest

from freshtoken._foundation.records import Failure
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._protocol.jwk import VerificationKey
from freshtoken._protocol.jwks import REFETCH_REASONS, JWKSet, verify_jwt
from freshtoken._protocol.jws import parse_jwt
from freshtoken._wire.http import HTTPDriver
from freshtoken._wire.key_sets import KeySetCache, KeySnapshot
from freshtoken.errors import RejectionReason, TokenRejectedError
from freshtoken.testing.clock import FakeClock
from freshtoken.testing.keys import SigningKey, signing_key
from tests.wire.idp import DOCUMENT, Server

HOUR = 3600.0
K1, K2, K3 = (signing_key("ES256", name) for name in ("k1", "k2", "k3"))

MakeCache = Callable[..., KeySetCache]


async def locate(_: HTTPDriver) -> str:
    return DOCUMENT["jwks_uri"]


def publish(server: Server, *keys: SigningKey) -> None:
    """Let the server publish these keys from now on."""
    server.keys = [key.public_jwk() for key in keys]


def kids(snapshot: KeySnapshot | None) -> list[str | None]:
    assert snapshot is not None
    return [key.kid for key in snapshot.keys.keys]


def renamed(key: SigningKey, kid: str) -> SigningKey:
    """The same key under another name."""
    return SigningKey(kid, key.alg, key.private_key)


def verify(keys: JWKSet, token: str) -> VerificationKey:
    return verify_jwt(parse_jwt(token), keys, algorithms=("ES256",))


async def validate(cache: KeySetCache, server: Server, key: SigningKey) -> None:
    """Verify a token signed with *key*, as every caller of the cache does it."""
    token = key.sign({"sub": "u1"})
    snapshot = await cache.get(server.http)
    try:
        verify(snapshot.keys, token)
    except TokenRejectedError as error:
        if error.reason not in REFETCH_REASONS:
            raise
        newer = await cache.newer(server.http, snapshot.generation)
        if newer is None:
            raise
        verify(newer.keys, token)


async def rejecting(
    cache: KeySetCache, server: Server, key: SigningKey
) -> RejectionReason | None:
    with pytest.raises(TokenRejectedError) as caught:
        await validate(cache, server, key)
    return caught.value.reason


async def failing(cache: KeySetCache, server: Server) -> Failure:
    with pytest.raises(ExchangeError) as caught:
        await cache.get(server.http)
    return caught.value.failure


async def together(
    clock: FakeClock, calls: Iterable[Callable[[], Any]], seconds: float = 0.0
) -> None:
    """Run calls at once, and let time pass for them."""
    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(call)
        await clock.advance(seconds)

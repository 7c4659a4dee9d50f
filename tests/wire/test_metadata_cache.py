"""Metadata: fetched once, kept, and missed for a while without harm."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import anyio
import httpx
import pytest

from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._protocol.metadata import ServerMetadata
from freshtoken._wire.metadata_cache import (
    FRESH_FOR,
    REFETCH_EVERY,
    STALE_FOR,
    MetadataCache,
)
from freshtoken.errors import Disposition
from freshtoken.testing.clock import FakeClock
from tests.wire.idp import DOCUMENT, ISSUER, Server, busy, refusal


@pytest.fixture
async def server(clock: FakeClock) -> AsyncIterator[Server]:
    server = Server(clock)
    async with server.client:
        yield server


@pytest.fixture
def cache(clock: FakeClock, rng: random.Random) -> MetadataCache:
    client = OAuthClient(ISSUER, client_id="web")
    return MetadataCache(client, clock=clock, rng=rng)


async def failing(cache: MetadataCache, server: Server) -> ExchangeError:
    with pytest.raises(ExchangeError) as caught:
        await cache.get(server.http)
    return caught.value


async def test_metadata_are_fetched_once(cache: MetadataCache, server: Server) -> None:
    assert cache.copy is None

    first = await cache.get(server.http)
    second = await cache.get(server.http)

    assert first is second is cache.copy
    assert first.token_endpoint == DOCUMENT["token_endpoint"]
    assert len(server.requests) == 1


async def test_fifty_callers_share_one_fetch(
    cache: MetadataCache, server: Server, clock: FakeClock
) -> None:
    server.before = lambda: clock.sleep(1.0)
    got: list[ServerMetadata] = []

    async def call() -> None:
        got.append(await cache.get(server.http))

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(call)
        await clock.advance(1.0)

    assert len(got) == 50
    assert len(server.requests) == 1


async def test_callers_share_a_failure_and_each_has_its_own_error(
    cache: MetadataCache, server: Server, clock: FakeClock
) -> None:
    server.before = lambda: clock.sleep(1.0)
    server.metadata.append(httpx.Response(200, json={"issuer": "https://other"}))
    errors: list[ExchangeError] = []

    async def call() -> None:
        errors.append(await failing(cache, server))

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(call)
        await clock.advance(1.0)

    assert len({id(error) for error in errors}) == 5
    assert {error.failure.disposition for error in errors} == {
        Disposition.MISCONFIGURED
    }
    assert len(server.requests) == 1


async def test_cancelled_leader_leaves_the_fetch_to_the_next(
    cache: MetadataCache, server: Server, clock: FakeClock
) -> None:
    server.before = lambda: clock.sleep(1.0)
    got: list[ServerMetadata] = []
    scope = anyio.CancelScope()

    async def leader() -> None:
        with scope:
            await cache.get(server.http)

    async def follower() -> None:
        got.append(await cache.get(server.http))

    async with anyio.create_task_group() as group:
        group.start_soon(leader)
        await clock.settle()
        group.start_soon(follower)
        await clock.settle()
        scope.cancel()
        await clock.advance(1.0)

    assert len(got) == 1
    assert len(server.requests) == 2


async def test_first_fetch_is_repeated_in_itself(
    cache: MetadataCache, server: Server, clock: FakeClock
) -> None:
    server.metadata.extend([httpx.ReadError, busy(), httpx.ConnectError])
    got: list[ServerMetadata] = []

    async def call() -> None:
        got.append(await cache.get(server.http))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await clock.advance(2.0)

    assert len(got) == 1
    assert len(server.requests) == 4


async def test_failed_fetch_is_remembered_for_a_while(
    cache: MetadataCache, server: Server, clock: FakeClock
) -> None:
    """Ten thousand sessions must not ask one after the other."""
    server.metadata.extend([busy(retry_after=7)] * 2)

    first = await failing(cache, server)
    second = await failing(cache, server)
    assert len(server.requests) == 1
    await clock.advance(6.9)
    await failing(cache, server)
    assert len(server.requests) == 1
    await clock.advance(0.2)
    await failing(cache, server)
    assert len(server.requests) == 2
    await clock.advance(7.1)

    assert (await cache.get(server.http)).issuer == ISSUER
    assert first.failure.status == second.failure.status == 503
    assert second.failure.retry_after == pytest.approx(7.0)


async def test_misconfiguration_is_asked_again_after_half_a_minute(
    cache: MetadataCache, server: Server, clock: FakeClock
) -> None:
    server.metadata.extend([httpx.Response(307, headers={"Location": "/"})] * 2)
    failed = await failing(cache, server)
    before = len(server.requests)

    await clock.advance(29.9)
    await failing(cache, server)
    assert len(server.requests) == before
    await clock.advance(0.2)
    await failing(cache, server)

    assert failed.failure.disposition is Disposition.MISCONFIGURED
    assert len(server.requests) > before


async def test_old_copy_serves_while_fetching_fails(
    cache: MetadataCache, server: Server, clock: FakeClock
) -> None:
    old = await cache.get(server.http)
    server.metadata.extend([httpx.ConnectError] * 3)

    await clock.advance(FRESH_FOR - 1.0)
    assert await cache.get(server.http) is old
    assert len(server.requests) == 1
    await clock.advance(1.0)
    assert await cache.get(server.http) is old
    assert await cache.get(server.http) is old
    assert len(server.requests) == 2, "one request, and not again at once"
    await clock.advance(REFETCH_EVERY)
    assert await cache.get(server.http) is old
    assert len(server.requests) == 3
    await clock.advance(STALE_FOR)

    assert cache.copy is None
    server.metadata.extend([refusal("x", 500)] * 4)

    async def run() -> None:
        await failing(cache, server)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await clock.advance(5.0)


async def test_refetch_replaces_the_copy(
    cache: MetadataCache, server: Server, clock: FakeClock
) -> None:
    await cache.get(server.http)
    server.document["token_endpoint"] = f"{ISSUER}/token2"

    await clock.advance(FRESH_FOR)
    new = await cache.get(server.http)

    assert new.token_endpoint == f"{ISSUER}/token2"
    assert cache.copy is new


async def test_refetch_keeps_nobody_waiting_for_long(
    cache: MetadataCache, server: Server, clock: FakeClock
) -> None:
    """The one who asks waits five seconds at most, the others not at all."""
    old = await cache.get(server.http)
    await clock.advance(FRESH_FOR)
    server.before = anyio.sleep_forever
    got: list[ServerMetadata] = []

    async def call() -> None:
        got.append(await cache.get(server.http))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await clock.settle()
        assert await cache.get(server.http) is old
        await clock.advance(5.1)

    assert got == [old]


async def test_metadata_by_hand_need_no_network(
    clock: FakeClock, rng: random.Random, server: Server
) -> None:
    client = OAuthClient(ISSUER, client_id="web", metadata=DOCUMENT, discovery=None)
    cache = MetadataCache(client, clock=clock, rng=rng)

    metadata = await cache.get(server.http)

    assert metadata.token_endpoint == DOCUMENT["token_endpoint"]
    assert server.requests == []

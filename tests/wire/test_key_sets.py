"""Key sets: fetched once, kept, and fetched again when they are due."""

from __future__ import annotations

import anyio
import httpx
import pytest

from freshtoken._foundation.records import Failure
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._wire.http import HTTPDriver
from freshtoken._wire.key_sets import (
    REFETCH_EVERY,
    REFETCH_LIMIT,
    STALE_FOR,
    KeySetCache,
    KeySnapshot,
)
from freshtoken.errors import (
    Disposition,
    MisconfiguredError,
    RejectionReason,
)
from freshtoken.testing.clock import FakeClock
from tests.wire.idp import Answer, Server, busy
from tests.wire.issuer import (
    HOUR,
    K1,
    K2,
    MakeCache,
    failing,
    kids,
    locate,
    publish,
    rejecting,
    together,
    validate,
)

# Fetched once, and again when due


async def test_keys_are_fetched_once(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    assert cache.snapshot is None

    first = await cache.get(server.http)
    second = await cache.get(server.http)

    assert first is second is cache.snapshot
    assert kids(first) == [K1.kid]
    assert first.generation == 1
    assert first.due_at == clock.monotonic() + HOUR
    assert server.requests == ["/keys"]


@pytest.mark.spec("JWKS-cache")
@pytest.mark.parametrize(
    ("max_age", "lifetime"),
    [(None, HOUR), (0, 60.0), (600, 600.0), (31_536_000, 24 * HOUR)],
)
async def test_set_is_fetched_again_when_it_is_due_and_no_sooner(
    cache: KeySetCache,
    server: Server,
    clock: FakeClock,
    max_age: int | None,
    lifetime: float,
) -> None:
    if max_age is not None:
        server.headers["Cache-Control"] = f"max-age={max_age}"
    await cache.get(server.http)
    publish(server, K2)

    await clock.advance(lifetime - 0.001)
    assert kids(await cache.get(server.http)) == [K1.kid]
    await clock.advance(0.001)
    assert kids(await cache.get(server.http)) == [K2.kid]

    assert server.count("/keys") == 2


async def test_same_set_is_the_same_generation(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    """So that what was verified with it need not be verified again."""
    first = await cache.get(server.http)

    await clock.advance(HOUR)
    second = await cache.get(server.http)

    assert second.generation == first.generation
    assert second.keys is first.keys
    assert second.due_at == first.due_at + HOUR
    assert server.count("/keys") == 2


@pytest.mark.spec("JWKS-removed")
async def test_key_that_vanished_verifies_no_more_after_the_next_fetch(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    publish(server, K1, K2)
    await validate(cache, server, K2)
    publish(server, K1)
    await validate(cache, server, K2)

    await clock.advance(HOUR)

    assert await rejecting(cache, server, K2) is RejectionReason.UNKNOWN_KEY
    await validate(cache, server, K1)


@pytest.mark.spec("JWKS-single-flight")
async def test_hundred_callers_share_the_first_fetch(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    server.before = lambda: clock.sleep(1.0)
    done: list[int] = []

    async def call() -> None:
        await validate(cache, server, K1)
        done.append(1)

    await together(clock, [call] * 100, 1.0)

    assert len(done) == 100
    assert server.count("/keys") == 1


async def test_cancelled_leader_leaves_the_first_fetch_to_the_next(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    server.before = lambda: clock.sleep(1.0)
    got: list[KeySnapshot] = []
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

    assert kids(got[0]) == [K1.kid]
    assert server.count("/keys") == 2


async def test_nobody_but_the_leader_waits_for_a_set_that_is_merely_due(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    """And the leader waits five seconds at most, with the connection and all."""
    old = await cache.get(server.http)
    await clock.advance(HOUR)
    server.before = anyio.sleep_forever
    got: list[KeySnapshot] = []

    async def leader() -> None:
        got.append(await cache.get(server.http))

    async with anyio.create_task_group() as group:
        group.start_soon(leader)
        await clock.settle()
        assert await cache.get(server.http) is old
        await clock.advance(REFETCH_LIMIT - 0.001)
        assert got == []
        await clock.advance(0.001)
        assert len(got) == 1

    assert got[0].keys is old.keys
    assert cache.failure is not None
    assert cache.failure.disposition is Disposition.RETRY


# Keys that cannot be had


async def test_first_fetch_is_repeated_in_itself(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    server.key_sets.extend([httpx.ReadError, busy(), httpx.ConnectError])

    await together(clock, [lambda: validate(cache, server, K1)], 2.0)

    assert server.count("/keys") == 4
    assert cache.failure is None


async def test_callers_share_a_failure_and_each_has_its_own_error(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    server.before = lambda: clock.sleep(1.0)
    server.key_sets.append(httpx.Response(404))
    errors: list[ExchangeError] = []

    async def call() -> None:
        with pytest.raises(ExchangeError) as caught:
            await cache.get(server.http)
        errors.append(caught.value)

    await together(clock, [call] * 5, 1.0)

    assert len({id(error) for error in errors}) == 5
    assert {error.failure.setting for error in errors} == {"jwks_uri"}
    assert server.count("/keys") == 1


async def test_failed_first_fetch_is_remembered_for_a_while(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    server.key_sets.extend([busy(retry_after=7)] * 2)

    first = await failing(cache, server)
    second = await failing(cache, server)
    assert server.count("/keys") == 1
    await clock.advance(6.999)
    await failing(cache, server)
    assert await cache.newer(server.http, 0) is None
    assert server.count("/keys") == 1
    await clock.advance(0.001)
    await failing(cache, server)
    assert server.count("/keys") == 2
    await clock.advance(7.0)

    await validate(cache, server, K1)
    assert first.status == second.status == 503
    assert second.retry_after == pytest.approx(7.0)


async def test_pauses_after_failures_in_a_row_grow(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    server.key_sets.extend([httpx.Response(404)] * 3)
    waits = []
    for _ in range(3):
        await failing(cache, server)
        again = await failing(cache, server)
        assert again.retry_after is not None
        waits.append(again.retry_after)
        await clock.advance(again.retry_after)

    assert waits == [30.0, 60.0, 120.0]
    assert server.count("/keys") == 3


async def test_pauses_begin_anew_after_a_success(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    server.key_sets.append(httpx.Response(404))
    await failing(cache, server)
    await clock.advance(30.0)
    await validate(cache, server, K1)
    await clock.advance(HOUR + STALE_FOR)
    server.key_sets.append(httpx.Response(404))

    await failing(cache, server)

    assert (await failing(cache, server)).retry_after == 30.0


async def test_nobody_is_waited_for_longer_than_five_minutes(
    make: MakeCache, server: Server
) -> None:
    async def later(_: HTTPDriver) -> str:
        raise ExchangeError(Failure(Disposition.RETRY, "", retry_after=900.0))

    cache = make(locate=later)
    await failing(cache, server)

    assert (await failing(cache, server)).retry_after == 300.0


@pytest.mark.spec("JWKS-absent")
@pytest.mark.parametrize(
    "error",
    [
        MisconfiguredError("none", setting="jwks_uri"),
        ExchangeError(Failure(Disposition.MISCONFIGURED, "", setting="jwks_uri")),
    ],
    ids=["missing", "no metadata"],
)
async def test_no_address_is_a_wrong_setting_and_no_request(
    make: MakeCache, server: Server, error: Exception
) -> None:
    async def nowhere(_: HTTPDriver) -> str:
        raise error

    cache = make(locate=nowhere)

    failure = await failing(cache, server)
    await failing(cache, server)

    assert failure.disposition is Disposition.MISCONFIGURED
    assert failure.setting == "jwks_uri"
    assert server.requests == []


async def test_fault_of_the_caller_leaves_no_fetch_behind(
    make: MakeCache, server: Server
) -> None:
    faults = [ZeroDivisionError]

    async def explode(http: HTTPDriver) -> str:
        if faults:
            raise faults.pop()
        return await locate(http)

    cache = make(locate=explode)
    with pytest.raises(ZeroDivisionError):
        await cache.get(server.http)

    await validate(cache, server, K1)


async def test_plain_http_has_to_be_allowed(make: MakeCache, server: Server) -> None:
    async def plainly(_: HTTPDriver) -> str:
        return "http://as.example/keys"

    await failing(make(locate=plainly), server)
    assert server.requests == []
    cache = make(locate=plainly, allow_insecure_transport=True)
    await validate(cache, server, K1)

    assert server.count("/keys") == 1


@pytest.mark.spec("JWKS-stale")
@pytest.mark.parametrize(
    "answer",
    [
        busy(),
        httpx.ConnectError,
        httpx.Response(404),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"keys": []}),
        httpx.Response(302, headers={"Location": "https://evil.example/keys"}),
    ],
    ids=["503", "no answer", "404", "page", "empty", "redirect"],
)
async def test_known_keys_stay_and_unknown_ones_stay_unknown_while_fetching_fails(
    cache: KeySetCache, server: Server, clock: FakeClock, answer: Answer
) -> None:
    await validate(cache, server, K1)
    server.key_sets.extend([answer] * 5)
    publish(server, K2)

    await clock.advance(HOUR)

    await validate(cache, server, K1)
    assert await rejecting(cache, server, K2) is RejectionReason.UNKNOWN_KEY
    await validate(cache, server, K1)
    assert cache.failure is not None
    assert server.count("/keys") == 3


@pytest.mark.spec("JWKS-stale")
async def test_old_set_serves_for_a_day_beyond_its_time(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    first = await cache.get(server.http)
    await clock.advance(HOUR + STALE_FOR - 0.001)
    server.key_sets.append(busy())
    stale = await cache.get(server.http)
    assert stale.keys is first.keys
    assert stale.generation == first.generation
    assert stale.due_at == first.due_at + STALE_FOR, "it is not good for longer"
    await clock.advance(0.001)

    assert cache.snapshot is None
    server.key_sets.append(httpx.Response(404))
    await failing(cache, server)
    await clock.advance(30.0)
    again = await cache.get(server.http)

    assert again.generation > first.generation


async def test_failed_refetch_is_not_repeated_by_every_call(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    """JK-04: with a set that keeps 600 s, and an issuer that is out of order."""
    server.headers["Cache-Control"] = "max-age=600"
    await validate(cache, server, K1)
    server.key_sets.extend([busy(), httpx.ConnectError])

    await clock.advance(700.0)
    for _ in range(10):
        await validate(cache, server, K1)
    assert server.count("/keys") == 2
    await clock.advance(REFETCH_EVERY - 0.001)
    await validate(cache, server, K1)
    assert server.count("/keys") == 2
    await clock.advance(0.001)
    await validate(cache, server, K1)
    assert server.count("/keys") == 3


async def test_server_that_asks_for_patience_gets_it_also_for_unknown_keys(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    await validate(cache, server, K1)
    publish(server, K1, K2)
    await clock.advance(HOUR)
    server.key_sets.append(busy(retry_after=100))
    await validate(cache, server, K1)

    await clock.advance(99.9)
    await rejecting(cache, server, K2)
    await validate(cache, server, K1)
    assert server.count("/keys") == 2
    await clock.advance(0.1)
    await validate(cache, server, K2)

    assert server.count("/keys") == 3


async def test_patience_that_was_asked_for_holds_when_the_set_falls_due(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    await validate(cache, server, K1)
    await clock.advance(HOUR - 1.0)
    server.key_sets.append(busy(retry_after=9_999))
    await rejecting(cache, server, K2)

    await clock.advance(299.9)
    await validate(cache, server, K1)
    assert server.count("/keys") == 2
    await clock.advance(0.1)
    await validate(cache, server, K1)

    assert server.count("/keys") == 3


async def test_failures_are_told(
    make: MakeCache, server: Server, clock: FakeClock
) -> None:
    told: list[Failure] = []
    cache = make(on_failure=told.append)
    await cache.get(server.http)
    assert told == []
    await clock.advance(HOUR)
    server.key_sets.append(busy())

    await cache.get(server.http)

    assert told == [cache.failure]

"""Keys that change: found at once, and never looked for in a storm of requests."""

from __future__ import annotations

import anyio
import pytest

from freshtoken._protocol.jwk import VerificationKey, read_jwk
from freshtoken._wire.key_sets import (
    REFETCH_EVERY,
    REFETCH_LIMIT,
    STALE_FOR,
    KeySetCache,
)
from freshtoken.errors import (
    RejectionReason,
)
from freshtoken.testing.clock import FakeClock
from freshtoken.testing.keys import SigningKey
from tests.wire.idp import Server, busy
from tests.wire.issuer import (
    HOUR,
    K1,
    K2,
    K3,
    MakeCache,
    kids,
    publish,
    rejecting,
    renamed,
    together,
    validate,
)

# Keys that change


@pytest.mark.spec("Core-10.1.1-unknown")
async def test_unknown_kid_is_looked_for_once(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    await validate(cache, server, K1)
    publish(server, K1, K2)
    await clock.advance(60.0)

    await validate(cache, server, K2)
    await validate(cache, server, K1)

    assert server.count("/keys") == 2


@pytest.mark.spec("Core-10.1.1-cooldown")
async def test_rotation_right_after_the_first_fetch_and_another_one_verify(
    cache: KeySetCache, server: Server
) -> None:
    """The first fetch does not count, and then there are two at once."""
    await validate(cache, server, K1)
    publish(server, K2)
    await validate(cache, server, K2)
    publish(server, K3)

    await validate(cache, server, K3)

    assert server.count("/keys") == 3
    assert await rejecting(cache, server, K1) is RejectionReason.UNKNOWN_KEY
    assert server.count("/keys") == 3


@pytest.mark.spec("Core-10.1.1-badsig")
async def test_key_that_was_replaced_under_its_name_is_found(
    cache: KeySetCache, server: Server
) -> None:
    await validate(cache, server, K1)
    successor = renamed(K2, K1.kid)
    publish(server, successor)

    await validate(cache, server, successor)

    assert server.count("/keys") == 2
    assert await rejecting(cache, server, K1) is RejectionReason.SIGNATURE


@pytest.mark.spec("JWKS-kid-mismatch")
async def test_kid_that_matches_nothing_is_refused_after_one_refetch(
    cache: KeySetCache, server: Server
) -> None:
    await validate(cache, server, K1)

    reason = await rejecting(cache, server, renamed(K1, "another"))

    assert reason is RejectionReason.UNKNOWN_KEY
    assert server.count("/keys") == 2


@pytest.mark.spec("Core-10.1.1-cooldown")
async def test_storm_of_random_names_makes_no_storm_of_requests(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    """JK-02: known keys verify meanwhile, and a real new one is found afterwards."""
    await validate(cache, server, K1)
    for number in range(1_000):
        await rejecting(cache, server, renamed(K2, f"r-{number}"))
        if not number % 100:
            await clock.advance(1.0)
    await validate(cache, server, K1)
    assert server.count("/keys") == 3

    publish(server, K1, K2)
    assert await rejecting(cache, server, K2) is RejectionReason.UNKNOWN_KEY
    await clock.advance(20.0)
    await validate(cache, server, K2)

    assert server.count("/keys") == 4


@pytest.mark.spec("Core-10.1.1-cooldown")
async def test_lasting_storm_costs_one_request_in_thirty_seconds(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    await validate(cache, server, K1)
    for second in range(300):
        await rejecting(cache, server, renamed(K2, f"r-{second}"))
        await clock.advance(1.0)

    assert server.count("/keys") == 1 + 1 + 300 // 30


@pytest.mark.spec("JWKS-single-flight")
async def test_hundred_misses_share_one_refetch(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    await validate(cache, server, K1)
    publish(server, K2)
    server.before = lambda: clock.sleep(1.0)
    done: list[int] = []

    async def call() -> None:
        await validate(cache, server, K2)
        done.append(1)

    await together(clock, [call] * 100, 1.0)

    assert len(done) == 100
    assert server.count("/keys") == 2


async def test_hundred_made_up_names_at_once_share_one_refetch(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    await validate(cache, server, K1)
    server.before = lambda: clock.sleep(1.0)
    reasons: list[RejectionReason | None] = []

    async def call() -> None:
        reasons.append(await rejecting(cache, server, renamed(K2, "x")))

    await together(clock, [call] * 100, 1.0)

    assert reasons == [RejectionReason.UNKNOWN_KEY] * 100
    assert server.count("/keys") == 2


async def test_miss_joins_a_refetch_of_a_due_set_for_nothing(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    await validate(cache, server, K1)
    publish(server, K1, K2)
    await clock.advance(HOUR)
    server.before = lambda: clock.sleep(1.0)

    await together(clock, [lambda: validate(cache, server, K2)] * 3, 1.0)
    server.before = None
    publish(server, K3)
    await validate(cache, server, K3)
    publish(server, K1)
    await validate(cache, server, K1)

    assert server.count("/keys") == 4, "two were left after the due one"


async def test_known_keys_do_not_wait_for_a_refetch(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    await validate(cache, server, K1)
    server.before = anyio.sleep_forever

    async with anyio.create_task_group() as group:
        group.start_soon(rejecting, cache, server, K2)
        await clock.settle()
        await validate(cache, server, K1)
        assert server.count("/keys") == 2
        await clock.advance(REFETCH_LIMIT)

    await validate(cache, server, K1)


async def test_newer_keys_that_are_there_already_cost_nothing(
    cache: KeySetCache, server: Server
) -> None:
    old = await cache.get(server.http)
    publish(server, K2)
    await validate(cache, server, K2)

    newer = await cache.newer(server.http, old.generation)

    assert newer is cache.snapshot
    assert server.count("/keys") == 2


async def test_failed_refetch_brings_nothing_newer_and_keeps_the_keys(
    cache: KeySetCache, server: Server
) -> None:
    old = await cache.get(server.http)
    server.key_sets.append(busy())

    assert await cache.newer(server.http, old.generation) is None

    assert cache.snapshot is old


async def test_failing_refetches_are_bounded_too(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    await validate(cache, server, K1)
    publish(server, K2)
    server.key_sets.extend([busy()] * 2)

    for _ in range(5):
        await rejecting(cache, server, K2)
    assert server.count("/keys") == 3
    await clock.advance(30.0)
    await validate(cache, server, K2)

    assert server.count("/keys") == 4


async def test_cancelled_refetch_goes_on_with_whoever_waits(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    """At no charge, even if the budget is spent meanwhile."""
    await validate(cache, server, K1)
    await rejecting(cache, server, K3)
    publish(server, K2)
    server.before = lambda: clock.sleep(1.0)
    first, second = anyio.CancelScope(), anyio.CancelScope()
    done: list[int] = []

    async def call(scope: anyio.CancelScope) -> None:
        with scope:
            await validate(cache, server, K2)
            done.append(1)

    async with anyio.create_task_group() as group:
        group.start_soon(call, first)
        await clock.settle()
        group.start_soon(call, second)
        await clock.settle()
        first.cancel()
        await clock.settle()
        for _ in range(3):
            group.start_soon(call, anyio.CancelScope())
        await clock.settle()
        second.cancel()
        await clock.advance(1.0)

    assert len(done) == 3
    assert server.count("/keys") == 5


async def test_callers_who_give_up_make_no_storm(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    await validate(cache, server, K1)
    server.before = anyio.sleep_forever

    for _ in range(50):
        async with anyio.create_task_group() as group:
            group.start_soon(rejecting, cache, server, K2)
            await clock.settle()
            group.cancel_scope.cancel()

    assert server.count("/keys") == 1 + 2 * 3


async def test_answer_that_comes_when_everybody_is_gone_is_not_waited_for(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    server.before = anyio.sleep_forever
    with anyio.move_on_after(0):
        await cache.get(server.http)
    server.before = None

    await validate(cache, server, K1)


# Keys of our own


def own_key(key: SigningKey) -> VerificationKey:
    return read_jwk(key.public_jwk())


async def test_own_keys_verify_besides_those_of_the_set(
    make: MakeCache, server: Server
) -> None:
    cache = make(own=[own_key(K3)])

    await validate(cache, server, K3)
    await validate(cache, server, K1)

    assert server.count("/keys") == 1


async def test_own_keys_verify_where_no_set_can_be_had(
    make: MakeCache, server: Server, clock: FakeClock
) -> None:
    cache = make(own=[own_key(K3)])
    server.key_sets.extend([busy()] * 3)

    await validate(cache, server, K3)
    await validate(cache, server, K3)
    assert server.count("/keys") == 1
    await rejecting(cache, server, K1)
    await clock.advance(REFETCH_EVERY)
    await validate(cache, server, K3)
    await clock.advance(REFETCH_EVERY)
    await validate(cache, server, K1)

    assert server.count("/keys") == 4


async def test_own_keys_outlive_a_set_that_is_too_old(
    make: MakeCache, server: Server, clock: FakeClock
) -> None:
    cache = make(own=[own_key(K3)])
    old = await cache.get(server.http)

    await clock.advance(HOUR + STALE_FOR)
    left = cache.snapshot

    assert kids(left) == [K3.kid]
    assert left is not None
    assert left.generation > old.generation
    assert (await cache.get(server.http)).generation > left.generation

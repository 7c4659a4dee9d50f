"""Key sets as threads and event loops share them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Generator

import anyio
import httpx
import pytest

from freshtoken._foundation.clock import SystemClock
from freshtoken._wire.http import HTTPDriver
from freshtoken._wire.key_sets import (
    KeySetCache,
    KeySnapshot,
)
from freshtoken.errors import (
    RejectionReason,
)
from freshtoken.testing.clock import FakeClock
from tests.wire.idp import Server
from tests.wire.issuer import (
    K1,
    K2,
    K3,
    MakeCache,
    kids,
    locate,
    publish,
    rejecting,
    validate,
)

# Issuers, threads, event loops


@pytest.mark.spec("JWKS-issuer")
async def test_keys_of_one_issuer_verify_nothing_of_another(
    make: MakeCache, server: Server
) -> None:
    async def elsewhere(_: HTTPDriver) -> str:
        return "https://other.example/keys"

    mine, other = make(), make(locate=elsewhere)
    await validate(mine, server, K1)
    publish(server, K2)
    await validate(other, server, K2)

    assert await rejecting(other, server, K1) is RejectionReason.UNKNOWN_KEY


class Loops:
    """A cache on the real clock, and a server that several event loops ask."""

    def __init__(self) -> None:
        self.cache = KeySetCache(
            clock=SystemClock(), rng=random.Random(1), locate=locate
        )
        self.requests = 0
        self.go_on = threading.Event()
        self.together = threading.Barrier(2)
        self.seen: list[tuple[list[str | None], list[str | None]]] = []
        self.failures: list[BaseException] = []

    async def handle(self, _: httpx.Request) -> httpx.Response:
        """Answer with another key each time, the first time when told to."""
        self.requests += 1
        key = (K1, K2, K3)[self.requests - 1]
        await anyio.to_thread.run_sync(self.go_on.wait, 10)
        return httpx.Response(200, json={"keys": [key.public_jwk()]})

    async def work(self) -> None:
        """Use the keys, and miss one."""
        transport = httpx.MockTransport(self.handle)
        async with httpx.AsyncClient(transport=transport) as client:
            http = HTTPDriver(SystemClock(), client=client)
            first = await self.cache.get(http)
            await anyio.to_thread.run_sync(self.together.wait, 10)
            newer = await self.cache.newer(http, first.generation)
            self.seen.append((kids(first), kids(newer)))

    def run(self, backend: str) -> threading.Thread:
        def thread() -> None:
            try:
                anyio.run(self.work, backend=backend)
            except BaseException as error:  # noqa: BLE001 -- told to the test's thread
                self.failures.append(error)

        started = threading.Thread(target=thread)
        started.start()
        return started

    def wait_for(self, condition: Callable[[], object]) -> None:
        until = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.001)


@pytest.mark.spec("JWKS-single-flight")
def test_event_loops_share_the_first_fetch_and_a_refetch(anyio_backend: str) -> None:
    loops = Loops()

    leader = loops.run(anyio_backend)
    loops.wait_for(lambda: loops.requests)
    fetch = loops.cache._fetch
    assert fetch is not None
    follower = loops.run("trio")
    loops.wait_for(lambda: fetch.wakers)
    loops.go_on.set()
    leader.join(10)
    follower.join(10)

    assert loops.failures == []
    assert loops.seen == [([K1.kid], [K2.kid])] * 2
    assert loops.requests == 2


async def test_fetch_of_an_event_loop_that_vanished_is_taken_over(
    cache: KeySetCache, server: Server, clock: FakeClock
) -> None:
    """Nobody wakes those who wait: that loop was torn down, or forked away from."""
    other = HTTPDriver(clock, client=server.client)
    fetch = cache._begin(other, clock.monotonic())
    done: list[int] = []

    async def call() -> None:
        await validate(cache, server, K1)
        done.append(1)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await clock.advance(fetch.abandoned_at - clock.monotonic() - 0.001)
        assert done == []
        await clock.advance(0.001)
        await clock.settle()
        assert done == [1]

    assert server.count("/keys") == 1


async def test_answer_that_comes_after_a_takeover_changes_nothing(
    make: MakeCache, server: Server, clock: FakeClock
) -> None:
    other = HTTPDriver(clock, client=server.client)

    async def slowly(http: HTTPDriver) -> str:
        if http is other:
            await clock.sleep(1_000.0)
        return await locate(http)

    cache = make(locate=slowly)
    got: list[KeySnapshot] = []

    async def late() -> None:
        got.append(await cache.get(other))

    async with anyio.create_task_group() as group:
        group.start_soon(late)
        await clock.settle()
        group.start_soon(validate, cache, server, K1)
        await clock.advance(999.0)
        taken_over = cache.snapshot
        publish(server, K2)
        await clock.advance(1.0)

    assert server.count("/keys") == 2
    assert got == [taken_over]
    assert kids(cache.snapshot) == [K1.kid]


def test_fetch_that_the_garbage_collector_ends_locks_nobody_out() -> None:
    """A coroutine of a dead loop may be closed inside the cache's own sections."""
    cache = KeySetCache(clock=SystemClock(), rng=random.Random(1), locate=locate)
    call = cache.get(HTTPDriver(SystemClock()))

    async def never(_: HTTPDriver) -> str:
        await _Suspended()
        return ""

    cache._locate = never
    call.send(None)
    assert cache._fetch is not None

    with cache._lock:
        call.close()

    assert cache._fetch is None


class _Suspended:
    """Something to wait for, outside any event loop."""

    def __await__(self) -> Generator[None]:
        yield

"""Slots: bounded, fair, and never lost."""

from __future__ import annotations

import asyncio
import random
import threading
from functools import partial

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from freshtoken._wire.limiter import Limiter


async def settle() -> None:
    await anyio.wait_all_tasks_blocked()


class User:
    """Takes a slot and keeps it until told."""

    def __init__(
        self, limiter: Limiter, log: list[str], name: str, *, kind: bool
    ) -> None:
        self.limiter, self.log, self.name, self.kind = limiter, log, name, kind
        self.done = anyio.Event()
        self.scope = anyio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            async with self.limiter.slot(code_exchange=self.kind):
                self.log.append(self.name)
                await self.done.wait()


async def test_slots_are_bounded_and_handed_on_in_order() -> None:
    limiter, log = Limiter(total=2, reserved=0), list[str]()
    users = [User(limiter, log, str(n), kind=False) for n in range(5)]
    async with anyio.create_task_group() as group:
        for user in users:
            group.start_soon(user.run)
            await settle()
        assert log == ["0", "1"]
        assert (limiter.in_use, limiter.waiting) == (2, 3)

        for user in users:
            user.done.set()
            await settle()

    assert log == ["0", "1", "2", "3", "4"]
    assert (limiter.in_use, limiter.waiting) == (0, 0)


async def test_reserved_slots_are_for_code_exchanges() -> None:
    limiter, log = Limiter(total=4, reserved=1), list[str]()
    ordinary = [User(limiter, log, f"o{n}", kind=False) for n in range(5)]
    sign_in = [User(limiter, log, f"c{n}", kind=True) for n in range(2)]
    async with anyio.create_task_group() as group:
        for user in (*ordinary, *sign_in):
            group.start_soon(user.run)
            await settle()
        assert log == ["o0", "o1", "o2", "c0"]

        ordinary[0].done.set()
        await settle()
        assert log[4:] == ["c1"], "a sign-in goes before the refreshes that wait"

        for user in (*ordinary, *sign_in):
            user.done.set()

    assert sorted(log[5:]) == ["o3", "o4"]
    assert limiter.in_use == 0


async def test_cancelled_waiter_leaves_the_queue() -> None:
    limiter, log = Limiter(total=1, reserved=0), list[str]()
    first, second, third = (User(limiter, log, n, kind=False) for n in "abc")
    async with anyio.create_task_group() as group:
        for user in (first, second, third):
            group.start_soon(user.run)
            await settle()

        second.scope.cancel()
        await settle()
        assert limiter.waiting == 1
        first.done.set()
        await settle()
        assert log == ["a", "c"]
        third.done.set()

    assert limiter.in_use == 0


async def test_slot_handed_to_a_cancelled_waiter_goes_to_the_next() -> None:
    """Cancelled in the same turn of the loop in which the slot was granted."""
    limiter, log = Limiter(total=1, reserved=0), list[str]()
    first, second, third = (User(limiter, log, n, kind=False) for n in "abc")
    async with anyio.create_task_group() as group:
        for user in (first, second, third):
            group.start_soon(user.run)
            await settle()

        holder = limiter._queues[False][0]
        limiter._release(code_exchange=False)
        assert holder.granted
        second.scope.cancel()
        await settle()

        assert log[-1] == "c"
        limiter._in_use[False] += 1  # the slot that was released above for "a"
        first.done.set()
        third.done.set()

    assert (limiter.in_use, limiter.waiting) == (0, 0)


def test_task_cancelled_between_grant_and_wake_loses_no_slot() -> None:
    """Cancelled by asyncio itself, which reaches a task that is about to run."""
    limiter = Limiter(total=1, reserved=0)

    async def run() -> None:
        async with limiter.slot():
            pass

    async def main() -> None:
        async with limiter.slot():
            task = asyncio.create_task(run())
            await asyncio.sleep(0)
            assert limiter.waiting == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert (limiter.in_use, limiter.waiting) == (0, 0)


async def test_body_that_raises_gives_its_slot_back() -> None:
    limiter = Limiter(total=1, reserved=0)

    with pytest.raises(ZeroDivisionError):
        async with limiter.slot():
            raise ZeroDivisionError

    async with limiter.slot():
        assert limiter.in_use == 1


async def test_other_event_loops_are_woken(anyio_backend: str) -> None:
    """Four threads with a loop each, both kinds of loops, one slot."""
    limiter = Limiter(total=1, reserved=0)
    inside, most = 0, 0
    lock = threading.Lock()

    async def worker() -> None:
        nonlocal inside, most
        for _ in range(25):
            async with limiter.slot():
                with lock:
                    inside += 1
                    most = max(most, inside)
                await anyio.lowlevel.checkpoint()
                with lock:
                    inside -= 1

    def other_loop(backend: str) -> None:
        anyio.run(worker, backend=backend)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for backend in ("asyncio", "trio", "asyncio"):
                group.start_soon(anyio.to_thread.run_sync, other_loop, backend)
            group.start_soon(worker)

    assert most == 1
    assert (limiter.in_use, limiter.waiting) == (0, 0)


@pytest.mark.parametrize("seed", range(5))
async def test_nothing_is_lost_whatever_is_cancelled(seed: int) -> None:
    """Two hundred users of both kinds; a third of them is cancelled at some moment."""
    rng = random.Random(seed)
    limiter = Limiter(total=8, reserved=2)
    ordinary: list[int] = []
    served: list[int] = []
    scopes = {number: anyio.CancelScope() for number in range(200)}
    cancelled = set(rng.sample(sorted(scopes), 66))

    async def run(number: int, *, kind: bool) -> None:
        with scopes[number]:
            async with limiter.slot(code_exchange=kind):
                assert limiter.in_use <= 8
                if not kind:
                    ordinary.append(number)
                    assert len(ordinary) <= 6
                try:
                    for _ in range(rng.randrange(4)):
                        await anyio.lowlevel.checkpoint()
                    served.append(number)
                finally:
                    if not kind:
                        ordinary.remove(number)

    async with anyio.create_task_group() as group:
        for number in scopes:
            kind = rng.random() < 0.3
            group.start_soon(partial(run, number, kind=kind))
        for number in cancelled:
            for _ in range(rng.randrange(3)):
                await anyio.lowlevel.checkpoint()
            scopes[number].cancel()

    assert (limiter.in_use, limiter.waiting) == (0, 0)
    assert set(scopes) - cancelled <= set(served)

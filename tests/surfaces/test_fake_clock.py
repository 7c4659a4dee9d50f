"""The fake clock: time moves when the test says so, and tasks keep up with it."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import pytest

from freshtoken.abc import Clock
from freshtoken.testing import FakeClock, _loops

BACKENDS = ["asyncio", "trio"]


@contextmanager
def running_elsewhere(
    backend: str, main: Callable[[anyio.Event], object]
) -> Iterator[None]:
    """Run *main* in another thread's loop; it gets an event that ends it."""
    ready = threading.Event()
    stop: list[Callable[[], object]] = []

    async def run() -> None:
        end = anyio.Event()
        loop = _loops.Loop()
        stop.append(lambda: loop.call_soon(end.set))
        async with anyio.create_task_group() as group:
            group.start_soon(main, end)  # type: ignore[arg-type]  # any async function
            await anyio.wait_all_tasks_blocked()
            ready.set()
            await end.wait()
            group.cancel_scope.cancel()

    thread = threading.Thread(target=functools.partial(anyio.run, run, backend=backend))
    thread.start()
    assert ready.wait(10)
    try:
        yield
    finally:
        stop[0]()
        thread.join(10)


async def sleep_and_tell(
    clock: FakeClock, seconds: float, told: list[tuple[float, float]]
) -> None:
    begin = clock.monotonic()
    await clock.sleep(seconds)
    told.append((seconds, clock.monotonic() - begin))


def test_it_stands_still() -> None:
    clock: Clock = FakeClock(1_700_000_000.0)

    assert clock.time() == clock.time() == 1_700_000_000.0
    assert clock.monotonic() == clock.monotonic()


async def test_both_clocks_advance() -> None:
    clock = FakeClock(1_700_000_000.0)
    before = clock.monotonic()

    await clock.advance(12.5)

    assert clock.time() == 1_700_000_012.5
    assert clock.monotonic() == before + 12.5


async def test_each_sleeper_wakes_at_its_own_deadline_in_order() -> None:
    clock = FakeClock()
    told: list[tuple[float, float]] = []

    async with anyio.create_task_group() as group:
        for seconds in (3.0, 1.0, 2.0):
            group.start_soon(sleep_and_tell, clock, seconds, told)
        await clock.advance(10)

        assert told == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]


async def test_sleeper_wakes_at_the_tick_and_not_one_before() -> None:
    clock = FakeClock()
    told: list[tuple[float, float]] = []

    async with anyio.create_task_group() as group:
        group.start_soon(sleep_and_tell, clock, 5.0, told)
        await clock.advance(4.999)
        assert told == []

        await clock.advance(0.001)
        assert told == [(5.0, 5.0)]


async def test_sleeps_that_begin_during_a_move_count() -> None:
    clock = FakeClock()
    begin = clock.monotonic()
    beats: list[float] = []

    async def heart() -> None:
        while True:
            await clock.sleep(0.1)
            beats.append(round(clock.monotonic() - begin, 6))

    async with anyio.create_task_group() as group:
        group.start_soon(heart)
        await clock.advance(0.3)
        group.cancel_scope.cancel()

    assert beats == [0.1, 0.2, 0.3]


async def test_woken_tasks_finish_their_work_before_time_goes_on() -> None:
    clock = FakeClock()
    begin = clock.monotonic()
    ends: list[float] = []

    async def work() -> None:
        await clock.sleep(1)
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        ends.append(clock.monotonic() - begin)

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        group.start_soon(clock.sleep, 2)
        await clock.advance(3)

    assert ends == [1.0]


async def test_settle_runs_tasks_without_moving_time() -> None:
    clock = FakeClock()
    before = clock.time()
    done = anyio.Event()

    async def work() -> None:
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await clock.settle()

        assert done.is_set()
    assert clock.time() == before


async def test_two_tasks_may_settle_at_once() -> None:
    clock = FakeClock()

    async with anyio.create_task_group() as group:
        group.start_soon(clock.settle)
        group.start_soon(clock.advance, 1)
        await clock.settle()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_task_that_never_waits_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_loops, "_MAX_TURNS", 100)
    clock = FakeClock()

    async def spin() -> None:
        while True:
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(spin)
        with pytest.raises(RuntimeError, match="come to rest"):
            await clock.settle()
        group.cancel_scope.cancel()


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_sleeping_for_nothing_only_yields(seconds: float) -> None:
    clock = FakeClock()
    told: list[str] = []

    async def other() -> None:
        told.append("other")

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        for _ in range(2):
            await clock.sleep(seconds)

        assert told == ["other"]


async def test_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()

    async with anyio.create_task_group() as group:
        for seconds in (1.0, 1.0, 2.0, math.inf):
            group.start_soon(clock.sleep, seconds)
        await clock.settle()
        assert clock.sleepers == 3  # one for ever is no deadline
        group.cancel_scope.cancel()

    assert clock.sleepers == 0


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
async def test_stepping_the_wall_clock_moves_nothing_else(seconds: float) -> None:
    clock = FakeClock(1_700_000_000.0)
    before = clock.monotonic()
    told: list[tuple[float, float]] = []

    async with anyio.create_task_group() as group:
        group.start_soon(sleep_and_tell, clock, 10.0, told)
        await clock.settle()
        clock.shift_wall(seconds)
        await clock.settle()

        assert told == []
        assert clock.time() == 1_700_000_000.0 + seconds
        assert clock.true_time() == 1_700_000_000.0
        assert clock.monotonic() == before
        await clock.advance(10)
        assert told == [(10.0, 10.0)]


async def test_suspended_machine_loses_monotonic_time_only() -> None:
    clock = FakeClock(1_700_000_000.0)
    before = clock.monotonic()
    told: list[tuple[float, float]] = []

    async with anyio.create_task_group() as group:
        group.start_soon(sleep_and_tell, clock, 10.0, told)
        await clock.settle()
        clock.suspend(100)
        await clock.settle()

        assert told == []
        assert clock.time() == clock.true_time() == 1_700_000_100.0
        assert clock.monotonic() == before
        await clock.advance(10)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
async def test_time_does_not_run_backwards(seconds: float) -> None:
    clock = FakeClock()

    with pytest.raises(ValueError, match="shift_wall"):
        await clock.advance(seconds)
    with pytest.raises(ValueError, match="shift_wall"):
        clock.suspend(seconds)


async def test_many_small_moves_add_up() -> None:
    clock = FakeClock()
    before = clock.time()

    for _ in range(10):
        await clock.advance(0.1)

    assert clock.time() == before + 1.0


@pytest.mark.parametrize("passed", [0.0, 0.123456789, 7.7, 86_400.1])
@pytest.mark.parametrize("seconds", [1e-9, 0.1, 0.3, 0.7 * 299.9, 1 / 3, 1e5 / 3])
async def test_waiting_for_an_instant_ends_with_the_move_to_it(
    passed: float, seconds: float
) -> None:
    """A rounding error neither keeps the sleeper asleep nor lets it spin."""
    clock = FakeClock()
    await clock.advance(passed)
    deadline = clock.monotonic() + seconds
    rounds = 0

    async def wait() -> None:
        nonlocal rounds
        while clock.monotonic() < deadline:
            rounds += 1
            await clock.sleep(deadline - clock.monotonic())

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await clock.advance(seconds)

        assert clock.sleepers == 0
    assert 1 <= rounds <= 3


@pytest.mark.parametrize("other", BACKENDS)
async def test_one_move_wakes_sleepers_of_several_loops_in_order(other: str) -> None:
    clock = FakeClock()
    told: list[tuple[float, float]] = []

    async def elsewhere(end: anyio.Event) -> None:
        await sleep_and_tell(clock, 1.0, told)
        await sleep_and_tell(clock, 2.0, told)

    with running_elsewhere(other, elsewhere):
        async with anyio.create_task_group() as group:
            group.start_soon(sleep_and_tell, clock, 2.0, told)
            group.start_soon(sleep_and_tell, clock, 4.0, told)
            await clock.advance(5)

    assert told == [(1.0, 1.0), (2.0, 2.0), (2.0, 2.0), (4.0, 4.0)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_thread_without_a_loop_moves_the_time_of_others(backend: str) -> None:
    clock = FakeClock()
    begin = clock.monotonic()
    beats: list[float] = []

    async def heart(end: anyio.Event) -> None:
        while True:
            await clock.sleep(1)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            beats.append(clock.monotonic() - begin)

    with running_elsewhere(backend, heart):
        clock.advance_sync(3.5)

        assert beats == [1.0, 2.0, 3.0]
        assert clock.monotonic() == begin + 3.5


@pytest.mark.parametrize("blocking", [False, True])
async def test_loop_of_another_thread_that_is_stuck_is_reported(
    monkeypatch: pytest.MonkeyPatch, *, blocking: bool
) -> None:
    monkeypatch.setattr("freshtoken.testing.clock._PATIENCE", 0.01)
    clock = FakeClock()
    stuck = threading.Event()

    async def elsewhere(end: anyio.Event) -> None:
        await clock.sleep(1)
        stuck.wait(10)  # the whole loop stands still

    async def advance() -> None:
        if blocking:
            await anyio.to_thread.run_sync(clock.advance_sync, 1)
        else:
            await clock.advance(1)

    with running_elsewhere("asyncio", elsewhere):
        with pytest.raises(RuntimeError, match="another thread"):
            await advance()
        stuck.set()


async def test_blocking_move_inside_a_loop_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"await clock\.advance"):
        FakeClock().advance_sync(1)


def test_sleepers_of_a_loop_that_was_closed_do_no_harm() -> None:
    clock = FakeClock()
    before = clock.monotonic()
    loop = asyncio.new_event_loop()
    task = loop.create_task(clock.sleep(1))
    loop.run_until_complete(asyncio.sleep(0))
    assert clock.sleepers == 1
    loop.close()

    clock.advance_sync(2)

    assert clock.sleepers == 0
    assert clock.monotonic() == before + 2
    task.get_coro().close()  # its loop never will


def test_repr_shows_the_wall_clock() -> None:
    assert repr(FakeClock(5.0)) == "FakeClock(5.0, 0 sleepers)"

"""The memory store: the public contract, its own bounds, and threads."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Coroutine
from typing import TypeVar

import anyio
import pytest

from freshtoken import MemoryStore, MisconfiguredError
from freshtoken._foundation.records import Ended
from freshtoken.abc import Record, SessionStore
from freshtoken.testing import FakeClock
from freshtoken.testing.store_contract import SessionStoreContract

T = TypeVar("T")

DAY = 86_400.0
PLAIN = Record("https://idp.test", "web", "refresh_token", "grant-a")


class TestMemoryStore(SessionStoreContract):
    """On a clock that stands still: its stamps are exact."""

    tolerance = 0.0

    async def make_store(self) -> SessionStore:
        self.clock = FakeClock()
        return MemoryStore(clock=self.clock)

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)


class TestMemoryStoreOnTheMachinesClock(SessionStoreContract):
    """As applications make it; hardly any time has to pass."""

    short = 0.02

    async def make_store(self) -> SessionStore:
        return MemoryStore()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# -- Bounds -------------------------------------------------------------------------


async def test_a_session_without_a_known_end_is_kept_for_thirty_days(
    clock: FakeClock,
) -> None:
    store = MemoryStore(clock=clock)
    await store.swap("crm", None, PLAIN)

    await clock.advance(30 * DAY - 1)
    assert (await store.read("crm")).record == PLAIN
    await clock.advance(1)
    assert (await store.read("crm")).record is None


async def test_each_write_begins_the_idle_time_anew(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock, idle_timeout=60.0)
    after = dataclasses.replace(PLAIN, version=2)
    await store.swap("crm", None, PLAIN)
    await clock.advance(59)
    await store.swap("crm", PLAIN.pair, after)

    await clock.advance(59)
    assert (await store.read("crm")).record == after
    await clock.advance(1)
    assert (await store.read("crm")).record is None


async def test_neither_reads_nor_conflicts_prolong_a_session(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock, idle_timeout=60.0)
    await store.swap("crm", None, PLAIN)
    await clock.advance(59)
    await store.read("crm")
    await store.swap("crm", None, PLAIN)

    await clock.advance(1)
    assert (await store.read("crm")).record is None


async def test_a_known_end_goes_before_the_idle_time(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock, idle_timeout=60.0)
    await store.swap("long", None, PLAIN, keep_for=600.0)
    await store.swap("short", None, PLAIN, keep_for=6.0)

    await clock.advance(6)
    assert (await store.read("short")).record is None
    await clock.advance(593)
    assert (await store.read("long")).record == PLAIN
    await clock.advance(1)
    assert (await store.read("long")).record is None


async def test_above_its_size_it_forgets_what_was_not_written_for_longest(
    clock: FakeClock,
) -> None:
    store = MemoryStore(clock=clock, max_sessions=3)
    for name in ("a", "b", "c"):
        await store.swap(name, None, PLAIN)
    await store.swap("a", PLAIN.pair, dataclasses.replace(PLAIN, version=2))
    await store.read("b")  # is no write
    await store.swap("b", None, PLAIN)  # nor is a conflict

    await store.swap("d", None, PLAIN)

    kept = [name for name in "abcd" if (await store.read(name)).record is not None]
    assert kept == ["a", "c", "d"]
    assert len(store) == 3


async def test_a_write_to_a_full_store_forgets_nothing(clock: FakeClock) -> None:
    """Not while it replaces a record that is there."""
    store = MemoryStore(clock=clock, max_sessions=2)
    for name in ("a", "b"):
        await store.swap(name, None, PLAIN)

    await store.swap("b", PLAIN.pair, dataclasses.replace(PLAIN, version=2))

    assert (await store.read("a")).record == PLAIN
    assert len(store) == 2


async def test_ended_sessions_count_until_they_are_forgotten(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    ended = dataclasses.replace(PLAIN, ended=Ended("signed_out", 1.0))
    await store.swap("over", None, ended, keep_for=60.0)
    assert len(store) == 1

    await clock.advance(60)
    await store.read("over")
    assert len(store) == 0


async def test_its_time_is_monotonic(clock: FakeClock) -> None:
    """A step of the wall clock ends no lease and forgets no session."""
    store = MemoryStore(clock=clock, idle_timeout=60.0)
    before = (await store.swap("crm", None, PLAIN)).now

    clock.shift_wall(-3600)
    assert (await store.read("crm")).now == before
    clock.shift_wall(7200)
    assert (await store.read("crm")).record == PLAIN


@pytest.mark.parametrize(
    ("bounds", "setting"),
    [
        ({"idle_timeout": 0.0}, "idle_timeout"),
        ({"idle_timeout": -1.0}, "idle_timeout"),
        ({"idle_timeout": float("nan")}, "idle_timeout"),
        ({"max_sessions": 0}, "max_sessions"),
        ({"max_sessions": -1}, "max_sessions"),
    ],
)
def test_a_bound_under_which_nothing_is_kept_is_refused(
    bounds: dict[str, float], setting: str
) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        MemoryStore(**bounds)  # type: ignore[arg-type]  # one bound at a time

    assert caught.value.setting == setting


async def test_its_repr_shows_no_token(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    secret = "refresh-token-1"
    await store.swap(
        "crm", None, dataclasses.replace(PLAIN, refresh_token=secret, version=77)
    )

    assert secret not in repr(store)
    assert "1" in repr(store)
    assert "77" not in repr(store)


# -- Threads ------------------------------------------------------------------------


def run_now(work: Coroutine[object, None, T]) -> T:
    """Run a coroutine that never waits, without an event loop: it is all in memory."""
    try:
        work.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError


def test_a_full_store_stays_whole_under_many_threads() -> None:
    """Writing, reading and forgetting at once neither fails nor outgrows the bound."""
    store = MemoryStore(max_sessions=10, idle_timeout=0.001)
    errors: list[BaseException] = []
    largest = [0] * 8

    def work(number: int) -> None:
        try:
            for turn in range(2_000):
                name = f"session-{(number * 7 + turn) % 30}"
                run_now(store.swap(name, None, PLAIN))
                run_now(store.read(name))
                largest[number] = max(largest[number], len(store))
        except BaseException as error:  # noqa: BLE001 -- shown by the test's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert 0 < max(largest) <= 11  # one more for a moment, under the lock


class SwitchingRecord(Record):
    """Lets another thread run between a swap's comparison and its write."""

    __slots__ = ()

    @property
    def pair(self) -> tuple[str, int]:
        time.sleep(0)
        return (self.grant_id, self.version)


def test_comparison_and_write_are_one_step_for_other_threads() -> None:
    store = MemoryStore()
    first = SwitchingRecord("https://idp.test", "web", "refresh_token", "grant-a")
    run_now(store.swap("crm", None, first))
    applied: list[int] = []

    def work() -> None:
        for version in range(1, 501):
            record = dataclasses.replace(first, version=version + 1)
            result = run_now(store.swap("crm", ("grant-a", version), record))
            if result.applied:
                applied.append(version)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(applied) == list(range(1, 501))


def test_one_store_serves_several_event_loops_in_turn() -> None:
    """Nothing of it is bound to the loop that used it first."""
    store = MemoryStore()

    async def write(version: int) -> None:
        before = (await store.read("crm")).record
        record = dataclasses.replace(PLAIN, version=version)
        result = await store.swap("crm", before.pair if before else None, record)
        assert result.applied

    for version, backend in enumerate(("asyncio", "trio", "asyncio"), start=1):
        anyio.run(write, version, backend=backend)

    assert len(store) == 1

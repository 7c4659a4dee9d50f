"""How often, and when, a flight sends again."""

from __future__ import annotations

import random
from collections.abc import Sequence

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._foundation.records import Failure
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._wire.retry import next_wait, repeat
from freshtoken.errors import Disposition
from freshtoken.testing.clock import FakeClock
from tests.wire.failures import lost_answer, never_sent, terminal, unavailable


class Highest(random.Random):
    """Draws the upper end of every range."""

    def uniform(self, a: float, b: float) -> float:
        return b


RETRYABLE = st.sampled_from([lost_answer(), never_sent(), unavailable()])


def test_first_lost_answer_is_repeated_at_once() -> None:
    assert next_wait([lost_answer()], Highest()) == 0.0


def test_first_lost_answer_after_a_backoff_is_repeated_at_once() -> None:
    assert next_wait([unavailable(), lost_answer()], Highest()) == 0.0


def test_second_lost_answer_waits() -> None:
    assert next_wait([lost_answer(), lost_answer()], Highest()) == pytest.approx(0.2)


def test_backoff_doubles() -> None:
    failures = [never_sent()]
    waits = []
    while (wait := next_wait(failures, Highest(), limit=5)) is not None:
        waits.append(wait)
        failures.append(unavailable())

    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6])


def test_repeat_at_once_does_not_double_the_backoff() -> None:
    failures = [lost_answer(), lost_answer(), lost_answer()]

    assert next_wait(failures, Highest()) == pytest.approx(0.4)


@pytest.mark.parametrize(
    "disposition", [each for each in Disposition if each is not Disposition.RETRY]
)
def test_only_what_may_heal_is_repeated(disposition: Disposition) -> None:
    assert next_wait([Failure(disposition, "")], Highest()) is None


def test_retry_after_belongs_to_the_next_flight() -> None:
    assert next_wait([unavailable(retry_after=0.1)], Highest()) is None
    assert next_wait([unavailable(retry_after=0.0)], Highest()) is not None


def test_wait_longer_than_allowed_ends_the_flight() -> None:
    assert next_wait([unavailable()], Highest(), longest=0.19) is None
    assert next_wait([unavailable()], Highest(), longest=0.2) == pytest.approx(0.2)


@given(st.lists(RETRYABLE, min_size=1, max_size=6), st.integers(0, 2**32))
def test_wait_is_bounded_and_requests_are_at_most_four(
    failures: list[Failure], seed: int
) -> None:
    wait = next_wait(failures, random.Random(seed))

    assert (wait is None) == (len(failures) >= 4)
    assert wait is None or 0.0 <= wait <= 0.2 * 2 ** (len(failures) - 1)


class Work:
    """Fails as told, then returns 7."""

    def __init__(self, *failures: Failure) -> None:
        self.failures = list(failures)
        self.calls = 0

    async def __call__(self) -> int:
        self.calls += 1
        if self.failures:
            raise ExchangeError(self.failures.pop(0))
        return 7


async def test_lost_answer_needs_no_time(clock: FakeClock) -> None:
    work = Work(lost_answer())

    assert await repeat(work, clock=clock, rng=Highest()) == 7
    assert work.calls == 2


async def test_backoff_follows_the_injected_clock(clock: FakeClock) -> None:
    work = Work(unavailable(), unavailable())
    results: list[int] = []

    async def run() -> None:
        results.append(await repeat(work, clock=clock, rng=Highest()))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await clock.advance(0.199)
        assert work.calls == 1
        await clock.advance(0.002)
        assert work.calls == 2
        await clock.advance(0.4)

    assert results == [7]
    assert work.calls == 3


async def test_last_failure_comes_out_bare(clock: FakeClock) -> None:
    work = Work(lost_answer(), terminal())

    with pytest.raises(ExchangeError) as caught:
        await repeat(work, clock=clock, rng=Highest())

    assert caught.value.failure.error == "invalid_grant"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


async def test_flight_ends_after_four_requests(clock: FakeClock) -> None:
    work = Work(*[lost_answer() for _ in range(9)])

    async def run() -> None:
        with pytest.raises(ExchangeError):
            await repeat(work, clock=clock, rng=Highest())

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await clock.advance(10.0)

    assert work.calls == 4


async def test_hook_runs_before_each_repeat_and_sees_the_failures(
    clock: FakeClock,
) -> None:
    work = Work(lost_answer())
    seen: list[tuple[int, int]] = []

    async def hook(failures: Sequence[Failure]) -> None:
        seen.append((len(failures), work.calls))

    await repeat(work, clock=clock, rng=Highest(), before_repeat=hook)

    assert seen == [(1, 1)]


@pytest.mark.parametrize("error", [KeyError("fenced"), ExchangeError(lost_answer())])
async def test_hook_may_abort(clock: FakeClock, error: Exception) -> None:
    """Whatever class it raises, even one that would be repeated in the work."""
    work = Work(lost_answer(), lost_answer())

    async def hook(_: Sequence[Failure]) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await repeat(work, clock=clock, rng=Highest(), before_repeat=hook)

    assert caught.value is error
    assert work.calls == 1


async def test_other_errors_are_not_repeated(clock: FakeClock) -> None:
    calls = []

    async def work() -> None:
        calls.append(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await repeat(work, clock=clock, rng=Highest())
    assert len(calls) == 1


async def test_cancelling_stops_the_wait(clock: FakeClock) -> None:
    work = Work(unavailable())

    async with anyio.create_task_group() as group:

        async def run() -> None:
            await repeat(work, clock=clock, rng=Highest())

        group.start_soon(run)
        await clock.settle()
        group.cancel_scope.cancel()

    assert work.calls == 1
    assert clock.sleepers == 0

"""The budget of refetches: two at once, then one in 30 s."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._protocol.key_refetch import (
    REFETCH_INTERVAL,
    REFETCHES_AT_ONCE,
    RESTARTS,
    RefetchBudget,
)

START = 1_000.0


def refetched(budget: RefetchBudget, now: float) -> RefetchBudget:
    """Spend one refetch that ends well."""
    left = budget.spend(now)
    assert left is not None
    return left.finished()


@pytest.mark.spec("Core-10.1.1-cooldown")
def test_two_refetches_are_there_at_once_and_no_third() -> None:
    budget = refetched(refetched(RefetchBudget(), START), START)

    assert budget.spend(START) is None


@pytest.mark.parametrize("start", [0.0, START, 1e9])
def test_another_one_is_there_after_thirty_seconds_and_no_sooner(start: float) -> None:
    budget = refetched(refetched(RefetchBudget(), start), start)

    assert budget.spend(start + 29.999) is None
    budget = refetched(budget, start + 30.0)
    assert budget.spend(start + 30.0) is None
    assert budget.spend(start + 59.999) is None
    assert budget.spend(start + 60.0) is not None


def test_both_are_there_again_after_a_minute() -> None:
    budget = refetched(refetched(RefetchBudget(), START), START)

    budget = refetched(refetched(budget, START + 60.0), START + 60.0)

    assert budget.spend(START + 60.0) is None


def test_spared_refetches_do_not_pile_up() -> None:
    budget = refetched(RefetchBudget(), START)

    budget = refetched(refetched(budget, START + 1e6), START + 1e6)

    assert budget.spend(START + 1e6) is None


def test_cancelled_refetch_may_be_begun_again_but_not_for_ever() -> None:
    budget = refetched(RefetchBudget(), START).spend(START)

    for _ in range(RESTARTS):
        assert budget is not None
        budget = budget.spend(START)

    assert budget is not None
    assert budget.spend(START) is None


def test_finished_refetch_leaves_no_restart() -> None:
    budget = refetched(refetched(RefetchBudget(), START), START)

    assert budget.restarts == 0
    assert budget.spend(START) is None


@pytest.mark.spec("Core-10.1.1-cooldown")
@given(gaps=st.lists(st.floats(0.0, 100.0), max_size=60))
def test_no_pattern_of_misses_makes_a_storm(gaps: list[float]) -> None:
    """In any window there are never more than two plus one for each 30 s."""
    budget, now = RefetchBudget(), START
    times: list[float] = []
    for gap in gaps:
        now += gap
        left = budget.spend(now)
        if left is not None:
            times.append(now)
            budget = left.finished()

    for first, begin in enumerate(times):
        for last, end in enumerate(times[first:], start=first):
            allowed = REFETCHES_AT_ONCE + (end - begin) / REFETCH_INTERVAL
            assert last - first + 1 <= allowed + 1e-6


@given(gaps=st.lists(st.floats(30.0, 100.0), max_size=20))
def test_one_miss_in_thirty_seconds_is_always_served(gaps: list[float]) -> None:
    budget, now = RefetchBudget(), START
    for gap in gaps:
        now += gap + 1e-6
        budget = refetched(budget, now)

"""When servers and credentials are left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._wire.breaker import (
    PROBE_HOLD,
    ClientBreaker,
    RetryAfterPause,
    ServerBreaker,
)


def opened(now: float = 0.0) -> ServerBreaker:
    breaker = ServerBreaker()
    for number in range(5):
        breaker.failure(now, f"s{number % 2}")
    return breaker


def test_five_failures_on_two_sessions_open() -> None:
    breaker = ServerBreaker()

    told = [breaker.failure(0.0, name) for name in ("a", "a", "a", "b", "a")]

    assert told == [False, False, False, False, True]
    assert breaker.is_open
    assert breaker.check(0.0, "c") == pytest.approx(1.0)


def test_one_session_alone_never_opens() -> None:
    breaker = ServerBreaker()

    for _ in range(50):
        breaker.failure(0.0, "a")

    assert not breaker.is_open
    assert breaker.check(0.0, "b") is None
    assert breaker.failure(0.0, "b")


def test_success_in_between_starts_over() -> None:
    breaker = ServerBreaker()
    for name in ("a", "b", "a", "b"):
        breaker.failure(0.0, name)

    breaker.success()

    assert breaker.failures == 0
    assert not breaker.failure(0.0, "a")


def test_one_probe_at_a_time_and_success_closes() -> None:
    breaker = opened()

    assert breaker.check(0.999, "a") is not None
    assert breaker.check(1.0, "a") is None
    assert breaker.check(1.0, "b") == pytest.approx(1.0)
    assert breaker.check(1.1, "a") is None, "the prober may ask again"
    breaker.success()

    assert breaker.check(1.2, "b") is None
    assert not breaker.is_open


def test_probes_come_after_1_2_4_up_to_60_seconds() -> None:
    breaker = opened()
    now, gaps = 0.0, []
    for _ in range(8):
        wait = breaker.check(now, "x")
        assert wait is not None
        gaps.append(wait)
        now += wait
        assert breaker.check(now, "a") is None
        breaker.failure(now, "a")

    assert gaps == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60])


def test_failures_of_requests_that_were_under_way_do_not_defer_the_probe() -> None:
    breaker = opened()

    breaker.failure(0.9, "late")

    assert breaker.check(1.0, "a") is None


def test_probe_whose_holder_vanished_is_not_lost() -> None:
    breaker = opened()
    assert breaker.check(1.0, "gone") is None

    assert breaker.check(1.0 + PROBE_HOLD - 0.1, "b") is not None
    assert breaker.check(1.0 + PROBE_HOLD, "b") is None


def test_probe_that_was_not_used_is_given_back() -> None:
    breaker = opened()
    assert breaker.check(1.0, "a") is None

    breaker.release("b")
    assert breaker.check(1.0, "b") is not None
    breaker.release("a")

    assert breaker.check(1.0, "b") is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_open_breaker_never_lets_two_probe(steps: list[tuple[str, bool]]) -> None:
    breaker = opened()
    now, holder = 1.0, None
    for name, fails in steps:
        now += 0.5
        if breaker.check(now, name) is None and breaker.is_open:
            assert holder in {None, name}
            holder = name
        if fails and holder == name:
            breaker.failure(now, name)
            holder = None


def test_retry_after_of_one_session_is_its_own_affair() -> None:
    pause = RetryAfterPause()

    pause.failure(0.0, "a", 30.0)
    pause.failure(1.0, "a", 30.0)

    assert pause.check(1.0) is None


def test_retry_after_of_two_sessions_counts_for_all() -> None:
    pause = RetryAfterPause()

    pause.failure(0.0, "a", 30.0)
    pause.failure(1.0, "b", 60.0)

    assert pause.check(1.0) == pytest.approx(29.0)
    assert pause.check(29.9) is not None
    assert pause.check(30.0) is None


def test_retry_after_counts_for_at_most_300_seconds() -> None:
    pause = RetryAfterPause()

    pause.failure(0.0, "a", 1e9)
    pause.failure(0.0, "b", 1e9)

    assert pause.check(0.0) == pytest.approx(300.0)


def test_pause_that_is_over_does_not_count_for_a_new_one() -> None:
    pause = RetryAfterPause()
    pause.failure(0.0, "a", 5.0)

    pause.failure(6.0, "b", 5.0)

    assert pause.check(6.0) is None


def test_only_the_two_longest_are_kept() -> None:
    pause = RetryAfterPause()
    for number in range(100):
        pause.failure(0.0, f"s{number}", float(number + 1))

    assert pause.check(0.0) == pytest.approx(99.0)
    pause.success("s99")
    assert pause.check(0.0) is None


def test_first_refusal_of_the_credentials_is_told_once() -> None:
    breaker = ClientBreaker()

    assert breaker.check(0.0, "a", "f1") is None
    assert breaker.failure(0.0, "f1") is True
    assert breaker.failure(0.0, "f1") is False
    assert breaker.is_open


def test_refused_credentials_are_probed_once_a_minute() -> None:
    breaker = ClientBreaker()
    breaker.failure(0.0, "f1")

    assert breaker.check(59.0, "a", "f1") == pytest.approx(1.0)
    assert breaker.check(60.0, "a", "f1") is None
    assert breaker.check(60.0, "b", "f1") is not None
    breaker.failure(61.0, "f1")

    assert breaker.check(62.0, "b", "f1") == pytest.approx(59.0)
    assert breaker.check(121.0, "b", "f1") is None


def test_who_only_looks_probes_nothing() -> None:
    breaker = ClientBreaker()
    assert breaker.look(0.0, "f1") is None
    breaker.failure(0.0, "f1")

    assert breaker.look(59.0, "f1") == pytest.approx(1.0)
    assert breaker.look(59.0, None) == pytest.approx(1.0), "taken for the refused one"
    assert breaker.look(59.0, "f2") is None
    assert breaker.look(60.0, "f1") is None
    assert breaker.check(60.0, "a", "f1") is None
    assert breaker.look(60.0, "f1") == pytest.approx(1.0), "a probes"
    breaker.release("a")
    assert breaker.check(60.0, "b", "f1") is None


def test_changed_credentials_are_tried_at_once_by_one_session() -> None:
    breaker = ClientBreaker()
    breaker.failure(0.0, "f1")

    assert breaker.check(1.0, "a", "f2") is None
    assert breaker.check(1.0, "b", "f2") is not None
    assert breaker.check(1.0, "b", "f3") is None, "changed once more"
    breaker.success()

    assert breaker.check(2.0, "b", "f2") is None
    assert breaker.failure(3.0, "f2") is True


def test_old_credentials_wait_while_changed_ones_are_tried() -> None:
    breaker = ClientBreaker()
    breaker.failure(0.0, "f1")
    assert breaker.check(1.0, "a", "f2") is None

    assert breaker.check(2.0, "b", "f1") == pytest.approx(58.0)


def test_changed_credentials_that_are_refused_too_clear_nobody() -> None:
    breaker = ClientBreaker()
    breaker.failure(0.0, "f1")
    assert breaker.check(1.0, "a", "f2") is None

    assert breaker.failure(1.0, "f2") is False

    assert breaker.check(2.0, "b", "f2") == pytest.approx(59.0)


def test_probe_of_the_credentials_is_given_back() -> None:
    breaker = ClientBreaker()
    breaker.failure(0.0, "f1")
    assert breaker.check(60.0, "a", "f1") is None

    breaker.release("a")

    assert breaker.check(60.0, "b", "f1") is None
    assert breaker.check(60.0 + PROBE_HOLD, "c", "f1") is None, "b vanished"

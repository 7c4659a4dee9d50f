from __future__ import annotations

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._foundation.records import (
    DEFAULT_ENTRY,
    Ended,
    EntryKey,
    Failure,
    Hold,
    Lease,
    Record,
    StoredToken,
    next_version,
)
from freshtoken._lifecycle import policy
from freshtoken._lifecycle.local import (
    Ask,
    Call,
    Instant,
    LiveToken,
    LocalSession,
    decide,
)
from freshtoken._lifecycle.policy import Meeting, Step, Want
from freshtoken.errors import Disposition

NOW = 1_800_000_000.0
TICK = 0.001

lifetimes = st.floats(0.5, 400 * 86_400.0)
seeds = st.integers(0, 2**32)


def token(lifetime: float | None = 300.0, **changes: object) -> StoredToken:
    stored = StoredToken(
        key=DEFAULT_ENTRY,
        access_token="at-1",
        token_type="Bearer",
        issued_at=NOW,
        expires_at=None if lifetime is None else NOW + lifetime,
        refresh_at=None if lifetime is None else NOW + 0.75 * lifetime,
    )
    return dataclasses.replace(stored, **changes)  # type: ignore[arg-type]  # field names checked by replace


def record(**changes: object) -> Record:
    base = Record(
        issuer="https://idp.test",
        client_id="web",
        grant_type="refresh_token",
        grant_id="g-1",
        version=7,
        generation=3,
        refresh_token="rt-1",
        tokens=(token(),),
        saved_at=NOW,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]  # field names checked by replace


def failure(disposition: Disposition, **changes: object) -> Failure:
    return dataclasses.replace(Failure(disposition, "it failed"), **changes)  # type: ignore[arg-type]  # field names checked by replace


# The points of a token's life


@given(lifetimes, seeds)
def test_soft_point_lies_between_70_and_80_percent(lifetime: float, seed: int) -> None:
    soft = policy.draw_refresh_at(NOW, NOW + lifetime, random.Random(seed))

    assert soft is not None
    slip = math.ulp(NOW) * 2
    assert 0.70 * lifetime - slip <= soft - NOW <= 0.80 * lifetime + slip


def test_soft_points_use_the_whole_range() -> None:
    rng = random.Random(1)
    ages = [
        (policy.draw_refresh_at(NOW, NOW + 1000, rng) or 0) - NOW for _ in range(500)
    ]

    assert min(ages) < 705
    assert max(ages) > 795


@given(lifetimes, seeds)
def test_worker_adds_at_most_2_percent_of_its_own(lifetime: float, seed: int) -> None:
    stored = token(lifetime)

    own = policy.own_soft_point(stored, random.Random(seed))

    assert own is not None
    assert stored.refresh_at is not None
    assert 0.0 <= own - stored.refresh_at <= 0.02 * lifetime + math.ulp(NOW) * 2


@pytest.mark.parametrize(
    ("lifetime", "before_end"),
    [(3600.0, 10.0), (201.0, 10.0), (200.0, 10.0), (199.0, 9.95), (6.0, 0.3), (0, 0)],
)
def test_hard_point_is_the_smaller_of_10_s_and_5_percent_before_the_end(
    lifetime: float, before_end: float
) -> None:
    hard = policy.hard_point(token(lifetime))

    assert hard == pytest.approx(NOW + lifetime - before_end, abs=1e-6)


def test_unknown_lifetime_has_no_points() -> None:
    unknown = token(None)
    rng = random.Random(1)

    assert policy.draw_refresh_at(NOW, None, rng) is None
    assert policy.own_soft_point(unknown, rng) is None
    assert policy.hard_point(unknown) is None
    assert not policy.expired(record(tokens=(unknown,)), unknown, NOW + 1e9)


def test_soft_point_of_a_token_that_never_lived_is_its_issue() -> None:
    assert policy.draw_refresh_at(NOW, NOW - 50, random.Random(1)) == NOW


# Gaps between flights


@pytest.mark.parametrize(
    ("lifetime", "gap"),
    [(3600.0, 30.0), (300.0, 30.0), (299.0, 29.9), (60.0, 6.0), (0.0, 0.0), (-9.0, 0)],
)
def test_flight_without_progress_waits_10_percent_and_at_most_30_s(
    lifetime: float, gap: float
) -> None:
    assert policy.progress_gap(lifetime) == pytest.approx(gap)


@pytest.mark.parametrize(
    ("count", "bound"),
    [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (8, 60), (5_000, 60)],
)
def test_retry_waits_with_full_jitter_below_a_doubling_bound(
    count: int, bound: float
) -> None:
    """Also after five thousand flights: an outage may last for days."""
    rng = random.Random(count)
    failed = failure(Disposition.RETRY, count=count)

    waits = [policy.flight_gap(failed, rng) for _ in range(2_000)]

    assert 0.0 <= min(waits) < 0.01 * bound
    assert 0.99 * bound < max(waits) < bound


@pytest.mark.parametrize(
    ("asked", "wait"), [(1.0, 1.0), (30.0, 30.0), (300.0, 300.0), (301.0, 300.0)]
)
def test_retry_after_is_honoured_up_to_300_s(asked: float, wait: float) -> None:
    failed = failure(Disposition.RETRY, retry_after=asked, count=9)

    assert policy.flight_gap(failed, random.Random(1)) == wait


def test_retry_after_zero_is_no_licence_to_hammer() -> None:
    failed = failure(Disposition.RETRY, retry_after=0.0, count=7)
    rng = random.Random(1)

    assert max(policy.flight_gap(failed, rng) for _ in range(200)) > 50.0


@pytest.mark.parametrize(
    "disposition",
    [Disposition.DENIED, Disposition.MISCONFIGURED, Disposition.UNCLEAR],
)
def test_refusals_wait_30_s_and_double_to_10_min(disposition: Disposition) -> None:
    rng = random.Random(1)

    waits = [
        policy.flight_gap(failure(disposition, count=count), rng)
        for count in (1, 2, 3, 4, 5, 6, 5_000)
    ]

    assert waits == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]


def test_lease_covers_slack_request_and_margin() -> None:
    assert policy.LEASE == 40.0
    covered = policy.SLACK + policy.ATTEMPT_LIMIT + policy.MARGIN
    assert covered <= policy.LEASE
    assert policy.SETTLE >= 3 * policy.SAVE_RETRY


# What a store has to keep


def test_record_is_kept_a_day_past_its_refresh_token() -> None:
    kept = policy.keep_for(record(refresh_expires_at=NOW + 100.0), NOW)

    assert kept == pytest.approx(86_500.0)


def test_record_is_never_kept_shorter_than_a_lease_and_its_settling() -> None:
    kept = policy.keep_for(record(refresh_expires_at=NOW - 10 * 86_400.0), NOW)

    assert kept == policy.LEASE + policy.SETTLE


def test_record_without_known_end_is_the_stores_affair() -> None:
    assert policy.keep_for(record(), NOW) is None


def test_tombstone_is_kept_for_a_day() -> None:
    over = record(ended=Ended("signed_out", NOW), refresh_expires_at=NOW + 5)

    assert policy.keep_for(over, NOW) == 86_400.0


# Step 1 of the transaction


def judge(
    found: Record | None,
    want: Want = Want(DEFAULT_ENTRY),  # noqa: B008 -- frozen
    *,
    now: float = NOW,
    store_now: float = 50.0,
) -> Step:
    return policy.judge(
        found,
        want,
        issuer="https://idp.test",
        client_id="web",
        now=now,
        store_now=store_now,
    )


DUE = Want(DEFAULT_ENTRY, seen="at-1")
LOOK = Want(DEFAULT_ENTRY, look=True)
REFUSED = Want(DEFAULT_ENTRY, seen="at-1", insist=True, forced=True)
OTHER = EntryKey("https://other.test")


def forced(at: float, stored: StoredToken | None = None) -> Record:
    return record(tokens=(dataclasses.replace(stored or token(), forced_at=at),))


def held(key: EntryKey, met: Failure | None = None) -> Record:
    return record(holds=(Hold(key, 50.0, met),))


LEASED = Lease("another", "hash", 10.0, 50.0)


@pytest.mark.parametrize(
    ("found", "want", "now", "store_now", "step"),
    [
        pytest.param(None, DUE, NOW, 50, Step.ENDED, id="nothing there"),
        pytest.param(
            record(ended=Ended("terminal", NOW)), DUE, NOW, 50, Step.ENDED, id="ended"
        ),
        pytest.param(record(client_id="x"), DUE, NOW, 50, Step.FOREIGN, id="client"),
        pytest.param(record(issuer="x"), DUE, NOW, 50, Step.FOREIGN, id="issuer"),
        pytest.param(
            record(client_id="x", ended=Ended("terminal", NOW)),
            DUE,
            NOW,
            50,
            Step.FOREIGN,
            id="client, ended",
        ),
        pytest.param(
            record(), Want(DEFAULT_ENTRY), NOW + 290 - TICK, 50, Step.SERVE, id="fresh"
        ),
        pytest.param(
            record(), Want(DEFAULT_ENTRY), NOW + 290, 50, Step.ACQUIRE, id="past hard"
        ),
        pytest.param(record(), LOOK, NOW + 290, 50, Step.SERVE, id="look past hard"),
        pytest.param(record(), LOOK, NOW + 300, 50, Step.ACQUIRE, id="look, ended"),
        pytest.param(record(), DUE, NOW, 50, Step.ACQUIRE, id="due"),
        pytest.param(record(tokens=()), DUE, NOW, 50, Step.ACQUIRE, id="no token yet"),
        pytest.param(
            record(lease=LEASED), DUE, NOW, 50 - TICK, Step.SERVE, id="leased, alive"
        ),
        pytest.param(
            record(lease=LEASED), REFUSED, NOW, 50 - TICK, Step.WAIT, id="leased"
        ),
        pytest.param(record(lease=LEASED), DUE, NOW, 50, Step.ACQUIRE, id="overdue"),
        pytest.param(
            record(lease=LEASED), DUE, NOW + 300, 40, Step.WAIT, id="leased, expired"
        ),
        pytest.param(
            record(not_before=50.0), DUE, NOW, 50 - TICK, Step.SERVE, id="held, alive"
        ),
        pytest.param(
            record(not_before=50.0), REFUSED, NOW, 49, Step.HELD_BACK, id="held back"
        ),
        pytest.param(
            record(not_before=50.0), DUE, NOW, 50, Step.ACQUIRE, id="held no more"
        ),
        pytest.param(
            held(DEFAULT_ENTRY), REFUSED, NOW, 50 - TICK, Step.HELD_BACK, id="it alone"
        ),
        pytest.param(
            held(DEFAULT_ENTRY), REFUSED, NOW, 50, Step.ACQUIRE, id="it no more"
        ),
        pytest.param(held(OTHER), REFUSED, NOW, 49, Step.ACQUIRE, id="only another"),
        pytest.param(
            record(refresh_token=None),
            DUE,
            NOW + 300 - TICK,
            50,
            Step.SERVE,
            id="no refresh token, alive",
        ),
        pytest.param(
            record(refresh_token=None),
            DUE,
            NOW + 300,
            50,
            Step.NO_REFRESH_TOKEN,
            id="no refresh token",
        ),
        pytest.param(
            record(refresh_token=None, grant_type="client_credentials"),
            DUE,
            NOW + 300,
            50,
            Step.ACQUIRE,
            id="a service needs none",
        ),
        pytest.param(
            forced(NOW),
            REFUSED,
            NOW + 30 - TICK,
            50,
            Step.HELD_BACK,
            id="forced a moment ago",
        ),
        pytest.param(
            forced(NOW),
            REFUSED,
            NOW + 30,
            50,
            Step.ACQUIRE,
            id="forced again",
        ),
        pytest.param(
            forced(NOW),
            DUE,
            NOW + 1,
            50,
            Step.ACQUIRE,
            id="the gap is for forced ones",
        ),
        pytest.param(
            forced(NOW, token(None)),
            REFUSED,
            NOW + 30 - TICK,
            50,
            Step.HELD_BACK,
            id="forced, lifetime unknown",
        ),
        pytest.param(
            forced(NOW + 500),
            REFUSED,
            NOW,
            50,
            Step.ACQUIRE,
            id="forced in the future",
        ),
    ],
)
def test_a_look_decides(
    found: Record | None, want: Want, now: float, store_now: float, step: Step
) -> None:
    assert judge(found, want, now=now, store_now=store_now) is step


@pytest.mark.parametrize(("age", "over"), [(300.0 - TICK, False), (300.0, True)])
def test_times_of_a_record_from_the_future_are_moved_back(
    age: float,
    over: bool,  # noqa: FBT001 -- a row
) -> None:
    """Its writer is an hour ahead: by its own clock its token has lived for *age*."""
    writers_now = NOW + 3600.0
    issued_at = writers_now - age
    stored = token(issued_at=issued_at, expires_at=issued_at + 300.0)
    found = record(
        tokens=(stored,), saved_at=writers_now, refresh_expires_at=issued_at + 300.0
    )

    assert policy.clock_shift(found, NOW) == 3600.0
    assert policy.expired(found, stored, NOW) is over
    assert policy.refresh_token_over(found, NOW) is over
    assert policy.may_serve(found, DUE, NOW) is not over


def test_record_from_the_past_is_not_moved() -> None:
    assert policy.clock_shift(record(saved_at=NOW - 500), NOW) == 0.0


@pytest.mark.parametrize(
    ("now", "over"), [(NOW + 100 - TICK, False), (NOW + 100, True)]
)
def test_refresh_token_ends_when_it_was_said_to(now: float, over: bool) -> None:  # noqa: FBT001 -- a row
    assert policy.refresh_token_over(record(refresh_expires_at=NOW + 100), now) is over


# A success that meets a conflict


SAVED = record(version=8, generation=4, refresh_token="rt-2")


@pytest.mark.parametrize(
    ("found", "meeting"),
    [
        pytest.param(SAVED, Meeting.DONE, id="my own write"),
        pytest.param(
            next_version(SAVED, lease=LEASED), Meeting.DONE, id="leased since"
        ),
        pytest.param(record(version=9), Meeting.AGAIN, id="only a lease moved"),
        pytest.param(record(generation=2), Meeting.AGAIN_FORGOTTEN, id="forgot a save"),
        pytest.param(record(generation=5), Meeting.ADOPT, id="a newer generation"),
        pytest.param(
            dataclasses.replace(SAVED, refresh_token="rt-x"),
            Meeting.ADOPT,
            id="sibling",
        ),
        pytest.param(None, Meeting.DROP_AND_REVOKE, id="nothing"),
        pytest.param(
            record(ended=Ended("signed_out", NOW)), Meeting.DROP_AND_REVOKE, id="ended"
        ),
        pytest.param(record(grant_id="g-2"), Meeting.DROP, id="another grant"),
    ],
)
def test_a_save_decides_by_what_it_finds(
    found: Record | None, meeting: Meeting
) -> None:
    assert policy.meet(SAVED, found) is meeting


LATE = failure(Disposition.RETRY, at=2.0)
EARLY = failure(Disposition.MISCONFIGURED, at=1.0)


@pytest.mark.parametrize(
    ("of_all", "of_one", "known"),
    [
        (None, None, None),
        (LATE, None, LATE),
        (None, EARLY, EARLY),
        (LATE, EARLY, LATE),
        (EARLY, LATE, LATE),
    ],
)
def test_failure_that_is_repeated_is_the_last_that_holds(
    of_all: Failure | None, of_one: Failure | None, known: Failure | None
) -> None:
    found = dataclasses.replace(held(OTHER, of_one), failure=of_all)

    assert policy.known_failure(found, OTHER) is known
    assert policy.known_failure(found, DEFAULT_ENTRY) is of_all


# What one call does


def local(
    *,
    found: Record | None = None,
    not_before: float = 0.0,
    seen: Instant | None = None,
) -> LocalSession:
    found = found or record()
    known = LocalSession(found, seen or at(0), not_before)
    for stored in found.tokens:
        known.live[stored.key] = LiveToken(
            stored,
            now=at(0),
            shift=0.0,
            rng=random.Random(1),
            early_renewal=True,
        )
    return known


def at(age: float) -> Instant:
    return Instant(NOW + age, 100.0 + age)


FAILED = record(failure=failure(Disposition.RETRY), not_before=1.0)
OVER = record(ended=Ended("terminal", NOW), tokens=())


@pytest.mark.parametrize(
    ("known", "ask", "now", "call"),
    [
        pytest.param(None, Ask(), at(0), Call.FLY, id="unknown here"),
        pytest.param(local(), Ask(), at(4.9), Call.SERVE, id="live"),
        pytest.param(
            local(), Ask(), at(5), Call.SERVE_AND_LOOK, id="not looked for 5 s"
        ),
        pytest.param(
            local(seen=at(240)), Ask(), at(240), Call.SERVE_AND_RENEW, id="due"
        ),
        pytest.param(
            local(seen=at(240), not_before=900),
            Ask(),
            at(240),
            Call.SERVE,
            id="due, but held back",
        ),
        pytest.param(
            local(seen=at(290 - TICK)),
            Ask(),
            at(290 - TICK),
            Call.SERVE_AND_RENEW,
            id="a tick before the hard point",
        ),
        pytest.param(
            local(seen=at(290)), Ask(), at(290), Call.FLY_ALIVE, id="hard point"
        ),
        pytest.param(
            local(seen=at(290), not_before=900),
            Ask(),
            at(290),
            Call.SERVE,
            id="past the hard point, but held back",
        ),
        pytest.param(
            local(seen=at(300 - TICK)),
            Ask(),
            at(300 - TICK),
            Call.FLY_ALIVE,
            id="a tick before the end",
        ),
        pytest.param(local(seen=at(300)), Ask(), at(300), Call.FLY, id="ended"),
        pytest.param(local(), Ask(rejected="at-1"), at(0), Call.FLY, id="rejected"),
        pytest.param(
            local(), Ask(rejected="at-0"), at(0), Call.SERVE, id="another was"
        ),
        pytest.param(
            local(), Ask(min_validity=300.0), at(0), Call.SERVE, id="valid enough"
        ),
        pytest.param(
            local(), Ask(min_validity=299.0), at(1 + TICK), Call.FLY, id="too short"
        ),
        pytest.param(
            local(),
            Ask(min_validity=999.0),
            at(4.9),
            Call.SERVE,
            id="none lives as long",
        ),
        pytest.param(
            local(seen=at(30)),
            Ask(min_validity=999.0),
            at(30),
            Call.FLY,
            id="none lives as long, but a new one longer",
        ),
        pytest.param(
            local(found=record(generation=0)),
            Ask(min_validity=999.0),
            at(1),
            Call.FLY,
            id="the token came from elsewhere",
        ),
        pytest.param(
            local(found=FAILED, seen=at(300), not_before=900),
            Ask(),
            at(300.9),
            Call.FAIL,
            id="failed a moment ago",
        ),
        pytest.param(
            local(found=FAILED, seen=at(300), not_before=900),
            Ask(),
            at(301),
            Call.FLY,
            id="another may have done better",
        ),
        pytest.param(local(found=OVER), Ask(), at(4.9), Call.FAIL, id="over"),
        pytest.param(local(found=OVER), Ask(), at(5), Call.FLY, id="over, look again"),
    ],
)
def test_a_call_decides(
    known: LocalSession | None, ask: Ask, now: Instant, call: Call
) -> None:
    assert decide(known, ask, now) is call


def test_neither_asks_nor_wants_show_a_token() -> None:
    """They are locals of frames that errors pass through."""
    assert "at-9" not in repr(Ask(rejected="at-9"))
    assert "at-9" not in repr(Want(DEFAULT_ENTRY, seen="at-9"))

"""Clocks that stand still, jump and disagree: tokens of 300 s."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken import MemoryStore, TokenManager
from freshtoken._foundation.records import DEFAULT_ENTRY, Record, StoredToken
from freshtoken._lifecycle.events import EventSink, SkewWatch
from freshtoken._lifecycle.local import Instant, LiveToken, elapsed, instant
from freshtoken.events import ClockSkewSeen, Event
from freshtoken.testing import FakeClock, MockIdP

MakeManager = Callable[..., TokenManager]

TICK = 0.001
HOUR = 3_600.0


async def sign_in(tokens: TokenManager, idp: MockIdP) -> str:
    """Add a session and fetch its first token."""
    await idp.new_session(tokens, "crm")
    return (await tokens.get_token("crm")).reveal()


async def stored(store: MemoryStore) -> Record:
    record = (await store.read("crm")).record
    assert record is not None
    return record


# Within one process


async def test_suspended_process_does_not_serve_a_token_that_ended_meanwhile(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """The monotonic clock stood still for three hours."""
    async with manager as tokens:
        first = await sign_in(tokens, idp)
        clock.suspend(3 * HOUR)

        token = await tokens.get_token("crm")

        assert token.reveal() == idp.grant("crm").access_token != first
        assert token.expires_at == clock.time() + 300.0


@pytest.mark.parametrize(("asleep", "requests"), [(290.0 - TICK, 1), (290.0, 2)])
async def test_suspend_counts_to_the_tick(
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    asleep: float,
    requests: int,
) -> None:
    """Held, the refresh shows whether the call had to wait: it did not."""
    async with make_manager() as tokens:
        first = await sign_in(tokens, idp)
        clock.suspend(asleep)

        token = (await tokens.get_token("crm")).reveal()

        assert (token == first) is (requests == 1)


async def test_wall_clock_set_back_lets_no_token_live_longer(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Two hours back; by the monotonic clock the token has ended."""
    async with manager as tokens:
        first = await sign_in(tokens, idp)
        clock.shift_wall(-2 * HOUR)
        await clock.advance(150.0)
        assert (await tokens.get_token("crm")).reveal() == first
        await clock.advance(100.0)
        assert len(idp.requests("token")) == 2  # due as if nothing had been set

        await clock.advance(300.0)
        token = await tokens.get_token("crm")

        assert token.reveal() == idp.grant("crm").access_token
        assert idp.is_active(token.reveal())


async def test_wall_clock_set_back_does_not_stop_renewal(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Nor does it begin a loop: a day of use after it."""
    async with manager as tokens:
        await sign_in(tokens, idp)
        clock.shift_wall(-2 * HOUR)

        for _ in range(1_440):
            await clock.advance(60.0)
            token = await tokens.get_token("crm")
            assert idp.is_active(token.reveal())

        assert 86_400 / 250 <= len(idp.requests("token")) <= 86_400 / 210 + 2


async def test_wall_clock_set_forward_costs_one_refresh(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await sign_in(tokens, idp)
        clock.shift_wall(2 * HOUR)

        first = (await tokens.get_token("crm")).reveal()
        for _ in range(100):
            await clock.advance(1.0)
            assert (await tokens.get_token("crm")).reveal() == first

        assert len(idp.requests("token")) == 2


async def test_clock_that_swings_does_no_harm(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Steps of up to an hour in both directions, every ten minutes, for a day."""
    rng = random.Random(5)
    async with manager as tokens:
        await sign_in(tokens, idp)

        for _ in range(144):
            clock.shift_wall(rng.uniform(-HOUR, HOUR))
            for _ in range(10):
                await clock.advance(60.0)
                token = await tokens.get_token("crm")
                assert idp.is_active(token.reveal())

        assert len(idp.requests("token")) <= 86_400 / 210 + 2 + 2 * 144


@pytest.fixture(
    params=["UTC", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati"]
)
def zone(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


async def test_daylight_saving_means_nothing(zone: str) -> None:
    """Ten minutes on, the hour that Berlin leaves out is over."""
    clock = FakeClock(1_806_195_300.0)  # 2027-03-28T00:55:00Z
    idp = MockIdP(clock=clock, access_token_lifetime=HOUR)
    async with TokenManager(
        idp.client(), http_client=idp.http_client(), clock=clock, rng=random.Random(1)
    ) as tokens:
        first = await sign_in(tokens, idp)
        await clock.advance(600.0)

        token = await tokens.get_token("crm")

        assert token.reveal() == first
        assert token.expires_at == 1_806_198_900.0
        assert len(idp.requests("token")) == 1


# Between workers


async def test_record_saved_in_the_readers_future_is_moved_back(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    """The writer is an hour ahead; the reader serves its token for 300 s, no more."""
    ahead = FakeClock(clock.time() + HOUR)
    async with make_manager(clock=ahead) as writer, make_manager() as reader:
        first = await sign_in(writer, idp)
        assert (await stored(store)).saved_at == clock.time() + HOUR

        assert (await reader.get_token("crm")).reveal() == first
        live = reader._cache.hot["crm"]
        assert live.end_wall == pytest.approx(clock.time() + 300.0)
        assert 210.0 <= live.due_wall - clock.time() <= 246.0

        await clock.advance(300.0)
        assert (await reader.get_token("crm")).reveal() != first


async def test_record_saved_in_the_readers_past_is_taken_as_it_is(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    """A writer an hour behind: its token looks dead, which costs one refresh."""
    behind = FakeClock(clock.time() - HOUR)
    async with make_manager(clock=behind) as writer, make_manager() as reader:
        first = await sign_in(writer, idp)

        assert (await reader.get_token("crm")).reveal() != first
        assert len(idp.requests("token")) == 2


async def test_servers_clock_does_not_matter_to_lifetimes(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    idp.clock_skew = -5 * HOUR
    async with manager as tokens:
        await sign_in(tokens, idp)

        assert (await tokens.get_token("crm")).expires_at == clock.time() + 300.0


@pytest.mark.parametrize("skew", [-5 * HOUR, -60.0, 60.0, 5 * HOUR])
async def test_instants_of_a_server_with_another_clock_are_read_by_its_date(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, skew: float
) -> None:
    idp.clock_skew = skew
    idp.token_members = {"expires_in": None, "expires_at": idp.now() + 120.0}
    async with manager as tokens:
        await sign_in(tokens, idp)

        assert (await tokens.get_token("crm")).expires_at == clock.time() + 120.0


async def use_for_an_hour(tokens: TokenManager, idp: MockIdP, clock: FakeClock) -> None:
    await sign_in(tokens, idp)
    for _ in range(72):
        await clock.advance(50.0)
        await tokens.get_token("crm")


def skews(events: list[Event]) -> list[float]:
    return [event.skew for event in events if isinstance(event, ClockSkewSeen)]


@pytest.mark.parametrize("skew", [-86_400.0, -31.5, 31.5, 86_400.0])
async def test_skew_against_the_server_is_reported_once(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock, skew: float
) -> None:
    events = list[Event]()
    idp.clock_skew = skew
    async with make_manager(on_event=events.append) as tokens:
        await use_for_an_hour(tokens, idp, clock)

    assert skews(events) == [pytest.approx(skew, abs=1.0)]


@pytest.mark.parametrize("skew", [-29.0, 0.0, 29.0])
async def test_skew_within_the_leeway_is_not_reported(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock, skew: float
) -> None:
    events = list[Event]()
    idp.clock_skew = skew
    async with make_manager(on_event=events.append) as tokens:
        await use_for_an_hour(tokens, idp, clock)

    assert skews(events) == []


def test_skew_at_the_very_edge_is_not_reported_again_and_again() -> None:
    events = list[Event]()
    watch = SkewWatch(EventSink(events.append, issuer="https://idp.test"))

    for measured in (30.2, 29.8, 30.4, 29.6, 30.1, 40.0, 59.0):
        watch.see(measured)
    assert skews(events) == [30.2]

    watch.see(61.0)  # another leeway more
    watch.see(0.4)  # mended
    watch.see(-30.2)
    assert skews(events) == [30.2, 61.0, -30.2]


# Lifetimes


async def test_lifetime_counts_from_before_the_request_was_sent(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    """The answer takes 20 s on its way: the token has 280 s left."""
    async with manager as tokens:
        await sign_in(tokens, idp)
        idp.delay_next("token", 20.0, processed=True)
        await clock.advance(246.0 + TICK)
        sent_at = idp.requests("token")[-1].at

        await clock.advance(20.0)

        token = (await stored(store)).tokens[0]
        assert token.access_token == idp.grant("crm").access_token
        assert token.issued_at == sent_at
        assert token.expires_at == sent_at + 300.0
        assert (token.refresh_at or 0.0) >= sent_at + 210.0


async def test_refresh_token_that_reached_its_stated_end_is_not_sent(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Also where the machine slept through it."""
    idp.rules.refresh_token_lifetime = 1_000.0
    async with manager as tokens:
        await sign_in(tokens, idp)
        clock.suspend(1_000.0)
        await clock.settle()

        with pytest.raises(Exception, match="has reached the end"):
            await tokens.get_token("crm")

        assert len(idp.requests("token")) == 1


# The token at hand, by itself


@given(
    lifetime=st.floats(0.0, 1e6),
    steps=st.lists(
        st.tuples(st.sampled_from(["run", "sleep", "step"]), st.floats(-1e5, 1e5)),
        max_size=12,
    ),
)
def test_no_token_outlives_its_lifetime_on_either_clock(
    lifetime: float, steps: list[tuple[str, float]]
) -> None:
    clock = FakeClock()
    began = instant(clock)
    token = StoredToken(
        DEFAULT_ENTRY,
        "at",
        "Bearer",
        began.wall,
        began.wall + lifetime,
        began.wall + 0.7 * lifetime,
    )
    live = LiveToken(
        token, now=began, shift=0.0, rng=random.Random(1), early_renewal=True
    )

    for kind, seconds in steps:
        if kind == "step":
            clock.shift_wall(seconds)
            continue
        if kind == "run":
            clock._monotonic += int(abs(seconds) * 1e9)
        else:
            clock.suspend(abs(seconds))
    now = instant(clock)

    gone = max(now.mono - began.mono, now.wall - began.wall)
    assert elapsed(clock, began) == gone
    if gone >= lifetime + 1e-3:
        assert live.expired(now)
        assert live.past_hard(now)
        assert live.is_due(now)
    if gone < 0.7 * lifetime - 1e-3:
        assert not live.is_due(now)
    assert not live.expired(now) or live.past_hard(now)
    assert not live.past_hard(now) or live.is_due(now)
    if not live.expired(now):
        assert live.remaining(now) > 0.0


def test_token_read_late_ends_when_it_was_to_end() -> None:
    """By the monotonic clock, too, which had not begun when it was issued."""
    token = StoredToken(DEFAULT_ENTRY, "at", "Bearer", 1_000.0, 1_300.0, 1_225.0)
    now = Instant(1_200.0, 50.0)
    live = LiveToken(
        token, now=now, shift=0.0, rng=random.Random(1), early_renewal=False
    )

    assert (live.end_wall, live.end_mono) == (1_300.0, 150.0)


def test_token_read_after_the_wall_clock_was_set_back_lives_no_longer_than_ever() -> (
    None
):
    token = StoredToken(DEFAULT_ENTRY, "at", "Bearer", 9_000.0, 9_300.0, 9_225.0)
    now = Instant(1_800.0, 50.0)  # two hours before it was issued
    live = LiveToken(
        token, now=now, shift=0.0, rng=random.Random(1), early_renewal=False
    )

    assert live.end_mono == 350.0

"""Renewal without a request to trigger it: tokens of 300 s, due at 210-246 s."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import anyio
import pytest

from freshtoken import MemoryStore, TokenManager
from freshtoken._foundation.records import DEFAULT_ENTRY, EntryKey, StoredToken
from freshtoken._lifecycle.local import LiveToken, instant
from freshtoken._lifecycle.policy import Want
from freshtoken._lifecycle.scheduler import Agenda, Scheduler
from freshtoken.events import Event, TokenRefreshed
from freshtoken.testing import FakeClock, MockIdP

MakeManager = Callable[..., TokenManager]

TICK = 0.001


async def sign_in(tokens: TokenManager, idp: MockIdP, name: str = "crm") -> str:
    """Add a session and fetch its first token: from then on it is in use."""
    await idp.new_session(tokens, name)
    return (await tokens.get_token(name)).reveal()


async def test_session_in_use_is_renewed_without_a_request(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    async with manager as tokens:
        first = await sign_in(tokens, idp)
        await clock.advance(210.0 - TICK)
        assert len(idp.requests("token")) == 1

        await clock.advance(36.0 + 2 * TICK)

        assert len(idp.requests("token")) == 2
        assert sum(isinstance(event, TokenRefreshed) for event in events) == 2
        assert (await tokens.get_token("crm")).reveal() != first
        assert len(idp.requests("token")) == 2


async def test_session_in_steady_use_never_lets_a_caller_wait(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Ten hours with a call every 10 s and a server that takes 2 s to answer."""
    async with manager as tokens:
        await sign_in(tokens, idp)
        idp.delay_next("token", 2.0, count=None)

        for _ in range(3_600):
            await clock.advance(10.0)
            with anyio.fail_after(5.0):  # no time passes: a call that waits hangs
                token = await tokens.get_token("crm")
            assert (token.expires_at or 0.0) > clock.time()

        assert 36_000 / 248 <= len(idp.requests("token")) <= 36_000 / 212 + 1


async def test_idle_session_is_left_alone_for_good(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """One token is fetched that nobody asks for; its life ends the renewal."""
    async with manager as tokens:
        await sign_in(tokens, idp)

        await clock.advance(24 * 3_600.0)

        assert len(idp.requests("token")) == 2
        assert len(tokens._agenda) == 0
        assert tokens.stats.sessions == {"live": 0, "due": 0, "expired": 0, "ended": 0}


async def test_idle_session_is_resumed_by_the_next_call(
    manager: TokenManager, idp: MockIdP, store: MemoryStore, clock: FakeClock
) -> None:
    async with manager as tokens:
        await sign_in(tokens, idp)
        await clock.advance(24 * 3_600.0)
        assert (await store.read("crm")).record is not None

        token = await tokens.get_token("crm")

        assert token.reveal() == idp.grant("crm").access_token
        assert len(idp.requests("token")) == 3
        await clock.advance(250.0)
        assert len(idp.requests("token")) == 4


async def test_late_call_takes_an_idle_session_into_use_again(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await sign_in(tokens, idp)
        await clock.advance(246.0 + TICK)
        assert len(idp.requests("token")) == 2

        await clock.advance(100.0)
        await tokens.get_token("crm")  # early in the second token's life
        await clock.advance(150.0)

        assert len(idp.requests("token")) == 3


async def test_without_early_renewal_nothing_is_planned(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with make_manager(early_renewal=False) as tokens:
        await sign_in(tokens, idp)

        assert len(tokens._agenda) == 0
        await clock.advance(3_600.0)
        assert len(idp.requests("token")) == 1


async def test_entries_for_other_scopes_are_renewed_too(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        await tokens.get_token("crm", scope="openid")

        await clock.advance(250.0)

        scopes = [request.form.get("scope") for request in idp.requests("token")]
        assert scopes == ["openid", "openid"]


async def test_outage_is_survived_in_the_background(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """The server is back a minute before the token ends: nobody notices anything."""
    idp.rules.access_token_lifetime = 3_600.0
    async with manager as tokens:
        first = await sign_in(tokens, idp)
        outage = idp.fail_next(status=503, count=None)
        await clock.advance(3_540.0)
        assert 5 <= outage.met <= 4 * (1 + 3_600 * 0.3 / 10)
        idp.clear_faults()

        await clock.advance(61.0)

        token = (await tokens.get_token("crm")).reveal()
        assert token == idp.grant("crm").access_token != first


async def test_session_in_use_is_renewed_once_after_its_token_ended_in_an_outage(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """But nobody asks on: that is no reason to ask the server for days."""
    async with manager as tokens:
        await sign_in(tokens, idp)
        outage = idp.fail_next(status=503, count=None)
        await clock.advance(361.0)
        met = outage.met

        await clock.advance(24 * 3_600.0)

        assert outage.met == met
        assert len(tokens._agenda) == 0


async def test_suspended_machine_renews_within_a_minute_of_its_wake_up(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Three hours of sleep: the monotonic clock stood still."""
    async with manager as tokens:
        await sign_in(tokens, idp)
        await clock.advance(5.0)

        clock.suspend(10_800.0)
        await clock.advance(31.0)

        assert len(idp.requests("token")) == 2
        await tokens.get_token("crm")
        assert len(idp.requests("token")) == 2


async def test_short_suspend_is_noticed_before_the_token_ends(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await sign_in(tokens, idp)
        clock.suspend(245.0)

        await clock.advance(31.0)

        assert len(idp.requests("token")) == 2


async def test_agenda_does_not_grow_with_refreshes(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await sign_in(tokens, idp)

        for _ in range(200):
            await clock.advance(100.0)
            await tokens.get_token("crm")

        assert len(tokens._agenda) <= 2


async def test_agenda_forgets_a_session_that_ended(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await sign_in(tokens, idp)
        await tokens.end_session("crm")

        await clock.advance(300.0)

        assert len(tokens._agenda) == 0
        assert len(idp.requests("token")) == 1


async def test_earlier_deadline_wakes_the_scheduler(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """It sleeps for 30 s when a token of 5 s comes."""
    async with manager as tokens:
        await sign_in(tokens, idp, "long")
        await clock.advance(1.0)
        idp.rules.access_token_lifetime = 5.0
        await sign_in(tokens, idp, "short")

        await clock.advance(4.2)

        assert len(idp.requests("token")) == 3


async def test_manager_that_was_left_renews_nothing(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await sign_in(tokens, idp)

    await clock.advance(300.0)

    assert len(idp.requests("token")) == 1
    assert clock.sleepers == 0


async def test_manager_that_is_entered_again_goes_on_renewing(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await sign_in(tokens, idp)
    async with manager:
        await clock.advance(250.0)

        assert len(idp.requests("token")) == 2


async def test_one_fault_does_not_end_early_renewal(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fly, failed = Scheduler.handle, list[str]()

    def fail_once(self: Scheduler, item: object, now: object) -> None:
        if not failed:
            failed.append("once")
            raise RuntimeError
        fly(self, item, now)  # type: ignore[arg-type]  # handed on

    monkeypatch.setattr(Scheduler, "handle", fail_once)
    async with manager as tokens:
        await sign_in(tokens, idp, "first")
        await sign_in(tokens, idp, "second")

        with caplog.at_level(logging.ERROR, "freshtoken"):
            await clock.advance(250.0)

        assert len(caplog.records) == 1
        assert caplog.records[0].message.startswith("scheduler_failed")
        assert len(idp.requests("token")) == 3


# The agenda by itself


class Known:
    """A cache that knows one session, in use."""

    def __init__(self, live: LiveToken) -> None:
        self.live = {DEFAULT_ENTRY: live}
        self.forgotten = False

    def held_until(self, key: EntryKey) -> float:
        return 0.0

    def get(self, session_id: str) -> Known:
        return self

    def forget(self, session_id: str) -> None:
        self.forgotten = True


@pytest.mark.parametrize("seed", range(60))
def test_wall_clock_that_jumped_makes_nothing_late(seed: int) -> None:
    """Also where the sum of two clock readings is rounded the wrong way."""
    rng = random.Random(seed)
    clock = FakeClock(1_800_000_000.0 + rng.random())
    agenda = Agenda(clock)
    clock._monotonic += int(rng.uniform(0.0, 1e5) * 1e9)
    now = clock.time()
    stored = StoredToken(
        DEFAULT_ENTRY, "at", "Bearer", now - rng.random(), now + 3_600, now + 2_700
    )
    live = LiveToken(stored, now=instant(clock), shift=0.0, rng=rng, early_renewal=True)
    live.used = True
    flown: list[tuple[str, EntryKey]] = []

    def fly(session_id: str, want: Want) -> None:
        flown.append((session_id, want.key))

    scheduler = Scheduler(agenda, Known(live), clock, fly)  # type: ignore[arg-type]  # as much of a cache as it needs
    agenda.add("crm", DEFAULT_ENTRY, live)

    clock.shift_wall(rng.uniform(50.0, 1_500.0))
    turns = 0
    while not flown:
        turns += 1
        assert turns < 200
        pause = min(agenda.next_in(instant(clock)) or 0.0, 30.0)
        clock._monotonic += max(int(pause * 1e9), 1)
        for item in agenda.take_due(instant(clock)):
            scheduler.handle(item, instant(clock))

    assert flown == [("crm", DEFAULT_ENTRY)]
    assert 0.0 <= clock.time() - live.due_wall < TICK
    assert clock.monotonic() < live.due_mono - 49.0

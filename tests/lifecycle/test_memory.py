"""What a manager keeps in memory is bounded by what is in use."""

from __future__ import annotations

import dataclasses
import random

import pytest

from freshtoken import MemoryStore
from freshtoken._foundation.records import (
    DEFAULT_ENTRY,
    EntryKey,
    Record,
    StoredToken,
    with_token,
)
from freshtoken._lifecycle.cache import SessionCache, is_idle
from freshtoken._lifecycle.local import NEVER, Instant, LiveToken, LocalSession
from freshtoken._lifecycle.scheduler import Agenda
from freshtoken.testing import FakeClock, MockIdP
from tests.lifecycle.conftest import MakeManager

NOW = 1_800_000_000.0
TICK = 0.001
MANY = 2_500


def token(lifetime: float | None = 300.0, key: EntryKey = DEFAULT_ENTRY) -> StoredToken:
    return StoredToken(
        key=key,
        access_token="at-1",
        token_type="Bearer",
        issued_at=NOW,
        expires_at=None if lifetime is None else NOW + lifetime,
        refresh_at=None if lifetime is None else NOW + 0.75 * lifetime,
    )


def record(*tokens: StoredToken) -> Record:
    return Record(
        issuer="https://idp.test",
        client_id="mock-client",
        grant_type="refresh_token",
        grant_id="g-1",
        tokens=tokens,
        saved_at=NOW,
    )


@pytest.mark.parametrize("early_renewal", [False, True])
async def test_sessions_that_were_signed_out_are_forgotten(
    make_manager: MakeManager,
    store: MemoryStore,
    clock: FakeClock,
    early_renewal: bool,  # noqa: FBT001 -- a row
) -> None:
    """Soon after nobody needs to be told any more; their tokens are forgotten, too."""
    async with make_manager(early_renewal=early_renewal) as tokens:
        for number in range(MANY):
            await tokens._keeper.add(
                f"user-{number}",
                refresh_token=f"rt-{number}",
                access_token=f"at-{number}",
                expires_at=clock.time() + 86_400.0,
                refresh_expires_at=None,
                scope=None,
                replace=False,
            )
            await tokens._keeper.end(f"user-{number}")
        assert len(tokens._cache) == MANY
        assert tokens._cache.hot == {}

        await clock.advance(330.0)

        assert len(tokens._cache) == 0
        assert len(tokens._cache._rounds) == 0
        assert len(tokens._agenda) <= 1_000


@pytest.mark.parametrize("early_renewal", [False, True])
async def test_sessions_that_nobody_asks_for_are_forgotten(
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    early_renewal: bool,  # noqa: FBT001 -- a row
) -> None:
    """Also those that never had a token; the store has them all."""
    async with make_manager(early_renewal=early_renewal) as tokens:
        for number in range(50):
            await tokens.add_session(f"never-{number}", refresh_token="rt")
        await idp.new_session(tokens, "used")
        await tokens.get_token("used")
        await clock.advance(1_200.0)

        assert len(tokens._cache) == 0
        assert (await tokens.get_token("used")).reveal()


async def test_what_comes_sweeps_away_what_nobody_needs(clock: FakeClock) -> None:
    """Without a timer, too: a manager that was left is still in use by its threads."""
    cache = SessionCache(
        clock,
        random.Random(1),
        owner=("https://idp.test", "mock-client"),
        early_renewal=False,
        scheduled=lambda *_: None,
    )
    for number in range(100):
        cache.adopt(f"old-{number}", record())
    await clock.advance(60.0)

    for number in range(50):
        cache.adopt(f"new-{number}", record())

    assert [cache.known(f"old-{number}") for number in range(100)] == [None] * 100
    assert len(cache) == 50


@pytest.mark.parametrize(
    ("stored", "early", "used", "age", "idle"),
    [
        pytest.param((), True, False, 60.0 - TICK, False, id="no token, seen just now"),
        pytest.param((), True, False, 60.0, True, id="no token"),
        pytest.param((token(),), True, False, 300.0, True, id="ended"),
        pytest.param((token(),), True, False, 300.0 - TICK, False, id="lives"),
        pytest.param((token(),), True, True, 300.0, False, id="ended, but in use"),
        pytest.param((token(),), False, True, 300.0, True, id="nobody renews it early"),
        pytest.param((token(1e5),), True, False, 3_600.0, False, id="to be renewed"),
        pytest.param((token(1e5),), False, False, 3_600.0, True, id="lives unasked"),
        pytest.param((token(None),), True, True, 3_600.0, True, id="no end known"),
        pytest.param((token(None),), True, True, 3_599.9, False, id="no end, an hour"),
        pytest.param((token(),), True, True, 3_600.0, True, id="in use long ago"),
    ],
)
def test_session_is_idle_when_a_call_would_look_at_the_store_anyway(
    stored: tuple[StoredToken, ...],
    early: bool,  # noqa: FBT001 -- a row
    used: bool,  # noqa: FBT001 -- a row
    age: float,
    idle: bool,  # noqa: FBT001 -- a row
) -> None:
    local = LocalSession(record(*stored), Instant(NOW, 0.0), 0.0)
    for one in stored:
        live = LiveToken(
            one,
            now=local.loaded,
            shift=0.0,
            rng=random.Random(1),
            early_renewal=early,
        )
        live.used = used
        local.live[one.key] = live
    now = Instant(NOW + age, age)

    assert is_idle(local, now, early=early) is idle
    local.unsaved = local.record
    assert not is_idle(local, now, early=early)


def test_agenda_of_nothing_is_never_due(clock: FakeClock) -> None:
    assert Agenda(clock).next_in(Instant(NOW, 0.0)) == NEVER


ONE, TWO = EntryKey("https://one.test"), EntryKey("https://two.test")


def test_tokens_that_had_ended_are_left_out_of_the_record() -> None:
    """Not those that end a tick later, nor those whose end is unknown."""
    kept = (token(300.0 + TICK), token(None, key=ONE))
    later = dataclasses.replace(token(key=TWO), issued_at=NOW + 300.0)
    ended = token(300.0, key=EntryKey("https://three.test"))

    assert with_token(record(*kept, ended), later) == (*kept, later)

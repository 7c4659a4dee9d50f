"""The traces that every implementation of the refresh protocol replays.

A, B and C are workers, S is the server, n counts the token requests that reached S.
"""

from __future__ import annotations

import pytest

from freshtoken import MemoryStore
from freshtoken.errors import RetryableError, SignInRequiredError, StoreError
from freshtoken.events import RotationLost, SessionEnded, StoreForgot
from freshtoken.testing import FakeClock, MockIdP
from tests.lifecycle.conftest import MakeManager
from tests.lifecycle.sim import SESSION, Outage, World

T = 40.0
SETTLE = 3.0
TICK = 0.001


@pytest.fixture
def world(
    idp: MockIdP, store: MemoryStore, clock: FakeClock, make_manager: MakeManager
) -> World:
    return World(idp, store, clock, make_manager)


# 1


async def test_of_two_workers_one_refreshes_and_the_other_adopts(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        await b.look()
        race = b.store.hold_next("acquire", "before")
        answer = world.idp.hold_next(at="after")
        first = world.call(a)
        await answer.reached()
        second = world.call(b)
        await race.reached()
        race.release()
        await world.settle()

        answer.release()
        await world.advance(1.0)

        record = await world.assert_saved(1)
        assert world.requests == 1
        assert first.token == second.token == record.tokens[0].access_token
        assert b.store.outcomes("acquire") == ["conflict"]
        assert a.event_names == ["token_refreshed"]
        assert b.events == []


async def test_an_acquire_that_comes_after_the_save_adopts_too(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        await b.look()
        b.store.log.clear()
        race = b.store.hold_next("acquire", "before")
        second = world.call(b)
        await race.reached()
        first = await world.ask(a)

        race.release()
        await world.settle()

        await world.assert_saved(1)
        assert world.requests == 1
        assert first.token == second.token is not None
        assert b.store.verbs == ["acquire"]


# 2


@pytest.mark.parametrize("acknowledged", [True, False])
async def test_a_guard_that_refuses_renews_and_sends(
    world: World, *, acknowledged: bool
) -> None:
    """Without an acknowledgement the lease counts from the acquire all the same."""
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        if not acknowledged:
            a.store.break_next("acquire", "unacknowledged")
        slow = a.store.hold_next("acquire", "after")
        call = world.call(a)
        await slow.reached()

        await world.advance(8.0 + TICK)
        slow.release()
        await world.settle()

        await world.assert_saved(1)
        assert world.requests == 1
        assert call.token is not None
        reads = [] if acknowledged else ["read"]
        assert a.store.verbs == ["acquire", *reads, "renew", "save"]


# 3


async def test_a_holder_suspended_past_its_lease_sends_nothing(world: World) -> None:
    """Its monotonic clock stood still: only the wall clock tells."""
    async with world:
        a, b = await world.worker(own_clock=True), await world.worker()
        await world.sign_in(a)
        asleep = a.store.hold_next("acquire", "after")
        first = world.call(a)
        await asleep.reached()
        world.stop(a)
        await world.advance(T)
        second = world.call(b)
        await world.advance(SETTLE + 1.0)

        await world.resume(a, suspended=True)
        asleep.release()
        await world.settle()

        record = await world.assert_saved(1)
        assert world.requests == 1
        assert second.token == first.token == record.tokens[0].access_token
        assert a.store.outcomes("renew") == ["conflict"]
        assert record.doubt_at is not None


# 4


async def test_an_acquire_whose_acknowledgement_is_lost_goes_on(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        a.store.break_next("acquire", "unacknowledged")

        call = await world.ask(a)

        await world.assert_saved(1)
        assert world.requests == 1
        assert call.token is not None
        assert a.store.verbs == ["acquire", "read", "save"]


async def test_an_acquire_that_was_not_applied_starts_over(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        a.store.break_next("acquire", "refused")

        call = await world.ask(a)
        assert world.requests == 0
        await world.advance(1.0)

        await world.assert_saved(1)
        assert world.requests == 1
        assert call.token is not None
        assert a.store.verbs == ["acquire", "read", "acquire", "save"]


async def test_a_lease_that_appears_after_its_holder_died_is_taken_over(
    world: World,
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        a.store.break_next("acquire", "late")
        last = a.store.hold_next("read", "before")
        world.call(a)
        await last.reached()
        await a.die()
        assert await a.store.apply_late() == [True]
        assert (await world.record()).lease is not None

        await world.advance(T)
        call = world.call(b)
        await world.advance(SETTLE)

        record = await world.assert_saved(1)
        assert world.requests == 1
        assert call.token == record.tokens[0].access_token
        assert record.doubt_at is not None


# 5


async def test_a_save_whose_acknowledgement_is_lost_finds_its_own_write(
    world: World,
) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        a.store.break_next("save", "unacknowledged")

        call = world.call(a)
        await world.advance(1.0)

        record = await world.assert_saved(1)
        assert world.requests == 1
        assert call.token == record.tokens[0].access_token
        assert a.store.verbs == ["acquire", "save", "save"]
        assert a.store.outcomes("save") == ["unacknowledged", "conflict"]
        assert world.revoked == []
        assert a.event_names == ["store_unavailable", "save_failing", "token_refreshed"]


async def test_a_save_acknowledged_by_nobody_adopts_what_followed(
    world: World,
) -> None:
    """B has refreshed before A repeats its save: nothing is revoked."""
    async with world:
        a, b = await world.worker(own_clock=True), await world.worker()
        await world.sign_in(a)
        a.store.break_next("save", "unacknowledged")
        first = await world.ask(a)
        world.stop(a)
        await world.advance(2.0)
        second = await world.ask(b, rejected=first.token)

        await world.resume(a)
        await world.settle()
        third = await world.ask(a)

        record = await world.assert_saved(2)
        assert world.requests == 2
        assert a.store.outcomes("save") == ["unacknowledged", "conflict"]
        assert world.revoked == []
        assert first.token != second.token
        assert third.token == second.token == record.tokens[0].access_token


# 6


@pytest.mark.parametrize("outage", ["all", "writes"])
async def test_an_answer_kept_over_an_outage_is_saved_over_a_claim(
    world: World, outage: Outage
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        answer = world.idp.hold_next(at="after")
        first = world.call(a)
        await answer.reached()
        a.store.down = b.store.down = outage
        answer.release()
        await world.settle()
        assert first.token is not None  # from memory: there is no older one
        await world.advance(T + 0.3)
        early = world.call(b)
        await world.advance(2.0)
        assert isinstance(early.error, StoreError)

        a.store.down = b.store.down = "no"
        await world.advance(0.2)
        b.store.log.clear()
        second = await world.ask(b)
        claimed = await world.record()
        await world.advance(2.0)

        assert (claimed.generation, claimed.doubt) == (0, "unsettled")
        record = await world.assert_saved(1)
        assert world.requests == 1
        assert second.token == first.token == record.tokens[0].access_token
        assert b.store.outcomes("acquire") == ["applied"]
        assert b.store.outcomes("renew") == ["conflict"]
        assert record.doubt_at is not None
        assert a.event_names[-1] == "token_refreshed"
        assert "session_ended" not in a.event_names + b.event_names


# 7


async def test_who_takes_over_from_a_settling_worker_settles_too(
    world: World,
) -> None:
    async with world:
        a = await world.worker()
        b, c = await world.worker(), await world.worker()
        await world.sign_in(a)
        answer = world.idp.hold_next(at="after")
        first = world.call(a)
        await answer.reached()
        a.store.down = "all"  # only A is cut off
        answer.release()
        await world.advance(T + 0.5)
        world.call(b)
        await world.advance(1.2)
        await b.close()
        released = await world.record()

        third = world.call(c)
        await world.advance(SETTLE - 1.5)
        a.store.down = "no"
        await world.advance(1.5)

        assert (released.doubt, released.lease) == ("unsettled", None)
        await world.assert_saved(1)
        assert world.requests == 1
        assert third.token == first.token is not None
        assert c.store.outcomes("renew")[-1] == "conflict"


# 8


async def test_a_request_lost_on_its_way_is_repeated_at_once(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        world.idp.drop_next(processed=False)

        call = await world.ask(a)

        record = await world.assert_saved(1)
        assert world.requests == 2
        assert call.token == record.tokens[0].access_token
        assert a.store.verbs == ["acquire", "renew", "save"]
        assert record.doubt_at is not None
        assert a.event_names == ["rotation_in_doubt", "token_refreshed"]


async def test_a_request_lost_twice_leaves_the_rest_to_another(world: World) -> None:
    """A breaks off after the repeat; whoever comes next need not settle."""
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        world.idp.drop_next(processed=False, count=2)
        first = await world.ask(a)
        await a.close()
        released = await world.record()

        second = await world.ask(b)

        assert (released.doubt, released.lease) == ("settled", None)
        assert released.doubt_at is not None
        record = await world.assert_saved(1)
        assert world.requests == 3
        assert isinstance(first.error, RetryableError)
        assert second.token == record.tokens[0].access_token
        assert record.doubt_at is not None


async def test_a_flight_that_loses_every_request_releases_in_doubt(
    world: World,
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        world.idp.drop_next(processed=False, count=4)
        first = world.call(a)
        await world.advance(1.0)
        released = await world.record()

        await world.advance(1.0)
        second = await world.ask(b)

        assert (released.doubt, released.lease) == ("settled", None)
        assert released.not_before is not None
        assert isinstance(first.error, RetryableError)
        record = await world.assert_saved(1)
        assert world.requests == 5
        assert second.token == record.tokens[0].access_token


# 9


@pytest.mark.parametrize("how", ["reset", "timeout"])
async def test_an_answer_lost_at_a_strict_server_ends_the_session(
    world: World, how: str
) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        if how == "reset":
            world.idp.drop_next(processed=True)
        else:
            world.idp.hang_next(processed=True)

        first = world.call(a)
        await world.advance(31.0)
        second = await world.ask(a)

        await world.assert_ended(lost_rotation=True)
        assert world.requests == 2
        if how == "reset":
            assert isinstance(first.error, SignInRequiredError)
            assert first.error.lost_rotation
        else:
            assert isinstance(first.error, RetryableError)  # patience ended first
        assert isinstance(second.error, SignInRequiredError)
        assert second.error.lost_rotation
        assert a.event_names == ["rotation_in_doubt", "rotation_lost", "session_ended"]


async def test_an_answer_lost_within_a_grace_window_is_fetched_again(
    world: World,
) -> None:
    async with world:
        world.idp.rules.rotation = "grace"
        a = await world.worker()
        await world.sign_in(a)
        world.idp.drop_next(processed=True)

        call = await world.ask(a)

        record = await world.assert_saved(1)
        assert world.requests == 2
        assert call.token == record.tokens[0].access_token
        assert record.doubt_at is not None


# 10


async def test_a_holder_that_died_before_it_sent_is_followed(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        last = a.store.hold_next("acquire", "after")
        world.call(a)
        await last.reached()
        await a.die()

        await world.advance(T)
        call = world.call(b)
        await world.advance(SETTLE)

        record = await world.assert_saved(1)
        assert world.requests == 1
        assert call.token == record.tokens[0].access_token


async def test_a_success_that_died_with_its_worker_is_reported_lost(
    world: World,
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        last = a.store.hold_next("save", "before")
        world.call(a)
        await last.reached()
        await a.die()

        await world.advance(T)
        call = world.call(b)
        await world.advance(SETTLE)

        await world.assert_ended(lost_rotation=True)
        assert world.requests == 2
        assert isinstance(call.error, SignInRequiredError)
        assert call.error.lost_rotation
        assert b.event_names == ["rotation_lost", "session_ended"]


# 11


async def test_an_abandoned_request_that_arrives_late_is_reported_lost(
    world: World,
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        wire = world.idp.hold_next(at="before")
        world.call(a)
        await wire.reached()
        await a.die()
        await world.advance(T)
        call = world.call(b)
        await world.advance(SETTLE)
        record = await world.assert_saved(1)
        assert world.requests == 2
        assert record.doubt_at is not None

        wire.release()
        await world.settle()
        after = await world.ask(b, rejected=call.token)

        await world.assert_ended(lost_rotation=True)
        assert world.requests == 3
        assert isinstance(after.error, SignInRequiredError)
        assert after.error.lost_rotation
        lost = [event for event in b.events if isinstance(event, RotationLost)]
        assert [event.doubt_age for event in lost] == [0.0]


# 12


async def test_a_holder_stopped_after_the_guard_ends_nothing(world: World) -> None:
    async with world:
        a, b = await world.worker(own_clock=True), await world.worker()
        await world.sign_in(a)
        wire = world.idp.hold_next(at="before")
        first = world.call(a)
        await wire.reached()
        world.stop(a)
        await world.advance(T)
        second = world.call(b)
        await world.advance(SETTLE)
        saved = await world.assert_saved(1)

        wire.release()
        await world.settle()
        await world.resume(a)

        assert await world.record() == saved
        assert world.requests == 2
        assert first.token == second.token == saved.tokens[0].access_token
        assert a.store.outcomes("end") == ["conflict"]
        assert "session_ended" not in a.event_names

        after = await world.ask(b, rejected=second.token)
        await world.assert_ended(lost_rotation=True)
        assert world.requests == 3
        assert isinstance(after.error, SignInRequiredError)
        assert after.error.lost_rotation


# 13


async def test_a_holder_stopped_while_it_listens_saves_over_the_claim(
    world: World,
) -> None:
    async with world:
        a, b = await world.worker(own_clock=True), await world.worker()
        await world.sign_in(a)
        unread = world.idp.hold_next(at="after")
        first = world.call(a)
        await unread.reached()
        world.stop(a)
        await world.advance(T + 1.0)
        second = world.call(b)
        await world.advance(SETTLE - 0.5)

        unread.release()
        await world.settle()
        await world.resume(a)
        await world.advance(1.0)

        record = await world.assert_saved(1)
        assert world.requests == 1
        assert first.token == second.token == record.tokens[0].access_token
        assert a.store.outcomes("save") == ["conflict", "applied"]
        assert b.store.outcomes("renew")[-1] == "conflict"


async def test_a_holder_stopped_until_another_sent_revokes_what_it_got(
    world: World,
) -> None:
    async with world:
        a, b = await world.worker(own_clock=True), await world.worker()
        grant = await world.sign_in(a)
        unread = world.idp.hold_next(at="after")
        first = world.call(a)
        await unread.reached()
        world.stop(a)
        await world.advance(T)
        second = world.call(b)
        await world.advance(SETTLE)
        ended = await world.assert_ended(lost_rotation=True)

        unread.release()
        await world.settle()
        await world.resume(a)

        assert await world.record() == ended
        assert world.requests == 2
        assert isinstance(second.error, SignInRequiredError)
        assert second.error.lost_rotation
        assert isinstance(first.error, SignInRequiredError)
        assert first.error.lost_rotation
        assert world.revoked == [grant.refresh_token]
        assert not grant.active


# 14


async def test_who_sends_late_waits_for_the_holder_and_ends_nothing(
    world: World,
) -> None:
    """The server refuses spent tokens but keeps the family."""
    async with world:
        world.idp.rules.reuse_kills_family = False
        a, b = await world.worker(own_clock=True), await world.worker()
        await world.sign_in(a)
        wire = world.idp.hold_next(at="before")
        first = world.call(a)
        await wire.reached()
        world.stop(a)
        await world.advance(T)
        unread = world.idp.hold_next(at="after")
        second = world.call(b)
        await world.advance(SETTLE)
        await unread.reached()

        wire.release()
        await world.settle()
        assert (await world.record()).ended is None
        assert a.store.outcomes("end") == ["conflict"]
        unread.release()
        await world.settle()
        await world.resume(a)

        record = await world.assert_saved(1)
        assert world.requests == 2
        assert first.token == second.token == record.tokens[0].access_token


# 15


async def test_a_sibling_of_the_stored_token_is_dropped_unrevoked(
    world: World,
) -> None:
    """The server has a grace window and a new child for each repeat."""
    async with world:
        world.idp.rules.rotation = "grace"
        world.idp.rules.grace = 600.0
        world.idp.rules.grace_answer = "new"
        a, b = await world.worker(own_clock=True), await world.worker()
        await world.sign_in(a)
        unread = world.idp.hold_next(at="after")
        first = world.call(a)
        await unread.reached()
        world.stop(a)
        await world.advance(T)
        second = world.call(b)
        await world.advance(SETTLE)
        saved = await world.assert_saved(1)

        unread.release()
        await world.settle()
        await world.resume(a)

        assert await world.assert_saved(1) == saved
        assert world.requests == 2
        assert first.token == second.token == saved.tokens[0].access_token
        assert world.revoked == []


# 16


async def test_a_sign_out_during_the_answer_revokes_what_comes(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        grant = await world.sign_in(a)
        before = grant.refresh_token
        unread = world.idp.hold_next(at="after")
        call = world.call(a)
        await unread.reached()
        await b.tokens.end_session(SESSION)
        await world.settle()
        ended = await world.record()

        unread.release()
        await world.settle()

        assert await world.record() == ended
        assert ended.ended is not None
        assert ended.ended.reason == "signed_out"
        assert world.requests == 1
        assert isinstance(call.error, SignInRequiredError)
        assert call.error.reason == "signed_out"
        assert world.revoked == [before, grant.refresh_token]
        assert not grant.active
        assert a.store.outcomes("save") == ["conflict"]
        assert "session_ended" in b.event_names


async def test_a_sign_out_that_conflicts_with_an_acquire_holds(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        grant = await world.sign_in(a)
        race = b.store.hold_next("end", "before")
        world.start_soon(b.tokens.end_session, SESSION)
        await race.reached()
        sent = a.store.hold_next("acquire", "after")
        call = world.call(a)
        await sent.reached()

        race.release()
        await world.settle()
        assert (await world.record()).ended is not None
        sent.release()
        await world.settle()

        assert b.store.verbs == ["read", "end", "end"]
        assert b.store.outcomes("end") == ["conflict", "applied"]
        record = await world.record()
        assert record.ended is not None
        assert record.lease is None
        assert isinstance(call.error, SignInRequiredError)
        assert not grant.active


# 17


async def test_a_new_sign_in_during_a_flight_is_left_alone(world: World) -> None:
    """This server would end all of the user's grants with one revocation."""
    async with world:
        world.idp.rules.revocation = "subject"
        a, b = await world.worker(), await world.worker()
        old = await world.sign_in(a)
        unread = world.idp.hold_next(at="after")
        call = world.call(a)
        await unread.reached()
        new = await world.sign_in(b, replace=True)
        fresh = new.refresh_token

        unread.release()
        await world.settle()

        record = await world.assert_saved(1)
        assert world.revoked == []
        assert world.requests == 2
        assert world.sent[1] == fresh
        assert record.refresh_token == new.refresh_token != old.refresh_token
        assert call.token == new.access_token == record.tokens[0].access_token


async def test_an_acquire_does_not_take_the_same_version_of_another_grant(
    world: World,
) -> None:
    """The tombstone is gone, and a new sign-in has reached the expected number."""
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        race = a.store.hold_next("acquire", "before")
        call = world.call(a)
        await race.reached()
        expected = a.store.log[-1].expect
        world.put_back(None)
        new = await world.sign_in(b)
        stored = await world.record()
        fresh = new.refresh_token
        assert expected == (expected and expected[0], stored.version)
        assert expected != stored.pair

        race.release()
        await world.settle()

        record = await world.assert_saved(1)
        assert world.sent == [fresh]
        assert record.refresh_token == new.refresh_token
        assert call.token == new.access_token


async def test_a_save_does_not_take_the_same_version_of_another_grant(
    world: World,
) -> None:
    """As before, with the answer of the old grant at hand."""
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        race = a.store.hold_next("save", "before")
        first = world.call(a)
        await race.reached()
        expected = a.store.log[-1].expect
        world.put_back(None)
        new = await world.sign_in(b)
        leased = b.store.hold_next("acquire", "after")
        second = world.call(b)
        await leased.reached()
        stored = await world.record()
        assert expected == (expected and expected[0], stored.version)
        assert expected != stored.pair

        race.release()
        await world.settle()
        assert await world.record() == stored
        leased.release()
        await world.advance(1.0)

        record = await world.assert_saved(1)
        assert world.requests == 2
        assert record.refresh_token == new.refresh_token
        assert first.token == second.token == new.access_token
        assert world.revoked == []


# 18


async def test_a_session_ended_elsewhere_raises_the_stored_reason(
    world: World,
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        grant = await world.sign_in(a)
        await b.look()
        b.store.log.clear()
        world.idp.revoke_grant(grant)
        first = await world.ask(a)

        second = await world.ask(b)

        await world.assert_ended(lost_rotation=False)
        assert world.requests == 1
        assert b.store.verbs == ["acquire"]
        assert b.store.outcomes("acquire") == ["conflict"]
        for call in (first, second):
            assert isinstance(call.error, SignInRequiredError)
            assert call.error.error == "invalid_grant"
            assert call.error.reason == "terminal"
            assert not call.error.lost_rotation
        assert first.error is not second.error
        ends = [one for one in a.events + b.events if isinstance(one, SessionEnded)]
        assert len(ends) == 1


# 19


async def test_closing_before_the_send_releases_the_lease(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        slow = a.store.hold_next("acquire", "after")
        call = world.call(a)
        await slow.reached()
        world.start_soon(a.close)
        await world.settle()

        slow.release()
        await world.settle()

        record = await world.record()
        assert a.closed
        assert isinstance(call.error, RetryableError)
        assert (record.lease, record.doubt, record.doubt_at) == (None, "none", None)
        assert record.generation == 0
        assert world.requests == 0
        assert a.store.verbs == ["acquire", "release"]


async def test_closing_after_the_send_returns_once_it_is_saved(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        unread = world.idp.hold_next(at="after")
        call = world.call(a)
        await unread.reached()
        world.start_soon(a.close)
        await world.advance(1.0)
        assert not a.closed

        saving = a.store.hold_next("save", "before")
        unread.release()
        await saving.reached()
        await world.settle()
        assert not a.closed
        saving.release()
        await world.settle()

        record = await world.assert_saved(1)
        assert a.closed
        assert call.token == record.tokens[0].access_token
        assert world.requests == 1


async def test_a_caller_that_is_cancelled_takes_nothing_with_it(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        slow = a.store.hold_next("acquire", "after")
        call = world.call(a)
        await slow.reached()
        call.cancel()
        await world.settle()
        assert call.done

        slow.release()
        await world.settle()

        await world.assert_saved(1)
        assert (call.token, call.error) == (None, None)
        assert world.requests == 1


# 20


async def test_two_resources_of_one_session_take_turns(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        grant = await world.sign_in(a)
        before = grant.refresh_token
        await b.look()
        unread = world.idp.hold_next(at="after")
        first = world.call(a, resource="https://one.test")
        await unread.reached()
        second = await world.ask(b, resource="https://two.test")
        assert world.requests == 1

        unread.release()
        await world.settle()
        between = (await world.record()).refresh_token
        await world.advance(1.0)

        record = await world.assert_saved(2)
        assert world.sent == [before, between]
        assert before != between
        assert grant.active
        tokens = {one.key.resource: one.access_token for one in record.tokens}
        assert tokens == {
            "https://one.test": first.token,
            "https://two.test": second.token,
        }
        requests = world.idp.requests("token")
        assert [one.form["resource"] for one in requests] == list(tokens)


# 21


async def test_hours_of_503_keep_the_session_and_space_the_attempts(
    world: World,
) -> None:
    async with world:
        workers = [await world.worker(), await world.worker()]
        await world.sign_in(workers[0])
        world.idp.fail_next(status=503, count=None)
        asked = 0

        for turn in range(500):
            record = await world.record()
            before = world.requests
            now = world.clock.monotonic()
            call = world.call(workers[turn % 2])
            await world.advance(2.0)
            assert isinstance(call.error, RetryableError)
            if world.requests > before:
                asked += 1
                assert record.not_before is None or now >= record.not_before
                # One flight at a time, over both workers: four requests at most.
                assert world.requests - before <= 4
            await world.advance(18.0)
        record = await world.record()
        assert (record.generation, record.ended, record.lease) == (0, None, None)
        assert record.doubt == "settled"
        assert record.doubt_at is not None
        assert record.failure is not None
        assert record.failure.count == asked
        assert 100 < asked < 450

        world.idp.clear_faults()
        await world.advance(60.0)
        call = await world.ask(workers[1])

        record = await world.assert_saved(1)
        assert call.token == record.tokens[0].access_token
        names = workers[0].event_names + workers[1].event_names
        assert "session_ended" not in names
        assert "rotation_lost" not in names


# 22


async def test_a_save_that_the_store_forgot_is_written_back(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        old = await world.record()
        first = await world.ask(a)
        world.put_back(old)
        a.store.log.clear()

        await world.advance(6.0)
        second = await world.ask(a)

        record = await world.assert_saved(1)
        assert world.requests == 1
        assert first.token == second.token == record.tokens[0].access_token
        assert a.store.verbs == ["read", "save"]
        assert record.doubt_at is not None
        forgot = [event for event in a.events if isinstance(event, StoreForgot)]
        assert [(event.held, event.found) for event in forgot] == [(1, 0)]


async def test_a_save_forgotten_during_the_next_refresh_is_overtaken(
    world: World,
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        old = await world.record()
        first = await world.ask(a)
        unread = world.idp.hold_next(at="after")
        second = world.call(b, rejected=first.token)
        await unread.reached()
        world.put_back(old)

        unread.release()
        await world.settle()

        record = await world.assert_saved(2)
        assert world.requests == 2
        assert second.token == record.tokens[0].access_token
        assert b.store.outcomes("save") == ["conflict", "applied"]
        forgot = [event for event in b.events if isinstance(event, StoreForgot)]
        assert [(event.held, event.found) for event in forgot] == [(2, 0)]

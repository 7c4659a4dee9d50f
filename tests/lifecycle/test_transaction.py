"""The refresh transaction: round trips, arithmetic, outages, endings."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from freshtoken import MemoryStore
from freshtoken._foundation.records import DEFAULT_ENTRY, Record
from freshtoken.errors import (
    ClientRejectedError,
    MisconfiguredError,
    RetryableError,
    SignInRequiredError,
    StoreError,
)
from freshtoken.events import SaveFailing, SaveLost, SessionEnded, StoreForgot
from freshtoken.testing import FakeClock, MockIdP
from tests.lifecycle.conftest import MakeManager
from tests.lifecycle.sim import LIFETIME, SESSION, Break, Outage, Verb, Worker, World

T = 40.0
SETTLE = 3.0
SLACK = 8.0
TICK = 0.001


@pytest.fixture
def world(
    idp: MockIdP, store: MemoryStore, clock: FakeClock, make_manager: MakeManager
) -> World:
    return World(idp, store, clock, make_manager)


# Round trips to the store


async def test_an_uncontended_refresh_takes_two_round_trips(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)

        await world.ask(a)

        assert a.store.verbs == ["acquire", "save"]


async def test_a_cold_worker_reads_first(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)

        await world.ask(b)

        assert b.store.verbs == ["read", "acquire", "save"]


async def test_the_loser_of_a_race_reads_once_when_it_wakes(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        await b.look()
        b.store.log.clear()
        race = b.store.hold_next("acquire", "before")
        unread = world.idp.hold_next(at="after")
        call = world.call(b)
        await race.reached()
        world.call(a)
        await unread.reached()
        race.release()
        await world.settle()
        unread.release()

        await world.advance(1.0)

        assert call.token is not None
        assert b.store.verbs == ["acquire", "read"]


async def test_a_repeat_costs_one_renewal(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        world.idp.drop_next(processed=False)

        await world.ask(a)

        assert a.store.verbs == ["acquire", "renew", "save"]


async def test_a_takeover_probes_twice_and_renews(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        last = a.store.hold_next("acquire", "after")
        world.call(a)
        await last.reached()
        await a.die()
        await world.advance(T)

        world.call(b)
        await world.advance(SETTLE)

        assert b.store.verbs == ["read", "acquire", "renew", "renew", "renew", "save"]
        claims = [one.record for one in b.store.log if one.verb != "read"]
        doubts = [record.doubt for record in claims if record]
        assert doubts == ["unsettled"] * 3 + ["settled", "none"]


@pytest.mark.parametrize(
    ("lost", "verbs"),
    [
        ("acquire", ["acquire", "read", "save"]),
        ("save", ["acquire", "save", "save"]),
    ],
)
async def test_a_lost_acknowledgement_costs_one_more(
    world: World, lost: Verb, verbs: list[str]
) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        a.store.break_next(lost, "unacknowledged")

        world.call(a)
        await world.advance(1.0)

        assert a.store.verbs == verbs
        await world.assert_saved(1)


# The lease


@pytest.mark.parametrize(("late", "renewals"), [(0.0, 0), (TICK, 1)])
async def test_the_guard_passes_up_to_the_slack(
    world: World, late: float, renewals: int
) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        slow = a.store.hold_next("acquire", "after")
        world.call(a)
        await slow.reached()

        await world.advance(SLACK + late)
        slow.release()
        await world.settle()

        assert a.store.verbs.count("renew") == renewals
        await world.assert_saved(1)


@pytest.mark.parametrize(("early", "taken"), [(TICK, False), (0.0, True)])
async def test_a_lease_is_overdue_when_the_store_says_so(
    world: World, *, early: float, taken: bool
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        last = a.store.hold_next("acquire", "after")
        world.call(a)
        await last.reached()
        await a.die()

        await world.advance(T - early)
        await world.ask(b)

        assert ("acquire" in b.store.verbs) is taken
        assert (await world.record()).doubt == ("unsettled" if taken else "none")


async def test_a_lease_covers_slack_attempt_and_margin(world: World) -> None:
    """A request that took all it may is answered while its lease still lasts."""
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        slow = a.store.hold_next("acquire", "after")
        unread = world.idp.hold_next(at="after")
        world.call(a)
        await slow.reached()
        await world.advance(SLACK)
        slow.release()
        await unread.reached()

        await world.advance(30.0 - TICK)
        await world.ask(b)
        lease = (await world.record()).lease
        unread.release()
        await world.settle()

        assert lease is not None
        assert lease.expires_at - world.clock.monotonic() >= 2.0
        assert "acquire" not in b.store.verbs
        record = await world.assert_saved(1)
        assert world.requests == 1
        assert record.doubt_at is None


async def test_a_flight_takes_a_name_of_its_own_for_each_lease(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        first = await world.ask(a)
        await world.ask(a, rejected=first.token)

        leases = [one.record.lease for one in a.store.log if one.record]
        owners = {lease.owner for lease in leases if lease}
        assert len(owners) == 2


async def test_an_acquire_applied_while_it_is_repeated_is_ones_own(
    world: World,
) -> None:
    """The first try counts: the store stamped the lease at some time after it."""
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        a.store.break_next("acquire", "late")
        world.call(a)
        await world.settle()
        assert a.store.verbs == ["acquire", "read"]

        await a.store.apply_late()
        await world.advance(1.0)

        await world.assert_saved(1)
        assert world.requests == 1
        assert a.store.outcomes("acquire") == ["failed", "conflict"]


async def test_nobody_sends_on_a_lease_that_is_not_confirmed(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        a.store.break_next("acquire", "unacknowledged")
        a.store.break_next("read", "refused")

        call = world.call(a)
        await world.advance(1.0)

        assert world.requests == 0
        assert isinstance(call.error, StoreError)
        assert (await world.record()).ended is None


@pytest.mark.parametrize(("waited", "sent"), [(SETTLE - TICK, 0), (SETTLE, 1)])
async def test_a_takeover_sends_after_the_settle_time(
    world: World, waited: float, sent: int
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        last = a.store.hold_next("acquire", "after")
        world.call(a)
        await last.reached()
        await a.die()
        await world.advance(T + 1.0)
        await world.ask(b)

        await world.advance(waited)

        assert world.requests == sent


async def test_a_probe_that_fails_starts_the_settle_time_again(world: World) -> None:
    """Whoever could save meanwhile may have met the same outage."""
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        last = a.store.hold_next("acquire", "after")
        world.call(a)
        await last.reached()
        await a.die()
        await world.advance(T)
        world.call(b)
        await world.advance(1.5)
        b.store.down = "all"
        await world.advance(1.0)
        b.store.down = "no"

        await world.advance(2.0)
        assert world.requests == 0
        await world.advance(1.0)

        assert world.requests == 1
        await world.assert_saved(1)


async def test_a_settling_worker_that_breaks_off_leaves_the_doubt(
    world: World,
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        last = a.store.hold_next("acquire", "after")
        world.call(a)
        await last.reached()
        await a.die()
        await world.advance(T)
        world.call(b)
        await world.advance(1.0)

        await b.close()

        record = await world.record()
        assert (record.doubt, record.lease) == ("unsettled", None)
        assert world.requests == 0


async def test_a_fenced_sender_does_not_repeat(world: World) -> None:
    """Its request is in doubt, but another worker holds the lease by now."""
    async with world:
        a, b = await world.worker(own_clock=True), await world.worker()
        await world.sign_in(a)
        lost = world.idp.drop_next(processed=False, hold=True)
        first = world.call(a)
        await lost.reached()
        world.stop(a)
        await world.advance(T)
        unread = world.idp.hold_next(at="after")
        second = world.call(b)
        await world.advance(SETTLE)
        await unread.reached()

        lost.release()
        await world.settle()
        assert world.requests == 2
        assert a.store.outcomes("renew") == ["conflict"]
        unread.release()
        await world.settle()
        await world.resume(a)

        await world.assert_saved(1)
        assert world.requests == 2
        assert first.token == second.token is not None


# Saving


async def test_a_save_is_repeated_every_second_past_the_lease(world: World) -> None:
    """The old token is served while it lives, then the new one from memory."""
    async with world:
        a = await world.worker()
        grant = await world.sign_in(a, live=True)
        old = grant.access_token
        unread = world.idp.hold_next(at="after")
        await world.advance(0.82 * LIFETIME)
        await world.ask(a)
        await unread.reached()
        a.store.down = "all"
        unread.release()
        await world.settle()
        new = grant.access_token
        assert new != old

        served = [await world.ask(a)]
        await world.advance(0.18 * LIFETIME - 1.0)
        served.append(await world.ask(a))
        await world.advance(1.0)
        served.append(await world.ask(a))
        await world.advance(60.0)
        served.append(await world.ask(a))
        assert [call.token for call in served] == [old, old, new, new]
        assert (await world.record()).generation == 0
        tries = [one.at for one in a.store.log if one.verb == "save"]
        gaps = [later - earlier for earlier, later in pairwise(tries)]
        assert gaps == [1.0] * (len(tries) - 1)
        assert len(tries) > T

        a.store.down = "no"
        await world.advance(1.0)
        await world.assert_saved(1)
        assert world.requests == 1
        failing = [event for event in a.events if isinstance(event, SaveFailing)]
        assert [event.attempts for event in failing] == [*range(1, len(tries) + 1)]


async def test_an_unsaved_token_is_not_served_past_its_end(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        unread = world.idp.hold_next(at="after")
        first = world.call(a)
        await unread.reached()
        a.store.down = "all"
        unread.release()
        await world.settle()
        assert first.token is not None

        await world.advance(LIFETIME)
        late = world.call(a)
        await world.advance(21.0)

        assert late.token is None
        assert isinstance(late.error, StoreError | RetryableError)
        a.store.down = "no"
        await world.advance(1.0)
        assert (await world.record()).generation == 1


async def test_an_unsaved_token_of_an_old_grant_is_not_served_to_the_next(
    world: World,
) -> None:
    """A name may be another user's after a new sign-in."""
    async with world:
        a, b = await world.worker(), await world.worker()
        old = await world.sign_in(a)
        unread = world.idp.hold_next(at="after")
        first = world.call(a)
        await unread.reached()
        a.store.down = "writes"
        unread.release()
        await world.settle()
        assert first.token == old.access_token
        new = await world.sign_in(b, replace=True)
        await a.look()
        a.store.down = "no"
        slow = world.idp.hold_next(at="before")
        await world.advance(1.0)
        await slow.reached()

        second = await world.ask(a)
        slow.release()
        await world.settle()

        assert second.token == new.access_token
        assert world.revoked == []


async def test_an_answer_over_the_running_lease_of_another_is_saved(
    world: World,
) -> None:
    """The generation guards the saving, whoever holds the lease."""
    async with world:
        a, b = await world.worker(own_clock=True), await world.worker()
        await world.sign_in(a)
        unread = world.idp.hold_next(at="after")
        world.call(a)
        await unread.reached()
        world.stop(a)
        await world.advance(T)
        await world.ask(b)
        lease = (await world.record()).lease

        unread.release()
        await world.settle()

        assert lease is not None
        record = await world.assert_saved(1)
        assert record.doubt_at is not None
        assert world.requests == 1
        await world.resume(a)


async def test_an_ordinary_refresh_leaves_no_doubt(world: World) -> None:
    async with world:
        a = await world.worker()
        grant = await world.sign_in(a)
        first = await world.ask(a)

        record = await world.assert_saved(1)
        assert record.doubt_at is None
        world.idp.revoke_grant(grant)
        await world.ask(a, rejected=first.token)
        await world.assert_ended(lost_rotation=False)
        assert "rotation_lost" not in a.event_names


async def test_a_doubt_is_remembered_for_the_life_of_the_grant(world: World) -> None:
    async with world:
        a = await world.worker()
        grant = await world.sign_in(a)
        world.idp.drop_next(processed=False)
        call = await world.ask(a)
        doubted = (await world.assert_saved(1)).doubt_at
        for generation in (2, 3):
            await world.advance(100.0)
            call = await world.ask(a, rejected=call.token)
            record = await world.assert_saved(generation)
            assert record.doubt_at == doubted

        world.idp.revoke_grant(grant)
        await world.advance(100.0)
        call = await world.ask(a, rejected=call.token)

        await world.assert_ended(lost_rotation=True)
        assert isinstance(call.error, SignInRequiredError)
        assert call.error.lost_rotation


async def test_a_new_sign_in_begins_without_doubt(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        world.idp.drop_next(processed=False)
        await world.ask(a)

        await world.sign_in(a, replace=True)
        await world.ask(a)

        assert (await world.assert_saved(1)).doubt_at is None


async def test_an_answer_without_access_token_is_saved_and_withheld(
    world: World,
) -> None:
    async with world:
        a = await world.worker()
        grant = await world.sign_in(a)
        before = grant.refresh_token
        world.idp.reshape_next(remove=["access_token"])

        first = await world.ask(a)

        record = await world.record()
        assert (record.generation, record.lease, record.tokens) == (1, None, ())
        assert record.refresh_token == grant.refresh_token != before
        assert isinstance(first.error, RetryableError)
        await world.advance(2.0)
        second = await world.ask(a)
        assert second.token == grant.access_token
        await world.assert_saved(2)
        assert world.requests == 2


async def test_an_answer_that_closing_could_not_save_leaves_its_lease(
    world: World,
) -> None:
    """Released, the next worker would neither settle nor report the loss."""
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        unread = world.idp.hold_next(at="after")
        world.call(a)
        await unread.reached()
        a.store.break_next("save", "refused", count=1000)
        unread.release()
        await world.settle()
        world.start_soon(a.close)
        await world.advance(36.0)
        assert a.closed
        assert [type(one) for one in a.events].count(SaveLost) == 1

        await world.advance(T)
        call = world.call(b)
        await world.advance(SETTLE + 1.0)

        await world.assert_ended(lost_rotation=True)
        assert isinstance(call.error, SignInRequiredError)
        assert call.error.lost_rotation


async def test_a_request_cut_off_by_closing_leaves_the_doubt(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        world.idp.hang_next(processed=True)
        world.call(a)
        await world.settle()
        runtime = next(iter(a.tokens._runtimes.values()))
        assert runtime._group is not None
        runtime._group.cancel_scope.cancel()
        await world.settle()

        record = await world.record()
        assert (record.doubt, record.lease) == ("settled", None)
        call = await world.ask(b)
        await world.assert_ended(lost_rotation=True)
        assert isinstance(call.error, SignInRequiredError)
        assert call.error.lost_rotation


# A store that fails


@pytest.mark.parametrize("down", ["all", "writes"])
async def test_a_store_error_signs_nobody_out(world: World, down: Outage) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        before = await world.record()
        a.store.down = down

        call = world.call(a)
        await world.advance(5.0)

        assert isinstance(call.error, StoreError)
        assert world.requests == 0
        assert "store_unavailable" in a.event_names
        assert await world.record() == before
        a.store.down = "no"
        await world.advance(5.0)
        again = await world.ask(a)
        assert again.token is not None
        await world.assert_saved(1)


async def test_a_live_token_is_served_while_the_store_is_down(world: World) -> None:
    async with world:
        a = await world.worker()
        grant = await world.sign_in(a, live=True)
        a.store.down = "all"

        await world.advance(LIFETIME - 1.0)
        call = await world.ask(a)

        assert call.token == grant.access_token
        await world.advance(1.0)
        late = world.call(a)
        await world.advance(5.0)
        assert isinstance(late.error, StoreError)


async def test_writes_applied_late_are_refused(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        a.store.break_next("save", "late")
        call = world.call(a)
        await world.advance(1.0)
        saved = await world.assert_saved(1)

        assert await a.store.apply_late() == [False]

        assert await world.record() == saved
        assert call.token == saved.tokens[0].access_token
        assert a.store.outcomes("save") == ["failed", "applied"]


async def test_an_outage_that_outlasts_the_refresh_token_loses_nothing(
    world: World,
) -> None:
    """The old refresh token has ended meanwhile; A still holds its successor."""
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a, refresh_expires_at=world.clock.time() + 60.0)
        unread = world.idp.hold_next(at="after")
        world.call(a)
        await unread.reached()
        a.store.down = b.store.down = "all"
        unread.release()
        await world.advance(90.5)
        a.store.down = b.store.down = "no"

        call = world.call(b)
        await world.advance(2.0)

        record = await world.assert_saved(1)
        assert call.token == record.tokens[0].access_token
        assert world.revoked == []


async def test_a_version_set_back_by_the_store_does_not_hide_what_follows(
    world: World,
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        old = await world.record()
        await world.ask(a)
        world.put_back(old)
        await world.advance(6.0)
        await world.ask(a)
        assert (await world.assert_saved(1)).version > old.version
        a.store.log.clear()

        await world.ask(a)
        assert a.store.verbs == []
        await b.tokens.end_session(SESSION)
        await world.advance(6.0)
        call = await world.ask(a)

        assert isinstance(call.error, SignInRequiredError)
        assert call.error.reason == "signed_out"


async def test_a_sign_out_is_seen_though_the_store_forgot_a_save(
    world: World,
) -> None:
    """Its number is lower than the one this worker has seen."""
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        old = await world.record()
        await world.ask(a)
        world.put_back(old)
        await b.tokens.end_session(SESSION)

        await world.advance(6.0)
        first = await world.ask(a)
        second = await world.ask(a)

        for call in (first, second):
            assert isinstance(call.error, SignInRequiredError)
            assert call.error.reason == "signed_out"
        assert not [event for event in a.events if isinstance(event, StoreForgot)]


async def test_a_sign_out_is_seen_though_the_store_forgot_a_lease(
    world: World,
) -> None:
    """As before, but within one generation."""
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a, live=True)
        old = await world.record()
        world.idp.fail_next(status=503, count=4)
        await world.advance(0.82 * LIFETIME)
        await world.ask(a)
        await world.advance(1.0)
        assert (await world.record()).version > old.version + 2
        world.put_back(old)
        await b.tokens.end_session(SESSION)

        await world.advance(6.0)
        call = await world.ask(a)

        assert isinstance(call.error, SignInRequiredError)
        assert call.error.reason == "signed_out"


async def test_leases_that_the_store_forgot_do_not_hide_the_refresh(
    world: World,
) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        old = await world.record()
        world.idp.fail_next(status=503, count=4)
        world.call(a)
        await world.advance(2.0)
        assert (await world.record()).version > old.version + 2
        world.put_back(old)

        first = await world.ask(a)
        second = await world.ask(a)

        record = await world.assert_saved(1)
        assert first.token == second.token == record.tokens[0].access_token
        assert world.requests == 5


# Failures that are shared


async def test_not_before_holds_for_all_workers(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        world.idp.fail_next(status=503, headers={"Retry-After": "50"})
        first = await world.ask(a)
        assert world.requests == 1

        second = await world.ask(b)
        await world.advance(50.0 - TICK)
        third = await world.ask(b)
        assert world.requests == 1
        for call in (first, second, third):
            assert isinstance(call.error, RetryableError)
        assert isinstance(second.error, RetryableError)
        assert second.error.retry_after == pytest.approx(50.0)

        await world.advance(TICK)
        fourth = await world.ask(b)
        assert fourth.token is not None
        assert world.requests == 2
        record = await world.assert_saved(1)
        assert (record.failure, record.not_before) == (None, None)


async def test_two_resources_live_in_one_record(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        calls = [
            world.call(a, resource="https://one.test"),
            world.call(a, resource="https://two.test"),
            world.call(a),
        ]
        await world.settle()

        record = await world.assert_saved(3)
        assert world.requests == 3
        assert len(set(world.sent)) == 3
        assert {call.token for call in calls} == {
            one.access_token for one in record.tokens
        }
        again = await world.ask(a, resource="https://one.test")
        assert again.token == calls[0].token
        assert world.requests == 3


ONE, TWO = "https://one.test", "https://two.test"


async def test_a_refused_resource_holds_back_its_own_token_alone(world: World) -> None:
    """On all workers, and in the memory of the one that met it."""
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        world.idp.fail_next(status=400, error="invalid_target")
        refused = await world.ask(a, resource=ONE)

        again = [await world.ask(worker, resource=ONE) for worker in (a, b)]
        others = [await world.ask(worker, resource=TWO) for worker in (a, b)]
        default = await world.ask(b)

        for call in (refused, *again):
            assert isinstance(call.error, MisconfiguredError)
            assert call.error.setting == "resource"
        assert None not in {call.token for call in (*others, default)}
        assert world.requests == 3
        record = await world.record()
        assert (record.failure, record.not_before) == (None, None)
        assert [hold.key.resource for hold in record.holds] == [ONE]

        await world.advance(31.0)
        healed = await world.ask(b, resource=ONE)
        assert healed.token is not None
        assert (await world.record()).holds == ()


async def test_a_resource_refused_again_waits_longer(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        await world.ask(a)
        world.idp.fail_next(status=400, error="invalid_target", count=3)
        for wait in (30.0, 60.0):
            await world.ask(a, resource=ONE)
            sent = world.requests
            await world.advance(wait - 1.0)
            await world.ask(a, resource=ONE)
            assert world.requests == sent
            await world.advance(1.0)
        await world.ask(a, resource=ONE)

        hold = (await world.record()).holds[0]
        assert hold.failure is not None
        assert hold.failure.count == 3


async def test_a_token_that_gains_nothing_holds_no_other_back(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        end = world.clock.time() + LIFETIME
        world.idp.token_members = {"expires_in": None, "expires_at": end}
        first = await world.ask(a)
        second = await world.ask(a, rejected=first.token)
        assert second.token not in {None, first.token}

        calls = [await world.ask(a, resource=ONE), await world.ask(b, resource=TWO)]

        assert None not in {call.token for call in calls}
        assert world.requests == 4


async def test_a_forced_refresh_puts_off_no_others_forced_refresh(world: World) -> None:
    """But each waits for its own gap, also when they take turns."""
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        for resource in (None, ONE):
            token = (await world.ask(a, resource=resource)).token
            call = await world.ask(a, resource=resource, rejected=token)
            assert call.token not in {None, token}
        assert world.requests == 4

        for resource in (None, ONE):
            token = (await world.ask(a, resource=resource)).token
            call = await world.ask(a, resource=resource, rejected=token)
            assert isinstance(call.error, RetryableError)
        assert world.requests == 4


async def test_an_entry_that_has_ended_does_not_hide_the_others(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        await world.ask(a, resource="https://one.test")
        await world.advance(100.0)
        first = await world.ask(a)
        await a.close()  # nobody renews the first one
        assert world.requests == 2

        await world.advance(LIFETIME - 90.0)
        calls = [await world.ask(b) for _ in range(3)]

        assert [call.token for call in calls] == [first.token] * 3
        assert world.requests == 2
        assert b.store.verbs == ["read"]


async def test_the_first_session_that_meets_invalid_client_ends(
    world: World,
) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a)
        other = world.idp.new_grant("user-2")
        await a.tokens.add_session("other", refresh_token=other.refresh_token or "")
        world.idp.clients["mock-client"].client_secret = "changed" * 8

        first = await world.ask(a)
        with pytest.raises(ClientRejectedError):
            await a.tokens.get_token("other")
        await world.advance(61.0)
        with pytest.raises(ClientRejectedError):
            await a.tokens.get_token("other")

        assert isinstance(first.error, ClientRejectedError)
        ended = (await world.record()).ended
        assert ended is not None
        kept = (await world.memory.read("other")).record
        assert kept is not None
        assert (kept.ended, kept.refresh_token) == (None, other.refresh_token)
        assert world.requests == 2
        ends = [event for event in a.events if isinstance(event, SessionEnded)]
        assert [event.session_id for event in ends] == [SESSION]


# Endings


async def test_an_end_is_expected_on_the_version_of_the_lease(world: World) -> None:
    async with world:
        a = await world.worker()
        grant = await world.sign_in(a)
        world.idp.revoke_grant(grant)

        await world.ask(a)

        assert a.store.verbs == ["acquire", "end"]
        acquire, end = a.store.log
        assert acquire.record is not None
        assert end.expect == acquire.record.pair


async def test_a_stopped_worker_does_not_end_what_another_holds(
    world: World,
) -> None:
    """A's answer is true, but B is at work: its outcome decides."""
    async with world:
        world.idp.rules.reuse_kills_family = False
        a, b = await world.worker(own_clock=True), await world.worker()
        await world.sign_in(a)
        world.idp.fail_next(error="invalid_grant")
        ending = a.store.hold_next("end", "before")
        first = world.call(a)
        await ending.reached()
        world.stop(a)
        await world.advance(T)
        second = world.call(b)
        await world.advance(1.0)

        ending.release()
        await world.settle()
        assert (await world.record()).ended is None
        await world.advance(SETTLE)
        await world.resume(a)

        record = await world.assert_saved(1)
        assert first.token == second.token == record.tokens[0].access_token
        assert a.store.outcomes("end") == ["conflict"]


async def test_an_end_whose_acknowledgement_is_lost_is_reported_once(
    world: World,
) -> None:
    async with world:
        a = await world.worker()
        grant = await world.sign_in(a)
        world.idp.revoke_grant(grant)
        a.store.break_next("end", "unacknowledged")

        call = world.call(a)
        await world.advance(1.0)

        await world.assert_ended(lost_rotation=False)
        assert isinstance(call.error, SignInRequiredError)
        assert call.error.error == "invalid_grant"
        assert a.event_names.count("session_ended") == 1
        assert world.requests == 1


async def test_an_end_that_cannot_be_written_is_left_to_the_next(
    world: World,
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        grant = await world.sign_in(a)
        world.idp.revoke_grant(grant)
        a.store.break_next("end", "refused", count=9)

        first = world.call(a)
        await world.advance(5.0)
        again = await world.ask(a)
        assert world.requests == 1
        await world.advance(T)
        second = world.call(b)
        await world.advance(SETTLE)

        for call in (first, again, second):
            assert isinstance(call.error, SignInRequiredError)
            assert call.error.error == "invalid_grant"
        record = await world.record()
        assert record.ended is not None
        assert world.requests == 2


async def test_a_refresh_token_past_its_end_is_not_sent(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a, refresh_expires_at=world.clock.time() + 100.0)

        await world.advance(100.0)
        call = await world.ask(a)

        record = await world.assert_ended(lost_rotation=False)
        assert record.ended is not None
        assert record.ended.reason == "expired"
        assert isinstance(call.error, SignInRequiredError)
        assert call.error.reason == "expired"
        assert world.requests == 0


async def test_a_refresh_token_one_tick_before_its_end_is_sent(world: World) -> None:
    async with world:
        a = await world.worker()
        await world.sign_in(a, refresh_expires_at=world.clock.time() + 100.0)

        await world.advance(100.0 - TICK)
        await world.ask(a)

        await world.assert_saved(1)


async def test_what_has_ended_is_never_sent_again(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        grant = await world.sign_in(a)
        world.idp.revoke_grant(grant)
        await world.ask(a)

        for worker in (a, b, await world.worker()):
            await world.advance(100.0)
            call = await world.ask(worker)
            assert isinstance(call.error, SignInRequiredError)
            assert "acquire" not in worker.store.verbs[2:]

        assert world.requests == 1


# Signing out


async def test_a_sign_out_before_the_send_is_final(world: World) -> None:
    """The guard cannot see it; the answer that comes is revoked."""
    async with world:
        a, b = await world.worker(), await world.worker()
        grant = await world.sign_in(a)
        race = a.store.hold_next("acquire", "before")
        call = world.call(a)
        await race.reached()
        await b.tokens.end_session(SESSION)

        race.release()
        await world.settle()

        assert world.requests == 0
        assert isinstance(call.error, SignInRequiredError)
        assert call.error.reason == "signed_out"
        assert not grant.active


async def test_a_sign_out_before_the_save_stays(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        grant = await world.sign_in(a)
        before = grant.refresh_token
        saving = a.store.hold_next("save", "before")
        call = world.call(a)
        await saving.reached()
        await b.tokens.end_session(SESSION)
        await world.settle()

        saving.release()
        await world.settle()

        record = await world.record()
        assert record.ended is not None
        assert isinstance(call.error, SignInRequiredError)
        assert call.error.reason == "signed_out"
        assert world.revoked == [before, grant.refresh_token]


async def test_a_dropped_answer_is_not_revoked_once_a_sign_in_followed(
    world: World,
) -> None:
    """One more look before: this revocation would end the new sign-in, too."""
    async with world:
        world.idp.rules.revocation = "subject"
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        saving = a.store.hold_next("save", "before")
        look = a.store.hold_next("read", "before")
        call = world.call(a)
        await saving.reached()
        await b.tokens.end_session(SESSION)
        await world.settle()
        saving.release()
        await look.reached()
        new = await world.sign_in(b, replace=True)

        look.release()
        await world.settle()

        assert len(world.revoked) == 1
        assert new.active
        assert call.token == new.access_token


async def test_a_dropped_answer_is_revoked_though_the_second_look_fails(
    world: World,
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        grant = await world.sign_in(a)
        saving = a.store.hold_next("save", "before")
        call = world.call(a)
        await saving.reached()
        await b.tokens.end_session(SESSION)
        a.store.break_next("read", "refused")

        saving.release()
        await world.advance(2.0)

        assert world.revoked[-1] == grant.refresh_token
        assert isinstance(call.error, SignInRequiredError)
        assert call.error.reason == "signed_out"


async def test_a_sign_out_whose_acknowledgement_is_lost_still_revokes(
    world: World,
) -> None:
    async with world:
        a = await world.worker()
        grant = await world.sign_in(a)
        a.store.break_next("end", "unacknowledged")

        await a.tokens.end_session(SESSION)
        await world.settle()

        assert (await world.record()).ended is not None
        assert world.revoked == [grant.refresh_token]
        assert a.event_names.count("session_ended") == 1


async def test_a_sign_out_that_the_store_refuses_is_an_error(world: World) -> None:
    async with world:
        a = await world.worker()
        grant = await world.sign_in(a)
        a.store.break_next("end", "refused")

        with pytest.raises(StoreError):
            await a.tokens.end_session(SESSION)

        assert (await world.record()).ended is None
        assert grant.active
        call = await world.ask(a)
        assert call.token is not None


# New sign-ins


@pytest.mark.parametrize("point", ["acquire", "save"])
async def test_a_new_sign_in_wins_over_a_flight(world: World, point: Verb) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        race = a.store.hold_next(point, "before")
        call = world.call(a)
        await race.reached()
        new = await world.sign_in(b, replace=True)

        race.release()
        await world.settle()

        record = await world.assert_saved(1)
        assert record.refresh_token == new.refresh_token
        assert call.token == new.access_token
        assert world.revoked == []


async def test_a_failure_of_the_old_grant_is_not_told_of_a_new_sign_in(
    world: World,
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        world.idp.fail_next(status=400, error="invalid_scope")
        race = a.store.hold_next("release", "before")
        call = world.call(a)
        await race.reached()
        new = await world.sign_in(b, live=True, replace=True)

        race.release()
        await world.settle()

        assert call.error is None
        assert call.token == new.access_token
        assert (await world.record()).failure is None
        assert "refresh_failed" not in a.event_names


async def test_a_failure_that_meets_a_sign_out_says_that_the_session_is_over(
    world: World,
) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        world.idp.fail_next(status=400, error="invalid_scope")
        race = a.store.hold_next("release", "before")
        call = world.call(a)
        await race.reached()
        await b.tokens.end_session(SESSION)

        race.release()
        await world.settle()

        assert isinstance(call.error, SignInRequiredError)
        assert call.error.reason == "signed_out"


async def test_a_new_sign_in_repeats_over_a_moving_record(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        await world.sign_in(a)
        race = b.store.hold_next("create", "before")
        new = world.idp.new_grant()

        async def sign_in() -> None:
            await b.tokens.add_session(
                SESSION, refresh_token=new.refresh_token or "", replace=True
            )

        world.start_soon(sign_in)
        await race.reached()
        await world.ask(a)
        race.release()
        await world.settle()

        assert b.store.outcomes("create") == ["conflict", "applied"]
        assert (await world.record()).refresh_token == new.refresh_token


async def test_a_grant_that_is_there_is_not_overwritten(world: World) -> None:
    async with world:
        a, b = await world.worker(), await world.worker()
        grant = await world.sign_in(a)
        before = grant.refresh_token or ""
        await world.ask(a)
        saved = await world.record()

        await b.tokens.add_session(SESSION, refresh_token=before)

        assert await world.record() == saved


# All of it together


@pytest.mark.parametrize("seed", range(10))
async def test_no_weather_of_store_and_network_loses_a_session(
    world: World, seed: int
) -> None:
    """Outages, refusals, late writes, lost requests and 5xx, in any order (I6)."""
    rng = random.Random(seed)
    async with world:
        world.idp.rules.access_token_lifetime = rng.choice([20.0, 60.0, LIFETIME])
        workers = [await world.worker() for _ in range(3)]
        grant = await world.sign_in(workers[0])

        calls = []
        for _ in range(40):
            worker = rng.choice(workers)
            calls.append(await world.ask(worker, **_any_ask(rng, await world.record())))
            await _any_weather(world, worker, rng)
            await world.advance(rng.choice([0.0, 0.1, 1.0, 3.0, 9.0, 28.0, T]))
        for worker in workers:
            worker.store.heal()
        world.idp.clear_faults()
        await world.advance(120.0)

        assert grant.active
        for worker in workers:
            call = world.call(worker, rejected="another")
            await world.advance(100.0)
            assert call.token is not None
            assert not {"session_ended", "rotation_lost"} & {*worker.event_names}
        assert not [one for one in calls if isinstance(one.error, SignInRequiredError)]
        record = await world.record()
        assert (record.ended, record.lease) == (None, None)
        assert world.idp.introspect(record.refresh_token or "")["active"]


def _any_ask(rng: random.Random, record: Record) -> dict[str, str]:
    """Return what a caller may ask for."""
    token = record.token(DEFAULT_ENTRY)
    asks = [{}, {}, {"resource": "https://one.test"}]
    if token is not None:
        asks.append({"rejected": token.access_token})
    return rng.choice(asks)


async def _any_weather(world: World, worker: Worker, rng: random.Random) -> None:
    """Let something fail that no session may be lost by."""
    verbs: list[Verb] = ["read", "acquire", "renew", "save", "release"]
    breaks: list[Break] = ["refused", "unacknowledged", "late"]
    outages: list[Outage] = ["no", "writes", "all"]
    match rng.randrange(6):
        case 0:
            count = rng.choice([1, 2, 5])
            worker.store.break_next(rng.choice(verbs), rng.choice(breaks), count=count)
        case 1:
            # An outage is everybody's: who alone is cut off too long may lose (L5).
            down = rng.choice(outages)
            for one in world.workers:
                one.store.down = down
        case 2:
            for one in world.workers:
                one.store.down = "no"
                await one.store.apply_late()
        case 3:
            world.idp.drop_next(processed=False, count=rng.choice([1, 2, 5]))
        case 4:
            world.idp.fail_next(status=503, count=rng.choice([1, 4]))
        case _:
            pass

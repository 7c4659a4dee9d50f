"""Whoever is cancelled, wherever: nothing is lost, held or poisoned."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import anyio
import anyio.lowlevel
import httpx
import pytest

from freshtoken import MemoryStore, RetryableError, TokenManager
from freshtoken._foundation.records import DEFAULT_ENTRY, Lease, next_version
from freshtoken._lifecycle.flight import Flight
from freshtoken._lifecycle.lease import Held, TooLateError
from freshtoken._lifecycle.local import instant
from freshtoken._lifecycle.policy import Want
from freshtoken._lifecycle.refresh import RefreshTransaction
from freshtoken.abc import ReadResult, Record, SwapResult
from freshtoken.errors import (
    FreshTokenError,
    MisconfiguredError,
    SignInRequiredError,
)
from freshtoken.events import Event
from freshtoken.testing import FakeClock, MockGrant, MockIdP
from tests.lifecycle.conftest import MakeManager
from tests.lifecycle.sim import SESSION, Gate, Verb, Worker, World

STEPS = 400
"""More turns of the loop than any flight here takes."""


@pytest.fixture
def world(
    idp: MockIdP, store: MemoryStore, clock: FakeClock, make_manager: MakeManager
) -> World:
    return World(idp, store, clock, make_manager)


# Every turn of the loop


class SlowStore:
    """A store that lets the loop turn before and after each operation."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner

    async def read(self, key: str) -> ReadResult:
        await anyio.lowlevel.checkpoint()
        result = await self.inner.read(key)
        await anyio.lowlevel.checkpoint()
        return result

    async def swap(
        self,
        key: str,
        expect: tuple[str, int] | None,
        record: Record,
        *,
        lease_for: float | None = None,
        keep_for: float | None = None,
    ) -> SwapResult:
        await anyio.lowlevel.checkpoint()
        result = await self.inner.swap(
            key, expect, record, lease_for=lease_for, keep_for=keep_for
        )
        await anyio.lowlevel.checkpoint()
        return result


class SlowTransport(httpx.AsyncBaseTransport):
    """The mock server, with turns of the loop on the way there and back."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self.inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        response = await self.inner.handle_async_request(request)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        return response


@dataclass
class Scene:
    """One session, one manager, one server: made anew for each number of turns."""

    clock: FakeClock = field(default_factory=FakeClock)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.idp = MockIdP(
            clock=self.clock, rng=random.Random(7), access_token_lifetime=300.0
        )
        self.store = MemoryStore(clock=self.clock)
        self.manager = self.make_manager()
        self.grant: MockGrant = self.idp.new_grant()
        self.begun = False
        self.outcome: str | FreshTokenError | None = None

    def make_manager(self) -> TokenManager:
        async def secret() -> str:
            await anyio.lowlevel.checkpoint()
            return self.idp.clients["mock-client"].client_secret or ""

        transport = SlowTransport(self.idp.transport())
        return TokenManager(
            self.idp.client(client_secret=secret),
            store=SlowStore(self.store),
            http_client=httpx.AsyncClient(transport=transport),
            clock=self.clock,
            rng=random.Random(3),
            on_event=self.events.append,
        )

    async def sign_in(self) -> None:
        await self.manager.add_session(
            SESSION, refresh_token=self.grant.refresh_token or ""
        )

    async def call(self) -> None:
        """Ask for a token, and keep what comes."""
        self.begun = True
        try:
            self.outcome = (await self.manager.get_token(SESSION)).reveal()
        except FreshTokenError as error:
            self.outcome = error

    async def record(self) -> Record:
        found = (await self.store.read(SESSION)).record
        assert found is not None
        return found

    @property
    def errors(self) -> list[str | None]:
        """How the token requests that the server saw ended."""
        return [one.error for one in self.idp.requests("token")]

    async def assert_nothing_lost(self) -> Record:
        """What the server has given is stored, and nobody holds the session."""
        record = await self.record()
        assert record.lease is None
        assert record.ended is None
        assert record.refresh_token == self.grant.refresh_token
        assert record.generation == len(self.errors)
        assert record.doubt == "none"
        return record


async def turn(turns: int, over: Callable[[], bool] = lambda: False) -> None:
    """Let the loop turn so often, or until it is over."""
    for _ in range(turns):
        if over():
            return
        await anyio.lowlevel.checkpoint()


Scenario = Callable[[int], Awaitable[bool]]


async def at_every_turn(scenario: Scenario, *, at_least: int) -> None:
    """Run a scenario with one more turn each time, until it says it came too late."""
    for turns in range(STEPS):
        if await scenario(turns):
            assert turns >= at_least, "the flight has fewer steps than it was said"
            return
    message = "the flight does not end"
    raise AssertionError(message)


async def test_a_caller_cancelled_at_any_turn_leaves_the_flight_alone() -> None:
    """It is the only one: the refresh lands and is saved all the same."""

    async def scenario(turns: int) -> bool:
        scene = Scene()
        landed = False
        async with scene.manager as tokens:
            await scene.sign_in()

            async def call() -> None:
                nonlocal landed
                await tokens.get_token(SESSION)
                landed = True

            async with anyio.create_task_group() as group:
                group.start_soon(call)
                await turn(turns)
                group.cancel_scope.cancel()
            late = landed
            await scene.clock.settle()

            if scene.errors or late:
                await scene.assert_nothing_lost()
            token = await tokens.get_token(SESSION)
            assert token.reveal() == scene.grant.access_token
            assert scene.errors == [None]
            await scene.assert_nothing_lost()
        return late

    await at_every_turn(scenario, at_least=15)


@pytest.mark.parametrize("who", ["first", "middle", "all but the last", "all"])
async def test_callers_cancelled_at_any_turn_cost_the_others_nothing(
    who: str,
) -> None:
    count = 4
    victims = {
        "first": [0],
        "middle": [1, 2],
        "all but the last": [0, 1, 2],
        "all": [0, 1, 2, 3],
    }[who]

    async def scenario(turns: int) -> bool:
        scene = Scene()
        tokens_seen: dict[int, str] = {}
        scopes = [anyio.CancelScope() for _ in range(count)]
        async with scene.manager as tokens:
            await scene.sign_in()

            async def call(number: int) -> None:
                with scopes[number]:
                    token = await tokens.get_token(SESSION)
                    tokens_seen[number] = token.reveal()

            async with anyio.create_task_group() as group:
                for number in range(count):
                    group.start_soon(call, number)
                await turn(turns)
                late = len(tokens_seen) == count
                for number in victims:
                    scopes[number].cancel()

            await scene.clock.settle()
            survivors = [number for number in range(count) if number not in victims]
            assert all(
                tokens_seen[number] == scene.grant.access_token for number in survivors
            )
            token = await tokens.get_token(SESSION)
            assert token.reveal() == scene.grant.access_token
            assert scene.errors == [None]
            await scene.assert_nothing_lost()
        return late

    await at_every_turn(scenario, at_least=15)


async def close_after(scene: Scene, turns: int, *, cancel: bool = False) -> bool:
    """Call, let the loop turn, leave the manager; tell whether that came too late.

    Args:
        cancel: The body of the block is cancelled, and the caller with it.
    """
    async with anyio.create_task_group() as group:
        async with scene.manager:
            await scene.sign_in()
            group.start_soon(scene.call)
            await turn(turns)
            late = scene.outcome is not None
            in_time = scene.begun
            if cancel:
                group.cancel_scope.cancel()
        await scene.clock.settle()
    if not in_time:
        assert isinstance(scene.outcome, MisconfiguredError)
        scene.outcome = RetryableError("it had not begun")
    return late


async def assert_next_call_works(scene: Scene) -> None:
    """The manager is entered again, and a token is there."""
    async with scene.manager as tokens:
        token = await tokens.get_token(SESSION)
    assert token.reveal() == scene.grant.access_token
    assert set(scene.errors) <= {None}


async def test_a_manager_closed_at_any_turn_lets_sent_requests_land() -> None:
    """Before the guard: no request, no lease. After it: saved before closing ends."""

    async def scenario(turns: int) -> bool:
        scene = Scene()

        late = await close_after(scene, turns)

        assert scene.errors in ([], [None])
        await scene.assert_nothing_lost()
        if not isinstance(scene.outcome, RetryableError):
            assert scene.outcome == scene.grant.access_token
        await assert_next_call_works(scene)
        return late

    await at_every_turn(scenario, at_least=15)


async def test_a_body_cancelled_at_any_turn_lets_sent_requests_land() -> None:
    async def scenario(turns: int) -> bool:
        scene = Scene()

        late = await close_after(scene, turns + 2, cancel=True)

        assert scene.errors in ([], [None])
        await scene.assert_nothing_lost()
        await assert_next_call_works(scene)
        return late

    await at_every_turn(scenario, at_least=15)


async def test_a_manager_closed_at_any_turn_of_a_broken_request_notes_the_doubt() -> (
    None
):
    """The repeat is not sent any more once closing has begun."""

    async def scenario(turns: int) -> bool:
        scene = Scene()
        scene.idp.drop_next(processed=False)

        late = await close_after(scene, turns)

        record = await scene.record()
        assert record.lease is None
        assert record.refresh_token == scene.grant.refresh_token
        in_doubt = len(scene.errors) > 0 and not record.generation
        assert (record.doubt != "none") == in_doubt
        await assert_next_call_works(scene)
        assert len(scene.errors) == 2
        return late

    await at_every_turn(scenario, at_least=15)


async def test_a_session_ended_by_the_server_is_ended_at_any_turn_of_closing() -> None:
    """A refusal that has arrived is final, or was never asked for."""

    async def scenario(turns: int) -> bool:
        scene = Scene()
        scene.idp.fail_next(error="invalid_grant", count=None)

        late = await close_after(scene, turns)

        record = await scene.record()
        assert record.lease is None
        assert (record.ended is not None) == bool(scene.errors)
        wanted = SignInRequiredError if scene.errors else RetryableError
        assert isinstance(scene.outcome, wanted)
        return late

    await at_every_turn(scenario, at_least=15)


# anyio wraps what a task group starts; a task that asyncio cancels before its first
# step leaves the wrapped coroutine behind.
@pytest.mark.filterwarnings("ignore:coroutine '.*alarm' was never awaited")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_loop_killed_at_any_turn_leaves_what_the_next_can_go_on_with(
    backend: str,
) -> None:
    """Nobody leaves the manager; its tasks are cancelled where they are.

    A lease may stay, as after a crash, and runs out. What is lost is reported.
    """
    losses = 0
    for turns in range(STEPS):
        scene = Scene()
        landed = anyio.run(_begin_and_die, scene, turns, backend=backend)
        left, outcome = anyio.run(_go_on, scene, backend=backend)
        if outcome == "lost":
            # The server had rotated, and its answer died with the process.
            losses += 1
            assert left.generation == 0
            assert scene.errors[0] is None
            assert left.lease is not None or left.doubt != "none"
        else:
            assert outcome == scene.grant.access_token
            assert set(scene.errors) == {None}
        if landed:
            assert turns >= 15
            assert losses > 0
            gc.collect()
            return
    pytest.fail("the flight does not end")


async def _begin_and_die(scene: Scene, turns: int) -> bool:
    """Let a flight run for so many turns, and tell whether it has landed."""
    landed = False
    await scene.manager.__aenter__()
    await scene.sign_in()

    async def call() -> None:
        nonlocal landed
        await scene.manager.get_token(SESSION)
        landed = True

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await turn(turns)
        group.cancel_scope.cancel()
    return landed


async def _go_on(scene: Scene) -> tuple[Record, str]:
    """Ask in the next loop until there is an answer; return what was left, and it."""
    left = await scene.record()
    outcome: list[str] = []

    async def call() -> None:
        while not outcome:
            try:
                outcome.append((await tokens.get_token(SESSION)).reveal())
            except SignInRequiredError as error:
                outcome.append("lost" if error.lost_rotation else "ended")
            except RetryableError:
                await scene.clock.sleep(1.0)

    async with (
        scene.make_manager() as tokens,
        anyio.create_task_group() as group,
    ):
        group.start_soon(call)
        await scene.clock.advance(45)
    assert outcome
    return left, outcome[0]


# Named points of a flight

Moment = Literal["before", "after"]
Reached = tuple[Worker, Callable[[], object]]
At = Callable[[World, AsyncExitStack], Awaitable[Reached]]


@dataclass(frozen=True)
class Point:
    """A point at which a flight stands still until it is let go.

    Attributes:
        sent: Requests that the server has seen by then, or will before closing ends.
        closes: Whether closing ends although nobody lets the flight go.
        ends: The server refuses the refresh token.
        again: Requests that follow where nobody closes.
    """

    reach: At
    sent: int
    closes: bool
    ends: bool = False
    again: int = 0


async def _at_discovery(world: World, _: AsyncExitStack) -> Reached:
    worker = await _worker(world)
    fault = world.idp.hold_next("openid_configuration")
    world.call(worker)
    await fault.reached()
    return worker, fault.release


async def _in_the_queue(world: World, stack: AsyncExitStack) -> Reached:
    worker = await _worker(world)
    limiter = worker.tokens._server.limiter
    slots = AsyncExitStack()
    for _ in range(75):
        await slots.enter_async_context(limiter.slot())
    world.call(worker)
    await world.settle()
    assert limiter.waiting == 1

    async def let_go() -> None:
        await slots.aclose()

    stack.push_async_callback(slots.aclose)
    return worker, let_go


async def _at_the_secret(world: World, _: AsyncExitStack) -> Reached:
    go = anyio.Event()

    async def secret() -> str:
        await go.wait()
        return world.idp.clients["mock-client"].client_secret or ""

    worker = await world.worker(client=world.idp.client(client_secret=secret))
    await world.sign_in(worker)
    world.call(worker)
    await world.settle()
    return worker, go.set


def _at_store(verb: Verb, at: Moment, *, refused: bool = False) -> At:
    async def reach(world: World, _: AsyncExitStack) -> Reached:
        worker = await _worker(world)
        if refused:
            world.idp.fail_next(error="invalid_grant")
        if verb == "release":
            world.idp.fail_next(status=403, error="account_locked")
        gate: Gate = worker.store.hold_next(verb, at)
        world.call(worker)
        await gate.reached()
        return worker, gate.release

    return reach


def _at_server(at: Moment) -> At:
    async def reach(world: World, _: AsyncExitStack) -> Reached:
        worker = await _worker(world)
        fault = world.idp.hold_next(at=at)
        world.call(worker)
        await fault.reached()
        return worker, fault.release

    return reach


async def _in_backoff(world: World, _: AsyncExitStack) -> Reached:
    worker = await _worker(world)
    world.idp.fail_next(status=503)
    world.call(worker)
    await world.settle()
    assert world.requests == 1
    return worker, lambda: world.advance(0.3)


async def _while_settling(world: World, _: AsyncExitStack) -> Reached:
    worker = await _worker(world)
    found = await world.record()
    lease = Lease("somebody who vanished", "")
    await world.memory.swap(
        SESSION, found.pair, next_version(found, lease=lease), lease_for=5.0
    )
    await world.advance(6)
    await worker.look()
    worker.store.log.clear()
    world.call(worker)
    await world.settle()
    assert worker.store.outcomes("acquire") == ["applied"]
    return worker, lambda: world.advance(4)


async def _at_failing_save(world: World, _: AsyncExitStack) -> Reached:
    worker = await _worker(world)
    worker.store.break_next("save", "refused", count=10)
    world.call(worker)
    await world.settle()
    assert worker.store.outcomes("save") == ["failed"]
    return worker, lambda: world.advance(11)


async def _worker(world: World) -> Worker:
    worker = await world.worker()
    await world.sign_in(worker)
    return worker


POINTS = {
    "discovery": Point(_at_discovery, 0, closes=True),
    "queue": Point(_in_the_queue, 0, closes=True),
    "before acquire": Point(_at_store("acquire", "before"), 0, closes=False),
    "after acquire": Point(_at_store("acquire", "after"), 0, closes=False),
    "settling": Point(_while_settling, 0, closes=True),
    "client secret": Point(_at_the_secret, 0, closes=True),
    "sent": Point(_at_server("before"), 1, closes=False),
    "answered": Point(_at_server("after"), 1, closes=False),
    "backoff": Point(_in_backoff, 1, closes=True, again=1),
    "before save": Point(_at_store("save", "before"), 1, closes=False),
    "after save": Point(_at_store("save", "after"), 1, closes=False),
    "failing save": Point(_at_failing_save, 1, closes=False),
    "before release": Point(_at_store("release", "before"), 1, closes=False),
    "after release": Point(_at_store("release", "after"), 1, closes=False),
    "before end": Point(
        _at_store("end", "before", refused=True), 1, closes=False, ends=True
    ),
    "after end": Point(
        _at_store("end", "after", refused=True), 1, closes=False, ends=True
    ),
}


@asynccontextmanager
async def standing_at(
    world: World, name: str
) -> AsyncIterator[tuple[Worker, Callable[[], Awaitable[None]]]]:
    """Let a flight come to a point; what it is let go with is awaited if need be."""
    async with AsyncExitStack() as stack, world:
        worker, go = await POINTS[name].reach(world, stack)

        async def let_go() -> None:
            result = go()
            if isinstance(result, Awaitable):
                await result
            await world.settle()

        yield worker, let_go


@pytest.mark.parametrize("who", ["first", "one", "all"])
@pytest.mark.parametrize("name", POINTS)
async def test_callers_cancelled_at_a_point_change_nothing(
    world: World, name: str, who: str
) -> None:
    point = POINTS[name]
    async with standing_at(world, name) as (worker, let_go):
        others = [world.call(worker) for _ in range(3)]
        await world.settle()

        victims = {"first": others[:1], "one": others[1:2], "all": others}[who]
        for call in victims:
            call.cancel()
        await world.settle()
        # With an answer at hand nobody waits for its save.
        served = name == "failing save"
        assert all(call.done for call in victims)
        assert all((call.token is not None) == served for call in victims)
        await let_go()

        rest = [call for call in others if call not in victims]
        if point.ends:
            assert all(isinstance(one.error, SignInRequiredError) for one in rest)
            await world.assert_ended(lost_rotation=False)
        elif name.endswith("release"):
            assert all(isinstance(one.error, FreshTokenError) for one in rest)
            assert (await world.record()).lease is None
            await world.advance(31)
            await world.ask(worker)
            await world.assert_saved(1)
        else:
            record = await world.assert_saved(1)
            assert world.requests == point.sent + (not point.sent) + point.again
            text = record.tokens[0].access_token
            assert {one.token for one in rest} <= {text}
            last = await world.ask(worker)
            assert last.token == text


@pytest.mark.parametrize("name", POINTS)
async def test_a_manager_closed_at_a_point_keeps_what_the_server_gave(
    world: World, name: str
) -> None:
    point = POINTS[name]
    async with standing_at(world, name) as (worker, let_go):
        call = world.call(worker)
        await world.settle()

        world.start_soon(worker.close)
        await world.settle()
        assert worker.closed is point.closes
        await let_go()
        assert worker.closed

        record = await world.record()
        assert record.lease is None
        assert world.requests == point.sent
        assert "save_lost" not in worker.event_names
        assert worker.tokens._server.limiter.in_use in {0, 75}
        if point.ends:
            assert isinstance(call.error, SignInRequiredError)
            assert record.ended is not None
        elif name.endswith("release"):
            assert isinstance(call.error, FreshTokenError)
            assert record.generation == 0
        elif point.closes or not point.sent:
            assert isinstance(call.error, RetryableError)
            assert record.generation == 0
            assert record.not_before is None
        else:
            assert record.generation == 1
            assert call.token == record.tokens[0].access_token
        if name == "settling":
            assert record.doubt == "unsettled"
        elif name == "backoff":
            assert record.doubt == "settled"
        else:
            assert record.doubt == "none"

        # Another worker goes on from there.
        if not point.ends:
            await world.advance(31 if name.endswith("release") else 1)
            other = await world.worker()
            last = world.call(other)
            await world.advance(5)
            assert last.token is not None
            await world.assert_saved(1)
    world.idp.clear_faults()


# A caller's own limits


async def test_a_callers_own_time_out_leaves_the_flight_going(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    async with manager as tokens:
        grant = idp.new_grant()
        await tokens.add_session(SESSION, refresh_token=grant.refresh_token or "")
        hang = idp.hold_next()

        with anyio.move_on_after(0) as limit:
            await tokens.get_token(SESSION)
        assert limit.cancelled_caught
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0):
                await tokens.get_token(SESSION)
        await hang.reached()
        hang.release()
        await clock.settle()

        record = (await store.read(SESSION)).record
        assert record is not None
        assert record.refresh_token == grant.refresh_token
        assert (await tokens.get_token(SESSION)).reveal() == grant.access_token
        assert len(idp.requests("token")) == 1


def test_asyncios_own_ways_to_cancel_leave_the_flight_going(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """``wait_for``, ``timeout`` and ``Task.cancel`` know nothing of anyio's scopes."""

    async def scene() -> None:
        async with manager as tokens:
            grant = idp.new_grant()
            await tokens.add_session(SESSION, refresh_token=grant.refresh_token or "")
            hang = idp.hold_next()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(tokens.get_token(SESSION), 0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await tokens.get_token(SESSION)
            task = asyncio.create_task(tokens.get_token(SESSION))
            await hang.reached()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            follower = asyncio.create_task(tokens.get_token(SESSION))
            await clock.settle()
            hang.release()

            assert (await follower).reveal() == grant.access_token
            assert len(idp.requests("token")) == 1

    asyncio.run(scene())


async def test_who_asks_inside_a_cancelled_scope_poisons_nothing(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        grant = idp.new_grant()
        await tokens.add_session(SESSION, refresh_token=grant.refresh_token or "")

        with anyio.CancelScope() as scope:
            scope.cancel()
            await tokens.get_token(SESSION)
        assert scope.cancelled_caught

        assert (await tokens.get_token(SESSION)).reveal() == grant.access_token
        assert len(idp.requests("token")) == 1


# The race between cancelling and the guard


async def test_a_cancelled_flight_does_not_pass_the_guard(clock: FakeClock) -> None:
    """Its task may run on to the guard before it notices: nothing is sent then."""
    flight = Flight(SESSION, Want(key=None))  # type: ignore[arg-type]  # not used

    flight.cancel()

    with pytest.raises(TooLateError):
        flight.sending()
    assert not flight.committed


async def test_a_guard_that_refuses_a_cancelled_flight_leaves_no_doubt(
    world: World,
) -> None:
    """What is not marked as sent is released without a trace."""
    async with world:
        worker = await world.worker()
        await world.sign_in(worker)
        context = next(iter(worker.tokens._runtimes.values())).context
        flight = Flight(SESSION, Want(DEFAULT_ENTRY))
        transaction = RefreshTransaction(context, SESSION, flight.want, flight)
        held = Held(await world.record(), "owner", instant(world.clock))
        flight.cancel()

        with pytest.raises(TooLateError):
            transaction._guard(held)

        assert held.sent == "no"


async def test_closing_in_the_turn_in_which_a_slot_comes_free_sends_nothing(
    world: World,
) -> None:
    """The flight is awake already, so that its cancellation comes after the guard."""
    async with standing_at(world, "queue") as (worker, let_go):
        closing = worker.tokens.__aexit__

        async def close_with_slots() -> None:
            # Both in one turn: the waiter is woken, then the manager closes.
            limiter = worker.tokens._server.limiter
            limiter._release(code_exchange=False)
            await closing(None, None, None)
            limiter._in_use[False] += 1

        await close_with_slots()
        worker.closed = True

        record = await world.record()
        assert world.requests == record.generation
        assert record.lease is None
        assert record.doubt == "none"
        await let_go()

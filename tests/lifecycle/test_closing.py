"""Leaving a manager: the sent lands, the failed is named, nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import anyio
import pytest
from anyio.abc import TaskGroup

from freshtoken import MemoryStore, RetryableError, TokenManager
from freshtoken._foundation.waiting import in_trio
from freshtoken._lifecycle.policy import CLOSE_LIMIT
from freshtoken._lifecycle.runtime import LAST_WAIT
from freshtoken.abc import ReadResult, Record, SwapResult
from freshtoken.errors import FreshTokenError, MisconfiguredError
from freshtoken.events import Event
from freshtoken.testing import FakeClock, MockGrant, MockIdP
from tests.lifecycle.conftest import MakeManager
from tests.lifecycle.sim import FaultyStore

BODIES: list[BaseException] = [
    ValueError("the application's own"),
    KeyboardInterrupt(),
    SystemExit(3),
    ExceptionGroup("the application's own", [ValueError("one"), KeyError("two")]),
    GeneratorExit(),
]


@dataclass
class Rig:
    """A manager over a store that can be broken."""

    manager: TokenManager
    idp: MockIdP
    clock: FakeClock
    store: MemoryStore
    faulty: FaultyStore
    events: list[Event]


@pytest.fixture
def rig(
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    events: list[Event],
) -> Rig:
    faulty = FaultyStore(store, clock)
    manager = make_manager(store=faulty)
    return Rig(manager, idp, clock, store, faulty, events)


async def sign_in(tokens: TokenManager, idp: MockIdP, name: str = "crm") -> MockGrant:
    grant = idp.new_grant()
    await tokens.add_session(name, refresh_token=grant.refresh_token or "")
    return grant


async def stored(store: MemoryStore, name: str = "crm") -> Record:
    found = (await store.read(name)).record
    assert found is not None
    return found


def tasks() -> set[str]:
    """Name the tasks of the running loop, this one and its parents left out."""
    if not in_trio():
        return {
            task.get_name()
            for task in asyncio.all_tasks()
            if task is not asyncio.current_task()
        }
    import trio  # noqa: PLC0415 -- only where it runs

    root = trio.lowlevel.current_root_task()
    assert root is not None
    names, pending = set(), [root]
    while pending:
        task = pending.pop()
        names.add(task.name)
        for nursery in task.child_nurseries:
            pending.extend(nursery.child_tasks)
    return names


class Background:
    """Runs something beside the test, and tells whether it is done."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._work = work
        self.done = False
        self.result: object = None
        self.error: FreshTokenError | None = None

    async def run(self) -> None:
        try:
            self.result = await self._work()
        except FreshTokenError as error:
            self.error = error
        self.done = True


def leave(tokens: TokenManager) -> Background:
    return Background(lambda: tokens.__aexit__(None, None, None))


@asynccontextmanager
async def a_group(
    idp: MockIdP, clock: FakeClock, faulty: FaultyStore | None = None
) -> AsyncGenerator[TaskGroup]:
    """Make a task group; where the test fails, mend what closing would wait for."""
    async with anyio.create_task_group() as group:
        try:
            yield group
        except BaseException:
            idp.clear_faults()
            if faulty is not None:
                faulty.heal()
            with anyio.CancelScope(shield=True):
                await clock.advance(2)
            raise


# The body's exceptions


@pytest.mark.parametrize("under_way", [False, True])
@pytest.mark.parametrize("error", BODIES, ids=lambda error: type(error).__name__)
async def test_what_the_body_raises_comes_out_as_it_is(
    rig: Rig,
    error: BaseException,
    under_way: bool,  # noqa: FBT001 -- a parameter of the test
) -> None:
    """Never in a group; a flight under way lands first."""
    caught: list[BaseException] = []
    grant = rig.idp.new_grant()
    hang = rig.idp.hold_next() if under_way else None

    async def body() -> None:
        try:
            async with rig.manager as tokens:
                await tokens.add_session("crm", refresh_token=grant.refresh_token or "")
                if hang is not None:
                    await _start_and_abandon(tokens)
                    await hang.reached()
                raise error  # noqa: TRY301 -- what the test is about
        except BaseException as raised:  # noqa: BLE001 -- also KeyboardInterrupt
            caught.append(raised)

    async with a_group(rig.idp, rig.clock, rig.faulty) as group:
        group.start_soon(body)
        await rig.clock.settle()
        if hang is not None:
            assert caught == []
            hang.release()

    assert caught == [error]
    assert caught[0] is error
    assert error.__context__ is None
    assert (await stored(rig.store)).generation == int(under_way)


async def _start_and_abandon(tokens: TokenManager, name: str = "crm") -> None:
    """Begin a flight that nobody waits for."""
    with anyio.move_on_after(0):
        await tokens.get_token(name)


@pytest.mark.parametrize("at", ["before", "after"])
async def test_a_cancelled_body_leaves_after_the_flight_has_landed(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    at: Literal["before", "after"],
) -> None:
    grant = idp.new_grant()
    hang = idp.hold_next(at=at)
    scope = anyio.CancelScope()
    left = False

    async def body() -> None:
        nonlocal left
        with scope:
            async with manager as tokens:
                await tokens.add_session("crm", refresh_token=grant.refresh_token or "")
                await tokens.get_token("crm")
        left = True

    async with a_group(idp, clock) as group:
        group.start_soon(body)
        await hang.reached()
        scope.cancel()
        await clock.settle()
        assert not left
        hang.release()
    assert left
    assert scope.cancelled_caught
    record = await stored(store)
    assert record.refresh_token == grant.refresh_token
    assert record.lease is None


def test_a_task_cancelled_twice_gives_up_waiting_but_not_the_refresh(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    """The cancellation of asyncio passes shields: the host task goes on without it."""

    async def scene() -> None:
        grant = idp.new_grant()
        hang = idp.hold_next()

        async def body() -> None:
            async with manager as tokens:
                await tokens.add_session("crm", refresh_token=grant.refresh_token or "")
                await tokens.get_token("crm")

        task = asyncio.create_task(body())
        await hang.reached()
        task.cancel()
        await clock.settle()
        assert not task.done()
        task.cancel()
        await clock.settle()
        assert task.cancelled()

        hang.release()
        await clock.settle()
        assert (await stored(store)).refresh_token == grant.refresh_token
        assert tasks() == set()

    asyncio.run(scene())


# Entering


async def test_an_entering_that_is_cancelled_leaves_the_manager_as_it_was(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    before = tasks()
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with manager:
            pytest.fail("it was cancelled")
    await clock.settle()
    assert tasks() == before

    async with manager as tokens:
        grant = await sign_in(tokens, idp)
        assert (await tokens.get_token("crm")).reveal() == grant.access_token


async def test_a_manager_is_entered_once_in_a_loop(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        grant = await sign_in(tokens, idp)
        with pytest.raises(MisconfiguredError) as raised:
            async with manager:
                pytest.fail("it is entered already")
        assert raised.value.setting == "async with"
        assert (await tokens.get_token("crm")).reveal() == grant.access_token


async def test_a_manager_may_be_left_and_entered_again(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    before = tasks()
    async with manager as tokens:
        grant = await sign_in(tokens, idp)
        await tokens.get_token("crm")
    assert tasks() == before
    await clock.advance(301)
    async with manager as tokens:
        assert (await tokens.get_token("crm")).reveal() == grant.access_token
    assert tasks() == before
    await manager.__aexit__(None, None, None)  # once too often: nothing happens
    assert len(idp.requests("token")) == 2


@pytest.mark.parametrize("when", ["before", "after"])
async def test_outside_of_its_block_a_manager_says_what_is_missing(
    manager: TokenManager, idp: MockIdP, store: MemoryStore, when: str
) -> None:
    if when == "after":
        async with manager:
            pass
    await sign_in(manager, idp)
    for call in (manager.get_token("crm"), manager.end_session("crm")):
        with pytest.raises(MisconfiguredError) as raised:
            await call
        assert raised.value.setting == "async with"
        assert "async with TokenManager" in str(raised.value)
    assert (await stored(store)).ended is None
    assert idp.requests() == []


async def test_a_manager_is_entered_in_one_task_and_left_in_another(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """As fixtures of pytest-asyncio and cells of a notebook do."""
    before = tasks()

    async def enter() -> None:
        await manager.__aenter__()
        await sign_in(manager, idp)

    async def use() -> None:
        await manager.get_token("crm")

    async def exit_() -> None:
        await manager.__aexit__(None, None, None)

    for step in (enter, use, exit_):
        async with anyio.create_task_group() as group:
            group.start_soon(step)
    assert tasks() == before
    assert len(idp.requests("token")) == 1


def test_a_generator_fixture_may_be_torn_down_in_another_task(
    make_manager: MakeManager, idp: MockIdP
) -> None:
    async def fixture() -> AsyncGenerator[TokenManager]:
        async with make_manager() as tokens:
            yield tokens

    with asyncio.Runner() as runner:
        generator = fixture()
        tokens = runner.run(anext(generator))
        grant = runner.run(sign_in(tokens, idp))
        token = runner.run(tokens.get_token("crm"))
        with pytest.raises(StopAsyncIteration):
            runner.run(anext(generator))

    assert token.reveal() == grant.access_token


# What is under way


async def test_closing_an_idle_manager_waits_for_nothing(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await sign_in(tokens, idp)
        await tokens.get_token("crm")
    assert clock.monotonic() == FakeClock().monotonic()
    assert clock.sleepers == 0


async def test_closing_lets_the_sent_land_and_drops_the_queued(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    """A hundred sessions, of which the limiter lets 75 send."""
    names = [f"session-{number}" for number in range(100)]
    hang = idp.hold_next(count=None)
    calls: list[Background] = []
    async with a_group(idp, clock) as group, manager as tokens:
        for name in names:
            await sign_in(tokens, idp, name)
        for name in names:
            call = Background(lambda name=name: tokens.get_token(name))  # type: ignore[misc]  # a closure
            calls.append(call)
            group.start_soon(call.run)
        await clock.settle()
        assert len(idp.requests("token")) == 75
        closing = leave(tokens)
        group.start_soon(closing.run)
        await clock.settle()

        assert not closing.done
        dropped = [call for call in calls if call.done]
        assert len(dropped) == 25
        hang.release()
        await clock.settle()
        assert closing.done

    assert all(isinstance(call.error, RetryableError) for call in dropped)
    records = [await stored(store, name) for name in names]
    assert sum(record.generation for record in records) == 75
    assert all(record.lease is None for record in records)
    assert len(idp.requests("token")) == 75
    assert manager._server.limiter.in_use == 0


async def test_a_save_that_fails_is_repeated_until_closing_ends(rig: Rig) -> None:
    async with a_group(rig.idp, rig.clock, rig.faulty) as group:
        tokens = await rig.manager.__aenter__()
        grant = await sign_in(tokens, rig.idp)
        rig.faulty.break_next("save", "refused", count=30)
        await tokens.get_token("crm")
        closing = leave(tokens)
        group.start_soon(closing.run)

        await rig.clock.advance(29)
        assert not closing.done
        await rig.clock.advance(2)
        assert closing.done

    assert (await stored(rig.store)).refresh_token == grant.refresh_token
    assert "save_lost" not in {event.name for event in rig.events}


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_save_that_never_succeeds_is_reported_by_name(
    rig: Rig, how: str
) -> None:
    """And closing returns. The answer is kept, should the manager be entered again."""
    manager = rig.manager
    before = tasks()
    async with a_group(rig.idp, rig.clock, rig.faulty) as group:
        tokens = await manager.__aenter__()
        grant = await sign_in(tokens, rig.idp)
        other = await sign_in(tokens, rig.idp, "other")
        await tokens.get_token("other")
        hold = rig.idp.hold_next(at="after")
        await _start_and_abandon(tokens)
        await hold.reached()
        gate = None
        if how == "fails":
            rig.faulty.down = "all"
        else:
            gate = rig.faulty.hold_next("save", "before")
        hold.release()
        await rig.clock.settle()
        closing = leave(tokens)
        group.start_soon(closing.run)

        await rig.clock.advance(CLOSE_LIMIT - 0.1)
        assert not closing.done
        await rig.clock.advance(0.2)
        if how == "hangs":
            assert not closing.done
            await rig.clock.advance(LAST_WAIT)
        assert closing.done

        lost = [event.session_id for event in rig.events if event.name == "save_lost"]
        assert lost == ["crm"]
        assert (await stored(rig.store)).generation == 0
        assert (await stored(rig.store, "other")).refresh_token == other.refresh_token
        rig.faulty.down = "no"
        if gate is not None:
            gate.release()
        await rig.clock.settle()
    assert tasks() == before

    async with manager as tokens, anyio.create_task_group() as group:
        again = Background(lambda: tokens.get_token("crm"))
        group.start_soon(again.run)
        await rig.clock.advance(10)
        assert again.error is None
    assert (await stored(rig.store)).refresh_token == grant.refresh_token
    assert len(rig.idp.requests("token")) == 2


async def test_an_answer_from_before_is_tried_until_the_next_closing_ends(
    rig: Rig,
) -> None:
    """It was reported lost once, the manager is entered again, and a caller came."""
    manager = rig.manager
    async with a_group(rig.idp, rig.clock, rig.faulty) as group:
        tokens = await manager.__aenter__()
        grant = await sign_in(tokens, rig.idp)
        hold = rig.idp.hold_next(at="after")
        await _start_and_abandon(tokens)
        await hold.reached()
        rig.faulty.down = "writes"
        hold.release()
        group.start_soon(leave(tokens).run)
        await rig.clock.advance(CLOSE_LIMIT)
        await manager.__aenter__()
        call = Background(lambda: tokens.get_token("crm"))
        group.start_soon(call.run)
        await rig.clock.advance(1)

        closing = leave(tokens)
        group.start_soon(closing.run)
        await rig.clock.advance(5)
        assert not closing.done
        rig.faulty.down = "no"
        await rig.clock.advance(2)
        assert closing.done

    record = await stored(rig.store)
    assert record.refresh_token == grant.refresh_token
    assert [event.name for event in rig.events].count("save_lost") == 1


async def test_closing_waits_for_a_revocation(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with a_group(idp, clock) as group:
        tokens = await manager.__aenter__()
        grant = await sign_in(tokens, idp)
        hang = idp.hold_next("revoke")
        await tokens.end_session("crm")
        closing = leave(tokens)
        group.start_soon(closing.run)
        await hang.reached()
        await clock.advance(1)
        assert not closing.done

        hang.release()
        await clock.settle()
        assert closing.done
    assert not idp.introspect(grant.refresh_token or "")["active"]


async def test_closing_does_not_wait_for_ever_for_a_revocation(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    before = tasks()
    async with a_group(idp, clock) as group:
        tokens = await manager.__aenter__()
        await sign_in(tokens, idp)
        hang = idp.hang_next("revoke", count=None)
        await tokens.end_session("crm")
        closing = leave(tokens)
        group.start_soon(closing.run)
        await hang.reached()
        await clock.advance(CLOSE_LIMIT - 1)
        assert not closing.done
        await clock.advance(1)
        assert closing.done
    assert tasks() == before
    idp.clear_faults()


async def test_what_falls_due_while_closing_is_renewed_after_the_next_entering(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    """Another loop may be awake: a closing one takes nothing off the agenda."""
    async with a_group(idp, clock) as group:
        tokens = await manager.__aenter__()
        await sign_in(tokens, idp, "due")
        await tokens.get_token("due")
        await tokens.get_token("due")  # in use
        await clock.advance(200)
        await sign_in(tokens, idp)
        hang = idp.hold_next()
        await _start_and_abandon(tokens)
        await hang.reached()
        closing = leave(tokens)
        group.start_soon(closing.run)
        await clock.advance(29)
        assert not closing.done
        hang.release()
        await clock.advance(15)
        assert closing.done

        async with manager:
            await clock.advance(30)
            assert (await stored(store, "due")).generation == 2


# Nothing stays behind


async def test_no_task_and_no_warning_is_left(
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not after successes, failures, cancelled callers and revocations either."""
    before = tasks()
    async with make_manager() as tokens:
        async with AsyncExitStack() as stack:
            for number in range(5):
                await sign_in(tokens, idp, f"session-{number}")
            await tokens.get_token("session-0")
            await _start_and_abandon(tokens, "session-1")
            idp.fail_next(status=503, count=None, skip=1)
            group = await stack.enter_async_context(anyio.create_task_group())
            failing = Background(lambda: tokens.get_token("session-2"))
            group.start_soon(failing.run)
            await clock.advance(2)
            assert failing.error is not None
            idp.clear_faults()
        await tokens.end_session("session-0")
        await _start_and_abandon(tokens, "session-3")
    await clock.settle()
    gc.collect()

    assert tasks() == before
    assert clock.sleepers == 0
    assert not [record for record in caplog.records if record.name == "asyncio"]
    assert manager_is_quiet(tokens)


def manager_is_quiet(tokens: TokenManager) -> bool:
    """Tell whether neither loops nor slots are held, and nobody listens."""
    server = tokens._server
    return (
        not tokens._runtimes
        and not tokens._agenda._wakers
        and server.limiter.in_use == 0
        and server.limiter.waiting == 0
    )


async def test_one_fault_in_the_background_ends_nothing_else(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with manager as tokens:
        grant = await sign_in(tokens, idp)
        runtime = tokens._supply.runtime()

        async def broken() -> None:
            raise RuntimeError("a fault of ours")

        runtime.start_soon(broken)
        await clock.settle()

        assert (await tokens.get_token("crm")).reveal() == grant.access_token
        assert any("background_failed" in line for line in caplog.messages)


def test_a_cancellation_in_the_background_ends_nothing_else(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Only asyncio hands one task's cancellation to another."""

    async def scene() -> None:
        async with manager as tokens:
            grant = await sign_in(tokens, idp)

            async def cancelled() -> None:
                task = asyncio.ensure_future(asyncio.sleep(1000))
                task.cancel()
                await task

            tokens._supply.runtime().start_soon(cancelled)
            await clock.settle()

            assert (await tokens.get_token("crm")).reveal() == grant.access_token

    asyncio.run(scene())


class HangingRead:
    """A store whose reads never return."""

    async def read(self, key: str) -> ReadResult:
        await anyio.sleep_forever()
        raise AssertionError

    async def swap(
        self,
        key: str,
        expect: tuple[str, int] | None,
        record: Record,
        *,
        lease_for: float | None = None,
        keep_for: float | None = None,
    ) -> SwapResult:
        raise AssertionError


async def test_a_read_that_hangs_does_not_hold_up_closing(
    make_manager: MakeManager, clock: FakeClock
) -> None:
    async with anyio.create_task_group() as group:
        tokens = await make_manager(store=HangingRead()).__aenter__()
        call = Background(lambda: tokens.get_token("crm"))
        group.start_soon(call.run)
        await clock.settle()
        await tokens.__aexit__(None, None, None)

    assert isinstance(call.error, RetryableError)

"""One flight for all who want the same: value, failure, patience, and its own life."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType

import anyio
import anyio.lowlevel
import pytest

from freshtoken import (
    AccessToken,
    MemoryStore,
    RetryableError,
    SignInRequiredError,
    StoreError,
    TokenManager,
)
from freshtoken._foundation.records import DEFAULT_ENTRY
from freshtoken._lifecycle.flight import Flight
from freshtoken._lifecycle.policy import PATIENCE, Want
from freshtoken.abc import ReadResult, Record, SwapResult
from freshtoken.errors import FreshTokenError, MisconfiguredError
from freshtoken.events import Event
from freshtoken.testing import FakeClock, MockGrant, MockIdP
from freshtoken.testing.shortcuts import DEFAULT_CLIENT_SECRET

MakeManager = Callable[..., TokenManager]

MANY = 10_000
BOUND = 20.0
"""Real seconds that ten thousand callers may take: a busy machine needs two."""


async def sign_in(tokens: TokenManager, idp: MockIdP, name: str = "crm") -> MockGrant:
    """Give the manager a grant, without an access token."""
    grant = idp.new_grant()
    await tokens.add_session(name, refresh_token=grant.refresh_token or "")
    return grant


class Caller:
    """One call of ``get_token``: its token or its error, and a scope to cancel it."""

    def __init__(self, tokens: TokenManager, name: str = "crm", **ask: object) -> None:
        self.scope = anyio.CancelScope()
        self.token: AccessToken | None = None
        self.error: FreshTokenError | None = None
        self.done = False
        self._call: Callable[[], Awaitable[AccessToken]] = lambda: tokens.get_token(
            name,
            **ask,  # type: ignore[arg-type]  # a test's own arguments
        )

    async def run(self) -> None:
        try:
            with self.scope:
                self.token = await self._call()
        except FreshTokenError as error:
            self.error = error
        finally:
            self.done = True

    @property
    def text(self) -> str | None:
        return self.token.reveal() if self.token else None


class BrokenStore:
    """A memory store whose writes fail as long as a test says."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.broken = False
        self.failed = 0

    async def read(self, key: str) -> ReadResult:
        if self.broken:
            raise StoreError("down")
        return await self.inner.read(key)

    async def swap(
        self,
        key: str,
        expect: tuple[str, int] | None,
        record: Record,
        *,
        lease_for: float | None = None,
        keep_for: float | None = None,
    ) -> SwapResult:
        if self.broken:
            self.failed += 1
            raise StoreError("down")
        return await self.inner.swap(
            key, expect, record, lease_for=lease_for, keep_for=keep_for
        )


@asynccontextmanager
async def entered(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    broken: BrokenStore | None = None,
) -> AsyncGenerator[TokenManager]:
    """Enter a manager; where the test fails, mend what closing would wait for."""
    async with manager as tokens:
        try:
            yield tokens
        except BaseException:
            idp.clear_faults()
            if broken is not None:
                broken.broken = False
            with anyio.CancelScope(shield=True):
                await clock.advance(2)
            raise


@contextmanager
def quiet_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail where asyncio or the library itself reports a fault in the log."""
    caplog.set_level(logging.DEBUG)
    yield
    faults = [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING
        and (record.name in {"asyncio", "trio"} or record.exc_info)
    ]
    assert faults == []


# One request, shared


async def test_ten_thousand_callers_at_expiry_cause_one_request(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with entered(manager, idp, clock) as tokens:
        grant = await sign_in(tokens, idp)
        old = await tokens.get_token("crm")
        await clock.advance(301)
        seen: list[AccessToken] = []

        async def call() -> None:
            seen.append(await tokens.get_token("crm"))

        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for _ in range(MANY):
                group.start_soon(call)
        took = time.perf_counter() - began

        assert {token.reveal() for token in seen} == {grant.access_token}
        assert len(seen) == MANY
        assert old.reveal() != grant.access_token
        assert len(idp.requests("token")) == 2
        assert took < BOUND
        assert tokens.stats.waiters == MANY


async def test_two_thousand_callers_share_a_hanging_flight_and_its_end(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Each with an end of patience of its own, none of which costs the others."""
    async with entered(manager, idp, clock) as tokens:
        grant = await sign_in(tokens, idp)
        hang = idp.hold_next()
        count = 2000
        callers = [Caller(tokens) for _ in range(count)]

        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for number, caller in enumerate(callers):
                group.start_soon(caller.run)
                if number % 20 == 19:
                    await clock.advance(0.1)
            await clock.advance(15)
            impatient = [caller for caller in callers if caller.done]
            hang.release()
        took = time.perf_counter() - began

        # After 10 s of arrivals and 15 s more, those of the first 5 s have given up.
        assert impatient == callers[: len(impatient)]
        assert abs(len(impatient) - count // 2) <= 40
        assert all(isinstance(one.error, RetryableError) for one in impatient)
        rest = callers[len(impatient) :]
        assert {caller.text for caller in rest} == {grant.access_token}
        assert len(idp.requests("token")) == 1
        assert took < BOUND


async def test_only_callers_of_one_entry_share_and_entries_take_turns(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """A session has one refresh token: it is in one request at a time."""
    async with entered(manager, idp, clock) as tokens:
        grant = await sign_in(tokens, idp)
        first = idp.hold_next()
        plain = [Caller(tokens) for _ in range(3)]
        other = [Caller(tokens, resource="https://api.test") for _ in range(3)]

        async with anyio.create_task_group() as group:
            for caller in plain:
                group.start_soon(caller.run)
            await clock.settle()
            for caller in other:
                group.start_soon(caller.run)
            await clock.settle()
            assert len(idp.requests("token")) == 1
            first.release()

        assert len({caller.text for caller in plain}) == 1
        assert {caller.text for caller in other} == {grant.access_token}
        assert {one.text for one in plain}.isdisjoint({one.text for one in other})
        assert [one.error for one in idp.requests("token")] == [None, None]


# One failure, shared


def _frames(error: BaseException) -> list[FrameType]:
    """Return the frames of an error's traceback."""
    frames, entry = [], error.__traceback__
    while entry is not None:
        frames.append(entry.tb_frame)
        entry = entry.tb_next
    return frames


async def _fail_together(
    tokens: TokenManager, clock: FakeClock, count: int = 50
) -> list[FreshTokenError]:
    callers = [Caller(tokens) for _ in range(count)]
    async with anyio.create_task_group() as group:
        for caller in callers:
            group.start_soon(caller.run)
        await clock.advance(5)
    return [caller.error for caller in callers if caller.error is not None]


@pytest.mark.parametrize("what", ["terminal", "retry", "reset", "denied"])
async def test_everybody_gets_a_copy_of_the_failure(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, what: str
) -> None:
    """Equal in what it says, bare of where it came from."""
    async with entered(manager, idp, clock) as tokens:
        grant = await sign_in(tokens, idp)
        secrets = [grant.refresh_token or "", DEFAULT_CLIENT_SECRET]
        if what == "terminal":
            idp.fail_next(error="invalid_grant")
        elif what == "retry":
            idp.fail_next(status=503, count=4)
        elif what == "reset":
            idp.drop_next(processed=False, count=4)
        else:
            idp.fail_next(status=403, error="account_locked")

        errors = await _fail_together(tokens, clock)

        assert len(errors) == 50
        assert len({id(error) for error in errors}) == 50
        assert len({(type(error), str(error), error.status) for error in errors}) == 1
        for error in errors:
            assert error.__cause__ is None
            assert error.__context__ is None
            # As deep as a call is: nobody raised it before.
            frames = _frames(error)
            assert len(frames) <= 5
            shown = str([repr(frame.f_locals) for frame in frames]) + repr(error)
            assert not any(secret in shown for secret in secrets)
            assert "httpx" not in shown


async def test_a_failure_repeated_without_network_does_not_grow(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with entered(manager, idp, clock) as tokens:
        await sign_in(tokens, idp)
        idp.fail_next(error="invalid_grant")
        depths = set()

        for _ in range(30):
            with pytest.raises(SignInRequiredError) as raised:
                await tokens.get_token("crm")
            depths.add(len(_frames(raised.value)))
            assert raised.value.__context__ is None

        assert len(depths) <= 2  # from the flight, then from memory
        assert len(idp.requests("token")) == 1


# Patience


async def test_patience_ends_after_twenty_seconds_and_the_flight_goes_on(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    async with entered(manager, idp, clock) as tokens:
        grant = await sign_in(tokens, idp)
        hang = idp.hold_next()
        early, late = Caller(tokens), Caller(tokens)

        async with anyio.create_task_group() as group:
            group.start_soon(early.run)
            await clock.advance(PATIENCE - 0.001)
            assert not early.done
            group.start_soon(late.run)
            await clock.advance(0.001)

            assert isinstance(early.error, RetryableError)
            assert early.error.__context__ is None
            assert not late.done
            assert (await store.read("crm")).record is not None
            hang.release()

        assert late.text == grant.access_token
        assert (await tokens.get_token("crm")).reveal() == grant.access_token
        assert len(idp.requests("token")) == 1


async def test_the_result_is_kept_when_everybody_lost_patience(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with entered(manager, idp, clock) as tokens:
        grant = await sign_in(tokens, idp)
        hang = idp.hold_next(at="after")
        caller = Caller(tokens)

        async with anyio.create_task_group() as group:
            group.start_soon(caller.run)
            await clock.advance(PATIENCE)
        hang.release()
        await clock.settle()

        assert isinstance(caller.error, RetryableError)
        assert (await tokens.get_token("crm")).reveal() == grant.access_token
        assert len(idp.requests("token")) == 1


async def test_a_caller_who_comes_as_another_gives_up_has_patience_too(
    clock: FakeClock,
) -> None:
    """In one turn of the loop, between the alarm and the waking of the first."""
    flight = Flight("crm", Want(DEFAULT_ENTRY))
    outcomes: list[str] = []

    async def wait(name: str, seconds: float) -> None:
        await flight.wait(clock.monotonic() + seconds)
        outcomes.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(flight.watch_patience, clock)
        group.start_soon(wait, "first", 5.0)
        await clock.settle()

        async def follow() -> None:
            await clock.sleep(5.0)
            group.start_soon(wait, "second", 5.0)
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
                group.start_soon(wait, "third", 5.0)

        group.start_soon(follow)
        await clock.advance(5)
        assert outcomes == ["first"]
        await clock.advance(5)
        assert sorted(outcomes) == ["first", "second", "third", "third", "third"]
        group.cancel_scope.cancel()


class Bell:
    """A clock whose sleepers all wake when it rings, and sleep on if that is early."""

    def __init__(self) -> None:
        self.now = 0.0
        self._rung = asyncio.Event()

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        due = self.now + seconds
        while self.now < due:
            await self._rung.wait()

    def ring(self, now: float) -> None:
        self.now = now
        self._rung.set()
        self._rung = asyncio.Event()


def test_a_waiter_that_joins_before_the_first_has_left_has_patience_too() -> None:
    """The first has been woken, but has not run yet: two count as waiting."""

    async def scene() -> bool:
        bell = Bell()
        flight = Flight("crm", Want(DEFAULT_ENTRY))
        watch = asyncio.create_task(flight.watch_patience(bell))
        first = asyncio.create_task(flight.wait(5.0))
        for _ in range(5):
            await asyncio.sleep(0)
        bell.ring(5.0)
        for _ in range(10):
            if flight._waiters:
                await asyncio.sleep(0)
        assert flight._waiters == []
        assert not first.done()
        assert flight.waiting == 1

        async def ring_later() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            bell.ring(10.0)

        later = asyncio.create_task(ring_later())
        async with asyncio.timeout(1):
            arrived = await flight.wait(10.0)
        watch.cancel()
        await asyncio.gather(watch, first, later, return_exceptions=True)
        return arrived

    assert not asyncio.run(scene())


async def test_a_caller_with_less_patience_left_is_not_held_up_by_others(
    clock: FakeClock,
) -> None:
    """Who has waited for an earlier flight has spent some of it."""
    flight = Flight("crm", Want(DEFAULT_ENTRY))
    outcomes: list[str] = []

    async def wait(name: str, seconds: float) -> None:
        await flight.wait(clock.monotonic() + seconds)
        outcomes.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(flight.watch_patience, clock)
        group.start_soon(wait, "patient", 20.0)
        await clock.advance(1)
        group.start_soon(wait, "spent", 3.0)
        await clock.advance(3)

        assert outcomes == ["spent"]
        await clock.advance(16)
        assert outcomes == ["spent", "patient"]
        group.cancel_scope.cancel()


# Answers that cannot be saved yet


async def test_an_answer_that_cannot_be_saved_is_served_but_never_past_its_end(
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    events: list[Event],
) -> None:
    broken = BrokenStore(store)
    async with entered(make_manager(store=broken), idp, clock, broken) as tokens:
        grant = await sign_in(tokens, idp)
        hold = idp.hold_next(at="after")
        caller = Caller(tokens)
        async with anyio.create_task_group() as group:
            group.start_soon(caller.run)
            await hold.reached()
            broken.broken = True
            hold.release()
        assert caller.text == grant.access_token
        expires_at = clock.time() + 300.0

        await clock.advance(299)
        token = await tokens.get_token("crm")
        assert token.reveal() == grant.access_token
        assert broken.failed >= 299  # at least once a second

        await clock.advance(2)
        assert clock.time() > expires_at
        with pytest.raises(StoreError) as raised:
            await tokens.get_token("crm")
        assert raised.value.__context__ is None

        broken.broken = False
        await clock.advance(1)
        token = await tokens.get_token("crm")
        assert token.reveal() == grant.access_token
        assert [one.error for one in idp.requests("token")] == [None, None]
        assert any(event.name == "save_failing" for event in events)


async def test_an_unsaved_token_that_an_api_rejects_is_not_handed_out_again(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    broken = BrokenStore(store)
    async with entered(make_manager(store=broken), idp, clock, broken) as tokens:
        await sign_in(tokens, idp)
        hold = idp.hold_next(at="after")
        caller = Caller(tokens)
        async with anyio.create_task_group() as group:
            group.start_soon(caller.run)
            await hold.reached()
            broken.broken = True
            hold.release()

        with pytest.raises(StoreError):
            await tokens.get_token("crm", rejected=caller.token)

        broken.broken = False
        await clock.advance(1)
        other = await tokens.get_token("crm", rejected=caller.token)
        assert other.reveal() != caller.text


# What an application hands in


async def test_a_secret_function_that_raises_fails_one_flight_only(
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    def secret() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("boom " + DEFAULT_CLIENT_SECRET)
        return DEFAULT_CLIENT_SECRET

    with quiet_log(caplog):
        async with make_manager(client=idp.client(client_secret=secret)) as tokens:
            grant = await sign_in(tokens, idp)
            with pytest.raises(MisconfiguredError) as raised:
                await tokens.get_token("crm")
            assert raised.value.setting == "client_secret"
            assert DEFAULT_CLIENT_SECRET not in str(raised.value)
            assert raised.value.__context__ is None

            await clock.advance(31)
            token = await tokens.get_token("crm")

            assert token.reveal() == grant.access_token


async def test_a_secret_function_that_hangs_is_given_up(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    hanging = [True]

    async def secret() -> str:
        if hanging:
            await anyio.sleep_forever()
        return DEFAULT_CLIENT_SECRET

    async with make_manager(client=idp.client(client_secret=secret)) as tokens:
        grant = await sign_in(tokens, idp)
        caller = Caller(tokens)
        async with anyio.create_task_group() as group:
            group.start_soon(caller.run)
            await clock.advance(10)
        assert isinstance(caller.error, MisconfiguredError)
        record = (await store.read("crm")).record
        assert record is not None
        assert record.lease is None

        hanging.clear()
        await clock.advance(31)
        assert (await tokens.get_token("crm")).reveal() == grant.access_token


async def test_a_secret_function_that_asks_for_the_same_token_fails_alone(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    """It waits for itself; that ends after ten seconds, and nothing stays locked."""
    recursive = [True]
    manager: list[TokenManager] = []

    async def secret() -> str:
        if recursive:
            await manager[0].get_token("crm")
        return DEFAULT_CLIENT_SECRET

    manager.append(make_manager(client=idp.client(client_secret=secret)))
    async with manager[0] as tokens:
        grant = await sign_in(tokens, idp)
        caller = Caller(tokens)
        async with anyio.create_task_group() as group:
            group.start_soon(caller.run)
            await clock.advance(10)
        assert isinstance(caller.error, MisconfiguredError)

        recursive.clear()
        await clock.advance(31)
        assert (await tokens.get_token("crm")).reveal() == grant.access_token


def test_a_secret_function_that_was_cancelled_inside_fails_alone(
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It awaits a task of the application that somebody has cancelled.

    Only asyncio hands one task's cancellation to another.
    """
    cancelled = [True]

    async def secret() -> str:
        if cancelled:
            task = asyncio.ensure_future(asyncio.sleep(1000))
            task.cancel()
            await task
        return DEFAULT_CLIENT_SECRET

    async def scene() -> None:
        async with make_manager(client=idp.client(client_secret=secret)) as tokens:
            grant = await sign_in(tokens, idp)
            other = await sign_in(tokens, idp, "other")
            with pytest.raises(RetryableError) as raised:
                await tokens.get_token("crm")
            assert "closed" not in str(raised.value)
            record = (await store.read("crm")).record
            assert record is not None
            assert record.lease is None

            cancelled.clear()
            await clock.advance(31)
            assert (await tokens.get_token("other")).reveal() == other.access_token
            assert (await tokens.get_token("crm")).reveal() == grant.access_token

    with quiet_log(caplog):
        asyncio.run(scene())


@pytest.mark.parametrize("at", ["token_refreshed", "refresh_failed", "session_ended"])
async def test_an_event_handler_that_raises_changes_nothing(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock, at: str
) -> None:
    seen = []

    def handler(event: Event) -> None:
        seen.append(event.name)
        raise RuntimeError("boom")

    async with make_manager(on_event=handler) as tokens:
        grant = await sign_in(tokens, idp)
        if at == "refresh_failed":
            idp.fail_next(status=503, count=4)
            caller = Caller(tokens)
            async with anyio.create_task_group() as group:
                group.start_soon(caller.run)
                await clock.advance(3)
            assert isinstance(caller.error, RetryableError)
        if at == "session_ended":
            idp.fail_next(error="invalid_grant")
            with pytest.raises(SignInRequiredError):
                await tokens.get_token("crm")
        else:
            await clock.advance(5)
            token = await tokens.get_token("crm")
            assert token.reveal() == grant.access_token
        assert at in seen
        assert tokens.stats.handler_errors == len(seen)


async def test_an_event_handler_may_begin_a_call_of_its_own(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    """From within the flight, for the session that is being refreshed."""
    async with anyio.create_task_group() as group:
        calls: list[Caller] = []
        made: list[TokenManager] = []

        def handler(event: Event) -> None:
            caller = Caller(made[0])
            calls.append(caller)
            group.start_soon(caller.run)

        made.append(make_manager(on_event=handler))
        async with made[0] as tokens:
            grant = await sign_in(tokens, idp)
            token = await tokens.get_token("crm")
            await clock.settle()

            assert token.reveal() == grant.access_token
            assert [caller.text for caller in calls] == [grant.access_token]
            assert len(idp.requests("token")) == 1

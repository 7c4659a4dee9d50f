"""A sign-in whose caller goes away: nothing is lost, and nothing is left open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

from freshtoken import MemoryStore, RetryableError, Session, TokenManager
from freshtoken.abc import ReadResult, Record, SwapResult
from freshtoken.events import Event, SaveLost, SessionEnded, SignedIn
from freshtoken.testing import FakeClock, MockIdP
from tests.lifecycle.signing import begun_at

MakeManager = Callable[..., TokenManager]


async def test_session_that_nobody_waits_for_is_ended_and_revoked(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        held = idp.hold_next("token", at="after")

        async def complete() -> None:
            await tokens.complete_sign_in(callback, binding=sign_in.binding)

        async with anyio.create_task_group() as group:
            group.start_soon(complete)
            await held.reached()
            group.cancel_scope.cancel()
        held.release()
        await clock.settle()

    assert [type(event) for event in events] == [SignedIn, SessionEnded]
    assert [grant.ended_by for grant in idp.ledger.grants.values()] == ["revocation"]


async def test_caller_that_is_cancelled_before_the_code_leaves_does_no_harm(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await tokens.complete_sign_in(callback, binding=sign_in.binding)
        await clock.settle()

    assert all(not grant.active for grant in idp.ledger.grants.values()) or not (
        idp.requests("token")
    )


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_native_cancellation_right_at_the_end_ends_the_session(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Cancelled when the session is saved, before the caller has it."""

    class Cancelling(MemoryStore):
        task: asyncio.Task[Session] | None = None

        async def swap(
            self,
            key: str,
            expect: tuple[str, int] | None,
            record: Record,
            **options: float | None,
        ) -> SwapResult:
            result = await super().swap(key, expect, record, **options)
            if self.task is not None and record.tokens:
                self.task.cancel()
            return result

    store = Cancelling(clock=clock)
    async with make_manager(store=store) as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        task = store.task = asyncio.create_task(
            tokens.complete_sign_in(callback, binding=sign_in.binding)
        )
        with pytest.raises(asyncio.CancelledError):
            await task
        await clock.settle()

    assert [grant.active for grant in idp.ledger.grants.values()] == [False]


async def test_closing_waits_for_a_code_that_was_sent(
    manager: TokenManager, idp: MockIdP, events: list[Event]
) -> None:
    outcomes: list[object] = []

    async def complete() -> None:
        outcomes.append(
            await manager.complete_sign_in(callback, binding=sign_in.binding)
        )

    async with anyio.create_task_group() as group, manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        held = idp.hold_next("token", at="after")
        group.start_soon(complete)
        await held.reached()
        group.start_soon(released_soon, held.release)

    assert len(outcomes) == 1
    assert [type(event) for event in events] == [SignedIn]


async def released_soon(release: Callable[[], None]) -> None:
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    release()


async def test_closed_manager_says_so(manager: TokenManager, idp: MockIdP) -> None:
    async with manager as tokens:
        await begun_at(idp, tokens)
        runtime = tokens._supply.runtime()

    with pytest.raises(RetryableError):
        await runtime.apart(lambda: manager._signing_in(runtime).begin(scope="openid"))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_sign_out_that_is_cancelled_is_still_revoked(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        session = await idp.sign_in(tokens)
        task = asyncio.ensure_future(tokens.end_session(session.id))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await clock.settle()

    assert idp.grant(session.id).ended_by == "revocation"


async def test_unclaimed_session_is_ended_when_the_store_works_again(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    class Failing(MemoryStore):
        fails = 0

        async def read(self, key: str) -> ReadResult:
            if self.fails:
                self.fails -= 1
                raise OSError
            return await super().read(key)

    store = Failing(clock=clock)
    async with make_manager(store=store) as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        held = idp.hold_next("token", at="after")

        async def complete() -> None:
            await tokens.complete_sign_in(callback, binding=sign_in.binding)

        async with anyio.create_task_group() as group:
            group.start_soon(complete)
            await held.reached()
            group.cancel_scope.cancel()
        store.fails = 3
        held.release()
        await clock.advance(5.0)

    assert [grant.ended_by for grant in idp.ledger.grants.values()] == ["revocation"]


async def test_closing_tells_a_caller_whose_session_cannot_be_stored(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    """A write of the store that never returns holds nobody up for ever."""

    class Hanging(MemoryStore):
        released = anyio.Event()

        async def swap(
            self,
            key: str,
            expect: tuple[str, int] | None,
            record: Record,
            **options: float | None,
        ) -> SwapResult:
            if record.tokens:
                await self.released.wait()
            return await super().swap(key, expect, record, **options)

    errors: list[Exception] = []
    manager = make_manager(store=Hanging(clock=clock))
    await manager.__aenter__()
    sign_in, callback = await begun_at(idp, manager)

    async def complete() -> None:
        try:
            await manager.complete_sign_in(callback, binding=sign_in.binding)
        except RetryableError as error:
            errors.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(complete)
        await clock.settle()
        group.start_soon(manager.__aexit__, None, None, None)
        await clock.advance(60.0)
        told = (len(errors), [type(event) for event in events])
        Hanging.released.set()

    assert told == (1, [SaveLost])

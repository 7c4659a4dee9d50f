"""Stores that misbehave: cancellations that they let out, answers that never come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import pytest

from freshtoken import AccessToken, MemoryStore, StoreError, TokenManager
from freshtoken._foundation.records import Record
from freshtoken.abc import ReadResult, SwapResult
from freshtoken.events import Event, StoreUnavailable
from freshtoken.testing import FakeClock, MockIdP
from tests.lifecycle.conftest import MakeManager

TICK = 0.001

Fault = Callable[[], Awaitable[None]]


class TroubledStore:
    """A store that does something first, the next time that it is asked.

    Attributes:
        before_read: Awaited once, before the next read.
        before_save: Awaited once, before the next write of a new generation.
        reads_under_way: Reads that have not come that far.
    """

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self.before_read: list[Fault] = []
        self.before_save: list[Fault] = []
        self.reads_under_way = 0

    async def read(self, key: str) -> ReadResult:
        self.reads_under_way += 1
        try:
            if self.before_read:
                await self.before_read.pop(0)()
        finally:
            self.reads_under_way -= 1
        return await self._inner.read(key)

    async def swap(
        self,
        key: str,
        expect: tuple[str, int] | None,
        record: Record,
        *,
        lease_for: float | None = None,
        keep_for: float | None = None,
    ) -> SwapResult:
        if self.before_save and record.generation and record.lease is None:
            await self.before_save.pop(0)()
        return await self._inner.swap(
            key, expect, record, lease_for=lease_for, keep_for=keep_for
        )


@pytest.fixture
def troubled(store: MemoryStore) -> TroubledStore:
    return TroubledStore(store)


# Cancellations that a store lets out


async def await_what_is_cancelled() -> None:
    """Wait for something that somebody else cancels, as a connection pool may."""
    lost = asyncio.get_running_loop().create_future()
    lost.cancel()
    await lost


def test_cancellation_that_the_store_lets_out_of_a_save_loses_no_rotation(
    make_manager: MakeManager,
    idp: MockIdP,
    troubled: TroubledStore,
    store: MemoryStore,
    clock: FakeClock,
) -> None:
    async def scene() -> None:
        async with make_manager(store=troubled) as tokens:
            await idp.new_session(tokens, "crm")
            troubled.before_save.append(await_what_is_cancelled)

            token = await tokens.get_token("crm")

            await clock.advance(1.0)
            record = (await store.read("crm")).record
            assert record is not None
            assert record.generation == 1
            assert record.lease is None
            assert record.tokens[0].access_token == token.reveal()
            assert idp.introspect(record.refresh_token or "")["active"]

    asyncio.run(scene())
    assert len(idp.requests("token")) == 1


def test_cancellation_that_the_store_lets_out_of_a_read_is_a_store_error(
    make_manager: MakeManager,
    idp: MockIdP,
    troubled: TroubledStore,
    clock: FakeClock,
    events: list[Event],
) -> None:
    async def scene() -> None:
        async with make_manager(store=troubled) as tokens:
            await idp.new_session(tokens, "crm")
            token = await tokens.get_token("crm")
            troubled.before_read += [await_what_is_cancelled] * 2

            with pytest.raises(StoreError):
                await tokens.get_session("crm")
            await clock.advance(5.0)
            assert await tokens.get_token("crm") == token

            assert troubled.before_read == []

    asyncio.run(scene())
    failed = [event for event in events if event.name == "store_unavailable"]
    assert [event.cause for event in failed] == ["CancelledError"] * 2  # type: ignore[attr-defined]  # by its name


def test_ones_own_cancellation_inside_the_store_is_none_of_the_stores(
    make_manager: MakeManager,
    idp: MockIdP,
    troubled: TroubledStore,
    clock: FakeClock,
    events: list[Event],
) -> None:
    async def scene() -> None:
        async with make_manager(store=troubled) as tokens:
            await idp.new_session(tokens, "crm")
            troubled.before_read.append(anyio.sleep_forever)
            task = asyncio.create_task(tokens.get_session("crm"))
            await clock.settle()

            task.cancel()

            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scene())
    assert "store_unavailable" not in [event.name for event in events]


# Answers that never come


class Caller:
    """Somebody who asks for a token, and what came of it."""

    def __init__(self) -> None:
        self.outcome: AccessToken | StoreError | None = None

    async def ask(self, tokens: TokenManager) -> None:
        try:
            self.outcome = await tokens.get_token("crm")
        except StoreError as error:
            self.outcome = error


async def test_look_at_a_store_that_hangs_keeps_nobody_from_a_live_token(
    make_manager: MakeManager,
    idp: MockIdP,
    troubled: TroubledStore,
    clock: FakeClock,
) -> None:
    """The first waits a second for what others may have stored, the next not at all."""
    async with (
        make_manager(store=troubled) as tokens,
        anyio.create_task_group() as all_,
    ):
        await idp.new_session(tokens, "crm")
        token = await tokens.get_token("crm")
        await clock.advance(5.0)
        troubled.before_read.append(anyio.sleep_forever)
        first, second = Caller(), Caller()

        all_.start_soon(first.ask, tokens)
        await clock.advance(1.0 - TICK)
        assert first.outcome is None
        await clock.advance(TICK)
        all_.start_soon(second.ask, tokens)
        await clock.settle()

        assert first.outcome == token
        assert second.outcome == token
        assert troubled.reads_under_way == 1


async def test_read_that_never_returns_is_given_up_after_5_s(
    make_manager: MakeManager,
    idp: MockIdP,
    troubled: TroubledStore,
    clock: FakeClock,
    events: list[Event],
) -> None:
    async with (
        make_manager(store=troubled) as tokens,
        anyio.create_task_group() as all_,
    ):
        await idp.new_session(tokens, "crm")
        await clock.advance(5.0)
        tokens._cache.forget("crm")
        troubled.before_read.append(anyio.sleep_forever)
        caller = Caller()

        all_.start_soon(caller.ask, tokens)
        await clock.advance(5.0 - TICK)
        assert caller.outcome is None
        await clock.advance(TICK)

        assert isinstance(caller.outcome, StoreError)
        assert events[-1] == StoreUnavailable(
            session_id="crm", issuer="https://idp.test", cause="TimeoutError"
        )
        assert troubled.reads_under_way == 0


async def test_live_token_is_served_on_while_the_store_hangs_for_long(
    make_manager: MakeManager,
    idp: MockIdP,
    troubled: TroubledStore,
    clock: FakeClock,
) -> None:
    async with make_manager(store=troubled) as tokens:
        await idp.new_session(tokens, "crm")
        token = await tokens.get_token("crm")
        troubled.before_read += [anyio.sleep_forever] * 1_000
        for _ in range(30):
            async with anyio.create_task_group() as all_:
                caller = Caller()
                all_.start_soon(caller.ask, tokens)
                await clock.advance(1.0)
                assert caller.outcome == token
        troubled.before_read.clear()
        await clock.advance(5.0)

        assert await tokens.get_token("crm") == token
    assert len(idp.requests("token")) == 1

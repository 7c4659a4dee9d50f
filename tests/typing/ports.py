"""What applications replace with something of their own: checked, never run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import assert_type

import anyio

from freshtoken import MemoryStore, OAuthClient, StoreError, TokenManager
from freshtoken.abc import Clock, ReadResult, Record, SessionStore, SwapResult
from freshtoken.events import (
    Event,
    RefreshFailed,
    SessionEnded,
    TokenRefreshed,
    TokenRequestCount,
)


class TheirStore:
    """Fits by its shape: nothing to derive from."""

    async def read(self, key: str) -> ReadResult:
        record: Record | None = None
        return ReadResult(record, time.time())

    async def swap(
        self,
        key: str,
        expect: tuple[str, int] | None,
        record: Record,
        *,
        lease_for: float | None = None,
        keep_for: float | None = None,
    ) -> SwapResult:
        if expect != record.pair:
            message = "the table is read-only"
            raise StoreError(message)
        return SwapResult(applied=True, record=record, now=time.time())


class TheirClock:
    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class ForgetsTheLease:
    """A store of another shape."""

    async def read(self, key: str) -> ReadResult:
        return ReadResult(None, 0.0)

    async def swap(self, key: str, record: Record) -> SwapResult:
        return SwapResult(applied=True, record=record, now=0.0)


def on_event(event: Event) -> None:
    assert_type(event.session_id, str | None)
    assert_type(event.issuer, str)
    match event:
        case TokenRefreshed(rotated=rotated):
            assert_type(rotated, bool)
        case SessionEnded(reason=reason):
            assert_type(reason, str)
        case RefreshFailed() as failed:
            assert_type(failed.retry_in, float)
            assert_type(failed.failure.error, str | None)
        case _:
            pass


def counters(tokens: TokenManager) -> None:
    stats = tokens.stats
    assert_type(stats.token_requests, tuple[TokenRequestCount, ...])
    assert_type(stats.failure_rate, float)
    assert_type(stats.sessions, dict[str, int])


def manager(client: OAuthClient) -> TokenManager:
    clock: Clock = TheirClock()
    store: SessionStore = TheirStore()
    handler: Callable[[Event], None] = on_event
    MemoryStore(clock=clock, idle_timeout=3600, max_sessions=1000)
    return TokenManager(client, store=store, clock=clock, on_event=handler)


def mistakes(client: OAuthClient) -> None:
    """Each has to be refused: an ignore that is not needed is an error."""
    TokenManager(client, store=ForgetsTheLease())  # type: ignore[arg-type]  # another swap
    TokenManager(client, clock=time)  # type: ignore[arg-type]  # sleeps for everybody
    TokenManager(client, on_event=print, keep_session_on=None)  # type: ignore[arg-type]  # no codes

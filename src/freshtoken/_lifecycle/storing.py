"""The one way to the session store: shielded, translated, its clock noted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import anyio

from freshtoken._foundation.records import Record
from freshtoken._foundation.waiting import finish_within, in_trio
from freshtoken._lifecycle import policy
from freshtoken._lifecycle.cache import SessionCache
from freshtoken._lifecycle.events import EventSink, StoreUnavailable
from freshtoken.abc import Clock, ReadResult, SessionStore, SwapResult
from freshtoken.errors import StoreError

T = TypeVar("T")


class GuardedStore:
    """A session store whose failures are `StoreError` and events, whatever they were.

    Writes are shielded from cancellation: none is left half known. For the same
    reason they have no time limit here, as reads have: what was given up could still
    be applied. Let the store's driver have one that ends the write for certain. Until
    then a refresh waits for its write, callers only as long as their patience lasts.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        cache: SessionCache,
        clock: Clock,
        sink: EventSink,
    ) -> None:
        self._store = store
        self._cache = cache
        self._clock = clock
        self._sink = sink

    async def read(self, session_id: str) -> ReadResult:
        """Read a record; see `freshtoken.abc.SessionStore`."""
        try:
            result = await finish_within(
                self._clock,
                policy.READ_LIMIT,
                lambda: _told_apart(self._store.read(session_id)),
            )
        except Exception as failed:  # noqa: BLE001 -- a store of the application's
            cause = _cause(failed)
        else:
            self._cache.note_store_time(result.now)
            return result
        raise self._error(session_id, cause)

    async def swap(
        self,
        session_id: str,
        expect: tuple[str, int] | None,
        record: Record,
        *,
        lease_for: float | None = None,
    ) -> SwapResult:
        """Swap a record; see `freshtoken.abc.SessionStore`."""
        try:
            with anyio.CancelScope(shield=True):
                result = await _told_apart(
                    self._store.swap(
                        session_id,
                        expect,
                        record,
                        lease_for=lease_for,
                        keep_for=policy.keep_for(record, self._clock.time()),
                    )
                )
        except Exception as failed:  # noqa: BLE001 -- a store of the application's
            cause = _cause(failed)
        else:
            self._cache.note_store_time(result.now)
            return result
        raise self._error(session_id, cause)

    def _error(self, session_id: str, cause: str) -> StoreError:
        self._sink.emit(StoreUnavailable(session_id=session_id, cause=cause))
        return StoreError(
            f"the session store failed ({cause}); nobody is signed out by this, look "
            "at the store",
            session_id=session_id,
        )


class _LetOutError(Exception):
    """The store let out the cancellation of something that it waited for."""


async def _told_apart(call: Awaitable[T]) -> T:
    """Await *call*; make a cancellation that is not this task's an ordinary failure.

    On asyncio whoever awaits a cancelled task or future is told so in the words of
    its own cancellation. A save must not end of that: the answer would be lost.
    """
    try:
        return await call
    except asyncio.CancelledError:
        task = None if in_trio() else asyncio.current_task()
        if task is None or task.cancelling():
            raise
    raise _LetOutError


def _cause(error: Exception) -> str:
    """Return a class name: a store's text may hold what it was asked to write."""
    if isinstance(error, _LetOutError):
        return asyncio.CancelledError.__name__
    inner = error.__cause__ if isinstance(error, StoreError) else None
    return type(inner or error).__name__

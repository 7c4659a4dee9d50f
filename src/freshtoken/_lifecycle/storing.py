"""The one way to the session store: shielded, translated, its clock noted."""

from __future__ import annotations

import anyio

from freshtoken._foundation.records import Record
from freshtoken._lifecycle import policy
from freshtoken._lifecycle.cache import SessionCache
from freshtoken._lifecycle.events import EventSink, StoreUnavailable
from freshtoken.abc import Clock, ReadResult, SessionStore, SwapResult
from freshtoken.errors import StoreError


class GuardedStore:
    """A session store whose failures are `StoreError` and events, whatever they were.

    Writes are shielded from cancellation: none is left half known.
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
            result = await self._store.read(session_id)
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
                result = await self._store.swap(
                    session_id,
                    expect,
                    record,
                    lease_for=lease_for,
                    keep_for=policy.keep_for(record, self._clock.time()),
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


def _cause(error: Exception) -> str:
    """Return a class name: a store's text may hold what it was asked to write."""
    inner = error.__cause__ if isinstance(error, StoreError) else None
    return type(inner or error).__name__

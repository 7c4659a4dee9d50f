"""Sessions in the memory of one process."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from freshtoken._foundation.clock import SystemClock
from freshtoken.abc import ReadResult, SwapResult
from freshtoken.errors import MisconfiguredError

if TYPE_CHECKING:
    from freshtoken._foundation.records import Record
    from freshtoken.abc import Clock

DAY = 86_400.0
IDLE_TIMEOUT = 30 * DAY
MAX_SESSIONS = 100_000
MAX_SIGN_INS = 10_000
"""Sign-ins under way that are kept; they are counted apart from the sessions."""


class _Slot(NamedTuple):
    record: Record
    forget_at: float


class MemoryStore:
    """Sessions of one process; gone when it ends.

    Safe to share between managers, threads and event loops of the process.

    Args:
        clock: Time source; give it the same one as the manager's.
        idle_timeout: Seconds without a write after which a session is forgotten
            whose refresh token has no known end.
        max_sessions: Above this, the session not written for longest is forgotten.
            Sign-ins under way do not count: of these the newest 10,000 are kept.

    Raises:
        MisconfiguredError: A bound under which nothing would be kept.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        idle_timeout: float = IDLE_TIMEOUT,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        """Start empty."""
        if not idle_timeout > 0:
            raise MisconfiguredError(
                "idle_timeout has to be more than 0 seconds", setting="idle_timeout"
            )
        if max_sessions < 1:
            raise MisconfiguredError(
                "max_sessions has to be at least 1", setting="max_sessions"
            )
        self._now = (clock or SystemClock()).monotonic
        self._idle_timeout = idle_timeout
        self._max_sessions = max_sessions
        self._slots: OrderedDict[str, _Slot] = OrderedDict()
        self._sign_ins: OrderedDict[str, _Slot] = OrderedDict()
        self._lock = threading.Lock()

    async def read(self, key: str) -> ReadResult:
        """Return the record under *key*; see `freshtoken.abc.SessionStore`."""
        with self._lock:
            now = self._now()
            return ReadResult(self._current(key, now), now)

    async def swap(
        self,
        key: str,
        expect: tuple[str, int] | None,
        record: Record,
        *,
        lease_for: float | None = None,
        keep_for: float | None = None,
    ) -> SwapResult:
        """Write if unchanged; see `freshtoken.abc.SessionStore`."""
        with self._lock:
            now = self._now()
            stored = self._current(key, now)
            if (stored.pair if stored else None) != expect:
                return SwapResult(applied=False, record=stored, now=now)
            if lease_for is not None and record.lease is not None:
                lease = dataclasses.replace(
                    record.lease,
                    since=record.lease.since or now,
                    expires_at=now + lease_for,
                )
                record = dataclasses.replace(record, lease=lease)
            kept = self._idle_timeout if keep_for is None else keep_for
            slots, most = self._slots, self._max_sessions
            if record.grant_type == "sign_in":
                slots, most = self._sign_ins, MAX_SIGN_INS
                # All have the same time, so that the oldest end first.
                while slots and now >= next(iter(slots.values())).forget_at:
                    slots.popitem(last=False)
            slots[key] = _Slot(record, now + kept)
            slots.move_to_end(key)
            while len(slots) > most:
                slots.popitem(last=False)
            return SwapResult(applied=True, record=record, now=now)

    def _current(self, key: str, now: float) -> Record | None:
        """Return the record unless its time is over; called under the lock."""
        for slots in (self._slots, self._sign_ins):
            slot = slots.get(key)
            if slot is not None and now < slot.forget_at:
                return slot.record
            slots.pop(key, None)
        return None

    def __len__(self) -> int:
        """Return how many sessions are kept, ended ones included."""
        return len(self._slots)

    def __repr__(self) -> str:
        """Show the size only."""
        return f"MemoryStore({len(self._slots)} sessions)"

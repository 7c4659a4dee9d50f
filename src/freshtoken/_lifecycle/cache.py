"""The process's view of its sessions: adopted records and the tokens made from them."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from freshtoken._foundation.records import DEFAULT_ENTRY, Hold, with_hold
from freshtoken._lifecycle import policy
from freshtoken._lifecycle.local import (
    NEVER,
    Instant,
    LiveToken,
    LocalSession,
    instant,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from freshtoken._foundation.records import EntryKey, Failure, Record, StoredToken
    from freshtoken.abc import Clock


class SessionCache:
    """What this process knows; free of event loops, safe between threads.

    Args:
        owner: Issuer and client id of the sessions that may be known here.
        scheduled: Called with a session id and an entry key when a token came that
            has a soft point.
    """

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        *,
        owner: tuple[str, str],
        early_renewal: bool,
        scheduled: Callable[[str, EntryKey, LiveToken], None],
    ) -> None:
        """Know nothing yet."""
        self._clock = clock
        self._rng = rng
        self._owner = owner
        self._early_renewal = early_renewal
        self._scheduled = scheduled
        self._sessions: dict[str, LocalSession] = {}
        self._rounds: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.RLock()
        self._store_offset: float | None = None
        self.hot: dict[str, LiveToken] = {}
        """Default tokens by session id, for the one look-up of the hot path."""

    # The store's clock

    def note_store_time(self, now: float) -> None:
        """Remember how far the store's clock is from this process's."""
        self._store_offset = now - self._clock.monotonic()

    def store_now(self) -> float:
        """Estimate the store's clock."""
        return self._clock.monotonic() + (self._store_offset or 0.0)

    # Sessions

    def get(self, session_id: str) -> LocalSession | None:
        """Return what is known of a session."""
        return self._sessions.get(session_id)

    def known(self, session_id: str) -> Record | None:
        """Return the record as last seen."""
        local = self._sessions.get(session_id)
        return local.record if local else None

    def adopt(
        self, session_id: str, record: Record | None, *, store_now: float | None = None
    ) -> Record | None:
        """Take over what the store holds, unless this process knows better.

        A lower generation of the same grant than this process holds is not taken
        over: the transaction writes its own back. Neither is a lower version: what
        was read before a write, and came after it, would bring back what is over.

        Another client's record is returned, to be judged, but never kept: what is
        kept is served without a further look.
        """
        if store_now is not None:
            self.note_store_time(store_now)
        with self._lock:
            before = self._sessions.get(session_id)
            if record is None or owner_pair(record) != self._owner:
                self._drop(session_id)
                return record
            if before is not None and (
                is_older(record, before.record) or is_late(record, before.record)
            ):
                return record
            self._place(session_id, record, before)
            return record

    def _place(
        self, session_id: str, record: Record, before: LocalSession | None
    ) -> None:
        """Make the local view of *record*; called under the lock."""
        now = instant(self._clock)
        wait = 0.0
        if record.not_before is not None:
            wait = max(record.not_before - self.store_now(), 0.0)
        local = LocalSession(record, now, now.mono + wait)
        for hold in record.holds:
            ahead = max(hold.not_before - self.store_now(), 0.0)
            local.held_mono[hold.key] = now.mono + ahead
        if before is not None and before.record.grant_id == record.grant_id:
            local.unsaved = before.unsaved
            local.refused = before.refused and record.pair == before.record.pair
        shift = policy.clock_shift(record, now.wall)
        for stored in record.tokens:
            live = self._reused(before, stored)
            if live is None:
                live = LiveToken(
                    stored,
                    now=now,
                    shift=shift,
                    rng=self._rng,
                    early_renewal=self._early_renewal,
                )
                self._scheduled(session_id, stored.key, live)
            self._open_window(live, now, local.held_until(stored.key))
            local.live[stored.key] = live
        self._sessions[session_id] = local
        self._rounds[session_id] = None
        # Two looks for each one placed: what nobody needs goes as fast as others come.
        self._sweep(2, now)
        live_default = local.live.get(DEFAULT_ENTRY)
        if live_default is None:
            self.hot.pop(session_id, None)
        else:
            self.hot[session_id] = live_default

    @staticmethod
    def _reused(before: LocalSession | None, stored: StoredToken) -> LiveToken | None:
        """Return the live token made from the same stored one, if there is one."""
        if before is None or before.record.token(stored.key) != stored:
            return None
        return before.live.get(stored.key)

    @staticmethod
    def _open_window(live: LiveToken, now: Instant, not_before_mono: float) -> None:
        """Say until when the hot path may serve *live* without a closer look."""
        ahead = policy.RECHECK
        if live.is_due(now):
            ahead = min(ahead, max(not_before_mono - now.mono, 0.0))
            live.look_again_by(now.wall + ahead, now.mono + ahead)
        else:
            live.look_again_by(
                min(now.wall + ahead, live.due_wall),
                min(now.mono + ahead, live.due_mono),
            )

    def pause(self, session_id: str, key: EntryKey, seconds: float) -> None:
        """Begin no flight for a token: nothing failed, there is nothing to gain."""
        with self._lock:
            local = self._sessions.get(session_id)
            if local is not None:
                self._hold(local, key, instant(self._clock), seconds)

    def hold_back(
        self,
        session_id: str,
        failure: Failure,
        seconds: float,
        *,
        key: EntryKey | None = None,
        refused: bool = False,
    ) -> bool:
        """Begin no flight for a while, and repeat *failure* to callers meanwhile.

        Args:
            key: The one access token that this is about; ``None`` if it is about all.
            refused: Whether nothing was sent, because the server is left alone.

        Returns:
            Whether that is news: not if the last flight was refused, too.
        """
        with self._lock:
            local = self._sessions.get(session_id)
            if local is None:
                return True
            news = not (refused and local.refused)
            local.refused = refused
            now = instant(self._clock)
            until = self._hold(local, key, now, seconds)
            not_before = self.store_now() + until - now.mono
            local.failed_mono = now.mono
            if key is None:
                local.record = dataclasses.replace(
                    local.record, failure=failure, not_before=not_before
                )
            else:
                hold = Hold(key, not_before, failure)
                local.record = dataclasses.replace(
                    local.record, holds=with_hold(local.record, hold)
                )
            return news

    def _hold(
        self, local: LocalSession, key: EntryKey | None, now: Instant, seconds: float
    ) -> float:
        """Return until when it holds; called under the lock."""
        until = now.mono + seconds
        if key is None:
            until = local.not_before_mono = max(local.not_before_mono, until)
        else:
            until = local.held_mono[key] = max(local.held_mono.get(key, until), until)
        for other, live in local.live.items():
            self._open_window(live, now, local.held_until(other))
        return until

    def store_failed(self, session_id: str) -> None:
        """Put off the next look at a store that does not answer."""
        with self._lock:
            local = self._sessions.get(session_id)
            if local is None:
                return
            now = instant(self._clock)
            behind = policy.RECHECK - policy.MEMO
            local.loaded = Instant(now.wall - behind, now.mono - behind)
            for live in local.live.values():
                live.look_again_by(now.wall + policy.MEMO, now.mono + policy.MEMO)

    def set_unsaved(self, session_id: str, record: Record | None) -> None:
        """Remember an answer that is not in the store yet, or that it now is."""
        with self._lock:
            local = self._sessions.get(session_id)
            if local is not None:
                local.unsaved = record

    def serve_unsaved(self, session_id: str, record: Record) -> None:
        """Let callers of this process have an unsaved token once the old one ends."""
        with self._lock:
            local = self._sessions.get(session_id)
            if local is None:
                return
            now = instant(self._clock)
            for key, live in local.live.items():
                if not live.expired(now):
                    continue
                stored = record.token(key)
                if stored is not None:
                    local.live[key] = self._made(stored, now)
            for stored in record.tokens:
                if stored.key not in local.live:
                    local.live[stored.key] = self._made(stored, now)
            live_default = local.live.get(DEFAULT_ENTRY)
            if live_default is not None:
                self.hot[session_id] = live_default

    def _made(self, stored: StoredToken, now: Instant) -> LiveToken:
        live = LiveToken(
            stored,
            now=now,
            shift=0.0,
            rng=self._rng,
            early_renewal=self._early_renewal,
        )
        self._open_window(live, now, now.mono)
        return live

    def end_locally(self, session_id: str, tombstone: Record) -> None:
        """Treat a session as ended although the store could not be told."""
        with self._lock:
            self._place(session_id, tombstone, None)

    def forget(self, session_id: str) -> None:
        """Forget a session: the next call reads the store."""
        with self._lock:
            self._drop(session_id)

    def _drop(self, session_id: str) -> None:
        local = self._sessions.get(session_id)
        if local is not None and local.unsaved is not None:
            return
        self._sessions.pop(session_id, None)
        self._rounds.pop(session_id, None)
        self.hot.pop(session_id, None)

    def sweep(self, most: int) -> int:
        """Forget sessions that nobody needs here; the store still has them.

        Args:
            most: How many are looked at: those first that were not for longest.

        Returns:
            How many were forgotten.
        """
        with self._lock:
            return self._sweep(most, instant(self._clock))

    def _sweep(self, most: int, now: Instant) -> int:
        """Look at some; called under the lock."""
        before = len(self._rounds)
        for _ in range(min(most, before)):
            session_id = next(iter(self._rounds))
            if is_idle(self._sessions[session_id], now, early=self._early_renewal):
                self._drop(session_id)
            else:
                self._rounds.move_to_end(session_id)
        return before - len(self._rounds)

    def __len__(self) -> int:
        """Return how many sessions are known."""
        return len(self._sessions)

    def by_state(self) -> dict[str, int]:
        """Count the known sessions by the state of their default token."""
        now = instant(self._clock)
        counts = {"live": 0, "due": 0, "expired": 0, "ended": 0}
        for local in list(self._sessions.values()):
            live = local.live.get(DEFAULT_ENTRY)
            if local.record.ended is not None:
                counts["ended"] += 1
            elif live is None or live.expired(now):
                counts["expired"] += 1
            elif live.is_due(now):
                counts["due"] += 1
            else:
                counts["live"] += 1
        return counts


def is_idle(local: LocalSession, now: Instant, *, early: bool) -> bool:
    """Tell whether a session may be forgotten: a call would look at the store anyway.

    Args:
        early: Whether tokens are renewed before they end. Then a session that lives,
            or was in use, is the scheduler's affair until its token ends.
    """
    age = now.mono - local.loaded.mono
    if local.unsaved is not None or age < policy.MEMORY:
        return False
    alive = [live for live in local.live.values() if not live.expired(now)]
    used = early and any(live.used for live in local.live.values())
    if local.record.ended is not None or not (alive or used):
        return True
    planned = early and any(live.end_mono < NEVER for live in alive)
    return age >= policy.IDLE_MEMORY and not planned


def owner_pair(record: Record) -> tuple[str, str]:
    """Return whose record this is: issuer and client id."""
    return (record.issuer, record.client_id)


def is_late(record: Record, held: Record) -> bool:
    """Tell whether *record* is from before a write that this process has seen.

    An end, or a higher generation, counts whatever its number: a store that forgot a
    write uses numbers again.
    """
    return (
        record.ended is None
        and record.grant_id == held.grant_id
        and record.generation <= held.generation
        and record.version < held.version
    )


def is_older(record: Record, held: Record) -> bool:
    """Tell whether *record* is a step back: same grant, lower generation, not ended."""
    return (
        record.ended is None
        and held.ended is None
        and record.grant_id == held.grant_id
        and record.generation < held.generation
    )

"""What this process knows of its sessions: tokens at hand, and what to do for a call.

Everything here is free of event loops and safe to share between threads: values are
replaced whole, never changed in place, except for the ``used`` mark.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from freshtoken._foundation.records import DEFAULT_ENTRY, AccessToken
from freshtoken._lifecycle import policy

if TYPE_CHECKING:
    import random

    from freshtoken._foundation.records import EntryKey, Record, StoredToken
    from freshtoken.abc import Clock

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Instant:
    """One moment on both clocks."""

    wall: float
    mono: float


def instant(clock: Clock) -> Instant:
    """Return this moment."""
    return Instant(clock.time(), clock.monotonic())


def elapsed(clock: Clock, since: Instant) -> float:
    """Seconds since a moment, by the clock that counted more.

    The monotonic clock stands still while the machine is suspended, and the wall
    clock may be set back.
    """
    return max(clock.time() - since.wall, clock.monotonic() - since.mono)


class LiveToken:
    """An access token at hand, with its two windows on both clocks.

    Whichever clock says first that a point is reached wins, so that sleep, steps of
    the wall clock and daylight saving do no harm.

    Attributes:
        token: What callers get.
        soft: Up to here (wall, then monotonic) nothing has to be looked at.
        hard: Up to here callers do not wait.
        end: The token's end.
        used: Whether it was asked for since it came: what keeps a session in use.
    """

    __slots__ = (
        "due_mono",
        "due_wall",
        "end_mono",
        "end_wall",
        "hard_mono",
        "hard_wall",
        "soft_mono",
        "soft_wall",
        "token",
        "used",
    )

    def __init__(
        self,
        stored: StoredToken,
        *,
        now: Instant,
        shift: float,
        rng: random.Random,
        early_renewal: bool,
    ) -> None:
        """Place the windows of *stored* on this process's clocks.

        Args:
            shift: Seconds by which the record's writer was ahead of this process.
        """
        self.token = AccessToken(
            stored.access_token,
            expires_at=stored.expires_at,
            token_type=stored.token_type,
            scope=stored.scope,
        )
        due = policy.own_soft_point(stored, rng) if early_renewal else None
        hard = policy.hard_point(stored) if early_renewal else stored.expires_at
        issued_at = stored.issued_at

        def place(at: float | None) -> tuple[float, float]:
            if at is None:
                return NEVER, NEVER
            wall = at - shift
            # Never further ahead than it was when the token was issued: the wall
            # clock may have been set back since.
            ahead = min(wall - now.wall, at - issued_at)
            return wall, now.mono + ahead

        self.end_wall, self.end_mono = place(stored.expires_at)
        self.hard_wall, self.hard_mono = place(hard)
        self.due_wall, self.due_mono = place(hard if due is None else due)
        self.soft_wall, self.soft_mono = self.due_wall, self.due_mono
        self.used = False

    def look_again_by(self, wall: float, mono: float) -> None:
        """Let calls through to a closer look at this moment, or at the soft point."""
        self.soft_wall = min(wall, self.hard_wall)
        self.soft_mono = min(mono, self.hard_mono)

    def is_due(self, now: Instant) -> bool:
        """Tell whether the soft point is reached."""
        return now.wall >= self.due_wall or now.mono >= self.due_mono

    def due_in(self, now: Instant) -> float:
        """Seconds to the soft point, by the clock that says less."""
        return min(self.due_wall - now.wall, self.due_mono - now.mono)

    def past_hard(self, now: Instant) -> bool:
        """Tell whether callers have to wait for a successor."""
        return now.wall >= self.hard_wall or now.mono >= self.hard_mono

    def expired(self, now: Instant) -> bool:
        """Tell whether the token has ended."""
        return now.wall >= self.end_wall or now.mono >= self.end_mono

    def remaining(self, now: Instant) -> float:
        """Seconds to the token's end, by the clock that says less."""
        return min(self.end_wall - now.wall, self.end_mono - now.mono)


class LocalSession:
    """What this process knows of one session.

    Attributes:
        record: As last seen in the store, or as this process is about to save it.
        loaded: When it was seen.
        failed_mono: When a failure that the store does not know was met, if any.
        not_before_mono: The record's ``not_before`` on the monotonic clock.
        held_mono: The same of single access tokens.
        refused: Whether the last flight sent nothing, because the server is left alone.
        unsaved: An answer that is not in the store yet.
        live: Tokens at hand by their key.
    """

    __slots__ = (
        "failed_mono",
        "held_mono",
        "live",
        "loaded",
        "not_before_mono",
        "record",
        "refused",
        "unsaved",
    )

    def __init__(self, record: Record, loaded: Instant, not_before_mono: float) -> None:
        """Know *record* as of *loaded*."""
        self.record = record
        self.loaded = loaded
        self.failed_mono = -NEVER
        self.not_before_mono = not_before_mono
        self.held_mono: dict[EntryKey, float] = {}
        self.refused = False
        self.unsaved: Record | None = None
        self.live: dict[EntryKey, LiveToken] = {}

    def held_until(self, key: EntryKey) -> float:
        """Return when the next flight for *key* may begin, on the monotonic clock."""
        return max(self.not_before_mono, self.held_mono.get(key, -NEVER))


class Call(enum.Enum):
    """What one call of ``get_token`` does."""

    SERVE = enum.auto()
    """Return the live token."""
    SERVE_AND_RENEW = enum.auto()
    """Return the live token and begin a flight."""
    SERVE_AND_LOOK = enum.auto()
    """Look at the store, then decide again; the live token if that fails."""
    FAIL = enum.auto()
    """Repeat the failure that is known, without network."""
    FLY_ALIVE = enum.auto()
    """Wait for a flight; the token at hand is near its end, but lives."""
    FLY = enum.auto()
    """Wait for a flight; no token at hand will do."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a caller wants.

    Attributes:
        key: Which access token.
        min_validity: Seconds that it must still live, or ``None``.
        rejected: Text of the token that an API refused, or ``None``.
    """

    key: EntryKey = DEFAULT_ENTRY
    min_validity: float | None = None
    rejected: str | None = field(default=None, repr=False)


def decide(  # noqa: PLR0911 -- one return for each case
    local: LocalSession | None, ask: Ask, now: Instant
) -> Call:
    """Decide what a call does that the hot path could not answer."""
    if local is None:
        return Call.FLY
    age = max(now.wall - local.loaded.wall, now.mono - local.loaded.mono)
    if local.record.ended is not None:
        return Call.FAIL if age < policy.RECHECK else Call.FLY
    live = local.live.get(ask.key)
    wait = local.held_until(ask.key) - now.mono
    if live is None or not good_for(live, ask, now):
        if live is not None and _newest_there_is(local.record, live, ask, now):
            return Call.SERVE
        # Known failures are repeated, but another worker may have done better.
        recent = min(age, now.mono - local.failed_mono) < policy.MEMO
        failure = policy.known_failure(local.record, ask.key)
        known = wait > 0.0 and recent and failure is not None
        return Call.FAIL if known else Call.FLY
    if age >= policy.RECHECK:
        return Call.SERVE_AND_LOOK
    if not live.is_due(now):
        return Call.SERVE
    if live.past_hard(now):
        # Alive still, but its end is near: wait, unless waiting is known not to help.
        return Call.SERVE if wait > 0.0 else Call.FLY_ALIVE
    return Call.SERVE if wait > 0.0 else Call.SERVE_AND_RENEW


def _newest_there_is(record: Record, live: LiveToken, ask: Ask, now: Instant) -> bool:
    """Tell whether a new token would not live as long as asked for either.

    The server's tokens are too short for this *min_validity*: each call would fetch
    another one.
    """
    stored = record.token(ask.key)
    if ask.min_validity is None or ask.rejected is not None or record.generation < 1:
        return False
    if stored is None or stored.expires_at is None or live.expired(now):
        return False
    lifetime = stored.expires_at - stored.issued_at
    young = live.remaining(now) > lifetime - policy.progress_gap(lifetime)
    return young and ask.min_validity >= lifetime


def good_for(live: LiveToken, ask: Ask, now: Instant) -> bool:
    """Tell whether a token at hand is what the caller asked for."""
    if live.expired(now):
        return False
    if ask.rejected is not None and live.token.reveal() == ask.rejected:
        return False
    return ask.min_validity is None or live.remaining(now) >= ask.min_validity

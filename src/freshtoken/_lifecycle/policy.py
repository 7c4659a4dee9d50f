"""When a token is renewed and how long to wait: decisions from values alone.

The numbers are those of the design; nothing here waits, reads a clock or does I/O.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from freshtoken.errors import Disposition

if TYPE_CHECKING:
    import random

    from freshtoken._foundation.records import EntryKey, Failure, Record, StoredToken

DAY = 86_400.0

SOFT_FROM = 0.70
SOFT_TO = 0.80
WORKER_SPREAD = 0.02
"""Share of the lifetime that each worker adds of its own before it tries."""

ATTEMPT_LIMIT = 30.0
"""``a``: seconds from the guard to the last byte of one request."""
MARGIN = 2.0
"""``μ``: clock drift over a lease, late timers, steps of the store's clock."""
SLACK = 8.0
"""``q``: seconds from the acquire to the guard."""
LEASE = SLACK + ATTEMPT_LIMIT + MARGIN
"""``T``: seconds of one lease."""
SAVE_RETRY = 1.0
"""``r``: longest gap between two tries of an unsaved save."""
SETTLE = 3.0 * SAVE_RETRY
"""``s``: seconds that a lease is held after its former holder vanished."""
PATIENCE = 20.0
"""Longest wait inside ``get_token``."""
RECHECK = 5.0
"""Seconds after which what another worker did is seen without notification."""
MEMO = 1.0
"""Seconds for which a failure is repeated without asking the store again."""
LOOK_PATIENCE = 1.0
"""Seconds for which a call with a live token waits to see what others have stored."""
READ_LIMIT = 5.0
"""Seconds after which a store that does not answer a read counts as failed."""
MEMORY = 60.0
"""Seconds for which a process remembers a session that has no token to serve.

Longer than a flight that is not saving yet: its session is not forgotten under way.
"""
IDLE_MEMORY = 3_600.0
"""Seconds for which it remembers one that nobody asks for."""
SIGN_IN_LIFETIME = 600.0
"""Seconds in which a sign-in that was begun has to be completed."""
TOMBSTONE = DAY
"""Seconds for which the reason of an ended session is kept."""
ACQUIRE_TRIES = 3
"""Tries to take a lease from a store that fails, before the flight fails."""
MAX_LATE = 3
"""Times that the guard may refuse within one flight before it gives up."""
END_TRIES = 3
"""Tries to write the end of a session before it is left to the next worker."""
CLOSE_LIMIT = ATTEMPT_LIMIT + 5.0
"""Seconds that closing waits for requests under way and unsaved answers."""


def draw_refresh_at(
    issued_at: float, expires_at: float | None, rng: random.Random
) -> float | None:
    """Draw the soft point of a new token, 70-80 % into its lifetime."""
    if expires_at is None:
        return None
    lifetime = max(expires_at - issued_at, 0.0)
    return issued_at + lifetime * rng.uniform(SOFT_FROM, SOFT_TO)


def hard_point(token: StoredToken) -> float | None:
    """Return when callers begin to wait: expiry less the smaller of 10 s and 5 %."""
    if token.expires_at is None:
        return None
    lifetime = max(token.expires_at - token.issued_at, 0.0)
    return token.expires_at - min(10.0, 0.05 * lifetime)


def own_soft_point(token: StoredToken, rng: random.Random) -> float | None:
    """Return the soft point of this worker: the stored one and up to 2 % more."""
    if token.refresh_at is None or token.expires_at is None:
        return None
    lifetime = max(token.expires_at - token.issued_at, 0.0)
    return token.refresh_at + rng.random() * WORKER_SPREAD * lifetime


def progress_gap(lifetime: float) -> float:
    """Seconds until the next flight after one that brought no later expiry."""
    return min(30.0, 0.10 * max(lifetime, 0.0))


def flight_gap(failure: Failure, rng: random.Random) -> float:
    """Seconds from a failed flight to the next one."""
    if failure.disposition is Disposition.RETRY:
        if failure.retry_after:  # Zero is no wish to wait: then as without one.
            return min(failure.retry_after, 300.0)
        return rng.random() * min(2.0 ** (min(failure.count, 10) - 1), 60.0)
    if failure.disposition is Disposition.CLIENT_REJECTED:
        return MEMO  # The client's breaker decides, and lets a new credential through.
    return min(30.0 * 2.0 ** (min(failure.count, 10) - 1), 600.0)


def keep_for(record: Record, now: float) -> float | None:
    """Seconds for which a store has to keep *record*; ``None`` without a bound."""
    if record.grant_type == "sign_in":
        return SIGN_IN_LIFETIME
    if record.ended is not None:
        return TOMBSTONE
    if record.refresh_expires_at is None:
        return None
    return max(record.refresh_expires_at - now + DAY, LEASE + SETTLE)


def clock_shift(record: Record, now: float) -> float:
    """Seconds by which the record's writer was ahead of this worker's clock."""
    return max(record.saved_at - now, 0.0)


class Step(enum.Enum):
    """What a look at the record says to do next."""

    SERVE = enum.auto()
    """The stored token will do."""
    ENDED = enum.auto()
    """The session is over, or was never there."""
    NO_SESSION = enum.auto()
    """What stands under this name is a sign-in under way."""
    NO_REFRESH_TOKEN = enum.auto()
    """The token is due and nothing is there to renew it with."""
    FOREIGN = enum.auto()
    """The record belongs to another issuer or client."""
    WAIT = enum.auto()
    """Another worker holds the lease, and no live token can be served."""
    HELD_BACK = enum.auto()
    """An earlier failure or forced refresh says when to try again."""
    ACQUIRE = enum.auto()
    """Take the lease."""


@dataclass(frozen=True, slots=True)
class Want:
    """What a flight is for.

    Attributes:
        key: Which access token.
        seen: The access token that will not do; ``None`` if none was seen.
        insist: Whether *seen* may not be served though it lives.
        forced: An API rejected *seen*.
        look: Only to see what is stored now: whatever lives will do.
    """

    key: EntryKey
    seen: str | None = field(default=None, repr=False)
    insist: bool = False
    forced: bool = False
    look: bool = False


def judge(  # noqa: PLR0911 -- one return for each row of the table
    record: Record | None,
    want: Want,
    *,
    issuer: str,
    client_id: str,
    now: float,
    store_now: float,
) -> Step:
    """Decide step 1 of the refresh transaction.

    Args:
        now: Wall clock, epoch seconds.
        store_now: The store's clock.
    """
    if record is None:
        return Step.ENDED
    if record.grant_type == "sign_in":
        return Step.NO_SESSION
    if (record.issuer, record.client_id) != (issuer, client_id):
        return Step.FOREIGN
    if record.ended is not None:
        return Step.ENDED
    alive = may_serve(record, want, now)
    if fresh(record, want, now) or (want.look and alive):
        return Step.SERVE
    if record.grant_type == "refresh_token" and record.refresh_token is None:
        return Step.SERVE if alive else Step.NO_REFRESH_TOKEN
    if record.lease is not None and store_now < record.lease.expires_at:
        return Step.SERVE if alive else Step.WAIT
    if held_back_for(record, want, now=now, store_now=store_now) > 0.0:
        return Step.SERVE if alive else Step.HELD_BACK
    return Step.ACQUIRE


def fresh(record: Record, want: Want, now: float) -> bool:
    """Tell whether the stored token is another than the one that will not do."""
    token = record.token(want.key)
    return (
        token is not None
        and token.access_token != want.seen
        and not _past_hard_point(record, token, now)
    )


def may_serve(record: Record, want: Want, now: float) -> bool:
    """Tell whether the stored token may be served while it is not renewed."""
    token = record.token(want.key)
    if token is None or (want.insist and token.access_token == want.seen):
        return False
    return not expired(record, token, now)


def expired(record: Record, token: StoredToken, now: float) -> bool:
    """Tell whether a stored token has reached its end."""
    if token.expires_at is None:
        return False
    return now >= token.expires_at - clock_shift(record, now)


def held_back_for(record: Record, want: Want, *, now: float, store_now: float) -> float:
    """Seconds until the next flight may begin; zero or less if now."""
    wait = 0.0
    if record.not_before is not None:
        wait = record.not_before - store_now
    hold = record.hold(want.key)
    if hold is not None:
        wait = max(wait, hold.not_before - store_now)
    token = record.token(want.key)
    if want.forced and token is not None and token.forced_at is not None:
        lifetime = 300.0
        if token.expires_at is not None:
            lifetime = token.expires_at - token.issued_at
        since = now - token.forced_at
        gap = progress_gap(lifetime)
        if 0.0 <= since < gap:
            wait = max(wait, gap - since)
    return wait


def known_failure(record: Record, key: EntryKey) -> Failure | None:
    """Return what the last attempt met, if it holds for *key*."""
    hold = record.hold(key)
    if hold is None or hold.failure is None:
        return record.failure
    if record.failure is None:
        return hold.failure
    return max(hold.failure, record.failure, key=lambda failure: failure.at)


def concerns_one_token(failure: Failure) -> bool:
    """Tell whether asking for another resource or scope may well succeed.

    Spec: RFC 6749 §5.2, RFC 8707 §2.
    """
    return failure.error in {"invalid_scope", "invalid_target"}


def overdue(record: Record, store_now: float) -> bool:
    """Tell whether the record's lease has run out under a vanished holder."""
    return record.lease is not None and store_now >= record.lease.expires_at


def refresh_token_over(record: Record, now: float) -> bool:
    """Tell whether the refresh token is past its stated end."""
    if record.refresh_expires_at is None:
        return False
    return now >= record.refresh_expires_at - clock_shift(record, now)


class Meeting(enum.Enum):
    """What to do with an answer that meets another record than expected."""

    DONE = enum.auto()
    """It is there already: my own write, its acknowledgement was lost."""
    AGAIN = enum.auto()
    """Save again on the version found."""
    AGAIN_FORGOTTEN = enum.auto()
    """The store forgot an earlier save: save again and report it."""
    ADOPT = enum.auto()
    """Somebody was faster: take theirs, drop mine without revoking it."""
    DROP_AND_REVOKE = enum.auto()
    """The session is over: what came is revoked."""
    DROP = enum.auto()
    """A new sign-in took the place: what came is dropped."""


def meet(mine: Record, found: Record | None) -> Meeting:
    """Decide what a save does that found *found* (protocol §6)."""
    if found is None or found.ended is not None:
        return Meeting.DROP_AND_REVOKE
    if found.grant_id != mine.grant_id:
        return Meeting.DROP
    if found.generation > mine.generation:
        return Meeting.ADOPT
    if found.generation == mine.generation:
        same = found.refresh_token == mine.refresh_token and found.tokens == mine.tokens
        return Meeting.DONE if same else Meeting.ADOPT
    if found.generation == mine.generation - 1:
        return Meeting.AGAIN
    return Meeting.AGAIN_FORGOTTEN


def _past_hard_point(record: Record, token: StoredToken, now: float) -> bool:
    """Tell whether callers would have to wait for a successor of *token*."""
    hard = hard_point(token)
    return hard is not None and now >= hard - clock_shift(record, now)

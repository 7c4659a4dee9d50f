"""What happened, for applications, logs and counters."""

from __future__ import annotations

import dataclasses
import logging
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from freshtoken._foundation.records import Failure
    from freshtoken.errors import Disposition

logger = logging.getLogger("freshtoken")
# Without logging set up, warnings would print bare lines on stderr.
logger.addHandler(logging.NullHandler())

SKEW_REPORTED = 30.0
"""Seconds of difference to the server's clock that are reported: the claim leeway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something happened to a session or to the server it belongs to.

    Attributes:
        session_id: Name of the session; ``None`` where none is concerned.
        issuer: Issuer identifier of the authorization server.
    """

    name: ClassVar[str] = "event"
    level: ClassVar[int] = logging.INFO

    session_id: str | None = None
    issuer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRefreshed(Event):
    """A new access token was saved.

    Attributes:
        generation: How many answers of this grant have been saved.
        expires_at: Epoch seconds; ``None`` if the server does not say.
        rotated: Whether a new refresh token came with it.
        scope_lost: Scope values that the new token lacks.
        notes: Oddities of the answer that were tolerated.
    """

    name: ClassVar[str] = "token_refreshed"

    generation: int
    expires_at: float | None
    rotated: bool
    scope_lost: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshFailed(Event):
    """A flight ended without a token; the session is kept.

    Attributes:
        failure: What the last request met, graded and redacted.
        retry_in: Seconds until the next flight may begin.
        requests: Requests that the flight sent.
    """

    name: ClassVar[str] = "refresh_failed"
    level: ClassVar[int] = logging.WARNING

    failure: Failure
    retry_in: float
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded(Event):
    """A session is over.

    Attributes:
        reason: ``"terminal"``, ``"signed_out"``, ``"expired"``, ``"replaced"`` ….
        failure: The server's answer, where there was one.
    """

    name: ClassVar[str] = "session_ended"
    level: ClassVar[int] = logging.WARNING

    reason: str
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn(Event):
    """A user has signed in, and the session is stored.

    Attributes:
        scope: What was granted; ``None`` if the server never said.
        replaced: The session that this sign-in took the place of.
    """

    name: ClassVar[str] = "signed_in"

    scope: tuple[str, ...] | None = None
    replaced: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInFailed(Event):
    """A sign-in could not be begun, or not be completed.

    Attributes:
        error: Class name of what was raised.
        reason: Its ``reason``, where it has one.
        advice: What happened and what to do next, by whom.
    """

    name: ClassVar[str] = "sign_in_failed"
    level: ClassVar[int] = logging.WARNING

    error: str
    advice: str
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IDTokenRefused(Event):
    """An ID token was refused; the tokens beside it are not used.

    Attributes:
        reason: Value of the `freshtoken.RejectionReason`.
        claim: The claim at fault.
        ended: Whether it ended the session: it was about somebody else.
    """

    name: ClassVar[str] = "id_token_refused"
    level: ClassVar[int] = logging.ERROR

    reason: str
    claim: str | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationInDoubt(Event):
    """A request may have rotated the refresh token, and the answer was lost."""

    name: ClassVar[str] = "rotation_in_doubt"
    level: ClassVar[int] = logging.WARNING

    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationLost(Event):
    """The grant died although nobody ended it: a rotated token never arrived.

    Attributes:
        doubt_age: Seconds since the doubt arose, if known.
    """

    name: ClassVar[str] = "rotation_lost"
    level: ClassVar[int] = logging.ERROR

    doubt_age: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSkewSeen(Event):
    """The server's clock differs from this machine's by more than the leeway.

    Attributes:
        skew: Seconds that the server is ahead.
    """

    name: ClassVar[str] = "clock_skew_seen"
    level: ClassVar[int] = logging.WARNING

    skew: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStale(Event):
    """A live token is served past its soft point because no new one could be had.

    Attributes:
        expires_at: Epoch seconds until which this can go on.
    """

    name: ClassVar[str] = "served_stale"
    level: ClassVar[int] = logging.WARNING

    expires_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailing(Event):
    """A rotated refresh token could not be saved yet; it is retried every second.

    Attributes:
        attempts: Failed tries so far.
        cause: Class name of the store's error.
    """

    name: ClassVar[str] = "save_failing"
    level: ClassVar[int] = logging.ERROR

    attempts: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveLost(Event):
    """The manager closed before a rotated refresh token could be saved."""

    name: ClassVar[str] = "save_lost"
    level: ClassVar[int] = logging.CRITICAL


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreForgot(Event):
    """The store held an older generation than it once acknowledged; healed.

    Attributes:
        held: Generation that this worker holds.
        found: Generation that the store had.
    """

    name: ClassVar[str] = "store_forgot"
    level: ClassVar[int] = logging.ERROR

    held: int
    found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUnavailable(Event):
    """The store failed; live tokens are served on."""

    name: ClassVar[str] = "store_unavailable"
    level: ClassVar[int] = logging.WARNING

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationFailed(Event):
    """A token of an ended session could not be revoked at the server."""

    name: ClassVar[str] = "revocation_failed"
    level: ClassVar[int] = logging.WARNING

    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimeUnknown(Event):
    """A token came without a lifetime: it is renewed only when an API rejects it."""

    name: ClassVar[str] = "lifetime_unknown"
    level: ClassVar[int] = logging.WARNING


RequestGrant: TypeAlias = Literal[
    "refresh_token", "client_credentials", "authorization_code"
]
_Outcome: TypeAlias = "tuple[RequestGrant, Disposition | None, str | None]"
EventHandler: TypeAlias = Callable[[Event], object]


@dataclass(frozen=True, slots=True)
class TokenRequestCount:
    """How many token requests ended in one way.

    Attributes:
        grant: ``"refresh_token"``, ``"client_credentials"`` or
            ``"authorization_code"``.
        disposition: ``None`` for a success.
        error: OAuth error code, the HTTP client's exception, or ``None``.
    """

    grant: RequestGrant
    disposition: Disposition | None
    error: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Stats:
    """A manager's counters, read at one moment; nothing here costs the hot path.

    Attributes:
        token_requests: All token requests by grant, disposition and error code.
        failure_rate: Share of token requests that failed; 0 without any.
        flights: Refreshes begun.
        waiters: Most callers that one refresh had, over all flights.
        waited: Callers that had to wait for a refresh, in all.
        sessions: Sessions known to this process, by ``"live"``, ``"due"``,
            ``"expired"`` and ``"ended"``.
        events: How often each event happened, by its name.
        handler_errors: How often an event handler raised.
    """

    token_requests: tuple[TokenRequestCount, ...]
    failure_rate: float
    flights: int
    waiters: int
    waited: int
    sessions: dict[str, int]
    events: dict[str, int]
    handler_errors: int


class EventSink:
    """Delivers events to the log, the counters and the application.

    A handler's error is isolated and logged. Thread-safe.
    """

    def __init__(self, handler: EventHandler | None, *, issuer: str) -> None:
        """Deliver to *handler*, which may be ``None``."""
        self._handler = handler
        self._issuer = issuer
        self._lock = threading.Lock()
        self._events: Counter[str] = Counter()
        self._requests: Counter[_Outcome] = Counter()
        self._flights = 0
        self._waiters = 0
        self._waited = 0
        self._handler_errors = 0

    def emit(self, event: Event) -> None:
        """Log, count and hand over one event."""
        event = dataclasses.replace(event, issuer=self._issuer)
        with self._lock:
            self._events[event.name] += 1
        fields = _log_fields(event)
        text = fields.get("advice")
        logger.log(
            event.level, "%s%s", event.name, f": {text}" if text else "", extra=fields
        )
        if self._handler is None:
            return
        try:
            self._handler(event)
        except Exception as error:  # noqa: BLE001 -- whatever a handler does
            with self._lock:
                self._handler_errors += 1
            log_fault("event_handler_failed", error, failed_event=event.name)

    def count_request(self, grant: RequestGrant, failure: Failure | None) -> None:
        """Count one token request and how it ended."""
        outcome: tuple[RequestGrant, Disposition | None, str | None] = (
            grant,
            None,
            None,
        )
        if failure is not None:
            error = failure.error or failure.cause
            if error is None and failure.status is not None:
                error = f"http_{failure.status}"
            outcome = (grant, failure.disposition, error)
        with self._lock:
            self._requests[outcome] += 1

    def count_flight(self) -> None:
        """Count a refresh that begins."""
        with self._lock:
            self._flights += 1

    def count_waiters(self, waiters: int) -> None:
        """Count callers that waited for one flight."""
        with self._lock:
            self._waited += waiters
            self._waiters = max(self._waiters, waiters)

    def stats(self, sessions: dict[str, int]) -> Stats:
        """Return all counters as they are now."""
        with self._lock:
            total = sum(self._requests.values())
            failed = sum(
                count for outcome, count in self._requests.items() if outcome[1]
            )
            return Stats(
                token_requests=tuple(
                    TokenRequestCount(grant, disposition, error, count)
                    for (grant, disposition, error), count in self._requests.items()
                ),
                failure_rate=failed / total if total else 0.0,
                flights=self._flights,
                waiters=self._waiters,
                waited=self._waited,
                sessions=sessions,
                events=dict(self._events),
                handler_errors=self._handler_errors,
            )


def log_fault(name: str, error: BaseException, **fields: object) -> None:
    """Log a fault of the library's own: where it was, but not its text.

    The text of an unforeseen exception may hold anything, a token among it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    cause = type(error).__name__
    logger.error("%s: %s", name, cause, extra={"event": name, "where": where, **fields})


class SkewWatch:
    """Reports that the server's clock is off, once until it changes by a leeway."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._reported = 0.0

    def see(self, skew: float) -> None:
        """Look at a measured skew, in seconds that the server is ahead."""
        if abs(skew) <= SKEW_REPORTED / 2.0:  # Well below: it is measured roughly.
            self._reported = 0.0
        elif abs(skew) > SKEW_REPORTED < abs(skew - self._reported):
            self._reported = skew
            self._sink.emit(ClockSkewSeen(skew=skew))


def _log_fields(event: Event) -> dict[str, object]:
    """Return the event's fields for a log record, a failure spelled out."""
    fields: dict[str, object] = {"event": event.name}
    for item in dataclasses.fields(event):
        value = getattr(event, item.name)
        if item.name == "failure" and value is not None:
            fields |= {
                "disposition": value.disposition.value,
                "error": value.error,
                "original_error": value.original_error,
                "error_description": value.description,
                "status": value.status,
                "request_id": value.request_id,
                "cause": value.cause,
                "advice": value.advice,
                "lost_rotation": value.lost_rotation,
            }
        elif item.name == "name":
            continue
        else:
            fields[item.name] = value
    return fields

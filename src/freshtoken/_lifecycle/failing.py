"""From what a flight met to the error that one caller sees."""

from __future__ import annotations

from dataclasses import dataclass

from freshtoken._foundation.records import Ended, Failure, Record
from freshtoken._protocol.classification import error_for
from freshtoken.errors import (
    AccessDeniedError,
    Disposition,
    FreshTokenError,
    MisconfiguredError,
    RetryableError,
    SignInRequiredError,
    StoreError,
)

_ENDINGS = {
    "unknown_session": (
        "there is no session of this name: it was never added, or it ended long ago; "
        "the user has to sign in"
    ),
    "no_refresh_token": (
        "the access token has ended and the grant has no refresh token (was "
        "offline_access not granted?); the user has to sign in again"
    ),
    "signed_out": "the session was signed out; the user has to sign in again",
    "expired": (
        "the refresh token has reached the end that the server gave it; the user has "
        "to sign in again"
    ),
    "idle": "the session was idle for too long; the user has to sign in again",
}


@dataclass(frozen=True, slots=True)
class FlightFailure:
    """Why a flight brought no token: from it each waiter gets an error of its own.

    Attributes:
        failure: What the exchange met, graded.
        ended: That the session is over, and why.
        reason: An ending that no exchange has caused.
    """

    failure: Failure | None = None
    ended: Ended | None = None
    reason: str = ""


class FlightFailedError(Exception):
    """Carries a `FlightFailure` out of the transaction; internal."""

    def __init__(self, outcome: FlightFailure) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def flight_error(
    error: Exception | FlightFailure,
    *,
    session_id: str,
    issuer: str,
    retry_in: float | None,
    client_refused: bool,
) -> FreshTokenError:
    """Return a new public error for a flight's failure.

    Args:
        retry_in: Seconds until the next flight may begin.
        client_refused: Whether the client's credentials count as refused now.
    """
    if isinstance(error, StoreError):
        return StoreError(str(error), session_id=session_id, issuer=issuer)
    if isinstance(error, FreshTokenError):
        return type(error)(str(error), session_id=session_id, issuer=issuer)
    if isinstance(error, FlightFailedError):
        error = error.outcome
    if isinstance(error, Exception):
        return FreshTokenError(str(error), session_id=session_id, issuer=issuer)
    if error.ended is not None:
        return end_error(error.ended, session_id, issuer, client_refused=client_refused)
    if error.failure is None:
        return _plain_ending(error.reason, session_id, issuer)
    return _failure_error(error.failure, session_id, issuer, retry_in)


def end_error(
    ended: Ended, session_id: str, issuer: str, *, client_refused: bool
) -> FreshTokenError:
    """Return the error for a session that has ended."""
    failure = ended.failure
    if failure is None:
        return _plain_ending(ended.reason, session_id, issuer)
    rejected = failure.disposition is Disposition.CLIENT_REJECTED
    if rejected and client_refused:
        # Not a sign-in: an application that redirects would do so for ever.
        return error_for(failure, issuer=issuer, session_id=session_id)
    if rejected:
        message = (
            "the session was cleared when the server refused this client's "
            "credentials, which it accepts again; the user has to sign in again"
        )
        return _ended(message, "client_rejected", session_id, issuer)
    return error_for(
        failure,
        issuer=issuer,
        session_id=session_id,
        cleared=True,
        reason=ended.reason,
    )


def impatient_error(session_id: str, issuer: str) -> RetryableError:
    """Return the error for a caller whose patience ended before the flight."""
    return RetryableError(
        "the refresh takes longer than callers wait; it goes on, and the session is "
        "kept: answer with 503 and let the client ask again",
        disposition=Disposition.RETRY,
        session_id=session_id,
        issuer=issuer,
    )


def unhelpful_error(session_id: str, issuer: str) -> RetryableError:
    """Return the error for refreshes that bring no other token than the refused."""
    return RetryableError(
        "the server keeps answering with a token that will not do; look at the "
        "token's lifetime there, and at the API that rejects it",
        disposition=Disposition.RETRY,
        session_id=session_id,
        issuer=issuer,
    )


def unsaved_error(session_id: str, issuer: str) -> StoreError:
    """Return the error while a refreshed token cannot be saved, nor served."""
    return StoreError(
        "a refreshed token cannot be saved, and the tokens at hand will not do; it is "
        "tried again every second and nobody is signed out, look at the session store",
        session_id=session_id,
        issuer=issuer,
    )


def _failure_error(
    failure: Failure, session_id: str, issuer: str, retry_in: float | None
) -> FreshTokenError:
    error = error_for(failure, issuer=issuer, session_id=session_id)
    if retry_in is not None and isinstance(
        error, RetryableError | AccessDeniedError | MisconfiguredError
    ):
        error.retry_after = retry_in
    return error


def _plain_ending(reason: str, session_id: str, issuer: str) -> SignInRequiredError:
    message = _ENDINGS.get(reason, "the session is over; the user has to sign in again")
    return _ended(message, reason or "terminal", session_id, issuer)


def _ended(
    message: str, reason: str, session_id: str, issuer: str
) -> SignInRequiredError:
    error = SignInRequiredError(
        message,
        disposition=Disposition.SIGN_IN,
        session_id=session_id,
        issuer=issuer,
    )
    error.reason = reason
    return error


def outlived_failure() -> Failure:
    """Return the failure of a refresh token past its stated end; nothing was sent."""
    return Failure(
        Disposition.SIGN_IN,
        "the refresh token has reached the end that the server gave it; "
        "the user has to sign in again",
        error="invalid_grant",
        sent=False,
    )


def late_failure() -> Failure:
    """Return the failure of a flight that the guard refused each time."""
    return Failure(
        Disposition.RETRY,
        "each time a request was about to leave, too much of its lease was gone; "
        "look at the machine's load and at the latency of the session store",
        sent=False,
    )


def stranger_failure(record: Record) -> Failure:
    """Return the failure for a name that is another client's."""
    return Failure(
        Disposition.MISCONFIGURED,
        "this session belongs to another issuer or client "
        f"({record.issuer}, {record.client_id}); use the manager that made it, "
        "or another name",
        setting="session_id",
        sent=False,
    )


def held_back_failure(wait: float, now: float) -> Failure:
    """Return the failure of a flight that has to wait though nothing failed."""
    return Failure(
        Disposition.RETRY,
        "the token was renewed a moment ago and a new one would be no better; "
        "look at the API that rejects it",
        retry_after=wait,
        sent=False,
        at=now,
        since=now,
    )

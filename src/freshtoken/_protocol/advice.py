"""Failures in words and as exceptions: what happened, what to do next, and by whom."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from types import MappingProxyType

from freshtoken._foundation.records import NOTHING, Failure
from freshtoken.errors import (
    AccessDeniedError,
    ClientRejectedError,
    Disposition,
    FreshTokenError,
    IssuerMismatchError,
    MisconfiguredError,
    RetryableError,
    SignInRequiredError,
    TransportError,
)

_NEXT = {
    Disposition.RETRY: (
        "It may heal by itself: the session is kept and the server asked again; if "
        "it lasts, the server's operator has to look."
    ),
    Disposition.SIGN_IN: "The grant is over: the user has to sign in again.",
    Disposition.CLIENT_REJECTED: (
        "The application's own credentials are refused: its operator has to mend "
        "client_secret or private_key; signing in again would not help."
    ),
    Disposition.DENIED: (
        "The account or a policy stands in the way: an administrator has to look at "
        "the account and the risk notices at the server; the session is kept."
    ),
    Disposition.UNCLEAR: (
        "It does not say why: the session is kept and tried again; if it lasts, the "
        "user has to sign in again."
    ),
}

# The same for a sign-in, where there is no session yet and a code is never sent twice.
_NEXT_SIGN_IN = {
    Disposition.RETRY: (
        "It may heal by itself: begin a new sign-in in a moment; if it lasts, the "
        "server's operator has to look."
    ),
    Disposition.SIGN_IN: (
        "Begin a new sign-in: a code is good once, soon, and for one sign-in only."
    ),
    Disposition.DENIED: (
        "The user declined, or the account or a policy stands in the way: ask the "
        "user, then an administrator."
    ),
    Disposition.UNCLEAR: "It does not say why: begin a new sign-in.",
}
_LET_THE_USER_ACT = (
    "Begin a new sign-in, in which the user can act (without prompt=none)."
)
# The user has something to do at the server (OpenID Connect Core §3.1.2.6).
_FOR_THE_USER = frozenset(
    {
        "account_selection_required",
        "consent_required",
        "interaction_required",
        "login_required",
    }
)

_SETTINGS = {
    "authorization_request": "what the sign-in asks for (scope, redirect_uri, extra)",
    "certificate": "the server's certificate, its host name and the CA bundle in use",
    "client_id": "client_id and what the server has registered for it",
    "client_secret": "client_secret (or private_key) and token_endpoint_auth_method",
    "dpop": "whether the server asks for DPoP",
    "error_codes": "what error_codes says on this code",
    "extra": "the further parameters of the authorization request (extra=)",
    "grant_type": "which grants the server allows this client",
    "jwks_uri": "jwks_uri in the server's metadata",
    "issuer": "issuer, or give the endpoints as metadata with discovery=None",
    "resource": "resource and what the server knows of it",
    "revocation_endpoint": "revocation_endpoint in the server's metadata",
    "scope": "scope and what the server allows this client",
    "token_endpoint": "token_endpoint in the server's metadata",
    "token_endpoint_auth_method": "token_endpoint_auth_method, scope and resource",
}

_LOST_ROTATION = (
    " Most likely nobody ended it: the answer to an earlier refresh got lost on its "
    "way, and the new refresh token with it."
)


def what_happened(
    status: int,
    *,
    code: str | None = None,
    description: str | None = None,
    media_type: str | None = None,
    target: str | None = None,
    problem: str = "",
) -> str:
    """Return a sentence on an answer.

    Args:
        code: Error code as the server spells it.
        description: Its own words, redacted.
        media_type: For a body that is no OAuth answer; may be empty.
        target: Where a redirect leads, without query.
        problem: Why a 2xx is of no use.
    """
    if code is not None:
        words = f': "{description}"' if description else ""
        return f"The authorization server answered {status} {code}{words}."
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return f"The authorization server answered {status}, but {problem}."
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return (
            f"The authorization server answered {status}, a redirect to "
            f"{target or 'nowhere'}, which is not followed."
        )
    if media_type is not None:
        return (
            f"The answer {status} ({media_type or 'no media type'}) did not come "
            "from an OAuth server."
        )
    words = f': "{description}"' if description else " without an error code"
    return f"The authorization server answered {status}{words}."


def no_answer(cause: str, detail: str, *, in_doubt: bool) -> str:
    """Return a sentence on the lack of an answer."""
    words = f"{cause}: {detail}" if detail else cause
    doubt = ", and the server may have acted on the request" if in_doubt else ""
    return f"No answer came from the authorization server ({words}){doubt}."


def what_next(disposition: Disposition, setting: str | None) -> str:
    """Return a sentence on what to do, and who has to do it."""
    if disposition is Disposition.MISCONFIGURED:
        place = _SETTINGS.get(setting or "", setting or "the client's settings")
        return f"The application's operator has to check {place}; the session is kept."
    return _NEXT[disposition]


def for_sign_in(failure: Failure) -> Failure:
    """Return a failure whose advice fits a sign-in: there is no session yet."""
    if failure.disposition is Disposition.MISCONFIGURED:
        happened = failure.advice.removesuffix("; the session is kept.")
        if happened == failure.advice:
            return failure
        return replace(failure, advice=f"{happened}; then begin a new sign-in.")
    words = _NEXT_SIGN_IN.get(failure.disposition)
    if failure.disposition is Disposition.SIGN_IN and failure.error in _FOR_THE_USER:
        words = _LET_THE_USER_ACT
    if words is None or failure.advice.endswith(words):
        return failure
    happened = failure.advice.removesuffix(_NEXT[failure.disposition])
    return replace(failure, advice=f"{happened.rstrip()} {words}")


def for_keys(failure: Failure) -> Failure:
    """Return a failure whose advice fits a key set that cannot be had."""
    tail = what_next(failure.disposition, failure.setting)
    happened = failure.advice.removesuffix(tail).rstrip()
    place = _SETTINGS.get(failure.setting or "", failure.setting)
    look = f"look at {place}" if place else "ask again in a moment"
    words = f"{happened} Without the issuer's keys no token can be checked: {look}."
    return replace(failure, advice=words)


def error_for(
    failure: Failure,
    *,
    issuer: str | None,
    session_id: str | None = None,
    cleared: bool | None = None,
    reason: str | None = None,
) -> FreshTokenError:
    """Make the public exception for a failure: a new one at each call.

    Args:
        cleared: Whether the session is over; by default what the disposition says.
        reason: `SignInRequiredError.reason`; by default ``"terminal"`` or
            ``"unclear"``.
    """
    terminal = failure.disposition is Disposition.SIGN_IN
    text = failure.advice + (_LOST_ROTATION if failure.lost_rotation else "")
    error = _error_class(failure)(
        text,
        disposition=failure.disposition,
        issuer=issuer,
        session_id=session_id,
        error=failure.error,
        original_error=failure.original_error,
        error_description=failure.description,
        error_uri=failure.error_uri,
        status=failure.status,
        request_id=failure.request_id,
        extra=dict(failure.extra),  # a plain copy, which can be pickled
    )
    if isinstance(error, RetryableError):
        error.retry_after = failure.retry_after
        error.request_sent = failure.sent
        error.failing_since = failure.since or None
    if isinstance(error, TransportError):
        error.cause = failure.cause
    if isinstance(error, SignInRequiredError):
        error.cleared = terminal if cleared is None else cleared
        error.reason = reason or ("terminal" if terminal else "unclear")
        error.lost_rotation = failure.lost_rotation
    if isinstance(error, AccessDeniedError | MisconfiguredError):
        error.retry_after = failure.retry_after
    if isinstance(error, MisconfiguredError):
        error.setting = failure.setting
    if isinstance(error, IssuerMismatchError):
        error.expected = str(failure.extra["expected"])
        error.received = str(failure.extra["received"])
    return error


def failure_from(error: MisconfiguredError, *, at: float = 0.0) -> Failure:
    """Return what a session keeps of a wrong setting that an exchange brought up."""
    extra: dict[str, object] = dict(error.extra)
    if isinstance(error, IssuerMismatchError):
        extra.update(expected=error.expected, received=error.received)
    return Failure(
        disposition=Disposition.MISCONFIGURED,
        advice=str(error),
        setting=error.setting,
        status=error.status,
        sent=False,
        extra=MappingProxyType(extra) if extra else NOTHING,
        at=at,
    )


def _error_class(failure: Failure) -> type[FreshTokenError]:
    """Return the class whose catchers would do the right thing."""
    match failure.disposition:
        case Disposition.RETRY:
            return TransportError if failure.cause else RetryableError
        case Disposition.SIGN_IN | Disposition.UNCLEAR:
            return SignInRequiredError
        case Disposition.CLIENT_REJECTED:
            return ClientRejectedError
        case Disposition.DENIED:
            return AccessDeniedError
    if failure.setting == "issuer" and failure.extra.keys() >= {"expected", "received"}:
        return IssuerMismatchError
    return MisconfiguredError

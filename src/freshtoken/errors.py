"""What can go wrong, as one tree of exceptions.

```
FreshTokenError
├─ RetryableError               wait, it may heal
│  └─ TransportError            no answer came at all
├─ SignInRequiredError          the user has to sign in again
├─ AccessDeniedError            look at the account or the risk policy
├─ MisconfiguredError           a setting is wrong: ``.setting`` names it
│  ├─ ClientRejectedError       the client's own credentials are wrong
│  └─ IssuerMismatchError       the server calls itself by another name
├─ AuthorizationResponseError   the answer to a sign-in is refused: ``.reason``
├─ TokenRejectedError           a JWT is refused: ``.reason``, ``.claim``
└─ StoreError                   the session store failed: nobody is signed out
```

Every failed exchange has exactly one `Disposition`; what is retried, cleared, logged
and raised follows from it. No exception carries a token, a secret or a body.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Disposition(enum.Enum):
    """What a failed exchange means for the session, and so what is done about it."""

    RETRY = "retry"
    """It may heal by itself: backoff, session kept."""
    SIGN_IN = "sign_in"
    """The grant is over: never retried, session cleared."""
    CLIENT_REJECTED = "client_rejected"
    """The client's credentials are wrong: never retried, breaker opens."""
    DENIED = "denied"
    """Account state or policy: session kept, tried again much later."""
    MISCONFIGURED = "misconfigured"
    """A setting is wrong: session kept, the advice names the setting."""
    UNCLEAR = "unclear"
    """Refused without saying why: session kept, a success heals it."""


class FreshTokenError(Exception):
    """Base of everything that the library raises.

    Attributes:
        disposition: How the failed exchange was graded; ``None`` outside exchanges.
        issuer: Issuer identifier of the authorization server concerned.
        session_id: Name of the session concerned.
        error: OAuth error code in its registered spelling (RFC 6749 §5.2).
        original_error: The code as the server spelled it, where that differs.
        error_description: The server's own words, with secrets masked.
        error_uri: The page that the server names.
        status: HTTP status of the answer; ``None`` if none came.
        request_id: The server's identifier of the request, for a report to it.
        extra: Further members of the error answer, such as ``suberror``.
    """

    def __init__(
        self,
        message: str = "",
        *,
        disposition: Disposition | None = None,
        issuer: str | None = None,
        session_id: str | None = None,
        error: str | None = None,
        original_error: str | None = None,
        error_description: str | None = None,
        error_uri: str | None = None,
        status: int | None = None,
        request_id: str | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Make an error; all details are optional."""
        super().__init__(message)
        self.disposition = disposition
        self.issuer = issuer
        self.session_id = session_id
        self.error = error
        self.original_error = original_error
        self.error_description = error_description
        self.error_uri = error_uri
        self.status = status
        self.request_id = request_id
        self.extra: Mapping[str, object] = extra or {}


class RetryableError(FreshTokenError):
    """The exchange failed in a way that may heal; the session is kept.

    Attributes:
        retry_after: Seconds until another attempt makes sense, if known.
        request_sent: Whether the request may have reached the server.
        failing_since: Epoch seconds of the first failure in this row of failures.
    """

    retry_after: float | None = None
    request_sent: bool = True
    failing_since: float | None = None


class TransportError(RetryableError):
    """No answer came: DNS, connection, TLS, time-out, or a connection that broke.

    Attributes:
        cause: Class name of the HTTP client's exception.
    """

    cause: str | None = None


class SignInRequiredError(FreshTokenError):
    """The user has to sign in again.

    Attributes:
        cleared: Whether the session is over. ``False`` where the server refused
            without a clear reason: the session is kept and tried again.
        reason: Why: ``"terminal"``, ``"signed_out"``, ``"refused_answer"``,
            ``"expired"``, ``"no_refresh_token"``, ``"unknown_session"``, ``"idle"``,
            ``"replaced"`` (by a new sign-in), ``"client_rejected"`` (cleared while
            the client's credentials were refused) or ``"unclear"``; of a sign-in
            ``"interaction_required"`` (the server wants the user to act) or
            ``"code_refused"``.
        lost_rotation: The grant most likely died because an answer with a rotated
            refresh token was lost, not because somebody ended it.
    """

    cleared: bool = True
    reason: str = "terminal"
    lost_rotation: bool = False


class AccessDeniedError(FreshTokenError):
    """The server refuses this account or device; the session is kept.

    Attributes:
        retry_after: Seconds until the library asks the server again.
    """

    retry_after: float | None = None


class MisconfiguredError(FreshTokenError):
    """A setting, here or at the server, does not fit.

    Attributes:
        setting: Name of the parameter or setting to look at.
        retry_after: Seconds until the library asks the server again, if it will.
    """

    setting: str | None = None
    retry_after: float | None = None

    def __init__(
        self, message: str = "", *, setting: str | None = None, **details: object
    ) -> None:
        """Make an error that names the setting to look at."""
        super().__init__(message, **details)  # type: ignore[arg-type]  # same keywords
        self.setting = setting


class ClientRejectedError(MisconfiguredError):
    """The server refuses the client's own credentials (``invalid_client``).

    Mend the credentials; sending users to sign in again would not help.
    """


class IssuerMismatchError(MisconfiguredError):
    """The server's metadata name another issuer (RFC 8414 §3.3).

    Attributes:
        expected: The configured issuer.
        received: The issuer in the document.
    """

    expected: str | None = None
    received: str | None = None


class StoreError(FreshTokenError):
    """The session store failed. No session is ended by this."""


class AuthorizationResponseError(FreshTokenError):
    """The answer that a browser brought back from a sign-in is refused.

    Nothing was sent to the server. Begin a new sign-in; do not try this answer again.
    What the server itself answered with ``error`` is raised as its disposition says.

    Attributes:
        reason: Why: ``"unknown_state"`` (never begun here, used already, or too old),
            ``"binding"`` (begun by another browser), ``"issuer"``, ``"duplicate"``,
            ``"missing"``, ``"redirect_uri"``, ``"response_mode"``, ``"malformed"``,
            ``"unexpected"`` (a token that this flow never brings) or ``"error"`` (an
            ``error`` that no table knows).
    """

    reason: str = "malformed"


class RejectionReason(enum.Enum):
    """Why a JWT is refused."""

    MALFORMED = "malformed"
    """It is no JWT in the compact form, or one that can be read in two ways."""
    ALGORITHM = "algorithm"
    """Its ``alg`` is not one that was configured."""
    CRITICAL_HEADER = "critical_header"
    """Its ``crit`` names what nobody here understands."""
    TYPE = "type"
    """It is a token of another kind, by its ``typ``."""
    UNKNOWN_KEY = "unknown_key"
    """No key of the issuer fits it."""
    AMBIGUOUS_KEY = "ambiguous_key"
    """Several keys fit it, and it does not say which."""
    UNFIT_KEY = "unfit_key"
    """The key is too weak, or not one that may verify."""
    SIGNATURE = "signature"
    """Its signature is not that of the key."""
    MISSING_CLAIM = "missing_claim"
    """A claim that has to be there is not."""
    INVALID_CLAIM = "invalid_claim"
    """A claim has another value, or is of the wrong type."""
    EXPIRED = "expired"
    """Its end has come."""
    NOT_YET_VALID = "not_yet_valid"
    """It is from the future: look at the clocks."""
    NONCE = "nonce"
    """It belongs to another sign-in."""
    HASH = "hash"
    """It belongs to another access token or code."""
    AUTHENTICATION_TOO_OLD = "authentication_too_old"
    """The user's last authentication is longer ago than was asked for."""
    AUTHENTICATION_CONTEXT = "authentication_context"
    """The user did not authenticate in a way that was asked for (``acr``)."""
    SUBJECT = "subject"
    """It is about another user than before."""
    CONFIRMATION = "confirmation"
    """It is bound to a key that nobody here can check (``cnf``)."""
    INSUFFICIENT_SCOPE = "insufficient_scope"
    """It is valid, but not for this."""
    CREDENTIALS = "credentials"
    """The request brings no token, or not in a way that can be read: ``.status`` says
    which HTTP status answers it."""


class TokenRejectedError(FreshTokenError):
    """A JWT is refused; nothing that it says may be believed.

    Attributes:
        reason: Why, as a `RejectionReason`.
        claim: Name of the claim or header parameter at fault.
        expected: What was expected of it, where that is no secret.
        received: What was found, cut and masked.
    """

    reason: RejectionReason = RejectionReason.MALFORMED
    claim: str | None = None
    expected: object = None
    received: object = None

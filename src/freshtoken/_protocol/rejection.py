"""How the refusal of a JWT is put into words.

The checks say what is wrong; this says it without showing more of the token than
helps: what was found in it is masked and cut.
"""

from __future__ import annotations

from freshtoken._foundation.secret import redact
from freshtoken.errors import RejectionReason, TokenRejectedError

_MAX_RECEIVED = 60
_MAX_ITEMS = 10


def rejected(
    reason: RejectionReason,
    message: str,
    *,
    claim: str | None = None,
    expected: object = None,
    received: object = None,
) -> TokenRejectedError:
    """Return, but do not raise, the error for a refused JWT.

    Args:
        reason: Why the token is refused.
        message: What happened and what to do next, without any text of the token.
        claim: Name of the claim or header parameter at fault.
        expected: What was expected of it, where that is no secret.
        received: What was found; texts in it are masked and cut.
    """
    error = TokenRejectedError(message)
    error.reason = reason
    error.claim = claim
    error.expected = expected
    error.received = _shown(received)
    return error


def _shown(value: object) -> object:
    """Return *value* fit to be shown: short, and without what looks like a secret."""
    if isinstance(value, str):
        text = redact(value[: 2 * _MAX_RECEIVED])
        return text if len(text) <= _MAX_RECEIVED else text[:_MAX_RECEIVED] + "…"
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        shown = [_shown(item) for item in list(value)[:_MAX_ITEMS]]
        return tuple(shown)
    return f"<{type(value).__name__}>"

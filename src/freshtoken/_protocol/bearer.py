"""Bearer tokens at a resource server: taken from a request, and asked for in answers.

The answers say as much as a client needs to act on, and nothing that would help whoever
tries tokens out: neither which check failed nor anything from the token.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from freshtoken._foundation.secret import Secret
from freshtoken._protocol.rejection import rejected
from freshtoken._protocol.settings import refuse
from freshtoken.errors import RejectionReason, TokenRejectedError

DEFAULT_REALM = "api"

_BAD_REQUEST = 400
_UNAUTHORIZED = 401
_FORBIDDEN = 403

_SCHEME = "bearer"
# RFC 6750 §2.1: one token of these characters. Possessive, so that it never goes back.
_TOKEN68 = re.compile(r"[A-Za-z0-9\-._~+/]++=*+")
# RFC 9110 §5.6.4: what may stand in quotes, escaped where it has to be.
_QUOTABLE = re.compile(r"[\t\x20-\x7e]*+")
# RFC 6749 §3.3: scope tokens, one space between them.
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]++(?: [\x21\x23-\x5b\x5d-\x7e]++)*+")
_TO_ESCAPE = re.compile(r'["\\]')


def parse_authorization(
    values: Sequence[str], *, other_methods: bool = False
) -> Secret:
    """Return the bearer token of a request.

    Another scheme, or none at all, is a request without credentials.

    Args:
        values: All ``Authorization`` fields of the request, one text for each.
        other_methods: Whether the request brings a token in its form or query, too.
            Such a token is never taken, and beside one in the header it makes the
            request a bad one.

    Raises:
        TokenRejectedError: There is no token (`status` 401), or what there is cannot
            be read (`status` 400). `challenge_for` turns it into the answer.

    Spec: RFC 6750 §2, §2.1, §3.1; RFC 9110 §11.1, §11.6.2.
    """
    if not values:
        raise _no_credentials()
    if len(values) > 1:
        raise _bad_request("it has more than one Authorization field")
    scheme, _, rest = values[0].strip(" \t").partition(" ")
    token = rest.lstrip(" ")
    if scheme.lower() != _SCHEME or not token:
        raise _no_credentials()
    if other_methods:
        raise _bad_request("it brings a token in more than one way")
    if _TOKEN68.fullmatch(token) is None:
        raise _bad_request("what follows Bearer is not one token")
    return Secret(token)


def challenge_for(
    error: TokenRejectedError | None = None,
    *,
    realm: str = DEFAULT_REALM,
    scope: str | Collection[str] | None = None,
    error_description: str | None = None,
    resource_metadata: str | None = None,
) -> tuple[int, str]:
    """Return the HTTP status and the ``WWW-Authenticate`` value that answer a refusal.

    Args:
        error: Why the token is refused; ``None`` if the request brought none.
        realm: Name of the protected space.
        scope: What access takes; by default what the error says was missing.
        error_description: A text of the application's own for developers.
        resource_metadata: URL of the resource's metadata (RFC 9728 §5.1).

    Raises:
        MisconfiguredError: A text cannot be sent in a header field; ``.setting``
            names it.

    Spec: RFC 6750 §3, §3.1; RFC 9110 §11.6.1.
    """
    status, code = _answer_to(error)
    if scope is None and status == _FORBIDDEN and error is not None:
        expected = error.expected
        scope = expected if isinstance(expected, str | tuple) else None
    parameters = [("realm", realm)]
    if code is not None:
        parameters.append(("error", code))
        if error_description is not None:
            parameters.append(("error_description", error_description))
    if scope:
        parameters.append(("scope", _scope_text(scope)))
    if resource_metadata is not None:
        parameters.append(("resource_metadata", resource_metadata))
    quoted = [f"{name}={_quote(name, value)}" for name, value in parameters]
    return status, f"Bearer {', '.join(quoted)}"


def _answer_to(error: TokenRejectedError | None) -> tuple[int, str | None]:
    """Return the status and the error code for a refusal; no code for no token."""
    if error is None:
        return _UNAUTHORIZED, None
    if error.reason is RejectionReason.CREDENTIALS:
        return error.status or _UNAUTHORIZED, error.error
    if error.reason is RejectionReason.INSUFFICIENT_SCOPE:
        return _FORBIDDEN, "insufficient_scope"
    return _UNAUTHORIZED, "invalid_token"


def _scope_text(scope: str | Collection[str]) -> str:
    """Return scope as one text, or refuse what is none."""
    text = scope if isinstance(scope, str) else " ".join(scope)
    if _SCOPE.fullmatch(text) is None:
        refuse("scope", "holds characters that no scope has")
    return text


def _quote(name: str, value: str) -> str:
    """Return a value in quotes; a line break in it would end the header field."""
    if _QUOTABLE.fullmatch(value) is None:
        refuse(name, "holds characters that no header field has")
    return '"' + _TO_ESCAPE.sub(r"\\\g<0>", value) + '"'


def _no_credentials() -> TokenRejectedError:
    """Return the error for a request without a bearer token."""
    error = rejected(
        RejectionReason.CREDENTIALS,
        "The request is refused: it brings no bearer token. Send one in the "
        "Authorization header.",
    )
    error.status = _UNAUTHORIZED
    return error


def _bad_request(why: str) -> TokenRejectedError:
    """Return the error for a request whose credentials cannot be read."""
    error = rejected(
        RejectionReason.CREDENTIALS,
        f"The request is refused: {why}. Send one Authorization header with the word "
        "Bearer, one space, and the token.",
    )
    error.status = _BAD_REQUEST
    error.error = "invalid_request"
    return error

"""What browsers ask and are told: the same in every web framework."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus

from freshtoken._protocol.settings import has_control
from freshtoken.errors import (
    AccessDeniedError,
    AuthorizationResponseError,
    FreshTokenError,
    RetryableError,
    SignInRequiredError,
    StoreError,
    TokenRejectedError,
)

_MOST_ADDRESS = 2_048
_NO_HOST = re.compile(r"[^A-Za-z0-9.:\[\]-]")

_STATUS: tuple[tuple[type[FreshTokenError], HTTPStatus, str], ...] = (
    (
        AuthorizationResponseError,
        HTTPStatus.BAD_REQUEST,
        "This sign-in was not begun in this browser, or was used before.",
    ),
    (AccessDeniedError, HTTPStatus.FORBIDDEN, "Access was denied."),
    (
        SignInRequiredError,
        HTTPStatus.UNAUTHORIZED,
        "The sign-in was not completed.",
    ),
    (
        TokenRejectedError,
        HTTPStatus.BAD_GATEWAY,
        "The sign-in service gave an answer that cannot be trusted.",
    ),
    (
        RetryableError,
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The sign-in service cannot be reached now.",
    ),
    (
        StoreError,
        HTTPStatus.SERVICE_UNAVAILABLE,
        "Sessions cannot be stored now.",
    ),
)
_OUR_FAULT = "This application is not set up correctly; its operator has to look."


def is_local(address: object) -> bool:
    """Tell whether *address* is a path of this site, however a browser reads it.

    Browsers take a backslash for a slash and drop tabs and line breaks, so that what
    looks like a path may name another host.
    """
    return (
        isinstance(address, str)
        and address.startswith("/")
        and not address.startswith("//")
        and "\\" not in address
        and not has_control(address)
        and len(address) <= _MOST_ADDRESS
    )


def wants_page(headers: Mapping[str, str]) -> bool:
    """Tell whether a browser goes to a page, and is not a script or an API client.

    Spec: Fetch Metadata Request Headers §2.2; RFC 9110 §12.5.1.
    """
    mode = headers.get("sec-fetch-mode")
    if mode is not None:
        return mode == "navigate"
    if headers.get("x-requested-with", "").lower() == "xmlhttprequest":
        return False
    return "text/html" in headers.get("accept", "")


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Tell whether a request comes from a page of this site.

    A browser says so; a client that is none says nothing, and carries no cookie of
    somebody else.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in {"same-origin", "none"}
    origin = headers.get("origin")
    if origin is None:
        return True
    return origin.partition("://")[2] == headers.get("host")


def header_host(headers: Mapping[str, str]) -> str:
    """Return the name of this site, fit for a header."""
    return _NO_HOST.sub("", headers.get("host", ""))


def grade(error: FreshTokenError) -> tuple[int, str]:
    """Return the status and the words for an error."""
    for kind, status, text in _STATUS:
        if isinstance(error, kind):
            return status, text
    return HTTPStatus.INTERNAL_SERVER_ERROR, _OUR_FAULT

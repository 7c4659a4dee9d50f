"""What the mock server says to browsers: redirects, forms, pages, cookies."""

from __future__ import annotations

import html
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from freshtoken.testing.messages import MockRequest, MockResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

SESSION_COOKIE = "mock-session"
USER_COOKIE = "mock-user"
_HTML = (("Content-Type", "text/html; charset=utf-8"), ("Cache-Control", "no-store"))


class PageError(Exception):
    """The user is told, since nobody else can be.

    Attributes:
        title: What went wrong.
    """

    def __init__(self, title: str) -> None:
        """Say what went wrong."""
        super().__init__(title)
        self.title = title


def page(status: int, title: str) -> MockResponse:
    """Return a page for a person."""
    text = f"<!doctype html><title>{html.escape(title)}</title>"
    return MockResponse(status, _HTML, text.encode())


def redirect(uri: str, pairs: Iterable[tuple[str, str]]) -> MockResponse:
    """Send the browser elsewhere with parameters in the query.

    Spec: RFC 6749 §3.1.2: a query that is there is retained.
    """
    query = urlencode(list(pairs))
    separator = "&" if "?" in uri else "?"
    location = f"{uri}{separator}{query}" if query else uri
    fixed = (("Location", location), ("Cache-Control", "no-store"))
    return MockResponse(303, fixed)


def form_page(action: str, pairs: Iterable[tuple[str, str]]) -> MockResponse:
    """Return a page that posts parameters elsewhere by itself."""
    inputs = "".join(
        f'<input type="hidden" name="{html.escape(name)}" value="{html.escape(value)}">'
        for name, value in pairs
    )
    text = (
        '<!doctype html><body onload="document.forms[0].submit()">'
        f'<form method="post" action="{html.escape(action)}">{inputs}</form>'
    )
    return MockResponse(200, _HTML, text.encode())


def add_cookie(
    response: MockResponse, name: str, value: str, *, secure: bool
) -> MockResponse:
    """Return an answer that sets a cookie; an empty one is forgotten."""
    parts = [f"{name}={value}", "Path=/", "HttpOnly", "SameSite=Lax"]
    if secure:
        parts.append("Secure")
    if not value:
        parts.append("Max-Age=0")
    cookie = ("Set-Cookie", "; ".join(parts))
    return replace(response, headers=(*response.headers, cookie))


def read_cookies(request: MockRequest) -> dict[str, str]:
    """Return the cookies that a browser sent."""
    pairs = (one.partition("=") for one in (request.header("cookie") or "").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}

"""Requests to the mock server, as its own tests send them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from urllib.parse import quote_plus, urlencode

from freshtoken.testing import (
    DEFAULT_CLIENT_ID,
    DEFAULT_CLIENT_SECRET,
    MockIdP,
    MockRequest,
    MockResponse,
)

FORM = ("Content-Type", "application/x-www-form-urlencoded")


def basic(client_id: str, client_secret: str) -> tuple[str, str]:
    """Return the header of client_secret_basic."""
    pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}"
    return ("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())


DEFAULT_BASIC = basic(DEFAULT_CLIENT_ID, DEFAULT_CLIENT_SECRET)


async def get(idp: MockIdP, url: str, **headers: str) -> MockResponse:
    """Send a GET."""
    return await idp.handle(MockRequest("GET", url, tuple(headers.items())))


async def post(
    idp: MockIdP,
    endpoint: str,
    form: Mapping[str, str] | list[tuple[str, str]],
    *headers: tuple[str, str],
) -> MockResponse:
    """Send a form; as the default client, unless other headers are given."""
    body = urlencode(form).encode()
    sent = (FORM, *(headers or (DEFAULT_BASIC,)))
    return await idp.handle(MockRequest("POST", idp.url(endpoint), sent, body))


async def refresh(
    idp: MockIdP, token: str | None, *headers: tuple[str, str], **form: str
) -> MockResponse:
    """Send a refresh."""
    fields = {"grant_type": "refresh_token", "refresh_token": token or "", **form}
    return await post(idp, "token", fields, *headers)


async def client_credentials(
    idp: MockIdP, *headers: tuple[str, str], **form: str
) -> MockResponse:
    """Send a client-credentials request."""
    return await post(
        idp, "token", {"grant_type": "client_credentials", **form}, *headers
    )

"""What the tests of signing in share."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pytest

from freshtoken import AuthorizationResponseError, Secret, SignIn, TokenManager
from freshtoken.testing import MockIdP


def parameters(url: str) -> dict[str, str]:
    """Return the parameters of a URL's query."""
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))


def changed(url: str, **members: str) -> str:
    """Return a URL with members of its query changed."""
    query = urlencode({**parameters(url), **members})
    return urlunsplit(urlsplit(url)._replace(query=query))


async def begun_at(
    idp: MockIdP,
    tokens: TokenManager,
    **options: Any,  # noqa: ANN401 -- handed on
) -> tuple[SignIn, str]:
    """Begin a sign-in, and let the browser come back with a URL."""
    sign_in = await tokens.begin_sign_in(**{"scope": "openid", **options})
    return sign_in, await came_back(idp, sign_in)


async def came_back(idp: MockIdP, sign_in: SignIn) -> str:
    """Return the URL that the browser came back to."""
    callback = await idp.browse(sign_in.url)
    assert isinstance(callback, str)
    return callback


async def refused(
    tokens: TokenManager,
    callback: str,
    sign_in: SignIn,
    reason: str,
    *,
    binding: str | Secret | None = None,
) -> None:
    """See that an answer is refused for this reason."""
    held = sign_in.binding if binding is None else binding
    with pytest.raises(AuthorizationResponseError) as caught:
        await tokens.complete_sign_in(callback, binding=held)
    assert caught.value.reason == reason

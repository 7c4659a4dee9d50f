"""Sign-ins for the tests of requests and of what browsers bring back."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import parse_qsl, urlencode, urlsplit

from freshtoken._protocol.authorization import (
    AuthorizationRequest,
    PendingSignIn,
    build_authorization_request,
)
from freshtoken._protocol.metadata import ServerMetadata
from tests.protocol.helpers import NOW, Anything, make_client, make_metadata

AUTHORIZATION_ENDPOINT = "https://idp.test/authorize"
REDIRECT_URI = "https://app.test/cb"
CODE = "SplxlOBeZQQYbYS6WxSbIA"


def metadata(**members: object) -> ServerMetadata:
    """Return the metadata of a server that signs users in."""
    return make_metadata(
        make_client(), **{"authorization_endpoint": AUTHORIZATION_ENDPOINT, **members}
    )


def begin(
    *,
    members: Mapping[str, object] | None = None,
    settings: Mapping[str, object] | None = None,
    generator: random.Random | None = None,
    **options: Anything,
) -> AuthorizationRequest:
    """Build a request, by default an OpenID Connect one.

    Args:
        members: Of the server's metadata.
        settings: Of the client.
        generator: In place of one with a fixed seed.
    """
    return build_authorization_request(
        make_client(**{"redirect_uri": REDIRECT_URI, **(settings or {})}),
        metadata(**(members or {})),
        rng=generator or random.Random(7),
        now=NOW,
        **{"scope": "openid profile", **options},
    )


def pending(**changes: Anything) -> PendingSignIn:
    """Return what an answer has to fit, with changes."""
    return replace(begin().pending, **changes)


def pairs_of(url: str) -> list[tuple[str, str]]:
    """Return the parameters of a URL as the server reads them."""
    return parse_qsl(urlsplit(url).query, keep_blank_values=True, strict_parsing=True)


def query_of(url: str) -> dict[str, str]:
    """Return the parameters of a URL, each of which is there once."""
    pairs = pairs_of(url)
    assert len(dict(pairs)) == len(pairs), "a parameter appears twice"
    return dict(pairs)


def callback(wanted: PendingSignIn | None = None, /, **parameters: str | None) -> str:
    """Return the URL of an answer; ``None`` leaves a parameter out."""
    wanted = wanted or pending()
    members = {"code": CODE, "state": wanted.state, **parameters}
    query = urlencode([(name, value) for name, value in members.items() if value])
    return f"{REDIRECT_URI}?{query}"

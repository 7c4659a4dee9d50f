"""Sign-ins at the mock server, as its own tests play them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import jwt

from freshtoken import Secret
from freshtoken.testing import (
    DEFAULT_CLIENT_ID,
    DEFAULT_REDIRECT_URI,
    CallbackForm,
    MockIdP,
    MockResponse,
)
from tests.testing.mock_calls import post

VERIFIER = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
CHALLENGE = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"  # RFC 7636, appendix B

Callback = str | CallbackForm


def authorization_url(idp: MockIdP, **changes: str | list[str] | None) -> str:
    """Return a right authorization request, but for the changes; None removes."""
    parameters: dict[str, str | list[str] | None] = {
        "response_type": "code",
        "client_id": DEFAULT_CLIENT_ID,
        "redirect_uri": DEFAULT_REDIRECT_URI,
        "scope": "openid profile",
        "state": "state-1",
        "nonce": "nonce-1",
        "code_challenge": CHALLENGE,
        "code_challenge_method": "S256",
        **changes,
    }
    sent = {name: value for name, value in parameters.items() if value is not None}
    return f"{idp.url('authorize')}?{urlencode(sent, doseq=True)}"


def brought(callback: Callback) -> dict[str, str]:
    """Return the parameters that a browser brought, each of them once."""
    if isinstance(callback, CallbackForm):
        return dict(callback)
    query = parse_qs(
        urlsplit(callback).query, keep_blank_values=True, strict_parsing=True
    )
    assert all(len(values) == 1 for values in query.values())
    return {name: value for name, (value,) in query.items()}


async def authorize(
    idp: MockIdP, *, user: str = "alice", **changes: str | list[str] | None
) -> dict[str, str]:
    """Send a user's browser to the server; return what it brings back."""
    return brought(await idp.browse(authorization_url(idp, **changes), user=user))


async def exchange(
    idp: MockIdP, code: str, *headers: tuple[str, str], **changes: str
) -> MockResponse:
    """Exchange a code, as the default client unless other headers are given."""
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": DEFAULT_REDIRECT_URI,
        "code_verifier": VERIFIER,
        **changes,
    }
    return await post(idp, "token", form, *headers)


async def tokens_for(idp: MockIdP, **changes: str | list[str] | None) -> dict[str, Any]:
    """Sign alice in; return the members of the token answer."""
    code = brought(await idp.browse(authorization_url(idp, **changes)))["code"]
    answer = await exchange(idp, code)
    assert answer.status == 200, answer.members()
    return answer.members()


def header_of(token: str) -> dict[str, Any]:
    """Return a token's header, unverified."""
    header: dict[str, Any] = json.loads(_decoded(token.split(".", maxsplit=1)[0]))
    return header


def claims_of(token: str) -> dict[str, Any]:
    """Return a token's claims, unverified."""
    part = token.split(".")[1]
    claims: dict[str, Any] = json.loads(_decoded(part))
    return claims


def verifies(token: str, jwk: Mapping[str, Any]) -> bool:
    """Tell whether a published key verifies a token by its header's algorithm."""
    alg = header_of(token)["alg"]
    name = "EdDSA" if alg.startswith("Ed") else alg  # PyJWT has no RFC 9864 names
    members = {key: value for key, value in jwk.items() if key != "alg"}
    key = jwt.PyJWK(members, algorithm=name)
    signing_input, _, signature = token.rpartition(".")
    algorithm = jwt.get_algorithm_by_name(name)
    verified: bool = algorithm.verify(
        signing_input.encode(), key.key, _decoded(signature)
    )
    return verified


def published(idp: MockIdP, token: str) -> list[dict[str, Any]]:
    """Return the published keys that go by the token's kid."""
    kid = header_of(token).get("kid")
    return [key for key in idp.jwks()["keys"] if key.get("kid") == kid]


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


@dataclass(frozen=True)
class BegunSignIn:
    url: str
    binding: Secret


@dataclass(frozen=True)
class MadeSession:
    id: str
    callback: str | tuple[tuple[str, str], ...]
    members: dict[str, Any]


class SmallManager:
    """What a token manager does in a sign-in, without a single check."""

    def __init__(self, idp: MockIdP) -> None:
        self.idp = idp
        self.options: dict[str, Any] = {}

    async def begin_sign_in(self, **options: Any) -> BegunSignIn:  # noqa: ANN401 -- any
        self.options = options
        return BegunSignIn(authorization_url(self.idp, **options), Secret("binding"))

    async def complete_sign_in(
        self, callback: str | Iterable[tuple[str, str]], *, binding: Secret
    ) -> MadeSession:
        assert binding.reveal() == "binding"
        kept = callback if isinstance(callback, str) else tuple(callback)
        pairs = parse_qsl(urlsplit(kept).query) if isinstance(kept, str) else list(kept)
        answer = await exchange(self.idp, dict(pairs).get("code", ""))
        members = answer.members()
        name = hashlib.sha256(str(members.get("access_token")).encode()).hexdigest()
        return MadeSession(name, kept, members)

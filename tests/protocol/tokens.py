"""Signed JWTs for the tests of ID tokens and access tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jwt.algorithms import get_default_algorithms

from freshtoken._protocol.base64url import decode_base64url, encode_base64url
from freshtoken._protocol.jwk import load_key
from freshtoken._protocol.jwks import JWKSet
from freshtoken._protocol.jws import ParsedJWT, parse_jwt
from tests.protocol import keys
from tests.protocol.helpers import ISSUER, NOW, Anything

CLIENT_ID = "cid-1"
ACCESS_TOKEN = "at-probe-0001"

PRIVATE_KEYS: dict[str, Any] = {
    "RS": keys.RSA,
    "PS": keys.RSA,
    "ES256": keys.P256,
    "ES384": keys.P384,
    "ES512": keys.P521,
    "Ed25519": keys.ED25519,
    "EdDSA": keys.ED25519,
    "Ed448": keys.ED448,
}

GONE = object()
"""As the value of a claim: the claim is not there."""


KEYS = JWKSet(
    tuple(
        load_key(private.public_key())
        for private in (keys.RSA, keys.P256, keys.P384, keys.P521, keys.ED25519)
    ),
    (),
)
"""One key of each kind; for Ed448 a set of its own, since both are EdDSA."""

ED448_KEYS = JWKSet((load_key(keys.ED448.public_key()),), ())


def sign(
    claims: Mapping[str, object],
    *,
    alg: str = "RS256",
    key: Anything = None,
    header: Mapping[str, object] | None = None,
) -> str:
    """Return a JWT in the compact form; what is `GONE` is left out of it."""
    members = {"alg": alg, **(header or {})}
    text = ".".join(
        encode_base64url(json.dumps(without_gone(part)).encode())
        for part in (members, claims)
    )
    if alg.lower() == "none":
        return f"{text}."
    if key is None:
        key = PRIVATE_KEYS.get(alg) or PRIVATE_KEYS[alg[:2]]
    name = "EdDSA" if alg.startswith("Ed") else alg
    algorithm: Any = get_default_algorithms()[name]
    signature = algorithm.sign(text.encode(), algorithm.prepare_key(key))
    return f"{text}.{encode_base64url(signature)}"


def without_gone(members: Mapping[str, object]) -> dict[str, object]:
    """Return the members that are there."""
    return {name: value for name, value in members.items() if value is not GONE}


def tampered(token: str) -> str:
    """Return a token in whose signature each octet is changed."""
    text, _, signature = token.rpartition(".")
    octets = decode_base64url(signature.encode())
    assert octets is not None
    return f"{text}.{encode_base64url(bytes(octet ^ 0x5A for octet in octets))}"


def id_claims(**claims: object) -> dict[str, object]:
    """Return the claims of a good ID token, with some of them changed."""
    good = {
        "iss": ISSUER,
        "sub": "u1",
        "aud": CLIENT_ID,
        "iat": NOW - 1,
        "exp": NOW + 300,
    }
    return without_gone({**good, **claims})


def access_claims(**claims: object) -> dict[str, object]:
    """Return the claims of a good access token, with some of them changed."""
    good = {
        "iss": ISSUER,
        "sub": "u1",
        "aud": "https://api.test",
        "client_id": CLIENT_ID,
        "jti": "jti-1",
        "iat": NOW - 1,
        "exp": NOW + 300,
        "scope": "read write",
    }
    return without_gone({**good, **claims})


def parsed(
    claims: Mapping[str, object], *, typ: object = "at+jwt", alg: str = "ES256"
) -> ParsedJWT:
    """Return a JWT that was read."""
    return parse_jwt(sign(claims, alg=alg, header={"typ": typ}))

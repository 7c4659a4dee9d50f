"""JWTs for the tests, made with PyJWT's algorithms and not with the code under test."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from jwt.algorithms import get_default_algorithms

from freshtoken._protocol.jwk import VerificationKey, read_jwk
from tests.protocol.helpers import ISSUER, NOW, Anything
from tests.protocol.keys import jwk_of

_ALGORITHMS = get_default_algorithms()

CLAIMS: dict[str, Any] = {
    "iss": ISSUER,
    "sub": "alice",
    "aud": "cid-1",
    "exp": NOW + 300,
    "iat": NOW - 1,
}


def b64(value: bytes | str) -> str:
    """Return *value* in base64url without padding."""
    data = value.encode() if isinstance(value, str) else value
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sign(key: Anything, alg: str, claims: object = None, **header: object) -> str:
    """Return a signed JWT; *claims* and the header are taken as they are."""
    members = {"alg": alg, **header}
    body = json.dumps(CLAIMS if claims is None else claims)
    return sign_parts(key, alg, json.dumps(members), body)


def sign_parts(
    key: Anything, alg: str, header: bytes | str, payload: bytes | str
) -> str:
    """Return a JWS over a header and a payload that need not be JSON."""
    signing_input = f"{b64(header)}.{b64(payload)}"
    name = "EdDSA" if alg in ("Ed25519", "Ed448") else alg
    signature = _ALGORITHMS[name].sign(signing_input.encode(), key)
    return f"{signing_input}.{b64(signature)}"


def public_jwk(key: Anything, **members: object) -> dict[str, object]:
    """Return the public half of a private key as a JWK."""
    names = ("kty", "crv", "n", "e", "x", "y")
    jwk = jwk_of(key)
    return {**{name: jwk[name] for name in names if name in jwk}, **members}


def verifier(key: Anything, **members: object) -> VerificationKey:
    """Return the public half of a private key, ready to verify."""
    return read_jwk(public_jwk(key, **members))


def without(mapping: Mapping[str, object], *names: str) -> dict[str, object]:
    """Return *mapping* without some of its members."""
    return {name: value for name, value in mapping.items() if name not in names}

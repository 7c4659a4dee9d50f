"""ID tokens of the mock server: right ones, and forged ones where a test says so."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey

from freshtoken.testing.keys import (
    SECRET_ALGORITHMS,
    AnyKey,
    NoKey,
    SecretKey,
    SigningKey,
    base64url,
    compact_jws,
)

if TYPE_CHECKING:
    from freshtoken.testing.forging import IDTokenForgery, Occasion
    from freshtoken.testing.grants import AccessEntry, MockGrant
    from freshtoken.testing.idp import MockIdP

_ED448_HASH_BYTES = 114


def issue_id_token(idp: MockIdP, access: AccessEntry, occasion: Occasion) -> str:
    """Return the ID token that goes with an access token, and note it.

    Spec: OpenID Connect Core §2, §3.1.3.6, §12.2.
    """
    grant = access.grant
    forgery = idp.take_id_token_forgery(occasion)
    key = _key_for(idp, grant, forgery)
    claims = _claims(idp, access, occasion)
    claims["at_hash"] = half_hash(key, access.token)
    headers: dict[str, Any] = {"typ": "JWT", "alg": key.alg}
    if key.kid is not None:
        headers["kid"] = key.kid
    if forgery is not None:
        claims |= forgery.claims
        for name in forgery.remove:
            claims.pop(name, None)
        headers = _forged_headers(headers, forgery)
    token = compact_jws(headers, claims, key)
    if forgery is not None and forgery.break_signature:
        token = _with_broken_signature(token, key)
    grant.id_token = token
    idp.ledger.id_tokens[token] = grant
    return token


def half_hash(key: AnyKey, value: str) -> str:
    """Return the left half of a hash, as ``at_hash`` has it.

    Spec: OpenID Connect Core §3.1.3.6; for EdDSA as most servers do it: the hash that
    the signature algorithm uses.
    """
    data = value.encode()
    is_ed448 = isinstance(key, SigningKey) and isinstance(
        key.private_key, Ed448PrivateKey
    )
    if is_ed448:
        digest = hashlib.shake_256(data).digest(_ED448_HASH_BYTES)
    elif key.alg in {"EdDSA", "Ed25519"}:
        digest = hashlib.sha512(data).digest()
    else:
        bits = "256" if key.alg == "none" else key.alg[-3:]
        digest = hashlib.new(f"sha{bits}", data).digest()
    return base64url(digest[: len(digest) // 2])


def _claims(idp: MockIdP, access: AccessEntry, occasion: Occasion) -> dict[str, Any]:
    """Return the right claims, but for ``at_hash``."""
    grant = access.grant
    user = idp.users.get(grant.subject)
    claims = user.claims_for(access.scope) if user is not None else {}
    now = idp.now()
    claims |= {
        "iss": idp.issuer,
        "sub": grant.subject,
        "aud": grant.client_id,
        "exp": int(now + idp.rules.id_token_lifetime),
        "iat": int(now),
    }
    how = grant.authentication
    if how is not None:
        claims |= {"auth_time": int(how.auth_time), "acr": how.acr, "sid": how.sid}
        # A refreshed one should have no nonce: nobody could compare it (§12.2).
        if how.nonce is not None and occasion == "code":
            claims["nonce"] = how.nonce
    return claims


def _key_for(idp: MockIdP, grant: MockGrant, forgery: IDTokenForgery | None) -> AnyKey:
    """Return what signs: the client's usual key, unless the forgery has another."""
    client = idp.clients.get(grant.client_id)
    usual = (client.id_token_alg if client else None) or idp.signing_alg
    alg = (forgery.alg if forgery else None) or usual
    given = forgery.key if forgery else None
    if isinstance(given, bytes):
        named = forgery.alg if forgery else None
        return SecretKey(named or SECRET_ALGORITHMS[0], given)
    if isinstance(given, SigningKey):
        return given
    if alg == "none":
        return NoKey()
    if alg in SECRET_ALGORITHMS:
        secret = (client.client_secret if client else None) or ""
        return SecretKey(alg, secret.encode())
    return idp.current_key(alg)


def _forged_headers(headers: dict[str, Any], forgery: IDTokenForgery) -> dict[str, Any]:
    """Return the header as the forgery wants it."""
    changes = dict(forgery.headers)
    if not isinstance(forgery.kid, type(...)):
        changes["kid"] = forgery.kid
    merged = {**headers, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _with_broken_signature(token: str, key: AnyKey) -> str:
    """Return a token whose signature is wrong by one bit."""
    signing_input = token.rpartition(".")[0]
    first, *rest = key.signature(signing_input.encode()) or b"\0"
    return f"{signing_input}.{base64url(bytes([first ^ 1, *rest]))}"

"""``at_hash`` and ``c_hash``: what ties an ID token to an access token or a code."""

from __future__ import annotations

import hashlib

from freshtoken._protocol.base64url import encode_base64url
from freshtoken._protocol.rejection import rejected
from freshtoken.errors import RejectionReason

# "EdDSA" says nothing about the hash: the curve of the key does.
_HASH_OF_CURVE = {"Ed25519": "sha512", "Ed448": "shake_256"}
_HASH_OF_SIZE = {"256": "sha256", "384": "sha384", "512": "sha512"}
_FAMILIES = frozenset({"RS", "PS", "ES", "HS"})
_SHAKE_OCTETS = 114


def half_hash(alg: str, crv: str | None, value: str) -> str:
    """Return the left half of the hash of a token or code, in base64url.

    Args:
        alg: The algorithm that signed the ID token.
        crv: The curve of the key that verified it; counts for ``EdDSA`` only.
        value: The access token or the code.

    Raises:
        TokenRejectedError: No hash belongs to this algorithm.

    Spec: OIDC Core §3.1.3.6, §3.3.2.11; for Ed25519 and Ed448 the OpenID draft on
    hash algorithms of ID token hashes: SHA-512, and SHAKE256 with 114 octets.
    """
    octets = value.encode()
    name = _hash_name(alg, crv)
    if name is None:
        raise rejected(
            RejectionReason.ALGORITHM,
            "The token is refused: no hash belongs to its algorithm, so that at_hash "
            "cannot be checked. Have the server sign with another one.",
            claim="alg",
            received=alg,
        )
    if name == "shake_256":
        digest = hashlib.shake_256(octets).digest(_SHAKE_OCTETS)
    else:
        digest = hashlib.new(name, octets).digest()
    return encode_base64url(digest[: len(digest) // 2])


def _hash_name(alg: str, crv: str | None) -> str | None:
    """Return the name of the hash that belongs to an algorithm."""
    if alg[:2] in _FAMILIES:
        return _HASH_OF_SIZE.get(alg[2:])
    return _HASH_OF_CURVE.get((crv or "") if alg == "EdDSA" else alg)

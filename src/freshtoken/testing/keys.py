"""Keys for tests: made once in a process, when first asked for."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PrivateKey: TypeAlias = (
    rsa.RSAPrivateKey
    | ec.EllipticCurvePrivateKey
    | ed25519.Ed25519PrivateKey
    | ed448.Ed448PrivateKey
)

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_RSA_BITS = 2048
_MAKERS: dict[str, Callable[[], PrivateKey]] = {
    **dict.fromkeys(_RSA, lambda: rsa.generate_private_key(65537, _RSA_BITS)),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ES512": lambda: ec.generate_private_key(ec.SECP521R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
    "Ed448": ed448.Ed448PrivateKey.generate,
}
_HMAC_HASHES = {
    "HS256": hashlib.sha256,
    "HS384": hashlib.sha384,
    "HS512": hashlib.sha512,
}
SECRET_ALGORITHMS = tuple(_HMAC_HASHES)
ALGORITHMS = (*_MAKERS, *SECRET_ALGORITHMS, "none")
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, repr=False)
class SigningKey:
    """A private key, and the one algorithm that it signs with.

    Attributes:
        alg: As a JOSE header names it.
    """

    kid: str
    alg: str
    private_key: PrivateKey

    def private_pem(self) -> str:
        """Return the key in PKCS #8, unencrypted."""
        return self.private_key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        ).decode()

    def public_jwk(self, **members: object) -> dict[str, Any]:
        """Return the public half as a JWK, for signatures.

        Args:
            members: Set beside the usual ones; ``None`` leaves a member out.
        """
        public = self.private_key.public_key()
        jwk: dict[str, Any]
        if isinstance(public, rsa.RSAPublicKey):
            jwk = RSAAlgorithm.to_jwk(public, as_dict=True)
        elif isinstance(public, ec.EllipticCurvePublicKey):
            jwk = ECAlgorithm.to_jwk(public, as_dict=True)
        else:
            jwk = OKPAlgorithm.to_jwk(public, as_dict=True)
        jwk.pop("key_ops", None)
        jwk |= {"kid": self.kid, "alg": self.alg, "use": "sig", **members}
        return {name: value for name, value in jwk.items() if value is not None}

    def sign(
        self, claims: Mapping[str, Any], headers: Mapping[str, Any] | None = None
    ) -> str:
        """Return a signed JWT in compact form, with this key's ``kid``."""
        alg = "EdDSA" if self.alg.startswith("Ed") else self.alg
        return jwt.encode(
            dict(claims),
            self.private_key,
            algorithm=alg,
            headers={"kid": self.kid, "alg": self.alg, **(headers or {})},
        )

    def signature(self, data: bytes) -> bytes:
        """Return the signature of *data* by this key's algorithm."""
        alg = "EdDSA" if self.alg.startswith("Ed") else self.alg
        return jwt.get_algorithm_by_name(alg).sign(data, self.private_key)

    def __repr__(self) -> str:
        """Show no key material."""
        return f"SigningKey({self.kid!r}, {self.alg})"


@dataclass(frozen=True, slots=True, repr=False)
class SecretKey:
    """A shared secret that signs: HS256, HS384 or HS512.

    Attributes:
        kid: None, since no key set has it.
    """

    alg: str
    secret: bytes
    kid: None = None

    def signature(self, data: bytes) -> bytes:
        """Return the keyed hash of *data*."""
        return hmac.digest(self.secret, data, _HMAC_HASHES[self.alg])

    def __repr__(self) -> str:
        """Show no key material."""
        return f"SecretKey({self.alg})"


@dataclass(frozen=True, slots=True)
class NoKey:
    """What "signs" an unsigned token (RFC 7515 §3.6, RFC 7518 §3.6)."""

    alg: str = "none"
    kid: None = None

    def signature(self, data: bytes) -> bytes:  # noqa: ARG002 -- as keys have it
        """Return nothing."""
        return b""


AnyKey: TypeAlias = SigningKey | SecretKey | NoKey


def compact_jws(
    headers: Mapping[str, Any], claims: Mapping[str, Any], key: AnyKey
) -> str:
    """Return a JWT that says exactly this: nothing is added, nothing is checked."""
    parts = [base64url(json.dumps(dict(part)).encode()) for part in (headers, claims)]
    signature = key.signature(".".join(parts).encode())
    return ".".join([*parts, base64url(signature)])


def base64url(data: bytes) -> str:
    """Return the unpadded form that JOSE uses (RFC 7515 §2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signing_key(alg: str = "RS256", name: str = "test") -> SigningKey:
    """Return the key of this name for an algorithm: always the same in a process.

    Raises:
        ValueError: No key can be made for *alg*.
    """
    if alg not in _MAKERS:
        message = f"no key for {alg!r}; there are {', '.join(_MAKERS)}"
        raise ValueError(message)
    kind = "RSA" if alg in _RSA else alg
    with _lock:
        private_key = _private_key(kind, name)
    return SigningKey(f"{name}-{alg}", alg, private_key)


def jwk_set(*keys: SigningKey) -> dict[str, list[dict[str, Any]]]:
    """Return the public halves as a JWK set (RFC 7517 §5)."""
    return {"keys": [key.public_jwk() for key in keys]}


@functools.cache
def _private_key(kind: str, name: str) -> PrivateKey:  # noqa: ARG001 -- part of the key of the cache
    """Make a key, once for each kind and name; RSA algorithms share theirs."""
    return _MAKERS["RS256" if kind == "RSA" else kind]()

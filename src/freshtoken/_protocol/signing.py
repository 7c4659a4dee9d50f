"""Private keys, prepared once, and compact signatures by them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import (
    ECAlgorithm,
    OKPAlgorithm,
    RSAAlgorithm,
    get_default_algorithms,
)
from jwt.exceptions import PyJWTError

from freshtoken._foundation.secret import MASK, Secret, refuse_pickle, reveal
from freshtoken._protocol.base64url import encode_base64url
from freshtoken._protocol.settings import check_identifier, refuse

PrivateKey: TypeAlias = (
    rsa.RSAPrivateKey
    | ec.EllipticCurvePrivateKey
    | ed25519.Ed25519PrivateKey
    | ed448.Ed448PrivateKey
)
PrivateKeySource: TypeAlias = str | bytes | Secret | Mapping[str, object] | PrivateKey

_RSA_ALGORITHMS = ("RS256", "PS256", "RS384", "PS384", "RS512", "PS512")
_EC_ALGORITHMS = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
# RFC 9864 gave the two curves of "EdDSA" names of their own.
_ED_ALGORITHMS = {"Ed25519": ("EdDSA", "Ed25519"), "Ed448": ("EdDSA", "Ed448")}

ASYMMETRIC_ALGORITHMS = (
    *_RSA_ALGORITHMS,
    *_EC_ALGORITHMS.values(),
    "EdDSA",
    "Ed25519",
    "Ed448",
)
# RFC 7518 §3.2: the key is at least as long as the hash.
HMAC_ALGORITHMS = {"HS256": 32, "HS384": 48, "HS512": 64}

_MIN_RSA_BITS = 2048
_ALGORITHMS = get_default_algorithms()


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class SigningKey:
    """A private key that is ready to sign.

    Attributes:
        key: The key object.
        kid: Name of its public half at the server, if known.
        algorithms: What it can sign with, the preferred one first.
        fingerprint: SHA-256 of its public half.
    """

    key: PrivateKey
    kid: str | None
    algorithms: tuple[str, ...]
    fingerprint: str

    def __repr__(self) -> str:
        return f"SigningKey({MASK}, kid={self.kid!r})"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)


def prepare_signing_key(
    source: PrivateKeySource | SigningKey, kid: str | None = None
) -> SigningKey:
    """Load a private key and find out what it can sign with.

    Args:
        source: PEM text, a JWK as a mapping, or a key object of ``cryptography``.
        kid: Name of the public half at the server; by default the JWK's own.

    Raises:
        MisconfiguredError: It is no private key, or none that is fit to sign.

    Spec: RFC 7518 §3, RFC 8037, RFC 9864.
    """
    if kid is not None:
        check_identifier("private_key_id", kid)
    if isinstance(source, SigningKey):
        return replace(source, kid=kid or source.kid)
    key, named_kid, named_algorithm = _load(source)
    algorithms = _algorithms_of(key)
    if named_algorithm is not None:
        if named_algorithm not in algorithms:
            refuse("private_key", "names an alg that its type of key does not have")
        algorithms = (named_algorithm,)
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    fingerprint = hashlib.sha256(public).hexdigest()
    return SigningKey(key, kid or named_kid, algorithms, fingerprint)


def sign_compact(
    key: SigningKey | Secret,
    algorithm: str,
    header: Mapping[str, object],
    claims: Mapping[str, object],
) -> str:
    """Return *claims* as a signed JWT in the compact form.

    Args:
        key: A private key, or the client secret for an HMAC.
        algorithm: One that fits the key: see `SigningKey.algorithms`.
        header: Members beside ``alg``.

    Spec: RFC 7515 §3.1, RFC 7518 §3.
    """
    protected = {**header, "alg": algorithm}
    signing_input = f"{_encode_json(protected)}.{_encode_json(claims)}"
    raw_key: Any = key.reveal().encode() if isinstance(key, Secret) else key.key
    name = "EdDSA" if algorithm in ("Ed25519", "Ed448") else algorithm
    signature = _ALGORITHMS[name].sign(signing_input.encode(), raw_key)
    return f"{signing_input}.{encode_base64url(signature)}"


def _load(source: PrivateKeySource) -> tuple[PrivateKey, str | None, str | None]:
    """Return the key, with ``kid`` and ``alg`` of a JWK."""
    kid = algorithm = None
    loaded: object = source
    if isinstance(source, Mapping):
        loaded = _load_jwk(source)
        kid = _text_member(source, "kid")
        algorithm = _text_member(source, "alg")
    elif isinstance(source, str | bytes | Secret):
        loaded = _load_pem(source)
    if not isinstance(loaded, PrivateKey):
        refuse(
            "private_key",
            "is no private key of a known type: give PEM text without a password, a "
            "JWK with its private members, or a key object of cryptography",
        )
    return loaded, kid, algorithm


def _load_pem(source: str | bytes | Secret) -> object:
    """Return the key object, or ``None``."""
    data = source if isinstance(source, bytes) else reveal(source).encode()
    try:
        return serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None


def _load_jwk(jwk: Mapping[str, object]) -> object:
    """Return the key object, or ``None``."""
    kinds: dict[object, Any] = {
        "RSA": RSAAlgorithm,
        "EC": ECAlgorithm,
        "OKP": OKPAlgorithm,
    }
    kind = kinds.get(jwk.get("kty")) if isinstance(jwk.get("kty"), str) else None
    if kind is None or jwk.get("use", "sig") != "sig":
        return None
    try:
        return kind.from_jwk(dict(jwk))
    except (
        PyJWTError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        UnsupportedAlgorithm,
    ):
        return None


def _text_member(jwk: Mapping[str, object], name: str) -> str | None:
    """Return a member of a JWK that has to be text if it is there."""
    value = jwk.get(name)
    if value is not None:
        check_identifier(f"private_key member {name}", value)
    return value if isinstance(value, str) else None


def _algorithms_of(key: PrivateKey) -> tuple[str, ...]:
    """Return what *key* can sign with, the most widely known first."""
    if isinstance(key, rsa.RSAPrivateKey):
        if key.key_size < _MIN_RSA_BITS:
            refuse("private_key", "is an RSA key of less than 2048 bits")
        return _RSA_ALGORITHMS
    if isinstance(key, ec.EllipticCurvePrivateKey):
        algorithm = _EC_ALGORITHMS.get(key.curve.name)
        if algorithm is None:
            refuse("private_key", "is on a curve other than P-256, P-384, P-521")
        return (algorithm,)
    curve = "Ed25519" if isinstance(key, ed25519.Ed25519PrivateKey) else "Ed448"
    return _ED_ALGORITHMS[curve]


def _encode_json(value: Mapping[str, object]) -> str:
    """Return compact JSON in base64url."""
    return encode_base64url(json.dumps(value, separators=(",", ":")).encode())

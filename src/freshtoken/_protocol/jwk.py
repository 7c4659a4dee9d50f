"""Public keys, prepared once, and what each of them may verify.

A key verifies with the algorithms of its own kind only, so that no public key can be
taken for an HMAC secret; one that names an ``alg`` verifies with that one alone. What
is weak, or meant for something else, is not loaded at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import Algorithm, get_default_algorithms

from freshtoken._foundation.secret import MASK, Secret, redact, refuse_pickle
from freshtoken._protocol.base64url import decode_base64url, encode_base64url
from freshtoken._protocol.rejection import rejected
from freshtoken._protocol.signing import HMAC_ALGORITHMS
from freshtoken.errors import MisconfiguredError, RejectionReason

PublicKey: TypeAlias = (
    rsa.RSAPublicKey
    | ec.EllipticCurvePublicKey
    | ed25519.Ed25519PublicKey
    | ed448.Ed448PublicKey
)
PublicKeySource: TypeAlias = str | bytes | Mapping[str, object] | PublicKey

MIN_RSA_BITS = 2048
# Verifying takes time with the square of it: above, a key is an attack on us.
MAX_RSA_BITS = 16_384
# OpenSSL verifies nothing with a longer one as soon as the modulus is a large one.
_MAX_EXPONENT_BITS = 64

_RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
# RFC 7518 §6.2.1.1: the algorithm of each curve; RFC 9864 gave the two curves of
# "EdDSA" algorithms of their own names.
_ALGORITHMS_OF_CURVE = {
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA", "Ed25519"),
    "Ed448": ("EdDSA", "Ed448"),
}
_EC_CURVES: dict[str, ec.EllipticCurve] = {
    "P-256": ec.SECP256R1(),
    "P-384": ec.SECP384R1(),
    "P-521": ec.SECP521R1(),
}
_ED_CURVES: dict[str, type[ed25519.Ed25519PublicKey | ed448.Ed448PublicKey]] = {
    "Ed25519": ed25519.Ed25519PublicKey,
    "Ed448": ed448.Ed448PublicKey,
}
_CURVE_NAMES = {curve.name: name for name, curve in _EC_CURVES.items()}
_VERIFYING = frozenset({"sign", "verify"})
_THUMBPRINT_MEMBERS = {
    "RSA": ("e", "kty", "n"),
    "EC": ("crv", "kty", "x", "y"),
    "OKP": ("crv", "kty", "x"),
    "oct": ("k", "kty"),
}
_PYJWT = get_default_algorithms()
_MAX_SHOWN = 30


class UnfitKeyError(Exception):
    """A key cannot verify a JWT; the text says why and continues "it"."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class VerificationKey:
    """A key that is ready to verify.

    Attributes:
        kid: Its name, if it has one.
        algorithms: The values of ``alg`` in a header that it may verify.
        crv: Its curve, if it is on one.
    """

    kid: str | None
    algorithms: tuple[str, ...]
    crv: str | None
    _key: Any
    _verifiers: Mapping[str, Algorithm]

    def verify(self, alg: str, signing_input: bytes, signature: bytes) -> bool:
        """Tell whether *signature* is this key's, made with this algorithm.

        Spec: RFC 7518 §3, RFC 8037 §3.1, RFC 9864 §2.2.
        """
        verifier = self._verifiers.get(alg)
        return verifier is not None and verifier.verify(
            signing_input, self._key, signature
        )

    def __repr__(self) -> str:
        return f"VerificationKey({MASK}, algorithms={self.algorithms!r})"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)


def read_jwk(member: object) -> VerificationKey:
    """Return the public key that a JWK describes; private members are dropped.

    Raises:
        UnfitKeyError: It is of another type, weak, broken, or not for signatures.

    Spec: RFC 7517 §4; RFC 7518 §3.3, §6; RFC 8037 §2; RFC 8725 §3.1.
    """
    if not isinstance(member, Mapping):
        raise UnfitKeyError("it is no JSON object")
    _check_purpose(member)
    kid, alg = _optional_text(member, "kid"), _optional_text(member, "alg")
    kty = member.get("kty")
    if kty == "RSA":
        return _prepare(_read_rsa(member), kid, alg)
    if kty == "EC":
        return _prepare(_read_ec(member), kid, alg)
    if kty == "OKP":
        return _prepare(_read_okp(member), kid, alg)
    if kty == "oct":
        raise UnfitKeyError("it is symmetric: everybody could sign with it")
    raise UnfitKeyError(f"its kty is not RSA, EC or OKP but {_shown(kty)}")


def load_key(source: PublicKeySource) -> VerificationKey:
    """Return the public key that an application gives.

    Args:
        source: PEM text (``BEGIN PUBLIC KEY``), a JWK as a mapping, or a public key
            object of ``cryptography``.

    Raises:
        MisconfiguredError: It is no public key, or none that is fit to verify.
    """
    key = _load_pem(source) if isinstance(source, str | bytes) else source
    reason = (
        "it is no public key of a known type: give PEM text, a JWK, or a key object "
        "of cryptography, and the public half only"
    )
    try:
        if isinstance(key, Mapping):
            return read_jwk(key)
        if isinstance(key, PublicKey):
            return _prepare(key, None, None)
    except UnfitKeyError as error:
        reason = str(error)
    message = f"keys holds a key that cannot verify: {reason}"
    raise MisconfiguredError(message, setting="keys")


def secret_key(secret: Secret, algorithms: Sequence[str]) -> VerificationKey:
    """Return the client secret as the key of an HMAC.

    Args:
        secret: Its UTF-8 octets are the key.
        algorithms: What was agreed on; only those stay for which it is long enough.

    Raises:
        TokenRejectedError: It is too short for all of them.

    Spec: OIDC Core §10.1; RFC 7518 §3.2.
    """
    key = secret.reveal().encode()
    agreed = [alg for alg in algorithms if alg in HMAC_ALGORITHMS]
    fitting = tuple(alg for alg in agreed if len(key) >= HMAC_ALGORITHMS[alg])
    if not fitting:
        least = min((HMAC_ALGORITHMS[alg] for alg in agreed), default=None)
        raise rejected(
            RejectionReason.UNFIT_KEY,
            "The token is refused: the client secret is too short for the HMAC that "
            "was agreed on. Get a longer one, or register another algorithm.",
            claim="alg",
            expected=None if least is None else f"{least} octets or more",
        )
    verifiers = {alg: _PYJWT[alg] for alg in fitting}
    return VerificationKey(None, fitting, None, key, verifiers)


def thumbprint(jwk: Mapping[str, object]) -> str:
    """Return the SHA-256 thumbprint of a JWK, which private members do not change.

    Raises:
        UnfitKeyError: A member that its type requires is missing.

    Spec: RFC 7638 §3, RFC 8037 §2.
    """
    kty = jwk.get("kty")
    names = _THUMBPRINT_MEMBERS.get(kty) if isinstance(kty, str) else None
    if names is None:
        raise UnfitKeyError(f"its kty is unknown: {_shown(kty)}")
    required = {name: jwk.get(name) for name in names}
    if not all(isinstance(value, str) for value in required.values()):
        raise UnfitKeyError(f"it lacks one of its members {', '.join(names)}")
    text = json.dumps(required, ensure_ascii=False, separators=(",", ":"))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return encode_base64url(digest)


def _check_purpose(member: Mapping[str, object]) -> None:
    """Refuse a key that is not for signatures, or that says two things about it."""
    use, operations = member.get("use"), member.get("key_ops")
    if use is not None and use != "sig":
        raise UnfitKeyError(f"its use is not sig but {_shown(use)}")
    if operations is None:
        return
    if not isinstance(operations, list) or "verify" not in operations:
        raise UnfitKeyError("its key_ops do not allow it to verify")
    if not all(isinstance(name, str) and name in _VERIFYING for name in operations):
        raise UnfitKeyError("its key_ops are for more than signatures")


def _read_rsa(member: Mapping[str, object]) -> rsa.RSAPublicKey:
    """Return an RSA key; its size is looked at before anything is computed."""
    modulus, exponent = _octets(member, "n"), _octets(member, "e")
    if len(modulus.lstrip(b"\x00")) * 8 > MAX_RSA_BITS:
        raise UnfitKeyError(f"it is an RSA key of more than {MAX_RSA_BITS} bits")
    n, e = int.from_bytes(modulus), int.from_bytes(exponent)
    _check_rsa(n, e)
    try:
        return rsa.RSAPublicNumbers(e, n).public_key()
    except ValueError:  # pragma: no cover - a later cryptography may refuse more
        pass
    raise UnfitKeyError("it is no RSA key")  # pragma: no cover - as above


def _check_rsa(n: int, e: int) -> None:
    """Refuse an RSA key that does not protect, or that takes too long."""
    if not MIN_RSA_BITS <= n.bit_length() <= MAX_RSA_BITS:
        raise UnfitKeyError(
            f"it is an RSA key of {n.bit_length()} bits, where {MIN_RSA_BITS} to "
            f"{MAX_RSA_BITS} are accepted"
        )
    if n % 2 == 0:
        raise UnfitKeyError("its modulus is even")
    if e <= 1 or e % 2 == 0 or e.bit_length() > _MAX_EXPONENT_BITS:
        raise UnfitKeyError("its public exponent is even, 1 or far too long")


def _read_ec(member: Mapping[str, object]) -> ec.EllipticCurvePublicKey:
    """Return a key on one of the three curves, with coordinates of full length."""
    name = member.get("crv")
    curve = _EC_CURVES.get(name) if isinstance(name, str) else None
    if curve is None:
        raise UnfitKeyError(f"its crv is not one of the known: {_shown(name)}")
    x, y = _octets(member, "x"), _octets(member, "y")
    length = (curve.key_size + 7) // 8
    if len(x) != length or len(y) != length:
        raise UnfitKeyError("its coordinates have not the length of the curve")
    numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(x), int.from_bytes(y), curve)
    try:
        return numbers.public_key()
    except ValueError:
        pass
    raise UnfitKeyError("its point is not on the curve")


def _read_okp(
    member: Mapping[str, object],
) -> ed25519.Ed25519PublicKey | ed448.Ed448PublicKey:
    """Return a key for Ed25519 or Ed448."""
    name = member.get("crv")
    kind = _ED_CURVES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UnfitKeyError(f"its crv is not for signatures: {_shown(name)}")
    x = _octets(member, "x")
    try:
        return kind.from_public_bytes(x)
    except (ValueError, UnsupportedAlgorithm):
        pass
    raise UnfitKeyError("it is no key of its curve")


def _load_pem(source: str | bytes) -> object:
    """Return the key object, or ``None``."""
    try:
        data = source if isinstance(source, bytes) else source.encode()
        return serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        return None


def _prepare(key: PublicKey, kid: str | None, alg: str | None) -> VerificationKey:
    """Bind a key to what it may verify: one algorithm, if it names one."""
    crv, algorithms = _kind_of(key)
    if alg is not None and alg not in algorithms:
        raise UnfitKeyError(f"its alg is not one of its type: {_shown(alg)}")
    if alg is not None and crv not in _ED_CURVES:
        algorithms = (alg,)
    verifiers = {
        name: _PYJWT["EdDSA" if crv in _ED_CURVES else name] for name in algorithms
    }
    return VerificationKey(kid, algorithms, crv, key, verifiers)


def _kind_of(key: PublicKey) -> tuple[str | None, tuple[str, ...]]:
    """Return the curve of a key, and the algorithms of its type."""
    if isinstance(key, rsa.RSAPublicKey):
        numbers = key.public_numbers()
        _check_rsa(numbers.n, numbers.e)
        return None, _RSA_ALGORITHMS
    if isinstance(key, ec.EllipticCurvePublicKey):
        crv = _CURVE_NAMES.get(key.curve.name)
        if crv is None:
            raise UnfitKeyError("it is on a curve other than P-256, P-384 and P-521")
    else:
        crv = "Ed25519" if isinstance(key, ed25519.Ed25519PublicKey) else "Ed448"
    return crv, _ALGORITHMS_OF_CURVE[crv]


def _octets(member: Mapping[str, object], name: str) -> bytes:
    """Return a member that is written in base64url."""
    value = member.get(name)
    if not isinstance(value, str) or not value.isascii():
        raise UnfitKeyError(f"its member {name} is missing, or no base64url")
    octets = decode_base64url(value.encode())
    if octets is None:
        raise UnfitKeyError(f"its member {name} is no base64url")
    return octets


def _optional_text(member: Mapping[str, object], name: str) -> str | None:
    """Return a member that has to be text if it is there."""
    value = member.get(name)
    if value is not None and not isinstance(value, str):
        raise UnfitKeyError(f"its member {name} is not text")
    return value


def _shown(value: object) -> str:
    """Return a word of the key for an explanation, cut and masked."""
    return redact(value)[:_MAX_SHOWN] if isinstance(value, str) else "not text"

"""Private keys, made once for all tests of client assertions."""

from __future__ import annotations

import json
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.protocol.helpers import Anything

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
WEAK_RSA = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505
P256 = ec.generate_private_key(ec.SECP256R1())
P384 = ec.generate_private_key(ec.SECP384R1())
P521 = ec.generate_private_key(ec.SECP521R1())
K256 = ec.generate_private_key(ec.SECP256K1())
ED25519 = ed25519.Ed25519PrivateKey.generate()
ED448 = ed448.Ed448PrivateKey.generate()


def pem_of(key: Anything, password: bytes | None = None) -> str:
    """Return a private key as PEM text."""
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password)
    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
    return pem.decode()


def public_pem_of(key: Anything) -> str:
    """Return the public half as PEM text."""
    pem: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem.decode()


def jwk_of(key: Anything) -> dict[str, Any]:
    """Return a private key as a JWK."""
    if isinstance(key, rsa.RSAPrivateKey):
        text = RSAAlgorithm.to_jwk(key)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        text = ECAlgorithm.to_jwk(key)
    else:
        text = OKPAlgorithm.to_jwk(key)
    jwk: dict[str, Any] = json.loads(text)
    return jwk


RSA_PEM = pem_of(RSA)

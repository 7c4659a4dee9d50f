"""The hashes that tie an ID token to an access token or a code."""

from __future__ import annotations

import hashlib

import pytest

from freshtoken._protocol.base64url import encode_base64url
from freshtoken._protocol.token_hash import half_hash
from freshtoken.errors import RejectionReason, TokenRejectedError


@pytest.mark.spec("Core-hash-alg")
@pytest.mark.parametrize(
    ("alg", "value", "expected"),
    [
        # OIDC Core, Appendix A: an access token and a code.
        (
            "RS256",
            "jHkWEdUXMU1BwAsC4vtUsZwnNvTIxEl0z9K3vx5KF0Y",
            "77QmUPtjPfzWtF2AnpK9RQ",
        ),
        (
            "RS256",
            "Qcb0Orv1zh30vL1MPRsbm-diHiMwcLyZvn1arpZv-Jxf_11jnpEX3Tgfvk",
            "LDktKdoQak3Pk0cnXxCltA",
        ),
        # Field note ID-14: libraries that take SHA-256 for everything.
        ("RS256", "at-probe-0001", "e2C9-RVqa8N4OjENc_bscQ"),
        ("ES384", "at-probe-0001", "eaxgYtvhGETNH2SOhTzcFP9fyJ440YJC"),
        (
            "PS512",
            "at-probe-0001",
            "K9ILjnEDryeutL0tiilB8QXrYIeJONbTMiqlCQJqck4",
        ),
    ],
)
def test_published_hashes_are_met(alg: str, value: str, expected: str) -> None:
    assert half_hash(alg, None, value) == expected


@pytest.mark.spec("Core-hash-alg")
@pytest.mark.parametrize("size", ["256", "384", "512"])
@pytest.mark.parametrize("family", ["RS", "PS", "ES", "HS"])
def test_the_hash_follows_the_algorithm(family: str, size: str) -> None:
    digest = hashlib.new(f"sha{size}", b"abc").digest()
    left = digest[: int(size) // 16]

    assert half_hash(family + size, None, "abc") == encode_base64url(left)


@pytest.mark.spec("Core-hash-alg")
@pytest.mark.parametrize(
    ("alg", "crv", "digest"),
    [
        ("EdDSA", "Ed25519", hashlib.sha512(b"abc").digest()),
        ("Ed25519", "Ed25519", hashlib.sha512(b"abc").digest()),
        ("EdDSA", "Ed448", hashlib.shake_256(b"abc").digest(114)),
        ("Ed448", "Ed448", hashlib.shake_256(b"abc").digest(114)),
    ],
)
def test_edwards_curves_have_hashes_of_their_own(
    alg: str, crv: str, digest: bytes
) -> None:
    left = digest[: len(digest) // 2]

    assert half_hash(alg, crv, "abc") == encode_base64url(left)


@pytest.mark.parametrize(
    ("alg", "crv"),
    [("EdDSA", None), ("EdDSA", "P-256"), ("none", None), ("RS1", None), ("", "")],
)
def test_an_algorithm_without_a_hash_is_refused(alg: str, crv: str | None) -> None:
    with pytest.raises(TokenRejectedError) as caught:
        half_hash(alg, crv, "abc")

    assert caught.value.reason is RejectionReason.ALGORITHM

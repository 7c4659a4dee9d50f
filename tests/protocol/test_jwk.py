"""Which keys are loaded, and what each of them may verify."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from freshtoken._foundation.secret import Secret
from freshtoken._protocol.jwk import (
    MAX_RSA_BITS,
    UnfitKeyError,
    load_key,
    read_jwk,
    secret_key,
    thumbprint,
)
from freshtoken._protocol.jws import parse_jwt
from freshtoken.errors import MisconfiguredError, RejectionReason, TokenRejectedError
from tests.protocol.helpers import Anything
from tests.protocol.jose import b64, public_jwk, sign, verifier, without
from tests.protocol.keys import (
    ED448,
    ED25519,
    K256,
    P256,
    P384,
    P521,
    RSA,
    RSA_PEM,
    WEAK_RSA,
    jwk_of,
    pem_of,
    public_pem_of,
)

RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
SUPPORTED = [
    *((RSA, alg) for alg in RSA_ALGORITHMS),
    (P256, "ES256"),
    (P384, "ES384"),
    (P521, "ES512"),
    (ED25519, "EdDSA"),
    (ED25519, "Ed25519"),
    (ED448, "EdDSA"),
    (ED448, "Ed448"),
]


def octets(bits: int) -> str:
    """Return an odd number of so many bits as a JWK writes it."""
    value = (1 << (bits - 1)) | 1
    return b64(value.to_bytes((bits + 7) // 8))


def signed(key: Anything, alg: str) -> tuple[bytes, bytes]:
    """Return what was signed, and the signature."""
    jwt = parse_jwt(sign(key, alg))
    return jwt.signing_input, jwt.signature


def unfit(member: object) -> str:
    with pytest.raises(UnfitKeyError) as caught:
        read_jwk(member)
    assert caught.value.__context__ is None
    return str(caught.value)


@pytest.mark.spec("7518-3.6")
@pytest.mark.parametrize(("key", "alg"), SUPPORTED)
def test_every_supported_algorithm_verifies(key: Anything, alg: str) -> None:
    message, signature = signed(key, alg)
    loaded = verifier(key)

    assert alg in loaded.algorithms
    assert loaded.verify(alg, message, signature)
    assert not loaded.verify(alg, message + b"x", signature)
    assert not loaded.verify(alg, message, signature[:-1])
    assert not loaded.verify(alg, message, b"")


@pytest.mark.spec("8725-3.1-keyalg")
@pytest.mark.parametrize("alg", RSA_ALGORITHMS)
def test_a_key_that_names_an_algorithm_verifies_with_that_one_alone(alg: str) -> None:
    loaded = verifier(RSA, alg=alg)

    assert loaded.algorithms == (alg,)
    for other in RSA_ALGORITHMS:
        assert loaded.verify(other, *signed(RSA, other)) == (other == alg)


@pytest.mark.spec("8725-3.1-keyalg")
@pytest.mark.parametrize(
    ("key", "alg"),
    [
        (RSA, "ES256"),
        (RSA, "HS256"),
        (RSA, "RSA1_5"),
        (RSA, "none"),
        (P256, "ES384"),
        (P256, "ES256K"),
        (ED25519, "Ed448"),
        (ED448, "Ed25519"),
        (P256, 7),
    ],
)
def test_a_key_that_names_an_algorithm_of_another_type_is_unfit(
    key: Anything, alg: object
) -> None:
    assert "alg" in unfit(public_jwk(key, alg=alg))


@pytest.mark.spec("9864-2.2")
@pytest.mark.parametrize(
    ("key", "name", "other"),
    [(ED25519, "Ed25519", "Ed448"), (ED448, "Ed448", "Ed25519")],
)
@pytest.mark.parametrize("named", [None, "EdDSA", "curve"])
def test_both_names_of_an_edwards_algorithm_are_understood(
    key: Anything, name: str, other: str, named: str | None
) -> None:
    loaded = verifier(key, alg=name if named == "curve" else named)

    assert loaded.algorithms == ("EdDSA", name)
    assert loaded.crv == name
    assert loaded.verify(name, *signed(key, "EdDSA"))
    assert not loaded.verify(other, *signed(key, "EdDSA"))


@pytest.mark.spec("8725-3.1-confusion")
@pytest.mark.parametrize("key", [RSA, P256, ED25519])
@pytest.mark.parametrize("alg", ["HS256", "HS384", "HS512", "none"])
def test_a_public_key_is_never_a_secret(key: Anything, alg: str) -> None:
    assert not verifier(key).verify(alg, b"a", b"")


@pytest.mark.spec("7518-3.4-a")
@pytest.mark.parametrize(
    ("key", "alg"), [(P256, "ES256"), (P384, "ES384"), (P521, "ES512")]
)
def test_an_ecdsa_signature_is_raw_and_of_exact_length(key: Anything, alg: str) -> None:
    message, signature = signed(key, alg)
    sizes = {"ES256": hashes.SHA256(), "ES384": hashes.SHA384()}
    der = key.sign(message, ec.ECDSA(sizes.get(alg, hashes.SHA512())))
    half = len(signature) // 2
    r, s = signature[:half], signature[half:]
    loaded = verifier(key)

    assert decode_dss_signature(der)
    for wrong in (
        der,
        signature + b"\x00",
        b"\x00" + signature,
        b"\x00" + r + b"\x00" + s,
        bytes(2 * half),
        s + r,
        r + bytes(half),
    ):
        assert not loaded.verify(alg, message, wrong)
    assert loaded.verify(alg, message, signature)


@pytest.mark.spec("7518-3.3")
def test_the_size_of_an_rsa_key_is_bounded_on_both_sides() -> None:
    for bits in (512, 1024, 2047, MAX_RSA_BITS + 1, 65_536):
        assert "bits" in unfit({"kty": "RSA", "n": octets(bits), "e": "AQAB"})
    for bits in (2048, MAX_RSA_BITS):
        loaded = read_jwk({"kty": "RSA", "n": octets(bits), "e": "AQAB"})
        assert loaded.algorithms == RSA_ALGORITHMS
    assert "bits" in unfit(public_jwk(WEAK_RSA))


@pytest.mark.spec("7518-3.3")
@pytest.mark.parametrize("exponent", [0, 1, 2, 65_536, (1 << 64) + 1])
def test_an_odd_public_exponent_above_one_is_required(exponent: int) -> None:
    e = b64(exponent.to_bytes(9))

    assert "exponent" in unfit(public_jwk(RSA, e=e))


@pytest.mark.spec("7518-3.3")
def test_an_even_modulus_is_unfit() -> None:
    n = b64(((1 << 2047) | 2).to_bytes(256))

    assert "even" in unfit(public_jwk(RSA, n=n))


def test_a_modulus_may_begin_with_zeros() -> None:
    n = b64(b"\x00" * 3 + RSA.public_key().public_numbers().n.to_bytes(256))

    assert read_jwk(public_jwk(RSA, n=n)).verify("RS256", *signed(RSA, "RS256"))


@pytest.mark.spec("7518-6.2.1.2")
@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("length", [0, 31, 33])
def test_coordinates_of_another_length_are_unfit(name: str, length: int) -> None:
    assert "length" in unfit(public_jwk(P256, **{name: b64(b"\x01" * length)}))


@pytest.mark.spec("7518-3.4-b")
def test_a_point_off_the_curve_is_unfit() -> None:
    assert "curve" in unfit(public_jwk(P256, y=b64(b"\x01" * 32)))


@pytest.mark.spec("7517-5")
@pytest.mark.parametrize(
    "member",
    [
        None,
        "key",
        [],
        {},
        {"kty": "AKP"},
        {"kty": 1},
        {"kty": ["RSA"]},
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": ["P-256"]},
        {"kty": "OKP", "crv": "X25519", "x": "AA"},
        {"kty": "OKP", "crv": None},
        {"kty": "OKP", "crv": "Ed25519", "x": "AA"},
        {"kty": "RSA", "e": "AQAB"},
        {"kty": "RSA", "n": 5, "e": "AQAB"},
        {"kty": "RSA", "n": "ä", "e": "AQAB"},
        {"kty": "RSA", "n": "A=", "e": "AQAB"},
        public_jwk(P256, kid=5),
        {"kty": "EC", "crv": "P-256"},
    ],
)
def test_unknown_and_broken_keys_are_unfit(member: object) -> None:
    assert unfit(member).startswith("it")


@pytest.mark.spec("7517-4.2")
@pytest.mark.parametrize(
    "members",
    [
        {"use": "enc"},
        {"use": "SIG"},
        {"use": 1},
        {"key_ops": ["encrypt"]},
        {"key_ops": []},
        {"key_ops": "verify"},
        {"key_ops": ["sign"]},
        {"key_ops": ["verify", "encrypt"]},
        {"key_ops": ["verify", 1]},
        {"use": "sig", "key_ops": ["encrypt"]},
        {"use": "enc", "key_ops": ["verify"]},
    ],
)
def test_a_key_for_something_else_is_unfit(members: Mapping[str, object]) -> None:
    assert unfit(public_jwk(P256, **members))


@pytest.mark.spec("7517-4.2")
@pytest.mark.parametrize(
    "members",
    [{"use": "sig"}, {"key_ops": ["verify"]}, {"use": "sig", "key_ops": ["verify"]}],
)
def test_a_key_for_signatures_is_fit(members: Mapping[str, object]) -> None:
    assert verifier(P256, **members).algorithms == ("ES256",)


@pytest.mark.spec("7517-private")
def test_private_members_are_dropped_and_secrets_are_unfit() -> None:
    loaded = read_jwk(jwk_of(P256))

    assert not hasattr(loaded._key, "private_numbers")
    assert "symmetric" in unfit({"kty": "oct", "k": b64(b"k" * 64), "alg": "HS256"})


@pytest.mark.parametrize("key", [RSA, P256, P384, P521, ED25519, ED448])
def test_local_keys_come_as_pem_jwk_or_object(key: Anything) -> None:
    pem = public_pem_of(key)

    for source in (pem, pem.encode(), public_jwk(key), key.public_key()):
        loaded = load_key(source)
        assert loaded.kid is None
        assert loaded.algorithms == verifier(key).algorithms


@pytest.mark.parametrize(
    "source",
    [
        "",
        "secret",
        "\udc80",
        b"\xff",
        RSA_PEM,
        pem_of(P256),
        RSA,
        None,
        7,
        public_pem_of(WEAK_RSA),
        WEAK_RSA.public_key(),
        public_pem_of(K256),
        {"kty": "oct", "k": "AA"},
        {},
    ],
)
def test_a_local_key_that_cannot_verify_is_a_wrong_setting(source: Anything) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        load_key(source)

    assert caught.value.setting == "keys"
    assert caught.value.__context__ is None
    assert "PRIVATE" not in str(caught.value)


@pytest.mark.spec("7518-3.2")
@pytest.mark.parametrize(("alg", "size"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_a_client_secret_is_as_long_as_the_hash_or_refused(alg: str, size: int) -> None:
    secret = "k" * size
    loaded = secret_key(Secret(secret), (alg, "RS256"))

    assert loaded.algorithms == (alg,)
    assert loaded.verify(alg, *signed(secret.encode(), alg))
    assert not loaded.verify(alg, *signed(b"x" * size, alg))
    for short in (secret[:-1], ""):
        with pytest.raises(TokenRejectedError) as caught:
            secret_key(Secret(short), (alg,))
        assert caught.value.reason is RejectionReason.UNFIT_KEY
        assert caught.value.expected == f"{size} octets or more"


@pytest.mark.spec("7518-3.2")
def test_a_client_secret_keeps_the_algorithms_that_it_is_long_enough_for() -> None:
    loaded = secret_key(Secret("ä" * 24), ("HS256", "HS384", "HS512"))

    assert loaded.algorithms == ("HS256", "HS384")
    with pytest.raises(TokenRejectedError) as caught:
        secret_key(Secret("k" * 64), ("RS256",))
    assert caught.value.expected is None


@pytest.mark.spec("7638-3")
@pytest.mark.parametrize("key", [RSA, P256, ED25519])
def test_a_thumbprint_is_that_of_the_required_members_alone(key: Anything) -> None:
    public = public_jwk(key)
    turned = dict(reversed(list(public.items())))

    assert thumbprint(jwk_of(key)) == thumbprint({**turned, "kid": "a", "use": "sig"})
    assert len(thumbprint(public)) == 43


@pytest.mark.parametrize(
    "jwk", [{}, {"kty": "X"}, {"kty": 1}, without(public_jwk(P256), "y")]
)
def test_a_key_without_its_members_has_no_thumbprint(jwk: dict[str, object]) -> None:
    with pytest.raises(UnfitKeyError):
        thumbprint(jwk)


@pytest.mark.spec("SEC-repr")
def test_a_key_does_not_show_itself_and_is_not_pickled() -> None:
    secret = "k" * 31 + "secret-7"
    loaded = secret_key(Secret(secret), ("HS256",))

    assert secret not in repr(loaded)
    assert "HS256" in repr(loaded)
    with pytest.raises(TypeError):
        pickle.dumps(loaded)
    with pytest.raises(TypeError):
        copy.copy(loaded)

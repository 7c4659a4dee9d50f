"""Which key of a set verifies a token."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._protocol.base64url import encode_base64url
from freshtoken._protocol.body import UnreadableError
from freshtoken._protocol.jwk import VerificationKey
from freshtoken._protocol.jwks import (
    EMPTY,
    REFETCH_REASONS,
    JWKSet,
    parse_jwk_set,
    verify_jwt,
)
from freshtoken._protocol.jws import parse_jwt
from freshtoken.errors import RejectionReason, TokenRejectedError
from tests.protocol.helpers import Anything
from tests.protocol.jose import public_jwk, sign, verifier
from tests.protocol.keys import ED25519, P256, RSA, jwk_of, public_pem_of
from tests.protocol.strategies import json_values


def key_set(*members: object) -> JWKSet:
    return parse_jwk_set({"keys": list(members)})


def accept(token: str, keys: JWKSet, *algorithms: str) -> VerificationKey:
    return verify_jwt(parse_jwt(token), keys, algorithms=algorithms)


def refusal(token: str, keys: JWKSet, *algorithms: str) -> TokenRejectedError:
    with pytest.raises(TokenRejectedError) as caught:
        verify_jwt(parse_jwt(token), keys, algorithms=algorithms)
    return caught.value


@pytest.mark.spec("7517-5-keys")
@pytest.mark.parametrize("document", [{"keys": {}}, {}, [], None, "x", {"keys": None}])
def test_what_has_no_list_of_keys_is_no_key_set(document: object) -> None:
    with pytest.raises(UnreadableError):
        parse_jwk_set(document)


@pytest.mark.spec("7517-5")
@pytest.mark.spec("7517-5-keys")
@pytest.mark.spec("7517-private")
def test_keys_that_cannot_be_used_do_not_spoil_the_rest() -> None:
    keys = key_set(
        "text",
        {"kty": "AKP"},
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "X25519", "x": "AA"},
        {"kty": "RSA", "n": 1},
        {"kty": "oct", "k": "A" * 64, "kid": "good"},
        jwk_of(P256) | {"kid": "good"},
    )

    accept(sign(P256, "ES256", kid="good"), keys, "ES256")
    assert [key.algorithms for key in keys.keys] == [("ES256",)]
    assert [text.split(":")[0] for text in keys.skipped] == [
        f"key {number}" for number in range(1, 7)
    ]


@pytest.mark.spec("Core-10.1-kid-single")
def test_without_a_kid_the_one_key_that_fits_is_used() -> None:
    keys = key_set(
        public_jwk(RSA, use="enc"),
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
        public_jwk(P256),
        public_jwk(ED25519),
        {"kty": "RSA", "n": "!"},
        public_jwk(RSA, use="sig"),
    )

    key = accept(sign(RSA, "RS256"), keys, "RS256")

    assert "RS256" in key.algorithms


@pytest.mark.spec("Core-10.1-kid-many")
def test_without_a_kid_several_fitting_keys_are_ambiguous() -> None:
    keys = key_set(public_jwk(RSA, kid="a"), public_jwk(RSA, kid="b"))

    error = refusal(sign(RSA, "RS256"), keys, "RS256")

    assert error.reason is RejectionReason.AMBIGUOUS_KEY
    assert error.reason not in REFETCH_REASONS


def p256_keys(count: int, *, right: int) -> Sequence[VerificationKey]:
    """Return keys for ES256, of which one is that of the tests."""
    others = [ec.generate_private_key(ec.SECP256R1()) for _ in range(count)]
    if right >= 0:
        others[right] = P256
    return [verifier(key, kid=f"k{number}") for number, key in enumerate(others)]


@pytest.mark.spec("Core-10.1-kid-many")
@pytest.mark.parametrize("right", [0, 3, 7])
def test_up_to_eight_keys_are_tried_if_the_caller_allows_it(right: int) -> None:
    keys = JWKSet(tuple(p256_keys(8, right=right)), ())

    key = verify_jwt(
        parse_jwt(sign(P256, "ES256")),
        keys,
        algorithms=("ES256",),
        allow_kid_less_trial=True,
    )

    assert key.kid == f"k{right}"


@pytest.mark.spec("Core-10.1-kid-many")
@pytest.mark.parametrize(
    ("count", "right", "kid", "reason"),
    [
        (9, 0, None, RejectionReason.AMBIGUOUS_KEY),
        (8, -1, None, RejectionReason.SIGNATURE),
        (1, -1, None, RejectionReason.SIGNATURE),
        (8, 0, "elsewhere", RejectionReason.UNKNOWN_KEY),
        (8, 0, "k1", RejectionReason.SIGNATURE),
    ],
)
def test_trying_keys_has_its_limits(
    count: int, right: int, kid: str | None, reason: RejectionReason
) -> None:
    keys = JWKSet(tuple(p256_keys(count, right=right)), ())
    header = {} if kid is None else {"kid": kid}

    with pytest.raises(TokenRejectedError) as caught:
        verify_jwt(
            parse_jwt(sign(P256, "ES256", **header)),
            keys,
            algorithms=("ES256",),
            allow_kid_less_trial=True,
        )

    assert caught.value.reason is reason


@pytest.mark.spec("FAPI2-dupkid")
@pytest.mark.parametrize(
    ("key", "alg"), [(ED25519, "EdDSA"), (P256, "ES256"), (RSA, "PS256")]
)
def test_keys_of_several_types_may_share_a_kid(key: Anything, alg: str) -> None:
    keys = key_set(
        public_jwk(ED25519, kid="k"),
        public_jwk(P256, kid="k"),
        public_jwk(RSA, kid="k", alg="RS256"),
        public_jwk(RSA, kid="k", alg="PS256"),
    )

    assert alg in accept(sign(key, alg, kid="k"), keys, alg).algorithms


@pytest.mark.spec("JWKS-dupkid-same")
def test_a_kid_that_several_fitting_keys_share_is_ambiguous() -> None:
    first, second = p256_keys(2, right=0)
    keys = JWKSet((first, *[second] * 2, verifier(P256, kid="k1")), ())

    error = refusal(sign(P256, "ES256", kid="k1"), keys, "ES256")

    assert (error.reason, error.received) == (RejectionReason.AMBIGUOUS_KEY, "k1")


def test_a_key_that_is_listed_twice_is_one_key() -> None:
    keys = key_set(public_jwk(P256, kid="k"), public_jwk(P256, kid="k", use="sig"))

    accept(sign(P256, "ES256", kid="k"), keys, "ES256")
    assert len(keys.keys) == 1


@pytest.mark.spec("JWKS-kid-mismatch")
@pytest.mark.spec("JWKS-kid-type")
@pytest.mark.parametrize("kid", ["b", "", "A", "../../x"])
def test_a_kid_that_no_key_has_is_not_ignored(kid: str) -> None:
    error = refusal(
        sign(P256, "ES256", kid=kid), key_set(public_jwk(P256, kid="a")), "ES256"
    )

    assert error.reason is RejectionReason.UNKNOWN_KEY
    assert error.reason in REFETCH_REASONS
    assert (error.claim, error.received) == ("kid", kid)


def test_a_key_without_a_name_answers_to_every_name_that_no_other_key_has() -> None:
    local, named = verifier(P256), p256_keys(1, right=-1)[0]
    keys = JWKSet((local, named), ())

    assert accept(sign(P256, "ES256", kid="new"), keys, "ES256") is local
    error = refusal(sign(P256, "ES256", kid="k0"), keys, "ES256")
    assert error.reason is RejectionReason.SIGNATURE


def test_an_empty_set_knows_no_key() -> None:
    error = refusal(sign(P256, "ES256"), EMPTY, "ES256")

    assert error.reason is RejectionReason.UNKNOWN_KEY
    assert (error.claim, error.received) == ("alg", "ES256")


def test_a_refusal_counts_the_keys_that_cannot_be_used() -> None:
    keys = key_set({"kty": "AKP"}, {"kty": "oct"})

    assert "2 keys" in str(refusal(sign(P256, "ES256"), keys, "ES256"))


@pytest.mark.spec("7515-4.1.1-allow")
@pytest.mark.parametrize("allowed", [("RS256",), ("es256",), ("ES384", "EdDSA"), ()])
def test_an_algorithm_that_was_not_agreed_on_is_refused(
    allowed: tuple[str, ...],
) -> None:
    error = refusal(sign(P256, "ES256"), key_set(public_jwk(P256)), *allowed)

    assert error.reason is RejectionReason.ALGORITHM
    assert (error.expected, error.received) == (allowed, "ES256")


@pytest.mark.spec("8725-3.1-keyalg")
def test_a_key_is_not_used_with_another_algorithm_than_it_names() -> None:
    keys = key_set(public_jwk(RSA, kid="k", alg="PS256"))

    error = refusal(sign(RSA, "RS256", kid="k"), keys, "RS256", "PS256")

    assert error.reason is RejectionReason.UNKNOWN_KEY


@pytest.mark.spec("8725-3.1-confusion")
def test_an_hmac_over_the_public_key_is_refused() -> None:
    pem, jwk = public_pem_of(RSA).encode(), json.dumps(public_jwk(RSA)).encode()
    for secret in (pem, jwk):
        text = sign(b"k" * 32, "HS256").rpartition(".")[0]
        mac = hmac.new(secret, text.encode(), hashlib.sha256).digest()
        token = f"{text}.{encode_base64url(mac)}"
        keys = key_set(public_jwk(RSA))

        assert refusal(token, keys, "RS256").reason is RejectionReason.ALGORITHM
        error = refusal(token, keys, "RS256", "HS256")
        assert error.reason is RejectionReason.UNKNOWN_KEY


@pytest.mark.spec("7515-4.1.2-4")
@pytest.mark.parametrize("kid", [None, "k"])
def test_keys_that_a_token_brings_along_are_not_looked_at(kid: str | None) -> None:
    attacker = ec.generate_private_key(ec.SECP256R1())
    header: dict[str, object] = {
        "jwk": public_jwk(attacker),
        "jku": "https://attacker.test/keys",
        "x5u": "https://attacker.test/certificate",
        "x5c": ["AAAA"],
    }
    if kid is not None:
        header["kid"] = kid
    token = sign(attacker, "ES256", **header)

    error = refusal(token, key_set(public_jwk(P256, kid="k")), "ES256")

    assert error.reason is RejectionReason.SIGNATURE
    assert error.reason in REFETCH_REASONS


@pytest.mark.spec("SEC-fuzz")
@given(
    st.fixed_dictionaries(
        {"kty": st.sampled_from(["RSA", "EC", "OKP", "oct", "X"]) | json_values},
        optional={
            name: st.sampled_from(["P-256", "Ed25519", "AQAB", "sig"]) | json_values
            for name in ("crv", "n", "e", "x", "y", "k", "use", "key_ops", "kid", "alg")
        },
    )
)
def test_any_member_of_a_set_is_read_or_skipped(member: dict[str, object]) -> None:
    keys = key_set(member, public_jwk(P256, kid="good"))

    assert len(keys.keys) + len(keys.skipped) == 2
    accept(sign(P256, "ES256", kid="good"), keys, "ES256")

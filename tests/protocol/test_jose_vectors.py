"""Published JOSE vectors, where they are at hand: every one in scope is agreed with."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from freshtoken._foundation.secret import Secret
from freshtoken._protocol.body import UnreadableError
from freshtoken._protocol.claims import check_audience, check_expiry, check_issuer
from freshtoken._protocol.jwk import (
    UnfitKeyError,
    VerificationKey,
    read_jwk,
    secret_key,
    thumbprint,
)
from freshtoken._protocol.jwks import JWKSet, parse_jwk_set, verify_jwt
from freshtoken._protocol.jws import ParsedJWT, parse_jwt, read_parts, split_compact
from freshtoken._protocol.signing import HMAC_ALGORITHMS
from freshtoken.errors import RejectionReason, TokenRejectedError
from tests.protocol.jose import without

VECTORS = Path(__file__).parents[3] / "shared" / "vectors"
pytestmark = pytest.mark.spec("JOSE-vectors")

ALGORITHMS = (
    *HMAC_ALGORITHMS,
    *(f"{family}{size}" for family in ("RS", "PS", "ES") for size in (256, 384, 512)),
    "EdDSA",
    "Ed25519",
    "Ed448",
)
# Keys that are weak in a way that only a test of the modulus itself would show.
ROCA = {("json_web_key_test.json", 7), ("json_web_crypto_test.json", 46)}


def load(name: str) -> Any:  # noqa: ANN401 - a JSON document
    path = VECTORS / name
    if not path.exists():
        pytest.skip(f"the vector file {name} is not beside this repository")
    return json.loads(path.read_text())


def read_signed(token: str) -> ParsedJWT:
    """Read a JWS whose payload need not be JSON, as most of these have none."""
    parts = split_compact(token)
    return read_parts(parts, {})


def load_secret(jwk: dict[str, Any]) -> VerificationKey:
    """Return an HMAC key, which no key set of a server may hold."""
    octets = base64.urlsafe_b64decode(jwk["k"] + "==")
    alg = jwk.get("alg")
    try:
        # Any octets will do: only UTF-8 text comes in through `secret_key`.
        made = secret_key(
            Secret("x" * len(octets)), ALGORITHMS if alg is None else (alg,)
        )
    except TokenRejectedError as error:
        raise UnfitKeyError(str(error)) from None
    return VerificationKey(
        jwk.get("kid"), made.algorithms, None, octets, made._verifiers
    )


def load_keys(document: dict[str, Any]) -> JWKSet:
    """Return the keys of a JWK or a JWK set, HMAC keys included."""
    members = document.get("keys", [document])
    secrets = [jwk for jwk in members if jwk.get("kty") == "oct"]
    loaded = parse_jwk_set({"keys": [jwk for jwk in members if jwk not in secrets]})
    keys, skipped = list(loaded.keys), list(loaded.skipped)
    for jwk in secrets:
        try:
            keys.append(load_secret(jwk))
        except UnfitKeyError as error:
            skipped.append(str(error))
    return JWKSet(tuple(keys), tuple(skipped))


def is_accepted(token: str, keys: JWKSet) -> bool:
    try:
        verify_jwt(read_signed(token), keys, algorithms=ALGORITHMS)
    except TokenRejectedError:
        return False
    return True


def mixes_kinds(document: dict[str, Any]) -> bool:
    """Tell whether a set mixes secrets with public keys.

    Such a set cannot come to be here: the secret is the client's own, and a set that
    holds one is read without it.
    """
    kinds = {jwk["kty"] == "oct" for jwk in document.get("keys", [])}
    return len(kinds) > 1


def exceptions(name: str) -> dict[int, str]:
    """Return the vectors whose published result a strict verifier does not follow."""
    found = load("wycheproof_exceptions.json")["exceptions"]
    return {item["tcId"]: item["do"] for item in found if item["file"] == name}


@pytest.mark.parametrize(
    ("name", "tried", "accepted", "skipped"),
    [
        ("json_web_signature_test.json", 399, 40, 2),
        ("json_web_key_test.json", 25, 5, 1),
        ("json_web_crypto_test.json", 48, 4, 35),
    ],
)
def test_wycheproof(name: str, tried: int, accepted: int, skipped: int) -> None:
    counts = {"tried": 0, "accepted": 0, "skipped": 0}
    odd = exceptions(name)
    wrong = []
    for group in load(f"wycheproof/{name}")["testGroups"]:
        document = group.get("public") or group["private"]
        keys = parse_jwk_set(document) if mixes_kinds(document) else load_keys(document)
        for test in group["tests"]:
            number = test["tcId"]
            if (
                "jws" not in test
                or (name, number) in ROCA
                or odd.get(number) == "Skip."
            ):
                counts["skipped"] += 1
                continue
            expected = test["result"] == "valid" and number not in odd
            # Some are in the JSON form, which is refused as a whole.
            token = test["jws"]
            text = token if isinstance(token, str) else json.dumps(token)
            found = is_accepted(text, keys)
            counts["tried"] += 1
            counts["accepted"] += found
            if found != expected:
                wrong.append((number, test["comment"], found))

    assert wrong == []
    assert counts == {"tried": tried, "accepted": accepted, "skipped": skipped}


def test_wycheproof_signatures_whose_key_names_another_algorithm_hold_without_it() -> (
    None
):
    name = "json_web_signature_test.json"
    tried = 0
    odd = exceptions(name)
    for group in load(f"wycheproof/{name}")["testGroups"]:
        for test in group["tests"]:
            if "run with the JWK" in odd.get(test["tcId"], ""):
                assert is_accepted(
                    test["jws"], load_keys(without(group["public"], "alg"))
                )
                tried += 1

    assert tried == 4


@pytest.mark.parametrize(
    "name",
    [
        "jws/4_1.rsa_v15_signature.json",
        "jws/4_2.rsa-pss_signature.json",
        "jws/4_3.ecdsa_signature.json",
        "jws/4_4.hmac-sha2_integrity_protection.json",
        "curve25519/jws.json",
    ],
)
def test_cookbook_signatures_in_the_compact_form_are_accepted(name: str) -> None:
    vector = load(f"jose-cookbook/{name}")
    token, key = vector["output"]["compact"], vector["input"]["key"]

    assert split_compact(token).payload == vector["input"]["payload"].encode()
    assert is_accepted(token, load_keys(key))
    assert not is_accepted(token[:-2] + "AA", load_keys(key))


def test_a_cookbook_signature_with_detached_content_is_refused() -> None:
    vector = load("jose-cookbook/jws/4_5.signature_with_detached_content.json")

    assert not is_accepted(
        vector["output"]["compact"], load_keys(vector["input"]["key"])
    )


@pytest.mark.parametrize(
    "name",
    [
        "jws/4_6.protecting_specific_header_fields.json",
        "jws/4_7.protecting_content_only.json",
        "jws/4_8.multiple_signatures.json",
        "rfc7797/hmac-sha2_b64_false.json",
        "rfc7797/4.2.hmac-sha2_b64_false.json",
    ],
)
def test_cookbook_signatures_in_json_are_refused(name: str) -> None:
    output = load(f"jose-cookbook/{name}")["output"]

    for value in output.values():
        text = value if isinstance(value, str) else json.dumps(value)
        with pytest.raises(TokenRejectedError):
            read_signed(text)
    assert output


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("3_1.ec_public_key.json", True),
        ("3_2.ec_private_key.json", True),
        ("3_3.rsa_public_key.json", True),
        ("3_4.rsa_private_key.json", True),
        ("3_5.symmetric_key_mac_computation.json", False),
        ("3_6.symmetric_key_encryption.json", False),
    ],
)
def test_cookbook_keys(name: str, *, fits: bool) -> None:
    jwk = load(f"jose-cookbook/jwk/{name}")

    if fits:
        assert read_jwk(jwk).kid == jwk["kid"]
    else:
        with pytest.raises(UnfitKeyError):
            read_jwk(jwk)


@pytest.mark.spec("Core-appA")
def test_id_tokens_of_openid_connect_core_hold_until_they_expire() -> None:
    vector = load("spec-examples/spec_examples.json")["oidc_core_appendix_A"]
    keys = parse_jwk_set({"keys": [vector["jwk"]]})
    tokens = [
        example["response_params"]["id_token"]
        for example in vector["examples"]
        if "id_token" in example["response_params"]
    ]

    assert len(tokens) == 4
    for token in tokens:
        jwt = parse_jwt(token)
        end = jwt.claims["exp"]
        assert isinstance(end, int)
        verify_jwt(jwt, keys, algorithms=("RS256",))
        check_issuer(jwt.claims, vector["issuer"])
        check_audience(jwt.claims, vector["client_id"])
        check_expiry(jwt.claims, now=vector["clock"], leeway=0)
        with pytest.raises(TokenRejectedError) as caught:
            check_expiry(jwt.claims, now=end + 30, leeway=30)
        assert caught.value.reason is RejectionReason.EXPIRED


def test_signatures_of_the_specifications_are_accepted() -> None:
    examples = load("spec-examples/spec_examples.json")
    vectors = [*examples["rfc7515_appendix_A"], examples["rfc8037_A"]]
    signed = [vector for vector in vectors if vector.get("result") != "invalid"]

    assert len(signed) == 4
    for vector in signed:
        assert is_accepted(vector["jws"], load_keys(vector["jwk"]))


@pytest.mark.spec("8725-3.1-none")
def test_unsecured_tokens_of_the_specifications_are_refused() -> None:
    examples = load("spec-examples/spec_examples.json")["rfc7515_appendix_A"]
    unsecured = [v["jws"] for v in examples if v["result"] == "invalid"]

    assert len(unsecured) == 1
    for token in unsecured:
        with pytest.raises(TokenRejectedError) as caught:
            verify_jwt(parse_jwt(token), JWKSet((), ()), algorithms=ALGORITHMS)
        assert caught.value.reason is RejectionReason.ALGORITHM


@pytest.mark.spec("7638-3")
def test_thumbprints_of_the_specifications() -> None:
    examples = load("spec-examples/spec_examples.json")
    for name in ("rfc7638_3.1", "rfc8037_A"):
        assert thumbprint(examples[name]["jwk"]) == examples[name]["thumbprint_sha256"]
    proof = examples["rfc9449"]["proofs"][0]["proof"]
    jwk = read_signed(proof).header["jwk"]
    assert isinstance(jwk, dict)
    assert thumbprint(jwk) == examples["rfc9449"]["jkt"]


@pytest.mark.spec("7515-4.1.2-4")
def test_a_proof_is_not_verified_with_the_key_that_it_brings_along() -> None:
    proof = load("spec-examples/spec_examples.json")["rfc9449"]["proofs"][0]["proof"]

    with pytest.raises(TokenRejectedError) as caught:
        verify_jwt(read_signed(proof), JWKSet((), ()), algorithms=ALGORITHMS)

    assert caught.value.reason is RejectionReason.UNKNOWN_KEY


def test_mixed_key_sets_are_read_without_their_secrets() -> None:
    with pytest.raises(UnreadableError):
        parse_jwk_set({})
    mixed = 0
    for group in load("wycheproof/json_web_key_test.json")["testGroups"]:
        document = group.get("public") or group["private"]
        if mixes_kinds(document):
            loaded = parse_jwk_set(document)
            assert len(loaded.keys) + len(loaded.skipped) == len(document["keys"])
            mixed += 1
    assert mixed == 1

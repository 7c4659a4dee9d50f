"""The ID token that ends a sign-in: every check of OIDC Core, one at a time."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._foundation.secret import Secret
from freshtoken._protocol.base64url import encode_base64url
from freshtoken._protocol.id_token import (
    MAX_ID_TOKEN_AGE,
    IDTokenRules,
    check_id_token,
    id_token_rules,
)
from freshtoken._protocol.jwk import secret_key
from freshtoken._protocol.jwks import EMPTY, JWKSet, parse_jwk_set
from freshtoken._protocol.signing import ASYMMETRIC_ALGORITHMS, HMAC_ALGORITHMS
from freshtoken._protocol.token_hash import half_hash
from freshtoken.errors import RejectionReason, TokenRejectedError
from tests.protocol import keys
from tests.protocol.helpers import ISSUER, NOW, Anything, make_client
from tests.protocol.strategies import json_values
from tests.protocol.tokens import (
    ACCESS_TOKEN,
    CLIENT_ID,
    ED448_KEYS,
    GONE,
    KEYS,
    id_claims,
    sign,
    tampered,
)

LEEWAY = 30.0
NONCE = "n-1"


def rules(**changes: Anything) -> IDTokenRules:
    settings: dict[str, Any] = {
        "issuer": ISSUER,
        "client_id": CLIENT_ID,
        "algorithms": ("RS256",),
        "leeway": LEEWAY,
        **changes,
    }
    return IDTokenRules(**settings)


def check(
    token: str | Secret,
    *,
    accepted: IDTokenRules | None = None,
    key_set: JWKSet = KEYS,
    **options: Anything,
) -> Mapping[str, object]:
    settings: dict[str, Any] = {
        "now": NOW,
        "access_token": ACCESS_TOKEN,
        "nonce": None,
        **options,
    }
    return check_id_token(token, key_set, accepted or rules(), **settings)


def refusal_of(token: str | Secret, **options: Anything) -> TokenRejectedError:
    with pytest.raises(TokenRejectedError) as caught:
        check(token, **options)

    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    assert not hasattr(error, "claims")
    return error


def refused_with(
    reason: RejectionReason, claim: str | None, token: str, **options: Anything
) -> TokenRejectedError:
    error = refusal_of(token, **options)
    assert (error.reason, error.claim) == (reason, claim)
    return error


def test_a_good_token_brings_its_claims() -> None:
    claims = check(sign(id_claims(nonce=NONCE, name="Ann")), nonce=NONCE)

    assert claims == id_claims(nonce=NONCE, name="Ann")
    with pytest.raises(TypeError):
        claims["sub"] = "u2"  # type: ignore[index]  # that is the test


def test_a_token_may_be_wrapped() -> None:
    token = sign(id_claims(at_hash=half_hash("RS256", None, ACCESS_TOKEN)))

    assert check(Secret(token), access_token=Secret(ACCESS_TOKEN))["sub"] == "u1"


@pytest.mark.spec("Core-5.1-claims")
def test_claim_values_are_data() -> None:
    claims = check(sign(id_claims(email_verified="true", roles=[1, None])))

    assert claims["email_verified"] == "true"
    assert claims["roles"] == [1, None]


def test_the_rules_follow_from_the_client() -> None:
    plain = id_token_rules(make_client())
    client = make_client(
        id_token_signed_response_alg="ES256",
        leeway=5.0,
        trusted_audiences=["c2"],
        check_azp=True,
    )

    assert plain == IDTokenRules(ISSUER, CLIENT_ID, ("RS256",), 30.0)
    assert id_token_rules(client) == IDTokenRules(
        ISSUER, CLIENT_ID, ("ES256",), 5.0, ("c2",), check_azp=True
    )


# -- Signature, algorithm, type ------------------------------------------------------


@pytest.mark.spec("Core-3.1.3.7-7")
@pytest.mark.parametrize("alg", ASYMMETRIC_ALGORITHMS)
def test_the_registered_algorithm_is_accepted(alg: str) -> None:
    key_set = ED448_KEYS if alg == "Ed448" else KEYS
    token = sign(id_claims(), alg=alg)

    assert check(token, accepted=rules(algorithms=(alg,)), key_set=key_set)


@pytest.mark.spec("Core-3.1.3.7-7")
@pytest.mark.parametrize(
    "alg", [one for one in ASYMMETRIC_ALGORITHMS if one != "RS256"]
)
def test_an_algorithm_that_nobody_registered_is_refused(alg: str) -> None:
    """Also where the key set holds the right key."""
    token = sign(id_claims(), alg=alg)

    refused_with(RejectionReason.ALGORITHM, "alg", token)


@pytest.mark.spec("8725-3.1-none")
@pytest.mark.parametrize("alg", ["none", "None", "nOnE"])
@pytest.mark.parametrize("algorithms", [("RS256",), ("none",), ("none", "nOnE")])
def test_an_unsigned_token_is_refused(alg: str, algorithms: tuple[str, ...]) -> None:
    token = sign(id_claims(), alg=alg)

    refused_with(
        RejectionReason.ALGORITHM, "alg", token, accepted=rules(algorithms=algorithms)
    )


@pytest.mark.spec("Core-3.1.3.7-8")
@pytest.mark.parametrize("alg", HMAC_ALGORITHMS)
@pytest.mark.parametrize("secret", ["k" * 64, "£€" * 32])
def test_the_client_secret_verifies_what_is_registered_for_it(
    alg: str, secret: str
) -> None:
    key_set = JWKSet((secret_key(Secret(secret), (alg,)),), ())
    token = sign(
        id_claims(at_hash=half_hash(alg, None, ACCESS_TOKEN)),
        alg=alg,
        key=secret.encode(),
    )

    assert check(token, accepted=rules(algorithms=(alg,)), key_set=key_set)
    refused_with(RejectionReason.ALGORITHM, "alg", token, key_set=key_set)
    error = refusal_of(
        tampered(token), accepted=rules(algorithms=(alg,)), key_set=key_set
    )
    assert error.reason is RejectionReason.SIGNATURE


@pytest.mark.spec("8725-3.1-confusion")
@pytest.mark.parametrize("algorithms", [("RS256",), ("HS256",), ("RS256", "HS256")])
def test_a_public_key_is_no_secret(algorithms: tuple[str, ...]) -> None:
    pem = keys.public_pem_of(keys.RSA).encode()
    header_and_claims = sign(id_claims(), alg="HS256", key=b"k" * 32).rpartition(".")[0]
    forged = f"{header_and_claims}.{_hmac(pem, header_and_claims)}"

    error = refusal_of(forged, accepted=rules(algorithms=algorithms))

    assert error.reason in (RejectionReason.ALGORITHM, RejectionReason.UNKNOWN_KEY)


def _hmac(key: bytes, text: str) -> str:
    """Sign as PyJWT would not: with a public key as the secret."""
    return encode_base64url(hmac.digest(key, text.encode(), "sha256"))


@pytest.mark.spec("Core-3.1.3.7-6")
@pytest.mark.parametrize("alg", ["RS256", "PS256", "ES256", "EdDSA"])
def test_a_changed_signature_is_refused(alg: str) -> None:
    token = tampered(sign(id_claims(), alg=alg))

    refused_with(
        RejectionReason.SIGNATURE, None, token, accepted=rules(algorithms=(alg,))
    )


@pytest.mark.spec("Core-3.1.3.7-6")
def test_without_a_key_nothing_is_believed() -> None:
    error = refusal_of(sign(id_claims()), key_set=EMPTY)

    assert error.reason is RejectionReason.UNKNOWN_KEY


@pytest.mark.spec("8725-3.11")
@pytest.mark.parametrize("typ", [GONE, "JWT", "jwt", "application/jwt"])
def test_the_type_may_be_missing(typ: object) -> None:
    assert check(sign(id_claims(), header={"typ": typ}))


@pytest.mark.spec("8725-3.11")
@pytest.mark.spec("BC-idtoken")
@pytest.mark.parametrize(
    "typ", ["at+jwt", "application/at+jwt", "logout+jwt", "dpop+jwt", ""]
)
def test_a_token_of_another_kind_is_refused(typ: str) -> None:
    token = sign(id_claims(), header={"typ": typ})

    refused_with(RejectionReason.TYPE, "typ", token)


@pytest.mark.spec("BC-idtoken")
@pytest.mark.parametrize(
    "events", [{"http://schemas.openid.net/event/backchannel-logout": {}}, None]
)
def test_a_logout_token_is_no_id_token(events: object) -> None:
    token = sign(id_claims(events=events))

    refused_with(RejectionReason.INVALID_CLAIM, "events", token)


@pytest.mark.spec("7515-3.1")
@pytest.mark.parametrize("token", ["", "a.b", "a.b.c", "x" * 100_000])
def test_what_is_no_jwt_is_refused(token: str) -> None:
    assert refusal_of(token).reason is RejectionReason.MALFORMED


# -- Issuer, subject, audience -------------------------------------------------------


@pytest.mark.spec("Core-2-required")
@pytest.mark.parametrize("name", ["iss", "sub", "aud", "exp", "iat"])
def test_five_claims_have_to_be_there(name: str) -> None:
    token = sign(id_claims(**{name: GONE}))

    refused_with(RejectionReason.MISSING_CLAIM, name, token)


@pytest.mark.spec("Core-2-required")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("iss", None),
        ("iss", 1),
        ("sub", None),
        ("sub", 1),
        ("aud", None),
        ("aud", 1),
        ("aud", []),
        ("aud", [1]),
        ("aud", {"c": 1}),
        ("exp", None),
        ("exp", "1900000000"),
        ("exp", True),
        ("iat", None),
        ("iat", "1700000000"),
        ("iat", True),
        ("nbf", "0"),
        ("auth_time", "0"),
        ("auth_time", None),
        ("nonce", 1),
        ("nonce", None),
        ("at_hash", 1),
        ("at_hash", None),
    ],
)
def test_a_claim_of_the_wrong_type_is_refused(name: str, value: object) -> None:
    token = sign(id_claims(**{name: value}))

    refused_with(RejectionReason.INVALID_CLAIM, name, token)


@pytest.mark.spec("Core-3.1.3.7-2")
@pytest.mark.spec("Discovery-7.2")
@pytest.mark.parametrize("issuer", [ISSUER + "1", ISSUER + "/", ISSUER.upper(), ""])
def test_another_issuer_is_refused(issuer: str) -> None:
    error = refused_with(
        RejectionReason.INVALID_CLAIM, "iss", sign(id_claims(iss=issuer))
    )

    assert error.expected == ISSUER
    assert error.received == issuer


@pytest.mark.spec("Core-2-sub")
@pytest.mark.parametrize("sub", ["", "x" * 256, "ü"])
def test_a_subject_that_nobody_can_rely_on_is_refused(sub: str) -> None:
    refused_with(RejectionReason.INVALID_CLAIM, "sub", sign(id_claims(sub=sub)))


@pytest.mark.spec("Core-2-sub")
def test_a_subject_of_the_greatest_length_is_accepted() -> None:
    assert check(sign(id_claims(sub="x" * 255)))


@pytest.mark.spec("Core-3.1.3.7-3")
@pytest.mark.parametrize("aud", [CLIENT_ID + "1", "cid", CLIENT_ID.upper(), ["c1"]])
def test_a_token_for_another_client_is_refused(aud: object) -> None:
    refused_with(RejectionReason.INVALID_CLAIM, "aud", sign(id_claims(aud=aud)))


@pytest.mark.spec("Core-3.1.3.7-3")
@pytest.mark.parametrize("aud", [CLIENT_ID, [CLIENT_ID], [CLIENT_ID, CLIENT_ID]])
def test_a_token_for_this_client_is_accepted(aud: object) -> None:
    assert check(sign(id_claims(aud=aud)))["aud"] == aud


@pytest.mark.spec("Core-3.1.3.7-3b")
@pytest.mark.parametrize("azp", [GONE, "c1", 7, None])
def test_further_audiences_are_refused(azp: object) -> None:
    token = sign(id_claims(aud=[CLIENT_ID, "c1"], azp=azp))

    refused_with(RejectionReason.INVALID_CLAIM, "aud", token)
    refused_with(
        RejectionReason.INVALID_CLAIM,
        "aud",
        token,
        accepted=rules(trusted_audiences=("c2",)),
    )


@pytest.mark.spec("Core-3.1.3.7-3b")
@pytest.mark.parametrize("azp", [GONE, "c1", CLIENT_ID])
def test_trusted_audiences_are_accepted(azp: object) -> None:
    token = sign(id_claims(aud=["c1", CLIENT_ID], azp=azp))

    assert check(token, accepted=rules(trusted_audiences=("c1", "c2")))


@pytest.mark.spec("Core-3.1.3.7-3b")
def test_further_audiences_are_accepted_if_the_token_was_issued_to_this_client() -> (
    None
):
    """Field note ID-09."""
    assert check(sign(id_claims(aud=[CLIENT_ID, "https://api.test"], azp=CLIENT_ID)))


@pytest.mark.spec("Core-3.1.3.7-azp")
@pytest.mark.parametrize("azp", ["other", None, 7])
def test_azp_counts_by_option_only(azp: object) -> None:
    token = sign(id_claims(azp=azp))

    assert check(token)
    refused_with(
        RejectionReason.INVALID_CLAIM, "azp", token, accepted=rules(check_azp=True)
    )


@pytest.mark.spec("Core-3.1.3.7-azp")
def test_azp_has_to_be_there_if_several_audiences_are_trusted() -> None:
    accepted = rules(check_azp=True, trusted_audiences=("c1",))

    refused_with(
        RejectionReason.INVALID_CLAIM,
        "azp",
        sign(id_claims(aud=[CLIENT_ID, "c1"])),
        accepted=accepted,
    )
    assert check(sign(id_claims()), accepted=accepted)
    assert check(sign(id_claims(azp=CLIENT_ID)), accepted=accepted)


# -- Times ---------------------------------------------------------------------------


@pytest.mark.spec("Core-3.1.3.7-9")
def test_a_token_ends_with_the_leeway() -> None:
    token = sign(id_claims(exp=NOW - LEEWAY))

    assert check(token, now=NOW - 0.5)
    refused_with(RejectionReason.EXPIRED, "exp", token)


@pytest.mark.spec("Core-3.1.3.7-9")
def test_six_minutes_are_beyond_the_largest_leeway() -> None:
    token = sign(id_claims(iat=NOW - 600, exp=NOW - 360))

    refused_with(RejectionReason.EXPIRED, "exp", token, accepted=rules(leeway=300.0))


@pytest.mark.spec("Core-3.1.3.7-10")
@pytest.mark.parametrize("name", ["iat", "nbf"])
def test_a_token_from_the_future_is_refused(name: str) -> None:
    token = sign(id_claims(**{name: NOW + LEEWAY}))

    assert check(token)
    refused_with(RejectionReason.NOT_YET_VALID, name, token, now=NOW - 0.5)


@pytest.mark.spec("7519-4-numeric")
@pytest.mark.parametrize(
    "claims",
    [
        {"iat": NOW + 2, "exp": NOW + 3600},  # field note: a clock ahead
        {"iat": NOW - 0.75, "exp": NOW + 3600.75},  # field note ID-03
    ],
)
def test_a_little_skew_and_fractions_are_accepted(claims: dict[str, object]) -> None:
    assert check(sign(id_claims(**claims)))


@pytest.mark.spec("Core-3.1.3.7-10")
def test_a_token_that_was_kept_is_refused() -> None:
    token = sign(id_claims(iat=NOW - MAX_ID_TOKEN_AGE - LEEWAY))

    assert check(token)
    refused_with(RejectionReason.INVALID_CLAIM, "iat", token, now=NOW + 0.5)


# -- Nonce, at_hash ------------------------------------------------------------------


@pytest.mark.spec("Core-3.1.3.7-11")
@pytest.mark.spec("Core-16.11")
@pytest.mark.parametrize("nonce", [NONCE + "1", "", "n-2", "ü"])
def test_another_nonce_is_refused(nonce: str) -> None:
    error = refused_with(
        RejectionReason.NONCE, "nonce", sign(id_claims(nonce=nonce)), nonce=NONCE
    )

    assert error.expected is None
    assert error.received is None


@pytest.mark.spec("Core-3.1.3.7-11")
def test_a_nonce_that_was_sent_has_to_come_back() -> None:
    refused_with(RejectionReason.MISSING_CLAIM, "nonce", sign(id_claims()), nonce=NONCE)


@pytest.mark.spec("Core-2-nonce")
def test_a_nonce_that_nobody_sent_is_refused() -> None:
    refused_with(RejectionReason.NONCE, "nonce", sign(id_claims(nonce=NONCE)))
    refused_with(RejectionReason.NONCE, "nonce", sign(id_claims(nonce="")))


@pytest.mark.spec("Core-3.1.3.8")
@pytest.mark.spec("Core-hash-alg")
@pytest.mark.parametrize(
    ("alg", "crv"),
    [
        ("RS256", None),
        ("PS512", None),
        ("ES384", None),
        ("EdDSA", "Ed25519"),
        ("EdDSA", "Ed448"),
        ("Ed25519", "Ed25519"),
        ("Ed448", "Ed448"),
    ],
)
def test_the_token_belongs_to_its_access_token(alg: str, crv: str | None) -> None:
    key_set = ED448_KEYS if crv == "Ed448" else KEYS
    token = sign(
        id_claims(at_hash=half_hash(alg, crv, ACCESS_TOKEN)),
        alg=alg,
        key=keys.ED448 if crv == "Ed448" else None,
    )
    accepted = rules(algorithms=(alg,))

    assert check(token, accepted=accepted, key_set=key_set)
    refused_with(
        RejectionReason.HASH,
        "at_hash",
        token,
        accepted=accepted,
        key_set=key_set,
        access_token="at-2",
    )


@pytest.mark.spec("Core-3.1.3.8")
@pytest.mark.parametrize("change", ["1", "="])
def test_a_changed_at_hash_is_refused(change: str) -> None:
    at_hash = half_hash("RS256", None, ACCESS_TOKEN) + change

    refused_with(RejectionReason.HASH, "at_hash", sign(id_claims(at_hash=at_hash)))


def test_at_hash_says_nothing_where_no_access_token_came() -> None:
    assert check(sign(id_claims(at_hash="x")), access_token=None)


# -- How and when the user authenticated ---------------------------------------------


@pytest.mark.spec("Core-3.1.3.7-13")
@pytest.mark.parametrize("max_age", [0, 300])
def test_max_age_makes_auth_time_required(max_age: float) -> None:
    token = sign(id_claims())

    assert check(token)
    refused_with(RejectionReason.MISSING_CLAIM, "auth_time", token, max_age=max_age)


@pytest.mark.spec("Core-3.1.3.7-13")
@pytest.mark.parametrize("sent_at", [None, NOW - 60])
def test_an_authentication_that_is_too_old_is_refused(sent_at: float | None) -> None:
    token = sign(id_claims(auth_time=NOW - 300 - LEEWAY))

    assert check(token, max_age=300, sent_at=sent_at)
    refused_with(
        RejectionReason.AUTHENTICATION_TOO_OLD,
        "auth_time",
        token,
        max_age=300,
        sent_at=sent_at,
        now=NOW + 0.5,
    )


@pytest.mark.spec("Core-3.1.3.7-13")
@pytest.mark.spec("Core-3.1.2.1-maxage")
def test_max_age_0_asks_for_an_authentication_after_the_request() -> None:
    """The user may take ten minutes for it."""
    token = sign(id_claims(auth_time=NOW - 590))

    assert check(token, max_age=0, sent_at=NOW - 600)
    assert check(token, max_age=0, sent_at=NOW - 590 + LEEWAY)
    refused_with(
        RejectionReason.AUTHENTICATION_TOO_OLD,
        "auth_time",
        token,
        max_age=0,
        sent_at=NOW - 590 + LEEWAY + 0.5,
    )


@pytest.mark.spec("Core-3.1.3.7-13")
def test_max_age_0_without_the_time_of_the_request_counts_from_now() -> None:
    token = sign(id_claims(auth_time=NOW - LEEWAY))

    assert check(token, max_age=0)
    refused_with(
        RejectionReason.AUTHENTICATION_TOO_OLD,
        "auth_time",
        token,
        max_age=0,
        now=NOW + 0.5,
    )


def test_an_old_authentication_is_fine_if_nobody_asked() -> None:
    assert check(sign(id_claims(auth_time=1)))


@pytest.mark.spec("Core-3.1.3.7-12")
@pytest.mark.parametrize("acr", ["b", GONE, ""])
def test_acr_has_to_be_met_if_required(acr: object) -> None:
    token = sign(id_claims(acr=acr))

    assert check(token, acr_values=("a",))
    refused_with(
        RejectionReason.AUTHENTICATION_CONTEXT,
        "acr",
        token,
        acr_values=("a",),
        require_acr=True,
    )


@pytest.mark.spec("Core-3.1.3.7-12")
def test_one_of_the_acr_values_is_enough() -> None:
    token = sign(id_claims(acr="b"))

    assert check(token, acr_values=("a", "b"), require_acr=True)


def test_an_acr_of_the_wrong_type_is_refused_if_required() -> None:
    token = sign(id_claims(acr=["a"]))

    refused_with(
        RejectionReason.INVALID_CLAIM,
        "acr",
        token,
        acr_values=("a",),
        require_acr=True,
    )


# -- Secrets, robustness, vectors ----------------------------------------------------


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": "alice-4711-secret-0815-abcdef"},
        {"nonce": "nonce-4711-secret-0815-abcdef"},
        {"at_hash": "hash-4711-secret-0815-abcdef"},
        {"aud": "aud-4711-secret-0815-abcdefgh"},
        {"iss": "iss-4711-secret-0815-abcdefgh"},
    ],
)
def test_a_refusal_does_not_repeat_the_token(claims: dict[str, str]) -> None:
    token = sign(id_claims(**claims), alg="ES256")
    accepted = rules(algorithms=("ES256",))

    error = refusal_of(token, accepted=accepted, nonce="n", now=NOW)

    shown = f"{error} {error!r} {error.expected!r} {error.received!r}"
    assert not any(value in shown for value in claims.values())
    assert not any(part in shown for part in token.split("."))
    assert ACCESS_TOKEN not in shown


@pytest.mark.spec("SEC-fuzz")
@given(
    st.dictionaries(
        st.sampled_from(
            [*id_claims(), "nonce", "azp", "acr", "auth_time", "at_hash", "nbf"]
        ),
        json_values,
        min_size=1,
        max_size=3,
    )
)
def test_no_value_of_a_claim_breaks_the_checks(claims: dict[str, object]) -> None:
    key_set = JWKSet((secret_key(Secret("k" * 32), ("HS256",)),), ())
    token = sign(id_claims(**claims), alg="HS256", key=b"k" * 32)

    try:
        found = check(
            token,
            accepted=rules(algorithms=("HS256",), check_azp=True),
            key_set=key_set,
            max_age=60,
            acr_values=("a",),
            require_acr=True,
        )
    except TokenRejectedError as error:
        assert not error.__context__  # noqa: PT017 -- not each value is refused
    else:
        assert found["sub"]


def core_appendix() -> dict[str, Any]:
    path = Path(__file__).parents[3] / "shared/vectors/spec-examples/spec_examples.json"
    if not path.exists():
        pytest.skip("the vector file spec_examples.json is not beside this repository")
    document: dict[str, Any] = json.loads(path.read_text())["oidc_core_appendix_A"]
    return document


@pytest.mark.spec("Core-appA")
def test_the_tokens_of_the_specification_are_accepted_until_they_end() -> None:
    document = core_appendix()
    accepted = rules(issuer=document["issuer"], client_id=document["client_id"])
    key_set = parse_jwk_set({"keys": [document["jwk"]]})
    answers = [example["response_params"] for example in document["examples"]]
    answers = [answer for answer in answers if "id_token" in answer]

    for answer in answers:
        options = {
            "accepted": accepted,
            "key_set": key_set,
            "nonce": document["nonce"],
            "access_token": answer.get("access_token"),
        }
        claims = check(answer["id_token"], now=document["clock"], **options)
        end = claims["exp"]
        assert isinstance(end, int)
        assert check(answer["id_token"], now=end + LEEWAY - 1, **options)
        error = refusal_of(answer["id_token"], now=end + LEEWAY + 1, **options)
        assert error.reason is RejectionReason.EXPIRED
    assert len(answers) == 4

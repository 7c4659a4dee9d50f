"""Access tokens at a resource server: RFC 9068, and what does not follow it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._protocol.access_token import (
    AccessTokenRules,
    ValidatedToken,
    check_access_token,
    check_scope,
    read_access_token,
    select_issuer,
)
from freshtoken._protocol.claims import MAX_DATE
from freshtoken._protocol.jwks import verify_jwt
from freshtoken._protocol.jws import ParsedJWT, parse_jwt
from freshtoken._protocol.signing import HMAC_ALGORITHMS
from freshtoken.errors import (
    MisconfiguredError,
    RejectionReason,
    TokenRejectedError,
)
from tests.protocol.helpers import ISSUER, NOW, Anything
from tests.protocol.strategies import json_values
from tests.protocol.tokens import (
    CLIENT_ID,
    GONE,
    KEYS,
    access_claims,
    id_claims,
    parsed,
    sign,
    tampered,
    without_gone,
)

API = "https://api.test"
LEEWAY = 30.0


def rules(**changes: Anything) -> AccessTokenRules:
    settings: dict[str, Any] = {
        "issuers": (ISSUER,),
        "audience": (API,),
        "leeway": LEEWAY,
        **changes,
    }
    return AccessTokenRules(**settings)


ANY = rules(profile="any")


def refusal_of(
    jwt: ParsedJWT, accepted: AccessTokenRules | None = None, *, now: float = NOW
) -> TokenRejectedError:
    with pytest.raises(TokenRejectedError) as caught:
        check_access_token(jwt, accepted or rules(), now=now)

    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    assert not hasattr(error, "claims")
    return error


def read(
    jwt: ParsedJWT, accepted: AccessTokenRules | None = None, *, now: float = NOW
) -> ValidatedToken:
    accepted = accepted or rules()
    check_access_token(jwt, accepted, now=now)
    return read_access_token(jwt, accepted)


# -- The good token ------------------------------------------------------------------


def test_an_access_token_is_read() -> None:
    token = read(parsed(access_claims(roles=["a"])))

    assert token.issuer == ISSUER
    assert token.subject == "u1"
    assert token.client_id == CLIENT_ID
    assert token.audience == (API,)
    assert token.scope == ("read", "write")
    assert token.expires_at == NOW + 300
    assert token.claims["roles"] == ["a"]
    assert not token.is_client_subject


@pytest.mark.spec("SEC-repr")
def test_a_token_shows_nothing_about_its_user() -> None:
    shown = repr(read(parsed(access_claims(sub="alice@example.com"))))

    assert ISSUER in shown
    assert "alice" not in shown
    assert CLIENT_ID not in shown


def test_the_claims_cannot_be_changed() -> None:
    token = read(parsed(access_claims()))

    with pytest.raises(TypeError):
        token.claims["sub"] = "other"  # type: ignore[index]  # that is the test


def test_what_is_nested_in_claims_is_handed_out_as_a_copy() -> None:
    """A token is read once for all who bring it."""
    nested = {"a": [{"b": ["c"]}]}
    token = read(parsed(access_claims(nested=nested)))
    copy: Anything = token.claims["nested"]

    copy["a"][0]["b"].append("d")
    copy["x"] = 1

    assert token.claims["nested"] == nested
    assert dict(token.claims) == access_claims(nested=nested)
    assert "nested" in token.claims
    assert "other" not in token.claims
    assert "nested" in repr(token.claims)
    assert CLIENT_ID not in repr(token.claims)


@pytest.mark.spec("9700-4.15")
@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"sub": CLIENT_ID}, True),
        ({"sub": "u1"}, False),
        ({"sub": GONE}, False),
        ({"sub": GONE, "client_id": GONE}, False),
    ],
)
def test_a_client_that_acts_for_itself_is_told_apart(
    claims: dict[str, object], *, expected: bool
) -> None:
    token = read(parsed(access_claims(**claims)), ANY)

    assert token.is_client_subject is expected


# -- Kinds of token ------------------------------------------------------------------


@pytest.mark.spec("9068-4-typ")
@pytest.mark.spec("7515-4.1.9")
@pytest.mark.parametrize("typ", ["at+jwt", "AT+JWT", "application/at+jwt"])
@pytest.mark.parametrize("profile", ["rfc9068", "any"])
def test_the_type_of_access_tokens_is_accepted(typ: str, profile: str) -> None:
    check_access_token(
        parsed(access_claims(), typ=typ), rules(profile=profile), now=NOW
    )


@pytest.mark.spec("9068-4-typ")
@pytest.mark.parametrize("typ", [GONE, "JWT", "id_token+jwt", "logout+jwt", "", "jose"])
def test_another_type_is_refused(typ: object) -> None:
    error = refusal_of(parsed(access_claims(), typ=typ))

    assert error.reason is RejectionReason.TYPE
    assert error.claim == "typ"
    assert error.expected == "at+jwt"
    assert 'profile="any"' in str(error)


@pytest.mark.spec("9068-4-typ")
@pytest.mark.parametrize("typ", [GONE, "JWT", "application/jwt"])
def test_tokens_without_the_type_are_accepted_by_option(typ: object) -> None:
    check_access_token(parsed(access_claims(), typ=typ), ANY, now=NOW)


@pytest.mark.spec("9068-4-typ")
@pytest.mark.parametrize("typ", ["id_token+jwt", "logout+jwt", "dpop+jwt", ""])
def test_a_foreign_type_is_refused_in_any_case(typ: str) -> None:
    error = refusal_of(parsed(access_claims(), typ=typ), ANY)

    assert error.reason is RejectionReason.TYPE


@pytest.mark.spec("9068-5-idtoken")
@pytest.mark.parametrize(
    "foreign",
    [
        {"nonce": "n1"},
        {"nonce": None},
        {"at_hash": "e2C9-RVqa8N4OjENc_bscQ"},
        {"c_hash": "e2C9-RVqa8N4OjENc_bscQ"},
        {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}},
        {"typ": "ID"},
        {"typ": "Refresh"},
        {"typ": "Offline"},
        {"typ": "Logout"},
        {"token_use": "id"},
        {"token_use": "refresh"},
        {"typ": "Bearer", "at_hash": "e2C9-RVqa8N4OjENc_bscQ"},
        {"typ": "Bearer", "token_use": "id"},
    ],
)
def test_id_and_logout_tokens_are_no_access_tokens(foreign: dict[str, object]) -> None:
    jwt = parsed(access_claims(**foreign), typ="JWT")

    error = refusal_of(jwt, ANY)

    assert error.reason is RejectionReason.TYPE
    assert error.claim in foreign
    assert refusal_of(jwt).reason is RejectionReason.TYPE


@pytest.mark.spec("9068-5-idtoken")
def test_a_valid_id_token_is_no_access_token() -> None:
    jwt = parse_jwt(sign(id_claims(aud=API), header={"typ": "JWT"}))

    assert refusal_of(jwt).reason is RejectionReason.TYPE


@pytest.mark.parametrize(
    "claims",
    [
        {"typ": "Bearer", "nonce": "n1"},
        {"token_use": "access", "nonce": "n1"},
        {"typ": "something", "token_use": ["id"]},
    ],
)
def test_what_an_issuer_calls_an_access_token_is_one(claims: dict[str, object]) -> None:
    """Keycloak put a nonce into access tokens up to release 23."""
    check_access_token(parsed(access_claims(**claims), typ="JWT"), ANY, now=NOW)


def test_an_explicit_type_is_believed() -> None:
    jwt = parsed(access_claims(nonce="n1", typ="ID"), typ="at+jwt")

    check_access_token(jwt, rules(), now=NOW)


# -- Claims --------------------------------------------------------------------------


@pytest.mark.spec("9068-2.2")
@pytest.mark.parametrize(
    "name", ["iss", "exp", "aud", "sub", "client_id", "iat", "jti"]
)
def test_what_an_access_token_has_to_say_is_required(name: str) -> None:
    error = refusal_of(parsed(access_claims(**{name: GONE})))

    assert error.reason is RejectionReason.MISSING_CLAIM
    assert error.claim == name
    assert ('profile="any"' in str(error)) is (name not in ("iss", "exp", "aud"))


@pytest.mark.spec("9068-2.2")
@pytest.mark.parametrize("name", ["iss", "exp", "aud"])
def test_three_claims_are_required_in_any_case(name: str) -> None:
    error = refusal_of(parsed(access_claims(**{name: GONE})), ANY)

    assert error.reason is RejectionReason.MISSING_CLAIM
    assert error.claim == name


@pytest.mark.spec("9068-2.2")
@pytest.mark.parametrize("name", ["sub", "client_id", "iat", "jti"])
def test_four_claims_may_be_missing_by_option(name: str) -> None:
    check_access_token(parsed(access_claims(**{name: GONE})), ANY, now=NOW)


@pytest.mark.parametrize("profile", ["rfc9068", "any"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("iss", None),
        ("iss", 1),
        ("aud", None),
        ("aud", []),
        ("aud", {"a": 1}),
        ("exp", "1900000000"),
        ("exp", True),
        ("exp", None),
        ("iat", "1"),
        ("nbf", []),
        ("sub", 1),
        ("sub", ""),
        ("client_id", None),
        ("client_id", ""),
        ("jti", 7),
        ("jti", ""),
        ("scope", None),
        ("scope", 7),
        ("scope", {"read": True}),
    ],
)
def test_a_claim_of_the_wrong_type_is_refused(
    name: str, value: object, profile: str
) -> None:
    error = refusal_of(parsed(access_claims(**{name: value})), rules(profile=profile))

    assert error.reason is RejectionReason.INVALID_CLAIM
    assert error.claim == name


@pytest.mark.spec("9068-4-iss")
@pytest.mark.spec("RS-multi-issuer")
@pytest.mark.parametrize("issuer", [ISSUER + "/", ISSUER + "1", "https://evil.test"])
@pytest.mark.parametrize("issuers", [(ISSUER,), (ISSUER, "https://other.test")])
def test_another_issuer_is_refused(issuer: str, issuers: tuple[str, ...]) -> None:
    error = refusal_of(parsed(access_claims(iss=issuer)), rules(issuers=issuers))

    assert error.reason is RejectionReason.INVALID_CLAIM
    assert error.claim == "iss"
    assert error.expected == issuers
    assert error.received == issuer


@pytest.mark.spec("RS-multi-issuer")
def test_the_issuer_is_one_of_the_configured() -> None:
    accepted = rules(issuers=(ISSUER, "https://other.test"))
    jwt = parsed(access_claims(iss="https://other.test"))

    assert select_issuer(jwt, accepted) == "https://other.test"
    assert read(jwt, accepted).issuer == "https://other.test"


@pytest.mark.spec("9068-4-aud")
@pytest.mark.parametrize("aud", ["https://api.tes", API + "/", ["a", "b"], API.upper()])
def test_a_token_for_somebody_else_is_refused(aud: object) -> None:
    error = refusal_of(parsed(access_claims(aud=aud)))

    assert error.reason is RejectionReason.INVALID_CLAIM
    assert error.claim == "aud"


@pytest.mark.spec("9068-4-aud")
def test_one_of_several_audiences_is_enough() -> None:
    jwt = parsed(access_claims(aud=["https://other.test", API]))

    assert read(jwt).audience == ("https://other.test", API)
    assert read(jwt, rules(audience=("x", API))).audience[1] == API


@pytest.mark.spec("9068-4-exp")
@pytest.mark.spec("7519-4.1.4")
def test_a_token_ends_with_the_leeway() -> None:
    jwt = parsed(access_claims(exp=NOW - LEEWAY))

    check_access_token(jwt, rules(), now=NOW - 0.5)
    assert refusal_of(jwt).reason is RejectionReason.EXPIRED


def test_whole_numbers_and_fractions_are_the_same_times() -> None:
    """There is a short way for the usual token; it lets no other pass."""
    instants = [0, -1, *(int(NOW) + shift for shift in (-1, 0, 1)), MAX_DATE]
    instants.append(MAX_DATE + 1)
    shifts = (-LEEWAY - 1, -LEEWAY, -0.5, 0, LEEWAY - 0.5, LEEWAY)
    outcomes = set()

    for end, issued_at, shift in product(instants, instants, shifts):
        for not_before in (GONE, *instants):
            claims = access_claims(exp=end, iat=issued_at, nbf=not_before)
            fractions = {**claims, "exp": float(end), "iat": float(issued_at)}
            short, long = (
                reason_of(
                    ParsedJWT({}, members, b"", b"", "RS256", None, "at+jwt"),
                    NOW + shift,
                )
                for members in (claims, fractions)
            )
            assert short == long, (claims, shift)
            outcomes.add(short)

    assert None in outcomes
    assert len(outcomes) > 4


def reason_of(jwt: ParsedJWT, now: float) -> tuple[RejectionReason, str | None] | None:
    try:
        check_access_token(jwt, rules(), now=now)
    except TokenRejectedError as error:
        return error.reason, error.claim
    return None


@pytest.mark.parametrize("name", ["nbf", "iat"])
def test_a_token_from_the_future_is_refused(name: str) -> None:
    jwt = parsed(access_claims(**{name: NOW + LEEWAY}))

    check_access_token(jwt, rules(), now=NOW)
    error = refusal_of(jwt, now=NOW - 0.5)
    assert error.reason is RejectionReason.NOT_YET_VALID
    assert error.claim == name


@pytest.mark.spec("cnf-unknown")
@pytest.mark.spec("9449-7.2-rs")
@pytest.mark.parametrize(
    "cnf", [{"kid": "x"}, {"jkt": "x"}, {"x5t#S256": "x"}, {}, None, "x"]
)
@pytest.mark.parametrize("profile", ["rfc9068", "any"])
def test_a_bound_token_is_refused(cnf: object, profile: str) -> None:
    error = refusal_of(parsed(access_claims(cnf=cnf)), rules(profile=profile))

    assert error.reason is RejectionReason.CONFIRMATION
    assert error.claim == "cnf"


@pytest.mark.parametrize("value", [GONE, None])
def test_a_claim_that_the_resource_requires_has_to_be_there(value: object) -> None:
    accepted = rules(required_claims=("tenant",))

    check_access_token(parsed(access_claims(tenant="t1")), accepted, now=NOW)
    error = refusal_of(parsed(access_claims(tenant=value)), accepted)
    assert error.reason is RejectionReason.MISSING_CLAIM
    assert error.claim == "tenant"


@pytest.mark.spec("7519-4-unknown")
@given(st.dictionaries(st.text(min_size=1, max_size=6), json_values, max_size=4))
def test_any_claims_are_read_or_refused(claims: dict[str, object]) -> None:
    jwt = ParsedJWT({}, {**claims}, b"", b"", "RS256", None, None)

    for accepted in (rules(), ANY):
        with pytest.raises(TokenRejectedError):
            check_access_token(jwt, accepted, now=NOW)


@pytest.mark.spec("SEC-fuzz")
@given(
    st.dictionaries(
        st.sampled_from([*access_claims(), "nbf", "cnf", "scp", "typ", "token_use"]),
        json_values,
        max_size=3,
    )
)
def test_no_value_of_a_claim_breaks_the_checks(claims: dict[str, object]) -> None:
    accepted = rules(profile="any", allow_scope_list=True)
    jwt = ParsedJWT({}, access_claims(**claims), b"", b"", "RS256", None, None)

    try:
        token = read(jwt, accepted)
    except TokenRejectedError as error:
        assert error.claim is not None  # noqa: PT017 -- not each value is refused
    else:
        assert token.issuer == ISSUER
        assert API in token.audience
        assert token.expires_at + LEEWAY > NOW


# -- Who uses it, and what for -------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"azp": "c2"}, CLIENT_ID),
        ({"client_id": GONE, "azp": "c2", "cid": "c3"}, "c2"),
        ({"client_id": GONE, "cid": "c3"}, "c3"),
        ({"client_id": GONE, "appid": "c4"}, "c4"),
        ({"client_id": GONE, "azp": 7, "appid": "c4"}, "c4"),
        ({"client_id": GONE}, None),
    ],
)
def test_the_client_is_found_under_the_names_that_issuers_use(
    claims: dict[str, object], expected: str | None
) -> None:
    assert read(parsed(access_claims(**claims)), ANY).client_id == expected


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (GONE, ()),
        ("", ()),
        ("read", ("read",)),
        ("read  write ", ("read", "write")),
        ("readonly\u00a0read", ("readonly\u00a0read",)),
    ],
)
def test_scope_is_read(scope: object, expected: tuple[str, ...]) -> None:
    assert read(parsed(access_claims(scope=scope))).scope == expected


@pytest.mark.spec("9068-scope-array")
def test_a_list_of_scopes_is_refused() -> None:
    error = refusal_of(parsed(access_claims(scope=["read"])))

    assert error.reason is RejectionReason.INVALID_CLAIM
    assert error.claim == "scope"
    assert "allow_scope_list=True" in str(error)


@pytest.mark.spec("9068-scope-array")
@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"scope": ["read", "write"]}, ("read", "write")),
        ({"scope": "read"}, ("read",)),
        ({"scope": GONE, "scp": ["read"]}, ("read",)),
        ({"scope": GONE, "scp": "read write"}, ("read", "write")),
        ({"scope": "read", "scp": ["admin"]}, ("read",)),
        ({"scope": GONE}, ()),
    ],
)
def test_a_list_of_scopes_is_accepted_by_option(
    claims: dict[str, object], expected: tuple[str, ...]
) -> None:
    accepted = rules(allow_scope_list=True)

    assert read(parsed(access_claims(**claims)), accepted).scope == expected


@pytest.mark.spec("9068-scope-array")
def test_scp_counts_by_option_only() -> None:
    assert read(parsed(access_claims(scope=GONE, scp=["admin"]))).scope == ()


@pytest.mark.parametrize("name", ["scope", "scp"])
@pytest.mark.parametrize("value", [[1], {"read": 1}, None, True])
def test_a_list_of_something_else_is_refused(name: str, value: object) -> None:
    claims = access_claims(scope=GONE)

    error = refusal_of(parsed({**claims, name: value}), rules(allow_scope_list=True))

    assert error.reason is RejectionReason.INVALID_CLAIM
    assert error.claim == name


@pytest.mark.spec("9068-2.2.3")
@pytest.mark.parametrize(
    "required", ["", "read", "write read", ["write"], (), {"read", "write"}]
)
def test_a_scope_that_is_there_suffices(required: str | list[str]) -> None:
    check_scope(read(parsed(access_claims())), required)


@pytest.mark.spec("9068-2.2.3")
@pytest.mark.parametrize("required", ["read", ["read"]])
def test_a_scope_is_a_whole_word(required: str | list[str]) -> None:
    token = read(parsed(access_claims(scope="readonly")))

    with pytest.raises(TokenRejectedError) as caught:
        check_scope(token, required)

    assert caught.value.reason is RejectionReason.INSUFFICIENT_SCOPE
    assert caught.value.expected == ("read",)


def test_all_scopes_that_are_needed_are_named() -> None:
    token = read(parsed(access_claims(scope="read")))

    with pytest.raises(TokenRejectedError) as caught:
        check_scope(token, "read write")

    assert caught.value.expected == ("read", "write")
    assert caught.value.received == ("read",)


# -- Signatures ----------------------------------------------------------------------


@pytest.mark.spec("9068-4-sig")
@pytest.mark.parametrize("alg", [one for one in rules().algorithms if one != "Ed448"])
def test_every_public_key_algorithm_is_accepted(alg: str) -> None:
    jwt = parsed(access_claims(), alg=alg)

    verify_jwt(jwt, KEYS, algorithms=rules().algorithms)
    check_access_token(jwt, rules(), now=NOW)


@pytest.mark.spec("9068-4-sig")
@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (sign(access_claims(), alg="none"), RejectionReason.ALGORITHM),
        (
            sign(access_claims(), alg="HS256", key="k" * 32),
            RejectionReason.ALGORITHM,
        ),
        (tampered(sign(access_claims())), RejectionReason.SIGNATURE),
    ],
    ids=["none", "hmac", "tampered"],
)
def test_a_token_of_somebody_else_is_refused(
    token: str, reason: RejectionReason
) -> None:
    with pytest.raises(TokenRejectedError) as caught:
        verify_jwt(parse_jwt(token), KEYS, algorithms=rules().algorithms)

    assert caught.value.reason is reason


# -- Rules ---------------------------------------------------------------------------


@pytest.mark.spec("9068-4-aud")
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("issuers", ()),
        ("issuers", ISSUER),
        ("issuers", (1,)),
        ("audience", ()),
        ("audience", ("",)),
        ("audience", API),
        ("audience", None),
        ("algorithms", ()),
        ("algorithms", ("none",)),
        ("algorithms", ("RS256", "HS256")),
        ("algorithms", tuple(HMAC_ALGORITHMS)),
        ("required_claims", "tenant"),
        ("required_claims", (None,)),
        ("profile", "none"),
        ("leeway", -1),
        ("leeway", 300.5),
        ("leeway", True),
        ("leeway", "30"),
        ("leeway", float("nan")),
    ],
)
def test_rules_that_are_of_no_use_are_refused(setting: str, value: object) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        rules(**{setting: value})

    assert caught.value.setting == setting


@pytest.mark.parametrize("leeway", [0, 300])
def test_the_leeway_has_bounds(leeway: float) -> None:
    assert rules(leeway=leeway).leeway == leeway


def test_the_rules_do_not_change_the_token() -> None:
    jwt = parsed(access_claims())

    read(jwt)

    assert dict(jwt.claims) == without_gone(access_claims())

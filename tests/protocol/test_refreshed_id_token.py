"""The ID token that comes with a refresh: the same user, issuer and audience."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._foundation.secret import Secret
from freshtoken._protocol.id_token import (
    IDTokenRules,
    carried_claims,
    check_refreshed_id_token,
    check_same_identity,
    ends_session,
)
from freshtoken._protocol.jwk import secret_key
from freshtoken._protocol.jwks import EMPTY, REFETCH_REASONS, JWKSet
from freshtoken._protocol.token_hash import half_hash
from freshtoken.errors import RejectionReason, TokenRejectedError
from tests.protocol.helpers import ISSUER, NOW, Anything
from tests.protocol.strategies import json_values
from tests.protocol.tokens import (
    ACCESS_TOKEN,
    CLIENT_ID,
    GONE,
    KEYS,
    id_claims,
    sign,
    tampered,
)

LEEWAY = 30.0
ORIGINAL = id_claims(iat=NOW - 3600, exp=NOW - 3300, nonce="n1", auth_time=NOW - 7200)
INVALID = RejectionReason.INVALID_CLAIM


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
    original: Mapping[str, object] = ORIGINAL,
    accepted: IDTokenRules | None = None,
    key_set: JWKSet = KEYS,
    access_token: str | None = ACCESS_TOKEN,
    now: float = NOW,
) -> Mapping[str, object]:
    return check_refreshed_id_token(
        token,
        key_set,
        accepted or rules(),
        now=now,
        access_token=access_token,
        original=original,
    )


def refusal_of(token: str, **options: Anything) -> TokenRejectedError:
    with pytest.raises(TokenRejectedError) as caught:
        check(token, **options)
    assert caught.value.__context__ is None
    return caught.value


def refused_with(
    reason: RejectionReason, claim: str | None, token: str, **options: Anything
) -> TokenRejectedError:
    error = refusal_of(token, **options)
    assert (error.reason, error.claim) == (reason, claim)
    return error


@pytest.mark.spec("Core-12.2-maxage")
def test_a_refreshed_token_brings_its_claims() -> None:
    """An authentication of two hours ago is not held against it."""
    claims = check(Secret(sign(id_claims(name="Ann"))))

    assert claims == id_claims(name="Ann")
    with pytest.raises(TypeError):
        claims["sub"] = "u2"  # type: ignore[index]  # that is the test


# -- Who it is about -----------------------------------------------------------------


@pytest.mark.spec("Core-12.2-iss")
@pytest.mark.parametrize("key_set", [KEYS, EMPTY])
def test_another_issuer_ends_the_session(key_set: JWKSet) -> None:
    token = sign(id_claims(iss=ISSUER + "1"))

    error = refused_with(INVALID, "iss", token, key_set=key_set)

    assert ends_session(error)


@pytest.mark.spec("Core-12.2-iss")
def test_the_issuer_of_the_session_counts_too() -> None:
    original = {**ORIGINAL, "iss": ISSUER + "/"}

    error = refused_with(INVALID, "iss", sign(id_claims()), original=original)

    assert ends_session(error)


@pytest.mark.spec("Core-12.2-sub")
@pytest.mark.parametrize("key_set", [KEYS, EMPTY])
@pytest.mark.parametrize("sub", ["u11", "U1", "u2"])
def test_another_user_ends_the_session(sub: str, key_set: JWKSet) -> None:
    token = sign(id_claims(sub=sub))

    error = refused_with(RejectionReason.SUBJECT, "sub", token, key_set=key_set)

    assert ends_session(error)
    assert error.expected is None
    assert error.received is None


@pytest.mark.spec("Core-12.2-sub")
def test_another_user_ends_the_session_whoever_signed() -> None:
    for token in (
        sign(id_claims(sub="u2"), alg="none"),
        tampered(sign(id_claims(sub="u2"))),
        sign(id_claims(sub="u2"), header={"typ": "at+jwt"}),
    ):
        assert ends_session(refusal_of(token))


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": GONE},
        {"iss": None},
        {"iss": 1},
        {"iss": {}},
        {"iss": []},
        {"sub": GONE},
        {"sub": 1},
        {"sub": ""},
        {"aud": "c2"},
        {"exp": NOW - 300},
        {"iat": GONE},
        {"nonce": "n2"},
    ],
)
def test_nothing_else_ends_the_session(claims: dict[str, object]) -> None:
    error = refusal_of(sign(id_claims(**claims)))

    assert not ends_session(error)


@pytest.mark.parametrize(
    "reason", [one for one in RejectionReason if one is not RejectionReason.SUBJECT]
)
def test_only_two_refusals_end_a_session(reason: RejectionReason) -> None:
    error = TokenRejectedError()
    error.reason = reason
    error.claim = "aud"
    error.received = "x"

    assert not ends_session(error)


@pytest.mark.spec("Core-12.2-aud")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (CLIENT_ID, CLIENT_ID),
        (CLIENT_ID, [CLIENT_ID]),
        ([CLIENT_ID], CLIENT_ID),
        ((CLIENT_ID,), CLIENT_ID),
        ([CLIENT_ID, "c2"], ["c2", CLIENT_ID]),
    ],
)
def test_the_same_audience_may_be_written_differently(
    before: object, after: object
) -> None:
    assert check(sign(id_claims(aud=after)), original={**ORIGINAL, "aud": before})


@pytest.mark.spec("Core-12.2-aud")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (CLIENT_ID, [CLIENT_ID, "x"]),
        ([CLIENT_ID, "x"], CLIENT_ID),
        (CLIENT_ID, "x"),
        ("x", "x"),
        (None, CLIENT_ID),
    ],
)
def test_another_audience_is_refused(before: object, after: object) -> None:
    token = sign(id_claims(aud=after, azp=CLIENT_ID))

    refused_with(INVALID, "aud", token, original={**ORIGINAL, "aud": before})


# -- What has to go on ---------------------------------------------------------------


@pytest.mark.spec("Core-12.2-iat")
def test_a_token_from_before_is_refused() -> None:
    original = {**ORIGINAL, "iat": NOW - 100}

    assert check(sign(id_claims(iat=NOW - 100 - LEEWAY)), original=original)
    refused_with(
        INVALID, "iat", sign(id_claims(iat=NOW - 100.5 - LEEWAY)), original=original
    )


@pytest.mark.spec("Core-12.2-iat")
def test_a_token_may_be_as_old_as_the_session() -> None:
    """Some servers send the same ID token again while it lives."""
    original = {**ORIGINAL, "iat": NOW - 200_000}

    assert check(sign(id_claims(iat=NOW - 200_000)), original=original)


@pytest.mark.spec("Core-12.2-authtime")
@pytest.mark.parametrize(
    ("before", "after", "accepted"),
    [
        (1000, 1000, True),
        (1000, 1000.0, True),
        (1000, GONE, True),
        (GONE, 2000, True),
        (1000, 2000, False),
        (2000, 1000, False),
        (0, 1000, False),
    ],
)
def test_the_time_of_authentication_stays(
    before: object, after: object, *, accepted: bool
) -> None:
    original = id_claims(iat=NOW - 60, auth_time=before)
    token = sign(id_claims(auth_time=after))

    if accepted:
        assert check(token, original=original)
    else:
        refused_with(INVALID, "auth_time", token, original=original)


@pytest.mark.spec("Core-12.2-nonce")
@pytest.mark.parametrize("nonce", [GONE, "n1"])
def test_the_nonce_may_be_missing(nonce: object) -> None:
    """Field note ID-11."""
    assert check(sign(id_claims(nonce=nonce)))


@pytest.mark.spec("Core-12.2-nonce")
@pytest.mark.parametrize("original", [ORIGINAL, id_claims()])
def test_another_nonce_is_refused(original: Mapping[str, object]) -> None:
    token = sign(id_claims(nonce="n2"))

    refused_with(RejectionReason.NONCE, "nonce", token, original=original)


@pytest.mark.spec("Core-12.2-nonce")
def test_a_nonce_of_the_wrong_type_is_refused() -> None:
    refused_with(INVALID, "nonce", sign(id_claims(nonce=None)))


@pytest.mark.spec("Core-12.2-azp")
@pytest.mark.parametrize("azp", [GONE, "c2", None])
def test_azp_follows_the_first_token_by_option(azp: object) -> None:
    original = {**ORIGINAL, "azp": CLIENT_ID}
    token = sign(id_claims(azp=azp))

    assert check(token, original=original)
    refused_with(
        INVALID, "azp", token, original=original, accepted=rules(check_azp=True)
    )
    assert check(
        sign(id_claims(azp=CLIENT_ID)),
        original=original,
        accepted=rules(check_azp=True),
    )


# -- The usual checks ----------------------------------------------------------------


@pytest.mark.spec("Core-12.2-rest")
@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (sign(id_claims(), alg="none"), RejectionReason.ALGORITHM),
        (sign(id_claims(), alg="ES256"), RejectionReason.ALGORITHM),
        (tampered(sign(id_claims())), RejectionReason.SIGNATURE),
        (sign(id_claims(), header={"typ": "at+jwt"}), RejectionReason.TYPE),
        (sign(id_claims(events={})), INVALID),
        (sign(id_claims(at_hash="x")), RejectionReason.HASH),
        (sign(id_claims(exp=NOW - LEEWAY)), RejectionReason.EXPIRED),
        (sign(id_claims(exp=GONE)), RejectionReason.MISSING_CLAIM),
        (sign(id_claims(iat=GONE)), RejectionReason.MISSING_CLAIM),
        (sign(id_claims(iat=NOW + LEEWAY + 1)), RejectionReason.NOT_YET_VALID),
        (sign(id_claims(nbf=NOW + LEEWAY + 1)), RejectionReason.NOT_YET_VALID),
        ("a.b.c", RejectionReason.MALFORMED),
    ],
    ids=[
        "unsigned",
        "another algorithm",
        "changed",
        "an access token",
        "a logout token",
        "of another access token",
        "expired",
        "without exp",
        "without iat",
        "issued in the future",
        "valid in the future",
        "no token",
    ],
)
def test_what_a_sign_in_checks_is_checked_again(
    token: str, reason: RejectionReason
) -> None:
    error = refusal_of(token)

    assert error.reason is reason
    assert not ends_session(error)


@pytest.mark.spec("Core-12.2-rest")
def test_at_hash_is_that_of_the_new_access_token() -> None:
    token = sign(id_claims(at_hash=half_hash("RS256", None, "at-2")))

    assert check(token, access_token="at-2")
    refused_with(RejectionReason.HASH, "at_hash", token, access_token="at-1")


def test_a_key_that_is_missing_can_be_fetched() -> None:
    error = refusal_of(sign(id_claims()), key_set=EMPTY)

    assert error.reason in REFETCH_REASONS
    assert not ends_session(error)


# -- Sessions without an ID token so far ---------------------------------------------


@pytest.mark.parametrize(
    "claims", [{}, {"nonce": "n9"}, {"auth_time": 1}, {"aud": [CLIENT_ID]}]
)
def test_the_first_id_token_of_a_session_has_nothing_to_follow(
    claims: dict[str, object],
) -> None:
    assert check(sign(id_claims(**claims)), original={})


@pytest.mark.parametrize(
    ("claims", "claim"),
    [
        ({"iss": ISSUER + "1"}, "iss"),
        ({"sub": ""}, "sub"),
        ({"aud": "c2"}, "aud"),
        ({"aud": [CLIENT_ID, "c2"]}, "aud"),
    ],
)
def test_the_first_id_token_of_a_session_is_for_this_client(
    claims: dict[str, object], claim: str
) -> None:
    refused_with(INVALID, claim, sign(id_claims(**claims)), original={})


# -- Without keys --------------------------------------------------------------------


def test_the_same_identity_is_seen_without_a_key() -> None:
    for token in (
        sign(id_claims(), alg="ES512"),
        tampered(sign(id_claims())),
        Secret(sign(id_claims(exp=1, at_hash="x"))),
    ):
        check_same_identity(token, rules(), ORIGINAL)


@pytest.mark.parametrize(
    ("token", "reason", "claim"),
    [
        (sign(id_claims(sub="u2")), RejectionReason.SUBJECT, "sub"),
        (sign(id_claims(iss="https://x.test")), INVALID, "iss"),
        (sign(id_claims(aud=[CLIENT_ID, "c2"])), INVALID, "aud"),
        (sign(id_claims(sub=GONE)), RejectionReason.MISSING_CLAIM, "sub"),
        ("a.b.c", RejectionReason.MALFORMED, None),
    ],
    ids=["sub", "iss", "aud", "missing", "malformed"],
)
def test_another_identity_is_seen_without_a_key(
    token: str, reason: RejectionReason, claim: str | None
) -> None:
    with pytest.raises(TokenRejectedError) as caught:
        check_same_identity(token, rules(), ORIGINAL)

    assert (caught.value.reason, caught.value.claim) == (reason, claim)


# -- What stays in the session -------------------------------------------------------


def test_what_later_tokens_are_compared_with_is_kept() -> None:
    refreshed = id_claims(roles=[])

    claims = carried_claims({**ORIGINAL, "sid": "s1", "roles": ["admin"]}, refreshed)

    assert claims == {
        **refreshed,
        "nonce": "n1",
        "auth_time": NOW - 7200,
        "sid": "s1",
    }


def test_what_a_refreshed_token_says_itself_counts() -> None:
    claims = carried_claims({"sid": "s1"}, id_claims(sid="s2"))

    assert claims == id_claims(sid="s2")


@pytest.mark.spec("Core-12.2-nonce")
def test_a_later_token_is_compared_with_what_was_kept() -> None:
    kept = carried_claims(ORIGINAL, check(sign(id_claims())))

    assert check(sign(id_claims(nonce="n1")), original=kept)
    refused_with(
        RejectionReason.NONCE, "nonce", sign(id_claims(nonce="n2")), original=kept
    )


@pytest.mark.spec("SEC-fuzz")
@given(
    st.dictionaries(
        st.sampled_from([*ORIGINAL, "azp", "at_hash"]), json_values, max_size=3
    ),
    st.dictionaries(st.sampled_from([*ORIGINAL, "azp"]), json_values, max_size=3),
)
def test_no_value_breaks_the_comparison(
    claims: dict[str, object], original: dict[str, object]
) -> None:
    """Also not one in a record that somebody else wrote."""
    key_set = JWKSet((secret_key(Secret("k" * 32), ("HS256",)),), ())
    token = sign(id_claims(**claims), alg="HS256", key=b"k" * 32)
    accepted = rules(algorithms=("HS256",), check_azp=True)

    try:
        found = check(
            token,
            original={**ORIGINAL, **original},
            accepted=accepted,
            key_set=key_set,
        )
    except TokenRejectedError as error:
        assert not error.__context__  # noqa: PT017 -- not each value is refused
    else:
        assert found["sub"] == {**ORIGINAL, **original}["sub"]

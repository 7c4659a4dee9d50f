"""One claim at a time; boundaries come in pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest

from freshtoken._protocol.claims import (
    MAX_DATE,
    audiences,
    check_audience,
    check_expiry,
    check_issued_at,
    check_issuer,
    check_not_before,
    check_subject,
    numeric_date,
    text_claim,
)
from freshtoken.errors import RejectionReason, TokenRejectedError
from tests.protocol.helpers import ISSUER, NOW, Anything


def refusal(check: Callable[[], object]) -> TokenRejectedError:
    with pytest.raises(TokenRejectedError) as caught:
        check()
    assert caught.value.__context__ is None
    return caught.value


@pytest.mark.spec("7519-4-numeric")
@pytest.mark.parametrize(
    "text",
    [
        '"1700000000"',
        "true",
        "null",
        "1e400",
        "-1e400",
        "[1]",
        "{}",
        str(MAX_DATE + 1),
        "1" * 400,
    ],
)
@pytest.mark.parametrize("name", ["exp", "nbf", "iat", "auth_time"])
def test_what_is_no_date_is_refused(text: str, name: str) -> None:
    claims = {name: json.loads(text)}

    error = refusal(lambda: numeric_date(claims, name))

    assert error.reason is RejectionReason.INVALID_CLAIM
    assert error.claim == name


@pytest.mark.spec("7519-4-numeric")
def test_nan_is_no_date() -> None:
    error = refusal(lambda: numeric_date({"exp": float("nan")}, "exp"))

    assert error.reason is RejectionReason.INVALID_CLAIM


@pytest.mark.spec("7519-4-numeric")
@pytest.mark.parametrize("value", [0, 1_700_000_000, 1_700_000_000.5, -1, MAX_DATE])
def test_a_number_is_a_date(value: float) -> None:
    assert numeric_date({"exp": value}, "exp") == value
    assert numeric_date({}, "exp") is None


@pytest.mark.spec("7519-4.1.4")
@pytest.mark.parametrize("leeway", [0, 30])
def test_a_token_expires_at_its_end_and_not_one_tick_before(leeway: float) -> None:
    claims = {"exp": NOW}

    check_expiry(claims, now=NOW + leeway - 0.001, leeway=leeway)
    error = refusal(lambda: check_expiry(claims, now=NOW + leeway, leeway=leeway))

    assert error.reason is RejectionReason.EXPIRED
    assert (error.claim, error.expected, error.received) == ("exp", NOW + leeway, NOW)


@pytest.mark.spec("7519-4.1.4")
def test_a_token_without_an_end_is_refused() -> None:
    error = refusal(lambda: check_expiry({}, now=NOW, leeway=30))

    assert (error.reason, error.claim) == (RejectionReason.MISSING_CLAIM, "exp")


@pytest.mark.spec("7519-4.1.5")
def test_a_token_is_valid_from_its_beginning_less_the_leeway() -> None:
    check_not_before({}, now=NOW, leeway=30)
    check_not_before({"nbf": NOW + 30}, now=NOW, leeway=30)
    error = refusal(lambda: check_not_before({"nbf": NOW + 30.001}, now=NOW, leeway=30))

    assert (error.reason, error.claim) == (RejectionReason.NOT_YET_VALID, "nbf")


def test_a_token_of_the_future_is_refused() -> None:
    check_issued_at({"iat": NOW + 30}, now=NOW, leeway=30, required=True)
    error = refusal(
        lambda: check_issued_at(
            {"iat": NOW + 30.001}, now=NOW, leeway=30, required=False
        )
    )

    assert (error.reason, error.claim) == (RejectionReason.NOT_YET_VALID, "iat")


def test_the_time_of_issue_may_be_required() -> None:
    check_issued_at({}, now=NOW, leeway=30, required=False)
    error = refusal(lambda: check_issued_at({}, now=NOW, leeway=30, required=True))

    assert (error.reason, error.claim) == (RejectionReason.MISSING_CLAIM, "iat")


@pytest.mark.spec("7519-4.1.3")
@pytest.mark.parametrize(
    "value", [{"c": 1}, [1], [], ["cid-1", 1], None, 1, True, "", "cid", "CID-1", ["x"]]
)
def test_a_token_for_nobody_or_somebody_else_is_refused(value: object) -> None:
    error = refusal(lambda: check_audience({"aud": value}, "cid-1"))

    assert (error.reason, error.claim) == (RejectionReason.INVALID_CLAIM, "aud")


@pytest.mark.spec("7519-4.1.3")
def test_one_common_audience_is_enough() -> None:
    check_audience({"aud": "cid-1"}, "cid-1")
    check_audience({"aud": ["x", "cid-1"]}, ("cid-1", "cid-2"))
    check_audience({"aud": "cid-2"}, {"cid-1", "cid-2"})

    assert audiences({"aud": "a"}) == ("a",)
    assert audiences({"aud": ["a", "b"]}) == ("a", "b")
    missing = refusal(lambda: audiences({}))
    assert missing.reason is RejectionReason.MISSING_CLAIM


@pytest.mark.parametrize("issuer", [ISSUER + "/", ISSUER.upper(), "", 1, None])
def test_every_character_of_the_issuer_counts(issuer: Anything) -> None:
    check_issuer({"iss": ISSUER}, ISSUER)
    error = refusal(lambda: check_issuer({"iss": issuer}, ISSUER))

    assert (error.reason, error.claim) == (RejectionReason.INVALID_CLAIM, "iss")
    missing = refusal(lambda: check_issuer({}, ISSUER))
    assert missing.reason is RejectionReason.MISSING_CLAIM


@pytest.mark.parametrize("subject", ["", "a" * 256, "ä", 1, None, ["a"]])
def test_a_subject_that_cannot_be_relied_on_is_refused(subject: Anything) -> None:
    error = refusal(lambda: check_subject({"sub": subject}))

    assert (error.reason, error.claim) == (RejectionReason.INVALID_CLAIM, "sub")


def test_a_subject_has_up_to_255_characters() -> None:
    check_subject({"sub": "a"})
    check_subject({"sub": "a" * 255})

    missing = refusal(lambda: check_subject({}))
    assert missing.reason is RejectionReason.MISSING_CLAIM


def test_text_may_be_missing_but_never_be_something_else() -> None:
    assert text_claim({}, "nonce", required=False) is None
    assert text_claim({"nonce": "n"}, "nonce", required=False) == "n"

    for value in (None, 1, ["n"]):
        error = refusal(partial(text_claim, {"nonce": value}, "nonce", required=False))
        assert error.reason is RejectionReason.INVALID_CLAIM


def test_what_was_found_is_shown_cut_and_masked() -> None:
    token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJlMTIz"

    error = refusal(lambda: check_issuer({"iss": token}, ISSUER))
    long = refusal(lambda: check_issuer({"iss": "a b " * 50}, ISSUER))
    deep = refusal(lambda: check_audience({"aud": [token, "x"]}, "cid-1"))
    odd = refusal(lambda: check_issuer({"iss": {"a": token}}, ISSUER))

    assert token[:20] not in f"{error.received}{error}{deep.received}{odd.received}"
    assert len(str(long.received)) == 61
    assert deep.received == ("***", "x")
    assert odd.received == "<dict>"

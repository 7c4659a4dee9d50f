"""Failures: each gets one disposition, and everything follows from it."""

from __future__ import annotations

import json
import pickle
from itertools import count

import pytest
from hypothesis import given

from freshtoken._foundation.records import Failure
from freshtoken._protocol.classification import (
    classify,
    error_for,
    failure_from,
    transport_failure,
)
from freshtoken._protocol.exchange import Response
from freshtoken._protocol.urls import issuer_mismatch
from freshtoken.errors import (
    AccessDeniedError,
    ClientRejectedError,
    Disposition,
    FreshTokenError,
    IssuerMismatchError,
    MisconfiguredError,
    RetryableError,
    SignInRequiredError,
    TransportError,
)
from tests.protocol.helpers import DATE, ISSUER, NOW, Anything, answer
from tests.protocol.strategies import bodies, headers, secrets, statuses

RETRY = Disposition.RETRY
SIGN_IN = Disposition.SIGN_IN
CLIENT_REJECTED = Disposition.CLIENT_REJECTED
DENIED = Disposition.DENIED
MISCONFIGURED = Disposition.MISCONFIGURED
UNCLEAR = Disposition.UNCLEAR

JSON = {"Content-Type": "application/json"}


def grade(
    status: int,
    body: object = b"",
    fields: dict[str, str] | None = None,
    *,
    grant_type: str = "refresh_token",
    **options: Anything,
) -> Failure:
    return classify(answer(status, body, fields), grant_type=grant_type, **options)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 520, 599, 999, 100])
@pytest.mark.parametrize(
    "body", [b"", b"<html>", {"error": "invalid_grant"}, {"error": "invalid_client"}]
)
def test_every_5xx_is_tried_again_whatever_it_says(status: int, body: object) -> None:
    failure = grade(status, body, error_codes={"invalid_grant": SIGN_IN})

    assert failure.disposition is RETRY
    assert failure.in_doubt
    assert not failure.no_answer
    assert failure.error is None


def test_a_5xx_may_say_later_in_oauth_words() -> None:
    failure = grade(503, {"error": "temporarily_unavailable"}, {"Retry-After": "30"})

    assert (failure.error, failure.retry_after) == ("temporarily_unavailable", 30)


@pytest.mark.parametrize(
    ("status", "in_doubt"), [(408, True), (425, False), (429, False)]
)
@pytest.mark.parametrize("body", [b"", "Too many", {"error": "invalid_grant"}])
def test_later_is_no_statement_about_the_grant(
    status: int, body: object, *, in_doubt: bool
) -> None:
    failure = grade(status, body)

    assert failure.disposition is RETRY
    assert failure.in_doubt is in_doubt


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 422])
@pytest.mark.parametrize(
    ("code", "disposition"),
    [
        ("invalid_grant", SIGN_IN),
        ("login_required", SIGN_IN),
        ("interaction_required", SIGN_IN),
        ("consent_required", SIGN_IN),
        ("account_selection_required", SIGN_IN),
        ("invalid_token", SIGN_IN),
        ("invalid_client", CLIENT_REJECTED),
        ("access_denied", DENIED),
        ("temporarily_unavailable", RETRY),
        ("server_error", RETRY),
        ("slow_down", RETRY),
        ("invalid_request", MISCONFIGURED),
        ("invalid_scope", MISCONFIGURED),
        ("unauthorized_client", MISCONFIGURED),
        ("unsupported_grant_type", MISCONFIGURED),
        ("invalid_target", MISCONFIGURED),
        ("invalid_dpop_proof", MISCONFIGURED),
    ],
)
def test_a_known_code_decides(status: int, code: str, disposition: Disposition) -> None:
    failure = grade(status, {"error": code, "error_description": "why"})

    assert failure.disposition is disposition
    assert (failure.error, failure.original_error) == (code, None)
    assert failure.description == "why"
    assert (failure.in_doubt, failure.no_answer, failure.sent) == (False, False, True)
    assert bool(failure.setting) is (disposition in (MISCONFIGURED, CLIENT_REJECTED))


@pytest.mark.parametrize(
    ("body", "code", "original"),
    [
        ({"error": "bad_refresh_token"}, "invalid_grant", "bad_refresh_token"),
        ({"error": "token_expired"}, "invalid_grant", "token_expired"),
        ({"error": "token_exchange_failed"}, "invalid_grant", "token_exchange_failed"),
        ({"error": "Invalid_Grant"}, "invalid_grant", "Invalid_Grant"),
        ({"error": "invalidGrant"}, "invalid_grant", "invalidGrant"),
        ({"error": " invalid-grant "}, "invalid_grant", "invalid-grant"),
        (
            {"error": {"code": "refresh_token_reused", "message": "used"}},
            "invalid_grant",
            "refresh_token_reused",
        ),
        ({"error": {"code": 401, "type": "invalid_grant"}}, "invalid_grant", None),
        ({"error": ["x", "invalid_grant"]}, "invalid_grant", None),
        ({"errors": [{"errorType": "invalid_grant"}]}, "invalid_grant", None),
        ({"errors": [[{"error": "invalid_grant"}]]}, "invalid_grant", None),
        ({"error": "", "errors": ["invalid_grant"]}, "invalid_grant", None),
        ({"errorCode": "invalid_grant"}, "invalid_grant", None),
        ("error=invalid_grant&error_description=gone", "invalid_grant", None),
        (
            {"error": "invalid_request", "error_description": "AADSTS70008: expired"},
            "invalid_grant",
            "invalid_request",
        ),
        ({"error": "odd", "error_codes": [700082]}, "invalid_grant", "odd"),
        ({"error_description": "AADSTS50173: x"}, "invalid_grant", "AADSTS50173"),
        ({"error": "odd", "error_codes": [50076, 1]}, "interaction_required", "odd"),
    ],
    ids=count(),
)
def test_dialects_are_understood(body: object, code: str, original: str | None) -> None:
    for status in (200, 400):
        failure = grade(status, body)

        assert failure.disposition is SIGN_IN
        assert (failure.error, failure.original_error) == (code, original)


def test_a_number_of_entra_does_not_soften_a_clear_code() -> None:
    failure = grade(400, {"error": "invalid_grant", "error_codes": [90033]})

    assert failure.disposition is SIGN_IN
    assert grade(400, {"error": "x", "error_codes": [90033]}).disposition is RETRY
    rejected = grade(400, {"error": "unauthorized_client", "error_codes": [7000215]})
    assert rejected.disposition is CLIENT_REJECTED
    unknown = grade(400, {"error": "invalid_scope", "error_codes": [12345, "x"]})
    assert unknown.disposition is MISCONFIGURED


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b""),
        (401, b""),
        (401, "<html>"),
        (400, {"error": "vendor_thing"}),
        (401, {"error": "vendor_thing"}),
        (400, {"error": 5}),
        (400, {"error": ""}),
        (400, {"error": "x" * 201}),
        (400, {"error": "vendor_thing", "code": "invalid_token"}),
        (400, {"error": {"code": 100, "type": "OAuthException"}}),
        (400, {"title": "Bad Request", "status": 400}),
        (400, []),
        (422, {"error": "vendor_thing"}),
        (200, {"error": "vendor_thing"}),
        (200, {"error": {"code": "vendor_thing"}}),
    ],
    ids=count(),
)
def test_a_refresh_refused_without_a_known_code_is_unclear(
    status: int, body: object
) -> None:
    failure = grade(status, body)

    assert failure.disposition is UNCLEAR
    assert not failure.in_doubt


def test_an_unknown_code_is_kept_for_the_report() -> None:
    failure = grade(400, {"error": {"code": 100, "type": "OAuthException"}})

    assert (failure.error, failure.original_error) == ("OAuthException", None)
    assert grade(400, {"error": {"code": 100}}).error == "100"


def test_a_malformed_request_of_a_grant_that_worked_is_unclear() -> None:
    body = {"error": "invalid_request"}

    assert grade(400, body, refreshed_before=True).disposition is UNCLEAR
    assert grade(400, body, refreshed_before=False).disposition is MISCONFIGURED
    service = grade(400, body, grant_type="client_credentials", refreshed_before=True)
    assert service.disposition is MISCONFIGURED


@pytest.mark.parametrize(
    ("status", "body", "disposition"),
    [
        (403, b"", RETRY),
        (403, "<title>Checking your browser</title>", RETRY),
        (403, [], RETRY),
        (403, {"error": "device_blocked"}, DENIED),
        (403, {"message": "Forbidden"}, DENIED),
        (418, "teapot", RETRY),
        (404, b"", MISCONFIGURED),
        (404, {"error": "not_found"}, MISCONFIGURED),
        (405, "<html>", MISCONFIGURED),
        (415, b"", MISCONFIGURED),
        (410, b"", MISCONFIGURED),
        (301, b"", MISCONFIGURED),
        (307, {"error": "invalid_grant"}, MISCONFIGURED),
        (200, {"token_type": "Bearer"}, RETRY),
        (200, {"error": 5}, RETRY),
        (200, {"code": "ok"}, RETRY),
        (200, b"", RETRY),
    ],
)
def test_what_is_in_the_way_is_told_apart(
    status: int, body: object, disposition: Disposition
) -> None:
    failure = grade(status, body)

    assert failure.disposition is disposition
    assert failure.in_doubt is (status == 200)
    assert failure.setting == (
        "token_endpoint" if disposition is MISCONFIGURED else None
    )


@pytest.mark.parametrize(
    ("status", "body", "disposition", "setting"),
    [
        (401, b"", MISCONFIGURED, "client_secret"),
        (400, b"", MISCONFIGURED, "client_id"),
        (400, {"error": "vendor_thing"}, MISCONFIGURED, "client_id"),
        (400, {"error": "invalid_grant"}, CLIENT_REJECTED, "client_secret"),
        (400, {"error": "login_required"}, DENIED, None),
        (401, {"error": "invalid_client"}, CLIENT_REJECTED, "client_secret"),
        (400, {"error": "invalid_scope"}, MISCONFIGURED, "scope"),
        (403, "<html>", RETRY, None),
        (503, b"", RETRY, None),
    ],
)
def test_no_user_stands_behind_a_service(
    status: int, body: object, disposition: Disposition, setting: str | None
) -> None:
    failure = grade(status, body, grant_type="client_credentials")

    assert (failure.disposition, failure.setting) == (disposition, setting)


@pytest.mark.parametrize(
    ("status", "body", "disposition", "setting"),
    [
        (
            400,
            {"error": "unsupported_token_type"},
            MISCONFIGURED,
            "revocation_endpoint",
        ),
        (400, b"", MISCONFIGURED, "revocation_endpoint"),
        (404, b"", MISCONFIGURED, "revocation_endpoint"),
        (302, b"", MISCONFIGURED, "revocation_endpoint"),
        (400, {"error": "invalid_grant"}, DENIED, None),
        (503, b"", RETRY, None),
    ],
)
def test_a_revocation_never_asks_for_a_sign_in(
    status: int, body: object, disposition: Disposition, setting: str | None
) -> None:
    failure = grade(status, body, grant_type="revocation")

    assert (failure.disposition, failure.setting) == (disposition, setting)


def test_a_code_that_fails_is_unclear_or_over() -> None:
    grant_type = "authorization_code"

    assert grade(400, b"", grant_type=grant_type).disposition is UNCLEAR
    over = grade(400, {"error": "bad_verification_code"}, grant_type=grant_type)
    assert over.disposition is SIGN_IN


def test_the_caller_s_table_goes_first() -> None:
    own = {
        "E-42": SIGN_IN,
        "invalid_scope": RETRY,
        "40030": SIGN_IN,
        "AADSTS99999": DENIED,
        "odd": MISCONFIGURED,
    }

    def own_grade(status: int, body: object, **options: Anything) -> Failure:
        return grade(status, body, error_codes=own, **options)

    assert own_grade(400, {"error": "e_42"}).disposition is SIGN_IN
    assert own_grade(404, {"error": "E-42"}).disposition is SIGN_IN
    assert own_grade(400, {"error": "E-42"}).error == "E-42"
    assert own_grade(400, {"error": "invalid_scope"}).disposition is RETRY
    assert own_grade(200, {"errcode": 40030}).disposition is SIGN_IN
    assert own_grade(400, {"error": "x", "error_codes": [99999]}).disposition is DENIED
    assert own_grade(400, {"error": "odd"}).setting == "error_codes"
    assert own_grade(400, {"error": "other"}).disposition is UNCLEAR
    service = own_grade(400, {"error": "E-42"}, grant_type="client_credentials")
    assert service.disposition is SIGN_IN


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": " 7 "}, 7),
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": "0"}, 0),
        ({"Retry-After": "300"}, 300),
        ({"Retry-After": "301"}, 300),
        ({"Retry-After": "86400"}, 300),
        ({"retry-after": "7"}, 7),
        ({"Retry-After": "Fri, 15 Jan 2027 08:00:31 GMT"}, 30),
        ({"Retry-After": "Fri, 15 Jan 2027 08:00:31 GMT", "Date": DATE}, 31),
        ({"Retry-After": "Fri, 15 Jan 2027 08:00:31 -0000", "Date": DATE}, 31),
        ({"Retry-After": "Fri, 15 Jan 2027 07:00:00 GMT", "Date": DATE}, 0),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Fri, 99 Jan 2027 08:00:00 GMT"}, None),
        ({"Retry-After": ""}, None),
        ({}, None),
    ],
)
def test_the_wait_is_read_in_both_forms_and_capped(
    fields: dict[str, str], expected: float | None
) -> None:
    assert grade(429, b"", fields).retry_after == expected


def test_a_capped_wait_is_kept_as_it_was() -> None:
    assert grade(429, b"", {"Retry-After": "86400"}).extra == {"retry_after": 86400}
    assert grade(429, b"", {"Retry-After": "300"}).extra == {}


@pytest.mark.parametrize(
    ("fields", "body", "expected"),
    [
        ({"X-Request-ID": "req-1"}, {}, "req-1"),
        ({"x-ms-request-id": "a", "traceparent": "b"}, {}, "a"),
        ({"CF-Ray": "8a-FRA"}, {}, "8a-FRA"),
        ({}, {"correlation_id": "c-1"}, "c-1"),
        ({}, {"trace_id": "t-1"}, "t-1"),
        ({}, {"error": {"fbtrace_id": "f-1"}}, "f-1"),
        ({"X-Request-ID": "req-1"}, {"trace_id": "t-1"}, "req-1"),
        ({"X-Request-ID": "a b"}, {"trace_id": 7}, None),
        ({"X-Request-ID": "eyJhbGciOiJub25lIn0.e30."}, {}, None),
        ({"X-Request-ID": "x" * 129}, {}, None),
        ({"X-Request-ID": "has-s3cr3t-inside"}, {}, None),
        ({}, {}, None),
    ],
)
def test_the_request_is_identified(
    fields: dict[str, str], body: object, expected: str | None
) -> None:
    assert grade(400, body, fields, secrets=["s3cr3t"]).request_id == expected


def test_details_of_entra_reach_the_caller() -> None:
    claims = (
        '{"access_token":{"capolids":{"essential":true,'
        '"values":["7b9c0000-0000-4000-8000-000000000001"]}}}'
    )
    body = {
        "error": "invalid_grant",
        "error_description": "AADSTS50173: fresh sign-in needed (revoked)",
        "error_codes": [50173],
        "suberror": "bad_token",
        "timestamp": "2027-01-15T08:00:00Z",
        "trace_id": "7b9c0000-0000-4000-8000-000000000002",
        "claims": claims,
        "error_uri": "https://login.idp.test/error?code=50173",
    }

    failure = grade(400, body)

    assert failure.extra == {
        "error_codes": [50173],
        "suberror": "bad_token",
        "timestamp": "2027-01-15T08:00:00Z",
        "trace_id": "7b9c0000-0000-4000-8000-000000000002",
        "claims": claims,
    }
    assert failure.request_id == "7b9c0000-0000-4000-8000-000000000002"
    assert failure.error_uri == "https://login.idp.test/error"


def test_the_challenges_beside_invalid_client_are_named() -> None:
    fields = {"WWW-Authenticate": "Basic realm=idp"}

    failure = grade(401, {"error": "invalid_client"}, fields)

    assert failure.extra == {"www_authenticate": ["basic"]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("https://docs.test/e?x=1#y", "https://docs.test/e"),
        ("http://docs.test", "http://docs.test"),
        ("https://docs.test/s3cr3t", None),
        ("https://docs.test/ä", None),
        ("https://docs.test/" + "x" * 200, None),
        ("javascript:alert(1)", None),
        ("https://[", None),
        (7, None),
    ],
)
def test_only_a_web_address_without_query_is_shown(
    value: object, expected: str | None
) -> None:
    body = {"error": "x", "error_uri": value}

    assert grade(400, body, secrets=["s3cr3t"]).error_uri == expected


def test_further_members_are_bounded_and_masked() -> None:
    token = "Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5"
    body = {
        "error": "x",
        "note": f"see {token}",
        "refresh_token": "short",
        "nested": {"id_token": "short", "list": [1, [2, [3, [4]]]], token: 1},
        "numbers": [1, 2.5, True, None, 2**70],
        "claims": f"not JSON {token}",
        "trace_id": "not an identifier",
        "deep": {"a": {"b": {"c": {"d": 1}}}},
        **{f"m{i}": i for i in range(40)},
    }

    failure = grade(400, json.dumps(body).replace("2.5", "1e999").encode())
    shown = failure.extra

    assert token not in repr(failure)
    assert "short" not in repr(shown)
    assert shown["numbers"] == [1, "***", True, None, "***"]
    assert shown["nested"] == {"id_token": "***", "list": [1, [2, "***"]], "***": 1}
    assert shown["deep"] == {"a": {"b": {"c": "***"}}}
    assert shown["claims"] == "not JSON ***"
    assert shown["trace_id"] == "***"
    assert len(shown) == 20


def test_claims_with_a_secret_or_without_end_are_masked() -> None:
    for claims in ('{"a":"s3cr3t"}', json.dumps({"a": "x" * 5000})):
        body = {"error": "x", "claims": claims}
        assert grade(400, body, secrets=["s3cr3t"]).extra == {"claims": "***"}


def test_what_the_request_carried_is_masked_in_every_spelling() -> None:
    secret = "p@ss word"
    body = {
        "error": f"odd {secret}",
        "error_description": f"{secret} or p%40ss+word",
        "detail": [secret],
    }

    failure = grade(400, body, secrets=[secret])

    assert failure.error == "odd ***"
    assert failure.description == "*** or ***"
    assert failure.extra == {"detail": ["***"]}
    assert secret not in failure.advice


def test_a_secret_that_looks_like_a_code_changes_no_meaning() -> None:
    failure = grade(400, {"error": "invalid_grant"}, secrets=["invalid"])

    assert failure.disposition is SIGN_IN


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://other.test/a?code=x#y", "https://other.test/a"),
        ("/login?next=x", "https://idp.test/login"),
        ("", "nowhere"),
        ("https://[", "nowhere"),
        ("https://u:p@other.test/a", "https://other.test/a"),
    ],
)
def test_a_redirect_is_shown_by_origin_and_path(location: str, shown: str) -> None:
    failure = grade(302, b"", {"Location": location})

    assert f"to {shown}," in failure.advice
    assert grade(302).advice.count("nowhere") == 1


@pytest.mark.parametrize(
    ("status", "body", "fields", "parts"),
    [
        (403, "<html>", {"Content-Type": "text/html; charset=x"}, ["403", "text/html"]),
        (502, b"", {}, ["502", "no media type"]),
        (400, {"error": "invalid_grant", "error_description": "gone"}, JSON, ["gone"]),
        (401, b"", {}, ["401", "without an error code"]),
        (400, {"message": "Oops"}, JSON, ["Oops"]),
        (200, {"x": 1}, JSON, ["200", "it holds no tokens"]),
    ],
)
def test_the_advice_says_what_happened(
    status: int, body: object, fields: dict[str, str], parts: list[str]
) -> None:
    advice = grade(status, body, fields).advice

    for part in parts:
        assert part in advice


@pytest.mark.parametrize("disposition", Disposition)
def test_every_advice_says_what_to_do_next(disposition: Disposition) -> None:
    failure = grade(400, {"error": "x"}, error_codes={"x": disposition})

    assert failure.disposition is disposition
    assert failure.advice.count(". ") >= 1
    assert len(failure.advice) < 400


def test_no_answer_may_heal() -> None:
    failure = transport_failure(
        "ReadTimeout", sent=True, in_doubt=True, detail="rt Zm9vYmFyYmF6cXV4MTIz", at=5
    )

    assert failure.disposition is RETRY
    assert (failure.sent, failure.in_doubt, failure.no_answer) == (True, True, True)
    assert (failure.cause, failure.at, failure.status) == ("ReadTimeout", 5, None)
    assert "Zm9v" not in failure.advice
    assert "may have acted" in failure.advice
    unsent = transport_failure("ConnectError", sent=False, in_doubt=False)
    assert (unsent.sent, unsent.in_doubt) == (False, False)
    assert "may have acted" not in unsent.advice


def test_a_certificate_that_does_not_verify_does_not_heal() -> None:
    failure = transport_failure(
        "ConnectError", sent=False, in_doubt=False, certificate=True
    )

    assert failure.disposition is MISCONFIGURED
    assert failure.setting == "certificate"
    assert isinstance(error_for(failure, issuer=ISSUER), MisconfiguredError)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (grade(503), RetryableError),
        (transport_failure("ReadError", sent=True, in_doubt=True), TransportError),
        (grade(400, {"error": "invalid_grant"}), SignInRequiredError),
        (grade(400), SignInRequiredError),
        (grade(403, {"error": "x"}), AccessDeniedError),
        (grade(404), MisconfiguredError),
        (grade(401, {"error": "invalid_client"}), ClientRejectedError),
    ],
    ids=count(),
)
def test_each_failure_has_one_exception(
    failure: Failure, kind: type[FreshTokenError]
) -> None:
    error = error_for(failure, issuer=ISSUER, session_id="s1")

    assert type(error) is kind
    assert error.disposition is failure.disposition
    assert (error.issuer, error.session_id) == (ISSUER, "s1")
    assert error.status == failure.status
    assert str(error) == failure.advice
    assert error_for(failure, issuer=ISSUER) is not error


def test_an_exception_carries_the_details() -> None:
    body = {
        "error": "bad_refresh_token",
        "error_description": "gone",
        "error_uri": "https://docs.test/e",
        "suberror": "x",
    }
    failure = grade(400, body, {"X-Request-ID": "r1"})

    error = error_for(failure, issuer=ISSUER)

    assert isinstance(error, SignInRequiredError)
    assert (error.error, error.original_error) == ("invalid_grant", "bad_refresh_token")
    assert (error.error_description, error.error_uri) == ("gone", "https://docs.test/e")
    assert (error.request_id, error.extra) == ("r1", {"suberror": "x"})
    assert (error.cleared, error.reason) == (True, "terminal")
    assert not error.lost_rotation


def test_an_exception_can_be_pickled() -> None:
    failure = grade(400, {"error": "invalid_grant", "suberror": "x"})

    error = pickle.loads(pickle.dumps(error_for(failure, issuer=ISSUER)))  # noqa: S301 -- our own

    assert isinstance(error, SignInRequiredError)
    assert (error.error, error.extra) == ("invalid_grant", {"suberror": "x"})
    assert str(error) == failure.advice


def test_an_unclear_refusal_clears_nothing() -> None:
    error = error_for(grade(400), issuer=ISSUER)

    assert isinstance(error, SignInRequiredError)
    assert (error.cleared, error.reason) == (False, "unclear")


def test_the_caller_knows_better_what_was_cleared_and_why() -> None:
    failure = grade(400, {"error": "invalid_grant"})

    error = error_for(failure, issuer=ISSUER, cleared=False, reason="expired")

    assert isinstance(error, SignInRequiredError)
    assert (error.cleared, error.reason) == (False, "expired")


def test_a_lost_rotation_is_said_plainly() -> None:
    failure = grade(400, {"error": "invalid_grant"})
    lost = Failure(SIGN_IN, failure.advice, error="invalid_grant", lost_rotation=True)

    error = error_for(lost, issuer=ISSUER)

    assert isinstance(error, SignInRequiredError)
    assert error.lost_rotation
    assert "got lost" in str(error)
    assert "got lost" not in str(error_for(failure, issuer=ISSUER))


def test_a_retryable_exception_says_when_and_since_when() -> None:
    failure = Failure(RETRY, "later", retry_after=7, since=NOW, sent=False)

    error = error_for(failure, issuer=None)

    assert isinstance(error, RetryableError)
    assert (error.retry_after, error.request_sent) == (7, False)
    assert error.failing_since == NOW
    transport = error_for(
        transport_failure("PoolTimeout", sent=False, in_doubt=False), issuer=None
    )
    assert isinstance(transport, TransportError)
    assert (transport.cause, transport.failing_since) == ("PoolTimeout", None)


@pytest.mark.parametrize(
    "error",
    [
        MisconfiguredError("revocation_endpoint is missing", setting="x"),
        issuer_mismatch(ISSUER, "https://other.test"),
        issuer_mismatch(ISSUER, 7),
    ],
    ids=count(),
)
def test_a_wrong_setting_survives_being_stored(error: MisconfiguredError) -> None:
    failure = failure_from(error, at=5)
    again = error_for(failure, issuer=ISSUER)

    assert failure.disposition is MISCONFIGURED
    assert (failure.sent, failure.at) == (False, 5)
    assert type(again) is type(error)
    assert isinstance(again, MisconfiguredError)
    assert (str(again), again.setting) == (str(error), error.setting)
    if isinstance(error, IssuerMismatchError):
        assert isinstance(again, IssuerMismatchError)
        assert (again.expected, again.received) == (error.expected, error.received)


@given(statuses, headers, bodies)
def test_every_answer_gets_one_disposition(
    status: int, fields: tuple[tuple[str, str], ...], body: bytes
) -> None:
    response = Response(status, fields, body, sent_at=NOW, url="https://idp.test/t")
    for grant_type in ("refresh_token", "client_credentials", "revocation"):
        failure = classify(response, grant_type=grant_type)

        assert isinstance(error_for(failure, issuer=ISSUER), FreshTokenError)
        assert len(failure.advice) < 2000
        json.dumps(dict(failure.extra), allow_nan=False)
        if status >= 500:
            assert failure.disposition is RETRY
        if failure.retry_after is not None:
            assert 0 <= failure.retry_after <= 300


@given(secrets, statuses)
def test_an_echoed_secret_is_never_shown(secret: str, status: int) -> None:
    body = {
        "error": secret,
        "error_description": f"the token {secret} is bad",
        "error_uri": f"https://docs.test/{secret}",
        "x": [secret, {secret: secret}],
        secret: 1,
        "trace_id": secret,
        "claims": json.dumps({"a": secret}),
    }
    fields = {"X-Request-ID": secret, "Location": f"https://idp.test/?x={secret}"}

    failure = grade(status, body, fields, secrets=[secret])

    assert secret not in repr(failure)
    assert secret not in str(error_for(failure, issuer=ISSUER))

"""Words of failures: what happened, and what to do next in a sign-in."""

from __future__ import annotations

import pytest

from freshtoken._foundation.records import Failure
from freshtoken._protocol.advice import error_for, for_sign_in
from freshtoken._protocol.classification import classify, transport_failure
from freshtoken.errors import (
    AccessDeniedError,
    ClientRejectedError,
    Disposition,
    FreshTokenError,
    MisconfiguredError,
    RetryableError,
    SignInRequiredError,
    TransportError,
)
from tests.protocol.helpers import ISSUER, answer


def code_failure(status: int, code: str | None) -> Failure:
    """Return how the exchange of a code failed."""
    body = {"error": code, "error_description": "why so"} if code else {}
    return classify(answer(status, body), grant_type="authorization_code")


@pytest.mark.parametrize(
    ("status", "code", "kind", "words"),
    [
        (400, "invalid_grant", SignInRequiredError, "a code is good once"),
        (400, "login_required", SignInRequiredError, "the user can act"),
        (400, "consent_required", SignInRequiredError, "the user can act"),
        (400, None, SignInRequiredError, "begin a new sign-in"),
        (503, None, RetryableError, "begin a new sign-in in a moment"),
        (403, "blocked", AccessDeniedError, "The user declined, or the account"),
        (400, "invalid_scope", MisconfiguredError, "then begin a new sign-in"),
        (401, "invalid_client", ClientRejectedError, "would not help"),
    ],
)
def test_a_failed_sign_in_says_what_to_do_next(
    status: int, code: str | None, kind: type[FreshTokenError], words: str
) -> None:
    failure = code_failure(status, code)

    advised = for_sign_in(failure)
    error = error_for(advised, issuer=ISSUER, cleared=False)

    assert type(error) is kind
    assert words in str(error)
    assert "session" not in str(error)
    assert f"answered {status}" in str(error)
    assert not getattr(error, "cleared", False)


@pytest.mark.parametrize("status", [400, 401, 403, 503])
@pytest.mark.parametrize(
    "code", [None, "invalid_grant", "login_required", "invalid_scope", "invalid_client"]
)
def test_advice_is_given_once(status: int, code: str | None) -> None:
    advised = for_sign_in(code_failure(status, code))

    assert for_sign_in(advised) == advised


def test_only_the_words_change() -> None:
    failure = code_failure(400, "invalid_grant")

    advised = for_sign_in(failure)

    assert advised.advice != failure.advice
    assert advised.disposition is Disposition.SIGN_IN
    assert (advised.error, advised.description) == ("invalid_grant", "why so")
    assert advised.status == 400


def test_no_answer_to_a_code_is_no_reason_to_keep_a_session() -> None:
    failure = transport_failure("ReadTimeout", sent=True, in_doubt=True)

    error = error_for(for_sign_in(failure), issuer=ISSUER)

    assert isinstance(error, TransportError)
    assert "session is kept" not in str(error)
    assert "ReadTimeout" in str(error)

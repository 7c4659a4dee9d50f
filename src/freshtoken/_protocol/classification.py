"""Failures and what they mean: one table, nowhere else.

`classify` grades an answer, `transport_failure` the lack of one. What both give is put
into words, and made into public exceptions, by `freshtoken._protocol.advice`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType

from freshtoken._foundation.records import Failure
from freshtoken._foundation.secret import redact
from freshtoken._protocol import advice
from freshtoken._protocol.advice import error_for, failure_from
from freshtoken._protocol.error_answer import ErrorAnswer, read_error, spellings
from freshtoken._protocol.exchange import Response
from freshtoken._protocol.headers import (
    media_type,
    redirect_target,
    request_id,
    retry_after,
)
from freshtoken.errors import Disposition

__all__ = [
    "classify",
    "error_for",
    "failure_from",
    "meaning_at_browser",
    "transport_failure",
    "unusable_answer",
]

RETRY = Disposition.RETRY
SIGN_IN = Disposition.SIGN_IN
CLIENT_REJECTED = Disposition.CLIENT_REJECTED
DENIED = Disposition.DENIED
MISCONFIGURED = Disposition.MISCONFIGURED
UNCLEAR = Disposition.UNCLEAR

MAX_RETRY_AFTER = 300.0

_SUCCESS = 2
_REDIRECT = 3

REFRESH = "refresh_token"
CLIENT_CREDENTIALS = "client_credentials"
AUTHORIZATION_CODE = "authorization_code"
REVOCATION = "revocation"
DISCOVERY = "discovery"
KEY_SET = "key_set"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an error code means.

    Attributes:
        code: The registered code that it is, or stands for.
        setting: The setting to look at.
        fixed: From the caller's own table: holds for every grant.
    """

    disposition: Disposition
    code: str
    setting: str | None = None
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class _Grade:
    """What an answer means for the session."""

    disposition: Disposition
    setting: str | None = None
    in_doubt: bool = False


_CODES: Mapping[Disposition, Mapping[str, str | None]] = {
    SIGN_IN: {
        "invalid_grant": None,
        "invalid_token": None,
        "login_required": None,
        "interaction_required": None,
        "consent_required": None,
        "account_selection_required": None,
    },
    CLIENT_REJECTED: {"invalid_client": "client_secret"},
    RETRY: {"temporarily_unavailable": None, "server_error": None, "slow_down": None},
    DENIED: {"access_denied": None},
    MISCONFIGURED: {
        "invalid_request": "token_endpoint_auth_method",
        "invalid_scope": "scope",
        "unauthorized_client": "client_id",
        "unsupported_grant_type": "grant_type",
        "invalid_target": "resource",
        "invalid_dpop_proof": "dpop",
        "use_dpop_nonce": "dpop",
        "invalid_authorization_details": "authorization_details",
        "unsupported_token_type": "revocation_endpoint",
        # Said to the browser (RFC 6749 §4.1.2.1, OpenID Connect Core §3.1.2.6).
        "unsupported_response_type": "client_id",
        "invalid_request_object": "extra",
        "invalid_request_uri": "extra",
        "registration_not_supported": "extra",
        "request_not_supported": "extra",
        "request_uri_not_supported": "extra",
    },
}

# Provider dialects: what the code of one server is called in the registry.
_DIALECTS = {
    "bad_refresh_token": "invalid_grant",
    "bad_verification_code": "invalid_grant",
    "expired_token": "invalid_grant",
    "invalid_refresh_token": "invalid_grant",
    "refresh_token_expired": "invalid_grant",
    "refresh_token_invalidated": "invalid_grant",
    "refresh_token_reused": "invalid_grant",
    "refresh_token_revoked": "invalid_grant",
    "token_exchange_failed": "invalid_grant",
    "token_expired": "invalid_grant",
    "token_revoked": "invalid_grant",
    "unmet_authentication_requirements": "interaction_required",
    "bad_client_secret": "invalid_client",
    "deleted_client": "invalid_client",
    "incorrect_client_credentials": "invalid_client",
    "invalid_client_credentials": "invalid_client",
    "invalid_client_id": "invalid_client",
    "invalid_client_secret": "invalid_client",
    "internal_error": "server_error",
    "internal_server_error": "server_error",
    "service_unavailable": "temporarily_unavailable",
    "rate_limit_exceeded": "slow_down",
    "rate_limited": "slow_down",
    "ratelimited": "slow_down",
    "too_many_requests": "slow_down",
    "admin_policy_enforced": "access_denied",
    "unverified_user_email": "access_denied",
}

# Entra packs the reason into numbers. They decide where the code beside them does
# not end anything by itself (it usually is the right one).
_AADSTS = {
    50173: "invalid_grant",  # a fresh sign-in is needed: password changed, revoked
    50089: "invalid_grant",  # authentication flow expired
    50132: "invalid_grant",  # single sign-on session invalid or expired
    50133: "invalid_grant",  # single sign-on session revoked
    54005: "invalid_grant",  # code used before
    70000: "invalid_grant",  # invalid grant
    70008: "invalid_grant",  # expired or revoked
    70043: "invalid_grant",  # sign-in frequency of a policy
    700082: "invalid_grant",  # expired by inactivity
    700084: "invalid_grant",  # end of a single-page application's token
    50058: "login_required",
    50076: "interaction_required",  # second factor
    50078: "interaction_required",  # second factor expired
    50079: "interaction_required",  # second factor to be registered
    65001: "consent_required",
    7000215: "invalid_client",  # wrong secret
    7000222: "invalid_client",  # expired secret
    7000218: "invalid_client",  # no secret or assertion
    700027: "invalid_client",  # signature of the assertion
    700016: "unauthorized_client",  # unknown application
    90006: "temporarily_unavailable",
    90012: "temporarily_unavailable",
    90033: "temporarily_unavailable",
}
_AADSTS_TEXT = re.compile(r"AADSTS([0-9]{5,8})")
_WORD_BREAKS = re.compile(r"[\s_\-.]+")

# What is asked where; the setting that leads there.
_PLACES = {
    REVOCATION: "revocation_endpoint",
    DISCOVERY: "issuer",
    KEY_SET: "jwks_uri",
}

# Where a server that speaks OAuth may refuse without a body that does.
_OAUTH_STATUSES = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED})
_ALWAYS_RETRY = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_EARLY,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)
# Not this address, or not this way of asking.
_WRONG_PLACE = frozenset(
    {
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.NOT_ACCEPTABLE,
        HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
        HTTPStatus.GONE,
        HTTPStatus.LENGTH_REQUIRED,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.REQUEST_URI_TOO_LONG,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    }
)


def _compact(code: str) -> str:
    """Return a code without what servers vary: case, underscores, hyphens."""
    return _WORD_BREAKS.sub("", code).lower()


def _build_table() -> Mapping[str, Meaning]:
    """Return the meaning of every known code, by its compact spelling."""
    registered = {
        code: Meaning(disposition, code, setting)
        for disposition, codes in _CODES.items()
        for code, setting in codes.items()
    }
    table = {_compact(code): meaning for code, meaning in registered.items()}
    for dialect, code in _DIALECTS.items():
        table[_compact(dialect)] = registered[code]
    return MappingProxyType(table)


_TABLE = _build_table()
# At the browser no client was authenticated, and a user who cannot meet a requirement
# could not the next time either.
_AT_BROWSER = {
    _compact(meaning.code): meaning
    for meaning in (
        Meaning(MISCONFIGURED, "invalid_client", "client_id"),
        Meaning(MISCONFIGURED, "invalid_request", "authorization_request"),
        Meaning(DENIED, "unmet_authentication_requirements"),
    )
}


def classify(
    response: Response,
    *,
    grant_type: str,
    refreshed_before: bool = False,
    error_codes: Mapping[str, Disposition] | None = None,
    secrets: Iterable[str] = (),
    problem: str = "it holds no tokens",
) -> Failure:
    """Grade an answer without usable tokens.

    Args:
        grant_type: ``grant_type`` of the request, or ``"revocation"``, ``"discovery"``,
            ``"key_set"``.
        refreshed_before: This grant has been refreshed with success before, so that
            its requests are known to be well-formed.
        error_codes: The caller's own table, which goes before this one.
        secrets: What the request carried, to be masked.
        problem: Why a 2xx answer is of no use.

    Spec: RFC 6749 §5.2, RFC 9110 §15.
    """
    hidden = spellings(secrets)
    answer = read_error(response, hidden)
    spelled, meaning = _meaning(answer, error_codes or {})
    grade = _grade(
        response.status, answer, meaning, grant_type, refreshed=refreshed_before
    )
    if spelled is not None and redact(spelled, *hidden) != spelled:
        # Not a code but a secret by its looks: the registered name, if it has one.
        spelled = meaning.code if meaning else redact(spelled, *hidden)
    code = meaning.code if meaning else spelled
    if _graded_by_status(response.status) and meaning and meaning.disposition != RETRY:
        code = None  # an overloaded server's word on the grant is not believed
    wait, extra = _wait(response, answer)
    is_foreign = not answer.is_object and response.status not in _OAUTH_STATUSES
    happened = advice.what_happened(
        response.status,
        code=spelled,
        description=answer.description,
        media_type=media_type(response) if is_foreign else None,
        target=redirect_target(response),
        problem=problem,
    )
    return Failure(
        disposition=grade.disposition,
        advice=f"{happened} {advice.what_next(grade.disposition, grade.setting)}",
        error=code,
        original_error=spelled if spelled != code else None,
        description=answer.description,
        error_uri=answer.error_uri,
        status=response.status,
        request_id=answer.request_id,
        extra=extra,
        retry_after=wait,
        in_doubt=grade.in_doubt,
        setting=grade.setting,
        at=response.received_at or response.sent_at,
    )


def unusable_answer(response: Response, problem: str, *, no_answer: bool) -> Failure:
    """Grade a 2xx answer to a token request that brings no usable token.

    The server has acted, and what it gave is lost.

    Args:
        problem: Why it is of no use.
        no_answer: It could not be read at all.
    """
    happened = advice.what_happened(response.status, problem=problem)
    return Failure(
        disposition=RETRY,
        advice=f"{happened} {advice.what_next(RETRY, None)}",
        status=response.status,
        request_id=request_id(response),
        retry_after=None,
        in_doubt=True,
        no_answer=no_answer,
        at=response.received_at or response.sent_at,
    )


def transport_failure(
    cause: str,
    *,
    sent: bool,
    in_doubt: bool,
    certificate: bool = False,
    detail: str = "",
    at: float = 0.0,
) -> Failure:
    """Grade the lack of an answer.

    Args:
        cause: Class name of the HTTP client's exception.
        sent: The request may have reached the server.
        in_doubt: The server may have acted on it.
        certificate: The server's certificate does not verify.
        detail: The exception's text; it is cleaned here.
    """
    disposition = MISCONFIGURED if certificate else RETRY
    setting = "certificate" if certificate else None
    happened = advice.no_answer(cause, redact(detail), in_doubt=in_doubt)
    return Failure(
        disposition=disposition,
        advice=f"{happened} {advice.what_next(disposition, setting)}",
        sent=sent,
        in_doubt=in_doubt,
        no_answer=True,
        setting=setting,
        cause=cause,
        at=at,
    )


def meaning_at_browser(
    code: str, error_codes: Mapping[str, Disposition] | None = None
) -> Meaning | None:
    """Return what a code means that a browser was sent back with, if that is known.

    Args:
        error_codes: The caller's own table, which goes before this one.
    """
    own = _own_meaning(code, error_codes or {})
    return own or _AT_BROWSER.get(_compact(code)) or _TABLE.get(_compact(code))


def _wait(
    response: Response, answer: ErrorAnswer
) -> tuple[float | None, Mapping[str, object]]:
    """Return the seconds to wait, capped, and the details with the uncapped ones."""
    wait = retry_after(response)
    if wait is None or wait <= MAX_RETRY_AFTER:
        return wait, answer.extra
    return MAX_RETRY_AFTER, MappingProxyType({**answer.extra, "retry_after": wait})


def _meaning(
    answer: ErrorAnswer, own: Mapping[str, Disposition]
) -> tuple[str | None, Meaning | None]:
    """Return the server's code and what it means, if that is known."""
    numbers = _entra_numbers(answer)
    spelled = (*answer.codes, *answer.hints)
    for code in (*spelled, *(f"AADSTS{number}" for number in numbers)):
        meaning = _own_meaning(code, own)
        if meaning is not None:
            return code, meaning
    # What stands in other members counts only where there is no error code.
    named = answer.codes or answer.hints
    known = [(code, _TABLE[_compact(code)]) for code in named if _is_known(code)]
    if known and known[0][1].disposition in (SIGN_IN, CLIENT_REJECTED):
        return known[0]
    first = answer.codes[0] if answer.codes else None
    for number in numbers:
        if number in _AADSTS:
            return first or f"AADSTS{number}", _TABLE[_compact(_AADSTS[number])]
    return known[0] if known else (first, None)


def _own_meaning(code: str, own: Mapping[str, Disposition]) -> Meaning | None:
    """Return what a code means by the caller's own table."""
    wanted = _compact(code)
    for name, disposition in own.items():
        if _compact(name) == wanted:
            setting = "error_codes" if disposition is MISCONFIGURED else None
            return Meaning(disposition, code, setting, fixed=True)
    return None


def _is_known(code: str) -> bool:
    """Tell whether the table has a code, however it is spelled."""
    return _compact(code) in _TABLE


def _entra_numbers(answer: ErrorAnswer) -> list[int]:
    """Return Entra's own numbers, from where it has them."""
    found = [int(text) for text in _AADSTS_TEXT.findall(answer.description or "")]
    listed = answer.extra.get("error_codes")
    if isinstance(listed, list):
        found += [number for number in listed if isinstance(number, int)]
    return found


def _graded_by_status(status: int) -> bool:
    """Tell whether a status says "later", whatever its body says."""
    return (
        status >= HTTPStatus.INTERNAL_SERVER_ERROR
        or status < HTTPStatus.OK
        or status in _ALWAYS_RETRY
    )


def _grade(
    status: int,
    answer: ErrorAnswer,
    meaning: Meaning | None,
    grant_type: str,
    *,
    refreshed: bool,
) -> _Grade:
    """Apply the table of dispositions, top to bottom."""
    # 1. The server, or something before it, says "later". A time-out or a 5xx may
    #    come after it has acted.
    if _graded_by_status(status):
        doubtful = status not in _ALWAYS_RETRY or status == HTTPStatus.REQUEST_TIMEOUT
        return _Grade(RETRY, in_doubt=doubtful)
    # 2. Redirects are not followed: a token request goes to one address.
    if status // 100 == _REDIRECT:
        return _Grade(MISCONFIGURED, _place(grant_type))
    # 3. A code that is known, under any 4xx or a 2xx. Public keys are nobody's grant,
    #    and asked for without credentials: there a code says nothing of either.
    if meaning is not None and (grant_type != KEY_SET or meaning.disposition is RETRY):
        return _grade_meaning(meaning, grant_type, refreshed=refreshed)
    # 4. A 2xx without tokens and without code makes no statement about the grant.
    if status // 100 == _SUCCESS and not answer.codes:
        return _Grade(RETRY, in_doubt=True)
    return _grade_unknown(status, answer, grant_type)


def _grade_unknown(status: int, answer: ErrorAnswer, grant_type: str) -> _Grade:
    """Grade a refusal that does not say why, or not in words that are known."""
    # 1. Not this address, or not this way of asking.
    if status in _WRONG_PLACE:
        return _Grade(MISCONFIGURED, _place(grant_type))
    # 2. A wall before the server: it knows nothing of the grant.
    if not answer.is_object and status not in _OAUTH_STATUSES:
        return _Grade(RETRY)
    # 3. The server itself, about the account or a policy.
    if status == HTTPStatus.FORBIDDEN:
        return _Grade(DENIED)
    # 4. The server itself, about a request that carries nothing but the client's
    #    credentials. RFC 6749 §5.2 has 401 for these alone.
    if grant_type == CLIENT_CREDENTIALS:
        unauthorized = status == HTTPStatus.UNAUTHORIZED
        return _Grade(MISCONFIGURED, "client_secret" if unauthorized else "client_id")
    if grant_type in _PLACES:
        return _Grade(MISCONFIGURED, _place(grant_type))
    # 5. The same about a user's grant: some servers report a dead one no better.
    return _Grade(UNCLEAR)


def _place(grant_type: str) -> str:
    """Return the setting that says where such a request goes."""
    return _PLACES.get(grant_type, "token_endpoint")


def _grade_meaning(meaning: Meaning, grant_type: str, *, refreshed: bool) -> _Grade:
    """Return what a known code means for this kind of request."""
    if meaning.fixed:
        return _Grade(meaning.disposition, meaning.setting)
    if meaning.disposition is SIGN_IN:
        # No user stands behind a service, and none behind a revocation.
        if grant_type == CLIENT_CREDENTIALS and meaning.code == "invalid_grant":
            return _Grade(CLIENT_REJECTED, "client_secret")
        if grant_type in (CLIENT_CREDENTIALS, *_PLACES):
            return _Grade(DENIED)
    if meaning.code == "invalid_request" and grant_type == REFRESH and refreshed:
        # The request was good before, so it is the refresh token that is not.
        return _Grade(UNCLEAR)
    return _Grade(meaning.disposition, meaning.setting)

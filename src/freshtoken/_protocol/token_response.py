"""Token answers: strict in meaning, liberal in shape, the refresh token first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import partial
from http import HTTPStatus
from types import MappingProxyType

from freshtoken._foundation.records import NOTHING, TokenSet, parse_scope
from freshtoken._foundation.secret import redact
from freshtoken._protocol.body import (
    UnreadableError,
    is_vschars,
    read_members,
    salvage_refresh_token,
)
from freshtoken._protocol.classification import (
    CLIENT_CREDENTIALS,
    classify,
    unusable_answer,
)
from freshtoken._protocol.exchange import ExchangeError, Response
from freshtoken._protocol.lifetimes import access_expiry, refresh_expiry
from freshtoken.errors import Disposition

_STANDARD = frozenset(
    {
        "access_token",
        "token_type",
        "expires_in",
        "refresh_token",
        "scope",
        "id_token",
    }
)
_BEARER = "Bearer"
# "BearerToken" is what Apigee says.
_BEARER_SPELLINGS = frozenset({"bearer", "bearertoken"})
_SUCCESS = 2
_MAX_EXTRA = 16_384
_MAX_NAME = 60
_COMMAS = re.compile(r"[\s,]+")


def parse_token_response(
    response: Response,
    *,
    grant_type: str,
    requested_scope: str | Iterable[str] | None = None,
    default_lifetime: float | None = None,
    refreshed_before: bool = False,
    error_codes: Mapping[str, Disposition] | None = None,
    secrets: Iterable[str] = (),
) -> TokenSet:
    """Read the answer to a token request, or grade its failure.

    The refresh token is taken first. If it is there, whatever is wrong beside it
    becomes the `TokenSet.problem` of an answer without access token, because the
    caller has to save the refresh token before all else. Tokens in a 2xx answer win
    over an ``error`` member beside them.

    Args:
        grant_type: ``grant_type`` of the request.
        requested_scope: What was asked for, if anything.
        default_lifetime: Seconds, for tokens whose lifetime nobody states.
        refreshed_before: This grant has been refreshed with success before.
        error_codes: The caller's own table of error codes, which goes first.
        secrets: What must not appear in the failure, should the server echo it.

    Raises:
        ExchangeError: No token is in it; the failure says what that means.

    Spec: RFC 6749 §5.1, §5.2.
    """
    grade = partial(
        classify,
        response,
        grant_type=grant_type,
        refreshed_before=refreshed_before,
        error_codes=error_codes,
        secrets=secrets,
    )
    if response.status // 100 != _SUCCESS:
        raise ExchangeError(grade())
    # A service gets its next token without a refresh token (RFC 6749 §4.4.3).
    keeps = grant_type != CLIENT_CREDENTIALS
    members, unreadable = _members(response.body)
    if members is None:
        return _salvage(response, unreadable, keeps=keeps)
    tokens = _read_tokens(response, members, requested_scope, default_lifetime)
    if tokens.problem is not None and not (tokens.refresh_token and keeps):
        raise ExchangeError(grade(problem=tokens.problem))
    return tokens


def _read_tokens(
    response: Response,
    members: Mapping[str, object],
    requested_scope: str | Iterable[str] | None,
    default_lifetime: float | None,
) -> TokenSet:
    """Return what the members of an answer say, with or without usable tokens."""
    notes: list[str] = []
    token_type, problem = _token_type(members.get("token_type"), notes)
    access_token, problem = _access_token(members.get("access_token"), problem)
    if response.status != HTTPStatus.OK:
        notes.append(f"answered with status {response.status}")
    return TokenSet(
        access_token=access_token,
        token_type=token_type,
        issued_at=response.sent_at,
        expires_at=access_expiry(
            members, response, access_token, default_lifetime, notes=notes
        ),
        refresh_token=_optional_text(members, "refresh_token", notes),
        refresh_expires_at=refresh_expiry(members, response),
        scope=_scope(members.get("scope"), requested_scope, notes),
        id_token=_optional_text(members, "id_token", notes),
        extra=_extra(members, notes),
        problem=problem,
        notes=tuple(notes),
    )


def _salvage(response: Response, reason: str, *, keeps: bool) -> TokenSet:
    """Return the refresh token of an unreadable answer, if that is certain.

    Raises:
        ExchangeError: There is none.
    """
    refresh_token = salvage_refresh_token(response.body) if keeps else None
    if refresh_token is None:
        raise ExchangeError(unusable_answer(response, reason, no_answer=True))
    return TokenSet(
        access_token=None,
        token_type=_BEARER,
        issued_at=response.sent_at,
        refresh_token=refresh_token,
        problem=f"the answer is unreadable: {reason}",
    )


def _members(body: bytes) -> tuple[dict[str, object] | None, str]:
    """Return the members, or nothing and why; ``null`` is as good as absent."""
    try:
        members = read_members(body)
    except UnreadableError as error:
        return None, str(error)
    return {name: value for name, value in members.items() if value is not None}, ""


def _optional_text(
    members: Mapping[str, object], name: str, notes: list[str]
) -> str | None:
    """Return a member that is text and not empty."""
    value = members.get(name)
    if isinstance(value, str):
        return value or None
    if value is not None:
        notes.append(f"{name} is not text: ignored")
    return None


def _access_token(value: object, problem: str | None) -> tuple[str | None, str | None]:
    """Return an access token that may travel in a header, or why it may not.

    Args:
        problem: What is wrong with its type.

    Spec: RFC 6749 Appendix A.12; RFC 9110 §5.5 (no line breaks in fields).
    """
    if value is None or value == "":
        return None, "access_token is missing"
    if not isinstance(value, str):
        return None, "access_token is not text"
    if not is_vschars(value):
        return None, "access_token contains characters that no header may carry"
    return (value, None) if problem is None else (None, problem)


def _token_type(value: object, notes: list[str]) -> tuple[str, str | None]:
    """Return the type in its registered spelling, and why it is of no use.

    A DPoP token is not asked for (RFC 9449 §5) and needs a proof with each use.

    Spec: RFC 6749 §7.1: case-insensitive; a token of unknown type is not used.
    """
    if value is None or value == "":
        notes.append("token_type is missing: taken as Bearer")
        return _BEARER, None
    if not isinstance(value, str):
        return _BEARER, "token_type is not text"
    if value.strip().lower() in _BEARER_SPELLINGS:
        return _BEARER, None
    return _BEARER, f"token_type is not Bearer but {redact(value)[:_MAX_NAME]!r}"


def _scope(
    value: object, requested: str | Iterable[str] | None, notes: list[str]
) -> tuple[str, ...] | None:
    """Return the granted scope, sorted; ``None`` if the answer does not say.

    Lists are taken like text, and commas like blanks unless a requested value has
    one: a comma is a legal character of a scope value (RFC 6749 §3.3).
    """
    asked = parse_scope(requested) or ()
    has_commas = any("," in name for name in asked)
    parts = value if isinstance(value, list) else [value]
    names: set[str] = set()
    for part in parts:
        if isinstance(part, str):
            names.update(part.split() if has_commas else _COMMAS.split(part))
        elif part is not None:
            notes.append("scope is not text: ignored")
            return None
    names.discard("")
    if value is None:
        return None
    granted = tuple(sorted(names))
    if asked and not names.issuperset(asked):
        notes.append("less scope is granted than was asked for")
    return granted


def _extra(members: Mapping[str, object], notes: list[str]) -> Mapping[str, object]:
    """Return the members that the standard does not know, within a bound."""
    kept: dict[str, object] = {}
    room = _MAX_EXTRA
    for name, value in members.items():
        if name in _STANDARD:
            continue
        try:
            size = len(name) + len(json.dumps(value, allow_nan=False))
        except ValueError:  # a number beyond what a float holds
            size = _MAX_EXTRA + 1
        if size > room:
            label = redact(name)[:_MAX_NAME]
            notes.append(f"member {label} is left out: too much to keep")
            continue
        room -= size
        kept[name] = value
    return MappingProxyType(kept) if kept else NOTHING

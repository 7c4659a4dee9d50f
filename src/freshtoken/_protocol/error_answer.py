"""What an error answer says, whatever shape the server gave it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import quote_plus

from freshtoken._foundation.records import NOTHING
from freshtoken._foundation.secret import MASK, redact
from freshtoken._protocol.body import UnreadableError, parse_json_object, read_members
from freshtoken._protocol.challenge import Challenge, parse_challenges
from freshtoken._protocol.exchange import Response, strip_query
from freshtoken._protocol.headers import identifier, request_id

_CODE_MEMBERS = ("code", "error", "type", "errorType", "error_code", "reason", "status")
_HINT_MEMBERS = ("error", "errorCode", "error_code", "errorType", "code", "errcode")
_TEXT_MEMBERS = (
    "error_description",
    "message",
    "description",
    "detail",
    "errorSummary",
    "error_message",
    "errmsg",
    "msg",
    "title",
)
_ID_MEMBERS = ("correlation_id", "trace_id", "request_id", "fbtrace_id", "errorId")
_SECRET_MEMBERS = re.compile(
    r"token|secret|password|assertion|verifier|credential|cookie|^code$", re.IGNORECASE
)
# RFC 3986 §2, without what would end an attribute or a tag on a page.
_WEB_ADDRESS = re.compile(r"https?://[!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]+")
_MAX_CODE = 200
_MAX_ITEMS = 20
_MAX_LEVELS = 3
_MAX_CLAIMS = 4096
_MAX_NUMBER = 2**63


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error answer, cleaned of secrets but for its codes.

    Attributes:
        is_object: Whether there was a JSON object, or a form with OAuth members.
        codes: Error codes as the server spells them, the likeliest first. Only those
            that are known may be shown as they are.
        hints: Codes in members, and numbers, that count if they are known only.
        description: The server's own words.
        error_uri: The page that it names, without query.
        request_id: From a header, else from the body.
        extra: Further members, bounded.
    """

    is_object: bool = False
    codes: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    description: str | None = None
    error_uri: str | None = None
    request_id: str | None = None
    extra: Mapping[str, object] = field(default_factory=lambda: NOTHING)


def spellings(secrets: Iterable[str]) -> tuple[str, ...]:
    """Return secrets as they are and as a form carries them, longest first."""
    plain = {secret for secret in secrets if secret}
    encoded = {quote_plus(secret) for secret in plain}
    return tuple(sorted(plain | encoded, key=len, reverse=True))


def read_error(response: Response, hidden: tuple[str, ...] = ()) -> ErrorAnswer:
    """Read an answer that is no token response; never raises.

    Args:
        hidden: What the request carried, in all `spellings`: masked, should the
            server echo it.

    Spec: RFC 6749 §5.2; the other shapes are those of real servers.
    """
    found_id = _clean_identifier(request_id(response), hidden)
    schemes = sorted({item.scheme for item in _challenges(response)})
    extra: dict[str, object] = {"www_authenticate": schemes} if schemes else {}
    try:
        members = read_members(response.body)
    except UnreadableError:
        return ErrorAnswer(request_id=found_id, extra=_frozen(extra))
    error = members.get("error") or members.get("errors")
    hints = (
        text
        for name in _HINT_MEMBERS
        for text in _texts(members.get(name), digits=True)
    )
    description = next(
        (text for part in _parts(error, members) if (text := _description(part))), None
    )
    for name in _ID_MEMBERS:
        for part in _parts(error, members):
            found_id = found_id or _clean_identifier(part.get(name), hidden)
    uri = members.get("error_uri")
    for name, value in members.items():
        if name not in ("error", "error_description", "error_uri"):
            extra[redact(name, *hidden)] = _clean_member(name, value, hidden)
        if len(extra) >= _MAX_ITEMS:
            break
    return ErrorAnswer(
        is_object=True,
        codes=tuple(code for code in _codes(error) if len(code) <= _MAX_CODE),
        hints=tuple(hints),
        description=redact(description, *hidden) if description else None,
        error_uri=clean_uri(uri, hidden),
        request_id=found_id,
        extra=_frozen(extra),
    )


def _frozen(extra: dict[str, object]) -> Mapping[str, object]:
    """Return a mapping that nobody can change."""
    return MappingProxyType(extra) if extra else NOTHING


def _codes(error: object, level: int = 0) -> Iterator[str]:
    """Yield error codes from text, an object, or a list of either; words first.

    Spec: RFC 6749 §5.2 knows non-empty text only. A bare number says nothing.
    """
    if isinstance(error, Mapping):
        found = [
            text
            for name in _CODE_MEMBERS
            for text in _texts(error.get(name), digits=True)
        ]
        yield from sorted(found, key=str.isdigit)
    elif isinstance(error, list) and level < _MAX_LEVELS:
        for item in error[:_MAX_ITEMS]:
            yield from _codes(item, level + 1)
    else:
        yield from _texts(error)


def _texts(value: object, *, digits: bool = False) -> Iterator[str]:
    """Yield *value* if it is text and not empty, or a number where one is allowed."""
    if isinstance(value, str) and value.strip():
        yield value.strip()
    elif digits and isinstance(value, int) and abs(value) < _MAX_NUMBER:
        yield str(int(value))


def _parts(
    error: object, members: Mapping[str, object]
) -> Iterator[Mapping[str, object]]:
    """Yield the objects that may describe the error, the whole answer first."""
    yield members
    for part in error[:_MAX_ITEMS] if isinstance(error, list) else [error]:
        if isinstance(part, Mapping):
            yield part


def _description(part: Mapping[str, object]) -> str | None:
    """Return the words of an answer, or of an object inside it."""
    return next(
        (text for name in _TEXT_MEMBERS for text in _texts(part.get(name))), None
    )


def _clean_identifier(value: object, hidden: tuple[str, ...]) -> str | None:
    """Return an identifier that contains nothing secret."""
    found = identifier(value)
    return None if found is None or any(item in found for item in hidden) else found


def clean_uri(value: object, hidden: tuple[str, ...]) -> str | None:
    """Return a web address without its query, if it is one and holds no secret."""
    if not isinstance(value, str) or not value.startswith(("https://", "http://")):
        return None
    uri = strip_query(value)
    fits = _WEB_ADDRESS.fullmatch(uri) is not None and len(uri) <= _MAX_CODE
    return uri if fits and not any(item in uri for item in hidden) else None


def _clean_member(name: str, value: object, hidden: tuple[str, ...]) -> object:
    """Return a member of an error answer that may be shown and kept."""
    if name in _ID_MEMBERS or name == "timestamp":
        return _clean_identifier(value, hidden) or MASK
    if name == "claims" and isinstance(value, str):
        return _clean_claims(value, hidden)
    return _clean(name, value, hidden, 0)


def _clean_claims(value: str, hidden: tuple[str, ...]) -> str:
    """Return a claims request as it is: it has to be repeated letter for letter.

    Spec: OpenID Connect Core §5.5; Entra's claims challenge.
    """
    try:
        parse_json_object(value)
    except UnreadableError:
        return redact(value, *hidden)
    if len(value) > _MAX_CLAIMS or any(item in value for item in hidden):
        return MASK
    return value


def _clean(name: str, value: object, hidden: tuple[str, ...], level: int) -> object:
    """Return a bounded copy of JSON data in which everything token-like is masked."""
    if isinstance(value, str):
        return MASK if _SECRET_MEMBERS.search(name) else redact(value, *hidden)
    if isinstance(value, int | float):
        return value if abs(value) < _MAX_NUMBER else MASK
    if isinstance(value, list | dict) and level >= _MAX_LEVELS:
        return MASK
    if isinstance(value, list):
        return [_clean(name, item, hidden, level + 1) for item in value[:_MAX_ITEMS]]
    if isinstance(value, dict):
        return {
            redact(key, *hidden): _clean(key, item, hidden, level + 1)
            for key, item in list(value.items())[:_MAX_ITEMS]
        }
    return None


def _challenges(response: Response) -> tuple[Challenge, ...]:
    """Return the challenges beside the answer (RFC 6749 §5.2)."""
    return parse_challenges(response.header_values("www-authenticate"))

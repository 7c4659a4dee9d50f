"""Bodies of answers: strict in meaning, liberal in shape.

A JSON object is taken under any content type, with a byte order mark or without, and
so is a form that names OAuth members. What two readers could understand differently
(a member named twice, ``NaN``, half a surrogate pair, nesting without end) is not
guessed at: such a body is unreadable as a whole. Only `salvage_refresh_token` still
looks into it, because a rotated refresh token exists nowhere else.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qsl

MAX_DEPTH = 64
_MAX_FORM_FIELDS = 200

# Strings (whole ones only), punctuation, whitespace, the rest. No alternative can
# match where another does, so that the scan is linear.
_JSON_TOKEN = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|\s+|[^"{}\[\]:,\s]+', re.DOTALL
)
_FORM_NAMES = re.compile(r"[A-Za-z0-9_.\-]+")
_OAUTH_NAMES = frozenset({"access_token", "refresh_token", "error"})
# RFC 6749 Appendix A: VSCHAR, what every token consists of.
_VSCHARS = re.compile(r"[\x20-\x7e]+")


class UnreadableError(Exception):
    """A body is neither a JSON object nor a form; the text says why, without it."""


def parse_json_object(body: bytes | str) -> dict[str, object]:
    """Return the members of a JSON object.

    Raises:
        UnreadableError: It is none, or one that can be read in two ways.

    Spec: RFC 8259 §4, §8.1; RFC 7493 §2.
    """
    text = body if isinstance(body, str) else _decode(body)
    if not text.strip():
        raise UnreadableError("its body is empty")
    if _is_too_deep(text):
        raise UnreadableError("its JSON is nested too deeply")
    value: object = None
    reason = "it is not JSON"
    try:
        value = _decode_json(text)
        # Escapes may hide half a surrogate pair, which no other program can read.
        if "\\" in text and "\\u" in text:  # The first alone is found out fastest.
            json.dumps(value, ensure_ascii=False).encode()
    except UnreadableError as error:
        reason = str(error)
        value = None
    except UnicodeEncodeError:
        reason = "it holds half a surrogate pair"
        value = None
    except ValueError:
        pass  # not JSON, or an integer of thousands of digits
    else:
        reason = "it is JSON, but no object"
    if not isinstance(value, dict):
        raise UnreadableError(reason)
    return value


def read_members(body: bytes) -> dict[str, object]:
    """Return the members of a JSON object or of an OAuth form.

    Raises:
        UnreadableError: The body is neither.

    Spec: RFC 6749 §5.1; some servers answer as in §4.2.2, form-encoded.
    """
    try:
        return parse_json_object(body)
    except UnreadableError as error:
        reason = str(error)
    pairs = _form_pairs(body)
    if pairs is None:
        raise UnreadableError(reason)
    members: dict[str, object] = dict(pairs)
    if len(members) < len(pairs):
        raise UnreadableError("a parameter is named twice")
    return members


def salvage_refresh_token(body: bytes) -> str | None:
    """Return the one refresh token that an otherwise unreadable answer holds.

    The old one is spent by the time this answer is here, so that throwing it away
    would end the session for a flaw somewhere else. It is taken only if there can be
    no doubt which it is: the body begins as a JSON object (or is a form), the member
    stands at the top, its text is complete, and no second one differs from it.
    """
    text = body.decode("utf-8", "replace").removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        found = {value for name, value in _top_strings(text) if name == "refresh_token"}
    else:
        found = {
            value for name, value in _form_pairs(body) or () if name == "refresh_token"
        }
    token = found.pop() if len(found) == 1 else ""
    return token if is_vschars(token) else None


def is_vschars(text: str) -> bool:
    """Tell whether *text* is made of printable ASCII, and not empty."""
    return _VSCHARS.fullmatch(text) is not None


def _decode_json(text: str) -> object:
    """Return a JSON value; the usual text, without space around it, goes quickly."""
    if text.startswith("{"):
        value, end = _DECODER.raw_decode(text)
        if end == len(text):
            return value
    return _DECODER.decode(text)


def _decode(body: bytes) -> str:
    """Return the text of a body: UTF-8, or UTF-16 that says so by its mark."""
    encoding = "utf-8-sig"
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        return body.decode(encoding)
    except UnicodeDecodeError:
        pass
    raise UnreadableError("it is not UTF-8 text")


def _is_too_deep(text: str) -> bool:
    """Tell whether brackets nest beyond `MAX_DEPTH`, without recursion."""
    if "[" not in text and text.find("{", 1) < 0:
        return False  # The usual JWT is flat, and this is found out fastest.
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return False
    depth = 0
    for token in _tokens(text):
        if token in ("{", "["):
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif token in ("}", "]"):
            depth -= 1
    return False


def _tokens(text: str) -> Iterator[str]:
    """Yield the tokens of JSON text up to a string that is cut off."""
    position = 0
    while match := _JSON_TOKEN.match(text, position):
        position = match.end()
        if not match.group().isspace():
            yield match.group()


def _top_strings(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of all members of the top object that are strings."""
    depth = 0
    before: tuple[str, str] = ("", "")
    for token in _tokens(text):
        if token in ("{", "["):
            depth += 1
        elif token in ("}", "]"):
            depth -= 1
            if depth == 0:
                return
        elif depth == 1 and before[1] == ":" and token.startswith('"'):
            name, value = _text(before[0]), _text(token)
            if name is not None and value is not None:
                yield name, value
        before = (before[1], token)


def _text(token: str) -> str | None:
    """Return what a JSON string says."""
    try:
        value: object = json.loads(token)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _form_pairs(body: bytes) -> list[tuple[str, str]] | None:
    """Return the pairs of a form that names OAuth members, else ``None``."""
    try:
        text = body.decode("utf-8-sig").strip("\r\n\t ")
        pairs = parse_qsl(
            text,
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=_MAX_FORM_FIELDS,
        )
    except ValueError:
        return None
    names = {name for name, _ in pairs}
    if not names & _OAUTH_NAMES or not all(map(_FORM_NAMES.fullmatch, names)):
        return None
    return pairs


def _unique_members(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    """Build an object whose members have names of their own."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise UnreadableError("a member is named twice")
    return members


def _refuse_constant(name: str) -> NoReturn:
    """Refuse ``NaN`` and ``Infinity``, which are not JSON."""
    raise UnreadableError(f"{name} in it is not JSON")


# Made once: `json.loads` with hooks makes one for each call. Every JWT comes by here.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_members, parse_constant=_refuse_constant
)

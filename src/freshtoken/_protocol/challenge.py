"""``WWW-Authenticate``: what a refusing server says it wants."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

# Possessive quantifiers: nothing here ever backtracks, so that reading is linear.
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++")
_SPACE = re.compile(r"[ \t]*+")
_SEPARATORS = re.compile(r"[ \t,]*+")
_TOKEN68 = re.compile(r"[A-Za-z0-9\-._~+/]++=*+(?=[ \t]*+(?:,|\Z))")
_EQUALS = re.compile(r"[ \t]*+=[ \t]*+")
_QUOTED = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
# Values without their quotes: more than a token may hold, such as a URL.
_BARE = re.compile(r'[^\s",\\]++')
# What cannot be read, up to the next comma that is not inside a quoted string.
_JUNK = re.compile(r'(?:[^",]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)

_OURS = ("bearer", "dpop")


@dataclass(frozen=True, slots=True)
class Challenge:
    """One challenge of a server.

    Attributes:
        scheme: In lower case.
        parameters: Names in lower case; of a repeated one the first value counts.
        token68: For schemes that have no parameters but one opaque text.
    """

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    token68: str | None = None


@dataclass(slots=True)
class _Draft:
    """A challenge while it is read."""

    scheme: str
    parameters: dict[str, str] = field(default_factory=dict)
    token68: str | None = None
    broken: bool = False


def parse_challenges(values: Iterable[str]) -> tuple[Challenge, ...]:
    """Read all ``WWW-Authenticate`` fields of an answer.

    A challenge that breaks the grammar is left out; the others are read. Parameters
    before the first scheme belong to nobody. Linear in the length of the fields.

    Args:
        values: One text for each field line; each may hold several challenges.

    Spec: RFC 9110 §11.6.1, RFC 6750 §3.
    """
    return tuple(
        Challenge(draft.scheme, MappingProxyType(draft.parameters), draft.token68)
        for draft in _drafts(values)
        if not draft.broken
    )


def rejects_token(header_values: Iterable[str], *, scheme: str = "Bearer") -> bool:
    """Tell whether a 401 with these fields refuses the access token itself.

    It does without any challenge, and with one for the scheme that was used (or, if
    there is none, for another token scheme) that names no error or
    ``invalid_token``. A missing permission or a step-up is not cured by a refresh.

    Args:
        header_values: ``WWW-Authenticate`` fields of the 401.
        scheme: How the token was sent: ``Bearer`` or ``DPoP``.

    Spec: RFC 6750 §3, §3.1; RFC 9470 §3.
    """
    # Broken challenges count here: what they are about can still be made out.
    drafts = _drafts(header_values)
    if not drafts:
        return True
    asked = [draft for draft in drafts if draft.scheme == scheme.lower()]
    asked = asked or [draft for draft in drafts if draft.scheme in _OURS]
    errors = {
        draft.parameters["error"].strip().lower()
        for draft in asked
        if draft.parameters.get("error")
    }
    return bool(asked) and (not errors or "invalid_token" in errors)


def _drafts(values: Iterable[str]) -> list[_Draft]:
    """Return the challenges of all fields, broken ones included."""
    return [draft for value in values for draft in _scan(value)]


def _scan(value: str) -> list[_Draft]:
    """Return the challenges of one field."""
    drafts: list[_Draft] = []
    # Takes the parameters that stand before any scheme, and is forgotten.
    current = _Draft("")
    position = _end(_SEPARATORS, value, 0)
    while position < len(value):
        name = _TOKEN.match(value, position)
        if name is None:
            position = _skip_junk(current, value, position)
        elif _EQUALS.match(value, name.end()):
            position = _read_parameters(current, value, position)
        else:
            current = _Draft(name.group().lower())
            drafts.append(current)
            position = _read_scheme_tail(current, value, name.end())
        position = _end(_SEPARATORS, value, position)
    return drafts


def _read_scheme_tail(draft: _Draft, value: str, position: int) -> int:
    """Read what follows the name of a scheme; return where it ends."""
    start = _end(_SPACE, value, position)
    if start == len(value) or value[start] == ",":
        return start
    token68 = _TOKEN68.match(value, start)
    if token68 is not None:
        draft.token68 = token68.group()
        return token68.end()
    return _read_parameters(draft, value, start)


def _read_parameters(draft: _Draft, value: str, position: int) -> int:
    """Read a parameter, and more of them where servers forget the comma."""
    while position < len(value) and value[position] != ",":
        name = _TOKEN.match(value, position)
        equals = _EQUALS.match(value, name.end()) if name else None
        if name is None or equals is None:
            return _skip_junk(draft, value, position)
        quoted = _QUOTED.match(value, equals.end())
        found = quoted or _BARE.match(value, equals.end())
        if found is None:
            return _skip_junk(draft, value, equals.end())
        text = _ESCAPED.sub(r"\1", quoted.group(1)) if quoted else found.group()
        draft.parameters.setdefault(name.group().lower(), text)
        position = _end(_SPACE, value, found.end())
    return position


def _skip_junk(draft: _Draft, value: str, position: int) -> int:
    """Mark a challenge as broken; return where its list element ends."""
    draft.broken = True
    end = _end(_JUNK, value, position)
    # A quote that is never closed swallows the rest of the field.
    return len(value) if value[end : end + 1] == '"' else end


def _end(pattern: re.Pattern[str], value: str, position: int) -> int:
    """Return where a pattern that always matches ends."""
    match = pattern.match(value, position)
    return match.end() if match else position

"""When tokens end: what answers say about it, in all the shapes they have."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from datetime import datetime

from freshtoken._protocol.body import UnreadableError, parse_json_object
from freshtoken._protocol.exchange import Response
from freshtoken._protocol.headers import server_time
from freshtoken._protocol.settings import MAX_LIFETIME

_DECIMAL = re.compile(r"\s*\+?([0-9]{1,20})(?:\.[0-9]{0,20})?\s*")
# Below this a number is no instant of our days (2001); above the other, it counts
# milliseconds (as seconds it would be the year 5138).
_FIRST_INSTANT = 1e9
_MILLISECONDS = 1e11
_JWT_PARTS = 3
_MAX_JWT = 65_536

_ABSOLUTE = ("expires_at", "expires_on")
_REFRESH_RELATIVE = ("refresh_token_expires_in", "refresh_expires_in")
_REFRESH_ABSOLUTE = ("refresh_token_expires_at", "refresh_expires_at")


def access_expiry(
    members: Mapping[str, object],
    response: Response,
    access_token: str | None,
    default_lifetime: float | None,
    *,
    notes: list[str],
) -> float | None:
    """Return when an access token ends, counted from before the request was sent.

    The first of these that can be read decides: ``expires_in``, ``expires_at`` or
    ``expires_on``, the token's own ``exp`` if it is a JWT (unverified: a hint for
    whoever holds it, nothing more), the configured default.

    Args:
        access_token: ``None`` has no end, and needs no note.
        default_lifetime: Seconds.
        notes: Takes a sentence on whatever had to be ignored.

    Returns:
        Epoch seconds, or ``None``: an unknown lifetime is never made up.

    Spec: RFC 6749 §5.1.
    """
    if access_token is None:
        return None
    stated = members.get("expires_in")
    if stated not in (None, ""):
        seconds = read_seconds(stated)
        if seconds is not None:
            return response.sent_at + seconds
        notes.append("expires_in is not a number of seconds: ignored")
    for name in _ABSOLUTE:
        if members.get(name) not in (None, ""):
            instant = read_instant(members[name])
            if instant is not None:
                return _to_our_clock(instant, response)
            notes.append(f"{name} is not an instant: ignored")
    instant = _own_expiry(access_token)
    if instant is not None:
        notes.append("no usable expires_in: the token's own exp is taken")
        return _to_our_clock(instant, response)
    if default_lifetime is not None:
        notes.append("no usable expires_in: default_lifetime is taken")
        return response.sent_at + default_lifetime
    notes.append("the lifetime is unknown")
    return None


def refresh_expiry(members: Mapping[str, object], response: Response) -> float | None:
    """Return when a refresh token ends; ``None`` if unknown or without a fixed end.

    Zero means "no fixed end" here (offline tokens of Keycloak), and so does anything
    else that is no positive number.
    """
    for name in _REFRESH_RELATIVE:
        seconds = read_seconds(members.get(name))
        if seconds:
            return response.sent_at + seconds
    for name in _REFRESH_ABSOLUTE:
        instant = read_instant(members.get(name))
        if instant is not None:
            return _to_our_clock(instant, response)
    return None


def read_seconds(value: object) -> int | None:
    """Return whole seconds from a number, or from text that is one.

    Negative numbers, ``True``, ``NaN`` and other text are none. Fractions are cut, as
    a token that ends a moment later than assumed does no harm; more than ten years
    counts as ten.
    """
    if isinstance(value, str):
        match = _DECIMAL.fullmatch(value)
        return min(int(match.group(1)), MAX_LIFETIME) if match else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not value >= 0 or value == math.inf:  # not "< 0", which lets NaN pass
        return None
    return int(min(value, MAX_LIFETIME))


def read_instant(value: object) -> float | None:
    """Return epoch seconds from seconds, milliseconds or an ISO 8601 text."""
    if isinstance(value, str):
        match = _DECIMAL.fullmatch(value)
        if match is None:
            return _read_iso(value)
        value = float(match.group(1))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not _FIRST_INSTANT <= value < _FIRST_INSTANT * 1e6:
        return None
    return value / 1000 if value >= _MILLISECONDS else float(value)


def _read_iso(text: str) -> float | None:
    """Return epoch seconds of a date and time that names its zone."""
    try:
        moment = datetime.fromisoformat(text.strip())
        return moment.timestamp() if moment.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _to_our_clock(instant: float, response: Response) -> float:
    """Turn an instant on the server's clock into one on ours.

    Where the answer has a ``Date``, only the distance from it counts, so that a clock
    that is wrong here or there does no harm.
    """
    theirs = server_time(response)
    start = response.sent_at
    lifetime = instant - (start if theirs is None else theirs)
    return start + min(max(lifetime, 0.0), MAX_LIFETIME)


def _own_expiry(token: str) -> float | None:
    """Return ``exp`` of a token that is a readable JWT (RFC 7519 §4.1.4)."""
    parts = token.split(".")
    if len(parts) != _JWT_PARTS or len(token) > _MAX_JWT:
        return None
    padding = "=" * (-len(parts[1]) % 4)
    try:
        claims = parse_json_object(base64.urlsafe_b64decode(parts[1] + padding))
    except (ValueError, UnreadableError):
        return None
    expiry = claims.get("exp")
    return None if isinstance(expiry, str) else read_instant(expiry)

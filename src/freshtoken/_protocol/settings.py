"""What settings have to look like, and how a bad one is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from freshtoken._foundation.secret import Secret, reveal
from freshtoken.errors import MisconfiguredError

# Ten years: whatever lives longer is the same to a client, and sums stay small.
MAX_LIFETIME = 10 * 365 * 86_400
MAX_LEEWAY = 300.0


def refuse(setting: str, why: str) -> NoReturn:
    """Raise the error for a bad setting; *why* continues its name."""
    message = f"{setting} {why}"
    raise MisconfiguredError(message, setting=setting)


def check_flag(setting: str, value: object) -> None:
    """Refuse what is not a plain ``True`` or ``False``."""
    if not isinstance(value, bool):
        refuse(setting, "is neither True nor False")


def check_identifier(setting: str, value: object) -> None:
    """Refuse what is not text, is empty, or could not be sent as it is.

    Nothing is trimmed: a blank at the end may be part of an identifier.
    """
    if not isinstance(value, str):
        refuse(setting, "is not text")
    if not value:
        refuse(setting, "is empty")
    if has_control(value):
        refuse(setting, "contains a control character")


def check_duration(setting: str, value: object) -> None:
    """Refuse what is not a number of seconds above zero and below ten years."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(setting, "is not a number of seconds")
    if not 0 < value <= MAX_LIFETIME:
        refuse(setting, "is not between 0 seconds and ten years")


def check_leeway(setting: str, value: object) -> None:
    """Refuse what is not a number of seconds from 0 to 300."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(setting, "is not a number of seconds")
    if not 0 <= value <= MAX_LEEWAY:
        refuse(setting, "is not between 0 and 300 seconds: mend the clocks instead")


def check_members(setting: str, value: object, kind: type) -> None:
    """Refuse what is not a mapping from names to values of one kind."""
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and isinstance(member, kind)
        for name, member in value.items()
    ):
        refuse(setting, f"is not a mapping of names to {kind.__name__}")


def check_credential(value: object) -> Secret:
    """Return a client secret, wrapped; *value* may come from a caller's function.

    A line break at the end, from a file or an environment variable, is the usual
    reason why a right secret is refused by every server: it is refused here.
    """
    if not isinstance(value, str | Secret):
        refuse("client_secret", "is not text")
    text = reveal(value)
    if not text:
        refuse("client_secret", "is empty: leave it out for a public client")
    if text.endswith(("\n", "\r")):
        refuse("client_secret", "ends with a line break: strip it where it is read")
    if has_control(text):
        refuse("client_secret", "contains a control character")
    return value if isinstance(value, Secret) else Secret(value)


def has_control(text: str) -> bool:
    """Tell whether *text* holds control characters or halves of surrogate pairs."""
    return any(
        char < " " or "\x7f" <= char <= "\x9f" or "\ud800" <= char <= "\udfff"
        for char in text
    )

"""Values that do not show themselves."""

from __future__ import annotations

import hmac
import re
from typing import NoReturn, Self

MASK = "***"

# JWTs, and runs of 20 or more token characters: nothing in plain prose looks like it.
_SECRET_LIKE = re.compile(r"[A-Za-z0-9_\-+/=~%.]{20,}")
_MAX_TEXT = 500


class Secret:
    """A string that shows itself only when asked.

    ``repr`` and ``str`` are masked, formatting and pickling raise a `TypeError`.

    Args:
        value: The text to keep.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Wrap *value*."""
        self._value = value

    def reveal(self) -> str:
        """Return the text itself."""
        return self._value

    def __repr__(self) -> str:
        """Return a mask."""
        return f"{type(self).__name__}({MASK})"

    def __str__(self) -> str:
        """Return a mask."""
        return MASK

    def __format__(self, format_spec: str) -> NoReturn:
        """Refuse: a mask inside a header would be a failure without a cause."""
        refuse_format(self)

    def __eq__(self, other: object) -> bool:
        """Compare in constant time."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        """Hash the text."""
        return hash((Secret, self._value))

    def __bool__(self) -> bool:
        """Tell whether there is any text."""
        return bool(self._value)

    def __copy__(self) -> Self:
        """Return itself: a secret never changes."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        """Return itself: a secret never changes."""
        return self

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        refuse_pickle(self)


def refuse_format(value: object) -> NoReturn:
    """Raise the error for formatting something that hides its text."""
    name = type(value).__name__
    message = f"{name} does not format itself: call .reveal() to get the text"
    raise TypeError(message)


def refuse_pickle(value: object) -> NoReturn:
    """Raise the error for pickling something that holds a secret."""
    name = type(value).__name__
    message = f"{name} cannot be pickled: it holds a secret"
    raise TypeError(message)


def reveal(value: str | Secret) -> str:
    """Return the text of a secret or of a plain string."""
    return value.reveal() if isinstance(value, Secret) else value


def redact(text: str, *secrets: str | None) -> str:
    """Return *text* fit for a log or an error message.

    The given secrets, and everything that looks like a token, are masked; the text
    is cut after 500 characters and control characters become spaces.
    """
    for secret in secrets:
        if secret:
            text = text.replace(secret, MASK)
    text = _SECRET_LIKE.sub(_mask_if_random, text)
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"


def _mask_if_random(match: re.Match[str]) -> str:
    """Keep long words and error codes, mask what mixes letters and digits."""
    word = match.group()
    has_digit = any(char.isdigit() for char in word)
    has_letter = any(char.isalpha() for char in word)
    return MASK if has_digit and has_letter else word

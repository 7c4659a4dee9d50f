"""One HTTP round trip as values, and several of them as a generator."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from urllib.parse import urlencode, urlsplit, urlunsplit

from freshtoken._foundation.secret import MASK

if TYPE_CHECKING:
    from freshtoken._foundation.records import Failure

T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class Request:
    """A request to an authorization server; the body is a form or nothing."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    form: tuple[tuple[str, str], ...] | None = None

    @property
    def body(self) -> bytes:
        """The form, encoded as RFC 6749 Appendix B says."""
        return b"" if self.form is None else urlencode(self.form).encode()

    def __repr__(self) -> str:
        """Show method and address without query."""
        return f"Request({self.method} {strip_query(self.url)} {MASK})"


@dataclass(frozen=True, slots=True, repr=False)
class Response:
    """An answer, whole and decoded.

    Attributes:
        sent_at: Epoch seconds just before the request was sent: lifetimes count
            from here.
        received_at: Epoch seconds when the last byte had come.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    sent_at: float
    received_at: float = 0.0
    url: str = field(default="")

    def header(self, name: str) -> str | None:
        """Return the first value of a header, whatever the case of its name."""
        values = self.header_values(name)
        return values[0] if values else None

    def header_values(self, name: str) -> list[str]:
        """Return all values of a header, in order."""
        wanted = name.lower()
        return [value for key, value in self.headers if key.lower() == wanted]

    def __repr__(self) -> str:
        """Show the status only."""
        return f"Response({self.status} {MASK})"


Conversation: TypeAlias = Generator[Request, Response, T]


class ExchangeError(Exception):
    """An exchange failed; internal, made into a public error at the surface."""

    def __init__(self, failure: Failure) -> None:
        """Carry *failure*, which is already graded and redacted."""
        super().__init__(failure.advice)
        self.failure = failure


def strip_query(url: str) -> str:
    """Return *url* without user-info, query and fragment, for messages."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))

"""What goes in and out of the mock server, and what its log keeps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

from freshtoken._foundation.secret import MASK

NoAnswerKind = Literal[
    "connect",
    "connect_timeout",
    "dns",
    "tls",
    "pool_timeout",
    "write",
    "write_timeout",
    "read",
    "read_timeout",
    "protocol",
]
NEVER_SENT: frozenset[str] = frozenset(
    {"connect", "connect_timeout", "dns", "tls", "pool_timeout"}
)

Headers = tuple[tuple[str, str], ...]

_TELLING_NOTHING = frozenset(
    {
        "accept",
        "accept-encoding",
        "acr_values",
        "cache-control",
        "client_assertion_type",
        "client_id",
        "code_challenge_method",
        "connection",
        "content-length",
        "content-type",
        "date",
        "grant_type",
        "host",
        "max_age",
        "prompt",
        "redirect_uri",
        "resource",
        "response_mode",
        "response_type",
        "scope",
        "token_type_hint",
        "user-agent",
    }
)


class NoAnswerError(Exception):
    """A fault leaves a request without an answer.

    Whatever mounts the mock server makes its own kind of exception from this, or
    resets the connection.

    Attributes:
        kind: What the client meets.
        detail: Words of its own; empty for the usual ones.
        sent: Whether the request left the client at all.
    """

    def __init__(self, kind: NoAnswerKind, detail: str = "") -> None:
        """Say what the client is to meet."""
        super().__init__(detail or f"mock server: {kind} fault")
        self.kind: NoAnswerKind = kind
        self.detail = detail
        self.sent: bool = kind not in NEVER_SENT


class MaskedMapping(Mapping[str, str]):
    """Text by name; ``repr`` hides whatever may be a secret.

    Header names are looked up in lower case.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        """Keep a copy."""
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        """Return the value itself."""
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._values)

    def __len__(self) -> int:
        """Count the names."""
        return len(self._values)

    def __repr__(self) -> str:
        """Show the names, and the values that tell nothing."""
        shown = (
            f"{name!r}: {value!r}" if name in _TELLING_NOTHING else f"{name!r}: {MASK}"
            for name, value in self._values.items()
        )
        return f"{{{', '.join(shown)}}}"


@dataclass(frozen=True, slots=True, repr=False)
class MockRequest:
    """A request as the mock server reads it.

    Attributes:
        url: Absolute.
        headers: Names in any case.
    """

    method: str
    url: str
    headers: Headers = ()
    body: bytes = b""

    @property
    def path(self) -> str:
        """The path, without query."""
        return urlsplit(self.url).path or "/"

    @property
    def origin(self) -> str:
        """Scheme and authority, in lower case and without a default port."""
        return origin_of(self.url)

    @property
    def query(self) -> list[tuple[str, str]]:
        """The query's parameters, in order."""
        return parse_qsl(urlsplit(self.url).query, keep_blank_values=True)

    @property
    def form(self) -> list[tuple[str, str]]:
        """The body's parameters, in order; empty where it is no form."""
        label = (self.header("content-type") or "").partition(";")[0].strip().lower()
        if label != "application/x-www-form-urlencoded":
            return []
        return parse_qsl(
            self.body.decode("utf-8", "replace"),
            keep_blank_values=True,
            max_num_fields=1000,
        )

    def header(self, name: str) -> str | None:
        """Return the first value of a header, whatever the case of its name."""
        wanted = name.lower()
        for key, value in self.headers:
            if key.lower() == wanted:
                return value
        return None

    def __repr__(self) -> str:
        """Show method and address without query."""
        return f"MockRequest({self.method} {self.origin}{self.path} {MASK})"


@dataclass(frozen=True, slots=True, repr=False)
class MockResponse:
    """An answer of the mock server.

    Attributes:
        cut_after: Bytes of the body after which the connection breaks; ``None`` to
            deliver all.
    """

    status: int
    headers: Headers = ()
    body: bytes = b""
    cut_after: int | None = None

    def header(self, name: str) -> str | None:
        """Return the first value of a header, whatever the case of its name."""
        wanted = name.lower()
        for key, value in self.headers:
            if key.lower() == wanted:
                return value
        return None

    def with_headers(self, headers: Mapping[str, str]) -> MockResponse:
        """Return this answer with headers in the place of those of the same name."""
        names = {name.lower() for name in headers}
        kept = tuple(pair for pair in self.headers if pair[0].lower() not in names)
        return MockResponse(
            self.status, (*kept, *headers.items()), self.body, self.cut_after
        )

    def members(self) -> dict[str, object]:
        """Return the members of the JSON object in the body, else nothing."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def __repr__(self) -> str:
        """Show the status only."""
        return f"MockResponse({self.status} {MASK})"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request in the mock server's log.

    Attributes:
        number: Place among all requests of this server, from 1.
        endpoint: Such as ``"token"``; ``"unknown"`` where nothing answers.
        at: Epoch seconds of its arrival, by the server's clock.
        form: Parameters of the form; ``repr`` hides the secrets among them.
        query: Likewise, of the address.
        headers: By name in lower case; ``repr`` hides the secrets among them.
        status: What the server answered; ``None`` while it has not decided.
        error: ``error`` member of what it answered.
        grant_id: The grant concerned, where one was found.
        fault: Name of the fault that the request met.
        delivered: Whether the answer left the server whole.
    """

    number: int
    endpoint: str
    method: str
    path: str
    at: float
    grant_type: str | None = None
    client_id: str | None = None
    form: Mapping[str, str] = field(default_factory=lambda: MaskedMapping({}))
    query: Mapping[str, str] = field(default_factory=lambda: MaskedMapping({}))
    headers: Mapping[str, str] = field(default_factory=lambda: MaskedMapping({}))
    status: int | None = None
    error: str | None = None
    grant_id: str | None = None
    fault: str | None = None
    delivered: bool = False


def first_values(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return parameters by name; of a repeated one, its first value."""
    values: dict[str, str] = {}
    for name, value in pairs:
        values.setdefault(name, value)
    return values


def origin_of(url: str) -> str:
    """Return scheme and authority, in lower case and without a default port."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    default = {"https": 443, "http": 80}.get(scheme)
    host = (parts.hostname or "").lower()
    if ":" in host:
        host = f"[{host}]"
    port = "" if parts.port in {None, default} else f":{parts.port}"
    return f"{scheme}://{host}{port}"


def json_response(
    status: int, members: Mapping[str, object], headers: Mapping[str, str] | None = None
) -> MockResponse:
    """Return an answer with a JSON object that must not be cached."""
    fixed = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))
    body = json.dumps(dict(members)).encode()
    return MockResponse(status, fixed, body).with_headers(headers or {})

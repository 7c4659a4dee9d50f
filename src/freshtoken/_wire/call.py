"""One HTTP request under way: whether it was sent, and how long it may take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

from freshtoken._foundation.clock import Clock
from freshtoken._foundation.records import Failure
from freshtoken._protocol.classification import transport_failure
from freshtoken._protocol.exchange import Response
from freshtoken._wire.outcome import bare

# Pool, DNS, connection, a proxy's tunnel and TLS together: nothing was sent by then.
BEFORE_SENDING_LIMIT = 10.0

Guard: TypeAlias = Callable[[], None]

_HEADERS_STARTED = ".send_request_headers.started"
_HEADERS_COMPLETE = ".send_request_headers.complete"
_ANSWER_COMPLETE = ".receive_response_headers.complete"
# What says by its class that nothing was sent, for transports that tell nothing else.
_NEVER_SENT = frozenset(
    {
        "ConnectError",
        "ConnectTimeout",
        "LocalProtocolError",
        "PoolTimeout",
        "ProxyError",
        "UnsupportedProtocol",
    }
)
_ROUNDING = 1e-6
_SHORTEST_NAP = 0.01


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class CallOptions:
    """What holds for every request of one conversation."""

    timeout: float
    guard: Guard | None
    allow_insecure_transport: bool


class Call:
    """What is known of one request while it is under way, and its clock.

    As a clock it is the injected one, whose alarm moves on when the first byte
    leaves: an answer has its whole time, however long the connection took.
    """

    def __init__(self, clock: Clock, options: CallOptions) -> None:
        self._clock = clock
        self._options = options
        self.limit = options.timeout
        self._ends_at = clock.monotonic() + BEFORE_SENDING_LIMIT
        self.time = clock.time
        self.monotonic = clock.monotonic
        self.sent_at = clock.time()
        self.refused: Exception | None = None
        self.status: int | None = None
        self._exact = False
        self._told = False
        self._began = False
        self._written = False

    def start(self, *, tells: bool) -> None:
        """Begin; for a transport that will not *tell* when it sends, ask the guard."""
        self._exact = tells
        if not tells:
            self._begin()

    def _begin(self) -> None:
        """Ask the guard; from here on the request counts as sent."""
        guard = self._options.guard
        if guard is not None:
            try:
                guard()
            except Exception as error:
                self.refused = bare(error)
                raise
        self._began = True
        self.sent_at = self._clock.time()
        self._ends_at = self._clock.monotonic() + self._options.timeout

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """Follow the transport; a proxy's CONNECT is not our request."""
        if not self._told and not self._exact:
            # It tells after all, so that the look before the connection was early.
            self._began = False
        self._told = True
        if event.endswith(_HEADERS_STARTED):
            if info["request"].method != b"CONNECT":
                self._begin()
        elif self._began and event.endswith(_HEADERS_COMPLETE):
            self._written = True
        elif self._began and event.endswith(_ANSWER_COMPLETE):
            self.status = _status_in(info.get("return_value"))
        _silence(event, info)

    def was_sent(self, cause: str = "") -> bool:
        """Tell whether a byte of the request may have left, given what ended it."""
        if cause == "LocalProtocolError" and not self._written:
            return False  # refused by our own side, before writing
        if self._exact or self._told:
            return self._began
        return self._began and cause not in _NEVER_SENT

    def out_of_time(self) -> Failure:
        """Return the failure of a request that ran into our own limit."""
        sent = self.was_sent()
        limit = self._options.timeout if sent else BEFORE_SENDING_LIMIT
        what = "no whole answer" if sent else "no connection"
        return transport_failure(
            "TimeoutError",
            sent=sent,
            in_doubt=sent,
            detail=f"{what} within {limit:g} s",
            at=self.time(),
        )

    def empty_answer(self, status: int, url: str) -> Response:
        """Return an answer of which only the status is of use."""
        return Response(
            status, (), b"", sent_at=self.sent_at, received_at=self.time(), url=url
        )

    async def sleep(self, seconds: float) -> None:
        """Sleep until the present limit, which may move meanwhile."""
        del seconds
        # No nap is longer than the limit that the guard may set meanwhile.
        nap = max(self.limit, _SHORTEST_NAP)
        while (left := self._ends_at - self._clock.monotonic()) > _ROUNDING:
            await self._clock.sleep(min(left, nap))


def _silence(event: str, info: dict[str, Any]) -> None:
    """Keep out of the libraries' debug log what they write to it after this.

    That is the headers of an answer, with its cookies, and errors, which may quote
    a header of ours.
    """
    if event.endswith(_ANSWER_COMPLETE):
        info["return_value"] = None
    elif "exception" in info:
        info["exception"] = type(info["exception"]).__name__


def _status_in(answer: object) -> int | None:
    """Find the status in what HTTP/1.1 and HTTP/2 connections tell of an answer."""
    if not isinstance(answer, tuple):
        return None
    numbers = (item for item in answer[:2] if isinstance(item, int))
    return next(numbers, None)

"""One fault: what the mock server does to the requests that meet it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from freshtoken.testing._loops import Signal
from freshtoken.testing.messages import (
    NEVER_SENT,
    MockResponse,
    NoAnswerError,
    NoAnswerKind,
    RequestRecord,
)

if TYPE_CHECKING:
    from freshtoken.abc import Clock

Point = Literal["before", "after"]
Change = Callable[[MockResponse], MockResponse]


class FaultOptions(TypedDict, total=False):
    """What every fault may be told.

    Attributes:
        count: How many requests meet it; ``None`` for all that follow.
        skip: How many matching requests pass by first.
        grant_type: Only requests with this grant type.
        client_id: Only requests of this client.
        when: Only requests for which this returns true.
        hold: Stop each request at the fault until `Fault.release`.
        delay: Stop each request at the fault for so many seconds of the clock.
    """

    count: int | None
    skip: int
    grant_type: str | None
    client_id: str | None
    when: Callable[[RequestRecord], bool] | None
    hold: bool
    delay: float


class Fault:
    """One queued fault; made by the methods of the mock server.

    Attributes:
        name: What it does, as the request log shows it.
        endpoint: Where requests meet it.
        point: Before the server acted on the request, or after.
        met: How many requests have met it.
    """

    def __init__(
        self,
        name: str,
        endpoint: str,
        point: Point,
        **options: Unpack[FaultOptions],
    ) -> None:
        """Queueing is the work of `FaultInjection`."""
        self.name = name
        self.endpoint = endpoint
        self.point = point
        self.met: int = 0
        self.no_answer: NoAnswerKind | None = None
        self.answer: MockResponse | None = None
        self.change: Change | None = None
        self.outlives_sender: bool = False
        self._options = options
        self._skip = options.get("skip", 0)
        self._count = options.get("count", 1)
        self._delay = options.get("delay", 0.0)
        self._released = Signal()
        if not options.get("hold", False):
            self._released.set()
        self._lock = threading.Lock()
        self._arrivals: list[tuple[int, Signal]] = []
        self._arrived = 0
        self._late: list[Callable[[], object]] = []

    @property
    def pending(self) -> bool:
        """Whether requests are still to meet it."""
        return self.met < (1 if self._count is None else self._count)

    @property
    def spent(self) -> bool:
        """Whether no further request can meet it."""
        return self._count is not None and self.met >= self._count

    @property
    def reaches_server(self) -> bool:
        """Whether requests that meet it leave the client at all."""
        return self.no_answer not in NEVER_SENT

    async def reached(self, times: int = 1) -> None:
        """Wait until so many requests have stopped at the fault."""
        signal = Signal()
        with self._lock:
            if self._arrived >= times:
                signal.set()
            else:
                self._arrivals.append((times, signal))
        await signal.wait()

    def release(self) -> None:
        """Let requests that stopped at the fault go on, and later ones pass.

        A request whose sender has given up meanwhile is acted on now, where the
        fault was made to keep it. May be called from any thread.
        """
        self._released.set()
        with self._lock:
            late, self._late = self._late, []
        for act in late:
            act()

    def take(self, record: RequestRecord) -> bool:
        """Tell whether a request meets this fault, and count it."""
        if self.spent or record.endpoint != self.endpoint:
            return False
        for name in ("grant_type", "client_id"):
            wanted = self._options.get(name)
            if wanted is not None and getattr(record, name) != wanted:
                return False
        when = self._options.get("when")
        if when is not None and not when(record):
            return False
        if self._skip > 0:
            self._skip -= 1
            return False
        self.met += 1
        return True

    async def stop(self, clock: Clock, act_late: Callable[[], object]) -> None:
        """Hold a request at the fault as long as the fault says.

        Args:
            clock: What a delay is measured by.
            act_late: What the server does with the request should its sender be gone
                when the fault is released.
        """
        self._arrive()
        if self._delay:
            await clock.sleep(self._delay)
        if self._released.is_set():
            return
        try:
            await self._released.wait()
        except BaseException:
            self._sender_gave_up(act_late)
            raise

    def raise_no_answer(self) -> None:
        """Leave the request without an answer, where the fault is one of these.

        Raises:
            NoAnswerError: What the client is to meet.
        """
        if self.no_answer is not None:
            raise NoAnswerError(self.no_answer)

    def _arrive(self) -> None:
        """Tell those who wait that one more request is here."""
        with self._lock:
            self._arrived += 1
            ready = [one for times, one in self._arrivals if times <= self._arrived]
            self._arrivals = [
                pair for pair in self._arrivals if pair[0] > self._arrived
            ]
        for signal in ready:
            signal.set()

    def _sender_gave_up(self, act_late: Callable[[], object]) -> None:
        """Keep a request without a sender until the fault is released."""
        if not (self.outlives_sender and self.point == "before"):
            return
        with self._lock:
            if not self._released.is_set():
                self._late.append(act_late)
                return
        act_late()

    def __repr__(self) -> str:
        """Show what it does, where, and how often it has."""
        of = "" if self._count is None else f" of {self._count}"
        return f"Fault({self.name!r} at {self.endpoint!r}, met {self.met}{of})"

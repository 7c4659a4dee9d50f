"""One refresh for many callers: they share its value or its failure."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

import anyio

from freshtoken._foundation.waiting import Waker, sleep_or_woken
from freshtoken._lifecycle.lease import TooLateError

if TYPE_CHECKING:
    from freshtoken._foundation.records import Record
    from freshtoken._lifecycle.policy import Want
    from freshtoken.abc import Clock

_numbers = itertools.count(1)


class Waiter:
    """One caller of a flight; woken when it lands or when patience ends."""

    __slots__ = ("deadline", "event", "gone", "number")

    def __init__(self, deadline: float) -> None:
        """Wait until *deadline*, monotonic seconds."""
        self.event = anyio.Event()
        self.deadline = deadline
        self.number = next(_numbers)
        self.gone = False

    def __lt__(self, other: Waiter) -> bool:
        """Compare whose patience ends first."""
        return (self.deadline, self.number) < (other.deadline, other.number)


class Flight:
    """All requests of one refresh, with those who wait for it.

    It belongs to the manager's task group: callers only wait, and cancelling one,
    or the last, changes nothing. It lives in one event loop.

    Attributes:
        want: What it is for.
        begun_at: Monotonic seconds at which it began.
        record: What is stored now, once it has landed.
        renewed: Whether that is this flight's own answer.
        early: An answer that is not saved yet: served to callers meanwhile.
        error: Why it failed, once it has failed.
        committed: Whether a request is under way or an answer unsaved: it must not
            be cancelled.
        scope: Cancels it.
    """

    def __init__(self, session_id: str, want: Want, *, begun_at: float = 0.0) -> None:
        """Prepare; the manager starts it."""
        self.number = next(_numbers)
        self.session_id = session_id
        self.want = want
        self.begun_at = begun_at
        self.record: Record | None = None
        self.renewed = False
        self.early: Record | None = None
        self.error: Exception | None = None
        self.done = False
        self.committed = False
        self.doomed = False
        self.watched = False
        self.scope = anyio.CancelScope()
        self.peak = 0
        self._waiters: list[Waiter] = []  # a heap
        self._count = 0
        self._someone = Waker()

    def land(self, record: Record, *, renewed: bool) -> None:
        """Hand the result to all who wait."""
        self.record = record
        self.renewed = renewed
        self._finish()

    def fail(self, error: Exception) -> None:
        """Hand the failure to all who wait."""
        self.error = error
        self._finish()

    def cancel(self) -> None:
        """End it as soon as nothing is under way that must not be lost."""
        self.doomed = True
        if not self.committed and self.early is None:
            self.scope.cancel()

    def sending(self) -> None:
        """Note that a request is about to leave.

        Raises:
            TooLateError: The flight was cancelled already, and has not noticed yet.
        """
        if self.doomed:
            raise TooLateError
        self.committed = True

    def resting(self) -> None:
        """Note that nothing is under way, and nothing unsaved."""
        self.committed = False
        self.early = None
        if self.doomed:
            self.scope.cancel()

    def publish_early(self, record: Record) -> None:
        """Let callers go on with an answer that is not saved yet."""
        self.early = record
        self._wake_all()

    def _finish(self) -> None:
        self.done = True
        self._wake_all()
        self._someone.wake()

    def _wake_all(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.event.set()

    @property
    def arrived(self) -> bool:
        """Whether there is something for callers already."""
        return self.done or self.early is not None

    @property
    def waiting(self) -> int:
        """How many callers wait now."""
        return self._count

    async def wait(self, deadline: float) -> bool:
        """Wait for the outcome; tell whether it came before *deadline*.

        Args:
            deadline: Monotonic seconds.
        """
        if self.arrived:
            return True
        waiter = Waiter(deadline)
        heapq.heappush(self._waiters, waiter)
        self._count += 1
        self.peak = max(self.peak, self._count)
        if self._waiters[0] is waiter:
            self._someone.wake()
        try:
            await waiter.event.wait()
        finally:
            waiter.gone = True
            self._count -= 1
        return self.arrived

    async def watch_patience(self, clock: Clock) -> None:
        """Wake each caller at the end of its patience; one task for all of them."""
        while not self.done:
            self._someone = Waker()
            now = clock.monotonic()
            while self._waiters and (
                self._waiters[0].gone or self._waiters[0].deadline <= now
            ):
                heapq.heappop(self._waiters).event.set()
            if self._waiters:
                left = self._waiters[0].deadline - now
                await sleep_or_woken(clock, left, self._someone)
            else:
                await self._someone.wait()

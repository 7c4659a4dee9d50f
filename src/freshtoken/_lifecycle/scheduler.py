"""Early renewal without a request to trigger it, for sessions that are in use."""

from __future__ import annotations

import heapq
import itertools
import threading
from typing import TYPE_CHECKING, NamedTuple

from freshtoken._foundation.waiting import Waker, sleep_or_woken
from freshtoken._lifecycle.events import log_fault
from freshtoken._lifecycle.local import NEVER, instant
from freshtoken._lifecycle.policy import Want

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshtoken._foundation.records import EntryKey
    from freshtoken._lifecycle.cache import SessionCache
    from freshtoken._lifecycle.local import Instant, LiveToken
    from freshtoken.abc import Clock

LONGEST_SLEEP = 30.0
"""Seconds after which the clocks are compared again, to notice a suspended machine."""
SWEEP_EVERY = 300.0
"""Seconds between two looks for sessions that nobody needs in memory."""
SWEEP = 1_000
"""Sessions that are looked at in one go, to forget those that nobody needs."""
_JUMP = 1.0
"""Seconds of difference between the two clocks that count as a jump."""


class Item(NamedTuple):
    """A token that will be due."""

    at: float
    number: int
    session_id: str
    key: EntryKey
    live: LiveToken


class Agenda:
    """What is due when; shared by the process, emptied by whichever loop is awake."""

    def __init__(self, clock: Clock) -> None:
        """Start empty."""
        self._clock = clock
        self._heap: list[Item] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._wakers: set[Waker] = set()
        self._offset = clock.time() - clock.monotonic()

    def add(self, session_id: str, key: EntryKey, live: LiveToken) -> None:
        """Put a token on the agenda for its soft point."""
        self.put_off(session_id, key, live, live.due_mono)

    def put_off(
        self, session_id: str, key: EntryKey, live: LiveToken, at: float
    ) -> None:
        """Put a token on the agenda for a moment, in monotonic seconds."""
        if at == float("inf"):
            return
        with self._lock:
            item = Item(at, next(self._numbers), session_id, key, live)
            first = not self._heap or item < self._heap[0]
            heapq.heappush(self._heap, item)
            wakers = list(self._wakers) if first else []
        for waker in wakers:
            waker.wake()

    def take_due(self, now: Instant) -> list[Item]:
        """Remove and return what is due by either clock."""
        with self._lock:
            self._notice_jump(now)
            due = []
            while self._heap and self._heap[0].at <= now.mono:
                due.append(heapq.heappop(self._heap))
            return due

    def _notice_jump(self, now: Instant) -> None:
        """Move everything closer when the wall clock ran ahead of the monotonic one."""
        ahead = now.wall - now.mono - self._offset
        if abs(ahead) < _JUMP:
            return
        self._offset += ahead
        if ahead > 0.0:
            self._heap = [item._replace(at=item.at - ahead) for item in self._heap]

    def next_in(self, now: Instant) -> float:
        """Seconds until something is due; infinite if nothing is planned."""
        with self._lock:
            return self._heap[0].at - now.mono if self._heap else NEVER

    def prune(self, keep: Callable[[Item], bool]) -> None:
        """Remove what is of no use any more."""
        with self._lock:
            self._heap = [item for item in self._heap if keep(item)]
            heapq.heapify(self._heap)

    def listen(self, waker: Waker) -> None:
        """Wake *waker* when something earlier is planned."""
        with self._lock:
            self._wakers.add(waker)

    def unlisten(self, waker: Waker) -> None:
        """Stop waking *waker*."""
        with self._lock:
            self._wakers.discard(waker)

    def forget_listeners(self) -> None:
        """Wake nobody any more: in a forked child the parent's loops are not ours."""
        with self._lock:
            self._wakers.clear()

    def __len__(self) -> int:
        """Return how many entries there are."""
        return len(self._heap)


class Scheduler:
    """One event loop's part in emptying the agenda.

    Args:
        fly: Begins a flight for a session, or joins the one under way.
    """

    def __init__(
        self,
        agenda: Agenda,
        cache: SessionCache,
        clock: Clock,
        fly: Callable[[str, Want], object],
    ) -> None:
        """Prepare; `run` does the work."""
        self._agenda = agenda
        self._cache = cache
        self._clock = clock
        self._fly = fly
        self._sweep_at = clock.monotonic() + SWEEP_EVERY

    async def run(self) -> None:
        """Renew what is due, for ever; one fault does not end it."""
        while True:
            waker = Waker()
            self._agenda.listen(waker)
            try:
                now = instant(self._clock)
                for item in self._agenda.take_due(now):
                    self._handle_safely(item, now)
                self._sweep(now)
                pause = min(self._next_look(now), self._sweep_at - now.mono)
                await sleep_or_woken(self._clock, max(pause, 0.0), waker)
            finally:
                self._agenda.unlisten(waker)

    def _next_look(self, now: Instant) -> float:
        """Seconds until the agenda has to be looked at; never, if it is empty."""
        due_in = self._agenda.next_in(now)
        return due_in if due_in == NEVER else min(due_in, LONGEST_SLEEP)

    def _sweep(self, now: Instant) -> None:
        """Forget idle sessions; soon again where there were some."""
        if now.mono < self._sweep_at:
            return
        forgotten = self._cache.sweep(SWEEP)
        self._sweep_at = now.mono + (1.0 if forgotten else SWEEP_EVERY)
        if len(self._agenda) > 2 * len(self._cache) + SWEEP:
            self._agenda.prune(self._is_current)

    def _is_current(self, item: Item) -> bool:
        """Tell whether an entry's token is still the one at hand."""
        local = self._cache.get(item.session_id)
        return local is not None and local.live.get(item.key) is item.live

    def _handle_safely(self, item: Item, now: Instant) -> None:
        try:
            self.handle(item, now)
        except Exception as error:  # noqa: BLE001 -- one fault does not end early renewal
            log_fault("scheduler_failed", error, session_id=item.session_id)

    def handle(self, item: Item, now: Instant) -> None:
        """Renew a session that is in use; let an idle one rest.

        A token that nobody asked for since it came is not renewed; at its end the
        session is dropped from memory, and the store still has it.
        """
        local = self._cache.get(item.session_id)
        live = item.live
        if local is None or not self._is_current(item):
            return
        if live.expired(now) and not live.used:
            others = local.live.values()
            if all(other.expired(now) and not other.used for other in others):
                self._cache.forget(item.session_id)
            return
        if not live.is_due(now):
            # Rounding, or a clock that was set: by whichever clock is the sooner.
            at = now.mono + live.due_in(now)
            self._agenda.put_off(item.session_id, item.key, live, at)
        elif not live.used:
            self._agenda.put_off(item.session_id, item.key, live, live.end_mono)
        elif local.held_until(item.key) > now.mono:
            at = local.held_until(item.key)
            self._agenda.put_off(item.session_id, item.key, live, at)
        else:
            self._fly(item.session_id, Want(item.key, seen=live.token.reveal()))

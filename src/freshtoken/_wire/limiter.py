"""How many token requests may be under way to one server at a time."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from freshtoken._foundation.waiting import Waker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class _Waiter:
    """Somebody in the queue; `granted` is written under the limiter's lock."""

    __slots__ = ("granted", "waker")

    def __init__(self) -> None:
        self.granted = False
        self.waker = Waker()


class Limiter:
    """A fair bound on concurrent work, shared by threads and event loops.

    Make one for each authorization server; it holds nothing of any event loop. Slots
    are handed on in the order of asking. A waiter that is cancelled gives its place
    up, and a slot that was just handed to it goes to the next.

    Args:
        total: Most slots in use at once.
        reserved: How many of them only code exchanges may take, so that users can
            sign in while a fleet refreshes.
    """

    def __init__(self, total: int = 100, reserved: int = 25) -> None:
        """Start with all slots free."""
        self._total = total
        self._ordinary = total - reserved
        self._in_use = {False: 0, True: 0}
        self._queues: dict[bool, deque[_Waiter]] = {False: deque(), True: deque()}
        # Reentrant: a coroutine of a dead event loop gives its slot back whenever
        # the garbage collector closes it, also inside one of the sections below.
        self._lock = threading.RLock()

    @property
    def in_use(self) -> int:
        """How many slots are taken."""
        return self._in_use[False] + self._in_use[True]

    @property
    def waiting(self) -> int:
        """How many callers queue for a slot."""
        return len(self._queues[False]) + len(self._queues[True])

    @asynccontextmanager
    async def slot(self, *, code_exchange: bool = False) -> AsyncIterator[None]:
        """Hold one slot for the body, waiting for it if need be."""
        await self._acquire(code_exchange)
        try:
            yield
        finally:
            self._release(code_exchange)

    async def _acquire(self, code_exchange: bool) -> None:  # noqa: FBT001 -- a key
        """Take a slot, or queue for one."""
        with self._lock:
            if not self._queues[code_exchange] and self._fits(code_exchange):
                self._in_use[code_exchange] += 1
                return
            waiter = _Waiter()
            self._queues[code_exchange].append(waiter)
        try:
            await waiter.waker.wait()
        except BaseException:
            self._leave(waiter, code_exchange)
            raise

    def _leave(self, waiter: _Waiter, code_exchange: bool) -> None:  # noqa: FBT001
        """Give up the place in the queue, or the slot if it has just been granted."""
        with self._lock:
            if not waiter.granted:
                self._queues[code_exchange].remove(waiter)
                return
        self._release(code_exchange)

    def _release(self, code_exchange: bool) -> None:  # noqa: FBT001 -- a key
        """Give a slot back and hand on whatever fits now."""
        with self._lock:
            self._in_use[code_exchange] -= 1
            granted = self._hand_on()
        for kind, waiter in granted:
            if not waiter.waker.wake():
                self._release(kind)  # Its event loop is gone: the next one's turn.

    def _hand_on(self) -> list[tuple[bool, _Waiter]]:
        """Grant free slots to the heads of the queues, code exchanges first."""
        granted = []
        for kind in (True, False):
            queue = self._queues[kind]
            while queue and self._fits(kind):
                waiter = queue.popleft()
                waiter.granted = True
                self._in_use[kind] += 1
                granted.append((kind, waiter))
        return granted

    def _fits(self, code_exchange: bool) -> bool:  # noqa: FBT001 -- a key
        """Tell whether one more of this kind may go."""
        free = self.in_use < self._total
        return free and (code_exchange or self._in_use[False] < self._ordinary)

"""A clock that stands still until the test moves it."""

from __future__ import annotations

import bisect
import math
import threading
from typing import NamedTuple, NoReturn

import anyio
import anyio.lowlevel

from freshtoken.testing._loops import (
    Loop,
    Signal,
    in_event_loop,
    settle_here,
    wake,
)

_NANO = 1_000_000_000
# A sleep computed from two readings can miss its instant by a rounding error; a
# sleeper due within a microsecond of the end of a move is woken by that move.
_ROUNDING = 1_000
_PATIENCE = 10.0  # real seconds that a loop in another thread may take to settle


class _Sleeper(NamedTuple):
    due: int
    number: int
    event: anyio.Event
    loop: Loop


class FakeClock:
    """Wall and monotonic clock that move only when told to.

    Give one to everything that takes a ``clock``, sleep on it with `sleep`, and move
    it with `advance`. It needs no event loop to be made, works on asyncio and trio,
    and may be shared by several loops and threads.

    Args:
        start: What the wall clock shows at first, in epoch seconds.
    """

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        """Stop the time at *start*."""
        self._lock = threading.Lock()
        self._monotonic = 10_000 * _NANO
        self._true = _nanoseconds(start) - self._monotonic
        self._wall = self._true
        self._sleepers: list[_Sleeper] = []
        self._count = 0

    def time(self) -> float:
        """Return the wall clock in epoch seconds."""
        return (self._wall + self._monotonic) / _NANO

    def monotonic(self) -> float:
        """Return seconds on a clock that is never set back."""
        return self._monotonic / _NANO

    def true_time(self) -> float:
        """Return epoch seconds as a clock shows them that nobody steps.

        Other machines live by this one: `advance` and `suspend` move it, `shift_wall`
        does not.
        """
        return (self._true + self._monotonic) / _NANO

    @property
    def sleepers(self) -> int:
        """How many tasks sleep on this clock now."""
        return len(self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was moved by *seconds*.

        Zero or less only lets other tasks run.
        """
        if seconds <= 0.0:
            await anyio.lowlevel.checkpoint()
            return
        if math.isinf(seconds):
            await anyio.sleep_forever()
        sleeper = self._lie_down(seconds)
        try:
            await sleeper.event.wait()
        finally:
            self._get_up(sleeper)

    async def advance(self, seconds: float) -> None:
        """Move both clocks forward.

        Each sleeper wakes at its own deadline, in order, and all tasks come to rest
        before the time goes on; sleeps that begin meanwhile count.

        Raises:
            ValueError: The time does not run backwards; see `shift_wall`.
        """
        end = self._end_of(seconds)
        await self.settle()
        while (woken := self._wake_next(end)) is not None:
            await self._settle(woken)
        self._move_to(end)
        await self.settle()

    def advance_sync(self, seconds: float) -> None:
        """Move both clocks forward from a thread without an event loop.

        For a test client that runs the application in a thread of its own. The loops
        of other threads that sleep on this clock come to rest before the time goes
        on, as with `advance`.

        Raises:
            RuntimeError: This thread runs an event loop, which could not come to
                rest: use ``await clock.advance(…)``. Or another loop did not come to
                rest within 10 s of real time.
            ValueError: The time does not run backwards; see `shift_wall`.
        """
        if in_event_loop():
            message = "an event loop runs in this thread: await clock.advance(...)"
            raise RuntimeError(message)
        end = self._end_of(seconds)
        _settle_blocking(self._loops())
        while (woken := self._wake_next(end)) is not None:
            _settle_blocking(self._loops() | woken)
        self._move_to(end)
        _settle_blocking(self._loops())

    async def settle(self) -> None:
        """Let all tasks run until each waits for something, without moving time."""
        await self._settle(set())

    def shift_wall(self, seconds: float) -> None:
        """Step the wall clock, as NTP or an operator does; backwards, too.

        Nobody wakes: sleeps follow the monotonic clock.
        """
        with self._lock:
            self._wall += _nanoseconds(seconds)

    def suspend(self, seconds: float) -> None:
        """Let time pass while this machine sleeps: its monotonic clock stands still.

        Nobody wakes: sleeps follow the monotonic clock.

        Raises:
            ValueError: The time does not run backwards.
        """
        passed = _forward(seconds)
        with self._lock:
            self._wall += passed
            self._true += passed

    def __repr__(self) -> str:
        """Show the wall clock."""
        return f"FakeClock({self.time()!r}, {self.sleepers} sleepers)"

    def _lie_down(self, seconds: float) -> _Sleeper:
        """Enter the running task among the sleepers."""
        duration = max(math.ceil(round(seconds * _NANO, 3)), 1)
        event, loop = anyio.Event(), Loop()
        with self._lock:
            self._count += 1
            sleeper = _Sleeper(self._monotonic + duration, self._count, event, loop)
            bisect.insort(self._sleepers, sleeper, key=_rank)
        return sleeper

    def _get_up(self, sleeper: _Sleeper) -> None:
        """Strike a sleeper off, if it is still among them."""
        with self._lock:
            at = bisect.bisect_left(self._sleepers, _rank(sleeper), key=_rank)
            if at < len(self._sleepers) and self._sleepers[at] is sleeper:
                del self._sleepers[at]

    def _end_of(self, seconds: float) -> int:
        """Return the monotonic instant at which a move ends."""
        return self._monotonic + _forward(seconds)

    def _move_to(self, instant: int) -> None:
        """Move both clocks to a monotonic instant, never back."""
        with self._lock:
            self._monotonic = max(self._monotonic, instant)

    def _wake_next(self, end: int) -> set[Loop] | None:
        """Move to the next deadline up to *end* and wake who is due then.

        Returns:
            The loops of those who were woken, or ``None`` where nobody is due.
        """
        with self._lock:
            if not self._sleepers or self._sleepers[0].due > end + _ROUNDING:
                return None
            due = self._sleepers[0].due
            self._monotonic = max(self._monotonic, due)
            count = bisect.bisect_right(self._sleepers, due, key=lambda one: one.due)
            woken = self._sleepers[:count]
            del self._sleepers[:count]
        for sleeper in woken:
            wake(sleeper.event, sleeper.loop)
        return {sleeper.loop for sleeper in woken}

    def _loops(self) -> set[Loop]:
        """Return the loops in which somebody sleeps."""
        with self._lock:
            return {sleeper.loop for sleeper in self._sleepers}

    async def _settle(self, woken: set[Loop]) -> None:
        """Let this loop and all others that sleep on the clock come to rest."""
        await settle_here()
        others = (self._loops() | woken) - {Loop()}
        if others:
            signals = [Signal() for _ in others]
            asked = zip(others, signals, strict=True)
            living = [one for loop, one in asked if loop.settle_soon(one.set)]
            with anyio.move_on_after(_PATIENCE) as patience:
                for signal in living:
                    await signal.wait()
            if patience.cancelled_caught:
                _give_up()
            await settle_here()


def _settle_blocking(loops: set[Loop]) -> None:
    """Let loops of other threads come to rest."""
    events = [threading.Event() for _ in loops]
    asked = zip(loops, events, strict=True)
    living = [event for loop, event in asked if loop.settle_soon(event.set)]
    if not all(event.wait(_PATIENCE) for event in living):
        _give_up()


def _give_up() -> NoReturn:
    """Raise for a loop that is stuck."""
    message = f"the event loop of another thread did not come to rest in {_PATIENCE} s"
    raise RuntimeError(message)


def _rank(sleeper: _Sleeper) -> tuple[int, int]:
    """Return what sleepers are ordered by."""
    return (sleeper.due, sleeper.number)


def _nanoseconds(seconds: float) -> int:
    """Return seconds as a whole number of nanoseconds."""
    return round(seconds * _NANO)


def _forward(seconds: float) -> int:
    """Return nanoseconds of a move forward."""
    if not (seconds >= 0.0 and math.isfinite(seconds)):
        message = f"time cannot be moved by {seconds} s; shift_wall() steps it back"
        raise ValueError(message)
    return _nanoseconds(seconds)

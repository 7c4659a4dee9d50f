"""Time as a parameter: the clock port and the machine's own clock."""

from __future__ import annotations

import time as _time
from typing import Protocol

import anyio


class Clock(Protocol):
    """The three things that the library asks of time."""

    def time(self) -> float:
        """Return the wall clock in epoch seconds."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that is never set back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; zero or less only lets other tasks run."""
        ...


class SystemClock:
    """The machine's clocks: what everything uses unless told otherwise."""

    time = staticmethod(_time.time)
    monotonic = staticmethod(_time.monotonic)

    async def sleep(self, seconds: float) -> None:
        """Wait on the running event loop."""
        await anyio.sleep(max(seconds, 0.0))

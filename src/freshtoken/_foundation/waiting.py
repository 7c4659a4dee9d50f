"""Waits that follow an injected clock and wake across event loops."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from freshtoken._foundation.clock import Clock

T = TypeVar("T")

# Loop turns granted after a deadline, so that an answer which arrived while the
# process was stopped is still found (each turn polls the sockets once).
_LAST_LOOKS = 10


def in_trio() -> bool:
    """Tell whether the running event loop is trio's."""
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())


def running_loop() -> object:
    """Return what identifies the running event loop; equal for the same loop only."""
    if in_trio():
        import trio  # noqa: PLC0415 -- optional: imported only where it runs

        return trio.lowlevel.current_trio_token()
    return asyncio.get_running_loop()


class Waker:
    """An event that any thread may set; made in the event loop that waits for it."""

    __slots__ = ("_call_soon", "_event", "_loop")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._loop = running_loop()
        self._call_soon = _threadsafe_call()

    def wake(self) -> bool:
        """Wake whoever waits; tell whether its event loop is still there."""
        try:
            if _is_running(self._loop):
                self._event.set()
            else:
                self._call_soon(self._event.set)
        except RuntimeError:
            return False  # The loop is closed, and its waiters with it.
        return True

    def is_set(self) -> bool:
        """Tell whether it has been woken."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Wait until somebody wakes."""
        await self._event.wait()


def _is_running(loop: object) -> bool:
    """Tell whether *loop* is the one that runs here."""
    try:
        return running_loop() is loop
    except RuntimeError:
        return False


def _threadsafe_call() -> Callable[[Callable[[], object]], object]:
    """Return the running loop's way to call something from another thread."""
    if in_trio():
        import trio  # noqa: PLC0415 -- optional: imported only where it runs

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


async def sleep_or_woken(clock: Clock, seconds: float, waker: Waker) -> bool:
    """Wait for *waker*, at most *seconds*; tell whether it was woken."""
    if seconds <= 0.0 or waker.is_set():
        await anyio.lowlevel.checkpoint()
        return waker.is_set()
    async with anyio.create_task_group() as group:

        async def alarm() -> None:
            await clock.sleep(seconds)
            group.cancel_scope.cancel()

        group.start_soon(alarm)
        await waker.wait()
        group.cancel_scope.cancel()
    return waker.is_set()


async def finish_within(
    clock: Clock, seconds: float, work: Callable[[], Awaitable[T]]
) -> T:
    """Return what *work* returns, or give it up after *seconds*.

    Exceptions of *work* come out as they are, never in a group.

    Raises:
        TimeoutError: The time was over first.
    """
    results: list[T] = []
    errors: list[Exception] = []
    async with anyio.create_task_group() as group:

        async def alarm() -> None:
            await clock.sleep(seconds)
            for _ in range(_LAST_LOOKS):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()

        group.start_soon(alarm)
        try:
            results.append(await work())
        except Exception as error:  # noqa: BLE001 -- raised again below
            errors.append(error)
        group.cancel_scope.cancel()
    if results:
        return results[0]
    if errors:
        raise errors.pop()
    message = f"not finished within {seconds:g} s"
    raise TimeoutError(message)

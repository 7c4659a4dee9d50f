"""Event loops as values: reach one from another thread, and let it come to rest."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable

# A callback that was scheduled, and what it schedules in turn, is no task and so is
# not seen; a few more turns of the loop run it.
_QUIET_TURNS = 5
_MAX_TURNS = 100_000
_PATIENCE = 10.0  # real seconds
_NO_REST = "tasks do not come to rest: one of them loops without ever waiting"

# Tasks that wait for the others to come to rest do not count as busy themselves.
_settling: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()


def in_trio() -> bool:
    """Tell whether the running event loop is trio's."""
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())


def in_event_loop() -> bool:
    """Tell whether this thread runs an event loop now."""
    if in_trio():
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Loop:
    """A running event loop that other threads may reach."""

    __slots__ = ("_loop", "_trio", "thread")

    def __init__(self) -> None:
        """Take the loop that runs now in this thread."""
        self.thread = threading.get_ident()
        self._trio = in_trio()
        self._loop: Any
        if self._trio:
            import trio  # noqa: PLC0415 -- optional: imported only where it runs

            self._loop = trio.lowlevel.current_trio_token()
        else:
            self._loop = asyncio.get_running_loop()

    def __eq__(self, other: object) -> bool:
        """Compare the loops themselves."""
        return isinstance(other, Loop) and self._loop is other._loop

    def __hash__(self) -> int:
        """Hash the loop itself."""
        return hash(id(self._loop))

    def call_soon(self, function: Callable[[], object]) -> bool:
        """Run *function* in the loop from any thread; tell whether the loop lives."""
        try:
            if self._trio:
                self._loop.run_sync_soon(function)
            else:
                self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # closed; trio's RunFinishedError is one, too
            return False
        return True

    def settle_soon(self, done: Callable[[], object]) -> bool:
        """Call *done* in the loop once all its tasks wait for something."""

        async def settle_then() -> None:
            try:
                await settle_here()
            finally:
                done()

        return self.call_soon(lambda: self._spawn(settle_then))

    def _spawn(self, function: Callable[[], Any]) -> None:
        """Start a task that belongs to no group; called in the loop."""
        if self._trio:
            import trio  # noqa: PLC0415 -- optional: imported only where it runs

            trio.lowlevel.spawn_system_task(function)
        else:
            task = self._loop.create_task(function())
            _keep_alive.add(task)
            task.add_done_callback(_keep_alive.discard)


_keep_alive: set[asyncio.Task[Any]] = set()


class Signal:
    """Something that happens once; any loop may wait for it, any thread may set it.

    Needs no event loop to be made.
    """

    __slots__ = ("_lock", "_set", "_waiting")

    def __init__(self) -> None:
        """Start unset."""
        self._lock = threading.Lock()
        self._set = False
        self._waiting: dict[anyio.Event, Loop] = {}

    def is_set(self) -> bool:
        """Tell whether it has happened."""
        return self._set

    def set(self) -> None:
        """Let it happen: wake all who wait, in whichever loop."""
        with self._lock:
            self._set = True
            waiting, self._waiting = self._waiting, {}
        for event, loop in waiting.items():
            wake(event, loop)

    async def wait(self) -> None:
        """Wait until it happens."""
        event = anyio.Event()
        with self._lock:
            if not self._set:
                self._waiting[event] = Loop()
        if self._set:
            await anyio.lowlevel.checkpoint()
            return
        try:
            await event.wait()
        finally:
            with self._lock:
                self._waiting.pop(event, None)


def wake(event: anyio.Event, loop: Loop) -> bool:
    """Set *event* in its loop; tell whether the loop lives."""
    if in_event_loop() and Loop() == loop:
        event.set()
        return True
    return loop.call_soon(event.set)


async def settle_here() -> None:
    """Wait until every other task of the running loop waits for something.

    A task that waits for a socket or a worker thread counts as waiting.

    Raises:
        RuntimeError: Some task never waits.
    """
    if in_trio():
        with anyio.move_on_after(_PATIENCE) as patience:
            await anyio.wait_all_tasks_blocked()
        if patience.cancelled_caught:
            raise RuntimeError(_NO_REST)
        return
    # anyio's own function sleeps for 0.1 s of real time where a task is busy.
    task = asyncio.current_task()
    if task is None:
        return
    nested = task in _settling
    _settling.add(task)
    try:
        await _turn_until_quiet(task)
    finally:
        if not nested:
            _settling.discard(task)


async def _turn_until_quiet(this_task: asyncio.Task[Any]) -> None:
    """Give the loop turns until no task has anything to do."""
    quiet = 0
    for _ in range(_MAX_TURNS):
        await asyncio.sleep(0)
        quiet = 0 if _someone_is_busy(this_task) else quiet + 1
        if quiet == _QUIET_TURNS:
            return
    raise RuntimeError(_NO_REST)


def _someone_is_busy(this_task: asyncio.Task[Any]) -> bool:
    """Tell whether another task of the loop could run now."""
    for task in asyncio.all_tasks():
        if task is this_task or task in _settling:
            continue
        waits_for = getattr(task, "_fut_waiter", None)
        if waits_for is None or waits_for.done():
            return True
    return False

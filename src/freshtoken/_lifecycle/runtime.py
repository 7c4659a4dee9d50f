"""One event loop's share of a manager: its task group, HTTP driver and flights."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

from freshtoken._foundation.waiting import finish_within, in_trio
from freshtoken._lifecycle import policy
from freshtoken._lifecycle.events import RevocationFailed, SaveLost, log_fault
from freshtoken._lifecycle.failing import FlightFailedError
from freshtoken._lifecycle.flight import Flight
from freshtoken._lifecycle.local import instant
from freshtoken._lifecycle.refresh import RefreshTransaction
from freshtoken._lifecycle.scheduler import Scheduler
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._wire.outcome import Done, Outcome, bare, unwrap
from freshtoken._wire.retry import repeat
from freshtoken.errors import FreshTokenError, RetryableError, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from anyio.abc import TaskGroup

    from freshtoken._foundation.records import EntryKey
    from freshtoken._lifecycle.context import Context
    from freshtoken._lifecycle.policy import Want
    from freshtoken._lifecycle.scheduler import Agenda

T = TypeVar("T")

LAST_WAIT = 1.0
"""Seconds that closing waits for what has been cancelled to end."""


class Runtime:
    """The flights of one event loop.

    The task group lives in a task of its own, which inherits nobody's cancellation:
    a manager may be entered in one task and left in another, flights outlive their
    callers, and exceptions of the ``async with`` body pass unwrapped.
    """

    def __init__(
        self, make_context: Callable[[Runtime], Context], agenda: Agenda
    ) -> None:
        """Prepare; `start` begins."""
        self.context = make_context(self)
        self._agenda = agenda
        self._flights: dict[tuple[str, EntryKey], Flight] = {}
        self._turns: dict[str, _Turn] = {}
        self._errands: set[_Errand[Any]] = set()
        self._busy = 0
        self._closing = False
        self._group: TaskGroup | None = None
        self._started = anyio.Event()
        self._stop = anyio.Event()
        self._wound_down = anyio.Event()
        self._stopped = anyio.Event()
        self._idle = anyio.Event()
        self._renewal = anyio.CancelScope()
        self._host_task: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        """Start the host task and, in it, the scheduler."""
        if in_trio():
            import trio  # noqa: PLC0415 -- optional: imported only where it runs

            trio.lowlevel.spawn_system_task(self._host, name="freshtoken")
        else:
            loop = asyncio.get_running_loop()
            self._host_task = loop.create_task(self._host(), name="freshtoken")
        await self._started.wait()

    async def _host(self) -> None:
        try:
            await self.context.http.open()
            async with anyio.create_task_group() as group:
                self._group = group
                group.start_soon(self._renew_early)
                self._started.set()
                await self._stop.wait()
                await self._wind_down()
                self._wound_down.set()
                group.cancel_scope.cancel()
            await self.context.http.aclose()
        finally:
            self._group = None
            for event in (self._started, self._wound_down, self._stopped):
                event.set()

    async def _renew_early(self) -> None:
        """Run the scheduler until closing begins."""
        context = self.context
        with self._renewal:
            await Scheduler(self._agenda, context.cache, context.clock, self.fly).run()

    async def close(self) -> None:
        """Let sent requests land and unsaved answers be saved; drop the rest.

        The host task does it: it goes on where the caller is cancelled meanwhile.
        """
        self._closing = True
        self._renewal.cancel()
        for flight in list(self._flights.values()):
            flight.cancel()
        self._stop.set()
        with anyio.CancelScope(shield=True):
            await self._wound_down.wait()
            with suppress(TimeoutError):  # A call of the store that never returns.
                await finish_within(self.context.clock, LAST_WAIT, self._stopped.wait)

    async def _wind_down(self) -> None:
        """Wait for what is under way, as long as that makes sense."""
        try:
            await finish_within(
                self.context.clock, policy.CLOSE_LIMIT, self._until_idle
            )
        except TimeoutError:
            self._report_unsaved()
            for errand in list(self._errands):
                self.context.sink.emit(SaveLost())
                errand.give_up()

    async def _until_idle(self) -> None:
        while self._busy:
            self._idle = anyio.Event()
            await self._idle.wait()

    def _report_unsaved(self) -> None:
        """Name the sessions whose answers could not be saved in time.

        No request lasts as long: a flight that is still committed has its answer.
        """
        for flight in list(self._flights.values()):
            local = self.context.cache.get(flight.session_id)
            unsaved = local is not None and local.unsaved is not None
            if flight.committed or unsaved:
                self.context.sink.emit(SaveLost(session_id=flight.session_id))

    @property
    def over(self) -> bool:
        """Whether its event loop, or its host task, has ended without closing."""
        task = self._host_task
        return self._stopped.is_set() or (
            task is not None and task.get_loop().is_closed()
        )

    @property
    def running(self) -> bool:
        """Whether flights can begin here."""
        return self._group is not None and not self._closing

    # Work

    def start_soon(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run *work* in the background; closing waits for it."""
        group = self._group
        if group is None:
            return

        async def counted() -> None:
            try:
                await work(*args)
            except asyncio.CancelledError:
                # One that the application's own code let out ends this work alone.
                if group.cancel_scope.cancel_called:
                    raise
            except Exception as error:  # noqa: BLE001 -- one fault does not end the rest
                log_fault("background_failed", error)
            finally:
                self._busy -= 1
                if not self._busy:
                    self._idle.set()

        self._busy += 1
        group.start_soon(counted)

    async def apart(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        unclaimed: Callable[[T], None] | None = None,
    ) -> T:
        """Run *work* in the background and wait for it: cancelling us ends nothing.

        Args:
            unclaimed: Called with what *work* returned when nobody waits any more.

        Raises:
            RetryableError: The manager is closed, or was before *work* ended.
        """
        if not self.running:
            raise closed_error()
        errand = _Errand(work, unclaimed)
        self._errands.add(errand)
        try:
            self.start_soon(errand.run)
            return await errand.wait()
        finally:
            self._errands.discard(errand)

    def fly(self, session_id: str, want: Want) -> Flight:
        """Return the flight for this session and entry, begun if there is none."""
        key = (session_id, want.key)
        flight = self._flights.get(key)
        if flight is None:
            begun_at = self.context.clock.monotonic()
            flight = Flight(session_id, want, begun_at=begun_at)
            if not self.running:
                flight.fail(closed_error(session_id))
                return flight
            self._flights[key] = flight
            self.start_soon(self._run, flight)
        return flight

    async def wait(self, flight: Flight, deadline: float) -> bool:
        """Wait for *flight*; tell whether it landed before *deadline*."""
        if not flight.arrived and not flight.watched and self._group is not None:
            flight.watched = True
            self._group.start_soon(flight.watch_patience, self.context.clock)
        return await flight.wait(deadline)

    async def _run(self, flight: Flight) -> None:
        """Run one flight to its end; never raises but when cancelled."""
        context = self.context
        context.sink.count_flight()
        try:
            with flight.scope:
                async with self._turn(flight.session_id):
                    await self._transact(flight)
        finally:
            if not flight.done:
                flight.fail(closed_error(flight.session_id))
            self._flights.pop((flight.session_id, flight.want.key), None)
            context.sink.count_waiters(flight.peak)
        self._after(flight)

    async def _transact(self, flight: Flight) -> None:
        """Run the transaction and hand its outcome to the waiters."""
        transaction = RefreshTransaction(
            self.context, flight.session_id, flight.want, flight
        )
        try:
            record = await transaction.run()
            flight.land(record, renewed=transaction.renewed)
        except (FlightFailedError, StoreError) as error:
            flight.fail(error)
        except Exception as error:  # noqa: BLE001 -- a fault of ours must not hang callers
            log_fault("flight_failed", error, session_id=flight.session_id)
            message = (
                f"the refresh met an unexpected {type(error).__name__}; the session "
                "is kept, please report this with the log"
            )
            flight.fail(FreshTokenError(message, session_id=flight.session_id))
        except asyncio.CancelledError:
            # Only asyncio hands one task's cancellation to another: a function of
            # the application, or its store, awaited something that was cancelled.
            if self._ending(flight):
                raise
            flight.fail(cancelled_error(flight.session_id))

    def _ending(self, flight: Flight) -> bool:
        """Tell whether a cancellation of *flight* is our own doing."""
        group = self._group
        return flight.doomed or group is None or group.cancel_scope.cancel_called

    def _after(self, flight: Flight) -> None:
        """Plan what follows a flight that brought nothing new."""
        context, want = self.context, flight.want
        if isinstance(flight.error, StoreError):
            context.cache.store_failed(flight.session_id)
        local = context.cache.get(flight.session_id)
        live = local.live.get(want.key) if local else None
        if local is None or live is None or live.token.reveal() != want.seen:
            return
        now = instant(context.clock)
        if local.held_until(want.key) <= now.mono:
            context.cache.pause(flight.session_id, want.key, policy.MEMO)
        if live.used and not live.expired(now):
            at = max(local.held_until(want.key), now.mono + policy.MEMO)
            self._agenda.put_off(flight.session_id, want.key, live, at)

    @asynccontextmanager
    async def _turn(self, session_id: str) -> AsyncIterator[None]:
        """Let one flight of a session after the other: it has one refresh token."""
        turn = self._turns.setdefault(session_id, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                self._turns.pop(session_id, None)

    # Revocation

    def revoke_later(self, session_id: str, token: str) -> None:
        """Revoke a refresh token in the background; failing is an event."""
        self.start_soon(self._revoke, session_id, token)

    async def _revoke(self, session_id: str, token: str) -> None:
        context = self.context
        failure = None
        try:
            await repeat(
                lambda: context.server.revoke(context.http, token=token),
                clock=context.clock,
                rng=context.rng,
            )
        except ExchangeError as error:
            failure = error.failure
        if failure is None:
            return
        # A server that offers no revocation was never asked: nothing failed.
        if failure.sent or failure.setting != "revocation_endpoint":
            context.sink.emit(RevocationFailed(session_id=session_id, failure=failure))


class _Turn:
    """The queue of one session's flights."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.users = 0


class _Errand(Generic[T]):
    """Work that goes on when the one who waits for it is cancelled."""

    __slots__ = ("_abandoned", "_done", "_outcome", "_unclaimed", "_work")

    def __init__(
        self,
        work: Callable[[], Awaitable[T]],
        unclaimed: Callable[[T], None] | None,
    ) -> None:
        self._work = work
        self._unclaimed = unclaimed
        self._done = anyio.Event()
        self._outcome: Outcome[T] | None = None
        self._abandoned = False

    async def run(self) -> None:
        """Do it."""
        try:
            self._outcome = Done(await self._work())
        except Exception as error:  # noqa: BLE001 -- raised again for the caller
            self._outcome = bare(error)
        finally:
            self._done.set()
        if self._abandoned:
            self._hand_over()

    async def wait(self) -> T:
        """Return what came of it."""
        try:
            await self._done.wait()
        except BaseException:
            self._abandoned = True
            if self._done.is_set():
                self._hand_over()
            raise
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            self._abandoned = True
            raise closed_error()
        return unwrap(outcome)

    def give_up(self) -> None:
        """Tell who waits that the manager closes before this is done."""
        self._done.set()

    def _hand_over(self) -> None:
        """Tell that nobody waits any more for what came."""
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, Done) and self._unclaimed is not None:
            self._unclaimed(outcome.value)


def cancelled_error(session_id: str) -> RetryableError:
    """Return the error for a flight that was cancelled from outside."""
    return RetryableError(
        "the refresh was cancelled by something that it waited for: look at the "
        "client_secret function and at the session store; the session is kept",
        session_id=session_id,
    )


def closed_error(session_id: str | None = None) -> RetryableError:
    """Return the error for callers of a manager that is closing."""
    return RetryableError(
        "the token manager was closed before this was done; sessions are kept",
        session_id=session_id,
    )

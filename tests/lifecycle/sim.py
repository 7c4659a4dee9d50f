"""Workers over one memory store, each with faults of its own.

A worker is a token manager with a `FaultyStore` around the shared store, and either
the common clock or one of its own: then it can be stopped while the others go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

import anyio
from anyio.abc import TaskGroup

from freshtoken import AccessToken, MemoryStore, TokenManager
from freshtoken._foundation.records import Record
from freshtoken.abc import ReadResult, SwapResult
from freshtoken.errors import FreshTokenError, StoreError
from freshtoken.events import Event
from freshtoken.testing import FakeClock, MockGrant, MockIdP

SESSION = "crm"
LIFETIME = 300.0
_PATIENCE = 5.0  # real seconds, so that a test fails that would hang

Verb = Literal["read", "create", "acquire", "renew", "save", "end", "release"]
Outcome = Literal["", "found", "applied", "conflict", "failed", "unacknowledged"]
Break = Literal["refused", "unacknowledged", "late"]
Outage = Literal["no", "writes", "all"]


@dataclass(slots=True)
class Operation:
    """One call of the store by one worker."""

    verb: Verb
    at: float
    expect: tuple[str, int] | None = None
    record: Record | None = None
    outcome: Outcome = ""


class Gate:
    """Holds one operation until it is released."""

    def __init__(self) -> None:
        self._reached = anyio.Event()
        self._released = anyio.Event()
        self._broken = False

    async def reached(self) -> None:
        with anyio.fail_after(_PATIENCE):
            await self._reached.wait()

    def release(self) -> None:
        self._released.set()

    def break_(self) -> None:
        """Let the operation go on to fail: its worker is gone."""
        self._broken = True
        self._released.set()

    async def stop(self) -> None:
        self._reached.set()
        await self._released.wait()
        if self._broken:
            raise StoreError("the worker is gone")


@dataclass(slots=True)
class _Hold:
    verb: Verb
    at: Literal["before", "after"]
    gate: Gate


@dataclass(slots=True)
class _Fault:
    verb: Verb
    how: Break
    count: int


class FaultyStore:
    """The store as one worker sees it.

    Attributes:
        down: What fails for this worker: nothing, all writes, or everything.
        log: Its operations in the order in which they were begun.
    """

    def __init__(self, inner: MemoryStore, clock: FakeClock) -> None:
        self._inner = inner
        self._clock = clock
        self.down: Outage = "no"
        self.log: list[Operation] = []
        self._holds: list[_Hold] = []
        self._gates: list[Gate] = []
        self._faults: list[_Fault] = []
        self._late: list[Callable[[], object]] = []
        self._queued: list[tuple[str, Operation, float | None, float | None]] = []
        self._dead = False
        self._owners: set[str] = set()
        self._leased = -1

    # What tests set up

    def hold_next(self, verb: Verb, at: Literal["before", "after"]) -> Gate:
        """Hold the next such operation before or after it is applied."""
        gate = Gate()
        self._gates.append(gate)
        self._holds.append(_Hold(verb, at, gate))
        return gate

    def break_next(self, verb: Verb, how: Break, *, count: int = 1) -> None:
        """Let such operations fail: refused, applied all the same, or applied late."""
        self._faults.append(_Fault(verb, how, count))

    async def apply_late(self) -> list[bool]:
        """Apply the writes that were queued; tell which of them still fitted."""
        queued, self._queued = self._queued, []
        applied = []
        for key, operation, lease_for, keep_for in queued:
            assert operation.record is not None
            result = await self._inner.swap(
                key,
                operation.expect,
                operation.record,
                lease_for=lease_for,
                keep_for=keep_for,
            )
            applied.append(result.applied)
        return applied

    def die(self) -> None:
        """Fail everything from here on, also what is held."""
        self._dead = True
        for gate in self._gates:
            gate.break_()

    def heal(self) -> None:
        """Let everything through, also what is held."""
        self.down = "no"
        self._holds.clear()
        self._faults.clear()
        for gate in self._gates:
            gate.release()

    # What tests look at

    @property
    def verbs(self) -> list[Verb]:
        return [operation.verb for operation in self.log]

    def outcomes(self, verb: Verb) -> list[Outcome]:
        return [one.outcome for one in self.log if one.verb == verb]

    # The port

    async def read(self, key: str) -> ReadResult:
        operation = self._enter(Operation("read", self._clock.monotonic()))
        await self._stop(operation, "before")
        self._fail_if(operation, down=self.down == "all")
        if self._take_fault("read") is not None:
            raise self._failure(operation, "failed")
        result = await self._inner.read(key)
        operation.outcome = "found"
        await self._stop(operation, "after")
        return result

    async def swap(
        self,
        key: str,
        expect: tuple[str, int] | None,
        record: Record,
        *,
        lease_for: float | None = None,
        keep_for: float | None = None,
    ) -> SwapResult:
        verb = self._verb_of(expect, record)
        operation = self._enter(
            Operation(verb, self._clock.monotonic(), expect, record)
        )
        await self._stop(operation, "before")
        self._fail_if(operation, down=self.down != "no")
        how = self._take_fault(verb)
        if how == "late":
            self._queued.append((key, operation, lease_for, keep_for))
        if how in {"late", "refused"}:
            raise self._failure(operation, "failed")
        result = await self._inner.swap(
            key, expect, record, lease_for=lease_for, keep_for=keep_for
        )
        operation.outcome = "applied" if result.applied else "conflict"
        await self._stop(operation, "after")
        if how == "unacknowledged":
            raise self._failure(operation, "unacknowledged")
        return result

    # Inside

    def _verb_of(self, expect: tuple[str, int] | None, record: Record) -> Verb:
        """Tell what a write is for."""
        if record.ended is not None:
            return "end"
        if expect is None or expect[0] != record.grant_id:
            return "create"
        if record.lease is not None:
            if record.lease.owner in self._owners:
                return "renew"
            self._leased = record.generation
            return "acquire"
        return "save" if record.generation > self._leased else "release"

    def _enter(self, operation: Operation) -> Operation:
        self.log.append(operation)
        return operation

    async def _stop(self, operation: Operation, at: Literal["before", "after"]) -> None:
        if at == "after" and operation.verb == "acquire":
            # Known as ours once it may be stored: a repeat is an acquire still.
            assert operation.record is not None
            assert operation.record.lease is not None
            self._owners.add(operation.record.lease.owner)
        for hold in self._holds:
            if (hold.verb, hold.at) == (operation.verb, at):
                self._holds.remove(hold)
                await hold.gate.stop()
                break

    def _take_fault(self, verb: Verb) -> Break | None:
        for fault in self._faults:
            if fault.verb == verb:
                fault.count -= 1
                if not fault.count:
                    self._faults.remove(fault)
                return fault.how
        return None

    def _fail_if(self, operation: Operation, *, down: bool) -> None:
        if down or self._dead:
            raise self._failure(operation, "failed")

    def _failure(self, operation: Operation, outcome: Outcome) -> StoreError:
        operation.outcome = outcome
        return StoreError(f"{operation.verb} {outcome}")


class Call:
    """One caller of ``get_token``, under way or through; made in the event loop."""

    def __init__(self) -> None:
        self.token: str | None = None
        self.error: FreshTokenError | None = None
        self.done = False
        self.scope = anyio.CancelScope()

    def cancel(self) -> None:
        self.scope.cancel()


@dataclass(slots=True)
class Worker:
    """One process."""

    tokens: TokenManager
    store: FaultyStore
    clock: FakeClock
    events: list[Event]
    own_clock: bool
    closed: bool = False
    stopped_at: float | None = field(default=None)

    @property
    def event_names(self) -> list[str]:
        return [event.name for event in self.events]

    async def look(self) -> None:
        """Read the session, so that it is known here."""
        await self.tokens.get_session(SESSION)

    async def close(self) -> None:
        await self.tokens.__aexit__(None, None, None)
        self.closed = True

    async def die(self) -> None:
        """End as by SIGKILL: nothing more is written, nothing more is sent."""
        self.store.die()
        for runtime in list(self.tokens._runtimes.values()):
            if runtime._group is not None:
                runtime._group.cancel_scope.cancel()
            await runtime._stopped.wait()


class World:
    """A store, a server, a clock, and the workers that share them.

    Enter it in the test; leaving it heals all faults and closes the workers.
    """

    def __init__(
        self,
        idp: MockIdP,
        memory: MemoryStore,
        clock: FakeClock,
        make_manager: Callable[..., TokenManager],
    ) -> None:
        self.idp = idp
        self.memory = memory
        self.clock = clock
        self.workers: list[Worker] = []
        self._make_manager = make_manager
        self._group: TaskGroup

    # Workers and sessions

    async def worker(self, *, own_clock: bool = False, **options: object) -> Worker:
        """Start a worker; only one with a clock of its own can be stopped."""
        clock = FakeClock(self.clock.time()) if own_clock else self.clock
        store, events = FaultyStore(self.memory, self.clock), list[Event]()
        tokens = self._make_manager(
            store=store, clock=clock, on_event=events.append, **options
        )
        worker = Worker(tokens, store, clock, events, own_clock)
        await tokens.__aenter__()
        self.workers.append(worker)
        return worker

    async def sign_in(
        self,
        worker: Worker,
        *,
        live: bool = False,
        replace: bool = False,
        refresh_expires_at: float | None = None,
    ) -> MockGrant:
        """Give a worker a new grant; *live* with its access token."""
        grant = self.idp.new_grant()
        await worker.tokens.add_session(
            SESSION,
            refresh_token=grant.refresh_token or "",
            access_token=grant.access_token if live else None,
            expires_at=self.clock.time() + LIFETIME if live else None,
            refresh_expires_at=refresh_expires_at,
            replace=replace,
        )
        worker.store.log.clear()
        return grant

    def call(self, worker: Worker, **ask: object) -> Call:
        """Let somebody ask a worker for a token."""
        call = Call()
        self._group.start_soon(self._make_call, worker, ask, call)
        return call

    async def ask(self, worker: Worker, **ask: object) -> Call:
        """Ask a worker for a token, and let all come to rest."""
        call = self.call(worker, **ask)
        await self.settle()
        return call

    async def _make_call(
        self, worker: Worker, ask: dict[str, object], call: Call
    ) -> None:
        try:
            with call.scope:
                token: AccessToken = await worker.tokens.get_token(SESSION, **ask)  # type: ignore[arg-type]  # a test's own arguments
                call.token = token.reveal()
        except FreshTokenError as error:
            call.error = error
        finally:
            call.done = True

    def start_soon(self, work: Callable[..., object], *args: object) -> None:
        """Run something beside the test."""
        self._group.start_soon(work, *args)  # type: ignore[arg-type]  # an async function

    # Time

    async def settle(self) -> None:
        await self.clock.settle()

    async def advance(self, seconds: float, *, step: float = 0.25) -> None:
        """Let time pass for everybody who is not stopped."""
        clocks = [self.clock]
        clocks += [
            one.clock for one in self.workers if one.own_clock and not self._out(one)
        ]
        if len(clocks) == 1:
            await self.clock.advance(seconds)
            return
        left = seconds
        while left > 0.0:
            for clock in clocks:
                await clock.advance(min(step, left))
            left -= step

    @staticmethod
    def _out(worker: Worker) -> bool:
        return worker.closed or worker.stopped_at is not None

    def stop(self, worker: Worker) -> None:
        """Stop a worker's time; the test has to hold what it waits for."""
        assert worker.own_clock
        worker.stopped_at = self.clock.monotonic()

    async def resume(self, worker: Worker, *, suspended: bool = False) -> None:
        """Let a stopped worker go on: its clocks jump.

        Args:
            suspended: Its monotonic clock stood still meanwhile.
        """
        assert worker.stopped_at is not None
        missed = self.clock.monotonic() - worker.stopped_at
        worker.stopped_at = None
        if suspended:
            worker.clock.suspend(missed)
        else:
            await worker.clock.advance(missed)

    # What is stored and what was sent

    async def record(self) -> Record:
        """Return what is stored."""
        found = (await self.memory.read(SESSION)).record
        assert found is not None
        return found

    def put_back(self, record: Record | None) -> None:
        """Let the store forget what was written since *record*, or everything."""
        slot = self.memory._slots.pop(SESSION)
        if record is not None:
            self.memory._slots[SESSION] = slot._replace(record=record)

    @property
    def requests(self) -> int:
        """How many token requests reached the server."""
        return len(self.idp.requests("token"))

    @property
    def sent(self) -> list[str]:
        """Refresh tokens of the token requests, in order."""
        return [one.form["refresh_token"] for one in self.idp.requests("token")]

    @property
    def revoked(self) -> list[str]:
        """Tokens that somebody asked the server to revoke, in order."""
        return [one.form["token"] for one in self.idp.requests("revoke")]

    async def assert_saved(self, generation: int) -> Record:
        """Check that a generation is stored, free, and of use at the server."""
        record = await self.record()
        assert record.generation == generation
        assert record.ended is None
        assert record.lease is None
        assert record.doubt == "none"
        assert self.idp.introspect(record.refresh_token or "")["active"]
        assert all(self.idp.is_active(one.access_token) for one in record.tokens)
        assert record.tokens
        return record

    async def assert_ended(self, *, lost_rotation: bool) -> Record:
        """Check that the session is over, its tokens erased, and why."""
        record = await self.record()
        assert record.ended is not None
        assert record.ended.failure is not None
        assert record.ended.failure.lost_rotation is lost_rotation
        assert record.lease is None
        assert record.refresh_token is None
        assert not record.tokens
        return record

    # Life

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc_value is None:
                self.idp.assert_no_pending_faults()
            with anyio.CancelScope(shield=True):
                await self._close_workers()
        finally:
            # Not told of the test's own failure, which it would wrap.
            self._group.cancel_scope.cancel()
            await self._group.__aexit__(None, None, None)

    async def _close_workers(self) -> None:
        for worker in self.workers:
            worker.store.heal()
        self.idp.clear_faults()
        open_ = [worker for worker in self.workers if not worker.closed]
        clocks = {id(one.clock): one.clock for one in self.workers}
        async with anyio.create_task_group() as group:
            for worker in open_:
                group.start_soon(worker.close)
            for _ in range(100):
                await self.settle()
                if all(worker.closed for worker in open_):
                    return
                for clock in clocks.values():
                    await clock.advance(1.0)
            group.cancel_scope.cancel()
            raise AssertionError("a worker does not close")

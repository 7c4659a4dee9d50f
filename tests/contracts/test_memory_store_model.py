"""The memory store against a model of it: any sequence of calls, on both backends."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio.from_thread
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from freshtoken import MemoryStore
from freshtoken._foundation.records import Ended, Lease
from freshtoken.abc import ReadResult, Record, SwapResult
from freshtoken.testing import FakeClock

T = TypeVar("T")

IDLE = 100.0
ROOM = 3
NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
# Few values, so that sequences meet boundaries and each other.
SECONDS = st.sampled_from([1.0, 10.0, 50.0, 99.0, 100.0])
TERMS = st.none() | SECONDS
GRANTS = st.sampled_from(["grant-a", "grant-b"])


class MemoryStoreMachine(RuleBasedStateMachine):
    """Each rule calls the store, and does the same to a plain dictionary."""

    backend = "asyncio"

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.model: dict[str, tuple[Record, float]] = {}
        self.store = MemoryStore(clock=self.clock, idle_timeout=IDLE, max_sessions=ROOM)
        self.entered = anyio.from_thread.start_blocking_portal(self.backend)
        self.portal = self.entered.__enter__()

    def teardown(self) -> None:
        self.entered.__exit__(None, None, None)

    def call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        return self.portal.call(function, *args)

    # The model

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def peek(self, name: str) -> Record | None:
        """What the model holds under a name, unless its time is over."""
        record, forget_at = self.model.get(name, (None, 0.0))
        return record if self.now < forget_at else None

    def stored(self, name: str) -> Record | None:
        """The same, as the store sees it: a look lets go what is over."""
        record = self.peek(name)
        if record is None:
            self.model.pop(name, None)
        return record

    def written(self, name: str, record: Record, keep_for: float | None) -> None:
        self.model.pop(name, None)
        kept = IDLE if keep_for is None else keep_for
        self.model[name] = (record, self.now + kept)
        if len(self.model) > ROOM:
            del self.model[next(iter(self.model))]

    def check_swap(
        self,
        name: str,
        expect: tuple[str, int] | None,
        record: Record,
        terms: tuple[float | None, float | None] = (None, None),
    ) -> None:
        """Swap in both, and compare what both say."""
        lease_for, keep_for = terms
        before = self.stored(name)
        fits = (before.pair if before else None) == expect

        async def swap() -> SwapResult:
            return await self.store.swap(
                name, expect, record, lease_for=lease_for, keep_for=keep_for
            )

        result = self.call(swap)

        assert result.applied == fits
        assert result.now == self.now
        if not fits:
            assert result.record == before
            return
        if record.lease is not None and lease_for is not None:
            lease = dataclasses.replace(
                record.lease,
                since=record.lease.since or self.now,
                expires_at=self.now + lease_for,
            )
            record = dataclasses.replace(record, lease=lease)
        assert result.record == record
        self.written(name, record, keep_for)

    # What may happen

    @initialize(name=NAMES)
    def begin(self, name: str) -> None:
        self.check_swap(name, None, plain("grant-a"))

    @rule(name=NAMES, grant_id=GRANTS, keep_for=TERMS)
    def create(self, name: str, grant_id: str, keep_for: float | None) -> None:
        self.check_swap(name, None, plain(grant_id), (None, keep_for))

    @rule(name=NAMES, keep_for=TERMS)
    def write_on(self, name: str, keep_for: float | None) -> None:
        """As its worker does who has read just now."""
        before = self.peek(name)
        if before is not None:
            after = dataclasses.replace(before, version=before.version + 1, lease=None)
            self.check_swap(name, before.pair, after, (None, keep_for))

    @rule(name=NAMES, grant_id=GRANTS, version=st.integers(0, 4), lease_for=TERMS)
    def write_blindly(
        self, name: str, grant_id: str, version: int, lease_for: float | None
    ) -> None:
        """As somebody does who has read long ago, or never."""
        late = dataclasses.replace(
            plain(grant_id), version=version + 1, lease=Lease("late", "hash")
        )
        self.check_swap(name, (grant_id, version), late, (lease_for, None))

    @rule(name=NAMES, owner=st.sampled_from(["x", "y"]), lease_for=TERMS)
    def take_lease(self, name: str, owner: str, lease_for: float | None) -> None:
        before = self.peek(name)
        if before is not None:
            since = before.lease.since if before.lease else 0.0
            taken = dataclasses.replace(
                before,
                version=before.version + 1,
                lease=Lease(owner, "hash", since=since),
            )
            self.check_swap(name, before.pair, taken, (lease_for, None))

    @rule(name=NAMES)
    def end(self, name: str) -> None:
        before = self.peek(name)
        if before is not None:
            tombstone = dataclasses.replace(
                before, version=before.version + 1, ended=Ended("signed_out", 1.0)
            )
            self.check_swap(name, before.pair, tombstone, (None, 50.0))

    @rule(name=NAMES, grant_id=GRANTS)
    def sign_in_again(self, name: str, grant_id: str) -> None:
        before = self.peek(name)
        self.check_swap(name, before.pair if before else None, plain(grant_id))

    @rule(name=NAMES)
    def read(self, name: str) -> None:
        async def read() -> ReadResult:
            return await self.store.read(name)

        assert self.call(read) == (self.stored(name), self.now)

    @precondition(lambda self: self.model)
    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.clock.advance_sync(seconds)

    @rule(seconds=st.sampled_from([-3600.0, 3600.0]))
    def step_the_wall_clock(self, seconds: float) -> None:
        self.clock.shift_wall(seconds)

    # What always holds

    @invariant()
    def the_bound_holds(self) -> None:
        assert len(self.store) == len(self.model) <= ROOM


class MemoryStoreMachineOnTrio(MemoryStoreMachine):
    """The same on the other backend."""

    backend = "trio"


def plain(grant_id: str) -> Record:
    return Record("https://idp.test", "web", "refresh_token", grant_id)


LIMITS = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMemoryStoreModel = MemoryStoreMachine.TestCase
TestMemoryStoreModel.settings = LIMITS
TestMemoryStoreModelOnTrio = MemoryStoreMachineOnTrio.TestCase
TestMemoryStoreModelOnTrio.settings = LIMITS

"""The lease: taken, held, renewed, checked before sending, and given back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from freshtoken._foundation.records import (
    EntryKey,
    Failure,
    Hold,
    Lease,
    Record,
    hash_token,
    next_version,
    with_hold,
)
from freshtoken._lifecycle import policy
from freshtoken._lifecycle.context import Context
from freshtoken._lifecycle.local import Instant, elapsed, instant
from freshtoken.errors import StoreError


class TooLateError(Exception):
    """The guard refused: too much of the lease is gone to send now."""


class FencedError(Exception):
    """Another worker holds the session now; carries the record found."""

    def __init__(self, record: Record | None) -> None:
        super().__init__("fenced")
        self.record = record


@dataclass(slots=True)
class Held:
    """A lease that this flight holds.

    Attributes:
        record: As stored, with our lease in it; its version is the one that we may
            end.
        owner: What the lease carries: random, one for each flight.
        since: Moment before the acquire or the last renewal was issued.
        failures: What the requests of this flight met so far.
        sent: Whether a request is under way, or an answer is there that is not saved.
    """

    record: Record
    owner: str
    since: Instant
    failures: list[Failure] = field(default_factory=list)
    sent: Literal["no", "open", "answered"] = "no"

    @property
    def in_doubt(self) -> bool:
        """Whether an answer of this grant was lost, in this flight or before."""
        before = self.record.doubt != "none" or self.record.doubt_at is not None
        return before or self.doubted_now

    @property
    def doubted_now(self) -> bool:
        """Whether a request of this flight is in doubt."""
        return any(failure.in_doubt for failure in self.failures)

    def doubt_at(self, now: float) -> float | None:
        """Return the time of the last doubt: it stays for the life of the grant.

        A holder that vanished may have sent what arrives only later.
        """
        vanished = self.record.doubt != "none" and self.record.doubt_at is None
        return now if self.doubted_now or vanished else self.record.doubt_at


class Leasing:
    """Steps 2 to 5 and 9 of the refresh transaction, for one session."""

    def __init__(self, context: Context, session_id: str) -> None:
        self._context = context
        self._clock = context.clock
        self._id = session_id

    async def acquire(self, record: Record) -> Held:
        """Step 2: take the lease and note the intent to send, in one write.

        Raises:
            FencedError: Somebody else wrote first.
            StoreError: The store failed, and nothing says that the lease is ours.
        """
        context = self._context
        owner = context.new_id()
        # Counted from the first try: that may be the one that is applied, late.
        since = instant(self._clock)
        for tries_left in reversed(range(policy.ACQUIRE_TRIES)):
            wanted = next_version(
                record,
                lease=Lease(owner, hash_token(record.refresh_token or "")),
                # Whoever holds the lease that is taken over here has vanished.
                doubt="unsettled" if record.lease is not None else record.doubt,
            )
            try:
                result = await context.store.swap(
                    self._id, record.pair, wanted, lease_for=policy.LEASE
                )
            except StoreError:
                found = await self._read_after_silence()
                if found is not None and owner_of(found) == owner:
                    return Held(found, owner, since)
                if found is None or found.pair != record.pair:
                    raise FencedError(found) from None
                if not tries_left:
                    raise
                await self._clock.sleep(policy.SAVE_RETRY * context.rng.random())
                continue
            if result.record is None or owner_of(result.record) != owner:
                raise FencedError(result.record)
            return Held(result.record, owner, since)
        raise AssertionError  # pragma: no cover -- the last try returns or raises

    async def settle(self, held: Held) -> None:
        """Step 3: hold the lease until a living former holder would have saved.

        Raises:
            FencedError: It did save, or somebody else took over.
            StoreError: The store failed for as long as a lease lasts.
        """
        began = quiet_since = instant(self._clock)
        while True:
            await self._clock.sleep(policy.SAVE_RETRY)
            if elapsed(self._clock, quiet_since) >= policy.SETTLE:
                return  # The renewal that follows is the last probe.
            try:
                await self.renew(held, settled=False)
            except StoreError:
                quiet_since = instant(self._clock)
                if elapsed(self._clock, began) > policy.LEASE:
                    raise

    async def renew(self, held: Held, *, settled: bool = True) -> None:
        """Step 5: let the lease last again.

        Args:
            settled: Whether a former holder's answer can no longer come.

        Raises:
            FencedError: The lease is not ours any more.
            StoreError: The store failed.
        """
        while True:
            since = instant(self._clock)
            doubt = held.record.doubt
            if settled and doubt == "unsettled":
                doubt = "settled"
            wanted = next_version(held.record, doubt=doubt)
            try:
                result = await self._context.store.swap(
                    self._id, held.record.pair, wanted, lease_for=policy.LEASE
                )
            except StoreError:
                found = await self._read_after_silence()
                if found is None or owner_of(found) != held.owner:
                    raise FencedError(found) from None
                if found.version == held.record.version:
                    # Not applied: the lease still counts from before.
                    raise
                held.record, held.since = found, since
                return
            if result.record is None or owner_of(result.record) != held.owner:
                raise FencedError(result.record)
            held.record = result.record
            if result.applied:
                held.since = since
                return

    def guard(self, held: Held) -> None:
        """Step 4: refuse to send when the lease would not cover the whole attempt.

        Raises:
            TooLateError: It would not.
        """
        most = policy.LEASE - policy.ATTEMPT_LIMIT - policy.MARGIN
        if elapsed(self._clock, held.since) > most:
            raise TooLateError

    async def release(
        self,
        held: Held,
        failure: Failure | None = None,
        *,
        wait: float = 0.0,
        key: EntryKey | None = None,
    ) -> Record | None:
        """Step 9; anything but success leaves the lease to run out.

        Returns the record that is stored now, as far as that is known.

        Args:
            failure: What the flight met, for all workers to see.
            wait: Seconds until the next flight may begin.
            key: The one access token that the failure is about, if not about all.
        """
        context, record = self._context, held.record
        changes: dict[str, object] = {"lease": None}
        if held.doubted_now or held.sent == "open":
            changes["doubt_at"] = self._clock.time()
            if record.doubt != "unsettled":
                changes["doubt"] = "settled"
        if failure is not None:
            not_before = context.cache.store_now() + wait
            whole = key is None
            changes["failure"] = failure if whole else None
            changes["not_before"] = not_before if whole else None
            if key is not None:
                hold = Hold(key, not_before, failure)
                changes["holds"] = with_hold(record, hold)
        try:
            result = await context.store.swap(
                self._id, record.pair, next_version(record, **changes)
            )
        except StoreError:
            context.cache.forget(self._id)
            return record
        return context.cache.adopt(self._id, result.record)

    async def _read_after_silence(self) -> Record | None:
        """Look whether a write that was not acknowledged was applied."""
        return (await self._context.store.read(self._id)).record


def owner_of(record: Record | None) -> str | None:
    """Return who holds the lease of *record*, if anybody does."""
    return record.lease.owner if record is not None and record.lease else None

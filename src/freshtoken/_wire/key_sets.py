"""An issuer's key set, fetched once, kept, and fetched again where that may help."""

from __future__ import annotations

import dataclasses
import math
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from freshtoken._foundation.clock import Clock
from freshtoken._foundation.records import Failure
from freshtoken._foundation.waiting import Waker, finish_within, sleep_or_woken
from freshtoken._protocol.classification import failure_from, transport_failure
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._protocol.jwk import VerificationKey
from freshtoken._protocol.jwks import JWKSet
from freshtoken._protocol.key_fetch import FetchedKeySet, fetch_key_set
from freshtoken._protocol.key_refetch import RefetchBudget
from freshtoken._wire.http import HTTPDriver
from freshtoken._wire.outcome import Done, Outcome
from freshtoken._wire.retry import repeat
from freshtoken.errors import Disposition, MisconfiguredError

STALE_FOR = 24 * 3600.0
"""Seconds for which a set that is due serves on while fetching it again fails."""
FETCH_LIMIT = 10.0
"""Seconds for one request for a key set."""
REFETCH_LIMIT = 5.0
"""Seconds for all of a refetch while there are keys to fall back on; no repeats."""
REFETCH_EVERY = 60.0
"""Seconds between attempts to replace a set that is due."""
LONGEST_PAUSE = 300.0

# After a failed first fetch callers get the same failure, without network, for these
# seconds, doubled up to the second number: as for flights that failed alike.
_PAUSE_RETRY = (1.0, 60.0)
_PAUSE_OTHER = (30.0, 600.0)
# Longer than any fetch takes. Its event loop was torn down, or forked away from.
_ABANDONED_AFTER = 180.0

Locate: TypeAlias = Callable[[HTTPDriver], Awaitable[str]]


@dataclasses.dataclass(frozen=True, slots=True)
class KeySnapshot:
    """The keys of an issuer as they are known at one time.

    Attributes:
        keys: What its tokens are verified with.
        generation: Grows when the keys change; equal for the same keys only.
        due_at: When they should be looked at again, in monotonic seconds. Ask
            `KeySetCache.get` from then on; it does not wait where it need not.
        fetched_at: When the server last said so, in monotonic seconds.
    """

    keys: JWKSet
    generation: int
    due_at: float
    fetched_at: float = -math.inf


class _Fetch:
    """A fetch under way, and who waits for it in which event loop.

    Attributes:
        settled: It was answered, or failed; not so if its caller was cancelled.
    """

    __slots__ = ("abandoned_at", "failure", "http", "settled", "wakers")

    def __init__(self, http: HTTPDriver, abandoned_at: float) -> None:
        self.http = http
        self.abandoned_at = abandoned_at
        self.settled = False
        self.failure: Failure | None = None
        self.wakers: dict[HTTPDriver, Waker] = {}

    def join(self, http: HTTPDriver) -> Waker:
        """Return what the callers of one event loop wait for."""
        waker = self.wakers.get(http)
        if waker is None:
            waker = self.wakers[http] = Waker()
        return waker


class KeySetCache:
    """Keeps one issuer's keys for all threads and event loops of a process.

    Make one for each issuer: keys of one never verify tokens of another. A set is
    fetched when first needed, and again when it is due, or when a token does not
    verify and the budget allows it. One fetch is under way at a time, and whoever
    needs it shares it; a caller who is cancelled leaves it to the next. While there
    are keys, nobody but the one who fetches waits for a set that is merely due. A
    failing fetch keeps what is known, for a day beyond its time.

    Args:
        locate: Gives the address of the key set, from metadata; never from a token.
        allow_insecure_transport: Also fetch over plain http beyond loopback.
        own: Keys from elsewhere that are trusted for this issuer besides, and alone
            where no key set can be had.
        on_failure: Called with each failed fetch.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        locate: Locate,
        allow_insecure_transport: bool = False,
        own: Sequence[VerificationKey] = (),
        on_failure: Callable[[Failure], None] | None = None,
    ) -> None:
        self.on_failure = on_failure
        self._clock = clock
        self._rng = rng
        self._locate = locate
        self._insecure = allow_insecure_transport
        self._own = tuple(own)
        # Reentrant: a coroutine of a dead event loop ends its fetch whenever the
        # garbage collector closes it, also inside one of the sections below.
        self._lock = threading.RLock()
        self._fetch: _Fetch | None = None
        self._budget = RefetchBudget()
        self._digest: bytes | None = None
        self._snapshot = self._only_own(0)
        self._generation = 0
        self._usable_until = math.inf
        self._failure: Failure | None = None
        self._failures = 0
        self._next_try = -math.inf

    @property
    def snapshot(self) -> KeySnapshot | None:
        """The keys at hand, also if they are due, unless they are too old."""
        with self._lock:
            return self._look(self._clock.monotonic())

    @property
    def latest(self) -> KeySnapshot | None:
        """The keys that came last, without a look at the clock.

        Good for use until they are due; for hot paths, which look at the clock anyway.
        """
        return self._snapshot

    @property
    def failure(self) -> Failure | None:
        """Why the latest fetch failed, if it did."""
        return self._failure

    async def get(self, http: HTTPDriver) -> KeySnapshot:
        """Return the keys, fetching them over *http* where that is due.

        Raises:
            ExchangeError: There are none, and none can be had at present.
        """
        while True:
            with self._lock:
                now = self._clock.monotonic()
                snapshot = self._look(now)
                fetch = self._running(now)
                waits = now < self._next_try
                if snapshot is not None and (fetch or waits or now < snapshot.due_at):
                    return snapshot
                if waits and self._failure is not None:
                    raise ExchangeError(self._answer_for_now(self._failure, now))
                waker = fetch.join(http) if fetch else None
                fetch = fetch or self._begin(http, now)
            await self._take_part(http, fetch, waker, patient=snapshot is None)
            if fetch.failure is not None and self.snapshot is None:
                raise ExchangeError(fetch.failure)

    async def newer(self, http: HTTPDriver, generation: int) -> KeySnapshot | None:
        """Return other keys than those of *generation*, with which a token failed.

        Returns:
            Those that another caller has fetched meanwhile, else what a refetch
            brings; ``None`` if that is not allowed now, failed, or changed nothing.
        """
        while True:
            with self._lock:
                now = self._clock.monotonic()
                snapshot = self._look(now)
                if snapshot is not None and snapshot.generation > generation:
                    return snapshot
                fetch = self._running(now)
                waker = fetch.join(http) if fetch else None
                if fetch is None:
                    budget = self._budget.spend(now)
                    if budget is None or now < self._next_try:
                        return None
                    self._budget = budget
                    fetch = self._begin(http, now)
            await self._take_part(http, fetch, waker, patient=False)
            if fetch.settled:
                snapshot = self.snapshot
                if snapshot is not None and snapshot.generation > generation:
                    return snapshot
                return None

    async def _take_part(
        self, http: HTTPDriver, fetch: _Fetch, waker: Waker | None, *, patient: bool
    ) -> None:
        """Fetch for everybody, or wait for whoever does."""
        if waker is None:
            await self._lead(http, fetch, patient=patient)
            return
        if fetch.http is http:
            await waker.wait()
            return
        # The other event loop may be gone for good.
        left = fetch.abandoned_at - self._clock.monotonic()
        await sleep_or_woken(self._clock, left, waker)

    async def _lead(self, http: HTTPDriver, fetch: _Fetch, *, patient: bool) -> None:
        """Fetch for everybody, and wake them whatever comes."""
        outcome: Outcome[FetchedKeySet] | None = None
        try:
            outcome = await self._ask(http, patient=patient)
        finally:
            self._end(fetch, outcome)

    async def _ask(self, http: HTTPDriver, *, patient: bool) -> Outcome[FetchedKeySet]:
        """Ask the server, again and again only where nothing else is at hand."""

        async def once() -> FetchedKeySet:
            uri = await self._locate(http)
            return await http.drive(
                lambda: fetch_key_set(uri),
                timeout=FETCH_LIMIT,
                allow_insecure_transport=self._insecure,
            )

        try:
            if patient:
                return Done(await repeat(once, clock=self._clock, rng=self._rng))
            return Done(await finish_within(self._clock, REFETCH_LIMIT, once))
        except ExchangeError as error:
            failure = error.failure
        except MisconfiguredError as error:
            failure = failure_from(error, at=self._clock.time())
        except TimeoutError:
            failure = transport_failure(
                "TimeoutError",
                sent=True,
                in_doubt=False,
                detail=f"no key set within {REFETCH_LIMIT:g} s",
                at=self._clock.time(),
            )
        return ExchangeError(failure)

    def _running(self, now: float) -> _Fetch | None:
        """Return the fetch under way."""
        fetch = self._fetch
        return fetch if fetch is not None and now < fetch.abandoned_at else None

    def _begin(self, http: HTTPDriver, now: float) -> _Fetch:
        """Begin a fetch, which this caller leads."""
        self._fetch = _Fetch(http, now + _ABANDONED_AFTER)
        return self._fetch

    def _end(self, fetch: _Fetch, outcome: Outcome[FetchedKeySet] | None) -> None:
        """Keep what a fetch brought, and wake those who wait for it."""
        failure: Failure | None = None
        with self._lock:
            if self._fetch is fetch:
                self._fetch = None
                if isinstance(outcome, Done):
                    self._note_keys(outcome.value)
                elif isinstance(outcome, ExchangeError):
                    failure = fetch.failure = outcome.failure
                    self._note_failure(failure)
                fetch.settled = outcome is not None
            wakers = tuple(fetch.wakers.values())
        for waker in wakers:
            waker.wake()
        if failure is not None and self.on_failure is not None:
            self.on_failure(failure)

    def _look(self, now: float) -> KeySnapshot | None:
        """Return the keys that may be used, fresh or stale."""
        if self._snapshot is not None and now >= self._usable_until:
            self._generation += 1
            self._digest = None
            self._usable_until = math.inf
            self._snapshot = self._only_own(self._generation)
        return self._snapshot

    def _only_own(self, generation: int) -> KeySnapshot | None:
        """Return what is known without any key set; that is due at once."""
        if not self._own:
            return None
        return KeySnapshot(JWKSet(self._own, ()), generation, -math.inf)

    def _note_keys(self, fetched: FetchedKeySet) -> None:
        """Keep a key set; those of its keys that it lacks now verify no more."""
        self._budget = self._budget.finished()
        self._failure = None
        self._failures = 0
        now = self._clock.monotonic()
        due_at = now + fetched.lifetime
        self._usable_until = due_at + STALE_FOR
        if self._snapshot is not None and self._digest == fetched.digest:
            # The same generation, so that what was verified with it stays verified.
            self._snapshot = dataclasses.replace(
                self._snapshot, due_at=due_at, fetched_at=now
            )
            return
        self._digest = fetched.digest
        self._generation += 1
        keys = JWKSet((*fetched.keys.keys, *self._own), fetched.keys.skipped)
        self._snapshot = KeySnapshot(keys, self._generation, due_at, now)

    def _note_failure(self, failure: Failure) -> None:
        """Keep the keys there are, and leave the server alone for a while."""
        self._budget = self._budget.finished()
        self._failure = failure
        now = self._clock.monotonic()
        wait = min(failure.retry_after or 0.0, LONGEST_PAUSE)
        snapshot = self._look(now)
        if snapshot is not None:
            self._next_try = now + wait
            if now >= snapshot.due_at:
                due_at = min(now + max(wait, REFETCH_EVERY), self._usable_until)
                self._snapshot = dataclasses.replace(snapshot, due_at=due_at)
            return
        retry = failure.disposition is Disposition.RETRY
        first, longest = _PAUSE_RETRY if retry else _PAUSE_OTHER
        pause = min(first * 2.0 ** min(self._failures, 16), longest)
        self._next_try = now + max(pause, wait)
        self._failures += 1

    def _answer_for_now(self, failure: Failure, now: float) -> Failure:
        """Return the last failure for a caller who comes before the next attempt."""
        return dataclasses.replace(
            failure, retry_after=self._next_try - now, at=self._clock.time()
        )

"""The server's metadata, fetched once and kept."""

from __future__ import annotations

import dataclasses
import random
import threading
import weakref

import anyio

from freshtoken._foundation.clock import Clock
from freshtoken._foundation.records import Failure
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._protocol.metadata import ServerMetadata, discover
from freshtoken._wire.http import HTTPDriver
from freshtoken._wire.retry import repeat
from freshtoken.errors import Disposition

FRESH_FOR = 24 * 3600.0
"""Seconds after which metadata are fetched again."""
STALE_FOR = 24 * 3600.0
"""Seconds for which an old copy serves on while fetching it again fails."""
FETCH_LIMIT = 10.0
"""Seconds for one request for metadata."""
REFETCH_LIMIT = 5.0
"""The same while there is a copy to fall back on: one request, no repeats."""
REFETCH_EVERY = 300.0
"""Seconds between attempts to replace a copy that is due."""

# After a failed first fetch callers get the same failure, without network, for these
# seconds, doubled up to the second number: as for flights that failed alike.
_PAUSE_RETRY = (1.0, 60.0)
_PAUSE_OTHER = (30.0, 600.0)


class _Fetch:
    """A fetch under way in one event loop."""

    __slots__ = ("done", "failure")

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.failure: Failure | None = None


class MetadataCache:
    """Keeps one server's metadata for all threads and event loops.

    They are fetched when first needed and again after 24 h; a failing refetch keeps
    the old copy for another 24 h and is tried every 5 min. Callers of one event loop
    share a fetch; one that is cancelled leaves the fetch to the next.
    """

    def __init__(
        self, client: OAuthClient, *, clock: Clock, rng: random.Random
    ) -> None:
        self._client = client
        self._clock = clock
        self._rng = rng
        # Reentrant: a coroutine of a dead event loop ends its fetch whenever the
        # garbage collector closes it, also inside one of the sections below.
        self._lock = threading.RLock()
        self._copy: ServerMetadata | None = None
        self._fetched_at = 0.0
        self._next_try = 0.0
        self._failure: Failure | None = None
        self._failures = 0
        self._fetches: weakref.WeakKeyDictionary[HTTPDriver, _Fetch] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def copy(self) -> ServerMetadata | None:
        """The metadata at hand, unless they are too old to be of use."""
        with self._lock:
            return self._usable(self._clock.monotonic())

    async def get(self, http: HTTPDriver) -> ServerMetadata:
        """Return the metadata, fetching them over *http* where that is due.

        Raises:
            ExchangeError: There are none, and none can be had at present.
        """
        while True:
            with self._lock:
                now = self._clock.monotonic()
                copy = self._usable(now)
                fetch = self._fetches.get(http)
                if copy is not None and (fetch or not self._is_due(now)):
                    return copy
                if copy is None and self._failure and now < self._next_try:
                    raise ExchangeError(self._answer_for_now(self._failure, now))
                mine = fetch is None
                if fetch is None:
                    fetch = self._fetches[http] = _Fetch()
            if mine:
                await self._lead(http, fetch, patient=copy is None)
            else:
                await fetch.done.wait()
            if fetch.failure is not None and self.copy is None:
                raise ExchangeError(fetch.failure)

    async def _lead(self, http: HTTPDriver, fetch: _Fetch, *, patient: bool) -> None:
        """Fetch for everybody in this event loop."""
        try:
            copy = await self._fetch(http, patient=patient)
        except ExchangeError as error:
            fetch.failure = error.failure
            self._note_failure(error.failure)
        else:
            self._note_copy(copy)
        finally:
            with self._lock:
                self._fetches.pop(http, None)
            fetch.done.set()

    async def _fetch(self, http: HTTPDriver, *, patient: bool) -> ServerMetadata:
        """Ask the server, again and again only where nothing else is at hand."""

        async def once() -> ServerMetadata:
            return await http.drive(
                lambda: discover(self._client),
                timeout=FETCH_LIMIT if patient else REFETCH_LIMIT,
                allow_insecure_transport=self._client.allow_insecure_transport,
            )

        if not patient:
            return await once()
        return await repeat(once, clock=self._clock, rng=self._rng)

    def _usable(self, now: float) -> ServerMetadata | None:
        """Return the copy while it may be used, fresh or stale."""
        age = now - self._fetched_at
        return self._copy if age < FRESH_FOR + STALE_FOR else None

    def _is_due(self, now: float) -> bool:
        """Tell whether the copy should be replaced now."""
        return now - self._fetched_at >= FRESH_FOR and now >= self._next_try

    def _note_copy(self, copy: ServerMetadata) -> None:
        """Keep what has been fetched."""
        with self._lock:
            self._copy = copy
            self._fetched_at = self._clock.monotonic()
            self._failure = None
            self._failures = 0

    def _note_failure(self, failure: Failure) -> None:
        """Keep the old copy, and leave the server alone for a while."""
        with self._lock:
            now = self._clock.monotonic()
            self._failure = failure
            if self._usable(now) is not None:
                self._next_try = now + REFETCH_EVERY
                return
            retry = failure.disposition is Disposition.RETRY
            first, longest = _PAUSE_RETRY if retry else _PAUSE_OTHER
            pause = min(first * 2.0 ** min(self._failures, 16), longest)
            if failure.retry_after:
                pause = max(pause, min(failure.retry_after, 300.0))
            self._next_try = now + pause
            self._failures += 1

    def _answer_for_now(self, failure: Failure, now: float) -> Failure:
        """Return the last failure for a caller who comes before the next attempt."""
        return dataclasses.replace(
            failure, retry_after=self._next_try - now, at=self._clock.time()
        )

"""Repeating an exchange within one flight: a pure decision, driven by tenacity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from tenacity import AsyncRetrying, retry_if_result

from freshtoken._protocol.exchange import ExchangeError
from freshtoken._wire.outcome import Done, Outcome, bare, unwrap
from freshtoken.errors import Disposition

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from tenacity import RetryCallState

    from freshtoken._foundation.clock import Clock
    from freshtoken._foundation.records import Failure

T = TypeVar("T")

MOST_REQUESTS = 4
FIRST_BACKOFF = 0.2


def next_wait(
    failures: Sequence[Failure],
    rng: random.Random,
    *,
    limit: int = MOST_REQUESTS,
    first_wait: float = FIRST_BACKOFF,
    longest: float | None = None,
) -> float | None:
    """Decide whether a flight sends once more, and how long it waits before.

    The first request that got no readable answer and may have been carried out is
    repeated at once, because grace windows for a lost rotation are short; everything
    else waits with full jitter below *first_wait*, doubled each time.

    Args:
        failures: What the requests of this flight met so far, in order.
        limit: Most requests in one flight.
        longest: Longest wait that still belongs to this flight.

    Returns:
        Seconds, or ``None`` where the flight is over: nothing that heals by itself,
        enough requests, or a ``Retry-After``, which belongs to the next flight.
    """
    last = failures[-1]
    if last.disposition is not Disposition.RETRY or last.retry_after:
        return None
    if len(failures) >= limit:
        return None
    unanswered = [f for f in failures if f.in_doubt and f.no_answer]
    if len(unanswered) == 1 and unanswered[0] is last:
        return 0.0
    backoffs = len(failures) - 1 - (1 if unanswered else 0)
    wait = rng.uniform(0.0, first_wait * 2.0**backoffs)
    return wait if longest is None or wait <= longest else None


async def repeat(
    work: Callable[[], Awaitable[T]],
    *,
    clock: Clock,
    rng: random.Random,
    limit: int = MOST_REQUESTS,
    first_wait: float = FIRST_BACKOFF,
    longest: float | None = None,
    before_repeat: Callable[[Sequence[Failure]], Awaitable[None]] | None = None,
) -> T:
    """Run *work* until it succeeds or `next_wait` says that the flight is over.

    Args:
        work: One exchange, built anew each time.
        before_repeat: Called after the wait and right before each repeat, with the
            failures so far: the place to renew a lease. What it raises, of whatever
            class, ends the flight and comes out as it is.

    Raises:
        ExchangeError: The last failure, without the frames that it came through.
    """

    def decide(failures: Sequence[Failure]) -> float | None:
        return next_wait(
            failures, rng, limit=limit, first_wait=first_wait, longest=longest
        )

    attempts = _Attempts(work, before_repeat, decide)
    outcome = await attempts.run(clock)
    del work, before_repeat, attempts
    return unwrap(outcome)


class _Attempts(Generic[T]):
    """The state of one `repeat`: failures so far, and the wait that was drawn."""

    def __init__(
        self,
        work: Callable[[], Awaitable[T]],
        before_repeat: Callable[[Sequence[Failure]], Awaitable[None]] | None,
        decide: Callable[[Sequence[Failure]], float | None],
    ) -> None:
        self._work = work
        self._before_repeat = before_repeat
        self._decide = decide
        self._failures: list[Failure] = []
        self._wait: float | None = None

    async def run(self, clock: Clock) -> Outcome[T]:
        """Let tenacity repeat the attempts; they return their errors."""
        retrying = AsyncRetrying(
            sleep=clock.sleep,
            wait=self._next_wait,
            retry=retry_if_result(self._is_due_again),
        )
        outcome: Outcome[T] = await retrying(self._attempt)
        return outcome

    async def _attempt(self) -> Outcome[T]:
        """Run the work once, after the hook if this is a repeat."""
        self._wait = None
        try:
            if self._failures and self._before_repeat is not None:
                await self._before_repeat(tuple(self._failures))
        except Exception as error:  # noqa: BLE001 -- raised again by `repeat`
            return bare(error)
        try:
            return Done(await self._work())
        except ExchangeError as error:
            self._failures.append(error.failure)
            self._wait = self._decide(self._failures)
            return bare(error)
        except Exception as error:  # noqa: BLE001 -- raised again by `repeat`
            return bare(error)

    def _is_due_again(self, _outcome: Outcome[T]) -> bool:
        """Tell tenacity whether there is another attempt."""
        return self._wait is not None

    def _next_wait(self, _state: RetryCallState) -> float:
        """Tell tenacity how long to wait."""
        return self._wait or 0.0

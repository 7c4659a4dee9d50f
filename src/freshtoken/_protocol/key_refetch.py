"""How often a key set may be fetched again because a token does not verify."""

from __future__ import annotations

import math
from dataclasses import dataclass

REFETCHES_AT_ONCE = 2
REFETCH_INTERVAL = 30.0
"""Seconds in which one more refetch becomes due."""
RESTARTS = 2
"""How often a refetch that was cancelled may be begun again at no charge."""


@dataclass(frozen=True, slots=True)
class RefetchBudget:
    """What is left of the refetches: two at once, then one in 30 s.

    Anybody can make up a ``kid``, so that a refetch for each would let strangers
    drive our requests to the issuer. Two at once are there because an issuer may
    change its keys right after they were fetched, and once more.

    Attributes:
        full_at: When the whole budget is there again, in monotonic seconds.
        restarts: How often the refetch under way may be begun again at no charge:
            its caller may be cancelled, and whoever waits goes on with it. That is
            bounded, or callers who soon give up would make a storm of requests.

    Spec: OpenID Connect Core §10.1.1.
    """

    full_at: float = -math.inf
    restarts: int = 0

    def spend(self, now: float) -> RefetchBudget | None:
        """Return what a refetch at *now* leaves, or ``None`` if it must not be."""
        if self.restarts:
            return RefetchBudget(self.full_at, self.restarts - 1)
        if self.full_at - now > REFETCH_INTERVAL * (REFETCHES_AT_ONCE - 1):
            return None
        return RefetchBudget(max(self.full_at, now) + REFETCH_INTERVAL, RESTARTS)

    def finished(self) -> RefetchBudget:
        """Return what a refetch leaves that was answered, or failed."""
        return RefetchBudget(self.full_at)

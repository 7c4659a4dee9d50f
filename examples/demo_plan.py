"""What the demo does to the authorization server, and what has to follow from it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from freshtoken.testing import MockIdP

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshtoken.testing import Fault

LIFETIME = 6.0
"""Seconds that an access token lives."""
GRACE = 10.0
"""Seconds for which a rotated refresh token still works once its answer was lost."""
SLOW = 0.5
"""Seconds that the token endpoint takes while it is slow."""
REFUSALS = 2
"""503 in a row."""
WORKERS = 50
PAUSE = 0.5
"""Seconds between two calls of a worker, on average."""

MARGIN = min(10.0, 0.05 * LIFETIME)
"""Seconds that a token still lives when callers begin to wait for the next one."""

# The library draws the moment of a renewal at 70-80 % of the lifetime, and adds up to
# 2 % of its own. Counted from the request that brought the token.
EARLIEST, LATEST = 0.70 * LIFETIME, 0.82 * LIFETIME
# After two 503 the third request brings the token: waits below 0.2 s and 0.4 s.
LONGEST_BACKOFF = 0.6
# What a busy machine may add to each renewal before the demo calls it late.
UNPUNCTUAL = 0.2


@dataclass(frozen=True, slots=True)
class Moment:
    """A fault of the plan.

    Attributes:
        at: Seconds after the start; the next token request after that meets it.
        title: What is wrong.
        log_name: What the request log of the mock server calls it.
        times: How many requests meet it.
        inject: Queues it.
    """

    at: float
    title: str
    log_name: str
    times: int
    inject: Callable[[MockIdP], Fault]


@dataclass(frozen=True, slots=True)
class Plan:
    """A run of so many seconds, from the first call to the revocation."""

    seconds: float

    @property
    def moments(self) -> list[Moment]:
        """The faults, one after the other, each met before the next one is on."""
        # More than a lifetime apart: in between there is a renewal, early or not.
        step = (self.seconds - 1.0) / 3.0
        return [
            Moment(
                at=1.0,
                title=f"the token endpoint takes {SLOW} s",
                log_name="delay 0.5 s before",
                times=1,
                inject=lambda idp: idp.delay_next("token", SLOW),
            ),
            Moment(
                at=1.0 + step,
                title="the token endpoint answers 503, twice",
                log_name="503",
                times=REFUSALS,
                inject=lambda idp: idp.fail_next("token", status=503, count=REFUSALS),
            ),
            Moment(
                at=1.0 + 2.0 * step,
                title="the answer is lost after the refresh token was rotated",
                log_name="drop after (read)",
                times=1,
                inject=lambda idp: idp.drop_next("token", processed=True),
            ),
        ]

    @property
    def repeats(self) -> int:
        """Token requests that say again what an earlier one said.

        One after each 503, one after the lost answer; a slow answer is waited for.
        """
        return REFUSALS + 1

    @property
    def token_requests(self) -> range:
        """How many token requests there have to be.

        One before the first call, one for each renewal, the repeats, and one that is
        refused after the revocation. The renewals follow each other by 70-82 % of
        the lifetime, unless something holds them up, so there are as many as fit.
        """
        most = math.floor(self.seconds / EARLIEST)
        least = math.floor(
            (self.seconds - LONGEST_BACKOFF) / (LATEST + UNPUNCTUAL),
        )
        others = 1 + self.repeats + 1
        return range(least + others, most + others + 1)

    @property
    def fewest_calls(self) -> int:
        """A quarter of what the workers would call if answers took no time."""
        return int(0.25 * WORKERS * self.seconds / PAUSE)


SHORTEST = 22.0
"""Seconds in which all faults find room: three lifetimes, a second more for each."""


def make_server(seed: int) -> MockIdP:
    """Make the authorization server of the demo."""
    return MockIdP(
        rng=random.Random(seed),  # noqa: S311 -- a demo that can be repeated
        access_token_lifetime=LIFETIME,
        rotation="grace",
        grace=GRACE,
    )

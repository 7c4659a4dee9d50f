"""The workers of the demo, each call with a stopwatch."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import anyio
import httpx
from demo_plan import PAUSE, SLOW, WORKERS

from freshtoken import FreshTokenError, SignInRequiredError, TokenManager

# A call has waited for a refresh if its request left more than this after the call was
# made: half of the delay that the demo injects. Where callers have to wait for the slow
# refresh, those who come in its first half wait longer than this, and with 50 workers
# that is about half of them. Where they need not wait, a token at hand is taken in well
# under a millisecond. Between the two there is room for a busy machine.
WAITED = SLOW / 2.0


@dataclass(slots=True)
class Call:
    """One call of the API by a worker, as the worker's stopwatch shows it.

    Attributes:
        number: Its place among all calls, sent as ``X-Call``.
        made_at: Monotonic seconds.
        left_at: When the request left with its token; ``None`` if it never did.
        overtaken: Calls that other workers made in between.
        status: What the API answered, if it did.
        trouble: What was raised instead.
    """

    number: int
    made_at: float
    left_at: float | None = None
    overtaken: int = 0
    status: int | None = None
    trouble: str | None = None

    @property
    def wait(self) -> float:
        """Seconds until there was a token.

        Who waits for a refresh is overtaken by others, as the event loop goes on.
        Where nobody came in between, it was the machine that stopped the process.
        """
        if self.left_at is None or not self.overtaken:
            return 0.0
        return self.left_at - self.made_at


@dataclass(slots=True)
class Crew:
    """Fifty workers with one HTTP client and one session.

    Attributes:
        calls: All calls, in the order in which they were made.
        told_at: When each worker learned that a new sign-in is needed.
    """

    tokens: TokenManager
    session_id: str
    api_url: str
    seed: int
    calls: list[Call] = field(default_factory=list)
    told_at: dict[int, float] = field(default_factory=dict)

    async def work(self) -> None:
        """Let all workers work until each has learned that the session is over."""
        origin = [self.api_url]
        async with self._client() as api, anyio.create_task_group() as group:
            auth = self.tokens.auth(self.session_id, origins=origin)
            for worker in range(WORKERS):
                group.start_soon(self._worker, worker, api, auth)

    def _client(self) -> httpx.AsyncClient:
        """Return the HTTP client that all share; it stops the stopwatches."""
        # A request hook runs after the auth hook, right before the request leaves.
        return httpx.AsyncClient(
            event_hooks={"request": [self._stop_the_watch]},
            timeout=30.0,
            trust_env=False,
        )

    async def _worker(
        self, worker: int, api: httpx.AsyncClient, auth: httpx.Auth
    ) -> None:
        """Call, pause, and call again."""
        rng = random.Random(f"{self.seed}/{worker}")  # noqa: S311 -- a pause, no secret
        await anyio.sleep(rng.uniform(0.0, PAUSE))
        while True:
            call = Call(len(self.calls), made_at=time.monotonic())
            self.calls.append(call)
            try:
                response = await api.get(
                    f"{self.api_url}/orders",
                    auth=auth,
                    headers={"X-Call": str(call.number)},
                    extensions={"call": call},
                )
            except SignInRequiredError:
                self.told_at[worker] = time.monotonic()
                return
            except (FreshTokenError, httpx.HTTPError) as error:
                call.trouble = type(error).__name__
            else:
                call.status = response.status_code
            # A busy machine gets longer pauses: how much it can take is not the point.
            took = time.monotonic() - call.made_at
            await anyio.sleep(rng.uniform(0.5, 1.5) * PAUSE + 4.0 * took)

    async def _stop_the_watch(self, request: httpx.Request) -> None:
        """Note when a request leaves for the first time."""
        call: Call = request.extensions["call"]
        if call.left_at is None:
            call.left_at = time.monotonic()
            call.overtaken = len(self.calls) - 1 - call.number

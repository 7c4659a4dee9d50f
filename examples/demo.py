"""Watch a session stay fresh under load, while its authorization server stumbles.

A user signs in through a browser, and fifty workers call an API through the auth hook,
all with that one session. Access tokens live six seconds, and the API refuses expired
ones. Meanwhile the token endpoint is slow, answers 503 twice in a row, and loses an
answer after it rotated the refresh token; half-way the server signs with new keys. At
the end the grant is revoked. Nobody should notice anything before that.

The end prints what was expected beside what happened, and the exit code is not 0
where they differ. With --no-refresh, tokens are renewed only once they have expired:
then it has to fail.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import anyio
from demo_plan import LIFETIME, SHORTEST, WORKERS, Moment, Plan, make_server
from demo_verdict import Evidence, judge
from demo_view import View, describe, make_view
from demo_workers import Crew
from loopback_api import LoopbackAPI

from freshtoken import TokenManager
from freshtoken.events import Event, TokenRefreshed
from freshtoken.testing import Fault, MockIdP

LAST_CALLS = 15.0
"""Seconds after the revocation in which all workers have to hear of it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    seconds: float
    seed: int
    backend: str
    early_renewal: bool


@dataclass(slots=True)
class Run:
    """One run of the demo.

    Attributes:
        faults: What was injected until now.
        expires_at: When the token at hand ends, by what the library told.
        revoked_at: When the grant was revoked, monotonic seconds; infinity before.
        before: Token requests that had come until then.
    """

    plan: Plan
    idp: MockIdP
    view: View
    faults: list[tuple[Moment, Fault]] = field(default_factory=list)
    expires_at: float | None = None
    revoked_at: float = float("inf")
    before: int = 0

    def on_event(self, event: Event) -> None:
        """Show what the library reports."""
        if isinstance(event, TokenRefreshed):
            self.expires_at = event.expires_at
        self.view.say(describe(event))

    async def stumble(self, session_id: str) -> None:
        """Do to the server what the plan says, and revoke the grant at the end."""
        began = time.monotonic()
        for moment in self.plan.moments:
            await anyio.sleep(began + moment.at - time.monotonic())
            self.faults.append((moment, moment.inject(self.idp)))
            self.view.say(f"from now on {moment.title}")
        await anyio.sleep(began + self.plan.seconds - time.monotonic())
        self.before = len(self.idp.requests("token"))
        self.revoked_at = time.monotonic()
        self.idp.revoke_grant(session_id)
        self.view.say("the grant is revoked")

    async def change_keys(self) -> None:
        """Let the server sign with new keys, and forget the old ones, half-way."""
        await anyio.sleep(self.plan.seconds / 2.0)
        self.idp.rotate_keys("hard")
        self.view.say("from now on the server signs with new keys")

    async def watch(self, tokens: TokenManager, api: LoopbackAPI) -> None:
        """Look at it all from time to time."""
        while True:
            self.view.look(self.status(tokens, api))
            await anyio.sleep(self.view.pause)

    def status(self, tokens: TokenManager, api: LoopbackAPI) -> Mapping[str, str]:
        """Return what there is to see now."""
        states = [state for state, count in tokens.stats.sessions.items() if count]
        left = 0.0 if self.expires_at is None else self.expires_at - time.time()
        on = [moment.title for moment, fault in self.faults if fault.pending]
        return {
            "session": ", ".join(states) or "none",
            "token lives": f"{max(left, 0.0):.1f} s of {LIFETIME:.0f} s",
            "token requests": f"{len(self.idp.requests('token'))}",
            "API calls": f"{len(api.log):,}",
            "fault on": ", ".join(on) or "none",
        }


async def perform(options: Options, view: View) -> Evidence:
    """Run the demo; return what the servers and the workers noted."""
    idp = make_server(options.seed)
    run = Run(Plan(options.seconds), idp, view)
    async with idp.serve():
        with LoopbackAPI(idp) as api:
            async with TokenManager(
                idp.client(),
                on_event=run.on_event,
                early_renewal=options.early_renewal,
                rng=random.Random(options.seed),  # noqa: S311 -- to be repeatable
            ) as tokens:
                # The first token cannot be early: it comes with the sign-in.
                session = await idp.sign_in(tokens)
                view.say(f"{session.claims['name']} has signed in")
                crew = Crew(tokens, session.id, api.url, options.seed)
                async with anyio.create_task_group() as group:
                    group.start_soon(run.stumble, session.id)
                    group.start_soon(run.change_keys)
                    group.start_soon(run.watch, tokens, api)
                    with anyio.move_on_after(options.seconds + LAST_CALLS):
                        await crew.work()
                    group.cancel_scope.cancel()
                view.look(run.status(tokens, api))
    return Evidence(
        api=api.log,
        token=idp.requests("token"),
        visits=len(idp.requests("authorize")),
        key_fetches=len(idp.requests("jwks")),
        calls=crew.calls,
        told_at=list(crew.told_at.values()),
        revoked_at=run.revoked_at,
        before=run.before,
    )


def main() -> int:
    """Run the demo, and judge it."""
    options = read_options()
    # What the library logs is what its events say, and the view shows those.
    logging.getLogger("freshtoken").addHandler(logging.NullHandler())
    view = make_view()
    work = "renewed early" if options.early_renewal else "not renewed early"
    print(
        f"{WORKERS} workers, one session, {options.seconds:g} s; tokens live "
        f"{LIFETIME:g} s and are {work} (seed {options.seed})"
    )
    with view.shown():
        evidence = anyio.run(partial(perform, options, view), backend=options.backend)
    rows = judge(Plan(options.seconds), evidence)
    view.conclude(rows)
    differing = [row.what for row in rows if not row.holds]
    print(f"differs: {'; '.join(differing)}" if differing else "all as expected")
    return 1 if differing else 0


def read_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--no-refresh", action="store_true", help="renew no token before it expires"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        help=f"from the first call to the revocation, at least {SHORTEST:g} (30)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of all chance (1)")
    parser.add_argument(
        "--backend", choices=["asyncio", "trio"], default="asyncio", help="(asyncio)"
    )
    given = parser.parse_args()
    if not SHORTEST <= given.seconds <= 3600.0:
        parser.error(f"--seconds: the faults need {SHORTEST:g} s, and 3600 are enough")
    return Options(given.seconds, given.seed, given.backend, not given.no_refresh)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: nothing was judged")

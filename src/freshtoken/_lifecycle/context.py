"""What a flight works with: one value instead of ten arguments."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from freshtoken._lifecycle.cache import SessionCache
from freshtoken._lifecycle.events import EventSink
from freshtoken._lifecycle.storing import GuardedStore
from freshtoken._wire.http import HTTPDriver
from freshtoken._wire.server import AuthorizationServer
from freshtoken.abc import Clock

OWNER_BITS = 128


@dataclass(frozen=True, slots=True)
class Context:
    """The collaborators of one event loop's flights.

    Attributes:
        http: This event loop's HTTP driver; all else is shared by the process.
        revoke_later: Revokes a refresh token in the background, given the session.
        start_soon: Runs something in the background; closing waits for it.
    """

    store: GuardedStore
    server: AuthorizationServer
    http: HTTPDriver
    clock: Clock
    rng: random.Random
    sink: EventSink
    cache: SessionCache
    keep_session_on: frozenset[str]
    revoke_later: Callable[[str, str], None]
    start_soon: Callable[..., None]

    def new_id(self) -> str:
        """Return a random name, 128 bits in hexadecimal."""
        return new_id(self.rng)


def new_id(rng: random.Random) -> str:
    """Return a random name, 128 bits in hexadecimal."""
    return f"{rng.getrandbits(OWNER_BITS):032x}"

"""A manager, a mock server and a clock, joined without sockets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from freshtoken import MemoryStore, TokenManager
from freshtoken.events import Event
from freshtoken.testing import FakeClock, MockIdP

MakeManager = Callable[..., TokenManager]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def idp(clock: FakeClock) -> Iterator[MockIdP]:
    """A strict server with tokens of 300 s; a fault never met fails the test."""
    server = MockIdP(clock=clock, rng=random.Random(7), access_token_lifetime=300.0)
    yield server
    server.assert_no_pending_faults()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def make_manager(
    clock: FakeClock, idp: MockIdP, store: MemoryStore, events: list[Event]
) -> MakeManager:
    """Make managers over one store: each is one worker."""
    numbers = iter(range(100))

    def make(**options: object) -> TokenManager:
        settings: dict[str, object] = {
            "store": store,
            "http_client": idp.http_client(),
            "clock": clock,
            "rng": random.Random(next(numbers)),
            "on_event": events.append,
        }
        client = options.pop("client", None) or idp.client()
        return TokenManager(client, **(settings | options))  # type: ignore[arg-type]  # a test's own options

    return make


@pytest.fixture
def manager(make_manager: MakeManager) -> TokenManager:
    return make_manager()

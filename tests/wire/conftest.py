"""Every test here runs on both event loops, and with both families of clients."""

from __future__ import annotations

import importlib
import random
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import httpx
import httpx2
import pytest

from freshtoken._wire.key_sets import KeySetCache
from freshtoken.testing.clock import FakeClock
from tests.wire.families import Lib
from tests.wire.idp import Server
from tests.wire.issuer import K1, MakeCache, locate, publish
from tests.wire.sockets import PROXIES, make_certificate


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def family(request: pytest.FixtureRequest) -> ModuleType:
    module = request.param
    assert isinstance(module, ModuleType)
    return module


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


@pytest.fixture
async def server(clock: FakeClock) -> AsyncIterator[Server]:
    """An issuer that publishes one key; modules that need another make their own."""
    server = Server(clock)
    publish(server, K1)
    async with server.client:
        yield server


@pytest.fixture
def make(clock: FakeClock, rng: random.Random) -> MakeCache:
    """Makes caches of that issuer's key set."""
    return partial(KeySetCache, clock=clock, rng=rng, locate=locate)


@pytest.fixture
def cache(make: MakeCache) -> KeySetCache:
    return make()


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(params=["own", "httpx", "httpx2"])
def make_client(request: pytest.FixtureRequest) -> Callable[[], Lib]:
    """The driver's own client, and one of each family from the caller."""
    if request.param == "own":
        return lambda: None
    make: Callable[[], Lib] = importlib.import_module(str(request.param)).AsyncClient
    return make


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))

"""The keys of the issuers that a resource server trusts: given by hand, or fetched."""

from __future__ import annotations

import contextlib
import math
import random
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from freshtoken._foundation.clock import Clock
from freshtoken._foundation.waiting import running_loop
from freshtoken._protocol.body import UnreadableError
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.jwk import PublicKeySource, load_key
from freshtoken._protocol.jwks import JWKSet, parse_jwk_set
from freshtoken._protocol.settings import refuse
from freshtoken._wire.http import HTTPDriver
from freshtoken._wire.key_sets import KeySetCache, KeySnapshot
from freshtoken._wire.metadata_cache import MetadataCache

KeysByHand: TypeAlias = (
    Mapping[str, object] | PublicKeySource | Iterable[PublicKeySource]
)


class OwnKeys:
    """Keys that were given by hand, in the place of a `KeySetCache`.

    Attributes:
        latest: They never change, and are never due.
    """

    __slots__ = ("latest",)

    def __init__(self, keys: JWKSet) -> None:
        self.latest = KeySnapshot(keys, generation=0, due_at=math.inf)


KeySource: TypeAlias = KeySetCache | OwnKeys


class IssuerKeys:
    """Knows for each issuer where its keys are: for it alone, and for no other.

    Nothing has to be closed: each event loop that fetches gets an HTTP client of its
    own, without idle connections, which goes when the loop goes.

    Args:
        issuers: As their metadata spell them.
        keys: Public keys of the one issuer.
        jwks_uri: Where the one issuer's keys are, in the place of its metadata.
        http_client: Serves the event loop of its first use only.
        allow_insecure_transport: Also fetch over plain http beyond loopback.

    Raises:
        MisconfiguredError: A value is of no use; ``.setting`` names the parameter.
    """

    def __init__(
        self,
        issuers: tuple[str, ...],
        *,
        clock: Clock,
        keys: KeysByHand | None = None,
        jwks_uri: str | None = None,
        http_client: object | None = None,
        allow_insecure_transport: bool = False,
    ) -> None:
        self._clock = clock
        if http_client is not None:
            HTTPDriver(clock, client=http_client)  # Refuses what it cannot use.
        self._http_client = http_client
        self._http_loop: weakref.ref[object] | None = None
        self._lock = threading.Lock()
        # Weak: an event loop that has ended takes its HTTP client with it.
        self._drivers: weakref.WeakKeyDictionary[object, HTTPDriver] = (
            weakref.WeakKeyDictionary()
        )
        for setting, value in (("keys", keys), ("jwks_uri", jwks_uri)):
            if value is not None and len(issuers) > 1:
                refuse(setting, "is for one issuer: make a validator for each")
        if keys is not None and jwks_uri is not None:
            refuse("jwks_uri", "is given beside keys: leave one of them out")
        own = None if keys is None else OwnKeys(read_keys(keys))
        insecure = allow_insecure_transport
        self._sources: dict[str, KeySource] = {
            name: own or self._fetched(_as_client(name, jwks_uri, insecure=insecure))
            for name in issuers
        }

    def of(self, issuer: str) -> KeySource:
        """Return where the keys of one of the issuers come from."""
        return self._sources[issuer]

    def driver(self) -> HTTPDriver:
        """Return the running event loop's HTTP driver.

        Raises:
            MisconfiguredError: The caller's client serves another event loop.
        """
        loop = running_loop()
        with self._lock:
            driver = self._drivers.get(loop)
            if driver is None:
                if self._http_client is not None:
                    # That of a loop that is gone is of no use either: its connections
                    # went with it.
                    if self._http_loop is not None:
                        refuse(
                            "http_client",
                            "already serves another event loop: give each loop a "
                            "validator of its own, or leave http_client out",
                        )
                    self._http_loop = weakref.ref(loop)
                driver = HTTPDriver(self._clock, client=self._http_client)
                self._drivers[loop] = driver
        return driver

    def _fetched(self, client: OAuthClient) -> KeySetCache:
        """Return the key set of an issuer, found by its metadata."""
        rng = random.SystemRandom()
        metadata = MetadataCache(client, clock=self._clock, rng=rng)

        async def locate(http: HTTPDriver) -> str:
            return (await metadata.get(http)).endpoint("jwks_uri")

        return KeySetCache(
            clock=self._clock,
            rng=rng,
            locate=locate,
            allow_insecure_transport=client.allow_insecure_transport,
        )


def read_keys(keys: KeysByHand) -> JWKSet:
    """Return keys that are given by hand; of a JWK set, those that are fit.

    Raises:
        MisconfiguredError: None is left, or one that was given by itself is unfit.
    """
    if isinstance(keys, Mapping) and "keys" in keys:
        key_set = JWKSet((), ())
        with contextlib.suppress(UnreadableError):
            key_set = parse_jwk_set(dict(keys))
        if not key_set.keys:
            why = "; ".join(key_set.skipped) or "it is no JWK set, or an empty one"
            refuse("keys", f"holds no key that can verify: {why}")
        return key_set
    # Of one key or several: type checkers cannot tell a JWK from an iterable.
    found: Any = keys
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        found = (found,)
    loaded = tuple(load_key(key) for key in found)
    if not loaded:
        refuse("keys", "is empty")
    return JWKSet(loaded, ())


def _as_client(issuer: str, jwks_uri: str | None, *, insecure: bool) -> OAuthClient:
    """Return an issuer as the rest of the library knows it; no client is involved."""
    if jwks_uri is None:
        return OAuthClient(
            issuer, client_id="resource-server", allow_insecure_transport=insecure
        )
    return OAuthClient(
        issuer,
        client_id="resource-server",
        metadata={"jwks_uri": jwks_uri},
        discovery=None,
        allow_insecure_transport=insecure,
    )

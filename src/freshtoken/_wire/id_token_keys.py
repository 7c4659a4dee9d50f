"""The keys of ID tokens: the server's key set, or the client secret for an HMAC."""

from __future__ import annotations

import math
from collections.abc import Sequence

from freshtoken._foundation.clock import Clock
from freshtoken._foundation.secret import Secret
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._protocol.jwk import secret_key
from freshtoken._protocol.jwks import JWKSet
from freshtoken._protocol.signing import HMAC_ALGORITHMS
from freshtoken._wire.credential import CredentialSource, unsent
from freshtoken._wire.http import HTTPDriver
from freshtoken._wire.key_sets import KeySetCache, KeySnapshot
from freshtoken.errors import MisconfiguredError

SECRET_GENERATION = 0
"""The generation of the client secret as a key: there is never a newer one."""


class IDTokenKeys:
    """Finds what the ID tokens of one client are verified with.

    The algorithms are those that the client is registered for. If there is an HMAC
    among them, the client secret is the only key: no key set ever holds it, and no
    public key can be taken for it.

    Spec: OpenID Connect Core §10.1.
    """

    def __init__(
        self, key_sets: KeySetCache, credential: CredentialSource, clock: Clock
    ) -> None:
        """Take the keys from these two."""
        self._key_sets = key_sets
        self._credential = credential
        self._clock = clock

    async def get(self, http: HTTPDriver, algorithms: Sequence[str]) -> KeySnapshot:
        """Return the keys, fetching or asking for them where that is needed.

        Raises:
            ExchangeError: They cannot be had at present.
            TokenRejectedError: The client secret is too short to be a key.
        """
        if _is_hmac(algorithms):
            return self._of_secret(await self._credential.ask(), algorithms)
        return await self._key_sets.get(http)

    def at_hand(self, algorithms: Sequence[str]) -> KeySnapshot | None:
        """Return the keys if that takes no waiting at all, also if they are due.

        Raises:
            ExchangeError: The client has no secret.
            TokenRejectedError: The client secret is too short to be a key.
        """
        if not _is_hmac(algorithms):
            return self._key_sets.snapshot
        known = self._credential.at_hand()
        return None if known is None else self._of_secret(known.value, algorithms)

    async def newer(
        self, http: HTTPDriver, algorithms: Sequence[str], generation: int
    ) -> KeySnapshot | None:
        """Return other keys than those of *generation*, if there may be any."""
        if _is_hmac(algorithms):
            return None
        return await self._key_sets.newer(http, generation)

    def _of_secret(
        self, secret: Secret | None, algorithms: Sequence[str]
    ) -> KeySnapshot:
        """Return the client secret as the only key."""
        if secret is None:
            problem = MisconfiguredError(
                "client_secret is missing, and ID tokens with an HMAC need it",
                setting="client_secret",
            )
            raise ExchangeError(unsent(problem, at=self._clock.time()))
        keys = JWKSet((secret_key(secret, algorithms),), ())
        return KeySnapshot(keys, SECRET_GENERATION, math.inf)


def _is_hmac(algorithms: Sequence[str]) -> bool:
    """Tell whether the client secret is the key."""
    return any(alg in HMAC_ALGORITHMS for alg in algorithms)

"""The client secret: at hand, or from the caller's function."""

from __future__ import annotations

import dataclasses
import inspect

from freshtoken._foundation.clock import Clock
from freshtoken._foundation.records import Failure
from freshtoken._foundation.secret import Secret
from freshtoken._foundation.waiting import finish_within
from freshtoken._protocol.classification import failure_from
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._protocol.settings import check_credential
from freshtoken._wire.outcome import Done, bare
from freshtoken.errors import MisconfiguredError

CREDENTIAL_LIMIT = 10.0
"""Seconds that a ``client_secret`` function may take."""
AT_HAND_FOR = 60.0
"""Seconds for which its answer is at hand where nothing may be awaited."""


class CredentialSource:
    """Gives the client secret as it is now.

    Loop-free; may be shared by threads.
    """

    def __init__(self, client: OAuthClient, clock: Clock) -> None:
        """Give the secret of *client*."""
        self._source = client.secret
        self._clock = clock
        self._latest: tuple[float, Secret] | None = None

    def at_hand(self) -> Done[Secret | None] | None:
        """Return the secret if it is known without asking: plain, or just asked for.

        Returns:
            ``None`` if it is not known; a client without any has the value ``None``.
        """
        if self._source is None or isinstance(self._source, Secret):
            return Done(self._source)
        latest = self._latest
        if latest is None or self._clock.monotonic() - latest[0] >= AT_HAND_FOR:
            return None
        return Done(latest[1])

    async def ask(self) -> Secret | None:
        """Return the secret, from the caller's function if it is one.

        Raises:
            ExchangeError: The function failed; its own text may hold anything and
                is not repeated.
        """
        source = self._source
        if source is None or isinstance(source, Secret):
            return source

        async def call() -> object:
            value = source()
            return await value if inspect.isawaitable(value) else value

        try:
            secret = check_credential(
                await finish_within(self._clock, CREDENTIAL_LIMIT, call)
            )
        except MisconfiguredError as error:
            problem = bare(error)
        except Exception as error:  # noqa: BLE001 -- whatever the function raises
            problem = MisconfiguredError(
                f"the client_secret function raised {type(error).__name__}",
                setting="client_secret",
            )
        else:
            self._latest = (self._clock.monotonic(), secret)
            return secret
        raise ExchangeError(unsent(problem, at=self._clock.time()))


def unsent(error: MisconfiguredError, *, at: float) -> Failure:
    """Return the failure for a setting that kept a request from being sent."""
    return dataclasses.replace(failure_from(error, at=at), sent=False, in_doubt=False)

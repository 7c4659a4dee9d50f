"""The failures of requests that are better not sent."""

from __future__ import annotations

import dataclasses

from freshtoken._foundation.records import Failure
from freshtoken.errors import Disposition

PAUSED = "the authorization server asked several sessions to wait"
OPEN = "the authorization server does not answer, and is left alone for a while"

_REFUSED = Failure(
    Disposition.CLIENT_REJECTED,
    "the authorization server refuses the client's credentials: mend them",
    error="invalid_client",
    setting="client_secret",
)


def left_alone(advice: str, wait: float, *, at: float) -> Failure:
    """Return the failure of a request to a server that is left alone for *wait* s."""
    return Failure(
        Disposition.RETRY,
        f"{advice}: next attempt in {wait:.0f} s",
        sent=False,
        retry_after=wait,
        at=at,
    )


def refused_again(refusal: Failure | None, wait: float, *, at: float) -> Failure:
    """Return the server's refusal of the client for a request that was not sent."""
    return dataclasses.replace(refusal or _REFUSED, sent=False, retry_after=wait, at=at)

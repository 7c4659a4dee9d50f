"""Ports: what an application may replace with something of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from freshtoken._foundation.clock import Clock
from freshtoken._foundation.records import AccessToken, Record

__all__ = [
    "Clock",
    "ReadResult",
    "Record",
    "SessionStore",
    "SwapResult",
    "TokenSource",
]


class ReadResult(NamedTuple):
    """What a store holds under a key, and the store's own time."""

    record: Record | None
    now: float


class SwapResult(NamedTuple):
    """Whether a swap was applied, what is stored now, and the store's own time."""

    applied: bool
    record: Record | None
    now: float


class SessionStore(Protocol):
    """Where sessions live: two verbs and a clock.

    Swaps are linearizable, and an acknowledged swap stays. A swap that raised may
    have been applied, or may still be applied later. Both verbs raise `StoreError`
    when the store cannot be reached or refuses, and nothing else. A read may be
    cancelled at any time, and is after 5 s; a write is not, and should end by itself.
    """

    async def read(self, key: str) -> ReadResult:
        """Return the record under *key*, or ``None``, and the store's time."""
        ...

    async def swap(
        self,
        key: str,
        expect: tuple[str, int] | None,
        record: Record,
        *,
        lease_for: float | None = None,
        keep_for: float | None = None,
    ) -> SwapResult:
        """Write *record* if what is stored is what the writer expects.

        Args:
            key: Session id.
            expect: ``(grant_id, version)`` of the record to be replaced; ``None``
                to create one where there is none. A missing record, like a record
                with another pair, is a conflict.
            record: The whole new record.
            lease_for: Seconds; the store stamps the record's lease with its own
                time: ``since`` if that is 0, and ``expires_at``.
            keep_for: Seconds after which the store may forget the record; ``None``
                to keep it.

        Returns:
            Whether it was applied, and the record as it is stored now.
        """
        ...


class TokenSource(Protocol):
    """Where an auth hook gets its tokens: a `freshtoken.TokenManager`."""

    async def get_token(
        self,
        session_id: str,
        *,
        resource: str | None = None,
        scope: str | Iterable[str] | None = None,
        min_validity: float | None = None,
        rejected: AccessToken | str | None = None,
    ) -> AccessToken:
        """Return an access token that is fresh now; see `TokenManager.get_token`."""
        ...

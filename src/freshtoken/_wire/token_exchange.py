"""One request to be made, and how far it came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from freshtoken._protocol.exchange import Conversation
from freshtoken._wire.call import Guard

T = TypeVar("T")

# Called with the metadata and the keywords ``credential`` and ``now``.
Build: TypeAlias = Callable[..., Conversation[T]]


class TokenExchange(Generic[T]):
    """A request to the token or revocation endpoint while it is under way.

    Attributes:
        session_id: Whose it is, for the breakers; ``None`` if they are not asked.
        fingerprint: Of the credential that it was built with.
        tried: It was on its way, so that its failure says something of the server.
    """

    __slots__ = ("build", "fingerprint", "guard", "limit", "session_id", "tried")

    def __init__(
        self,
        build: Build[T],
        guard: Guard | None,
        limit: float,
        session_id: str | None = None,
    ) -> None:
        """Begin with nothing sent."""
        self.build = build
        self.guard = guard
        self.limit = limit
        self.session_id = session_id
        self.fingerprint = ""
        self.tried = False

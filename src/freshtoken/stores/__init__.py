"""Where sessions live: one store per module, all of one protocol (`freshtoken.abc`)."""

from freshtoken.stores.memory import MemoryStore

__all__ = ["MemoryStore"]

"""Failures as values, so that no raised error carries the frames it came through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


@dataclass(frozen=True, slots=True, repr=False)
class Done(Generic[T]):
    """What some work returned."""

    value: T


Outcome: TypeAlias = Done[T] | Exception
"""A value or an error, on its way to the frame that may raise it."""


def bare(error: E) -> E:
    """Return *error* without traceback and chain.

    These lead to frames and exceptions of the HTTP client, which hold the request.
    """
    error.__traceback__ = None
    error.__cause__ = None
    error.__context__ = None
    return error


def unwrap(outcome: Outcome[T]) -> T:
    """Return the value, or raise the error from here."""
    if isinstance(outcome, Done):
        return outcome.value
    raise outcome

"""Failures as the protocol layer would grade them."""

from __future__ import annotations

from freshtoken._foundation.records import Failure
from freshtoken.errors import Disposition


def lost_answer() -> Failure:
    return Failure(Disposition.RETRY, "reset", in_doubt=True, no_answer=True)


def never_sent() -> Failure:
    return Failure(Disposition.RETRY, "no connection", sent=False, no_answer=True)


def unavailable(retry_after: float | None = None) -> Failure:
    return Failure(
        Disposition.RETRY, "503", status=503, in_doubt=True, retry_after=retry_after
    )


def terminal() -> Failure:
    return Failure(Disposition.SIGN_IN, "over", error="invalid_grant", status=400)

"""The difference between the server's clock and ours."""

from __future__ import annotations

import email.utils

from freshtoken._protocol.exchange import Response


def measure_skew(response: Response) -> float | None:
    """Return the server's clock minus ours, or ``None`` if the answer does not tell.

    A ``Date`` is cut to whole seconds, and was taken about half a round trip ago. An
    answer from a cache tells nothing.

    Spec: RFC 9110 §6.6.1.
    """
    date = response.header("date")
    if date is None or response.header("age") not in {None, "0"}:
        return None
    try:
        server = email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return server + 0.5 - (response.sent_at + response.received_at) / 2

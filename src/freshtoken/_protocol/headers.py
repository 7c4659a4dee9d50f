"""Header fields of answers that say something about time, place or identity."""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from urllib.parse import urljoin

from freshtoken._protocol.exchange import Response, strip_query

_SECONDS = re.compile(r"\d{1,12}(?:\.\d{0,9})?")
_IDENTIFIER = re.compile(r"[A-Za-z0-9._:/+=@~\-]{1,128}")

# In this order; the first that is there and looks like an identifier is taken.
_REQUEST_ID_HEADERS = (
    "x-request-id",
    "x-ms-request-id",
    "request-id",
    "x-correlation-id",
    "correlation-id",
    "x-okta-request-id",
    "x-amzn-requestid",
    "x-amz-cf-id",
    "x-fb-trace-id",
    "x-trace-id",
    "traceparent",
    "cf-ray",
)


def media_type(response: Response) -> str:
    """Return the media type of the body, without parameters; may be empty."""
    return (response.header("content-type") or "").partition(";")[0].strip().lower()


def parse_http_date(value: str | None) -> float | None:
    """Return epoch seconds of an HTTP-date, or ``None`` (RFC 9110 §5.6.7)."""
    if not value:
        return None
    try:
        date = parsedate_to_datetime(value)
        # "-0000" gives a date without a zone, which would be read as local time.
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def server_time(response: Response) -> float | None:
    """Return the server's clock at the time of its answer, if it says."""
    return parse_http_date(response.header("date"))


def retry_after(response: Response) -> float | None:
    """Return the seconds that the server asks for, uncapped, never negative.

    A date is measured against the server's own clock where the answer has one.

    Spec: RFC 9110 §10.2.3.
    """
    for value in response.header_values("retry-after"):
        text = value.strip()
        if _SECONDS.fullmatch(text):
            return float(text)
        date = parse_http_date(text)
        if date is not None:
            now = server_time(response)
            if now is None:
                now = response.received_at or response.sent_at
            return max(date - now, 0.0)
    return None


def request_id(response: Response) -> str | None:
    """Return the server's identifier of this exchange."""
    for name in _REQUEST_ID_HEADERS:
        found = identifier(response.header(name))
        if found is not None:
            return found
    return None


def identifier(value: object) -> str | None:
    """Return *value* if it may be an identifier for the log, and is no JWT."""
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value):
        return None
    return None if value.startswith("eyJ") else value


def redirect_target(response: Response) -> str | None:
    """Return where a redirect leads, without its query."""
    location = response.header("location")
    if not location:
        return None
    try:
        return strip_query(urljoin(response.url, location.strip()))
    except ValueError:
        return None

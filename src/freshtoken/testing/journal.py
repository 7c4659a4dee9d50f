"""The mock server's request log."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from freshtoken.testing.clients import claimed_client_id
from freshtoken.testing.messages import (
    MaskedMapping,
    MockRequest,
    MockResponse,
    RequestRecord,
    first_values,
)


def describe_request(request: MockRequest, endpoint: str, at: float) -> RequestRecord:
    """Return what the log says of a request at its arrival, without a number."""
    form, query = first_values(request.form), first_values(request.query)
    client_id = claimed_client_id(request, form) if form else query.get("client_id")
    return RequestRecord(
        number=0,
        endpoint=endpoint,
        method=request.method,
        path=request.path,
        at=at,
        grant_type=form.get("grant_type"),
        client_id=client_id,
        form=MaskedMapping(form),
        query=MaskedMapping(query),
        headers=MaskedMapping({name.lower(): v for name, v in request.headers}),
    )


class Journal:
    """Entries in the order of arrival; safe to use from several threads."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._entries: list[RequestRecord] = []

    def enter(self, record: RequestRecord) -> RequestRecord:
        """Enter a request; return it with its number."""
        with self._lock:
            record = dataclasses.replace(record, number=len(self._entries) + 1)
            self._entries.append(record)
        return record

    def note(self, number: int, response: MockResponse, **changes: Any) -> None:  # noqa: ANN401 -- field values
        """Note what the server says to a request; number 0 is in no log."""
        if number == 0:
            return
        changes["error"] = _error_of(response)
        changes["status"] = response.status
        with self._lock:
            entry = self._entries[number - 1]
            self._entries[number - 1] = dataclasses.replace(entry, **changes)

    def select(
        self, endpoint: str | None, grant_type: str | None, client_id: str | None
    ) -> list[RequestRecord]:
        """Return entries that fit; ``None`` fits all."""
        with self._lock:
            return [
                record
                for record in self._entries
                if endpoint in {None, record.endpoint}
                and grant_type in {None, record.grant_type}
                and client_id in {None, record.client_id}
            ]

    def __len__(self) -> int:
        """Count the entries."""
        return len(self._entries)

    def __repr__(self) -> str:
        """Show the size only."""
        return f"Journal({len(self)} requests)"


def _error_of(response: MockResponse) -> str | None:
    """Return the error code of an answer: in its body, or where it redirects to."""
    error = response.members().get("error")
    if error is None:
        query = urlsplit(response.header("location") or "").query
        error = dict(parse_qsl(query)).get("error")
    return error if isinstance(error, str) else None

"""The mock server's request log."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from freshtoken.testing.clients import claimed_client_id
from freshtoken.testing.messages import (
    MaskedMapping,
    MockRequest,
    MockResponse,
    RequestRecord,
)


def describe_request(request: MockRequest, endpoint: str, at: float) -> RequestRecord:
    """Return what the log says of a request at its arrival, without a number."""
    form: dict[str, str] = {}
    for name, value in request.form:
        form.setdefault(name, value)
    return RequestRecord(
        number=0,
        endpoint=endpoint,
        method=request.method,
        path=request.path,
        at=at,
        grant_type=form.get("grant_type"),
        client_id=claimed_client_id(request, form) if form else None,
        form=MaskedMapping(form),
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
        error = response.members().get("error")
        changes["error"] = error if isinstance(error, str) else None
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

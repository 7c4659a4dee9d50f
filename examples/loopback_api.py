"""A small API on 127.0.0.1 that takes the tokens of a mock authorization server.

The examples call it. It knows nothing of the client's side: for each request it asks
the server whether the token is good at that moment, and writes down what it saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from types import TracebackType

    from freshtoken.testing import MockIdP

Sight = Literal["live", "expired", "revoked", "unknown", "none"]


@dataclass(frozen=True, slots=True)
class APIRecord:
    """One request in the API's log.

    Attributes:
        at: Monotonic seconds, just after the token was looked at.
        call: The caller's own name for the request, from ``X-Call``.
        saw: What the token was at that moment.
    """

    at: float
    call: str
    saw: Sight


class LoopbackAPI:
    """The API: a context manager that serves while it is entered.

    It has a thread and an event loop of its own, so that it answers while those of
    its callers are busy.

    Attributes:
        url: Its origin, once it is entered.
        log: All requests, in the order in which their tokens were looked at.
    """

    def __init__(self, idp: MockIdP) -> None:
        self.url = ""
        self.log: list[APIRecord] = []
        self._idp = idp
        self._listening = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main()), daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._listening.wait(10.0):
            raise RuntimeError("the API did not start; see the traceback above")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _main(self) -> None:
        """Be the thread."""
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        # All callers may connect in the same moment.
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=128)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._listening.set()
        await self._over.wait()
        server.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the requests of one connection, until the caller hangs up."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head.decode("latin-1")))
                await writer.drain()
        writer.close()

    def _answer(self, head: str) -> bytes:
        """Answer one request: 200 to a live token, else 401 (RFC 6750 §3)."""
        lines = (line.partition(":") for line in head.split("\r\n")[1:])
        headers = {name.lower(): value.strip() for name, _, value in lines}
        saw = self._look_at(headers.get("authorization", ""))
        self.log.append(APIRecord(time.monotonic(), headers.get("x-call", ""), saw))
        status = HTTPStatus.OK if saw == "live" else HTTPStatus.UNAUTHORIZED
        body = json.dumps({"status": status.phrase, "token": saw})
        answer = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        if saw != "live":
            answer.append('WWW-Authenticate: Bearer error="invalid_token"')
        return "\r\n".join([*answer, "", body]).encode()

    def _look_at(self, authorization: str) -> Sight:
        """Ask the authorization server what a token is worth now."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return "none"
        if self._idp.is_active(token):
            return "live"
        try:
            grant = self._idp.grant(token)
        except KeyError:
            return "unknown"
        return "expired" if grant.active else "revoked"

"""An authorization server in a few lines, which answers as it is told to."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

import httpx

from freshtoken._wire.http import HTTPDriver
from freshtoken.testing.clock import FakeClock

ISSUER = "https://as.example"
DOCUMENT = {
    "issuer": ISSUER,
    "token_endpoint": f"{ISSUER}/token",
    "revocation_endpoint": f"{ISSUER}/revoke",
    "authorization_endpoint": f"{ISSUER}/authorize",
    "jwks_uri": f"{ISSUER}/keys",
}
TOKENS = {"access_token": "at", "token_type": "Bearer", "expires_in": 60}

Answer = httpx.Response | type[httpx.TransportError]


def refusal(error: str, status: int = 400) -> httpx.Response:
    return httpx.Response(status, json={"error": error})


def busy(retry_after: int | None = None) -> httpx.Response:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return httpx.Response(503, headers=headers)


class Server:
    """Answers from a queue, else well; keeps what it was asked."""

    def __init__(self, clock: FakeClock) -> None:
        self.document: dict[str, Any] = dict(DOCUMENT)
        self.metadata: deque[Answer] = deque()
        self.tokens: deque[Answer] = deque()
        self.key_sets: deque[Answer] = deque()
        self.keys: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.forms: list[dict[str, list[str]]] = []
        self.headers: dict[str, str] = {}
        self.before: Callable[[], Awaitable[None]] | None = None
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self._handle))
        self.http = HTTPDriver(clock, client=self.client)

    def count(self, path: str) -> int:
        return len([each for each in self.requests if each.startswith(path)])

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request.url.path)
        if self.before is not None:
            await self.before()
        if request.url.path.startswith("/.well-known/"):
            good = httpx.Response(200, json=self.document, headers=self.headers)
            return self._next(self.metadata, good, request)
        if request.url.path == "/keys":
            good = httpx.Response(200, json={"keys": self.keys}, headers=self.headers)
            return self._next(self.key_sets, good, request)
        self.forms.append(parse_qs(request.content.decode()))
        body = json.dumps(TOKENS).encode()
        headers = {"Content-Type": "application/json", **self.headers}
        good = httpx.Response(200, content=body, headers=headers)
        return self._next(self.tokens, good, request)

    def _next(
        self, queue: deque[Answer], good: httpx.Response, request: httpx.Request
    ) -> httpx.Response:
        answer = queue.popleft() if queue else good
        if isinstance(answer, type):
            raise answer("lost", request=request)
        return answer

"""Clients of either family, and what their transports answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, TypeAlias

import pytest

from freshtoken._foundation.records import Failure
from freshtoken._protocol.exchange import ExchangeError, Request, Response
from freshtoken._wire.http import HTTPDriver

# httpx or httpx2, or something of theirs: the two share no classes.
Lib: TypeAlias = Any
Talk: TypeAlias = Generator[Request, Response, int]

SECRET = "planted-9f8e7d6c5b4a-secret"
URL = "https://as.example/token?tenant=1"


def token_request(url: str = URL) -> Request:
    return Request(
        "POST",
        url,
        headers=(("Authorization", f"Basic {SECRET}"), ("Accept", "application/json")),
        form=(("grant_type", "refresh_token"), ("refresh_token", SECRET)),
    )


def client_of(family: Lib, handler: Callable[[Lib], Lib], **options: Lib) -> Lib:
    return family.AsyncClient(transport=family.MockTransport(handler), **options)


def streamed(family: Lib, body: bytes, **options: Lib) -> Lib:
    """An answer whose body is not in memory, as over a socket."""

    class Stream(family.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for start in range(0, len(body), 65_536):
                yield body[start : start + 65_536]

    return family.Response(stream=Stream(), **options)


def raising(family: Lib, name: str, text: str = "text") -> Callable[[Lib], Lib]:
    def handler(request: Lib) -> Lib:
        raise getattr(family, name)(f"{text} {SECRET}", request=request)

    return handler


async def failure_of(driver: HTTPDriver, request: Request | None = None) -> Failure:
    with pytest.raises(ExchangeError) as caught:
        await driver.send(request or token_request())
    return caught.value.failure


class RefusedError(Exception):
    """What a guard raises."""

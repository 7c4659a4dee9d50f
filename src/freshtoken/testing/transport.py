"""The mock server as a transport of httpx or httpx2: no sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from freshtoken.testing.messages import MockRequest, NoAnswerError

if TYPE_CHECKING:
    from types import ModuleType

    from freshtoken.testing.idp import MockIdP
    from freshtoken.testing.messages import MockResponse, NoAnswerKind

_CHUNK = 65_536
_EXCEPTIONS: dict[NoAnswerKind, tuple[str, str]] = {
    "connect": ("ConnectError", "All connection attempts failed"),
    "connect_timeout": ("ConnectTimeout", ""),
    "dns": ("ConnectError", "[Errno -2] Name or service not known"),
    "tls": ("ConnectError", "[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred"),
    "pool_timeout": ("PoolTimeout", ""),
    "write": ("WriteError", "[Errno 32] Broken pipe"),
    "write_timeout": ("WriteTimeout", ""),
    "read": ("ReadError", "[Errno 104] Connection reset by peer"),
    "read_timeout": ("ReadTimeout", ""),
    "protocol": (
        "RemoteProtocolError",
        "Server disconnected without sending a response.",
    ),
}


def make_transport(family: ModuleType, idp: MockIdP) -> Any:  # noqa: ANN401 -- of the family's class
    """Return a transport of *family*, which is ``httpx`` or ``httpx2``.

    Request bodies are consumed as they stream, so that a body which cannot be read
    twice cannot be sent twice.
    """
    base: Any = family
    stream_class = _stream_class(base)

    class MockTransport(base.AsyncBaseTransport):  # type: ignore[misc]  # either family's
        async def handle_async_request(self, request: Any) -> Any:  # noqa: ANN401 -- either family's
            body = b"".join([chunk async for chunk in request.stream])
            headers = tuple(
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in request.headers.raw
            )
            message = MockRequest(request.method, str(request.url), headers, body)
            try:
                response = await idp.handle(message)
            except NoAnswerError as fault:
                kind = fault.kind
                detail = fault.detail
            else:
                return base.Response(
                    response.status,
                    headers=_headers(response),
                    stream=stream_class(response, request),
                )
            _raise(base, kind, request, detail)

        def __repr__(self) -> str:
            return f"MockTransport({idp.issuer!r})"

    return MockTransport()


def _stream_class(base: Any) -> Any:  # noqa: ANN401 -- either family's
    """Make the class of response bodies for a family."""

    # No async generator: one that is left half-way has to be closed by somebody.
    class MockStream(base.AsyncByteStream):  # type: ignore[misc]  # either family's
        def __init__(self, response: MockResponse, request: Any) -> None:  # noqa: ANN401 -- either family's
            self._body = response.body[: response.cut_after]
            self._cut = response.cut_after is not None
            self._request = request

        def __aiter__(self) -> MockStream:
            return self

        async def __anext__(self) -> bytes:
            if self._body:
                part, self._body = self._body[:_CHUNK], self._body[_CHUNK:]
                return part
            if self._cut:
                message = "peer closed connection without sending complete message body"
                raise base.RemoteProtocolError(message, request=self._request)
            raise StopAsyncIteration

    return MockStream


def _headers(response: MockResponse) -> list[tuple[str, str]]:
    """Return the headers with the length of the whole body."""
    headers = list(response.headers)
    if response.header("content-length") is None:
        headers.append(("Content-Length", str(len(response.body))))
    return headers


def _raise(base: Any, kind: NoAnswerKind, request: Any, detail: str) -> NoReturn:  # noqa: ANN401 -- either family's
    """Raise the family's exception for a request without an answer."""
    name, text = _EXCEPTIONS[kind]
    raise getattr(base, name)(detail or text, request=request)

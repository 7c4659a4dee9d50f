"""The mock server on a port of 127.0.0.1: a small HTTP/1.1 server in a thread."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import anyio.to_thread

from freshtoken.testing._loops import Signal
from freshtoken.testing.messages import MockRequest, MockResponse, NoAnswerError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from freshtoken.testing.idp import MockIdP
    from freshtoken.testing.messages import Headers

_MAX_HEAD = 65_536
_MAX_BODY = 1_048_576
_CHUNK = 65_536
_START_TIMEOUT = 10.0
_DRAIN_FOR = 1.0


class _BadRequestError(Exception):
    """What came is no request that this server reads."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


@contextlib.contextmanager
def serve_in_thread(idp: MockIdP, *, keep_alive: bool) -> Iterator[str]:
    """Serve until the block is left; yield the base URL."""
    server = _ServerThread(idp, keep_alive=keep_alive)
    base_url = server.start()
    try:
        yield base_url
    finally:
        server.stop()


@contextlib.asynccontextmanager
async def serve(idp: MockIdP, *, keep_alive: bool) -> AsyncIterator[str]:
    """Serve until the block is left; yield the base URL."""
    server = _ServerThread(idp, keep_alive=keep_alive)
    base_url = await anyio.to_thread.run_sync(server.start)
    try:
        yield base_url
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(server.stop)


class _ServerThread:
    """One listener, in an event loop of its own."""

    def __init__(self, idp: MockIdP, *, keep_alive: bool) -> None:
        self._idp = idp
        self._keep_alive = keep_alive
        self._stop = Signal()
        self._started = threading.Event()
        self._base_url = ""
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="mock-idp", daemon=True)

    def start(self) -> str:
        """Start; return the base URL when connections are accepted."""
        self._thread.start()
        if not self._started.wait(_START_TIMEOUT):
            message = "the mock server did not start"
            raise RuntimeError(message)
        if self._failure is not None:
            raise self._failure
        return self._base_url

    def stop(self) -> None:
        """Stop, and wait for the end; requests under way are given up."""
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        """Be the thread."""
        try:
            anyio.run(self._main)
        except BaseException as error:  # noqa: BLE001 -- raised where it is started
            self._failure = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        """Listen until told to stop."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 -- no SQL
        self._base_url = f"http://127.0.0.1:{port}"
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, self._connection)
            self._started.set()
            await self._stop.wait()
            group.cancel_scope.cancel()

    async def _connection(self, stream: anyio.abc.SocketStream) -> None:
        """Answer the requests of one connection."""
        async with stream:
            connection = _Connection(stream, self._base_url)
            with contextlib.suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                while await self._exchange(connection) and self._keep_alive:
                    pass

    async def _exchange(self, connection: _Connection) -> bool:
        """Answer one request; tell whether the connection can go on."""
        try:
            request = await connection.read_request()
        except _BadRequestError as error:
            await connection.write(MockResponse(error.status), keep_alive=False)
            await connection.drain()
            return False
        try:
            response = await self._idp.handle(request)
        except NoAnswerError as fault:
            if fault.kind != "protocol":
                connection.reset_on_close()
            return False
        await connection.write(response, keep_alive=self._keep_alive)
        wants_close = (request.header("connection") or "").lower() == "close"
        return response.cut_after is None and not wants_close


@dataclass(slots=True)
class _Connection:
    """Reads requests and writes answers."""

    stream: anyio.abc.SocketStream
    base_url: str
    buffer: bytes = b""

    async def read_request(self) -> MockRequest:
        """Read one request with its body."""
        head = await self._read_until(b"\r\n\r\n", _MAX_HEAD)
        line, *fields = head.decode("latin-1").split("\r\n")
        parts = line.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):  # noqa: PLR2004 -- method, target, version
            raise _BadRequestError(HTTPStatus.BAD_REQUEST)
        headers = tuple(_read_field(field) for field in fields)
        target = parts[1] if parts[1].startswith("/") else f"/{parts[1]}"
        body = await self._read_body(headers)
        return MockRequest(parts[0], self.base_url + target, headers, body)

    async def write(self, response: MockResponse, *, keep_alive: bool) -> None:
        """Write an answer, as far as it goes."""
        try:
            phrase = HTTPStatus(response.status).phrase
        except ValueError:
            phrase = ""
        fixed = {"Connection": "keep-alive" if keep_alive else "close"}
        if response.header("content-length") is None:
            fixed["Content-Length"] = str(len(response.body))
        lines = [f"HTTP/1.1 {int(response.status)} {phrase}"]
        headers = response.with_headers(fixed).headers
        lines += [f"{name}: {value}" for name, value in headers]
        await self.stream.send("\r\n".join([*lines, "", ""]).encode("latin-1"))
        body = response.body[: response.cut_after]
        for start in range(0, len(body), _CHUNK):
            await self.stream.send(body[start : start + _CHUNK])

    async def drain(self) -> None:
        """Take what the client still sends, lest a reset overtakes the answer."""
        await self.stream.send_eof()
        with anyio.move_on_after(_DRAIN_FOR):
            while True:
                await self.stream.receive(_CHUNK)

    def reset_on_close(self) -> None:
        """Let the close be a reset (RST) instead of an orderly end."""
        raw = self.stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 -- no SQL
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def _read_body(self, headers: Headers) -> bytes:
        """Read the body that the headers announce."""
        fields = {name.lower(): value for name, value in headers}
        if "chunked" in fields.get("transfer-encoding", "").lower():
            return await self._read_chunks()
        length = fields.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise _BadRequestError(HTTPStatus.BAD_REQUEST)
        if int(length) > _MAX_BODY:
            raise _BadRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return await self._read_exactly(int(length))

    async def _read_chunks(self) -> bytes:
        """Read a chunked body (RFC 9112 §7.1)."""
        body = b""
        while True:
            line = await self._read_until(b"\r\n", _MAX_HEAD)
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                raise _BadRequestError(HTTPStatus.BAD_REQUEST) from None
            if size < 0 or len(body) + size > _MAX_BODY:
                raise _BadRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            if size == 0:
                while await self._read_until(b"\r\n", _MAX_HEAD):
                    pass
                return body
            body += await self._read_exactly(size)
            await self._read_exactly(2)

    async def _read_until(self, mark: bytes, limit: int) -> bytes:
        """Read up to a mark, which is dropped."""
        while mark not in self.buffer:
            if len(self.buffer) > limit:
                status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                raise _BadRequestError(status)
            self.buffer += await self.stream.receive(_CHUNK)
        found, _, self.buffer = self.buffer.partition(mark)
        return found

    async def _read_exactly(self, size: int) -> bytes:
        """Read a number of bytes."""
        while len(self.buffer) < size:
            self.buffer += await self.stream.receive(_CHUNK)
        found, self.buffer = self.buffer[:size], self.buffer[size:]
        return found


def _read_field(line: str) -> tuple[str, str]:
    """Read one header field."""
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip():
        raise _BadRequestError(HTTPStatus.BAD_REQUEST)
    return name, value.strip()

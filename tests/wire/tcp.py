"""A small TCP server in threads of its own, which does to clients what a test wants."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Connection:
    """One accepted connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = b""
        self._begin = 0

    def read_request(self) -> bytes:
        """Read one request with its body; what came so far if the client goes."""
        while b"\r\n\r\n" not in self._request():
            if not self._receive():
                return self._request()
        head = self._request().partition(b"\r\n\r\n")[0]
        length = len(head) + 4
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length += int(value)
        while len(self._request()) < length and self._receive():
            pass
        request = self._request()
        self._begin = len(self.received)
        return request

    def _request(self) -> bytes:
        return self.received[self._begin :]

    def _receive(self) -> bool:
        data = self.sock.recv(65_536)
        self.received += data
        return bool(data)

    def send(self, data: bytes) -> None:
        """Send, or notice that the client has gone."""
        self.sock.sendall(data)

    def reset(self) -> None:
        """Close with a reset instead of a farewell."""
        linger = struct.pack("ii", 1, 0)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.sock.close()

    def upgrade(self, context: ssl.SSLContext) -> None:
        """Speak TLS from here on."""
        self.sock = context.wrap_socket(self.sock, server_side=True)


class Peer:
    """Listens on a free port of 127.0.0.1 and hands each connection to *handle*."""

    def __init__(self, handle: Callable[[Connection], None]) -> None:
        self._handle = handle
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self.connections: list[Connection] = []
        self.accepted = threading.Event()
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def received(self) -> list[bytes]:
        """What came over each connection."""
        return [each.received for each in self.connections]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(10)
            connection = Connection(sock)
            self.connections.append(connection)
            self.accepted.set()
            thread = threading.Thread(target=self._serve, args=[connection])
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: Connection) -> None:
        try:
            with contextlib.suppress(OSError):  # the client may have gone
                self._handle(connection)
        finally:
            connection.sock.close()

    def __enter__(self) -> Self:
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


def answering(answer: bytes) -> Callable[[Connection], None]:
    """Give every request of a connection the same answer, until the client goes."""

    def handle(connection: Connection) -> None:
        while connection.read_request():
            connection.send(answer)

    return handle


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port

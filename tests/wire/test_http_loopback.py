"""The driver over real sockets: what only a network can show."""

from __future__ import annotations

import logging
import ssl
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from freshtoken._foundation.clock import SystemClock
from freshtoken._wire.body import MOST_BYTES
from freshtoken._wire.http import HTTPDriver
from freshtoken.errors import Disposition
from tests.wire.families import SECRET, Lib, RefusedError, token_request
from tests.wire.sockets import failure, over_tls, send
from tests.wire.tcp import OK, Connection, Peer, answering, free_port

pytestmark = [pytest.mark.loopback, pytest.mark.usefixtures("no_proxies")]


async def test_request_arrives_and_the_answer_comes_back(
    make_client: Callable[[], Lib],
) -> None:
    with Peer(answering(OK)) as peer:
        answer = await send(make_client(), f"{peer.url}/token?tenant=1")

    [request] = peer.received
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /token?tenant=1 HTTP/1.1\r\n")
    assert body == f"grant_type=refresh_token&refresh_token={SECRET}".encode()
    assert (answer.status, answer.body) == (200, b"{}")


async def test_guard_is_asked_on_an_open_connection_before_the_first_byte(
    make_client: Callable[[], Lib],
) -> None:
    with Peer(answering(OK)) as peer:
        seen: list[list[bytes]] = []

        def guard() -> None:
            assert peer.accepted.wait(5)
            seen.append(peer.received)

        await send(make_client(), peer.url, guard=guard)

    assert seen == [[b""]], "asked once, nothing sent so far"


async def test_guard_that_refuses_sends_nothing(make_client: Callable[[], Lib]) -> None:
    def guard() -> None:
        raise RefusedError

    with Peer(answering(OK)) as peer, pytest.raises(RefusedError):
        await send(make_client(), peer.url, guard=guard)

    assert peer.received == [b""]


async def test_refused_connection_is_never_sent(make_client: Callable[[], Lib]) -> None:
    asked: list[int] = []

    failed = await failure(
        make_client(), f"http://127.0.0.1:{free_port()}", guard=lambda: asked.append(1)
    )

    assert failed.disposition is Disposition.RETRY
    assert (failed.sent, failed.in_doubt, failed.cause) == (
        False,
        False,
        "ConnectError",
    )
    assert asked == []


async def test_cut_handshake_is_never_sent(make_client: Callable[[], Lib]) -> None:
    with Peer(lambda connection: connection.reset()) as peer:
        failed = await failure(make_client(), f"https://127.0.0.1:{peer.port}")

    assert failed.disposition is Disposition.RETRY
    assert (failed.sent, failed.in_doubt) == (False, False)


def reset_unread(connection: Connection) -> None:
    connection.sock.recv(1)
    connection.reset()


def reset_read(connection: Connection) -> None:
    connection.read_request()
    connection.reset()


def close_read(connection: Connection) -> None:
    connection.read_request()


def cut_answer(connection: Connection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")


def cut_headers(connection: Connection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 200 OK\r\nContent-")
    connection.reset()


def talk_nonsense(connection: Connection) -> None:
    connection.read_request()
    connection.send(b"220 smtp.example ESMTP\r\n")


@pytest.mark.parametrize(
    "fault",
    [reset_unread, reset_read, close_read, cut_answer, cut_headers, talk_nonsense],
)
async def test_lost_answer_is_in_doubt(
    make_client: Callable[[], Lib], fault: Callable[[Connection], None]
) -> None:
    with Peer(fault) as peer:
        failed = await failure(make_client(), peer.url)

    assert failed.disposition is Disposition.RETRY
    assert (failed.sent, failed.in_doubt, failed.no_answer) == (True, True, True)
    assert SECRET not in repr(failed)


async def test_own_limit_after_sending_is_in_doubt(
    make_client: Callable[[], Lib],
) -> None:
    def hang(connection: Connection) -> None:
        connection.read_request()
        connection.sock.recv(1)

    with Peer(hang) as peer:
        failed = await failure(make_client(), peer.url, limit=0.2)

    assert (failed.sent, failed.in_doubt) == (True, True)


@pytest.mark.parametrize("kind", ["around", "below"])
async def test_transport_that_passes_the_trace_on_is_believed(
    family: Lib, kind: str
) -> None:
    """The guard is asked early, for want of a promise, and again at the right time."""

    class Around(family.AsyncBaseTransport):  # type: ignore[misc]
        def __init__(self) -> None:
            self.inner = family.AsyncHTTPTransport()

        async def handle_async_request(self, request: Lib) -> Lib:
            return await self.inner.handle_async_request(request)

        async def aclose(self) -> None:
            await self.inner.aclose()

    class Below(family.AsyncHTTPTransport):  # type: ignore[misc]
        pass

    def make() -> Lib:
        return family.AsyncClient(transport=Around() if kind == "around" else Below())

    asked: list[int] = []
    with Peer(lambda connection: connection.reset()) as peer:
        handshake = await failure(make(), f"https://127.0.0.1:{peer.port}")
    with Peer(reset_read) as peer:
        lost = await failure(make(), peer.url, guard=lambda: asked.append(1))

    assert not handshake.sent
    assert lost.in_doubt
    assert len(asked) == 2


@pytest.mark.parametrize("fault", [None, reset_read])
async def test_debug_log_holds_no_secret_and_no_cookie(
    make_client: Callable[[], Lib],
    caplog: pytest.LogCaptureFixture,
    fault: Callable[[Connection], None] | None,
) -> None:
    """The log of the HTTP client included, with everything turned on."""
    caplog.set_level(logging.DEBUG)
    head = b"HTTP/1.1 200 OK\r\nSet-Cookie: id=c00kie\r\nContent-Length: 0\r\n\r\n"
    with Peer(fault or answering(head)) as peer:
        client = make_client()
        if fault is None:
            assert (await send(client, peer.url)).header("set-cookie") == "id=c00kie"
        else:
            await failure(client, peer.url)

    assert "send_request_headers" in caplog.text
    assert SECRET not in caplog.text
    assert "c00kie" not in caplog.text


# Certificates


async def test_self_signed_certificate_is_misconfigured(
    make_client: Callable[[], Lib], certificate: Path
) -> None:
    with Peer(over_tls(certificate, answering(OK))) as peer:
        failed = await failure(make_client(), f"https://127.0.0.1:{peer.port}")

    assert failed.disposition is Disposition.MISCONFIGURED
    assert (failed.sent, failed.in_doubt) == (False, False)


async def test_own_authority_may_be_trusted(family: Lib, certificate: Path) -> None:
    trusted = ssl.create_default_context(cafile=str(certificate))
    with Peer(over_tls(certificate, answering(OK))) as peer:
        client = family.AsyncClient(verify=trusted)
        answer = await send(client, f"https://127.0.0.1:{peer.port}")

    assert answer.status == 200


async def test_authority_of_the_environment_is_trusted(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For loopback, too: only the proxies of the environment are left out there."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with Peer(over_tls(certificate, answering(OK))) as peer:
        answer = await send(None, f"https://127.0.0.1:{peer.port}")

    assert answer.status == 200


# Answers


@pytest.mark.parametrize(
    "location", ["/other", "https://evil.example/", "http://x:bad/"]
)
async def test_redirect_is_not_followed(
    make_client: Callable[[], Lib], location: str
) -> None:
    head = f"HTTP/1.1 307 Go\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
    with Peer(answering(head.encode())) as peer:
        answer = await send(make_client(), peer.url)

    assert answer.status == 307
    assert len(peer.connections) == 1


async def test_cookies_are_not_kept(make_client: Callable[[], Lib]) -> None:
    head = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b; Path=/\r\nContent-Length: 0\r\n\r\n"
    client = make_client()
    driver = HTTPDriver(SystemClock(), client=client)
    with Peer(answering(head)) as peer:
        await driver.send(token_request(peer.url))
        await driver.send(token_request(peer.url + "/again"))
        own = list(driver._own.values())
        await driver.aclose()
        if client is not None:
            await client.aclose()

    assert b"cookie" not in b"".join(peer.received).lower()
    assert not [cookie for each in own for cookie in each.cookies.jar]


async def test_own_client_keeps_no_connection() -> None:
    driver = HTTPDriver(SystemClock())
    with Peer(answering(OK)) as peer:
        for _ in range(3):
            await driver.send(token_request(peer.url))
        pools = [each._transport._pool.connections for each in driver._own.values()]
        await driver.aclose()

    assert len(peer.connections) == 3
    assert pools == [[]]


def packed(size: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(bytes(size)) + packer.flush()


def with_head(body: bytes, encoding: str, status: int) -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Encoding: {encoding}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("gzip", packed(64 * MOST_BYTES)), ("identity", bytes(4 * MOST_BYTES))],
    ids=["bomb", "large"],
)
async def test_body_is_bounded(
    make_client: Callable[[], Lib], encoding: str, body: bytes
) -> None:
    with Peer(answering(with_head(body, encoding, 200))) as peer:
        failed = await failure(make_client(), peer.url)
    with Peer(answering(with_head(body, encoding, 503))) as peer:
        answer = await send(make_client(), peer.url)

    assert (failed.disposition, failed.in_doubt) == (Disposition.RETRY, True)
    assert (answer.status, answer.body) == (503, b"")


async def test_endless_body_is_given_up(make_client: Callable[[], Lib]) -> None:
    def stream(connection: Connection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            connection.send(b"10000\r\n" + bytes(65_536) + b"\r\n")

    with Peer(stream) as peer:
        failed = await failure(make_client(), peer.url)

    assert failed.in_doubt

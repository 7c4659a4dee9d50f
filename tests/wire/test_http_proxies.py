"""Proxies: what goes through them, and what they may not be taken for."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from freshtoken._foundation.clock import SystemClock
from freshtoken._wire.http import HTTPDriver
from freshtoken.errors import Disposition
from tests.wire.families import SECRET, Lib, token_request
from tests.wire.sockets import failure, over_tls, send
from tests.wire.tcp import OK, Connection, Peer, answering

pytestmark = [pytest.mark.loopback, pytest.mark.usefixtures("no_proxies")]


def tunnel(answer: bytes) -> Callable[[Connection], None]:
    def handle(connection: Connection) -> None:
        connection.read_request()
        connection.send(answer)

    return handle


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 Connection established\r\n\r\n",
        b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
        b"",
    ],
    ids=["cut after", "407", "502", "gone"],
)
async def test_proxys_connect_is_not_our_request(
    make_client: Callable[[], Lib], monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """It neither asks the guard nor puts the refresh in doubt."""
    asked: list[int] = []
    with Peer(tunnel(answer)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        failed = await failure(
            make_client(), "https://as.example/token", guard=lambda: asked.append(1)
        )

    [request] = proxy.received
    assert request.startswith(b"CONNECT as.example:443 ")
    assert SECRET.encode() not in request
    assert (failed.sent, failed.in_doubt, asked) == (False, False, [])


async def test_guard_is_asked_inside_the_tunnel(
    family: Lib, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(connection: Connection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        connection.received = b""
        over_tls(certificate, answering(OK))(connection)

    trusted = ssl.create_default_context(cafile=str(certificate))
    trusted.check_hostname = False
    seen: list[bytes] = []
    with Peer(handle) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        answer = await send(
            family.AsyncClient(verify=trusted),
            "https://as.example/token",
            guard=lambda: seen.extend(proxy.received),
        )

    assert answer.status == 200
    assert seen == [b""]
    assert SECRET.encode() in proxy.received[0]


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
async def test_loopback_goes_through_no_proxy(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with Peer(answering(OK)) as peer, Peer(answering(OK)) as proxy:
        monkeypatch.setenv(name, proxy.url)
        for host in ("127.0.0.1", "localhost"):
            await send(None, f"http://{host}:{peer.port}/token")

    assert len(peer.connections) == 2
    assert proxy.connections == []


async def test_own_client_uses_the_proxy_beyond_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Peer(answering(OK)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        answer = await send(None, "http://as.example/token", insecure=True)

    assert answer.status == 200
    assert proxy.received[0].startswith(b"POST http://as.example/token ")


async def test_one_driver_goes_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = HTTPDriver(SystemClock())
    with Peer(answering(OK)) as peer, Peer(answering(OK)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        for url in (peer.url, "http://as.example"):
            await driver.send(token_request(url), allow_insecure_transport=True)
        await driver.aclose()

    assert (len(peer.connections), len(proxy.connections)) == (1, 1)


async def test_callers_client_that_proxies_loopback_is_refused(
    family: Lib, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Peer(answering(OK)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        failed = await failure(family.AsyncClient(), "http://127.0.0.1:9/token")

    assert failed.disposition is Disposition.MISCONFIGURED
    assert (failed.setting, failed.sent) == ("http_client", False)
    assert proxy.connections == []

"""What tests over real sockets share: clients, certificates, one call to send."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from freshtoken._foundation.clock import SystemClock
from freshtoken._foundation.records import Failure
from freshtoken._protocol.exchange import ExchangeError, Response
from freshtoken._wire.http import HTTPDriver
from tests.wire.families import Lib, token_request
from tests.wire.tcp import Connection

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


async def send(
    client: Lib,
    url: str,
    *,
    guard: Callable[[], None] | None = None,
    limit: float = 30.0,
    insecure: bool = False,
) -> Response:
    driver = HTTPDriver(SystemClock(), client=client)
    try:
        return await driver.send(
            token_request(url),
            guard=guard,
            timeout=limit,
            allow_insecure_transport=insecure,
        )
    finally:
        await driver.aclose()
        if client is not None:
            await client.aclose()


async def failure(client: Lib, url: str, **options: Lib) -> Failure:
    with pytest.raises(ExchangeError) as caught:
        await send(client, url, **options)
    return caught.value.failure


def make_certificate(folder: Path) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    day = dt.timedelta(days=1)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def over_tls(path: Path, handle: Callable[[Connection], None]) -> Lib:
    def serve(connection: Connection) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        connection.upgrade(context)
        handle(connection)

    return serve

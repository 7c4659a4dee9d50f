"""Requests and answers of the driver, over transports without sockets."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import AsyncIterator

import anyio
import httpx
import pytest

from freshtoken._foundation.records import Failure
from freshtoken._protocol.exchange import ExchangeError, Request, Response
from freshtoken._wire.body import MOST_BYTES
from freshtoken._wire.http import HTTPDriver
from freshtoken.errors import Disposition, MisconfiguredError
from freshtoken.testing.clock import FakeClock
from tests.wire.families import (
    SECRET,
    URL,
    Lib,
    client_of,
    failure_of,
    raising,
    streamed,
    token_request,
)

# The request


async def test_request_is_ours_alone(family: Lib, clock: FakeClock) -> None:
    """Headers, parameters, cookies and auth of the caller's client stay out."""
    seen: list[Lib] = []

    def handler(request: Lib) -> Lib:
        seen.append(request)
        return family.Response(200, json={})

    client = client_of(
        family,
        handler,
        headers={"Authorization": "Bearer other", "X-Mine": "1"},
        params={"p": "1"},
        cookies={"c": "1"},
        auth=("user", "pass"),
    )
    async with client:
        await HTTPDriver(clock, client=client).send(token_request())

    [request] = seen
    assert str(request.url) == URL
    assert (
        request.content == f"grant_type=refresh_token&refresh_token={SECRET}".encode()
    )
    headers = dict(request.headers)
    assert headers.pop("user-agent").startswith("freshtoken")
    assert headers == {
        "host": "as.example",
        "authorization": f"Basic {SECRET}",
        "accept": "application/json",
        "accept-encoding": "identity, gzip",
        "content-type": "application/x-www-form-urlencoded",
        "content-length": str(len(request.content)),
    }


async def test_get_has_no_body(family: Lib, clock: FakeClock) -> None:
    seen: list[Lib] = []

    def handler(request: Lib) -> Lib:
        seen.append(
            (request.method, request.content, "content-type" in request.headers)
        )
        return family.Response(200)

    async with client_of(family, handler) as client:
        await HTTPDriver(clock, client=client).send(
            Request("GET", "https://as.example/.well-known/openid-configuration")
        )

    assert seen == [("GET", b"", False)]


@pytest.mark.parametrize(
    "url",
    [
        "http://as.example/token",
        "https://user:pass@as.example/token",
        "https://as.example/token#x",
        "ftp://as.example/token",
        "https:///token",
        "https://as.example:port/token",
        "https://[::1/token",
        "https://as example/token",
        "/token",
        "",
        "https://xn--a.example\u0000/",
        "https://" + "a" * 70_000,
    ],
)
async def test_bad_address_is_misconfigured_and_never_sent(
    family: Lib, clock: FakeClock, url: str
) -> None:
    calls: list[Lib] = []
    async with client_of(family, calls.append) as client:
        failure = await failure_of(HTTPDriver(clock, client=client), token_request(url))

    assert failure.disposition is Disposition.MISCONFIGURED
    assert (failure.sent, failure.in_doubt, calls) == (False, False, [])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.1.2.3"])
async def test_plain_http_is_for_loopback(
    family: Lib, clock: FakeClock, host: str
) -> None:
    async with client_of(family, lambda _: family.Response(200)) as client:
        driver = HTTPDriver(clock, client=client)

        answer = await driver.send(token_request(f"http://{host}:1/t"))

    assert answer.status == 200


async def test_plain_http_may_be_allowed(family: Lib, clock: FakeClock) -> None:
    async with client_of(family, lambda _: family.Response(200)) as client:
        answer = await HTTPDriver(clock, client=client).send(
            token_request("http://as.example/t"), allow_insecure_transport=True
        )

    assert answer.status == 200


async def test_header_that_cannot_be_sent_is_misconfigured(
    family: Lib, clock: FakeClock
) -> None:
    request = Request("GET", URL, headers=(("X-Ünicode", SECRET), ("X", "\ud800")))
    async with client_of(family, lambda _: family.Response(200)) as client:
        failure = await failure_of(HTTPDriver(clock, client=client), request)

    assert failure.disposition is Disposition.MISCONFIGURED
    assert SECRET not in failure.advice


# The caller's client


@pytest.mark.parametrize("client", [object(), "x", httpx.AsyncClient, 3])
def test_other_clients_are_refused(clock: FakeClock, client: object) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        HTTPDriver(clock, client=client)
    assert caught.value.setting == "http_client"


def test_synchronous_client_is_refused(family: Lib, clock: FakeClock) -> None:
    with family.Client() as client, pytest.raises(MisconfiguredError) as caught:
        HTTPDriver(clock, client=client)
    assert caught.value.setting == "http_client"


async def test_client_of_a_subclass_is_taken(family: Lib, clock: FakeClock) -> None:
    class Mine(family.AsyncClient):  # type: ignore[misc]
        pass

    transport = family.MockTransport(lambda _: family.Response(204))
    async with Mine(transport=transport) as client:
        answer = await HTTPDriver(clock, client=client).send(token_request())
    assert answer.status == 204


async def test_callers_client_is_never_closed(family: Lib, clock: FakeClock) -> None:
    async with client_of(family, lambda _: family.Response(200)) as client:
        driver = HTTPDriver(clock, client=client)
        await driver.send(token_request())

        await driver.aclose()

        assert not client.is_closed


async def test_closed_client_is_misconfigured(family: Lib, clock: FakeClock) -> None:
    async with client_of(family, lambda _: family.Response(200)) as client:
        driver = HTTPDriver(clock, client=client)
        driver.check_client()

    with pytest.raises(MisconfiguredError) as caught:
        driver.check_client()
    failure = await failure_of(driver)

    assert caught.value.setting == "http_client"
    assert failure.disposition is Disposition.MISCONFIGURED
    assert (failure.setting, failure.sent) == ("http_client", False)


def test_httpx2_is_not_imported_unasked() -> None:
    code = (
        "import sys, freshtoken._wire.http as h, freshtoken._foundation.clock as c\n"
        "h.HTTPDriver(c.SystemClock())\n"
        "assert 'httpx2' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The answer


async def test_answer_is_whole_with_its_times(family: Lib, clock: FakeClock) -> None:
    async def handler(_: Lib) -> Lib:
        await clock.sleep(2.0)
        return family.Response(400, json={"error": "x"}, headers={"X-Two": "a"})

    answers: list[Response] = []
    async with client_of(family, handler) as client:
        driver = HTTPDriver(clock, client=client)
        began = clock.time()

        async def run() -> None:
            answers.append(await driver.send(token_request()))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await clock.advance(2.0)

    [answer] = answers
    assert answer.status == 400
    assert answer.body.replace(b" ", b"") == b'{"error":"x"}'
    assert answer.header("x-two") == "a"
    assert (answer.sent_at, answer.received_at) == (began, began + 2.0)
    assert SECRET not in repr(answer)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
async def test_streamed_answer_is_unpacked(
    family: Lib, clock: FakeClock, encoding: str
) -> None:
    packers = {"gzip": 31, "deflate": 15}
    body = b'{"access_token": "a"}'
    packed = body
    if encoding in packers:
        packer = zlib.compressobj(wbits=packers[encoding])
        packed = packer.compress(body) + packer.flush()

    def handler(_: Lib) -> Lib:
        headers = {"Content-Encoding": encoding}
        return streamed(family, packed, status_code=200, headers=headers)

    async with client_of(family, handler) as client:
        answer = await HTTPDriver(clock, client=client).send(token_request())

    assert answer.body == body


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("br", b"x"),
        ("gzip", b"no archive"),
        ("gzip", zlib.compress(bytes(50 * MOST_BYTES))),
        ("identity", bytes(MOST_BYTES + 1)),
    ],
    ids=["unasked", "damaged", "bomb", "large"],
)
async def test_2xx_that_cannot_be_read_is_in_doubt_and_an_error_page_is_empty(
    family: Lib, clock: FakeClock, encoding: str, body: bytes
) -> None:
    status = 200

    def handler(_: Lib) -> Lib:
        headers = {"Content-Encoding": encoding}
        return streamed(family, body, status_code=status, headers=headers)

    async with client_of(family, handler) as client:
        driver = HTTPDriver(clock, client=client)
        failure = await failure_of(driver)
        status = 503
        answer = await driver.send(token_request())

    assert failure.disposition is Disposition.RETRY
    assert (failure.sent, failure.in_doubt) == (True, True)
    assert (answer.status, answer.body) == (503, b"")


async def test_large_answer_in_memory_is_refused(family: Lib, clock: FakeClock) -> None:
    def handler(_: Lib) -> Lib:
        return family.Response(200, content=bytes(MOST_BYTES + 1))

    async with client_of(family, handler) as client:
        failure = await failure_of(HTTPDriver(clock, client=client))

    assert failure.in_doubt


async def test_redirect_is_an_answer(family: Lib, clock: FakeClock) -> None:
    seen: list[str] = []

    def handler(request: Lib) -> Lib:
        seen.append(str(request.url))
        return family.Response(307, headers={"Location": "https://evil.example/"})

    async with client_of(family, handler, follow_redirects=True) as client:
        answer = await HTTPDriver(clock, client=client).send(token_request())

    assert answer.status == 307
    assert seen == [URL]


# What failed


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("ConnectError", False),
        ("ConnectTimeout", False),
        ("PoolTimeout", False),
        ("ProxyError", False),
        ("UnsupportedProtocol", False),
        ("LocalProtocolError", False),
        ("WriteError", True),
        ("WriteTimeout", True),
        ("ReadError", True),
        ("ReadTimeout", True),
        ("CloseError", True),
        ("RemoteProtocolError", True),
        ("DecodingError", True),
    ],
)
async def test_class_tells_never_sent_from_in_doubt(
    family: Lib, clock: FakeClock, name: str, *, sent: bool
) -> None:
    """Where the transport tells nothing else."""
    async with client_of(family, raising(family, name)) as client:
        failure = await failure_of(HTTPDriver(clock, client=client))

    assert failure.disposition is Disposition.RETRY
    assert (failure.sent, failure.in_doubt) == (sent, sent)
    assert (failure.no_answer, failure.cause) == (True, name)


async def test_strange_error_of_a_transport_is_translated(
    family: Lib, clock: FakeClock
) -> None:
    def handler(_: Lib) -> Lib:
        raise KeyError(SECRET)

    async with client_of(family, handler) as client:
        failure = await failure_of(HTTPDriver(clock, client=client))

    assert (failure.cause, failure.in_doubt) == ("KeyError", True)


async def test_hook_that_raises_for_a_status_is_named(
    family: Lib, clock: FakeClock
) -> None:
    async def hook(response: Lib) -> None:
        response.raise_for_status()

    hooks = {"response": [hook]}
    async with client_of(
        family, lambda _: family.Response(400), event_hooks=hooks
    ) as client:
        failure = await failure_of(HTTPDriver(clock, client=client))

    assert failure.disposition is Disposition.MISCONFIGURED
    assert (failure.setting, failure.sent) == ("http_client", True)


async def test_own_limit_counts_from_the_first_byte(
    family: Lib, clock: FakeClock
) -> None:
    async def handler(_: Lib) -> Lib:
        await anyio.sleep_forever()

    failures: list[Failure] = []
    async with client_of(family, handler) as client:
        driver = HTTPDriver(clock, client=client)

        async def run() -> None:
            failures.append(await failure_of(driver))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await clock.advance(29.9)
            assert failures == []
            await clock.advance(0.2)

    [failure] = failures
    assert (failure.cause, failure.in_doubt) == ("TimeoutError", True)


async def test_short_limit_is_kept(family: Lib, clock: FakeClock) -> None:
    async def handler(_: Lib) -> Lib:
        await anyio.sleep_forever()

    failures: list[Failure] = []
    async with client_of(family, handler) as client:
        driver = HTTPDriver(clock, client=client)

        async def run() -> None:
            with pytest.raises(ExchangeError) as caught:
                await driver.send(token_request(), timeout=2.0)
            failures.append(caught.value.failure)

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await clock.advance(2.1)
            assert len(failures) == 1


async def test_answer_that_drips_is_given_up(family: Lib, clock: FakeClock) -> None:
    class Drip(family.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                await clock.sleep(1.0)
                yield b" "

    failures: list[Failure] = []
    handler = lambda _: family.Response(200, stream=Drip())  # noqa: E731 -- short
    async with client_of(family, handler) as client:
        driver = HTTPDriver(clock, client=client)

        async def run() -> None:
            failures.append(await failure_of(driver))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await clock.advance(31.0)
            assert len(failures) == 1

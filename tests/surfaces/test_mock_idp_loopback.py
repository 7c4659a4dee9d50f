"""The mock server on 127.0.0.1: the same answers and faults over real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any, TypeAlias

import anyio
import httpx
import httpx2
import pytest

from freshtoken.testing import DEFAULT_CLIENT_ID, DEFAULT_CLIENT_SECRET, MockIdP
from freshtoken.testing.messages import NoAnswerKind

pytestmark = pytest.mark.loopback

Family: TypeAlias = Any  # the module httpx or httpx2
Answer: TypeAlias = Any  # of either family
AUTH = (DEFAULT_CLIENT_ID, DEFAULT_CLIENT_SECRET)
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
PATIENCE = 10.0


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def family(request: pytest.FixtureRequest) -> ModuleType:
    module = request.param
    assert isinstance(module, ModuleType)
    return module


@pytest.fixture
def idp() -> Iterator[MockIdP]:
    server = MockIdP()
    yield server
    server.assert_no_pending_faults()


@contextlib.asynccontextmanager
async def client(family: Family) -> AsyncIterator[Answer]:
    """Make a client that never goes through a proxy."""
    async with family.AsyncClient(auth=AUTH, trust_env=False, timeout=PATIENCE) as http:
        yield http


async def refresh(idp: MockIdP, http: Answer, token: str | None) -> Answer:
    form = {"grant_type": "refresh_token", "refresh_token": token}
    return await http.post(idp.url("token"), data=form)


def talk(base_url: str, request: bytes) -> bytes:
    """Send bytes and return all that comes back."""
    port = int(base_url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as raw:
        raw.sendall(request)
        return b"".join(iter(lambda: raw.recv(65536), b""))


async def test_issuer_is_the_address_while_it_is_served(
    idp: MockIdP, family: Family
) -> None:
    async with idp.serve() as base_url, client(family) as http:
        assert base_url.startswith("http://127.0.0.1:")
        answer = await http.get(f"{base_url}/.well-known/openid-configuration")
        members = answer.json()

        assert members["issuer"] == idp.issuer == base_url
        assert members["token_endpoint"] == f"{base_url}/token"
        assert answer.headers["connection"] == "close"
    assert idp.issuer == "https://idp.test"


async def test_tokens_come_over_the_socket(idp: MockIdP, family: Family) -> None:
    grant = idp.new_grant()

    async with idp.serve(), client(family) as http:
        for _ in range(3):
            answer = await refresh(idp, http, grant.refresh_token)
            assert answer.json()["access_token"] == grant.access_token

    assert [one.status for one in idp.requests("token")] == [200] * 3


async def test_streamed_body_arrives_whole(idp: MockIdP, family: Family) -> None:
    async def body() -> AsyncIterator[bytes]:
        for part in (b"grant_type=client", b"_cred", b"entials"):
            yield part

    async with idp.serve(), client(family) as http:
        answer = await http.post(idp.url("token"), content=body(), headers=FORM)

    assert answer.status_code == 200
    assert idp.requests()[0].headers["transfer-encoding"] == "chunked"


async def test_connection_may_stay_open(idp: MockIdP, family: Family) -> None:
    async with idp.serve(keep_alive=True) as base_url, client(family) as http:
        first = await http.get(f"{base_url}/jwks")
        second = await http.get(f"{base_url}/jwks")
        streams = [one.extensions["network_stream"] for one in (first, second)]

    assert first.headers["connection"] == "keep-alive"
    assert streams[0] is streams[1]


@pytest.mark.parametrize(
    ("kind", "name"), [("read", "ReadError"), ("protocol", "RemoteProtocolError")]
)
@pytest.mark.parametrize("processed", [True, False])
async def test_connection_is_dropped(
    idp: MockIdP, family: Family, *, kind: NoAnswerKind, name: str, processed: bool
) -> None:
    idp.drop_next(processed=processed, kind=kind)
    grant = idp.new_grant()
    old = grant.refresh_token

    async with idp.serve(), client(family) as http:
        with pytest.raises(getattr(family, name)):
            await refresh(idp, http, old)

    assert (grant.refresh_token != old) is processed


async def test_answer_is_cut(idp: MockIdP, family: Family) -> None:
    idp.cut_next()

    async with idp.serve(), client(family) as http:
        with pytest.raises(family.RemoteProtocolError):
            await refresh(idp, http, idp.new_grant().refresh_token)

    assert not idp.requests()[0].delivered


async def test_big_and_packed_answers_arrive_whole(
    idp: MockIdP, family: Family
) -> None:
    idp.oversize_next(size=3_000_000)
    idp.reshape_next(shape="gzip")
    grant = idp.new_grant()

    async with idp.serve(), client(family) as http:
        big = await refresh(idp, http, grant.refresh_token)
        packed = await refresh(idp, http, grant.refresh_token)

    assert len(big.content) == 3_000_000
    assert packed.json()["refresh_token"] == grant.refresh_token


async def test_held_request_is_released_from_the_tests_loop(
    idp: MockIdP, family: Family
) -> None:
    fault = idp.hold_next(at="after")
    grant = idp.new_grant()
    old = grant.refresh_token
    answers = []

    async def call(http: Answer) -> None:
        answers.append(await refresh(idp, http, old))

    async with (
        idp.serve(),
        client(family) as http,
        anyio.create_task_group() as group,
    ):
        group.start_soon(call, http)
        await fault.reached()
        assert grant.refresh_token != old
        assert answers == []
        fault.release()

    assert [one.status_code for one in answers] == [200]


async def test_leaving_gives_up_what_hangs(idp: MockIdP, family: Family) -> None:
    fault = idp.hang_next()
    errors = []

    async def call(http: Answer) -> None:
        try:
            await refresh(idp, http, "rt-0-x")
        except (family.ReadError, family.RemoteProtocolError) as error:
            errors.append(error)

    async with (
        client(family) as http,
        anyio.create_task_group() as group,
        idp.serve(),
    ):
        group.start_soon(call, http)
        await fault.reached()

    assert len(errors) == 1


async def test_exception_of_the_block_comes_out_as_it_is(idp: MockIdP) -> None:
    with pytest.raises(ZeroDivisionError):
        async with idp.serve():
            raise ZeroDivisionError

    assert idp.issuer == "https://idp.test"


async def test_block_may_be_left_in_another_task(idp: MockIdP) -> None:
    """As pytest-asyncio does with fixtures that yield."""
    served = idp.serve()
    base_url = await served.__aenter__()

    async def leave() -> None:
        await served.__aexit__(None, None, None)

    async with anyio.create_task_group() as group:
        group.start_soon(leave)

    with pytest.raises(OSError, match=r"refused|reset"):
        talk(base_url, b"")


async def test_two_servers_run_side_by_side(idp: MockIdP, family: Family) -> None:
    other = MockIdP()

    async with idp.serve() as one, other.serve() as two, client(family) as http:
        assert one != two
        for base_url in (one, two):
            metadata = await http.get(f"{base_url}/.well-known/openid-configuration")
            assert metadata.json()["issuer"] == base_url


def test_threads_need_no_event_loop(idp: MockIdP) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with idp.serve_in_thread() as base_url:
        with opener.open(f"{base_url}/jwks", timeout=PATIENCE) as answer:
            assert b'"keys"' in answer.read()
        with pytest.raises(urllib.error.HTTPError) as met:
            opener.open(f"{base_url}/nothing", timeout=PATIENCE)
        met.value.close()

        assert met.value.code == 404
    assert [one.endpoint for one in idp.requests()] == ["jwks", "unknown"]
    assert "mock-idp" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /jwks HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"POST /token HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST /token HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n", b"413"),
        (
            b"POST /token HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"400",
        ),
        (
            b"POST /token HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
            b"413",
        ),
        (b"GET /jwks HTTP/1.1\r\nX: " + b"x" * 5_000_000, b"431"),
    ],
    ids=["line", "field", "length", "body", "chunk", "chunks", "head"],
)
def test_malformed_and_oversize_requests_are_refused(
    idp: MockIdP, request_bytes: bytes, status: bytes
) -> None:
    with idp.serve_in_thread() as base_url:
        answer = talk(base_url, request_bytes)

        assert answer.split(b" ")[1] == status
        assert talk(base_url, b"GET /jwks HTTP/1.1\r\n\r\n").startswith(
            b"HTTP/1.1 200 OK\r\n"
        )


@pytest.mark.parametrize("cut", [False, True])
def test_open_connection_is_closed_where_it_must_be(idp: MockIdP, *, cut: bool) -> None:
    if cut:
        idp.cut_next("jwks", keep=5)
    header = b"" if cut else b"Connection: close\r\n"

    with idp.serve_in_thread(keep_alive=True) as base_url:
        answer = talk(base_url, b"GET /jwks HTTP/1.1\r\n" + header + b"\r\n")

    assert answer.endswith(b'{"key' if cut else b"}")


def test_server_survives_clients_that_vanish(idp: MockIdP) -> None:
    with idp.serve_in_thread() as base_url:
        port = int(base_url.rpartition(":")[2])
        for part in (b"", b"GET /jw", b"POST /token HTTP/1.1\r\nContent-Length: 9\r\n"):
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as raw:
                raw.sendall(part)

        assert talk(base_url, b"GET /jwks HTTP/1.1\r\n\r\n")

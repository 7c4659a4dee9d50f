"""Faults of the mock server, met through the transports of both families."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import Any, TypeAlias, get_args

import anyio
import httpx
import httpx2
import pytest

from freshtoken.testing import (
    DEFAULT_CLIENT_ID,
    DEFAULT_CLIENT_SECRET,
    FakeClock,
    MockGrant,
    MockIdP,
)
from freshtoken.testing.fault import Point
from freshtoken.testing.faults import Body
from freshtoken.testing.messages import NoAnswerKind as Kind
from freshtoken.testing.shapes import Shape

Send = Callable[..., Any]
Family: TypeAlias = Any  # the module httpx or httpx2
Answer: TypeAlias = Any  # of either family
AUTH = (DEFAULT_CLIENT_ID, DEFAULT_CLIENT_SECRET)


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def family(request: pytest.FixtureRequest) -> ModuleType:
    module = request.param
    assert isinstance(module, ModuleType)
    return module


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def idp(clock: FakeClock) -> MockIdP:
    return MockIdP(clock=clock)


@pytest.fixture
def grant(idp: MockIdP) -> MockGrant:
    return idp.new_grant()


@pytest.fixture
def send(idp: MockIdP, family: ModuleType) -> Send:
    """Send one refresh with a client of the family."""
    make: Any = idp.http_client if family is httpx else idp.http_client2

    async def refresh(token: str | None) -> Answer:
        async with make() as http:
            form = {"grant_type": "refresh_token", "refresh_token": token}
            return await http.post(idp.url("token"), data=form, auth=AUTH)

    return refresh


def last(idp: MockIdP) -> tuple[int | None, str | None, bool]:
    record = idp.requests("token")[-1]
    return (record.status, record.fault, record.delivered)


# -- Without faults -----------------------------------------------------------------


async def test_transport_answers_a_client_of_its_family(
    idp: MockIdP, grant: MockGrant, send: Send, family: Family
) -> None:
    answer = await send(grant.refresh_token)

    assert isinstance(answer, family.Response)
    assert answer.json()["access_token"] == grant.access_token
    assert last(idp) == (200, None, True)


async def test_streamed_body_is_consumed(idp: MockIdP, family: Family) -> None:
    """A body that can be read only once cannot be sent twice by accident."""
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        for part in (b"grant_type=client", b"_credentials"):
            read += 1
            yield part

    transport = idp.transport() if family is httpx else idp.transport2()
    async with family.AsyncClient(transport=transport, auth=AUTH) as http:
        request = http.build_request(
            "POST",
            idp.url("token"),
            content=body(),
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        answer = await http.send(request)
        assert (answer.status_code, read) == (200, 2)

        with pytest.raises(family.StreamConsumed):
            await http.send(request)


async def test_other_hosts_cannot_be_connected(idp: MockIdP, family: Family) -> None:
    transport = idp.transport() if family is httpx else idp.transport2()
    async with family.AsyncClient(transport=transport) as http:
        with pytest.raises(family.ConnectError, match=r"not https://other\.test"):
            await http.get("https://other.test/jwks")


# -- Failing answers ----------------------------------------------------------------


async def test_failures_are_met_in_order_and_so_often(
    idp: MockIdP, grant: MockGrant, send: Send
) -> None:
    idp.fail_next(status=503, count=2, headers={"Retry-After": "7"})
    idp.fail_next(error="temporarily_unavailable", description="later")
    token = grant.refresh_token

    answers = [await send(token) for _ in range(4)]

    assert [one.status_code for one in answers] == [503, 503, 400, 200]
    assert answers[0].headers["retry-after"] == "7"
    assert "date" in answers[0].headers
    assert answers[2].json() == {
        "error": "temporarily_unavailable",
        "error_description": "later",
    }
    assert [one.status for one in idp.requests()] == [503, 503, 400, 200]
    assert idp.requests()[2].error == "temporarily_unavailable"
    assert grant.refreshes == 1


@pytest.mark.parametrize(
    ("body", "content", "label"),
    [
        (b"", b"", None),
        (b"raw", b"raw", None),
        ("<h1>no</h1>", b"<h1>no</h1>", "text/html; charset=utf-8"),
        ({"error": {"code": 1}}, b'{"error": {"code": 1}}', "application/json"),
    ],
)
async def test_failure_has_any_body(
    idp: MockIdP, send: Send, body: Body, content: bytes, label: str | None
) -> None:
    idp.fail_next(status=400, body=body)

    answer = await send("rt-0-x")

    assert answer.content == content
    assert answer.headers.get("content-type") == label
    assert idp.requests()[0].error is None


async def test_failure_after_processing_has_spent_the_token(
    idp: MockIdP, grant: MockGrant, send: Send
) -> None:
    idp.fail_next(status=500, processed=True)
    old = grant.refresh_token

    answer = await send(old)

    assert answer.status_code == 500
    assert grant.refresh_token != old
    assert last(idp) == (500, "500", True)


async def test_redirect_acts_on_nothing(
    idp: MockIdP, grant: MockGrant, send: Send
) -> None:
    idp.redirect_next(location="https://elsewhere.test/")

    answer = await send(grant.refresh_token)

    assert answer.status_code == 307
    assert answer.headers["location"] == "https://elsewhere.test/"
    assert grant.refreshes == 0


async def test_fault_waits_for_the_request_that_fits(
    idp: MockIdP, grant: MockGrant, send: Send
) -> None:
    idp.fail_next("revoke", status=501)
    idp.fail_next(status=502, grant_type="client_credentials")
    idp.fail_next(status=504, client_id="other")
    idp.fail_next(status=505, when=lambda one: one.form["refresh_token"] == "rt-0-x")
    idp.fail_next(status=506, skip=1)

    answers = [await send(grant.refresh_token) for _ in range(2)]
    answers.append(await send("rt-0-x"))

    assert [one.status_code for one in answers] == [200, 506, 505]
    assert [one.name for one in idp.pending_faults] == ["501", "502", "504"]


async def test_fault_without_a_count_stays(idp: MockIdP, send: Send) -> None:
    fault = idp.fail_next(status=503, count=None)
    assert idp.pending_faults == [fault]

    assert [(await send("x")).status_code for _ in range(3)] == [503] * 3

    idp.assert_no_pending_faults()
    idp.clear_faults()
    assert (await send("x")).status_code == 400


async def test_fault_never_met_fails_the_test(idp: MockIdP, send: Send) -> None:
    idp.fail_next(status=503, count=2)
    await send("x")

    with pytest.raises(AssertionError, match="'503' at 'token', met 1 of 2"):
        idp.assert_no_pending_faults()

    await send("x")
    idp.assert_no_pending_faults()


# -- No answer ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("connect", "ConnectError"),
        ("connect_timeout", "ConnectTimeout"),
        ("dns", "ConnectError"),
        ("tls", "ConnectError"),
        ("pool_timeout", "PoolTimeout"),
    ],
)
async def test_refused_request_was_never_sent(
    idp: MockIdP,
    grant: MockGrant,
    send: Send,
    family: Family,
    *,
    kind: Kind,
    name: str,
) -> None:
    fault = idp.refuse_next(kind=kind)

    with pytest.raises(getattr(family, name)) as met:
        await send(grant.refresh_token)

    assert met.value.request.url == idp.url("token")
    assert idp.requests() == []
    assert (fault.met, grant.refreshes) == (1, 0)


@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("read", "ReadError"),
        ("protocol", "RemoteProtocolError"),
        ("read_timeout", "ReadTimeout"),
        ("write", "WriteError"),
        ("write_timeout", "WriteTimeout"),
    ],
)
async def test_dropped_answer(
    idp: MockIdP,
    grant: MockGrant,
    send: Send,
    family: Family,
    *,
    kind: Kind,
    name: str,
    processed: bool,
) -> None:
    idp.drop_next(processed=processed, kind=kind)
    old = grant.refresh_token

    with pytest.raises(getattr(family, name)):
        await send(old)

    assert (grant.refresh_token == old) is not processed
    point = "after" if processed else "before"
    status = 200 if processed else None
    assert last(idp) == (status, f"drop {point} ({kind})", False)


async def test_lost_answer_kills_the_family_at_the_repeat(
    idp: MockIdP, grant: MockGrant, send: Send, family: Family
) -> None:
    idp.drop_next(processed=True)
    old = grant.refresh_token

    with pytest.raises(family.ReadError):
        await send(old)
    answer = await send(old)

    assert answer.json()["error"] == "invalid_grant"
    assert grant.ended_by == "reuse"


async def test_lost_answer_is_repeated_within_the_grace(
    idp: MockIdP, grant: MockGrant, send: Send, family: Family
) -> None:
    idp.rules.rotation = "grace"
    idp.drop_next(processed=True)
    old = grant.refresh_token

    with pytest.raises(family.ReadError):
        await send(old)
    answer = await send(old)

    assert answer.json()["refresh_token"] == grant.refresh_token != old


async def test_cut_answer_breaks_while_it_is_read(
    idp: MockIdP, grant: MockGrant, family: Family
) -> None:
    idp.cut_next(keep=20)
    old = grant.refresh_token
    read: list[bytes] = []

    async def read_all(answer: Answer) -> None:
        async for part in answer.aiter_bytes():
            read.append(part)  # noqa: PERF401 -- what came before the break counts

    transport = idp.transport() if family is httpx else idp.transport2()
    async with family.AsyncClient(transport=transport, auth=AUTH) as http:
        form = {"grant_type": "refresh_token", "refresh_token": old}
        async with http.stream("POST", idp.url("token"), data=form) as answer:
            with pytest.raises(family.RemoteProtocolError):
                await read_all(answer)

    assert (answer.status_code, len(b"".join(read))) == (200, 20)
    assert grant.refresh_token != old
    assert last(idp) == (200, "cut", False)


# -- Odd shapes ---------------------------------------------------------------------


async def test_members_are_set_and_left_out(
    idp: MockIdP, grant: MockGrant, send: Send
) -> None:
    idp.reshape_next(
        merge={"expires_in": "3600", "scope": ["a", "b"]},
        remove=("refresh_token", "token_type"),
        status=201,
        headers={"Content-Type": "text/plain"},
    )

    answer = await send(grant.refresh_token)

    assert answer.status_code == 201
    assert answer.headers["content-type"] == "text/plain"
    assert answer.json() == {
        "access_token": grant.access_token,
        "expires_in": "3600",
        "scope": ["a", "b"],
    }


@pytest.mark.parametrize("shape", get_args(Shape))
async def test_every_shape_differs_from_the_usual_one(
    idp: MockIdP, grant: MockGrant, send: Send, shape: Shape
) -> None:
    usual = await send(grant.refresh_token)
    idp.reshape_next(shape=shape)

    answer = await send(grant.refresh_token)

    assert answer.status_code == 200
    assert grant.refreshes == 2
    told = ("content-type", "content-encoding")
    assert (
        answer.content[:1] != usual.content[:1]
        or [answer.headers.get(name) for name in told]
        != [usual.headers.get(name) for name in told]
        or answer.content[:4] in {b"null", b'{"er'}
    )


async def test_shapes_keep_what_they_wrap(
    idp: MockIdP, grant: MockGrant, send: Send
) -> None:
    idp.reshape_next(shape="gzip")
    packed = await send(grant.refresh_token)
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.json()["refresh_token"] == grant.refresh_token

    idp.reshape_next(shape="form")
    form = dict(httpx.QueryParams((await send(grant.refresh_token)).text))
    assert form["refresh_token"] == grant.refresh_token

    idp.reshape_next(shape="bom")
    marked = (await send(grant.refresh_token)).content
    assert marked.startswith(b"\xef\xbb\xbf{")
    assert json.loads(marked[3:])["refresh_token"] == grant.refresh_token
    assert gzip.compress(b"", mtime=0)[:2] == b"\x1f\x8b"


def test_unknown_shape_is_refused_at_once(idp: MockIdP) -> None:
    with pytest.raises(ValueError, match="no shape 'xml'"):
        idp.reshape_next(shape="xml")  # type: ignore[arg-type]  # wrong on purpose
    assert idp.pending_faults == []


async def test_garbled_answer_is_whole_and_unreadable(
    idp: MockIdP, grant: MockGrant, send: Send
) -> None:
    idp.garble_next()
    old = grant.refresh_token

    answer = await send(old)

    with pytest.raises(ValueError, match=r"."):
        json.loads(answer.content)
    assert answer.status_code == 200
    assert grant.refresh_token != old


async def test_oversize_answer_can_be_left_half_read(
    idp: MockIdP, grant: MockGrant, family: Family
) -> None:
    idp.oversize_next(size=1_000_000)
    read = 0

    transport = idp.transport() if family is httpx else idp.transport2()
    async with family.AsyncClient(transport=transport, auth=AUTH) as http:
        form = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token}
        async with http.stream("POST", idp.url("token"), data=form) as answer:
            assert answer.headers["content-length"] == "1000000"
            async with contextlib.aclosing(aiter(answer.stream)) as parts:
                async for part in parts:
                    read += len(part)
                    if read > 100_000:
                        break

    assert 100_000 < read < 300_000


# -- Waiting ------------------------------------------------------------------------


@pytest.mark.parametrize("processed", [False, True])
async def test_delay_follows_the_clock(
    idp: MockIdP, grant: MockGrant, send: Send, clock: FakeClock, *, processed: bool
) -> None:
    idp.delay_next("token", 5.0, processed=processed)
    old = grant.refresh_token
    answers = []

    async def call() -> None:
        answers.append(await send(old))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await clock.advance(4.999)
        assert answers == []
        assert (grant.refresh_token != old) is processed

        await clock.advance(0.001)
        assert [one.status_code for one in answers] == [200]


@pytest.mark.parametrize("processed", [False, True])
async def test_hanging_request_ends_when_its_sender_gives_up(
    idp: MockIdP, grant: MockGrant, send: Send, *, processed: bool
) -> None:
    fault = idp.hang_next(processed=processed)
    old = grant.refresh_token

    async with anyio.create_task_group() as group:
        group.start_soon(send, old)
        await fault.reached()
        group.cancel_scope.cancel()
    fault.release()

    assert (grant.refresh_token != old) is processed
    assert last(idp)[2] is False
    idp.assert_no_pending_faults()


async def test_hanging_request_goes_on_when_released(
    idp: MockIdP, grant: MockGrant, send: Send, clock: FakeClock
) -> None:
    fault = idp.hang_next()

    async with anyio.create_task_group() as group:
        group.start_soon(send, grant.refresh_token)
        await fault.reached()
        await clock.advance(86_400)
        assert last(idp) == (None, "hang before", False)
        fault.release()

    assert last(idp) == (200, "hang before", True)


@pytest.mark.parametrize("at", ["before", "after"])
async def test_request_stops_at_a_named_point(
    idp: MockIdP, grant: MockGrant, send: Send, at: Point
) -> None:
    fault = idp.hold_next(at=at, count=2)
    old = grant.refresh_token

    async with anyio.create_task_group() as group:
        group.start_soon(send, old)
        await fault.reached()
        assert (grant.refresh_token != old) is (at == "after")
        group.start_soon(send, grant.refresh_token)
        await fault.reached(2)
        fault.release()

    assert [one.delivered for one in idp.requests()] == [True, True]


async def test_request_on_the_wire_outlives_its_sender(
    idp: MockIdP, grant: MockGrant, send: Send
) -> None:
    """The server acts on what it has received, whoever still waits for it."""
    fault = idp.hold_next()
    old = grant.refresh_token

    async with anyio.create_task_group() as group:
        group.start_soon(send, old)
        await fault.reached()
        group.cancel_scope.cancel()
    assert (await send(old)).status_code == 200
    assert grant.active

    fault.release()

    assert (grant.active, grant.ended_by) == (False, "reuse")
    late = idp.requests()[0]
    assert (late.status, late.error, late.delivered) == (400, "invalid_grant", False)


async def test_any_fault_may_hold_or_delay(
    idp: MockIdP, grant: MockGrant, send: Send, clock: FakeClock, family: Family
) -> None:
    held = idp.drop_next(processed=True, hold=True)
    idp.fail_next(status=503, delay=2.0)
    ends: list[object] = []

    async def call(token: str | None) -> None:
        try:
            ends.append((await send(token)).status_code)
        except family.ReadError:
            ends.append("dropped")

    async with anyio.create_task_group() as group:
        group.start_soon(call, grant.refresh_token)
        await held.reached()
        group.start_soon(call, grant.refresh_token)
        await clock.advance(1.9)
        assert ends == []
        held.release()
        await clock.settle()
        assert ends == ["dropped"]
        await clock.advance(0.1)

    assert ends == ["dropped", 503]


async def test_reached_does_not_wait_for_what_has_happened(
    idp: MockIdP, send: Send
) -> None:
    fault = idp.fail_next()
    await send("x")

    await fault.reached()

    assert not fault.pending

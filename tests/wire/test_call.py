"""What transports tell of a request under way."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from freshtoken._wire.call import Call, CallOptions
from freshtoken.testing.clock import FakeClock

ONE: tuple[object, ...] = (b"HTTP/1.1", 307, b"Go", [])
TWO: tuple[object, ...] = (307, [])


@pytest.mark.parametrize("protocol", ["http11", "http2"])
@pytest.mark.parametrize(
    ("answer", "status"), [(ONE, 307), (TWO, 307), (None, None), (("x",), None)]
)
async def test_status_is_read_from_the_trace(
    clock: FakeClock, protocol: str, answer: object, status: int | None
) -> None:
    call = Call(clock, CallOptions(30.0, None, allow_insecure_transport=False))
    call.start(tells=True)
    request = SimpleNamespace(method=b"POST")
    info: dict[str, object] = {"return_value": answer}

    await call.trace(f"{protocol}.send_request_headers.started", {"request": request})
    await call.trace(f"{protocol}.receive_response_headers.complete", info)

    assert call.status == status
    assert info == {"return_value": None}, "kept out of the debug log"


async def test_answer_of_a_proxy_is_not_the_answer(clock: FakeClock) -> None:
    call = Call(clock, CallOptions(30.0, None, allow_insecure_transport=False))
    call.start(tells=True)
    request = SimpleNamespace(method=b"CONNECT")

    await call.trace("http11.send_request_headers.started", {"request": request})
    await call.trace("http11.receive_response_headers.complete", {"return_value": ONE})

    assert call.status is None
    assert not call.was_sent()


async def test_limit_of_nothing_at_all_is_no_busy_loop(clock: FakeClock) -> None:
    call = Call(clock, CallOptions(0.0, None, allow_insecure_transport=False))
    call.start(tells=False)

    await call.sleep(1.0)

    assert clock.sleepers == 0

"""The guard, and conversations of several requests."""

from __future__ import annotations

import anyio
import pytest

from freshtoken._protocol.exchange import ExchangeError
from freshtoken._wire.http import HTTPDriver
from freshtoken.errors import Disposition, MisconfiguredError
from freshtoken.testing.clock import FakeClock
from tests.wire.families import (
    Lib,
    RefusedError,
    Talk,
    client_of,
    raising,
    token_request,
)


async def test_guard_that_refuses_sends_nothing(family: Lib, clock: FakeClock) -> None:
    calls: list[Lib] = []
    error = RefusedError()

    def guard() -> None:
        raise error

    async with client_of(family, calls.append) as client:
        with pytest.raises(RefusedError) as caught:
            await HTTPDriver(clock, client=client).send(token_request(), guard=guard)

    assert caught.value is error
    assert calls == []


@pytest.mark.parametrize("error", [MisconfiguredError("x"), TimeoutError(), OSError()])
async def test_guards_error_is_not_taken_for_one_of_the_transport(
    family: Lib, clock: FakeClock, error: Exception
) -> None:
    def guard() -> None:
        raise error

    async with client_of(family, lambda _: family.Response(200)) as client:
        with pytest.raises(type(error)) as caught:
            await HTTPDriver(clock, client=client).send(token_request(), guard=guard)
    assert caught.value is error


async def test_guard_is_asked_once_without_trace(family: Lib, clock: FakeClock) -> None:
    log: list[str] = []

    def handler(_: Lib) -> Lib:
        log.append("sent")
        return family.Response(200)

    async with client_of(family, handler) as client:
        await HTTPDriver(clock, client=client).send(
            token_request(), guard=lambda: log.append("guard")
        )

    assert log == ["guard", "sent"]


# Conversations


async def test_conversation_is_driven_to_its_end(family: Lib, clock: FakeClock) -> None:
    statuses = iter([404, 200])
    seen: list[int] = []

    def talk() -> Talk:
        first = yield token_request()
        second = yield token_request("https://as.example/other")
        return first.status + second.status

    async with client_of(family, lambda _: family.Response(next(statuses))) as client:
        total = await HTTPDriver(clock, client=client).drive(
            talk, observe=lambda answer: seen.append(answer.status)
        )

    assert total == 604
    assert seen == [404, 200]


async def test_conversation_without_a_request_returns(clock: FakeClock) -> None:
    def talk() -> Talk:
        return 5
        yield

    assert await HTTPDriver(clock).drive(talk) == 5


async def test_conversation_is_closed_when_no_answer_comes(
    family: Lib, clock: FakeClock
) -> None:
    closed: list[bool] = []

    def talk() -> Talk:
        try:
            yield token_request()
        finally:
            closed.append(True)
        return 1

    async with client_of(family, raising(family, "ReadError")) as client:
        with pytest.raises(ExchangeError):
            await HTTPDriver(clock, client=client).drive(talk)

    assert closed == [True]


async def test_conversation_is_closed_when_cancelled(
    family: Lib, clock: FakeClock
) -> None:
    closed: list[bool] = []

    def talk() -> Talk:
        try:
            yield token_request()
        finally:
            closed.append(True)
        return 1

    async def handler(_: Lib) -> Lib:
        await anyio.sleep_forever()

    async with client_of(family, handler) as client:
        driver = HTTPDriver(clock, client=client)
        async with anyio.create_task_group() as group:
            group.start_soon(driver.drive, talk)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()

    assert closed == [True]
    assert clock.sleepers == 0


@pytest.mark.parametrize("asked", [False, True])
async def test_misconfiguration_found_by_the_conversation_is_a_failure(
    family: Lib, clock: FakeClock, *, asked: bool
) -> None:
    def talk() -> Talk:
        if asked:
            yield token_request()
        raise MisconfiguredError("no endpoint", setting="revocation_endpoint")

    async with client_of(family, lambda _: family.Response(200)) as client:
        with pytest.raises(ExchangeError) as caught:
            await HTTPDriver(clock, client=client).drive(talk)

    failure = caught.value.failure
    assert failure.disposition is Disposition.MISCONFIGURED
    assert (failure.setting, failure.sent) == ("revocation_endpoint", asked)

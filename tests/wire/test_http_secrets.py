"""No secret can be reached from an error: not in text, attributes, chain or frames."""

from __future__ import annotations

import gc
import types
import zlib
from collections.abc import Awaitable, Callable, Generator

import anyio
import httpx
import httpx2
import pytest

from freshtoken._protocol.exchange import ExchangeError
from freshtoken._wire.body import MOST_BYTES
from freshtoken._wire.http import HTTPDriver
from freshtoken.errors import MisconfiguredError
from freshtoken.testing.clock import FakeClock
from tests.wire.families import (
    SECRET,
    Lib,
    RefusedError,
    Talk,
    client_of,
    failure_of,
    raising,
    streamed,
    token_request,
)


def reachable_from(error: BaseException) -> Generator[str]:
    """Everything that a debugger or an error reporter would show of an exception."""
    links: list[BaseException] = [error]
    seen: set[int] = set()
    while links:
        link = links.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield repr(link)
        yield str(link)
        yield repr(vars(link))
        links += [each for each in (link.__cause__, link.__context__) if each]
        trace = link.__traceback__
        while trace is not None:
            name = trace.tb_frame.f_code.co_filename
            if "/freshtoken/" in name:
                for value in trace.tb_frame.f_locals.values():
                    yield from texts_of(value)
            assert "/httpx" not in name
            assert "/httpcore" not in name
            trace = trace.tb_next


def texts_of(value: object, depth: int = 6) -> Generator[str]:
    """The texts inside a local variable, closures and attributes included."""
    if isinstance(value, str | bytes):
        yield str(value)
    elif depth and not isinstance(
        value, type | types.ModuleType | types.FrameType | int
    ):
        if isinstance(value, httpx.AsyncClient | httpx2.AsyncClient | FakeClock):
            return
        inside = gc.get_referents(value)
        if isinstance(value, types.FunctionType):  # not the globals of its module
            inside = [value.__closure__, value.__defaults__, value.__kwdefaults__]
        for each in inside:
            yield from texts_of(each, depth - 1)


async def send_it(driver: HTTPDriver) -> None:
    await driver.send(token_request())


async def drive_it(driver: HTTPDriver) -> None:
    def talk() -> Talk:
        answer = yield token_request()
        return answer.status

    await driver.drive(talk)


async def drive_and_refuse(driver: HTTPDriver) -> None:
    def talk(secret: str) -> Talk:
        yield token_request()
        raise MisconfiguredError(f"{len(secret)}", setting="x")

    await driver.drive(lambda: talk(SECRET))


@pytest.mark.parametrize("send", [send_it, drive_it, drive_and_refuse])
@pytest.mark.parametrize(
    "name", ["ReadError", "ConnectError", "LocalProtocolError", "InvalidURL", "answer"]
)
async def test_no_secret_can_be_reached_from_an_error(
    family: Lib,
    clock: FakeClock,
    name: str,
    send: Callable[[HTTPDriver], Awaitable[None]],
) -> None:
    """Nothing of the request in text, attributes, chain or frames."""

    def handler(request: Lib) -> Lib:
        if name == "answer":
            body = zlib.compress(bytes(9 * MOST_BYTES)) + SECRET.encode()
            headers = {"Content-Encoding": "deflate", "X-Secret": SECRET}
            return streamed(family, body, status_code=200, headers=headers)
        if name == "InvalidURL":
            raise family.InvalidURL(SECRET)
        raise getattr(family, name)(f"text {SECRET}", request=request)

    async with client_of(family, handler) as client:
        driver = HTTPDriver(clock, client=client)
        with pytest.raises(ExchangeError) as caught:
            await send(driver)

    shown = list(reachable_from(caught.value))
    assert not [text for text in shown if SECRET in text]
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


async def test_no_secret_can_be_reached_from_the_guards_error(
    family: Lib, clock: FakeClock
) -> None:
    def guard() -> None:
        raise RefusedError

    async with client_of(family, lambda _: family.Response(200)) as client:
        driver = HTTPDriver(clock, client=client)
        with pytest.raises(RefusedError) as caught:
            await driver.send(token_request(), guard=guard)

    assert not [text for text in reachable_from(caught.value) if SECRET in text]


async def test_no_secret_can_be_reached_after_our_own_limit(
    family: Lib, clock: FakeClock
) -> None:
    async def handler(_: Lib) -> Lib:
        await anyio.sleep_forever()

    caught: list[ExchangeError] = []
    async with client_of(family, handler) as client:
        driver = HTTPDriver(clock, client=client)

        async def run() -> None:
            try:
                await driver.send(token_request())
            except ExchangeError as error:
                caught.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await clock.advance(31.0)

    assert not [text for text in reachable_from(caught[0]) if SECRET in text]


def test_the_walk_finds_what_is_planted() -> None:
    """The check above can fail."""

    def leak(secret: str) -> None:
        raise ZeroDivisionError

    code = compile("def f(leak, s):\n    leak(s)\n", "/freshtoken/x.py", "exec")
    space: dict[str, Lib] = {}
    exec(code, space)  # noqa: S102 -- a frame with the right file name
    with pytest.raises(ZeroDivisionError) as caught:
        space["f"](leak, [{"a": SECRET}])

    assert [text for text in reachable_from(caught.value) if SECRET in text]


async def test_library_text_is_masked(family: Lib, clock: FakeClock) -> None:
    async with client_of(family, raising(family, "ReadError", "broken")) as client:
        failure = await failure_of(HTTPDriver(clock, client=client))

    assert SECRET not in failure.advice

"""Loops, threads, processes: a manager belongs to none of them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import pickle
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable

import anyio
import httpx
import pytest

from freshtoken import AccessToken, MemoryStore, TokenManager
from freshtoken._foundation.waiting import Waker
from freshtoken._wire.http import HTTPDriver
from freshtoken.errors import FreshTokenError, MisconfiguredError
from freshtoken.testing import FakeClock, MockGrant, MockIdP
from tests.lifecycle.conftest import MakeManager

BACKENDS = ["asyncio", "trio"]


@pytest.fixture
def own_clients(monkeypatch: pytest.MonkeyPatch, idp: MockIdP) -> None:
    """Let managers make clients of their own that reach the mock server."""

    def make_client(driver: HTTPDriver, *, loopback: bool) -> object:
        return idp.http_client()

    monkeypatch.setattr(HTTPDriver, "_make_client", make_client)


@pytest.fixture
def roaming(make_manager: MakeManager, own_clients: None) -> TokenManager:
    """A manager that may be entered in any loop."""
    return make_manager(http_client=None)


async def sign_in(tokens: TokenManager, idp: MockIdP, name: str = "crm") -> MockGrant:
    grant = idp.new_grant()
    await tokens.add_session(name, refresh_token=grant.refresh_token or "")
    return grant


async def ask_together(
    tokens: TokenManager, count: int = 5, name: str = "crm"
) -> set[str]:
    """Let several callers ask at once; return the tokens that they got."""
    seen: set[str] = set()

    async def call() -> None:
        seen.add((await tokens.get_token(name)).reveal())

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(call)
    return seen


# The library's own HTTP client


async def test_certificates_are_read_off_the_loop_before_the_first_request(
    roaming: TokenManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes long, and all callers of the loop would wait."""
    threads: list[threading.Thread] = []
    make_context = httpx.create_ssl_context

    def noting() -> ssl.SSLContext:
        threads.append(threading.current_thread())
        return make_context()

    monkeypatch.setattr(httpx, "create_ssl_context", noting)
    async with roaming:
        assert len(threads) == 1
        assert threads[0] is not threading.current_thread()


async def test_borrowed_client_needs_no_certificates_of_ours(
    manager: TokenManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(httpx, "create_ssl_context")

    async with manager as tokens:
        assert tokens.stats.flights == 0


async def test_certificates_that_cannot_be_read_are_no_reason_not_to_start(
    roaming: TokenManager, idp: MockIdP, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request that needs them says so."""

    def broken() -> ssl.SSLContext:
        raise FileNotFoundError

    monkeypatch.setattr(httpx, "create_ssl_context", broken)
    async with roaming as tokens:
        await sign_in(tokens, idp)

        assert (await tokens.get_token("crm")).reveal()


# One loop after the other


@pytest.mark.parametrize("second", BACKENDS)
@pytest.mark.parametrize("first", BACKENDS)
def test_a_manager_outlives_its_loops(
    roaming: TokenManager, idp: MockIdP, clock: FakeClock, first: str, second: str
) -> None:
    async def begin() -> tuple[MockGrant, set[str]]:
        async with roaming as tokens:
            grant = await sign_in(tokens, idp)
            return grant, await ask_together(tokens)

    async def go_on() -> set[str]:
        async with roaming as tokens:
            return await ask_together(tokens)

    grant, seen = anyio.run(begin, backend=first)
    assert seen == {grant.access_token}
    clock.advance_sync(3600)

    seen = anyio.run(go_on, backend=second)

    assert seen == {grant.access_token}
    assert len(idp.requests("token")) == 2
    assert roaming._runtimes == {}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_callers_client_serves_the_loop_of_its_first_use(
    manager: TokenManager, idp: MockIdP, backend: str
) -> None:
    async def use() -> None:
        async with manager as tokens:
            await sign_in(tokens, idp)
            await tokens.get_token("crm")

    anyio.run(use, backend=backend)

    with pytest.raises(MisconfiguredError) as raised:
        anyio.run(use, backend=backend)
    assert raised.value.setting == "http_client"
    assert len(idp.requests("token")) == 1


def test_a_cancelled_run_is_followed_by_one_that_works(
    roaming: TokenManager, idp: MockIdP
) -> None:
    """The program was interrupted in its block, with a request on the wire."""

    async def interrupted() -> None:
        async with roaming as tokens:
            await sign_in(tokens, idp)
            hang = idp.hold_next()
            task = asyncio.create_task(tokens.get_token("crm"))
            await hang.reached()
            main = asyncio.current_task()
            assert main is not None
            main.cancel()
            asyncio.get_running_loop().call_later(0.01, hang.release)
            await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(interrupted())

    async def go_on() -> set[str]:
        async with roaming as tokens:
            return await ask_together(tokens)

    assert asyncio.run(go_on()) == {idp.ledger.grants["grant-1"].access_token}
    assert len(idp.requests("token")) == 1


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_a_loop_that_ended_without_closing_is_no_hindrance(
    roaming: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    how: str,
    recwarn: pytest.WarningsRecorder,
) -> None:
    """Its wakers are still listed, in this very thread, and must not be waited for."""

    async def begin() -> MockGrant:
        await roaming.__aenter__()
        grant = await sign_in(roaming, idp)
        await roaming.get_token("crm")
        await sign_in(roaming, idp, "other")
        return grant

    async def go_on(grant: MockGrant) -> None:
        async with roaming as tokens:
            assert len(roaming._runtimes) == 1
            assert await ask_together(tokens) == {grant.access_token}
            # A token that is due earlier than all wakes whoever plans renewals.
            idp.rules.access_token_lifetime = 20.0
            await ask_together(tokens, name="other")
            await ask_together(tokens, name="other")
            await clock.advance(18)
            assert len(idp.requests("token")) == 3

    loop = asyncio.new_event_loop()
    grant = loop.run_until_complete(begin())
    if how == "cancelled":
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    waiting = asyncio.all_tasks(loop)
    loop.close()

    asyncio.run(go_on(grant))

    for task in waiting:  # they end with their loop: no word of them
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio does
        with contextlib.suppress(RuntimeError):
            task.get_coro().close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_loops_that_ended_without_closing_leave_no_trace(
    roaming: TokenManager, idp: MockIdP, backend: str
) -> None:
    async def begin() -> None:
        await roaming.__aenter__()

    for _ in range(5):
        anyio.run(begin, backend=backend)

    async def go_on() -> None:
        async with roaming:
            assert len(roaming._runtimes) == 1
            assert len(roaming._agenda._wakers) <= 1

    anyio.run(go_on, backend=backend)
    assert roaming._runtimes == {}


# Several at once


def test_two_loops_in_two_threads_make_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One manager, the real clock, and callers in both."""
    idp = MockIdP(access_token_lifetime=300.0)
    monkeypatch.setattr(HTTPDriver, "_make_client", lambda *_, **__: idp.http_client())
    manager = TokenManager(idp.client(), store=MemoryStore())
    grant = idp.new_grant()
    asyncio.run(manager.add_session("crm", refresh_token=grant.refresh_token or ""))
    idp.delay_next("token", 0.1, processed=True)
    together = threading.Barrier(2)
    seen: list[set[str]] = []
    failures: list[BaseException] = []

    async def work() -> None:
        async with manager as tokens:
            together.wait(10)
            seen.append(await ask_together(tokens, 100))

    def thread(backend: str) -> None:
        try:
            anyio.run(work, backend=backend)
        except BaseException as error:  # noqa: BLE001 -- told to the test's thread
            failures.append(error)

    began = time.perf_counter()
    threads = [threading.Thread(target=thread, args=(name,)) for name in BACKENDS]
    for one in threads:
        one.start()
    for one in threads:
        one.join(20)

    assert failures == []
    assert seen == [{grant.access_token}] * 2
    assert len(idp.requests("token")) == 1
    assert time.perf_counter() - began < 10
    assert manager._runtimes == {}
    idp.assert_no_pending_faults()


async def test_managers_made_for_each_request_share_what_their_store_holds(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    """The lease is in the store: exclusion is not the object's affair."""
    managers = [make_manager() for _ in range(10)]
    grant = await sign_in(managers[0], idp)
    hang = idp.hold_next()
    seen: list[str] = []

    async def call(manager: TokenManager) -> None:
        async with manager as tokens:
            seen.append((await tokens.get_token("crm")).reveal())

    async with anyio.create_task_group() as group:
        for manager in managers:
            group.start_soon(call, manager)
        await hang.reached()
        await clock.advance(1)
        hang.release()
        await clock.advance(2)

    assert seen == [grant.access_token] * 10
    assert len(idp.requests("token")) == 1


async def test_other_tasks_run_on_while_a_token_is_fetched(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await sign_in(tokens, idp)
        idp.delay_next("token", 1.0)
        ticks: list[float] = []

        async def tick() -> None:
            while True:
                ticks.append(clock.monotonic())
                await clock.sleep(0.01)

        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            group.start_soon(tokens.get_token, "crm")
            await clock.advance(1.0)
            group.cancel_scope.cancel()
    assert len(ticks) >= 100


def test_a_manager_used_in_a_loop_that_it_is_not_entered_in_says_so(
    roaming: TokenManager, idp: MockIdP
) -> None:
    """Another thread's loop has entered it; that does not count here."""

    async def outer() -> None:
        async with roaming as tokens:
            await sign_in(tokens, idp)
            caught: list[FreshTokenError] = []

            def other() -> None:
                try:
                    asyncio.run(_get(tokens))
                except FreshTokenError as error:
                    caught.append(error)

            await asyncio.to_thread(other)
            assert isinstance(caught[0], MisconfiguredError)
            assert caught[0].setting == "async with"
            await tokens.get_token("crm")
            await asyncio.to_thread(lambda: asyncio.run(_get(tokens)))  # from memory

    asyncio.run(outer())
    assert len(idp.requests("token")) == 1


async def _get(tokens: TokenManager) -> AccessToken:
    return await tokens.get_token("crm")


# Copies


@pytest.mark.parametrize(
    "make", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"]
)
def test_a_manager_is_not_copied(
    manager: TokenManager, make: Callable[[object], object]
) -> None:
    """Nor is a token; sessions are shared through the store."""
    with pytest.raises(TypeError, match="TokenManager"):
        make(manager)
    if make is pickle.dumps:
        with pytest.raises(TypeError, match="AccessToken"):
            make(AccessToken("at-1"))


# Processes

FORK = """
    import asyncio, os, random, sys
    from freshtoken import MemoryStore, TokenManager
    from freshtoken._wire.http import HTTPDriver
    from freshtoken.testing import MockIdP

    idp = MockIdP()
    HTTPDriver._make_client = lambda *_, **__: idp.http_client()
    manager = TokenManager(idp.client(), store=MemoryStore())
    grant = idp.new_grant()

    async def child():
        async with manager as tokens:
            session = await tokens.client_credentials(scope="orders")
            await asyncio.gather(*(tokens.get_token(session.id) for _ in range(5)))
            token = await tokens.get_token("crm")
        assert not manager._runtimes
        return token.reveal()

    async def parent():
        async with manager as tokens:
            await tokens.add_session("crm", refresh_token=grant.refresh_token)
            before = await tokens.get_token("crm")
            flights = []
            if "busy" in sys.argv:
                # Every slot of the limiter is taken while the child is made.
                hang = idp.hold_next(count=None)
                for number in range(80):
                    extra = idp.new_grant()
                    name = f"session-{number}"
                    await tokens.add_session(name, refresh_token=extra.refresh_token)
                    flights.append(asyncio.create_task(tokens.get_token(name)))
                while len(idp.requests("token")) < 76:
                    await asyncio.sleep(0)
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    idp.clear_faults()
                    asyncio.set_event_loop(None)
                    assert asyncio.run(child()) == before.reveal()
                    code = 0
                except BaseException as error:
                    print("child:", repr(error), file=sys.stderr, flush=True)
                finally:
                    os._exit(code)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            idp.clear_faults()
            await asyncio.gather(*flights)
            assert (await tokens.get_token("crm")).reveal() == before.reveal()

    asyncio.run(parent())
    print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("state", ["idle", "busy"])
def test_a_forked_child_starts_clean(state: str) -> None:
    """Inside the parent's block: loops, flights and slots stay the parent's."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(FORK), state],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "fine", done.stderr
    assert done.returncode == 0
    assert done.stderr == ""


# A program that is interrupted

INTERRUPTED = """
    import asyncio, os, signal, sys
    from freshtoken import MemoryStore, TokenManager
    from freshtoken._wire.http import HTTPDriver
    from freshtoken.testing import MockIdP

    idp = MockIdP()
    HTTPDriver._make_client = lambda *_, **__: idp.http_client()
    store = MemoryStore()
    manager = TokenManager(idp.client(), store=store)
    grant = idp.new_grant()

    async def main():
        async with manager as tokens:
            await tokens.add_session("crm", refresh_token=grant.refresh_token)
            hang = idp.hold_next(at="after")
            asyncio.get_running_loop().call_later(0.2, hang.release)
            task = asyncio.create_task(tokens.get_token("crm"))
            await hang.reached()
            os.kill(os.getpid(), signal.SIGINT)
            await task

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        record = asyncio.run(store.read("crm")).record
        assert record.refresh_token == grant.refresh_token
        assert record.lease is None
        print("fine")
"""


def test_a_program_interrupted_from_the_keyboard_saves_what_was_sent() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(INTERRUPTED)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "fine", done.stderr
    assert done.stderr == ""


# Waking across loops


@pytest.mark.parametrize("backend", BACKENDS)
def test_whoever_waits_in_an_idle_loop_is_woken_from_another_thread(
    backend: str,
) -> None:
    """Nothing else happens in that loop: to set an event there is not enough."""
    wakers: list[Waker] = []
    ready = threading.Event()
    woken = threading.Event()

    async def wait() -> None:
        wakers.append(Waker())
        ready.set()
        await wakers[0].wait()
        woken.set()

    waiting = threading.Thread(
        target=anyio.run, args=(wait,), kwargs={"backend": backend}
    )
    waiting.start()
    assert ready.wait(10)
    time.sleep(0.05)  # it has come to rest by then, most likely

    async def wake() -> bool:
        return wakers[0].wake()

    assert asyncio.run(wake())
    in_time = woken.wait(5)
    waiting.join(5)
    assert in_time
    assert asyncio.run(wake()) is False

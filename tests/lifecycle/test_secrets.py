"""No token and no secret shows itself, whatever happens and wherever one looks."""

from __future__ import annotations

import base64
import logging
import pickle
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import anyio
import pytest

import freshtoken
from freshtoken import (
    AccessToken,
    FreshTokenError,
    MemoryStore,
    Secret,
    TokenManager,
)
from freshtoken._foundation.records import Record
from freshtoken.abc import ReadResult, SwapResult
from freshtoken.events import Event
from freshtoken.testing import DEFAULT_CLIENT_SECRET, FakeClock, MockIdP

MakeManager = Callable[..., TokenManager]

LIBRARY = Path(freshtoken.__file__).parent
KIT = LIBRARY / "testing"


class LeakyStore:
    """A store whose driver quotes what it was asked to write."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self.broken = ""

    async def read(self, key: str) -> ReadResult:
        result = await self._inner.read(key)
        if "read" in self.broken and result.record is not None:
            raise ConnectionError(f"cannot read {quoted(result.record)}")
        return result

    async def swap(
        self,
        key: str,
        expect: tuple[str, int] | None,
        record: Record,
        *,
        lease_for: float | None = None,
        keep_for: float | None = None,
    ) -> SwapResult:
        if "swap" in self.broken:
            raise ConnectionError(f"cannot write {quoted(record)}")
        return await self._inner.swap(
            key, expect, record, lease_for=lease_for, keep_for=keep_for
        )


def quoted(record: Record) -> str:
    return f"{record.refresh_token} {[one.access_token for one in record.tokens]}"


def tokens_of(idp: MockIdP) -> list[str]:
    """Return all tokens that the server has ever issued."""
    return [*idp.ledger._refresh, *idp.ledger._access]


def hidden_texts(idp: MockIdP) -> list[str]:
    """Return what must not be seen, in all the forms in which it travels."""
    plain = [*tokens_of(idp), DEFAULT_CLIENT_SECRET]
    basic = base64.b64encode(f"mock-client:{DEFAULT_CLIENT_SECRET}".encode()).decode()
    encoded = [base64.b64encode(text.encode()).decode().rstrip("=") for text in plain]
    return [*plain, *map(quote_plus, plain), basic, *encoded]


class Watch:
    """Collects all that is said while a scenario runs."""

    def __init__(self, idp: MockIdP, caplog: pytest.LogCaptureFixture) -> None:
        self._idp = idp
        self._caplog = caplog
        self.errors: list[FreshTokenError] = []

    async def call(self, call: Callable[[], Any], clock: FakeClock) -> Any:  # noqa: ANN401 -- whatever it returns
        """Make a call while time passes; keep what it raises."""
        done: list[Any] = []

        async def run() -> None:
            try:
                done.append(await call())
            except FreshTokenError as error:
                self.errors.append(error)
                done.append(None)

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await clock.settle()
            while not done:
                await clock.advance(0.1)
        return done[0]

    def said(self, *things: object) -> Iterator[tuple[str, str]]:
        """Yield where something can be read, and what."""
        for record in self._caplog.records:
            yield "message", record.getMessage()
            yield "record", repr(vars(record))
        yield "formatted log", self._caplog.text
        for error in self.errors:
            yield from error_texts(error)
        for thing in things:
            yield type(thing).__name__, f"{thing!r} {thing}"

    def check(self, *things: object) -> None:
        """Fail if a secret is in anything that was said."""
        hidden = hidden_texts(self._idp)
        texts = list(self.said(*things))
        assert len(texts) > 1
        for where, text in texts:
            for secret in hidden:
                assert secret not in text, f"{secret} in {where}: {text[:2_000]}"


def error_texts(
    error: BaseException, seen: set[int] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield all that an error reporter could show of *error*, and its frames."""
    seen = set() if seen is None else seen
    if id(error) in seen:
        return
    seen.add(id(error))
    name = type(error).__name__
    yield name, f"{error!r} {error} {error.args!r}"
    yield f"{name}.__dict__", repr(vars(error))
    traceback = error.__traceback__
    while traceback is not None:
        yield from frame_texts(traceback.tb_frame)
        traceback = traceback.tb_next
    for link in (error.__cause__, error.__context__):
        if link is not None:
            yield from error_texts(link, seen)


def frame_texts(frame: types.FrameType) -> Iterator[tuple[str, str]]:
    path = Path(frame.f_code.co_filename)
    if LIBRARY not in path.parents or KIT in path.parents:
        return
    for name, value in frame.f_locals.items():
        yield f"{path.name}:{frame.f_code.co_qualname}: {name}", repr(value)


@pytest.fixture
def watch(idp: MockIdP, caplog: pytest.LogCaptureFixture) -> Watch:
    caplog.set_level(logging.DEBUG)
    for name in logging.root.manager.loggerDict:
        caplog.set_level(logging.DEBUG, name)
    return Watch(idp, caplog)


def echo(idp: MockIdP) -> dict[str, object]:
    """Return an error answer in which the server repeats what it was sent."""
    grant = idp.grant("crm")
    return {
        "error": "invalid_grant",
        "error_description": f"token {grant.refresh_token} of {grant.access_token}",
        "error_uri": f"https://idp.test/help?token={grant.refresh_token}",
        "refresh_token": grant.refresh_token,
        "hint": grant.refresh_token,
        "client": {"secret": DEFAULT_CLIENT_SECRET, "id": "mock-client"},
        DEFAULT_CLIENT_SECRET: True,
    }


SCENARIOS: dict[str, Callable[[MockIdP], object]] = {
    "nothing": MockIdP.clear_faults,
    "503": lambda idp: idp.fail_next(status=503, count=None),
    "503 with an echo": lambda idp: idp.fail_next(
        status=503, body=echo(idp), count=None
    ),
    "500 as HTML": lambda idp: idp.fail_next(
        status=500, body=f"<h1>{idp.grant('crm').refresh_token}</h1>", count=None
    ),
    "429": lambda idp: idp.fail_next(
        status=429, headers={"Retry-After": "9"}, count=None
    ),
    "invalid_grant with an echo": lambda idp: idp.fail_next(
        status=400, body=echo(idp), count=None
    ),
    "invalid_grant in a 200": lambda idp: idp.fail_next(
        status=200, body=echo(idp), count=None
    ),
    "invalid_client with an echo": lambda idp: idp.fail_next(
        status=401, body={**echo(idp), "error": "invalid_client"}, count=None
    ),
    "denied with an echo": lambda idp: idp.fail_next(
        status=403, body={**echo(idp), "error": "suspended"}, count=None
    ),
    "unclear with an echo": lambda idp: idp.fail_next(
        status=400, body={**echo(idp), "error": "weird"}, count=None
    ),
    "a token as the error code": lambda idp: idp.fail_next(
        status=400, body={"error": idp.grant("crm").refresh_token}, count=None
    ),
    "a setting": lambda idp: idp.fail_next(
        status=400, body={**echo(idp), "error": "invalid_scope"}, count=None
    ),
    "a token in a header": lambda idp: idp.fail_next(
        error="invalid_grant",
        headers={"X-Request-Id": idp.grant("crm").refresh_token or ""},
        count=None,
    ),
    "a redirect with a token": lambda idp: idp.redirect_next(
        location=f"https://x.test/cb?t={idp.grant('crm').refresh_token}", count=None
    ),
    "no connection": lambda idp: idp.refuse_next(count=None),
    "DNS": lambda idp: idp.refuse_next(kind="dns", count=None),
    "TLS": lambda idp: idp.refuse_next(kind="tls", count=None),
    "read": lambda idp: idp.drop_next(processed=False, count=None),
    "write": lambda idp: idp.drop_next(processed=False, kind="write", count=None),
    "lost": lambda idp: idp.drop_next(processed=True),
    "cut": lambda idp: idp.cut_next(keep=60, count=None),
    "garbled": lambda idp: idp.garble_next(count=None),
    "an array": lambda idp: idp.reshape_next(shape="array"),
    "another type of token": lambda idp: idp.reshape_next(
        merge={"token_type": "mac"}, count=None
    ),
    "a token that no header may carry": lambda idp: idp.reshape_next(
        merge={"access_token": "at-9\nX"}, count=None
    ),
    "odd members": lambda idp: idp.reshape_next(
        merge={"expires_in": "at once", "scope": 7, "id_token": 9}
    ),
    "discovery down": lambda idp: idp.fail_next(
        "openid_configuration", status=503, count=None
    ),
    "revoked": lambda idp: idp.revoke_grant("crm"),
}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_nothing_secret_is_said_when_a_refresh_goes_wrong(  # noqa: PLR0917 -- fixtures
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    watch: Watch,
    events: list[Event],
    name: str,
) -> None:
    """Every logger speaks at DEBUG level; errors are read with all their frames."""
    manager = make_manager()
    async with manager as tokens:
        session = await idp.new_session(tokens, "crm")
        if name != "discovery down":
            await watch.call(lambda: tokens.get_token("crm"), clock)
        SCENARIOS[name](idp)
        await clock.advance(300.0)

        for _ in range(3):
            await watch.call(lambda: tokens.get_token("crm"), clock)
            live = tokens._cache.hot.get("crm")
            if live is not None:
                token = live.token
                await watch.call(
                    lambda: tokens.get_token("crm", rejected=token),  # noqa: B023 -- called at once
                    clock,
                )
            await watch.call(lambda: tokens.get_session("crm"), clock)
            await clock.advance(700.0)
        idp.clear_faults()
        await watch.call(lambda: tokens.end_session("crm"), clock)
        await watch.call(lambda: tokens.get_token("crm"), clock)

        assert watch.errors
        record = (await store.read("crm")).record
        watch.check(manager, tokens.stats, session, store, record, *events)
        assert any(tokens_of(idp))


@pytest.mark.parametrize("broken", ["read", "swap", "read swap"])
async def test_nothing_secret_is_said_when_the_store_fails(  # noqa: PLR0917 -- fixtures
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    watch: Watch,
    events: list[Event],
    broken: str,
) -> None:
    leaky = LeakyStore(store)
    manager = make_manager(store=leaky)
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        await watch.call(lambda: tokens.get_token("crm"), clock)
        leaky.broken = broken
        other = idp.new_grant()
        secret = Secret(other.refresh_token or "")
        await clock.advance(300.0)

        await watch.call(lambda: tokens.get_token("crm"), clock)
        await watch.call(lambda: tokens.get_session("crm"), clock)
        await watch.call(lambda: tokens.end_session("crm"), clock)
        await watch.call(
            lambda: tokens.add_session("crm", refresh_token=secret, replace=True), clock
        )
        await watch.call(lambda: tokens.client_credentials(scope="a"), clock)
        leaky.broken = ""

        assert watch.errors
        watch.check(manager, tokens.stats, *events)


async def test_nothing_secret_is_said_when_a_revocation_fails(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    watch: Watch,
    events: list[Event],
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        await watch.call(lambda: tokens.get_token("crm"), clock)
        body = {**echo(idp), "error": "access_denied"}
        idp.fail_next("revoke", status=403, body=body)
        await watch.call(lambda: tokens.end_session("crm"), clock)
        await clock.settle()

        assert any(event.name == "revocation_failed" for event in events)
        watch.check(manager, tokens.stats, *events)


async def test_nothing_secret_is_said_when_the_secrets_function_fails(
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    watch: Watch,
    events: list[Event],
) -> None:
    def ask() -> str:
        raise LookupError(f"vault has {DEFAULT_CLIENT_SECRET} under another name")

    async with make_manager(client=idp.client(client_secret=ask)) as tokens:
        await idp.new_session(tokens, "crm")

        await watch.call(lambda: tokens.get_token("crm"), clock)

        assert watch.errors
        assert "LookupError" in str(watch.errors[0])
        watch.check(tokens, tokens.stats, *events)


async def test_nothing_secret_is_said_when_input_is_refused(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, watch: Watch
) -> None:
    """A token with a line break at its end is a token all the same."""
    grant = idp.new_grant()
    broken = Secret(f"{grant.refresh_token}\n")
    access = Secret(f"{grant.access_token}\n")
    good = Secret(grant.refresh_token or "")
    async with manager as tokens:
        await watch.call(lambda: tokens.add_session("crm", refresh_token=broken), clock)
        await watch.call(
            lambda: tokens.add_session("crm", refresh_token=good, access_token=access),
            clock,
        )

        assert len(watch.errors) == 2
        watch.check(tokens)


async def test_nothing_secret_is_said_of_tokens_that_callers_hand_over_as_text(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, watch: Watch
) -> None:
    grant = idp.new_grant()
    async with manager as tokens:
        await tokens.add_session("crm", refresh_token=grant.refresh_token or "")
        token = await tokens.get_token("crm")
        new = await tokens.get_token("crm", rejected=token.reveal())
        text = new.reveal()
        await watch.call(lambda: tokens.get_token("crm", rejected=text), clock)

        assert len(watch.errors) == 1
        watch.check(tokens)


async def test_nothing_secret_is_said_of_grants_that_callers_hand_over_as_text(
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    watch: Watch,
) -> None:
    grant = idp.new_grant()
    given = {
        "refresh_token": grant.refresh_token or "",
        "access_token": grant.access_token,
    }
    leaky = LeakyStore(store)
    leaky.broken = "swap"
    async with make_manager(store=leaky) as tokens:
        await watch.call(lambda: tokens.add_session("crm", **given), clock)  # type: ignore[arg-type]  # two texts

        assert len(watch.errors) == 1
        watch.check(tokens)


async def test_nothing_secret_is_said_of_a_service(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    watch: Watch,
    events: list[Event],
) -> None:
    async with manager as tokens:
        session = await tokens.client_credentials(scope="orders.read")
        await watch.call(lambda: tokens.get_token(session.id), clock)
        idp.clients["mock-client"].client_secret = "another"
        await clock.advance(300.0)
        await watch.call(lambda: tokens.get_token(session.id), clock)

        assert len(watch.errors) == 1
        watch.check(tokens, tokens.stats, session, *events)


async def test_events_and_failures_carry_no_secret_out_of_the_process(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    """A handler may pickle them for a queue; the values with secrets refuse."""
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        token = await tokens.get_token("crm")
        await tokens.end_session("crm")
        await clock.settle()

        packed = pickle.dumps(events)
        for secret in hidden_texts(idp):
            assert secret.encode() not in packed
        for holder in (token, tokens):
            with pytest.raises(TypeError):
                pickle.dumps(holder)


async def test_token_refuses_to_be_formatted(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        token = await tokens.get_token("crm")

    assert isinstance(token, AccessToken)
    with pytest.raises(TypeError, match="reveal"):
        f"Bearer {token}"
    assert token.reveal() not in f"{token!r} {str(token)!r}"


def test_the_watch_sees_what_it_is_there_to_see(
    idp: MockIdP, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the tests above could not fail."""
    watch = Watch(idp, caplog)
    secret = idp.new_grant().refresh_token
    watch.check(idp)

    logging.getLogger("freshtoken").error("sent %s", secret)
    with pytest.raises(AssertionError, match="in message"):
        watch.check(idp)
    caplog.clear()

    watch.errors.append(FreshTokenError("x", extra={"token": secret}))
    with pytest.raises(AssertionError, match="__dict__"):
        watch.check(idp)
    watch.errors.clear()

    with pytest.raises(AssertionError, match="in str"):
        watch.check(secret)
    with pytest.raises(AssertionError, match="in str"):
        watch.check(base64.b64encode(str(secret).encode()).decode())

    frames = [text for _, text in error_texts(raised_with(str(secret)))]
    assert any(str(secret) in text for text in frames)


def raised_with(secret: str) -> BaseException:
    """Return an error that came through a frame of the library with a secret."""
    code = compile(
        "def check(token):\n    raise ValueError", str(LIBRARY / "x.py"), "exec"
    )
    space: dict[str, Any] = {}
    exec(code, space)  # noqa: S102 -- a frame that says it is the library's
    try:
        space["check"](secret)
    except ValueError as error:
        return error
    raise AssertionError

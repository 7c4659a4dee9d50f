"""No code, state, verifier, binding, handle or token of a sign-in shows itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from freshtoken import (
    FreshTokenError,
    MemoryStore,
    Session,
    SignIn,
    TokenManager,
)
from freshtoken.abc import Record, SwapResult
from freshtoken.events import Event
from freshtoken.testing import FakeClock, MockIdP
from tests.lifecycle.signing import begun_at, changed, parameters
from tests.lifecycle.test_secrets import Watch

MakeManager = Callable[..., TokenManager]
Spoil = Callable[[MockIdP], object]


class SignInWatch(Watch):
    """Also looks for what belongs to a sign-in alone."""

    def __init__(self, idp: MockIdP, caplog: pytest.LogCaptureFixture) -> None:
        super().__init__(idp, caplog)
        self.hidden: list[str] = []

    def hide(self, *texts: str) -> None:
        self.hidden += texts

    def check(self, *things: object) -> None:
        super().check(*things)
        for where, text in self.said(*things):
            for secret in self.hidden:
                assert secret not in text, f"{secret} in {where}: {text[:2_000]}"


async def begun(
    watch: SignInWatch,
    idp: MockIdP,
    tokens: TokenManager,
    store: MemoryStore,
    **options: Any,  # noqa: ANN401 -- handed on
) -> tuple[SignIn, str]:
    """Begin a sign-in, and note all that must not be seen of it."""
    sign_in, callback = await begun_at(idp, tokens, **options)
    asked, answered = parameters(sign_in.url), parameters(callback)
    record = (await store.read(sign_in.key)).record
    assert record is not None
    assert record.sign_in is not None
    watch.hide(
        sign_in.binding.reveal(),
        str(record.sign_in["code_verifier"]),
        asked["state"],
        *(answered[name] for name in ("code",) if name in answered),
        *(asked[name] for name in ("nonce",) if name in asked),
    )
    return sign_in, callback


SPOILED: dict[str, Spoil] = {
    "nothing": MockIdP.clear_faults,
    "iss": lambda idp: idp.answer_authorization_with(iss="https://evil.test"),
    "denied": lambda idp: idp.answer_authorization_with(error="access_denied"),
    "unknown error": lambda idp: idp.answer_authorization_with(error="vendor_thing"),
    "503": lambda idp: idp.fail_next("token", status=503),
    "lost": lambda idp: idp.drop_next("token", processed=True),
    "garbled": lambda idp: idp.garble_next("token"),
    "grant": lambda idp: idp.fail_next("token", error="invalid_grant"),
    "client": lambda idp: idp.fail_next("token", error="invalid_client", status=401),
    "nonce": lambda idp: idp.forge_next_id_token(claims={"nonce": "x" * 43}),
    "signature": lambda idp: idp.forge_next_id_token(break_signature=True),
    "kid": lambda idp: idp.forge_next_id_token(kid="other"),
    "none": lambda idp: idp.forge_next_id_token(alg="none"),
}


@pytest.mark.parametrize("name", SPOILED)
async def test_nothing_secret_is_said_of_a_sign_in(  # noqa: PLR0917 -- fixtures
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    caplog: pytest.LogCaptureFixture,
    events: list[Event],
    *,
    name: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    watch = SignInWatch(idp, caplog)
    SPOILED[name](idp)

    async with manager as tokens:
        sign_in, callback = await begun(watch, idp, tokens, store)
        session = await watch.call(
            lambda: tokens.complete_sign_in(callback, binding=sign_in.binding), clock
        )
        again = await watch.call(
            lambda: tokens.complete_sign_in(callback, binding=sign_in.binding), clock
        )

    assert again is None
    assert (session is not None) == (name == "nothing")
    if isinstance(session, Session):
        assert session.handle is not None
        watch.hide(session.handle.reveal())
    watch.check(sign_in, session, manager, *events)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda url: url.replace("/callback", "/elsewhere"),
        lambda url: url + "&" + url.partition("?")[2],
        lambda url: changed(url, error="access_denied", error_description=url),
        lambda url: changed(url, iss="https://evil.test"),
        lambda url: changed(url, code=""),
    ],
    ids=["path", "repeated", "echoed", "issuer", "no code"],
)
async def test_nothing_secret_is_said_of_an_answer_that_does_not_fit(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    caplog: pytest.LogCaptureFixture,
    *,
    spoil: Callable[[str], str],
) -> None:
    """Not even where the server's words repeat it."""
    caplog.set_level(logging.DEBUG)
    watch = SignInWatch(idp, caplog)

    async with manager as tokens:
        sign_in, callback = await begun(watch, idp, tokens, store)
        bad = spoil(callback)
        await watch.call(
            lambda: tokens.complete_sign_in(bad, binding=sign_in.binding), clock
        )

    assert len(watch.errors) == 1
    watch.check(sign_in)


async def test_nothing_secret_is_said_when_the_store_cannot_keep_a_session(
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Leaky(MemoryStore):
        """Quotes what it was asked to write."""

        async def swap(
            self,
            key: str,
            expect: tuple[str, int] | None,
            record: Record,
            **options: float | None,
        ) -> SwapResult:
            if record.tokens:
                raise ConnectionError(f"cannot write {record.refresh_token} {key}")
            return await super().swap(key, expect, record, **options)

    caplog.set_level(logging.DEBUG)
    watch = SignInWatch(idp, caplog)
    store = Leaky(clock=clock)

    async with make_manager(store=store) as tokens:
        sign_in, callback = await begun(watch, idp, tokens, store)
        await watch.call(
            lambda: tokens.complete_sign_in(callback, binding=sign_in.binding), clock
        )

    assert [type(error).__name__ for error in watch.errors] == ["StoreError"]
    assert [grant.active for grant in idp.ledger.grants.values()] == [False]
    watch.check(sign_in)


async def test_nothing_secret_is_said_of_a_handle_that_opens_nothing(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    watch = SignInWatch(idp, caplog)
    handle = "h" * 40 + "123"
    watch.hide(handle)

    async with manager as tokens:
        await watch.call(lambda: tokens.get_session(handle=handle), clock)

    assert [type(error) for error in watch.errors] != [FreshTokenError]
    watch.check(manager)

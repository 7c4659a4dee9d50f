"""Tests of applications, as their authors write them: checked, never run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_type

import httpx
import httpx2

from freshtoken import OAuthClient, Secret, Session, TokenManager
from freshtoken.abc import SessionStore
from freshtoken.testing import (
    Browser,
    CallbackForm,
    FakeClock,
    Fault,
    MockGrant,
    MockIdP,
    MockRequest,
    MockResponse,
    MockUser,
    RequestRecord,
    SigningKey,
)
from freshtoken.testing.store_contract import (
    SessionStoreContract,
    SessionStoreFailureContract,
)
from tests.typing.ports import TheirStore


async def the_token_is_renewed(mock_idp: MockIdP, fake_clock: FakeClock) -> None:
    """As with the fixtures of the pytest plugin."""
    async with TokenManager(
        mock_idp.client(), http_client=mock_idp.http_client(), clock=fake_clock
    ) as tokens:
        session = await mock_idp.new_session(tokens)
        assert_type(session, Session)
        await tokens.get_token(session.id)
        await fake_clock.advance(300)
        await tokens.get_token(session.id)
        assert_type(mock_idp.requests("token"), list[RequestRecord])


async def the_double_itself(clock: FakeClock) -> None:
    idp = MockIdP(clock=clock, rotation="grace", grace=10.0)
    assert_type(idp.client(client_secret=None), OAuthClient)
    assert_type(idp.new_grant("alice", scope="openid"), MockGrant)
    assert_type(idp.http_client(), httpx.AsyncClient)
    assert_type(idp.http_client2(), httpx2.AsyncClient)
    fault = idp.fail_next("token", status=503, count=2)
    assert_type(fault, Fault)
    idp.drop_next(processed=True, kind="read_timeout")
    async with idp.serve() as base_url:
        assert_type(base_url, str)
    with idp.serve_in_thread() as base_url:
        assert_type(base_url, str)
    assert_type(await idp.handle(MockRequest("GET", base_url)), MockResponse)


class TheirSignIn:
    url: str
    binding: Secret


class TheirManager:
    """As the manager has it: every option by name."""

    async def begin_sign_in(
        self, *, scope: str | None = None, prompt: str | None = None
    ) -> TheirSignIn:
        return TheirSignIn()

    async def complete_sign_in(
        self,
        callback: str | Mapping[str, str] | Iterable[tuple[str, str]],
        *,
        binding: str | Secret,
        replaces: str | None = None,
    ) -> Session:
        raise NotImplementedError


async def a_user_signs_in(mock_idp: MockIdP) -> None:
    user = mock_idp.add_user("bob", email="bob@example.com", groups=["admin"])
    assert_type(user, MockUser)
    mock_idp.forge_next_id_token(claims={"nonce": "other"}, kid=None, on="code")
    mock_idp.answer_authorization_with(iss="https://evil.test", remove=["state"])
    assert_type(mock_idp.rotate_keys("hard", publish=False), SigningKey)
    session = await mock_idp.sign_in(TheirManager(), user="bob", scope="openid")
    assert_type(session, Session)
    callback = await mock_idp.browse("https://idp.test/authorize", user="bob")
    assert_type(callback, str | CallbackForm)
    async with httpx.AsyncClient() as http, httpx2.AsyncClient() as http2:
        await Browser(http, "bob").visit("https://idp.test/authorize")
        await Browser(http2).visit("https://idp.test/authorize")


class TheirStoreContract(SessionStoreContract):
    short = 1.0
    forgets = False

    async def make_store(self) -> SessionStore:
        return TheirStore()


class TheirFailingStoreContract(SessionStoreFailureContract):
    async def make_store(self) -> TheirStore:
        return TheirStore()

    async def break_store(self, store: SessionStore) -> None:
        pass

    async def mend_store(self, store: SessionStore) -> None:
        pass


def mistakes() -> None:
    """Each has to be refused: an ignore that is not needed is an error."""
    MockIdP(rotation="sometimes")  # type: ignore[arg-type]  # no such rule
    MockIdP().fail_next("token", times=2)  # type: ignore[call-arg]  # `count`
    MockIdP().rotate_keys("soft")  # type: ignore[arg-type]  # no such rotation
    MockIdP().forge_next_id_token(on="logout")  # type: ignore[arg-type]  # no ID token
    MockIdP().drop_next()  # type: ignore[call-arg]  # before or after it acted?

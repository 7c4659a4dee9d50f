"""Authorization codes of a certified OpenID Provider: used once, and by one."""

from __future__ import annotations

from typing import Literal

import anyio
import httpx
import pytest

from freshtoken import (
    AuthorizationResponseError,
    RetryableError,
    SignIn,
    SignInRequiredError,
    TokenManager,
)
from freshtoken.events import Event, SessionEnded, SignInFailed
from freshtoken.stores import MemoryStore
from tests.servers.oidc_provider_driver import (
    DEFAULT_REDIRECT_URI,
    IssuedCode,
    OidcProvider,
)
from tests.servers.sign_ins import SCOPE, browse, manager_for, refresh_now, sign_in

pytestmark = pytest.mark.loopback

BASIC = "client_secret_basic"


async def test_an_expired_code_needs_a_new_sign_in(oidc_provider: OidcProvider) -> None:
    """It is sent once, and what comes after it works."""
    oidc_provider.configure(authorization_code_ttl=20)
    async with manager_for(oidc_provider) as tokens:
        begun = await tokens.begin_sign_in(scope=SCOPE)
        callback = await browse(oidc_provider, begun.url)
        oidc_provider.shift_clock(20)

        with pytest.raises(SignInRequiredError) as caught:
            await tokens.complete_sign_in(callback, binding=begun.binding)

        assert len(oidc_provider.log("token")) == 1
        await sign_in(tokens, oidc_provider)
    assert caught.value.error == "invalid_grant"
    assert caught.value.reason == "code_refused"


async def test_a_callback_that_comes_twice_sends_nothing(
    oidc_provider: OidcProvider,
) -> None:
    """A reload of the page is refused here; the session goes on."""
    async with manager_for(oidc_provider) as tokens:
        begun = await tokens.begin_sign_in(scope=SCOPE)
        callback = await browse(oidc_provider, begun.url)
        session = await tokens.complete_sign_in(callback, binding=begun.binding)
        seen = len(oidc_provider.log())

        with pytest.raises(AuthorizationResponseError) as caught:
            await tokens.complete_sign_in(callback, binding=begun.binding)

        assert len(oidc_provider.log()) == seen
        await refresh_now(tokens, session.id)
    assert caught.value.reason == "unknown_state"


async def test_of_eight_callbacks_at_once_one_sends_the_code(
    oidc_provider: OidcProvider,
) -> None:
    """On two workers: one session, seven refusals, one request."""
    store = MemoryStore()
    outcomes: list[str] = []
    async with (
        manager_for(oidc_provider, store=store) as one,
        manager_for(oidc_provider, store=store) as other,
    ):
        begun = await one.begin_sign_in(scope=SCOPE)
        callback = await browse(oidc_provider, begun.url)

        async def complete(tokens: TokenManager) -> None:
            try:
                await tokens.complete_sign_in(callback, binding=begun.binding)
            except AuthorizationResponseError as error:
                outcomes.append(error.reason)
            else:
                outcomes.append("done")

        async with anyio.create_task_group() as group:
            for tokens in (one, other) * 4:
                group.start_soon(complete, tokens)

    assert sorted(outcomes) == ["done"] + ["unknown_state"] * 7
    assert [entry.status for entry in oidc_provider.log("token")] == [200]


async def test_a_stolen_code_is_of_no_use_without_its_verifier(
    oidc_provider: OidcProvider,
) -> None:
    """The server refuses the thief; this one then lets the rightful holder have it."""
    async with manager_for(oidc_provider) as tokens:
        begun = await tokens.begin_sign_in(scope=SCOPE)
        callback = await browse(oidc_provider, begun.url)
        code = str(httpx.URL(callback).params["code"])
        stolen = IssuedCode(code, "t" * 43, DEFAULT_REDIRECT_URI)
        theft = oidc_provider.redeem(BASIC, stolen)

        session = await tokens.complete_sign_in(callback, binding=begun.binding)

    assert theft.json()["error"] == "invalid_grant"
    assert session.claims["sub"] == "alice"


async def test_a_code_that_somebody_else_redeemed_stores_no_session(
    oidc_provider: OidcProvider,
) -> None:
    """The server ends the other one's grant, and there is nothing of ours."""
    store, events = MemoryStore(), list[Event]()
    async with manager_for(oidc_provider, store=store, events=events) as tokens:
        begun = await tokens.begin_sign_in(scope=SCOPE)
        callback = await browse(oidc_provider, begun.url)
        theirs = oidc_provider.redeem(BASIC, await issued(store, begun, callback))

        with pytest.raises(SignInRequiredError) as caught:
            await tokens.complete_sign_in(callback, binding=begun.binding)

    assert caught.value.error == "invalid_grant"
    assert caught.value.reason == "code_refused"
    assert [entry.status for entry in oidc_provider.log("token")] == [200, 400]
    assert oidc_provider.userinfo(theirs.json()["access_token"]).status_code == 401
    assert len(store) == 0
    assert [type(event) for event in events] == [SignInFailed]


async def test_a_code_that_is_redeemed_again_elsewhere_ends_the_session(
    oidc_provider: OidcProvider,
) -> None:
    """The server takes it for stolen and ends the grant; the next refresh says so."""
    store, events = MemoryStore(), list[Event]()
    async with manager_for(oidc_provider, store=store, events=events) as tokens:
        begun = await tokens.begin_sign_in(scope=SCOPE)
        callback = await browse(oidc_provider, begun.url)
        code = await issued(store, begun, callback)
        session = await tokens.complete_sign_in(callback, binding=begun.binding)
        old = await tokens.get_token(session.id)
        again = oidc_provider.redeem(BASIC, code)

        with pytest.raises(SignInRequiredError) as caught:
            await tokens.get_token(session.id, rejected=old)

    assert again.json()["error"] == "invalid_grant"
    assert caught.value.error == "invalid_grant"
    assert caught.value.cleared
    assert [e.session_id for e in events if isinstance(e, SessionEnded)] == [session.id]


@pytest.mark.parametrize("drop", ["before", "after"])
async def test_a_code_in_doubt_is_not_sent_again(
    oidc_provider: OidcProvider, drop: Literal["before", "after"]
) -> None:
    """A connection that ends without an answer says nothing about the code."""
    async with manager_for(oidc_provider) as tokens:
        begun = await tokens.begin_sign_in(scope=SCOPE)
        callback = await browse(oidc_provider, begun.url)
        oidc_provider.fault(drop=drop)

        with pytest.raises(RetryableError) as caught:
            await tokens.complete_sign_in(callback, binding=begun.binding)
        with pytest.raises(AuthorizationResponseError):
            await tokens.complete_sign_in(callback, binding=begun.binding)

    assert caught.value.request_sent
    assert len(oidc_provider.log("token")) == 1


async def test_what_fails_before_the_code_is_sent_leaves_the_sign_in_open(
    oidc_provider: OidcProvider,
) -> None:
    """One 503 is got over; a longer outage is told, and the browser comes again."""
    store = MemoryStore()
    async with manager_for(oidc_provider, store=store) as tokens:
        begun = await tokens.begin_sign_in(scope=SCOPE)
    callback = await browse(oidc_provider, begun.url)
    # Another worker: it has neither metadata nor keys.
    async with manager_for(oidc_provider, store=store) as tokens:
        oidc_provider.fault(endpoint="metadata", status=503)
        oidc_provider.fault(endpoint="jwks", status=503, count=4)

        with pytest.raises(RetryableError):
            await tokens.complete_sign_in(callback, binding=begun.binding)
        assert oidc_provider.log("token") == []
        # The server is left alone for a while, which the next refusal names.
        with pytest.raises(RetryableError) as caught:
            await tokens.complete_sign_in(callback, binding=begun.binding)
        assert caught.value.retry_after is not None
        await anyio.sleep(caught.value.retry_after)
        session = await tokens.complete_sign_in(callback, binding=begun.binding)

    assert session.claims["sub"] == "alice"
    assert len(oidc_provider.log("jwks")) == 5
    assert [entry.status for entry in oidc_provider.log("token")] == [200]


async def issued(store: MemoryStore, begun: SignIn, callback: str) -> IssuedCode:
    """Return the code of a callback with its verifier, as a thief of both has it."""
    record = (await store.read(begun.key)).record
    assert record is not None
    assert record.sign_in is not None
    verifier = str(record.sign_in["code_verifier"])
    return IssuedCode(
        str(httpx.URL(callback).params["code"]), verifier, DEFAULT_REDIRECT_URI
    )

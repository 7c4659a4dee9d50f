"""Signing out at a certified OpenID Provider, and what that ends."""

from __future__ import annotations

import anyio.to_thread
import httpx
import pytest

from freshtoken import SignInRequiredError
from freshtoken.events import Event, SessionEnded
from freshtoken.stores import MemoryStore
from tests.servers.browser import Browser
from tests.servers.oidc_provider_driver import OidcProvider
from tests.servers.sign_ins import manager_for, refresh_now, sign_in

pytestmark = pytest.mark.loopback

SIGNED_OUT = "http://127.0.0.1/signed-out"


async def test_end_session_ends_the_grant_at_the_server(
    oidc_provider: OidcProvider,
) -> None:
    async with manager_for(oidc_provider) as tokens:
        session = await sign_in(tokens, oidc_provider)
        token = await tokens.get_token(session.id)

        await tokens.end_session(session.id)

        with pytest.raises(SignInRequiredError) as caught:
            await tokens.get_session(handle=session.handle)
    assert caught.value.reason == "signed_out"
    assert [entry.status for entry in oidc_provider.log("revocation")] == [200]
    assert oidc_provider.userinfo(token.reveal()).status_code == 401


async def test_a_user_who_signs_out_at_the_server_has_to_sign_in_again(
    oidc_provider: OidcProvider,
) -> None:
    """The next refresh meets the end of the grant; after it nothing is sent."""
    oidc_provider.configure(online_refresh_tokens=True)
    store, events = MemoryStore(), list[Event]()
    with Browser(user="alice") as browser:
        async with manager_for(oidc_provider, store=store, events=events) as tokens:
            session = await sign_in(
                tokens, oidc_provider, scope="openid", browser=browser
            )
            old = await tokens.get_token(session.id)
            await sign_out(oidc_provider, browser, store, session.id)

            with pytest.raises(SignInRequiredError) as caught:
                await tokens.get_token(session.id, rejected=old)
            seen = len(oidc_provider.log("token"))
            with pytest.raises(SignInRequiredError):
                await tokens.get_token(session.id)

    assert caught.value.error == "invalid_grant"
    assert (caught.value.reason, caught.value.cleared) == ("terminal", True)
    assert len(oidc_provider.log("token")) == seen
    assert oidc_provider.userinfo(old.reveal()).status_code == 401
    assert [e.session_id for e in events if isinstance(e, SessionEnded)] == [session.id]


async def test_offline_access_outlives_the_end_of_the_browser_session(
    oidc_provider: OidcProvider,
) -> None:
    """Who signs out at the server has not taken that consent back."""
    store = MemoryStore()
    with Browser(user="alice") as browser:
        async with manager_for(oidc_provider, store=store) as tokens:
            session = await sign_in(tokens, oidc_provider, browser=browser)
            await sign_out(oidc_provider, browser, store, session.id)

            await refresh_now(tokens, session.id)

            begun = await tokens.begin_sign_in(scope="openid", prompt="none")
            callback = await anyio.to_thread.run_sync(browser.open, begun.url)
            with pytest.raises(SignInRequiredError) as caught:
                await tokens.complete_sign_in(callback, binding=begun.binding)
    assert caught.value.error == "login_required"


async def sign_out(
    provider: OidcProvider, browser: Browser, store: MemoryStore, session_id: str
) -> None:
    """Send the browser to the server's logout, with the ID token of its session.

    Spec: OpenID Connect RP-Initiated Logout §2.
    """
    record = (await store.read(session_id)).record
    assert record is not None
    assert record.id_token is not None
    query = {
        "id_token_hint": record.id_token,
        "post_logout_redirect_uri": SIGNED_OUT,
        "state": "left",
    }
    url = str(httpx.URL(provider.endpoint("end_session"), params=query))
    back = await anyio.to_thread.run_sync(browser.open, url, SIGNED_OUT)
    assert back == f"{SIGNED_OUT}?state=left"

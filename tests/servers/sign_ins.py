"""The library's sign-in against a real server, with a browser played by the driver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio.to_thread

from freshtoken import OAuthClient, Session, TokenManager
from freshtoken.abc import SessionStore
from freshtoken.events import Event
from tests.servers.oidc_provider_driver import (
    DEFAULT_REDIRECT_URI,
    Browser,
    OidcProvider,
)

SCOPE = "openid offline_access"
DEFAULT_LEEWAY = 30.0


def client_for(
    provider: OidcProvider, name: str, *, leeway: float = DEFAULT_LEEWAY
) -> OAuthClient:
    """Make the library's client from what the server has registered."""
    registered = provider.client(name)
    return OAuthClient(
        provider.issuer,
        client_id=registered.client_id,
        client_secret=registered.client_secret,
        redirect_uri=DEFAULT_REDIRECT_URI,
        id_token_signed_response_alg=registered.id_token_signed_response_alg,
        leeway=leeway,
    )


@asynccontextmanager
async def manager_for(
    provider: OidcProvider,
    name: str = "client_secret_basic",
    *,
    store: SessionStore | None = None,
    events: list[Event] | None = None,
    leeway: float = DEFAULT_LEEWAY,
) -> AsyncIterator[TokenManager]:
    """Enter a manager as one worker of an application would."""
    heard = events if events is not None else []
    client = client_for(provider, name, leeway=leeway)
    async with TokenManager(client, store=store, on_event=heard.append) as tokens:
        yield tokens


async def browse(
    provider: OidcProvider,
    url: str,
    user: str | None = "alice",
    *,
    refusal: str | None = None,
    browser: Browser | None = None,
) -> str:
    """Send the user's browser to *url* without holding the event loop up."""
    go = partial(provider.sign_in_at, url, user, refusal=refusal, browser=browser)
    return await anyio.to_thread.run_sync(go)


async def sign_in(
    tokens: TokenManager,
    provider: OidcProvider,
    user: str = "alice",
    *,
    scope: str = SCOPE,
    max_age: int | None = None,
    resource: str | None = None,
    browser: Browser | None = None,
) -> Session:
    """Do the whole dance: begin, browse, complete."""
    begun = await tokens.begin_sign_in(scope=scope, max_age=max_age, resource=resource)
    callback = await browse(provider, begun.url, user, browser=browser)
    return await tokens.complete_sign_in(callback, binding=begun.binding)


async def refresh_now(tokens: TokenManager, session_id: str) -> None:
    """Renew a token before its time, as the hook does after a 401."""
    old = await tokens.get_token(session_id)
    new = await tokens.get_token(session_id, rejected=old)
    assert new.reveal() != old.reveal()


def number(claim: object) -> float:
    """Return a claim that has to be a number."""
    assert isinstance(claim, int | float)
    return float(claim)

"""A web backend and a service, as their developers write them: checked, never run."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import httpx

import freshtoken
from freshtoken import (
    AccessToken,
    Disposition,
    MemoryStore,
    OAuthClient,
    Secret,
    Session,
    TokenManager,
)
from freshtoken.events import Event, Stats


async def ask_the_vault() -> Secret:
    return Secret("from the vault")


def clients() -> list[OAuthClient]:
    return [
        OAuthClient("https://idp.example.com", client_id="web", client_secret="text"),
        OAuthClient(
            "https://idp.example.com", client_id="web", client_secret=Secret("text")
        ),
        OAuthClient(
            "https://idp.example.com", client_id="web", client_secret=lambda: "text"
        ),
        OAuthClient(
            "https://idp.example.com", client_id="web", client_secret=ask_the_vault
        ),
        OAuthClient("https://idp.example.com", client_id="native"),
        OAuthClient(
            "https://idp.example.com",
            client_id="web",
            private_key=Path("key.pem").read_text(encoding="utf-8"),
            private_key_id="k1",
            token_endpoint_auth_method="private_key_jwt",
            signing_algorithm="ES256",
        ),
        OAuthClient(
            "https://idp.example.com",
            client_id="web",
            client_secret="text",
            redirect_uri="https://app.example.com/callback",
            metadata={"token_endpoint": "https://idp.example.com/token"},
            discovery=None,
            default_lifetime=300,
            error_codes={"account_locked": Disposition.DENIED},
        ),
    ]


async def web_backend(client: OAuthClient) -> None:
    events: list[Event] = []
    async with (
        TokenManager(client, store=MemoryStore(), on_event=events.append) as tokens,
        httpx.AsyncClient() as api,
    ):
        assert_type(tokens, TokenManager)
        response = await api.get(
            "https://api.example.com/orders",
            auth=tokens.auth("user-1", origins=["https://api.example.com"]),
        )
        assert_type(response, httpx.Response)

        token = await tokens.get_token("user-1")
        assert_type(token, AccessToken)
        assert_type(token.reveal(), str)
        assert_type(token.expires_at, float | None)
        assert_type(token.token_type, str)
        assert_type(token.scope, tuple[str, ...] | None)
        assert_type(tokens.stats, Stats)


async def service(tokens: TokenManager) -> None:
    session = await tokens.client_credentials(scope="orders.read")
    assert_type(session, Session)
    assert_type(session.id, str)
    assert_type(session.scope, tuple[str, ...] | None)
    await tokens.client_credentials(
        scope=["orders.read", "orders.write"], resource="https://api.example.com"
    )

    token = await tokens.get_token(session.id, min_validity=60)
    await tokens.get_token(session.id, rejected=token)
    await tokens.get_token(session.id, rejected=token.reveal())
    await tokens.get_token(
        session.id, resource="https://api.example.com", scope={"orders.read"}
    )


async def grants_from_elsewhere(tokens: TokenManager, old: AccessToken) -> None:
    await tokens.add_session("crm", refresh_token="text")
    await tokens.add_session("crm", refresh_token=Secret("text"), replace=True)
    session = await tokens.add_session(
        "crm",
        refresh_token="text",
        access_token=old,
        expires_at=old.expires_at,
        refresh_expires_at=1_900_000_000,
        scope="openid profile",
    )
    assert_type(await tokens.get_session(session.id), Session)
    await tokens.end_session(session.id)


async def their_own_http_client(client: OAuthClient) -> None:
    """One that knows the company's proxy."""
    async with httpx.AsyncClient(proxy="https://proxy.example.com") as http_client:
        tokens = TokenManager(
            client,
            http_client=http_client,
            keep_session_on={"invalid_client"},
            early_renewal=False,
        )
        async with tokens as entered:
            assert_type(entered, TokenManager)


async def mistakes(client: OAuthClient, tokens: TokenManager) -> None:
    """Each line has to be refused: an ignore that is not needed is an error."""
    freshtoken.TokenManagr  # type: ignore[attr-defined]  # noqa: B018 -- no such name
    OAuthClient("https://idp.example.com", "web")  # type: ignore[call-arg]  # keyword-only
    OAuthClient("https://idp.example.com", client_id="web", client_secret=b"x")  # type: ignore[arg-type]  # bytes
    OAuthClient(
        "https://idp.example.com",
        client_id="web",
        token_endpoint_auth_method="basic",  # type: ignore[arg-type]  # no such method
    )
    TokenManager(client, MemoryStore())  # type: ignore[call-arg]  # keyword-only
    TokenManager(client, store={})  # type: ignore[arg-type]  # no store
    tokens.auth("crm")  # type: ignore[call-arg]  # without origins
    await tokens.add_session("crm")  # type: ignore[call-arg]  # without a grant
    await tokens.add_session("crm", refresh_token=None)  # type: ignore[arg-type]  # none
    await tokens.get_token("crm", None, "orders.read")  # type: ignore[call-arg]  # keyword-only

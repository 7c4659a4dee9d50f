"""The auth hook in front of both families of clients: checked, never run."""

from __future__ import annotations

from typing import assert_type

import httpx
import httpx2

from freshtoken import TokenManager
from freshtoken.auth import BearerAuth

URL = "https://api.example.com/orders"
API = ["https://api.example.com"]


async def with_httpx(tokens: TokenManager) -> None:
    hook = tokens.auth("crm", origins=API)
    assert_type(hook, BearerAuth)
    assert_type(hook.session_id, str)
    async with httpx.AsyncClient(auth=hook) as client:
        await client.get(URL, auth=hook)
        await client.post(URL, json={}, auth=hook)
        await client.send(client.build_request("GET", URL), auth=hook)
        async with client.stream("GET", URL, auth=hook) as response:
            assert_type(response, httpx.Response)
        client.auth = hook


async def with_httpx2(tokens: TokenManager) -> None:
    hook = tokens.auth("crm", origins=API)
    async with httpx2.AsyncClient(auth=hook) as client:
        await client.get(URL, auth=hook)
        await client.post(URL, json={}, auth=hook)
        await client.send(client.build_request("GET", URL), auth=hook)
        async with client.stream("GET", URL, auth=hook) as response:
            assert_type(response, httpx2.Response)
        client.auth = hook


def takes_either(tokens: TokenManager) -> tuple[httpx.Auth, httpx2.Auth]:
    """One value for both."""
    hook = tokens.auth(
        "crm", origins=("http://localhost:8000",), resource=URL, scope=["a", "b"]
    )
    return hook, hook


def a_client_that_keeps_the_session(tokens: TokenManager) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url="https://api.example.com",
        auth=tokens.auth("crm", origins=iter(API), scope="orders.read"),
    )

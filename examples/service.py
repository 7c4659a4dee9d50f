"""A service that calls an API with tokens of its own (client credentials).

Run it as it is: a mock authorization server and an API are started on this machine,
with tokens that live two seconds. Or set ISSUER, CLIENT_ID, CLIENT_SECRET, API_URL
and, if yours needs one, SCOPE, and it calls your own API.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping

import anyio
import httpx
from loopback_api import LoopbackAPI

from freshtoken import OAuthClient, TokenManager
from freshtoken.testing import DEFAULT_CLIENT_ID, DEFAULT_CLIENT_SECRET, MockIdP


async def call_api(settings: Mapping[str, str]) -> None:
    """Be the service: this is all that it needs."""
    client = OAuthClient(
        settings["ISSUER"],
        client_id=settings["CLIENT_ID"],
        client_secret=settings["CLIENT_SECRET"],
    )
    url = httpx.URL(settings["API_URL"])
    origin = f"{url.scheme}://{url.netloc.decode()}"
    async with TokenManager(client) as tokens, httpx.AsyncClient() as api:
        service = await tokens.client_credentials(scope=settings.get("SCOPE"))
        auth = tokens.auth(service.id, origins=[origin])
        for number in range(1, 9):
            response = await api.get(url, auth=auth)
            print(f"call {number}: {response.status_code} {response.reason_phrase}")
            await anyio.sleep(0.5)


@contextlib.asynccontextmanager
async def servers_here() -> AsyncIterator[dict[str, str]]:
    """Start servers on this machine; say at the end what they saw."""
    os.environ["no_proxy"] = "127.0.0.1"  # Whatever proxy there is, not for these.
    idp = MockIdP(access_token_lifetime=2.0)
    async with idp.serve() as issuer:
        with LoopbackAPI(idp) as api:
            yield {
                "ISSUER": issuer,
                "CLIENT_ID": DEFAULT_CLIENT_ID,
                "CLIENT_SECRET": DEFAULT_CLIENT_SECRET,
                "API_URL": f"{api.url}/orders",
                "SCOPE": "orders.read",
            }
        refused = sum(record.saw != "live" for record in api.log)
    print(f"the API saw {len(api.log)} requests, and refused {refused} of them")
    print(f"the authorization server saw {len(idp.requests('token'))} token requests")


async def main() -> None:
    """Call your own API if the environment names one, else the one made here."""
    if "ISSUER" in os.environ:
        await call_api(os.environ)
    else:
        async with servers_here() as settings:
            await call_api(settings)


if __name__ == "__main__":
    anyio.run(main)

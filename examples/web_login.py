"""A web backend that signs users in, and calls an API on their behalf.

Any ASGI server runs it, such as ``uvicorn --factory web_login:from_environment``; the
tests of such a backend are in `test_web_login.py`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from freshtoken import OAuthClient, TokenManager
from freshtoken.starlette import SignInRoutes


def make_app(tokens: TokenManager, api: httpx.AsyncClient, origin: str) -> Starlette:
    """Return the application: three routes for signing in, two of its own."""
    auth = SignInRoutes(tokens)

    async def home(request: Request) -> Response:
        if await auth.find_session(request) is None:
            return HTMLResponse('<a href="/login?return_to=/me">Sign in</a>')
        return HTMLResponse('<form method="post" action="/logout"><button>Sign out')

    async def me(request: Request) -> Response:
        session = await auth.session(request)  # or to the login, or a 401
        token = tokens.auth(session.id, origins=[origin])
        answer = await api.get(f"{origin}/userinfo", auth=token)
        return JSONResponse({"claims": dict(session.claims), "api": answer.json()})

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with tokens, api:
            yield

    return Starlette(
        routes=[*auth.routes, Route("/", home), Route("/me", me)],
        exception_handlers=auth.exception_handlers,
        lifespan=lifespan,
    )


def from_environment() -> Starlette:
    """Return the application for the client that the environment describes."""
    client = OAuthClient(
        os.environ["ISSUER"],
        client_id=os.environ["CLIENT_ID"],
        client_secret=os.environ["CLIENT_SECRET"],
        redirect_uri=os.environ["REDIRECT_URI"],  # such as https://…/callback
    )
    return make_app(TokenManager(client), httpx.AsyncClient(), os.environ["API_ORIGIN"])

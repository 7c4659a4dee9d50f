"""The README's code runs as it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI

from freshtoken import (
    JWTValidator,
    OAuthClient,
    RetryableError,
    Session,
    TokenManager,
    TokenRejectedError,
)
from freshtoken.starlette import SignInRoutes
from freshtoken.testing import MockIdP

ROOT = Path(__file__).parent.parent
BLOCKS: list[str] = re.findall(
    r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
)


def block_with(text: str) -> str:
    """Return the one code block that holds *text*."""
    (found,) = [block for block in BLOCKS if text in block]
    return found


def test_the_ten_lines_run() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block_with("anyio.run(main)")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.stderr == ""
    assert re.fullmatch(r"\*\*\* is good until \d+\.\d+\n", done.stdout)


def test_the_test_of_ones_own_passes(tmp_path: Path) -> None:
    code = "from freshtoken import JWTValidator, TokenManager\n\n\n"
    code += (
        block_with("test_the_token_is_renewed") + "\n\n" + block_with("orders_are_for")
    )
    (tmp_path / "test_mine.py").write_text(code)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "anyio_mode=auto", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout  # two tests, on asyncio and on trio


async def run_lines(lines: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run lines of a coroutine; return the names that they leave."""
    body = textwrap.indent(lines, "    ")
    exec(f"async def block():\n{body}\n    return locals()", names)  # noqa: S102 -- the README's own lines
    left: dict[str, Any] = await names["block"]()
    return left


async def test_the_two_calls_of_a_sign_in_run() -> None:
    begin, complete = block_with("complete_sign_in").split("# send the browser", 1)
    complete = complete.split("\n", 1)[1]
    idp = MockIdP()
    async with TokenManager(idp.client(), http_client=idp.http_client()) as tokens:
        sign_in = (await run_lines(begin, {"tokens": tokens}))["sign_in"]
        names = {
            "tokens": tokens,
            "callback_url": await idp.browse(sign_in.url),
            "cookie": sign_in.binding.reveal(),
        }
        left = await run_lines(complete, names)

    assert left["session"].claims["sub"] == "alice"


@pytest.mark.parametrize("good", [True, False])
async def test_the_lines_of_a_resource_server_run(*, good: bool) -> None:
    api = "https://api.example.com"
    idp = MockIdP("https://idp.example.com", access_token_format="jwt")
    async with TokenManager(idp.client(), http_client=idp.http_client()) as tokens:
        scope = "orders.read" if good else "other"
        service = await tokens.client_credentials(scope=scope, resource=api)
        token = await tokens.get_token(service.id)
    headers = {"authorization": f"Bearer {token.reveal()}"}
    names = {
        "JWTValidator": partial(JWTValidator, http_client=idp.http_client()),
        "TokenRejectedError": TokenRejectedError,
        "RetryableError": RetryableError,
        "request": SimpleNamespace(headers=headers),
    }

    left = await run_lines(block_with("validator.challenge"), names)

    if good:
        assert left["token"].scope == ("orders.read",)
    else:
        assert left["status"] == 403
        assert 'scope="orders.read"' in left["challenge"]


async def test_the_lines_of_a_web_backend_run() -> None:
    code = block_with("SignInRoutes(").replace("    lifespan=...,\n", "")
    code = code.replace("client_secret=...", "client_secret='x'")
    names: dict[str, Any] = {
        "OAuthClient": OAuthClient,
        "TokenManager": TokenManager,
        "SignInRoutes": SignInRoutes,
        "FastAPI": FastAPI,
        "Annotated": Annotated,
        "Session": Session,
        "Depends": Depends,
    }

    exec(code, names)  # noqa: S102 -- the README's own lines

    schema = names["app"].openapi()
    assert list(schema["paths"]) == ["/orders"]


def test_every_page_that_it_names_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)

    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target

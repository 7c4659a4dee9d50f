"""The examples run as they are, in processes of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from freshtoken.testing import DEFAULT_CLIENT_ID, DEFAULT_CLIENT_SECRET, MockIdP

pytestmark = pytest.mark.loopback

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run an example, with warnings as errors; return what it printed."""
    kept = {key: value for key, value in os.environ.items() if key != "ISSUER"}
    return subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name],
        capture_output=True,
        text=True,
        timeout=120.0,
        check=False,
        env={**kept, **environment},
    )


def test_service_calls_its_api_across_several_tokens() -> None:
    """No call fails, though tokens live shorter than the service runs."""
    done = run("service.py", HTTP_PROXY="http://127.0.0.1:9")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(": 200 OK\n") == 8
    assert "the API saw 8 requests, and refused 0 of them" in done.stdout
    requests = re.search(r"server saw (\d+) token requests", done.stdout)
    assert requests is not None
    assert int(requests[1]) in {3, 4}


def test_service_takes_its_server_from_the_environment() -> None:
    """With ISSUER and the rest, nothing is started: the service calls what they say."""
    idp = MockIdP()
    with idp.serve_in_thread() as issuer:
        done = run(
            "service.py",
            ISSUER=issuer,
            CLIENT_ID=DEFAULT_CLIENT_ID,
            CLIENT_SECRET=DEFAULT_CLIENT_SECRET,
            API_URL=idp.url("userinfo"),
            SCOPE="openid",
            no_proxy="127.0.0.1",
        )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(": 200 OK\n") == 8
    assert len(idp.requests("token", grant_type="client_credentials")) == 1
    assert len(idp.requests("userinfo")) == 8


def test_web_backend_passes_the_tests_of_its_author() -> None:
    """They are run as their author would, with nothing of this project's settings."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", EXAMPLES, EXAMPLES / "test_web_login.py"),
        ],
        capture_output=True,
        text=True,
        timeout=120.0,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    # Three tests, on asyncio and on trio.
    assert "6 passed" in done.stdout

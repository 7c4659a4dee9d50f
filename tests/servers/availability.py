"""What a machine must have before a real server can be started on it.

A server that cannot be started is left out, and the suite says so in one line.
With ``FRESHTOKEN_REQUIRE=all`` in the environment (or a list of names, as in
``FRESHTOKEN_REQUIRE=oidc-provider,redis``) it fails instead.
"""

import os
from typing import NoReturn

import pytest

_left_out: dict[str, str] = {}


class UnavailableError(Exception):
    """This machine cannot run a server; the text says in one line what is missing."""


def is_required(name: str) -> bool:
    """Say whether *name* must be there, by the environment of this run."""
    wanted = os.environ.get("FRESHTOKEN_REQUIRE", "")
    names = {part.strip() for part in wanted.split(",")}
    return "all" in names or name in names


def leave_out(name: str, reason: str) -> NoReturn:
    """Skip the running test for want of *name*, or fail it where it is required."""
    line = f"left out: {name} ({reason})"
    if is_required(name):
        pytest.fail(f"{line}, and FRESHTOKEN_REQUIRE asks for it", pytrace=False)
    _left_out[name] = reason
    pytest.skip(line)


def left_out_line() -> str | None:
    """Return one line on all that was left out so far, for the end of the report."""
    if not _left_out:
        return None
    parts = (f"{name} ({reason})" for name, reason in sorted(_left_out.items()))
    return "left out: " + ", ".join(parts)

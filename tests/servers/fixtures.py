"""Fixtures of the real servers, for a ``conftest.py`` to import.

Import `oidc_provider` and `oidc_provider_process`: the one needs the other.
"""

import contextlib
import sys
from collections.abc import Generator

import pytest

from tests.servers.availability import UnavailableError, leave_out
from tests.servers.oidc_provider_driver import OidcProvider


@pytest.fixture(scope="session")
def oidc_provider_process() -> Generator[OidcProvider | str]:
    """Run one server for the session, or give the reason why there is none.

    The reason is handed on instead of skipping here, so that `oidc_provider` decides
    for each test.
    """
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(OidcProvider.start())
        except UnavailableError as error:
            yield str(error)
            return
        yield server


@pytest.fixture
def oidc_provider(
    oidc_provider_process: OidcProvider | str,
) -> Generator[OidcProvider]:
    """Give a test the running server in its first state.

    A fault that was queued and never met fails the test. What the server saw and
    printed is shown with a test that failed.
    """
    if isinstance(oidc_provider_process, str):
        leave_out("oidc-provider", oidc_provider_process)
    server = oidc_provider_process
    server.reset()
    printed = len(server.output())

    yield server

    for entry in server.log():
        sys.stdout.write(f"{entry}\n")
    sys.stdout.write(server.output()[printed:])
    pending = server.pending_faults()
    assert not pending, f"faults that no request met: {pending}"

"""Fixtures for pytest: a fake clock and a mock identity provider.

pytest loads this module in every test run of everybody who has the library installed,
so it imports nothing until a fixture is used. The fixtures are synchronous and touch
no event loop: they work under anyio's plugin, pytest-asyncio and without either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshtoken.testing import FakeClock, MockIdP


@pytest.fixture
def fake_clock() -> FakeClock:
    """Give the test a clock that stands still until it is moved."""
    from freshtoken.testing import FakeClock

    return FakeClock()


@pytest.fixture
def mock_idp(request: pytest.FixtureRequest) -> Iterator[MockIdP]:
    """Give the test a mock identity provider.

    It lives by ``fake_clock`` where the test uses that, else by the machine's clock.
    A fault that was queued and never met fails the test.
    """
    from freshtoken.testing import MockIdP

    uses_fake = "fake_clock" in request.fixturenames
    clock = request.getfixturevalue("fake_clock") if uses_fake else None
    idp = MockIdP(clock=clock)
    yield idp
    idp.assert_no_pending_faults()

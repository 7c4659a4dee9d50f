"""The pytest plugin, in runs of pytest as users start them."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

# Neither plugin for async tests.
ALONE = ("-p", "no:anyio", "-p", "no:asyncio")
USERS_TEST = """
    import pytest
    from freshtoken import MemoryStore, TokenManager

    @pytest.mark.{marker}
    async def test_session_stays_fresh(mock_idp, fake_clock):
        http, store = mock_idp.http_client(), MemoryStore(clock=fake_clock)
        options = {{"store": store, "http_client": http, "clock": fake_clock}}
        async with http, TokenManager(mock_idp.client(), **options) as tokens:
            session = await mock_idp.new_session(tokens)
            first = await tokens.get_token(session.id)
            await fake_clock.advance(400)
            second = await tokens.get_token(session.id)
        assert not mock_idp.is_active(first.reveal())
        assert mock_idp.is_active(second.reveal())
        assert len(mock_idp.requests("token")) == 2
"""


def run(pytester: pytest.Pytester, source: str, *args: str) -> pytest.RunResult:
    """Run a test file with nothing but its text and what is installed."""
    pytester.makepyfile(source)
    return pytester.runpytest_subprocess(*args, "-W", "error")


def test_plugin_is_an_entry_point() -> None:
    (found,) = entry_points(group="pytest11", name="freshtoken")

    assert found.value == "freshtoken.pytest_plugin"


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_users_test_passes_under_pytest_asyncio(
    pytester: pytest.Pytester, mode: str
) -> None:
    result = run(
        pytester,
        USERS_TEST.format(marker="asyncio"),
        *("-p", "no:anyio", "-o", f"asyncio_mode={mode}"),
        *("-o", "asyncio_default_fixture_loop_scope=function"),
    )

    result.assert_outcomes(passed=1)


def test_users_test_passes_under_anyio_on_both_loops(
    pytester: pytest.Pytester,
) -> None:
    result = run(pytester, USERS_TEST.format(marker="anyio"), "-v", "-p", "no:asyncio")

    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines_random(["*asyncio*PASSED*", "*trio*PASSED*"])


def test_fixtures_need_no_async_plugin(pytester: pytest.Pytester) -> None:
    source = """
        def test_in_a_thread(mock_idp, fake_clock):
            grant = mock_idp.new_grant()
            assert mock_idp.now() == fake_clock.time()
            fake_clock.advance_sync(300)
            assert not mock_idp.is_active(grant.access_token)
    """

    result = run(pytester, source, *ALONE)

    result.assert_outcomes(passed=1)


def test_without_the_fake_clock_the_server_lives_by_the_real_one(
    pytester: pytest.Pytester,
) -> None:
    source = """
        import time

        def test_real_time(mock_idp):
            assert abs(mock_idp.now() - time.time()) < 60

        def test_fake_time_for_another(mock_idp, fake_clock):
            assert abs(mock_idp.now() - time.time()) > 60
    """

    run(pytester, source, *ALONE).assert_outcomes(passed=2)


def test_fault_never_met_fails_the_run(pytester: pytest.Pytester) -> None:
    source = """
        def test_forgets_to_call(mock_idp):
            mock_idp.fail_next(status=503)

        def test_starts_afresh(mock_idp):
            assert mock_idp.pending_faults == []
    """

    result = run(pytester, source, *ALONE)

    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*no request met Fault('503' at 'token', met 0 of 1)"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_each_test_gets_its_own(pytester: pytest.Pytester) -> None:
    source = """
        import pytest

        @pytest.mark.parametrize("number", range(2))
        def test_alone(mock_idp, fake_clock, number):
            assert fake_clock.time() == 1_800_000_000
            assert mock_idp.new_grant().id == "grant-1"
            fake_clock.advance_sync(1)
    """

    run(pytester, source, *ALONE).assert_outcomes(passed=2)


def test_loading_the_plugin_loads_nothing_else() -> None:
    """Everybody's test runs load it; few of them use it."""
    code = (
        "import pytest, sys; before = set(sys.modules);"
        "import freshtoken.pytest_plugin; print(*sorted(set(sys.modules) - before))"
    )

    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )

    assert loaded.stdout.split() == ["freshtoken", "freshtoken.pytest_plugin"]

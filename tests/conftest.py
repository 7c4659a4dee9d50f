"""What all test folders share."""

from __future__ import annotations

import pytest

from tests.servers.availability import left_out_line


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line what this machine could not run."""
    line = left_out_line()
    if line:
        terminalreporter.write_line(line)

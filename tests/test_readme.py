"""The README's code runs as it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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
    code = "from freshtoken import TokenManager\n\n\n" + block_with("fake_clock")
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
    assert "1 passed" in done.stdout or "2 passed" in done.stdout


def test_every_page_that_it_names_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)

    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target

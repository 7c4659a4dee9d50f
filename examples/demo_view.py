"""What the demo shows while it runs: a live table with rich, else lines of text.

Events and counters of the library are good enough to look at; the verdict at the end
is taken from elsewhere.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from demo_verdict import Row, as_text

from freshtoken.events import (
    Event,
    RefreshFailed,
    RotationInDoubt,
    RotationLost,
    SessionEnded,
    TokenRefreshed,
)

HINT = "for the live view: pip install 'freshtoken[demo]'"


class View(Protocol):
    """Shows a run."""

    pause: float
    """Seconds between two looks at the status."""

    def shown(self) -> contextlib.AbstractContextManager[object]:
        """Show things as long as the block is entered."""
        ...

    def say(self, text: str) -> None:
        """Tell that something happened."""
        ...

    def look(self, status: Mapping[str, str]) -> None:
        """Show how things are now."""
        ...

    def conclude(self, rows: Sequence[Row]) -> None:
        """Show the table at the end."""
        ...


def make_view() -> View:
    """Return the best view for where the output goes."""
    if not sys.stdout.isatty():
        return Lines()
    if importlib.util.find_spec("rich") is None:
        print(HINT)
        return Lines()
    return LiveTable()


class Lines:
    """Lines of text, for logs and for machines without rich."""

    pause = 5.0

    def __init__(self) -> None:
        self._began = time.monotonic()

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Count seconds from here."""
        self._began = time.monotonic()
        yield

    def say(self, text: str) -> None:
        """Print a line, with the time since the start."""
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", flush=True)

    def look(self, status: Mapping[str, str]) -> None:
        """Print all in one line."""
        self.say(" · ".join(f"{label}: {value}" for label, value in status.items()))

    def conclude(self, rows: Sequence[Row]) -> None:
        """Print the table."""
        print(f"\n{as_text(rows)}", flush=True)


class LiveTable:
    """A table that follows what happens, with the last lines of what was said."""

    pause = 0.2

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 -- optional: extra `demo`
        from rich.live import Live  # noqa: PLC0415 -- likewise

        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False)
        self._said: deque[str] = deque(maxlen=12)
        self._began = time.monotonic()

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Draw in place from here on."""
        self._began = time.monotonic()
        with self._live:
            yield

    def say(self, text: str) -> None:
        """Keep a line for the next look."""
        self._said.append(f"{time.monotonic() - self._began:5.1f} s  {text}")

    def look(self, status: Mapping[str, str]) -> None:
        """Draw anew."""
        from rich.console import Group  # noqa: PLC0415 -- optional: extra `demo`
        from rich.table import Table  # noqa: PLC0415 -- likewise
        from rich.text import Text  # noqa: PLC0415 -- likewise

        table = Table.grid(padding=(0, 2))
        for label, value in status.items():
            table.add_row(Text(label, style="dim"), Text(value, style="bold"))
        lines = Text("\n".join(["", *self._said]), style="cyan")
        self._live.update(Group(table, lines), refresh=True)

    def conclude(self, rows: Sequence[Row]) -> None:
        """Draw the table at the end."""
        from rich.table import Table  # noqa: PLC0415 -- optional: extra `demo`
        from rich.text import Text  # noqa: PLC0415 -- likewise

        table = Table("", "expected", "happened", "")
        for row in rows:
            mark = Text("ok", "green") if row.holds else Text("DIFFERS", "bold red")
            table.add_row(row.what, row.expected, row.happened, mark)
        self._console.print(table)


def describe(event: Event) -> str:
    """Put an event of the library into words."""
    match event:
        case TokenRefreshed():
            words = f"renewed: token {event.generation}"
        case RotationInDoubt():
            words = "no answer came; the server may have acted: asked again at once"
        case RefreshFailed():
            words = f"no token came, next try in {event.retry_in:.1f} s"
        case RotationLost():
            words = "refused after an answer was lost: maybe because of that"
        case SessionEnded():
            words = f"the session is over ({event.reason})"
        case _:
            words = event.name.replace("_", " ")
    return words

"""The demo ends as it says, fails where it should, and judges by the evidence."""

import dataclasses
import importlib
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import pytest

from freshtoken.testing import RequestRecord

pytestmark = pytest.mark.loopback

EXAMPLES = Path(__file__).parents[2] / "examples"
# The shortest run in which all faults find room.
SHORT = ("--seconds", "22")
LIMIT = 180.0

# The scripts are no package: their types are not known here.
Evidence: TypeAlias = Any
Spoil: TypeAlias = Callable[[Evidence], Evidence]

ROWS = [
    "API calls",
    "401 before the revocation",
    "calls that failed otherwise",
    "API requests lost, repeated",
    "callers that waited for a refresh",
    "token requests",
    "of these, repeats after a fault",
    "faults met: slow, 503, answer lost",
    "browser sent to sign in",
    "key sets fetched",
    "sign-in demanded",
]


class Demo:
    """A demo under way."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", EXAMPLES / "demo.py", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._printed: tuple[str, str] | None = None

    def wait(self) -> tuple[int, str, str]:
        """Return its exit code, and what it printed."""
        if self._printed is None:
            self._printed = self._process.communicate(timeout=LIMIT)
        return self._process.returncode, *self._printed

    def stop(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self.wait()


@pytest.fixture(scope="module")
def demos() -> Iterator[dict[str, Demo]]:
    """Three demos, side by side: they mostly sleep."""
    under_way = {
        "asyncio": Demo(*SHORT),
        "trio": Demo(*SHORT, "--backend", "trio", "--seed", "7"),
        "no refresh": Demo(*SHORT, "--no-refresh"),
    }
    yield under_way
    for demo in under_way.values():
        demo.stop()


def table(printed: str) -> dict[str, tuple[str, str, str]]:
    """Return the rows at the end: expected, happened, and the mark."""
    cells = [re.split(r" {2,}", line) for line in printed.splitlines()]
    return {row[0]: (row[1], row[2], row[3]) for row in cells if len(row) == 4}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_demo_ends_as_expected(demos: dict[str, Demo], backend: str) -> None:
    """Every row holds, and nothing is printed that no one asked for."""
    code, printed, complaints = demos[backend].wait()

    assert (code, complaints) == (0, ""), printed
    rows = table(printed)
    assert list(rows) == ROWS
    assert {mark for _, _, mark in rows.values()} == {"ok"}
    assert rows["of these, repeats after a fault"][1] == "3"
    assert rows["faults met: slow, 503, answer lost"][1] == "1, 2, 1"
    assert rows["sign-in demanded"][1] == "once, at the end; 50 workers told"
    assert printed.endswith("all as expected\n")


def test_demo_without_early_renewal_fails(demos: dict[str, Demo]) -> None:
    """Callers wait for the slow refresh, and there are fewer renewals."""
    code, printed, complaints = demos["no refresh"].wait()

    assert (code, complaints) == (1, ""), printed
    rows = table(printed)
    assert rows["callers that waited for a refresh"][2] == "DIFFERS"
    assert rows["token requests"][2] == "DIFFERS"
    assert rows["faults met: slow, 503, answer lost"][2] == "ok"
    assert rows["sign-in demanded"][2] == "ok"
    last = printed.splitlines()[-1]
    assert last.startswith("differs: ")
    assert "callers that waited for a refresh" in last


def test_demo_refuses_a_run_too_short_for_its_faults() -> None:
    """The exit code is that of a wrong command line."""
    code, _, complaints = Demo("--seconds", "21").wait()

    assert code == 2
    assert "the faults need 22 s" in complaints


def in_terminal(program: str) -> str:
    """Run a program in a terminal; return what it shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=theirs, stderr=theirs, cwd=EXAMPLES
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65_536):
            shown += chunk
    except OSError:
        pass  # That is how a terminal says that nobody writes to it any more.
    finally:
        os.close(ours)
    assert process.wait(timeout=LIMIT) == 0, shown
    return shown.decode()


def test_live_view_shows_a_table_in_a_terminal() -> None:
    """State, fault and verdict are drawn."""
    shown = in_terminal(
        "import demo_view as v\n"
        "view = v.make_view()\n"
        "with view.shown():\n"
        "    view.say('the grant is revoked')\n"
        "    view.look({'session': 'live', 'fault on': 'none'})\n"
        "view.conclude([v.Row('API calls', 'more than 1', '0', False)])\n"
    )

    for text in ("session", "live", "the grant is revoked", "API calls", "DIFFERS"):
        assert text in shown
    assert "\x1b[" in shown


def test_view_without_rich_says_how_to_get_it() -> None:
    """One line, and then lines of text."""
    shown = in_terminal(
        "import sys\n"
        "sys.modules['rich'] = None\n"
        "import demo_view\n"
        "demo_view.make_view().say('the grant is revoked')\n"
    )

    assert "pip install 'freshtoken[demo]'" in shown
    assert "the grant is revoked" in shown


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that judges."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("demo_verdict")


def good_evidence(verdict: ModuleType) -> Evidence:
    """Return what a run of 30 s leaves that went as planned."""
    workers = importlib.import_module("demo_workers")
    api = importlib.import_module("loopback_api")

    def token(
        number: int, grant: str, fault: str | None = None, error: str | None = None
    ) -> RequestRecord:
        form = {"refresh_token": grant}
        return RequestRecord(
            number, "token", "POST", "/token", 0.0, form=form, fault=fault, error=error
        )

    return verdict.Evidence(
        api=[api.APIRecord(n * 0.03, str(n), "live") for n in range(1000)]
        + [api.APIRecord(30.1, "1000", "revoked")],
        token=[
            token(1, "a"),
            token(2, "b", fault="delay 0.5 s before"),
            token(3, "c", fault="503"),
            token(4, "c", fault="503"),
            token(5, "c"),
            token(6, "d", fault="drop after (read)"),
            token(7, "d"),
            token(8, "e"),
            token(9, "f"),
            token(10, "g"),
            token(11, "h", error="invalid_grant"),
        ],
        calls=[
            *(workers.Call(n, n * 0.03, n * 0.03, status=200) for n in range(1000)),
            workers.Call(1000, 30.0, 30.0),
        ],
        told_at=[30.2] * 50,
        revoked_at=30.0,
        before=10,
        visits=1,
        key_fetches=2,
    )


def changed(name: str, change: Callable[[list[Any]], object]) -> Spoil:
    """Return what changes one list of the evidence."""

    def apply(evidence: Evidence) -> Evidence:
        items = list(getattr(evidence, name))
        change(items)
        return dataclasses.replace(evidence, **{name: items})

    return apply


def each(name: str, number: int, **values: object) -> Spoil:
    """Return what changes one item of one list."""

    def change(items: list[Any]) -> None:
        items[number] = dataclasses.replace(items[number], **values)

    return changed(name, change)


SPOILED = {
    "few calls": (
        changed("api", lambda log: log.__delitem__(slice(740))),
        "API calls",
    ),
    "expired": (each("api", 9, saw="expired"), "401 before the revocation"),
    "unknown": (each("api", 9, saw="unknown"), "401 before the revocation"),
    "raised": (
        each("calls", 9, trouble="RetryableError"),
        "calls that failed otherwise",
    ),
    "forbidden": (each("calls", 9, status=403), "calls that failed otherwise"),
    "lost": (changed("api", lambda log: log.pop(9)), "API requests lost, repeated"),
    "repeated": (
        changed("api", lambda log: log.append(log[9])),
        "API requests lost, repeated",
    ),
    "waited": (
        each("calls", 9, made_at=0.0, overtaken=3),
        "callers that waited for a refresh",
    ),
    "renewed too often": (
        changed("token", lambda log: log.extend([log[8], log[9]])),
        "token requests",
    ),
    "renewed too seldom": (
        changed("token", lambda log: log.__delitem__(slice(7, 9))),
        "token requests",
    ),
    "repeated without a fault": (
        each("token", 0, form={"refresh_token": "b"}),
        "of these, repeats after a fault",
    ),
    "fault not met": (
        each("token", 3, fault=None),
        "faults met: slow, 503, answer lost",
    ),
    "signed in twice": (
        lambda evidence: dataclasses.replace(evidence, visits=2),
        "browser sent to sign in",
    ),
    "new keys never seen": (
        lambda evidence: dataclasses.replace(evidence, key_fetches=1),
        "key sets fetched",
    ),
    "never demanded": (each("token", 10, error=None), "sign-in demanded"),
    "demanded twice": (each("token", 8, error="invalid_grant"), "sign-in demanded"),
    "one never told": (
        changed("told_at", lambda told: told.pop()),
        "sign-in demanded",
    ),
    "one told early": (
        changed("told_at", lambda told: told.append(told.pop() - 1.0)),
        "sign-in demanded",
    ),
}


def differing(verdict: ModuleType, evidence: Evidence) -> list[str]:
    """Return what the verdict finds fault with."""
    plan = importlib.import_module("demo_plan").Plan(30.0)
    return [row.what for row in verdict.judge(plan, evidence) if not row.holds]


def test_verdict_finds_nothing_in_a_run_that_went_as_planned(
    verdict: ModuleType,
) -> None:
    assert differing(verdict, good_evidence(verdict)) == []


@pytest.mark.parametrize(("spoil", "what"), SPOILED.values(), ids=SPOILED)
def test_verdict_finds_each_difference(
    verdict: ModuleType, spoil: Spoil, what: str
) -> None:
    """One thing that went wrong shows in its row."""
    evidence = spoil(good_evidence(verdict))

    assert what in differing(verdict, evidence)


def test_verdict_forgives_a_token_that_ends_on_a_long_way(verdict: ModuleType) -> None:
    """It left with a margin, and was resent; the machine was too busy, not the hook."""
    evidence = each("api", 20, at=1.0, saw="expired")(good_evidence(verdict))
    resend = dataclasses.replace(evidence.api[20], saw="live")
    evidence = changed("api", lambda log: log.append(resend))(evidence)

    assert differing(verdict, evidence) == []


def test_verdict_does_not_take_a_stopped_process_for_a_wait(
    verdict: ModuleType,
) -> None:
    """While a caller waits for a refresh, others go on; here nobody did."""
    evidence = each("calls", 9, made_at=-1.0, overtaken=0)(good_evidence(verdict))

    assert differing(verdict, evidence) == []

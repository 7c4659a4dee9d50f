"""The store contract itself: a right store passes, and every fault is found."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from freshtoken.abc import SessionStore
from freshtoken.testing import FakeClock
from freshtoken.testing.store_contract import SessionStoreFailureContract
from tests.contracts import faulty_stores

ROOT = Path(__file__).parents[2]

# Each fault, and the test that has to find it; others may find it as well.
FAULTS = {
    "CreatesOver": "a_record_is_created_once",
    "CreatesWhatIsMissing": "a_swap_where_nothing_is_creates_nothing",
    "ComparesVersions": "a_swap_on_another_pair_is_a_conflict",
    "ComparesGrants": "a_spent_pair_is_of_no_more_use",
    "NeverRefusesTheDead": "an_ended_record_is_a_record",
    "RacesTasks": "of_many_swaps_one_is_applied",
    "RacesThreads": "no_write_is_lost_between_threads",
    "StampsNothing": "a_lease_is_stamped_with_the_store_s_time",
    "StampsUnasked": "a_lease_that_is_written_without_a_term_stays_as_it_is",
    "ForgetsWhenALeaseBegan": "a_renewed_lease_keeps_its_beginning",
    "LetsALeaseEndTheRecord": "a_lease_that_runs_out_stays_to_be_seen",
    "ForgetsEarly": "a_record_is_kept_until_its_time_is_over",
    "NeverForgets": "a_record_is_kept_until_its_time_is_over",
    "KeepsTheFirstTerm": "every_write_says_anew_how_long_to_keep",
    "FoldsCase": "every_name_is_its_own",
    "StripsBlanks": "every_name_is_its_own",
    "ComposesLetters": "every_name_is_its_own",
    "CutsNames": "every_name_is_its_own",
    "Merges": "a_swap_on_the_stored_pair_is_applied",
    "MixesUpNone": "a_record_comes_back_as_it_was",
    "MixesUpZero": "a_record_comes_back_as_it_was",
    "RoundsTimes": "a_record_comes_back_as_it_was",
    "ReturnsLists": "a_record_comes_back_as_it_was",
    "ForgetsAField": "a_record_comes_back_as_it_was",
    "CannotSpell": "a_record_comes_back_as_it_was",
    "HidesTheWinner": "a_swap_on_another_pair_is_a_conflict",
    "ShowsTheLoser": "of_many_creations_one_is_applied",
    "HasTwoClocks": "the_store_s_time_runs_forward",
    "LetsErrorsThrough": "a_store_that_fails_raises_store_errors_only",
    "QuotesTheStatement": "a_store_error_holds_no_token",
}
RIGHT = ("Plain", "WritesWhileBroken")

# Nothing but the class and its methods: as in a project that knows no `anyio_mode`.
HEAD = """
from freshtoken.testing import FakeClock
from freshtoken.testing.store_contract import SessionStoreFailureContract
from tests.contracts import faulty_stores


class Contract(SessionStoreFailureContract):
    async def make_store(self):
        self.clock = FakeClock()
        return self.store_class(self.clock)

    async def pass_time(self, seconds):
        await self.clock.advance(seconds)

    async def break_store(self, store):
        store.broken = True

    async def mend_store(self, store):
        store.broken = False

"""
CLASS = """
class Test{name}(Contract):
    store_class = faulty_stores.{name}

"""


class TestStoreThatCanFail(SessionStoreFailureContract):
    """The contract in this process, with a store whose faults are its owner's wish."""

    async def make_store(self) -> SessionStore:
        self.clock = FakeClock()
        self.made = faulty_stores.Plain(self.clock)
        return self.made

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def break_store(self, store: SessionStore) -> None:
        assert store is self.made
        self.made.broken = True

    async def mend_store(self, store: SessionStore) -> None:
        self.made.broken = False


class TestStoreThatForgetsNothing(TestStoreThatCanFail):
    """Forgetting may be left to a job of the store's own."""

    forgets = False

    async def make_store(self) -> SessionStore:
        self.clock = FakeClock()
        self.made = faulty_stores.NeverForgets(self.clock)
        return self.made


def run_contract(
    pytester: pytest.Pytester, names: list[str]
) -> tuple[dict[str, set[str]], dict[str, int]]:
    """Run the contract against stores; return what failed, and how much passed."""
    body = HEAD + "".join(CLASS.format(name=name) for name in names)
    pytester.makepyfile(test_stores=body)
    pytester.makeini(
        f"[pytest]\npythonpath = {ROOT}\nfilterwarnings = error\n"
        "asyncio_default_fixture_loop_scope = function\n"
    )
    result = pytester.runpytest_subprocess(
        "-q", "--tb=no", "-rA", "-p", "no:cacheprovider", "--import-mode=importlib"
    )
    failed: dict[str, set[str]] = defaultdict(set)
    passed: dict[str, int] = defaultdict(int)
    for line in result.outlines:
        found = re.match(r"(PASSED|FAILED|ERROR) \S+::Test(\w+)::test_(\w+)", line)
        if found is None:
            continue
        outcome, store, test = found.groups()
        if outcome == "PASSED":
            passed[store] += 1
        else:
            failed[store].add(test)
    return failed, passed


def test_every_fault_is_found_by_the_test_meant_for_it(
    pytester: pytest.Pytester,
) -> None:
    failed, _ = run_contract(pytester, list(FAULTS))

    missed = {name: test for name, test in FAULTS.items() if test not in failed[name]}
    assert missed == {}


def test_stores_without_a_fault_pass(pytester: pytest.Pytester) -> None:
    """On both backends, in a project that has configured nothing for async tests."""
    failed, passed = run_contract(pytester, list(RIGHT))

    assert failed == {}
    assert set(passed) == set(RIGHT)
    assert all(count >= 2 * 60 for count in passed.values())


def test_every_faulty_store_is_tried() -> None:
    stores = {
        name
        for name, value in vars(faulty_stores).items()
        if isinstance(value, type) and issubclass(value, faulty_stores.Plain)
    }

    assert stores == FAULTS.keys() | set(RIGHT)


def test_every_test_of_the_contract_finds_some_fault() -> None:
    """Those that are not named here hold what no single fault of ours breaks."""
    tests = {
        name.removeprefix("test_")
        for name in dir(SessionStoreFailureContract)
        if name.startswith("test_")
    }
    assert set(FAULTS.values()) <= tests
    assert tests - set(FAULTS.values()) == {
        "a_cancelled_call_leaves_the_store_usable",
        "a_created_record_is_read_back",
        "a_new_grant_takes_the_place_of_the_old_one",
        "a_term_without_a_lease_takes_none",
        "an_unknown_name_reads_as_nothing",
        "no_write_is_lost_between_tasks",
        "whoever_loses_a_swap_gets_no_lease",
    }

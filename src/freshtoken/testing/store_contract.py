"""What a session store has to do, as a suite of tests to run against one.

Derive a class in a test module, and give it `SessionStoreContract.make_store`::

    from freshtoken.testing.store_contract import SessionStoreContract

    class TestMyStore(SessionStoreContract):
        async def make_store(self):
            return MyStore("...")

The tests run on anyio's pytest plugin, which comes with anyio: on asyncio, and on trio
where that is installed. A store that can be made to fail derives from
`SessionStoreFailureContract` in the same way, which has these tests, too.
"""

# ruff: noqa: S101 -- a suite of tests asserts

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from types import MappingProxyType
from typing import ClassVar

import anyio
import anyio.to_thread
import pytest

from freshtoken._foundation.records import (
    Ended,
    EntryKey,
    Failure,
    Hold,
    Lease,
    StoredToken,
    next_version,
)
from freshtoken.abc import Record, SessionStore
from freshtoken.errors import Disposition, StoreError
from freshtoken.testing._loops import in_trio

_NAME = "session-1"
_LONG_FOR_STORES = 200_000

# Names are printable, and at most 512 characters long; all else is up to the caller.
_NAMES = (
    "crm",
    "CRM",
    "crm ",
    " crm",
    "crm:1",
    "crm/1",
    "crm%2F1",
    "crm*",
    "crm?",
    "crm_",
    "crm\\",
    "'; DROP TABLE sessions; --",
    '"{crm}"',
    "\N{LATIN SMALL LETTER U WITH DIAERESIS}",
    "u\N{COMBINING DIAERESIS}",
    "\N{GREEK SMALL LETTER FINAL SIGMA}\N{PILE OF POO}",
    "x" * 511,
    "x" * 512,
)


def _token(key: EntryKey, text: str = "at") -> StoredToken:
    return StoredToken(key, text, "Bearer", 1_800_000_000.25, None, None)


def _base(**fields: object) -> Record:
    """Return a record with little in it, and *fields*."""
    plain = Record("https://idp.test", "web", "refresh_token", "grant-a")
    return dataclasses.replace(plain, **fields)  # type: ignore[arg-type]  # checked by replace


_FAILURE = Failure(
    disposition=Disposition.RETRY,
    advice="wait",
    error="temporarily_unavailable",
    original_error="TEMPORARILY_UNAVAILABLE",
    description="we are \N{SNOWMAN} moving",
    error_uri="https://idp.test/errors",
    status=503,
    request_id="r-1",
    extra=MappingProxyType({"suberror": None, "codes": [1, 2.5, "x"]}),
    retry_after=12.5,
    sent=True,
    in_doubt=True,
    no_answer=True,
    setting="scope",
    cause="ReadTimeout",
    at=1_800_000_001.125,
    since=1_800_000_000.0625,
    count=3,
    lost_rotation=True,
)

_FULL = Record(
    issuer="https://idp.test/tenant",
    client_id="web",
    grant_type="refresh_token",
    grant_id="grant-a",
    version=7,
    generation=3,
    refresh_token="rt-1",  # noqa: S106 -- of a test
    refresh_expires_at=1_900_000_000.5,
    scope=("email", "openid"),
    resource=("https://api.test", "https://other.test"),
    tokens=(
        StoredToken(
            key=EntryKey(),
            access_token="at-1",  # noqa: S106 -- of a test
            token_type="Bearer",  # noqa: S106 -- of a test
            issued_at=1_800_000_000.123456,
            expires_at=1_800_000_300.123456,
            refresh_at=1_800_000_222.654321,
            scope=("email",),
            forced_at=1_800_000_004.0,
        ),
        _token(EntryKey("https://api.test", ("a", "b"))),
        _token(EntryKey(None, ("a",))),
        _token(EntryKey("https://api.test")),
    ),
    extra={"a": {"b": [1, -2, 3.5, None, True, False, "", [], {}]}, "": "empty"},
    lease=Lease("owner-1", "hash-1", since=12.5, expires_at=52.5),
    doubt="unsettled",
    doubt_at=1_800_000_000.0,
    not_before=99.75,
    failure=_FAILURE,
    ended=Ended("terminal", 1_800_000_002.5, _FAILURE),
    holds=(Hold(EntryKey("https://api.test", ("a",)), 98.5, _FAILURE),),
    saved_at=1_800_000_003.875,
    claims={"sub": "alice", "groups": ["a", {"b": None}], "auth_time": 1_800_000_000},
    id_token="e30.e30.AA",  # noqa: S106 -- of a test
    sign_in={"state": "s", "max_age": 0, "nonce": None, "scope": ["openid"]},
)

_TEXT = "\N{GREEK SMALL LETTER ALPHA}\N{PILE OF POO}\x00\n\"'\\\u2028"

_RECORDS: dict[str, Record] = {
    "bare": _base(),
    "full": _FULL,
    "client credentials": _base(grant_type="client_credentials", scope=("orders",)),
    "nothing granted": _base(scope=(), tokens=(), extra={}),
    "empty texts": _base(
        refresh_token="",
        resource=("",),
        tokens=(_token(EntryKey("", ()), ""),),
        extra={"": ""},
        ended=Ended("", 0.0),
        lease=Lease("", ""),
    ),
    "zeroes": _base(
        version=0, refresh_expires_at=0.0, doubt_at=0.0, not_before=0.0, saved_at=0.0
    ),
    "odd texts": _base(
        issuer=_TEXT,
        client_id=_TEXT,
        grant_id=_TEXT,
        refresh_token=_TEXT,
        scope=(_TEXT,),
        tokens=(_token(EntryKey(_TEXT, (_TEXT,)), _TEXT),),
        extra={_TEXT: _TEXT},
    ),
    # JSON can carry it, UTF-8 cannot.
    "half a surrogate pair": _base(extra={"name": "\ud83d"}),
    "large": _base(
        refresh_token="r" * _LONG_FOR_STORES,
        tokens=tuple(
            _token(EntryKey(f"https://{number}.test"), "a" * 10_000)
            for number in range(20)
        ),
        extra={"permissions": [f"permission-{number}" for number in range(5_000)]},
    ),
    "big numbers": _base(
        version=2**40,
        generation=2**40,
        saved_at=253_402_300_799.999,
        extra={"n": 2**53},
    ),
    "settled": _base(doubt="settled", doubt_at=1.5),
    **{
        f"failure {one.value}": _base(failure=Failure(one, "advice"))
        for one in Disposition
    },
}


class SessionStoreContract:
    """The tests of `freshtoken.abc.SessionStore`; derive, and give it `make_store`.

    Each test gets a store of its own, which has to be empty, and one instance of the
    class, so that `make_store` may keep what it needs on ``self``.

    Attributes:
        short: Seconds of a short wait. More for a store that counts whole seconds.
        tolerance: Seconds by which the store's stamps may differ from its ``now``.
        forgets: Whether the store forgets a record at the end of ``keep_for``, as it
            may; ``False`` for one that leaves that to a job of its own.
    """

    pytestmark: ClassVar[pytest.MarkDecorator] = pytest.mark.anyio

    short: float = 0.5
    tolerance: float = 0.001
    forgets: bool = True

    async def make_store(self) -> SessionStore:
        """Return an empty store."""
        raise NotImplementedError("make_store is yours: return an empty store")

    async def close_store(self, store: SessionStore) -> None:
        """Clean up after a test."""

    async def pass_time(self, seconds: float) -> None:
        """Let the store's time pass; move the clock of a store that is given one."""
        await anyio.sleep(seconds)

    @pytest.fixture
    async def store(self) -> AsyncIterator[SessionStore]:
        """Give a test its store."""
        store = await self.make_store()
        yield store
        await self.close_store(store)

    # -- Read and create ------------------------------------------------------------

    async def test_an_unknown_name_reads_as_nothing(self, store: SessionStore) -> None:
        """There is no record, and the store's time all the same."""
        result = await store.read(_NAME)

        assert result.record is None
        assert isinstance(result.now, float)

    async def test_a_created_record_is_read_back(self, store: SessionStore) -> None:
        """The swap says what is stored, and so does the next read."""
        record = _base()

        created = await store.swap(_NAME, None, record)

        assert created.applied
        assert created.record == record
        assert (await store.read(_NAME)).record == record

    async def test_a_record_is_created_once(self, store: SessionStore) -> None:
        """Whoever expects nothing never overwrites, not even the same grant."""
        first = _base()
        await store.swap(_NAME, None, first)

        for late in (first, _base(version=2), _base(grant_id="grant-b")):
            result = await store.swap(_NAME, None, late)
            assert not result.applied
            assert result.record == first

        assert (await store.read(_NAME)).record == first

    @pytest.mark.parametrize("name", _NAMES)
    async def test_every_name_is_its_own(self, store: SessionStore, name: str) -> None:
        """Case, blanks, wildcards and ways to write a letter make a difference."""
        record = _base(client_id=name)
        await store.swap(name, None, record)

        for other in _NAMES:
            found = (await store.read(other)).record
            assert found == (record if other == name else None)

    # -- Swap -----------------------------------------------------------------------

    async def test_a_swap_on_the_stored_pair_is_applied(
        self, store: SessionStore
    ) -> None:
        """The whole record is replaced: nothing of the old one is left."""
        await store.swap(_NAME, None, _FULL)
        after = _base(version=_FULL.version + 1)

        result = await store.swap(_NAME, _FULL.pair, after)

        assert result.applied
        assert result.record == after
        assert (await store.read(_NAME)).record == after

    @pytest.mark.parametrize(
        "expect",
        [("grant-a", 1), ("grant-a", 3), ("grant-b", 2), ("GRANT-A", 2), ("", 2), None],
    )
    async def test_a_swap_on_another_pair_is_a_conflict(
        self, store: SessionStore, expect: tuple[str, int] | None
    ) -> None:
        """Grant and version have to fit, both; the conflict shows what is stored."""
        stored = _base(version=2)
        await store.swap(_NAME, None, stored)

        result = await store.swap(_NAME, expect, _base(version=3, generation=1))

        assert not result.applied
        assert result.record == stored
        assert (await store.read(_NAME)).record == stored

    async def test_a_swap_where_nothing_is_creates_nothing(
        self, store: SessionStore
    ) -> None:
        """Else a late write would bring an ended session back to life."""
        result = await store.swap(_NAME, ("grant-a", 1), _base(version=2))

        assert not result.applied
        assert result.record is None
        assert (await store.read(_NAME)).record is None

    async def test_a_spent_pair_is_of_no_more_use(self, store: SessionStore) -> None:
        """A write that arrives twice is applied once."""
        first, second = _base(), _base(version=2)
        await store.swap(_NAME, None, first)

        assert (await store.swap(_NAME, first.pair, second)).applied
        assert not (await store.swap(_NAME, first.pair, second)).applied

    async def test_a_new_grant_takes_the_place_of_the_old_one(
        self, store: SessionStore
    ) -> None:
        """Its versions begin anew, and writes of the old grant do not touch it."""
        old, new = _base(version=5), _base(grant_id="grant-b")
        await store.swap(_NAME, None, old)

        assert (await store.swap(_NAME, old.pair, new)).applied
        late = await store.swap(_NAME, old.pair, next_version(old))
        assert not late.applied
        assert late.record == new

    async def test_an_ended_record_is_a_record(self, store: SessionStore) -> None:
        """It is read, it is in the way of a creation, and it may be replaced."""
        ended = _base(ended=Ended("signed_out", 1.0))
        await store.swap(_NAME, None, ended)

        assert not (await store.swap(_NAME, None, _base(grant_id="grant-b"))).applied
        assert (await store.read(_NAME)).record == ended
        again = _base(grant_id="grant-b")
        assert (await store.swap(_NAME, ended.pair, again)).applied

    @pytest.mark.parametrize("kind", _RECORDS)
    async def test_a_record_comes_back_as_it_was(
        self, store: SessionStore, kind: str
    ) -> None:
        """Each field, empty or absent, odd or large; created and swapped in."""
        record = _RECORDS[kind]
        await store.swap("created", None, record)
        await store.swap("swapped", None, _base(version=99))
        swapped = await store.swap("swapped", ("grant-a", 99), record)

        assert swapped.record is not None
        for found in (
            swapped.record,
            (await store.read("created")).record,
            (await store.read("swapped")).record,
        ):
            assert found is not None
            for field in dataclasses.fields(Record):
                value = getattr(record, field.name)
                assert getattr(found, field.name) == value, field.name
            assert all(isinstance(token.key, EntryKey) for token in found.tokens)
            assert found.pair == record.pair

    # -- The store's clock, and the lease -------------------------------------------

    async def test_the_store_s_time_runs_forward(self, store: SessionStore) -> None:
        """Reads, applied swaps and conflicts show the same clock."""
        seen = [(await store.read(_NAME)).now]
        seen.append((await store.swap(_NAME, None, _base())).now)
        await self.pass_time(self.short)
        seen.append((await store.swap(_NAME, None, _base())).now)
        seen.append((await store.read(_NAME)).now)

        assert seen == sorted(seen)
        assert seen[2] - seen[1] >= self.short - self.tolerance

    async def test_a_lease_is_stamped_with_the_store_s_time(
        self, store: SessionStore
    ) -> None:
        """Workers' clocks do not count."""
        await store.swap(_NAME, None, _base())
        wanted = _base(version=2, lease=Lease("owner-1", "hash-1"))

        result = await store.swap(_NAME, ("grant-a", 1), wanted, lease_for=40.0)

        assert result.applied
        assert result.record is not None
        lease = result.record.lease
        assert lease is not None
        assert (lease.owner, lease.rt_hash) == ("owner-1", "hash-1")
        assert lease.since == pytest.approx(result.now, abs=self.tolerance)
        assert lease.expires_at == pytest.approx(result.now + 40.0, abs=self.tolerance)
        assert dataclasses.replace(result.record, lease=wanted.lease) == wanted
        assert (await store.read(_NAME)).record == result.record

    async def test_a_renewed_lease_keeps_its_beginning(
        self, store: SessionStore
    ) -> None:
        """Only its end moves."""
        await store.swap(
            _NAME, None, _base(lease=Lease("owner-1", "hash-1")), lease_for=40.0
        )
        taken = (await store.read(_NAME)).record
        assert taken is not None
        assert taken.lease is not None
        await self.pass_time(self.short)

        result = await store.swap(
            _NAME, taken.pair, next_version(taken), lease_for=40.0
        )

        assert result.record is not None
        lease = result.record.lease
        assert lease is not None
        assert lease.since == taken.lease.since
        assert lease.expires_at - taken.lease.expires_at >= (
            self.short - self.tolerance
        )
        assert lease.expires_at == pytest.approx(result.now + 40.0, abs=self.tolerance)

    async def test_a_lease_that_is_written_without_a_term_stays_as_it_is(
        self, store: SessionStore
    ) -> None:
        """The stamp belongs to ``lease_for``."""
        lease = Lease("owner-1", "hash-1", since=3.5, expires_at=43.5)

        result = await store.swap(_NAME, None, _base(lease=lease))

        assert result.record is not None
        assert result.record.lease == lease

    async def test_a_term_without_a_lease_takes_none(self, store: SessionStore) -> None:
        """The record says whether there is a lease."""
        result = await store.swap(_NAME, None, _base(), lease_for=40.0)

        assert result.record == _base()

    async def test_whoever_loses_a_swap_gets_no_lease(
        self, store: SessionStore
    ) -> None:
        """The conflict shows the holder's."""
        holder = _base(lease=Lease("owner-1", "hash-1"))
        taken = await store.swap(_NAME, None, holder, lease_for=40.0)
        loser = _base(version=2, lease=Lease("owner-2", "hash-1"))

        result = await store.swap(_NAME, ("grant-a", 0), loser, lease_for=80.0)

        assert not result.applied
        assert result.record == taken.record
        assert (await store.read(_NAME)).record == taken.record

    async def test_a_lease_that_runs_out_stays_to_be_seen(
        self, store: SessionStore
    ) -> None:
        """It is how others know that a holder vanished."""
        holder = _base(lease=Lease("owner-1", "hash-1"))
        taken = await store.swap(_NAME, None, holder, lease_for=self.short)
        await self.pass_time(2 * self.short)

        result = await store.read(_NAME)

        assert result.record == taken.record
        assert result.record is not None
        assert result.record.lease is not None
        assert result.now >= result.record.lease.expires_at

    # -- How long records are kept --------------------------------------------------

    async def test_a_record_is_kept_until_its_time_is_over(
        self, store: SessionStore
    ) -> None:
        """Not a moment less; reading it does not prolong it."""
        record = _base()
        await store.swap(_NAME, None, record, keep_for=4 * self.short)
        await self.pass_time(2 * self.short)
        assert (await store.read(_NAME)).record == record

        await self.pass_time(3 * self.short)
        await self._check_forgotten(store, record)

    async def test_every_write_says_anew_how_long_to_keep(
        self, store: SessionStore
    ) -> None:
        """Longer, without a bound, or shorter."""
        first, second = _base(), _base(version=2)
        for name in ("longer", "unbounded", "shorter", "conflict"):
            brief = self.short if name != "shorter" else 100 * self.short
            await store.swap(name, None, first, keep_for=brief)
        await store.swap("longer", first.pair, second, keep_for=100 * self.short)
        await store.swap("unbounded", first.pair, second)
        await store.swap("shorter", first.pair, second, keep_for=self.short)
        await store.swap("conflict", None, second, keep_for=100 * self.short)

        await self.pass_time(2 * self.short)

        assert (await store.read("longer")).record == second
        assert (await store.read("unbounded")).record == second
        await self._check_forgotten(store, second, name="shorter")
        await self._check_forgotten(store, first, name="conflict")

    async def _check_forgotten(
        self, store: SessionStore, record: Record, *, name: str = _NAME
    ) -> None:
        """Check that *record* is gone for reads, swaps and creations alike."""
        if not self.forgets:
            assert (await store.read(name)).record == record
            return
        assert (await store.read(name)).record is None
        late = await store.swap(name, record.pair, next_version(record))
        assert not late.applied
        assert late.record is None
        assert (await store.swap(name, None, _base(grant_id="grant-b"))).applied

    # -- Many at once ---------------------------------------------------------------

    async def test_of_many_creations_one_is_applied(self, store: SessionStore) -> None:
        """And the losers see the winner's record."""
        await self._check_one_wins(store, None, version=1)

    async def test_of_many_swaps_one_is_applied(self, store: SessionStore) -> None:
        """And the losers see the winner's record, lease and all."""
        await store.swap(_NAME, None, _base())

        await self._check_one_wins(store, ("grant-a", 1), version=2)

    async def _check_one_wins(
        self, store: SessionStore, expect: tuple[str, int] | None, *, version: int
    ) -> None:
        """Let twenty tasks take a lease at once."""
        winners: list[str] = []
        seen: list[Record | None] = []

        async def take(owner: str) -> None:
            mine = _base(version=version, lease=Lease(owner, "hash-1"))
            result = await store.swap(_NAME, expect, mine, lease_for=40.0)
            if result.applied:
                winners.append(owner)
            seen.append(result.record)

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(take, f"owner-{number}")

        stored = (await store.read(_NAME)).record
        assert len(winners) == 1
        assert seen == [stored] * 20
        assert stored is not None
        assert stored.lease is not None
        assert stored.lease.owner == winners[0]

    async def test_no_write_is_lost_between_tasks(self, store: SessionStore) -> None:
        """Each task counts up, and begins anew when another was faster."""
        await store.swap(_NAME, None, _base())

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(_count_up, store, 5)

        await self._check_counted(store, 50)

    async def test_no_write_is_lost_between_threads(self, store: SessionStore) -> None:
        """A store is loop-free: each thread here has an event loop of its own."""
        await store.swap(_NAME, None, _base())
        backend = "trio" if in_trio() else "asyncio"

        def run_a_loop() -> None:
            anyio.run(_count_up, store, 25, backend=backend)

        async def use_a_thread() -> None:
            await anyio.to_thread.run_sync(run_a_loop)

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(use_a_thread)

        await self._check_counted(store, 100)

    async def _check_counted(self, store: SessionStore, writes: int) -> None:
        """Check that every write is there."""
        stored = (await store.read(_NAME)).record
        assert stored is not None
        assert (stored.version, stored.generation) == (1 + writes, writes)

    async def test_a_cancelled_call_leaves_the_store_usable(
        self, store: SessionStore
    ) -> None:
        """It is applied whole or not at all."""
        first, second = _base(), _base(version=2)
        await store.swap(_NAME, None, first)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.swap(_NAME, first.pair, second)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.read(_NAME)

        found = (await store.read(_NAME)).record
        assert found in (first, second)
        assert found is not None
        assert (await store.swap(_NAME, found.pair, next_version(found))).applied


class SessionStoreFailureContract(SessionStoreContract):
    """These tests, and those of a store that cannot be reached."""

    async def break_store(self, store: SessionStore) -> None:
        """Let every call fail from now on, as when the server is down."""
        raise NotImplementedError(
            "break_store is yours to write: let every call of the store fail"
        )

    async def mend_store(self, store: SessionStore) -> None:
        """Let calls succeed again."""
        raise NotImplementedError(
            "mend_store is yours to write: let calls succeed again"
        )

    async def test_a_store_that_fails_raises_store_errors_only(
        self, store: SessionStore
    ) -> None:
        """And goes on where it was once it is back."""
        await store.swap(_NAME, None, _FULL)
        await self.break_store(store)

        with pytest.raises(StoreError):
            await store.read(_NAME)
        with pytest.raises(StoreError):
            await store.swap(_NAME, _FULL.pair, next_version(_FULL))
        with pytest.raises(StoreError):
            await store.swap("another", None, _FULL, lease_for=40.0, keep_for=60.0)

        await self.mend_store(store)
        maybe = (await store.read("another")).record
        assert maybe is None or maybe.pair == _FULL.pair
        found = (await store.read(_NAME)).record
        assert found is not None
        assert found.grant_id == _FULL.grant_id

    async def test_a_store_error_holds_no_token(self, store: SessionStore) -> None:
        """Nor does what it was caused by: drivers like to quote the statement."""
        secrets = ("secret-refresh-token", "secret-access-token")
        record = _base(
            refresh_token=secrets[0], tokens=(_token(EntryKey(), secrets[1]),)
        )
        await store.swap(_NAME, None, record)
        await self.break_store(store)

        with pytest.raises(StoreError) as caught:
            await store.swap(_NAME, record.pair, next_version(record))

        for error in _chain(caught.value):
            shown = f"{error!s} {error!r} {vars(error)!r} {error.args!r}"
            assert not any(secret in shown for secret in secrets)


async def _count_up(store: SessionStore, times: int) -> None:
    """Write *times* times, each on the version found."""
    for _ in range(times):
        applied = False
        found = (await store.read(_NAME)).record
        while not applied:
            assert found is not None
            mine = next_version(found, generation=found.generation + 1)
            result = await store.swap(_NAME, found.pair, mine)
            applied, found = result.applied, result.record


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Go through an error and what it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__

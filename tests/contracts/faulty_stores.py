"""Stores with one fault each, as implementations have had them."""

from __future__ import annotations

import dataclasses
import time
import unicodedata
from typing import Any

import anyio.lowlevel

from freshtoken import MemoryStore, StoreError
from freshtoken.abc import ReadResult, Record, SwapResult
from freshtoken.testing import FakeClock

Expect = tuple[str, int] | None
Terms = dict[str, float | None]


class Plain(MemoryStore):
    """Without a fault; the others change one of its steps."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.broken = False

    async def read(self, key: str) -> ReadResult:
        self.fail(None)
        return self.answer_read(await super().read(self.name(key)))

    async def swap(
        self,
        key: str,
        expect: Expect,
        record: Record,
        *,
        lease_for: float | None = None,
        keep_for: float | None = None,
    ) -> SwapResult:
        self.fail(record)
        name = self.name(key)
        terms: Terms = {"lease_for": lease_for, "keep_for": keep_for}
        found = (await super().read(name)).record
        expect = self.expect(expect, found)
        await self.pause()
        terms = self.terms(terms, record, found)
        written = self.write(record, found)
        return self.answer(await super().swap(name, expect, written, **terms), written)

    def name(self, key: str) -> str:
        return key

    def expect(self, expect: Expect, found: Record | None) -> Expect:
        return expect

    async def pause(self) -> None:
        """Do nothing between the comparison and the write."""

    def terms(self, terms: Terms, record: Record, found: Record | None) -> Terms:
        return terms

    def write(self, record: Record, found: Record | None) -> Record:
        return record

    def answer(self, result: SwapResult, record: Record) -> SwapResult:
        return result

    def answer_read(self, result: ReadResult) -> ReadResult:
        return result

    def fail(self, record: Record | None) -> None:
        if self.broken:
            message = "the server is down"
            raise StoreError(message)


class CreatesOver(Plain):
    def expect(self, expect: Expect, found: Record | None) -> Expect:
        return found.pair if found and expect is None else expect


class CreatesWhatIsMissing(Plain):
    def expect(self, expect: Expect, found: Record | None) -> Expect:
        return expect if found else None


class ComparesVersions(Plain):
    def expect(self, expect: Expect, found: Record | None) -> Expect:
        fits = found and expect and found.version == expect[1]
        return found.pair if found and fits else expect


class ComparesGrants(Plain):
    def expect(self, expect: Expect, found: Record | None) -> Expect:
        fits = found and expect and found.grant_id == expect[0]
        return found.pair if found and fits else expect


class NeverRefusesTheDead(Plain):
    """Takes an ended record for none."""

    def expect(self, expect: Expect, found: Record | None) -> Expect:
        dead = found and found.ended and expect is None
        return found.pair if found and dead else expect


class RacesTasks(Plain):
    """Compares first and writes later."""

    race = staticmethod(anyio.lowlevel.checkpoint)

    def expect(self, expect: Expect, found: Record | None) -> Expect:
        self.fits = (found.pair if found else None) == expect
        return expect

    async def swap(
        self, key: str, expect: Expect, record: Record, **terms: float | None
    ) -> SwapResult:
        found = (await MemoryStore.read(self, key)).record
        if (found.pair if found else None) != expect:
            return SwapResult(applied=False, record=found, now=self.clock.monotonic())
        await self.race()
        found = (await MemoryStore.read(self, key)).record
        pair = found.pair if found else None
        return await MemoryStore.swap(self, key, pair, record, **terms)


class RacesThreads(RacesTasks):
    @staticmethod
    async def race() -> None:
        time.sleep(0.0005)  # noqa: ASYNC251 -- lets another thread run


class StampsNothing(Plain):
    def terms(self, terms: Terms, record: Record, found: Record | None) -> Terms:
        return {**terms, "lease_for": None}


class StampsUnasked(Plain):
    def terms(self, terms: Terms, record: Record, found: Record | None) -> Terms:
        return {**terms, "lease_for": terms["lease_for"] or 40.0}


class ForgetsWhenALeaseBegan(Plain):
    def write(self, record: Record, found: Record | None) -> Record:
        if record.lease is None or record.lease.expires_at == 0.0:
            return record
        return dataclasses.replace(
            record, lease=dataclasses.replace(record.lease, since=0.0)
        )


class LetsALeaseEndTheRecord(Plain):
    """An expiry of the key is not a lease."""

    def terms(self, terms: Terms, record: Record, found: Record | None) -> Terms:
        return {**terms, "keep_for": terms["keep_for"] or terms["lease_for"]}


class ForgetsEarly(Plain):
    def terms(self, terms: Terms, record: Record, found: Record | None) -> Terms:
        kept = terms["keep_for"]
        return {**terms, "keep_for": kept and kept / 3}


class NeverForgets(Plain):
    def terms(self, terms: Terms, record: Record, found: Record | None) -> Terms:
        return {**terms, "keep_for": None}


class KeepsTheFirstTerm(Plain):
    """Sets an expiry when it creates, and never again."""

    def terms(self, terms: Terms, record: Record, found: Record | None) -> Terms:
        kept = self.__dict__.setdefault("kept", {})
        term = kept.setdefault(record.grant_id, terms["keep_for"])
        return {**terms, "keep_for": term}


class FoldsCase(Plain):
    def name(self, key: str) -> str:
        return key.lower()


class StripsBlanks(Plain):
    def name(self, key: str) -> str:
        return key.strip()


class ComposesLetters(Plain):
    def name(self, key: str) -> str:
        return unicodedata.normalize("NFC", key)


class CutsNames(Plain):
    def name(self, key: str) -> str:
        return key[:255]


class Merges(Plain):
    """Updates only the fields that have a value."""

    def write(self, record: Record, found: Record | None) -> Record:
        if found is None:
            return record
        return dataclasses.replace(record, tokens=record.tokens or found.tokens)


class MixesUpNone(Plain):
    def write(self, record: Record, found: Record | None) -> Record:
        return dataclasses.replace(record, scope=record.scope or None)


class MixesUpZero(Plain):
    def write(self, record: Record, found: Record | None) -> Record:
        return dataclasses.replace(record, not_before=record.not_before or None)


class RoundsTimes(Plain):
    def write(self, record: Record, found: Record | None) -> Record:
        return dataclasses.replace(record, saved_at=float(int(record.saved_at)))


class ReturnsLists(Plain):
    def answer_read(self, result: ReadResult) -> ReadResult:
        record: Any = result.record
        if record is None or record.scope is None:
            return result
        record = dataclasses.replace(record, scope=list(record.scope))
        return result._replace(record=record)


class ForgetsAField(Plain):
    def write(self, record: Record, found: Record | None) -> Record:
        return dataclasses.replace(record, id_token=None)


class CannotSpell(Plain):
    def write(self, record: Record, found: Record | None) -> Record:
        str(record.extra).encode()
        repr(dict(record.extra)).encode("ascii", "namereplace")
        for text in record.extra.values():
            str(text).encode("utf-8")
        return record


class HidesTheWinner(Plain):
    def answer(self, result: SwapResult, record: Record) -> SwapResult:
        return result if result.applied else result._replace(record=None)


class ShowsTheLoser(Plain):
    def answer(self, result: SwapResult, record: Record) -> SwapResult:
        return result._replace(record=record)


class HasTwoClocks(Plain):
    def answer(self, result: SwapResult, record: Record) -> SwapResult:
        return result._replace(now=self.clock.time())


class LetsErrorsThrough(Plain):
    def fail(self, record: Record | None) -> None:
        if self.broken:
            message = "connection refused"
            raise OSError(message)


class QuotesTheStatement(Plain):
    def fail(self, record: Record | None) -> None:
        if self.broken:
            message = f"cannot write {record and record.refresh_token}"
            shown = "the server is down"
            raise StoreError(shown) from OSError(message)


class WritesWhileBroken(Plain):
    """Fails after the work is done: allowed, it may have been applied."""

    async def swap(
        self, key: str, expect: Expect, record: Record, **terms: float | None
    ) -> SwapResult:
        result = await MemoryStore.swap(self, key, expect, record, **terms)
        self.fail(record)
        return result

"""Saving an answer: the one thing that is never given up while the process lives."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from freshtoken._foundation.records import (
    Failure,
    Hold,
    Record,
    StoredToken,
    TokenSet,
    next_version,
    with_token,
)
from freshtoken._lifecycle import policy
from freshtoken._lifecycle.cache import is_older
from freshtoken._lifecycle.events import (
    LifetimeUnknown,
    RefreshFailed,
    SaveFailing,
    StoreForgot,
    TokenRefreshed,
)
from freshtoken._lifecycle.policy import Meeting, Want
from freshtoken.errors import Disposition, StoreError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from freshtoken._foundation.records import EntryKey
    from freshtoken._lifecycle.context import Context
    from freshtoken.abc import SwapResult


class Saver:
    """Writes answers, also past their lease, until they are saved or superseded."""

    def __init__(
        self,
        context: Context,
        session_id: str,
        *,
        publish_early: Callable[[Record], None],
    ) -> None:
        """Save for one session."""
        self._context = context
        self._id = session_id
        self._publish_early = publish_early

    async def save(
        self,
        base: Record,
        answer: TokenSet,
        want: Want,
        *,
        doubt_at: float | None,
        claims: Mapping[str, object] | None = None,
    ) -> tuple[Record | None, bool]:
        """Save an answer to a request that was made from *base*.

        No I/O stands between the answer and the first try.

        Args:
            doubt_at: Epoch seconds of the last doubt in the life of the grant.
            claims: Those of its ID token, if they are checked.

        Returns:
            The record that is stored now, and whether it is ours; where another
            took its place, what came is dropped or revoked (protocol §6).
        """
        mine = self._successor(base, answer, want, doubt_at=doubt_at)
        if claims is not None:
            mine = dataclasses.replace(mine, claims=claims, id_token=answer.id_token)
        record, saved = await self._write(base, mine)
        if saved:
            self._report(base, mine, answer)
        return record, saved

    async def write_back(self, found: Record | None) -> Record | None:
        """Save what this process holds beyond *found*: unsaved, or forgotten by it."""
        local = self._context.cache.get(self._id)
        if local is None or found is None:
            return found
        mine = local.unsaved
        if mine is None and is_older(found, local.record):
            mine = local.record
            self._report_forgotten(mine, found)
        if mine is None:
            return found
        record, _ = await self._write(found, self._onto(mine, found))
        return record

    async def _write(self, base: Record, mine: Record) -> tuple[Record | None, bool]:
        """Swap until the answer is stored or somebody else's record stands.

        Args:
            base: The record that the swap expects.
            mine: Its successor.
        """
        context, attempts, expect = self._context, 0, base.pair
        if (
            base.ended is not None
            or base.grant_id != mine.grant_id
            or base.generation >= mine.generation
        ):
            return await self._met(mine, base)
        while True:
            result: SwapResult | None = None
            try:
                result = await context.store.swap(self._id, expect, mine)
            except StoreError:
                attempts += 1
                await self._keep_trying(mine, attempts)
                continue
            if result.applied:
                context.cache.set_unsaved(self._id, None)
                return context.cache.adopt(self._id, result.record), True
            meeting = policy.meet(mine, result.record)
            found = result.record
            if found is None or meeting not in (
                Meeting.AGAIN,
                Meeting.AGAIN_FORGOTTEN,
            ):
                return await self._met(mine, found)
            if meeting is Meeting.AGAIN_FORGOTTEN:
                self._report_forgotten(mine, found)
            mine, expect = self._onto(mine, found), found.pair

    async def _met(
        self, mine: Record, found: Record | None
    ) -> tuple[Record | None, bool]:
        """Accept that another record stands (protocol §6)."""
        context = self._context
        meeting = policy.meet(mine, found)
        context.cache.set_unsaved(self._id, None)
        if meeting is Meeting.DROP_AND_REVOKE and mine.refresh_token:
            # One more look: a sign-in may have followed, and revoking could end it.
            for _ in range(policy.END_TRIES):
                try:
                    found = (await context.store.read(self._id)).record
                except StoreError:
                    await context.clock.sleep(policy.SAVE_RETRY)
                    continue
                if found is None or found.ended is not None:
                    context.revoke_later(self._id, mine.refresh_token)
                break
        return context.cache.adopt(self._id, found), meeting is Meeting.DONE

    async def _keep_trying(self, mine: Record, attempts: int) -> None:
        """Report, serve from memory, and wait for the next try."""
        context = self._context
        if attempts == 1:
            context.cache.set_unsaved(self._id, mine)
        context.cache.serve_unsaved(self._id, mine)
        self._publish_early(mine)
        context.sink.emit(
            SaveFailing(session_id=self._id, attempts=attempts, cause="StoreError")
        )
        await context.clock.sleep(policy.SAVE_RETRY)

    def _successor(
        self, base: Record, answer: TokenSet, want: Want, *, doubt_at: float | None
    ) -> Record:
        """Return the record that *answer* makes of *base*; omitted members stay."""
        context = self._context
        now = context.clock.time()
        changes: dict[str, object] = {
            "generation": base.generation + 1,
            "refresh_token": answer.refresh_token or base.refresh_token,
            "lease": None,
            "doubt": "none",
            "doubt_at": doubt_at,
            "failure": None,
            "not_before": None,
            "holds": self._other_holds(base, want),
            "saved_at": now,
            "extra": answer.extra or base.extra,
        }
        if answer.refresh_token is not None or answer.refresh_expires_at is not None:
            changes["refresh_expires_at"] = answer.refresh_expires_at
        if answer.access_token is None:
            failure = unusable(answer, now)
            changes["failure"] = failure
            changes["not_before"] = context.cache.store_now() + 1.0
            return next_version(base, **changes)
        token = self._stored(base, answer, want)
        changes["tokens"] = with_token(base, token)
        if want.key.scope is None and answer.scope is not None:
            changes["scope"] = answer.scope
        before = base.token(want.key)
        if before is not None and not _later(token, before):
            lifetime = (token.expires_at or now) - token.issued_at
            gap = policy.progress_gap(lifetime)
            hold = Hold(want.key, context.cache.store_now() + gap)
            changes["holds"] = (*self._other_holds(base, want), hold)
        return next_version(base, **changes)

    def _other_holds(self, base: Record, want: Want) -> tuple[Hold, ...]:
        """Return what holds for other tokens, but for what is over without failure."""
        now = self._context.cache.store_now()
        return tuple(
            hold
            for hold in base.holds
            if hold.key != want.key and (hold.failure or hold.not_before > now)
        )

    def _stored(self, base: Record, answer: TokenSet, want: Want) -> StoredToken:
        """Return the access token in the place of its predecessor."""
        before = base.token(want.key)
        forced_at = before.forced_at if before else None
        return stored_token(
            answer,
            want.key,
            self._context.rng,
            scope=answer.scope or want.key.scope or base.scope,
            forced_at=self._context.clock.time() if want.forced else forced_at,
        )

    def _onto(self, mine: Record, found: Record) -> Record:
        """Return *mine* as the successor of *found* instead.

        The lease was not ours any more, or a write came late: an abandoned request
        of somebody else may still arrive, so the doubt is remembered.
        """
        return dataclasses.replace(
            mine,
            # Above ours, too, where the store forgot: no number is used twice.
            version=max(found.version, mine.version) + 1,
            lease=None,
            doubt="none",
            doubt_at=self._context.clock.time(),
        )

    def _report(self, base: Record, mine: Record, answer: TokenSet) -> None:
        sink = self._context.sink
        before = set(base.scope or ())
        lost = before - set(answer.scope) if answer.scope is not None else set()
        if answer.access_token is None:
            if mine.failure is not None:
                sink.emit(
                    RefreshFailed(
                        session_id=self._id,
                        failure=mine.failure,
                        retry_in=policy.MEMO,
                        requests=1,
                    )
                )
            return
        if answer.expires_at is None:
            sink.emit(LifetimeUnknown(session_id=self._id))
        sink.emit(
            TokenRefreshed(
                session_id=self._id,
                generation=mine.generation,
                expires_at=answer.expires_at,
                rotated=answer.refresh_token not in (None, base.refresh_token),
                scope_lost=tuple(sorted(lost)),
                notes=answer.notes,
            )
        )

    def _report_forgotten(self, mine: Record, found: Record) -> None:
        self._context.sink.emit(
            StoreForgot(
                session_id=self._id, held=mine.generation, found=found.generation
            )
        )


def stored_token(
    answer: TokenSet,
    key: EntryKey,
    rng: random.Random,
    *,
    scope: tuple[str, ...] | None,
    forced_at: float | None = None,
) -> StoredToken:
    """Return an answer's access token as it is stored, its soft point drawn once."""
    return StoredToken(
        key=key,
        access_token=answer.access_token or "",
        token_type=answer.token_type,
        issued_at=answer.issued_at,
        expires_at=answer.expires_at,
        refresh_at=policy.draw_refresh_at(answer.issued_at, answer.expires_at, rng),
        scope=scope,
        forced_at=forced_at,
    )


def unusable(answer: TokenSet, now: float) -> Failure:
    """Return the failure for an answer of which only the refresh token is usable."""
    return Failure(
        Disposition.RETRY,
        f"the server's answer holds no usable access token ({answer.problem}); its "
        "refresh token is saved, report the answer to the server's operator",
        retry_after=1.0,
        at=now,
        since=now,
    )


def _later(token: StoredToken, before: StoredToken) -> bool:
    """Tell whether *token* brought a later end than *before*."""
    if token.expires_at is None or before.expires_at is None:
        return token.access_token != before.access_token
    return token.expires_at > before.expires_at

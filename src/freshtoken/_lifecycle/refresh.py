"""The refresh transaction: look, acquire, settle, guard, send, save (or end, release).

The lease guards the sending, the generation guards the saving. Only the lease holder
sends or ends a session; whoever holds the successor of the stored refresh token may
save it, however late. Step numbers are those of docs/refresh.md.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NoReturn, Protocol

import anyio
import anyio.lowlevel

from freshtoken._foundation.records import Ended, Failure, Record, ended_record
from freshtoken._lifecycle import policy
from freshtoken._lifecycle.events import (
    RefreshFailed,
    RequestGrant,
    RotationInDoubt,
    RotationLost,
    ServedStale,
    SessionEnded,
)
from freshtoken._lifecycle.failing import (
    FlightFailedError,
    FlightFailure,
    held_back_failure,
    late_failure,
    outlived_failure,
    stranger_failure,
)
from freshtoken._lifecycle.identity import (
    Examination,
    Verdict,
    examine,
    finish_check,
    foreign_failure,
    report_refusal,
    withhold,
)
from freshtoken._lifecycle.lease import (
    FencedError,
    Held,
    Leasing,
    TooLateError,
    owner_of,
)
from freshtoken._lifecycle.policy import Step, Want
from freshtoken._lifecycle.saving import Saver
from freshtoken._protocol.classification import failure_from
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._wire.retry import repeat
from freshtoken.errors import Disposition, MisconfiguredError, StoreError

if TYPE_CHECKING:
    from freshtoken._foundation.records import TokenSet
    from freshtoken._lifecycle.context import Context

POLL_FROM = 0.05
POLL_TO = 1.0


class PointlessError(Exception):
    """The breaker opened meanwhile: no repeat."""


class Progress(Protocol):
    """What a flight is told of its transaction."""

    def sending(self) -> None:
        """Note that a request is about to leave: from here on, do not cancel."""

    def resting(self) -> None:
        """Note that nothing is under way, and nothing unsaved."""

    def publish_early(self, record: Record) -> None:
        """Serve callers an answer that cannot be saved yet."""


class RefreshTransaction:
    """One flight's way through the steps.

    Args:
        context: Store, server, clocks and the process's knowledge.
        session_id: The session.
        want: What the flight is for.
        progress: The flight.
    """

    def __init__(
        self,
        context: Context,
        session_id: str,
        want: Want,
        progress: Progress,
    ) -> None:
        """Prepare; nothing is sent or written yet."""
        self._context = context
        self._clock = context.clock
        self._id = session_id
        self._want = want
        self._progress = progress
        self._leasing = Leasing(context, session_id)
        self._saver = Saver(context, session_id, publish_early=progress.publish_early)
        self.renewed = False
        """Whether the record that `run` returned holds this flight's own answer."""

    async def run(self) -> Record:
        """Return a record whose token serves the want.

        Raises:
            FlightFailedError: The session is over, or the refresh failed.
            StoreError: The store failed; nothing is known of the session.
        """
        record = await self._first_look()
        while True:
            record = await self._saver.write_back(record)
            self._progress.resting()
            step = self._judge(record)
            if step is Step.ACQUIRE and record is not None:
                try:
                    return await self._fly(record)
                except FencedError as fenced:
                    found = fenced.record
                record = self._context.cache.adopt(self._id, found)
            elif step is Step.WAIT and record is not None:
                record = await self._wait_elsewhere(record)
            else:
                return self._conclude(step, record)

    # 1 look

    async def _first_look(self) -> Record | None:
        """Return the record, from memory where a swap will verify it anyway."""
        known = self._context.cache.known(self._id)
        if known is not None and self._judge(known) is Step.ACQUIRE:
            return known
        return await self._read()

    async def _read(self) -> Record | None:
        result = await self._context.store.read(self._id)
        return self._context.cache.adopt(self._id, result.record)

    def _judge(self, record: Record | None) -> Step:
        client = self._context.server.client
        return policy.judge(
            record,
            self._want,
            issuer=client.issuer,
            client_id=client.client_id,
            now=self._clock.time(),
            store_now=self._context.cache.store_now(),
        )

    def _conclude(self, step: Step, record: Record | None) -> Record:
        """Serve what the look found, or raise why nothing can be served."""
        if record is None or step is Step.NO_SESSION:
            raise FlightFailedError(FlightFailure(reason="unknown_session"))
        if step is Step.SERVE:
            return record
        if step is Step.ENDED:
            raise FlightFailedError(FlightFailure(ended=record.ended))
        if step is Step.FOREIGN:
            raise FlightFailedError(FlightFailure(stranger_failure(record)))
        if step is Step.NO_REFRESH_TOKEN:
            raise FlightFailedError(FlightFailure(reason="no_refresh_token"))
        raise FlightFailedError(
            FlightFailure(
                policy.known_failure(record, self._want.key) or self._held_back(record)
            )
        )

    def _held_back(self, record: Record) -> Failure:
        """Return the failure for a flight that has to wait though nothing failed."""
        now = self._clock.time()
        wait = policy.held_back_for(
            record, self._want, now=now, store_now=self._context.cache.store_now()
        )
        return held_back_failure(wait, now)

    async def _wait_elsewhere(self, record: Record) -> Record | None:
        """Wait while another worker holds the lease; return the record that follows."""
        pause = POLL_FROM
        while True:
            lease = record.lease
            left = POLL_TO
            if lease is not None:
                left = max(lease.expires_at - self._context.cache.store_now(), 0.0)
            spread = 0.5 + 0.5 * self._context.rng.random()
            await self._clock.sleep(min(pause, left + POLL_FROM) * spread)
            pause = min(pause * 2.0, POLL_TO)
            found = await self._read()
            if found is None or found.pair != record.pair:
                return found
            if policy.overdue(found, self._context.cache.store_now()):
                return found

    # 2 to 9: with a limiter slot

    async def _fly(self, record: Record) -> Record:
        """Take a place in the queue, then the lease, then send."""
        server = self._context.server
        try:
            await self._ready(record)
            async with server.limiter.slot():
                # Those who were sent meanwhile may have opened the breaker.
                self._check_refusal(server.refused(self._id), record)
                return await self._with_slot(record)
        finally:
            server.release(self._id)

    async def _with_slot(self, record: Record) -> Record:
        """Take the lease, wait out a vanished holder, send."""
        held = await self._leasing.acquire(record)
        try:
            if held.record.doubt == "unsettled":
                await self._leasing.settle(held)
                await self._leasing.renew(held)
            if policy.refresh_token_over(held.record, self._clock.time()):
                return await self._end(held, outlived_failure(), reason="expired")
            return await self._send_until_answered(held)
        except (FencedError, FlightFailedError):
            raise
        except BaseException:
            # Cancelled, or a fault of ours: give the lease back. With an answer that
            # is not saved it runs out, so that whoever follows settles.
            if held.sent != "answered":
                with anyio.CancelScope(shield=True):
                    await self._leasing.release(held)
            raise

    async def _ready(self, record: Record) -> None:
        """Do what may take long or be refused before the lease is taken."""
        server = self._context.server
        failure = server.refused(self._id)
        if failure is None:
            try:
                await server.prepare(self._context.http, session_id=self._id)
            except ExchangeError as error:
                failure = error.failure
            except MisconfiguredError as error:
                failure = failure_from(error)
        self._check_refusal(failure, record)

    def _check_refusal(self, failure: Failure | None, record: Record) -> None:
        """Fail before the lease is taken, if there is a reason to."""
        if failure is None:
            return
        failure = self._dated(failure, record)
        wait = policy.flight_gap(failure, self._context.rng)
        refused = not failure.sent
        news = self._context.cache.hold_back(self._id, failure, wait, refused=refused)
        if news:  # Else an outage would be reported each second, for each session.
            self._report(record, failure, wait, requests=0)
        raise FlightFailedError(FlightFailure(failure))

    async def _send_until_answered(self, held: Held) -> Record:
        """Steps 4 to 9: send, repeat as the failure allows, save, end or release."""
        answer: TokenSet | None = None
        try:
            answer = await repeat(
                lambda: self._send_in_time(held),
                clock=self._clock,
                rng=self._context.rng,
                before_repeat=lambda _failures: self._before_repeat(held),
            )
        except (ExchangeError, PointlessError):
            # Graded and kept in held.failures; handled outside this block, so that
            # no later error drags it along.
            answer = None
        if answer is None:
            return await self._stop(held)
        return await self._save(held, answer)

    async def _before_repeat(self, held: Held) -> None:
        """Renew the lease before a repeat; refuse one that the breaker forbids."""
        if self._context.server.refused(self._id) is not None:
            raise PointlessError
        await self._leasing.renew(held)

    async def _send_in_time(self, held: Held) -> TokenSet:
        """Steps 4 to 6: send under a lease that covers the whole attempt."""
        failure = late_failure()
        for _ in range(policy.MAX_LATE):
            try:
                return await self._send(held)
            except TooLateError:
                self._progress.resting()
            except ExchangeError as error:
                failure = error.failure
                break
            await self._leasing.renew(held)
        self._progress.resting()
        failure = self._dated(failure, held.record)
        held.failures.append(failure)
        if failure.no_answer and failure.in_doubt:
            self._context.sink.emit(
                RotationInDoubt(session_id=self._id, failure=failure)
            )
        raise ExchangeError(failure)

    def _guard(self, held: Held) -> None:
        """Step 4, right before the first byte."""
        self._leasing.guard(held)
        # First: a flight that was cancelled is told so here, and sends nothing.
        self._progress.sending()
        held.sent = "open"

    async def _send(self, held: Held) -> TokenSet:
        """Step 6: one request, counted."""
        sink, grant_type = self._context.sink, _grant_of(held.record)
        try:
            # Cancelled while the lease was written: the guard is too late to notice.
            await anyio.lowlevel.checkpoint_if_cancelled()
            answer = await self._request(held)
        except ExchangeError as error:
            held.sent = "no"
            sink.count_request(grant_type, error.failure)
            raise
        held.sent = "answered"
        sink.count_request(grant_type, None)
        return answer

    async def _request(self, held: Held) -> TokenSet:
        context, record, key = self._context, held.record, self._want.key
        if record.grant_type == "client_credentials":
            return await context.server.client_credentials(
                context.http,
                scope=key.scope or record.scope,
                resource=key.resource or record.resource,
                session_id=self._id,
                guard=lambda: self._guard(held),
                timeout=policy.ATTEMPT_LIMIT,
            )
        return await context.server.refresh(
            context.http,
            refresh_token=record.refresh_token or "",
            scope=key.scope,
            # Without it some servers issue a token for another audience.
            resource=key.resource or record.resource,
            refreshed_before=record.generation > 0,
            session_id=self._id,
            guard=lambda: self._guard(held),
            timeout=policy.ATTEMPT_LIMIT,
        )

    async def _save(self, held: Held, answer: TokenSet) -> Record:
        """Step 7; where another record stands in the end, step 1 goes on with it."""
        context = self._context
        found = examine(context, held.record, answer)
        if found.verdict is Verdict.FOREIGN:
            return await self._refuse(held, answer, found)
        if found.verdict is Verdict.WITHHELD:
            report_refusal(context, self._id, found.error, ended=False)
            answer = withhold(answer, found.error)
        record, saved = await self._saver.save(
            held.record,
            answer,
            self._want,
            doubt_at=held.doubt_at(self._clock.time()),
            claims=found.claims if found.verdict is Verdict.GOOD else None,
        )
        self._progress.resting()
        if record is None or not saved or answer.access_token is None:
            raise FencedError(record)
        if found.verdict is Verdict.OPEN:
            context.start_soon(finish_check, context, self._id, record, answer, found)
        self.renewed = True
        return record

    async def _refuse(
        self, held: Held, answer: TokenSet, found: Examination
    ) -> NoReturn:
        """End a session whose tokens are about somebody else now, and revoke them."""
        failure = foreign_failure(found.error, self._clock.time())
        token = answer.refresh_token or held.record.refresh_token
        report_refusal(self._context, self._id, found.error, ended=True)
        try:
            await self._end(held, failure, reason="refused_answer")
        except FlightFailedError:
            # Ended. After a new sign-in, which fences us off, nothing is revoked.
            if token is not None:
                self._context.revoke_later(self._id, token)
            raise

    async def _stop(self, held: Held) -> Record:
        """Decide between step 8 and step 9 for the last failure of the flight."""
        failure = held.failures[-1]
        if held.record.grant_type == "client_credentials":
            return await self._give_up(held, failure)
        if failure.disposition is Disposition.SIGN_IN:
            if held.in_doubt:
                failure = dataclasses.replace(failure, lost_rotation=True)
            return await self._end(held, failure, reason="terminal")
        if failure.disposition is Disposition.CLIENT_REJECTED:
            spared = "invalid_client" in self._context.keep_session_on
            first = self._context.server.rejected_first(self._id)
            if first and not spared:
                return await self._end(held, failure, reason="terminal")
        return await self._give_up(held, failure)

    # 8 end

    async def _end(self, held: Held, failure: Failure, *, reason: str) -> NoReturn:
        """End the session, on the version that our lease gave."""
        context = self._context
        record = held.record
        ended = Ended(reason=reason, at=self._clock.time(), failure=failure)
        for _ in range(policy.END_TRIES):
            wanted = ended_record(record, ended)
            try:
                result = await context.store.swap(self._id, record.pair, wanted)
            except StoreError:
                await self._clock.sleep(policy.SAVE_RETRY)
                continue
            if result.applied:
                context.cache.adopt(self._id, result.record)
                break
            found = result.record
            if found is not None and found.ended == ended:
                context.cache.adopt(self._id, found)
                break  # Our own write, whose acknowledgement was lost.
            if found is None or owner_of(found) != held.owner:
                self._progress.resting()
                raise FencedError(found)
            record = found
        else:
            # Under the version that the store still has, so that what it says later
            # is believed.
            tombstone = dataclasses.replace(
                ended_record(record, ended), version=record.version
            )
            context.cache.end_locally(self._id, tombstone)
        self._progress.resting()
        self._report_end(held, failure, reason)
        raise FlightFailedError(FlightFailure(failure, ended))

    def _report_end(self, held: Held, failure: Failure, reason: str) -> None:
        context = self._context
        if failure.lost_rotation:
            doubt_at = held.record.doubt_at
            if doubt_at is None and held.doubted_now:
                doubt_at = next(f.at for f in held.failures if f.in_doubt)
            age = None if doubt_at is None else self._clock.time() - doubt_at
            context.sink.emit(RotationLost(session_id=self._id, doubt_age=age))
        context.sink.emit(
            SessionEnded(session_id=self._id, reason=reason, failure=failure)
        )

    # 9 release

    async def _give_up(self, held: Held, failure: Failure) -> NoReturn:
        """Release the lease, tell everybody when to try again, and fail."""
        wait = policy.flight_gap(failure, self._context.rng)
        key = self._want.key if policy.concerns_one_token(failure) else None
        found = await self._leasing.release(held, failure, wait=wait, key=key)
        self._progress.resting()
        if found is None or found.ended or found.grant_id != held.record.grant_id:
            # What the old grant met is not to be told of what stands now.
            raise FencedError(found)
        self._context.cache.hold_back(self._id, failure, wait, key=key)
        self._report(held.record, failure, wait, requests=len(held.failures))
        raise FlightFailedError(FlightFailure(failure))

    def _report(
        self, record: Record, failure: Failure, wait: float, *, requests: int
    ) -> None:
        """Emit what failed, and that a live token is served on."""
        context = self._context
        context.sink.emit(
            RefreshFailed(
                session_id=self._id, failure=failure, retry_in=wait, requests=requests
            )
        )
        token = record.token(self._want.key)
        if token and not policy.expired(record, token, self._clock.time()):
            context.sink.emit(
                ServedStale(session_id=self._id, expires_at=token.expires_at)
            )

    def _dated(self, failure: Failure, record: Record) -> Failure:
        """Return *failure* with its time and its place in the row of failures."""
        now = self._clock.time()
        before = record.failure
        if policy.concerns_one_token(failure):
            before = policy.known_failure(record, self._want.key)
        if before is None:
            return dataclasses.replace(failure, at=now, since=now, count=1)
        same = before.disposition is failure.disposition
        count = before.count + 1 if same else 1
        return dataclasses.replace(failure, at=now, since=before.since, count=count)


def _grant_of(record: Record) -> RequestGrant:
    """Return the ``grant_type`` of a record's requests."""
    if record.grant_type == "client_credentials":
        return "client_credentials"
    return "refresh_token"

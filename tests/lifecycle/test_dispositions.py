"""Each way to fail, end to end: what callers, the store, the log and events see."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from freshtoken import (
    AccessDeniedError,
    AccessToken,
    ClientRejectedError,
    Disposition,
    FreshTokenError,
    MemoryStore,
    MisconfiguredError,
    RetryableError,
    SignInRequiredError,
    TokenManager,
    TransportError,
)
from freshtoken._foundation.records import DEFAULT_ENTRY, Record, next_version
from freshtoken.events import (
    Event,
    RefreshFailed,
    RotationInDoubt,
    RotationLost,
    ServedStale,
    SessionEnded,
)
from freshtoken.testing import FakeClock, MockIdP

MakeManager = Callable[..., TokenManager]

TICK = 0.001
HTML = "<!doctype html><title>Checking your browser</title>"

RETRY = Disposition.RETRY
SIGN_IN = Disposition.SIGN_IN
CLIENT_REJECTED = Disposition.CLIENT_REJECTED
DENIED = Disposition.DENIED
MISCONFIGURED = Disposition.MISCONFIGURED
UNCLEAR = Disposition.UNCLEAR


@dataclass(frozen=True)
class Row:
    """One way to fail, and what comes of it.

    Attributes:
        fault: Keywords of the fault: an answer, a ``kind`` of no answer, or a
            ``location``.
        requests: How many requests one flight sends.
        setting: What a `MisconfiguredError` names.
        sent: What a `RetryableError` says of the request.
    """

    name: str
    disposition: Disposition
    fault: dict[str, Any]
    error: str | None = None
    original_error: str | None = None
    status: int | None = None
    requests: int = 1
    setting: str | None = None
    sent: bool = True
    error_class: type[FreshTokenError] = field(default=FreshTokenError)

    def inject(self, idp: MockIdP, *, count: int | None = None) -> None:
        options = dict(self.fault)
        if "location" in options:
            idp.redirect_next(count=count, **options)
        elif options.get("kind") in {
            "connect",
            "connect_timeout",
            "dns",
            "tls",
            "pool_timeout",
        }:
            idp.refuse_next(count=count, **options)
        elif "kind" in options:
            idp.drop_next(processed=False, count=count, **options)
        else:
            idp.fail_next(count=count, **options)


def answered(  # noqa: PLR0917 -- columns of a table
    disposition: Disposition,
    status: int,
    error: str | None = None,
    body: Any = None,  # noqa: ANN401 -- any body
    shown: str | None = None,
    setting: str | None = None,
    requests: int | None = None,
) -> Row:
    """Return a row for an answer.

    Args:
        error: Code that is sent, unless *body* says otherwise.
        shown: Code that callers see; by default the one sent.
    """
    fault: dict[str, Any] = {"status": status, "body": body}
    if body is None:
        fault["error"] = error
    classes: dict[Disposition, type[FreshTokenError]] = {
        RETRY: RetryableError,
        SIGN_IN: SignInRequiredError,
        CLIENT_REJECTED: ClientRejectedError,
        DENIED: AccessDeniedError,
        MISCONFIGURED: MisconfiguredError,
        UNCLEAR: SignInRequiredError,
    }
    seen = error if shown is None else shown or None
    return Row(
        f"{status} {error or type(body).__name__}",
        disposition,
        fault,
        error=seen,
        original_error=error if seen != error else None,
        status=status,
        requests=requests or (4 if disposition is RETRY else 1),
        setting="client_secret" if disposition is CLIENT_REJECTED else setting,
        error_class=classes[disposition],
    )


def unanswered(kind: str, *, sent: bool) -> Row:
    return Row(
        kind,
        RETRY,
        {"kind": kind},
        requests=4 if sent else 0,
        sent=sent,
        error_class=TransportError,
    )


ROWS = [
    # Later, whatever the body says
    answered(RETRY, 500),
    answered(RETRY, 502, body=HTML),
    answered(RETRY, 503, "invalid_grant", shown=""),
    answered(RETRY, 503, "temporarily_unavailable"),
    answered(RETRY, 500, "invalid_client", shown=""),
    answered(RETRY, 599),
    answered(RETRY, 408),
    answered(RETRY, 425),
    answered(RETRY, 429, body="Too many requests"),
    answered(RETRY, 429, "rate_limited", shown="slow_down"),
    answered(RETRY, 403, body=HTML),
    answered(RETRY, 400, "temporarily_unavailable"),
    answered(RETRY, 400, "server_error"),
    answered(RETRY, 400, "slow_down"),
    answered(RETRY, 200, body=HTML),
    answered(RETRY, 200, body={"status": "fine"}),
    unanswered("connect", sent=False),
    unanswered("connect_timeout", sent=False),
    unanswered("dns", sent=False),
    unanswered("tls", sent=False),
    unanswered("pool_timeout", sent=False),
    unanswered("read", sent=True),
    unanswered("read_timeout", sent=True),
    unanswered("write", sent=True),
    unanswered("write_timeout", sent=True),
    unanswered("protocol", sent=True),
    # The grant is over
    answered(SIGN_IN, 400, "invalid_grant"),
    answered(SIGN_IN, 401, "invalid_grant"),
    answered(SIGN_IN, 403, "invalid_grant"),
    answered(SIGN_IN, 200, "invalid_grant"),
    answered(SIGN_IN, 400, "login_required"),
    answered(SIGN_IN, 400, "interaction_required"),
    answered(SIGN_IN, 400, "consent_required"),
    answered(SIGN_IN, 400, "account_selection_required"),
    answered(SIGN_IN, 401, "invalid_token"),
    answered(SIGN_IN, 400, "bad_refresh_token", shown="invalid_grant"),
    answered(SIGN_IN, 400, "token_expired", shown="invalid_grant"),
    answered(SIGN_IN, 401, "token_exchange_failed", shown="invalid_grant"),
    # The client's credentials are wrong
    answered(CLIENT_REJECTED, 401, "invalid_client"),
    answered(CLIENT_REJECTED, 400, "invalid_client"),
    answered(CLIENT_REJECTED, 200, "invalid_client"),
    # The account or a policy
    answered(DENIED, 403, "account_suspended"),
    answered(DENIED, 403, "access_denied"),
    answered(DENIED, 400, "access_denied"),
    # A setting
    answered(
        MISCONFIGURED, 400, "invalid_request", setting="token_endpoint_auth_method"
    ),
    answered(MISCONFIGURED, 400, "invalid_scope", setting="scope"),
    answered(MISCONFIGURED, 400, "unauthorized_client", setting="client_id"),
    answered(MISCONFIGURED, 400, "unsupported_grant_type", setting="grant_type"),
    answered(MISCONFIGURED, 400, "invalid_target", setting="resource"),
    answered(MISCONFIGURED, 400, "invalid_dpop_proof", setting="dpop"),
    answered(MISCONFIGURED, 404, body=HTML, setting="token_endpoint"),
    answered(MISCONFIGURED, 405, setting="token_endpoint"),
    answered(MISCONFIGURED, 415, setting="token_endpoint"),
    Row(
        "redirect",
        MISCONFIGURED,
        {"location": "https://elsewhere.test/token"},
        status=307,
        setting="token_endpoint",
        error_class=MisconfiguredError,
    ),
    # Refused without a clear reason
    answered(UNCLEAR, 400),
    answered(UNCLEAR, 401, body=HTML),
    answered(UNCLEAR, 400, "something_else"),
    answered(UNCLEAR, 401, "something_else"),
]
TERMINAL = [row for row in ROWS if row.disposition in {SIGN_IN, CLIENT_REJECTED}]
KEPT = [row for row in ROWS if row not in TERMINAL]
REFUSED = [row for row in KEPT if row.disposition is not RETRY]
TYPICAL = [row for row in KEPT if row.name in {"503 temporarily_unavailable", "dns"}]
TYPICAL += [row for row in REFUSED if row.name in {"403 account_suspended", "redirect"}]
TYPICAL += [row for row in REFUSED if row.name == "400 something_else"]


def rows(some: list[Row]) -> pytest.MarkDecorator:
    names = [f"{row.disposition.value}-{row.name}" for row in some]
    return pytest.mark.parametrize("row", some, ids=names)


async def outcome(
    tokens: TokenManager, clock: FakeClock, session_id: str = "crm", **options: str
) -> AccessToken | FreshTokenError:
    """Ask for a token while time passes in small steps; return also what is raised."""
    found: list[AccessToken | FreshTokenError] = []

    async def call() -> None:
        try:
            found.append(await tokens.get_token(session_id, **options))  # type: ignore[arg-type]  # a test's own options
        except FreshTokenError as error:
            found.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await clock.settle()
        while not found:
            await clock.advance(0.05)
    return found[0]


async def failing(
    tokens: TokenManager, clock: FakeClock, session_id: str = "crm", **options: str
) -> FreshTokenError:
    """Ask for a token that cannot be had; return the error."""
    error = await outcome(tokens, clock, session_id, **options)
    assert isinstance(error, FreshTokenError)
    return error


async def stored(store: MemoryStore, name: str = "crm") -> Record:
    record = (await store.read(name)).record
    assert record is not None
    return record


def check_error(error: FreshTokenError, row: Row) -> None:
    assert type(error) is row.error_class
    assert error.disposition is row.disposition
    assert error.issuer == "https://idp.test"
    assert error.session_id == "crm"
    assert error.status == row.status
    assert error.error == row.error
    assert error.original_error == row.original_error
    if isinstance(error, MisconfiguredError):
        assert error.setting == row.setting
    if isinstance(error, RetryableError):
        assert error.request_sent is row.sent
    if isinstance(error, SignInRequiredError):
        assert error.cleared is (row.disposition is SIGN_IN)
        assert error.reason == ("terminal" if error.cleared else "unclear")
        assert not error.lost_rotation


# The table


@rows(ROWS)
async def test_a_caller_without_a_token_gets_the_error_that_says_what_to_do(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, row: Row
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        row.inject(idp)

        error = await failing(tokens, clock)

        check_error(error, row)
        assert len(idp.requests("token")) == row.requests


@rows(KEPT)
async def test_a_failure_that_is_not_terminal_keeps_the_session_and_heals(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    row: Row,
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        refresh_token = idp.grant("crm").refresh_token
        row.inject(idp)
        for _ in range(5):
            await failing(tokens, clock)
            await clock.advance(700.0)
        kept = await stored(store)
        assert kept.ended is None
        assert kept.refresh_token == refresh_token

        idp.clear_faults()
        await clock.advance(601.0)
        healed = await outcome(tokens, clock)

        assert isinstance(healed, AccessToken)
        assert idp.is_active(healed.reveal())
        assert (await stored(store)).failure is None


@rows(TERMINAL)
async def test_a_terminal_failure_ends_the_session_for_good(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    row: Row,
) -> None:
    """One request; hours later every call fails as the first one did, without any."""
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        row.inject(idp, count=1)

        first = await failing(tokens, clock)
        for _ in range(20):
            check_error(await failing(tokens, clock), row)
            await clock.advance(1_800.0)

        assert len(idp.requests("token")) == 1
        ended = await stored(store)
        assert ended.ended is not None
        assert ended.refresh_token is None
        assert ended.tokens == ()
        assert str(await failing(tokens, clock)) == str(first)
        assert await failing(tokens, clock) is not first
        assert tokens.stats.sessions["ended"] == 1


@rows(KEPT)
async def test_callers_before_the_next_flight_get_the_same_failure_without_network(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, row: Row
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        row.inject(idp)
        first = await failing(tokens, clock)
        local = tokens._cache.get("crm")
        assert local is not None
        wait = local.held_until(DEFAULT_ENTRY) - clock.monotonic()
        assert 0.0 < wait <= (1.0 if row.disposition is RETRY else 30.0)
        met = sum(fault.met for fault in idp._faults)

        for part in (0.0, 0.5, 0.4999):
            await clock.advance(part * wait)
            again = await failing(tokens, clock)
            check_error(again, row)
            assert again is not first

        assert sum(fault.met for fault in idp._faults) == met
        left = getattr(await failing(tokens, clock), "retry_after", None)
        if row.disposition is not UNCLEAR:
            assert left == pytest.approx(wait * 0.0001, abs=1e-5)
        await clock.advance(wait * 0.001)
        await failing(tokens, clock)
        assert sum(fault.met for fault in idp._faults) > met


@rows([row for row in TYPICAL if row in REFUSED])
async def test_refusals_are_tried_again_after_30_s_doubling_to_10_min(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, row: Row
) -> None:
    """With a call every five seconds: at 0, 30, 90, 210, 450, 930, 1530, 2130 … s."""
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        row.inject(idp)
        began = clock.time()

        while clock.time() < began + 2_200.0:
            check_error(await failing(tokens, clock), row)
            await clock.advance(5.0)

        times = [request.at - began for request in idp.requests("token")]
        assert times == [
            pytest.approx(seconds, abs=36.0)
            for seconds in (0, 30, 90, 210, 450, 930, 1530, 2130)
        ]


@rows(ROWS)
async def test_one_log_record_says_everything(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    row: Row,
) -> None:
    caplog.set_level(logging.INFO, "freshtoken")
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        row.inject(idp, count=row.requests or 4)
        for _ in range(10):
            await failing(tokens, clock)

    names = {"refresh_failed", "session_ended"}
    records = [
        vars(record) for record in caplog.records if vars(record).get("event") in names
    ]
    assert len(records) == 1
    record = records[0]
    assert record["levelno"] == logging.WARNING
    assert record["name"] == "freshtoken"
    assert record["event"] == ("session_ended" if row in TERMINAL else "refresh_failed")
    assert record["session_id"] == "crm"
    assert record["issuer"] == "https://idp.test"
    assert record["disposition"] == row.disposition.value
    assert record["status"] == row.status
    assert record["error"] == row.error
    assert record["original_error"] == row.original_error
    assert record["advice"]
    assert (record["cause"] is not None) is (row.error_class is TransportError)


@rows(ROWS)
async def test_events_follow_from_the_disposition(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    events: list[Event],
    row: Row,
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        row.inject(idp, count=row.requests or 4)
        await failing(tokens, clock)

    ended = [event for event in events if isinstance(event, SessionEnded)]
    failed = [event for event in events if isinstance(event, RefreshFailed)]
    assert [event.reason for event in ended] == (
        ["terminal"] if row in TERMINAL else []
    )
    assert len(failed) == (0 if row in TERMINAL else 1)
    assert not any(isinstance(event, ServedStale | RotationLost) for event in events)
    for event in failed:
        assert event.failure.disposition is row.disposition
        assert event.requests == (row.requests or 4)
        assert 0.0 < event.retry_in <= (1.0 if row.disposition is RETRY else 30.0)
    doubts = sum(isinstance(event, RotationInDoubt) for event in events)
    unread = row.error_class is TransportError and row.sent
    assert doubts == (4 if unread or row.name == "200 str" else 0)


@rows(TYPICAL)
async def test_a_live_token_is_served_through_hours_of_failures(  # noqa: PLR0917 -- fixtures
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    events: list[Event],
    row: Row,
) -> None:
    """Nothing is seen of it until the token ends, and the session is not cleared."""
    idp.rules.access_token_lifetime = 28_800.0
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        live = await tokens.get_token("crm")
        row.inject(idp)

        for _ in range(60):
            await clock.advance(28_800.0 / 60 - 0.2)
            assert await outcome(tokens, clock) == live

        assert any(isinstance(event, ServedStale) for event in events)
        assert 3 <= sum(fault.met for fault in idp._faults) <= 4 * 8_640 / 15
        await clock.advance(30.0)
        assert type(await failing(tokens, clock)) is row.error_class
        assert (await stored(store)).ended is None

        idp.clear_faults()
        await clock.advance(601.0)
        healed = await outcome(tokens, clock)
        assert isinstance(healed, AccessToken)
        assert healed.reveal() == idp.grant("crm").access_token


async def test_an_outage_of_days_is_survived(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
) -> None:
    """Two thousand flights have failed in a row; two hours more, and it heals."""
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        outage = idp.fail_next(status=503, count=None)
        await failing(tokens, clock)
        record = await stored(store)
        assert record.failure is not None
        failure = dataclasses.replace(record.failure, count=2_000)
        await store.swap("crm", record.pair, next_version(record, failure=failure))
        await clock.advance(60.0)

        for _ in range(120):
            error = await failing(tokens, clock)
            assert type(error) is RetryableError
            assert error.failing_since == pytest.approx(1_800_000_000.0, abs=5.0)
            await clock.advance(60.0)
        assert 4 * 100 <= outage.met <= 4 * 122
        assert (await stored(store)).ended is None

        idp.clear_faults()
        assert isinstance(await outcome(tokens, clock), AccessToken)


# RETRY


async def test_blip_is_bridged_within_one_flight(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        idp.fail_next(status=502, body=HTML)
        began = clock.time()

        token = await outcome(tokens, clock)

        assert isinstance(token, AccessToken)
        assert len(idp.requests("token")) == 2
        assert clock.time() - began <= 0.25


async def test_backoffs_carry_jitter(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Workers that failed together come back apart, and within doubling bounds."""
    patterns = set()
    for number in range(4):
        async with make_manager() as tokens:
            await idp.new_session(tokens, f"user-{number}")
            idp.fail_next(status=403, body=HTML, count=3)
            began = clock.time()
            before = len(idp.requests("token"))
            await outcome(tokens, clock, f"user-{number}")
            times = [one.at - began for one in idp.requests("token")[before:]]
            assert len(times) == 4
            assert times[1] <= 0.2 + TICK
            assert times[2] - times[1] <= 0.4 + TICK
            assert times[3] - times[2] <= 0.8 + TICK
            patterns.add(tuple(times))
    assert len(patterns) == 4


@pytest.mark.parametrize(
    ("header", "wait"), [("7", 7.0), ("30", 30.0), ("300", 300.0), ("86400", 300.0)]
)
async def test_retry_after_is_honoured_across_callers(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, header: str, wait: float
) -> None:
    """Nobody sleeps for it: calls fail fast, and say when to come again."""
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        idp.fail_next(status=429, error="rate_limited", headers={"Retry-After": header})
        began = clock.time()

        error = await failing(tokens, clock)
        assert isinstance(error, RetryableError)
        assert error.retry_after == pytest.approx(wait)
        assert clock.time() == began

        await clock.advance(wait - TICK)
        late = await failing(tokens, clock)
        assert isinstance(late, RetryableError)
        assert late.status == 429
        assert late.retry_after == pytest.approx(TICK, abs=1e-5)
        assert len(idp.requests("token")) == 1

        await clock.advance(TICK)
        assert isinstance(await outcome(tokens, clock), AccessToken)
        assert len(idp.requests("token")) == 2


async def test_retry_after_is_honoured_by_other_workers(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with make_manager() as one, make_manager() as other:
        await idp.new_session(one, "crm")
        idp.fail_next(status=503, headers={"Retry-After": "60"})
        await failing(one, clock)

        await clock.advance(60.0 - TICK)
        error = await failing(other, clock)

        assert isinstance(error, RetryableError)
        assert error.status == 503
        assert len(idp.requests("token")) == 1
        await clock.advance(TICK)
        assert isinstance(await outcome(other, clock), AccessToken)


async def test_retry_after_counts_for_all_sessions_once_two_have_met_it(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        for name in ("a", "b", "c", "d"):
            await idp.new_session(tokens, name)
        idp.fail_next(status=429, headers={"Retry-After": "100"})
        await failing(tokens, clock, "a")
        assert isinstance(await outcome(tokens, clock, "d"), AccessToken)

        idp.fail_next(status=429, headers={"Retry-After": "50"})
        await failing(tokens, clock, "b")
        error = await failing(tokens, clock, "c")

        assert isinstance(error, RetryableError)
        assert error.retry_after == pytest.approx(50.0)
        assert not error.request_sent
        assert len(idp.requests("token")) == 3
        await clock.advance(50.0)
        assert isinstance(await outcome(tokens, clock, "c"), AccessToken)


async def test_live_token_is_served_while_a_retry_after_lasts(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        live = await tokens.get_token("crm")
        idp.fail_next(status=429, headers={"Retry-After": "86400"})
        await clock.advance(250.0)

        for _ in range(49):
            assert await tokens.get_token("crm") == live
            await clock.advance(1.0)

        assert len(idp.requests("token")) == 2


async def test_open_breaker_hides_no_success_of_another_worker(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    """This worker has given the server up for 4 s; the other has a token."""
    async with make_manager() as cut_off, make_manager() as lucky:
        for name in ("a", "b", "crm"):
            await idp.new_session(cut_off, name)
        outage = idp.fail_next(status=500, count=7)
        await failing(cut_off, clock, "a")
        await failing(cut_off, clock, "b")
        for pause in (1.0, 2.0):  # two probes, both in vain
            await clock.advance(pause)
            await failing(cut_off, clock, "a")
        assert outage.spent
        assert isinstance(await failing(cut_off, clock), RetryableError)

        token = await outcome(lucky, clock)
        await clock.advance(1.5)

        assert isinstance(token, AccessToken)
        assert cut_off._server.breaker.is_open
        found = await outcome(cut_off, clock)
        assert isinstance(found, AccessToken)
        assert found.reveal() == token.reveal()
        assert cut_off._server.breaker.is_open
        assert len(idp.requests("token")) == 8


async def test_breaker_that_opens_meanwhile_stops_those_who_queued_for_a_place(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    """Nothing is sent, and no lease was taken for it."""
    names = [f"user-{number}" for number in range(5)]
    answers: list[Any] = []

    async def ask(tokens: TokenManager, name: str) -> None:
        answers.append(await outcome(tokens, clock, name))

    async with manager as tokens, AsyncExitStack() as slots:
        for name in names:
            await idp.new_session(tokens, name)
        before = [await stored(store, name) for name in names]
        limiter, breaker = tokens._server.limiter, tokens._server.breaker
        for _ in range(75):
            await slots.enter_async_context(limiter.slot())
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(ask, tokens, name)
            await clock.settle()
            assert limiter.waiting == len(names)
            for number in range(5):
                breaker.failure(clock.monotonic(), f"other-{number % 2}")
            assert breaker.is_open

            await slots.aclose()

        assert [type(answer) for answer in answers] == [RetryableError] * len(names)
        assert [await stored(store, name) for name in names] == before
    assert idp.requests("token") == []


# SIGN_IN


async def test_every_waiter_gets_the_terminal_error_with_all_its_detail(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        idp.fail_next(
            error="invalid_grant",
            description="revoked by owner",
            headers={"X-Request-Id": "req-77"},
            hold=False,
        )
        errors: list[FreshTokenError] = []

        async def call() -> None:
            errors.append(await failing(tokens, clock))

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(call)

        assert len(idp.requests("token")) == 1
        assert len({id(error) for error in errors}) == 20
        for error in errors:
            assert isinstance(error, SignInRequiredError)
            assert not isinstance(error, RetryableError)
            assert error.error == "invalid_grant"
            assert error.error_description == "revoked by owner"
            assert error.status == 400
            assert error.request_id == "req-77"
            assert error.cleared


async def test_terminal_failure_ends_a_session_whose_token_still_lives(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        await tokens.get_token("crm")
        idp.revoke_grant("crm")
        await clock.advance(250.0)

        error = await failing(tokens, clock)

        assert isinstance(error, SignInRequiredError)
        assert error.cleared
        assert (await stored(store)).ended is not None


async def test_other_workers_learn_that_a_session_ended_without_asking_the_server(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with make_manager() as one, make_manager() as other:
        await idp.new_session(one, "crm")
        live = await one.get_token("crm")
        assert (await other.get_token("crm")).reveal() == live.reveal()
        idp.fail_next(error="invalid_grant", description="revoked by owner")
        await failing(one, clock, rejected=live.reveal())

        await clock.advance(5.0)
        error = await failing(other, clock)

        assert isinstance(error, SignInRequiredError)
        assert error.error_description == "revoked by owner"
        assert len(idp.requests("token")) == 2


async def test_own_table_of_codes_goes_first(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    client = idp.client(error_codes={"grant_gone": Disposition.SIGN_IN})
    async with make_manager(client=client) as tokens:
        await idp.new_session(tokens, "crm")
        idp.fail_next(error="grant_gone")

        error = await failing(tokens, clock)

        assert isinstance(error, SignInRequiredError)
        assert error.cleared


# UNCLEAR


async def test_invalid_request_for_a_grant_that_was_refreshed_before_is_unclear(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    """The request was good before, so it is the refresh token that is not."""
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        await tokens.get_token("crm")
        await clock.advance(200.0)
        idp.fail_next(error="invalid_request", count=None)
        await clock.advance(100.0)

        error = await failing(tokens, clock)

        assert isinstance(error, SignInRequiredError)
        assert not error.cleared
        assert error.reason == "unclear"
        assert error.error == "invalid_request"
        assert (await stored(store)).ended is None


# Lost rotations


@pytest.mark.parametrize("kind", ["read", "protocol", "read_timeout"])
async def test_lost_answer_at_a_strict_server_is_reported_as_a_lost_rotation(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    events: list[Event],
    kind: Any,  # noqa: ANN401 -- one of the mock server's words
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        idp.drop_next(processed=True, kind=kind)

        error = await failing(tokens, clock)

        assert isinstance(error, SignInRequiredError)
        assert error.lost_rotation
        assert error.error == "invalid_grant"
        assert len(idp.requests("token")) == 2
        assert sum(isinstance(event, RotationInDoubt) for event in events) == 1
        lost = [event for event in events if isinstance(event, RotationLost)]
        assert [event.session_id for event in lost] == ["crm"]
        later = await failing(tokens, clock)
        assert isinstance(later, SignInRequiredError)
        assert later.lost_rotation


async def test_lost_answer_is_made_good_within_a_grace_window(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    idp.rules.rotation = "grace"
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        idp.drop_next(processed=True)
        began = clock.time()

        token = await outcome(tokens, clock)

        assert isinstance(token, AccessToken)
        assert len(idp.requests("token")) == 2
        assert clock.time() == began  # at once


async def test_doubt_is_remembered_for_the_life_of_the_grant(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    events: list[Event],
) -> None:
    """A day later the grant dies: the abandoned request may have arrived at last."""
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        idp.drop_next(processed=False)
        assert isinstance(await outcome(tokens, clock), AccessToken)
        await clock.advance(86_400.0)
        idp.revoke_grant("crm")

        error = await failing(tokens, clock)

        assert isinstance(error, SignInRequiredError)
        assert error.lost_rotation
        lost = [event for event in events if isinstance(event, RotationLost)]
        assert lost[0].doubt_age == pytest.approx(86_400.0, abs=5.0)


async def test_grant_that_was_revoked_is_no_lost_rotation(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        await tokens.get_token("crm")
        idp.revoke_grant("crm")
        await clock.advance(300.0)

        error = await failing(tokens, clock)

        assert isinstance(error, SignInRequiredError)
        assert not error.lost_rotation
        assert not any(isinstance(event, RotationLost) for event in events)


# CLIENT_REJECTED


async def sign_in_several(
    tokens: TokenManager, idp: MockIdP, clock: FakeClock, *, live: str = ""
) -> None:
    """Add sessions a, b, c; those named in *live* have a token, the others none."""
    for name in "abc":
        await idp.new_session(tokens, name)
    for name in live:
        await tokens.get_token(name)


def break_secret(idp: MockIdP) -> None:
    idp.clients["mock-client"].client_secret = "another-secret"


def mend_secret(idp: MockIdP, secret: str) -> None:
    idp.clients["mock-client"].client_secret = secret


async def test_one_bad_secret_ends_one_session_and_no_other(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    """And as long as it lasts nobody is told to sign in."""
    async with manager as tokens:
        await sign_in_several(tokens, idp, clock, live="c")
        break_secret(idp)

        for name in "abab":
            error = await failing(tokens, clock, name)
            assert type(error) is ClientRejectedError
            assert error.error == "invalid_client"
        assert isinstance(await outcome(tokens, clock, "c"), AccessToken)

        assert len(idp.requests("token")) == 2
        assert (await stored(store, "a")).ended is not None
        assert (await stored(store, "b")).ended is None
        for _ in range(120):
            await clock.advance(60.0)
            for name in "abc":
                found = await outcome(tokens, clock, name)
                assert not isinstance(found, SignInRequiredError)
        for name in "bc":
            record = await stored(store, name)
            assert record.ended is None
            assert record.refresh_token == idp.grant(name).refresh_token


async def test_refused_credentials_are_probed_once_a_minute(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await sign_in_several(tokens, idp, clock)
        break_secret(idp)
        await failing(tokens, clock, "a")
        began = clock.time()

        for _ in range(300):
            for name in "abc":
                assert type(await failing(tokens, clock, name)) is ClientRejectedError
            await clock.advance(1.0)

        probes = [one.at - began for one in idp.requests("token")[1:]]
        assert probes == [pytest.approx(60.0 * n, abs=3.0 * n) for n in range(1, 5)]


async def test_a_success_closes_the_breaker(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Then the session that was cleared needs a new sign-in, and says why."""
    async with manager as tokens:
        await sign_in_several(tokens, idp, clock)
        secret = idp.clients["mock-client"].client_secret or ""
        break_secret(idp)
        await failing(tokens, clock, "a")
        await failing(tokens, clock, "b")
        mend_secret(idp, secret)
        await clock.advance(59.0)
        assert type(await failing(tokens, clock, "b")) is ClientRejectedError

        await clock.advance(1.1)
        assert isinstance(await outcome(tokens, clock, "b"), AccessToken)
        assert isinstance(await outcome(tokens, clock, "c"), AccessToken)

        over = await failing(tokens, clock, "a")
        assert isinstance(over, SignInRequiredError)
        assert over.cleared
        assert over.reason == "client_rejected"


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_changed_credential_is_tried_at_once(
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    asynchronous: bool,  # noqa: FBT001 -- a row
) -> None:
    right = idp.clients["mock-client"].client_secret or ""
    secrets = ["wrong-secret"]

    def ask() -> str:
        return secrets[0]

    async def ask_later() -> str:
        await anyio.lowlevel.checkpoint()
        return secrets[0]

    client = idp.client(client_secret=ask_later if asynchronous else ask)
    async with make_manager(client=client) as tokens:
        await sign_in_several(tokens, idp, clock)
        await failing(tokens, clock, "a")
        await clock.advance(2.0)
        assert type(await failing(tokens, clock, "b")) is ClientRejectedError
        assert len(idp.requests("token")) == 1

        secrets[0] = right
        await clock.advance(1.0)

        assert isinstance(await outcome(tokens, clock, "b"), AccessToken)
        assert len(idp.requests("token")) == 2


async def test_keep_session_on_spares_even_the_first(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    async with make_manager(keep_session_on={"invalid_client"}) as tokens:
        await sign_in_several(tokens, idp, clock)
        secret = idp.clients["mock-client"].client_secret or ""
        break_secret(idp)
        for name in "abc":
            assert type(await failing(tokens, clock, name)) is ClientRejectedError
            assert (await stored(store, name)).ended is None
        mend_secret(idp, secret)
        await clock.advance(61.0)

        for name in "abc":
            assert isinstance(await outcome(tokens, clock, name), AccessToken)


# A service's own session


async def test_service_token_is_fetched_again_when_it_ends(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        session = await tokens.client_credentials(
            scope="orders.read users.read", resource="https://api.test"
        )
        first = await tokens.get_token(session.id)
        await clock.advance(250.0)

        second = await tokens.get_token(session.id)

        assert second.reveal() != first.reveal()
        requests = idp.requests("token", grant_type="client_credentials")
        assert len(requests) == 2
        for request in requests:
            assert request.form["scope"] == "orders.read users.read"
            assert request.form["resource"] == "https://api.test"
            assert "refresh_token" not in request.form


@pytest.mark.parametrize(
    ("code", "error_class"),
    [
        ("invalid_client", ClientRejectedError),
        ("invalid_grant", ClientRejectedError),
        ("unauthorized_client", MisconfiguredError),
        ("access_denied", AccessDeniedError),
        ("login_required", AccessDeniedError),
    ],
)
async def test_terminal_failure_of_a_service_clears_nothing(  # noqa: PLR0917 -- fixtures
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    code: str,
    error_class: type[FreshTokenError],
) -> None:
    async with manager as tokens:
        session = await tokens.client_credentials(scope="orders.read")
        await idp.new_session(tokens, "user")
        idp.fail_next(error=code, grant_type="client_credentials", count=None)

        error = await failing(tokens, clock, session.id)

        assert type(error) is error_class
        assert not isinstance(error, SignInRequiredError)
        assert (await stored(store, session.id)).ended is None
        assert tokens._server.client_refused is (error_class is ClientRejectedError)
        assert len(idp.requests("token")) == 1
        idp.clear_faults()
        await clock.advance(61.0)
        assert isinstance(await outcome(tokens, clock, session.id), AccessToken)
        assert isinstance(await outcome(tokens, clock, "user"), AccessToken)


async def test_breaker_that_a_service_opened_spares_the_sessions_of_users(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    async with manager as tokens:
        session = await tokens.client_credentials()
        await idp.new_session(tokens, "user")
        break_secret(idp)
        await failing(tokens, clock, session.id)

        for _ in range(5):
            assert type(await failing(tokens, clock, "user")) is ClientRejectedError
            await clock.advance(61.0)

        assert (await stored(store, "user")).ended is None

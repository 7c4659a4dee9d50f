"""What happened, for the application, the log and the counters."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

import anyio
import pytest

from freshtoken import (
    AccessToken,
    Disposition,
    FreshTokenError,
    MemoryStore,
    StoreError,
    TokenManager,
)
from freshtoken import events as public
from freshtoken._foundation.records import Record
from freshtoken._lifecycle.events import EventSink
from freshtoken.abc import ReadResult, SwapResult
from freshtoken.events import (
    Event,
    LifetimeUnknown,
    RefreshFailed,
    RevocationFailed,
    SaveFailing,
    ServedStale,
    SessionEnded,
    StoreUnavailable,
    TokenRefreshed,
    TokenRequestCount,
)
from freshtoken.testing import FakeClock, MockIdP

MakeManager = Callable[..., TokenManager]


class CountingStore:
    """A store that counts its calls, and fails when told to."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self.calls = 0
        self.reads_fail = False
        self.writes_fail = False

    async def read(self, key: str) -> ReadResult:
        self.calls += 1
        if self.reads_fail:
            raise ConnectionError("rt-1-secret-of-the-driver")
        return await self._inner.read(key)

    async def swap(
        self,
        key: str,
        expect: tuple[str, int] | None,
        record: Record,
        *,
        lease_for: float | None = None,
        keep_for: float | None = None,
    ) -> SwapResult:
        self.calls += 1
        if self.writes_fail:
            raise ConnectionError("rt-1-secret-of-the-driver")
        return await self._inner.swap(
            key, expect, record, lease_for=lease_for, keep_for=keep_for
        )


@pytest.fixture
def counting(store: MemoryStore) -> CountingStore:
    return CountingStore(store)


async def outcome(
    tokens: TokenManager, clock: FakeClock, session_id: str = "crm"
) -> AccessToken | FreshTokenError:
    """Ask for a token while time passes in small steps; return also what is raised."""
    found: list[AccessToken | FreshTokenError] = []

    async def call() -> None:
        try:
            found.append(await tokens.get_token(session_id))
        except FreshTokenError as error:
            found.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await clock.settle()
        while not found:
            await clock.advance(0.1)
    return found[0]


async def sign_in(tokens: TokenManager, idp: MockIdP) -> AccessToken:
    """Add a session and fetch its first token."""
    await idp.new_session(tokens, "crm")
    return await tokens.get_token("crm")


# Events


async def test_refresh_is_an_event(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    async with manager as tokens:
        token = await sign_in(tokens, idp)
        await tokens.get_token("crm", rejected=token)

    assert events == [
        TokenRefreshed(
            session_id="crm",
            issuer="https://idp.test",
            generation=number,
            expires_at=clock.time() + 300.0,
            rotated=True,
        )
        for number in (1, 2)
    ]


async def test_refresh_that_lost_scope_says_which(
    manager: TokenManager, idp: MockIdP, events: list[Event]
) -> None:
    async with manager as tokens:
        token = await sign_in(tokens, idp)
        idp.reshape_next(merge={"scope": "openid"}, remove=["refresh_token"])
        await tokens.get_token("crm", rejected=token)

    last = events[-1]
    assert isinstance(last, TokenRefreshed)
    assert last.scope_lost == ("offline_access", "profile")
    assert not last.rotated


async def test_oddities_of_an_answer_are_noted(
    manager: TokenManager, idp: MockIdP, events: list[Event]
) -> None:
    idp.token_members = {"expires_in": "two hours"}
    async with manager as tokens:
        await sign_in(tokens, idp)

    refreshed = [event for event in events if isinstance(event, TokenRefreshed)]
    assert any("expires_in" in note for note in refreshed[0].notes)
    assert sum(isinstance(event, LifetimeUnknown) for event in events) == 1


async def test_failed_refresh_names_its_failure_and_what_is_served(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    async with manager as tokens:
        token = await sign_in(tokens, idp)
        idp.fail_next(
            status=429, headers={"Retry-After": "40", "X-Request-Id": "req-5"}
        )
        await clock.advance(246.001)

    failed, stale = events[-2:]
    assert isinstance(failed, RefreshFailed)
    assert failed.session_id == "crm"
    assert failed.failure.disposition is Disposition.RETRY
    assert failed.failure.status == 429
    assert failed.failure.request_id == "req-5"
    assert failed.retry_in == 40.0
    assert failed.requests == 1
    assert isinstance(stale, ServedStale)
    assert stale.expires_at == token.expires_at


async def test_end_of_a_session_carries_its_reason(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    idp.rules.refresh_token_lifetime = 100.0
    async with manager as tokens:
        for name in ("revoked", "left", "old"):
            await idp.new_session(tokens, name)
        await tokens.get_token("old")
        idp.revoke_grant("revoked")
        await outcome(tokens, clock, "revoked")
        await tokens.end_session("left")
        await clock.advance(300.0)
        await outcome(tokens, clock, "old")

    ended = [event for event in events if isinstance(event, SessionEnded)]
    assert [(event.session_id, event.reason) for event in ended] == [
        ("revoked", "terminal"),
        ("left", "signed_out"),
        ("old", "expired"),
    ]
    assert [event.failure.status if event.failure else None for event in ended] == [
        400,
        None,
        None,
    ]


async def test_failing_store_is_an_event_and_live_tokens_are_served_on(
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    counting: CountingStore,
    events: list[Event],
) -> None:
    """Without the driver's own words, which may hold what it was asked to write."""
    async with make_manager(store=counting) as tokens:
        token = await sign_in(tokens, idp)
        counting.reads_fail = True

        for _ in range(20):
            await clock.advance(10.0)
            assert await tokens.get_token("crm") == token

    seen = [event for event in events if isinstance(event, StoreUnavailable)]
    assert 1 <= len(seen) <= 20
    assert {event.cause for event in seen} == {"ConnectionError"}
    assert len(idp.requests("token")) == 1


async def test_failing_save_is_an_event_for_each_try(  # noqa: PLR0917 -- fixtures
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    counting: CountingStore,
    events: list[Event],
    store: MemoryStore,
) -> None:
    """At least one a second; the new token is served from memory meanwhile."""
    async with make_manager(store=counting) as tokens:
        await idp.new_session(tokens, "crm")
        hold = idp.hold_next(at="after")
        async with anyio.create_task_group() as group:
            group.start_soon(outcome, tokens, clock)
            await hold.reached()
            counting.writes_fail = True
            hold.release()
        await clock.advance(10.0)
        token = await tokens.get_token("crm")
        assert token.reveal() == idp.grant("crm").access_token
        counting.writes_fail = False
        await clock.advance(1.0)

    saving = [event for event in events if isinstance(event, SaveFailing)]
    assert len(saving) >= 10
    assert [event.attempts for event in saving] == list(range(1, len(saving) + 1))
    record = (await store.read("crm")).record
    assert record is not None
    assert record.refresh_token == idp.grant("crm").refresh_token
    assert len(idp.requests("token")) == 1


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, "access_denied"),
        (400, "unsupported_token_type"),
        (400, "something_else"),
        (401, "invalid_client"),
        (404, None),
    ],
)
async def test_failing_revocation_is_an_event(  # noqa: PLR0917 -- fixtures
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    events: list[Event],
    status: int,
    error: str | None,
) -> None:
    async with manager as tokens:
        await sign_in(tokens, idp)
        idp.fail_next("revoke", status=status, error=error)

        await tokens.end_session("crm")
        await clock.settle()

    failed = events[-1]
    assert isinstance(failed, RevocationFailed)
    assert failed.session_id == "crm"
    assert failed.failure.status == status
    assert failed.failure.error == error


async def test_server_without_revocation_is_no_failure(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    idp.metadata_overrides["revocation_endpoint"] = None
    async with manager as tokens:
        await sign_in(tokens, idp)

        await tokens.end_session("crm")
        await clock.settle()

    assert not any(isinstance(event, RevocationFailed) for event in events)
    assert idp.requests("revoke") == []


def test_events_are_typed_frozen_and_named() -> None:
    kinds = [
        kind
        for kind in vars(public).values()
        if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
    ]

    assert len(kinds) >= 13
    assert len({kind.name for kind in kinds}) == len(kinds)
    for kind in kinds:
        assert kind.name != Event.name
        assert kind.level in {logging.INFO, logging.WARNING, logging.ERROR, 50}
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]  # a data class


# Handlers


async def test_raising_handler_is_isolated_counted_and_logged(
    make_manager: MakeManager,
    idp: MockIdP,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its own words are not repeated: they may hold anything."""

    def handle(event: Event) -> None:
        raise ValueError("my-secret")

    caplog.set_level(logging.DEBUG, "freshtoken")
    async with make_manager(on_event=handle) as tokens:
        token = await sign_in(tokens, idp)
        assert token.reveal() == idp.grant("crm").access_token
        assert tokens.stats.handler_errors == 1
        assert tokens.stats.events == {"token_refreshed": 1}

    failed = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert len(failed) == 1
    assert failed[0].message.startswith("event_handler_failed")
    assert "ValueError" in failed[0].message
    assert "my-secret" not in str(vars(failed[0]))


async def test_manager_without_a_handler_counts_all_the_same(
    make_manager: MakeManager, idp: MockIdP
) -> None:
    async with make_manager(on_event=None) as tokens:
        await sign_in(tokens, idp)

        assert tokens.stats.events == {"token_refreshed": 1}


# Log records


async def test_log_records_carry_the_fields_of_their_event(
    manager: TokenManager, idp: MockIdP, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "freshtoken")
    async with manager as tokens:
        token = await sign_in(tokens, idp)

    records = [vars(record) for record in caplog.records]
    assert [record["event"] for record in records] == ["token_refreshed"]
    assert records[0]["levelno"] == logging.INFO
    assert records[0]["session_id"] == "crm"
    assert records[0]["issuer"] == "https://idp.test"
    assert records[0]["generation"] == 1
    assert records[0]["expires_at"] == token.expires_at
    assert records[0]["rotated"] is True


async def test_every_event_can_be_logged(caplog: pytest.LogCaptureFixture) -> None:
    """No field has the name of a log record's own attribute."""
    caplog.set_level(logging.DEBUG, "freshtoken")
    sink = EventSink(None, issuer="https://idp.test")
    kinds = [
        kind
        for kind in vars(public).values()
        if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
    ]

    for kind in kinds:
        values = {
            item.name: None
            for item in dataclasses.fields(kind)
            if item.default is dataclasses.MISSING
        }
        sink.emit(kind(**values))  # type: ignore[arg-type]  # fields without defaults

    assert [vars(one)["event"] for one in caplog.records] == [one.name for one in kinds]


# Counters


async def test_token_requests_are_counted_by_grant_disposition_and_error(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        service = await tokens.client_credentials()
        await tokens.get_token(service.id)
        await sign_in(tokens, idp)
        for name in ("a", "b", "c", "d"):
            await idp.new_session(tokens, name)
        idp.fail_next(error="invalid_grant")
        await outcome(tokens, clock, "a")
        idp.fail_next(status=429, headers={"Retry-After": "1"})
        await outcome(tokens, clock, "b")
        idp.drop_next(processed=False)
        await outcome(tokens, clock, "c")

        stats = tokens.stats
        assert set(stats.token_requests) == {
            TokenRequestCount("client_credentials", None, None, 1),
            TokenRequestCount("refresh_token", None, None, 2),
            TokenRequestCount("refresh_token", Disposition.SIGN_IN, "invalid_grant", 1),
            TokenRequestCount("refresh_token", Disposition.RETRY, "http_429", 1),
            TokenRequestCount("refresh_token", Disposition.RETRY, "ReadError", 1),
        }
        assert stats.failure_rate == pytest.approx(3 / 6)
        assert sum(one.count for one in stats.token_requests) == len(
            idp.requests("token")
        )


async def test_failure_rate_of_nothing_is_zero(manager: TokenManager) -> None:
    async with manager as tokens:
        assert tokens.stats.failure_rate == 0.0
        assert tokens.stats.token_requests == ()


async def test_waiters_of_a_flight_are_counted(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        hold = idp.hold_next()
        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(tokens.get_token, "crm")
            await hold.reached()
            await clock.settle()
            hold.release()

        assert tokens.stats.flights == 1
        assert tokens.stats.waiters == 30
        assert tokens.stats.waited == 30


async def test_sessions_are_counted_by_state(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with make_manager(early_renewal=True) as tokens:
        for name in ("live", "due", "expired", "ended"):
            await idp.new_session(tokens, name)
            await tokens.get_token(name)
        idp.fail_next(status=503, headers={"Retry-After": "300"}, count=None)
        await clock.advance(250.0)
        await tokens.end_session("ended")
        assert tokens.stats.sessions == {"live": 0, "due": 3, "expired": 0, "ended": 1}
        idp.clear_faults()
        await clock.advance(50.0)

        counted = tokens.stats.sessions

    assert counted == {"live": 0, "due": 0, "expired": 3, "ended": 1}


async def test_stats_are_a_snapshot(manager: TokenManager, idp: MockIdP) -> None:
    async with manager as tokens:
        before = tokens.stats
        await sign_in(tokens, idp)

        assert before.events == {}
        assert tokens.stats.events == {"token_refreshed": 1}


# The hot path


async def test_hot_call_touches_neither_store_nor_counters_nor_network(  # noqa: PLR0917 -- fixtures
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    counting: CountingStore,
    caplog: pytest.LogCaptureFixture,
    events: list[Event],
) -> None:
    """Ten thousand calls, and nothing is as much as looked at."""
    async with make_manager(store=counting) as tokens:
        token = await sign_in(tokens, idp)
        calls, stats, seen = counting.calls, tokens.stats, len(events)
        tokens._sink = None  # type: ignore[assignment]  # whoever touches it fails
        tokens._supply = None  # type: ignore[assignment]  # likewise
        caplog.clear()
        caplog.set_level(logging.DEBUG)

        for _ in range(100):
            await clock.advance(0.04)
            for _ in range(100):
                assert await tokens.get_token("crm") is token

        assert counting.calls == calls
        assert len(events) == seen
        assert not [one for one in caplog.records if one.name == "freshtoken"]
        tokens._sink = manager_sink(tokens)
        assert dataclasses.replace(tokens.stats, sessions={}) == dataclasses.replace(
            stats, sessions={}
        )
        assert len(idp.requests("token")) == 1


def manager_sink(tokens: TokenManager) -> EventSink:
    """Return the sink that the manager's parts share."""
    sink = tokens._keeper._sink
    assert isinstance(sink, EventSink)
    return sink


async def test_warm_session_costs_one_look_at_the_store_in_5_s(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock, counting: CountingStore
) -> None:
    async with make_manager(store=counting) as tokens:
        await sign_in(tokens, idp)
        before = counting.calls

        for _ in range(2_000):
            await clock.advance(0.1)
            await tokens.get_token("crm")

        assert 38 <= counting.calls - before <= 41


async def test_session_that_nobody_asks_for_costs_no_look_at_the_store(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock, counting: CountingStore
) -> None:
    async with make_manager(store=counting) as tokens:
        await sign_in(tokens, idp)
        before = counting.calls

        await clock.advance(200.0)

        assert counting.calls == before


async def test_failed_session_in_an_outage_is_reported_when_something_was_sent(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    """Ten callers a second: while the breaker is open, only the first is told of."""
    async with manager as tokens:
        for name in ("crm", "other"):
            await idp.new_session(tokens, name)
        idp.fail_next(status=503, count=None)
        await outcome(tokens, clock, "other")
        await outcome(tokens, clock)
        events.clear()
        began = clock.time()

        while clock.time() < began + 60.0:
            await outcome(tokens, clock)
            await clock.advance(0.1)

        failed = [event for event in events if isinstance(event, RefreshFailed)]
        probes = [event for event in failed if event.requests]
        refusals = [event for event in failed if not event.requests]
        assert 3 <= len(probes) <= 8
        assert 1 <= len(refusals) <= len(probes) + 1


async def test_store_error_reaches_a_caller_without_a_token(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock, counting: CountingStore
) -> None:
    async with make_manager(store=counting) as tokens:
        await sign_in(tokens, idp)
        counting.reads_fail = counting.writes_fail = True
        await clock.advance(300.0)

        error = await outcome(tokens, clock)

        assert type(error) is StoreError
        assert error.session_id == "crm"
        assert "ConnectionError" in str(error)
        assert "secret" not in str(error)

"""When tokens are renewed, and who waits for it: tokens of 300 s.

The soft point lies at 210-240 s, a worker's own up to 6 s later; the hard point at
290 s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import anyio
import pytest

from freshtoken import (
    AccessToken,
    MemoryStore,
    RetryableError,
    SignInRequiredError,
    TokenManager,
)
from freshtoken._foundation.records import DEFAULT_ENTRY, Record, StoredToken
from freshtoken.events import Event, LifetimeUnknown, ServedStale
from freshtoken.testing import FakeClock, MockIdP, RequestRecord

MakeManager = Callable[..., TokenManager]

TICK = 0.001


class Asking:
    """A call of ``get_token`` that may have to wait."""

    def __init__(self) -> None:
        self.token: str | None = None
        self.error: Exception | None = None

    @property
    def waits(self) -> bool:
        return self.token is None and self.error is None

    async def run(self, tokens: TokenManager, name: str, options: Any) -> None:  # noqa: ANN401 -- handed on
        try:
            self.token = (await tokens.get_token(name, **options)).reveal()
        except Exception as error:  # noqa: BLE001 -- looked at by the test
            self.error = error


async def ask(tokens: TokenManager, clock: FakeClock, **options: object) -> AccessToken:
    """Ask for a token, and let time pass while backoffs last."""
    found: list[AccessToken] = []
    failed: list[Exception] = []

    async def call() -> None:
        try:
            found.append(await tokens.get_token("crm", **options))  # type: ignore[arg-type]  # a test's own options
        except Exception as error:  # noqa: BLE001 -- raised again below
            failed.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await clock.settle()
        while not found and not failed:
            await clock.advance(0.1)
    for error in failed:
        raise error
    return found[0]


async def sign_in(tokens: TokenManager, idp: MockIdP, name: str = "crm") -> str:
    """Add a session and fetch its first token."""
    await idp.new_session(tokens, name)
    return (await tokens.get_token(name)).reveal()


async def stored(store: MemoryStore, name: str = "crm") -> Record:
    record = (await store.read(name)).record
    assert record is not None
    return record


def due_in(tokens: TokenManager, clock: FakeClock, name: str = "crm") -> float:
    """Seconds until this worker finds the token due."""
    return tokens._cache.hot[name].due_mono - clock.monotonic()


def token_requests(idp: MockIdP) -> list[RequestRecord]:
    return idp.requests("token")


# The soft point


async def test_soft_point_is_drawn_once_and_stored(
    make_manager: MakeManager, idp: MockIdP, store: MemoryStore, clock: FakeClock
) -> None:
    """All workers agree on it; each adds at most 2 % of its own."""
    workers = [make_manager() for _ in range(8)]
    async with workers[0] as first:
        await sign_in(first, idp)
        drawn = (await stored(store)).tokens[0].refresh_at
        assert drawn is not None
        assert 210.0 <= drawn - clock.time() <= 240.0

        late = []
        for other in workers[1:]:
            async with other as tokens:
                await tokens.get_token("crm")
                late.append(tokens._cache.hot["crm"].due_wall - drawn)

        assert (await stored(store)).tokens[0].refresh_at == drawn
        assert all(0.0 <= seconds <= 6.0 for seconds in late)
        assert len(set(late)) == 7
        assert len(token_requests(idp)) == 1


async def test_sessions_that_began_together_do_not_refresh_together(
    manager: TokenManager, idp: MockIdP, store: MemoryStore, clock: FakeClock
) -> None:
    async with manager as tokens:
        points = []
        for number in range(100):
            await sign_in(tokens, idp, f"user-{number}")
            refresh_at = (await stored(store, f"user-{number}")).tokens[0].refresh_at
            points.append((refresh_at or 0.0) - clock.time())

        for tenth in range(10):
            low = 210.0 + 3.0 * tenth
            assert 2 <= sum(low <= point < low + 3.0 for point in points) <= 25


async def test_nothing_is_renewed_before_the_soft_point(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        first = await sign_in(tokens, idp)
        await clock.advance(due_in(tokens, clock) - TICK)

        token = await tokens.get_token("crm")
        await clock.settle()

        assert token.reveal() == first
        assert len(token_requests(idp)) == 1


async def test_at_the_soft_point_everybody_is_served_while_one_request_is_out(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        first = await sign_in(tokens, idp)
        hold = idp.hold_next("token")
        await clock.advance(due_in(tokens, clock))

        served = [(await tokens.get_token("crm")).reveal() for _ in range(50)]

        assert served == [first] * 50
        await hold.reached()
        assert len(token_requests(idp)) == 2
        hold.release()
        await clock.settle()
        assert (await tokens.get_token("crm")).reveal() == idp.grant("crm").access_token
        assert len(token_requests(idp)) == 2


async def test_at_the_soft_point_one_worker_refreshes_for_all(
    make_manager: MakeManager, idp: MockIdP, store: MemoryStore, clock: FakeClock
) -> None:
    async with make_manager() as one, make_manager() as other:
        first = await sign_in(one, idp)
        await other.get_token("crm")
        hold = idp.hold_next("token")
        await clock.advance(246.0)  # both have found it due by now

        assert (await one.get_token("crm")).reveal() == first
        assert (await other.get_token("crm")).reveal() == first
        assert len(token_requests(idp)) == 2

        hold.release()
        await clock.advance(6.0)  # what another did is seen within 5 s
        new = idp.grant("crm").access_token
        assert (await one.get_token("crm")).reveal() == new
        assert (await other.get_token("crm")).reveal() == new
        assert len(token_requests(idp)) == 2
        assert (await stored(store)).generation == 2


async def test_a_call_that_also_has_to_look_at_the_store_still_renews(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """A session that nobody used since its token came: one late call is enough."""
    async with manager as tokens:
        await sign_in(tokens, idp)
        await clock.advance(due_in(tokens, clock))
        assert len(token_requests(idp)) == 2  # the first token was in use
        second = idp.grant("crm").access_token
        await clock.advance(280.0)  # nobody asks for the second

        token = await tokens.get_token("crm")
        await clock.settle()

        assert token.reveal() == second
        assert len(token_requests(idp)) == 3


# The hard point


async def add_live(
    tokens: TokenManager, idp: MockIdP, clock: FakeClock, lifetime: float = 300.0
) -> str:
    """Add a session with a token of its own; nobody used it, so nothing renews it."""
    grant = idp.new_grant()
    await tokens.add_session(
        "crm",
        refresh_token=grant.refresh_token or "",
        access_token=grant.access_token,
        expires_at=clock.time() + lifetime,
    )
    return grant.access_token


@pytest.mark.parametrize(
    ("lifetime", "before_end"), [(300.0, 10.0), (200.0, 10.0), (60.0, 3.0), (6.0, 0.3)]
)
async def test_a_tick_before_the_hard_point_nobody_waits(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    lifetime: float,
    before_end: float,
) -> None:
    async with manager as tokens:
        first = await add_live(tokens, idp, clock, lifetime)
        hold = idp.hold_next("token")
        await clock.advance(lifetime - before_end - TICK)

        token = await tokens.get_token("crm")

        assert token.reveal() == first
        await hold.reached()
        assert (await tokens.get_token("crm")).reveal() == first
        hold.release()


@pytest.mark.parametrize(
    ("lifetime", "before_end"), [(300.0, 10.0), (200.0, 10.0), (60.0, 3.0), (6.0, 0.3)]
)
async def test_at_the_hard_point_callers_wait_for_the_new_token(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    lifetime: float,
    before_end: float,
) -> None:
    async with manager as tokens, anyio.create_task_group() as group:
        await add_live(tokens, idp, clock, lifetime)
        hold = idp.hold_next("token")
        await clock.advance(lifetime - before_end)
        callers = [Asking() for _ in range(10)]
        for caller in callers:
            group.start_soon(caller.run, tokens, "crm", {})
        await clock.settle()
        assert all(caller.waits for caller in callers)

        hold.release()
        await clock.settle()

        new = idp.grant(token_requests(idp)[0].grant_id or "").access_token
        assert [caller.token for caller in callers] == [new] * 10
        assert len(token_requests(idp)) == 1


async def test_live_token_is_served_past_the_hard_point_if_the_refresh_fails(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    """And not a tick past its end."""
    async with manager as tokens:
        first = await sign_in(tokens, idp)
        idp.fail_next(status=503, headers={"Retry-After": "200"}, count=None)
        await clock.advance(290.0)

        assert (await ask(tokens, clock)).reveal() == first
        assert any(isinstance(event, ServedStale) for event in events)

        await clock.advance(10.0 - TICK)
        assert (await ask(tokens, clock)).reveal() == first
        await clock.advance(TICK)
        with pytest.raises(RetryableError):
            await ask(tokens, clock)


async def test_without_early_renewal_only_an_ended_token_is_renewed(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with make_manager(early_renewal=False) as tokens:
        first = await sign_in(tokens, idp)
        await clock.advance(300.0 - TICK)
        assert (await tokens.get_token("crm")).reveal() == first
        await clock.settle()
        assert len(token_requests(idp)) == 1

        await clock.advance(TICK)
        assert len(token_requests(idp)) == 1  # nobody asked

        assert (await tokens.get_token("crm")).reveal() != first
        assert len(token_requests(idp)) == 2


# No progress


async def test_token_that_always_ends_at_the_same_moment_is_not_fetched_in_a_loop(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Ten hours with a call a second: the end that the server names never moves."""
    idp.token_members = {"expires_in": None, "expires_at": clock.time() + 36_000}
    async with manager as tokens:
        await sign_in(tokens, idp)

        for _ in range(3_599):
            await clock.advance(10.0)
            await ask(tokens, clock)

        times = [request.at for request in token_requests(idp)]
        assert 2 <= len(times) <= 12
        end = times[0] + 36_000
        for before, after in pairwise(times[1:]):
            assert after - before >= min(30.0, 0.10 * (end - before)) - 1e-3


async def test_token_that_ends_at_once_costs_one_request_a_call(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    idp.token_members = {"expires_in": 0}
    async with manager as tokens:
        await idp.new_session(tokens, "crm")

        token = await tokens.get_token("crm")

        assert token.reveal() == idp.grant("crm").access_token
        assert token.expires_at == clock.time()
        assert len(token_requests(idp)) == 1
        await clock.advance(7_200.0)
        assert len(token_requests(idp)) == 1  # nothing loops in the background
        await tokens.get_token("crm")
        assert len(token_requests(idp)) == 2


@pytest.mark.parametrize("nonsense", [-300, "soon", None, True, []])
async def test_nonsense_for_a_lifetime_is_an_unknown_lifetime(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    events: list[Event],
    nonsense: object,
) -> None:
    idp.token_members = {"expires_in": nonsense}
    async with manager as tokens:
        first = await sign_in(tokens, idp)

        for _ in range(200):
            await clock.advance(3_600.0)
            assert (await tokens.get_token("crm")).reveal() == first

        assert len(token_requests(idp)) == 1
        assert sum(isinstance(event, LifetimeUnknown) for event in events) == 1


# Unknown lifetimes


async def test_unknown_lifetime_is_renewed_when_an_api_rejects_the_token(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    idp.token_members = {"expires_in": None}
    async with manager as tokens:
        token = await tokens.get_token((await idp.new_session(tokens, "crm")).id)
        assert token.expires_at is None
        assert [event.name for event in events].count("lifetime_unknown") == 1
        await clock.advance(86_400.0)

        new = await tokens.get_token("crm", rejected=token)

        assert new.reveal() == idp.grant("crm").access_token != token.reveal()
        assert len(token_requests(idp)) == 2


async def test_default_lifetime_is_taken_where_nobody_states_one(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    idp.token_members = {"expires_in": None}
    client = idp.client(default_lifetime=1_000.0)
    async with make_manager(client=client) as tokens:
        await sign_in(tokens, idp)
        assert (await tokens.get_token("crm")).expires_at == clock.time() + 1_000.0

        await clock.advance(699.0)
        assert len(token_requests(idp)) == 1
        await clock.advance(121.0)
        assert len(token_requests(idp)) == 2

        assert not any(isinstance(event, LifetimeUnknown) for event in events)


async def test_tokens_own_exp_is_taken_where_the_answer_states_none(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    idp.rules.access_token_format = "jwt"
    idp.token_members = {"expires_in": None}
    async with manager as tokens:
        await sign_in(tokens, idp)

        token = await tokens.get_token("crm")

        assert token.expires_at == clock.time() + 300.0
        await clock.advance(246.0)
        assert len(token_requests(idp)) == 2
        assert not any(isinstance(event, LifetimeUnknown) for event in events)


# What callers may ask for


@pytest.mark.parametrize(("age", "requests"), [(100.0, 1), (100.0 + TICK, 2)])
async def test_min_validity_is_met_by_a_new_token_where_the_old_one_is_too_short(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, age: float, requests: int
) -> None:
    async with manager as tokens:
        await sign_in(tokens, idp)
        await clock.advance(age)

        token = await tokens.get_token("crm", min_validity=200.0)

        assert (token.expires_at or 0.0) - clock.time() >= 200.0
        assert len(token_requests(idp)) == requests


async def test_min_validity_beyond_all_tokens_is_no_request_for_each_call(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """The newest is returned, and replaced at most every 30 s."""
    async with manager as tokens:
        await sign_in(tokens, idp)

        for _ in range(600):
            await clock.advance(1.0)
            token = await tokens.get_token("crm", min_validity=3_600.0)
            assert (token.expires_at or 0.0) - clock.time() >= 270.0

        assert 15 <= len(token_requests(idp)) <= 21


async def test_rejected_token_is_replaced_at_once(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        first = await sign_in(tokens, idp)

        token = await tokens.get_token("crm", rejected=first)

        assert token.reveal() == idp.grant("crm").access_token != first
        assert len(token_requests(idp)) == 2


async def test_rejected_token_that_is_replaced_already_causes_no_request(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Here it is known; there the store has to say so."""
    async with make_manager() as here, make_manager() as there:
        first = await sign_in(here, idp)
        assert (await there.get_token("crm")).reveal() == first
        second = (await here.get_token("crm", rejected=first)).reveal()

        again = await here.get_token("crm", rejected=first)
        elsewhere = await there.get_token("crm", rejected=first)

        assert again.reveal() == elsewhere.reveal() == second
        assert len(token_requests(idp)) == 2


@pytest.mark.parametrize(
    ("lifetime", "gap"), [(300.0, 30.0), (100.0, 10.0), (3_600.0, 30.0)]
)
async def test_next_forced_refresh_waits_for_the_gap(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, lifetime: float, gap: float
) -> None:
    """In between the caller hears that a new one would be no better."""
    idp.rules.access_token_lifetime = lifetime
    async with manager as tokens:
        first = await sign_in(tokens, idp)
        second = await tokens.get_token("crm", rejected=first)
        await clock.advance(gap - TICK)

        with pytest.raises(RetryableError) as refused:
            await tokens.get_token("crm", rejected=second)

        assert refused.value.retry_after == pytest.approx(TICK, abs=1e-5)
        assert not refused.value.request_sent
        assert len(token_requests(idp)) == 2
        assert (await tokens.get_token("crm")).reveal() == second.reveal()
        await clock.advance(TICK)
        third = await tokens.get_token("crm", rejected=second)
        assert third.reveal() == idp.grant("crm").access_token
        assert len(token_requests(idp)) == 3


async def test_api_that_rejects_everything_is_no_loop(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """An hour with a call a second, each of which is met with 401."""
    async with manager as tokens:
        await sign_in(tokens, idp)

        for _ in range(3_600):
            await clock.advance(1.0)
            token = await tokens.get_token("crm")
            try:
                await tokens.get_token("crm", rejected=token)
            except RetryableError:
                continue

        assert 100 <= len(token_requests(idp)) <= 122


# Without a refresh token


async def test_grant_without_refresh_token_serves_its_token_to_the_end(
    manager: TokenManager, idp: MockIdP, store: MemoryStore, clock: FakeClock
) -> None:
    now = clock.time()
    token = StoredToken(
        DEFAULT_ENTRY, "at-0", "Bearer", now, now + 300.0, refresh_at=now + 225.0
    )
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        record = await stored(store)
        await store.swap(
            "crm",
            record.pair,
            dataclasses.replace(record, version=2, refresh_token=None, tokens=(token,)),
        )
        tokens._cache.forget("crm")

        await clock.advance(300.0 - TICK)
        assert (await tokens.get_token("crm")).reveal() == "at-0"
        await clock.advance(TICK)
        with pytest.raises(SignInRequiredError) as over:
            await tokens.get_token("crm")

        assert over.value.reason == "no_refresh_token"
        assert "offline_access" in str(over.value)
        assert token_requests(idp) == []


async def test_callers_wait_from_the_hard_point_on_while_a_slow_refresh_is_under_way(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Also when the record was read longer ago than another look at it takes."""
    idp.rules.access_token_lifetime = 60.0
    got: list[str] = []

    async with manager as tokens:
        session = await idp.new_session(tokens)
        first = await tokens.get_token(session.id)
        held = idp.hold_next()
        await clock.advance(56.9)
        assert len(idp.requests("token")) == 2
        assert await tokens.get_token(session.id) is first

        await clock.advance(0.2)

        async def call() -> None:
            got.append((await tokens.get_token(session.id)).reveal())

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await clock.settle()
            served_at_once = list(got)
            held.release()

    assert served_at_once == []
    assert got == [idp.grant(session.id).access_token]
    assert got != [first.reveal()]

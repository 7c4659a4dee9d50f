"""ID tokens that come with a refresh: looked at without I/O before the save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from freshtoken import (
    MemoryStore,
    RetryableError,
    Session,
    SignInRequiredError,
    TokenManager,
)
from freshtoken._foundation.records import Record
from freshtoken.events import Event, IDTokenRefused, SessionEnded, TokenRefreshed
from freshtoken.testing import FakeClock, MockIdP

MakeManager = Callable[..., TokenManager]


async def stored(store: MemoryStore, session: Session) -> Record:
    record = (await store.read(session.id)).record
    assert record is not None
    return record


def named(events: list[Event], kind: type[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.spec("Core-12.2-iss")
async def test_claims_of_a_refreshed_id_token_count_from_then_on(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    async with manager as tokens:
        session = await idp.sign_in(tokens, scope="openid email")
        idp.add_user("alice", email="new@example.com")
        await clock.advance(300.0)

        await tokens.get_token(session.id)
        again = await tokens.get_session(session.id)

    record = await stored(store, session)
    assert again.claims["email"] == "new@example.com"
    assert "name" not in again.claims
    assert again.claims["auth_time"] == session.claims["auth_time"]
    assert record.id_token is not None
    assert len(idp.requests("jwks")) == 1


@pytest.mark.spec("Core-12.2-absent")
async def test_refresh_without_id_token_keeps_the_claims(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    idp.rules.id_token_on_refresh = False

    async with manager as tokens:
        session = await idp.sign_in(tokens)
        before = await stored(store, session)
        await clock.advance(300.0)
        await tokens.get_token(session.id)

    after = await stored(store, session)
    assert (after.claims, after.id_token) == (before.claims, before.id_token)
    assert after.generation == 1


@pytest.mark.spec("Core-12.2-sub")
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("claims", [{"sub": "mallory"}, {"iss": "https://evil.test"}])
async def test_another_user_or_issuer_ends_the_session_and_revokes_its_tokens(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    *,
    events: list[Event],
    claims: dict[str, Any],
    signed: bool,
) -> None:
    """Whether the keys at hand fit or not: it came from the token endpoint."""
    async with manager as tokens:
        session = await idp.sign_in(tokens)
        grant = idp.grant(session.id)
        if not signed:
            idp.rotate_keys("hard", publish=False)
        idp.forge_next_id_token(claims=claims)
        await clock.advance(300.0)

        with pytest.raises(SignInRequiredError) as caught:
            await tokens.get_token(session.id)
        with pytest.raises(SignInRequiredError):
            await tokens.get_token(session.id)

    assert (caught.value.cleared, caught.value.reason) == (True, "refused_answer")
    assert grant.ended_by == "revocation"
    assert len(idp.requests("token")) == 2
    assert [event.ended for event in named(events, IDTokenRefused)] == [True]
    assert [event.reason for event in named(events, SessionEnded)] == ["refused_answer"]


@pytest.mark.parametrize(
    "forgery",
    [
        {"claims": {"at_hash": "x" * 22}},
        {"claims": {"aud": "other"}},
        {"claims": {"exp": 1_700_000_000}},
        {"claims": {"nonce": "other"}},
        {"claims": {"auth_time": 1_600_000_000}},
        {"alg": "HS256"},
        {"alg": "none"},
    ],
)
@pytest.mark.spec("Core-12.2-rest")
async def test_any_other_fault_saves_the_refresh_token_and_withholds_the_access_token(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    *,
    events: list[Event],
    forgery: dict[str, Any],
) -> None:
    async with manager as tokens:
        session = await idp.sign_in(tokens)
        old = (await stored(store, session)).tokens[0].access_token
        idp.forge_next_id_token(**forgery)
        await clock.advance(300.0)

        with pytest.raises(RetryableError):
            await tokens.get_token(session.id)
        held = await stored(store, session)
        await clock.advance(2.0)
        token = await tokens.get_token(session.id)

    assert held.refresh_token is not None
    assert held.refresh_token != idp.grant(session.id).refresh_token
    assert held.claims == session.claims
    assert [one.access_token for one in held.tokens] == [old]
    assert idp.is_active(token.reveal())
    assert idp.grant(session.id).active
    assert [event.ended for event in named(events, IDTokenRefused)] == [False]


async def test_keys_that_do_not_suffice_delay_nothing_and_the_check_is_finished(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    """The token is served while the key set is still being fetched."""
    async with manager as tokens:
        session = await idp.sign_in(tokens, scope="openid email")
        idp.add_user("alice", email="new@example.com")
        idp.rotate_keys("hard")
        held = idp.hold_next("jwks")
        await clock.advance(300.0)

        token = await tokens.get_token(session.id)
        await held.reached()
        meanwhile = await tokens.get_session(session.id)
        held.release()
        await clock.settle()
        finished = await tokens.get_session(session.id)

    assert idp.is_active(token.reveal())
    assert meanwhile.claims["email"] == "alice@example.com"
    assert finished.claims["email"] == "new@example.com"


async def test_worker_without_any_keys_serves_first_and_checks_then(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with make_manager() as one, make_manager() as other:
        session = await idp.sign_in(one, scope="openid email")
        idp.add_user("alice", email="new@example.com")
        await clock.advance(300.0)

        await other.get_token(session.id)
        await clock.settle()
        found = await other.get_session(session.id)

    assert found.claims["email"] == "new@example.com"
    assert len(idp.requests("jwks")) == 2


async def test_check_that_fails_after_the_key_fetch_withdraws_the_access_token(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    events: list[Event],
) -> None:
    async with manager as tokens:
        session = await idp.sign_in(tokens)
        idp.forge_next_id_token(break_signature=True)
        await clock.advance(300.0)

        bad = await tokens.get_token(session.id)
        await clock.settle()
        held = await stored(store, session)
        await clock.advance(6.0)
        good = await tokens.get_token(session.id)

    assert held.tokens == ()
    assert held.claims == session.claims
    assert good.reveal() != bad.reveal()
    assert len(named(events, IDTokenRefused)) == 1
    assert idp.grant(session.id).active


async def test_key_set_that_cannot_be_had_leaves_the_claims_as_they_are(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    async with manager as tokens:
        session = await idp.sign_in(tokens)
        idp.rotate_keys("hard")
        idp.fail_next("jwks", status=503)
        await clock.advance(300.0)

        await tokens.get_token(session.id)
        await clock.settle()

    record = await stored(store, session)
    assert record.claims == session.claims
    assert record.tokens != ()


async def test_check_that_is_finished_late_does_not_touch_what_followed(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    async with manager as tokens:
        session = await idp.sign_in(tokens)
        idp.rotate_keys("hard")
        idp.forge_next_id_token(break_signature=True)
        held = idp.hold_next("jwks")
        await clock.advance(300.0)
        await tokens.get_token(session.id)
        await held.reached()
        await tokens.end_session(session.id)
        ended = await stored(store, session)
        held.release()
        await clock.settle()

    assert await stored(store, session) == ended


async def test_check_that_is_finished_late_leaves_the_next_refresh_alone(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    async with manager as tokens:
        session = await idp.sign_in(tokens)
        idp.forge_next_id_token(break_signature=True)
        held = idp.hold_next("jwks")
        await clock.advance(300.0)
        await tokens.get_token(session.id)
        await held.reached()
        bad = await tokens.get_token(session.id)
        token = await tokens.get_token(session.id, rejected=bad)
        after = await stored(store, session)
        held.release()
        await clock.settle()

        assert (await tokens.get_token(session.id)).reveal() == token.reveal()
    assert after.generation == 2
    assert await stored(store, session) == after


async def test_session_without_claims_ignores_id_tokens(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    """A grant from elsewhere: there is nobody to compare with."""
    idp.token_members = {"id_token": "not.a.token"}

    async with manager as tokens:
        session = await idp.new_session(tokens)
        await tokens.get_token(session.id)

    assert len(named(events, TokenRefreshed)) == 1


async def test_new_sign_in_meanwhile_is_not_ended_by_a_foreign_id_token(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock, store: MemoryStore
) -> None:
    async with make_manager() as one, make_manager() as other:
        session = await idp.sign_in(one)
        idp.forge_next_id_token(claims={"sub": "mallory"})
        await clock.advance(300.0)
        held = idp.hold_next("token", at="after")
        async with anyio.create_task_group() as group:
            group.start_soon(one.get_token, session.id)
            await held.reached()
            grant = idp.new_grant()
            await other.add_session(
                session.id, refresh_token=grant.refresh_token or "", replace=True
            )
            held.release()

        assert (await other.get_session(session.id)).id == session.id
    assert (await stored(store, session)).ended is None
    assert idp.requests("revoke") == []

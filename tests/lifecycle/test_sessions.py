"""Sessions begin and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from freshtoken import (
    AccessToken,
    MemoryStore,
    MisconfiguredError,
    OAuthClient,
    Secret,
    Session,
    SignInRequiredError,
    StoreError,
    TokenManager,
)
from freshtoken._foundation.records import Record
from freshtoken.abc import ReadResult, SwapResult
from freshtoken.events import Event, RevocationFailed, SessionEnded
from freshtoken.testing import FakeClock, MockIdP

MakeManager = Callable[..., TokenManager]


class BrokenStore:
    """A store of which one verb, or both, do not work."""

    def __init__(self, inner: MemoryStore, *broken: str) -> None:
        self._inner = inner
        self.broken = set(broken)

    async def read(self, key: str) -> ReadResult:
        if "read" in self.broken:
            raise OSError
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
        if "swap" in self.broken:
            raise OSError
        return await self._inner.swap(
            key, expect, record, lease_for=lease_for, keep_for=keep_for
        )


async def stored(store: MemoryStore, name: str = "crm") -> Record:
    record = (await store.read(name)).record
    assert record is not None
    return record


# add_session


async def test_added_session_is_stored_as_given(
    manager: TokenManager, store: MemoryStore, clock: FakeClock
) -> None:
    now = clock.time()
    async with manager as tokens:
        session = await tokens.add_session(
            "crm",
            refresh_token=Secret("rt-0"),
            access_token="at-0",
            expires_at=now + 100.0,
            refresh_expires_at=now + 1_000.0,
            scope="orders openid orders",
        )

    assert session == Session(
        id="crm",
        issuer="https://idp.test",
        client_id="mock-client",
        scope=("openid", "orders"),
        expires_at=now + 100.0,
        refresh_expires_at=now + 1_000.0,
    )
    record = await stored(store)
    assert record.refresh_token == "rt-0"
    assert record.tokens[0].access_token == "at-0"
    assert record.tokens[0].issued_at == now
    assert 70.0 <= (record.tokens[0].refresh_at or 0.0) - now <= 80.0


async def test_token_that_came_along_is_served_without_a_request(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    grant = idp.new_grant()
    given = AccessToken(grant.access_token, expires_at=clock.time() + 300.0)
    async with manager as tokens:
        await tokens.add_session(
            "crm", refresh_token=grant.refresh_token or "", access_token=given
        )

        token = await tokens.get_token("crm")

        assert token.reveal() == grant.access_token
        assert token.expires_at == given.expires_at
        assert idp.requests("token") == []


async def test_end_of_a_token_that_came_along_is_read_from_the_token_itself(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    idp.rules.access_token_format = "jwt"
    grant = idp.new_grant()
    async with manager as tokens:
        session = await tokens.add_session(
            "crm",
            refresh_token=grant.refresh_token or "",
            access_token=grant.access_token,
        )

        assert session.expires_at == clock.time() + 300.0
        assert events == []


@pytest.mark.parametrize("default_lifetime", [None, 500.0])
async def test_unknown_end_of_a_token_that_came_along_is_no_secret(
    make_manager: MakeManager,
    idp: MockIdP,
    clock: FakeClock,
    events: list[Event],
    default_lifetime: float | None,
) -> None:
    """It is used for as long as no API rejects it, and that is said."""
    client = idp.client(default_lifetime=default_lifetime)
    async with make_manager(client=client) as tokens:
        session = await tokens.add_session(
            "crm",
            refresh_token=idp.new_grant().refresh_token or "",
            access_token="opaque",
        )

        if default_lifetime is None:
            assert session.expires_at is None
            assert [event.name for event in events] == ["lifetime_unknown"]
        else:
            assert session.expires_at == clock.time() + default_lifetime
            assert events == []


async def test_restart_never_overwrites_a_rotated_token(
    make_manager: MakeManager, idp: MockIdP, store: MemoryStore
) -> None:
    """The configuration still has the first refresh token, which is spent."""
    first = idp.new_grant().refresh_token or ""
    async with make_manager() as tokens:
        await tokens.add_session("crm", refresh_token=first)
        await tokens.get_token("crm")
    rotated = await stored(store)
    assert rotated.refresh_token != first

    async with make_manager() as tokens:
        session = await tokens.add_session("crm", refresh_token=first)
        token = await tokens.get_token("crm")

    assert await stored(store) == rotated
    assert session.expires_at == token.expires_at
    assert idp.is_active(token.reveal())
    assert len(idp.requests("token")) == 1


async def test_session_that_ended_is_not_revived_by_a_restart(
    make_manager: MakeManager, idp: MockIdP
) -> None:
    grant = idp.new_grant()
    async with make_manager() as tokens:
        await tokens.add_session("crm", refresh_token=grant.refresh_token or "")
        await tokens.end_session("crm")

        await tokens.add_session("crm", refresh_token=grant.refresh_token or "")

        with pytest.raises(SignInRequiredError) as over:
            await tokens.get_token("crm")
        assert over.value.reason == "signed_out"
        assert idp.requests("token") == []


@pytest.mark.parametrize("ended", [False, True])
async def test_replace_puts_a_new_consent_in_the_place_of_an_old_one(
    manager: TokenManager,
    idp: MockIdP,
    store: MemoryStore,
    ended: bool,  # noqa: FBT001 -- a row
) -> None:
    old, new = idp.new_grant(), idp.new_grant()
    async with manager as tokens:
        await tokens.add_session("crm", refresh_token=old.refresh_token or "")
        await tokens.get_token("crm")
        before = await stored(store)
        if ended:
            await tokens.end_session("crm")

        await tokens.add_session(
            "crm", refresh_token=new.refresh_token or "", replace=True
        )

        after = await stored(store)
        assert after.grant_id != before.grant_id
        assert after.ended is None
        token = await tokens.get_token("crm")
        assert token.reveal() == new.access_token


@pytest.mark.parametrize("replace", [False, True])
async def test_name_of_another_clients_session_is_refused(
    make_manager: MakeManager,
    idp: MockIdP,
    store: MemoryStore,
    replace: bool,  # noqa: FBT001 -- a row
) -> None:
    """Also where it would be replaced: it is not this manager's to end."""
    idp.add_client("second", client_secret="second-secret")
    grant = idp.new_grant(client_id="second")
    other = idp.client(client_id="second")
    async with make_manager() as mine, make_manager(client=other) as theirs:
        await idp.new_session(mine, "crm")
        before = await stored(store)

        with pytest.raises(MisconfiguredError) as refused:
            await theirs.add_session(
                "crm", refresh_token=grant.refresh_token or "", replace=replace
            )
        with pytest.raises(MisconfiguredError) as unused:
            await theirs.get_token("crm")
        with pytest.raises(MisconfiguredError) as kept:
            await theirs.end_session("crm")

    assert await stored(store) == before
    for error in (refused, unused, kept):
        assert error.value.setting == "session_id"
        assert error.value.session_id == "crm"
    assert idp.requests("token") == []


@pytest.mark.parametrize("ended", [False, True])
async def test_session_of_another_client_is_never_known_here(
    make_manager: MakeManager,
    idp: MockIdP,
    ended: bool,  # noqa: FBT001 -- a row
) -> None:
    """Its token is fresh, and would be served as soon as the record is at hand."""
    idp.add_client("second", client_secret="second-secret")
    other = idp.client(client_id="second")
    async with make_manager() as mine, make_manager(client=other) as theirs:
        await idp.new_session(mine, "crm")
        await mine.get_token("crm")
        if ended:
            await mine.end_session("crm")

        with pytest.raises(MisconfiguredError) as hidden:
            await theirs.get_session("crm")
        for _ in range(2):
            with pytest.raises(MisconfiguredError) as refused:
                await theirs.get_token("crm")
            assert refused.value.setting == "session_id"

        assert hidden.value.setting == "session_id"
        assert hidden.value.session_id == "crm"
        assert sum(theirs.stats.sessions.values()) == 0
    assert len(idp.requests("token")) == 1


async def test_name_that_another_client_took_over_is_not_served_from_memory(
    make_manager: MakeManager, idp: MockIdP, store: MemoryStore, clock: FakeClock
) -> None:
    """The store lost the session, and another client's has its name now."""
    idp.add_client("second", client_secret="second-secret")
    grant = idp.new_grant(client_id="second")
    other = idp.client(client_id="second")
    async with make_manager() as mine, make_manager(client=other) as theirs:
        await idp.new_session(mine, "crm")
        await mine.get_token("crm")
        store._slots.clear()
        await theirs.add_session(
            "crm",
            refresh_token=grant.refresh_token or "",
            access_token=grant.access_token,
            expires_at=clock.time() + 300.0,
        )
        await clock.advance(5.0)

        with pytest.raises(MisconfiguredError) as refused:
            await mine.get_token("crm")

    assert refused.value.setting == "session_id"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("session_id", ""),
        ("session_id", None),
        ("session_id", 7),
        ("session_id", "a\nb"),
        ("session_id", "x" * 513),
        ("refresh_token", ""),
        ("refresh_token", None),
        ("refresh_token", b"rt-0"),
        ("refresh_token", "rt-0\n"),
        ("refresh_token", "rt-ü"),
        ("refresh_token", Secret("")),
        ("access_token", ""),
        ("access_token", 7),
        ("access_token", "at-0\r\nX: y"),
        ("expires_at", "soon"),
        ("expires_at", True),
        ("expires_at", float("nan")),
        ("expires_at", float("inf")),
        ("refresh_expires_at", "soon"),
        ("refresh_expires_at", float("nan")),
        ("scope", 7),
        ("scope", ["openid", 7]),
        ("scope", ["openid profile"]),
        ("scope", [None]),
    ],
)
async def test_bad_input_is_refused_by_name_and_nothing_is_stored(
    manager: TokenManager, store: MemoryStore, setting: str, value: object
) -> None:
    options: dict[str, Any] = {
        "session_id": "crm",
        "refresh_token": "rt-0",
        "access_token": "at-0",
    }
    options[setting] = value
    async with manager as tokens:
        with pytest.raises(MisconfiguredError) as refused:
            await tokens.add_session(options.pop("session_id"), **options)

    assert refused.value.setting == setting
    assert setting in str(refused.value)
    assert "rt-" not in str(refused.value)
    assert len(store) == 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("min_validity", "60"),
        ("min_validity", True),
        ("min_validity", float("nan")),
        ("resource", 7),
        ("resource", ["https://api.test"]),
        ("scope", 7),
        ("scope", [7]),
        ("scope", ["read write"]),
        ("rejected", 7),
        ("rejected", b"at"),
        ("rejected", ""),
    ],
)
async def test_bad_input_for_a_token_is_refused_by_name(
    manager: TokenManager,
    idp: MockIdP,
    setting: str,
    value: Any,  # noqa: ANN401 -- any input
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        await tokens.get_token("crm")

        with pytest.raises(MisconfiguredError) as refused:
            await tokens.get_token("crm", **{setting: value})

        assert refused.value.setting == setting
        assert len(idp.requests("token")) == 1


@pytest.mark.parametrize("broken", ["read", "swap"])
async def test_session_that_cannot_be_stored_is_a_store_error(
    make_manager: MakeManager, store: MemoryStore, broken: str
) -> None:
    async with make_manager(store=BrokenStore(store, broken)) as tokens:
        with pytest.raises(StoreError) as failed:
            await tokens.add_session("crm", refresh_token="rt-0")

    assert failed.value.session_id == "crm"
    assert len(store) == 0


async def test_sessions_may_be_added_before_the_manager_is_entered(
    manager: TokenManager, idp: MockIdP
) -> None:
    await idp.new_session(manager, "crm")
    async with manager as tokens:
        token = await tokens.get_token("crm")

    assert token.reveal() == idp.grant("crm").access_token


# client_credentials


async def test_service_session_is_the_same_wherever_it_is_asked_for(
    make_manager: MakeManager, idp: MockIdP
) -> None:
    """The order of scopes means nothing; workers share the token."""
    async with make_manager() as one, make_manager() as other:
        first = await one.client_credentials(scope="b a", resource="https://api.test")
        second = await other.client_credentials(
            scope=["a", "b", "a"], resource="https://api.test"
        )

        assert first.id == second.id
        token = await one.get_token(first.id)
        assert (await other.get_token(second.id)).reveal() == token.reveal()
        assert len(idp.requests("token")) == 1


def variants(idp: MockIdP) -> list[tuple[OAuthClient, dict[str, str]]]:
    idp.add_client("second", client_secret="second-secret")
    return [
        (idp.client(), {}),
        (idp.client(), {"scope": "a"}),
        (idp.client(), {"scope": "a b"}),
        (idp.client(), {"resource": "https://api.test"}),
        (idp.client(), {"scope": "a", "resource": "https://api.test"}),
        (idp.client(client_id="second"), {"scope": "a"}),
        (idp.client(issuer="https://other.test"), {"scope": "a"}),
    ]


async def test_service_session_is_named_by_issuer_client_scope_and_resource(
    make_manager: MakeManager, idp: MockIdP
) -> None:
    names = set()
    for client, options in variants(idp):
        async with make_manager(client=client) as tokens:
            names.add((await tokens.client_credentials(**options)).id)

    assert len(names) == 7
    assert all(name.startswith("client-") and len(name) == 39 for name in names)


async def test_service_session_sends_nothing_before_a_token_is_asked_for(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        session = await tokens.client_credentials(scope="a")

        assert session.scope == ("a",)
        assert session.expires_at is None
        assert idp.requests() == []


async def test_service_session_that_was_ended_begins_anew(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        session = await tokens.client_credentials()
        first = await tokens.get_token(session.id)
        await tokens.end_session(session.id)
        with pytest.raises(SignInRequiredError):
            await tokens.get_token(session.id)

        again = await tokens.client_credentials()

        assert again.id == session.id
        assert (await tokens.get_token(again.id)).reveal() != first.reveal()
        assert idp.requests("revoke") == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [("scope", 7), ("scope", ["a b"]), ("resource", 7), ("resource", "a\nb")],
)
async def test_bad_input_for_a_service_session_is_refused_by_name(
    manager: TokenManager, store: MemoryStore, setting: str, value: object
) -> None:
    options: dict[str, Any] = {setting: value}
    async with manager as tokens:
        with pytest.raises(MisconfiguredError) as refused:
            await tokens.client_credentials(**options)

    assert refused.value.setting == setting
    assert len(store) == 0


# get_session


async def test_session_tells_what_an_application_may_know(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    idp.token_members = {"tenant": "acme", "refresh_expires_in": 1_000}
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        await tokens.get_token("crm")

        session = await tokens.get_session("crm")

    assert session.id == "crm"
    assert session.scope == ("offline_access", "openid", "profile")
    assert session.expires_at == clock.time() + 300.0
    assert session.refresh_expires_at == clock.time() + 1_000.0
    assert session.extra["tenant"] == "acme"
    for secret in (idp.grant("crm").access_token, idp.grant("crm").refresh_token):
        assert str(secret) not in repr(session) + repr(session.extra)


async def test_unknown_session_is_a_sign_in(manager: TokenManager) -> None:
    async with manager as tokens:
        for call in (tokens.get_session, tokens.get_token):
            with pytest.raises(SignInRequiredError) as unknown:
                await call("nobody")

            assert unknown.value.reason == "unknown_session"
            assert unknown.value.session_id == "nobody"


async def test_session_that_is_over_is_a_sign_in_with_its_reason(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    """Told by the worker that ended it, and by one that has to read it."""
    async with make_manager() as one, make_manager() as other:
        await idp.new_session(one, "crm")
        idp.fail_next(error="invalid_grant", description="revoked by owner")
        with pytest.raises(SignInRequiredError):
            await one.get_token("crm")

        for tokens in (one, other):
            with pytest.raises(SignInRequiredError) as over:
                await tokens.get_session("crm")

            assert over.value.reason == "terminal"
            assert over.value.error_description == "revoked by owner"


async def test_get_session_reads_the_store(
    make_manager: MakeManager, idp: MockIdP
) -> None:
    """What another worker did is seen at once, and what is read is believed."""
    async with make_manager() as one, make_manager() as other:
        await idp.new_session(one, "crm")
        await one.get_token("crm")
        await other.end_session("crm")

        with pytest.raises(SignInRequiredError):
            await one.get_session("crm")
        with pytest.raises(SignInRequiredError):
            await one.get_token("crm")


async def test_get_session_of_a_broken_store_is_a_store_error(
    make_manager: MakeManager, store: MemoryStore
) -> None:
    async with make_manager(store=BrokenStore(store, "read")) as tokens:
        with pytest.raises(StoreError):
            await tokens.get_session("crm")


# end_session


async def test_session_ends_here_first_and_at_the_server_in_the_background(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    store: MemoryStore,
    events: list[Event],
) -> None:
    """A server that takes its time keeps nobody waiting."""
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        await tokens.get_token("crm")
        newest = idp.grant("crm").refresh_token
        hold = idp.hold_next("revoke")

        await tokens.end_session("crm")

        ended = await stored(store)
        assert ended.ended is not None
        assert ended.ended.reason == "signed_out"
        assert (ended.refresh_token, ended.tokens) == (None, ())
        with pytest.raises(SignInRequiredError) as over:
            await tokens.get_token("crm")
        assert over.value.reason == "signed_out"
        assert isinstance(events[-1], SessionEnded)
        assert idp.grant("crm").active

        await hold.reached()
        hold.release()
        await clock.settle()
        assert idp.grant("crm").ended_by == "revocation"
        assert [one.form["token"] for one in idp.requests("revoke")] == [newest]


async def test_leaving_the_manager_waits_for_the_revocation(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        await tokens.end_session("crm")

    assert idp.grant("crm").ended_by == "revocation"


async def test_revocation_is_repeated_through_a_blip(
    manager: TokenManager, idp: MockIdP, clock: FakeClock, events: list[Event]
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        idp.fail_next("revoke", status=503)
        await tokens.end_session("crm")
        await clock.advance(1.0)

        assert idp.grant("crm").ended_by == "revocation"

    assert not any(isinstance(event, RevocationFailed) for event in events)


async def test_ending_what_is_over_or_unknown_does_nothing(
    manager: TokenManager, idp: MockIdP, events: list[Event]
) -> None:
    async with manager as tokens:
        await idp.new_session(tokens, "crm")
        await tokens.end_session("crm")
        seen = len(events)

        await tokens.end_session("crm")
        await tokens.end_session("nobody")

    assert len(events) == seen
    assert len(idp.requests("revoke")) == 1


@pytest.mark.parametrize("broken", ["read", "swap"])
async def test_sign_out_that_cannot_be_stored_raises(
    make_manager: MakeManager,
    idp: MockIdP,
    store: MemoryStore,
    clock: FakeClock,
    broken: str,
) -> None:
    """Nothing is revoked, the session goes on, and a second try ends it."""
    failing = BrokenStore(store)
    async with make_manager(store=failing) as tokens:
        await idp.new_session(tokens, "crm")
        token = await tokens.get_token("crm")
        failing.broken.add(broken)

        with pytest.raises(StoreError):
            await tokens.end_session("crm")

        assert (await stored(store)).ended is None
        assert await tokens.get_token("crm") == token
        failing.broken.clear()
        await tokens.end_session("crm")
        assert (await stored(store)).ended is not None
        await clock.settle()
        assert len(idp.requests("revoke")) == 1


async def test_sign_out_elsewhere_is_seen_within_5_s(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with make_manager() as one, make_manager() as other:
        await idp.new_session(one, "crm")
        token = await one.get_token("crm")
        await other.end_session("crm")
        await clock.advance(5.0 - 0.001)
        assert await one.get_token("crm") == token

        await clock.advance(0.001)
        with pytest.raises(SignInRequiredError):
            await one.get_token("crm")


async def test_sign_out_outside_of_the_manager_is_refused_before_it_is_half_done(
    manager: TokenManager, idp: MockIdP, store: MemoryStore
) -> None:
    """The refresh token could not be revoked, and would be forgotten."""
    await idp.new_session(manager, "crm")
    with pytest.raises(MisconfiguredError) as refused:
        await manager.end_session("crm")

    assert refused.value.setting == "async with"
    assert (await stored(store)).ended is None

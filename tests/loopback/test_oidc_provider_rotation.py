"""A certified OpenID Provider rotates its keys while its users are busy."""

from __future__ import annotations

import time

import anyio
import anyio.to_thread
import httpx
import pytest

from freshtoken import FreshTokenError, Session, TokenManager
from freshtoken.auth import BearerAuth
from freshtoken.events import Event, IDTokenRefused, TokenRefreshed
from tests.servers.oidc_provider_driver import LogEntry, OidcProvider, Rotation
from tests.servers.sign_ins import manager_for, sign_in

pytestmark = pytest.mark.loopback

CALLS = 20
KINDS: tuple[Rotation, ...] = ("overlap", "hard", "same_kid")


@pytest.mark.parametrize("kind", KINDS)
async def test_twenty_sign_ins_go_on_over_a_rotation(
    oidc_provider: OidcProvider, kind: Rotation
) -> None:
    """Five before it, ten around it, five after it; nobody is refused.

    The key set is fetched again, but not twenty times.
    """
    sessions: list[Session] = []
    events: list[Event] = []
    some_done, rotated = anyio.Event(), anyio.Event()
    slots = anyio.Semaphore(4)
    async with manager_for(oidc_provider, events=events) as tokens:

        async def call(number: int) -> None:
            if number >= 3 * CALLS // 4:
                await rotated.wait()
            async with slots:
                user = f"user-{number}"
                sessions.append(await sign_in(tokens, oidc_provider, user))
            if len(sessions) >= CALLS // 4:
                some_done.set()

        async with anyio.create_task_group() as group:
            for number in range(CALLS):
                group.start_soon(call, number)
            await some_done.wait()
            await rotate(oidc_provider, kind)
            rotated.set()

    users = {session.claims["sub"] for session in sessions}
    assert users == {f"user-{number}" for number in range(CALLS)}
    log = oidc_provider.log("token")
    assert [entry.status for entry in log] == [200] * CALLS
    assert kids(log) == (["rs256"] if kind == "same_kid" else ["rs256", "rs256-1"])
    # At first, after the rotation, and once if that one was on its way meanwhile.
    assert 2 <= len(oidc_provider.log("jwks")) <= 3
    assert not [event for event in events if isinstance(event, IDTokenRefused)]


@pytest.mark.parametrize("kind", KINDS)
async def test_twenty_callers_do_not_notice_a_rotation(
    oidc_provider: OidcProvider, kind: Rotation
) -> None:
    """Tokens of 2 s are renewed over it; the claims are newer than the new keys."""
    oidc_provider.configure(access_token_ttl=2)
    events: list[Event] = []
    failures: list[str] = []
    done = anyio.Event()

    async def call(api: httpx.AsyncClient, auth: BearerAuth) -> None:
        while not done.is_set():
            try:
                answer = await api.get(oidc_provider.endpoint("userinfo"), auth=auth)
            except FreshTokenError as error:
                failures.append(repr(error))
                return
            if (answer.status_code, answer.json().get("sub")) != (200, "alice"):
                failures.append(answer.text)
            await anyio.sleep(0.2)

    async with (
        manager_for(oidc_provider, events=events) as tokens,
        httpx.AsyncClient(trust_env=False) as api,
    ):
        session = await sign_in(tokens, oidc_provider)
        auth = tokens.auth(session.id, origins=[oidc_provider.issuer])
        async with anyio.create_task_group() as group:
            for _ in range(CALLS):
                group.start_soon(call, api, auth)
            with anyio.fail_after(60):
                await refreshed(oidc_provider, 1)
                await rotate(oidc_provider, kind)
                rotated_at = time.time()
                await claims_since(tokens, session.id, rotated_at)
            done.set()

    assert failures == []
    log = refreshes(oidc_provider)
    assert {entry.status for entry in log} == {200}
    assert kids(log) == (["rs256"] if kind == "same_kid" else ["rs256", "rs256-1"])
    assert len([e for e in events if isinstance(e, TokenRefreshed)]) == len(log)
    assert not [event for event in events if isinstance(event, IDTokenRefused)]
    assert len(oidc_provider.log("jwks")) == 2


@pytest.mark.parametrize(
    ("alg", "kind"),
    [
        *(("RS256", kind) for kind in KINDS),
        ("PS256", "hard"),
        ("ES256", "same_kid"),
        ("EdDSA", "hard"),
        ("EdDSA", "same_kid"),
    ],
)
async def test_a_rotation_right_after_the_first_fetch_still_verifies(
    oidc_provider: OidcProvider, alg: str, kind: Rotation
) -> None:
    """Two rotations in a row cost two more fetches, whatever the type of key."""
    name = f"id_token_{alg.lower()}"
    async with manager_for(oidc_provider, name) as tokens:
        users = [(await sign_in(tokens, oidc_provider, "alice")).claims["sub"]]
        for user in ("bob", "carol"):
            await rotate(oidc_provider, kind)
            users.append((await sign_in(tokens, oidc_provider, user)).claims["sub"])

    assert users == ["alice", "bob", "carol"]
    assert len(oidc_provider.log("jwks")) == 3


async def rotate(provider: OidcProvider, kind: Rotation) -> None:
    """Rotate without holding the event loop up."""
    await anyio.to_thread.run_sync(provider.rotate_keys, kind)


def refreshes(provider: OidcProvider) -> list[LogEntry]:
    log = provider.log("token", grant_type="refresh_token")
    return [entry for entry in log if entry.answered]


async def refreshed(provider: OidcProvider, count: int) -> None:
    """Wait for the server's log to hold so many refreshes."""
    # The log is the server's: there is nothing to await but time.
    while len(refreshes(provider)) < count:  # noqa: ASYNC110
        await anyio.sleep(0.1)


async def claims_since(tokens: TokenManager, session_id: str, instant: float) -> None:
    """Wait for a session whose ID token was issued after *instant*."""
    while True:
        issued_at = (await tokens.get_session(session_id)).claims["iat"]
        assert isinstance(issued_at, int)
        if issued_at > instant:
            return
        await anyio.sleep(0.1)


def kids(log: list[LogEntry]) -> list[str]:
    """Return the names of the keys that signed, in order of their first use."""
    return list(dict.fromkeys(entry.id_token_kid or "" for entry in log))

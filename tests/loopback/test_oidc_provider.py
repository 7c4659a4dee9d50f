"""The lifecycle against a certified OpenID Provider: what the server's log says."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest

from freshtoken import (
    AccessToken,
    ClientRejectedError,
    Disposition,
    OAuthClient,
    RetryableError,
    SignInRequiredError,
    TokenManager,
)
from freshtoken.events import (
    Event,
    RotationInDoubt,
    RotationLost,
    SessionEnded,
    TokenRefreshed,
)
from tests.servers.oidc_provider_driver import (
    OidcProvider,
    RegisteredClient,
    hash_token,
)

pytestmark = pytest.mark.loopback

REFRESHES = 20
CALLERS = 50
CLIENT_NAMES = (
    "client_secret_basic",
    "client_secret_post",
    "client_secret_jwt",
    "private_key_jwt_rs256",
    "private_key_jwt_es256",
    "special_characters",
)


def client_of(
    provider: OidcProvider,
    registered: RegisteredClient,
    secret: Callable[[], str] | None = None,
) -> OAuthClient:
    """Make the library's client from what the server has registered."""
    method = registered.token_endpoint_auth_method
    settings: dict[str, Any] = {}
    if registered.private_jwk is not None:
        settings["private_key"] = dict(registered.private_jwk)
        settings["signing_algorithm"] = registered.signing_alg
    elif registered.is_confidential:
        settings["client_secret"] = secret or registered.client_secret
    return OAuthClient(
        provider.issuer,
        client_id=registered.client_id,
        token_endpoint_auth_method=cast("Any", method),
        **settings,
    )


@asynccontextmanager
async def entered(
    client: OAuthClient, events: list[Event]
) -> AsyncIterator[TokenManager]:
    """Enter a manager with its own HTTP client, as an application would."""
    async with TokenManager(client, on_event=events.append) as tokens:
        yield tokens


async def add(tokens: TokenManager, session_id: str, answer: dict[str, Any]) -> None:
    """Hand a signed-in user's refresh token over."""
    await tokens.add_session(session_id, refresh_token=answer["refresh_token"])


def refreshes(provider: OidcProvider) -> list[Any]:
    return provider.log("token", grant_type="refresh_token")


async def test_twenty_refreshes_under_fifty_callers(
    oidc_provider: OidcProvider,
) -> None:
    """No call fails, and each refresh is one request in the server's log."""
    registered = oidc_provider.client("client_secret_basic")
    answer = oidc_provider.sign_in(registered.client_id)
    events: list[Event] = []
    failures: list[str] = []
    calls: Counter[str] = Counter()
    done = anyio.Event()

    async def call(tokens: TokenManager) -> None:
        while not done.is_set():
            try:
                token = await tokens.get_token("user-1")
            except Exception as error:  # noqa: BLE001 -- every failure counts
                failures.append(repr(error))
                return
            calls[token.reveal()] += 1
            await anyio.sleep(0.02)

    async with entered(client_of(oidc_provider, registered), events) as tokens:
        await add(tokens, "user-1", answer)
        with anyio.fail_after(150):
            async with anyio.create_task_group() as group:
                for _ in range(CALLERS):
                    group.start_soon(call, tokens)
                # The log is the server's: there is nothing to await but time.
                while (  # noqa: ASYNC110
                    len(refreshes(oidc_provider)) < REFRESHES and not failures
                ):
                    await anyio.sleep(0.2)
                done.set()

    log = refreshes(oidc_provider)
    assert failures == []
    assert len(log) >= REFRESHES
    assert {entry.status for entry in log} == {200}
    sent = [entry.refresh_token_sha256 for entry in log]
    assert len(set(sent)) == len(sent), "a refresh token was sent twice"
    issued = [entry.issued_refresh_token_sha256 for entry in log]
    assert sent[1:] == issued[:-1], "each request sends what the last one brought"
    refreshed = [event for event in events if isinstance(event, TokenRefreshed)]
    assert len(refreshed) == len(log)
    assert len(calls) in {len(log), len(log) + 1}
    assert sum(calls.values()) > CALLERS * REFRESHES


async def test_reuse_by_another_party_ends_the_session_once(
    oidc_provider: OidcProvider,
) -> None:
    registered = oidc_provider.client("client_secret_basic")
    answer = oidc_provider.sign_in(registered.client_id)
    events: list[Event] = []
    async with entered(client_of(oidc_provider, registered), events) as tokens:
        await add(tokens, "user-1", answer)
        assert oidc_provider.refresh(
            registered.client_id, answer["refresh_token"]
        ).is_success

        errors = []
        for _ in range(3):
            with pytest.raises(SignInRequiredError) as caught:
                await tokens.get_token("user-1")
            errors.append(caught.value)

    assert len({id(error) for error in errors}) == 3
    for error in errors:
        assert error.error == "invalid_grant"
        assert error.status == 400
        assert error.cleared
        assert not error.lost_rotation
    assert [type(event) for event in events] == [SessionEnded]
    ours = [entry for entry in refreshes(oidc_provider) if entry.status == 400]
    assert len(ours) == 1


async def test_burst_of_503_loses_nothing(oidc_provider: OidcProvider) -> None:
    registered = oidc_provider.client("client_secret_post")
    answer = oidc_provider.sign_in(registered.client_id)
    events: list[Event] = []
    oidc_provider.fault(status=503, count=2)
    async with entered(client_of(oidc_provider, registered), events) as tokens:
        await add(tokens, "user-1", answer)

        token = await tokens.get_token("user-1")

    assert isinstance(token, AccessToken)
    assert [entry.status for entry in refreshes(oidc_provider)] == [503, 503, 200]
    assert not any(isinstance(event, SessionEnded) for event in events)


async def test_503_beyond_one_flight_is_retryable_and_heals(
    oidc_provider: OidcProvider,
) -> None:
    registered = oidc_provider.client("client_secret_post")
    answer = oidc_provider.sign_in(registered.client_id)
    events: list[Event] = []
    oidc_provider.fault(status=503, count=4)
    async with entered(client_of(oidc_provider, registered), events) as tokens:
        await add(tokens, "user-1", answer)
        with pytest.raises(RetryableError) as caught:
            await tokens.get_token("user-1")
        assert caught.value.status == 503

        with anyio.fail_after(10):
            while True:
                try:
                    await tokens.get_token("user-1")
                    break
                except RetryableError as error:
                    await anyio.sleep(error.retry_after or 0.1)

    assert [entry.status for entry in refreshes(oidc_provider)] == [503] * 4 + [200]


async def test_answer_lost_after_rotation_is_reported_as_lost_rotation(
    oidc_provider: OidcProvider,
) -> None:
    """Strict rotation forgives nothing: the one repeat meets ``invalid_grant``."""
    registered = oidc_provider.client("client_secret_basic")
    answer = oidc_provider.sign_in(registered.client_id)
    events: list[Event] = []
    oidc_provider.fault(drop="after")
    async with entered(client_of(oidc_provider, registered), events) as tokens:
        await add(tokens, "user-1", answer)

        with pytest.raises(SignInRequiredError) as caught:
            await tokens.get_token("user-1")

    assert caught.value.lost_rotation
    log = refreshes(oidc_provider)
    assert [(entry.status, entry.answered) for entry in log] == [
        (200, False),
        (400, True),
    ]
    assert {entry.refresh_token_sha256 for entry in log} == {
        hash_token(answer["refresh_token"])
    }
    kinds = [type(event) for event in events]
    assert kinds == [RotationInDoubt, RotationLost, SessionEnded]


async def test_connection_lost_before_the_server_acted_is_repeated(
    oidc_provider: OidcProvider,
) -> None:
    registered = oidc_provider.client("client_secret_basic")
    answer = oidc_provider.sign_in(registered.client_id)
    events: list[Event] = []
    oidc_provider.fault(drop="before")
    async with entered(client_of(oidc_provider, registered), events) as tokens:
        await add(tokens, "user-1", answer)

        await tokens.get_token("user-1")

    log = refreshes(oidc_provider)
    assert [entry.processed for entry in log] == [False, True]
    assert not any(isinstance(event, SessionEnded) for event in events)


@pytest.mark.parametrize("name", CLIENT_NAMES)
async def test_client_credentials_with_every_method(
    oidc_provider: OidcProvider, name: str
) -> None:
    registered = oidc_provider.client(name)
    async with entered(client_of(oidc_provider, registered), []) as tokens:
        service = await tokens.client_credentials()
        seen: list[str] = []

        async def call() -> None:
            seen.append((await tokens.get_token(service.id)).reveal())

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(call)

    assert len(set(seen)) == 1
    log = oidc_provider.log("token", grant_type="client_credentials")
    assert [(entry.status, entry.client_id) for entry in log] == [
        (200, registered.client_id)
    ]


@pytest.mark.parametrize("name", [*CLIENT_NAMES, "none"])
async def test_refresh_with_every_method(
    oidc_provider: OidcProvider, name: str
) -> None:
    registered = oidc_provider.client(name)
    answer = oidc_provider.sign_in(registered.client_id)
    async with entered(client_of(oidc_provider, registered), []) as tokens:
        await add(tokens, "user-1", answer)

        await tokens.get_token("user-1")

    assert [entry.status for entry in refreshes(oidc_provider)] == [200]


async def test_wrong_secret_costs_other_sessions_nothing(
    oidc_provider: OidcProvider,
) -> None:
    registered = oidc_provider.client("client_secret_basic")
    answers = [
        oidc_provider.sign_in(registered.client_id, user=f"user-{n}") for n in range(4)
    ]
    events: list[Event] = []
    secret = {"now": "wrong-" + "0" * 20}
    ask: Callable[[], str] = lambda: secret["now"]  # noqa: E731 -- what users write
    client = client_of(oidc_provider, registered, ask)
    async with entered(client, events) as tokens:
        for number, answer in enumerate(answers):
            await add(tokens, f"user-{number}", answer)
        for number in range(4):
            with pytest.raises(ClientRejectedError) as caught:
                await tokens.get_token(f"user-{number}")
            assert caught.value.disposition is Disposition.CLIENT_REJECTED
            assert caught.value.setting == "client_secret"
        assert len(refreshes(oidc_provider)) == 1, "the breaker keeps the rest back"

        secret["now"] = registered.client_secret or ""
        await anyio.sleep(1.1)  # a failure is repeated for a second without asking
        for number in range(1, 4):
            await tokens.get_token(f"user-{number}")
        with pytest.raises(SignInRequiredError):
            await tokens.get_token("user-0")

    ended = [event for event in events if isinstance(event, SessionEnded)]
    assert [event.session_id for event in ended] == ["user-0"]


async def test_end_session_revokes_the_grant_at_the_server(
    oidc_provider: OidcProvider,
) -> None:
    registered = oidc_provider.client("client_secret_basic")
    answer = oidc_provider.sign_in(registered.client_id)
    async with entered(client_of(oidc_provider, registered), []) as tokens:
        await add(tokens, "user-1", answer)
        await tokens.get_token("user-1")

        await tokens.end_session("user-1")

        with pytest.raises(SignInRequiredError) as caught:
            await tokens.get_token("user-1")
    assert caught.value.reason == "signed_out"
    assert [entry.status for entry in oidc_provider.log("revocation")] == [200]
    assert (
        oidc_provider.refresh(registered.client_id, answer["refresh_token"]).status_code
        == 400
    )

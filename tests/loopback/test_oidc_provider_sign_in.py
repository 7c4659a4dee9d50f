"""Signing users in at a certified OpenID Provider."""

from __future__ import annotations

import anyio.to_thread
import httpx
import pytest

from freshtoken import (
    AccessDeniedError,
    AuthorizationResponseError,
    RejectionReason,
    Session,
    SignInRequiredError,
    TokenManager,
    TokenRejectedError,
)
from freshtoken.events import Event, IDTokenRefused, SignedIn, SignInFailed
from freshtoken.stores import MemoryStore
from tests.servers.oidc_provider_driver import (
    DEFAULT_REDIRECT_URI,
    Browser,
    OidcProvider,
    hash_token,
)
from tests.servers.sign_ins import (
    SCOPE,
    browse,
    client_for,
    manager_for,
    number,
    refresh_now,
    sign_in,
)

pytestmark = pytest.mark.loopback

ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA", "Ed25519")


# ---------------------------------------------------------------- the way through


@pytest.mark.parametrize("alg", ALGORITHMS)
async def test_a_user_signs_in_with_every_algorithm(
    oidc_provider: OidcProvider, alg: str
) -> None:
    """PKCE and nonce go out, the checked claims come back, in one token request."""
    oidc_provider.configure(at_hash=True)
    events: list[Event] = []
    name = f"id_token_{alg.lower()}"
    async with manager_for(oidc_provider, name, events=events) as tokens:
        begun = await tokens.begin_sign_in(scope=SCOPE, return_to="/orders")
        sent = dict(httpx.URL(begun.url).params)
        callback = await browse(oidc_provider, begun.url)

        session = await tokens.complete_sign_in(callback, binding=begun.binding)

        assert session.handle is not None
        assert (await tokens.get_session(handle=session.handle)).id == session.id
        token = await tokens.get_token(session.id)
    assert sent["code_challenge_method"] == "S256"
    assert session.claims["sub"] == "alice"
    assert session.claims["iss"] == oidc_provider.issuer
    assert session.claims["nonce"] == sent["nonce"]
    assert "at_hash" in session.claims
    assert session.return_to == "/orders"
    assert oidc_provider.userinfo(token.reveal()).status_code == 200
    [entry] = oidc_provider.log("token")
    assert entry.code_sha256 == hash_token(str(httpx.URL(callback).params["code"]))
    assert len(oidc_provider.log("jwks")) == 1
    assert [type(event) for event in events] == [SignedIn]


@pytest.mark.parametrize("alg", ALGORITHMS)
async def test_a_refresh_brings_newer_claims(
    oidc_provider: OidcProvider, alg: str
) -> None:
    """The refreshed ID token is checked and kept: user and nonce as at first."""
    oidc_provider.configure(at_hash=True)
    events: list[Event] = []
    name = f"id_token_{alg.lower()}"
    async with manager_for(oidc_provider, name, events=events) as tokens:
        first = await sign_in(tokens, oidc_provider, max_age=600)
        # Within the leeway: what comes now can be told from what came before.
        oidc_provider.shift_clock(10)

        await refresh_now(tokens, first.id)

        second = await tokens.get_session(first.id)
    assert number(second.claims["iat"]) >= number(first.claims["iat"]) + 10
    assert second.claims["at_hash"] != first.claims["at_hash"]
    for claim in ("sub", "aud", "nonce", "auth_time"):
        assert second.claims[claim] == first.claims[claim]
    assert len(oidc_provider.log("token", grant_type="refresh_token")) == 1
    assert not [event for event in events if isinstance(event, IDTokenRefused)]


async def test_a_sign_in_begun_on_one_manager_is_completed_on_another(
    oidc_provider: OidcProvider,
) -> None:
    """Three tabs, two workers, one store."""
    store = MemoryStore()
    async with (
        manager_for(oidc_provider, store=store) as one,
        manager_for(oidc_provider, store=store) as other,
    ):
        begun = [await one.begin_sign_in(scope=SCOPE) for _ in range(3)]
        users = ("alice", "bob", "carol")
        sessions = [
            await other.complete_sign_in(
                await browse(oidc_provider, tab.url, user), binding=tab.binding
            )
            for tab, user in zip(begun, users, strict=True)
        ]

        found = [await one.get_session(handle=session.handle) for session in sessions]
        fresh = [await one.get_token(session.id) for session in sessions]

    assert [session.claims["sub"] for session in found] == list(users)
    assert len({token.reveal() for token in fresh}) == 3
    assert len(oidc_provider.log("token")) == 3


async def test_userinfo_is_about_the_user_of_the_id_token(
    oidc_provider: OidcProvider,
) -> None:
    async with manager_for(oidc_provider) as tokens:
        session = await sign_in(tokens, oidc_provider, scope=f"{SCOPE} email")
        async with httpx.AsyncClient(trust_env=False) as api:
            answer = await api.get(
                oidc_provider.endpoint("userinfo"),
                auth=tokens.auth(session.id, origins=[oidc_provider.issuer]),
            )

    assert answer.json()["sub"] == session.claims["sub"] == "alice"
    assert answer.json()["email"] == "alice@example.test"


async def test_the_answer_may_come_as_a_form(oidc_provider: OidcProvider) -> None:
    async with manager_for(oidc_provider) as tokens:
        begun = await tokens.begin_sign_in(scope=SCOPE, response_mode="form_post")
        with Browser(user="alice") as browser:
            form = await anyio.to_thread.run_sync(browser.open_form, begun.url)

        session = await tokens.complete_sign_in(form, binding=begun.binding)

    assert session.claims["sub"] == "alice"


async def test_max_age_makes_a_browser_with_a_session_sign_in_anew(
    oidc_provider: OidcProvider,
) -> None:
    """Without it the server's session will do, and says when it began."""
    with Browser(user="alice") as browser:
        async with manager_for(oidc_provider) as tokens:

            async def again(max_age: int) -> float:
                begun = await tokens.begin_sign_in(scope="openid", max_age=max_age)
                callback = await browse(oidc_provider, begun.url, browser=browser)
                done = await tokens.complete_sign_in(callback, binding=begun.binding)
                return number(done.claims["auth_time"])

            first = await again(600)
            oidc_provider.shift_clock(5)
            same = await again(600)
            anew = await again(0)

    assert same == first
    assert anew >= first + 5


async def test_a_browser_with_a_session_signs_in_without_being_asked(
    oidc_provider: OidcProvider,
) -> None:
    """With ``prompt=none``; with ``prompt=login`` it is asked all the same."""
    with Browser(user="alice") as browser:
        async with manager_for(oidc_provider) as tokens:

            async def again(prompt: str) -> Session:
                begun = await tokens.begin_sign_in(scope="openid", prompt=prompt)
                callback = await browse(oidc_provider, begun.url, browser=browser)
                return await tokens.complete_sign_in(callback, binding=begun.binding)

            first = await sign_in(tokens, oidc_provider, max_age=60, browser=browser)
            pages = len(oidc_provider.log("authorization"))
            silent = await again("none")
            asked = await again("login")

    assert silent.claims["sub"] == asked.claims["sub"] == first.claims["sub"]
    assert len({first.id, silent.id, asked.id}) == 3
    # A silent one goes there and back; who is asked comes by once more.
    assert len(oidc_provider.log("authorization")) == pages + 2


async def test_a_new_sign_in_takes_the_place_of_an_old_one(
    oidc_provider: OidcProvider,
) -> None:
    """The old session is over, and the new one outlives it."""
    async with manager_for(oidc_provider) as tokens:
        old = await sign_in(tokens, oidc_provider)
        begun = await tokens.begin_sign_in(scope=SCOPE)
        callback = await browse(oidc_provider, begun.url)

        new = await tokens.complete_sign_in(
            callback, binding=begun.binding, replaces=old.id
        )

        with pytest.raises(SignInRequiredError):
            await tokens.get_token(old.id)
        await refresh_now(tokens, new.id)
    assert new.claims["sub"] == "alice"


# ---------------------------------------------------------------- what does not fit


async def test_a_code_of_another_sign_in_is_refused(
    oidc_provider: OidcProvider,
) -> None:
    """An attacker's code in a victim's callback: the server's PKCE check stops it."""
    async with manager_for(oidc_provider) as tokens:
        mallory = await tokens.begin_sign_in(scope=SCOPE)
        stranger = await browse(oidc_provider, mallory.url, "mallory")
        begun = await tokens.begin_sign_in(scope=SCOPE)
        callback = httpx.URL(await browse(oidc_provider, begun.url))
        injected = callback.copy_set_param("code", httpx.URL(stranger).params["code"])

        with pytest.raises(SignInRequiredError) as caught:
            await tokens.complete_sign_in(str(injected), binding=begun.binding)

    assert caught.value.error == "invalid_grant"
    assert caught.value.reason == "code_refused"


async def test_an_id_token_with_another_nonce_is_refused(
    oidc_provider: OidcProvider,
) -> None:
    """The request was changed on its way: its tokens are given back."""
    events: list[Event] = []
    async with manager_for(oidc_provider, events=events) as tokens:
        begun = await tokens.begin_sign_in(scope=SCOPE)
        url = httpx.URL(begun.url).copy_set_param("nonce", "another-nonce-of-length")
        callback = await browse(oidc_provider, str(url))

        with pytest.raises(TokenRejectedError) as caught:
            await tokens.complete_sign_in(callback, binding=begun.binding)

    assert caught.value.reason is RejectionReason.NONCE
    assert [type(event) for event in events] == [IDTokenRefused, SignInFailed]
    assert [entry.status for entry in oidc_provider.log("revocation")] == [200]


async def test_an_algorithm_that_was_not_agreed_on_is_refused(
    oidc_provider: OidcProvider,
) -> None:
    """The server signs with ES256 what the client expects in RS256."""
    registered = client_for(oidc_provider, "id_token_es256")
    client = type(registered)(
        registered.issuer,
        client_id=registered.client_id,
        client_secret=registered.client_secret,
        redirect_uri=DEFAULT_REDIRECT_URI,
    )
    async with TokenManager(client) as tokens:
        with pytest.raises(TokenRejectedError) as caught:
            await sign_in(tokens, oidc_provider)

    assert caught.value.reason is RejectionReason.ALGORITHM


async def test_another_browser_cannot_complete_a_sign_in(
    oidc_provider: OidcProvider,
) -> None:
    """It is refused without using the sign-in up: the right one still can."""
    async with manager_for(oidc_provider) as tokens:
        begun = await tokens.begin_sign_in(scope=SCOPE)
        other = await tokens.begin_sign_in(scope=SCOPE)
        callback = await browse(oidc_provider, begun.url)

        with pytest.raises(AuthorizationResponseError) as caught:
            await tokens.complete_sign_in(callback, binding=other.binding)
        session = await tokens.complete_sign_in(callback, binding=begun.binding)

    assert caught.value.reason == "binding"
    assert session.claims["sub"] == "alice"


async def test_an_answer_of_another_server_is_refused(
    oidc_provider: OidcProvider,
) -> None:
    """By its ``iss`` (RFC 9207), before the code is sent anywhere."""
    async with manager_for(oidc_provider) as tokens:
        begun = await tokens.begin_sign_in(scope=SCOPE)
        callback = httpx.URL(await browse(oidc_provider, begun.url))
        mixed_up = callback.copy_set_param("iss", "https://other.example")

        with pytest.raises(AuthorizationResponseError) as caught:
            await tokens.complete_sign_in(str(mixed_up), binding=begun.binding)

    assert caught.value.reason == "issuer"
    assert oidc_provider.log("token") == []


async def test_a_user_who_refuses_is_told_from_one_who_has_to_act(
    oidc_provider: OidcProvider,
) -> None:
    async with manager_for(oidc_provider) as tokens:
        begun = await tokens.begin_sign_in(scope=SCOPE)
        callback = await browse(oidc_provider, begun.url, refusal="access_denied")
        with pytest.raises(AccessDeniedError) as denied:
            await tokens.complete_sign_in(callback, binding=begun.binding)

        begun = await tokens.begin_sign_in(scope="openid", prompt="none")
        callback = await browse(oidc_provider, begun.url)
        with pytest.raises(SignInRequiredError) as silent:
            await tokens.complete_sign_in(callback, binding=begun.binding)

    assert denied.value.error == "access_denied"
    assert silent.value.error == "login_required"
    assert silent.value.reason == "interaction_required"
    assert oidc_provider.log("token") == []

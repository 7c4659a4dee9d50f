"""A certified OpenID Provider whose clock is not this machine's."""

from __future__ import annotations

import time

import anyio
import pytest

from freshtoken import (
    AccessToken,
    RejectionReason,
    RetryableError,
    TokenManager,
    TokenRejectedError,
)
from freshtoken.events import ClockSkewSeen, Event, IDTokenRefused
from tests.servers.oidc_provider_driver import OidcProvider
from tests.servers.sign_ins import manager_for, number, refresh_now, sign_in

pytestmark = pytest.mark.loopback


@pytest.mark.parametrize("offset", [-20, 20])
async def test_a_server_whose_clock_is_a_little_off_will_do(
    oidc_provider: OidcProvider, offset: int
) -> None:
    """Tokens of a minute, a clock off by 20 s: sign-in and refresh go through."""
    oidc_provider.configure(id_token_ttl=60, clock_offset=offset)
    events: list[Event] = []
    async with manager_for(oidc_provider, events=events) as tokens:
        session = await sign_in(tokens, oidc_provider, max_age=60)

        await refresh_now(tokens, session.id)

        assert session.expires_at is not None
        # Lifetimes count from our own clock.
        assert session.expires_at == pytest.approx(time.time() + 5, abs=4)
    assert abs(number(session.claims["iat"]) - time.time()) > 15
    assert not [e for e in events if isinstance(e, ClockSkewSeen | IDTokenRefused)]


@pytest.mark.parametrize(
    ("offset", "reason", "claim"),
    [
        (-120, RejectionReason.EXPIRED, "exp"),
        (120, RejectionReason.NOT_YET_VALID, "iat"),
    ],
)
async def test_a_server_whose_clock_is_far_off_is_refused(
    oidc_provider: OidcProvider, offset: int, reason: RejectionReason, claim: str
) -> None:
    """The error names the clock, and an event the skew; the tokens are given back."""
    oidc_provider.configure(id_token_ttl=60, clock_offset=offset)
    events: list[Event] = []
    async with manager_for(oidc_provider, events=events) as tokens:
        with pytest.raises(TokenRejectedError) as caught:
            await sign_in(tokens, oidc_provider)

    assert (caught.value.reason, caught.value.claim) == (reason, claim)
    assert "clock" in str(caught.value)
    [skew] = [event for event in events if isinstance(event, ClockSkewSeen)]
    assert skew.skew == pytest.approx(offset, abs=3)
    assert [entry.status for entry in oidc_provider.log("revocation")] == [200]


@pytest.mark.parametrize("offset", [-120, 120])
async def test_a_wider_leeway_accepts_it(
    oidc_provider: OidcProvider, offset: int
) -> None:
    """Sign-in and refresh, and a token's lifetime still counts from our own clock."""
    oidc_provider.configure(id_token_ttl=60, clock_offset=offset)
    events: list[Event] = []
    async with manager_for(oidc_provider, events=events, leeway=180) as tokens:
        session = await sign_in(tokens, oidc_provider, max_age=60)

        await refresh_now(tokens, session.id)

        newer = await tokens.get_session(session.id)
    assert newer.expires_at == pytest.approx(time.time() + 5, abs=4)
    assert number(newer.claims["iat"]) == pytest.approx(time.time() + offset, abs=10)
    assert not [event for event in events if isinstance(event, IDTokenRefused)]


async def test_a_clock_that_goes_wrong_later_withholds_the_access_token(
    oidc_provider: OidcProvider,
) -> None:
    """The refreshed ID token is from the future; the session outlives that."""
    events: list[Event] = []
    async with manager_for(oidc_provider, events=events) as tokens:
        session = await sign_in(tokens, oidc_provider)
        old = await tokens.get_token(session.id)
        oidc_provider.shift_clock(120)
        with pytest.raises(RetryableError):
            await tokens.get_token(session.id, rejected=old)
        oidc_provider.shift_clock(0)

        await another_token(tokens, session.id, old)

    reasons = {e.reason for e in events if isinstance(e, IDTokenRefused)}
    assert reasons == {RejectionReason.NOT_YET_VALID.value}
    assert {entry.status for entry in oidc_provider.log("token")} == {200}


async def another_token(
    tokens: TokenManager, session_id: str, old: AccessToken
) -> None:
    """Ask as often as the library says until there is a newer token."""
    with anyio.fail_after(30):
        while True:
            try:
                token = await tokens.get_token(session_id)
            except RetryableError as error:
                await anyio.sleep(error.retry_after or 0.1)
                continue
            if token.reveal() != old.reveal():
                return
            await anyio.sleep(0.1)  # the old one is served while it lives

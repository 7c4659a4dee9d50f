"""Access tokens of a certified OpenID Provider at a resource server."""

from __future__ import annotations

import base64
import json
import time

import anyio
import pytest

from freshtoken import (
    JWTValidator,
    MisconfiguredError,
    RejectionReason,
    TokenRejectedError,
)
from tests.servers.oidc_provider_driver import (
    JWT_RESOURCE,
    OPAQUE_RESOURCE,
    OidcProvider,
    Rotation,
)
from tests.servers.sign_ins import SCOPE, browse, manager_for, sign_in

pytestmark = pytest.mark.loopback

ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA", "Ed25519")
KINDS: tuple[Rotation, ...] = ("overlap", "hard", "same_kid")
BASIC = "client_secret_basic"


@pytest.mark.parametrize("alg", ALGORITHMS)
async def test_a_user_is_let_in(oidc_provider: OidcProvider, alg: str) -> None:
    """The token follows RFC 9068; its keys are fetched once for many."""
    client = f"id_token_{alg.lower()}"
    validator = JWTValidator(oidc_provider.issuer, audience=JWT_RESOURCE)
    tokens = [user_token(oidc_provider, client) for _ in range(3)]

    accepted = [await validator.validate(token, scope="api") for token in tokens]

    assert {token.subject for token in accepted} == {"alice"}
    assert {token.client_id for token in accepted} == {client}
    assert {token.audience for token in accepted} == {(JWT_RESOURCE,)}
    assert len(oidc_provider.log("jwks")) == 1


async def test_a_user_who_signed_in_for_an_api_is_let_in_there(
    oidc_provider: OidcProvider,
) -> None:
    """Before and after a refresh: the token stays one for that API (RFC 8707 §2.2)."""
    validator = JWTValidator(oidc_provider.issuer, audience=JWT_RESOURCE)
    async with manager_for(oidc_provider) as tokens:
        session = await sign_in(
            tokens, oidc_provider, scope=f"{SCOPE} api", resource=JWT_RESOURCE
        )
        first = await tokens.get_token(session.id)
        second = await tokens.get_token(session.id, rejected=first)

    accepted = [
        await validator.validate(token.reveal(), scope="api")
        for token in (first, second)
    ]
    assert {token.subject for token in accepted} == {session.claims["sub"]}
    assert accepted[0].claims["jti"] != accepted[1].claims["jti"]


async def test_a_server_that_makes_no_token_for_two_apis_says_so(
    oidc_provider: OidcProvider,
) -> None:
    """The error names the setting; the code is not sent again with another one."""
    async with manager_for(oidc_provider) as tokens:
        begun = await tokens.begin_sign_in(
            scope=f"{SCOPE} api", resource=[JWT_RESOURCE, OPAQUE_RESOURCE]
        )
        callback = await browse(oidc_provider, begun.url)

        with pytest.raises(MisconfiguredError) as caught:
            await tokens.complete_sign_in(callback, binding=begun.binding)

    assert caught.value.setting == "resource"
    assert [entry.error for entry in oidc_provider.log("token")] == ["invalid_target"]


async def test_a_service_is_let_in_and_is_no_user(oidc_provider: OidcProvider) -> None:
    validator = JWTValidator(oidc_provider.issuer, audience=JWT_RESOURCE)

    accepted = await validator.validate(service_token(oidc_provider))

    assert accepted.is_client_subject


async def test_what_is_no_access_token_for_this_api_is_refused(
    oidc_provider: OidcProvider,
) -> None:
    """An ID token, an opaque token, one for another API, one without the scope."""
    validator = JWTValidator(oidc_provider.issuer, audience=JWT_RESOURCE)
    elsewhere = JWTValidator(oidc_provider.issuer, audience="https://other.example")
    id_token = oidc_provider.sign_in(BASIC)["id_token"]
    opaque = service_token(oidc_provider, resource=OPAQUE_RESOURCE)
    good = service_token(oidc_provider)

    async def reason(
        judge: JWTValidator, token: str, scope: str | None = None
    ) -> RejectionReason:
        with pytest.raises(TokenRejectedError) as caught:
            await judge.validate(token, scope=scope)
        return caught.value.reason

    assert await reason(validator, id_token) is RejectionReason.TYPE
    assert await reason(validator, opaque) is RejectionReason.MALFORMED
    assert await reason(elsewhere, good) is RejectionReason.INVALID_CLAIM
    missing = await reason(validator, good, scope="api admin")
    assert missing is RejectionReason.INSUFFICIENT_SCOPE
    await validator.validate(good, scope="api")


@pytest.mark.parametrize("kind", KINDS)
async def test_tokens_of_before_and_after_a_rotation(
    oidc_provider: OidcProvider, kind: Rotation
) -> None:
    """What the new key signed is let in at once; the old as long as it is published."""
    oidc_provider.configure(access_token_ttl=60)
    validator = JWTValidator(oidc_provider.issuer, audience=JWT_RESOURCE)
    before = service_token(oidc_provider)
    await validator.validate(before)
    oidc_provider.rotate_keys(kind)
    after = service_token(oidc_provider)

    accepted = await validator.validate(after)

    assert accepted.client_id == BASIC
    assert len(oidc_provider.log("jwks")) == 2
    if kind == "overlap":
        await validator.validate(before)
        return
    with pytest.raises(TokenRejectedError) as caught:
        await validator.validate(before)
    assert caught.value.reason in {
        RejectionReason.UNKNOWN_KEY,
        RejectionReason.SIGNATURE,
    }


async def test_names_of_keys_that_nobody_has_cause_no_storm(
    oidc_provider: OidcProvider,
) -> None:
    """Of fifty at once two are looked up; who has a real token is not kept waiting."""
    oidc_provider.configure(access_token_ttl=60)
    validator = JWTValidator(oidc_provider.issuer, audience=JWT_RESOURCE)
    good = service_token(oidc_provider)
    await validator.validate(good)
    _, rest = good.split(".", 1)
    reasons: list[RejectionReason] = []

    async def attack(number: int) -> None:
        header = {"alg": "RS256", "typ": "at+jwt", "kid": f"nobody-{number}"}
        octets = base64.urlsafe_b64encode(json.dumps(header).encode())
        with pytest.raises(TokenRejectedError) as caught:
            await validator.validate(f"{octets.decode().rstrip('=')}.{rest}")
        reasons.append(caught.value.reason)

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(attack, number)

    assert (await validator.validate(good)).client_id == BASIC
    assert reasons == [RejectionReason.UNKNOWN_KEY] * 50
    assert len(oidc_provider.log("jwks")) <= 3


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        (-120, RejectionReason.EXPIRED),
        (-20, None),
        (20, None),
        (120, RejectionReason.NOT_YET_VALID),
    ],
)
async def test_a_clock_that_is_off(
    oidc_provider: OidcProvider, offset: int, reason: RejectionReason | None
) -> None:
    """Tokens of a minute pass with 20 s between the clocks; with 120 s if told to."""
    oidc_provider.configure(access_token_ttl=60, clock_offset=offset)
    validator = JWTValidator(oidc_provider.issuer, audience=JWT_RESOURCE)
    token = service_token(oidc_provider)

    if reason is None:
        accepted = await validator.validate(token)
        assert accepted.expires_at == pytest.approx(time.time() + 60 + offset, abs=5)
        return
    with pytest.raises(TokenRejectedError) as caught:
        await validator.validate(token)
    assert caught.value.reason is reason
    assert "clock" in str(caught.value)
    lenient = JWTValidator(oidc_provider.issuer, audience=JWT_RESOURCE, leeway=180)
    assert (await lenient.validate(token)).client_id == BASIC


def service_token(provider: OidcProvider, *, resource: str = JWT_RESOURCE) -> str:
    answer = provider.token_request(
        BASIC, grant_type="client_credentials", scope="api", resource=resource
    )
    return str(answer.json()["access_token"])


def user_token(provider: OidcProvider, client: str) -> str:
    issued = provider.get_code(
        client, scope="openid api", user="alice", resource=JWT_RESOURCE
    )
    answer = provider.redeem(client, issued, resource=JWT_RESOURCE)
    return str(answer.json()["access_token"])

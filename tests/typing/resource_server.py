"""The validator in front of an API, as its users write it: checked, never run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_type

import httpx
import httpx2
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from freshtoken import (
    JWTValidator,
    RejectionReason,
    RetryableError,
    Secret,
    TokenRejectedError,
    ValidatedToken,
)

ISSUER = "https://idp.example.com"
API = "https://api.example.com"
Answer = tuple[int, dict[str, str]]


def with_remote_keys(client: httpx.AsyncClient, other: httpx2.AsyncClient) -> None:
    JWTValidator(ISSUER, audience=API)
    JWTValidator([ISSUER, "https://other.example.com"], audience={API, "api"})
    JWTValidator(ISSUER, audience=API, http_client=client)
    JWTValidator(
        ISSUER,
        audience=API,
        algorithms=["RS256", "ES256"],
        leeway=5,
        required_claims=["tenant"],
        profile="any",
        allow_scope_list=True,
        jwks_uri=f"{ISSUER}/keys",
        realm="orders",
        http_client=other,
    )


def with_local_keys(pem: str, jwk: Mapping[str, object], key: RSAPublicKey) -> None:
    JWTValidator(ISSUER, audience=API, keys=pem)
    JWTValidator(ISSUER, audience=API, keys=pem.encode())
    JWTValidator(ISSUER, audience=API, keys=jwk)
    JWTValidator(ISSUER, audience=API, keys=key)
    JWTValidator(ISSUER, audience=API, keys={"keys": [jwk]})
    JWTValidator(ISSUER, audience=API, keys=[pem, key], allow_kid_less_trial=True)


async def guard(validator: JWTValidator, authorization: str | None) -> Answer:
    """What every request of an API goes through."""
    try:
        token = await validator.authenticate(authorization, scope="orders.read")
    except TokenRejectedError as error:
        assert_type(error.reason, RejectionReason)
        assert_type(error.claim, str | None)
        status, challenge = validator.challenge(error)
        return status, {"WWW-Authenticate": challenge}
    except RetryableError as error:
        return 503, {"Retry-After": str(int(error.retry_after or 1))}
    assert_type(token, ValidatedToken)
    return 200, {"X-Subject": token.subject or token.issuer}


def guard_without_an_event_loop(validator: JWTValidator, field: str | None) -> str:
    token = validator.authenticate_now(field, scope=("orders.read", "orders.write"))
    assert_type(token.claims, Mapping[str, object])
    assert_type(token.scope, tuple[str, ...])
    assert_type(token.audience, tuple[str, ...])
    assert_type(token.expires_at, float)
    assert_type(token.is_client_subject, bool)
    return f"{token.client_id}"


async def tokens_by_themselves(validator: JWTValidator, token: Secret) -> None:
    assert_type(await validator.validate(token), ValidatedToken)
    assert_type(validator.validate_now(token.reveal()), ValidatedToken)
    assert_type(validator.challenge(scope="orders.read"), tuple[int, str])

"""Access tokens for the tests of the validator, and what its errors show."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import freshtoken
from freshtoken import (
    FreshTokenError,
    JWTValidator,
    RejectionReason,
    Secret,
    ValidatedToken,
)
from freshtoken.errors import TokenRejectedError
from freshtoken.testing import FakeClock, MockIdP, SigningKey, jwk_set, signing_key
from freshtoken.testing.keys import compact_jws

API = "https://api.example.com"
ISSUER = "https://idp.test"
KEY = signing_key("ES256", "validator")
OTHER_KEY = signing_key("ES256", "somebody-else")
LEEWAY = 30.0
LIFETIME = 300.0
GONE = object()
"""As the value of a claim or header parameter: it is not there."""

LIBRARY = Path(freshtoken.__file__).parent

Anything = Any


def claims_at(clock: FakeClock, **changes: object) -> dict[str, object]:
    """Return the claims of a good access token, with some of them changed."""
    now = clock.true_time()
    good = {
        "iss": ISSUER,
        "sub": "alice",
        "aud": API,
        "client_id": "web",
        "jti": "jti-1",
        "iat": now,
        "exp": now + LIFETIME,
        "scope": "read write",
    }
    return without_gone({**good, **changes})


def without_gone(members: Mapping[str, object]) -> dict[str, object]:
    """Return the members that are there."""
    return {name: value for name, value in members.items() if value is not GONE}


def bearer(
    clock: FakeClock,
    *,
    key: SigningKey = KEY,
    header: Mapping[str, object] | None = None,
    **changes: object,
) -> str:
    """Return a signed access token, with some of its claims changed."""
    headers = {"alg": key.alg, "kid": key.kid, "typ": "at+jwt", **(header or {})}
    return compact_jws(without_gone(headers), claims_at(clock, **changes), key)


def issued(idp: MockIdP, clock: FakeClock, **changes: Anything) -> str:
    """Return an access token that a mock server signs with its present key."""
    return bearer(clock, key=idp.current_key(), iss=idp.issuer, **changes)


def local(clock: FakeClock, **options: Anything) -> JWTValidator:
    """Return a validator that has its keys."""
    settings: dict[str, Any] = {
        "issuer": ISSUER,
        "audience": API,
        "keys": jwk_set(KEY),
        "clock": clock,
    }
    return JWTValidator(**(settings | options))


def remote(idp: MockIdP, clock: FakeClock, **options: Anything) -> JWTValidator:
    """Return a validator that asks a mock server for its keys."""
    settings: dict[str, Any] = {
        "issuer": idp.issuer,
        "audience": API,
        "http_client": idp.http_client(),
        "clock": clock,
    }
    return JWTValidator(**(settings | options))


async def accepts(
    validator: JWTValidator, token: Anything, **options: Anything
) -> bool:
    """Tell whether a token is accepted; why not comes as the error."""
    return isinstance(await validator.validate(token, **options), ValidatedToken)


async def refusal(
    validator: JWTValidator, token: Anything, **options: Anything
) -> TokenRejectedError:
    """Return the error with which a token is refused."""
    with pytest.raises(TokenRejectedError) as caught:
        await validator.validate(token, **options)
    return caught.value


async def reason(validator: JWTValidator, token: Anything) -> RejectionReason:
    return (await refusal(validator, token)).reason


def texts_of(error: BaseException, seen: set[int] | None = None) -> Iterator[str]:
    """Yield all that an error reporter could show of *error*, and its frames."""
    seen = set() if seen is None else seen
    seen.add(id(error))
    yield f"{error!r} {error} {error.args!r} {vars(error)!r}"
    traceback = error.__traceback__
    while traceback is not None:
        yield from _frame_texts(traceback.tb_frame)
        traceback = traceback.tb_next
    for link in (error.__cause__, error.__context__):
        if link is not None and id(link) not in seen:
            yield from texts_of(link, seen)


def _frame_texts(frame: types.FrameType) -> Iterator[str]:
    if LIBRARY in Path(frame.f_code.co_filename).parents:
        for name, value in frame.f_locals.items():
            yield f"{frame.f_code.co_qualname}: {name} = {value!r}"


def assert_silent(error: FreshTokenError, token: object) -> None:
    """Fail if an error shows a token, or a part of one."""
    text = token.reveal() if isinstance(token, Secret) else str(token)
    parts = [part for part in text.split(".") if len(part) > 20]
    for shown in texts_of(error):
        for part in parts:
            assert part not in shown, shown[:300]

"""The mock server lies where it is told to, and nowhere else."""

from __future__ import annotations

import random
from typing import Any

import jwt
import pytest

from freshtoken.testing import (
    CallbackForm,
    FakeClock,
    MockIdP,
    signing_key,
)
from freshtoken.testing.keys import NoKey, SecretKey
from tests.testing.mock_calls import refresh
from tests.testing.mock_sign_in import (
    authorization_url,
    authorize,
    claims_of,
    exchange,
    header_of,
    published,
    tokens_for,
    verifies,
)

START = 1_800_000_000.0


@pytest.fixture
def idp() -> MockIdP:
    return MockIdP(clock=FakeClock(START), rng=random.Random(1))


async def id_token(idp: MockIdP) -> str:
    return str((await tokens_for(idp))["id_token"])


# -- ID tokens ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.test"},
        {"aud": ["mock-client", "other"], "azp": "other"},
        {"nonce": "other"},
        {"sub": "mallory"},
        {"at_hash": "AAAA"},
        {"iss": 5, "exp": "soon", "iat": None},
    ],
)
async def test_claims_are_forged_and_the_signature_is_right(
    idp: MockIdP, claims: dict[str, object]
) -> None:
    honest = claims_of(await id_token(idp))

    idp.forge_next_id_token(claims=claims)
    token = await id_token(idp)

    forged = claims_of(token)
    assert {name: forged[name] for name in claims} == claims
    untouched = {"iss", "sub", "aud", "exp", "nonce", "sid"} - claims.keys()
    assert {name: forged[name] for name in untouched} == {
        name: honest[name] for name in untouched
    }
    assert verifies(token, published(idp, token)[0])
    idp.assert_no_pending_faults()


async def test_claims_can_be_left_out(idp: MockIdP) -> None:
    idp.forge_next_id_token(remove=["nonce", "at_hash", "absent"])

    assert not {"nonce", "at_hash"} & claims_of(await id_token(idp)).keys()


async def test_forgery_is_met_once_unless_told_otherwise(idp: MockIdP) -> None:
    idp.forge_next_id_token(claims={"sub": "one"})
    idp.forge_next_id_token(claims={"sub": "two"}, count=2)

    subjects = [claims_of(await id_token(idp))["sub"] for _ in range(4)]

    assert subjects == ["one", "two", "two", "alice"]


async def test_forgery_waits_for_its_occasion(idp: MockIdP) -> None:
    idp.forge_next_id_token(claims={"sub": "refreshed"}, on="refresh")
    idp.forge_next_id_token(claims={"sub": "signed-in"}, on="code")

    first = await tokens_for(idp)
    second = (await refresh(idp, first["refresh_token"])).members()

    assert claims_of(first["id_token"])["sub"] == "signed-in"
    assert claims_of(str(second["id_token"]))["sub"] == "refreshed"


async def test_forged_subject_is_not_the_grants(idp: MockIdP) -> None:
    idp.forge_next_id_token(claims={"sub": "mallory"})

    token = await id_token(idp)

    assert idp.grant(token).subject == "alice"


@pytest.mark.parametrize("kid", ["nobody", None])
async def test_kid_is_forged_or_left_out(idp: MockIdP, kid: str | None) -> None:
    idp.forge_next_id_token(kid=kid)

    token = await id_token(idp)

    assert header_of(token).get("kid") == kid
    assert ("kid" in header_of(token)) == (kid is not None)
    assert verifies(token, idp.jwks()["keys"][0])


async def test_headers_are_forged_and_left_out(idp: MockIdP) -> None:
    headers: dict[str, object] = {"jku": "https://evil.test", "crit": ["b64"]}
    idp.forge_next_id_token(headers={**headers, "typ": None})

    header = header_of(await id_token(idp))

    assert {name: header[name] for name in headers} == headers
    assert header.keys() == {"alg", "kid", "jku", "crit"}


async def test_other_algorithm_signs_with_a_key_that_is_not_published(
    idp: MockIdP,
) -> None:
    idp.forge_next_id_token(alg="ES256")

    token = await id_token(idp)

    assert header_of(token)["alg"] == "ES256"
    assert published(idp, token) == []
    assert verifies(token, idp.current_key("ES256").public_jwk())


async def test_client_secret_can_sign_unexpectedly(idp: MockIdP) -> None:
    idp.forge_next_id_token(alg="HS384")

    token = await id_token(idp)

    secret = idp.clients["mock-client"].client_secret or ""
    assert jwt.decode(
        token,
        secret,
        algorithms=["HS384"],
        options={"verify_aud": False, "verify_iat": False},
    )


async def test_token_can_be_unsigned(idp: MockIdP) -> None:
    idp.forge_next_id_token(alg="none")

    token = await id_token(idp)

    assert header_of(token) == {"alg": "none", "typ": "JWT"}
    assert token.endswith(".")


async def test_other_key_signs_under_the_name_of_the_right_one(idp: MockIdP) -> None:
    idp.forge_next_id_token(key=signing_key("RS256", "evil"), kid="mock-idp-RS256")

    token = await id_token(idp)

    (key,) = published(idp, token)
    assert not verifies(token, key)
    assert verifies(token, signing_key("RS256", "evil").public_jwk())


@pytest.mark.parametrize(("alg", "named"), [(None, "HS256"), ("HS512", "HS512")])
async def test_public_key_can_be_used_as_a_secret(
    idp: MockIdP, alg: str | None, named: str
) -> None:
    """The old confusion of RS256 and HS256."""
    secret = b"-----BEGIN PUBLIC KEY----- and so on, 64 bytes of it or even more"
    idp.forge_next_id_token(key=secret, alg=alg, kid="mock-idp-RS256")

    token = await id_token(idp)

    header, payload, signature = token.split(".")
    algorithm = jwt.get_algorithm_by_name(named)
    assert header_of(token)["alg"] == named
    assert algorithm.verify(
        f"{header}.{payload}".encode(),
        secret,
        jwt.utils.base64url_decode(signature),
    )


async def test_signature_can_be_broken(idp: MockIdP) -> None:
    idp.forge_next_id_token(break_signature=True)

    token = await id_token(idp)

    assert not verifies(token, published(idp, token)[0])
    assert claims_of(token)["sub"] == "alice"


async def test_broken_signature_of_an_unsigned_token_is_one(idp: MockIdP) -> None:
    idp.forge_next_id_token(alg="none", break_signature=True)

    assert (await id_token(idp)).rpartition(".")[2] != ""


def test_algorithm_that_nothing_signs_with_is_refused(idp: MockIdP) -> None:
    with pytest.raises(ValueError, match="RS1"):
        idp.forge_next_id_token(alg="RS1")


def test_keys_do_not_show_themselves() -> None:
    assert repr(SecretKey("HS256", b"shy")) == "SecretKey(HS256)"
    assert NoKey().signature(b"data") == b""


# -- Answers to authorization requests ----------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://evil.test"},
        {"state": "other"},
        {"code": "code-of-mallory"},
        {"session_state": "x"},
    ],
)
async def test_parameters_are_set(idp: MockIdP, changes: dict[str, Any]) -> None:
    idp.answer_authorization_with(**changes)

    parameters = await authorize(idp)

    assert {name: parameters[name] for name in changes} == changes
    assert parameters.keys() == {"code", "state", "iss", *changes}


async def test_parameters_are_left_out(idp: MockIdP) -> None:
    idp.answer_authorization_with(remove=["iss", "code"])

    assert (await authorize(idp)).keys() == {"state"}


@pytest.mark.parametrize("mode", ["query", "form_post"])
async def test_parameters_are_repeated(idp: MockIdP, mode: str) -> None:
    idp.answer_authorization_with(repeat=["code", "state"])

    callback = await idp.browse(authorization_url(idp, response_mode=mode))

    if isinstance(callback, CallbackForm):
        names = [name for name, _ in callback.pairs]
        assert names == ["code", "state", "iss", "code", "state"]
    else:
        assert callback.count("code=") == callback.count("state=") == 2


async def test_error_takes_the_place_of_the_code(idp: MockIdP) -> None:
    idp.answer_authorization_with(
        error="access_denied", error_description="not today", iss="https://evil.test"
    )

    refused = await authorize(idp)
    accepted = await authorize(idp)

    assert refused == {
        "state": "state-1",
        "iss": "https://evil.test",
        "error": "access_denied",
        "error_description": "not today",
    }
    assert len(idp.codes) == 1
    assert (await exchange(idp, accepted["code"])).status == 200


async def test_real_refusal_is_changed_as_well(idp: MockIdP) -> None:
    idp.answer_authorization_with(remove=["iss"])

    parameters = await authorize(idp, prompt="none")

    assert parameters.keys() == {"error", "error_description", "state"}


# -- What is never met --------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("forge_next_id_token", {"claims": {"sub": "mallory"}}),
        ("answer_authorization_with", {"iss": "https://evil.test"}),
    ],
)
async def test_forgery_that_is_never_met_fails_the_test(
    idp: MockIdP, method: str, options: dict[str, Any]
) -> None:
    forgery = getattr(idp, method)(**options, count=2)
    await tokens_for(idp)

    with pytest.raises(AssertionError, match="met 1 of 2") as met:
        idp.assert_no_pending_faults()

    assert "mallory" not in str(met.value)
    assert "evil" not in str(met.value)
    assert idp.pending_forgeries == [forgery]
    await tokens_for(idp)
    idp.assert_no_pending_faults()


async def test_faults_still_fail_the_test(idp: MockIdP) -> None:
    idp.fail_next("authorize")

    with pytest.raises(AssertionError, match="authorize"):
        idp.assert_no_pending_faults()


async def test_forgeries_are_cleared_with_the_faults(idp: MockIdP) -> None:
    idp.forge_next_id_token(claims={"sub": "mallory"})

    idp.clear_faults()

    assert claims_of(await id_token(idp))["sub"] == "alice"
    idp.assert_no_pending_faults()

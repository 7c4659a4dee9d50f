"""The mock server's keys: algorithms, rotation, what is published and what signs."""

from __future__ import annotations

import dataclasses
import random

import jwt
import pytest

from freshtoken.testing import FakeClock, KeyGeneration, MockIdP, signing_key
from freshtoken.testing.id_tokens import half_hash
from tests.testing.mock_calls import client_credentials, get
from tests.testing.mock_sign_in import (
    claims_of,
    header_of,
    published,
    tokens_for,
    verifies,
)

START = 1_800_000_000.0
RSA = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]
ELLIPTIC = ["ES256", "ES384", "ES512", "EdDSA", "Ed25519", "Ed448"]


@pytest.fixture
def idp() -> MockIdP:
    return MockIdP(clock=FakeClock(START), rng=random.Random(1))


async def id_token(idp: MockIdP) -> str:
    return str((await tokens_for(idp))["id_token"])


async def test_id_token_verifies_with_what_the_server_publishes(idp: MockIdP) -> None:
    """By PyJWT as a whole, so that nothing of ours judges our own."""
    token = await id_token(idp)
    document = (await get(idp, idp.url("jwks"))).members()
    keys = jwt.PyJWKSet.from_dict(document)

    claims = jwt.decode(
        token,
        keys[header_of(token)["kid"]],
        algorithms=["RS256"],
        audience="mock-client",
        issuer=idp.issuer,
        options={"verify_iat": False},  # PyJWT reads the real clock
    )

    assert claims["sub"] == "alice"
    assert header_of(token) == {"alg": "RS256", "kid": "mock-idp-RS256", "typ": "JWT"}


@pytest.mark.parametrize("alg", RSA + ELLIPTIC)
async def test_server_signs_in_every_algorithm(idp: MockIdP, alg: str) -> None:
    idp.signing_alg = alg

    token = await id_token(idp)

    (key,) = published(idp, token)
    assert header_of(token)["alg"] == alg
    assert key["alg"] == alg
    assert verifies(token, key)


@pytest.mark.parametrize("alg", ["HS256", "HS384", "HS512"])
async def test_client_secret_signs_and_is_in_no_key_set(idp: MockIdP, alg: str) -> None:
    idp.signing_alg = alg
    idp.rules.access_token_format = "jwt"

    members = await tokens_for(idp)

    secret = idp.clients["mock-client"].client_secret or ""
    claims = jwt.decode(
        members["id_token"],
        secret,
        algorithms=[alg],
        audience="mock-client",
        options={"verify_iat": False},
    )
    assert claims["sub"] == "alice"
    assert "kid" not in header_of(members["id_token"])
    assert [key["kty"] for key in idp.jwks()["keys"]] == ["RSA"]
    assert header_of(members["access_token"])["alg"] == "RS256"


async def test_a_client_may_have_an_algorithm_of_its_own(idp: MockIdP) -> None:
    idp.clients["mock-client"].id_token_alg = "ES256"
    idp.rules.access_token_format = "jwt"

    members = await tokens_for(idp)

    assert header_of(members["id_token"])["alg"] == "ES256"
    assert header_of(members["access_token"])["alg"] == "RS256"
    assert [key["alg"] for key in idp.jwks()["keys"]] == ["RS256", "ES256"]
    assert verifies(members["id_token"], published(idp, members["id_token"])[0])


@pytest.mark.parametrize(
    ("alg", "characters"),
    [
        *(("RS256", 22), ("ES384", 32), ("PS512", 43)),
        *(("EdDSA", 43), ("Ed25519", 43), ("Ed448", 76)),
    ],
)
async def test_at_hash_is_as_long_as_half_of_the_hash(
    idp: MockIdP, alg: str, characters: int
) -> None:
    idp.signing_alg = alg

    assert len(claims_of(await id_token(idp))["at_hash"]) == characters


def test_at_hash_is_that_of_the_standards_sample() -> None:
    """OpenID Connect Core, appendix A.3."""
    access_token = "jHkWEdUXMU1BwAsC4vtUsZwnNvTIxEl0z9K3vx5KF0Y"

    assert half_hash(signing_key("RS256"), access_token) == "77QmUPtjPfzWtF2AnpK9RQ"


def test_hash_under_eddsa_follows_the_curve() -> None:
    key = dataclasses.replace(signing_key("Ed448"), alg="EdDSA")

    assert len(half_hash(key, "at")) == 76


# -- Rotation -----------------------------------------------------------------------


async def test_overlap_publishes_old_and_new_keys(idp: MockIdP) -> None:
    before = await id_token(idp)

    key = idp.rotate_keys()
    after = await id_token(idp)

    assert header_of(after)["kid"] == key.kid != header_of(before)["kid"]
    for token in (before, after):
        assert verifies(token, published(idp, token)[0])
    idp.retire_keys()
    assert published(idp, before) == []
    assert verifies(after, published(idp, after)[0])


async def test_two_overlaps_keep_all_three(idp: MockIdP) -> None:
    idp.rotate_keys("overlap")
    idp.rotate_keys("overlap")

    kids = [key["kid"] for key in idp.jwks()["keys"]]

    assert kids == ["mock-idp-RS256", "mock-idp-2-RS256", "mock-idp-3-RS256"]


async def test_hard_rotation_publishes_the_new_keys_only(idp: MockIdP) -> None:
    before = await id_token(idp)

    idp.rotate_keys("hard")
    after = await id_token(idp)

    assert published(idp, before) == []
    assert verifies(after, published(idp, after)[0])


async def test_new_key_may_go_by_the_old_name(idp: MockIdP) -> None:
    before = await id_token(idp)

    idp.rotate_keys("same_kid")
    after = await id_token(idp)

    assert header_of(after)["kid"] == header_of(before)["kid"]
    (key,) = published(idp, after)
    assert verifies(after, key)
    assert not verifies(before, key)


async def test_key_can_sign_before_it_is_published(idp: MockIdP) -> None:
    idp.rotate_keys("hard", publish=False)
    token = await id_token(idp)
    assert published(idp, token) == []

    idp.publish_keys()

    assert verifies(token, published(idp, token)[0])
    assert len(idp.jwks()["keys"]) == 1


async def test_key_can_be_published_before_it_signs(idp: MockIdP) -> None:
    idp.keys.published.append(KeyGeneration(2, 2))

    token = await id_token(idp)

    assert [key["kid"] for key in idp.jwks()["keys"]] == [
        header_of(token)["kid"],
        "mock-idp-2-RS256",
    ]


async def test_rotation_reaches_jwt_access_tokens(idp: MockIdP) -> None:
    idp.rules.access_token_format = "jwt"
    before = str((await client_credentials(idp)).members()["access_token"])

    idp.rotate_keys("hard")
    after = str((await client_credentials(idp)).members()["access_token"])

    assert published(idp, before) == []
    assert verifies(after, published(idp, after)[0])
    assert idp.is_active(before)


async def test_servers_of_one_process_share_the_keys_of_a_generation() -> None:
    """Else each test would wait for RSA keys of its own."""
    first, second = MockIdP(), MockIdP("https://other.test")

    assert first.rotate_keys("hard") == second.rotate_keys("hard")


def test_unknown_rotation_is_refused(idp: MockIdP) -> None:
    with pytest.raises(ValueError, match="overlap, hard, same_kid"):
        idp.rotate_keys("soft")  # type: ignore[arg-type]  # that is the test


async def test_odd_keys_come_before_the_good_ones(idp: MockIdP) -> None:
    odd = {"kty": "oct", "k": "AAAA", "kid": "odd"}
    idp.extra_keys = ["no key", None, odd, signing_key("ES256", "x").public_jwk()]

    keys = (await get(idp, idp.url("jwks"))).members()["keys"]

    assert isinstance(keys, list)
    assert keys[:3] == ["no key", None, odd]
    assert [key["kid"] for key in keys[3:]] == ["x-ES256", "mock-idp-RS256"]

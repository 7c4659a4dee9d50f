"""The mock server checks who its clients are, for real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jwt
import pytest

from freshtoken.testing import FakeClock, MockIdP, MockResponse, jwk_set, signing_key
from freshtoken.testing.clients import ASSERTION_TYPE
from tests.testing.mock_calls import basic, client_credentials

START = 1_800_000_000.0
SPECIAL = "a:b%c+d&e/f?g h é ü"
SECRET = "0123456789abcdef" * 4
NO_HEADER = ("Accept", "application/json")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def idp(clock: FakeClock) -> MockIdP:
    return MockIdP(clock=clock)


def claims_for(idp: MockIdP, client_id: str, **changes: object) -> dict[str, Any]:
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": idp.issuer,
        "exp": START + 60,
        "iat": START,
        "jti": "one",
        **changes,
    }
    return {name: value for name, value in claims.items() if value is not None}


async def send_assertion(idp: MockIdP, assertion: str, **form: str) -> MockResponse:
    fields = {
        "client_assertion_type": ASSERTION_TYPE,
        "client_assertion": assertion,
        **form,
    }
    return await client_credentials(idp, NO_HEADER, **fields)


def rejected(answer: MockResponse) -> bool:
    return answer.status == 401 and answer.members()["error"] == "invalid_client"


async def test_basic_credentials_are_form_encoded(idp: MockIdP) -> None:
    idp.add_client(SPECIAL, client_secret=SPECIAL, auth_method="client_secret_basic")

    answer = await client_credentials(idp, basic(SPECIAL, SPECIAL))

    assert answer.status == 200
    assert idp.requests()[0].client_id == SPECIAL


async def test_secret_in_the_body(idp: MockIdP) -> None:
    idp.add_client(SPECIAL, client_secret=SPECIAL, auth_method="client_secret_post")

    good = await client_credentials(
        idp, NO_HEADER, client_id=SPECIAL, client_secret=SPECIAL
    )
    bad = await client_credentials(
        idp, NO_HEADER, client_id=SPECIAL, client_secret="other"
    )

    assert good.status == 200
    assert rejected(bad)
    assert bad.header("www-authenticate") is None


@pytest.mark.parametrize(
    "header",
    [
        basic("mock-client", "wrong"),
        basic("nobody", SECRET),
        ("Authorization", "Basic !!!"),
        ("Authorization", "Basic bm9jb2xvbg=="),
        ("Authorization", "Bearer abc"),
    ],
)
async def test_wrong_header_is_challenged(
    idp: MockIdP, header: tuple[str, str]
) -> None:
    answer = await client_credentials(idp, header)

    assert rejected(answer)
    assert (answer.header("www-authenticate") or "").startswith("Basic ")


async def test_no_credentials_at_all_are_rejected(idp: MockIdP) -> None:
    assert rejected(await client_credentials(idp, NO_HEADER))
    assert rejected(await client_credentials(idp, NO_HEADER, client_id="mock-client"))


async def test_public_client_needs_only_its_name(idp: MockIdP) -> None:
    idp.add_client("app", auth_method="none")

    answer = await client_credentials(idp, NO_HEADER, client_id="app")

    assert answer.members()["error"] == "unauthorized_client"  # known, yet public


async def test_only_the_registered_method_will_do(idp: MockIdP) -> None:
    idp.add_client("web", client_secret=SECRET, auth_method="client_secret_post")
    idp.add_client("app", client_secret=SECRET, auth_method="none")

    assert rejected(await client_credentials(idp, basic("web", SECRET)))
    assert rejected(await client_credentials(idp, basic("app", SECRET)))


async def test_two_ways_at_once_are_one_too_many(idp: MockIdP) -> None:
    header = basic("mock-client", SECRET)

    twice = await client_credentials(idp, header, client_secret=SECRET)
    torn = await client_credentials(idp, header, client_id="other")

    for answer in (twice, torn):
        assert (answer.status, answer.members()["error"]) == (400, "invalid_request")


@pytest.mark.parametrize("alg", ["HS256", "HS384", "HS512"])
async def test_assertion_signed_with_the_secret(idp: MockIdP, alg: str) -> None:
    idp.add_client("web", client_secret=SECRET, auth_method="client_secret_jwt")
    claims = claims_for(idp, "web")

    good = await send_assertion(idp, jwt.encode(claims, SECRET, alg))
    bad = await send_assertion(idp, jwt.encode(claims, SECRET[::-1], alg))

    assert good.status == 200
    assert rejected(bad)
    assert idp.requests()[0].client_id == "web"


@pytest.mark.parametrize("alg", ["RS256", "PS512", "ES256", "ES384", "EdDSA"])
async def test_assertion_signed_with_a_private_key(idp: MockIdP, alg: str) -> None:
    key, other = signing_key(alg, "client"), signing_key(alg, "stranger")
    idp.add_client("web", auth_method="private_key_jwt", jwks=jwk_set(key))
    claims = claims_for(idp, "web")

    good = await send_assertion(idp, key.sign(claims))
    bad = await send_assertion(idp, other.sign(claims, {"kid": key.kid}))
    fresh = claims_for(idp, "web", jti="two")
    misnamed = await send_assertion(idp, key.sign(fresh, {"kid": "other"}))

    assert good.status == 200
    assert rejected(bad)
    assert rejected(misnamed)


@pytest.mark.parametrize(
    "audience",
    ["https://idp.test", "https://idp.test/token", ["x", "https://idp.test"]],
)
async def test_assertion_is_meant_for_issuer_or_endpoint(
    idp: MockIdP, audience: object
) -> None:
    idp.add_client("web", client_secret=SECRET, auth_method="client_secret_jwt")

    assertion = jwt.encode(claims_for(idp, "web", aud=audience), SECRET)

    assert (await send_assertion(idp, assertion)).status == 200


@pytest.mark.parametrize(
    "change",
    [
        {"aud": "https://other.test"},
        {"aud": None},
        {"exp": START},
        {"exp": None},
        {"iat": START + 31},
        {"nbf": START + 31},
        {"jti": None},
        {"jti": ""},
        {"iss": "somebody"},
        {"sub": None},
    ],
    ids=str,
)
async def test_assertion_with_a_wrong_claim_is_rejected(
    idp: MockIdP, change: dict[str, object]
) -> None:
    idp.add_client("web", client_secret=SECRET, auth_method="client_secret_jwt")

    assertion = jwt.encode(claims_for(idp, "web", **change), SECRET)

    assert rejected(await send_assertion(idp, assertion))


async def test_assertion_works_once(idp: MockIdP) -> None:
    idp.add_client("web", client_secret=SECRET, auth_method="client_secret_jwt")
    once = jwt.encode(claims_for(idp, "web"), SECRET)
    another = jwt.encode(claims_for(idp, "web", jti="two"), SECRET)

    answers = [await send_assertion(idp, one) for one in (once, once, another)]

    assert [answer.status for answer in answers] == [200, 401, 200]


async def test_assertion_expires_by_the_servers_clock(
    idp: MockIdP, clock: FakeClock
) -> None:
    idp.add_client("web", client_secret=SECRET, auth_method="client_secret_jwt")
    assertions = [
        jwt.encode(claims_for(idp, "web", jti=jti), SECRET) for jti in ("a", "b")
    ]

    await clock.advance(59)
    assert (await send_assertion(idp, assertions[0])).status == 200
    await clock.advance(1)
    assert rejected(await send_assertion(idp, assertions[1]))


@pytest.mark.parametrize(
    "make",
    [
        lambda _: "not.a.jwt",
        lambda claims: jwt.encode(claims, "", algorithm="none"),
        lambda claims: jwt.encode(claims, SECRET, algorithm="HS256"),
    ],
    ids=["garbage", "unsigned", "secret instead of key"],
)
async def test_other_proofs_are_not_taken_for_a_key(
    idp: MockIdP, make: Callable[[dict[str, Any]], str]
) -> None:
    idp.add_client(
        "web",
        client_secret=SECRET,
        auth_method="private_key_jwt",
        jwks=jwk_set(signing_key("ES256")),
    )

    assert rejected(await send_assertion(idp, make(claims_for(idp, "web"))))


async def test_assertion_needs_its_type_and_its_client(idp: MockIdP) -> None:
    idp.add_client("web", client_secret=SECRET, auth_method="client_secret_jwt")
    assertion = jwt.encode(claims_for(idp, "web"), SECRET)

    untyped = await send_assertion(idp, assertion, client_assertion_type="other")
    torn = await send_assertion(idp, assertion, client_id="other")

    assert rejected(untyped)
    assert torn.members()["error"] == "invalid_request"


@pytest.mark.parametrize("alg", ["RS256", "ES256", "ES512", "EdDSA", "Ed448"])
def test_keys_are_made_once_and_export_their_public_half(alg: str) -> None:
    key = signing_key(alg, "once")

    jwk = key.public_jwk(use=None, x="y")

    assert signing_key(alg, "once").private_key is key.private_key
    assert signing_key(alg, "twice").private_key is not key.private_key
    assert (jwk["kid"], jwk["alg"]) == (f"once-{alg}", alg)
    assert "d" not in jwk
    assert "use" not in jwk
    assert jwk["x"] == "y"
    assert "PRIVATE KEY" in key.private_pem()
    assert repr(key) == f"SigningKey('once-{alg}', {alg})"


def test_algorithms_of_rsa_share_their_key() -> None:
    one, other = signing_key("RS256", "shared"), signing_key("PS512", "shared")

    assert one.private_key is other.private_key


def test_unknown_algorithm_has_no_key() -> None:
    with pytest.raises(ValueError, match="RS256"):
        signing_key("HS256")

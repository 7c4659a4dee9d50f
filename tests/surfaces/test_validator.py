"""A resource server accepts and refuses tokens, and answers those it refuses."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from freshtoken import (
    JWTValidator,
    MisconfiguredError,
    RejectionReason,
    Secret,
    TokenManager,
    ValidatedToken,
)
from freshtoken._protocol.challenge import parse_challenges
from freshtoken.errors import TokenRejectedError
from freshtoken.testing import FakeClock, MockIdP, jwk_set, signing_key
from freshtoken.testing.keys import SecretKey, compact_jws
from tests.surfaces.access_tokens import (
    API,
    GONE,
    ISSUER,
    KEY,
    LEEWAY,
    LIFETIME,
    OTHER_KEY,
    Anything,
    accepts,
    assert_silent,
    bearer,
    claims_at,
    local,
    reason,
    refusal,
    remote,
)

PEM = KEY.private_key.public_key().public_bytes(
    Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# What is accepted


@pytest.mark.parametrize("wrap", [str, Secret])
async def test_an_access_token_of_the_server_is_accepted(
    clock: FakeClock, wrap: type[str | Secret]
) -> None:
    idp = MockIdP(clock=clock, access_token_format="jwt")
    validator = remote(idp, clock, audience=idp.issuer)
    grant = idp.new_grant("alice", scope="openid orders.read")

    token = await validator.validate(wrap(grant.access_token), scope="orders.read")

    assert isinstance(token, ValidatedToken)
    assert (token.issuer, token.subject) == (idp.issuer, "alice")
    assert (token.client_id, token.audience) == ("mock-client", (idp.issuer,))
    assert token.scope == ("openid", "orders.read")
    assert token.expires_at == clock.time() + LIFETIME
    assert not token.is_client_subject


@pytest.mark.spec("9700-4.15")
async def test_a_service_acting_for_itself_can_be_told(clock: FakeClock) -> None:
    token = await local(clock).validate(bearer(clock, sub="web"))

    assert token.is_client_subject


@pytest.mark.parametrize(
    "keys",
    [
        jwk_set(KEY),
        {"keys": [{"kty": "AKP"}, KEY.public_jwk(), "odd"]},
        KEY.public_jwk(),
        [OTHER_KEY.public_jwk(), KEY.public_jwk()],
        PEM,
        PEM.decode(),
        [PEM],
        KEY.private_key.public_key(),
        (KEY.private_key.public_key(),),
    ],
)
async def test_keys_are_given_by_hand_in_many_forms(
    clock: FakeClock, keys: Anything
) -> None:
    validator = local(clock, keys=keys)

    assert validator.validate_now(bearer(clock)).subject == "alice"
    forged = bearer(clock, key=OTHER_KEY, header={"kid": KEY.kid})
    assert await reason(validator, forged) is RejectionReason.SIGNATURE


async def test_both_ways_to_ask_give_the_same_token(clock: FakeClock) -> None:
    validator = local(clock)
    token = bearer(clock)

    first = validator.validate_now(token, scope="read")

    assert await validator.validate(token, scope=["read", "write"]) is first


async def test_several_audiences_and_algorithms_are_given_as_any_iterable(
    clock: FakeClock,
) -> None:
    key = signing_key("EdDSA", "validator")
    validator = local(
        clock,
        audience=iter(["https://old.example.com", API]),
        algorithms=iter(["ES256", "EdDSA"]),
        keys=jwk_set(KEY, key),
    )

    assert (await validator.validate(bearer(clock, aud=["x", API]))).audience == (
        "x",
        API,
    )
    assert await accepts(validator, bearer(clock, key=key))


@pytest.mark.spec("Core-10.1-kid-many")
async def test_several_keys_are_tried_by_option_only(clock: FakeClock) -> None:
    keys = jwk_set(OTHER_KEY, KEY)
    nameless = compact_jws({"alg": "ES256", "typ": "at+jwt"}, claims_at(clock), KEY)

    assert await reason(local(clock, keys=keys), nameless) is (
        RejectionReason.AMBIGUOUS_KEY
    )
    trying = local(clock, keys=keys, allow_kid_less_trial=True)
    assert await accepts(trying, nameless)


async def test_an_issuer_that_is_named_twice_is_one(clock: FakeClock) -> None:
    assert await accepts(local(clock, issuer=[ISSUER, ISSUER]), bearer(clock))


# What is refused

REFUSED: list[tuple[dict[str, object], RejectionReason, str | None]] = [
    ({"iss": f"{ISSUER}/"}, RejectionReason.INVALID_CLAIM, "iss"),
    ({"iss": "https://evil.test"}, RejectionReason.INVALID_CLAIM, "iss"),
    ({"iss": ["https://idp.test"]}, RejectionReason.INVALID_CLAIM, "iss"),
    ({"iss": GONE}, RejectionReason.MISSING_CLAIM, "iss"),
    ({"aud": "https://api.example.com/"}, RejectionReason.INVALID_CLAIM, "aud"),
    ({"aud": GONE}, RejectionReason.MISSING_CLAIM, "aud"),
    ({"exp": 1.0}, RejectionReason.EXPIRED, "exp"),
    ({"exp": "soon"}, RejectionReason.INVALID_CLAIM, "exp"),
    ({"exp": GONE}, RejectionReason.MISSING_CLAIM, "exp"),
    ({"nbf": 2e9}, RejectionReason.NOT_YET_VALID, "nbf"),
    ({"iat": 2e9}, RejectionReason.NOT_YET_VALID, "iat"),
    ({"iat": GONE}, RejectionReason.MISSING_CLAIM, "iat"),
    ({"sub": GONE}, RejectionReason.MISSING_CLAIM, "sub"),
    ({"client_id": GONE}, RejectionReason.MISSING_CLAIM, "client_id"),
    ({"jti": GONE}, RejectionReason.MISSING_CLAIM, "jti"),
    ({"tenant": GONE}, RejectionReason.MISSING_CLAIM, "tenant"),
    ({"scope": ["read"]}, RejectionReason.INVALID_CLAIM, "scope"),
    ({"cnf": {"kid": "x"}}, RejectionReason.CONFIRMATION, "cnf"),
    ({"cnf": {}}, RejectionReason.CONFIRMATION, "cnf"),
    ({"header": {"typ": "JWT"}}, RejectionReason.TYPE, "typ"),
    ({"header": {"typ": GONE}}, RejectionReason.TYPE, "typ"),
    ({"header": {"typ": "id_token+jwt"}}, RejectionReason.TYPE, "typ"),
    ({"header": {"typ": "logout+jwt"}}, RejectionReason.TYPE, "typ"),
    ({"header": {"kid": "another"}}, RejectionReason.UNKNOWN_KEY, "kid"),
    ({"header": {"crit": ["exp"]}}, RejectionReason.CRITICAL_HEADER, "crit"),
    ({"key": OTHER_KEY}, RejectionReason.UNKNOWN_KEY, "kid"),
    ({"key": OTHER_KEY, "header": {"kid": KEY.kid}}, RejectionReason.SIGNATURE, None),
    ({"key": signing_key("ES384", "validator")}, RejectionReason.ALGORITHM, "alg"),
]


@pytest.mark.spec("9068-2.2")
@pytest.mark.spec("9068-4-typ")
@pytest.mark.spec("9068-4-iss")
@pytest.mark.spec("9068-4-aud")
@pytest.mark.spec("9068-4-sig")
@pytest.mark.spec("9068-4-exp")
@pytest.mark.spec("9068-scope-array")
@pytest.mark.spec("cnf-unknown")
@pytest.mark.spec("RS-no-sub-clientid")
@pytest.mark.parametrize(("changes", "expected", "claim"), REFUSED)
async def test_a_token_is_refused_for_one_thing_that_is_wrong(
    clock: FakeClock,
    changes: dict[str, Anything],
    expected: RejectionReason,
    claim: str | None,
) -> None:
    validator = local(clock, algorithms="ES256", required_claims=["tenant"])
    wrong = bearer(clock, **{"tenant": "t1", **changes})

    error = await refusal(validator, wrong)
    with pytest.raises(TokenRejectedError) as caught:
        validator.validate_now(Secret(wrong))

    assert (error.reason, error.claim) == (expected, claim)
    assert (caught.value.reason, caught.value.claim) == (expected, claim)
    assert not hasattr(error, "claims")
    assert_silent(error, wrong)
    assert_silent(caught.value, wrong)
    assert await accepts(validator, bearer(clock, tenant="t1"))


@pytest.mark.spec("7515-3.1")
@pytest.mark.parametrize(
    "token",
    [
        None,
        b"a.b.c",
        7,
        ["a.b.c"],
        "",
        "a.b",
        "a.b.c.d",
        "..",
        "\ud800.b.c",
        "a" * 70_000,
    ],
    ids=repr,
)
async def test_what_is_no_token_is_refused_as_malformed(
    clock: FakeClock, token: Anything
) -> None:
    validator = local(clock)

    error = await refusal(validator, token)
    with pytest.raises(TokenRejectedError) as caught:
        validator.validate_now(token)

    assert error.reason is caught.value.reason is RejectionReason.MALFORMED
    assert_silent(error, "a" * 70_000)


async def test_a_token_as_bytes_is_refused_and_not_shown(clock: FakeClock) -> None:
    """Frames of the library do not hold it either."""
    text = bearer(clock)

    error = await refusal(local(clock), text.encode())

    assert error.reason is RejectionReason.MALFORMED
    assert_silent(error, text)


@pytest.mark.spec("8725-3.1-none")
@pytest.mark.spec("8725-3.1-confusion")
async def test_neither_unsigned_tokens_nor_public_keys_as_secrets_are_accepted(
    clock: FakeClock,
) -> None:
    validator = local(clock)
    good = claims_at(clock)
    unsigned = bearer(clock).rpartition(".")[0]
    forged = SecretKey("HS256", PEM)
    confused = compact_jws({"alg": "HS256", "typ": "at+jwt"}, good, forged)
    header = {"alg": "none", "typ": "at+jwt"}
    none = compact_jws(header, good, KEY).rpartition(".")[0]

    assert await reason(validator, confused) is RejectionReason.ALGORITHM
    assert await reason(validator, f"{none}.") is RejectionReason.ALGORITHM
    assert await reason(validator, f"{unsigned}.") is RejectionReason.MALFORMED
    with pytest.raises(MisconfiguredError) as caught:
        local(clock, algorithms=["ES256", "none"])
    assert caught.value.setting == "algorithms"


@pytest.mark.spec("9068-5-idtoken")
@pytest.mark.parametrize(
    ("typ", "changes"),
    [
        ("JWT", {"nonce": "n"}),
        ("JWT", {"at_hash": "x"}),
        ("JWT", {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}}),
        ("logout+jwt", {}),
        ("JWT", {"typ": "Refresh"}),
        ("JWT", {"typ": "ID"}),
        ("JWT", {"token_use": "id"}),
    ],
)
async def test_tokens_of_other_kinds_are_no_access_tokens_under_any_profile(
    clock: FakeClock, typ: str, changes: dict[str, Anything]
) -> None:
    token = bearer(clock, header={"typ": typ}, **changes)

    assert await reason(local(clock), token) is RejectionReason.TYPE
    assert await reason(local(clock, profile="any"), token) is RejectionReason.TYPE


@pytest.mark.spec("9068-5-idtoken")
async def test_the_id_token_of_a_sign_in_is_no_access_token(clock: FakeClock) -> None:
    """Even where its audience fits."""
    idp = MockIdP(clock=clock)
    client = idp.http_client()
    async with TokenManager(idp.client(), http_client=client, clock=clock) as tokens:
        await idp.sign_in(tokens)
    id_token = idp.grant("grant-1").id_token
    validator = remote(idp, clock, audience="mock-client", profile="any")

    assert await reason(validator, id_token) is RejectionReason.TYPE


@pytest.mark.spec("9068-4-typ")
async def test_the_refusal_names_the_option_that_accepts_other_tokens(
    clock: FakeClock,
) -> None:
    plain = bearer(
        clock, header={"typ": "JWT"}, client_id=GONE, jti=GONE, sub=GONE, iat=GONE
    )

    error = await refusal(local(clock), plain)
    token = await local(clock, profile="any").validate(plain)

    assert 'profile="any"' in str(error)
    assert (token.subject, token.client_id) == (None, None)


@pytest.mark.spec("9068-scope-array")
async def test_the_refusal_names_the_option_that_accepts_scope_as_a_list(
    clock: FakeClock,
) -> None:
    listed = bearer(clock, scope=["read"])

    error = await refusal(local(clock), listed)
    token = await local(clock, allow_scope_list=True).validate(listed, scope="read")

    assert "allow_scope_list=True" in str(error)
    assert token.scope == ("read",)


@pytest.mark.spec("7519-4.1.4")
@pytest.mark.spec("7519-4.1.5")
@pytest.mark.parametrize("leeway", [0.0, LEEWAY, 300.0])
async def test_times_are_taken_with_leeway_to_the_second(
    clock: FakeClock, leeway: float
) -> None:
    validator = local(clock, leeway=leeway)
    now = clock.time()
    live = bearer(clock, exp=now - leeway + 1)
    early = bearer(clock, nbf=now + leeway)
    tomorrow = bearer(clock, iat=now + leeway)

    assert await accepts(validator, live)
    assert await accepts(validator, early)
    assert await accepts(validator, tomorrow)
    early_or_late: list[tuple[dict[str, Anything], RejectionReason]] = [
        ({"exp": now - leeway}, RejectionReason.EXPIRED),
        ({"nbf": now + leeway + 1}, RejectionReason.NOT_YET_VALID),
        ({"iat": now + leeway + 1}, RejectionReason.NOT_YET_VALID),
    ]
    for changes, expected in early_or_late:
        assert await reason(validator, bearer(clock, **changes)) is expected


# Scope, and the answers


@pytest.mark.spec("9068-2.2.3")
async def test_scope_is_compared_word_by_word_at_the_first_look_and_later(
    clock: FakeClock,
) -> None:
    validator = local(clock)
    token = bearer(clock, scope="readonly")

    errors = [await refusal(validator, token, scope="read") for _ in range(2)]
    with pytest.raises(TokenRejectedError) as caught:
        validator.validate_now(token, scope="read readonly")

    for error in errors:
        assert error.reason is RejectionReason.INSUFFICIENT_SCOPE
        assert validator.challenge(error) == (
            403,
            'Bearer realm="api", error="insufficient_scope", scope="read"',
        )
        assert_silent(error, token)
    assert caught.value.expected == ("read", "readonly")
    assert await accepts(validator, token, scope="readonly")


@pytest.mark.spec("6750-3")
@pytest.mark.spec("6750-2.1-rs")
@pytest.mark.parametrize(
    ("authorization", "status", "error"),
    [
        (None, 401, None),
        ((), 401, None),
        ("", 401, None),
        ("Bearer", 401, None),
        ("Basic dTpw", 401, None),
        ("Bearer a b", 400, "invalid_request"),
        ("Bearer a,b", 400, "invalid_request"),
        (["Bearer a", "Bearer b"], 400, "invalid_request"),
        (b"Bearer a", 400, "invalid_request"),
        ([b"Bearer a"], 400, "invalid_request"),
        ("Bearer a", 401, "invalid_token"),
    ],
)
async def test_a_request_without_a_good_token_is_answered_by_the_book(
    clock: FakeClock, authorization: Anything, status: int, error: str | None
) -> None:
    validator = local(clock, realm='the "API"')

    with pytest.raises(TokenRejectedError) as caught:
        await validator.authenticate(authorization)
    with pytest.raises(TokenRejectedError) as plain:
        validator.authenticate_now(authorization)

    for refused in (caught.value, plain.value):
        answered, field = validator.challenge(refused, scope="read")
        (challenge,) = parse_challenges([field])
        assert answered == status
        assert challenge.scheme == "bearer"
        assert challenge.parameters.get("realm") == 'the "API"'
        assert challenge.parameters.get("error") == error
        assert challenge.parameters.get("scope") == "read"


@pytest.mark.spec("6750-2.1-rs")
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_token_of_a_request_is_validated(
    clock: FakeClock, scheme: str
) -> None:
    validator = local(clock)
    header = f"{scheme} {bearer(clock)}"

    token = await validator.authenticate(header, scope="read")

    assert token.subject == "alice"
    assert validator.authenticate_now([header], scope="write") is token


@pytest.mark.spec("6750-3")
@pytest.mark.spec("6750-2.3-rs")
async def test_a_token_elsewhere_is_never_taken_and_beside_the_header_a_bad_request(
    clock: FakeClock,
) -> None:
    validator = local(clock)
    header = f"Bearer {bearer(clock)}"

    with pytest.raises(TokenRejectedError) as alone:
        await validator.authenticate(None, other_methods=True)
    with pytest.raises(TokenRejectedError) as both:
        await validator.authenticate(header, other_methods=True)

    assert validator.challenge(alone.value)[0] == 401
    assert validator.challenge(both.value)[0] == 400
    assert_silent(both.value, header)


@pytest.mark.spec("6750-3.1-order")
@pytest.mark.parametrize("why", RejectionReason)
def test_every_refusal_has_an_answer_that_tells_nothing_of_the_token(
    clock: FakeClock, why: RejectionReason
) -> None:
    error = TokenRejectedError("because of eyJhbGciOi")
    error.reason = why
    error.received = "eyJhbGciOi"

    status, field = local(clock).challenge(error)

    (challenge,) = parse_challenges([field])
    expected = {
        RejectionReason.CREDENTIALS: (401, None),
        RejectionReason.INSUFFICIENT_SCOPE: (403, "insufficient_scope"),
    }.get(why, (401, "invalid_token"))
    assert (status, challenge.parameters.get("error")) == expected
    assert "eyJ" not in field


def test_a_request_without_credentials_is_asked_for_a_token(clock: FakeClock) -> None:
    assert local(clock).challenge() == (401, 'Bearer realm="api"')


# What nobody sees, and nobody changes


async def test_claims_that_a_caller_changes_stay_as_they_are_for_others(
    clock: FakeClock,
) -> None:
    validator = local(clock)
    text = bearer(clock, roles=["user"], realm={"roles": ["user"]})
    first: Anything = await validator.validate(text)

    first.claims["roles"].append("admin")
    first.claims["realm"]["roles"].append("admin")
    with pytest.raises(TypeError):
        first.claims["sub"] = "root"

    second = await validator.validate(text)
    assert second.claims["roles"] == ["user"]
    assert dict(second.claims)["realm"] == {"roles": ["user"]}
    assert second.claims["sub"] == "alice"
    assert len(second.claims) == len(list(second.claims)) == 10
    assert "roles" in second.claims
    assert "other" not in second.claims
    assert json.dumps(dict(second.claims))


async def test_neither_tokens_nor_validators_show_whom_they_are_about(
    clock: FakeClock,
) -> None:
    validator = local(clock)
    token = await validator.validate(bearer(clock, sub="alice@example.com"))

    assert "alice" not in repr(token)
    assert "alice" not in repr(token.claims)
    assert repr(validator) == f"JWTValidator({ISSUER}, audience=('{API}',))"


# Settings


@pytest.mark.spec("9068-4-aud")
@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("issuer", {"issuer": ""}),
        ("issuer", {"issuer": None}),
        ("issuer", {"issuer": ()}),
        ("issuer", {"issuer": [ISSUER, 7]}),
        ("issuer", {"issuer": "http://idp.test", "keys": None}),
        ("audience", {"audience": ""}),
        ("audience", {"audience": []}),
        ("audience", {"audience": None}),
        ("algorithms", {"algorithms": ()}),
        ("algorithms", {"algorithms": "HS256"}),
        ("algorithms", {"algorithms": "rs256"}),
        ("leeway", {"leeway": 301}),
        ("leeway", {"leeway": -1}),
        ("leeway", {"leeway": "30"}),
        ("required_claims", {"required_claims": [""]}),
        ("profile", {"profile": "none"}),
        ("allow_scope_list", {"allow_scope_list": "no"}),
        ("allow_kid_less_trial", {"allow_kid_less_trial": 1}),
        ("realm", {"realm": "a\nb"}),
        ("realm", {"realm": None}),
        ("http_client", {"http_client": object()}),
        ("keys", {"keys": []}),
        ("keys", {"keys": {}}),
        ("keys", {"keys": {"keys": {}}}),
        ("keys", {"keys": {"keys": []}}),
        ("keys", {"keys": {"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}}),
        ("keys", {"keys": 7}),
        ("keys", {"keys": [None]}),
        ("keys", {"keys": KEY.private_pem()}),
        ("keys", {"issuer": [ISSUER, "https://b.test"]}),
        (
            "jwks_uri",
            {
                "issuer": [ISSUER, "https://b.test"],
                "keys": None,
                "jwks_uri": "https://b.test/keys",
            },
        ),
        ("jwks_uri", {"jwks_uri": "https://idp.test/keys"}),
        ("jwks_uri", {"keys": None, "jwks_uri": "http://idp.test/keys"}),
    ],
)
def test_a_setting_that_is_of_no_use_is_refused_at_once(
    clock: FakeClock, setting: str, options: dict[str, Anything]
) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        local(clock, **options)

    assert caught.value.setting == setting


def test_no_text_of_a_private_key_is_shown(clock: FakeClock) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        local(clock, keys=KEY.private_pem())

    assert "PRIVATE" not in str(caught.value)


def test_keys_that_would_have_to_be_fetched_need_an_event_loop(
    clock: FakeClock,
) -> None:
    validator = JWTValidator(ISSUER, audience=API, clock=clock)
    token = bearer(clock)

    with pytest.raises(MisconfiguredError) as caught:
        validator.validate_now(token)

    assert caught.value.setting == "keys"
    assert_silent(caught.value, token)

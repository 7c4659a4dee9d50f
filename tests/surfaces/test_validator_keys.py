"""Where the validator has its keys from, and how rarely it asks for them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import anyio
import httpx
import pytest
import trio

from freshtoken import (
    JWTValidator,
    MisconfiguredError,
    RejectionReason,
    RetryableError,
)
from freshtoken.errors import IssuerMismatchError, TokenRejectedError, TransportError
from freshtoken.testing import FakeClock, MockIdP
from freshtoken.testing.keys import compact_jws
from tests.surfaces.access_tokens import (
    API,
    KEY,
    OTHER_KEY,
    accepts,
    assert_silent,
    bearer,
    claims_at,
    issued,
    local,
    reason,
    refusal,
    remote,
)

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def idp(clock: FakeClock) -> MockIdP:
    return make_idp(clock, "https://idp.test")


def make_idp(clock: FakeClock, issuer: str) -> MockIdP:
    server = MockIdP(issuer, clock=clock)
    server.signing_alg = "ES256"
    return server


def asked(idp: MockIdP) -> int:
    """How often a server was asked for its keys."""
    return len(idp.requests("jwks"))


def both(first: MockIdP, second: MockIdP) -> httpx.AsyncClient:
    """Return a client that reaches two servers."""
    servers = {one.issuer: one.transport() for one in (first, second)}
    return httpx.AsyncClient(mounts=servers, transport=httpx.MockTransport(nowhere))


def nowhere(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"nobody is to ask {request.url}")


# One issuer


async def test_metadata_and_keys_are_fetched_once_when_first_needed(
    clock: FakeClock, idp: MockIdP
) -> None:
    validator = remote(idp, clock)
    assert not idp.requests()

    for number in range(5):
        assert await accepts(validator, issued(idp, clock, jti=f"j{number}"))

    assert [one.endpoint for one in idp.requests()] == ["openid_configuration", "jwks"]


@pytest.mark.spec("JWKS-single-flight")
async def test_a_hundred_callers_share_one_fetch(
    clock: FakeClock, idp: MockIdP
) -> None:
    validator = remote(idp, clock)
    texts = [issued(idp, clock, jti=f"j{number}") for number in range(100)]
    done: list[object] = []

    async def call(text: str) -> None:
        done.append(await validator.validate(text))

    async with anyio.create_task_group() as group:
        for text in texts:
            group.start_soon(call, text)

    assert len(done) == 100
    assert len(idp.requests()) == 2


async def test_the_key_set_may_be_named_where_metadata_lack_it(
    clock: FakeClock, idp: MockIdP
) -> None:
    validator = remote(idp, clock, jwks_uri=f"{idp.issuer}/jwks")

    assert await accepts(validator, issued(idp, clock))

    assert [one.endpoint for one in idp.requests()] == ["jwks"]


@pytest.mark.spec("Core-10.1.1-unknown")
@pytest.mark.spec("Core-10.1.1-badsig")
@pytest.mark.parametrize("how", ["overlap", "hard", "same_kid"])
async def test_a_rotation_right_after_the_first_fetch_still_verifies(
    clock: FakeClock, idp: MockIdP, how: str
) -> None:
    validator = remote(idp, clock)
    old = issued(idp, clock)
    await validator.validate(old)
    idp.rotate_keys(how)  # type: ignore[arg-type]  # one of the three

    assert await accepts(validator, issued(idp, clock))

    assert asked(idp) == 2
    if how == "overlap":
        assert await accepts(validator, old)


@pytest.mark.spec("Core-10.1.1-cooldown")
@pytest.mark.parametrize("what", ["kid", "signature"])
async def test_a_storm_of_made_up_tokens_makes_no_storm_of_fetches(
    clock: FakeClock, idp: MockIdP, what: str
) -> None:
    """Two at once, then one in 30 s; who has a good token never waits for them."""
    validator = remote(idp, clock)
    good = issued(idp, clock)
    await validator.validate(good)
    first = asked(idp)

    async def storm(count: int) -> None:
        for number in range(count):
            kid = f"k{number}" if what == "kid" else idp.current_key().kid
            forged = bearer(clock, key=OTHER_KEY, header={"kid": kid}, iss=idp.issuer)
            await refusal(validator, forged)

    await storm(1_000)
    assert asked(idp) - first == 2
    await clock.advance(29)
    await storm(5)
    assert asked(idp) - first == 2
    await clock.advance(1)
    await storm(5)
    assert asked(idp) - first == 3
    assert await accepts(validator, good)


@pytest.mark.spec("JWKS-stale")
async def test_an_outage_after_the_first_fetch_keeps_known_keys(
    clock: FakeClock, idp: MockIdP
) -> None:
    validator = remote(idp, clock)
    await validator.validate(issued(idp, clock))
    idp.fail_next("jwks", status=503, count=None)
    known = idp.current_key()
    new = idp.rotate_keys("hard")

    error = await refusal(validator, issued(idp, clock))
    await clock.advance(HOUR)
    late = bearer(clock, key=known, iss=idp.issuer)

    assert error.reason is RejectionReason.UNKNOWN_KEY
    assert isinstance(error.__cause__, RetryableError)
    assert error.__cause__.status == 503
    assert await accepts(validator, late)
    idp.clear_faults()
    await clock.advance(60)
    assert await accepts(validator, bearer(clock, key=new, iss=idp.issuer))


async def test_an_outage_before_the_first_fetch_is_no_refusal(
    clock: FakeClock, idp: MockIdP
) -> None:
    """Answer 503: nothing is said of the token."""
    validator = remote(idp, clock)
    token = issued(idp, clock)
    idp.refuse_next("jwks", count=None)
    caught: list[Exception] = []

    async def call() -> None:
        try:
            await validator.validate(token)
        except RetryableError as error:
            caught.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await clock.settle()
        while not caught:
            await clock.advance(0.1)
    requests = len(idp.requests())
    with pytest.raises(TransportError) as again:
        await validator.validate(token)

    assert isinstance(caught[0], TransportError)
    assert caught[0].issuer == again.value.issuer == idp.issuer
    assert again.value.retry_after
    assert len(idp.requests()) == requests
    assert_silent(caught[0], token)
    assert_silent(again.value, token)
    idp.clear_faults()
    await clock.advance(60)
    assert await accepts(validator, token)


@pytest.mark.parametrize("first", [True, False])
async def test_a_token_that_ends_while_keys_are_fetched_is_refused(
    clock: FakeClock, idp: MockIdP, *, first: bool
) -> None:
    validator = remote(idp, clock, leeway=0)
    if not first:
        await validator.validate(issued(idp, clock))
        idp.rotate_keys("hard")
    token = issued(idp, clock, exp=clock.time() + 2)
    fault = idp.hold_next("jwks")
    reasons: list[RejectionReason] = []

    async def call() -> None:
        reasons.append(await reason(validator, token))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await clock.settle()
        await clock.advance(2)
        assert reasons == []
        fault.release()

    assert reasons == [RejectionReason.EXPIRED]


@pytest.mark.spec("7515-4.1.1-allow")
async def test_a_token_in_another_algorithm_asks_nobody_for_keys(
    clock: FakeClock, idp: MockIdP
) -> None:
    """During an outage it is refused all the same."""
    validator = remote(idp, clock, algorithms="RS256")

    assert await reason(validator, issued(idp, clock)) is RejectionReason.ALGORITHM

    assert not idp.requests()


@pytest.mark.spec("JWKS-absent")
async def test_metadata_without_a_key_set_are_a_setting_to_mend(
    clock: FakeClock, idp: MockIdP
) -> None:
    idp.metadata_overrides["jwks_uri"] = None
    token = issued(idp, clock)

    with pytest.raises(MisconfiguredError) as caught:
        await remote(idp, clock).validate(token)

    assert caught.value.setting == "jwks_uri"
    assert_silent(caught.value, token)


async def test_metadata_of_another_issuer_are_refused(
    clock: FakeClock, idp: MockIdP
) -> None:
    idp.metadata_overrides["issuer"] = "https://evil.test"

    with pytest.raises(IssuerMismatchError):
        await remote(idp, clock).validate(issued(idp, clock))


@pytest.mark.spec("7517-5")
async def test_odd_keys_in_the_set_do_not_spoil_the_rest(
    clock: FakeClock, idp: MockIdP
) -> None:
    idp.extra_keys = [{"kty": "AKP"}, "text", {"kty": "oct", "k": "AAAA"}]

    assert await accepts(remote(idp, clock), issued(idp, clock))


@pytest.mark.spec("7515-4.1.2-4")
async def test_no_address_and_no_key_in_a_token_is_ever_used(
    clock: FakeClock, idp: MockIdP
) -> None:
    validator = remote(idp, clock)
    evil = make_idp(clock, "https://evil.test")
    client = both(idp, evil)
    validator = remote(idp, clock, http_client=client)
    header = {
        "kid": OTHER_KEY.kid,
        "jku": f"{evil.issuer}/jwks",
        "x5u": f"{evil.issuer}/cert.pem",
        "jwk": OTHER_KEY.public_jwk(),
        "x5c": ["AAAA"],
    }
    evil.extra_keys = [OTHER_KEY.public_jwk()]

    forged = bearer(clock, key=OTHER_KEY, header=header, iss=idp.issuer)

    assert await reason(validator, forged) is RejectionReason.UNKNOWN_KEY
    assert not evil.requests()


# Several issuers


@pytest.mark.spec("RS-multi-issuer")
async def test_an_issuer_that_was_not_named_is_asked_for_nothing(
    clock: FakeClock, idp: MockIdP
) -> None:
    evil = make_idp(clock, "https://evil.test")
    validator = remote(idp, clock, http_client=both(idp, evil))

    error = await refusal(validator, issued(evil, clock))

    assert (error.reason, error.claim) == (RejectionReason.INVALID_CLAIM, "iss")
    assert not idp.requests()
    assert not evil.requests()


@pytest.mark.spec("JWKS-issuer")
@pytest.mark.spec("RS-multi-issuer")
async def test_the_keys_of_one_issuer_never_verify_tokens_of_another(
    clock: FakeClock, idp: MockIdP
) -> None:
    other = make_idp(clock, "https://other.test")
    other.rotate_keys("hard")
    validator = remote(
        idp, clock, issuer=[idp.issuer, other.issuer], http_client=both(idp, other)
    )
    assert (await validator.validate(issued(idp, clock))).issuer == idp.issuer
    assert (await validator.validate(issued(other, clock))).issuer == other.issuer

    crossed = bearer(clock, key=other.current_key(), iss=idp.issuer)
    renamed = bearer(
        clock,
        key=other.current_key(),
        iss=idp.issuer,
        header={"kid": idp.current_key().kid},
    )

    assert await reason(validator, crossed) is RejectionReason.UNKNOWN_KEY
    assert await reason(validator, renamed) is RejectionReason.SIGNATURE


async def test_an_issuer_that_is_down_takes_no_other_with_it(
    clock: FakeClock, idp: MockIdP
) -> None:
    other = make_idp(clock, "https://other.test")
    validator = remote(
        idp, clock, issuer=(idp.issuer, other.issuer), http_client=both(idp, other)
    )
    idp.fail_next("jwks", status=404, count=None)

    with pytest.raises(MisconfiguredError):
        await validator.validate(issued(idp, clock))

    assert await accepts(validator, issued(other, clock))


@pytest.mark.spec("Core-10.1-kid-single")
async def test_a_token_without_kid_is_verified_by_the_one_key_that_fits(
    clock: FakeClock, idp: MockIdP
) -> None:
    validator = remote(idp, clock)
    claims = claims_at(clock, iss=idp.issuer)
    header = {"alg": "ES256", "typ": "at+jwt"}

    assert await accepts(validator, compact_jws(header, claims, idp.current_key()))


# Event loops


def run_on_asyncio(validator: JWTValidator, token: str) -> None:
    asyncio.run(validate(validator, token))


def run_on_trio(validator: JWTValidator, token: str) -> None:
    trio.run(validate, validator, token)


async def validate(validator: JWTValidator, token: str) -> None:
    await validator.validate(token)


RUNS = pytest.mark.parametrize("run", [run_on_asyncio, run_on_trio])


@RUNS
def test_a_client_of_the_caller_serves_one_event_loop(
    clock: FakeClock, idp: MockIdP, run: Callable[[JWTValidator, str], None]
) -> None:
    """Tokens that need nothing fetched are validated in every one."""
    validator = remote(idp, clock)
    token = issued(idp, clock)
    run(validator, token)
    gc.collect()

    run(validator, issued(idp, clock, jti="another"))
    unknown = bearer(clock, key=OTHER_KEY, iss=idp.issuer)
    with pytest.raises(MisconfiguredError) as caught:
        run(validator, unknown)
    await_due = issued(idp, clock, exp=clock.time() + DAY)
    asyncio.run(clock.advance(HOUR))
    with pytest.raises(MisconfiguredError) as due:
        run(validator, await_due)

    assert caught.value.setting == due.value.setting == "http_client"
    assert_silent(caught.value, unknown)
    assert_silent(due.value, await_due)


@pytest.mark.loopback
@RUNS
def test_a_validator_is_used_in_one_event_loop_after_the_other(
    run: Callable[[JWTValidator, str], None],
) -> None:
    """Each gets an HTTP client of its own, which goes with it."""
    idp = MockIdP(access_token_format="jwt")
    with idp.serve_in_thread() as issuer:
        validator = JWTValidator(issuer, audience=issuer)

        for expected in (1, 2, 3):
            run(validator, idp.new_grant().access_token)
            assert asked(idp) == expected
            idp.rotate_keys("hard")

        gc.collect()
        assert len(validator._keys._drivers) == 0


@RUNS
def test_an_event_loop_that_ended_is_not_kept(
    clock: FakeClock, run: Callable[[JWTValidator, str], None]
) -> None:
    validator = JWTValidator("https://idp.test", audience=API, clock=clock)

    async def look() -> None:
        assert validator._keys.driver() is validator._keys.driver()
        assert len(validator._keys._drivers) == 1

    if run is run_on_trio:
        trio.run(look)
    else:
        asyncio.run(look())
    gc.collect()

    assert len(validator._keys._drivers) == 0


def test_keys_by_hand_need_no_event_loop(clock: FakeClock) -> None:
    validator = local(clock)

    assert validator.validate_now(bearer(clock)).issuer
    with pytest.raises(TokenRejectedError):
        validator.validate_now(bearer(clock, key=OTHER_KEY, header={"kid": KEY.kid}))

"""A token that was accepted costs no second signature, as long as nothing changes."""

from __future__ import annotations

import sys
import threading

import pytest

from freshtoken import JWTValidator, RejectionReason, Secret
from freshtoken import validator as module
from freshtoken._protocol.jwks import verify_jwt
from freshtoken.errors import TokenRejectedError
from freshtoken.testing import FakeClock, MockIdP
from tests.surfaces.access_tokens import (
    GONE,
    KEY,
    LEEWAY,
    OTHER_KEY,
    Anything,
    accepts,
    bearer,
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
    server = MockIdP(clock=clock)
    server.signing_alg = "ES256"
    return server


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every signature that is verified leaves a mark."""
    marks: list[str] = []

    def verify(*args: Anything, **options: Anything) -> object:
        marks.append("verified")
        return verify_jwt(*args, **options)

    monkeypatch.setattr(module, "verify_jwt", verify)
    return marks


def remembered(validator: JWTValidator) -> int:
    return len(validator._verdicts)


async def test_the_second_look_verifies_no_signature(
    clock: FakeClock, verified: list[str]
) -> None:
    validator = local(clock)
    token = bearer(clock)

    first = await validator.validate(token)
    again = [
        await validator.validate(Secret(token), scope="read"),
        validator.validate_now(token),
        await validator.authenticate(f"Bearer {token}"),
    ]

    assert all(one is first for one in again)
    assert len(verified) == 1


async def test_a_token_that_differs_in_one_character_is_another(
    clock: FakeClock,
) -> None:
    validator = local(clock)
    token = bearer(clock)
    await validator.validate(token)
    changed = token[:-10] + ("A" if token[-10] != "A" else "B") + token[-9:]

    assert await reason(validator, changed) is RejectionReason.SIGNATURE
    assert await reason(validator, f"{token}=") is RejectionReason.MALFORMED


async def test_a_refusal_is_looked_into_each_time(
    clock: FakeClock, verified: list[str]
) -> None:
    validator = local(clock)
    forged = bearer(clock, key=OTHER_KEY, header={"kid": KEY.kid})

    for _ in range(3):
        await refusal(validator, forged)

    assert len(verified) == 3
    assert remembered(validator) == 0


async def test_a_token_without_its_scope_is_remembered_all_the_same(
    clock: FakeClock, verified: list[str]
) -> None:
    """It is good; what it is asked for is another matter, and asked each time."""
    validator = local(clock)
    token = bearer(clock)

    await refusal(validator, token, scope="admin")
    await validator.validate(token, scope="read")
    error = await refusal(validator, token, scope="admin")

    assert error.reason is RejectionReason.INSUFFICIENT_SCOPE
    assert len(verified) == 1


async def test_an_accepted_token_ends_with_its_time(
    clock: FakeClock, verified: list[str]
) -> None:
    validator = local(clock)
    token = bearer(clock, exp=clock.time() + 60)
    await validator.validate(token)

    await clock.advance(60 + LEEWAY - 1)
    assert await accepts(validator, token)
    assert len(verified) == 1
    await clock.advance(1)

    assert await reason(validator, token) is RejectionReason.EXPIRED
    assert remembered(validator) == 0


@pytest.mark.parametrize("form", [int, float])
@pytest.mark.parametrize("claim", ["nbf", "iat"])
async def test_a_clock_that_is_set_back_makes_a_token_one_of_the_future(
    clock: FakeClock, verified: list[str], claim: str, form: type[int | float]
) -> None:
    """Numbers of either form are dates."""
    validator = local(clock)
    times: dict[str, Anything] = {"iat": form(clock.time() - 500)}
    times[claim] = form(clock.time())
    token = bearer(clock, **times)
    await validator.validate(token)

    clock.shift_wall(-LEEWAY)
    assert await accepts(validator, token)
    clock.shift_wall(-1)
    assert await reason(validator, token) is RejectionReason.NOT_YET_VALID
    clock.shift_wall(LEEWAY + 1)

    assert await accepts(validator, token)
    assert len(verified) == 2


async def test_a_token_without_any_beginning_holds_from_the_start(
    clock: FakeClock, verified: list[str]
) -> None:
    validator = local(clock, profile="any")
    token = bearer(clock, iat=GONE)

    await validator.validate(token)
    clock.shift_wall(-HOUR)
    await validator.validate(token)

    assert len(verified) == 1


async def test_another_key_set_ends_what_the_old_one_said(
    clock: FakeClock, idp: MockIdP
) -> None:
    validator = remote(idp, clock)
    old = issued(idp, clock)
    await validator.validate(old)
    idp.rotate_keys("hard")

    assert await accepts(validator, old)  # Nobody has seen the new set yet.
    assert await accepts(validator, issued(idp, clock))

    assert await reason(validator, old) is RejectionReason.UNKNOWN_KEY


async def test_a_key_set_that_is_due_is_looked_at_again_before_a_token_is_served(
    clock: FakeClock, idp: MockIdP
) -> None:
    validator = remote(idp, clock)
    token = issued(idp, clock, exp=clock.time() + DAY)
    await validator.validate(token)
    idp.rotate_keys("hard")

    await clock.advance(HOUR - 1)
    assert await accepts(validator, token)
    assert len(idp.requests("jwks")) == 1
    await clock.advance(1)

    assert await reason(validator, token) is RejectionReason.UNKNOWN_KEY


async def test_the_same_key_set_fetched_again_leaves_what_was_accepted(
    clock: FakeClock, idp: MockIdP, verified: list[str]
) -> None:
    validator = remote(idp, clock)
    token = issued(idp, clock, exp=clock.time() + DAY)
    await validator.validate(token)

    await clock.advance(HOUR)
    await validator.validate(token)
    await validator.validate(token)
    await validator.validate(token)

    assert len(idp.requests("jwks")) == 2
    assert len(verified) == 2  # The look at the key set was one at the token, too.


async def test_an_outage_of_the_key_set_does_not_touch_tokens_that_are_known(
    clock: FakeClock, idp: MockIdP, verified: list[str]
) -> None:
    validator = remote(idp, clock)
    token = issued(idp, clock, exp=clock.time() + 2 * DAY)
    await validator.validate(token)
    idp.fail_next("jwks", status=503, count=None)

    await clock.advance(HOUR)
    for _ in range(5):
        await validator.validate(token)

    assert len(idp.requests("jwks")) == 2
    assert len(verified) == 2


async def test_only_so_many_tokens_are_remembered(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, verified: list[str]
) -> None:
    """The oldest goes first."""
    monkeypatch.setattr(module, "MOST_VERDICTS", 3)
    validator = local(clock)
    texts = [bearer(clock, jti=f"j{number}") for number in range(4)]

    for text in texts:
        await validator.validate(text)

    assert remembered(validator) == 3
    await validator.validate(texts[1])
    assert len(verified) == 4
    await validator.validate(texts[0])
    assert len(verified) == 5
    assert remembered(validator) == 3


def test_the_bound_is_that_of_the_design() -> None:
    assert module.MOST_VERDICTS == 10_000


async def test_the_token_itself_is_not_kept(clock: FakeClock) -> None:
    validator = local(clock)
    token = bearer(clock)
    before = sys.getrefcount(token)

    await validator.validate(token)
    validator.validate_now(Secret(token))

    assert sys.getrefcount(token) == before
    assert [len(digest) for digest in validator._verdicts] == [32]


def test_many_threads_share_a_validator(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_VERDICTS", 2)
    validator = local(clock)
    texts = [bearer(clock, jti=f"j{number}") for number in range(8)]
    wrong = bearer(clock, key=OTHER_KEY, header={"kid": KEY.kid})
    done: list[str] = []

    def work() -> None:
        for text in texts * 5:
            done.append(validator.validate_now(text).claims["jti"])  # type: ignore[arg-type]  # text
            with pytest.raises(TokenRejectedError):
                validator.validate_now(wrong)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(done) == 160
    assert remembered(validator) == 2

"""Users sign in: once, in the browser that began it, on whichever worker."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import anyio
import pytest

from freshtoken import (
    AccessDeniedError,
    AuthorizationResponseError,
    ClientRejectedError,
    FreshTokenError,
    MemoryStore,
    MisconfiguredError,
    RejectionReason,
    RetryableError,
    Secret,
    Session,
    SignIn,
    SignInRequiredError,
    StoreError,
    TokenManager,
    TokenRejectedError,
    TransportError,
)
from freshtoken._protocol.authorization import state_key
from freshtoken.events import (
    Event,
    IDTokenRefused,
    SessionEnded,
    SignedIn,
    SignInFailed,
)
from freshtoken.testing import DEFAULT_REDIRECT_URI, FakeClock, MockIdP, signing_key
from freshtoken.testing.browser import CallbackForm
from freshtoken.testing.key_ring import KeyRotation
from tests.lifecycle.signing import begun_at, came_back, changed, parameters, refused

MakeManager = Callable[..., TokenManager]


# What the browser is sent away with


@pytest.mark.spec("6749-4.1.1")
@pytest.mark.spec("9700-2.1.1-pkce")
@pytest.mark.spec("Core-3.1.2.1-nonce")
async def test_browser_is_sent_away_with_state_nonce_and_a_challenge(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        sign_in = await tokens.begin_sign_in(
            scope="openid offline_access",
            max_age=0,
            login_hint="bob",
            resource=["https://a.test", "https://b.test"],
            extra={"audience": "x"},
        )

    asked = parse_qs(urlsplit(sign_in.url).query)
    assert sign_in.url.startswith(idp.url("authorize") + "?")
    assert asked["response_type"] == ["code"]
    assert asked["redirect_uri"] == [DEFAULT_REDIRECT_URI]
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["max_age"] == ["0"]
    assert asked["prompt"] == ["consent"]
    assert asked["resource"] == ["https://a.test", "https://b.test"]
    assert asked["audience"] == ["x"]
    assert len({*asked["state"], *asked["nonce"], *asked["code_challenge"]}) == 3


async def test_what_waits_in_the_store_names_neither_state_nor_binding(
    manager: TokenManager, store: MemoryStore
) -> None:
    async with manager as tokens:
        sign_in = await tokens.begin_sign_in(scope="openid")

    state = parameters(sign_in.url)["state"]
    record = (await store.read(state_key(state))).record
    assert sign_in.key == state_key(state)
    assert state not in sign_in.key
    assert record is not None
    assert record.sign_in is not None
    assert sign_in.binding.reveal() not in str(dict(record.sign_in))
    assert sign_in.binding.reveal() not in repr(record) + repr(sign_in)


async def test_a_manager_without_redirect_uri_cannot_begin(
    make_manager: MakeManager, idp: MockIdP
) -> None:
    async with make_manager(client=idp.client(redirect_uri=None)) as tokens:
        with pytest.raises(MisconfiguredError) as caught:
            await tokens.begin_sign_in(scope="openid")

    assert caught.value.setting == "redirect_uri"


# What comes of it


@pytest.mark.spec("Core-3.1.3.5")
async def test_session_has_claims_a_handle_and_a_token_at_once(
    manager: TokenManager, idp: MockIdP, events: list[Event]
) -> None:
    async with manager as tokens:
        session = await idp.sign_in(
            tokens, scope="openid email offline_access", return_to="/orders"
        )
        token = await tokens.get_token(session.id)
        again = await tokens.get_session(session.id)

    assert session.claims["sub"] == "alice"
    assert session.claims["email"] == "alice@example.com"
    assert session.return_to == "/orders"
    assert idp.is_active(token.reveal())
    assert [record.grant_type for record in idp.requests("token")] == [
        "authorization_code"
    ]
    assert again.claims == session.claims
    assert (again.handle, again.return_to) == (None, None)
    assert [e.session_id for e in events if isinstance(e, SignedIn)] == [session.id]


@pytest.mark.spec("8707-2-b")
async def test_a_refresh_asks_for_the_resources_of_the_sign_in(
    manager: TokenManager, idp: MockIdP, store: MemoryStore, clock: FakeClock
) -> None:
    """Some servers would else issue it for another audience; one may be chosen."""
    both = ["https://a.test", "https://b.test"]
    async with manager as tokens:
        session = await idp.sign_in(
            tokens, scope="openid offline_access", resource=both
        )
        first = await tokens.get_token(session.id)
        await clock.advance(1)

        await tokens.get_token(session.id, rejected=first)
        await tokens.get_token(session.id, resource="https://b.test")
        record = (await store.read(session.id)).record

    asked = [request.form["resource"] for request in idp.requests("token")]
    assert asked == ["https://a.test", "https://a.test", "https://b.test"]
    assert record is not None
    assert record.resource == tuple(both)


async def test_id_is_the_hash_of_the_handle_and_opens_nothing(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        session = await idp.sign_in(tokens)
        assert session.handle is not None
        handle = session.handle.reveal()

        found = await tokens.get_session(handle=handle)

        with pytest.raises(SignInRequiredError) as caught:
            await tokens.get_session(handle=session.id)
    assert found.id == session.id == hashlib.sha256(handle.encode()).hexdigest()
    assert caught.value.reason == "unknown_session"
    assert handle not in repr(session)


async def test_session_begun_on_one_worker_is_completed_on_another(
    make_manager: MakeManager, idp: MockIdP
) -> None:
    async with make_manager() as one, make_manager() as other:
        sign_in = await one.begin_sign_in(scope="openid offline_access")
        callback = await idp.browse(sign_in.url)

        session = await other.complete_sign_in(callback, binding=sign_in.binding)

        assert (await one.get_session(session.id)).claims["sub"] == "alice"
        assert (await one.get_token(session.id)).reveal()


async def test_several_tabs_sign_in_at_the_same_time(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        tabs = [await tokens.begin_sign_in(scope="openid") for _ in range(3)]
        callbacks = [await idp.browse(tab.url) for tab in tabs]

        sessions = [
            await tokens.complete_sign_in(callback, binding=tab.binding)
            for tab, callback in reversed(list(zip(tabs, callbacks, strict=True)))
        ]

    assert len({session.id for session in sessions}) == 3


@pytest.mark.parametrize("shape", ["url", "path", "query", "mapping", "pairs"])
async def test_answer_may_come_in_any_shape(
    manager: TokenManager, idp: MockIdP, shape: str
) -> None:
    async with manager as tokens:
        sign_in = await tokens.begin_sign_in(scope="openid")
        url = await idp.browse(sign_in.url)
        assert isinstance(url, str)
        parts = urlsplit(url)
        shapes: dict[str, Any] = {
            # A proxy rewrites all but path and query.
            "url": url.replace("https://app.test", "http://10.0.0.7:8000"),
            "path": f"{parts.path}?{parts.query}",
            "query": parts.query,
            "mapping": dict(parse_qsl(parts.query)),
            "pairs": parse_qsl(parts.query),
        }

        session = await tokens.complete_sign_in(
            shapes[shape], binding=sign_in.binding.reveal()
        )

    assert session.claims["sub"] == "alice"


@pytest.mark.spec("FormPost-2")
async def test_answer_by_form_post_comes_as_a_form(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        sign_in = await tokens.begin_sign_in(scope="openid", response_mode="form_post")
        form = await idp.browse(sign_in.url)
        assert isinstance(form, CallbackForm)

        session = await tokens.complete_sign_in(form, binding=sign_in.binding)

        other = await tokens.begin_sign_in(scope="openid", response_mode="form_post")
        form = await idp.browse(other.url)
        assert isinstance(form, CallbackForm)
        await refused(tokens, urlencode(form.pairs), other, "response_mode")
    assert session.claims["sub"] == "alice"


async def test_plain_oauth_sign_in_keeps_no_claims_and_no_id_token(
    manager: TokenManager, idp: MockIdP, store: MemoryStore
) -> None:
    idp.token_members = {"id_token": "not.a.token"}

    async with manager as tokens:
        session = await idp.sign_in(tokens, scope="orders.read")

    record = (await store.read(session.id)).record
    assert record is not None
    assert session.claims == {}
    assert record.id_token is None
    assert idp.requests("jwks") == []


# Once, in the same browser, in time


@pytest.mark.spec("9700-4.2.4")
@pytest.mark.spec("9700-2.1-state")
async def test_answer_is_used_once_and_its_code_sent_once(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        await tokens.complete_sign_in(callback, binding=sign_in.binding)

        await refused(tokens, callback, sign_in, "unknown_state")

    assert len(idp.requests("token")) == 1


async def test_of_two_workers_with_one_answer_one_wins(
    make_manager: MakeManager, idp: MockIdP
) -> None:
    outcomes: list[object] = []

    async def complete(tokens: TokenManager) -> None:
        try:
            outcomes.append(
                await tokens.complete_sign_in(callback, binding=sign_in.binding)
            )
        except FreshTokenError as error:
            outcomes.append(error)

    async with make_manager() as one, make_manager() as other:
        sign_in, callback = await begun_at(idp, one)
        async with anyio.create_task_group() as group:
            group.start_soon(complete, one)
            group.start_soon(complete, other)

    assert sum(isinstance(outcome, Session) for outcome in outcomes) == 1
    assert len(idp.requests("token")) == 1


async def test_another_browser_can_neither_use_nor_burn_a_sign_in(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        for binding in ("", "x" * 43, Secret("å"), sign_in.binding.reveal()[:-1]):
            await refused(tokens, callback, sign_in, "binding", binding=binding)

        session = await tokens.complete_sign_in(callback, binding=sign_in.binding)

    assert session.claims["sub"] == "alice"


@pytest.mark.spec("TX-expiry")
@pytest.mark.parametrize(("waited", "good"), [(599.0, True), (600.0, False)])
async def test_sign_in_has_ten_minutes(
    manager: TokenManager,
    idp: MockIdP,
    clock: FakeClock,
    *,
    waited: float,
    good: bool,
) -> None:
    async with manager as tokens:
        sign_in = await tokens.begin_sign_in(scope="openid")
        await clock.advance(waited)
        callback = await came_back(idp, sign_in)

        if good:
            await tokens.complete_sign_in(callback, binding=sign_in.binding)
        else:
            await refused(tokens, callback, sign_in, "unknown_state")
    assert len(idp.requests("token")) == int(good)


async def test_a_wall_clock_set_forward_ends_a_sign_in_too(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        clock.shift_wall(600.0)

        await refused(tokens, callback, sign_in, "unknown_state")


async def test_sign_in_of_another_client_is_unknown(
    make_manager: MakeManager, idp: MockIdP
) -> None:
    idp.add_client("other", client_secret="x" * 40)

    async with (
        make_manager() as mine,
        make_manager(client=idp.client(client_id="other")) as others,
    ):
        sign_in, callback = await begun_at(idp, mine)
        await refused(others, callback, sign_in, "unknown_state")


async def test_memory_keeps_the_newest_10000_and_no_session_gives_way(
    manager: TokenManager, idp: MockIdP, store: MemoryStore
) -> None:
    async with manager as tokens:
        session = await idp.sign_in(tokens)
        first = await tokens.begin_sign_in(scope="openid")
        for _ in range(10_000):
            await tokens.begin_sign_in(scope="openid")

        assert (await store.read(first.key)).record is None
        assert (await tokens.get_session(session.id)).id == session.id
        assert len(store) == 1


async def test_a_sign_in_under_way_is_no_session(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        for call in (tokens.get_session, tokens.get_token):
            with pytest.raises(SignInRequiredError) as caught:
                await call(sign_in.key)
            assert caught.value.reason == "unknown_session"
        await tokens.end_session(sign_in.key)

        await tokens.complete_sign_in(callback, binding=sign_in.binding)


# Answers that do not fit


@pytest.mark.spec("9207-2.4-a")
@pytest.mark.spec("9207-2.4-d")
@pytest.mark.parametrize("error", [None, "access_denied"])
@pytest.mark.parametrize(
    "iss", ["https://evil.test", "https://idp.test/", "https://IDP.test", "", None]
)
async def test_answer_of_another_server_is_refused_before_its_error(
    manager: TokenManager, idp: MockIdP, iss: str | None, error: str | None
) -> None:
    changes: dict[str, Any] = {"remove": ["iss"]} if iss is None else {"iss": iss}
    if error is not None:
        changes["error"] = error
    idp.answer_authorization_with(**changes)

    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        await refused(tokens, callback, sign_in, "issuer")

    assert idp.requests("token") == []


async def test_server_that_does_not_promise_iss_may_leave_it_out(
    manager: TokenManager, idp: MockIdP
) -> None:
    idp.rules.authorization_response_iss = False

    async with manager as tokens:
        assert (await idp.sign_in(tokens)).claims["sub"] == "alice"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"remove": ["code"]}, "missing"),
        ({"code": ""}, "missing"),
        ({"remove": ["state"]}, "missing"),
        ({"state": "x" * 43}, "unknown_state"),
        ({"repeat": ["state"]}, "duplicate"),
        ({"repeat": ["code"]}, "duplicate"),
        ({"repeat": ["iss"]}, "duplicate"),
        ({"id_token": "a.b.c"}, "unexpected"),
        ({"access_token": "at"}, "unexpected"),
        ({"code": "x" * 8193}, "malformed"),
        ({"error": "vendor_thing"}, "error"),
    ],
)
async def test_answer_that_does_not_fit_is_refused_unsent(
    manager: TokenManager, idp: MockIdP, changes: dict[str, Any], reason: str
) -> None:
    idp.answer_authorization_with(**changes)

    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        await refused(tokens, callback, sign_in, reason)

    assert idp.requests("token") == []


@pytest.mark.spec("6749-redirect")
async def test_answer_at_another_path_is_refused(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        elsewhere = callback.replace("/callback?", "/elsewhere?")
        await refused(tokens, elsewhere, sign_in, "redirect_uri")


@pytest.mark.spec("6749-4.1.2.1")
@pytest.mark.spec("Core-3.1.2.6")
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("access_denied", AccessDeniedError),
        ("login_required", SignInRequiredError),
        ("consent_required", SignInRequiredError),
        ("interaction_required", SignInRequiredError),
        ("account_selection_required", SignInRequiredError),
        ("unmet_authentication_requirements", AccessDeniedError),
        ("temporarily_unavailable", RetryableError),
        ("server_error", RetryableError),
        ("invalid_scope", MisconfiguredError),
        ("unauthorized_client", MisconfiguredError),
        ("request_not_supported", MisconfiguredError),
    ],
)
async def test_error_of_the_server_is_typed(
    manager: TokenManager, idp: MockIdP, code: str, kind: type[FreshTokenError]
) -> None:
    idp.answer_authorization_with(
        error=code, error_description="no\r\n<b>" + "x" * 10_000, code="c"
    )

    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        callback = changed(callback, error_description="no\r\n<b>" + "x " * 2_000)
        with pytest.raises(kind) as caught:
            await tokens.complete_sign_in(callback, binding=sign_in.binding)

    error = caught.value
    assert (type(error), idp.requests("token")) == (kind, [])
    assert code in {error.error, error.original_error}
    assert error.error_description is not None
    assert len(error.error_description) <= 501
    assert "\n" not in error.error_description
    if isinstance(error, SignInRequiredError):
        assert (error.cleared, error.reason) == (False, "interaction_required")


async def test_prompt_none_without_a_browser_session_asks_for_interaction(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens, prompt="none")
        with pytest.raises(SignInRequiredError) as caught:
            await tokens.complete_sign_in(callback, binding=sign_in.binding)

    assert caught.value.error == "login_required"


# The code is sent once


@pytest.mark.spec("6749-4.1.2-once")
@pytest.mark.parametrize("fault", ["503", "read", "cut", "garbled"])
async def test_code_that_was_sent_is_never_sent_again(
    manager: TokenManager, idp: MockIdP, fault: str
) -> None:
    queue: dict[str, Callable[[], object]] = {
        "503": lambda: idp.fail_next("token", status=503),
        "read": lambda: idp.drop_next("token", processed=True),
        "cut": lambda: idp.cut_next("token"),
        "garbled": lambda: idp.garble_next("token"),
    }

    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        queue[fault]()
        with pytest.raises(RetryableError):
            await tokens.complete_sign_in(callback, binding=sign_in.binding)
        await refused(tokens, callback, sign_in, "unknown_state")

    assert len(idp.requests("token")) == 1


async def test_code_that_never_left_is_sent_again(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        idp.refuse_next("token", count=3)
        session = await moving(clock, tokens.complete_sign_in, callback, sign_in)

    assert session.claims["sub"] == "alice"
    assert len(idp.requests("token")) == 1


async def test_server_that_cannot_be_reached_is_given_up_after_four_tries(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        refusal = idp.refuse_next("token", count=4)
        with pytest.raises(TransportError) as caught:
            await moving(clock, tokens.complete_sign_in, callback, sign_in)

    assert (refusal.met, caught.value.request_sent) == (4, False)


@pytest.mark.parametrize("error", ["invalid_grant", "invalid_request"])
async def test_code_that_the_server_refuses_signs_nobody_in(
    manager: TokenManager, idp: MockIdP, error: str
) -> None:
    kind = SignInRequiredError if error == "invalid_grant" else MisconfiguredError
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        idp.fail_next("token", error=error)
        with pytest.raises(kind) as caught:
            await tokens.complete_sign_in(callback, binding=sign_in.binding)

    assert caught.value.error == error
    if isinstance(caught.value, SignInRequiredError):
        assert (caught.value.cleared, caught.value.reason) == (False, "code_refused")


async def test_metadata_that_cannot_be_had_do_not_use_the_sign_in_up(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    idp.rules.code_lifetime = 300.0

    async with make_manager() as one, make_manager() as other:
        sign_in, callback = await begun_at(idp, one)
        idp.fail_next("openid_configuration", status=503, count=4)
        with pytest.raises(RetryableError):
            await moving(clock, other.complete_sign_in, callback, sign_in)
        await clock.advance(60.0)

        session = await other.complete_sign_in(callback, binding=sign_in.binding)

    assert session.claims["sub"] == "alice"


async def test_keys_that_cannot_be_had_do_not_use_the_sign_in_up(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    idp.rules.code_lifetime = 300.0

    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        idp.fail_next("jwks", status=503, count=4)
        with pytest.raises(RetryableError):
            await moving(clock, tokens.complete_sign_in, callback, sign_in)
        assert idp.requests("token") == []
        await clock.advance(60.0)

        session = await tokens.complete_sign_in(callback, binding=sign_in.binding)

    assert session.claims["sub"] == "alice"


# What is said of failures


async def test_every_failure_is_an_event_that_says_what_to_do(
    manager: TokenManager, idp: MockIdP, events: list[Event]
) -> None:
    async with manager as tokens:
        with pytest.raises(AuthorizationResponseError):
            await tokens.complete_sign_in("?code=x", binding="y")
        with pytest.raises(MisconfiguredError):
            await tokens.begin_sign_in(scope="openid", max_age=-1)
        sign_in, callback = await begun_at(idp, tokens)
        await refused(tokens, callback, sign_in, "binding", binding="other")
        idp.forge_next_id_token(claims={"aud": "other"})
        with pytest.raises(TokenRejectedError):
            await tokens.complete_sign_in(callback, binding=sign_in.binding)

    failed = [event for event in events if isinstance(event, SignInFailed)]
    assert [(event.error, event.reason) for event in failed] == [
        ("AuthorizationResponseError", "missing"),
        ("MisconfiguredError", None),
        ("AuthorizationResponseError", "binding"),
        ("TokenRejectedError", "invalid_claim"),
    ]
    assert all(event.advice for event in failed)


# The client's credentials


async def test_refused_credentials_end_sign_ins_at_once_and_never_in_a_loop(
    manager: TokenManager, idp: MockIdP, events: list[Event]
) -> None:
    async with manager as tokens:
        kept = await idp.sign_in(tokens)
        sign_in, callback = await begun_at(idp, tokens)
        later, late_callback = await begun_at(idp, tokens)
        idp.fail_next("token", error="invalid_client", status=401)
        with pytest.raises(ClientRejectedError):
            await tokens.complete_sign_in(callback, binding=sign_in.binding)

        with pytest.raises(ClientRejectedError):
            await tokens.begin_sign_in(scope="openid")
        with pytest.raises(ClientRejectedError):
            await tokens.complete_sign_in(late_callback, binding=later.binding)

        assert (await tokens.get_session(kept.id)).id == kept.id
    assert not [event for event in events if isinstance(event, SessionEnded)]
    assert len(idp.requests("token")) == 2


# The ID token


FORGERIES: dict[str, tuple[dict[str, Any], RejectionReason, str | None]] = {
    "iss": (
        {"claims": {"iss": "https://idp.test/"}},
        RejectionReason.INVALID_CLAIM,
        "iss",
    ),
    "aud": ({"claims": {"aud": "other"}}, RejectionReason.INVALID_CLAIM, "aud"),
    "audiences": (
        {"claims": {"aud": ["mock-client", "other"]}},
        RejectionReason.INVALID_CLAIM,
        "aud",
    ),
    "nonce": ({"claims": {"nonce": "x" * 43}}, RejectionReason.NONCE, "nonce"),
    "no nonce": ({"remove": ["nonce"]}, RejectionReason.MISSING_CLAIM, "nonce"),
    "sub": ({"claims": {"sub": ""}}, RejectionReason.INVALID_CLAIM, "sub"),
    "exp": ({"claims": {"exp": 1_700_000_000}}, RejectionReason.EXPIRED, "exp"),
    "iat": ({"claims": {"iat": 1_800_000_400}}, RejectionReason.NOT_YET_VALID, "iat"),
    "at_hash": ({"claims": {"at_hash": "x" * 22}}, RejectionReason.HASH, "at_hash"),
    "none": ({"alg": "none"}, RejectionReason.ALGORITHM, "alg"),
    "HS256": ({"alg": "HS256"}, RejectionReason.ALGORITHM, "alg"),
    "typ": ({"headers": {"typ": "at+jwt"}}, RejectionReason.TYPE, "typ"),
    "signature": ({"break_signature": True}, RejectionReason.SIGNATURE, None),
    "kid": ({"headers": {"kid": "unknown"}}, RejectionReason.UNKNOWN_KEY, "kid"),
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_wrong_id_token_signs_nobody_in_and_its_tokens_are_revoked(
    manager: TokenManager,
    idp: MockIdP,
    store: MemoryStore,
    events: list[Event],
    name: str,
) -> None:
    forgery, reason, claim = FORGERIES[name]
    idp.forge_next_id_token(**forgery)

    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        with pytest.raises(TokenRejectedError) as caught:
            await tokens.complete_sign_in(callback, binding=sign_in.binding)

    assert (caught.value.reason, caught.value.claim) == (reason, claim)
    assert len(store) == 0
    assert [grant.ended_by for grant in idp.ledger.grants.values()] == ["revocation"]
    assert [event.reason for event in events if isinstance(event, IDTokenRefused)] == [
        reason.value
    ]


@pytest.mark.spec("Core-3.1.3.3")
async def test_answer_without_id_token_signs_nobody_in(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        idp.reshape_next("token", remove=["id_token"])
        with pytest.raises(TokenRejectedError) as caught:
            await tokens.complete_sign_in(callback, binding=sign_in.binding)

    assert caught.value.claim == "id_token"
    assert [grant.active for grant in idp.ledger.grants.values()] == [False]


async def test_answer_without_usable_access_token_signs_nobody_in(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        idp.reshape_next("token", merge={"token_type": "mac"})
        with pytest.raises(RetryableError):
            await tokens.complete_sign_in(callback, binding=sign_in.binding)

    assert [grant.active for grant in idp.ledger.grants.values()] == [False]


@pytest.mark.parametrize("how", ["overlap", "hard", "same_kid"])
async def test_keys_rotated_a_moment_ago_verify_after_one_more_fetch(
    manager: TokenManager, idp: MockIdP, how: KeyRotation
) -> None:
    async with manager as tokens:
        await idp.sign_in(tokens)
        idp.rotate_keys(how)

        session = await idp.sign_in(tokens)

    assert session.claims["sub"] == "alice"
    assert len(idp.requests("jwks")) == 2


async def test_key_that_is_not_published_yet_is_refused(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        await idp.sign_in(tokens)
        idp.rotate_keys("hard", publish=False)
        sign_in, callback = await begun_at(idp, tokens)
        with pytest.raises(TokenRejectedError) as caught:
            await tokens.complete_sign_in(callback, binding=sign_in.binding)

    assert caught.value.reason is RejectionReason.UNKNOWN_KEY


async def test_odd_keys_in_the_set_do_no_harm(
    manager: TokenManager, idp: MockIdP
) -> None:
    odd: list[dict[str, Any]] = [
        {"kty": "AKP", "alg": "ML-DSA-65", "pub": "x"},
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "mock-idp-RS256"},
        signing_key("RS256", "enc").public_jwk(use="enc", kid="mock-idp-RS256"),
    ]
    idp.extra_keys.extend(odd)

    async with manager as tokens:
        assert (await idp.sign_in(tokens)).claims["sub"] == "alice"


@pytest.mark.spec("7518-3.6")
@pytest.mark.parametrize(
    "alg",
    [
        *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
        *("ES256", "ES384", "ES512", "EdDSA", "Ed25519", "Ed448"),
        *("HS256", "HS384", "HS512"),
    ],
)
async def test_every_algorithm_signs_in_and_refreshes(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock, alg: str
) -> None:
    idp.add_client("one", client_secret="ü" * 40, id_token_alg=alg)

    async with make_manager(client=idp.client(client_id="one")) as tokens:
        session = await idp.sign_in(tokens)
        await clock.advance(300.0)
        await tokens.get_token(session.id)
        again = await tokens.get_session(session.id)

    assert again.claims["sub"] == "alice"
    assert again.claims["iat"] == int(clock.time())


@pytest.mark.spec("Core-3.1.3.7-8")
async def test_hmac_secret_may_come_from_a_function(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    idp.add_client("one", client_secret="s" * 40, id_token_alg="HS256")
    client = idp.client(client_id="one", client_secret=lambda: "s" * 40)

    async with make_manager(client=client) as tokens:
        session = await idp.sign_in(tokens)
        await clock.advance(300.0)
        await tokens.get_token(session.id)

    assert session.claims["sub"] == "alice"


@pytest.mark.spec("Core-3.1.3.7-13")
async def test_max_age_asks_for_a_recent_authentication(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    browser = idp.browser()
    async with manager as tokens:
        first = await tokens.begin_sign_in(scope="openid")
        await browser.visit(first.url)
        await clock.advance(120.0)
        good = await tokens.begin_sign_in(scope="openid", max_age=0)
        callback = await browser.visit(good.url)
        await tokens.complete_sign_in(callback, binding=good.binding)

        idp.forge_next_id_token(claims={"auth_time": int(clock.time()) - 31})
        stale = await tokens.begin_sign_in(scope="openid", max_age=0)
        callback = await browser.visit(stale.url)
        with pytest.raises(TokenRejectedError) as caught:
            await tokens.complete_sign_in(callback, binding=stale.binding)

    assert caught.value.reason is RejectionReason.AUTHENTICATION_TOO_OLD


# Over an old session


async def test_new_sign_in_of_the_same_user_drops_the_old_session_unrevoked(
    manager: TokenManager, idp: MockIdP, events: list[Event]
) -> None:
    async with manager as tokens:
        old = await idp.sign_in(tokens)
        sign_in, callback = await begun_at(idp, tokens)

        new = await tokens.complete_sign_in(
            callback, binding=sign_in.binding, replaces=old.id
        )

        with pytest.raises(SignInRequiredError) as caught:
            await tokens.get_session(old.id)
        assert (await tokens.get_token(new.id)).reveal()
    assert caught.value.reason == "replaced"
    assert idp.requests("revoke") == []
    assert [e.reason for e in events if isinstance(e, SessionEnded)] == ["replaced"]


async def test_new_sign_in_of_another_user_revokes_the_old_session(
    manager: TokenManager, idp: MockIdP
) -> None:
    idp.add_user("bob")

    async with manager as tokens:
        old = await idp.sign_in(tokens, user="bob")
        sign_in, callback = await begun_at(idp, tokens)
        await tokens.complete_sign_in(
            callback, binding=sign_in.binding, replaces=old.id
        )

    assert not idp.grant(old.id).active


async def test_without_claims_the_old_session_counts_as_another_users(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        old = await idp.sign_in(tokens, scope="orders.read offline_access")
        sign_in, callback = await begun_at(idp, tokens, scope="orders.read")
        await tokens.complete_sign_in(
            callback, binding=sign_in.binding, replaces=old.id
        )

    assert not idp.grant(old.id).active


@pytest.mark.parametrize("replaces", ["unknown", ""])
async def test_an_old_session_that_is_not_there_changes_nothing(
    manager: TokenManager, idp: MockIdP, replaces: str
) -> None:
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        session = await tokens.complete_sign_in(
            callback, binding=sign_in.binding, replaces=replaces
        )

    assert session.claims["sub"] == "alice"


# Arguments


async def test_session_is_asked_for_by_name_or_by_handle(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        session = await idp.sign_in(tokens)
        for name, handle in ((None, None), (session.id, session.handle)):
            with pytest.raises(MisconfiguredError) as caught:
                await tokens.get_session(name, handle=handle)
            assert caught.value.setting == "session_id"


async def test_signing_in_needs_a_manager_that_is_entered(
    manager: TokenManager,
) -> None:
    with pytest.raises(MisconfiguredError):
        await manager.begin_sign_in(scope="openid")
    with pytest.raises(MisconfiguredError):
        await manager.complete_sign_in("?state=x&code=y", binding="z")


async def test_store_that_fails_is_a_store_error(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    class Down(MemoryStore):
        down = False

        async def swap(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 -- any
            if self.down:
                raise OSError
            return await super().swap(*args, **options)

    store = Down(clock=clock)
    async with make_manager(store=store) as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        store.down = True
        with pytest.raises(StoreError):
            await tokens.begin_sign_in(scope="openid")
        with pytest.raises(StoreError):
            await tokens.complete_sign_in(callback, binding=sign_in.binding)
        assert idp.requests("token") == []
        store.down = False

        await tokens.complete_sign_in(callback, binding=sign_in.binding)


async def test_session_whose_acknowledgements_are_lost_is_there_all_the_same(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    class Silent(MemoryStore):
        async def swap(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 -- any
            result = await super().swap(*args, **options)
            if args[2].tokens:
                raise OSError
            return result

    async with make_manager(store=Silent(clock=clock)) as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        session = await moving(clock, tokens.complete_sign_in, callback, sign_in)

        assert (await tokens.get_session(session.id)).claims["sub"] == "alice"
    assert [grant.active for grant in idp.ledger.grants.values()] == [True]


async def test_session_that_cannot_be_stored_gives_its_tokens_back(
    make_manager: MakeManager, idp: MockIdP, clock: FakeClock
) -> None:
    class Full(MemoryStore):
        async def swap(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 -- any
            if args[2].tokens:
                raise OSError
            return await super().swap(*args, **options)

    store = Full(clock=clock)
    async with make_manager(store=store) as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        with pytest.raises(StoreError):
            await moving(clock, tokens.complete_sign_in, callback, sign_in)

    assert len(store) == 0
    assert [grant.active for grant in idp.ledger.grants.values()] == [False]


async def test_name_of_a_sign_in_under_way_is_taken(
    manager: TokenManager, idp: MockIdP
) -> None:
    async with manager as tokens:
        sign_in, callback = await begun_at(idp, tokens)
        for replace in (False, True):
            with pytest.raises(MisconfiguredError) as caught:
                await tokens.add_session(
                    sign_in.key, refresh_token="rt", replace=replace
                )
            assert caught.value.setting == "session_id"

        await tokens.complete_sign_in(callback, binding=sign_in.binding)


async def test_sign_ins_that_are_over_make_room(
    manager: TokenManager, store: MemoryStore, clock: FakeClock
) -> None:
    async with manager as tokens:
        for _ in range(20):
            await tokens.begin_sign_in(scope="openid")
        await clock.advance(600.0)
        await tokens.begin_sign_in(scope="openid")

    assert len(store._sign_ins) == 1


async def moving(
    clock: FakeClock,
    complete: Callable[..., Awaitable[Session]],
    callback: str,
    sign_in: SignIn,
) -> Session:
    """Complete a sign-in while the clock runs."""
    outcome: list[Session] = []
    problem: list[Exception] = []

    async def work() -> None:
        try:
            outcome.append(await complete(callback, binding=sign_in.binding))
        except FreshTokenError as error:
            problem.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        for _ in range(20):
            await clock.advance(1.0)
    if problem:
        raise problem[0]
    return outcome[0]

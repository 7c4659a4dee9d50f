"""The mock server signs users in, and out."""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from freshtoken.testing import (
    DEFAULT_CLIENT_ID,
    DEFAULT_CLIENT_SECRET,
    DEFAULT_REDIRECT_URI,
    Browser,
    BrowserStoppedError,
    CallbackForm,
    FakeClock,
    MockIdP,
    MockRequest,
    MockResponse,
)
from tests.testing.mock_calls import FORM, basic, get, post, refresh
from tests.testing.mock_sign_in import (
    SmallManager,
    authorization_url,
    authorize,
    brought,
    claims_of,
    exchange,
    tokens_for,
)

START = 1_800_000_000.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def idp(clock: FakeClock) -> MockIdP:
    return MockIdP(clock=clock, rng=random.Random(1))


def refused(answer: MockResponse, error: str = "invalid_grant") -> bool:
    return answer.status == 400 and answer.members()["error"] == error


# -- What is advertised -------------------------------------------------------------


async def test_metadata_describe_the_sign_in(idp: MockIdP) -> None:
    idp.add_client("es", id_token_alg="ES256")

    members = (await get(idp, idp.url("openid_configuration"))).members()

    assert members["authorization_endpoint"] == "https://idp.test/authorize"
    assert members["end_session_endpoint"] == "https://idp.test/end-session"
    assert members["response_modes_supported"] == ["query", "form_post"]
    assert members["code_challenge_methods_supported"] == ["S256"]
    assert members["authorization_response_iss_parameter_supported"] is True
    assert members["id_token_signing_alg_values_supported"] == ["RS256", "ES256"]
    assert "authorization_code" in members["grant_types_supported"]  # type: ignore[operator]  # a list
    assert "email" in members["claims_supported"]  # type: ignore[operator]  # a list


async def test_iss_is_neither_sent_nor_advertised_where_it_is_switched_off(
    idp: MockIdP,
) -> None:
    idp.rules.authorization_response_iss = False

    members = (await get(idp, idp.url("openid_configuration"))).members()
    parameters = await authorize(idp)

    assert "authorization_response_iss_parameter_supported" not in members
    assert parameters.keys() == {"code", "state"}


# -- The way there and back ---------------------------------------------------------


async def test_browser_comes_back_with_code_state_and_issuer(idp: MockIdP) -> None:
    callback = await idp.browse(authorization_url(idp))

    assert str(callback).startswith(f"{DEFAULT_REDIRECT_URI}?")
    parameters = brought(callback)
    assert parameters.keys() == {"code", "state", "iss"}
    assert parameters["state"] == "state-1"
    assert parameters["iss"] == idp.issuer


async def test_without_state_none_comes_back(idp: MockIdP) -> None:
    assert (await authorize(idp, state=None)).keys() == {"code", "iss"}


async def test_query_of_the_redirect_uri_is_kept(idp: MockIdP) -> None:
    callback = await idp.browse(
        authorization_url(idp, redirect_uri="https://app.test/back?tenant=a")
    )

    assert str(callback).startswith("https://app.test/back?tenant=a&code=")


async def test_authorization_request_may_be_posted(idp: MockIdP) -> None:
    query = authorization_url(idp).partition("?")[2]
    request = MockRequest("POST", idp.url("authorize"), (FORM,), query.encode())

    answer = await idp.handle(request)

    assert answer.status == 303
    assert "code" in brought(answer.header("location") or "")


async def test_form_post_is_a_page_that_posts_itself(idp: MockIdP) -> None:
    """Whatever a state contains, it arrives as it is."""
    state = "a\"b<c>&amp;d'é"

    callback = await idp.browse(
        authorization_url(idp, response_mode="form_post", state=state)
    )

    assert isinstance(callback, CallbackForm)
    assert callback.url == DEFAULT_REDIRECT_URI
    assert callback["state"] == state
    assert [name for name, _ in callback.pairs] == ["code", "state", "iss"]
    assert (len(callback), list(callback)) == (3, ["code", "state", "iss"])
    assert callback["code"] not in repr(callback)
    assert (await exchange(idp, callback["code"])).status == 200


async def test_errors_come_by_form_post_as_well(idp: MockIdP) -> None:
    callback = await authorize(idp, response_mode="form_post", prompt="none")

    assert callback["error"] == "login_required"
    assert callback["state"] == "state-1"


async def test_log_shows_the_request_without_its_secrets(idp: MockIdP) -> None:
    await authorize(idp, prompt="login", login_hint="alice")
    await authorize(idp, response_type="token")

    good, bad = idp.requests("authorize", client_id=DEFAULT_CLIENT_ID)

    assert good.query["nonce"] == "nonce-1"
    assert "nonce-1" not in repr(good)
    assert "'login'" in repr(good)
    assert (good.status, good.error) == (303, None)
    assert (bad.status, bad.error) == (303, "unsupported_response_type")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"response_type": None}, "invalid_request"),
        ({"response_type": "code id_token"}, "unsupported_response_type"),
        ({"response_mode": "fragment"}, "invalid_request"),
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"scope": 'a"b'}, "invalid_scope"),
        ({"prompt": "none login"}, "invalid_request"),
        ({"prompt": "create"}, "invalid_request"),
        ({"max_age": "-1"}, "invalid_request"),
        ({"resource": "api"}, "invalid_target"),
        ({"resource": ["https://a.test", "https://b.test/#x"]}, "invalid_target"),
        ({"nonce": ["one", "two"]}, "invalid_request"),
        ({"request": "a.b.c"}, "request_not_supported"),
        ({"request_uri": "urn:x"}, "request_uri_not_supported"),
        ({"login_hint": "nobody"}, "access_denied"),
        ({"prompt": "none"}, "login_required"),
    ],
)
async def test_refusals_are_sent_to_the_client(
    idp: MockIdP, changes: dict[str, Any], error: str
) -> None:
    parameters = await authorize(idp, **changes)

    assert parameters["error"] == error
    assert parameters["error_description"]
    assert (parameters["state"], parameters["iss"]) == ("state-1", idp.issuer)
    assert "code" not in parameters


@pytest.mark.parametrize(
    "changes",
    [
        {"client_id": "nobody"},
        {"client_id": None},
        {"client_id": [DEFAULT_CLIENT_ID, DEFAULT_CLIENT_ID]},
        {"redirect_uri": None},
        {"redirect_uri": "http://app.test/callback"},
        {"redirect_uri": "https://app.test/callback#x"},
        {"redirect_uri": "/callback"},
        {"redirect_uri": [DEFAULT_REDIRECT_URI, "https://evil.test"]},
    ],
)
async def test_unknown_client_or_address_is_never_redirected_to(
    idp: MockIdP, changes: dict[str, Any]
) -> None:
    with pytest.raises(BrowserStoppedError) as met:
        await authorize(idp, **changes)

    assert met.value.status == 400
    assert met.value.title
    assert len(idp.codes) == 0


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("https://web.test/back", True),
        ("https://web.test/back/", False),
        ("https://web.test/back?x=1", False),
        (DEFAULT_REDIRECT_URI, False),
    ],
)
async def test_registered_addresses_are_compared_exactly(
    idp: MockIdP, uri: str, *, allowed: bool
) -> None:
    idp.add_client("web", redirect_uris=["https://web.test/back"])

    answer = await get(idp, authorization_url(idp, client_id="web", redirect_uri=uri))

    assert (answer.status == 303) == allowed


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:8000/cb", "http://[::1]/cb", "http://localhost:1/cb"]
)
async def test_loopback_addresses_need_no_registration(idp: MockIdP, uri: str) -> None:
    assert (await get(idp, authorization_url(idp, redirect_uri=uri))).status == 303


# -- Users and their browsers -------------------------------------------------------


async def test_second_visit_finds_the_session(idp: MockIdP, clock: FakeClock) -> None:
    first = claims_of((await tokens_for(idp))["id_token"])
    await clock.advance(100)

    second = claims_of((await tokens_for(idp, prompt="none"))["id_token"])

    assert (first["auth_time"], second["auth_time"]) == (START, START)
    assert (second["iat"], second["sid"]) == (START + 100, first["sid"])


async def test_prompt_login_signs_in_again(idp: MockIdP, clock: FakeClock) -> None:
    await tokens_for(idp)
    await clock.advance(100)

    claims = claims_of((await tokens_for(idp, prompt="login"))["id_token"])

    assert claims["auth_time"] == START + 100


@pytest.mark.parametrize("prompt", ["consent", "select_account", "consent login"])
async def test_other_prompts_are_met_at_once(idp: MockIdP, prompt: str) -> None:
    assert "code" in await authorize(idp, prompt=prompt)


@pytest.mark.parametrize(
    ("max_age", "later", "signs_in"),
    [("100", 100, False), ("100", 100.001, True), ("0", 0, True)],
)
async def test_max_age_asks_for_a_sign_in_to_the_tick(
    idp: MockIdP, clock: FakeClock, max_age: str, later: float, *, signs_in: bool
) -> None:
    await authorize(idp)
    await clock.advance(later)

    silent = await authorize(idp, max_age=max_age, prompt="none")

    assert ("error" in silent) == signs_in


async def test_old_sign_in_is_renewed(idp: MockIdP, clock: FakeClock) -> None:
    await authorize(idp)
    await clock.advance(200)

    claims = claims_of((await tokens_for(idp, max_age="100"))["id_token"])

    assert claims["auth_time"] == START + 200


@pytest.mark.parametrize("hint", ["bob", "bob@example.com", "bobby"])
async def test_login_hint_picks_the_user(idp: MockIdP, hint: str) -> None:
    idp.add_user("bob", email="bob@example.com", preferred_username="bobby")
    await authorize(idp)

    claims = claims_of((await tokens_for(idp, login_hint=hint))["id_token"])

    assert claims["sub"] == "bob"


async def test_silent_sign_in_of_another_user_is_refused(idp: MockIdP) -> None:
    idp.add_user("bob")
    await authorize(idp)

    parameters = await authorize(idp, login_hint="bob", prompt="none")

    assert parameters["error"] == "login_required"


async def test_every_user_has_a_browser(idp: MockIdP) -> None:
    idp.add_user("bob")
    await authorize(idp)

    silent = await authorize(idp, user="bob", prompt="none")
    answer = await exchange(idp, (await authorize(idp, user="bob"))["code"])

    assert silent["error"] == "login_required"
    assert claims_of(str(answer.members()["id_token"]))["sub"] == "bob"


async def test_two_browsers_of_one_user_are_two_sessions(idp: MockIdP) -> None:
    second = Browser(idp, "alice")
    await authorize(idp)

    silent = brought(await second.visit(authorization_url(idp, prompt="none")))
    await second.visit(authorization_url(idp))

    assert silent["error"] == "login_required"
    assert second.cookies["mock-session"] != idp.browser().cookies["mock-session"]
    assert second.cookies["mock-session"] not in repr(second)


async def test_browser_without_any_cookie_is_the_default_users(idp: MockIdP) -> None:
    """As a real browser is, which nobody has told whose it is."""
    idp.add_user("carol")
    idp.default_user = "carol"
    answer = await get(idp, authorization_url(idp))
    code = brought(answer.header("location") or "")["code"]
    cookie = (answer.header("set-cookie") or "").partition(";")[0]

    claims = claims_of(str((await exchange(idp, code)).members()["id_token"]))
    again = await get(idp, authorization_url(idp, prompt="none"), Cookie=cookie)

    assert claims["sub"] == "carol"
    assert "code" in brought(again.header("location") or "")


async def test_signed_out_user_signs_in_again(idp: MockIdP) -> None:
    idp.add_user("bob")
    await authorize(idp)
    await authorize(idp, user="bob")

    idp.sign_out_user("alice")

    assert (await authorize(idp, prompt="none"))["error"] == "login_required"
    assert "code" in await authorize(idp, user="bob", prompt="none")


async def test_other_cookies_do_no_harm(idp: MockIdP) -> None:
    """On 127.0.0.1 a browser sends those of all ports."""
    await authorize(idp)
    ours = idp.browser().cookies["mock-session"]
    url = authorization_url(idp, prompt="none")

    answer = await get(idp, url, Cookie=f'a(b={{"c"}}; x; ;mock-session={ours}')

    assert "code" in brought(answer.header("location") or "")


async def test_dead_cookie_is_no_session(idp: MockIdP) -> None:
    url = authorization_url(idp, prompt="none")

    answer = await get(idp, url, Cookie="mock-session=browser-1-0")

    assert brought(answer.header("location") or "")["error"] == "login_required"


async def test_what_the_server_keeps_shows_no_secret(idp: MockIdP) -> None:
    code = (await authorize(idp))["code"]
    cookie = idp.browser().cookies["mock-session"]
    entry, session = idp.codes.find(code), idp.browser_session(cookie)

    shown = f"{entry!r} {session!r} {idp.codes!r}"

    assert "alice" in shown
    assert "unused" in shown
    assert "1 codes" in shown
    assert code not in shown
    assert cookie not in shown


# -- The exchange -------------------------------------------------------------------


async def test_code_brings_tokens(idp: MockIdP) -> None:
    code = (await authorize(idp, scope="openid email offline_access"))["code"]

    answer = await exchange(idp, code)

    members = answer.members()
    grant = idp.grant(code)
    assert answer.status == 200
    assert members == {
        "access_token": grant.access_token,
        "token_type": "Bearer",
        "expires_in": 300,
        "scope": "openid email offline_access",
        "refresh_token": grant.refresh_token,
        "id_token": grant.id_token,
    }
    assert (grant.subject, grant.client_id) == ("alice", DEFAULT_CLIENT_ID)
    assert idp.grant(str(members["id_token"])) is grant
    assert idp.requests("token")[-1].grant_id == grant.id


async def test_id_token_says_who_when_and_for_whom(idp: MockIdP) -> None:
    members = await tokens_for(idp, scope="openid email", acr_values="gold silver")

    claims = claims_of(members["id_token"])

    sid = claims.pop("sid")
    assert sid
    assert claims.pop("at_hash")
    assert claims == {
        "iss": idp.issuer,
        "sub": "alice",
        "aud": DEFAULT_CLIENT_ID,
        "exp": START + 3600,
        "iat": START,
        "auth_time": START,
        "nonce": "nonce-1",
        "acr": "gold",
        "email": "alice@example.com",
        "email_verified": True,
    }


async def test_claims_follow_the_scope(idp: MockIdP) -> None:
    idp.add_user("bob", name="Bob", email="bob@example.com", tenant="a", sub="evil")
    code = (await authorize(idp, user="bob", scope="openid profile"))["code"]
    members = (await exchange(idp, code)).members()
    bearer = f"Bearer {members['access_token']}"

    userinfo = (await get(idp, idp.url("userinfo"), Authorization=bearer)).members()

    assert userinfo == {"sub": "bob", "name": "Bob", "tenant": "a"}
    id_token = claims_of(str(members["id_token"]))
    assert {name: id_token.get(name) for name in userinfo} == userinfo
    assert "email" not in id_token


async def test_no_id_token_without_openid(idp: MockIdP) -> None:
    assert "id_token" not in await tokens_for(idp, scope="orders")
    assert (await tokens_for(idp, scope=None))["scope"] == "api"


async def test_refresh_token_may_need_offline_access(idp: MockIdP) -> None:
    idp.rules.refresh_token_without_offline_access = False

    without = await tokens_for(idp, scope="openid")
    with_it = await tokens_for(idp, scope="openid offline_access")

    assert "refresh_token" not in without
    assert "refresh_token" in with_it


async def test_code_works_once_and_its_reuse_ends_the_grant(idp: MockIdP) -> None:
    code = (await authorize(idp))["code"]
    first = (await exchange(idp, code)).members()

    second = await exchange(idp, code)

    grant = idp.grant(code)
    assert refused(second)
    assert (grant.active, grant.ended_by) == (False, "code_reuse")
    assert not idp.is_active(str(first["access_token"]))
    assert refused(await refresh(idp, str(first["refresh_token"])))


@pytest.mark.parametrize(("later", "status"), [(59.999, 200), (60.0, 400)])
async def test_code_expires_to_the_tick(
    idp: MockIdP, clock: FakeClock, later: float, status: int
) -> None:
    code = (await authorize(idp))["code"]

    await clock.advance(later)

    assert (await exchange(idp, code)).status == status


@pytest.mark.parametrize(
    "changes",
    [
        {"redirect_uri": "https://app.test/other"},
        {"redirect_uri": ""},
        {"code_verifier": "x" * 43},
        {"code_verifier": "x" * 42},
        {"code_verifier": ""},
    ],
)
async def test_code_is_bound_to_its_request(
    idp: MockIdP, changes: dict[str, str]
) -> None:
    code = (await authorize(idp))["code"]

    answer = await exchange(idp, code, **changes)

    assert refused(answer)
    assert (await exchange(idp, code)).status == 200


async def test_code_is_bound_to_its_client(idp: MockIdP) -> None:
    """Nor can another client end the grant by using the code again."""
    idp.add_client("other", client_secret="secret")
    code = (await authorize(idp))["code"]

    stolen = await exchange(idp, code, basic("other", "secret"))
    await exchange(idp, code)
    again = await exchange(idp, code, basic("other", "secret"))

    assert refused(stolen)
    assert refused(again)
    assert idp.grant(code).active


async def test_code_must_be_there_and_known(idp: MockIdP) -> None:
    assert refused(await exchange(idp, ""), "invalid_request")
    assert refused(await exchange(idp, "code-9"))


async def test_resources_are_those_of_the_authorization_request(idp: MockIdP) -> None:
    idp.rules.access_token_format = "jwt"
    both = ["https://a.test", "https://b.test"]
    members = await tokens_for(idp, resource=both)

    narrow = await refresh(idp, members["refresh_token"], resource="https://b.test")
    wide = await refresh(
        idp, str(narrow.members()["refresh_token"]), resource="https://c.test"
    )

    assert claims_of(members["access_token"])["aud"] == both
    assert claims_of(str(narrow.members()["access_token"]))["aud"] == ["https://b.test"]
    assert refused(wide, "invalid_target")


async def test_refused_resource_does_not_spend_the_code(idp: MockIdP) -> None:
    code = (await authorize(idp, resource="https://a.test"))["code"]

    answer = await exchange(idp, code, resource="https://b.test")

    assert refused(answer, "invalid_target")
    assert (await exchange(idp, code)).status == 200


# -- Refreshed ID tokens ------------------------------------------------------------


async def test_refresh_brings_a_new_id_token_of_the_same_sign_in(
    idp: MockIdP, clock: FakeClock
) -> None:
    first = await tokens_for(idp)
    await clock.advance(250)

    second = (await refresh(idp, first["refresh_token"])).members()

    before, after = claims_of(first["id_token"]), claims_of(str(second["id_token"]))
    same = ("iss", "sub", "aud", "auth_time", "sid", "acr")
    assert [after[name] for name in same] == [before[name] for name in same]
    assert (after["iat"], after["exp"]) == (START + 250, START + 250 + 3600)
    assert after["at_hash"] != before["at_hash"]
    assert "nonce" not in after
    assert idp.grant(first["id_token"]).id_token == second["id_token"]


async def test_refresh_need_not_bring_an_id_token(idp: MockIdP) -> None:
    idp.rules.id_token_on_refresh = False
    members = await tokens_for(idp)

    assert "id_token" not in (await refresh(idp, members["refresh_token"])).members()


async def test_refresh_without_openid_brings_no_id_token(idp: MockIdP) -> None:
    members = await tokens_for(idp, scope="openid orders")

    narrow = await refresh(idp, members["refresh_token"], scope="orders")

    assert "id_token" not in narrow.members()


# -- Logout -------------------------------------------------------------------------


def logout_url(idp: MockIdP, **parameters: str | list[str]) -> str:
    return f"{idp.url('end_session')}?{urlencode(parameters, doseq=True)}"


async def test_logout_ends_the_browser_session_and_its_grants(idp: MockIdP) -> None:
    first, second = await tokens_for(idp), await tokens_for(idp)
    other = brought(await Browser(idp).visit(authorization_url(idp)))["code"]
    await exchange(idp, other)
    url = logout_url(
        idp,
        id_token_hint=first["id_token"],
        post_logout_redirect_uri="https://app.test/bye",
        state="s 1",
    )

    end = await idp.browse(url)

    assert end == "https://app.test/bye?state=s+1"
    for members in (first, second):
        assert idp.grant(members["access_token"]).ended_by == "logout"
        assert refused(await refresh(idp, members["refresh_token"]))
    assert idp.grant(other).active
    assert "mock-session" not in idp.browser().cookies
    assert (await authorize(idp, prompt="none"))["error"] == "login_required"


async def test_logout_reaches_the_session_from_any_browser(idp: MockIdP) -> None:
    members = await tokens_for(idp)

    with pytest.raises(BrowserStoppedError) as met:
        await Browser(idp).visit(logout_url(idp, id_token_hint=members["id_token"]))

    assert (met.value.status, met.value.title) == (200, "signed out")
    assert (await authorize(idp, prompt="none"))["error"] == "login_required"


async def test_expired_hint_will_do(idp: MockIdP, clock: FakeClock) -> None:
    members = await tokens_for(idp)
    await clock.advance(4000)

    answer = await post(idp, "end_session", {"id_token_hint": members["id_token"]})

    assert answer.status == 200
    assert not idp.grant(members["id_token"]).active


async def test_logout_after_the_browser_session_still_ends_the_grants(
    idp: MockIdP,
) -> None:
    members = await tokens_for(idp)
    idp.sign_out_user("alice")
    assert idp.grant(members["id_token"]).active

    await get(idp, logout_url(idp, id_token_hint=members["id_token"]))

    assert idp.grant(members["id_token"]).ended_by == "logout"


async def test_logout_without_hint_goes_by_the_cookie(idp: MockIdP) -> None:
    members = await tokens_for(idp)

    end = await idp.browse(
        logout_url(
            idp,
            client_id=DEFAULT_CLIENT_ID,
            post_logout_redirect_uri="https://app.test/bye",
        )
    )

    assert end == "https://app.test/bye"
    assert idp.grant(members["id_token"]).ended_by == "logout"


async def test_logout_of_nobody_is_a_success(idp: MockIdP) -> None:
    assert (await get(idp, idp.url("end_session"))).status == 200


@pytest.mark.parametrize(
    "changes",
    [
        {"post_logout_redirect_uri": "https://evil.test"},
        {"id_token_hint": "a.b.c"},
        {"client_id": "other"},
        {"state": ["one", "two"]},
    ],
)
async def test_refused_logout_ends_nothing(
    idp: MockIdP, changes: dict[str, str | list[str]]
) -> None:
    idp.add_client(
        DEFAULT_CLIENT_ID,
        client_secret=DEFAULT_CLIENT_SECRET,
        post_logout_redirect_uris=["https://app.test/bye"],
    )
    members = await tokens_for(idp)
    parameters: dict[str, str | list[str]] = {
        "id_token_hint": members["id_token"],
        "post_logout_redirect_uri": "https://app.test/bye",
        **changes,
    }

    with pytest.raises(BrowserStoppedError) as met:
        await idp.browse(logout_url(idp, **parameters))

    assert met.value.status == 400
    assert idp.grant(members["id_token"]).active


async def test_redirect_after_logout_needs_a_client(idp: MockIdP) -> None:
    url = logout_url(idp, post_logout_redirect_uri="https://app.test/bye")

    assert (await get(idp, url)).status == 400


# -- The whole dance ----------------------------------------------------------------


async def test_sign_in_is_one_call(idp: MockIdP) -> None:
    tokens = SmallManager(idp)
    idp.add_user("bob")

    session = await idp.sign_in(tokens, user="bob", scope="openid")

    grant = idp.grant(session.id)
    assert session.members["access_token"] == grant.access_token
    assert (grant.subject, grant.scope) == ("bob", "openid")
    assert tokens.options == {"scope": "openid"}
    assert isinstance(session.callback, str)


async def test_sign_in_by_form_post_hands_the_pairs_on(idp: MockIdP) -> None:
    idp.answer_authorization_with(repeat=["state"])

    session = await idp.sign_in(SmallManager(idp), response_mode="form_post")

    assert not isinstance(session.callback, str)
    names = [name for name, _ in session.callback]
    assert names == ["code", "state", "iss", "state"]
    assert idp.grant(session.id).active


async def test_sign_in_takes_another_browser(idp: MockIdP) -> None:
    browser = Browser(idp, "alice")

    await idp.sign_in(SmallManager(idp), browser=browser)

    assert "mock-session" in browser.cookies
    assert "mock-session" not in idp.browser().cookies


async def test_refused_sign_in_has_no_grant(idp: MockIdP) -> None:
    session = await idp.sign_in(SmallManager(idp), user="nobody")

    with pytest.raises(KeyError):
        idp.grant(session.id)


async def test_page_of_the_server_stops_the_browser(idp: MockIdP) -> None:
    idp.fail_next("authorize", status=503, body="<title>Down &amp; out</title>")

    with pytest.raises(BrowserStoppedError) as met:
        await idp.sign_in(SmallManager(idp))

    assert (met.value.status, met.value.title) == (503, "Down & out")


async def test_browser_follows_redirects_within_the_server_not_for_ever(
    idp: MockIdP,
) -> None:
    """Also to an address without its host."""
    idp.redirect_next("authorize", location="/authorize?again", count=None)

    with pytest.raises(BrowserStoppedError) as met:
        await authorize(idp)

    assert met.value.status == 508
    assert len(idp.requests("authorize")) == 10


async def test_browser_reaches_the_server_through_an_http_client(idp: MockIdP) -> None:
    async with idp.http_client() as http:
        browser = Browser(http, "alice")
        callback = brought(await browser.visit(authorization_url(idp)))
        silent = brought(await browser.visit(authorization_url(idp, prompt="none")))

    assert (await exchange(idp, callback["code"])).status == 200
    assert "code" in silent


@pytest.mark.loopback
async def test_served_server_signs_in_too() -> None:
    idp = MockIdP()
    async with idp.serve() as base_url, httpx.AsyncClient(trust_env=False) as http:
        browser = Browser(http, "alice")
        first = brought(await browser.visit(authorization_url(idp)))
        silent = brought(await browser.visit(authorization_url(idp, prompt="none")))
        inside = brought(await idp.browse(authorization_url(idp)))

        assert (first["iss"], inside["iss"]) == (base_url, base_url)
        assert "code" in silent
        assert (await exchange(idp, first["code"])).status == 200

"""Authorization requests: what is sent, what is kept, and what is refused."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import pickle
import random
import re
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._protocol.authorization import (
    PendingSignIn,
    hash_binding,
    requires_id_token,
    state_key,
)
from freshtoken._protocol.pkce import check_code_verifier, code_challenge
from freshtoken.errors import AuthorizationResponseError, MisconfiguredError
from tests.protocol.helpers import ISSUER, NOW, Anything
from tests.protocol.sign_ins import (
    AUTHORIZATION_ENDPOINT,
    REDIRECT_URI,
    begin,
    pairs_of,
    pending,
    query_of,
)
from tests.protocol.strategies import identifiers, json_values, vschars

RANDOM = re.compile(r"[A-Za-z0-9_-]{43}")


@pytest.mark.spec("6749-4.1.1")
def test_a_request_has_all_that_the_code_flow_needs() -> None:
    request = begin()

    sent = query_of(request.url)
    assert request.url.startswith(f"{AUTHORIZATION_ENDPOINT}?")
    assert sent == {
        "response_type": "code",
        "client_id": "cid-1",
        "redirect_uri": REDIRECT_URI,
        "scope": "openid profile",
        "state": request.pending.state,
        "nonce": request.pending.nonce,
        "code_challenge": code_challenge(request.pending.code_verifier),
        "code_challenge_method": "S256",
    }


def test_what_an_answer_has_to_fit_is_kept() -> None:
    request = begin(
        max_age=60,
        acr_values="gold silver",
        resource="https://api.test",
        response_mode="form_post",
        return_to="/orders?page=2",
    )

    kept = request.pending
    assert (kept.issuer, kept.client_id) == (ISSUER, "cid-1")
    assert kept.redirect_uri == REDIRECT_URI
    assert kept.scope == ("openid", "profile")
    assert kept.created_at == NOW
    assert kept.max_age == 60
    assert kept.acr_values == ("gold", "silver")
    assert kept.resource == ("https://api.test",)
    assert kept.response_mode == "form_post"
    assert kept.return_to == "/orders?page=2"


def test_optional_parameters_are_sent_where_given() -> None:
    request = begin(
        prompt="login",
        max_age=60,
        acr_values=["gold", "silver"],
        login_hint="alice@example.test",
        ui_locales="de en",
        response_mode="form_post",
        extra={"audience": "https://api.test", "claims": '{"userinfo":{}}'},
    )

    sent = query_of(request.url)
    assert sent["prompt"] == "login"
    assert sent["max_age"] == "60"
    assert sent["acr_values"] == "gold silver"
    assert sent["login_hint"] == "alice@example.test"
    assert sent["ui_locales"] == "de en"
    assert sent["response_mode"] == "form_post"
    assert sent["audience"] == "https://api.test"
    assert sent["claims"] == '{"userinfo":{}}'
    assert "return_to" not in sent


@pytest.mark.spec("6749-3.1-c")
@pytest.mark.parametrize("nothing", [None, "", [], ()])
@pytest.mark.parametrize("name", ["scope", "prompt", "acr_values", "resource"])
def test_a_list_without_values_is_left_out(name: str, nothing: Anything) -> None:
    sent = query_of(begin(**{name: nothing}).url)

    assert name not in sent


@pytest.mark.spec("6749-3.1-c")
@pytest.mark.parametrize(
    "options",
    [
        {"login_hint": None},
        {"login_hint": ""},
        {"ui_locales": ""},
        {"max_age": None},
        {"response_mode": None},
        {"extra": None},
        {"extra": {}},
        {"extra": {"audience": ""}},
    ],
    ids=str,
)
def test_a_parameter_without_value_is_left_out(options: dict[str, Anything]) -> None:
    assert query_of(begin(**options).url) == query_of(begin().url)


# Random values


@pytest.mark.spec("6749-10.10")
@pytest.mark.spec("CONF-nonce-charset")
def test_ten_thousand_requests_share_no_random_value() -> None:
    generator = random.SystemRandom()
    seen: set[str] = set()

    for _ in range(2_500):
        request = begin(generator=generator)
        kept = request.pending
        values = [
            kept.state,
            kept.nonce or "",
            kept.code_verifier,
            request.binding.reveal(),
        ]
        assert all(RANDOM.fullmatch(value) for value in values)
        seen.update(values)

    assert len(seen) == 10_000


@pytest.mark.spec("6749-10.10")
def test_every_random_value_takes_256_bits_from_the_injected_source() -> None:
    asked: list[int] = []

    class Source(random.Random):
        def getrandbits(self, k: int) -> int:
            asked.append(k)
            return len(asked)

    request = begin(generator=Source())

    assert asked == [256] * 4
    kept = request.pending
    values = {kept.state, kept.nonce, kept.code_verifier, request.binding.reveal()}
    assert len(values) == 4


def test_small_numbers_do_not_make_short_values() -> None:
    class Zeros(random.Random):
        def getrandbits(self, k: int) -> int:
            return 0

    assert begin(generator=Zeros()).pending.state == "A" * 43


def test_the_same_source_gives_the_same_request() -> None:
    assert begin().url == begin().url
    assert begin().pending == begin().pending


# PKCE


@pytest.mark.spec("7636-4.2")
def test_the_challenge_is_that_of_the_appendix() -> None:
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"

    assert code_challenge(verifier) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


@pytest.mark.spec("7636-4.1")
@pytest.mark.parametrize("verifier", ["a" * 43, "a" * 128, "aZ09-._~" * 6])
def test_a_verifier_has_43_to_128_unreserved_characters(verifier: str) -> None:
    check_code_verifier(verifier)

    assert RANDOM.fullmatch(code_challenge(verifier))


@pytest.mark.spec("7636-4.1")
@pytest.mark.parametrize(
    "verifier",
    [
        "",
        "a" * 42,
        "a" * 129,
        "a" * 42 + "+",
        "a" * 43 + "\n",
        "ä" * 43,
        "a" * 43 + "=",
    ],
)
def test_what_is_no_verifier_is_refused_and_not_shown(verifier: str) -> None:
    for check in (check_code_verifier, code_challenge):
        with pytest.raises(MisconfiguredError) as caught:
            check(verifier)

        assert caught.value.setting == "code_verifier"
        assert "aaaa" not in str(caught.value)


@pytest.mark.spec("9700-2.1.1-pkce")
@pytest.mark.parametrize("secret", [None, "s3cr3t-1"])
def test_every_request_has_a_challenge_of_its_own(secret: str | None) -> None:
    generator = random.Random(7)
    requests = [
        begin(
            settings={"client_secret": secret}, generator=generator, scope="orders.read"
        )
        for _ in range(3)
    ]

    sent = [query_of(request.url) for request in requests]
    assert {one["code_challenge_method"] for one in sent} == {"S256"}
    assert len({one["code_challenge"] for one in sent}) == 3
    assert all("nonce" not in one for one in sent)


@pytest.mark.spec("8414-2-pkce")
@pytest.mark.spec("9700-2.1-csrf")
@pytest.mark.parametrize("listed", [None, [], ["S256"], ["plain", "S256"]])
def test_s256_and_state_are_sent_whatever_the_server_lists(listed: object) -> None:
    request = begin(
        members={"code_challenge_methods_supported": listed}, scope="orders.read"
    )

    sent = query_of(request.url)
    assert sent["code_challenge_method"] == "S256"
    assert RANDOM.fullmatch(sent["state"])


@pytest.mark.spec("7636-7.2")
@pytest.mark.parametrize("listed", [["plain"], ["s256"], ["none", "plain"], "S256"])
def test_there_is_no_way_back_from_s256(listed: object) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        begin(members={"code_challenge_methods_supported": listed})

    assert caught.value.setting == "code_challenge_methods_supported"


def test_a_wrong_list_of_methods_can_be_put_right_by_hand() -> None:
    by_hand = {
        "authorization_endpoint": AUTHORIZATION_ENDPOINT,
        "code_challenge_methods_supported": ["S256"],
    }

    assert "S256" in begin(members=by_hand).url


# The endpoint and the redirect URI


@pytest.mark.spec("6749-3.1-a")
@pytest.mark.parametrize(
    ("endpoint", "start"),
    [
        ("https://idp.test/a?p=x", "https://idp.test/a?p=x&response_type=code&"),
        ("https://idp.test/a?p=x&", "https://idp.test/a?p=x&response_type=code&"),
        ("https://idp.test/a?", "https://idp.test/a?response_type=code&"),
        ("https://idp.test/a", "https://idp.test/a?response_type=code&"),
        ("https://idp.test/a&", "https://idp.test/a&?response_type=code&"),
        ("https://idp.test/a??", "https://idp.test/a??response_type=code&"),
        ("https://idp.test?p=%2F+x", "https://idp.test?p=%2F+x&response_type=code&"),
    ],
)
def test_the_query_of_the_endpoint_is_kept(endpoint: str, start: str) -> None:
    request = begin(members={"authorization_endpoint": endpoint})

    assert request.url.startswith(start)
    assert dict(pairs_of(request.url))["state"] == request.pending.state


@pytest.mark.spec("6749-3.1-b")
@pytest.mark.parametrize("query", ["scope=email", "a=b&state", "client%5Fid=x"])
def test_an_endpoint_that_sets_our_parameters_is_refused(query: str) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        begin(members={"authorization_endpoint": f"https://idp.test/a?{query}"})

    assert caught.value.setting == "authorization_endpoint"


def test_a_server_without_authorization_endpoint_is_a_setting() -> None:
    with pytest.raises(MisconfiguredError) as caught:
        begin(members={"authorization_endpoint": None})

    assert caught.value.setting == "authorization_endpoint"


@pytest.mark.spec("8414-2-https")
@pytest.mark.parametrize("url", ["http://idp.test/a", "https://idp.test/a#x", 7])
def test_an_endpoint_that_no_browser_should_see_is_refused(url: object) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        begin(members={"authorization_endpoint": url})

    assert caught.value.setting == "authorization_endpoint"


@pytest.mark.parametrize(
    "uri",
    [
        "https://app.test/cb?tenant=a%20b",
        "https://app.test",
        "http://127.0.0.1:8765/cb",
        "http://[::1]/cb",
        "com.example.app:/cb",
    ],
)
def test_a_redirect_uri_can_be_chosen_for_one_sign_in(uri: str) -> None:
    request = begin(redirect_uri=uri)

    assert query_of(request.url)["redirect_uri"] == uri
    assert request.pending.redirect_uri == uri


@pytest.mark.spec("6749-3.1.2")
@pytest.mark.parametrize(
    "uri", ["/cb", "", "https://app.test/cb#x", "http://app.test/cb", "scheme:", 7]
)
def test_a_redirect_uri_that_no_browser_should_follow_is_refused(uri: Anything) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        begin(redirect_uri=uri)

    assert caught.value.setting == "redirect_uri"


def test_a_sign_in_needs_a_redirect_uri() -> None:
    with pytest.raises(MisconfiguredError) as caught:
        begin(settings={"redirect_uri": None})

    assert caught.value.setting == "redirect_uri"


# Options


@pytest.mark.spec("6749-3.3")
@pytest.mark.parametrize(
    ("scope", "sent"),
    [
        ("openid", "openid"),
        ("b openid a", "b openid a"),
        (" openid  a ", "openid a"),
        (["openid", "a"], "openid a"),
        (("openid", "a", "openid"), "openid a"),
        ((name for name in ("openid", "Openid")), "openid Openid"),
        ("https://api.test/orders:read,write", "https://api.test/orders:read,write"),
        ("!#[]~", "!#[]~"),
    ],
)
def test_scope_is_a_list_in_the_order_given(scope: Anything, sent: str) -> None:
    request = begin(scope=scope)

    assert query_of(request.url)["scope"] == sent
    assert request.pending.scope == tuple(sent.split())


@pytest.mark.spec("6749-3.3")
@pytest.mark.parametrize(
    "scope",
    [
        ["openid", "a b"],
        'x"y',
        "x\\y",
        "a\tb",
        "a\nb",
        "a\x7f",
        "ä",
        "\u00a0",
        [""],
        [7],
        [None],
        7,
        b"openid",
    ],
)
def test_what_no_scope_can_have_is_refused(scope: Anything) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        begin(scope=scope)

    assert caught.value.setting == "scope"


@pytest.mark.spec("Core-3.1.2.1-nonce")
@pytest.mark.spec("Core-3.1.3.3")
@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("openid", True),
        ("email openid", True),
        ("email", False),
        ("OpenID", False),
        (None, False),
    ],
)
def test_an_id_token_is_asked_for_with_a_nonce(
    scope: str | None,
    expected: bool,  # noqa: FBT001 -- parametrised
) -> None:
    request = begin(scope=scope)

    assert requires_id_token(request.pending) is expected
    assert ("nonce" in query_of(request.url)) is expected
    assert (request.pending.nonce is not None) is expected


@pytest.mark.spec("Core-11")
@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({"scope": "openid offline_access"}, "consent"),
        ({"scope": "offline_access"}, "consent"),
        ({"scope": "openid"}, None),
        ({"scope": "openid offline_access", "prompt": None}, None),
        ({"scope": "openid offline_access", "prompt": ""}, None),
        ({"scope": "openid offline_access", "prompt": "login"}, "login"),
        ({"scope": "openid offline_access", "prompt": "none"}, "none"),
    ],
)
def test_offline_access_asks_for_consent_unless_the_caller_says_otherwise(
    options: dict[str, Anything], prompt: str | None
) -> None:
    assert query_of(begin(**options).url).get("prompt") == prompt


@pytest.mark.spec("Core-11")
@pytest.mark.parametrize(
    ("known", "prompt"),
    [(["none", "login"], None), (["login", "consent"], "consent"), (None, "consent")],
)
def test_consent_is_not_asked_of_a_server_that_has_no_such_prompt(
    known: object, prompt: str | None
) -> None:
    request = begin(
        scope="openid offline_access", members={"prompt_values_supported": known}
    )

    assert query_of(request.url).get("prompt") == prompt


@pytest.mark.spec("Core-3.1.2.1-prompt")
@pytest.mark.parametrize("prompt", ["none login", "login none", "consent none login"])
def test_prompt_none_stands_alone(prompt: str) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        begin(prompt=prompt)

    assert caught.value.setting == "prompt"


@pytest.mark.spec("Core-3.1.2.1-prompt")
@pytest.mark.parametrize("prompt", ["none", "none none", "login consent"])
def test_prompts_that_go_together_are_sent(prompt: str) -> None:
    sent = query_of(begin(prompt=prompt).url)["prompt"]

    assert sent == " ".join(dict.fromkeys(prompt.split()))


@pytest.mark.spec("Core-3.1.2.1-maxage")
@pytest.mark.parametrize("max_age", [0, 1, 2**31 - 1])
def test_a_max_age_is_sent_also_where_it_is_zero(max_age: int) -> None:
    request = begin(max_age=max_age)

    assert query_of(request.url)["max_age"] == str(max_age)
    assert request.pending.max_age == max_age


@pytest.mark.spec("Core-3.1.2.1-maxage")
@pytest.mark.parametrize(
    "max_age",
    [
        -1,
        1.0,
        "60",
        True,
        False,
        float("nan"),
        2**31,
        pytest.param(10**5_000, id="too long to print"),
    ],
)
def test_what_is_no_max_age_is_refused(max_age: Anything) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        begin(max_age=max_age)

    assert caught.value.setting == "max_age"


@pytest.mark.spec("8707-2-b")
def test_several_resources_repeat_the_parameter() -> None:
    request = begin(resource=["https://a.test/x?y=1", "urn:b", "urn:b"])

    sent = [value for name, value in pairs_of(request.url) if name == "resource"]
    assert sent == ["https://a.test/x?y=1", "urn:b"]
    assert request.pending.resource == ("https://a.test/x?y=1", "urn:b")


@pytest.mark.spec("8707-2-a")
@pytest.mark.parametrize(
    "resource",
    [
        "api",
        "/api",
        "//api.test",
        "https:",
        ":x",
        "1a:b",
        "a/b:c",
        "https://rs.test/#x",
        "https://rs.test/#",
        "https://rs.test/a b",
        "https://rs.test/\n",
        "https://rs.test/\ud800",
        ["https://rs.test", ""],
        ["https://rs.test", "api"],
        [7],
        7,
        b"https://rs.test",
    ],
)
def test_a_resource_is_an_absolute_uri_without_fragment(resource: Anything) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        begin(resource=resource)

    assert caught.value.setting == "resource"


@pytest.mark.parametrize("mode", [None, "query"])
def test_the_default_response_mode_is_not_sent(mode: Anything) -> None:
    request = begin(response_mode=mode)

    assert "response_mode" not in query_of(request.url)
    assert request.pending.response_mode == "query"


@pytest.mark.spec("9700-2.1.2")
@pytest.mark.parametrize("mode", ["fragment", "jwt", "", "Form_Post", 7, ["query"]])
def test_no_response_mode_brings_tokens_to_the_front_channel(mode: Anything) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        begin(response_mode=mode)

    assert caught.value.setting == "response_mode"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("login_hint", "a\nb"),
        ("login_hint", 7),
        ("login_hint", "\ud800"),
        ("ui_locales", "de\x00"),
        ("ui_locales", ["de"]),
        ("acr_values", ["gold silver"]),
        ("acr_values", "gold\tsilver"),
        ("acr_values", 7),
        ("prompt", "log\nin"),
        ("prompt", 7),
        ("return_to", "/a\r\nX: y"),
        ("return_to", "/" + "a" * 2_048),
        ("return_to", 7),
        ("extra", ["audience"]),
        ("extra", "audience"),
        ("extra", {7: "x"}),
        ("extra", {"": "x"}),
        ("extra", {"x": 7}),
        ("extra", {"x": None}),
        ("extra", {"x": "\ud800"}),
        ("extra", {"x\n": "y"}),
    ],
)
def test_an_option_that_cannot_be_sent_is_named(setting: str, value: Anything) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        begin(**{setting: value})

    assert caught.value.setting == setting


def test_a_note_of_the_longest_kind_is_kept() -> None:
    note = "/" + "a" * 2_047

    assert begin(return_to=note).pending.return_to == note


@pytest.mark.spec("6749-3.1-b")
@pytest.mark.spec("9126-2.1")
@pytest.mark.parametrize(
    "name",
    [
        "acr_values",
        "client_assertion",
        "client_assertion_type",
        "client_id",
        "client_secret",
        "code_challenge",
        "code_challenge_method",
        "code_verifier",
        "login_hint",
        "max_age",
        "nonce",
        "prompt",
        "redirect_uri",
        "request",
        "request_uri",
        "resource",
        "response_mode",
        "response_type",
        "scope",
        "state",
        "ui_locales",
    ],
)
def test_what_is_set_here_cannot_be_put_aside(name: str) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        begin(extra={name: "SECRET-1"})

    assert caught.value.setting == "extra"
    assert "SECRET-1" not in str(caught.value)


@given(st.dictionaries(vschars.map(lambda name: f"x-{name}"), identifiers, max_size=4))
def test_a_server_reads_what_was_given(extra: dict[str, str]) -> None:
    """Decoding a request's URL undoes its encoding, whatever the text."""
    hint = " ".join(extra.values())
    request = begin(settings={"client_id": hint or "cid"}, login_hint=hint, extra=extra)

    sent = query_of(request.url)
    assert {name: sent[name] for name in extra} == extra
    assert sent.get("login_hint", "") == hint
    assert sent["client_id"] == (hint or "cid")
    assert request.url.isascii()
    assert not urlsplit(request.url).fragment


@pytest.mark.spec("6749-B")
def test_a_query_is_encoded_as_the_appendix_says() -> None:
    request = begin(login_hint=" %&+£€")

    assert "login_hint=+%25%26%2B%C2%A3%E2%82%AC" in request.url


# What is kept


def test_a_sign_in_survives_the_session_store() -> None:
    for kept in (
        begin().pending,
        begin(scope=None).pending,
        begin(
            max_age=0,
            acr_values="a b",
            resource=["urn:a"],
            response_mode="form_post",
            return_to="/ü",
        ).pending,
    ):
        written = json.dumps(kept.to_members())

        assert PendingSignIn.from_members(json.loads(written)) == kept


def test_members_of_a_newer_version_are_ignored() -> None:
    kept = pending()

    assert PendingSignIn.from_members({**kept.to_members(), "new": {"a": 1}}) == kept


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", None),
        ("state", ""),
        ("state", 7),
        ("nonce", 7),
        ("nonce", None),
        ("nonce", ""),
        ("code_verifier", None),
        ("code_verifier", ""),
        ("code_verifier", "a" * 42),
        ("redirect_uri", None),
        ("issuer", ["https://idp.test"]),
        ("client_id", None),
        ("scope", "openid"),
        ("scope", [7]),
        ("scope", {"openid": 1}),
        ("binding_hash", None),
        ("created_at", None),
        ("created_at", "1"),
        ("created_at", True),
        ("created_at", -1),
        ("created_at", float("nan")),
        ("created_at", float("inf")),
        ("created_at", 10**400),
        ("max_age", True),
        ("max_age", 1.5),
        ("max_age", -1),
        ("max_age", 10**400),
        ("acr_values", None),
        ("acr_values", "gold"),
        ("resource", [None]),
        ("response_mode", "fragment"),
        ("response_mode", None),
        ("return_to", 7),
    ],
)
def test_garbage_in_the_store_is_no_sign_in(name: str, value: object) -> None:
    members = pending().to_members()
    assert PendingSignIn.from_members(members) == pending()

    with pytest.raises(AuthorizationResponseError) as caught:
        PendingSignIn.from_members({**members, name: value})

    assert caught.value.reason == "unknown_state"


@given(json_values)
def test_what_somebody_else_has_stored_is_refused(members: Anything) -> None:
    with pytest.raises(AuthorizationResponseError):
        PendingSignIn.from_members(members)


@given(st.sampled_from(sorted(pending().to_members())), json_values)
def test_one_foreign_member_is_read_or_refused(name: str, value: object) -> None:
    members = {**pending().to_members(), name: value}
    kept = None

    with contextlib.suppress(AuthorizationResponseError):
        kept = PendingSignIn.from_members(members)

    assert kept is None or kept.to_members()[name] == value


@given(st.text(), st.text())
def test_store_keys_tell_states_apart_and_nothing_else(one: str, two: str) -> None:
    assert (state_key(one) == state_key(two)) is (one == two)
    assert re.fullmatch(r"sign-in-[0-9a-f]{64}", state_key(one))
    assert (hash_binding(one) == hash_binding(two)) is (one == two)


def test_only_the_hash_of_a_binding_is_kept() -> None:
    request = begin()

    binding = request.binding.reveal()
    assert request.pending.binding_hash == hashlib.sha256(binding.encode()).hexdigest()
    assert binding not in json.dumps(request.pending.to_members())
    assert binding not in request.url
    assert hash_binding("\ud800")


def test_requests_show_nothing_secret() -> None:
    request = begin(login_hint="alice", return_to="/orders")

    shown = f"{request!r} {request!s} {request.pending!r} {request.pending!s}"
    kept = request.pending
    for secret in (
        kept.state,
        kept.nonce,
        kept.code_verifier,
        kept.binding_hash,
        request.binding.reveal(),
        "alice",
        "/orders",
    ):
        assert secret is not None
        assert secret not in shown
    assert ISSUER in shown
    for value in (request, request.pending):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(value)
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.copy(request.pending)


def test_a_request_never_carries_the_verifier_or_a_secret() -> None:
    request = begin()

    assert request.pending.code_verifier not in request.url
    assert "s3cr3t-1" not in request.url


def test_random_values_of_one_request_differ() -> None:
    kept = begin().pending

    values = sorted([kept.state, kept.nonce or "", kept.code_verifier])
    assert all(one != two for one, two in pairwise(values))

"""Requests to the token and revocation endpoints, and what their answers mean."""

from __future__ import annotations

import pytest
from hypothesis import given

from freshtoken._foundation.records import Failure, TokenSet
from freshtoken._foundation.secret import Secret
from freshtoken._protocol import grants
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.exchange import (
    Conversation,
    ExchangeError,
    Request,
    strip_query,
)
from freshtoken.errors import Disposition, MisconfiguredError
from tests.protocol import keys
from tests.protocol.helpers import (
    NOW,
    SECRET,
    Anything,
    answer,
    converse,
    failure_of,
    form_of,
    make_client,
    make_metadata,
    rng,
    secret_of,
)
from tests.protocol.strategies import vschars

TOKENS = {"access_token": "at-1", "token_type": "Bearer", "expires_in": 60}
VERIFIER = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"


def refresh(client: OAuthClient, **options: Anything) -> Conversation[TokenSet]:
    settings: dict[str, Anything] = {
        "refresh_token": "rt-0",
        "credential": secret_of(client),
        "now": NOW,
        "rng": rng(),
        **options,
    }
    return grants.refresh(client, make_metadata(client), **settings)


def redeem(client: OAuthClient, **options: Anything) -> Conversation[TokenSet]:
    settings: dict[str, Anything] = {
        "code": "code-0",
        "code_verifier": VERIFIER,
        "redirect_uri": "https://app.test/cb",
        "credential": secret_of(client),
        "now": NOW,
        "rng": rng(),
        **options,
    }
    return grants.authorization_code(client, make_metadata(client), **settings)


def ask(client: OAuthClient, **options: Anything) -> Conversation[TokenSet]:
    return grants.client_credentials(
        client,
        make_metadata(client),
        credential=secret_of(client),
        now=NOW,
        rng=rng(),
        **options,
    )


def revoke(client: OAuthClient, **options: Anything) -> Conversation[None]:
    settings: dict[str, Anything] = {
        "token": "rt-0",
        "credential": secret_of(client),
        "now": NOW,
        "rng": rng(),
        **options,
    }
    return grants.revoke(client, make_metadata(client), **settings)


def test_a_refresh_is_one_post_with_a_form() -> None:
    tokens, requests = converse(refresh(make_client()), answer(200, TOKENS))

    (request,) = requests
    assert (request.method, request.url) == ("POST", "https://idp.test/token")
    assert form_of(request) == {"grant_type": "refresh_token", "refresh_token": "rt-0"}
    assert dict(request.headers)["Accept"] == "application/json"
    assert dict(request.headers)["Authorization"].startswith("Basic ")
    assert tokens.access_token == "at-1"
    assert tokens.expires_at == NOW + 60


def test_scope_and_resource_are_sent_where_given() -> None:
    conversation = refresh(
        make_client(), scope=("b", "a"), resource="https://api.test/x?y"
    )

    _, (request,) = converse(conversation, answer(200, TOKENS))

    form = form_of(request)
    assert form["scope"] == "b a"
    assert form["resource"] == "https://api.test/x?y"


@pytest.mark.spec("8707-2-b")
def test_a_refresh_may_name_several_resources() -> None:
    uris = ("https://a.test", "https://b.test/x?y")

    _, (request,) = converse(refresh(make_client(), resource=uris), answer(200, TOKENS))

    sent = [value for name, value in request.form or () if name == "resource"]
    assert sent == list(uris)


@pytest.mark.parametrize("nothing", [None, "", ()])
def test_parameters_without_value_are_left_out(nothing: Anything) -> None:
    conversation = refresh(make_client(), scope=nothing, resource=nothing)

    _, (request,) = converse(conversation, answer(200, TOKENS))

    assert set(form_of(request)) == {"grant_type", "refresh_token"}


def test_a_form_is_encoded_as_the_appendix_says() -> None:
    conversation = refresh(make_client(), scope=' %&+£€"')

    _, (request,) = converse(conversation, answer(200, TOKENS))

    assert b"scope=+%25%26%2B%C2%A3%E2%82%AC%22" in request.body


def test_the_query_of_an_endpoint_is_kept() -> None:
    client = make_client(metadata={"token_endpoint": "https://idp.test/t?tenant=1"})

    _, (request,) = converse(refresh(client), answer(200, TOKENS))

    assert request.url == "https://idp.test/t?tenant=1"
    assert "tenant" not in form_of(request)


@given(vschars)
def test_a_refresh_token_is_sent_octet_for_octet(token: str) -> None:
    for sent in (token, Secret(token)):
        conversation = refresh(make_client(), refresh_token=sent)

        _, (request,) = converse(conversation, answer(200, TOKENS))

        assert form_of(request)["refresh_token"] == token


@pytest.mark.parametrize(
    ("settings", "members", "has_header"),
    [
        ({"client_secret": None}, {"client_id"}, False),
        (
            {"token_endpoint_auth_method": "client_secret_post"},
            {"client_id", "client_secret"},
            False,
        ),
        (
            {"private_key": keys.P256},
            {"client_id", "client_assertion", "client_assertion_type"},
            False,
        ),
        ({}, set(), True),
    ],
)
def test_each_request_authenticates_once(
    settings: dict[str, object], members: set[str], *, has_header: bool
) -> None:
    client = make_client(**settings)
    for conversation, answered in (
        (refresh(client), answer(200, TOKENS)),
        (redeem(client), answer(200, TOKENS)),
        (ask(client), answer(200, TOKENS)),
        (revoke(client), answer(200)),
    ):
        _, (request,) = converse(conversation, answered)

        names = set(form_of(request))
        assert {name for name in names if name.startswith("client_")} == members
        assert ("Authorization" in dict(request.headers)) is has_header


@pytest.mark.spec("6749-4.1.3")
def test_a_code_is_redeemed_with_all_that_proves_it_is_ours() -> None:
    body = {**TOKENS, "refresh_token": "rt-1", "id_token": "it-1", "scope": "b a"}

    tokens, requests = converse(redeem(make_client()), answer(200, body))

    (request,) = requests
    assert (request.method, request.url) == ("POST", "https://idp.test/token")
    assert form_of(request) == {
        "grant_type": "authorization_code",
        "code": "code-0",
        "redirect_uri": "https://app.test/cb",
        "code_verifier": VERIFIER,
    }
    assert dict(request.headers)["Accept"] == "application/json"
    assert tokens.access_token == "at-1"
    assert tokens.refresh_token == "rt-1"
    assert tokens.id_token == "it-1"
    assert tokens.scope == ("a", "b")
    assert tokens.expires_at == NOW + 60


@pytest.mark.spec("6749-4.1.3")
@given(vschars)
def test_a_code_is_sent_octet_for_octet(code: str) -> None:
    redirect_uri = f"https://app.test/cb?x={code}"
    for sent, verifier in ((code, VERIFIER), (Secret(code), Secret(VERIFIER))):
        conversation = redeem(
            make_client(), code=sent, code_verifier=verifier, redirect_uri=redirect_uri
        )

        _, (request,) = converse(conversation, answer(200, TOKENS))

        form = form_of(request)
        assert form["code"] == code
        assert form["redirect_uri"] == redirect_uri
        assert form["code_verifier"] == VERIFIER


@pytest.mark.spec("7636-4.1")
@pytest.mark.parametrize("verifier", ["", "a" * 42, "a" * 129, "a" * 42 + "+"])
def test_a_code_is_not_sent_without_its_proof(verifier: str) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        next(redeem(make_client(), code_verifier=verifier))

    assert caught.value.setting == "code_verifier"
    assert "aaaa" not in str(caught.value)


@pytest.mark.spec("8707-2-b")
def test_a_code_may_be_redeemed_for_several_resources() -> None:
    uris = ("https://a.test", "https://b.test/x?y")

    _, (request,) = converse(redeem(make_client(), resource=uris), answer(200, TOKENS))

    sent = [value for name, value in request.form or () if name == "resource"]
    assert sent == list(uris)


@pytest.mark.spec("6749-4.1.2-once")
@pytest.mark.parametrize(
    ("status", "body", "disposition", "in_doubt"),
    [
        (500, {"error": "invalid_grant"}, Disposition.RETRY, True),
        (200, b"<html>", Disposition.RETRY, True),
        (200, {"token_type": "Bearer"}, Disposition.RETRY, True),
        (400, {"error": "invalid_grant"}, Disposition.SIGN_IN, False),
        (401, {"error": "invalid_client"}, Disposition.CLIENT_REJECTED, False),
        (400, {"error": "invalid_request"}, Disposition.MISCONFIGURED, False),
        (400, {"error": "redirect_uri_mismatch"}, Disposition.UNCLEAR, False),
        (403, {"error": "blocked"}, Disposition.DENIED, False),
    ],
)
def test_a_code_that_brought_nothing_is_graded_after_one_request(
    status: int,
    body: object,
    disposition: Disposition,
    in_doubt: bool,  # noqa: FBT001 -- parametrised
) -> None:
    failure = failure_of(redeem(make_client()), answer(status, body))

    assert failure.disposition is disposition
    assert failure.in_doubt is in_doubt
    assert failure.sent


def test_a_service_asks_in_its_own_name() -> None:
    conversation = ask(make_client(), scope="orders.read", resource="https://api.test")

    tokens, (request,) = converse(conversation, answer(200, TOKENS))

    assert form_of(request) == {
        "grant_type": "client_credentials",
        "scope": "orders.read",
        "resource": "https://api.test",
    }
    assert tokens.access_token == "at-1"


def test_the_client_s_settings_reach_the_reader() -> None:
    client = make_client(default_lifetime=90, error_codes={"E-42": Disposition.SIGN_IN})
    lifeless = {"access_token": "at-1", "scope": "a"}

    tokens, _ = converse(refresh(client), answer(200, lifeless))
    service, _ = converse(ask(client, scope="a b"), answer(200, lifeless))
    user, _ = converse(redeem(client, scope="a b"), answer(200, lifeless))
    failures = [
        failure_of(redeem(client), answer(400, {"error": "E-42"})),
        failure_of(refresh(client), answer(400, {"error": "E-42"})),
        failure_of(ask(client), answer(400, {"error": "E-42"})),
        failure_of(revoke(client), answer(400, {"error": "E-42"})),
    ]

    assert tokens.expires_at == service.expires_at == user.expires_at == NOW + 90
    for read in (service, user):
        assert any("less scope" in note for note in read.notes)
    assert {failure.disposition for failure in failures} == {Disposition.SIGN_IN}


@pytest.mark.parametrize(
    ("before", "disposition"),
    [(True, Disposition.UNCLEAR), (False, Disposition.MISCONFIGURED)],
)
def test_what_worked_before_is_no_malformed_request(
    before: bool,  # noqa: FBT001 -- parametrised
    disposition: Disposition,
) -> None:
    conversation = refresh(make_client(), refreshed_before=before)

    failure = failure_of(conversation, answer(400, {"error": "invalid_request"}))

    assert failure.disposition is disposition


def test_a_revocation_says_what_kind_of_token_it_is() -> None:
    _, (request,) = converse(revoke(make_client()), answer(200))
    _, (bare,) = converse(
        revoke(make_client(), token=Secret("at-0"), token_type_hint=None), answer(200)
    )

    assert request.url == "https://idp.test/revoke"
    assert form_of(request) == {"token": "rt-0", "token_type_hint": "refresh_token"}
    assert form_of(bare) == {"token": "at-0"}


@pytest.mark.parametrize(
    "revoked",
    [
        answer(200),
        answer(200, "<html>"),
        answer(200, {"error": "invalid_client"}),
        answer(204),
        answer(400, {"error": "invalid_token"}),
        answer(400, {"error": "invalid_grant"}),
    ],
    ids=range(6),
)
def test_a_token_that_is_no_longer_valid_is_revoked(revoked: Anything) -> None:
    value, _ = converse(revoke(make_client()), revoked)

    assert value is None


@pytest.mark.parametrize(
    ("status", "body", "disposition"),
    [
        (503, b"", Disposition.RETRY),
        (429, b"", Disposition.RETRY),
        (400, {"error": "unsupported_token_type"}, Disposition.MISCONFIGURED),
        (401, {"error": "invalid_client"}, Disposition.CLIENT_REJECTED),
        (401, b"", Disposition.MISCONFIGURED),
        (302, b"", Disposition.MISCONFIGURED),
    ],
)
def test_a_token_that_may_live_is_not_revoked(
    status: int, body: object, disposition: Disposition
) -> None:
    failure = failure_of(revoke(make_client()), answer(status, body))

    assert failure.disposition is disposition


def test_a_server_without_revocation_endpoint_is_a_setting() -> None:
    client = make_client(metadata={"token_endpoint": "https://idp.test/token"})

    with pytest.raises(MisconfiguredError) as caught:
        converse(revoke(client))

    assert caught.value.setting == "revocation_endpoint"


def echo(client: OAuthClient) -> tuple[Request, Failure]:
    """Let the server repeat in its error all that it was sent."""
    conversation = refresh(client, refresh_token="rt 0/secret")
    request = next(conversation)
    words = f"{request.body.decode()} {dict(request.headers)} {form_of(request)}"
    body = {"error": "invalid_grant", "error_description": words, "x": words}
    with pytest.raises(ExchangeError) as caught:
        conversation.send(answer(400, body))
    return request, caught.value.failure


def test_an_echo_of_a_code_shows_nothing() -> None:
    conversation = redeem(make_client(), code="a code/of+ours")
    request = next(conversation)
    words = f"{request.body.decode()} {form_of(request)}"
    with pytest.raises(ExchangeError) as caught:
        conversation.send(
            answer(400, {"error": "invalid_grant", "error_description": words})
        )

    shown = repr(caught.value.failure)
    for secret in ("a code/of+ours", "a+code%2Fof%2Bours", VERIFIER, SECRET):
        assert secret not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"token_endpoint_auth_method": "client_secret_post"},
        {"private_key": keys.P256},
        {"client_secret": None},
    ],
    ids=range(4),
)
def test_an_echo_of_the_request_shows_nothing(settings: dict[str, object]) -> None:
    client = make_client(**settings)

    request, failure = echo(client)

    hidden = ["rt 0/secret", "rt+0%2Fsecret"]
    hidden += [value for name, value in request.headers if name == "Authorization"]
    hidden += [
        value for name, value in request.form or () if name == "client_assertion"
    ]
    hidden += [] if client.secret is None else [SECRET]
    for secret in hidden:
        assert secret not in repr(failure)
    assert "***" in (failure.description or "")


def test_requests_and_answers_show_no_content() -> None:
    conversation = refresh(make_client())
    request = next(conversation)
    response = answer(200, {"access_token": "at-9", **TOKENS})
    with pytest.raises(StopIteration) as caught:
        conversation.send(response)

    shown = f"{request!r} {response!r} {caught.value.value!r}"
    assert "POST https://idp.test/token" in shown
    for secret in ("rt-0", "at-", SECRET, "Basic"):
        assert secret not in shown


def test_the_error_of_an_exchange_is_its_advice() -> None:
    with pytest.raises(ExchangeError) as caught:
        converse(refresh(make_client()), answer(503))

    assert str(caught.value) == caught.value.failure.advice


def test_headers_are_found_in_any_case() -> None:
    response = answer(200, b"", {"X-A": "1", "x-a": "2"})

    assert response.header("X-a") == "1"
    assert response.header_values("x-A") == ["1", "2"]
    assert response.header("x-b") is None


def test_addresses_in_messages_have_no_query() -> None:
    assert strip_query("https://u:p@idp.test:1/a?b=c#d") == "https://idp.test:1/a"
    assert strip_query("https://[") == "***"

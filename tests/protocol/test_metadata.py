"""Metadata: discovered under two forms, by hand, or one over the other."""

from __future__ import annotations

import json
from itertools import count

import pytest
from hypothesis import given

from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._protocol.metadata import (
    build_metadata,
    discover,
    parse_metadata,
    well_known_url,
)
from freshtoken.errors import (
    Disposition,
    FreshTokenError,
    IssuerMismatchError,
    MisconfiguredError,
)
from tests.protocol.helpers import (
    ENDPOINTS,
    ISSUER,
    answer,
    converse,
    failure_of,
    make_client,
    make_metadata,
)
from tests.protocol.strategies import bodies

DOCUMENT = {"issuer": ISSUER, **ENDPOINTS}
OIDC_URL = "https://idp.test/.well-known/openid-configuration"
OAUTH_URL = "https://idp.test/.well-known/oauth-authorization-server"


def discovering(**overrides: object) -> OAuthClient:
    return make_client(**{"metadata": None, "discovery": "oidc", **overrides})


@pytest.mark.parametrize(
    ("issuer", "oidc", "oauth"),
    [
        (
            "https://op.example",
            "https://op.example/.well-known/openid-configuration",
            "https://op.example/.well-known/oauth-authorization-server",
        ),
        (
            "https://op.example/",
            "https://op.example/.well-known/openid-configuration",
            "https://op.example/.well-known/oauth-authorization-server",
        ),
        (
            "https://op.example:8443/a%2Fb/c/",
            "https://op.example:8443/a%2Fb/c/.well-known/openid-configuration",
            "https://op.example:8443/.well-known/oauth-authorization-server/a%2Fb/c",
        ),
        (
            "https://op.example//x//",
            "https://op.example//x//.well-known/openid-configuration",
            "https://op.example/.well-known/oauth-authorization-server//x/",
        ),
    ],
)
def test_the_two_well_known_urls(issuer: str, oidc: str, oauth: str) -> None:
    assert well_known_url(issuer, "oidc") == oidc
    assert well_known_url(issuer, "oauth") == oauth


def test_one_request_is_enough_where_the_first_form_answers() -> None:
    metadata, requests = converse(discover(discovering()), answer(200, DOCUMENT))

    assert [(item.method, item.url, item.form) for item in requests] == [
        ("GET", OIDC_URL, None)
    ]
    assert requests[0].headers == (("Accept", "application/json"),)
    assert requests[0].body == b""
    assert metadata.token_endpoint == "https://idp.test/token"


@pytest.mark.parametrize(
    "first",
    [
        answer(404),
        answer(400, {"error": "x"}),
        answer(403, "<html>"),
        answer(429),
        answer(200, "<html>a single-page application</html>"),
        answer(200, []),
        answer(200, b""),
        answer(200, b"\xff"),
        answer(200, b'{"issuer":"https://idp.test","issuer":"https://evil.test"}'),
        answer(201, DOCUMENT),
        answer(204),
    ],
    ids=count(),
)
@pytest.mark.parametrize(
    ("discovery", "urls"),
    [("oidc", [OIDC_URL, OAUTH_URL]), ("oauth", [OAUTH_URL, OIDC_URL])],
)
def test_the_other_form_is_asked_where_the_first_is_not_there(
    first: object, discovery: str, urls: list[str]
) -> None:
    client = discovering(discovery=discovery)

    metadata, requests = converse(discover(client), first, answer(200, DOCUMENT))  # type: ignore[arg-type]  # parametrised

    assert [item.url for item in requests] == urls
    assert metadata.issuer == ISSUER


def test_no_document_under_either_form_names_the_issuer_and_both_urls() -> None:
    with pytest.raises(MisconfiguredError) as caught:
        converse(discover(discovering()), answer(404), answer(200, "<html>"))

    assert caught.value.setting == "issuer"
    assert caught.value.disposition is Disposition.MISCONFIGURED
    assert caught.value.__context__ is None
    for part in (OIDC_URL, "404", OAUTH_URL, "not JSON", "discovery=None"):
        assert part in str(caught.value)


def test_a_server_that_is_busy_is_not_misconfigured() -> None:
    failure = failure_of(
        discover(discovering()), answer(429, headers={"Retry-After": "7"}), answer(404)
    )

    assert failure.disposition is Disposition.RETRY
    assert failure.retry_after == 7


@pytest.mark.parametrize("status", [500, 502, 503, 599])
def test_a_server_out_of_order_is_tried_again(status: int) -> None:
    failure = failure_of(discover(discovering()), answer(status))

    assert failure.disposition is Disposition.RETRY
    assert failure.status == status


def test_a_redirect_is_not_followed() -> None:
    location = "https://other.test/path?secret=x#y"
    failure = failure_of(
        discover(discovering()), answer(302, headers={"Location": location})
    )

    assert failure.disposition is Disposition.MISCONFIGURED
    assert failure.setting == "issuer"
    assert "https://other.test/path" in failure.advice
    assert "secret" not in failure.advice


@pytest.mark.parametrize(
    ("received", "hint"),
    [
        ("https://idp.test/", "slash"),
        ("https://IDP.test", "spelling"),
        ("https://idp.test:443", "spelling"),
        ("https://idp.testINVALID", "spelling"),
        ("HTTPS://idp.test", "spelling"),
        ("https://idp.test/{tenantid}/v2.0", "template"),
        ("", "spelling"),
    ],
)
def test_another_issuer_is_refused_with_both_names(received: str, hint: str) -> None:
    with pytest.raises(IssuerMismatchError) as caught:
        converse(discover(discovering()), answer(200, {**DOCUMENT, "issuer": received}))

    assert caught.value.expected == ISSUER
    assert caught.value.received == received
    assert hint in str(caught.value)
    assert ISSUER in str(caught.value)


@pytest.mark.parametrize("members", [{}, {"issuer": 1}, {"issuer": None}])
def test_a_document_without_issuer_is_refused(members: dict[str, object]) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        converse(discover(discovering()), answer(200, {**ENDPOINTS, **members}))

    assert caught.value.setting == "issuer"


def test_metadata_by_hand_need_no_request() -> None:
    metadata, requests = converse(discover(make_client()))

    assert requests == []
    assert metadata.issuer == ISSUER
    assert metadata.revocation_endpoint == "https://idp.test/revoke"


def test_metadata_by_hand_are_laid_over_the_document() -> None:
    client = discovering(
        metadata={
            "token_endpoint": "https://idp.test/t2",
            "introspection_endpoint": "https://idp.test/i",
            "revocation_endpoint": None,
        }
    )

    metadata, _ = converse(discover(client), answer(200, {**DOCUMENT, "x": [1]}))

    assert metadata.token_endpoint == "https://idp.test/t2"
    assert metadata.introspection_endpoint == "https://idp.test/i"
    assert metadata.revocation_endpoint is None
    assert metadata.document["x"] == [1]


def test_a_minimal_document_shows_the_registry_s_defaults() -> None:
    metadata = make_metadata(make_client(metadata={}))

    assert metadata.token_endpoint_auth_methods_supported == ("client_secret_basic",)
    assert metadata.revocation_endpoint_auth_methods_supported == (
        "client_secret_basic",
    )
    assert metadata.token_endpoint_auth_signing_alg_values_supported == ()
    assert metadata.auth_methods() is None
    assert metadata.token_endpoint is None


@pytest.mark.parametrize(
    "name",
    [
        "token_endpoint",
        "revocation_endpoint",
        "introspection_endpoint",
        "authorization_endpoint",
        "userinfo_endpoint",
        "end_session_endpoint",
        "jwks_uri",
    ],
)
def test_endpoints_are_checked_when_they_are_used(name: str) -> None:
    client = make_client(metadata={})
    good = "https://idp.test/x?tenant=1"

    assert getattr(make_metadata(client, **{name: good}), name) == good
    assert make_metadata(client, **{name: good}).endpoint(name) == good
    for bad in (
        "http://idp.test/x",
        "https://idp.test/x#f",
        "https://u:p@idp.test/x",
        "/x",
        7,
        ["https://idp.test/x"],
    ):
        metadata = make_metadata(client, **{name: bad})
        with pytest.raises(MisconfiguredError) as caught:
            getattr(metadata, name)
        assert caught.value.setting == name


def test_plain_http_endpoints_take_loopback_or_an_explicit_word() -> None:
    url = "http://idp.test/token"
    insecure = make_client(metadata={}, allow_insecure_transport=True)
    loopback = "http://[::1]:8080/token"

    assert make_metadata(insecure, token_endpoint=url).token_endpoint == url
    metadata = make_metadata(make_client(metadata={}), token_endpoint=loopback)
    assert metadata.token_endpoint == loopback


def test_an_endpoint_that_is_missing_is_named() -> None:
    with pytest.raises(MisconfiguredError) as caught:
        make_metadata(make_client(metadata={})).endpoint("revocation_endpoint")

    assert caught.value.setting == "revocation_endpoint"


@pytest.mark.parametrize("value", ["client_secret_basic", 3, ["a", 1], {"a": 1}])
def test_a_list_of_another_type_is_refused_when_used(value: object) -> None:
    name = "token_endpoint_auth_methods_supported"
    metadata = make_metadata(make_client(), **{name: value, "ui_locales_supported": 3})

    assert metadata.token_endpoint
    with pytest.raises(MisconfiguredError) as caught:
        metadata.auth_methods()
    assert caught.value.setting == name


def test_metadata_show_no_more_than_their_size() -> None:
    assert repr(build_metadata(make_client(), {})) == (
        "ServerMetadata('https://idp.test', 3 members)"
    )


@given(bodies)
def test_no_document_breaks_discovery(body: bytes) -> None:
    try:
        converse(discover(discovering()), answer(200, body), answer(404))
    except (FreshTokenError, ExchangeError):
        return
    document = json.loads(body.decode("utf-8-sig"))
    assert document["issuer"] == ISSUER


def test_a_document_is_read_on_its_own() -> None:
    metadata = parse_metadata(answer(200, DOCUMENT), discovering())

    assert metadata.revocation_endpoint == "https://idp.test/revoke"

"""Settings: refused at once, by name, and never shown."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given

from freshtoken._foundation.secret import Secret
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.settings import check_credential
from freshtoken._protocol.urls import is_loopback
from freshtoken.errors import Disposition, IssuerMismatchError, MisconfiguredError
from tests.protocol.helpers import ENDPOINTS, ISSUER, SECRET, Anything, make_client
from tests.protocol.keys import RSA_PEM
from tests.protocol.strategies import identifiers


@pytest.mark.parametrize(
    "issuer",
    [
        "https://op.example",
        "https://op.example/",
        "https://op.example:8443/a%2Fb//c",
        "https://op.exämple",
        "HTTPS://op.example",
        "http://localhost:8080",
        "http://127.0.0.1",
        "http://127.9.9.9/x",
        "http://[::1]:1",
    ],
)
def test_an_issuer_is_kept_as_it_is(issuer: str) -> None:
    assert OAuthClient(issuer, client_id="a").issuer == issuer


@pytest.mark.parametrize(
    "issuer",
    [
        "",
        7,
        None,
        "op.example",
        "https:///path",
        "https://op.example?x=1",
        "https://op.example?",
        "https://op.example#f",
        "https://op.example#",
        "https://user:pw@op.example",
        "https://op.example:port",
        "https://op.example:0",
        "https://[::1",
        "https://op.example/a b",
        "https://op.example\\x",
        "https://op.example/\n",
        "ftp://op.example",
        "http://op.example",
        "http://localhost.example",
        "http://127.0.0.1.example",
        "http://[::2]",
        "http://10.0.0.1",
    ],
)
def test_what_is_no_issuer_is_refused(issuer: Anything) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        OAuthClient(issuer, client_id="a")

    assert caught.value.setting == "issuer"


def test_plain_http_takes_an_explicit_word() -> None:
    client = OAuthClient("http://op", client_id="a", allow_insecure_transport=True)

    assert client.issuer == "http://op"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("client_id", ""),
        ("client_id", None),
        ("client_id", "a\nb"),
        ("client_id", "\ud800"),
        ("client_secret", ""),
        ("client_secret", Secret("")),
        ("client_secret", "abc\n"),
        ("client_secret", "a\x00c"),
        ("client_secret", 7),
        ("client_secret", b"abc"),
        ("redirect_uri", "/callback"),
        ("redirect_uri", "http://app.example/cb"),
        ("redirect_uri", "https://app.example/cb#x"),
        ("redirect_uri", "com.example.app:/cb#x"),
        ("redirect_uri", "scheme:"),
        ("redirect_uri", 7),
        ("token_endpoint_auth_method", "magic"),
        ("token_endpoint_auth_method", "none"),
        ("private_key_id", "k1"),
        ("signing_algorithm", "none"),
        ("signing_algorithm", "RS256"),
        ("client_assertion_audience", ""),
        ("client_assertion_audience", None),
        ("client_assertion_typ", ""),
        ("metadata", ["token_endpoint"]),
        ("metadata", {1: "x"}),
        ("metadata", None),
        ("discovery", "webfinger"),
        ("discovery", []),
        ("form_encode_basic", 1),
        ("allow_insecure_transport", "yes"),
        ("default_lifetime", 0),
        ("default_lifetime", -1),
        ("default_lifetime", float("nan")),
        ("default_lifetime", float("inf")),
        ("default_lifetime", 10**400),
        ("default_lifetime", True),
        ("default_lifetime", "60"),
        ("error_codes", ["x"]),
        ("error_codes", {"x": "retry"}),
        ("error_codes", {1: Disposition.RETRY}),
        ("id_token_signed_response_alg", "none"),
        ("id_token_signed_response_alg", ""),
        ("id_token_signed_response_alg", "rs256"),
        ("id_token_signed_response_alg", ["RS256"]),
        ("leeway", -0.001),
        ("leeway", 300.001),
        ("leeway", float("nan")),
        ("leeway", float("inf")),
        ("leeway", 10**400),
        ("leeway", "30"),
        ("leeway", None),
        ("leeway", True),
        ("trusted_audiences", "api"),
        ("trusted_audiences", None),
        ("trusted_audiences", 7),
        ("trusted_audiences", [""]),
        ("trusted_audiences", [7]),
        ("trusted_audiences", ["a\n"]),
        ("check_azp", None),
        ("check_azp", 1),
    ],
)
def test_a_bad_setting_is_named(setting: str, value: object) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        make_client(**{setting: value})

    assert caught.value.setting == setting


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("client_id", "client_ab12:%& "),
        ("client_secret", Secret("abc")),
        ("client_secret", lambda: "abc"),
        ("redirect_uri", "https://app.example/cb?x=1"),
        ("redirect_uri", "http://127.0.0.1:1/cb"),
        ("redirect_uri", "com.example.app:/cb"),
        ("token_endpoint_auth_method", "client_secret_post"),
        ("signing_algorithm", "HS512"),
        ("client_assertion_audience", "token_endpoint"),
        ("client_assertion_typ", None),
        ("metadata", {"x": None}),
        ("discovery", "oauth"),
        ("form_encode_basic", False),
        ("default_lifetime", 0.5),
        ("error_codes", {"E42": Disposition.SIGN_IN}),
        ("id_token_signed_response_alg", "ES256"),
        ("id_token_signed_response_alg", "EdDSA"),
        ("id_token_signed_response_alg", "Ed25519"),
        ("id_token_signed_response_alg", "HS256"),
        ("leeway", 0),
        ("leeway", 300),
        ("trusted_audiences", ["api", "https://api.test"]),
        ("trusted_audiences", {"api"}),
        ("check_azp", True),
    ],
)
def test_a_good_setting_is_taken(setting: str, value: object) -> None:
    assert make_client(**{setting: value}).client_id


@pytest.mark.parametrize(
    ("setting", "settings"),
    [
        (
            "client_secret",
            {"client_secret": None, "token_endpoint_auth_method": "client_secret_post"},
        ),
        ("private_key", {"token_endpoint_auth_method": "private_key_jwt"}),
        ("form_encode_basic", {"client_id": "a:b", "form_encode_basic": False}),
        (
            "signing_algorithm",
            {
                "signing_algorithm": "HS256",
                "token_endpoint_auth_method": "client_secret_basic",
            },
        ),
        ("signing_algorithm", {"client_secret": None, "signing_algorithm": "HS256"}),
        ("signing_algorithm", {"private_key": RSA_PEM, "signing_algorithm": "ES256"}),
        (
            "id_token_signed_response_alg",
            {"client_secret": None, "id_token_signed_response_alg": "HS256"},
        ),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(
    setting: str, settings: dict[str, object]
) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        make_client(**settings)

    assert caught.value.setting == setting


def test_the_rules_for_id_tokens_are_narrow_by_default() -> None:
    client = make_client()

    assert client.id_token_signed_response_alg is None
    assert client.leeway == 30
    assert client.trusted_audiences == ()
    assert client.check_azp is False


def test_trusted_audiences_cannot_be_changed_afterwards() -> None:
    audiences = ["api"]
    client = make_client(trusted_audiences=audiences)

    audiences.append("evil")

    assert client.trusted_audiences == ("api",)


def test_metadata_of_another_issuer_are_refused_with_both_names() -> None:
    with pytest.raises(IssuerMismatchError) as caught:
        make_client(metadata={**ENDPOINTS, "issuer": "https://other.test"})

    assert caught.value.expected == ISSUER
    assert caught.value.received == "https://other.test"


@pytest.mark.parametrize("url", ["http://idp.test/t", "https://idp.test/t#x", "/t", 7])
@pytest.mark.parametrize("name", ["token_endpoint", "jwks_uri"])
def test_an_endpoint_by_hand_is_checked_at_once(name: str, url: object) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        make_client(metadata={name: url})

    assert caught.value.setting == name


def test_metadata_cannot_be_changed_afterwards() -> None:
    members: dict[str, object] = {"token_endpoint": "https://idp.test/token"}
    client = make_client(metadata=members)

    members["token_endpoint"] = "https://evil.test"

    assert client.metadata == {"token_endpoint": "https://idp.test/token"}


def test_a_client_shows_no_secret() -> None:
    client = make_client(private_key=RSA_PEM)

    shown = f"{client!r} {client!s} {client.client_secret!r} {client.private_key!r}"
    shown += repr(dataclasses.replace(client, client_id="cid-2"))
    assert SECRET not in shown
    assert "PRIVATE" not in shown
    assert ISSUER in shown


@pytest.mark.parametrize("settings", [{}, {"private_key": RSA_PEM}])
def test_a_client_is_not_pickled_but_copied(settings: dict[str, object]) -> None:
    client = make_client(**settings)

    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(client)
    if client.signing_key is not None:
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(client.signing_key)
    assert copy.copy(client) is client
    assert copy.deepcopy(client) is client


def test_a_changed_copy_is_checked_again() -> None:
    client = make_client(private_key=RSA_PEM, private_key_id="k1")

    changed = dataclasses.replace(client, private_key_id="k2")

    assert changed.signing_key is not None
    assert changed.signing_key.kid == "k2"
    with pytest.raises(MisconfiguredError):
        dataclasses.replace(client, client_id="")


@given(identifiers)
def test_credentials_are_kept_octet_for_octet(text: str) -> None:
    client = make_client(client_id=text, client_secret=text)

    assert client.client_id == text
    assert isinstance(client.secret, Secret)
    assert client.secret.reveal() == text


def test_what_a_secret_function_gave_is_checked_too() -> None:
    assert check_credential("abc").reveal() == "abc"
    secret = Secret("abc")
    assert check_credential(secret) is secret
    for bad in ("", "abc\r\n", None, 7):
        with pytest.raises(MisconfiguredError) as caught:
            check_credential(bad)
        assert caught.value.setting == "client_secret"
        assert "abc" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST", True),
        ("127.0.0.1", True),
        ("127.255.0.3", True),
        ("::1", True),
        ("::1%lo", False),
        ("0.0.0.0", False),  # noqa: S104 -- not bound, compared
        ("localhost.", False),
        ("2130706433", False),
        (None, False),
    ],
)
def test_loopback_is_a_literal_name_or_address(
    host: str | None, *, expected: bool
) -> None:
    assert is_loopback(host) is expected

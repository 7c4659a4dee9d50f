"""Client authentication: one method in each request, the right octets in it."""

from __future__ import annotations

import base64
import random
from itertools import count
from typing import Any
from urllib.parse import unquote_plus

import jwt
import pytest
from hypothesis import given

from freshtoken._foundation.secret import Secret
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.client_auth import (
    ASSERTION_TYPE,
    authenticate,
    credential_fingerprint,
    select_auth_method,
)
from freshtoken._protocol.signing import prepare_signing_key
from freshtoken.errors import MisconfiguredError
from tests.protocol import keys
from tests.protocol.helpers import (
    ISSUER,
    NOW,
    SECRET,
    Anything,
    make_client,
    make_metadata,
    rng,
    secret_of,
)
from tests.protocol.strategies import identifiers

FORM = (("grant_type", "client_credentials"),)
LONG = "x" * 64


def sign(
    client: OAuthClient,
    *,
    endpoint: str = "token",
    generator: random.Random | None = None,
    now: float = NOW,
    **members: Anything,
) -> tuple[dict[str, str], dict[str, str]]:
    headers, form = authenticate(
        client,
        make_metadata(client, **members),
        secret_of(client),
        FORM,
        now=now,
        rng=generator or rng(),
        endpoint=endpoint,
    )
    assert form[: len(FORM)] == FORM
    assert len(dict(form)) == len(form)
    return dict(headers), dict(form)


def read_assertion(
    client: OAuthClient, **settings: Anything
) -> tuple[dict[str, Any], dict[str, Any]]:
    headers, form = sign(client, **settings)
    assert not headers
    assert form["client_assertion_type"] == ASSERTION_TYPE
    assert form["client_id"] == client.client_id
    assert "client_secret" not in form
    token = form["client_assertion"]
    claims = jwt.decode(token, options={"verify_signature": False})
    return jwt.get_unverified_header(token), claims


@pytest.mark.parametrize(
    ("client_id", "client_secret", "decoded"),
    [
        ("client id", "p@ss word", "client+id:p%40ss+word"),
        ("a:b", "c:d", "a%3Ab:c%3Ad"),
        ("é", "€£", "%C3%A9:%E2%82%AC%C2%A3"),
        ("north/app 7", "q+W/e=r:t&y%u", "north%2Fapp+7:q%2BW%2Fe%3Dr%3At%26y%25u"),
        ("id", "~!*'()-._", "id:~%21%2A%27%28%29-._"),
    ],
)
def test_basic_halves_are_form_encoded(
    client_id: str, client_secret: str, decoded: str
) -> None:
    client = make_client(client_id=client_id, client_secret=client_secret)

    headers, form = sign(client)

    scheme, _, value = headers["Authorization"].partition(" ")
    assert scheme == "Basic"
    assert base64.b64decode(value).decode() == decoded
    assert form == dict(FORM)


@given(identifiers, identifiers)
def test_decoding_basic_undoes_encoding(client_id: str, client_secret: str) -> None:
    headers, _ = sign(make_client(client_id=client_id, client_secret=client_secret))

    value = base64.b64decode(headers["Authorization"].removeprefix("Basic "))
    first, _, second = value.decode().partition(":")
    assert unquote_plus(first) == client_id
    assert unquote_plus(second) == client_secret


def test_form_encoding_can_be_switched_off() -> None:
    client = make_client(client_secret="p@ss:word", form_encode_basic=False)

    headers, _ = sign(client)

    assert (
        headers["Authorization"]
        == "Basic " + base64.b64encode(b"cid-1:p@ss:word").decode()
    )


def test_post_puts_the_secret_into_the_body_alone() -> None:
    client = make_client(token_endpoint_auth_method="client_secret_post")

    headers, form = sign(client)

    assert headers == {}
    assert form == {**dict(FORM), "client_id": "cid-1", "client_secret": SECRET}


def test_a_public_client_names_itself_and_nothing_else() -> None:
    headers, form = sign(make_client(client_secret=None))

    assert headers == {}
    assert form == {**dict(FORM), "client_id": "cid-1"}


@pytest.mark.parametrize(
    ("settings", "listed", "method"),
    [
        ({}, None, "client_secret_basic"),
        ({}, [], "client_secret_basic"),
        ({}, ["client_secret_post"], "client_secret_post"),
        ({}, ["client_secret_post", "client_secret_basic"], "client_secret_basic"),
        ({}, ["client_secret_jwt"], "client_secret_jwt"),
        ({"private_key": keys.P256}, None, "private_key_jwt"),
        ({"private_key": keys.P256}, ["client_secret_post"], "client_secret_post"),
        ({"client_secret": None}, ["client_secret_basic"], "none"),
        ({"signing_algorithm": "HS256"}, None, "client_secret_jwt"),
        (
            {"private_key": keys.P256, "signing_algorithm": "ES256"},
            ["client_secret_basic", "private_key_jwt"],
            "private_key_jwt",
        ),
        (
            {"token_endpoint_auth_method": "client_secret_post"},
            ["private_key_jwt"],
            "client_secret_post",
        ),
    ],
)
def test_the_method_fits_credentials_and_metadata(
    settings: dict[str, object], listed: list[str] | None, method: str
) -> None:
    client = make_client(**settings)
    metadata = make_metadata(client, token_endpoint_auth_methods_supported=listed)

    assert select_auth_method(client, metadata) == method


def test_a_server_that_lists_only_other_methods_is_a_wrong_setting() -> None:
    client = make_client()
    metadata = make_metadata(
        client, token_endpoint_auth_methods_supported=["private_key_jwt"]
    )

    with pytest.raises(MisconfiguredError) as caught:
        select_auth_method(client, metadata)

    assert caught.value.setting == "token_endpoint_auth_method"
    assert "private_key_jwt" in str(caught.value)


def test_revocation_has_a_list_of_its_own_or_takes_the_other() -> None:
    client = make_client()
    own = make_metadata(
        client,
        token_endpoint_auth_methods_supported=["client_secret_basic"],
        revocation_endpoint_auth_methods_supported=["client_secret_post"],
    )
    without = make_metadata(
        client, token_endpoint_auth_methods_supported=["client_secret_post"]
    )

    assert select_auth_method(client, own) == "client_secret_basic"
    assert select_auth_method(client, own, "revocation") == "client_secret_post"
    assert select_auth_method(client, without, "revocation") == "client_secret_post"


def test_a_missing_credential_is_a_wrong_setting() -> None:
    client = make_client(client_secret=lambda: "abc")

    with pytest.raises(MisconfiguredError) as caught:
        authenticate(client, make_metadata(client), None, FORM, now=NOW, rng=rng())

    assert caught.value.setting == "client_secret"


@pytest.mark.parametrize("endpoint", ["token", "revocation"])
def test_an_assertion_says_who_for_whom_and_how_long(endpoint: str) -> None:
    client = make_client(client_secret=None, private_key=keys.P256, private_key_id="k1")

    header, claims = read_assertion(client, endpoint=endpoint, now=NOW + 0.9)

    assert header == {"alg": "ES256", "kid": "k1", "typ": "client-authentication+jwt"}
    assert len(claims.pop("jti")) == 40
    assert claims == {
        "iss": "cid-1",
        "sub": "cid-1",
        "aud": ISSUER,
        "iat": int(NOW),
        "exp": int(NOW) + 60,
    }


@pytest.mark.parametrize(
    ("audience", "expected"),
    [
        ("issuer", ISSUER),
        ("token_endpoint", "https://idp.test/token"),
        ("https://old.test/aud", "https://old.test/aud"),
    ],
)
def test_another_audience_takes_an_option(audience: str, expected: str) -> None:
    client = make_client(
        private_key=keys.P256,
        client_assertion_audience=audience,
        client_assertion_typ=None,
    )

    header, claims = read_assertion(client, endpoint="revocation")

    assert claims["aud"] == expected
    assert "typ" not in header


def test_every_assertion_has_an_identifier_of_its_own() -> None:
    client = make_client(private_key=keys.ED25519)
    generator = rng()

    found = {read_assertion(client, generator=generator)[1]["jti"] for _ in range(1000)}

    assert len(found) == 1000


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (keys.RSA, name)
        for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
    ]
    + [
        (keys.P256, "ES256"),
        (keys.P384, "ES384"),
        (keys.P521, "ES512"),
        (keys.ED25519, "EdDSA"),
        (keys.ED25519, "Ed25519"),
        (keys.ED448, "EdDSA"),
        (keys.ED448, "Ed448"),
    ],
    ids=count(),
)
def test_signatures_verify_with_the_public_key(key: Anything, algorithm: str) -> None:
    client = make_client(private_key=key, signing_algorithm=algorithm)

    _, form = sign(client)

    header = jwt.get_unverified_header(form["client_assertion"])
    assert header["alg"] == algorithm
    name = "EdDSA" if algorithm.startswith("Ed") else algorithm
    signed, _, signature = form["client_assertion"].rpartition(".")
    verifier = jwt.get_algorithm_by_name(name)
    raw = base64.urlsafe_b64decode(signature + "==")
    assert verifier.verify(signed.encode(), key.public_key(), raw)
    assert not verifier.verify(signed.encode() + b"x", key.public_key(), raw)


@pytest.mark.parametrize(
    ("key", "listed", "algorithm"),
    [
        (keys.RSA, None, "RS256"),
        (keys.RSA, ["ES256", "PS384", "PS256"], "PS256"),
        (keys.P384, ["RS256", "ES384"], "ES384"),
        (keys.ED25519, ["Ed25519"], "Ed25519"),
    ],
    ids=count(),
)
def test_the_algorithm_fits_key_and_metadata(
    key: Anything, listed: list[str] | None, algorithm: str
) -> None:
    header, _ = read_assertion(
        make_client(private_key=key),
        token_endpoint_auth_signing_alg_values_supported=listed,
    )

    assert header["alg"] == algorithm


def test_an_algorithm_that_is_not_listed_takes_an_explicit_word() -> None:
    listed: dict[str, Anything] = {
        "token_endpoint_auth_signing_alg_values_supported": ["ES256"]
    }
    with pytest.raises(MisconfiguredError) as caught:
        sign(make_client(private_key=keys.RSA), **listed)

    named = make_client(private_key=keys.RSA, signing_algorithm="RS256")
    header, _ = read_assertion(named, **listed)

    assert caught.value.setting == "signing_algorithm"
    assert header["alg"] == "RS256"


@pytest.mark.parametrize(
    ("algorithm", "octets"), [("HS256", 32), ("HS384", 48), ("HS512", 64)]
)
def test_a_short_secret_signs_nothing(algorithm: str, octets: int) -> None:
    """The length counts in octets: "é" has two."""

    def client(secret: str) -> OAuthClient:
        return make_client(client_secret=secret, signing_algorithm=algorithm)

    with pytest.raises(MisconfiguredError) as caught:
        sign(client("x" * (octets - 1)))
    _, form = sign(client("é" + "x" * (octets - 2)))

    assert caught.value.setting == "client_secret"
    jwt.decode(
        form["client_assertion"],
        ("é" + "x" * (octets - 2)).encode(),
        algorithms=[algorithm],
        audience=ISSUER,
        options={"verify_exp": False, "verify_iat": False},
    )


def test_the_hmac_fits_secret_and_metadata() -> None:
    method = {"token_endpoint_auth_method": "client_secret_jwt"}
    listed: dict[str, Anything] = {
        "token_endpoint_auth_signing_alg_values_supported": ["HS512", "HS384"]
    }

    header, _ = read_assertion(make_client(client_secret="x" * 48, **method), **listed)
    first, _ = read_assertion(make_client(client_secret="x" * 48, **method))

    assert header["alg"] == "HS384"
    assert first["alg"] == "HS256"
    with pytest.raises(MisconfiguredError) as caught:
        sign(make_client(client_secret="x" * 32, **method), **listed)
    assert caught.value.setting == "signing_algorithm"


@pytest.mark.parametrize(
    ("source", "algorithms"),
    [
        (keys.RSA_PEM, 6),
        (keys.RSA_PEM.encode(), 6),
        (Secret(keys.RSA_PEM), 6),
        (keys.RSA, 6),
        (keys.jwk_of(keys.RSA), 6),
        ({**keys.jwk_of(keys.RSA), "alg": "PS256", "use": "sig"}, 1),
        (keys.jwk_of(keys.P256), 1),
        (keys.jwk_of(keys.ED25519), 2),
        (keys.pem_of(keys.ED448), 2),
    ],
    ids=count(),
)
def test_a_key_is_taken_in_every_form(source: Anything, algorithms: int) -> None:
    key = prepare_signing_key(source)

    assert len(key.algorithms) == algorithms
    assert key.fingerprint == prepare_signing_key(key).fingerprint


@pytest.mark.parametrize(
    "source",
    [
        "",
        "not PEM",
        b"\xff",
        7,
        keys.public_pem_of(keys.RSA),
        keys.pem_of(keys.RSA, b"password"),
        keys.RSA.public_key(),
        keys.WEAK_RSA,
        keys.pem_of(keys.WEAK_RSA),
        keys.K256,
        keys.jwk_of(keys.K256),
        {},
        {"kty": []},
        {"kty": "oct", "k": "eA"},
        {"kty": "RSA", "n": 1, "e": None},
        {**keys.jwk_of(keys.RSA), "d": "AQAB"},
        {**keys.jwk_of(keys.RSA), "use": "enc"},
        {**keys.jwk_of(keys.RSA), "alg": "ES256"},
        {**keys.jwk_of(keys.P256), "crv": "P-999"},
        {**keys.jwk_of(keys.P256), "d": "!"},
        {
            name: text
            for name, text in keys.jwk_of(keys.RSA).items()
            if name in "kty n e"
        },
    ],
    ids=count(),
)
def test_what_cannot_sign_is_refused_without_a_trace_of_it(source: Anything) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        make_client(private_key=source)

    assert caught.value.setting == "private_key"
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("settings", "kid"),
    [
        ({"private_key": {**keys.jwk_of(keys.P256), "kid": "own"}}, "own"),
        (
            {
                "private_key": {**keys.jwk_of(keys.P256), "kid": "own"},
                "private_key_id": "given",
            },
            "given",
        ),
        ({"private_key": keys.P256}, None),
    ],
)
def test_the_kid_is_the_one_given_else_the_key_s_own(
    settings: dict[str, object], kid: str | None
) -> None:
    header, _ = read_assertion(make_client(**settings))

    assert header.get("kid") == kid


@pytest.mark.parametrize("kid", ["", 7])
def test_a_bad_kid_is_refused(kid: Anything) -> None:
    for settings in (
        {"private_key": keys.P256, "private_key_id": kid},
        {"private_key": {**keys.jwk_of(keys.P256), "kid": kid}},
    ):
        with pytest.raises(MisconfiguredError):
            make_client(**settings)


def test_the_fingerprint_changes_with_the_credential_alone() -> None:
    def fingerprint(client: OAuthClient, secret: str | None = SECRET) -> str:
        return credential_fingerprint(
            client, None if secret is None else Secret(secret)
        )

    client = make_client()
    found = [
        fingerprint(client),
        fingerprint(client, "other"),
        fingerprint(client, None),
        fingerprint(make_client(token_endpoint_auth_method="client_secret_post")),
        fingerprint(make_client(private_key=keys.P256)),
        fingerprint(make_client(private_key=keys.P256, private_key_id="k1")),
        fingerprint(make_client(private_key=keys.P384)),
    ]

    assert len(set(found)) == len(found)
    assert fingerprint(make_client(default_lifetime=60)) == found[0]
    assert not any(SECRET in text for text in found)

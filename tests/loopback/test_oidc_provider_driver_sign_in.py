"""The driver's part in sign-ins: browser, ID tokens, key rotation, codes, clock.

What comes out is checked with PyJWT, so that the library under test can disagree.
"""

from __future__ import annotations

import base64
import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import jwt
import pytest

from tests.servers.oidc_provider_driver import (
    JWT_RESOURCE,
    OPAQUE_RESOURCE,
    Browser,
    IssuedCode,
    OidcProvider,
    ServerError,
    hash_token,
)

pytestmark = pytest.mark.loopback

BASIC = "client_secret_basic"
REDIRECT_URI = "http://127.0.0.1:8765/callback"
# Header `alg`, and the hash of `at_hash` (OIDC Core 3.1.3.6; SHA-512 for Ed25519).
ALGORITHMS = {
    "RS256": "sha256",
    "PS256": "sha256",
    "ES256": "sha256",
    "EdDSA": "sha512",
    "Ed25519": "sha512",
}


# ---------------------------------------------------------------- the browser


def test_the_browser_brings_the_callback_back(oidc_provider: OidcProvider) -> None:
    """With code, state and issuer, and the server has seen who asked for what."""
    url = authorization_url(oidc_provider, state="s-1")

    callback = oidc_provider.sign_in_at(url, user="alice")

    assert callback.startswith(f"{REDIRECT_URI}?")
    answer = query_of(callback)
    assert answer["state"] == "s-1"
    assert answer["iss"] == oidc_provider.issuer
    assert set(answer) == {"code", "state", "iss"}
    first, *resumed = oidc_provider.log("authorization")
    assert (first.client_id, first.scope, first.status) == (BASIC, "openid", 303)
    assert resumed == []


def test_the_browser_says_who_signs_in(oidc_provider: OidcProvider) -> None:
    """The user of the browser, else the ``login_hint``, else ``user-1``."""

    def subject(user: str | None, **parameters: str) -> str:
        url = authorization_url(oidc_provider, **parameters)
        code = query_of(oidc_provider.sign_in_at(url, user))["code"]
        issued = IssuedCode(code, VERIFIER, REDIRECT_URI)
        return str(checked(oidc_provider, oidc_provider.redeem(BASIC, issued))["sub"])

    assert subject("alice", login_hint="bob") == "alice"
    assert subject(None, login_hint="bob") == "bob"
    assert subject(None) == "user-1"


def test_a_user_can_refuse(oidc_provider: OidcProvider) -> None:
    url = authorization_url(oidc_provider, state="s-1")

    answer = query_of(oidc_provider.sign_in_at(url, refusal="access_denied"))

    assert answer["error"] == "access_denied"
    assert (answer["state"], answer["iss"]) == ("s-1", oidc_provider.issuer)
    assert "code" not in answer


def test_a_browser_remembers_its_user(oidc_provider: OidcProvider) -> None:
    """`prompt=none` succeeds where a session is, and nowhere else."""
    silent = authorization_url(oidc_provider, prompt="none")
    with Browser(user="alice") as browser:
        before = query_of(oidc_provider.sign_in_at(silent, browser=browser))
        oidc_provider.sign_in_at(authorization_url(oidc_provider), browser=browser)
        after = query_of(oidc_provider.sign_in_at(silent, browser=browser))
    elsewhere = query_of(oidc_provider.sign_in_at(silent, user="alice"))

    assert before["error"] == elsewhere["error"] == "login_required"
    assert "code" in after


def test_the_answer_comes_as_a_form(oidc_provider: OidcProvider) -> None:
    """The browser reads the form that the page would have submitted."""
    url = authorization_url(oidc_provider, state="s-1", response_mode="form_post")
    with Browser(user="alice") as browser:
        answer = browser.open_form(url)
        with pytest.raises(ServerError, match="open_form"):
            browser.open(url)

    assert answer["state"] == "s-1"
    assert set(answer) == {"code", "state", "iss"}


def test_a_page_instead_of_a_redirect_is_an_error(oidc_provider: OidcProvider) -> None:
    """An unknown client never gets to a redirect URI."""
    url = authorization_url(oidc_provider, client_id="nobody")

    with pytest.raises(ServerError, match="invalid_client"):
        oidc_provider.sign_in_at(url)


def test_a_user_signs_out_at_the_server(oidc_provider: OidcProvider) -> None:
    """The session is gone, and the grant without ``offline_access`` with it."""
    with Browser(user="alice") as browser:
        url = authorization_url(oidc_provider)
        code = query_of(oidc_provider.sign_in_at(url, browser=browser))["code"]
        issued = IssuedCode(code, VERIFIER, REDIRECT_URI)
        tokens = oidc_provider.redeem(BASIC, issued).json()
        signed_out = "http://127.0.0.1/signed-out"
        query = {
            "id_token_hint": tokens["id_token"],
            "post_logout_redirect_uri": signed_out,
            "state": "s-2",
        }
        url = str(httpx.URL(oidc_provider.endpoint("end_session"), params=query))

        back = browser.open(url, signed_out)
        silent = authorization_url(oidc_provider, prompt="none")
        after = query_of(browser.open(silent))

    assert back == f"{signed_out}?state=s-2"
    assert after["error"] == "login_required"
    assert oidc_provider.userinfo(tokens["access_token"]).status_code == 401


# ---------------------------------------------------------------- ID tokens


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_id_tokens_in_every_algorithm(oidc_provider: OidcProvider, alg: str) -> None:
    """One client each; nonce and hash are there, also after a refresh."""
    client = f"id_token_{alg.lower()}"
    oidc_provider.configure(at_hash=True, id_token_ttl=60)
    before = time.time()

    tokens = oidc_provider.sign_in(client, user="alice", nonce="n-1", max_age="60")
    refreshed = oidc_provider.refresh(client, tokens["refresh_token"]).json()

    assert oidc_provider.client(client).id_token_signed_response_alg == alg
    for answer in (tokens, refreshed):
        header = jwt.get_unverified_header(answer["id_token"])
        assert header["alg"] == alg
        claims = decode(oidc_provider, answer["id_token"], client)
        assert (claims["sub"], claims["nonce"]) == ("alice", "n-1")
        assert claims["at_hash"] == half_hash(alg, answer["access_token"])
        assert int(before) <= claims["auth_time"] <= claims["iat"]
        assert claims["exp"] == claims["iat"] + 60


def test_by_itself_the_server_sends_no_at_hash(oidc_provider: OidcProvider) -> None:
    """It is optional at the token endpoint (OIDC Core 3.1.3.6)."""
    tokens = oidc_provider.sign_in(BASIC)

    assert "at_hash" not in decode(oidc_provider, tokens["id_token"])


def test_the_log_names_code_and_signing_key(oidc_provider: OidcProvider) -> None:
    """So that a test can count how often a code was sent."""
    issued = oidc_provider.get_code(BASIC)

    oidc_provider.redeem(BASIC, issued)

    [entry] = oidc_provider.log("token")
    assert entry.code_sha256 == hash_token(issued.code)
    assert entry.id_token_kid == "rs256"


def test_userinfo_tells_of_the_same_user(oidc_provider: OidcProvider) -> None:
    tokens = oidc_provider.sign_in(BASIC, scope="openid email profile", user="alice")

    info = oidc_provider.userinfo(tokens["access_token"]).json()

    assert info["sub"] == decode(oidc_provider, tokens["id_token"])["sub"] == "alice"
    assert info["email"] == "alice@example.test"


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_access_tokens_for_an_api_are_jwts(
    oidc_provider: OidcProvider, alg: str
) -> None:
    """Signed as the client's ID tokens, and for that API only (RFC 9068)."""
    client = f"id_token_{alg.lower()}"
    issued = oidc_provider.get_code(client, scope="openid api", resource=JWT_RESOURCE)

    tokens = oidc_provider.redeem(client, issued, resource=JWT_RESOURCE).json()

    token = tokens["access_token"]
    assert jwt.get_unverified_header(token)["typ"] == "at+jwt"
    assert jwt.get_unverified_header(token)["alg"] == alg
    claims = decode(oidc_provider, token, JWT_RESOURCE)
    assert (claims["client_id"], claims["scope"]) == (client, "api")
    assert claims["exp"] == claims["iat"] + 5


def test_access_tokens_for_another_api_are_opaque(oidc_provider: OidcProvider) -> None:
    answers = [
        oidc_provider.token_request(
            BASIC, grant_type="client_credentials", scope="api", resource=resource
        )
        for resource in (JWT_RESOURCE, OPAQUE_RESOURCE, "https://api.example.test/")
    ]

    assert [answer.json().get("error") for answer in answers] == [
        None,
        None,
        "invalid_target",
    ]
    assert [a.json()["access_token"].count(".") for a in answers[:2]] == [2, 0]


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_overlapping_rotation(oidc_provider: OidcProvider, alg: str) -> None:
    """The new key signs, and what the old one signed still verifies."""
    client = f"id_token_{alg.lower()}"
    old = oidc_provider.sign_in(client)
    kids = oidc_provider.rotate_keys("overlap")
    new = oidc_provider.refresh(client, old["refresh_token"]).json()

    assert [key["kid"] for key in oidc_provider.published_keys()] == kids
    assert len(kids) == 6
    assert kid_of(new["id_token"]) == f"{kid_of(old['id_token'])}-1"
    for tokens in (old, new):
        decode(oidc_provider, tokens["id_token"], client)


def test_hard_rotation(oidc_provider: OidcProvider) -> None:
    """The old key is nowhere to be found, also one that was kept before."""
    old = oidc_provider.sign_in(BASIC)
    oidc_provider.rotate_keys("overlap")
    kids = oidc_provider.rotate_keys("hard")
    new = oidc_provider.refresh(BASIC, old["refresh_token"]).json()

    assert kids == ["rs256-2", "es256-2", "eddsa-2"]
    assert kid_of(new["id_token"]) == "rs256-2"
    decode(oidc_provider, new["id_token"])
    with pytest.raises(LookupError):
        decode(oidc_provider, old["id_token"])


def test_rotation_under_the_same_name(oidc_provider: OidcProvider) -> None:
    """Name and type are the old ones, the key is not."""
    old = oidc_provider.sign_in(BASIC)
    before = oidc_provider.published_keys()
    kids = oidc_provider.rotate_keys("same_kid")
    new = oidc_provider.refresh(BASIC, old["refresh_token"]).json()
    after = oidc_provider.published_keys()

    assert kids == [key["kid"] for key in before] == [key["kid"] for key in after]
    assert [key["kty"] for key in before] == [key["kty"] for key in after]
    assert all(a != b for a, b in zip(before, after, strict=True))
    decode(oidc_provider, new["id_token"])
    with pytest.raises(jwt.InvalidSignatureError):
        decode(oidc_provider, old["id_token"])


def test_a_reset_brings_the_first_keys_back(oidc_provider: OidcProvider) -> None:
    before = oidc_provider.published_keys()
    oidc_provider.rotate_keys("hard")

    oidc_provider.reset()

    assert oidc_provider.published_keys() == before
    decode(oidc_provider, oidc_provider.sign_in(BASIC)["id_token"])


def test_sign_ins_go_on_over_a_rotation(oidc_provider: OidcProvider) -> None:
    """Browser sessions, codes and refresh tokens of before are good afterwards."""
    with Browser(user="alice") as browser:
        oidc_provider.sign_in_at(authorization_url(oidc_provider), browser=browser)
        issued = oidc_provider.get_code(BASIC)
        oidc_provider.rotate_keys("hard")
        silent = authorization_url(oidc_provider, prompt="none")
        again = query_of(oidc_provider.sign_in_at(silent, browser=browser))

    tokens = oidc_provider.redeem(BASIC, issued).json()
    assert "code" in again
    assert kid_of(tokens["id_token"]) == "rs256-1"
    assert oidc_provider.userinfo(tokens["access_token"]).status_code == 200


def test_rotations_among_twenty_calls_lose_none(oidc_provider: OidcProvider) -> None:
    """Each token verifies with one of the key sets that were published meanwhile."""
    sets = [oidc_provider.published_keys()]
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(oidc_provider.sign_in, BASIC) for _ in range(20)]
        for kind in ("overlap", "hard", "same_kid"):
            oidc_provider.rotate_keys(kind)
            sets.append(oidc_provider.published_keys())
        answers = [call.result() for call in calls]

    assert len(answers) == 20
    for answer in answers:
        assert any(verifies(oidc_provider, answer["id_token"], keys) for keys in sets)


def test_an_unknown_rotation_is_refused(oidc_provider: OidcProvider) -> None:
    before = oidc_provider.published_keys()

    with pytest.raises(ServerError, match="a rotation is"):
        oidc_provider.rotate_keys("soft")  # type: ignore[arg-type]  # that is the test

    assert oidc_provider.published_keys() == before


# ---------------------------------------------------------------- codes


def test_an_expired_code_is_refused(oidc_provider: OidcProvider) -> None:
    """Shortly before its end it is good, at its end it is not."""
    oidc_provider.configure(authorization_code_ttl=30)
    good, late = oidc_provider.get_code(BASIC), oidc_provider.get_code(BASIC)

    oidc_provider.shift_clock(25)
    accepted = oidc_provider.redeem(BASIC, good)
    oidc_provider.shift_clock(30)
    refused = oidc_provider.redeem(BASIC, late)

    assert accepted.status_code == 200
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_grant")


def test_a_reused_code_ends_the_grant(oidc_provider: OidcProvider) -> None:
    """The second use is refused, and the tokens of the first are dead."""
    issued = oidc_provider.get_code(BASIC)
    tokens = oidc_provider.redeem(BASIC, issued).json()

    again = oidc_provider.redeem(BASIC, issued)

    assert (again.status_code, again.json()["error"]) == (400, "invalid_grant")
    assert oidc_provider.refresh(BASIC, tokens["refresh_token"]).status_code == 400
    assert oidc_provider.userinfo(tokens["access_token"]).status_code == 401


def test_a_wrong_verifier_is_refused(oidc_provider: OidcProvider) -> None:
    """The server does check PKCE."""
    issued = oidc_provider.get_code(BASIC)
    wrong = IssuedCode(issued.code, "w" * 43, issued.redirect_uri)

    answer = oidc_provider.redeem(BASIC, wrong)

    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")


# ---------------------------------------------------------------- clock


@pytest.mark.parametrize("offset", [-120, -20, 20, 120])
def test_a_shifted_clock(oidc_provider: OidcProvider, offset: int) -> None:
    """Claims and the ``Date`` header follow, the log keeps the machine's time."""
    oidc_provider.shift_clock(offset)

    before = time.time()
    tokens = oidc_provider.sign_in(BASIC)
    answer = oidc_provider.userinfo(tokens["access_token"])
    after = time.time()

    claims = jwt.decode(tokens["id_token"], options={"verify_signature": False})
    assert int(before) <= claims["iat"] - offset <= after
    date = parsedate_to_datetime(answer.headers["Date"]).timestamp()
    assert int(before) <= date - offset <= after
    assert answer.status_code == 200
    assert all(before - 0.01 < entry.at < after + 0.01 for entry in oidc_provider.log())


def test_a_reset_puts_the_clock_right(oidc_provider: OidcProvider) -> None:
    oidc_provider.shift_clock(3600)
    oidc_provider.reset()

    tokens = oidc_provider.sign_in(BASIC)

    assert abs(decode(oidc_provider, tokens["id_token"])["iat"] - time.time()) < 5


# ---------------------------------------------------------------- helpers

VERIFIER = "v" * 43


def authorization_url(server: OidcProvider, **parameters: str) -> str:
    """Build a request by hand, as the library under test would."""
    digest = hashlib.sha256(VERIFIER.encode()).digest()
    query = {
        "client_id": BASIC,
        "redirect_uri": REDIRECT_URI,
        "response_type": "code",
        "scope": "openid",
        "code_challenge": base64url(digest),
        "code_challenge_method": "S256",
        **parameters,
    }
    return str(httpx.URL(server.endpoint("authorization"), params=query))


def query_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


def kid_of(token: str) -> str:
    return str(jwt.get_unverified_header(token)["kid"])


def checked(server: OidcProvider, response: httpx.Response) -> dict[str, Any]:
    """Return the claims of the ID token in a token response."""
    return decode(server, response.json()["id_token"])


def decode(server: OidcProvider, token: str, client: str = BASIC) -> dict[str, Any]:
    """Verify an ID token with the keys that are published now.

    Raises:
        LookupError: No published key has its ``kid``.
    """
    return decode_with(server, token, server.published_keys(), client)


def decode_with(
    server: OidcProvider, token: str, keys: list[dict[str, Any]], client: str = BASIC
) -> dict[str, Any]:
    header = jwt.get_unverified_header(token)
    by_kid = {key["kid"]: key for key in keys}
    alg = {"Ed25519": "EdDSA"}.get(header["alg"], header["alg"])
    key = jwt.PyJWK(by_kid[header["kid"]], algorithm=alg)
    signed = jwt.api_jws.PyJWS()
    signed.register_algorithm("Ed25519", jwt.get_algorithm_by_name("EdDSA"))
    assert signed.decode(token, key.key, [header["alg"]])
    claims: dict[str, Any] = jwt.decode(
        token,
        options={"verify_signature": False, "verify_exp": True, "verify_aud": True},
        audience=client,
        issuer=server.issuer,
    )
    return claims


def verifies(server: OidcProvider, token: str, keys: list[dict[str, Any]]) -> bool:
    try:
        decode_with(server, token, keys)
    except (LookupError, jwt.InvalidSignatureError):
        return False
    return True


def half_hash(alg: str, value: str) -> str:
    digest = hashlib.new(ALGORITHMS[alg], value.encode()).digest()
    return base64url(digest[: len(digest) // 2])


def base64url(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

"""The driver of the real OpenID Provider does what the tests on it rely on."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from tests.servers import availability, oidc_provider_install
from tests.servers.oidc_provider_driver import (
    OidcProvider,
    RegisteredClient,
    ServerError,
    hash_token,
)

pytestmark = pytest.mark.loopback

CONFIDENTIAL = [
    "client_secret_basic",
    "client_secret_post",
    "client_secret_jwt",
    "private_key_jwt_rs256",
    "private_key_jwt_es256",
    "special_characters",
]
BASIC = "client_secret_basic"


@pytest.mark.parametrize("client", [*CONFIDENTIAL, "none"])
def test_a_user_signs_in_and_the_refresh_token_rotates(
    oidc_provider: OidcProvider, client: str
) -> None:
    """Each client gets a code, tokens of 5 s, and a new refresh token each time."""
    tokens = oidc_provider.sign_in(client, user="user-7")
    refreshed = oidc_provider.refresh(client, tokens["refresh_token"]).json()

    assert tokens["expires_in"] == refreshed["expires_in"] == 5
    assert tokens["scope"] == "openid offline_access"
    claims = jwt.decode(tokens["id_token"], options={"verify_signature": False})
    assert claims["iss"] == oidc_provider.issuer
    assert claims["sub"] == "user-7"
    assert refreshed["access_token"] != tokens["access_token"]
    assert refreshed["refresh_token"] != tokens["refresh_token"]


def test_the_log_tells_one_request_from_another(oidc_provider: OidcProvider) -> None:
    """An entry has the grant, the client, the token spent and its successor."""
    before = time.time()
    tokens = oidc_provider.sign_in(BASIC)
    refreshed = oidc_provider.refresh(BASIC, tokens["refresh_token"]).json()

    code, refresh = oidc_provider.log("token")
    assert code.grant_type == "authorization_code"
    assert refresh.grant_type == "refresh_token"
    assert before - 0.01 < code.at <= refresh.at < time.time() + 0.01
    assert refresh.client_id == BASIC
    assert refresh.client_auth == "basic"
    assert refresh.refresh_token_sha256 == hash_token(tokens["refresh_token"])
    assert refresh.issued_refresh_token_sha256 == hash_token(refreshed["refresh_token"])
    assert (refresh.status, refresh.error, refresh.fault) == (200, None, None)
    assert refresh.processed
    assert refresh.answered
    assert oidc_provider.log("token", grant_type="refresh_token") == [refresh]


def test_the_log_knows_a_client_with_special_characters(
    oidc_provider: OidcProvider,
) -> None:
    """The id is decoded from Basic as the server decodes it."""
    client = oidc_provider.client("special_characters")

    response = oidc_provider.token_request(
        "special_characters", grant_type="client_credentials"
    )

    assert response.status_code == 200
    assert set(":%+&/? ") <= set(client.client_id) & set(client.client_secret or "")
    [entry] = oidc_provider.log("token")
    assert entry.client_id == client.client_id


@pytest.mark.parametrize("client", CONFIDENTIAL)
def test_client_credentials_with_every_method(
    oidc_provider: OidcProvider, client: str
) -> None:
    """Each confidential client gets a token for itself, without a refresh token."""
    response = oidc_provider.token_request(client, grant_type="client_credentials")

    assert response.status_code == 200
    assert response.json()["expires_in"] == 5
    assert "refresh_token" not in response.json()


def test_a_wrong_secret_is_refused(oidc_provider: OidcProvider) -> None:
    """The answer is 401 `invalid_client`, with a challenge."""
    right = oidc_provider.client(BASIC)
    oidc_provider.clients["wrong"] = RegisteredClient(
        right.client_id, right.token_endpoint_auth_method, client_secret="wrong"
    )

    response = oidc_provider.token_request("wrong", grant_type="client_credentials")

    assert response.status_code == 401
    assert response.json()["error"] == "invalid_client"
    assert response.headers["WWW-Authenticate"].startswith("Basic ")
    [entry] = oidc_provider.log("token")
    assert (entry.client_id, entry.error) == (BASIC, "invalid_client")


def test_letters_beyond_ascii_are_refused_in_credentials(
    oidc_provider: OidcProvider,
) -> None:
    """The server takes no such client, and calls such credentials malformed."""
    with pytest.raises(ServerError, match="invalid client_id value"):
        oidc_provider.register(client_id="naïve", client_secret="s" * 40)
    with pytest.raises(ServerError, match="invalid client_secret value"):
        oidc_provider.register(client_id="naive", client_secret="ß" * 40)
    oidc_provider.clients["odd"] = RegisteredClient("naïve", BASIC, "ß")

    response = oidc_provider.token_request("odd", grant_type="client_credentials")

    assert response.status_code == 400
    assert response.json()["error"] == "invalid_request"


def test_a_client_can_be_added(oidc_provider: OidcProvider) -> None:
    """It lives until the next reset."""
    oidc_provider.register(
        client_id="es256",
        client_secret="s" * 40,
        redirect_uris=["http://127.0.0.1/elsewhere"],
        id_token_signed_response_alg="ES256",
    )

    tokens = oidc_provider.sign_in("es256", "http://127.0.0.1:9/elsewhere")
    oidc_provider.reset()

    assert jwt.get_unverified_header(tokens["id_token"])["alg"] == "ES256"
    assert "es256" not in oidc_provider.clients
    with pytest.raises(ServerError, match="no client 'es256'"):
        oidc_provider.sign_in("es256")


def test_reuse_of_a_refresh_token_ends_the_grant(oidc_provider: OidcProvider) -> None:
    """The successor is dead too, and so is its access token."""
    first = oidc_provider.sign_in(BASIC)["refresh_token"]
    second = oidc_provider.refresh(BASIC, first).json()

    reuse = oidc_provider.refresh(BASIC, first)
    successor = oidc_provider.refresh(BASIC, second["refresh_token"])

    assert (reuse.status_code, reuse.json()["error"]) == (400, "invalid_grant")
    assert (successor.status_code, successor.json()["error"]) == (400, "invalid_grant")
    assert oidc_provider.userinfo(second["access_token"]).status_code == 401


def test_of_racing_refreshes_one_wins_and_its_tokens_are_dead(
    oidc_provider: OidcProvider,
) -> None:
    """Eight at once: one 200, seven 400, and the winner has nothing."""
    token = oidc_provider.sign_in(BASIC)["refresh_token"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: oidc_provider.refresh(BASIC, token), range(8))
        )

    assert sorted(a.status_code for a in answers) == [200] + [400] * 7
    [winner] = [a.json() for a in answers if a.status_code == 200]
    assert oidc_provider.refresh(BASIC, winner["refresh_token"]).status_code == 400


def test_access_tokens_end_on_the_second(oidc_provider: OidcProvider) -> None:
    """No tolerance: a token of one second is refused after it."""
    oidc_provider.configure(access_token_ttl=1)
    token = oidc_provider.sign_in(BASIC)["access_token"]

    fresh = oidc_provider.userinfo(token).status_code
    time.sleep(2)

    assert fresh == 200
    assert oidc_provider.userinfo(token).status_code == 401


def test_settings_last_until_the_reset(oidc_provider: OidcProvider) -> None:
    """Lifetime and rotation can be changed, and come back."""
    oidc_provider.configure(access_token_ttl=60, rotate_refresh_tokens=False)
    tokens = oidc_provider.sign_in(BASIC)
    again = [oidc_provider.refresh(BASIC, tokens["refresh_token"]) for _ in range(3)]
    oidc_provider.reset()
    after = oidc_provider.sign_in(BASIC)

    assert tokens["expires_in"] == 60
    assert {a.json()["refresh_token"] for a in again} == {tokens["refresh_token"]}
    assert after["expires_in"] == 5
    with pytest.raises(ServerError, match="no such setting"):
        oidc_provider.configure(acces_token_ttl=1)


def test_idle_connections_can_be_closed_early(oidc_provider: OidcProvider) -> None:
    """The server says for how long it keeps one."""
    default = httpx.get(oidc_provider.endpoint("jwks"), trust_env=False)
    oidc_provider.configure(keep_alive_ms=1000)
    shorter = httpx.get(oidc_provider.endpoint("jwks"), trust_env=False)

    assert default.headers["Keep-Alive"] == "timeout=5"
    assert shorter.headers["Keep-Alive"] == "timeout=1"


def test_an_administrator_ends_one_grant_of_two(oidc_provider: OidcProvider) -> None:
    """Only the tokens of that grant are dead."""
    mine = oidc_provider.sign_in(BASIC, user="mine")
    other = oidc_provider.sign_in(BASIC, user="other")

    ended = oidc_provider.revoke(refresh_token=mine["refresh_token"])

    assert ended == 1
    assert oidc_provider.refresh(BASIC, mine["refresh_token"]).status_code == 400
    assert oidc_provider.userinfo(mine["access_token"]).status_code == 401
    assert oidc_provider.refresh(BASIC, other["refresh_token"]).status_code == 200
    assert oidc_provider.revoke(user="nobody") == 0
    assert oidc_provider.revoke(user="other", client_id=BASIC) == 1
    oidc_provider.sign_in("none")
    assert oidc_provider.revoke() == 1


def test_a_user_ends_a_session(oidc_provider: OidcProvider) -> None:
    """Revocation takes a refresh token, and introspection tells."""
    token = oidc_provider.sign_in(BASIC)["refresh_token"]

    before = oidc_provider.authenticated_post("introspection", BASIC, token=token)
    revoked = oidc_provider.authenticated_post("revocation", BASIC, token=token)
    after = oidc_provider.authenticated_post("introspection", BASIC, token=token)

    assert before.json()["active"] is True
    assert (revoked.status_code, revoked.text) == (200, "")
    assert after.json()["active"] is False


def test_a_reset_forgets_everything(oidc_provider: OidcProvider) -> None:
    """Tokens, the log and queued faults are gone; the clients' secrets stay."""
    secret = oidc_provider.client(BASIC).client_secret
    token = oidc_provider.sign_in(BASIC)["refresh_token"]
    oidc_provider.fault(status=500)

    oidc_provider.reset()

    assert oidc_provider.log() == []
    assert oidc_provider.pending_faults() == []
    assert oidc_provider.client(BASIC).client_secret == secret
    assert oidc_provider.refresh(BASIC, token).status_code == 400


def test_two_answers_of_503_then_a_refresh(oidc_provider: OidcProvider) -> None:
    """The refresh token survives what the provider never saw."""
    token = oidc_provider.sign_in(BASIC)["refresh_token"]
    oidc_provider.fault(
        status=503, count=2, headers={"Retry-After": "1"}, body={"error": "busy"}
    )

    answers = [oidc_provider.refresh(BASIC, token) for _ in range(3)]

    assert [a.status_code for a in answers] == [503, 503, 200]
    assert answers[0].headers["Retry-After"] == "1"
    assert answers[0].json() == {"error": "busy"}
    entries = oidc_provider.log("token", grant_type="refresh_token")
    assert [(e.status, e.error, e.fault, e.processed) for e in entries] == [
        (503, "busy", "status 503", False),
        (503, "busy", "status 503", False),
        (200, None, None, True),
    ]


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_dropped_before_processing_costs_nothing(
    oidc_provider: OidcProvider, *, reset: bool
) -> None:
    """The refresh token is still good."""
    token = oidc_provider.sign_in(BASIC)["refresh_token"]
    oidc_provider.fault(drop="before", reset=reset)

    with pytest.raises(httpx.ReadError if reset else httpx.RemoteProtocolError):
        oidc_provider.refresh(BASIC, token)

    dropped = oidc_provider.log("token")[-1]
    assert (dropped.status, dropped.processed, dropped.answered) == (None, False, False)
    assert dropped.refresh_token_sha256 == hash_token(token)
    assert oidc_provider.refresh(BASIC, token).status_code == 200


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_dropped_after_processing_has_rotated(
    oidc_provider: OidcProvider, *, reset: bool
) -> None:
    """The answer is lost, and the old refresh token now ends the grant."""
    token = oidc_provider.sign_in(BASIC)["refresh_token"]
    oidc_provider.fault(drop="after", reset=reset)

    with pytest.raises(httpx.ReadError if reset else httpx.RemoteProtocolError):
        oidc_provider.refresh(BASIC, token)

    lost = oidc_provider.log("token")[-1]
    assert (lost.status, lost.processed, lost.answered) == (200, True, False)
    assert lost.issued_refresh_token_sha256 not in {None, hash_token(token)}
    assert oidc_provider.refresh(BASIC, token).json()["error"] == "invalid_grant"


def test_a_cut_connection(oidc_provider: OidcProvider) -> None:
    """Headers and half a body come, then the connection ends."""
    oidc_provider.fault(truncate="connection")

    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
        oidc_provider.token_request(BASIC, grant_type="client_credentials")


def test_a_cut_and_a_garbled_body(oidc_provider: OidcProvider) -> None:
    """Whole answers by their length, and no JSON by their content."""
    oidc_provider.fault(truncate="body")
    oidc_provider.fault(garble=True)

    for _ in range(2):
        response = oidc_provider.token_request(BASIC, grant_type="client_credentials")
        assert response.status_code == 200
        assert response.headers["Content-Length"] == str(len(response.content))
        with pytest.raises(ValueError, match=r"."):
            json.loads(response.content)


@pytest.mark.parametrize(
    ("when", "processed"), [("delay_ms", False), ("delay_after_ms", True)]
)
def test_a_delay_before_and_after_processing(
    oidc_provider: OidcProvider, when: str, *, processed: bool
) -> None:
    """A client that gives up early leaves a request behind that is carried out."""
    token = oidc_provider.sign_in(BASIC)["refresh_token"]
    headers, form = oidc_provider.client(BASIC).authenticate(oidc_provider.issuer)
    form |= {"grant_type": "refresh_token", "refresh_token": token}
    delay: dict[str, Any] = {when: 600}
    oidc_provider.fault(**delay)

    with httpx.Client(trust_env=False, timeout=0.2) as client:
        url = oidc_provider.endpoint("token")
        with pytest.raises(httpx.ReadTimeout):
            client.post(url, data=form, headers=headers)
    early = oidc_provider.log("token")[-1]
    _wait_for(lambda: oidc_provider.log("token")[-1].processed)

    assert early.processed is processed
    late = oidc_provider.log("token")[-1]
    assert (late.status, late.answered) == (200, False)


def test_a_fault_hits_only_what_it_names(oidc_provider: OidcProvider) -> None:
    """By grant, client, endpoint and turn."""
    token = oidc_provider.sign_in(BASIC)["refresh_token"]
    oidc_provider.fault(grant_type="refresh_token", client_id=BASIC, skip=1, status=500)
    oidc_provider.fault(endpoint="jwks", status=502, body="no JSON")

    other = oidc_provider.token_request(BASIC, grant_type="client_credentials")
    first = oidc_provider.refresh(BASIC, token)
    second = oidc_provider.refresh(BASIC, token)
    keys = httpx.get(oidc_provider.endpoint("jwks"), trust_env=False)

    codes = [answer.status_code for answer in (other, first, second, keys)]
    assert codes == [200, 200, 500, 502]
    assert keys.text == "no JSON"


def test_a_fault_with_a_typing_error_is_refused(oidc_provider: OidcProvider) -> None:
    """Nothing is queued for an endpoint that there is not."""
    with pytest.raises(ServerError, match="unknown endpoint"):
        oidc_provider.fault(endpoint="tokens", status=503)  # type: ignore[arg-type]

    assert oidc_provider.pending_faults() == []


def test_without_the_control_key_nothing_is_told(oidc_provider: OidcProvider) -> None:
    """The secrets of the clients are for the tests only."""
    url = f"{oidc_provider.issuer}/control/clients"

    assert httpx.get(url, trust_env=False).status_code == 403


def test_the_private_key_comes_as_jwk_and_as_pem(oidc_provider: OidcProvider) -> None:
    """Both forms sign for the same client."""
    client = oidc_provider.client("private_key_jwt_es256")

    signed = jwt.encode({"iss": "x"}, client.private_pem, "ES256")

    assert client.private_jwk is not None
    public = jwt.PyJWK(
        {key: value for key, value in client.private_jwk.items() if key != "d"}
    )
    assert jwt.decode(signed, public) == {"iss": "x"}


def test_the_server_ends_with_the_test_run(oidc_provider: OidcProvider) -> None:
    """A second one has its own port, and leaves when its standard input closes."""
    with OidcProvider.start(access_token_ttl=3) as second:
        assert second.port != oidc_provider.port
        assert second.sign_in("none")["expires_in"] == 3
        process = second._process  # as if the test run were killed
        assert process.stdin is not None
        process.stdin.close()

        assert process.wait(10) == 0


def test_without_npm_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Left out by default, a failure where everything is required."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(availability, "_left_out", {})
    with pytest.raises(availability.UnavailableError) as caught:
        oidc_provider_install.install()
    reason = str(caught.value)

    monkeypatch.setenv("FRESHTOKEN_REQUIRE", "")
    with pytest.raises(pytest.skip.Exception) as skipped:
        availability.leave_out("oidc-provider", reason)
    monkeypatch.setenv("FRESHTOKEN_REQUIRE", "all")
    with pytest.raises(pytest.fail.Exception):
        availability.leave_out("oidc-provider", reason)

    line = "left out: oidc-provider (npm is not on the PATH)"
    assert str(skipped.value) == line
    assert availability.left_out_line() == line


def test_an_old_node_is_told_from_a_new_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where npm has no Node for the machine, its own must be new enough."""
    fake = tmp_path / "node"
    fake.write_text("#!/bin/sh\necho v20.1.0\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(availability.UnavailableError, match="needs Node 22"):
        oidc_provider_install.find_node(tmp_path)

    fake.write_text("#!/bin/sh\necho v22.0.0\n")
    assert oidc_provider_install.find_node(tmp_path) == str(fake)


def test_a_failed_installation_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next try starts afresh."""

    def fail(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "npm error ENOTFOUND\nmore")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: "npm")
    monkeypatch.setattr(subprocess, "run", fail)

    with pytest.raises(availability.UnavailableError, match=r"ENOTFOUND$"):
        oidc_provider_install.install()

    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["lock"]
    assert list((tmp_path / "freshtoken-tests").glob("oidc-*")) == []


def _wait_for(condition: Callable[[], bool], seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)

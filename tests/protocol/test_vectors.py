"""The shared vector files, where they are at hand; the other tests carry their own."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus, urlencode

import pytest

from freshtoken._foundation.secret import Secret
from freshtoken._protocol.callback import check_callback, read_callback
from freshtoken._protocol.challenge import parse_challenges
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.client_auth import authenticate
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._protocol.metadata import (
    ServerMetadata,
    build_metadata,
    parse_metadata,
    well_known_url,
)
from freshtoken.errors import (
    AuthorizationResponseError,
    IssuerMismatchError,
    MisconfiguredError,
)
from tests.protocol.helpers import NOW, answer, make_client, rng
from tests.protocol.sign_ins import CODE, pending

VECTORS = Path(__file__).parents[3] / "shared" / "vectors" / "own"


def load(name: str) -> dict[str, Any]:
    path = VECTORS / name
    if not path.exists():
        pytest.skip(f"the vector file {name} is not beside this repository")
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_challenges() -> None:
    for case in load("www_authenticate_cases.json")["cases"]:
        found = [
            {
                "scheme": item.scheme,
                "parameters": dict(item.parameters),
                "token68": item.token68,
            }
            for item in parse_challenges(case["header_values"])
        ]
        if case["expected"] is not None:
            assert found == case["expected"], case["description"]


def test_client_secret_basic() -> None:
    for case in load("client_secret_basic_cases.json")["cases"]:
        client = make_client(client_id=case["client_id"])
        ((_, value),), _ = authenticate(
            client,
            build_metadata(client, {}),
            Secret(case["client_secret"]),
            (),
            now=NOW,
            rng=rng(),
        )
        decoded = base64.b64decode(value.removeprefix("Basic ")).decode()
        assert unquote_plus(decoded) == unquote_plus(case["decoded_userpass"])
        assert value == case["authorization"]


def test_authorization_response_iss() -> None:
    issuer = "https://op.example"
    name = "authorization_response_iss_parameter_supported"
    for case in load("authorization_response_iss_cases.json")["cases"]:
        wanted = pending(issuer=issuer)
        iss = case["received_iss"]
        pairs: list[tuple[str, str | None]]
        pairs = [("state", wanted.state), ("code", CODE)]
        pairs += [("iss", one) for one in (iss if isinstance(iss, list) else [iss])]
        pairs += [("error", case.get("error"))]
        query = urlencode([(key, value) for key, value in pairs if value is not None])
        server = ServerMetadata(issuer, {name: case[name]})
        if case["outcome"] == "reject":
            with pytest.raises(AuthorizationResponseError) as caught:
                check_callback(read_callback(query), wanted, server)
            assert caught.value.reason in ("issuer", "duplicate"), case
            assert caught.value.error is None
        elif "error" in case:
            with pytest.raises(ExchangeError) as failed:
                check_callback(read_callback(query), wanted, server)
            assert failed.value.failure.error == case["error"]
        else:
            assert check_callback(read_callback(query), wanted, server) == CODE, case


def test_well_known_urls() -> None:
    for case in load("well_known_url_cases.json")["well_known"]:
        issuer = OAuthClient(case["issuer"], client_id="a").issuer
        assert well_known_url(issuer, "oidc") == case["openid_configuration"]
        assert well_known_url(issuer, "oauth") == case["oauth_authorization_server"]


def test_invalid_issuers() -> None:
    for issuer in load("well_known_url_cases.json")["invalid_issuers"]:
        with pytest.raises(MisconfiguredError):
            OAuthClient(issuer, client_id="a")


def test_issuer_comparison() -> None:
    for case in load("well_known_url_cases.json")["issuer_comparison"]:
        client = OAuthClient(case["expected_issuer"], client_id="a")
        response = answer(200, {"issuer": case["received_issuer"]})
        if case["match"]:
            assert parse_metadata(response, client).issuer == case["expected_issuer"]
        else:
            with pytest.raises(IssuerMismatchError):
                parse_metadata(response, client)

"""Fetching a key set: what counts as one, and how long it keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._foundation.records import Failure
from freshtoken._protocol.advice import error_for
from freshtoken._protocol.exchange import ExchangeError, Response
from freshtoken._protocol.key_fetch import (
    MAX_KEYS,
    FetchedKeySet,
    fetch_key_set,
    key_set_lifetime,
    parse_key_set,
)
from freshtoken.errors import Disposition, MisconfiguredError
from tests.protocol.helpers import ISSUER, answer, converse, failure_of
from tests.protocol.keys import ED25519, P256, RSA, jwk_of
from tests.protocol.strategies import bodies, statuses

URI = f"{ISSUER}/keys"
KEYS: dict[str, Any] = {"keys": [{"kid": "k1", "use": "sig", **jwk_of(P256)}]}
SECRET_LIKE = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImsxIn0"


def fetched(*answers: Response) -> FetchedKeySet:
    value, _ = converse(fetch_key_set(URI), *answers)
    return value


def failed(response: Response) -> Failure:
    return failure_of(fetch_key_set(URI), response)


def kept(headers: Mapping[str, str]) -> float:
    return key_set_lifetime(answer(200, KEYS, headers))


def test_key_set_is_one_get_without_credentials() -> None:
    found, [request] = converse(fetch_key_set(URI), answer(200, KEYS))

    assert (request.method, request.url, request.form) == ("GET", URI, None)
    assert request.headers == (
        ("Accept", "application/jwk-set+json, application/json"),
    )
    assert [key.kid for key in found.keys.keys] == ["k1"]
    assert found.keys.skipped == ()


@pytest.mark.spec("7517-5")
def test_one_odd_key_does_not_spoil_the_set() -> None:
    odd = {"kty": "AKP", "kid": "pq", "alg": "ML-DSA-44", "pub": "x"}

    found = fetched(answer(200, {"keys": [odd, *KEYS["keys"], 7]}))

    assert [key.kid for key in found.keys.keys] == ["k1"]
    assert len(found.keys.skipped) == 2


def test_set_of_odd_keys_only_is_still_a_key_set() -> None:
    found = fetched(answer(200, {"keys": [{"kty": "AKP"}]}))

    assert found.keys.keys == ()
    assert len(found.keys.skipped) == 1


# What counts as a key set


@pytest.mark.spec("JWKS-ctype")
@pytest.mark.parametrize(
    "media_type",
    [
        "application/json",
        "application/jwk-set+json",
        "application/jwk-set+json; charset=utf-8",
        "Application/JSON;charset=UTF-8",
        "text/plain",
        "binary/octet-stream",
        "",
        None,
    ],
)
def test_key_set_is_taken_whatever_its_store_calls_it(media_type: str | None) -> None:
    headers = {} if media_type is None else {"Content-Type": media_type}

    assert len(fetched(answer(200, KEYS, headers)).keys.keys) == 1


@pytest.mark.spec("JWKS-ctype")
@pytest.mark.parametrize(
    "media_type",
    ["text/html", "TEXT/HTML; charset=utf-8", "application/xhtml+xml"],
)
def test_page_is_no_key_set(media_type: str) -> None:
    failure = failed(answer(200, KEYS, {"Content-Type": media_type}))

    assert (failure.disposition, failure.status) == (Disposition.RETRY, 200)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        "<html>",
        "[]",
        "null",
        "{}",
        '{"keys": {}}',
        '{"keys": null}',
        '{"keys": []}',
        '{"keys": [], "keys": [{}]}',
        '{"keys": [1e999999]',
        b"\xff\xfe\x00",
        "[" * 100_000,
        '{"keys":' + "[" * 100_000,
    ],
    ids=count(),
)
def test_broken_or_empty_set_is_a_fault_that_may_heal(body: bytes | str) -> None:
    failure = failed(answer(200, body))

    assert (failure.disposition, failure.status) == (Disposition.RETRY, 200)


@pytest.mark.parametrize(
    ("status", "disposition"),
    [
        (201, Disposition.RETRY),
        (204, Disposition.RETRY),
        (206, Disposition.RETRY),
        (301, Disposition.MISCONFIGURED),
        (302, Disposition.MISCONFIGURED),
        (304, Disposition.MISCONFIGURED),
        (307, Disposition.MISCONFIGURED),
        (404, Disposition.MISCONFIGURED),
        (405, Disposition.MISCONFIGURED),
        (429, Disposition.RETRY),
        (500, Disposition.RETRY),
        (503, Disposition.RETRY),
    ],
)
def test_only_status_200_brings_a_key_set(
    status: int, disposition: Disposition
) -> None:
    failure = failed(answer(status, KEYS, {"Location": "https://elsewhere.test/keys"}))

    assert (failure.disposition, failure.status) == (disposition, status)
    if disposition is Disposition.MISCONFIGURED:
        assert failure.setting == "jwks_uri"


@pytest.mark.parametrize(
    "code", ["invalid_client", "invalid_grant", "invalid_token", "access_denied"]
)
@pytest.mark.parametrize("status", [400, 401])
def test_oauth_code_at_the_key_set_ends_no_session_and_opens_no_breaker(
    code: str, status: int
) -> None:
    failure = failed(answer(status, {"error": code}))

    assert failure.disposition is Disposition.MISCONFIGURED
    assert failure.setting == "jwks_uri"
    error = error_for(failure, issuer=ISSUER)
    assert type(error) is MisconfiguredError
    assert "jwks_uri" in str(error)


def test_server_that_asks_for_patience_at_the_key_set_gets_it() -> None:
    failure = failed(answer(400, {"error": "temporarily_unavailable"}))

    assert failure.disposition is Disposition.RETRY


def test_what_the_server_says_is_not_shown_as_it_is() -> None:
    body = {"error": "x", "error_description": SECRET_LIKE}

    assert SECRET_LIKE not in repr(failed(answer(400, body)))


def test_only_so_many_keys_of_a_set_are_read() -> None:
    key = jwk_of(ED25519)
    keys = [{**key, "kid": str(number)} for number in range(MAX_KEYS + 1)]

    whole = fetched(answer(200, {"keys": keys[:MAX_KEYS]})).keys
    cut = fetched(answer(200, {"keys": [{"kty": "AKP"}, *keys]})).keys

    assert (len(whole.keys), whole.skipped) == (MAX_KEYS, ())
    assert len(cut.keys) == MAX_KEYS - 1
    assert len(cut.skipped) == 2
    assert "502" in cut.skipped[-1]


def test_same_octets_are_known_again() -> None:
    other = {"keys": [{"kid": "k2", **jwk_of(RSA)}]}

    first, again = fetched(answer(200, KEYS)), fetched(answer(200, KEYS))

    assert first.digest == again.digest
    assert first.digest != fetched(answer(200, other)).digest


@given(status=statuses | st.just(200), body=bodies)
def test_no_answer_raises_anything_else(status: int, body: bytes) -> None:
    try:
        found = parse_key_set(answer(status, body))
    except ExchangeError:
        return

    assert status == 200
    assert isinstance(json.loads(body)["keys"], list)
    assert 60.0 <= found.lifetime <= 86_400.0


# How long it keeps


@pytest.mark.spec("JWKS-cache")
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("max-age=600", 600.0),
        ("public, max-age=600, must-revalidate", 600.0),
        ("public,MAX-AGE=600", 600.0),
        ('max-age="600"', 600.0),
        ("max-age = 600", 600.0),
        ("max-age=0", 60.0),
        ("max-age=59", 60.0),
        ("max-age=60", 60.0),
        ("max-age=61", 61.0),
        ("max-age=86399", 86_399.0),
        ("max-age=86400", 86_400.0),
        ("max-age=86401", 86_400.0),
        ("max-age=31536000", 86_400.0),
        ("max-age=" + "9" * 5_000, 86_400.0),
        ("max-age=" + "0" * 5_000 + "90", 90.0),
        ("max-age=900, max-age=300", 300.0),
        ("max-age=900, max-age=x", 60.0),
        ("max-age=-1", 60.0),
        ("max-age=1e3", 60.0),
        ("max-age=٣٠٠", 60.0),
        ("max-age", 60.0),
        ("s-maxage=600", 3600.0),
        ("xmax-age=600", 3600.0),
        ("no-store", 3600.0),
        ("no-cache, private", 3600.0),
        ("", 3600.0),
        (",,=,", 3600.0),
    ],
)
def test_max_age_counts_within_a_minute_and_a_day(value: str, seconds: float) -> None:
    assert kept({"Cache-Control": value}) == seconds


@pytest.mark.spec("JWKS-cache")
def test_set_keeps_an_hour_where_nothing_is_said() -> None:
    assert kept({}) == 3600.0
    assert kept({"Age": "3000"}) == 3600.0


def test_all_headers_count() -> None:
    headers = (("Cache-Control", "public"), ("cache-control", "max-age=300"))

    assert key_set_lifetime(Response(200, headers, b"", sent_at=0.0)) == 300.0


@pytest.mark.parametrize(
    ("age", "seconds"),
    [("0", 600.0), ("500", 100.0), ("599", 60.0), ("9999", 60.0), ("x", 600.0)],
)
def test_time_spent_in_a_cache_is_taken_off(age: str, seconds: float) -> None:
    assert kept({"Cache-Control": "max-age=600", "Age": age}) == seconds


@given(value=st.text(max_size=40) | st.from_regex(r"max-age=\S*"))
def test_no_header_raises_or_leaves_the_bounds(value: str) -> None:
    assert 60.0 <= kept({"Cache-Control": value}) <= 86_400.0

"""What the tests of the protocol layer share: answers as values, no event loop."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from freshtoken._foundation.records import Failure
from freshtoken._foundation.secret import Secret
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.exchange import (
    Conversation,
    ExchangeError,
    Request,
    Response,
)
from freshtoken._protocol.metadata import ServerMetadata, build_metadata

T = TypeVar("T")

Anything: TypeAlias = Any
"""What the types would refuse, and tests try all the same."""

NOW = 1_800_000_000.0
DATE = "Fri, 15 Jan 2027 08:00:00 GMT"  # NOW
ISSUER = "https://idp.test"
SECRET = "s3cr3t-1"
ENDPOINTS = {
    "token_endpoint": "https://idp.test/token",
    "revocation_endpoint": "https://idp.test/revoke",
}


def answer(
    status: int = 200,
    body: object = b"",
    headers: Mapping[str, str] | None = None,
    *,
    url: str = "https://idp.test/token",
) -> Response:
    """Return an answer; what is neither bytes nor text becomes JSON."""
    if isinstance(body, str):
        body = body.encode()
    elif not isinstance(body, bytes):
        body = json.dumps(body).encode()
    items = tuple((headers or {}).items())
    return Response(status, items, body, sent_at=NOW, received_at=NOW + 1, url=url)


def converse(
    conversation: Conversation[T], *answers: Response
) -> tuple[T, list[Request]]:
    """Drive a conversation with given answers; return its value and its requests."""
    requests: list[Request] = []
    left = list(answers)
    try:
        request = next(conversation)
        while True:
            requests.append(request)
            request = conversation.send(left.pop(0))
    except StopIteration as stop:
        assert not left
        value: T = stop.value
        return value, requests


def failure_of(conversation: Conversation[Any], *answers: Response) -> Failure:
    """Drive a conversation that fails; return its failure."""
    try:
        value, _ = converse(conversation, *answers)
    except ExchangeError as error:
        return error.failure
    raise AssertionError(f"did not fail: {value!r}")


def make_client(**overrides: Anything) -> OAuthClient:
    """Return a confidential client whose metadata are given by hand."""
    settings: dict[str, Any] = {
        "client_id": "cid-1",
        "client_secret": SECRET,
        "metadata": ENDPOINTS,
        "discovery": None,
        **overrides,
    }
    return OAuthClient(ISSUER, **settings)


def make_metadata(client: OAuthClient, **members: object) -> ServerMetadata:
    """Return the client's metadata over a document with these members."""
    return build_metadata(client, members)


def secret_of(client: OAuthClient) -> Secret | None:
    """Return a secret that is no function."""
    assert client.secret is None or isinstance(client.secret, Secret)
    return client.secret


def rng() -> random.Random:
    """Return a generator that gives the same numbers in every test."""
    return random.Random(7)


def form_of(request: Request) -> dict[str, str]:
    """Return the parameters of a request as its receiver reads them."""
    pairs = parse_qsl(request.body.decode(), keep_blank_values=True)
    assert len(dict(pairs)) == len(pairs), "a parameter appears twice"
    return dict(pairs)

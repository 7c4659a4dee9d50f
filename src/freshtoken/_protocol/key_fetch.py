"""Fetching an issuer's public keys, and how long they keep."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from freshtoken._protocol.body import UnreadableError, parse_json_object
from freshtoken._protocol.classification import KEY_SET, classify, unusable_answer
from freshtoken._protocol.exchange import (
    Conversation,
    ExchangeError,
    Request,
    Response,
)
from freshtoken._protocol.headers import media_type
from freshtoken._protocol.jwks import JWKSet, parse_jwk_set

SHORTEST_LIFETIME = 60.0
LONGEST_LIFETIME = 24 * 3600.0
DEFAULT_LIFETIME = 3600.0
"""Seconds that a key set keeps where the server does not say."""
MAX_KEYS = 500

_ACCEPT = ("Accept", "application/jwk-set+json, application/json")
# A page for people. Everything else that holds a key set is taken for one: key sets
# lie in file stores that know no type for them.
_PAGES = frozenset({"text/html", "application/xhtml+xml"})
# Of a number that no clock will reach, these digits are enough.
_MAX_DIGITS = 12


@dataclass(frozen=True, slots=True)
class FetchedKeySet:
    """A key set as it was fetched.

    Attributes:
        keys: The keys themselves.
        lifetime: Seconds after which it should be fetched again.
        digest: Equal only for the same octets, so that the same set is known again.
    """

    keys: JWKSet
    lifetime: float
    digest: bytes


def fetch_key_set(uri: str) -> Conversation[FetchedKeySet]:
    """Fetch a key set from *uri*, which comes from metadata and never from a token.

    Raises:
        ExchangeError: There is none to be had.

    Spec: RFC 7517 §5, §8.5; OpenID Connect Core §10.1.1.
    """
    response = yield Request("GET", uri, (_ACCEPT,))
    return parse_key_set(response)


def parse_key_set(response: Response) -> FetchedKeySet:
    """Read the answer to a request for a key set, or grade its failure.

    Only status 200 brings one. A set without any entry is a fault of the server: an
    issuer that signs has a key.

    Raises:
        ExchangeError: It is none.
    """
    if response.status != HTTPStatus.OK:
        raise ExchangeError(
            classify(response, grant_type=KEY_SET, problem="that is no status of one")
        )
    try:
        keys = _read_keys(response)
    except UnreadableError as error:
        problem = str(error)
    else:
        digest = hashlib.sha256(response.body).digest()
        return FetchedKeySet(keys, key_set_lifetime(response), digest)
    raise ExchangeError(unusable_answer(response, problem, no_answer=False))


def key_set_lifetime(response: Response) -> float:
    """Return the seconds that a key set keeps: its ``max-age``, within 60 s and 24 h.

    The shortest of several counts, and one that is no number counts as zero. What it
    has spent in caches on its way is taken off.

    Spec: RFC 9111 §4.2.1, §4.2.3, §5.2.2.1.
    """
    directives = [
        directive.strip().partition("=")
        for value in response.header_values("cache-control")
        for directive in value.split(",")
    ]
    ages = [
        _seconds(text.strip().strip('"')) or 0.0
        for name, _, text in directives
        if name.strip().lower() == "max-age"
    ]
    if not ages:
        return DEFAULT_LIFETIME
    spent = _seconds((response.header("age") or "").strip()) or 0.0
    return min(max(min(ages) - spent, SHORTEST_LIFETIME), LONGEST_LIFETIME)


def _seconds(text: str) -> float | None:
    """Return a number of seconds as HTTP writes them, or ``None``."""
    if not (text.isascii() and text.isdigit()):
        return None
    significant = text.lstrip("0") or "0"
    return float(significant[:_MAX_DIGITS])


def _read_keys(response: Response) -> JWKSet:
    """Return the keys of an answer.

    Raises:
        UnreadableError: It holds no key set; the text says why.
    """
    if media_type(response) in _PAGES:
        raise UnreadableError("it is a page, not a key set")
    document = parse_json_object(response.body)
    members = document.get("keys")
    if members == []:
        raise UnreadableError("its key set is empty")
    if not isinstance(members, list) or len(members) <= MAX_KEYS:
        return parse_jwk_set(document)
    return _read_some(document, members)


def _read_some(document: Mapping[str, object], members: list[object]) -> JWKSet:
    """Return the first keys of a set that is too long, and say so."""
    read = parse_jwk_set({**document, "keys": members[:MAX_KEYS]})
    left_out = (
        f"keys {MAX_KEYS + 1} to {len(members)}: only {MAX_KEYS} of a set are read"
    )
    return JWKSet(read.keys, (*read.skipped, left_out))

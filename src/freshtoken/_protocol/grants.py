"""Requests to the token and revocation endpoints, and what their answers mean."""

from __future__ import annotations

import random
from collections.abc import Iterable

from freshtoken._foundation.records import TokenSet
from freshtoken._foundation.secret import Secret, reveal
from freshtoken._protocol.classification import (
    AUTHORIZATION_CODE,
    CLIENT_CREDENTIALS,
    REFRESH,
    REVOCATION,
    classify,
)
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.client_auth import authenticate
from freshtoken._protocol.exchange import Conversation, ExchangeError, Request
from freshtoken._protocol.metadata import ServerMetadata
from freshtoken._protocol.pkce import check_code_verifier
from freshtoken._protocol.token_response import parse_token_response

_ACCEPT = ("Accept", "application/json")
_SUCCESS = 2
# A token that the server does not know is as good as revoked (RFC 7009 §2.2). Some
# servers say so with an error.
_REVOKED = frozenset({"invalid_grant", "invalid_token"})
# What may be echoed in an error, and must not be shown.
_SECRET_PARAMETERS = frozenset(
    {"client_assertion", "code", "code_verifier", "refresh_token", "token"}
)


def refresh(
    client: OAuthClient,
    metadata: ServerMetadata,
    *,
    refresh_token: str | Secret,
    credential: Secret | None,
    now: float,
    rng: random.Random,
    scope: str | Iterable[str] | None = None,
    resource: str | Iterable[str] | None = None,
    refreshed_before: bool = False,
) -> Conversation[TokenSet]:
    """Ask for a new access token with a refresh token.

    Args:
        refresh_token: Sent octet for octet.
        credential: The client secret as it is now.
        now: Epoch seconds.
        rng: Makes the identifiers of client assertions.
        scope: Less than was granted; by default the same.
        resource: The APIs that the token is for (RFC 8707 §2.2).
        refreshed_before: This grant has been refreshed with success before.

    Raises:
        ExchangeError: No tokens came; see `parse_token_response`.
        MisconfiguredError: The request cannot be made.

    Spec: RFC 6749 §6.
    """
    return (
        yield from _ask_token(
            client,
            metadata,
            REFRESH,
            (
                ("refresh_token", reveal(refresh_token)),
                ("scope", _join(scope)),
                *_resources(resource),
            ),
            credential=credential,
            now=now,
            rng=rng,
            scope=scope,
            refreshed_before=refreshed_before,
        )
    )


def authorization_code(
    client: OAuthClient,
    metadata: ServerMetadata,
    *,
    code: str | Secret,
    code_verifier: str | Secret,
    redirect_uri: str,
    credential: Secret | None,
    now: float,
    rng: random.Random,
    scope: str | Iterable[str] | None = None,
    resource: Iterable[str] = (),
) -> Conversation[TokenSet]:
    """Redeem an authorization code.

    Args:
        code: As the browser brought it, sent octet for octet.
        code_verifier: The one of this sign-in (RFC 7636 §4.5).
        redirect_uri: As in the authorization request, octet for octet.
        credential: The client secret as it is now.
        now: Epoch seconds.
        rng: Makes the identifiers of client assertions.
        scope: What was asked for; not sent.
        resource: The APIs that the token is for (RFC 8707 §2.2).

    Raises:
        ExchangeError: No tokens came; see `parse_token_response`.
        MisconfiguredError: The request cannot be made.

    Spec: RFC 6749 §4.1.3, RFC 7636 §4.5.
    """
    verifier = reveal(code_verifier)
    # An empty one would be left out, and the proof with it.
    check_code_verifier(verifier)
    return (
        yield from _ask_token(
            client,
            metadata,
            AUTHORIZATION_CODE,
            (
                ("code", reveal(code)),
                ("redirect_uri", redirect_uri),
                ("code_verifier", verifier),
                *_resources(resource),
            ),
            credential=credential,
            now=now,
            rng=rng,
            scope=scope,
        )
    )


def client_credentials(
    client: OAuthClient,
    metadata: ServerMetadata,
    *,
    credential: Secret | None,
    now: float,
    rng: random.Random,
    scope: str | Iterable[str] | None = None,
    resource: str | Iterable[str] | None = None,
) -> Conversation[TokenSet]:
    """Ask for an access token in the client's own name.

    Args:
        credential: The client secret as it is now.
        now: Epoch seconds.
        rng: Makes the identifiers of client assertions.
        scope: What the token is to be good for.
        resource: The APIs that the token is for (RFC 8707 §2.2).

    Raises:
        ExchangeError: No tokens came; see `parse_token_response`.
        MisconfiguredError: The request cannot be made.

    Spec: RFC 6749 §4.4.
    """
    return (
        yield from _ask_token(
            client,
            metadata,
            CLIENT_CREDENTIALS,
            (
                ("scope", _join(scope)),
                *_resources(resource),
            ),
            credential=credential,
            now=now,
            rng=rng,
            scope=scope,
        )
    )


def revoke(
    client: OAuthClient,
    metadata: ServerMetadata,
    *,
    token: str | Secret,
    credential: Secret | None,
    now: float,
    rng: random.Random,
    token_type_hint: str | None = "refresh_token",  # noqa: S107 -- a kind of token
) -> Conversation[None]:
    """Give a token back.

    Any 2xx is success, whatever its body says, and so is the news that the token is
    not valid.

    Raises:
        ExchangeError: The token may still be good.
        MisconfiguredError: The server has no revocation endpoint.

    Spec: RFC 7009 §2.1, §2.2.
    """
    request = _build_request(
        client,
        metadata,
        "revocation",
        (("token", reveal(token)), ("token_type_hint", token_type_hint)),
        credential=credential,
        now=now,
        rng=rng,
    )
    response = yield request
    if response.status // 100 == _SUCCESS:
        return
    failure = classify(
        response,
        grant_type=REVOCATION,
        error_codes=client.error_codes,
        secrets=_secrets(request, credential),
    )
    if failure.error not in _REVOKED:
        raise ExchangeError(failure)


def _ask_token(
    client: OAuthClient,
    metadata: ServerMetadata,
    grant_type: str,
    parameters: Iterable[tuple[str, str | None]],
    *,
    credential: Secret | None,
    now: float,
    rng: random.Random,
    scope: str | Iterable[str] | None,
    refreshed_before: bool = False,
) -> Conversation[TokenSet]:
    """Make one token request; what differs between grants is in its parameters."""
    request = _build_request(
        client,
        metadata,
        "token",
        [("grant_type", grant_type), *parameters],
        credential=credential,
        now=now,
        rng=rng,
    )
    response = yield request
    return parse_token_response(
        response,
        grant_type=grant_type,
        requested_scope=scope,
        default_lifetime=client.default_lifetime,
        refreshed_before=refreshed_before,
        error_codes=client.error_codes,
        secrets=_secrets(request, credential),
    )


def _build_request(
    client: OAuthClient,
    metadata: ServerMetadata,
    endpoint: str,
    parameters: Iterable[tuple[str, str | None]],
    *,
    credential: Secret | None,
    now: float,
    rng: random.Random,
) -> Request:
    """Build an authenticated POST; parameters without a value are left out.

    Spec: RFC 6749 §3.2 (a query in the endpoint's URL is kept).
    """
    url = metadata.endpoint(f"{endpoint}_endpoint")
    headers, form = authenticate(
        client,
        metadata,
        credential,
        [(name, value) for name, value in parameters if value],
        now=now,
        rng=rng,
        endpoint=endpoint,
    )
    return Request("POST", url, (_ACCEPT, *headers), form)


def _join(scope: str | Iterable[str] | None) -> str:
    """Return scope values as one text, in the order given (RFC 6749 §3.3)."""
    return scope if isinstance(scope, str) else " ".join(scope or ())


def _resources(resource: str | Iterable[str] | None) -> Iterable[tuple[str, str]]:
    """Return one parameter for each API, in the order given (RFC 8707 §2)."""
    uris = (resource,) if isinstance(resource, str) else resource or ()
    return [("resource", uri) for uri in uris]


def _secrets(request: Request, credential: Secret | None) -> tuple[str, ...]:
    """Return what a server must not get into our logs by echoing it."""
    sent = [value for name, value in request.form or () if name in _SECRET_PARAMETERS]
    sent += [value for name, value in request.headers if name == "Authorization"]
    sent += [credential.reveal()] if credential is not None else []
    return tuple(sent)

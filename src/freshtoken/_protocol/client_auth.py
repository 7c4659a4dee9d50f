"""Client authentication: exactly one method in each request."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Iterable
from typing import TypeAlias
from urllib.parse import quote_plus

from freshtoken._foundation.secret import Secret, redact
from freshtoken._protocol.client import SECRET_METHODS, OAuthClient
from freshtoken._protocol.metadata import ServerMetadata
from freshtoken._protocol.settings import refuse
from freshtoken._protocol.signing import HMAC_ALGORITHMS, SigningKey, sign_compact

Pairs: TypeAlias = tuple[tuple[str, str], ...]

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ASSERTION_LIFETIME = 60
_JTI_BITS = 160


def select_auth_method(
    client: OAuthClient, metadata: ServerMetadata, endpoint: str = "token"
) -> str:
    """Return how this client authenticates at an endpoint.

    A method that the caller named is used whatever the metadata list. Else it is the
    first that fits the credentials and is listed. A public client has but one way;
    many servers that take it do not list ``none``.

    Args:
        endpoint: ``token``, ``revocation`` or ``introspection``.

    Raises:
        MisconfiguredError: The metadata list only others.

    Spec: RFC 8414 §2, OpenID Connect Core §9.
    """
    if client.token_endpoint_auth_method is not None:
        return client.token_endpoint_auth_method
    fitting = _fitting_methods(client)
    listed = metadata.auth_methods(endpoint)
    if listed is None or fitting == ("none",):
        return fitting[0]
    method = next((name for name in fitting if name in listed), None)
    if method is None:
        refuse(
            "token_endpoint_auth_method",
            f"cannot be chosen: the server lists only {redact(', '.join(listed))}, "
            "which this client's credentials do not fit (naming a method overrides it)",
        )
    return method


def _fitting_methods(client: OAuthClient) -> tuple[str, ...]:
    """Return the methods that the credentials allow, the preferred one first.

    A named algorithm says how the client is registered.
    """
    if client.signing_algorithm is not None:
        is_hmac = client.signing_algorithm in HMAC_ALGORITHMS
        return ("client_secret_jwt" if is_hmac else "private_key_jwt",)
    methods = ("private_key_jwt",) if client.private_key is not None else ()
    if client.client_secret is not None:
        methods = (*methods, *SECRET_METHODS)
    return methods or ("none",)


def authenticate(
    client: OAuthClient,
    metadata: ServerMetadata,
    credential: Secret | None,
    form: Iterable[tuple[str, str]],
    *,
    now: float,
    rng: random.Random,
    endpoint: str = "token",
) -> tuple[Pairs, Pairs]:
    """Return the headers and the form of an authenticated request.

    Args:
        credential: The client secret as it is now.
        form: The request's own parameters.
        now: Epoch seconds; assertions are issued now.
        rng: Makes the identifiers of assertions.

    Raises:
        MisconfiguredError: The credentials are missing, weak, or do not fit.

    Spec: RFC 6749 §2.3, RFC 7523 §2.2, §3.
    """
    method = select_auth_method(client, metadata, endpoint)
    identity = ("client_id", client.client_id)
    if method == "none":
        return (), (*form, identity)
    key = client.signing_key if method == "private_key_jwt" else credential
    if key is None:
        refuse("client_secret", f"is missing, and {method} needs one")
    if isinstance(key, Secret) and method == "client_secret_basic":
        return (_basic_header(client, key),), tuple(form)
    if isinstance(key, Secret) and method == "client_secret_post":
        return (), (*form, identity, ("client_secret", key.reveal()))
    assertion = _assertion(client, metadata, key, endpoint, now=now, rng=rng)
    return (), (
        *form,
        identity,
        ("client_assertion_type", ASSERTION_TYPE),
        ("client_assertion", assertion),
    )


def credential_fingerprint(client: OAuthClient, credential: Secret | None) -> str:
    """Return a hash that is another one when the client's credentials are.

    To be compared in memory; a weak secret could be guessed from it, so it is not
    for logs or stores.
    """
    key = client.signing_key
    parts = [
        client.issuer,
        client.client_id,
        client.token_endpoint_auth_method,
        credential.reveal() if credential is not None else None,
        key.fingerprint if key is not None else None,
        key.kid if key is not None else None,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _basic_header(client: OAuthClient, secret: Secret) -> tuple[str, str]:
    """Return the HTTP Basic header (RFC 6749 §2.3.1, Appendix B)."""
    halves = (client.client_id, secret.reveal())
    if client.form_encode_basic:
        halves = (quote_plus(halves[0]), quote_plus(halves[1]))
    encoded = base64.b64encode(":".join(halves).encode()).decode()
    return ("Authorization", f"Basic {encoded}")


def _assertion(
    client: OAuthClient,
    metadata: ServerMetadata,
    key: SigningKey | Secret,
    endpoint: str,
    *,
    now: float,
    rng: random.Random,
) -> str:
    """Return a signed client assertion, valid for a minute and used once.

    Spec: RFC 7523 §3; the audience is the issuer as a single string, as in
    draft-ietf-oauth-rfc7523bis §4.
    """
    algorithm = _select_algorithm(client, metadata, key, endpoint)
    header: dict[str, object] = {}
    if client.client_assertion_typ is not None:
        header["typ"] = client.client_assertion_typ
    if isinstance(key, SigningKey) and key.kid is not None:
        header["kid"] = key.kid
    audience = client.client_assertion_audience
    if audience == "issuer":
        audience = client.issuer
    elif audience == "token_endpoint":
        audience = metadata.endpoint("token_endpoint")
    issued_at = int(now)
    claims = {
        "iss": client.client_id,
        "sub": client.client_id,
        "aud": audience,
        "jti": f"{rng.getrandbits(_JTI_BITS):0{_JTI_BITS // 4}x}",
        "iat": issued_at,
        "exp": issued_at + ASSERTION_LIFETIME,
    }
    return sign_compact(key, algorithm, header, claims)


def _select_algorithm(
    client: OAuthClient,
    metadata: ServerMetadata,
    key: SigningKey | Secret,
    endpoint: str,
) -> str:
    """Return the algorithm of an assertion: it fits the key, and the server lists it.

    One that the caller named is used even if it is not listed.

    Spec: RFC 8414 §2; RFC 7518 §3.2 (length of HMAC keys).
    """
    named = client.signing_algorithm
    if isinstance(key, SigningKey):
        fitting = key.algorithms
    else:
        size = len(key.reveal().encode())
        fitting = tuple(
            name for name, least in HMAC_ALGORITHMS.items() if size >= least
        )
        wanted = named or "HS256"
        if wanted not in fitting:
            refuse(
                "client_secret",
                f"is too short for {wanted}: it needs {HMAC_ALGORITHMS[wanted]} octets",
            )
    if named is not None:
        return named
    listed = metadata.signing_algorithms(endpoint)
    if listed is None:
        return fitting[0]
    algorithm = next((name for name in fitting if name in listed), None)
    if algorithm is None:
        refuse(
            "signing_algorithm",
            f"cannot be chosen: the server lists only {redact(', '.join(listed))}, "
            "which this client's key cannot do (naming an algorithm overrides it)",
        )
    return algorithm

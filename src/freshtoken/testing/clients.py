"""Clients registered at the mock server, and how they prove who they are."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote_plus, urlsplit

import jwt

from freshtoken._foundation.secret import MASK
from freshtoken.testing.grants import OAuthFaultError

if TYPE_CHECKING:
    from freshtoken.testing.messages import MockRequest

AuthMethod = Literal[
    "client_secret_basic",
    "client_secret_post",
    "client_secret_jwt",
    "private_key_jwt",
    "none",
]
AUTH_METHODS: tuple[AuthMethod, ...] = (
    "client_secret_basic",
    "client_secret_post",
    "client_secret_jwt",
    "private_key_jwt",
    "none",
)
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_SECRET_ALGORITHMS = ("HS256", "HS384", "HS512")
_KEY_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
ASSERTION_ALGORITHMS = _SECRET_ALGORITHMS + _KEY_ALGORITHMS
_CLOCK_LEEWAY = 30.0
_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(slots=True, repr=False)
class MockClient:
    """A registered client; change its attributes to reconfigure it.

    Attributes:
        auth_method: The one way it may authenticate; ``None`` for its secret in the
            header or in the body.
        jwks: Its public keys, for ``private_key_jwt``.
        redirect_uris: Where sign-ins may send browsers back; empty for anywhere over
            ``https`` or on a loopback address.
        post_logout_redirect_uris: Likewise after a logout.
        id_token_alg: How its ID tokens are signed; ``None`` for the server's
            `MockIdP.signing_alg`. With HS256, HS384 or HS512: by its secret.
    """

    client_id: str
    client_secret: str | None = None
    auth_method: AuthMethod | None = None
    jwks: Mapping[str, Any] | None = None
    seen_jti: dict[str, float] = field(default_factory=dict)
    redirect_uris: tuple[str, ...] = ()
    post_logout_redirect_uris: tuple[str, ...] = ()
    id_token_alg: str | None = None

    def allows_redirect(self, uri: str, *, after_logout: bool = False) -> bool:
        """Tell whether a browser may be sent to *uri*.

        Spec: RFC 6749 §3.1.2, RFC 9700 §2.1.
        """
        registered = (
            self.post_logout_redirect_uris if after_logout else self.redirect_uris
        )
        if registered:
            return uri in registered
        parts = urlsplit(uri)
        if "#" in uri or not parts.hostname:
            return False
        is_loopback = parts.hostname in _LOOPBACK_HOSTS
        return parts.scheme == "https" or (parts.scheme == "http" and is_loopback)

    def __repr__(self) -> str:
        """Show no secret."""
        return f"MockClient({self.client_id!r}, {self.auth_method}, {MASK})"


@dataclass(frozen=True, slots=True, repr=False)
class _Claim:
    """Who a request says it comes from, and its proof."""

    method: AuthMethod
    client_id: str
    proof: str = ""


def claimed_client_id(request: MockRequest, form: Mapping[str, str]) -> str | None:
    """Return who a request says it comes from, for the log; proves nothing."""
    try:
        return _read_claim(request, form).client_id
    except OAuthFaultError:
        return form.get("client_id")


def authenticate(
    request: MockRequest,
    form: Mapping[str, str],
    clients: Mapping[str, MockClient],
    *,
    audiences: Sequence[str],
    now: float,
) -> MockClient:
    """Return the client that a request comes from.

    Args:
        audiences: What an assertion may be meant for: issuer, token endpoint.

    Raises:
        OAuthFaultError: It does not prove what it says.

    Spec: RFC 6749 §2.3, RFC 7523 §3, OpenID Connect Core §9.
    """
    used_header = request.header("authorization") is not None
    try:
        claim = _read_claim(request, form)
        client = clients.get(claim.client_id)
        if client is None:
            raise _rejected("the client is unknown")
        _check_method(claim, client)
        if claim.proof and claim.method.endswith("_jwt"):
            _check_assertion(claim, client, audiences, now)
        elif claim.method != "none":
            _check_secret(claim, client)
    except OAuthFaultError as refusal:
        if refusal.error == "invalid_client" and used_header:
            refusal.challenge = 'Basic realm="mock"'
        raise
    return client


def _rejected(description: str) -> OAuthFaultError:
    """Return the refusal of a client."""
    return OAuthFaultError("invalid_client", description, status=401)


def _read_claim(request: MockRequest, form: Mapping[str, str]) -> _Claim:
    """Find the one way in which a request authenticates its client."""
    header = request.header("authorization")
    claims = []
    if header is not None:
        claims.append(_read_basic(header))
    if "client_assertion" in form:
        claims.append(_read_assertion(form))
    if "client_secret" in form:
        client_id = form.get("client_id", "")
        claims.append(_Claim("client_secret_post", client_id, form["client_secret"]))
    if len(claims) > 1:
        detail = "more than one way of client authentication"
        raise OAuthFaultError("invalid_request", detail)
    if not claims:
        if not form.get("client_id"):
            raise _rejected("no client authentication")
        return _Claim("none", form["client_id"])
    if form.get("client_id", claims[0].client_id) != claims[0].client_id:
        raise OAuthFaultError("invalid_request", "two different client ids")
    return claims[0]


def _read_basic(header: str) -> _Claim:
    """Read ``Authorization: Basic``; both halves are form-encoded (RFC 6749 §2.3.1)."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        raise _rejected("the Authorization header is not Basic")
    try:
        pair = base64.b64decode(encoded.strip(), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        raise _rejected("the Authorization header cannot be read") from None
    client_id, colon, secret = pair.partition(":")
    if not colon:
        raise _rejected("the Authorization header has no colon")
    return _Claim("client_secret_basic", unquote_plus(client_id), unquote_plus(secret))


def _read_assertion(form: Mapping[str, str]) -> _Claim:
    """Read who a client assertion comes from; its signature is checked later."""
    if form.get("client_assertion_type") != ASSERTION_TYPE:
        raise _rejected("client_assertion_type is not jwt-bearer")
    assertion = form["client_assertion"]
    try:
        alg = jwt.get_unverified_header(assertion).get("alg")
        claims = jwt.decode(assertion, options={"verify_signature": False})
    except jwt.PyJWTError:
        raise _rejected("the client assertion is no JWT") from None
    subject = claims.get("sub")
    if not isinstance(subject, str) or claims.get("iss") != subject:
        raise _rejected("iss and sub of the client assertion differ")
    with_secret = alg in _SECRET_ALGORITHMS
    method: AuthMethod = "client_secret_jwt" if with_secret else "private_key_jwt"
    return _Claim(method, subject, assertion)


def _check_method(claim: _Claim, client: MockClient) -> None:
    """Refuse another way than the registered one."""
    if client.auth_method is None:
        allowed = claim.method in {"client_secret_basic", "client_secret_post"}
    else:
        allowed = claim.method == client.auth_method
    if not allowed:
        raise _rejected(f"{claim.method} is not how this client authenticates")


def _check_secret(claim: _Claim, client: MockClient) -> None:
    """Refuse another secret."""
    expected = (client.client_secret or "").encode()
    if not expected or not hmac.compare_digest(claim.proof.encode(), expected):
        raise _rejected("the client secret is wrong")


def _check_assertion(
    claim: _Claim, client: MockClient, audiences: Sequence[str], now: float
) -> None:
    """Refuse an assertion that proves nothing, or not now, or not here, or twice."""
    claims = _verified(claim, client)
    audience = claims.get("aud")
    named = [audience] if isinstance(audience, str) else audience
    if not isinstance(named, list) or not set(named) & set(audiences):
        raise _rejected("the client assertion is meant for somebody else")
    expires_at = claims.get("exp")
    if not isinstance(expires_at, int | float) or now >= expires_at:
        raise _rejected("the client assertion has expired")
    for name in ("iat", "nbf"):
        instant = claims.get(name, now)
        if not isinstance(instant, int | float) or instant > now + _CLOCK_LEEWAY:
            raise _rejected(f"{name} of the client assertion lies in the future")
    jti = claims.get("jti")
    if not isinstance(jti, str) or not jti:
        raise _rejected("the client assertion has no jti")
    if client.seen_jti.get(jti, now) > now:
        raise _rejected("the client assertion was used before")
    client.seen_jti[jti] = expires_at


def _verified(claim: _Claim, client: MockClient) -> dict[str, Any]:
    """Return the claims of an assertion whose signature is right."""
    for key, algorithms in _candidate_keys(claim, client):
        try:
            return dict(
                jwt.decode(
                    claim.proof,
                    key,
                    algorithms=algorithms,
                    options={
                        "verify_exp": False,
                        "verify_nbf": False,
                        "verify_iat": False,
                        "verify_aud": False,
                        "verify_jti": False,
                    },
                )
            )
        except jwt.PyJWTError:
            continue
    raise _rejected("the signature of the client assertion is wrong")


def _candidate_keys(
    claim: _Claim, client: MockClient
) -> list[tuple[Any, Sequence[str]]]:
    """Return the keys that may have signed, with the algorithms for each."""
    if claim.method == "client_secret_jwt":
        return [(client.client_secret or "", _SECRET_ALGORITHMS)]
    header = jwt.get_unverified_header(claim.proof)
    kid, alg = header.get("kid"), header.get("alg")
    if alg not in _KEY_ALGORITHMS:
        return []
    keys: list[tuple[Any, Sequence[str]]] = []
    for jwk in (client.jwks or {}).get("keys", ()):
        if kid is not None and jwk.get("kid", kid) != kid:
            continue
        try:
            keys.append((jwt.PyJWK(dict(jwk), algorithm=alg).key, (alg,)))
        except jwt.PyJWTError:
            continue
    return keys

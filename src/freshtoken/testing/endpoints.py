"""What the mock server answers: one plain function for each endpoint.

A further endpoint is one more `Endpoint` in a list that `MockIdP` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from freshtoken._foundation.secret import MASK
from freshtoken.testing.clients import ASSERTION_ALGORITHMS, AUTH_METHODS, authenticate
from freshtoken.testing.grants import MockGrant, OAuthFaultError
from freshtoken.testing.messages import MockRequest, MockResponse, json_response

if TYPE_CHECKING:
    from freshtoken.testing.clients import MockClient
    from freshtoken.testing.grants import Issue
    from freshtoken.testing.idp import MockIdP

Handler = Callable[["MockIdP", "Call"], MockResponse]


@dataclass(slots=True, repr=False)
class Call:
    """One request on its way through an endpoint; the endpoint notes what it finds."""

    request: MockRequest
    form: Mapping[str, str]
    repeated: frozenset[str]
    resources: tuple[str, ...]
    now: float
    grant: MockGrant | None = None

    def __repr__(self) -> str:
        """Show the request only."""
        return f"Call({self.request!r} {MASK})"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go, and what answers them.

    Attributes:
        name: As faults and the request log call it.
        path: Below the issuer's path; well-known documents have places of their own.
        metadata: Member of the metadata that holds its address.
    """

    name: str
    path: str
    handler: Handler
    methods: tuple[str, ...] = ("GET",)
    metadata: str | None = None
    well_known: str | None = field(default=None)

    def path_under(self, issuer: str) -> str:
        """Return the path at which *issuer* has this endpoint.

        Spec: OpenID Connect Discovery §4, RFC 8414 §3.1.
        """
        base = urlsplit(issuer).path.rstrip("/")
        if self.well_known == "oauth-authorization-server":
            return f"/.well-known/{self.well_known}{base}"
        if self.well_known is not None:
            return f"{base}/.well-known/{self.well_known}"
        return base + self.path


def read_call(request: MockRequest, now: float) -> Call:
    """Read the form of a request."""
    form: dict[str, str] = {}
    repeated = set()
    resources = []
    for name, value in request.form:
        if name == "resource":
            resources.append(value)
        elif name in form:
            repeated.add(name)
        form.setdefault(name, value)
    return Call(request, form, frozenset(repeated), tuple(resources), now)


def answer(idp: MockIdP, endpoint: Endpoint | None, call: Call) -> MockResponse:
    """Return what the server says to a request, faults aside."""
    if endpoint is None:
        response = MockResponse(404, (("Content-Type", "text/plain"),), b"Not Found")
    elif call.request.method not in endpoint.methods:
        allowed = {"Allow": ", ".join(endpoint.methods)}
        response = MockResponse(405).with_headers(allowed)
    else:
        try:
            response = endpoint.handler(idp, call)
        except OAuthFaultError as refusal:
            response = _refuse(refusal)
    return response.with_headers({"Date": http_date(call.now)})


def http_date(instant: float) -> str:
    """Return epoch seconds as a ``Date`` header has them."""
    return formatdate(instant, usegmt=True)


def metadata(idp: MockIdP, call: Call) -> MockResponse:  # noqa: ARG001 -- a Handler
    """Describe the server.

    Spec: RFC 8414 §2, OpenID Connect Discovery §3.
    """
    return json_response(200, describe(idp), {"Cache-Control": "max-age=3600"})


def describe(idp: MockIdP) -> dict[str, Any]:
    """Return the server's metadata."""
    members: dict[str, Any] = {
        "issuer": idp.issuer,
        "scopes_supported": ["openid", "profile", "offline_access"],
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": sorted(GRANTS),
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [idp.signing_alg],
    }
    for kind in ("token", "revocation"):
        prefix = f"{kind}_endpoint_auth"
        members[f"{prefix}_methods_supported"] = list(AUTH_METHODS)
        members[f"{prefix}_signing_alg_values_supported"] = list(ASSERTION_ALGORITHMS)
    for endpoint in idp.endpoints:
        if endpoint.metadata is not None:
            members[endpoint.metadata] = idp.url(endpoint.name)
    members |= idp.metadata_overrides
    return {name: value for name, value in members.items() if value is not None}


def jwks(idp: MockIdP, call: Call) -> MockResponse:  # noqa: ARG001 -- a Handler
    """Publish the keys that tokens are signed with."""
    return json_response(200, idp.jwks(), {"Cache-Control": "max-age=3600"})


def token(idp: MockIdP, call: Call) -> MockResponse:
    """Exchange a grant for tokens.

    Spec: RFC 6749 §3.2, §5.
    """
    _check_form(call)
    client = _authenticated(idp, call)
    grant_type = call.form.get("grant_type")
    if not grant_type:
        raise OAuthFaultError("invalid_request", "grant_type is missing")
    if grant_type not in GRANTS:
        raise OAuthFaultError("unsupported_grant_type", "no such grant type")
    return GRANTS[grant_type](idp, call, client)


def revoke(idp: MockIdP, call: Call) -> MockResponse:
    """Revoke a token.

    Spec: RFC 7009 §2.
    """
    _check_form(call)
    client = _authenticated(idp, call)
    if not call.form.get("token"):
        raise OAuthFaultError("invalid_request", "token is missing")
    call.grant = idp.ledger.grant_of(call.form["token"])
    idp.ledger.revoke(call.form["token"], client.client_id)
    return MockResponse(200)


def userinfo(idp: MockIdP, call: Call) -> MockResponse:
    """Return the claims of the user whom an access token stands for.

    Spec: OpenID Connect Core §5.3, RFC 6750 §3.
    """
    scheme, _, value = (call.request.header("authorization") or "").partition(" ")
    if not value or scheme.lower() != "bearer":
        return MockResponse(401, (("WWW-Authenticate", 'Bearer realm="mock"'),))
    entry = idp.ledger.active_access(value.strip())
    if entry is None:
        return _challenge(401, "invalid_token")
    call.grant = entry.grant
    if "openid" not in entry.scope.split():
        return _challenge(403, "insufficient_scope")
    return json_response(200, {"sub": entry.grant.subject})


def _refresh_grant(idp: MockIdP, call: Call, client: MockClient) -> MockResponse:
    """Refresh.

    Spec: RFC 6749 §6.
    """
    value = call.form.get("refresh_token")
    if not value:
        raise OAuthFaultError("invalid_request", "refresh_token is missing")
    call.grant = idp.ledger.grant_of(value)
    issue = idp.ledger.refresh(
        value,
        client.client_id,
        scope=call.form.get("scope") or None,
        audience=call.resources,
    )
    return _token_response(idp, call, issue)


def _client_credentials_grant(
    idp: MockIdP, call: Call, client: MockClient
) -> MockResponse:
    """Give a confidential client a token of its own.

    Spec: RFC 6749 §4.4.
    """
    if client.auth_method == "none":
        detail = "only for clients that can authenticate"
        raise OAuthFaultError("unauthorized_client", detail)
    scope = call.form.get("scope") or "api"
    call.grant = idp.ledger.new_grant(client.client_id, client.client_id, scope)
    issue = idp.ledger.issue(call.grant, audience=call.resources, refreshable=False)
    return _token_response(idp, call, issue)


GRANTS: dict[str, Callable[[MockIdP, Call, MockClient], MockResponse]] = {
    "refresh_token": _refresh_grant,
    "client_credentials": _client_credentials_grant,
}


def _token_response(idp: MockIdP, call: Call, issue: Issue) -> MockResponse:
    """Return the tokens (RFC 6749 §5.1)."""
    access, refresh = issue.access, issue.refresh
    members: dict[str, object] = {
        "access_token": access.token,
        "token_type": "Bearer",
        "expires_in": int(access.expires_at - call.now),
        "scope": access.scope,
    }
    if refresh is not None:
        members["refresh_token"] = refresh.token
        if refresh.expires_at is not None:
            members["refresh_expires_in"] = int(refresh.expires_at - call.now)
    return json_response(200, {**members, **idp.token_members}, {"Pragma": "no-cache"})


def _authenticated(idp: MockIdP, call: Call) -> MockClient:
    """Return the client, or refuse."""
    return authenticate(
        call.request,
        call.form,
        idp.clients,
        audiences=(idp.issuer, idp.url("token")),
        now=call.now,
    )


def _check_form(call: Call) -> None:
    """Refuse what is no form, or names a parameter twice (RFC 6749 §3.2)."""
    if not call.form:
        raise OAuthFaultError("invalid_request", "the body is no form")
    if call.repeated:
        raise OAuthFaultError("invalid_request", "a parameter is repeated")


def _refuse(refusal: OAuthFaultError) -> MockResponse:
    """Return the answer for a refusal."""
    members = {"error": refusal.error, "error_description": refusal.description}
    challenge = refusal.challenge
    headers = {} if challenge is None else {"WWW-Authenticate": challenge}
    return json_response(refusal.status, members, headers)


def _challenge(status: int, error: str) -> MockResponse:
    """Refuse an access token (RFC 6750 §3.1)."""
    value = f'Bearer realm="mock", error="{error}"'
    return json_response(status, {"error": error}, {"WWW-Authenticate": value})


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("openid_configuration", "", metadata, well_known="openid-configuration"),
    Endpoint("oauth_metadata", "", metadata, well_known="oauth-authorization-server"),
    Endpoint("jwks", "/jwks", jwks, metadata="jwks_uri"),
    Endpoint("token", "/token", token, ("POST",), "token_endpoint"),
    Endpoint("revoke", "/revoke", revoke, ("POST",), "revocation_endpoint"),
    Endpoint("userinfo", "/userinfo", userinfo, ("GET", "POST"), "userinfo_endpoint"),
)

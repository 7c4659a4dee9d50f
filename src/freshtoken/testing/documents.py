"""What the mock server tells: its metadata, its keys, and who a user is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from freshtoken.testing.authorize import PROMPTS, RESPONSE_MODES
from freshtoken.testing.clients import ASSERTION_ALGORITHMS, AUTH_METHODS
from freshtoken.testing.endpoints import Call
from freshtoken.testing.messages import MockResponse, json_response
from freshtoken.testing.token_endpoint import GRANTS
from freshtoken.testing.users import CLAIMS_SUPPORTED

if TYPE_CHECKING:
    from freshtoken.testing.idp import MockIdP

_SCOPES = ("openid", "profile", "email", "address", "phone", "offline_access")
_PROTOCOL_CLAIMS = ("auth_time", "acr", "sid")


def metadata(idp: MockIdP, call: Call) -> MockResponse:  # noqa: ARG001 -- a Handler
    """Describe the server.

    Spec: RFC 8414 §2, OpenID Connect Discovery §3.
    """
    return json_response(200, describe(idp), {"Cache-Control": "max-age=3600"})


def describe(idp: MockIdP) -> dict[str, Any]:
    """Return the server's metadata."""
    members: dict[str, Any] = {
        "issuer": idp.issuer,
        "scopes_supported": list(_SCOPES),
        "response_types_supported": ["code"],
        "response_modes_supported": list(RESPONSE_MODES),
        "grant_types_supported": sorted(GRANTS),
        "code_challenge_methods_supported": ["S256"],
        "prompt_values_supported": list(PROMPTS),
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": _id_token_algorithms(idp),
        "claims_supported": ["sub", *_PROTOCOL_CLAIMS, *CLAIMS_SUPPORTED],
    }
    if idp.rules.authorization_response_iss:
        members["authorization_response_iss_parameter_supported"] = True
    for kind in ("token", "revocation"):
        prefix = f"{kind}_endpoint_auth"
        members[f"{prefix}_methods_supported"] = list(AUTH_METHODS)
        members[f"{prefix}_signing_alg_values_supported"] = list(ASSERTION_ALGORITHMS)
    for endpoint in idp.endpoints:
        if endpoint.metadata is not None:
            members[endpoint.metadata] = idp.url(endpoint.name)
    members |= idp.metadata_overrides
    return {name: value for name, value in members.items() if value is not None}


def _id_token_algorithms(idp: MockIdP) -> list[str]:
    """Return how ID tokens are signed: for the most clients, then for the others."""
    others = (client.id_token_alg for client in idp.clients.values())
    return list(dict.fromkeys([idp.signing_alg, *(alg for alg in others if alg)]))


def jwks(idp: MockIdP, call: Call) -> MockResponse:  # noqa: ARG001 -- a Handler
    """Publish the keys that tokens are signed with."""
    return json_response(200, idp.jwks(), {"Cache-Control": "max-age=3600"})


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
    user = idp.users.get(entry.grant.subject)
    claims = user.claims_for(entry.scope) if user is not None else {}
    return json_response(200, {**claims, "sub": entry.grant.subject})


def _challenge(status: int, error: str) -> MockResponse:
    """Refuse an access token (RFC 6750 §3.1)."""
    value = f'Bearer realm="mock", error="{error}"'
    return json_response(status, {"error": error}, {"WWW-Authenticate": value})

"""All endpoints of the mock server.

A further endpoint is one more `Endpoint` in a list that `MockIdP` is given.
"""

from __future__ import annotations

from freshtoken.testing.authorize import authorize
from freshtoken.testing.documents import jwks, metadata, userinfo
from freshtoken.testing.endpoints import Endpoint
from freshtoken.testing.logout import end_session
from freshtoken.testing.token_endpoint import revoke, token

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("openid_configuration", "", metadata, well_known="openid-configuration"),
    Endpoint("oauth_metadata", "", metadata, well_known="oauth-authorization-server"),
    Endpoint("jwks", "/jwks", jwks, metadata="jwks_uri"),
    Endpoint(
        "authorize",
        "/authorize",
        authorize,
        ("GET", "POST"),
        "authorization_endpoint",
    ),
    Endpoint(
        "end_session",
        "/end-session",
        end_session,
        ("GET", "POST"),
        "end_session_endpoint",
    ),
    Endpoint("token", "/token", token, ("POST",), "token_endpoint"),
    Endpoint("revoke", "/revoke", revoke, ("POST",), "revocation_endpoint"),
    Endpoint("userinfo", "/userinfo", userinfo, ("GET", "POST"), "userinfo_endpoint"),
)

"""Where the mock server gives tokens, and takes them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from freshtoken.testing.clients import authenticate
from freshtoken.testing.endpoints import Call
from freshtoken.testing.grants import OAuthFaultError
from freshtoken.testing.id_tokens import issue_id_token
from freshtoken.testing.messages import MockResponse, json_response

if TYPE_CHECKING:
    from freshtoken.testing.clients import MockClient
    from freshtoken.testing.grants import Issue
    from freshtoken.testing.idp import MockIdP


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


def _code_grant(idp: MockIdP, call: Call, client: MockClient) -> MockResponse:
    """Exchange an authorization code; a second time ends what the first one brought.

    Spec: RFC 6749 §4.1.3, §4.1.2; OpenID Connect Core §3.1.3.
    """
    form = call.form
    if not form.get("code"):
        raise OAuthFaultError("invalid_request", "code is missing")
    entry = idp.codes.find(form["code"])
    if entry is not None and entry.grant is not None:
        call.grant = entry.grant
        if entry.client_id == client.client_id:
            idp.ledger.end(entry.grant, "code_reuse")
    entry = idp.codes.check(
        form["code"],
        client_id=client.client_id,
        redirect_uri=form.get("redirect_uri", ""),
        verifier=form.get("code_verifier", ""),
        now=call.now,
    )
    audience = _audience(call, entry.resources)
    grant = idp.ledger.new_grant(entry.subject, client.client_id, entry.scope)
    grant.resources = entry.resources
    grant.authentication = entry.authentication
    entry.grant = call.grant = grant
    scopes = entry.scope.split()
    always = idp.rules.refresh_token_without_offline_access
    issue = idp.ledger.issue(
        grant, audience=audience, refreshable=always or "offline_access" in scopes
    )
    id_token = issue_id_token(idp, issue.access, "code") if "openid" in scopes else None
    return _token_response(idp, call, issue, id_token)


def _refresh_grant(idp: MockIdP, call: Call, client: MockClient) -> MockResponse:
    """Refresh.

    Spec: RFC 6749 §6.
    """
    value = call.form.get("refresh_token")
    if not value:
        raise OAuthFaultError("invalid_request", "refresh_token is missing")
    call.grant = idp.ledger.grant_of(value)
    granted = call.grant.resources if call.grant else ()
    issue = idp.ledger.refresh(
        value,
        client.client_id,
        scope=call.form.get("scope") or None,
        audience=_audience(call, granted),
    )
    # Only who had an ID token gets another: a grant from elsewhere has none to be
    # compared with.
    again = idp.rules.id_token_on_refresh and "openid" in issue.access.scope.split()
    id_token = None
    if again and issue.access.grant.authentication is not None:
        id_token = issue_id_token(idp, issue.access, "refresh")
    return _token_response(idp, call, issue, id_token)


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
    "authorization_code": _code_grant,
    "refresh_token": _refresh_grant,
    "client_credentials": _client_credentials_grant,
}


def _audience(call: Call, granted: tuple[str, ...]) -> tuple[str, ...]:
    """Return whom an access token is for: what was asked, within what was granted.

    Spec: RFC 8707 §2.2.
    """
    if granted and not set(call.resources) <= set(granted):
        detail = "the resource was not in the authorization request"
        raise OAuthFaultError("invalid_target", detail)
    return call.resources or granted


def _token_response(
    idp: MockIdP, call: Call, issue: Issue, id_token: str | None = None
) -> MockResponse:
    """Return the tokens (RFC 6749 §5.1, OpenID Connect Core §3.1.3.3)."""
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
    if id_token is not None:
        members["id_token"] = id_token
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

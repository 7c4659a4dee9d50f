"""Where browsers are sent to sign out: the mock server's end-session endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshtoken.testing.pages import (
    SESSION_COOKIE,
    PageError,
    add_cookie,
    page,
    read_cookies,
    redirect,
)

if TYPE_CHECKING:
    from freshtoken.testing.endpoints import Call
    from freshtoken.testing.grants import MockGrant
    from freshtoken.testing.idp import MockIdP
    from freshtoken.testing.messages import MockResponse


def end_session(idp: MockIdP, call: Call) -> MockResponse:
    """End a browser session, and the grants that came from it.

    It does not ask whether the user means it. An ID token that has expired will do.

    Spec: OpenID Connect RP-Initiated Logout §2, §3.
    """
    if call.repeated:
        raise PageError("a parameter is repeated")
    hinted = _hinted_grant(idp, call)
    response = _farewell(idp, call, hinted)
    cookie = read_cookies(call.request).get(SESSION_COOKIE)
    session = idp.browser_session(cookie)
    sid = session.sid if session is not None else None
    if hinted is not None and hinted.authentication is not None:
        sid = hinted.authentication.sid
    if sid is not None:
        _end(idp, sid)
    if session is None or session.sid != sid:
        return response
    secure = idp.issuer.startswith("https:")
    return add_cookie(response, SESSION_COOKIE, "", secure=secure)


def _end(idp: MockIdP, sid: str) -> None:
    """End all that goes by a ``sid``."""
    session = idp.browser_session_of(sid)
    if session is not None:
        idp.end_browser_session(session)
    for grant in idp.ledger.grants.values():
        if grant.authentication is not None and grant.authentication.sid == sid:
            idp.ledger.end(grant, "logout")


def _hinted_grant(idp: MockIdP, call: Call) -> MockGrant | None:
    """Return the grant whose ID token was sent."""
    hint = call.form.get("id_token_hint")
    if hint is None:
        return None
    grant = call.grant = idp.ledger.id_tokens.get(hint)
    if grant is None:
        raise PageError("id_token_hint is no ID token of this server")
    if call.form.get("client_id", grant.client_id) != grant.client_id:
        raise PageError("client_id is not the client of id_token_hint")
    return grant


def _farewell(idp: MockIdP, call: Call, hinted: MockGrant | None) -> MockResponse:
    """Return where the browser goes afterwards, or a page.

    Raises:
        PageError: Not there; nothing has been ended.
    """
    uri = call.form.get("post_logout_redirect_uri")
    if uri is None:
        return page(200, "signed out")
    client_id = hinted.client_id if hinted else call.form.get("client_id", "")
    client = idp.clients.get(client_id)
    if client is None:
        raise PageError("a redirect needs id_token_hint or client_id")
    if not client.allows_redirect(uri, after_logout=True):
        raise PageError("post_logout_redirect_uri is not registered")
    state = call.form.get("state")
    return redirect(uri, [] if state is None else [("state", state)])

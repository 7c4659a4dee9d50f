"""Where browsers are sent to sign in: the mock server's authorization endpoint.

It asks nobody anything: the user is signed in and consents at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from freshtoken._foundation.secret import MASK
from freshtoken.testing.codes import CodeEntry
from freshtoken.testing.grants import OAuthFaultError
from freshtoken.testing.pages import (
    SESSION_COOKIE,
    USER_COOKIE,
    PageError,
    add_cookie,
    form_page,
    read_cookies,
    redirect,
)
from freshtoken.testing.users import Authentication

if TYPE_CHECKING:
    from freshtoken.testing.clients import MockClient
    from freshtoken.testing.endpoints import Call
    from freshtoken.testing.forging import Pairs
    from freshtoken.testing.idp import MockIdP
    from freshtoken.testing.messages import MockResponse
    from freshtoken.testing.users import BrowserSession

RESPONSE_MODES = ("query", "form_post")
PROMPTS = ("none", "login", "consent", "select_account")
DEFAULT_ACR = "urn:mock:password"
_DEFAULT_SCOPE = "api"
_CHALLENGE = re.compile(r"[A-Za-z0-9\-_]{43}", re.ASCII)
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+(?: [\x21\x23-\x5b\x5d-\x7e]+)*")


@dataclass(frozen=True, slots=True, repr=False)
class _Destination:
    """Where an answer goes, whatever it says."""

    client: MockClient
    redirect_uri: str
    response_mode: str
    state: str | None

    def __repr__(self) -> str:
        """Show no state."""
        return f"_Destination({self.redirect_uri!r}, {MASK})"


def authorize(idp: MockIdP, call: Call) -> MockResponse:
    """Sign the user in, and send the browser back with a code or an error.

    Spec: RFC 6749 §4.1.1, §4.1.2; RFC 9207 §2; OpenID Connect Core §3.1.2.
    """
    destination = _read_destination(idp, call)
    session = None
    try:
        _check_request(call)
        session = _signed_in(idp, call)
        forgery = idp.take_authorization_forgery()
        pairs: Pairs = []
        if forgery is None or not forgery.refuses:
            pairs.append(("code", _new_code(idp, call, destination, session)))
    except OAuthFaultError as refusal:
        forgery = idp.take_authorization_forgery()
        pairs = [("error", refusal.error), ("error_description", refusal.description)]
    if destination.state is not None:
        pairs.append(("state", destination.state))
    if idp.rules.authorization_response_iss:
        pairs.append(("iss", idp.issuer))
    if forgery is not None:
        pairs = forgery.apply(pairs)
    response = _send(destination, pairs)
    if session is None:
        return response
    secure = idp.issuer.startswith("https:")
    return add_cookie(response, SESSION_COOKIE, session.cookie, secure=secure)


def _read_destination(idp: MockIdP, call: Call) -> _Destination:
    """Find out where the answer goes; without that the user sees a page.

    Spec: RFC 6749 §4.1.2.1.
    """
    client = idp.clients.get(call.form.get("client_id", ""))
    if client is None or "client_id" in call.repeated:
        raise PageError("unknown client")
    uri = call.form.get("redirect_uri", "")
    if "redirect_uri" in call.repeated or not client.allows_redirect(uri):
        raise PageError("redirect_uri is missing or not registered")
    mode = call.form.get("response_mode", RESPONSE_MODES[0])
    known = mode if mode in RESPONSE_MODES else RESPONSE_MODES[0]
    return _Destination(client, uri, known, call.form.get("state"))


def _check_request(call: Call) -> None:
    """Refuse what this server does not do, or what makes no sense."""
    _check_kind(call)
    _check_pkce(call)
    _check_wishes(call)


def _check_kind(call: Call) -> None:
    """Refuse other flows than the code flow."""
    form = call.form
    if call.repeated:
        _refuse("invalid_request", "a parameter is repeated")
    for name in ("request", "request_uri"):
        if name in form:
            _refuse(f"{name}_not_supported", f"{name} is not supported")
    if "response_type" not in form:
        _refuse("invalid_request", "response_type is missing")
    if form["response_type"] != "code":
        _refuse("unsupported_response_type", "only response_type=code")
    if form.get("response_mode", RESPONSE_MODES[0]) not in RESPONSE_MODES:
        _refuse("invalid_request", "response_mode is not supported")


def _check_pkce(call: Call) -> None:
    """Refuse a request without PKCE, or with ``plain``.

    Spec: RFC 7636 §4.4.1.
    """
    form = call.form
    if form.get("code_challenge_method", "plain") != "S256":
        _refuse("invalid_request", "PKCE with code_challenge_method=S256 is required")
    if not _CHALLENGE.fullmatch(form.get("code_challenge", "")):
        _refuse("invalid_request", "code_challenge is missing or malformed")


def _check_wishes(call: Call) -> None:
    """Refuse malformed parameters."""
    form = call.form
    if "scope" in form and not _SCOPE.fullmatch(form["scope"]):
        _refuse("invalid_scope", "scope is malformed")
    prompts = form.get("prompt", "").split()
    if not set(prompts) <= set(PROMPTS) or ("none" in prompts and len(prompts) > 1):
        _refuse("invalid_request", "prompt is not supported")
    max_age = form.get("max_age", "0")
    if not (max_age.isascii() and max_age.isdigit()):
        _refuse("invalid_request", "max_age is no number of seconds")
    for resource in call.resources:
        if not urlsplit(resource).scheme or "#" in resource:
            _refuse("invalid_target", "resource is no absolute URI")


def _signed_in(idp: MockIdP, call: Call) -> BrowserSession:
    """Return the browser's session: the one there is, or a new one.

    Spec: OpenID Connect Core §3.1.2.1, §3.1.2.3.
    """
    cookies = read_cookies(call.request)
    session = idp.browser_session(cookies.get(SESSION_COOKIE))
    hint = call.form.get("login_hint") or cookies.get(USER_COOKIE)
    if hint is None and session is not None:
        hint = session.subject
    user = idp.find_user(hint or idp.default_user)
    prompts = call.form.get("prompt", "").split()
    if session is not None and (user is None or user.subject != session.subject):
        session = None
    max_age = call.form.get("max_age")
    too_old = (
        session is not None
        and max_age is not None
        and (int(max_age) == 0 or call.now - session.auth_time > int(max_age))
    )
    if session is not None and not too_old and "login" not in prompts:
        return session
    if "none" in prompts:
        _refuse("login_required", "the user has to sign in")
    if user is None:
        _refuse("access_denied", "there is no such user: see MockIdP.add_user")
    if session is None:
        return idp.start_browser_session(user.subject, call.now)
    session.auth_time = call.now
    return session


def _new_code(
    idp: MockIdP, call: Call, destination: _Destination, session: BrowserSession
) -> str:
    """Give a code for what was asked."""
    asked_acr = call.form.get("acr_values", "").split()
    entry = CodeEntry(
        code=idp.ledger.new_token("code"),
        client_id=destination.client.client_id,
        redirect_uri=destination.redirect_uri,
        code_challenge=call.form["code_challenge"],
        subject=session.subject,
        scope=call.form.get("scope", _DEFAULT_SCOPE),
        resources=call.resources,
        authentication=Authentication(
            auth_time=session.auth_time,
            sid=session.sid,
            acr=asked_acr[0] if asked_acr else DEFAULT_ACR,
            nonce=call.form.get("nonce"),
        ),
        expires_at=call.now + idp.rules.code_lifetime,
    )
    idp.codes.enter(entry)
    return entry.code


def _send(destination: _Destination, pairs: Pairs) -> MockResponse:
    """Send the browser back.

    Spec: OAuth 2.0 Form Post Response Mode §2.
    """
    if destination.response_mode == "form_post":
        return form_page(destination.redirect_uri, pairs)
    return redirect(destination.redirect_uri, pairs)


def _refuse(error: str, description: str) -> NoReturn:
    """Refuse the request."""
    raise OAuthFaultError(error, description)

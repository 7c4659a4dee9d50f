"""Sending a browser to sign in: the request, and what its answer will have to fit.

Code flow only, always with PKCE S256 and ``state``, and with ``nonce`` wherever an ID
token will come.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

from freshtoken._foundation.secret import MASK, Secret
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.metadata import ServerMetadata
from freshtoken._protocol.pending import (
    MOST_MAX_AGE,
    OPENID,
    RESPONSE_MODES,
    PendingSignIn,
    ResponseMode,
    hash_binding,
    requires_id_token,
    state_key,
)
from freshtoken._protocol.pkce import (
    CHALLENGE_METHOD,
    check_pkce,
    code_challenge,
    random_text,
)
from freshtoken._protocol.settings import check_identifier, has_control, refuse
from freshtoken._protocol.urls import check_redirect_uri

__all__ = [
    "AuthorizationRequest",
    "PendingSignIn",
    "ResponseMode",
    "build_authorization_request",
    "hash_binding",
    "requires_id_token",
    "state_key",
]

OFFLINE_ACCESS = "offline_access"

DEFAULT_PROMPT = "auto"
"""``consent`` where offline access is asked for, else none."""

_MOST_RETURN_TO = 2_048
# RFC 6749 §3.3: printable ASCII but blank, quote and backslash.
_SCOPE_TOKEN = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
# RFC 3986 §4.3, as far as it tells an absolute URI from other text.
_ABSOLUTE_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:[^#\s]+")
# What the library sets, what would go round the checks of an answer, and what no URL
# may carry.
_RESERVED = frozenset(
    {
        "acr_values",
        "client_assertion",
        "client_assertion_type",
        "client_id",
        "client_secret",
        "code_challenge",
        "code_challenge_method",
        "code_verifier",
        "login_hint",
        "max_age",
        "nonce",
        "prompt",
        "redirect_uri",
        "request",
        "request_uri",
        "resource",
        "response_mode",
        "response_type",
        "scope",
        "state",
        "ui_locales",
    }
)


@dataclass(frozen=True, slots=True, repr=False)
class AuthorizationRequest:
    """Where the browser goes, and what its answer has to fit.

    Attributes:
        url: The authorization endpoint with the request in its query.
        binding: For a cookie of this browser.
    """

    url: str
    binding: Secret
    pending: PendingSignIn

    def __repr__(self) -> str:
        """Show whose sign-in it is, nothing secret."""
        return f"AuthorizationRequest({self.pending.issuer!r}, {MASK})"


def build_authorization_request(
    client: OAuthClient,
    metadata: ServerMetadata,
    *,
    rng: random.Random,
    now: float,
    scope: str | Iterable[str] | None = None,
    prompt: str | None = DEFAULT_PROMPT,
    max_age: int | None = None,
    acr_values: str | Iterable[str] | None = None,
    resource: str | Iterable[str] | None = None,
    login_hint: str | None = None,
    ui_locales: str | None = None,
    response_mode: ResponseMode | None = None,
    redirect_uri: str | None = None,
    return_to: str | None = None,
    extra: Mapping[str, str] | None = None,
) -> AuthorizationRequest:
    """Build an authorization request for the code flow.

    Args:
        rng: Makes state, nonce, verifier and binding, 256 bits each.
        now: Epoch seconds.
        prompt: ``None`` sends none; the default adds ``consent`` where the scope has
            ``offline_access``, unless the metadata say that the server has no such
            prompt.
        extra: Further parameters, none of those that are built here.

    Raises:
        MisconfiguredError: A value is of no use, or the server lacks something.

    Spec: RFC 6749 §4.1.1, RFC 7636 §4.3, RFC 8707 §2, OpenID Connect Core §3.1.2.1.
    """
    scopes = _check_scope(scope)
    prompts = _check_prompt(prompt, scopes, metadata)
    check_pkce(metadata)
    binding = Secret(random_text(rng))
    pending = PendingSignIn(
        state=random_text(rng),
        nonce=random_text(rng) if OPENID in scopes else None,
        code_verifier=random_text(rng),
        redirect_uri=_check_redirect(client, redirect_uri),
        issuer=client.issuer,
        client_id=client.client_id,
        scope=scopes or None,
        binding_hash=hash_binding(binding.reveal()),
        created_at=now,
        max_age=_check_max_age(max_age),
        acr_values=_check_words("acr_values", acr_values),
        resource=_check_resource(resource),
        response_mode=_check_response_mode(response_mode),
        return_to=_check_return_to(return_to),
    )
    optional = {
        "scope": " ".join(scopes),
        "nonce": pending.nonce,
        "prompt": prompts,
        "max_age": None if pending.max_age is None else str(pending.max_age),
        "acr_values": " ".join(pending.acr_values),
        "login_hint": _check_text("login_hint", login_hint),
        "ui_locales": _check_text("ui_locales", ui_locales),
        "response_mode": response_mode if response_mode != "query" else None,
    }
    parameters = [
        ("response_type", "code"),
        ("client_id", client.client_id),
        ("redirect_uri", pending.redirect_uri),
        ("state", pending.state),
        ("code_challenge", code_challenge(pending.code_verifier)),
        ("code_challenge_method", CHALLENGE_METHOD),
        *((name, value) for name, value in optional.items() if value),
        *(("resource", uri) for uri in pending.resource),
        *_check_extra(extra),
    ]
    url = _with_query(metadata.endpoint("authorization_endpoint"), parameters)
    return AuthorizationRequest(url, binding, pending)


def _check_scope(scope: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return scope values in the order given, each once.

    Spec: RFC 6749 §3.3.
    """
    values = _words("scope", scope)
    for value in values:
        if not _SCOPE_TOKEN.fullmatch(value):
            refuse("scope", "holds a value that no scope can have: check its blanks")
    return values


def _check_prompt(
    prompt: str | None, scopes: tuple[str, ...], metadata: ServerMetadata
) -> str | None:
    """Return ``prompt`` as it is sent.

    Offline access needs the user's consent each time it is asked for, and many servers
    leave the refresh token out without it.

    Spec: OpenID Connect Core §3.1.2.1, §11.
    """
    if prompt == DEFAULT_PROMPT:
        if OFFLINE_ACCESS not in scopes:
            return None
        known = metadata.values("prompt_values_supported")
        return "consent" if known is None or "consent" in known else None
    words = _check_words("prompt", prompt)
    if "none" in words and len(words) > 1:
        refuse("prompt", "is 'none' and something else: the two exclude each other")
    return " ".join(words) or None


def _check_max_age(max_age: object) -> int | None:
    """Return ``max_age``; zero asks for a new authentication, and is sent."""
    if max_age is None:
        return None
    if isinstance(max_age, bool) or not isinstance(max_age, int) or max_age < 0:
        refuse("max_age", "is not a whole number of seconds, zero or more")
    if max_age > MOST_MAX_AGE:
        refuse("max_age", "is longer than any session: leave it out")
    return max_age


def _check_resource(resource: object) -> tuple[str, ...]:
    """Return resource indicators: absolute URIs without fragment (RFC 8707 §2)."""
    if isinstance(resource, str):
        resource = (resource,) if resource else ()
    values = _words("resource", resource)
    for value in values:
        check_identifier("resource", value)
        if not _ABSOLUTE_URI.fullmatch(value):
            refuse("resource", "is not an absolute URI without fragment")
    return values


def _check_response_mode(mode: object) -> ResponseMode:
    """Return how the answer is to come."""
    if mode is None or mode == "query":
        return "query"
    if mode != "form_post":
        refuse("response_mode", f"is none of {', '.join(RESPONSE_MODES)}")
    return "form_post"


def _check_redirect(client: OAuthClient, redirect_uri: str | None) -> str:
    """Return the address that the browser is to come back to."""
    uri = client.redirect_uri if redirect_uri is None else redirect_uri
    if uri is None:
        refuse("redirect_uri", "is missing: give it to the client, or here")
    check_redirect_uri(uri, insecure=client.allow_insecure_transport)
    return uri


def _check_return_to(return_to: object) -> str | None:
    """Return the application's note, within bounds; what it means is its affair."""
    text = _check_text("return_to", return_to)
    if text is not None and len(text) > _MOST_RETURN_TO:
        refuse("return_to", f"is longer than {_MOST_RETURN_TO} characters")
    return text


def _check_text(setting: str, value: object) -> str | None:
    """Return a text that can be sent as it is; an empty one is none."""
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        refuse(setting, "is not text")
    if has_control(value):
        refuse(setting, "contains a control character")
    return value


def _check_words(setting: str, value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return words without blanks or control characters, each once."""
    words = _words(setting, value)
    for word in words:
        if has_control(word) or " " in word:
            refuse(setting, "holds a value with a blank or a control character")
    return words


def _words(setting: str, value: object) -> tuple[str, ...]:
    """Return the words of a text, or the texts of a collection, each once."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(dict.fromkeys(word for word in value.split(" ") if word))
    if not isinstance(value, Iterable):
        refuse(setting, "is neither text nor a collection of texts")
    words = tuple(value)
    if not all(isinstance(word, str) and word for word in words):
        refuse(setting, "holds something that is no text, or empty")
    return tuple(dict.fromkeys(words))


def _check_extra(extra: object) -> list[tuple[str, str]]:
    """Return further parameters; what is built here cannot be put aside by them.

    Those without a value are left out (RFC 6749 §3.1).
    """
    if extra is None:
        return []
    if not isinstance(extra, Mapping):
        refuse("extra", "is not a mapping of names to texts")
    for name, value in extra.items():
        if not isinstance(name, str) or not name or not isinstance(value, str):
            refuse("extra", "is not a mapping of names to texts")
        if has_control(name) or has_control(value):
            refuse("extra", "contains a control character")
        if name in _RESERVED:
            refuse("extra", f"cannot set {name}, which is set elsewhere or nowhere")
    return [(name, value) for name, value in extra.items() if value]


def _with_query(url: str, parameters: list[tuple[str, str]]) -> str:
    """Add parameters to a URL whose own query stays (RFC 6749 §3.1)."""
    own = urlsplit(url).query
    ours = {name for name, _ in parameters}
    clash = ours & {name for name, _ in parse_qsl(own, keep_blank_values=True)}
    if clash:
        refuse(
            "authorization_endpoint",
            f"has {', '.join(sorted(clash))} in its query already: leave that out",
        )
    # An empty query leaves no trace in the parts, only in the text.
    glue = "" if url.endswith("?") or own.endswith("&") else "&" if own else "?"
    return f"{url}{glue}{urlencode(parameters)}"

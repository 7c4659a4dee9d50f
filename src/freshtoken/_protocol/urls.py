"""Which URLs tokens and credentials may travel to."""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit

from freshtoken._foundation.secret import redact
from freshtoken._protocol.settings import has_control, refuse
from freshtoken.errors import Disposition, IssuerMismatchError


def check_issuer(issuer: object, *, insecure: bool) -> None:
    """Refuse what is not an issuer identifier.

    It is compared code point by code point, so nothing is normalised.

    Spec: OpenID Connect Discovery §3, RFC 8414 §2.
    """
    parts = _split("issuer", issuer)
    _check_scheme("issuer", parts, insecure=insecure)
    # Looked for in the text: an empty query or fragment leaves no trace in the parts.
    for mark, name in (("?", "a query"), ("#", "a fragment"), ("@", "a user name")):
        place = parts.netloc if mark == "@" else str(issuer)
        if mark in place:
            refuse("issuer", f"contains {name}")


def check_endpoint_url(setting: str, url: object, *, insecure: bool) -> str:
    """Return *url*, or refuse what no token or credential may be sent to.

    Spec: RFC 6749 §3.1, §3.2; RFC 8414 §2.
    """
    parts = _split(setting, url)
    _check_scheme(setting, parts, insecure=insecure)
    text = str(url)
    if "#" in text:
        refuse(setting, "contains a fragment")
    if "@" in parts.netloc:
        refuse(setting, "contains a user name")
    return text


def check_redirect_uri(uri: object, *, insecure: bool) -> None:
    """Refuse what a browser cannot be sent back to safely.

    Schemes of an application's own are allowed (RFC 8252 §7.1).

    Spec: RFC 6749 §3.1.2.
    """
    setting = "redirect_uri"
    if isinstance(uri, str) and not uri.lower().startswith(("http:", "https:")):
        scheme, colon, rest = uri.partition(":")
        if has_control(uri) or not (scheme and colon and rest) or "/" in scheme:
            refuse(setting, "is not an absolute URI")
    else:
        _check_scheme(setting, _split(setting, uri), insecure=insecure)
    if "#" in str(uri):
        refuse(setting, "contains a fragment")


def issuer_mismatch(expected: str, received: object) -> IssuerMismatchError:
    """Make the error for metadata that name another issuer (RFC 8414 §3.3)."""
    named = redact(received) if isinstance(received, str) else type(received).__name__
    hint = "take the server's own spelling"
    if isinstance(received, str) and received.rstrip("/") == expected.rstrip("/"):
        hint = "they differ only by the slash at the end: " + hint
    elif isinstance(received, str) and "{" in received:
        hint = "the server's is a template for many tenants: name one tenant's issuer"
    error = IssuerMismatchError(
        f"issuer is {expected!r}, but the server's metadata name {named!r}: {hint}",
        setting="issuer",
        disposition=Disposition.MISCONFIGURED,
        issuer=expected,
    )
    error.expected, error.received = expected, named
    return error


def is_loopback(host: str | None) -> bool:
    """Tell whether *host* is this machine by its literal name or address."""
    if host is None:
        return False
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback and "%" not in host


def _split(setting: str, url: object) -> SplitResult:
    """Return the parts of an absolute URL with a host."""
    if not isinstance(url, str):
        refuse(setting, "is not text")
    if not url or has_control(url) or " " in url or "\\" in url:
        refuse(setting, "is not a URL")
    parts = None
    try:
        candidate = urlsplit(url)
        if candidate.hostname and candidate.port != 0:
            parts = candidate
    except ValueError:
        pass  # a broken port or IPv6 address: refused below, outside this block
    if parts is None:
        refuse(setting, "is not an absolute URL with a host")
    return parts


def _check_scheme(setting: str, parts: SplitResult, *, insecure: bool) -> None:
    """Let ``https`` pass, and ``http`` to a literal loopback address.

    Spec: RFC 6749 §1.6, §3.2.
    """
    if parts.scheme == "https":
        return
    if parts.scheme != "http":
        refuse(setting, "is not an https URL")
    if not insecure and not is_loopback(parts.hostname):
        refuse(
            setting,
            "is not https: plain http is for localhost, 127.0.0.0/8 and ::1 "
            "(allow_insecure_transport=True in tests)",
        )

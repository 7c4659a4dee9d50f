"""A browser without a screen, for sign-ins at a real server."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Self
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx

from tests.servers.oidc_provider_records import ServerError


class Browser:
    """Follows redirects, submits forms, and keeps cookies for as long as it lives.

    One browser is one user at one machine: a second sign-in in it meets the session
    that the server began at the first.

        with Browser(user="alice") as browser:
            callback = browser.open(url)
    """

    def __init__(self, *, user: str | None = None, refusal: str | None = None) -> None:
        """Start without cookies, as a private window does.

        Args:
            user: Who signs in where a login is asked for; by default the
                ``login_hint`` of the request.
            refusal: The error of a user who says no, such as ``access_denied``.
        """
        headers = {"X-Test-User": user, "X-Test-Refusal": refusal}
        self._client = new_client({k: v for k, v in headers.items() if v is not None})

    def __enter__(self) -> Self:
        """Use the browser for the length of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the window; the cookies are gone."""
        self._client.close()

    def open(self, url: str, redirect_uri: str | None = None) -> str:
        """Go on from *url* until a redirect leads back; return its URL, unopened.

        Args:
            url: An authorization or end-session request.
            redirect_uri: Where the browser is stopped; by default the one in *url*.

        Raises:
            ServerError: A page came instead, such as the server's error page.
        """
        request = self._travel(url, redirect_uri or _redirect_uri_of(url))
        if request.method != "GET":
            raise ServerError("a form came back: read it with open_form")
        return str(request.url)

    def open_form(self, url: str, redirect_uri: str | None = None) -> dict[str, str]:
        """Do the same where the answer is a form (``response_mode=form_post``)."""
        request = self._travel(url, redirect_uri or _redirect_uri_of(url))
        if request.method != "POST":
            raise ServerError("a redirect came back: read it with open")
        return dict(parse_qsl(request.content.decode()))

    def _travel(self, url: str, end: str, most: int = 20) -> httpx.Request:
        """Return the request that the browser would have sent to *end*."""
        request = self._client.build_request("GET", url)
        for _ in range(most):
            response = self._client.send(request)
            following = response.next_request or self._submit(response)
            if following is None:
                raise ServerError(
                    f"no redirect but {response.status_code}: {_words_of(response)}"
                )
            if _same_page(str(following.url), end):
                return following
            request = following
        raise ServerError(f"still on the way after {most} redirects")

    def _submit(self, response: httpx.Response) -> httpx.Request | None:
        """Return what the form of a page sends, or None where there is no form."""
        form = _Form()
        form.feed(response.text)
        if form.action is None:
            return None
        url = urljoin(str(response.url), form.action)
        return self._client.build_request("POST", url, data=form.fields)


class _Form(HTMLParser):
    """The first form of a page, its fields, and the first button that has a name."""

    def __init__(self) -> None:
        super().__init__()
        self.action: str | None = None
        self.fields: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form" and self.action is None:
            self.action = given.get("action")
        name = given.get("name")
        if tag in {"input", "button"} and name:
            self.fields.setdefault(name, given.get("value") or "")


def new_client(headers: Mapping[str, str] | None = None) -> httpx.Client:
    """Return a client for loopback that no proxy and no idle connection disturbs."""
    return httpx.Client(
        headers=headers,
        trust_env=False,
        # Never used here; the usual one reads all of the machine's certificates.
        verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        timeout=30,
        limits=httpx.Limits(max_keepalive_connections=0),
    )


def _words_of(response: httpx.Response) -> str:
    """Return what a page says, without its mark-up."""
    text = re.sub(r"(?s)<(style|title)>.*?</\1>|<[^>]*>", " ", response.text)
    return " ".join(text.split())[:500]


def _redirect_uri_of(url: str) -> str:
    query = dict(parse_qsl(urlsplit(url).query))
    if "redirect_uri" not in query:
        raise ServerError("the URL names no redirect_uri, so the caller must")
    return query["redirect_uri"]


def _same_page(url: str, other: str) -> bool:
    """Say whether two URLs differ in query and fragment only."""
    return urlsplit(url)[:3] == urlsplit(other)[:3]

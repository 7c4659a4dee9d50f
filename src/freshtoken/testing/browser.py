"""A browser that needs no hands: it follows a sign-in until it leaves the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urljoin

from freshtoken._foundation.secret import MASK
from freshtoken.testing.messages import (
    MockRequest,
    MockResponse,
    first_values,
    origin_of,
)
from freshtoken.testing.pages import USER_COOKIE
from freshtoken.testing.users import DEFAULT_USER

if TYPE_CHECKING:
    import httpx
    import httpx2

_MOST_HOPS = 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class BrowserStoppedError(Exception):
    """The browser met a page where a person would have to do something.

    Attributes:
        status: Of the page.
        title: Of the page.
    """

    def __init__(self, status: int, title: str) -> None:
        """Say which page."""
        super().__init__(f"the browser stopped at a page: {status} {title}".rstrip())
        self.status = status
        self.title = title


class CallbackForm(Mapping[str, str]):
    """What a browser posts to the application in the response mode ``form_post``.

    A mapping of the parameters; `pairs` has them in order, and the repeated ones.

    Attributes:
        url: Where it is posted to.
        pairs: Names and values.
    """

    __slots__ = ("_values", "pairs", "url")

    def __init__(self, url: str, pairs: Iterable[tuple[str, str]]) -> None:
        """Keep a copy."""
        self.url: str = url
        self.pairs: tuple[tuple[str, str], ...] = tuple(pairs)
        self._values = first_values(self.pairs)

    def __getitem__(self, name: str) -> str:
        """Return the first value of a parameter."""
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._values)

    def __len__(self) -> int:
        """Count the names."""
        return len(self._values)

    def __repr__(self) -> str:
        """Show the names only."""
        names = ", ".join(name for name, _ in self.pairs)
        return f"CallbackForm({self.url!r}, {names}, {MASK})"


class HandlesRequests(Protocol):
    """What a browser needs of a server: `MockIdP` is one."""

    async def handle(self, request: MockRequest) -> MockResponse:
        """Answer a request."""
        ...


class Browser:
    """A browser with cookies of its own, in front of which one user sits.

    Args:
        server: The mock server; or an HTTP client, where that is in another process.
        user: Whose it is: ``sub``, ``email`` or ``preferred_username``. A
            ``login_hint`` goes before it.

    Attributes:
        cookies: What the server has set, by name.
    """

    def __init__(
        self,
        server: HandlesRequests | httpx.AsyncClient | httpx2.AsyncClient,
        user: str = DEFAULT_USER,
    ) -> None:
        """Start without a session."""
        self._server: Any = server
        self.cookies: dict[str, str] = {USER_COOKIE: user}

    async def visit(self, url: str) -> str | CallbackForm:
        """Open an address of the server; return what the application is to get.

        That is the address which the browser is redirected to in the end, or the form
        that it posts; it goes there no more.

        Raises:
            BrowserStoppedError: It is not sent back to the application.
            NoAnswerError: A fault leaves a request without an answer.
        """
        origin = origin_of(url)
        for _ in range(_MOST_HOPS):
            response = await self._get(url)
            self._keep_cookies(response)
            location = response.header("location")
            if response.status not in _REDIRECTS or location is None:
                return _posted_form(response, url)
            url = urljoin(url, location)
            if origin_of(url) != origin:
                return url
        raise BrowserStoppedError(508, "too many redirects")

    async def _get(self, url: str) -> MockResponse:
        """Send one request."""
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers = {"Accept": "text/html", "Cookie": cookies}
        if hasattr(self._server, "handle"):
            request = MockRequest("GET", url, tuple(headers.items()))
            answer: MockResponse = await self._server.handle(request)
            return answer
        got = await self._server.get(url, headers=headers, follow_redirects=False)
        pairs = tuple(got.headers.multi_items())
        return MockResponse(got.status_code, pairs, got.content)

    def _keep_cookies(self, response: MockResponse) -> None:
        """Do as ``Set-Cookie`` says."""
        for name, value in response.headers:
            if name.lower() != "set-cookie":
                continue
            for morsel in SimpleCookie(value).values():
                self.cookies[morsel.key] = morsel.value
                if morsel["max-age"] == "0":
                    del self.cookies[morsel.key]

    def __repr__(self) -> str:
        """Show no cookie but whose browser it is."""
        return f"Browser({self.cookies.get(USER_COOKIE)!r}, {MASK})"


class _FormReader(HTMLParser):
    """Reads a page that posts a form by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.submits = False
        self.action: str | None = None
        self.pairs: list[tuple[str, str]] = []
        self.title = ""
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what matters."""
        values = {name: value or "" for name, value in attrs}
        self._in_title = tag == "title"
        if tag == "body" and "submit()" in values.get("onload", ""):
            self.submits = True
        elif tag == "form" and values.get("method", "").lower() == "post":
            self.action = values.get("action", "")
        elif tag == "input":
            self.pairs.append((values.get("name", ""), values.get("value", "")))

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 -- the parser's interface
        """Leave the title."""
        self._in_title = False

    def handle_data(self, data: str) -> None:
        """Note the title."""
        if self._in_title:
            self.title += data


def _posted_form(response: MockResponse, url: str) -> CallbackForm:
    """Return the form that a page posts by itself."""
    reader = _FormReader()
    reader.feed(response.body.decode("utf-8", "replace"))
    if reader.submits and reader.action is not None:
        return CallbackForm(urljoin(url, reader.action), reader.pairs)
    raise BrowserStoppedError(response.status, reader.title.strip())

"""Sign-ins of a test in one call: the mock server plays the browser, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import parse_qsl, urlsplit

from freshtoken._foundation.secret import Secret
from freshtoken.testing.browser import Browser, CallbackForm
from freshtoken.testing.shortcuts import DEFAULT_SCOPE
from freshtoken.testing.users import DEFAULT_USER

if TYPE_CHECKING:
    from freshtoken.testing.codes import CodeRegistry
    from freshtoken.testing.grants import MockGrant
    from freshtoken.testing.messages import MockRequest, MockResponse


class BeganSignIn(Protocol):
    """What `MockIdP.sign_in` needs of a sign-in that has begun."""

    @property
    def url(self) -> str:
        """Where the browser is sent."""
        ...

    @property
    def binding(self) -> Secret:
        """What the browser keeps in a cookie."""
        ...


class SignedInSession(Protocol):
    """What `MockIdP.sign_in` needs of a session."""

    @property
    def id(self) -> str:
        """Its name."""
        ...


S_co = TypeVar("S_co", bound=SignedInSession, covariant=True)


class SignsIn(Protocol[S_co]):
    """What `MockIdP.sign_in` needs of a token manager."""

    async def begin_sign_in(self, *args: Any, **kwargs: Any) -> BeganSignIn:  # noqa: ANN401 -- any options
        """Make the address that the browser is sent to."""
        ...

    async def complete_sign_in(
        self, callback: str | Iterable[tuple[str, str]], *, binding: Secret
    ) -> S_co:
        """Take what the browser brings back."""
        ...


class BrowserShortcuts:
    """The part of `MockIdP` that plays the browser of its users."""

    codes: CodeRegistry
    _sessions: dict[str, MockGrant]

    if TYPE_CHECKING:

        async def handle(self, request: MockRequest) -> MockResponse:
            """Answer a request."""
            ...

    def __init__(self) -> None:
        """Start without browsers."""
        super().__init__()
        self._browsers: dict[str, Browser] = {}

    def browser(self, user: str = DEFAULT_USER) -> Browser:
        """Return a user's browser: always the same one, with its cookies.

        For a second one of the same user, make a `Browser`.
        """
        return self._browsers.setdefault(user, Browser(self, user))

    async def browse(self, url: str, *, user: str = DEFAULT_USER) -> str | CallbackForm:
        """Open an address of this server in a user's browser.

        The first visit signs the user in; later ones find the session. No sockets.

        Returns:
            What the application is to get: the address of the callback, or the form
            that is posted to it.

        Raises:
            BrowserStoppedError: The browser is not sent back to the application.
            NoAnswerError: A fault leaves a request without an answer.
        """
        return await self.browser(user).visit(url)

    async def sign_in(
        self,
        tokens: SignsIn[S_co],
        *,
        user: str = DEFAULT_USER,
        browser: Browser | None = None,
        **options: Any,  # noqa: ANN401 -- handed on
    ) -> S_co:
        """Sign a user in: begin, send the browser on its way, complete.

        `MockIdP.grant` finds the grant by the id of the session.

        Args:
            user: Whose browser it is.
            browser: In the place of that one.
            options: Of ``begin_sign_in``; the scope is `DEFAULT_SCOPE` unless given.

        Raises:
            BrowserStoppedError: The browser is not sent back to the application.
        """
        begun = await tokens.begin_sign_in(**{"scope": DEFAULT_SCOPE, **options})
        sent_back = await (browser or self.browser(user)).visit(begun.url)
        callback: str | tuple[tuple[str, str], ...]
        if isinstance(sent_back, CallbackForm):
            callback = pairs = sent_back.pairs
        else:
            callback, pairs = sent_back, tuple(parse_qsl(urlsplit(sent_back).query))
        session = await tokens.complete_sign_in(callback, binding=begun.binding)
        entry = self.codes.find(dict(pairs).get("code", ""))
        if entry is not None and entry.grant is not None:
            self._sessions[session.id] = entry.grant
        return session

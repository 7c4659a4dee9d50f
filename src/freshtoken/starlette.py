"""Sign-in for Starlette and FastAPI: login, callback and logout, and who is there.

```python
auth = SignInRoutes(tokens, scope="openid profile offline_access")
app = Starlette(routes=[*auth.routes, ...], exception_handlers=auth.exception_handlers)
```

In FastAPI a path operation takes ``session: Session = Depends(auth.session)``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from math import ceil
from typing import TypeAlias
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from freshtoken._foundation.records import Session, session_id_of
from freshtoken._foundation.secret import Secret
from freshtoken._lifecycle.manager import TokenManager
from freshtoken._lifecycle.signing_in import SignIn
from freshtoken._protocol.authorization import ResponseMode, state_key
from freshtoken._protocol.settings import check_duration, refuse
from freshtoken._web import (
    grade,
    header_host,
    is_local,
    is_same_origin,
    wants_page,
)
from freshtoken.errors import (
    FreshTokenError,
    MisconfiguredError,
    RetryableError,
    SignInRequiredError,
    StoreError,
)

__all__ = ["ErrorPage", "SignInRoutes"]

SESSION_MAX_AGE = 30 * 86_400.0
"""Seconds for which a browser keeps the session cookie."""
JUST_SIGNED_IN = 60
"""Seconds after a sign-in in which a session that is over is not led to the next."""
MOST_SIGN_INS = 5
"""Sign-ins that one browser may have under way: more cookies would not fit a header."""

_MOST_BODY = 65_536
_RETRY_AFTER = 5
_HANDLE = re.compile(r"[A-Za-z0-9_-]{43}")
_KEY_END = re.compile(r"[0-9a-f]{16}")
_COOKIE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FORM = "application/x-www-form-urlencoded"
# An answer of these routes is for one browser and one moment; their addresses may hold
# a code, which no other site has to see.
_PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}

ErrorPage: TypeAlias = Callable[
    [Request, FreshTokenError, int], "Response | Awaitable[Response]"
]
"""Makes the page for an error, from the request, the error and the status."""


class SignInRoutes:
    """Login, callback and logout routes for one manager, and a session dependency.

    Make one for each application, at start-up. A wrong setting never becomes a loop: of
    all errors only a session that is over leads to the login, and no error of a sign-in
    does. What went wrong is in the log and in the events, not on the page.

    The cookies need https, in tests too (``base_url="https://..."``); browsers also
    accept them from ``http://localhost``.

    Args:
        tokens: The manager, entered while the application runs.
        scope: What is asked for at each sign-in.
        login_path: Where a sign-in begins; takes ``?return_to=``, a path of this site.
        callback_path: By default the path of the client's ``redirect_uri``.
        logout_path: Ends the session; takes a POST from this site only.
        home: Where a browser goes that has no other place to go to: a path.
        cookie_name: Of the session cookie, which gets the prefix ``__Host-``.
        session_max_age: Seconds for which the browser keeps the session cookie.
        response_mode: ``"form_post"`` for an answer by POST, whose cookie needs
            ``SameSite=None``.
        error_page: Makes the pages for errors, instead of plain ones.

    Raises:
        MisconfiguredError: A value is of no use; ``.setting`` names the parameter.

    Spec: RFC 6265bis §4.1.3 (cookie prefixes), RFC 9700 §2.1.
    """

    def __init__(
        self,
        tokens: TokenManager,
        *,
        scope: str | Iterable[str] = ("openid", "profile", "offline_access"),
        login_path: str = "/login",
        callback_path: str | None = None,
        logout_path: str = "/logout",
        home: str = "/",
        cookie_name: str = "session",
        session_max_age: float = SESSION_MAX_AGE,
        response_mode: ResponseMode = "query",
        error_page: ErrorPage | None = None,
    ) -> None:
        if tokens.client.redirect_uri is None:
            refuse("redirect_uri", "is missing: the client has to have one to sign in")
        if callback_path is None:
            callback_path = urlsplit(tokens.client.redirect_uri).path or "/"
        self._paths = {
            "login_path": login_path,
            "callback_path": callback_path,
            "logout_path": logout_path,
        }
        for setting, path in {**self._paths, "home": home}.items():
            if not is_local(path) or "?" in path:
                refuse(setting, "is not a path of this site")
        if len(set(self._paths.values())) < len(self._paths):
            refuse("login_path", "is also the path of another of these routes")
        if not _COOKIE_NAME.fullmatch(cookie_name):
            refuse("cookie_name", "is no name of a cookie")
        check_duration("session_max_age", session_max_age)
        self._tokens = tokens
        self._scope = scope if isinstance(scope, str) else tuple(scope)
        self._home = home
        self._cookie = f"__Host-{cookie_name}"
        self._sign_in_cookie = f"{self._cookie}-sign-in-"
        self._fresh_cookie = f"{self._cookie}-fresh"
        self._max_age = ceil(session_max_age)
        self._response_mode: ResponseMode = response_mode
        self._error_page = error_page

    @property
    def routes(self) -> list[BaseRoute]:
        """The three routes, for an application or a router of its own."""
        answer = "POST" if self._response_mode == "form_post" else "GET"
        return [
            Route(self._paths["login_path"], self._login, methods=["GET"]),
            Route(self._paths["callback_path"], self._callback, methods=[answer]),
            Route(self._paths["logout_path"], self._logout, methods=["POST"]),
        ]

    @property
    def exception_handlers(
        self,
    ) -> Mapping[type[FreshTokenError], Callable[..., Awaitable[Response]]]:
        """What an application does with errors that its own code lets out.

        A session that is over leads browsers to the login and gives others a 401;
        all else is a server's error.
        """
        return {FreshTokenError: self._handle}

    # Who is there

    async def find_session(self, request: Request) -> Session | None:
        """Return the session of a request, or ``None`` if nobody is signed in.

        Raises:
            StoreError: The session store failed.
        """
        handle = request.cookies.get(self._cookie, "")
        if not _HANDLE.fullmatch(handle):
            return None
        try:
            return await self._tokens.get_session(handle=Secret(handle))
        except SignInRequiredError:
            return None
        except MisconfiguredError:
            return None  # Another client's, from before or beside this one.

    async def session(self, request: Request) -> Session:
        """Return the session of a request, or send the client to the login.

        Raises:
            HTTPException: Nobody is signed in: 303 to the login for a browser that
                wants a page, 401 for everybody else; or 503, the store is down.
        """
        try:
            session = await self.find_session(request)
        except StoreError as error:
            status, text = grade(error)
            raise HTTPException(
                status, text, headers={"Retry-After": str(_RETRY_AFTER)}
            ) from None
        if session is None:
            status, headers = self._not_signed_in(request)
            raise HTTPException(status, headers=headers)
        return session

    def _not_signed_in(self, request: Request) -> tuple[int, dict[str, str]]:
        """Return status and headers for a client that has to sign in."""
        login = _root(request) + self._paths["login_path"]
        headers = {"Cache-Control": "no-store", "Vary": "Cookie, Accept"}
        if not wants_page(request.headers):
            challenge = (
                f'Cookie realm="{header_host(request.headers)}", form-action="{login}"'
            )
            headers["WWW-Authenticate"] = f'{challenge}, cookie-name="{self._cookie}"'
            return HTTPStatus.UNAUTHORIZED, headers
        place = _place(request) if request.method in {"GET", "HEAD"} else ""
        if place and is_local(place):
            login = f"{login}?{urlencode({'return_to': place})}"
        headers["Location"] = login
        return HTTPStatus.SEE_OTHER, headers

    # Routes

    async def _login(self, request: Request) -> Response:
        """Begin a sign-in and send the browser away."""
        if request.method == "HEAD":
            return _not_allowed("GET")
        return_to = request.query_params.get("return_to")
        if return_to is not None and not is_local(return_to):
            return self._page("This address is not one of this site.", 400)
        try:
            sign_in = await self._tokens.begin_sign_in(
                scope=self._scope,
                response_mode=self._response_mode,
                return_to=return_to,
            )
        except FreshTokenError as error:
            return await self._refuse(request, error)
        response = RedirectResponse(sign_in.url, HTTPStatus.SEE_OTHER, headers=_PRIVATE)
        self._remember(request, response, sign_in)
        return response

    def _remember(self, request: Request, response: Response, begun: SignIn) -> None:
        """Give the browser its part of a sign-in, and take back too old ones."""
        self._set(
            response,
            self._name_for(begun.key),
            begun.binding,
            ceil(begun.expires_in),
            none=self._response_mode == "form_post",
        )
        # A browser sends the older ones first (RFC 6265 §5.4).
        held = [name for name in request.cookies if self._is_sign_in(name)]
        for name in held[: max(len(held) + 1 - MOST_SIGN_INS, 0)]:
            self._delete(response, name)

    async def _callback(self, request: Request) -> Response:
        """Complete a sign-in with what the browser brings back."""
        if request.method == "HEAD":
            return _not_allowed("GET")
        answer: str | list[tuple[str, str]] = _query(request)
        if request.method == "POST":
            form = await _read_form(request)
            if form is None:
                return self._page("This is not the form of a sign-in.", 400)
            answer = form
        cookie = self._name_for(state_key(_state_in(answer)))
        try:
            session = await self._tokens.complete_sign_in(
                answer,
                binding=Secret(request.cookies.get(cookie, "")),
                replaces=self._present(request),
            )
        except FreshTokenError as error:
            response = await self._refuse(request, error)
            if not isinstance(error, RetryableError | StoreError):
                self._delete(response, cookie)
            return response
        place = session.return_to or self._home
        response = RedirectResponse(
            _root(request) + place if session.return_to is None else place,
            HTTPStatus.SEE_OTHER,
            headers=_PRIVATE,
        )
        if session.handle is not None:
            self._set(response, self._cookie, session.handle, self._max_age)
            self._set(response, self._fresh_cookie, Secret("1"), JUST_SIGNED_IN)
        self._delete(response, cookie)
        return response

    async def _logout(self, request: Request) -> Response:
        """End the session of this browser, at a request from this site only."""
        if not is_same_origin(request.headers):
            return self._page("Signing out is for pages of this site only.", 403)
        present = self._present(request)
        if present is not None:
            try:
                await self._tokens.end_session(present)
            except MisconfiguredError:
                pass  # Another client's: not ours to end, and of no use here.
            except FreshTokenError as error:
                return await self._refuse(request, error)
        response = RedirectResponse(
            _root(request) + self._home, HTTPStatus.SEE_OTHER, headers=_PRIVATE
        )
        self._delete(response, self._cookie)
        return response

    def _present(self, request: Request) -> str | None:
        """Return the name of the session that the browser has now, if it has one."""
        handle = request.cookies.get(self._cookie, "")
        return session_id_of(handle) if _HANDLE.fullmatch(handle) else None

    # Errors

    async def _handle(self, request: Request, error: Exception) -> Response:
        """Answer for an error that the application's own code let out."""
        if isinstance(error, SignInRequiredError):
            if self._fresh_cookie in request.cookies:
                # Signed in a moment ago, and again it will not do: once more would not
                # either, and a browser that the server knows would go round for ever.
                return await self._refuse(request, error)
            status, headers = self._not_signed_in(request)
            return Response(status_code=status, headers=headers)
        if isinstance(error, FreshTokenError):
            return await self._refuse(request, error)
        raise error

    async def _refuse(self, request: Request, error: FreshTokenError) -> Response:
        """Return the page for an error; none of its text comes from outside."""
        status, text = grade(error)
        if self._error_page is None:
            response = self._page(text, status, login=_root(request))
        else:
            made = self._error_page(request, error, status)
            response = made if isinstance(made, Response) else await made
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            wait = getattr(error, "retry_after", None) or _RETRY_AFTER
            response.headers["Retry-After"] = str(ceil(wait))
        for name, value in _PRIVATE.items():
            response.headers[name] = value
        return response

    def _page(self, text: str, status: int, *, login: str = "") -> Response:
        """Return a plain page; it offers the login where trying again may help."""
        again = ""
        if status != HTTPStatus.INTERNAL_SERVER_ERROR:
            address = quote(login + self._paths["login_path"])
            again = f'<p><a href="{address}">Sign in</a></p>'
        page = f"<!doctype html><title>Sign-in</title><p>{text}</p>{again}"
        return HTMLResponse(page, status, headers=_PRIVATE)

    # Cookies

    def _name_for(self, key: str) -> str:
        """Return the name of a sign-in's own cookie."""
        return self._sign_in_cookie + key[-16:]

    def _is_sign_in(self, name: str) -> bool:
        start = self._sign_in_cookie
        return name.startswith(start) and bool(_KEY_END.fullmatch(name[len(start) :]))

    def _set(
        self,
        response: Response,
        name: str,
        value: Secret,
        max_age: int,
        *,
        none: bool = False,
    ) -> None:
        response.set_cookie(
            name,
            value.reveal(),
            max_age=max_age,
            path="/",
            secure=True,
            httponly=True,
            samesite="none" if none else "lax",
        )

    def _delete(self, response: Response, name: str) -> None:
        """Delete a cookie; the prefix asks for the same attributes as setting it."""
        response.delete_cookie(
            name, path="/", secure=True, httponly=True, samesite="lax"
        )


def _root(request: Request) -> str:
    """Return where the application is mounted, fit for a header.

    A mount path may have parameters, which whoever asks chooses.
    """
    root = quote(str(request.scope.get("root_path", "")).rstrip("/"))
    return root if is_local(root) else ""


def _query(request: Request) -> str:
    """Return the query as it came; octets that no query has become question marks."""
    raw: bytes = request.scope.get("query_string", b"")
    return raw.decode("ascii", "replace")


def _place(request: Request) -> str:
    """Return the path and query that were asked for."""
    query = _query(request)
    return quote(str(request.scope["path"])) + (f"?{query}" if query else "")


def _state_in(answer: str | list[tuple[str, str]]) -> str:
    """Return ``state``, which names the cookie; a wrong one is refused later."""
    if isinstance(answer, str):
        answer = parse_qsl(answer[:_MOST_BODY], keep_blank_values=True)
    return next((value for name, value in answer if name == "state"), "")


async def _read_form(request: Request) -> list[tuple[str, str]] | None:
    """Return the pairs of a form within bounds, or ``None``."""
    label = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if label != _FORM:
        return None
    body = b""
    async with aclosing(request.stream()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > _MOST_BODY:
                return None
    try:
        return parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=100
        )
    except ValueError:
        return None


def _not_allowed(method: str) -> Response:
    """Refuse to do with a HEAD what only a visit may do."""
    return Response(
        status_code=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": method}
    )

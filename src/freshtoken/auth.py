"""The auth hook: a session's token on the requests of an httpx or httpx2 client."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from freshtoken._foundation.records import AccessToken
from freshtoken._protocol.challenge import rejects_token
from freshtoken._protocol.urls import is_loopback
from freshtoken.abc import TokenSource
from freshtoken.errors import (
    FreshTokenError,
    MisconfiguredError,
    SignInRequiredError,
)

if TYPE_CHECKING:
    import httpx
    import httpx2

# Requests and responses are of whichever family sends: one type for both is not to be
# had, as their classes are not related.
Message: TypeAlias = Any
_UNAUTHORIZED = 401
_PORTS = {"https": 443, "http": 80}
_LAST_PORT = 65_535
# A name as it is looked up (no wildcards, no escapes), or an IPv6 address.
_HOST = re.compile(r"[a-z0-9_\-]+(?:\.[a-z0-9_\-]+)*\.?|[0-9a-f:.]*:[0-9a-f:.]*")
# Where a request remembers the token in its header, for when it is sent again.
_OURS = "freshtoken.token"
_TRACE = "trace"

Origin = tuple[str, str, int]


class _Flow:
    """What the hook does, whichever of the two families sends the request.

    Attributes:
        session_id: The session whose token is sent.
    """

    __slots__ = ("_origins", "_resource", "_scope", "_tokens", "session_id")

    def __init__(
        self,
        tokens: TokenSource,
        session_id: str,
        *,
        origins: frozenset[Origin],
        resource: str | None,
        scope: str | Iterable[str] | None,
    ) -> None:
        self._tokens = tokens
        self.session_id = session_id
        self._origins = origins
        self._resource = resource
        self._scope = scope

    async def async_auth_flow(self, request: Message) -> AsyncGenerator[Any, Any]:
        """Send *request* with the token, and once more if an API rejects that one.

        Raises:
            MisconfiguredError: The token may not go where the request goes, or the
                request has an ``Authorization`` already. Nothing was sent.
            FreshTokenError: No token can be had, as `TokenManager.get_token` says.
        """
        origin = self._check(request)
        token = await self._tokens.get_token(
            self.session_id, resource=self._resource, scope=self._scope
        )
        if origin[0] == "http":
            _keep_from_proxies(request, origin)
        self._put(request, token)
        response = yield request
        if not _rejected(response):
            return
        fresh = await self._replace(token)
        if fresh is None or not _can_be_sent_again(request):
            return
        self._put(request, fresh)
        yield request

    def auth_flow(self, request: Message) -> Generator[Any, Any, None]:
        """Refuse: this hook waits for tokens, which a synchronous client cannot."""
        _refuse_sync()
        yield request  # Makes this a generator.

    def sync_auth_flow(self, request: Message) -> Generator[Any, Any, None]:
        """Refuse: this hook waits for tokens, which a synchronous client cannot."""
        _refuse_sync()
        yield request  # Makes this a generator.

    def _check(self, request: Message) -> Origin:
        """Return the request's origin, or refuse before anything is sent."""
        url = request.url
        origin = _origin_of(url)
        if origin not in self._origins:
            raise MisconfiguredError(
                f"the session's token may not go to {_spell(origin)}: list it in "
                "origins= if it is meant to",
                setting="origins",
                session_id=self.session_id,
            )
        if "Authorization" in request.headers and not _is_ours(request):
            raise MisconfiguredError(
                "the request has an Authorization header of its own, and only one way "
                "of authentication may be used: leave the header or auth= out",
                setting="auth",
                session_id=self.session_id,
            )
        if b"access_token=" in url.query and "access_token" in url.params:
            raise MisconfiguredError(
                "the request has an access_token in its query, where logs would show "
                "it, and only one way may be used: leave it or auth= out",
                setting="auth",
                session_id=self.session_id,
            )
        return origin

    def _put(self, request: Message, token: AccessToken) -> None:
        """Put *token* into the request's header (RFC 6750 §2.1)."""
        value = token.reveal()
        if " " in value:
            raise MisconfiguredError(
                "the access token holds a blank, and so cannot be sent as a Bearer "
                "token: look at where it was read from, or at the server's settings",
                setting="access_token",
                session_id=self.session_id,
            )
        request.headers["Authorization"] = f"Bearer {value}"
        request.extensions[_OURS] = token

    async def _replace(self, token: AccessToken) -> AccessToken | None:
        """Return another token than the rejected one, if there can be one.

        The API's answer is the caller's in all other cases; only a session that is
        over raises.
        """
        try:
            return await self._tokens.get_token(
                self.session_id,
                resource=self._resource,
                scope=self._scope,
                rejected=token,
            )
        except SignInRequiredError as error:
            if error.cleared:
                raise
        except FreshTokenError:
            pass  # The caller's 401 says it; events and the log say why.
        return None

    def __repr__(self) -> str:
        """Show the session and where its token may go."""
        places = ", ".join(sorted(_spell(origin) for origin in self._origins))
        return f"BearerAuth({self.session_id!r}, origins=[{places}])"


if TYPE_CHECKING:

    class BearerAuth(httpx.Auth, httpx2.Auth):
        """The ``auth=`` of a request: made by `TokenManager.auth`."""

        session_id: str

        def auth_flow(self, request: Message) -> Generator[Any, Any, None]:
            """See `_Flow`."""
            ...

        def sync_auth_flow(self, request: Message) -> Generator[Any, Any, None]:
            """See `_Flow`."""
            ...

        def async_auth_flow(self, request: Message) -> AsyncGenerator[Any, Any]:
            """See `_Flow`."""
            ...

else:
    BearerAuth = _Flow


def make_auth(
    tokens: TokenSource,
    session_id: str,
    *,
    origins: Iterable[str],
    resource: str | None,
    scope: str | Iterable[str] | None,
) -> BearerAuth:
    """Make the hook that `TokenManager.auth` returns."""
    if isinstance(origins, str):
        _refuse_origin("is a text; give a list of origins")
    allowed = _parse_origins(tuple(origins))
    return _hook_class()(
        tokens, session_id, origins=allowed, resource=resource, scope=scope
    )


@functools.cache
def _hook_class() -> Callable[..., BearerAuth]:
    """Return the hook for whichever families are installed: one class for both."""
    families = []
    for name in ("httpx", "httpx2"):
        with contextlib.suppress(ImportError):
            families.append(importlib.import_module(name).Auth)
    return type("BearerAuth", (_Flow, *families), {"__doc__": _Flow.__doc__})


@functools.lru_cache(maxsize=1024)
def _parse_origins(origins: tuple[str, ...]) -> frozenset[Origin]:
    """Return what the origins name; refuse what no token may go to."""
    if not origins:
        _refuse_origin("is empty: name at least one origin for the token to go to")
    return frozenset(_parse_origin(text) for text in origins)


def _parse_origin(text: object) -> Origin:
    import httpx  # noqa: PLC0415 -- not needed before the first hook is made

    url = None
    # Read as the requests will be, so that both agree on names beyond ASCII.
    with contextlib.suppress(httpx.InvalidURL):
        url = httpx.URL(text) if isinstance(text, str) else None
    if url is None or not url.raw_host or url.scheme not in _PORTS:
        _refuse_origin("holds something that is no URL such as https://api.example.com")
    if url.path != "/" or any(mark in str(text) for mark in "@?#"):
        _refuse_origin("holds more than scheme, host and port")
    origin = _origin_of(url)
    if not _HOST.fullmatch(origin[1]) or not 0 < origin[2] <= _LAST_PORT:
        _refuse_origin("holds what is no host: no wildcards, no escapes, no blanks")
    if url.scheme == "http" and not is_loopback(origin[1]):
        _refuse_origin(f"allows plain http to {origin[1]}: tokens need https")
    return origin


def _refuse_origin(problem: str) -> NoReturn:
    raise MisconfiguredError(f"origins {problem}", setting="origins")


def _origin_of(url: Message) -> Origin:
    """Return where a URL of either family leads, names in their ASCII form."""
    return _origin(url.scheme, url.raw_host.decode("ascii"), url.port)


def _origin(scheme: str, host: str, port: int | None) -> Origin:
    """Return scheme, host and port with the scheme's own port filled in."""
    if port is None:
        port = _PORTS.get(scheme, 0)
    return (scheme, host.lower().strip("[]"), port)


def _spell(origin: Origin) -> str:
    scheme, host, port = origin
    host = f"[{host}]" if ":" in host else host
    plain = port in {0, _PORTS.get(scheme)}
    return f"{scheme}://{host}" if plain else f"{scheme}://{host}:{port}"


def _rejected(response: Message) -> bool:
    """Tell whether the API refused the token itself (RFC 6750 §3.1).

    A redirect's target may not have got the token, so that its 401 tells nothing.
    """
    if response.status_code != _UNAUTHORIZED or response.history:
        return False
    return rejects_token(response.headers.get_list("WWW-Authenticate"))


def _is_ours(request: Message) -> bool:
    """Tell whether the header is left from when this request was sent before."""
    token = request.extensions.get(_OURS)
    header = request.headers["Authorization"]
    return token is not None and header == f"Bearer {token.reveal()}"


class _ProxyGuard:
    """Follows a request to loopback, so that no proxy gets to see its token."""

    def __init__(
        self, origin: Origin, follower: Callable[..., Awaitable[None]] | None
    ) -> None:
        self._origin = origin
        self._follower = follower

    async def __call__(self, event: str, info: dict[str, Any]) -> None:
        """Refuse right before the first byte; what raises here sends nothing."""
        if event.endswith("send_request_headers.started"):
            sent = info["request"]
            url, names = sent.url, {name.lower() for name, _ in sent.headers}
            where = _origin(url.scheme.decode(), url.host.decode(), url.port)
            if where != self._origin and b"authorization" in names:
                raise MisconfiguredError(
                    f"the HTTP client sends what is for {_spell(self._origin)} to "
                    f"{_spell(where)}, which may not see the token: set NO_PROXY, or "
                    "make the client with trust_env=False",
                    setting="trust_env",
                )
        if self._follower is not None:
            await self._follower(event, info)


def _keep_from_proxies(request: Message, origin: Origin) -> None:
    """Let a request fail that a proxy would get to see in the clear."""
    follower = request.extensions.get(_TRACE)
    if not isinstance(follower, _ProxyGuard):
        request.extensions[_TRACE] = _ProxyGuard(origin, follower)


def _can_be_sent_again(request: Message) -> bool:
    """Tell whether the body is at hand whole; a stream is used up by the first try."""
    return type(request.stream).__name__ == "ByteStream"


def _refuse_sync() -> NoReturn:
    raise TypeError(
        "this auth hook belongs to an AsyncClient; for a synchronous client take "
        "the one of freshtoken.sync"
    )

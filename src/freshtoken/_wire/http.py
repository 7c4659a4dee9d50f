"""Sending requests over httpx or httpx2: the one driver of all exchanges.

Everything that either library raises is translated here, in frames that hold neither
request nor form when they raise.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from freshtoken._foundation.clock import Clock
from freshtoken._foundation.records import Failure
from freshtoken._foundation.secret import redact
from freshtoken._foundation.waiting import finish_within
from freshtoken._protocol.classification import failure_from, transport_failure
from freshtoken._protocol.exchange import (
    Conversation,
    ExchangeError,
    Request,
    Response,
)
from freshtoken._protocol.urls import check_endpoint_url, is_loopback
from freshtoken._wire.body import BodyReader, UnreadableBodyError, check_size
from freshtoken._wire.call import BEFORE_SENDING_LIMIT, Call, CallOptions, Guard
from freshtoken._wire.outcome import Done, Outcome, bare, unwrap
from freshtoken.errors import MisconfiguredError

T = TypeVar("T")

REQUEST_LIMIT = 30.0
CONNECT_LIMIT = 5.0

# httpx and httpx2 have the same names but share no classes: whatever comes from the
# one that is in use has no type that both would satisfy.
Family: TypeAlias = Any

_FAMILIES = ("httpx", "httpx2")
_SHORTEST_SECRET = 6
_REDIRECTS = range(300, 400)

_CLOSED = "http_client was closed: keep it open as long as whatever was made with it"
_LOOPBACK_PROXY = (
    "http_client sends loopback addresses to a proxy: set NO_PROXY, or make it with "
    "trust_env=False"
)
_NO_CLIENT = "http_client is neither an httpx.AsyncClient nor an httpx2.AsyncClient"
_HOOK = (
    "an event hook of http_client raises for the status of an answer: the library "
    "has to see such answers, so leave its requests alone there"
)


class HTTPDriver:
    """Sends requests in one event loop; make one for each loop, and close it.

    Without a client it makes its own when it first sends: no idle connections, no
    redirects, no cookies, no HTTP/2, proxies as the environment says, but none for
    loopback. A caller's client is used as it is, and never closed; its default
    headers, parameters, cookies and ``auth`` stay out of our requests.

    Args:
        client: An ``httpx.AsyncClient`` or ``httpx2.AsyncClient``.

    Raises:
        MisconfiguredError: *client* is something else.
    """

    def __init__(self, clock: Clock, *, client: object | None = None) -> None:
        self._clock = clock
        if client is None:
            # Now, not in the event loop when the first token is due.
            importlib.import_module("httpx")
        else:
            _family_of(client)
        self._borrowed: Family = client
        self._own: dict[bool, Family] = {}
        self._tls: ssl.SSLContext | None = None

    async def send(
        self,
        request: Request,
        *,
        timeout: float = REQUEST_LIMIT,  # noqa: ASYNC109 -- follows the injected clock
        guard: Guard | None = None,
        allow_insecure_transport: bool = False,
    ) -> Response:
        """Send one request and return the whole answer, whatever its status.

        Args:
            timeout: Seconds from the first byte sent to the last one received;
                getting a connection has limits of its own.
            guard: Called when the connection is up, right before the first byte. What
                it raises comes out as it is, and nothing was sent.
            allow_insecure_transport: Also send over plain http beyond loopback.

        Raises:
            ExchangeError: No readable answer came.
        """
        outcome = await self._exchange(
            request, CallOptions(timeout, guard, allow_insecure_transport)
        )
        del request, guard
        return unwrap(outcome)

    async def drive(
        self,
        conversation: Callable[[], Conversation[T]],
        *,
        timeout: float = REQUEST_LIMIT,  # noqa: ASYNC109 -- follows the injected clock
        guard: Guard | None = None,
        allow_insecure_transport: bool = False,
        observe: Callable[[Response], None] | None = None,
    ) -> T:
        """Run one conversation over the wire and return what it returns.

        Args:
            conversation: Makes the generator; called once.
            timeout: For each request, as in `send`.
            guard: For each request, as in `send`.
            observe: Sees every answer before the conversation does.

        Raises:
            ExchangeError: No readable answer came, or the conversation found fault
                with it.
        """
        outcome = await self._converse(
            conversation, CallOptions(timeout, guard, allow_insecure_transport), observe
        )
        del conversation, guard, observe
        return unwrap(outcome)

    async def open(self) -> None:
        """Read the certificates that are trusted now, off the event loop.

        It takes 50 ms and more: all callers would wait while the first request is
        made. A caller's client has its own. What fails here is tried again, and told,
        with the first request.
        """
        if self._borrowed is None and self._tls is None:
            with suppress(OSError, ValueError):
                self._tls = await anyio.to_thread.run_sync(_make_tls)

    async def aclose(self) -> None:
        """Close the clients that were made here; a caller's client stays open."""
        own, self._own = self._own, {}
        for client in own.values():
            await client.aclose()

    def check_client(self) -> None:
        """Check that the caller's client, if there is one, is still open.

        Raises:
            MisconfiguredError: It was closed.
        """
        if self._borrowed is not None and self._borrowed.is_closed:
            raise MisconfiguredError(_CLOSED, setting="http_client")

    async def _converse(
        self,
        conversation: Callable[[], Conversation[T]],
        options: CallOptions,
        observe: Callable[[Response], None] | None,
    ) -> Outcome[T]:
        """Send what the generator yields, until it returns."""
        talk = conversation()
        answered = False
        try:
            request = next(talk)
            while True:
                outcome = await self._exchange(request, options)
                if not isinstance(outcome, Done):
                    return outcome
                answered = True
                if observe is not None:
                    observe(outcome.value)
                request = talk.send(outcome.value)
        except StopIteration as stop:
            return Done(stop.value)
        except ExchangeError as error:
            return bare(error)
        except MisconfiguredError as error:
            failure = failure_from(error, at=self._clock.time())
            return ExchangeError(dataclasses.replace(failure, sent=answered))
        finally:
            talk.close()

    async def _exchange(
        self, request: Request, options: CallOptions
    ) -> Outcome[Response]:
        """Send one request within its limits; errors are returned, not raised."""
        call = Call(self._clock, options)
        try:
            host = _check_url(request.url, options)
            client = self._client_for(host)
            built = _build(_family_of(client), request, call)
            call.start(tells=_tells_when_it_sends(client, built.url, host))
        except Exception as error:  # noqa: BLE001 -- each family has its own InvalidURL
            if call.refused is not None:
                return bare(call.refused)
            return ExchangeError(_unbuildable(error, at=call.time()))

        async def work() -> Outcome[Response]:
            return await _send(client, built, call, request)

        try:
            return await finish_within(call, BEFORE_SENDING_LIMIT, work)
        except TimeoutError:
            return ExchangeError(call.out_of_time())

    def _client_for(self, host: str | None) -> Family:
        """Return the client to use for this host."""
        if self._borrowed is not None:
            self.check_client()
            return self._borrowed
        loopback = is_loopback(host)
        client = self._own.get(loopback)
        if client is None:
            client = self._own[loopback] = self._make_client(loopback=loopback)
        return client

    def _make_client(self, *, loopback: bool) -> Family:
        """Make a client of our own; one with a transport heeds no proxy settings."""
        import httpx  # noqa: PLC0415 -- not needed beside a caller's httpx2 client

        if self._tls is None:
            self._tls = _make_tls()
        # An idle connection that was reset would put a refresh in doubt for nothing.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        options: dict[str, Any] = {"verify": self._tls, "limits": limits}
        if loopback:
            options = {"transport": httpx.AsyncHTTPTransport(http2=False, **options)}
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        return httpx.AsyncClient(
            http2=False, follow_redirects=False, cookies=no_cookies, **options
        )


def _make_tls() -> ssl.SSLContext:
    """Return the TLS settings of httpx itself."""
    import httpx  # noqa: PLC0415 -- not needed beside a caller's httpx2 client

    return httpx.create_ssl_context()


async def _send(
    client: Family, built: Family, call: Call, request: Request
) -> Outcome[Response]:
    """Send a request that is built; errors are returned, not raised."""
    try:
        answer = await client.send(
            built, stream=True, auth=None, follow_redirects=False
        )
        try:
            body = await _read(answer)
        finally:
            await answer.aclose()
    except Exception as error:  # noqa: BLE001 -- translated, whatever it is
        failed = error
    else:
        return Done(
            Response(
                status=answer.status_code,
                headers=tuple(answer.headers.multi_items()),
                body=body,
                sent_at=call.sent_at,
                received_at=call.time(),
                url=request.url,
            )
        )
    if call.refused is not None:
        return bare(call.refused)
    outcome = _after_failure(failed, call, request)
    bare(failed)  # breaks the cycle of this frame, so that the request goes at once
    return outcome


async def _read(answer: Family) -> bytes:
    """Return the decoded body; nothing for an error page that cannot be read.

    Raises:
        UnreadableBodyError: A 2xx cannot be read; there the body is the answer.
    """
    try:
        if answer.is_stream_consumed:
            # In memory, or read by a hook of the caller's client: decoded already.
            content: bytes = answer.content
            check_size(len(content))
            return content
        reader = BodyReader(answer.headers.get("content-encoding"))
        await _collect(answer, reader)
        return reader.finish()
    except UnreadableBodyError:
        if answer.is_success:
            raise
        return b""


async def _collect(answer: Family, reader: BodyReader) -> None:
    """Feed the whole body to *reader*, or as much as it can use.

    The libraries nest generators that nobody can close from outside, and trio warns
    of those that are left behind: so the connection is closed beneath them, and they
    are run until they notice.
    """
    problem: UnreadableBodyError | None = None
    try:
        async for chunk in answer.aiter_raw():
            if problem is None:
                problem = reader.feed(chunk)
                if problem is not None:
                    await answer.aclose()
    except Exception:
        if problem is None:
            raise
    if problem is not None:
        raise problem


def _check_url(url: str, options: CallOptions) -> str | None:
    """Return the host, or refuse an address that no credential may be sent to."""
    insecure = options.allow_insecure_transport
    return urlsplit(check_endpoint_url("metadata", url, insecure=insecure)).hostname


def _family_of(client: object) -> Family:
    """Return the library that *client* belongs to, without importing either.

    Raises:
        MisconfiguredError: It belongs to neither, or is a synchronous client.
    """
    for base in type(client).__mro__:
        root = base.__module__.partition(".")[0]
        if root in _FAMILIES and base.__name__ == "AsyncClient":
            return sys.modules[root]
    raise MisconfiguredError(_NO_CLIENT, setting="http_client")


def _tells_when_it_sends(client: Family, url: Family, host: str | None) -> bool:
    """Tell whether the transport for *url* surely follows the ``trace`` extension.

    A subclass, or a transport around another, may or may not.

    Raises:
        MisconfiguredError: It would send a loopback address to a proxy.
    """
    # Neither library has a public way to ask for the transport.
    select = getattr(client, "_transport_for_url", None)
    transport = None if select is None else select(url)
    pool = type(getattr(transport, "_pool", None)).__name__
    if is_loopback(host) and pool.endswith("Proxy"):
        raise MisconfiguredError(_LOOPBACK_PROXY, setting="http_client")
    return type(transport) is _family_of(client).AsyncHTTPTransport


def _build(family: Family, request: Request, call: Call) -> Family:
    """Build the library's request directly, so that no client default is mixed in."""
    headers = [("User-Agent", _user_agent()), ("Accept-Encoding", "identity, gzip")]
    ours = {name.lower() for name, _ in request.headers}
    headers = [item for item in headers if item[0].lower() not in ours]
    if request.form is not None and "content-type" not in ours:
        headers.append(("Content-Type", "application/x-www-form-urlencoded"))
    timeout = family.Timeout(call.limit, connect=CONNECT_LIMIT)
    body = None if request.form is None else request.body
    built = family.Request(
        request.method,
        request.url,
        headers=[*headers, *request.headers],
        content=body,
        extensions={"timeout": timeout.as_dict(), "trace": call.trace},
    )
    built.stream = _stream_class(family)(body or b"")
    return built


class _Once:
    """An asynchronous iterator over one chunk.

    The libraries' own is a generator, which is left behind when a connection breaks
    while the body is sent; trio warns of such.
    """

    def __init__(self, chunk: bytes) -> None:
        self._chunk = chunk

    def __aiter__(self) -> _Once:
        return self

    async def __anext__(self) -> bytes:
        chunk, self._chunk = self._chunk, b""
        if not chunk:
            raise StopAsyncIteration
        return chunk


@functools.cache
def _stream_class(family: Family) -> Family:
    """Return the class of our request bodies for a family."""

    class Body(family.AsyncByteStream):  # type: ignore[misc]  # either family's
        def __init__(self, data: bytes) -> None:
            self._data = data

        def __aiter__(self) -> _Once:
            return _Once(self._data)

    return Body


@functools.cache
def _user_agent() -> str:
    """Return what we call ourselves."""
    try:
        return f"freshtoken/{importlib.metadata.version('freshtoken')}"
    except importlib.metadata.PackageNotFoundError:
        return "freshtoken"


def _unbuildable(error: Exception, *, at: float) -> Failure:
    """Return the failure of a request that cannot be built.

    The text of a library's error is dropped: it may quote the request.
    """
    if isinstance(error, MisconfiguredError):
        return _misconfigured(error, at=at)
    name = type(error).__name__
    what = f"the request cannot be built ({name}): look at the address and credentials"
    return _misconfigured(MisconfiguredError(what, setting="metadata"), at=at)


def _misconfigured(error: MisconfiguredError, *, at: float) -> Failure:
    """Return the failure for a setting that kept a request from being sent."""
    failure = failure_from(error, at=at)
    return dataclasses.replace(failure, sent=False, in_doubt=False)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Go through an exception and what it came from."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _after_failure(error: Exception, call: Call, request: Request) -> Outcome[Response]:
    """Translate what ended a request, the one place where this is done."""
    name = type(error).__name__
    if call.status is not None and call.status in _REDIRECTS:
        # httpx builds the redirect that nobody follows, and a bad Location fails it.
        return Done(call.empty_answer(call.status, request.url))
    if name == "HTTPStatusError":
        failure = _misconfigured(
            MisconfiguredError(_HOOK, setting="http_client"), at=call.time()
        )
        return ExchangeError(dataclasses.replace(failure, sent=True, in_doubt=True))
    sent = call.was_sent(name)
    certificate = not sent and any(
        isinstance(link, ssl.SSLCertVerificationError) for link in _chain(error)
    )
    return ExchangeError(
        transport_failure(
            name,
            sent=sent,
            in_doubt=sent,
            certificate=certificate,
            detail=_detail(error, request),
            at=call.time(),
        )
    )


def _detail(error: Exception, request: Request) -> str:
    """Return the text of a library's error, without anything from the request."""
    if type(error).__name__ == "LocalProtocolError":
        return "a header of the request is malformed"
    values = [value for _, value in (*request.headers, *(request.form or ()))]
    return redact(str(error), *(v for v in values if len(v) >= _SHORTEST_SECRET))

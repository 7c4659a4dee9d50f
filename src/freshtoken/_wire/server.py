"""One authorization server as all threads and event loops of a process share it."""

from __future__ import annotations

import dataclasses
import email.utils
import inspect
import random
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from freshtoken._foundation.clock import Clock
from freshtoken._foundation.records import Failure, TokenSet
from freshtoken._foundation.secret import Secret
from freshtoken._foundation.waiting import finish_within
from freshtoken._protocol import grants
from freshtoken._protocol.classification import failure_from
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.client_auth import credential_fingerprint
from freshtoken._protocol.exchange import Conversation, ExchangeError, Response
from freshtoken._protocol.metadata import ServerMetadata
from freshtoken._protocol.settings import check_credential
from freshtoken._wire.breaker import ClientBreaker, RetryAfterPause, ServerBreaker
from freshtoken._wire.call import Guard
from freshtoken._wire.http import REQUEST_LIMIT, HTTPDriver
from freshtoken._wire.limiter import Limiter
from freshtoken._wire.metadata_cache import MetadataCache
from freshtoken._wire.outcome import Done, Outcome, bare, unwrap
from freshtoken.errors import Disposition, MisconfiguredError

T = TypeVar("T")

CREDENTIAL_LIMIT = 10.0
"""Seconds that a ``client_secret`` function may take."""

_SERVER_ERROR = 500

# Called with the metadata and the keywords ``credential`` and ``now``.
Build: TypeAlias = Callable[..., Conversation[T]]


class AuthorizationServer:
    """What a process knows of one authorization server, and how it talks to it.

    Make one for each client; it holds nothing of any event loop, owns nothing to
    close, and may be shared by threads. Every request is made over the `HTTPDriver`
    of the caller's event loop. One call makes at most one token request: repeating is
    for the caller, with `freshtoken._wire.retry`.

    Args:
        on_skew: Called with the server's clock minus ours, in seconds, whenever an
            answer tells the time.

    Attributes:
        limiter: Bounds the token requests under way.
        breaker: Leaves a server alone that does not answer.
        pause: Makes ``Retry-After`` count for all sessions.
        client_breaker: Spares the sessions while the client's credentials are refused.
        skew: The server's clock minus ours in seconds, when last seen. A ``Date``
            has whole seconds, so it is right to about a second and half a round trip.
    """

    def __init__(
        self,
        client: OAuthClient,
        *,
        clock: Clock,
        rng: random.Random,
        on_skew: Callable[[float], None] | None = None,
    ) -> None:
        self.client = client
        self.limiter = Limiter()
        self.breaker = ServerBreaker()
        self.pause = RetryAfterPause()
        self.client_breaker = ClientBreaker()
        self.skew: float | None = None
        self._clock = clock
        self._rng = rng
        self.on_skew = on_skew
        self._metadata = MetadataCache(client, clock=clock, rng=rng)
        self._lock = threading.Lock()
        self._refusal: Failure | None = None
        self._rejected_first: str | None = None

    @property
    def issuer(self) -> str:
        """The server's issuer identifier."""
        return self.client.issuer

    @property
    def client_refused(self) -> bool:
        """Whether this client's credentials count as refused now."""
        return self.client_breaker.is_open

    @property
    def metadata(self) -> ServerMetadata | None:
        """The server's metadata, if they are at hand."""
        return self._metadata.copy

    async def prepare(
        self, http: HTTPDriver, *, session_id: str | None = None
    ) -> ServerMetadata:
        """Do whatever may need the network before a lease is taken.

        Args:
            session_id: Also find out, where that takes asking for the credential,
                whether this session has to leave the server alone.

        Raises:
            ExchangeError: The metadata cannot be had, or the session has to wait.
            MisconfiguredError: The caller's HTTP client was closed.
        """
        http.check_client()
        metadata = await self._metadata.get(http)
        if session_id is not None and self.client_breaker.is_open:
            credential = await self._ask_credential()
            failure = self._client_refused(session_id, credential)
            if failure is not None:
                raise ExchangeError(failure)
        return metadata

    def refused(self, session_id: str) -> Failure | None:
        """Return why this session has to leave the server alone now, if it has to.

        Ask before queueing and before every request. Where the server is left alone,
        the answer ``None`` makes this session the one that probes: `release` it if no
        request follows. Code exchanges do not ask.

        Returns:
            A failure that was not sent; its ``retry_after`` says for how long.
        """
        now = self._clock.monotonic()
        source = self.client.secret
        if not callable(source):
            failure = self._client_refused(session_id, source)
            if failure is not None:
                return failure
        wait = self.pause.check(now)
        if wait is not None:
            return self._left_alone(_PAUSED, wait)
        wait = self.breaker.check(now, session_id)
        return None if wait is None else self._left_alone(_OPEN, wait)

    def release(self, session_id: str) -> None:
        """Let others probe in place of this session, if it was to do so and did not."""
        self.breaker.release(session_id)
        self.client_breaker.release(session_id)

    def rejected_first(self, session_id: str) -> bool:
        """Tell, once, whether this session was the first to meet ``invalid_client``.

        That one is cleared; no other is, until a success.
        """
        with self._lock:
            first = self._rejected_first == session_id
            if first:
                self._rejected_first = None
            return first

    async def refresh(
        self,
        http: HTTPDriver,
        *,
        refresh_token: str | Secret,
        session_id: str,
        scope: str | Iterable[str] | None = None,
        resource: str | None = None,
        refreshed_before: bool = False,
        guard: Guard | None = None,
        timeout: float = REQUEST_LIMIT,  # noqa: ASYNC109 -- follows the injected clock
    ) -> TokenSet:
        """Send one refresh request.

        Args:
            guard: Called right before the first byte; what it raises comes out as it
                is, and nothing was sent.

        Raises:
            ExchangeError: It failed.
        """
        build = partial(
            grants.refresh,
            self.client,
            refresh_token=refresh_token,
            rng=self._rng,
            scope=scope,
            resource=resource,
            refreshed_before=refreshed_before,
        )
        outcome = await self._request_token(http, build, session_id, guard, timeout)
        del refresh_token, build, guard
        return unwrap(outcome)

    async def client_credentials(
        self,
        http: HTTPDriver,
        *,
        session_id: str,
        scope: str | Iterable[str] | None = None,
        resource: str | None = None,
        guard: Guard | None = None,
        timeout: float = REQUEST_LIMIT,  # noqa: ASYNC109 -- follows the injected clock
    ) -> TokenSet:
        """Send one client-credentials request.

        Raises:
            ExchangeError: It failed.
        """
        build = partial(
            grants.client_credentials,
            self.client,
            rng=self._rng,
            scope=scope,
            resource=resource,
        )
        outcome = await self._request_token(http, build, session_id, guard, timeout)
        del build, guard
        return unwrap(outcome)

    async def revoke(
        self,
        http: HTTPDriver,
        *,
        token: str | Secret,
        token_type_hint: str | None = "refresh_token",  # noqa: S107 -- a kind of token
        timeout: float = REQUEST_LIMIT,  # noqa: ASYNC109 -- follows the injected clock
    ) -> None:
        """Send one revocation request (RFC 7009). It touches no breaker.

        Raises:
            ExchangeError: It failed, or the server has no revocation endpoint.
        """
        build = partial(
            grants.revoke,
            self.client,
            token=token,
            rng=self._rng,
            token_type_hint=token_type_hint,
        )
        exchange = _Exchange(build, None, timeout)
        outcome = await self._request(http, exchange)
        del token, build, exchange
        unwrap(outcome)

    async def _request_token(
        self,
        http: HTTPDriver,
        build: Build[TokenSet],
        session_id: str,
        guard: Guard | None,
        limit: float,
    ) -> Outcome[TokenSet]:
        """Make one token request, and tell the breakers how it went."""
        exchange = _Exchange(build, guard, limit, session_id)
        outcome = await self._request(http, exchange)
        if isinstance(outcome, Done):
            self.breaker.success()
            self.client_breaker.success()
            self.pause.success(session_id)
        elif isinstance(outcome, ExchangeError) and exchange.tried:
            self._note_failure(outcome.failure, session_id, exchange.fingerprint)
        return outcome

    async def _request(self, http: HTTPDriver, exchange: _Exchange[T]) -> Outcome[T]:
        """Make one request; errors are returned, not raised."""
        try:
            metadata = self.metadata or await self._metadata.get(http)
            credential = await self._ask_credential()
            if exchange.session_id is not None:
                failure = self._client_refused(exchange.session_id, credential)
                if failure is not None:
                    return ExchangeError(failure)
            exchange.fingerprint = credential_fingerprint(self.client, credential)
            exchange.tried = True
            value = await http.drive(
                lambda: exchange.build(
                    metadata, credential=credential, now=self._clock.time()
                ),
                timeout=exchange.limit,
                guard=exchange.guard,
                allow_insecure_transport=self.client.allow_insecure_transport,
                observe=self._observe,
            )
        except Exception as error:  # noqa: BLE001 -- raised again by the public method
            return bare(error)
        return Done(value)

    def _client_refused(
        self, session_id: str, credential: Secret | None
    ) -> Failure | None:
        """Return the failure if this credential is known to be refused."""
        if not self.client_breaker.is_open:
            return None
        wait = self.client_breaker.check(
            self._clock.monotonic(),
            session_id,
            credential_fingerprint(self.client, credential),
        )
        if wait is None:
            return None
        return dataclasses.replace(
            self._refusal or _REFUSED,
            sent=False,
            retry_after=wait,
            at=self._clock.time(),
        )

    def _left_alone(self, advice: str, wait: float) -> Failure:
        """Return the failure of a request that is better not sent now."""
        return Failure(
            Disposition.RETRY,
            f"{advice}: next attempt in {wait:.0f} s",
            sent=False,
            retry_after=wait,
            at=self._clock.time(),
        )

    async def _ask_credential(self) -> Secret | None:
        """Return the client secret, from the caller's function if it is one.

        Raises:
            ExchangeError: The function failed; its own text may hold anything and
                is not repeated.
        """
        source = self.client.secret
        if source is None or isinstance(source, Secret):
            return source

        async def ask() -> object:
            value = source()
            return await value if inspect.isawaitable(value) else value

        try:
            return check_credential(
                await finish_within(self._clock, CREDENTIAL_LIMIT, ask)
            )
        except MisconfiguredError as error:
            problem = bare(error)
        except Exception as error:  # noqa: BLE001 -- whatever the function raises
            problem = MisconfiguredError(
                f"the client_secret function raised {type(error).__name__}",
                setting="client_secret",
            )
        raise ExchangeError(_unsent(problem, at=self._clock.time()))

    def _note_failure(
        self, failure: Failure, session_id: str, fingerprint: str
    ) -> None:
        """Tell the breakers of a request that failed."""
        now = self._clock.monotonic()
        retry = failure.disposition is Disposition.RETRY
        if retry and failure.retry_after:
            self.pause.failure(now, session_id, failure.retry_after)
        if failure.no_answer or (failure.status or 0) >= _SERVER_ERROR:
            if retry:
                self.breaker.failure(now, session_id)
        elif failure.status is not None:
            self.breaker.success()
        if failure.disposition is Disposition.CLIENT_REJECTED:
            with self._lock:
                self._refusal = failure
                if self.client_breaker.failure(now, fingerprint):
                    self._rejected_first = session_id
        else:
            self.client_breaker.release(session_id)

    def _observe(self, response: Response) -> None:
        """Measure the server's clock by an answer."""
        skew = measure_skew(response)
        if skew is None:
            return
        self.skew = skew
        if self.on_skew is not None:
            self.on_skew(skew)


_PAUSED = "the authorization server asked several sessions to wait"
_OPEN = "the authorization server does not answer, and is left alone for a while"


_REFUSED = Failure(
    Disposition.CLIENT_REJECTED,
    "the authorization server refuses the client's credentials: mend them",
    error="invalid_client",
    setting="client_secret",
)


def _unsent(error: MisconfiguredError, *, at: float) -> Failure:
    """Return the failure for a setting that kept a request from being sent."""
    return dataclasses.replace(failure_from(error, at=at), sent=False, in_doubt=False)


class _Exchange(Generic[T]):
    """One request to be made, and how far it came."""

    __slots__ = ("build", "fingerprint", "guard", "limit", "session_id", "tried")

    def __init__(
        self,
        build: Build[T],
        guard: Guard | None,
        limit: float,
        session_id: str | None = None,
    ) -> None:
        self.build = build
        self.guard = guard
        self.limit = limit
        self.session_id = session_id
        self.fingerprint = ""
        self.tried = False


def measure_skew(response: Response) -> float | None:
    """Return the server's clock minus ours, or ``None`` if the answer does not tell.

    A ``Date`` is cut to whole seconds, and was taken about half a round trip ago. An
    answer from a cache tells nothing.

    Spec: RFC 9110 §6.6.1.
    """
    date = response.header("date")
    if date is None or response.header("age") not in {None, "0"}:
        return None
    try:
        server = email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return server + 0.5 - (response.sent_at + response.received_at) / 2

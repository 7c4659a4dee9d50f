"""One authorization server as all threads and event loops of a process share it."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from freshtoken._foundation.clock import Clock
from freshtoken._foundation.records import Failure, TokenSet
from freshtoken._foundation.secret import Secret
from freshtoken._protocol import grants
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.client_auth import credential_fingerprint
from freshtoken._protocol.exchange import ExchangeError, Response
from freshtoken._protocol.metadata import ServerMetadata
from freshtoken._wire.breaker import ClientBreaker, RetryAfterPause, ServerBreaker
from freshtoken._wire.call import Guard
from freshtoken._wire.credential import CredentialSource
from freshtoken._wire.http import REQUEST_LIMIT, HTTPDriver
from freshtoken._wire.id_token_keys import IDTokenKeys
from freshtoken._wire.key_sets import KeySetCache, KeySnapshot
from freshtoken._wire.limiter import Limiter
from freshtoken._wire.metadata_cache import MetadataCache
from freshtoken._wire.outcome import Done, Outcome, bare, unwrap
from freshtoken._wire.refusals import OPEN, PAUSED, left_alone, refused_again
from freshtoken._wire.skew import measure_skew
from freshtoken._wire.token_exchange import Build, TokenExchange
from freshtoken.errors import Disposition

T = TypeVar("T")

_SERVER_ERROR = 500


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
        key_sets: The server's public keys.
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
        self.key_sets = KeySetCache(
            clock=clock,
            rng=rng,
            locate=self._locate_keys,
            allow_insecure_transport=client.allow_insecure_transport,
        )
        self._credential = CredentialSource(client, clock)
        self._id_token_keys = IDTokenKeys(self.key_sets, self._credential, clock)
        self._code_exchanges = itertools.count(1)
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
            credential = await self._credential.ask()
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
            return left_alone(PAUSED, wait, at=self._clock.time())
        wait = self.breaker.check(now, session_id)
        if wait is not None:
            return left_alone(OPEN, wait, at=self._clock.time())
        return None

    async def prepare_sign_in(self, http: HTTPDriver) -> ServerMetadata:
        """Do what a sign-in needs of the server before the browser is sent away.

        Raises:
            ExchangeError: The metadata cannot be had, or the client's credentials
                count as refused, so that nobody could sign in.
            MisconfiguredError: The caller's HTTP client was closed.
        """
        metadata = await self.prepare(http)
        if self.client_breaker.is_open:
            await self._credential.ask()
            failure = self.sign_in_refused()
            if failure is not None:
                raise ExchangeError(failure)
        return metadata

    def sign_in_refused(self) -> Failure | None:
        """Return why no sign-in can begin now, if so; this takes nobody's probe.

        A credential that takes asking for, and was not asked for just now, is taken
        for the refused one.
        """
        if not self.client_breaker.is_open:
            return None
        known = self._credential.at_hand()
        fingerprint = None
        if known is not None:
            fingerprint = credential_fingerprint(self.client, known.value)
        wait = self.client_breaker.look(self._clock.monotonic(), fingerprint)
        return None if wait is None else self._refused_again(wait)

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
        resource: str | Iterable[str] | None = None,
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

    async def exchange_code(
        self,
        http: HTTPDriver,
        *,
        code: Secret,
        code_verifier: Secret,
        redirect_uri: str,
        scope: str | Iterable[str] | None = None,
        resource: tuple[str, ...] = (),
        timeout: float = REQUEST_LIMIT,  # noqa: ASYNC109 -- follows the injected clock
    ) -> TokenSet:
        """Redeem an authorization code, with one request whatever comes of it.

        It has slots of the limiter of its own. What it meets opens no breaker but
        the client's; a success closes all.

        Args:
            scope: What was asked for.
            resource: The APIs that the token is for (RFC 8707 §2.2).

        Raises:
            ExchangeError: It failed, or was not tried because the client's
                credentials count as refused.

        Spec: RFC 6749 §4.1.2 (a code is used once), §4.1.3.
        """
        build = partial(
            grants.authorization_code,
            self.client,
            code=code,
            code_verifier=code_verifier,
            redirect_uri=redirect_uri,
            rng=self._rng,
            scope=scope,
            resource=resource,
        )
        outcome = await self._redeem(http, build, timeout)
        del code, code_verifier, build
        return unwrap(outcome)

    async def client_credentials(
        self,
        http: HTTPDriver,
        *,
        session_id: str,
        scope: str | Iterable[str] | None = None,
        resource: str | Iterable[str] | None = None,
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
        exchange = TokenExchange(build, None, timeout)
        outcome = await self._request(http, exchange)
        del token, build, exchange
        unwrap(outcome)

    async def id_token_keys(
        self, http: HTTPDriver, algorithms: Sequence[str]
    ) -> KeySnapshot:
        """Return what ID tokens are verified with; see `IDTokenKeys.get`."""
        return await self._id_token_keys.get(http, algorithms)

    def id_token_keys_at_hand(self, algorithms: Sequence[str]) -> KeySnapshot | None:
        """Return the same if nothing has to be awaited; see `IDTokenKeys.at_hand`."""
        return self._id_token_keys.at_hand(algorithms)

    async def newer_id_token_keys(
        self, http: HTTPDriver, algorithms: Sequence[str], generation: int
    ) -> KeySnapshot | None:
        """Return newer ones, if there may be any; see `IDTokenKeys.newer`."""
        return await self._id_token_keys.newer(http, algorithms, generation)

    async def _locate_keys(self, http: HTTPDriver) -> str:
        """Return where the server's key set is, by its metadata."""
        metadata = self.metadata or await self._metadata.get(http)
        return metadata.endpoint("jwks_uri")

    async def _redeem(
        self, http: HTTPDriver, build: Build[TokenSet], limit: float
    ) -> Outcome[TokenSet]:
        """Redeem a code, as a prober of the client's credentials if one is due."""
        name = f"code-exchange:{next(self._code_exchanges)}"
        exchange = TokenExchange(build, None, limit, name)
        try:
            async with self.limiter.slot(code_exchange=True):
                outcome = await self._request(http, exchange)
        finally:
            self.client_breaker.release(name)
        if isinstance(outcome, Done):
            self.breaker.success()
            self.client_breaker.success()
        elif isinstance(outcome, ExchangeError) and exchange.tried:
            failure = outcome.failure
            if failure.disposition is Disposition.CLIENT_REJECTED:
                self._note_rejection(failure, exchange.fingerprint, None)
        return outcome

    async def _request_token(
        self,
        http: HTTPDriver,
        build: Build[TokenSet],
        session_id: str,
        guard: Guard | None,
        limit: float,
    ) -> Outcome[TokenSet]:
        """Make one token request, and tell the breakers how it went."""
        exchange = TokenExchange(build, guard, limit, session_id)
        outcome = await self._request(http, exchange)
        if isinstance(outcome, Done):
            self.breaker.success()
            self.client_breaker.success()
            self.pause.success(session_id)
        elif isinstance(outcome, ExchangeError) and exchange.tried:
            self._note_failure(outcome.failure, session_id, exchange.fingerprint)
        return outcome

    async def _request(
        self, http: HTTPDriver, exchange: TokenExchange[T]
    ) -> Outcome[T]:
        """Make one request; errors are returned, not raised."""
        try:
            metadata = self.metadata or await self._metadata.get(http)
            credential = await self._credential.ask()
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
        return None if wait is None else self._refused_again(wait)

    def _refused_again(self, wait: float) -> Failure:
        """Return the client's refusal for a request that is not sent."""
        return refused_again(self._refusal, wait, at=self._clock.time())

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
            self._note_rejection(failure, fingerprint, session_id)
        else:
            self.client_breaker.release(session_id)

    def _note_rejection(
        self, failure: Failure, fingerprint: str, session_id: str | None
    ) -> None:
        """Open the client's breaker; the first session that met it is cleared."""
        with self._lock:
            self._refusal = failure
            if self.client_breaker.failure(self._clock.monotonic(), fingerprint):
                self._rejected_first = session_id

    def _observe(self, response: Response) -> None:
        """Measure the server's clock by an answer."""
        skew = measure_skew(response)
        if skew is None:
            return
        self.skew = skew
        if self.on_skew is not None:
            self.on_skew(skew)

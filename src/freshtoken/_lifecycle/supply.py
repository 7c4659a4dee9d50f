"""What a call of ``get_token`` does when the hot path has no answer."""

from __future__ import annotations

from freshtoken._foundation.records import DEFAULT_ENTRY, AccessToken, EntryKey
from freshtoken._foundation.waiting import running_loop
from freshtoken._lifecycle import policy
from freshtoken._lifecycle.cache import SessionCache
from freshtoken._lifecycle.failing import (
    FlightFailure,
    flight_error,
    impatient_error,
    unhelpful_error,
    unsaved_error,
)
from freshtoken._lifecycle.flight import Flight
from freshtoken._lifecycle.local import (
    Ask,
    Call,
    LiveToken,
    LocalSession,
    decide,
    good_for,
    instant,
)
from freshtoken._lifecycle.policy import Want
from freshtoken._lifecycle.runtime import Runtime
from freshtoken._wire.server import AuthorizationServer
from freshtoken.abc import Clock
from freshtoken.errors import FreshTokenError, MisconfiguredError

ROUNDS = 4
"""Flights that one call waits for at most: each brought something, but not enough."""


class Supply:
    """Decides for each call whether to serve, to begin a flight, or to wait for one.

    Args:
        runtimes: The manager's runtimes by event loop, as they come and go.
    """

    def __init__(
        self,
        *,
        cache: SessionCache,
        runtimes: dict[object, Runtime],
        server: AuthorizationServer,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._runtimes = runtimes
        self._server = server
        self._issuer = server.client.issuer
        self._clock = clock
        self._monotonic = clock.monotonic

    def runtime(self) -> Runtime:
        """Return the running event loop's runtime.

        Raises:
            MisconfiguredError: The manager is not entered in this loop.
        """
        runtime = self._runtimes.get(running_loop())
        if runtime is None or not runtime.running:
            raise MisconfiguredError(
                "the token manager is not entered in this event loop: use it inside "
                "'async with TokenManager(...) as tokens:'",
                setting="async with",
            )
        return runtime

    async def obtain(self, session_id: str, ask: Ask) -> AccessToken:
        """Answer a call that needs a closer look."""
        deadline = self._monotonic() + policy.PATIENCE
        for _ in range(ROUNDS):
            local = self._cache.get(session_id)
            live = local.live.get(ask.key) if local else None
            now = instant(self._clock)
            call = decide(local, ask, now)
            token = self._at_once(session_id, ask.key, live, call)
            if token is None and call is Call.FAIL and local is not None:
                raise self._known_error(session_id, local, ask.key)
            if token is None:
                flight = self.runtime().fly(session_id, _want(ask, live, call))
                refreshing = not flight.want.look and not flight.arrived
                looking = call is Call.SERVE_AND_LOOK and refreshing
                if looking and live is not None and not live.past_hard(now):
                    return live.token  # The refresh under way looks for itself.
                if flight.want.look and await self._slow(flight):
                    live = self._good(session_id, ask)
                    if live is not None:
                        return live.token
                token = await self._await(session_id, ask, flight, deadline)
            # After a look the call is decided again: the token may be due.
            if token is not None and call is not Call.SERVE_AND_LOOK:
                return token
        error = unhelpful_error(session_id, self._issuer)
        return self._serve_or_raise(session_id, ask, error)

    def _at_once(
        self, session_id: str, key: EntryKey, live: LiveToken | None, call: Call
    ) -> AccessToken | None:
        """Return the live token, if nothing has to be waited for."""
        if live is None:
            return None
        live.used = True
        if call is Call.SERVE_AND_RENEW:
            self._renew_soon(session_id, key, live)
        return live.token if call in {Call.SERVE, Call.SERVE_AND_RENEW} else None

    async def _await(
        self, session_id: str, ask: Ask, flight: Flight, deadline: float
    ) -> AccessToken | None:
        """Wait for a flight; return what it brought, or ``None`` to look again."""
        if not await self.runtime().wait(flight, deadline):
            error: Exception = impatient_error(session_id, self._issuer)
            return self._serve_or_raise(session_id, ask, error)
        if flight.error is not None:
            error = self.error(session_id, flight.error, ask.key)
            return self._serve_or_raise(session_id, ask, error)
        return self._brought(session_id, ask, flight)

    async def _slow(self, flight: Flight) -> bool:
        """Wait a moment for a look at the store; tell whether it takes longer."""
        until = flight.begun_at + policy.LOOK_PATIENCE
        if self._monotonic() >= until:
            return not flight.arrived
        return not await self.runtime().wait(flight, until)

    def _good(self, session_id: str, ask: Ask) -> LiveToken | None:
        """Return the token at hand, if it is what the caller asked for."""
        local = self._cache.get(session_id)
        live = local.live.get(ask.key) if local else None
        if live is not None and good_for(live, ask, instant(self._clock)):
            return live
        return None

    def _renew_soon(self, session_id: str, key: EntryKey, live: LiveToken) -> None:
        """Begin a flight that nobody waits for, if this loop can."""
        runtime = self._runtimes.get(running_loop())
        if runtime is not None and runtime.running:
            runtime.fly(session_id, Want(key, seen=live.token.reveal()))

    def _brought(self, session_id: str, ask: Ask, flight: Flight) -> AccessToken | None:
        """Return what a flight brought this caller, or ``None`` to look again."""
        live = self._good(session_id, ask)
        if live is not None:
            live.used = True
            return live.token
        early, now = flight.early, self._clock.time()
        answered = early or (flight.record if flight.renewed else None)
        stored = answered.token(ask.key) if answered else None
        usable = stored is not None and stored.access_token != ask.rejected
        if early and not (stored and usable and not policy.expired(early, stored, now)):
            raise unsaved_error(session_id, self._issuer)
        if stored is None or not usable:
            return None
        # The server's newest, however short it lives.
        return AccessToken(
            stored.access_token,
            expires_at=stored.expires_at,
            token_type=stored.token_type,
            scope=stored.scope,
        )

    def _serve_or_raise(
        self, session_id: str, ask: Ask, error: Exception
    ) -> AccessToken:
        """Serve a token that still lives, or raise why there is no other."""
        live = self._good(session_id, ask)
        if live is not None:
            return live.token
        raise error

    def error(
        self,
        session_id: str,
        error: Exception | FlightFailure,
        key: EntryKey = DEFAULT_ENTRY,
    ) -> FreshTokenError:
        """Return this caller's own copy of a flight's failure."""
        local = self._cache.get(session_id)
        return flight_error(
            error,
            session_id=session_id,
            issuer=self._issuer,
            retry_in=self._retry_in(local, key),
            client_refused=self._server.client_breaker.is_open,
        )

    def _known_error(
        self, session_id: str, local: LocalSession, key: EntryKey
    ) -> Exception:
        """Return the error for what is known of a session without asking anybody."""
        ended = local.record.ended
        failure = None if ended else policy.known_failure(local.record, key)
        return self.error(session_id, FlightFailure(failure, ended), key)

    def _retry_in(self, local: LocalSession | None, key: EntryKey) -> float | None:
        if local is None:
            return None
        return max(local.held_until(key) - self._monotonic(), 0.0) or None


def _want(ask: Ask, live: LiveToken | None, call: Call) -> Want:
    """Return what a flight has to bring for *ask*."""
    if call is Call.SERVE_AND_LOOK:
        return Want(ask.key, look=True)
    if ask.rejected is not None:
        return Want(ask.key, seen=ask.rejected, insist=True, forced=True)
    if live is None:
        return Want(ask.key)
    # Past the hard point a token may still be served while another worker renews it.
    return Want(ask.key, seen=live.token.reveal(), insist=call is not Call.FLY_ALIVE)

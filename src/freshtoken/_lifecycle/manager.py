"""The token manager: sessions in, fresh access tokens out."""

from __future__ import annotations

import os
import random
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from freshtoken._foundation.clock import SystemClock
from freshtoken._foundation.records import (
    AccessToken,
    EntryKey,
    Session,
    entry_key,
    session_id_of,
    session_of,
)
from freshtoken._foundation.secret import Secret, refuse_pickle, reveal
from freshtoken._foundation.waiting import running_loop
from freshtoken._lifecycle.cache import SessionCache
from freshtoken._lifecycle.context import Context
from freshtoken._lifecycle.events import EventHandler, EventSink, SkewWatch, Stats
from freshtoken._lifecycle.failing import (
    FlightFailure,
)
from freshtoken._lifecycle.local import (
    Ask,
    LiveToken,
)
from freshtoken._lifecycle.runtime import Runtime
from freshtoken._lifecycle.scheduler import Agenda
from freshtoken._lifecycle.sessions import (
    SessionKeeper,
    check_scope,
    check_seconds,
    check_text,
    check_token,
    hidden,
)
from freshtoken._lifecycle.sign_in_calls import SignsUsersIn
from freshtoken._lifecycle.storing import GuardedStore
from freshtoken._lifecycle.supply import Supply
from freshtoken._protocol.client import OAuthClient
from freshtoken._wire.http import HTTPDriver
from freshtoken._wire.limiter import Limiter
from freshtoken._wire.server import AuthorizationServer
from freshtoken.abc import Clock, SessionStore
from freshtoken.errors import MisconfiguredError
from freshtoken.stores.memory import MemoryStore

if TYPE_CHECKING:
    from freshtoken.auth import BearerAuth


class TokenManager(SignsUsersIn):
    """Keeps the access tokens of all sessions of one client fresh.

    Make one for each client at start-up, enter it for as long as the application
    runs, and share it: by all tasks, threads and event loops of the process. It may
    be left and entered again. A manager owns its background tasks and, unless one is
    given, its HTTP client; leaving it lets a request that was sent land and be saved.

    Args:
        client: The OAuth client whose sessions these are.
        store: Where sessions live; by default in memory, and gone with the process.
        http_client: An ``httpx.AsyncClient`` or ``httpx2.AsyncClient`` to send token
            requests with; it stays yours, and serves one event loop. By default the
            manager makes its own, which suits token endpoints better: no idle
            connections, no redirects, no cookies.
        on_event: Called with each `freshtoken.events.Event`; must not block. What it
            raises is logged and otherwise ignored.
        keep_session_on: Terminal error codes that end no session:
            ``{"invalid_client"}`` spares even the first session that meets it.
        early_renewal: Renew before tokens end. ``False`` renews only expired ones.
        clock: Time source, for tests.
        rng: Source of randomness, for tests.

    Raises:
        MisconfiguredError: A value is of no use; ``.setting`` names the parameter.
    """

    def __init__(
        self,
        client: OAuthClient,
        *,
        store: SessionStore | None = None,
        http_client: object | None = None,
        on_event: EventHandler | None = None,
        keep_session_on: Iterable[str] = (),
        early_renewal: bool = True,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._issuer = client.issuer
        self._sink = EventSink(on_event, issuer=client.issuer)
        self._server = AuthorizationServer(
            client,
            clock=self._clock,
            rng=self._rng,
            on_skew=SkewWatch(self._sink).see,
        )
        self._keep_session_on = frozenset(keep_session_on)
        unknown = self._keep_session_on - {"invalid_client"}
        if unknown:
            raise MisconfiguredError(
                f"keep_session_on does not know {', '.join(sorted(unknown))}: only "
                "invalid_client can be spared",
                setting="keep_session_on",
            )
        self._http_client = http_client
        if http_client is not None:
            HTTPDriver(self._clock, client=http_client)  # Refuses what it cannot use.
        self._http_loop: object | None = None
        self._agenda = Agenda(self._clock)
        self._cache = SessionCache(
            self._clock,
            self._rng,
            owner=(client.issuer, client.client_id),
            early_renewal=early_renewal,
            scheduled=self._agenda.add if early_renewal else _not_scheduled,
        )
        self._store = GuardedStore(
            MemoryStore(clock=self._clock) if store is None else store,
            cache=self._cache,
            clock=self._clock,
            sink=self._sink,
        )
        self._keeper = SessionKeeper(
            self._store,
            cache=self._cache,
            client=client,
            clock=self._clock,
            rng=self._rng,
            sink=self._sink,
        )
        self._runtimes: dict[object, Runtime] = {}
        self._supply = Supply(
            cache=self._cache,
            runtimes=self._runtimes,
            server=self._server,
            clock=self._clock,
        )
        # The hot path looks nothing up twice.
        self._hot = self._cache.hot
        self._time = self._clock.time
        self._monotonic = self._clock.monotonic
        _managers.add(self)

    # Life

    async def __aenter__(self) -> Self:
        """Start background work in this event loop."""
        loop = running_loop()
        for other, old in list(self._runtimes.items()):
            if old.over:
                self._runtimes.pop(other, None)
        if loop in self._runtimes:
            raise MisconfiguredError(
                "this token manager is already entered in this event loop: enter it "
                "once, where the application starts, and share it",
                setting="async with",
            )
        if self._http_client is not None:
            if self._http_loop not in {None, loop}:
                raise MisconfiguredError(
                    "http_client already serves another event loop: give each loop a "
                    "manager of its own, or leave http_client out",
                    setting="http_client",
                )
            self._http_loop = loop
        runtime = Runtime(self._context, self._agenda)
        self._runtimes[loop] = runtime
        try:
            await runtime.start()
        except BaseException:
            self._runtimes.pop(loop, None)
            await runtime.close()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let sent requests land, save what came, and end all background work."""
        runtime = self._runtimes.pop(running_loop(), None)
        if runtime is not None:
            await runtime.close()

    def _context(self, runtime: Runtime) -> Context:
        return Context(
            store=self._store,
            server=self._server,
            http=HTTPDriver(self._clock, client=self._http_client),
            clock=self._clock,
            rng=self._rng,
            sink=self._sink,
            cache=self._cache,
            keep_session_on=self._keep_session_on,
            revoke_later=runtime.revoke_later,
            start_soon=runtime.start_soon,
        )

    # Tokens

    async def get_token(
        self,
        session_id: str,
        *,
        resource: str | None = None,
        scope: str | Iterable[str] | None = None,
        min_validity: float | None = None,
        rejected: AccessToken | str | None = None,
    ) -> AccessToken:
        """Return an access token of the session that is fresh now.

        From memory as long as the token at hand is good; otherwise one refresh is
        shared by all who wait, on all workers. Waits 20 s at most: a shorter time-out
        of the caller's own is fine, the refresh goes on without it.

        Args:
            session_id: As given to `add_session`, or ``.id`` of a session.
            resource: Ask for a token for this resource (RFC 8707).
            scope: Ask for a token with no more than this scope (RFC 6749 §6).
            min_validity: Seconds that the token must still live. If the server's
                tokens never live as long, the newest one is returned.
            rejected: The token that an API answered with 401: returns another one,
                fetched if need be.

        Raises:
            SignInRequiredError: The session is over, unknown, or refused without a
                clear reason (``cleared=False``).
            ClientRejectedError: The server refuses the client's credentials.
            RetryableError: No token can be had now; the session is kept.
            AccessDeniedError: The server denies this account; it is asked again later.
            MisconfiguredError: A setting does not fit; ``.setting`` names it.
            StoreError: The session store failed.

        Spec: RFC 6749 §6.
        """
        live = self._hot.get(session_id)
        if (
            live is not None
            and resource is None
            and scope is None
            and min_validity is None
            and rejected is None
            and self._time() < live.soft_wall
            and self._monotonic() < live.soft_mono
        ):
            live.used = True
            return live.token
        if rejected is not None:
            rejected = check_token("rejected", hidden(rejected))
        ask = Ask(
            key=entry_key(check_text("resource", resource), check_scope(scope)),
            min_validity=check_seconds("min_validity", min_validity),
            rejected=rejected,
        )
        del rejected  # An error that is raised from here on shows this frame.
        return await self._supply.obtain(session_id, ask)

    # Sessions

    async def add_session(
        self,
        session_id: str,
        *,
        refresh_token: str | Secret,
        access_token: str | AccessToken | Secret | None = None,
        expires_at: float | None = None,
        refresh_expires_at: float | None = None,
        scope: str | Iterable[str] | None = None,
        replace: bool = False,
    ) -> Session:
        """Store a grant that was made elsewhere, under a name of your choice.

        Stores only if there is no session of that name yet, so that a restart never
        overwrites a rotated refresh token with the old one.

        Args:
            session_id: The name; it may appear in logs, so let it be no secret.
            refresh_token: The grant's refresh token; only this library may use it
                from now on.
            access_token: A token that lives already, if there is one.
            expires_at: Epoch seconds at which *access_token* ends.
            refresh_expires_at: Epoch seconds at which *refresh_token* ends.
            scope: Scope that was granted.
            replace: Put this grant in the place of one that is there: for a new
                consent of the user, never for a start-up.

        Returns:
            The session that is stored now.

        Raises:
            MisconfiguredError: A value is of no use.
            StoreError: The session store failed.
        """
        refresh_token = hidden(refresh_token)
        access_token = access_token if access_token is None else hidden(access_token)
        return await self._keeper.add(
            session_id,
            refresh_token=refresh_token,
            access_token=access_token,
            expires_at=expires_at,
            refresh_expires_at=refresh_expires_at,
            scope=scope,
            replace=replace,
        )

    async def client_credentials(
        self,
        *,
        scope: str | Iterable[str] | None = None,
        resource: str | None = None,
    ) -> Session:
        """Return the client's own session, shared by all workers.

        Its id is derived from issuer, client, scope and resource: the same call
        anywhere names the same session. Nothing is sent before a token is asked for.

        Raises:
            MisconfiguredError: A value is of no use.
            StoreError: The session store failed.

        Spec: RFC 6749 §4.4.
        """
        return await self._keeper.client_credentials(scope=scope, resource=resource)

    async def get_session(
        self, session_id: str | None = None, *, handle: str | Secret | None = None
    ) -> Session:
        """Return what is known of a session.

        Args:
            session_id: Its name, or
            handle: the key to it, as the user's cookie has it.

        Raises:
            SignInRequiredError: The session is over or unknown.
            MisconfiguredError: It is another client's, or neither or both of the
                arguments are given.
            StoreError: The session store failed.
        """
        if (session_id is None) == (handle is None):
            raise MisconfiguredError(
                "get_session takes a session_id, or handle=", setting="session_id"
            )
        if handle is not None:
            session_id = session_id_of(reveal(handle))
        del handle
        name = session_id or ""
        record = await self._keeper.read(name)
        sign_in = record is not None and record.grant_type == "sign_in"
        if record is None or sign_in:
            unknown = FlightFailure(reason="unknown_session")
            raise self._supply.error(name, unknown)
        self._keeper.check_owner(name, record)
        if record.ended is not None:
            raise self._supply.error(name, FlightFailure(ended=record.ended))
        return session_of(name, record)

    async def end_session(self, session_id: str) -> None:
        """Sign a session out: here at once, at the server in the background.

        Ending a session that is over or unknown does nothing. The refresh token is
        revoked where the server offers that; a failure is an event.

        Raises:
            RetryableError: The manager is closing.
            StoreError: The store failed, and the session may go on: try again.

        Spec: RFC 7009 §2.
        """
        runtime = self._supply.runtime()

        async def end() -> None:
            ended = await self._keeper.end(session_id)
            if ended is not None and ended.refresh_token is not None:
                runtime.revoke_later(session_id, ended.refresh_token)

        await runtime.apart(end)

    def auth(
        self,
        session_id: str,
        *,
        origins: Iterable[str],
        resource: str | None = None,
        scope: str | Iterable[str] | None = None,
    ) -> BearerAuth:
        """Return the ``auth=`` of a request with this session's token.

        For `httpx.AsyncClient` and `httpx2.AsyncClient`. Cheap enough to make for
        each request, so that one HTTP client serves all sessions.

        Args:
            session_id: As for `get_token`.
            origins: Where the token may go, such as ``["https://api.example.com"]``:
                https, or http to a literal loopback address.
            resource: As for `get_token`.
            scope: As for `get_token`.

        Raises:
            MisconfiguredError: An origin is of no use.

        Spec: RFC 6750 §2.1.
        """
        from freshtoken.auth import make_auth  # noqa: PLC0415 -- imports httpx

        return make_auth(
            self, session_id, origins=origins, resource=resource, scope=scope
        )

    @property
    def client(self) -> OAuthClient:
        """The client whose sessions these are."""
        return self._server.client

    @property
    def stats(self) -> Stats:
        """Counters of this manager, as they are now."""
        return self._sink.stats(self._cache.by_state())

    # Processes

    def _forget_loops(self) -> None:
        """Start clean in a forked child: the parent's loops are not ours."""
        self._runtimes.clear()
        self._http_loop = None
        self._agenda.forget_listeners()
        # Its flights hold slots that nobody gives back here.
        self._server.limiter = Limiter()

    def __repr__(self) -> str:
        """Show whose sessions these are."""
        return f"TokenManager({self._server.client!r})"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: sessions are shared through the store."""
        refuse_pickle(self)


def _not_scheduled(session_id: str, key: EntryKey, live: LiveToken) -> None:
    """Plan nothing: early renewal is off."""


_managers: weakref.WeakSet[TokenManager] = weakref.WeakSet()


def _after_fork() -> None:
    for manager in _managers:
        manager._forget_loops()  # noqa: SLF001 -- the managers of this module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

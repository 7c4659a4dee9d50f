"""A mock identity provider: an authorization server inside the test."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import threading
from typing import TYPE_CHECKING, Any, Unpack

from freshtoken._foundation.clock import SystemClock
from freshtoken.testing.clients import AuthMethod, MockClient
from freshtoken.testing.codes import CodeRegistry
from freshtoken.testing.endpoints import Endpoint, answer, http_date, read_call
from freshtoken.testing.forging import Forging
from freshtoken.testing.grants import Ledger, MockGrant, TokenRuleOptions, TokenRules
from freshtoken.testing.journal import Journal, describe_request
from freshtoken.testing.key_ring import KeyManagement
from freshtoken.testing.messages import (
    MockRequest,
    MockResponse,
    NoAnswerError,
    RequestRecord,
    origin_of,
)
from freshtoken.testing.routes import ENDPOINTS
from freshtoken.testing.server import serve, serve_in_thread
from freshtoken.testing.shortcuts import (
    DEFAULT_CLIENT_ID,
    DEFAULT_CLIENT_SECRET,
    Shortcuts,
)
from freshtoken.testing.sign_in import BrowserShortcuts
from freshtoken.testing.transport import make_transport
from freshtoken.testing.users import UserDirectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

    import httpx
    import httpx2

    from freshtoken.abc import Clock
    from freshtoken.testing.fault import Fault
    from freshtoken.testing.grants import AccessEntry


class MockIdP(Shortcuts, BrowserShortcuts, UserDirectory, KeyManagement, Forging):
    """An authorization server for tests: real answers, rotation, faults, a log.

    Mount it on an HTTP client with `transport`, or run it on 127.0.0.1 with `serve`.
    It needs no event loop to be made and may be used from several loops and threads.
    One confidential client is registered, `DEFAULT_CLIENT_ID`, and one user,
    `DEFAULT_USER`; users who come with a browser are signed in without being asked.

    Args:
        issuer: Its issuer identifier; requests to other origins fail as unknown hosts.
        clock: Time source; give it the `FakeClock` of the test. It lives by
            `FakeClock.true_time`, since nobody steps the clock of another machine.
        rng: Source of the random part of tokens; seeded, unless given.
        rules: See `TokenRules`.

    Attributes:
        issuer: While it is served, the address of the server.
        rules: How it treats tokens; may be changed at any time.
        clients: Registered clients by ``client_id``.
        clock_skew: Seconds that its clock is ahead of everybody else's.
        metadata_overrides: Members laid over its metadata; ``None`` removes one.
        token_members: Members laid over every token answer.
        codes: Authorization codes that it gave.
    """

    endpoints: tuple[Endpoint, ...] = ENDPOINTS

    def __init__(
        self,
        issuer: str = "https://idp.test",
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        **rules: Unpack[TokenRuleOptions],
    ) -> None:
        """Start without grants and faults."""
        super().__init__()
        self.issuer: str = issuer
        self.rules: TokenRules = TokenRules(**rules)
        self.clients: dict[str, MockClient] = {}
        self.clock_skew: float = 0.0
        self.metadata_overrides: dict[str, Any] = {}
        self.token_members: dict[str, Any] = {}
        self._clock: Clock = clock or SystemClock()
        self._rng = rng or random.Random(issuer)  # noqa: S311 -- no secret: repeatable
        self._lock = threading.RLock()
        self._journal = Journal()
        self._sessions: dict[str, MockGrant] = {}
        self.codes: CodeRegistry = CodeRegistry()
        self.ledger: Ledger = Ledger(self.rules, self._rng, self.now, self._sign)
        self.add_client(DEFAULT_CLIENT_ID, client_secret=DEFAULT_CLIENT_SECRET)

    # -- What tests set up ----------------------------------------------------------

    def add_client(
        self,
        client_id: str,
        *,
        client_secret: str | None = None,
        auth_method: AuthMethod | None = None,
        jwks: Mapping[str, Any] | None = None,
        redirect_uris: Iterable[str] = (),
        post_logout_redirect_uris: Iterable[str] = (),
        id_token_alg: str | None = None,
    ) -> MockClient:
        """Register a client, or replace one.

        Args:
            auth_method: The one way it may authenticate. Without it: its secret, in
                the header or in the body.
            jwks: Its public keys, for ``private_key_jwt``.
            redirect_uris: Where sign-ins may send browsers back; without any, anywhere
                over ``https`` or on a loopback address.
            post_logout_redirect_uris: Likewise after a logout.
            id_token_alg: How its ID tokens are signed, if not by `signing_alg`.
        """
        client = MockClient(
            client_id,
            client_secret,
            auth_method,
            jwks,
            redirect_uris=tuple(redirect_uris),
            post_logout_redirect_uris=tuple(post_logout_redirect_uris),
            id_token_alg=id_token_alg,
        )
        self.clients[client_id] = client
        return client

    def grant(self, key: str) -> MockGrant:
        """Return a grant by its id, its code or a token, or the session made for it.

        Raises:
            KeyError: There is none.
        """
        with self._lock:
            code = self.codes.find(key)
            found = (
                self.ledger.grants.get(key)
                or self._sessions.get(key)
                or self.ledger.grant_of(key)
                or self.ledger.id_tokens.get(key)
                or (code.grant if code else None)
            )
        if found is None:
            message = "no grant with this id, code, token or session"
            raise KeyError(message)
        return found

    def revoke_grant(self, grant: MockGrant | str) -> None:
        """End a grant with all its tokens, as an administrator or the user would.

        Args:
            grant: The grant, or what `grant` finds it by.
        """
        found = self.grant(grant) if isinstance(grant, str) else grant
        with self._lock:
            self.ledger.end(found, "admin")

    def revoke_access_token(self, token: str) -> None:
        """Let APIs refuse one access token before its time; its grant lives on."""
        with self._lock:
            entry = self.ledger.active_access(token)
            if entry is not None:
                entry.revoked = True

    # -- What tests look at ---------------------------------------------------------

    def requests(
        self,
        endpoint: str | None = None,
        *,
        grant_type: str | None = None,
        client_id: str | None = None,
    ) -> list[RequestRecord]:
        """Return the log: requests that reached the server, in order.

        Args:
            endpoint: Only requests to this one, such as ``"token"``.
            grant_type: Only requests with this grant type.
            client_id: Only requests of this client.
        """
        return self._journal.select(endpoint, grant_type, client_id)

    def is_active(self, access_token: str) -> bool:
        """Tell whether an API should accept an access token now."""
        with self._lock:
            return self.ledger.active_access(access_token) is not None

    def introspect(self, token: str) -> dict[str, object]:
        """Return what the server knows of an access or refresh token; spends nothing.

        Spec: RFC 7662 §2.2.
        """
        with self._lock:
            refresh = self.ledger.active_refresh(token)
            access = self.ledger.active_access(token)
        entry = access or refresh
        if entry is None:
            return {"active": False}
        members: dict[str, object] = {
            "active": True,
            "iss": self.issuer,
            "sub": entry.grant.subject,
            "client_id": entry.grant.client_id,
            "scope": access.scope if access else entry.grant.scope,
            "exp": entry.expires_at,
        }
        if access is not None:
            members |= {"token_type": "Bearer", "aud": list(access.audience)}
        return {name: value for name, value in members.items() if value is not None}

    def now(self) -> float:
        """Return the server's wall clock in epoch seconds."""
        true_time = getattr(self._clock, "true_time", self._clock.time)
        return float(true_time()) + self.clock_skew

    def url(self, endpoint: str) -> str:
        """Return the address of an endpoint, such as ``"token"``."""
        for one in self.endpoints:
            if one.name == endpoint:
                return origin_of(self.issuer) + one.path_under(self.issuer)
        message = f"no endpoint {endpoint!r}"
        raise KeyError(message)

    # -- How requests come in -------------------------------------------------------

    def http_client(self, **options: Any) -> httpx.AsyncClient:  # noqa: ANN401 -- handed on
        """Return an ``httpx.AsyncClient`` that reaches this server only."""
        import httpx  # noqa: PLC0415 -- only where this family is used

        return httpx.AsyncClient(transport=self.transport(), **options)

    def http_client2(self, **options: Any) -> httpx2.AsyncClient:  # noqa: ANN401 -- handed on
        """Return an ``httpx2.AsyncClient`` that reaches this server only."""
        import httpx2  # noqa: PLC0415 -- optional

        return httpx2.AsyncClient(transport=self.transport2(), **options)

    def transport(self) -> httpx.AsyncBaseTransport:
        """Return a transport for an ``httpx.AsyncClient``; no sockets."""
        import httpx  # noqa: PLC0415 -- only where this family is used

        transport: httpx.AsyncBaseTransport = make_transport(httpx, self)
        return transport

    def transport2(self) -> httpx2.AsyncBaseTransport:
        """Return a transport for an ``httpx2.AsyncClient``; no sockets."""
        import httpx2  # noqa: PLC0415 -- optional

        transport: httpx2.AsyncBaseTransport = make_transport(httpx2, self)
        return transport

    @contextlib.asynccontextmanager
    async def serve(self, *, keep_alive: bool = False) -> AsyncIterator[str]:
        """Serve on a free port of 127.0.0.1, and yield the base URL: the issuer.

        The server runs in a thread of its own, so that it answers while the loop of
        the test is busy, and may be left in another task than it was entered in.

        Args:
            keep_alive: Whether connections stay open after an answer.
        """
        async with serve(self, keep_alive=keep_alive) as base_url:
            with self._renamed(base_url):
                yield base_url

    @contextlib.contextmanager
    def serve_in_thread(self, *, keep_alive: bool = False) -> Iterator[str]:
        """Serve as `serve` does, for callers without an event loop."""
        with (
            serve_in_thread(self, keep_alive=keep_alive) as base_url,
            self._renamed(base_url),
        ):
            yield base_url

    async def handle(self, request: MockRequest) -> MockResponse:
        """Answer a request.

        Raises:
            NoAnswerError: A fault leaves it without an answer, or it went to the
                wrong origin.
        """
        if request.origin != origin_of(self.issuer):
            detail = f"MockIdP serves {self.issuer} only, not {request.origin}"
            raise NoAnswerError("dns", detail)
        endpoint = self._endpoint_at(request.path)
        name = "unknown" if endpoint is None else endpoint.name
        record = describe_request(request, name, self.now())
        fault = self._take_fault(record)
        if fault is not None:
            record = dataclasses.replace(record, fault=fault.name)
        if fault is None or fault.reaches_server:
            record = self._journal.enter(record)
        if fault is None:
            return self._deliver(record, self._act(record, endpoint, request))
        return await self._meet(fault, record, endpoint, request)

    # -- Inside ---------------------------------------------------------------------

    async def _meet(
        self,
        fault: Fault,
        record: RequestRecord,
        endpoint: Endpoint | None,
        request: MockRequest,
    ) -> MockResponse:
        """Answer a request that meets a fault."""
        act = functools.partial(self._act, record, endpoint, request)
        response = act() if fault.point == "after" else None
        await fault.stop(self._clock, act)
        fault.raise_no_answer()
        if fault.answer is not None:
            response = self._dated(fault.answer)
        elif response is None:
            response = act()
        if fault.change is not None:
            response = fault.change(response)
        return self._deliver(record, response)

    def _act(
        self, record: RequestRecord, endpoint: Endpoint | None, request: MockRequest
    ) -> MockResponse:
        """Do what a request asks for, and note it."""
        with self._lock:
            call = read_call(request, self.now())
            response = answer(self, endpoint, call)
        grant_id = call.grant.id if call.grant else None
        self._journal.note(record.number, response, grant_id=grant_id)
        return response

    def _deliver(self, record: RequestRecord, response: MockResponse) -> MockResponse:
        """Note the answer that goes out."""
        delivered = response.cut_after is None
        self._journal.note(record.number, response, delivered=delivered)
        return response

    def _endpoint_at(self, path: str) -> Endpoint | None:
        """Return the endpoint at a path."""
        for endpoint in self.endpoints:
            if endpoint.path_under(self.issuer) == path:
                return endpoint
        return None

    def _dated(self, response: MockResponse) -> MockResponse:
        """Return a canned answer with the server's date, unless it has one."""
        if response.header("date") is not None:
            return response
        return response.with_headers({"Date": http_date(self.now())})

    def _sign(self, entry: AccessEntry, number: int) -> str:
        """Return an access token as a JWT (RFC 9068)."""
        claims: dict[str, object] = {
            "iss": self.issuer,
            "sub": entry.grant.subject,
            "aud": list(entry.audience) or self.issuer,
            "client_id": entry.grant.client_id,
            "scope": entry.scope,
            "iat": int(entry.issued_at),
            "exp": int(entry.expires_at),
            "jti": f"at-{number}-{self._rng.getrandbits(96):024x}",
        }
        return self.current_key().sign(claims, {"typ": "at+jwt"})

    @contextlib.contextmanager
    def _renamed(self, issuer: str) -> Iterator[None]:
        """Go by another issuer for a while."""
        before, self.issuer = self.issuer, issuer
        try:
            yield
        finally:
            self.issuer = before

    def __repr__(self) -> str:
        """Show its name and how much it did."""
        return f"MockIdP({self.issuer!r}, {len(self._journal)} requests)"

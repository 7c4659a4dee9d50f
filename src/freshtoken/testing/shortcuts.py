"""What saves a test's time: grants, clients and sessions in one call."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from freshtoken._foundation.secret import Secret
from freshtoken.testing.clients import MockClient
from freshtoken.testing.grants import Ledger, MockGrant

if TYPE_CHECKING:
    from freshtoken import OAuthClient

DEFAULT_CLIENT_ID = "mock-client"
# Long enough for HS512, so that assertions signed with it pass every check.
DEFAULT_CLIENT_SECRET = "mock-client-secret-" + "0123456789abcdef" * 4
DEFAULT_REDIRECT_URI = "https://app.test/callback"
DEFAULT_SUBJECT = "user-1"
DEFAULT_SCOPE = "openid profile offline_access"

T_co = TypeVar("T_co", covariant=True)


class AddsSessions(Protocol[T_co]):
    """What `MockIdP.new_session` needs of a token manager."""

    async def add_session(self, session_id: str, *, refresh_token: Secret) -> T_co:
        """Store a grant from elsewhere under a name."""
        ...


class Shortcuts:
    """The part of `MockIdP` that makes what most tests begin with."""

    issuer: str
    ledger: Ledger
    clients: dict[str, MockClient]
    signing_alg: str
    _lock: threading.RLock
    _sessions: dict[str, MockGrant]

    def new_grant(
        self,
        subject: str = DEFAULT_SUBJECT,
        *,
        client_id: str = DEFAULT_CLIENT_ID,
        scope: str = DEFAULT_SCOPE,
    ) -> MockGrant:
        """Let a user consent: a grant with its first access and refresh token."""
        with self._lock:
            grant = self.ledger.new_grant(subject, client_id, scope)
            self.ledger.issue(grant)
            return grant

    def client(self, **overrides: Any) -> OAuthClient:  # noqa: ANN401 -- handed on
        """Return an `OAuthClient` for a registered client of this server.

        Args:
            overrides: Arguments of `OAuthClient` in the place of the registered
                values; a ``client_id`` picks the client.
        """
        from freshtoken import OAuthClient  # noqa: PLC0415 -- lies above this layer

        client_id = overrides.pop("client_id", DEFAULT_CLIENT_ID)
        issuer = overrides.pop("issuer", self.issuer)
        options: dict[str, Any] = {}
        options["redirect_uri"] = DEFAULT_REDIRECT_URI
        registered = self.clients.get(client_id) or MockClient(client_id)
        if registered.client_secret is not None:
            options["client_secret"] = registered.client_secret
        if registered.auth_method is not None:
            options["token_endpoint_auth_method"] = registered.auth_method
        if registered.redirect_uris:
            options["redirect_uri"] = registered.redirect_uris[0]
        alg = registered.id_token_alg or self.signing_alg
        if alg != "RS256":  # what a client expects that was told nothing
            options["id_token_signed_response_alg"] = alg
        return OAuthClient(issuer, client_id=client_id, **{**options, **overrides})

    async def new_session(
        self,
        tokens: AddsSessions[T_co],
        session_id: str | None = None,
        *,
        subject: str = DEFAULT_SUBJECT,
        client_id: str = DEFAULT_CLIENT_ID,
        scope: str = DEFAULT_SCOPE,
    ) -> T_co:
        """Make a grant and hand it to a token manager; return the manager's session.

        Args:
            session_id: Its name; ``"session-1"`` and so on without one. `grant` finds
                the grant by it.
        """
        grant = self.new_grant(subject, client_id=client_id, scope=scope)
        with self._lock:
            name = session_id or f"session-{len(self._sessions) + 1}"
            self._sessions[name] = grant
        secret = Secret(grant.refresh_token or "")
        return await tokens.add_session(name, refresh_token=secret)

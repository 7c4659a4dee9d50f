"""The mock server's grants, and the tokens that belong to them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict

from freshtoken._foundation.secret import MASK

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from freshtoken.testing.users import Authentication

Rotation = Literal["strict", "grace", "none"]
AccessTokenFormat = Literal["opaque", "jwt"]


class TokenRuleOptions(TypedDict, total=False):
    """The attributes of `TokenRules`, as keywords."""

    rotation: Rotation
    grace: float
    grace_answer: Literal["same", "new"]
    reuse_kills_family: bool
    access_token_lifetime: float
    refresh_token_lifetime: float | None
    access_token_format: AccessTokenFormat
    revocation: Literal["grant", "subject"]
    access_token_revocation_ends_grant: bool
    refresh_token_without_offline_access: bool
    code_lifetime: float
    id_token_lifetime: float
    id_token_on_refresh: bool
    authorization_response_iss: bool


class OAuthFaultError(Exception):
    """The server refuses a request, with an OAuth error code (RFC 6749 §5.2)."""

    def __init__(
        self,
        error: str,
        description: str,
        *,
        status: int = 400,
        challenge: str | None = None,
    ) -> None:
        """Say why, and under which status."""
        super().__init__(description)
        self.error = error
        self.description = description
        self.status = status
        self.challenge = challenge


@dataclass(slots=True, kw_only=True)
class TokenRules:
    """How a mock server treats its tokens; may be changed at any time.

    Attributes:
        rotation: ``"strict"``: a used refresh token is dead. ``"grace"``: it works
            for *grace* seconds more. ``"none"``: it stays.
        grace: Seconds.
        grace_answer: Whether a repeat within the grace gets the ``"same"`` successor
            again or a ``"new"`` one each time.
        reuse_kills_family: Whether a used refresh token ends the whole grant.
        access_token_lifetime: Seconds.
        refresh_token_lifetime: Seconds from the issue of each; ``None`` for ever.
        access_token_format: ``"opaque"`` or ``"jwt"`` (RFC 9068).
        revocation: Whether a revocation ends the ``"grant"``, or all grants that the
            ``"subject"`` gave to the client.
        access_token_revocation_ends_grant: As some servers do; else only the token.
        refresh_token_without_offline_access: Whether a sign-in brings a refresh token
            also where this scope was not asked for.
        code_lifetime: Seconds from the authorization to the exchange.
        id_token_lifetime: Seconds.
        id_token_on_refresh: Whether the refresh of a signed-in session brings a new
            ID token.
        authorization_response_iss: Whether the answers to authorization requests
            name the server, and the metadata say so (RFC 9207).
    """

    rotation: Rotation = "strict"
    grace: float = 10.0
    grace_answer: Literal["same", "new"] = "same"
    reuse_kills_family: bool = True
    access_token_lifetime: float = 300.0
    refresh_token_lifetime: float | None = None
    access_token_format: AccessTokenFormat = "opaque"  # noqa: S105 -- a format
    revocation: Literal["grant", "subject"] = "grant"
    access_token_revocation_ends_grant: bool = False
    refresh_token_without_offline_access: bool = True
    code_lifetime: float = 60.0
    id_token_lifetime: float = 3600.0
    id_token_on_refresh: bool = True
    authorization_response_iss: bool = True


@dataclass(slots=True, repr=False, eq=False)
class MockGrant:
    """A consent that the mock server knows; a view that follows what happens.

    Attributes:
        id: Such as ``"grant-1"``; a client-credentials grant has one, too.
        active: Whether the server still honours it.
        ended_by: Why not: ``"reuse"``, ``"code_reuse"``, ``"revocation"``,
            ``"logout"`` or ``"admin"``.
        scope: What was granted, separated by spaces.
        refresh_token: The newest; ``None`` for client credentials.
        access_token: The newest.
        refreshes: How often it was refreshed.
        id_token: The newest.
        resources: What the authorization request named (RFC 8707); empty for any.
        authentication: The sign-in that it came from; ``None`` for other grants.
    """

    id: str
    subject: str
    client_id: str
    scope: str
    active: bool = True
    ended_by: str | None = None
    refresh_token: str | None = None
    access_token: str = ""
    refreshes: int = 0
    id_token: str | None = None
    resources: tuple[str, ...] = ()
    authentication: Authentication | None = None

    def __repr__(self) -> str:
        """Show no token."""
        state = "active" if self.active else f"ended by {self.ended_by}"
        return f"MockGrant({self.id!r}, {self.subject!r}, {state}, {MASK})"


@dataclass(slots=True, repr=False)
class RefreshEntry:
    """A refresh token as the server remembers it."""

    token: str
    grant: MockGrant
    expires_at: float | None
    spent_at: float | None = None
    successor: RefreshEntry | None = None


@dataclass(slots=True, repr=False)
class AccessEntry:
    """An access token as the server remembers it."""

    token: str
    grant: MockGrant
    scope: str
    audience: tuple[str, ...]
    issued_at: float
    expires_at: float
    revoked: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Issue:
    """What one token request brought."""

    access: AccessEntry
    refresh: RefreshEntry | None = None


class SignAccessToken(Protocol):
    """Makes the JWT of an access token."""

    def __call__(self, entry: AccessEntry, number: int) -> str:
        """Return the compact form."""
        ...


@dataclass(slots=True, repr=False)
class Ledger:
    """All grants and tokens. Plain functions of values; the caller holds a lock.

    Attributes:
        now: The server's clock.
        sign: Makes access tokens where they are JWTs.
        id_tokens: Every ID token that was given, and where it belongs.
    """

    rules: TokenRules
    rng: random.Random
    now: Callable[[], float]
    sign: SignAccessToken
    grants: dict[str, MockGrant] = field(default_factory=dict)
    id_tokens: dict[str, MockGrant] = field(default_factory=dict)
    _refresh: dict[str, RefreshEntry] = field(default_factory=dict)
    _access: dict[str, AccessEntry] = field(default_factory=dict)
    _issued: int = 0

    def new_grant(self, subject: str, client_id: str, scope: str) -> MockGrant:
        """Enter a grant without tokens."""
        grant = MockGrant(f"grant-{len(self.grants) + 1}", subject, client_id, scope)
        self.grants[grant.id] = grant
        return grant

    def issue(
        self,
        grant: MockGrant,
        *,
        scope: str | None = None,
        audience: tuple[str, ...] = (),
        refreshable: bool = True,
    ) -> Issue:
        """Issue the first tokens of a grant."""
        refresh = self._new_refresh(grant) if refreshable else None
        return Issue(self._new_access(grant, scope or grant.scope, audience), refresh)

    def refresh(
        self,
        token: str,
        client_id: str,
        *,
        scope: str | None,
        audience: tuple[str, ...],
    ) -> Issue:
        """Spend a refresh token.

        Raises:
            OAuthFaultError: The token or the scope is refused.
        """
        entry = self._find_refresh(token, client_id)
        grant = entry.grant
        if scope is not None and not set(scope.split()) <= set(grant.scope.split()):
            detail = "the scope exceeds what was granted"
            raise OAuthFaultError("invalid_scope", detail)
        refresh = self._rotate(entry)
        grant.refreshes += 1
        return Issue(self._new_access(grant, scope or grant.scope, audience), refresh)

    def grant_of(self, token: str) -> MockGrant | None:
        """Return the grant that any token, dead or alive, belongs to."""
        entry = self._refresh.get(token) or self._access.get(token)
        return entry.grant if entry else None

    def active_access(self, token: str) -> AccessEntry | None:
        """Return an access token if an API should accept it now."""
        entry = self._access.get(token)
        if entry is None or entry.revoked or not entry.grant.active:
            return None
        return entry if self.now() < entry.expires_at else None

    def active_refresh(self, token: str) -> RefreshEntry | None:
        """Return a refresh token if it would be accepted now; spends nothing."""
        entry = self._refresh.get(token)
        if entry is None or not entry.grant.active or self._expired(entry):
            return None
        return entry if entry.spent_at is None or self._in_grace(entry) else None

    def revoke(self, token: str, client_id: str) -> None:
        """Revoke as RFC 7009 says; unknown tokens are no error.

        Raises:
            OAuthFaultError: The token belongs to another client.
        """
        grant = self.grant_of(token)
        if grant is None:
            return
        if grant.client_id != client_id:
            detail = "the token was issued to another client"
            raise OAuthFaultError("invalid_grant", detail)
        access = self._access.get(token)
        if access is not None and not self.rules.access_token_revocation_ends_grant:
            access.revoked = True
            return
        for other in list(self.grants.values()):
            same = (other.subject, other.client_id) == (grant.subject, grant.client_id)
            if other is grant or (self.rules.revocation == "subject" and same):
                self.end(other, "revocation")

    def end(self, grant: MockGrant, reason: str) -> None:
        """End a grant with all its tokens."""
        if grant.active:
            grant.active = False
            grant.ended_by = reason

    def _find_refresh(self, token: str, client_id: str) -> RefreshEntry:
        """Return the entry of an acceptable refresh token; reuse ends its grant."""
        entry = self._refresh.get(token)
        if entry is None:
            raise OAuthFaultError("invalid_grant", "the refresh token is unknown")
        if entry.grant.client_id != client_id:
            detail = "the refresh token was issued to another client"
            raise OAuthFaultError("invalid_grant", detail)
        if not entry.grant.active:
            raise OAuthFaultError("invalid_grant", "the grant has ended")
        if self._expired(entry):
            raise OAuthFaultError("invalid_grant", "the refresh token has expired")
        if entry.spent_at is not None and not self._in_grace(entry):
            if self.rules.reuse_kills_family:
                self.end(entry.grant, "reuse")
            raise OAuthFaultError("invalid_grant", "the refresh token was used before")
        return entry

    def _rotate(self, entry: RefreshEntry) -> RefreshEntry:
        """Return the refresh token to be used next."""
        if self.rules.rotation == "none":
            return entry
        if entry.successor is not None and self.rules.grace_answer == "same":
            return entry.successor
        if entry.spent_at is None:
            entry.spent_at = self.now()
        child = self._new_refresh(entry.grant)
        entry.successor = child
        return child

    def _in_grace(self, entry: RefreshEntry) -> bool:
        """Tell whether a spent refresh token still works.

        Who has used the successor has received it: then the grace is over at once,
        unless every repeat brings a successor of its own.
        """
        rules = self.rules
        if entry.spent_at is None or rules.rotation != "grace":
            return False
        successor = entry.successor
        if (
            rules.grace_answer == "same"
            and successor is not None
            and successor.spent_at is not None
        ):
            return False
        return self.now() < entry.spent_at + rules.grace

    def _expired(self, entry: RefreshEntry) -> bool:
        """Tell whether a refresh token is past its end."""
        return entry.expires_at is not None and self.now() >= entry.expires_at

    def _new_refresh(self, grant: MockGrant) -> RefreshEntry:
        """Make the next refresh token of a grant."""
        lifetime = self.rules.refresh_token_lifetime
        expires_at = None if lifetime is None else self.now() + lifetime
        entry = RefreshEntry(self.new_token("rt"), grant, expires_at)
        self._refresh[entry.token] = entry
        grant.refresh_token = entry.token
        return entry

    def _new_access(
        self, grant: MockGrant, scope: str, audience: tuple[str, ...]
    ) -> AccessEntry:
        """Make an access token."""
        now = self.now()
        expires_at = now + self.rules.access_token_lifetime
        entry = AccessEntry("", grant, scope, audience, now, expires_at)
        if self.rules.access_token_format == "jwt":  # noqa: S105 -- a format
            # The claim has whole seconds; all ways to ask must agree with it.
            entry = dataclasses.replace(entry, expires_at=float(int(expires_at)))
            self._issued += 1
            entry.token = self.sign(entry, self._issued)
        else:
            entry.token = self.new_token("at")
        self._access[entry.token] = entry
        grant.access_token = entry.token
        return entry

    def new_token(self, kind: str) -> str:
        """Return a token that can be read: its kind, its number, and chance."""
        self._issued += 1
        return f"{kind}-{self._issued}-{self.rng.getrandbits(96):024x}"

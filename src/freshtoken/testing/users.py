"""Who can sign in at the mock server, and in which browsers they have."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from freshtoken._foundation.secret import MASK

DEFAULT_USER = "alice"

# OpenID Connect Core §5.4. A claim that is in none of these goes with every scope.
_CLAIMS_OF_SCOPE: Mapping[str, tuple[str, ...]] = {
    "profile": (
        *("name", "family_name", "given_name", "middle_name", "nickname"),
        *("preferred_username", "profile", "picture", "website", "gender"),
        *("birthdate", "zoneinfo", "locale", "updated_at"),
    ),
    "email": ("email", "email_verified"),
    "address": ("address",),
    "phone": ("phone_number", "phone_number_verified"),
}
_SCOPE_OF_CLAIM: Mapping[str, str] = {
    claim: scope for scope, claims in _CLAIMS_OF_SCOPE.items() for claim in claims
}
CLAIMS_SUPPORTED: tuple[str, ...] = tuple(_SCOPE_OF_CLAIM)


@dataclass(slots=True)
class MockUser:
    """Somebody who can sign in; change the claims at any time.

    Attributes:
        subject: The ``sub`` claim.
        claims: What else the server says of them, by name.
    """

    subject: str
    claims: dict[str, Any] = field(default_factory=dict)

    def claims_for(self, scope: str) -> dict[str, Any]:
        """Return the claims that a scope opens.

        Spec: OpenID Connect Core §5.4.
        """
        granted = set(scope.split())
        return {
            name: value
            for name, value in self.claims.items()
            if name not in _SCOPE_OF_CLAIM or _SCOPE_OF_CLAIM[name] in granted
        }


@dataclass(frozen=True, slots=True)
class Authentication:
    """How a user proved who they are, as ID tokens tell it.

    Attributes:
        auth_time: Epoch seconds.
        sid: The browser session, which a logout ends.
        nonce: What the authorization request asked to be told.
    """

    auth_time: float
    sid: str
    acr: str
    nonce: str | None = None


@dataclass(slots=True, repr=False)
class BrowserSession:
    """One user signed in with one browser."""

    cookie: str
    sid: str
    subject: str
    auth_time: float

    def __repr__(self) -> str:
        """Show no cookie."""
        return f"BrowserSession({self.sid!r}, {self.subject!r}, {MASK})"


class UserDirectory:
    """The part of `MockIdP` that knows users and their browsers.

    Attributes:
        users: By ``sub``.
        default_user: Who signs in with a browser of which nothing else is known.
    """

    _lock: threading.RLock
    _rng: random.Random

    def __init__(self) -> None:
        """Start with one user."""
        super().__init__()
        self.users: dict[str, MockUser] = {}
        self.default_user: str = DEFAULT_USER
        self._browser_sessions: dict[str, BrowserSession] = {}
        self._browsers_seen = 0
        self.add_user(
            DEFAULT_USER,
            name="Alice Example",
            email="alice@example.com",
            email_verified=True,
        )

    def add_user(self, sub: str, /, **claims: Any) -> MockUser:  # noqa: ANN401 -- JSON values
        """Let somebody sign in, or replace who was there.

        Args:
            claims: What ID tokens and userinfo say of them, such as ``email``.
        """
        user = MockUser(sub, claims)
        self.users[sub] = user
        return user

    def sign_out_user(self, sub: str) -> None:
        """End a user's browser sessions: the next sign-in is a fresh one.

        Grants live on; `MockIdP.revoke_grant` ends these.
        """
        with self._lock:
            for session in list(self._browser_sessions.values()):
                if session.subject == sub:
                    self.end_browser_session(session)

    def find_user(self, hint: str) -> MockUser | None:
        """Return the user with this ``sub``, ``email`` or ``preferred_username``."""
        if hint in self.users:
            return self.users[hint]
        for user in self.users.values():
            names = (user.claims.get("email"), user.claims.get("preferred_username"))
            if hint in names:
                return user
        return None

    def browser_session(self, cookie: str | None) -> BrowserSession | None:
        """Return the live session that a browser's cookie stands for."""
        return self._browser_sessions.get(cookie or "")

    def start_browser_session(self, subject: str, now: float) -> BrowserSession:
        """Sign a user in with a browser."""
        self._browsers_seen += 1
        number = self._browsers_seen
        cookie, sid = (
            f"{kind}-{number}-{self._rng.getrandbits(96):024x}"
            for kind in ("browser", "sid")
        )
        session = BrowserSession(cookie, sid, subject, now)
        self._browser_sessions[cookie] = session
        return session

    def end_browser_session(self, session: BrowserSession) -> None:
        """Sign a browser out."""
        self._browser_sessions.pop(session.cookie, None)

    def browser_session_of(self, sid: str) -> BrowserSession | None:
        """Return the live session with a ``sid``."""
        for session in self._browser_sessions.values():
            if session.sid == sid:
                return session
        return None

"""Authorization codes of the mock server."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from freshtoken._foundation.secret import MASK
from freshtoken.testing.grants import OAuthFaultError
from freshtoken.testing.keys import base64url

if TYPE_CHECKING:
    from freshtoken.testing.grants import MockGrant
    from freshtoken.testing.users import Authentication

_VERIFIER = re.compile(r"[A-Za-z0-9\-._~]{43,128}", re.ASCII)


@dataclass(slots=True, repr=False)
class CodeEntry:
    """A code, and all that it is bound to.

    Attributes:
        grant: What it was exchanged for; ``None`` while it was not.
    """

    code: str
    client_id: str
    redirect_uri: str
    code_challenge: str
    subject: str
    scope: str
    resources: tuple[str, ...]
    authentication: Authentication
    expires_at: float
    grant: MockGrant | None = None

    def __repr__(self) -> str:
        """Show no code."""
        state = "used" if self.grant else "unused"
        return f"CodeEntry({self.client_id!r}, {self.subject!r}, {state}, {MASK})"


@dataclass(slots=True, repr=False)
class CodeRegistry:
    """All codes that were given. The caller holds a lock."""

    _entries: dict[str, CodeEntry] = field(default_factory=dict)

    def enter(self, entry: CodeEntry) -> None:
        """Remember a code."""
        self._entries[entry.code] = entry

    def find(self, code: str) -> CodeEntry | None:
        """Return what a code stands for, used or not."""
        return self._entries.get(code)

    def check(
        self, code: str, *, client_id: str, redirect_uri: str, verifier: str, now: float
    ) -> CodeEntry:
        """Return a code's entry if it may be exchanged now.

        Raises:
            OAuthFaultError: It may not.

        Spec: RFC 6749 §4.1.3, RFC 7636 §4.6.
        """
        entry = self._entries.get(code)
        if entry is None:
            raise _invalid("the code is unknown")
        if entry.client_id != client_id:
            raise _invalid("the code was issued to another client")
        if entry.grant is not None:
            raise _invalid("the code was used before")
        if now >= entry.expires_at:
            raise _invalid("the code has expired")
        if redirect_uri != entry.redirect_uri:
            raise _invalid("redirect_uri is not that of the authorization request")
        if not _VERIFIER.fullmatch(verifier):
            raise _invalid("code_verifier is missing or malformed")
        if not hmac.compare_digest(challenge_of(verifier), entry.code_challenge):
            raise _invalid("code_verifier does not fit the code_challenge")
        return entry

    def __len__(self) -> int:
        """Count the codes."""
        return len(self._entries)

    def __repr__(self) -> str:
        """Show the size only."""
        return f"CodeRegistry({len(self)} codes)"


def challenge_of(verifier: str) -> str:
    """Return the S256 challenge for a verifier (RFC 7636 §4.2)."""
    return base64url(hashlib.sha256(verifier.encode()).digest())


def _invalid(description: str) -> OAuthFaultError:
    """Return the refusal of a code."""
    return OAuthFaultError("invalid_grant", description)

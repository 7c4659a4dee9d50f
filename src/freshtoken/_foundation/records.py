"""What is known about a session: the values that stores keep and layers pass on.

Instants end in ``_at``. Those of tokens are epoch seconds; those of the lease and
``not_before`` are seconds on the store's clock, whatever that is.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn

from freshtoken._foundation.secret import (
    MASK,
    Secret,
    refuse_format,
    refuse_pickle,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from freshtoken.errors import Disposition

NOTHING: Mapping[str, object] = MappingProxyType({})


def _nothing() -> Mapping[str, object]:
    """Return the one empty mapping: a default may not look mutable."""
    return NOTHING


Doubt = Literal["none", "settled", "unsettled"]
# "sign_in" is no grant yet: a sign-in that a browser was sent away for.
GrantType = Literal["refresh_token", "client_credentials", "sign_in"]


class EntryKey(NamedTuple):
    """Which access token of a session: the one for this resource and scope."""

    resource: str | None = None
    scope: tuple[str, ...] | None = None


DEFAULT_ENTRY = EntryKey()


def entry_key(resource: str | None, scope: str | Iterable[str] | None) -> EntryKey:
    """Build the key of an access token; order and repetition of scopes mean nothing."""
    if not resource and not scope:
        return DEFAULT_ENTRY
    return EntryKey(resource or None, parse_scope(scope))


def parse_scope(scope: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Return scope values sorted and without repetition; ``None`` for none at all."""
    if not scope:
        return None
    values = scope.split() if isinstance(scope, str) else scope
    return tuple(sorted({value for value in values if value})) or None


@dataclass(frozen=True, slots=True, repr=False)
class TokenSet:
    """What one successful token response says (RFC 6749 §5.1).

    Attributes:
        access_token: ``None`` where the answer is unusable but for its refresh token;
            ``problem`` then says why.
        token_type: ``"Bearer"`` or ``"DPoP"``, in this spelling.
        issued_at: Epoch seconds just before the request was sent.
        expires_at: Epoch seconds; ``None`` if the lifetime is unknown.
        refresh_token: ``None`` if the answer has none.
        refresh_expires_at: Epoch seconds; ``None`` if unknown or without end.
        scope: Granted scope, sorted; ``None`` if the answer does not say.
        id_token: Raw and unchecked.
        extra: Members that the standard does not know.
        problem: Why the access token is unusable, else ``None``.
        notes: Oddities that were tolerated, for the log.
    """

    access_token: str | None
    token_type: str
    issued_at: float
    expires_at: float | None = None
    refresh_token: str | None = None
    refresh_expires_at: float | None = None
    scope: tuple[str, ...] | None = None
    id_token: str | None = None
    extra: Mapping[str, object] = field(default_factory=_nothing)
    problem: str | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Show times only."""
        return f"TokenSet({MASK}, expires_at={self.expires_at!r})"


@dataclass(frozen=True, slots=True)
class Failure:
    """How one exchange failed, graded once; exceptions are made from this.

    Attributes:
        disposition: What it means for the session.
        error: OAuth error code in its registered spelling.
        original_error: The server's spelling, where it differs.
        description: The server's own words, redacted.
        retry_after: Seconds that the server asked us to wait.
        sent: Whether the request may have reached the server.
        in_doubt: The server may have acted and we did not learn it.
        no_answer: Nothing readable came back (connection, time-out, cut answer).
        setting: The setting to look at, for ``MISCONFIGURED``.
        cause: Class name of the HTTP client's exception, for lack of an answer.
        advice: One sentence: what happened and what to do next.
        at: Epoch seconds.
        since: Epoch seconds of the first failure in this row of failures.
        count: Failed flights in a row, this one included.
        lost_rotation: Most likely a rotated refresh token was lost earlier.
    """

    disposition: Disposition
    advice: str
    error: str | None = None
    original_error: str | None = None
    description: str | None = None
    error_uri: str | None = None
    status: int | None = None
    request_id: str | None = None
    extra: Mapping[str, object] = field(default_factory=_nothing)
    retry_after: float | None = None
    sent: bool = True
    in_doubt: bool = False
    no_answer: bool = False
    setting: str | None = None
    cause: str | None = None
    at: float = 0.0
    since: float = 0.0
    count: int = 1
    lost_rotation: bool = False


class AccessToken:
    """An access token that is fresh now.

    ``repr`` and ``str`` are masked. Formatting it raises a `TypeError`, because a
    masked header would be a 401 without a cause: use `reveal`.

    Attributes:
        expires_at: Epoch seconds; ``None`` if the server does not say.
        token_type: ``"Bearer"`` or ``"DPoP"``.
        scope: Granted scope values, sorted; ``None`` if unknown.
    """

    __slots__ = ("_value", "expires_at", "scope", "token_type")

    _value: str
    expires_at: float | None
    token_type: str
    scope: tuple[str, ...] | None

    def __init__(
        self,
        value: str,
        *,
        expires_at: float | None = None,
        token_type: str = "Bearer",  # noqa: S107 -- a token type, not a password
        scope: tuple[str, ...] | None = None,
    ) -> None:
        """Wrap the token text."""
        for name, item in (
            ("_value", value),
            ("expires_at", expires_at),
            ("token_type", token_type),
            ("scope", scope),
        ):
            object.__setattr__(self, name, item)

    def reveal(self) -> str:
        """Return the token itself, for an ``Authorization`` header."""
        return self._value

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse: an access token never changes."""
        message = f"AccessToken is frozen: cannot set {name}"
        raise AttributeError(message)

    def __delattr__(self, name: str) -> NoReturn:
        """Refuse: an access token never changes."""
        message = f"AccessToken is frozen: cannot delete {name}"
        raise AttributeError(message)

    def __repr__(self) -> str:
        """Show the lifetime only."""
        return f"AccessToken({MASK}, expires_at={self.expires_at!r})"

    def __str__(self) -> str:
        """Return a mask."""
        return MASK

    def __format__(self, format_spec: str) -> NoReturn:
        """Refuse, naming `reveal`."""
        refuse_format(self)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        refuse_pickle(self)


@dataclass(frozen=True, slots=True, repr=False)
class StoredToken:
    """An access token of a session, as it is stored.

    Attributes:
        key: Resource and scope that it was asked for.
        refresh_at: The soft point: epoch seconds at which one worker renews it, drawn
            once and stored, so that all workers agree. ``None`` without a lifetime.
        forced_at: Epoch seconds at which it took the place of a rejected token.
    """

    key: EntryKey
    access_token: str
    token_type: str
    issued_at: float
    expires_at: float | None
    refresh_at: float | None
    scope: tuple[str, ...] | None = None
    forced_at: float | None = None

    def __repr__(self) -> str:
        """Show times only."""
        return f"StoredToken({MASK}, expires_at={self.expires_at!r})"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to send this session's refresh token, and the intent to do so.

    Attributes:
        owner: Random, one for each flight.
        rt_hash: SHA-256 of the refresh token that may be in a request now.
        since: Store's clock, when it was first taken.
        expires_at: Store's clock.
    """

    owner: str
    rt_hash: str
    since: float = 0.0
    expires_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Hold:
    """That one access token of a session is not asked for, for a while.

    Attributes:
        key: Which one.
        not_before: Store's clock, earliest next attempt.
        failure: What the last attempt met; ``None`` where there is nothing to gain.
    """

    key: EntryKey
    not_before: float
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """Why and when a session ended; its tokens are gone."""

    reason: str
    at: float
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Record:
    """All that is stored of a session.

    Attributes:
        issuer: Issuer identifier of the authorization server.
        client_id: The client that the grant belongs to.
        grant_id: Random, new with each sign-in.
        version: +1 with every write of the grant.
        generation: +1 with every saved answer.
        scope: Scope of the whole grant; ``None`` if never said.
        resource: The APIs that the grant was made for (RFC 8707); empty if none.
        tokens: Access tokens, one for each resource and scope asked for.
        doubt: Whether a request of this grant went unanswered.
        doubt_at: Epoch seconds of the last doubt; kept for the life of the grant.
        not_before: Store's clock, earliest next attempt for any access token.
        failure: What the last attempt met, if it concerns them all.
        holds: What holds for single ones.
        saved_at: Wall clock of the worker that wrote the tokens, to see skew.
        claims: Claims of the user, from the last ID token that was checked; empty
            where there was none.
        id_token: That ID token, as it came.
        sign_in: What a sign-in that is under way has to remember.
    """

    issuer: str
    client_id: str
    grant_type: GrantType
    grant_id: str
    version: int = 1
    generation: int = 0
    refresh_token: str | None = None
    refresh_expires_at: float | None = None
    scope: tuple[str, ...] | None = None
    resource: tuple[str, ...] = ()
    tokens: tuple[StoredToken, ...] = ()
    extra: Mapping[str, object] = field(default_factory=_nothing)
    lease: Lease | None = None
    doubt: Doubt = "none"
    doubt_at: float | None = None
    not_before: float | None = None
    failure: Failure | None = None
    holds: tuple[Hold, ...] = ()
    ended: Ended | None = None
    saved_at: float = 0.0
    claims: Mapping[str, object] = field(default_factory=_nothing)
    id_token: str | None = None
    sign_in: Mapping[str, object] | None = None

    def token(self, key: EntryKey) -> StoredToken | None:
        """Return the stored access token for *key*, if there is one."""
        for token in self.tokens:
            if token.key == key:
                return token
        return None

    def hold(self, key: EntryKey) -> Hold | None:
        """Return what holds for *key* alone, if anything does."""
        for hold in self.holds:
            if hold.key == key:
                return hold
        return None

    @property
    def pair(self) -> tuple[str, int]:
        """What a write of this record has to expect."""
        return (self.grant_id, self.version)

    def __repr__(self) -> str:
        """Show the state, nothing secret."""
        state = "ended" if self.ended else "leased" if self.lease else "free"
        return (
            f"Record(grant_id={self.grant_id!r}, version={self.version}, "
            f"generation={self.generation}, {state}, doubt={self.doubt!r})"
        )


@dataclass(frozen=True, slots=True)
class Session:
    """A signed-in user, or a service: one grant, under a name.

    Attributes:
        id: The name: what `TokenManager` calls take. It may appear in logs.
        issuer: Issuer identifier of the authorization server.
        client_id: The client that holds the grant.
        scope: Granted scope values, sorted; ``None`` if the server never said.
        expires_at: Epoch seconds at which the present access token ends.
        refresh_expires_at: Epoch seconds at which the refresh token ends, if known.
        extra: Members of the last token response that the standard does not know.
        claims: What the server's ID token says of the user, checked: ``sub``,
            ``email`` and so on; empty without one (OpenID Connect Core §2, §5.1).
        handle: The key to the session, for the user's cookie; only what
            `TokenManager.complete_sign_in` returns has it.
        return_to: As given to `TokenManager.begin_sign_in`; only there, too.
    """

    id: str
    issuer: str
    client_id: str
    scope: tuple[str, ...] | None = None
    expires_at: float | None = None
    refresh_expires_at: float | None = None
    extra: Mapping[str, object] = field(default_factory=_nothing, repr=False)
    claims: Mapping[str, object] = field(default_factory=_nothing, repr=False)
    handle: Secret | None = None
    return_to: str | None = field(default=None, repr=False)


def session_of(
    session_id: str,
    record: Record,
    *,
    handle: Secret | None = None,
    return_to: str | None = None,
) -> Session:
    """Return what applications may know of *record*."""
    token = record.token(DEFAULT_ENTRY)
    return Session(
        id=session_id,
        issuer=record.issuer,
        client_id=record.client_id,
        scope=record.scope,
        expires_at=token.expires_at if token else None,
        refresh_expires_at=record.refresh_expires_at,
        extra=record.extra,
        claims=record.claims,
        handle=handle,
        return_to=return_to,
    )


def session_id_of(handle: str) -> str:
    """Return the name of the session that *handle* opens: its SHA-256.

    A session id is a name, not a key to the door: it may be logged and listed.
    """
    return hashlib.sha256(handle.encode("utf-8", "surrogatepass")).hexdigest()


def with_token(record: Record, token: StoredToken) -> tuple[StoredToken, ...]:
    """Return the record's tokens with *token* in the place of its predecessor.

    Others that had ended when it was issued are left out: they serve nobody.
    """
    others = (kept for kept in record.tokens if kept.key != token.key)
    now = token.issued_at
    alive = (kept for kept in others if (kept.expires_at or now + 1.0) > now)
    return (*alive, token)


def with_hold(record: Record, hold: Hold) -> tuple[Hold, ...]:
    """Return the record's holds with *hold* in the place of its predecessor."""
    return (*(kept for kept in record.holds if kept.key != hold.key), hold)


def hash_token(token: str) -> str:
    """Return SHA-256 of a token: enough to compare, useless to a thief."""
    return hashlib.sha256(token.encode()).hexdigest()


def next_version(record: Record, **changes: object) -> Record:
    """Return *record* as its next write: version + 1 and the changes."""
    return dataclasses.replace(record, version=record.version + 1, **changes)  # type: ignore[arg-type]  # field names checked by replace


def ended_record(record: Record, ended: Ended) -> Record:
    """Return the tombstone of *record*: its tokens are erased."""
    return next_version(
        record,
        ended=ended,
        refresh_token=None,
        tokens=(),
        extra=NOTHING,
        claims=NOTHING,
        id_token=None,
        lease=None,
        failure=None,
        not_before=None,
        holds=(),
    )

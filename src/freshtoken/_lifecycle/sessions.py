"""Sessions begin and end: what is written outside of a refresh."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable
from typing import TypeVar

from freshtoken._foundation.records import (
    DEFAULT_ENTRY,
    AccessToken,
    Ended,
    Record,
    Session,
    StoredToken,
    ended_record,
    parse_scope,
    session_of,
)
from freshtoken._foundation.secret import Secret
from freshtoken._lifecycle import policy
from freshtoken._lifecycle.cache import SessionCache, owner_pair
from freshtoken._lifecycle.context import new_id
from freshtoken._lifecycle.events import EventSink, LifetimeUnknown, SessionEnded
from freshtoken._lifecycle.storing import GuardedStore
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.exchange import Response
from freshtoken._protocol.lifetimes import access_expiry
from freshtoken._protocol.settings import check_identifier
from freshtoken.abc import Clock
from freshtoken.errors import MisconfiguredError, StoreError

T = TypeVar("T")

_MOST_CHARACTERS = 512


class SessionKeeper:
    """Adds, reads and ends sessions; holds nothing of any event loop."""

    def __init__(
        self,
        store: GuardedStore,
        *,
        cache: SessionCache,
        client: OAuthClient,
        clock: Clock,
        rng: random.Random,
        sink: EventSink,
    ) -> None:
        self._store = store
        self._cache = cache
        self._client = client
        self._clock = clock
        self._rng = rng
        self._sink = sink

    async def read(self, session_id: str) -> Record | None:
        """Return the stored record, which this process then knows too."""
        result = await self._store.read(session_id)
        return self._cache.adopt(session_id, result.record)

    async def add(
        self,
        session_id: str,
        *,
        refresh_token: str | Secret,
        access_token: str | AccessToken | Secret | None,
        expires_at: float | None,
        refresh_expires_at: float | None,
        scope: str | Iterable[str] | None,
        replace: bool,
    ) -> Session:
        """Store a grant from elsewhere; see `TokenManager.add_session`."""
        check_session_id(session_id)
        tokens: tuple[StoredToken, ...] = ()
        if access_token is not None:
            tokens = (self._token_from_elsewhere(access_token, expires_at, scope),)
        record = Record(
            issuer=self._client.issuer,
            client_id=self._client.client_id,
            grant_type="refresh_token",
            grant_id=new_id(self._rng),
            refresh_token=check_token("refresh_token", refresh_token),
            refresh_expires_at=check_instant("refresh_expires_at", refresh_expires_at),
            scope=check_scope(scope),
            tokens=tokens,
            saved_at=self._clock.time(),
        )
        return await self._create(session_id, record, replace=replace)

    async def client_credentials(
        self, *, scope: str | Iterable[str] | None, resource: str | None
    ) -> Session:
        """Store the client's own session; see `TokenManager.client_credentials`."""
        scopes = check_scope(scope)
        if resource:
            check_identifier("resource", resource)
        record = Record(
            issuer=self._client.issuer,
            client_id=self._client.client_id,
            grant_type="client_credentials",
            grant_id=new_id(self._rng),
            scope=scopes,
            resource=(resource,) if resource else (),
            saved_at=self._clock.time(),
        )
        session_id = client_session_id(self._client, scopes, resource)
        known = self._cache.known(session_id)
        if known is not None and known.ended is None:
            return session_of(session_id, known)
        return await self._create(session_id, record, replace=False, revive=True)

    async def _create(
        self, session_id: str, record: Record, *, replace: bool, revive: bool = False
    ) -> Session:
        """Store *record* if there is none, or over what is there if told to.

        Args:
            revive: Also over a session that has ended.
        """
        found = (await self._store.read(session_id)).record
        while True:
            if found is not None:
                self.check_owner(session_id, found)
                if not replace and (found.ended is None or not revive):
                    self._cache.adopt(session_id, found)
                    return session_of(session_id, found)
            result = await self._store.swap(
                session_id, found.pair if found else None, record
            )
            if result.applied:
                self._cache.forget(session_id)
                self._cache.adopt(session_id, result.record)
                if any(token.expires_at is None for token in record.tokens):
                    self._sink.emit(LifetimeUnknown(session_id=session_id))
                return session_of(session_id, record)
            found = result.record

    def check_owner(self, session_id: str, found: Record) -> None:
        """Refuse a name that another client's session has in this store."""
        if found.grant_type == "sign_in":
            raise MisconfiguredError(
                "the name is taken by a sign-in under way: choose another one",
                setting="session_id",
                session_id=session_id,
            )
        mine = (self._client.issuer, self._client.client_id)
        if owner_pair(found) != mine:
            raise MisconfiguredError(
                f"the name belongs to a session of {found.issuer} for the client "
                f"{found.client_id}: use the manager that made it, another name, or "
                "another store",
                setting="session_id",
                session_id=session_id,
            )

    async def end(
        self, session_id: str, *, reason: str = "signed_out"
    ) -> Record | None:
        """End a session; return what it was, with the token that is to be revoked."""
        found = (await self._store.read(session_id)).record
        while found is not None and found.ended is None:
            if found.grant_type == "sign_in":
                return None  # A sign-in under way, which is no session.
            self.check_owner(session_id, found)
            ended = Ended(reason=reason, at=self._clock.time())
            tombstone = ended_record(found, ended)
            try:
                result = await self._store.swap(session_id, found.pair, tombstone)
                applied, now_there = result.applied, result.record
            except StoreError:
                # Applied all the same? Then the refresh token is known here only.
                now_there = (await self._store.read(session_id)).record
                applied = now_there is not None and now_there.ended == ended
                if not applied:
                    raise
            if applied:
                self._cache.end_locally(session_id, tombstone)
                self._sink.emit(SessionEnded(session_id=session_id, reason=reason))
                return found
            found = now_there
        self._cache.adopt(session_id, found)
        return None

    def _token_from_elsewhere(
        self,
        access_token: str | AccessToken | Secret,
        expires_at: float | None,
        scope: str | Iterable[str] | None,
    ) -> StoredToken:
        """Return a token whose issue we did not see: it counts from now."""
        if expires_at is None and isinstance(access_token, AccessToken):
            expires_at = access_token.expires_at
        now = self._clock.time()
        text = check_token("access_token", access_token)
        expires_at = check_instant("expires_at", expires_at)
        if expires_at is None:
            # As for an answer that does not say: the token's own, or the default.
            answer = Response(status=200, headers=(), body=b"", sent_at=now)
            default = self._client.default_lifetime
            expires_at = access_expiry({}, answer, text, default, notes=[])
        return StoredToken(
            key=DEFAULT_ENTRY,
            access_token=text,
            token_type="Bearer",  # noqa: S106 -- a token type, not a password
            issued_at=now,
            expires_at=expires_at,
            refresh_at=policy.draw_refresh_at(now, expires_at, self._rng),
            scope=check_scope(scope),
        )


def client_session_id(
    client: OAuthClient, scope: tuple[str, ...] | None, resource: str | None
) -> str:
    """Return the name of the client's own session: the same wherever it is derived."""
    parts = (client.issuer, client.client_id, " ".join(scope or ()), resource or "")
    text = "\0".join(parts)
    return "client-" + hashlib.sha256(text.encode()).hexdigest()[:32]


def check_session_id(session_id: object) -> None:
    """Refuse what cannot be a session's name."""
    if not isinstance(session_id, str) or not session_id:
        raise MisconfiguredError(
            "session_id has to be a text that is not empty", setting="session_id"
        )
    if len(session_id) > _MOST_CHARACTERS or not session_id.isprintable():
        raise MisconfiguredError(
            f"session_id has to be printable and no longer than {_MOST_CHARACTERS} "
            "characters: it is a name, not the token itself",
            setting="session_id",
        )


def hidden(token: str | T) -> Secret | T:
    """Wrap a token that came as text, so that no frame of an error shows it."""
    return Secret(token) if isinstance(token, str) else token


def check_token(setting: str, token: object) -> str:
    """Return the text of a token; refuse what cannot be one."""
    if isinstance(token, Secret | AccessToken):
        token = token.reveal()
    why = ""
    if not isinstance(token, str) or not token:
        why = "has to be a text that is not empty"
    elif not all(" " <= char <= "~" for char in token):
        why = (
            "holds characters that no token has (RFC 6749 Appendix A): check where "
            "it was read from"
        )
    else:
        return token
    del token  # The error's frames show nothing secret.
    raise MisconfiguredError(f"{setting} {why}", setting=setting)


def check_scope(scope: object) -> tuple[str, ...] | None:
    """Return scope values sorted; refuse what cannot be any."""
    if scope is None or isinstance(scope, str):
        return parse_scope(scope)
    values: list[object] = list(scope) if isinstance(scope, Iterable) else [None]
    texts = [one for one in values if isinstance(one, str) and " " not in one]
    if len(texts) != len(values):
        raise MisconfiguredError(
            "scope has to be a text, or texts without blanks", setting="scope"
        )
    return parse_scope(texts)


def check_text(setting: str, value: object) -> str | None:
    """Return a text or nothing; refuse everything else."""
    if value is None or isinstance(value, str):
        return value
    raise MisconfiguredError(f"{setting} has to be a text", setting=setting)


def check_seconds(setting: str, value: object) -> float | None:
    """Return a number of seconds or nothing; refuse everything else."""
    number = _number(value)
    if value is not None and (number is None or math.isnan(number)):
        raise MisconfiguredError(
            f"{setting} has to be a number of seconds", setting=setting
        )
    return number


def check_instant(setting: str, value: object) -> float | None:
    """Return epoch seconds; refuse what cannot be a moment."""
    number = _number(value)
    if value is not None and (number is None or not math.isfinite(number)):
        raise MisconfiguredError(
            f"{setting} has to be a number: epoch seconds", setting=setting
        )
    return number


def _number(value: object) -> float | None:
    """Return a number that a float can hold; ``True`` is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None

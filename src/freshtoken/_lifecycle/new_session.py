"""A session that was signed in: stored under a name that only its handle gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from freshtoken._foundation.records import (
    DEFAULT_ENTRY,
    Record,
    Session,
    TokenSet,
    session_id_of,
    session_of,
)
from freshtoken._foundation.secret import Secret
from freshtoken._lifecycle import policy
from freshtoken._lifecycle.events import LifetimeUnknown, SignedIn
from freshtoken._lifecycle.saving import stored_token
from freshtoken._protocol.authorization import PendingSignIn
from freshtoken._protocol.pkce import random_text
from freshtoken._wire.outcome import bare
from freshtoken.errors import MisconfiguredError, StoreError

if TYPE_CHECKING:
    from freshtoken._lifecycle.context import Context
    from freshtoken._lifecycle.sessions import SessionKeeper

SAVE_TRIES = 5
"""Tries to store a session that was signed in, before its tokens are given back."""


class NewSession:
    """Stores what a sign-in brought, and ends what it takes the place of."""

    def __init__(self, context: Context, keeper: SessionKeeper) -> None:
        self._context = context
        self._keeper = keeper

    async def store(
        self,
        tokens: TokenSet,
        pending: PendingSignIn,
        claims: Mapping[str, object],
        replaces: str | None,
    ) -> Session:
        """Store the session under a name that only its handle gives."""
        handle = Secret(random_text(self._context.rng))
        session_id = session_id_of(handle.reveal())
        record = self._record(tokens, pending, claims)
        try:
            await self._save(session_id, record)
        except StoreError as error:
            problem = bare(error)
        else:
            if tokens.expires_at is None:
                self._context.sink.emit(LifetimeUnknown(session_id=session_id))
            replaced = await self._replace(replaces, session_id, claims)
            self._context.sink.emit(
                SignedIn(session_id=session_id, scope=record.scope, replaced=replaced)
            )
            return session_of(
                session_id, record, handle=handle, return_to=pending.return_to
            )
        self.give_back(tokens, session_id)
        raise problem

    def _record(
        self,
        tokens: TokenSet,
        pending: PendingSignIn,
        claims: Mapping[str, object],
    ) -> Record:
        """Return the record of a new session."""
        scope = tokens.scope or pending.scope
        token = stored_token(tokens, DEFAULT_ENTRY, self._context.rng, scope=scope)
        return Record(
            issuer=self._context.server.client.issuer,
            client_id=self._context.server.client.client_id,
            grant_type="refresh_token",
            grant_id=self._context.new_id(),
            refresh_token=tokens.refresh_token,
            refresh_expires_at=tokens.refresh_expires_at,
            scope=scope,
            resource=pending.resource,
            tokens=(token,),
            extra=tokens.extra,
            saved_at=self._context.clock.time(),
            claims=claims,
            # One that was not asked for is not checked, and so not kept.
            id_token=tokens.id_token if claims else None,
        )

    async def _save(self, session_id: str, record: Record) -> None:
        """Store a new session; the code is spent, so this is tried for a while.

        Raises:
            StoreError: It cannot be stored.
        """
        store, cache = self._context.store, self._context.cache
        problem = StoreError()
        for tries_left in reversed(range(SAVE_TRIES)):
            try:
                result = await store.swap(session_id, None, record)
            except StoreError as error:
                problem = bare(error)
                await self._context.clock.sleep(policy.SAVE_RETRY if tries_left else 0)
                continue
            # Nobody else knows the name: what is there is ours, acknowledged or not.
            cache.adopt(session_id, result.record)
            return
        found = (await store.read(session_id)).record
        if found is None or found.grant_id != record.grant_id:
            raise problem
        cache.adopt(session_id, found)  # Only the acknowledgements were lost.

    async def _replace(
        self, replaces: str | None, session_id: str, claims: Mapping[str, object]
    ) -> str | None:
        """End the session that the new one takes the place of.

        Its tokens are revoked only where it was another user's: at some servers a
        revocation ends the whole consent, and the new session with it.
        """
        if replaces is None or replaces == session_id:
            return None
        try:
            ended = await self._keeper.end(replaces, reason="replaced")
        except (StoreError, MisconfiguredError):
            # A store that fails is reported by its guard; another client's session is
            # not ours to end. Either way the new session stands.
            return None
        if ended is None:
            return None
        same_user = "sub" in claims and claims["sub"] == ended.claims.get("sub")
        if not same_user and ended.refresh_token is not None:
            self._context.revoke_later(replaces, ended.refresh_token)
        return replaces

    def give_back(self, tokens: TokenSet, session_id: str) -> None:
        """Revoke tokens that nobody will use."""
        token = tokens.refresh_token or tokens.access_token
        if token is not None:
            self._context.revoke_later(session_id, token)

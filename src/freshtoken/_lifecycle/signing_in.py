"""Signing in: a browser is sent away with a request, and comes back with an answer.

What the answer has to fit waits in the session store under a hash of ``state``, so that
any worker can complete what another one began, once.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from freshtoken._foundation.records import (
    NOTHING,
    Ended,
    Failure,
    Lease,
    Record,
    Session,
    TokenSet,
    next_version,
)
from freshtoken._foundation.secret import MASK, Secret, refuse_pickle
from freshtoken._lifecycle import policy
from freshtoken._lifecycle.events import IDTokenRefused, SignInFailed
from freshtoken._lifecycle.new_session import SAVE_TRIES, NewSession
from freshtoken._lifecycle.saving import unusable
from freshtoken._protocol.advice import error_for, for_sign_in
from freshtoken._protocol.authorization import (
    PendingSignIn,
    build_authorization_request,
    hash_binding,
    requires_id_token,
    state_key,
)
from freshtoken._protocol.callback import CallbackParameters, check_callback
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._protocol.id_token import check_id_token, id_token_rules
from freshtoken._protocol.jwks import REFETCH_REASONS
from freshtoken._protocol.rejection import rejected
from freshtoken._wire.outcome import bare
from freshtoken._wire.retry import repeat
from freshtoken.errors import (
    AuthorizationResponseError,
    FreshTokenError,
    RejectionReason,
    StoreError,
    TokenRejectedError,
)

if TYPE_CHECKING:
    from freshtoken._lifecycle.context import Context
    from freshtoken._lifecycle.sessions import SessionKeeper
    from freshtoken._protocol.metadata import ServerMetadata
    from freshtoken._wire.key_sets import KeySnapshot


@dataclass(frozen=True, slots=True, repr=False)
class SignIn:
    """A sign-in that has begun: where the browser goes, and what it keeps meanwhile.

    Attributes:
        url: Send the browser there (303 or a link); it holds no lasting secret.
        binding: Put `Secret.reveal` of it into a cookie of this browser, of its own for
            each sign-in: ``__Host-``, HttpOnly, Secure, SameSite=Lax (None for
            ``form_post``), for `expires_in` seconds.
        key: Names the sign-in without giving anything away: fit for the cookie's name.
        expires_in: Seconds in which it has to be completed.
    """

    url: str
    binding: Secret
    key: str
    expires_in: float = policy.SIGN_IN_LIFETIME

    def __repr__(self) -> str:
        """Show the key only."""
        return f"SignIn({self.key!r}, {MASK})"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        refuse_pickle(self)


class SigningIn:
    """Begins and completes sign-ins over one event loop's context."""

    def __init__(self, context: Context, keeper: SessionKeeper) -> None:
        self._context = context
        self._keeper = keeper
        self._server = context.server
        self._client = context.server.client
        self._clock = context.clock
        self._new_session = NewSession(context, keeper)

    # Beginning

    async def begin(self, **options: object) -> SignIn:
        """Store what the answer has to fit; see `TokenManager.begin_sign_in`.

        Args:
            options: Those of `build_authorization_request`.
        """
        try:
            return await self._begin(options)
        except FreshTokenError as error:
            self.report(error)
            raise

    async def _begin(self, options: Mapping[str, object]) -> SignIn:
        metadata = await self._prepare()
        now = self._clock.time()
        request = build_authorization_request(
            self._client,
            metadata,
            rng=self._context.rng,
            now=now,
            **options,  # type: ignore[arg-type]  # the manager's own keywords
        )
        key = state_key(request.pending.state)
        record = Record(
            issuer=self._client.issuer,
            client_id=self._client.client_id,
            grant_type="sign_in",
            grant_id=self._context.new_id(),
            saved_at=now,
            sign_in=request.pending.to_members(),
        )
        await self._context.store.swap(key, None, record)
        return SignIn(url=request.url, binding=request.binding, key=key)

    async def _prepare(self) -> ServerMetadata:
        """Fetch what is needed, and find out whether signing in can work now.

        Raises:
            ClientRejectedError: The server refuses the client's credentials: sending
                a browser there would end in a loop.
            FreshTokenError: The metadata cannot be had.
        """
        try:
            return await self._server.prepare_sign_in(self._context.http)
        except ExchangeError as error:
            failure = error.failure
        raise self._failed(failure)

    # Completing

    async def complete(
        self, answer: CallbackParameters, binding: Secret, replaces: str | None
    ) -> Session:
        """Redeem an answer once; see `TokenManager.complete_sign_in`."""
        try:
            return await self._complete(answer, binding, replaces)
        except FreshTokenError as error:
            self.report(error)
            raise

    def report(self, error: FreshTokenError) -> None:
        """Say what went wrong to whoever reads the log: the browser is not told."""
        reason = getattr(error, "reason", None)
        self._context.sink.emit(
            SignInFailed(
                error=type(error).__name__,
                reason=getattr(reason, "value", reason),
                advice=str(error),
            )
        )

    async def _complete(
        self, answer: CallbackParameters, binding: Secret, replaces: str | None
    ) -> Session:
        key = state_key(answer.state)
        found = (await self._context.store.read(key)).record
        pending = self._pending(found)
        if found is None or pending is None:
            raise _refuse("unknown_state", self._client.issuer)
        # Compared first, so that who has merely seen a state cannot use it up.
        offered = hash_binding(binding.reveal())
        if not hmac.compare_digest(offered.encode(), pending.binding_hash.encode()):
            raise _refuse("binding", self._client.issuer)
        # Whatever may fail without the code comes before the sign-in is used up, so
        # that the browser can come again with the same answer.
        metadata = await self._prepare()
        keys = await self._keys(pending) if answer.error is None else None
        await self._take(key, found)
        code = self._code(answer, pending, metadata)
        del answer
        tokens = await self._exchange(code, pending)
        claims = await self._identify(tokens, pending, keys)
        return await self._new_session.store(tokens, pending, claims, replaces)

    def _pending(self, record: Record | None) -> PendingSignIn | None:
        """Return the sign-in of a record, if it can still be completed here."""
        mine = (self._client.issuer, self._client.client_id)
        if record is None or record.ended is not None or record.sign_in is None:
            return None
        if (record.issuer, record.client_id) != mine:
            return None
        pending = PendingSignIn.from_members(record.sign_in)
        over = pending.created_at + policy.SIGN_IN_LIFETIME
        return pending if self._clock.time() < over else None

    async def _keys(self, pending: PendingSignIn) -> KeySnapshot | None:
        """Return the keys that the ID token will be checked with."""
        if not requires_id_token(pending):
            return None
        try:
            return await self._server.id_token_keys(
                self._context.http, id_token_rules(self._client).algorithms
            )
        except ExchangeError as error:
            failure = error.failure
        raise self._failed(failure)

    async def _take(self, key: str, found: Record) -> None:
        """Use the sign-in up: of all who try, one succeeds.

        Raises:
            AuthorizationResponseError: Somebody else was faster.
            StoreError: The store failed; whether it is used up is not known.
        """
        mark = Lease(self._context.new_id(), "")
        used = next_version(
            found,
            sign_in=None,
            lease=mark,
            ended=Ended(reason="used", at=self._clock.time()),
        )
        try:
            result = await self._context.store.swap(key, found.pair, used)
            record, applied = result.record, result.applied
        except StoreError:
            record = (await self._context.store.read(key)).record
            applied = False
        mine = record is not None and record.lease == mark
        if not applied and not mine:
            if record is not None and record.pair == found.pair:
                raise StoreError(
                    "the session store failed before the sign-in was used; the "
                    "browser may come again with the same answer",
                    issuer=self._client.issuer,
                )
            raise _refuse("unknown_state", self._client.issuer)

    def _code(
        self,
        answer: CallbackParameters,
        pending: PendingSignIn,
        metadata: ServerMetadata,
    ) -> Secret:
        """Return the code, or raise what the server answered instead."""
        try:
            table = self._client.error_codes
            code = check_callback(answer, pending, metadata, error_codes=table)
            return Secret(code)
        except ExchangeError as error:
            failure = error.failure
        raise self._failed(failure, "interaction_required")

    async def _exchange(self, code: Secret, pending: PendingSignIn) -> TokenSet:
        """Send the code once; only what never left is sent again.

        Spec: RFC 6749 §4.1.2, §4.1.3.
        """

        async def once() -> TokenSet:
            try:
                return await self._server.exchange_code(
                    self._context.http,
                    code=code,
                    code_verifier=Secret(pending.code_verifier),
                    redirect_uri=pending.redirect_uri,
                    scope=pending.scope,
                    resource=pending.resource,
                )
            except ExchangeError as error:
                failure = error.failure
            self._context.sink.count_request("authorization_code", failure)
            if failure.sent:
                raise _SentError(failure)
            raise ExchangeError(failure)

        try:
            tokens = await repeat(once, clock=self._clock, rng=self._context.rng)
        except (_SentError, ExchangeError) as error:
            failure = error.failure
        else:
            self._context.sink.count_request("authorization_code", None)
            return tokens
        raise self._failed(failure, "code_refused")

    async def _identify(
        self, tokens: TokenSet, pending: PendingSignIn, keys: KeySnapshot | None
    ) -> Mapping[str, object]:
        """Return the claims of the user; tokens that do not name one are revoked.

        Spec: OpenID Connect Core §3.1.3.3, §3.1.3.5, §3.1.3.7.
        """
        problem: Exception | None = None
        if tokens.access_token is None:
            problem = self._failed(unusable(tokens, self._clock.time()))
        elif keys is not None:
            try:
                return await self._checked(tokens, pending, keys)
            except TokenRejectedError as error:
                problem = self._refused(error)
        if problem is None:
            return NOTHING
        self._new_session.give_back(tokens, "")
        raise problem

    async def _checked(
        self, tokens: TokenSet, pending: PendingSignIn, keys: KeySnapshot
    ) -> Mapping[str, object]:
        """Check the ID token, with newer keys where those at hand do not fit."""
        if tokens.id_token is None:
            raise rejected(
                RejectionReason.MISSING_CLAIM,
                "the answer has no id_token although openid was asked for: look at "
                "what the server allows this client",
                claim="id_token",
            )
        try:
            return self._check(tokens, pending, keys)
        except TokenRejectedError as error:
            if error.reason not in REFETCH_REASONS:
                raise
            problem = bare(error)
        try:
            newer = await self._server.newer_id_token_keys(
                self._context.http,
                id_token_rules(self._client).algorithms,
                keys.generation,
            )
        except ExchangeError:
            newer = None
        if newer is None:
            raise problem
        return self._check(tokens, pending, newer)

    def _check(
        self, tokens: TokenSet, pending: PendingSignIn, keys: KeySnapshot
    ) -> Mapping[str, object]:
        return check_id_token(
            tokens.id_token or "",
            keys.keys,
            id_token_rules(self._client),
            now=self._clock.time(),
            access_token=tokens.access_token,
            nonce=pending.nonce,
            max_age=pending.max_age,
            sent_at=pending.created_at,
        )

    def _failed(self, failure: Failure, reason: str | None = None) -> FreshTokenError:
        """Return the error for a failure: there is no session that it could clear."""
        return error_for(
            for_sign_in(failure),
            issuer=self._client.issuer,
            cleared=False,
            reason=reason,
        )

    def _refused(self, error: TokenRejectedError) -> TokenRejectedError:
        """Report an ID token that is refused; return the error for the caller."""
        self._context.sink.emit(
            IDTokenRefused(reason=error.reason.value, claim=error.claim)
        )
        error.issuer = self._client.issuer
        return bare(error)

    def unclaimed(self, session: Session) -> None:
        """End a session whose caller is gone: nobody has its handle."""
        self._context.start_soon(self._end_unclaimed, session.id)

    async def _end_unclaimed(self, session_id: str) -> None:
        ended = None
        for tries_left in reversed(range(SAVE_TRIES)):
            try:
                ended = await self._keeper.end(session_id, reason="signed_out")
                break
            except StoreError:
                await self._clock.sleep(policy.SAVE_RETRY if tries_left else 0)
        if ended is not None and ended.refresh_token is not None:
            self._context.revoke_later(session_id, ended.refresh_token)


class _SentError(Exception):
    """A code that may have reached the server, and so is not sent again."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.advice)
        self.failure = failure


_REFUSALS = {
    "unknown_state": (
        "no sign-in is under way for this answer: it was completed already, took more "
        "than ten minutes, or never began here; begin a new one"
    ),
    "binding": (
        "this browser did not begin the sign-in (its cookie is missing or another "
        "one's): begin a new one, and look at the cookie's path and SameSite"
    ),
}


def _refuse(reason: str, issuer: str) -> AuthorizationResponseError:
    """Return the error for an answer that does not fit."""
    error = AuthorizationResponseError(_REFUSALS[reason], issuer=issuer)
    error.reason = reason
    return error

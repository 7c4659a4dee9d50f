"""Who refreshed tokens are about: ID tokens that come with a refresh.

Nothing stands between an answer and its save: what comes with a refresh is looked at
with the keys at hand. If these do not suffice, issuer, subject and audience are
compared all the same, the tokens are saved and served with the claims that were known,
and the check is finished once newer keys are there.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from freshtoken._foundation.records import (
    NOTHING,
    Failure,
    Record,
    TokenSet,
    next_version,
)
from freshtoken._lifecycle.events import IDTokenRefused
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._protocol.id_token import (
    carried_claims,
    check_refreshed_id_token,
    check_same_identity,
    ends_session,
    id_token_rules,
)
from freshtoken._protocol.jwks import REFETCH_REASONS
from freshtoken.errors import Disposition, StoreError, TokenRejectedError

if TYPE_CHECKING:
    from freshtoken._lifecycle.context import Context
    from freshtoken._wire.key_sets import KeySnapshot


class Verdict(enum.Enum):
    """What the ID token of an answer means for the session."""

    NONE = enum.auto()
    """There is none, or nothing to compare it with: the claims stay."""
    GOOD = enum.auto()
    """It is right: its claims count from now on."""
    OPEN = enum.auto()
    """It names the right user, and the keys at hand do not fit: finish it later."""
    WITHHELD = enum.auto()
    """It is wrong: save the refresh token, serve no access token."""
    FOREIGN = enum.auto()
    """It is about somebody else: the session ends, the tokens are revoked."""


@dataclass(frozen=True, slots=True, repr=False)
class Examination:
    """What was found out without I/O.

    Attributes:
        claims: The session's claims from now on, for ``GOOD``.
        error: Why not, for ``OPEN``, ``WITHHELD`` and ``FOREIGN``.
        keys: Those that did not suffice, for ``OPEN``; ``None`` without any.
    """

    verdict: Verdict
    claims: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    error: TokenRejectedError | None = None
    keys: KeySnapshot | None = None


_NOTHING_SAID = Examination(Verdict.NONE)


def examine(context: Context, base: Record, answer: TokenSet) -> Examination:
    """Look at the ID token of an answer with what is at hand; no I/O.

    Spec: OpenID Connect Core §12.2.
    """
    token = answer.id_token
    if token is None or not base.claims or base.grant_type != "refresh_token":
        return _NOTHING_SAID
    rules = id_token_rules(context.server.client)
    try:
        check_same_identity(token, rules, base.claims)
    except TokenRejectedError as error:
        foreign = ends_session(error)
        verdict = Verdict.FOREIGN if foreign else Verdict.WITHHELD
        return Examination(verdict, error=error.with_traceback(None))
    at_hand = None
    with suppress(ExchangeError, TokenRejectedError):  # A secret that is no key.
        at_hand = context.server.id_token_keys_at_hand(rules.algorithms)
    if at_hand is None:
        return Examination(Verdict.OPEN)
    return _verify(context, base, answer, at_hand)


def _verify(
    context: Context, base: Record, answer: TokenSet, keys: KeySnapshot
) -> Examination:
    """Check an ID token with a set of keys."""
    try:
        claims = check_refreshed_id_token(
            answer.id_token or "",
            keys.keys,
            id_token_rules(context.server.client),
            now=context.clock.time(),
            access_token=answer.access_token,
            original=base.claims,
        )
    except TokenRejectedError as error:
        later = error.reason in REFETCH_REASONS
        verdict = Verdict.OPEN if later else Verdict.WITHHELD
        return Examination(verdict, error=error.with_traceback(None), keys=keys)
    return Examination(Verdict.GOOD, claims=carried_claims(base.claims, claims))


def withhold(answer: TokenSet, error: TokenRejectedError | None) -> TokenSet:
    """Return an answer of which only the refresh token is used."""
    reason = error.reason.value if error else "unknown"
    problem = f"its ID token is refused ({reason})"
    return replace(answer, access_token=None, problem=problem)


def foreign_failure(error: TokenRejectedError | None, now: float) -> Failure:
    """Return why a session ends whose refreshed ID token is about somebody else."""
    return Failure(
        Disposition.SIGN_IN,
        "the refreshed ID token names another user or issuer than the one who signed "
        f"in ({error}); its tokens are revoked, and the user has to sign in again: "
        "report this to the server's operator",
        at=now,
        since=now,
    )


async def finish_check(
    context: Context,
    session_id: str,
    saved: Record,
    answer: TokenSet,
    examination: Examination,
) -> None:
    """Fetch newer keys and finish a check that the keys at hand did not suffice for.

    Where no newer keys can be had the claims stay as they are, and the next refresh
    brings another ID token.
    """
    keys = await _newer_keys(context, examination.keys)
    if keys is None:
        return
    found = _verify(context, saved, answer, keys)
    if found.verdict is Verdict.GOOD:
        await _amend(
            context,
            session_id,
            saved,
            {"claims": found.claims, "id_token": answer.id_token},
        )
        return
    report_refusal(context, session_id, found.error, ended=False)
    now = context.clock.time()
    failure = Failure(
        Disposition.RETRY,
        "the access token is withheld, because the ID token beside it is refused "
        f"({found.error}); report this to the server's operator",
        retry_after=1.0,
        at=now,
        since=now,
    )
    others = tuple(
        token for token in saved.tokens if token.access_token != answer.access_token
    )
    changes = {
        "tokens": others,
        "failure": failure,
        "not_before": context.cache.store_now() + 1.0,
    }
    await _amend(context, session_id, saved, changes)


def report_refusal(
    context: Context,
    session_id: str,
    error: TokenRejectedError | None,
    *,
    ended: bool,
) -> None:
    """Tell the application that an ID token was refused."""
    context.sink.emit(
        IDTokenRefused(
            session_id=session_id,
            reason=error.reason.value if error else "",
            claim=error.claim if error else None,
            ended=ended,
        )
    )


async def _newer_keys(
    context: Context, known: KeySnapshot | None
) -> KeySnapshot | None:
    """Return keys that the server has published since, if they can be had now.

    They may be the same as before: then the ID token is wrong for sure.
    """
    server = context.server
    algorithms = id_token_rules(server.client).algorithms
    try:
        if known is None:
            return await server.id_token_keys(context.http, algorithms)
        newer = await server.newer_id_token_keys(
            context.http, algorithms, known.generation
        )
    except (ExchangeError, TokenRejectedError):
        return None
    if newer is not None:
        return newer
    now = server.id_token_keys_at_hand(algorithms)
    fetched = now is not None and now.fetched_at > known.fetched_at
    return now if fetched else None


async def _amend(
    context: Context, session_id: str, saved: Record, changes: dict[str, object]
) -> None:
    """Write what a check brought, if nothing else has happened since.

    While somebody holds the lease, nothing is written: what that flight brings has an
    ID token of its own.
    """
    try:
        found = (await context.store.read(session_id)).record
        while (
            found is not None
            and found.ended is None
            and found.lease is None
            and found.grant_id == saved.grant_id
            and found.generation == saved.generation
        ):
            result = await context.store.swap(
                session_id, found.pair, next_version(found, **changes)
            )
            if result.applied:
                context.cache.adopt(session_id, result.record)
                return
            found = result.record
    except StoreError:
        return  # Reported by the store's guard; the next refresh checks again.

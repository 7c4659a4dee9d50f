"""Validating incoming access tokens at a resource server."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from freshtoken._foundation.clock import SystemClock
from freshtoken._foundation.secret import Secret
from freshtoken._protocol.access_token import (
    AccessTokenRules,
    Profile,
    ValidatedToken,
    check_access_token,
    check_scope,
    read_access_token,
    select_issuer,
)
from freshtoken._protocol.advice import error_for, for_keys
from freshtoken._protocol.bearer import (
    DEFAULT_REALM,
    challenge_for,
    parse_authorization,
)
from freshtoken._protocol.claims import numeric_date
from freshtoken._protocol.client import DEFAULT_LEEWAY
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._protocol.jwks import (
    REFETCH_REASONS,
    check_algorithm,
    verify_jwt,
)
from freshtoken._protocol.jws import MAX_JWT, ParsedJWT, parse_jwt
from freshtoken._protocol.rejection import rejected
from freshtoken._protocol.settings import check_flag, check_identifier, refuse
from freshtoken._protocol.signing import ASYMMETRIC_ALGORITHMS
from freshtoken._wire.issuer_keys import IssuerKeys, KeysByHand, KeySource, OwnKeys
from freshtoken._wire.key_sets import KeySetCache, KeySnapshot
from freshtoken._wire.outcome import bare
from freshtoken.abc import Clock
from freshtoken.errors import FreshTokenError, RejectionReason, TokenRejectedError

__all__ = ["JWTValidator", "ValidatedToken"]

MOST_VERDICTS = 10_000
"""Accepted tokens that are remembered; the oldest goes first."""

_BAD_REQUEST = 400


class _Verdict(NamedTuple):
    """That a token was accepted, and for how long that holds without a closer look."""

    token: ValidatedToken
    starts_at: float
    ends_at: float
    source: KeySource
    generation: int


class JWTValidator:
    """Accepts or refuses bearer JWTs: access tokens as RFC 9068 has them.

    Make one at start-up and share it: by all tasks, threads and event loops. It owns
    nothing that has to be closed. A token that was accepted is remembered by its
    SHA-256, so that the next look at it costs no signature; refusals never are.
    Nothing is ever fetched from where a token points to.

    Args:
        issuer: The issuers whose tokens are accepted, one text or several, exactly as
            their metadata spell them.
        audience: Names of this resource; a token has to be for one of them.
        algorithms: How tokens may be signed; by default all with public keys.
        leeway: Seconds by which ``exp``, ``nbf`` and ``iat`` may be off, at most 300.
        required_claims: Further claims that have to be there.
        profile: ``"rfc9068"``, or ``"any"`` for issuers that do not follow it.
        allow_scope_list: Also accept ``scope`` as a list, and ``scp`` in its place.
        allow_kid_less_trial: Where a token names no key and several fit, try each of
            them, at most eight.
        keys: Public keys by hand, for one issuer: a JWK set, or one or several PEM
            texts, JWKs and key objects of ``cryptography``. Nothing is fetched then.
        jwks_uri: Where the one issuer's keys are, if its metadata do not say.
        realm: Name of the protected space in challenges.
        http_client: An ``httpx.AsyncClient`` or ``httpx2.AsyncClient`` to fetch keys
            with; it stays yours, and serves the event loop of its first use only.
        allow_insecure_transport: Allow plain ``http`` to any host, for tests only.
        clock: Time source, for tests.

    Raises:
        MisconfiguredError: A value is of no use; ``.setting`` names the parameter.

    Spec: RFC 9068 §4, RFC 6750, RFC 8725.
    """

    def __init__(
        self,
        issuer: str | Iterable[str],
        *,
        audience: str | Iterable[str],
        algorithms: str | Iterable[str] | None = None,
        leeway: float = DEFAULT_LEEWAY,
        required_claims: str | Iterable[str] = (),
        profile: Profile = "rfc9068",
        allow_scope_list: bool = False,
        allow_kid_less_trial: bool = False,
        keys: KeysByHand | None = None,
        jwks_uri: str | None = None,
        realm: str = DEFAULT_REALM,
        http_client: object | None = None,
        allow_insecure_transport: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        # Bound once: the hot path looks nothing up twice.
        self._time = self._clock.time
        self._monotonic = self._clock.monotonic
        issuers = _names("issuer", issuer)
        check_flag("allow_scope_list", allow_scope_list)
        check_flag("allow_kid_less_trial", allow_kid_less_trial)
        self._rules = AccessTokenRules(
            issuers=issuers,
            audience=_names("audience", audience),
            algorithms=(
                ASYMMETRIC_ALGORITHMS
                if algorithms is None
                else _names("algorithms", algorithms)
            ),
            leeway=leeway,
            required_claims=_names("required_claims", required_claims),
            profile=profile,
            allow_scope_list=allow_scope_list,
        )
        self._allow_trial = allow_kid_less_trial
        check_identifier("realm", realm)
        challenge_for(None, realm=realm)  # Refuses what no header field may hold.
        self._realm = realm
        self._keys = IssuerKeys(
            issuers,
            clock=self._clock,
            keys=keys,
            jwks_uri=jwks_uri,
            http_client=http_client,
            allow_insecure_transport=allow_insecure_transport,
        )
        self._verdicts: dict[bytes, _Verdict] = {}
        self._lock = threading.Lock()

    async def validate(
        self, token: str | Secret, *, scope: str | Collection[str] | None = None
    ) -> ValidatedToken:
        """Return what a token says, or refuse it.

        Args:
            token: The JWT, as it came.
            scope: What it has to allow, each as a whole word.

        Raises:
            TokenRejectedError: It is refused; ``.reason`` and ``.claim`` say why, and
                `challenge` makes the answer.
            RetryableError: The issuer's keys cannot be had now: answer 503.
            MisconfiguredError: Where the keys are cannot be found out.

        Spec: RFC 9068 §4.
        """
        digest = _digest(token)
        outcome: ValidatedToken | FreshTokenError | None = self._recall(digest)
        if outcome is None:
            outcome = await self._examine(token, digest)
        del token  # What is raised shows this frame to whoever reports errors.
        if isinstance(outcome, FreshTokenError):
            raise outcome
        if scope is not None:
            check_scope(outcome, scope)
        return outcome

    def validate_now(
        self, token: str | Secret, *, scope: str | Collection[str] | None = None
    ) -> ValidatedToken:
        """Do as `validate` does, without an event loop: with *keys* given by hand.

        Raises:
            TokenRejectedError: It is refused.
            MisconfiguredError: The keys would have to be fetched.
        """
        digest = _digest(token)
        outcome: ValidatedToken | FreshTokenError | None = self._recall(digest)
        if outcome is None:
            outcome = self._examine_now(token, digest)
        del token
        if isinstance(outcome, FreshTokenError):
            raise outcome
        if scope is not None:
            check_scope(outcome, scope)
        return outcome

    async def authenticate(
        self,
        authorization: str | Sequence[str] | None,
        *,
        scope: str | Collection[str] | None = None,
        other_methods: bool = False,
    ) -> ValidatedToken:
        """Validate the token of a request's ``Authorization`` field.

        Args:
            authorization: The field's value; several if it came several times.
            scope: As for `validate`.
            other_methods: Whether the request brings a token in its form or query,
                too: never taken, and a bad request beside one in the header.

        Raises:
            TokenRejectedError: There is no token, or it is refused.
            RetryableError: The issuer's keys cannot be had now: answer 503.

        Spec: RFC 6750 §2, §3.1.
        """
        token = _credentials(authorization, other_methods=other_methods)
        del authorization
        if isinstance(token, TokenRejectedError):
            raise token
        return await self.validate(token, scope=scope)

    def authenticate_now(
        self,
        authorization: str | Sequence[str] | None,
        *,
        scope: str | Collection[str] | None = None,
        other_methods: bool = False,
    ) -> ValidatedToken:
        """Do as `authenticate` does, without an event loop: see `validate_now`."""
        token = _credentials(authorization, other_methods=other_methods)
        del authorization
        if isinstance(token, TokenRejectedError):
            raise token
        return self.validate_now(token, scope=scope)

    def challenge(
        self,
        error: TokenRejectedError | None = None,
        *,
        scope: str | Collection[str] | None = None,
    ) -> tuple[int, str]:
        """Return status and ``WWW-Authenticate`` of the answer to a refused request.

        Args:
            error: Why it is refused; ``None`` for a request without a token.
            scope: What access takes.

        Spec: RFC 6750 §3.
        """
        return challenge_for(error, realm=self._realm, scope=scope)

    # What was accepted before

    def _recall(self, digest: bytes) -> ValidatedToken | None:
        """Return the verdict on a token that was accepted, if it still holds."""
        verdict = self._verdicts.get(digest)
        if verdict is None:
            return None
        latest = verdict.source.latest
        if (
            verdict.starts_at <= self._time() < verdict.ends_at
            and latest is not None
            and latest.generation == verdict.generation
            and self._monotonic() < latest.due_at
        ):
            return verdict.token
        with self._lock:  # What an ended token says about its user goes, too.
            self._verdicts.pop(digest, None)
        return None

    def _remember(self, digest: bytes, verdict: _Verdict) -> None:
        """Keep a verdict, under what its token is known again by."""
        with self._lock:
            self._verdicts[digest] = verdict
            if len(self._verdicts) > MOST_VERDICTS:
                del self._verdicts[next(iter(self._verdicts))]

    # What is looked at closely. Errors are returned: they are raised by a frame that
    # does not hold the token.

    async def _examine(
        self, token: object, digest: bytes
    ) -> ValidatedToken | FreshTokenError:
        """Check a token, with keys that are fetched where that is due."""
        try:
            jwt, source = self._look(token)
        except TokenRejectedError as error:
            return bare(error)
        del token
        if isinstance(source, OwnKeys):
            return self._settle(jwt, digest, source, source.latest)
        latest = source.latest
        try:
            if latest is None or self._monotonic() >= latest.due_at:
                latest = await source.get(self._keys.driver())
                self._check(jwt)  # It may have ended while we waited.
        except ExchangeError as error:
            failure = for_keys(error.failure)
            return error_for(failure, issuer=select_issuer(jwt, self._rules))
        except FreshTokenError as error:
            return bare(error)
        outcome = self._settle(jwt, digest, source, latest)
        if (
            isinstance(outcome, TokenRejectedError)
            and outcome.reason in REFETCH_REASONS
        ):
            return await self._retry(outcome, jwt, digest, source, latest)
        return outcome

    async def _retry(
        self,
        problem: TokenRejectedError,
        jwt: ParsedJWT,
        digest: bytes,
        source: KeySetCache,
        known: KeySnapshot,
    ) -> ValidatedToken | FreshTokenError:
        """Check a signature with newer keys than *known*, if there are any."""
        try:
            newer = await source.newer(self._keys.driver(), known.generation)
            self._check(jwt)
        except FreshTokenError as error:
            return bare(error)
        if newer is not None:
            return self._settle(jwt, digest, source, newer)
        if source.failure is not None:
            # The keys that are known stay; why there are no others is worth knowing.
            failure = for_keys(source.failure)
            issuer = select_issuer(jwt, self._rules)
            problem.__cause__ = error_for(failure, issuer=issuer)
        return problem

    def _examine_now(
        self, token: object, digest: bytes
    ) -> ValidatedToken | FreshTokenError:
        """Check a token with keys that are at hand for good."""
        try:
            jwt, source = self._look(token)
            if not isinstance(source, OwnKeys):
                refuse("keys", "are not given, and fetching them needs: await validate")
        except FreshTokenError as error:
            return bare(error)
        return self._settle(jwt, digest, source, source.latest)

    def _look(self, token: object) -> tuple[ParsedJWT, KeySource]:
        """Check all but the signature, which is the dear part.

        What fails here asks nobody for keys: a storm of made-up tokens stays cheap.
        """
        text = token.reveal() if isinstance(token, Secret) else token
        if not isinstance(text, str):
            raise rejected(
                RejectionReason.MALFORMED,
                "The token is refused: it is not text. Give it as it came in the "
                "request, decoded.",
            )
        jwt = parse_jwt(text)
        rules = self._rules
        if jwt.alg not in rules.algorithms:
            check_algorithm(jwt, rules.algorithms)
        check_access_token(jwt, rules, now=self._time())
        return jwt, self._keys.of(select_issuer(jwt, rules))

    def _check(self, jwt: ParsedJWT) -> None:
        """Check the claims as of now."""
        check_access_token(jwt, self._rules, now=self._time())

    def _settle(
        self,
        jwt: ParsedJWT,
        digest: bytes,
        source: KeySource,
        snapshot: KeySnapshot,
    ) -> ValidatedToken | TokenRejectedError:
        """Check the signature; if it is good, remember that and say what is said."""
        rules = self._rules
        try:
            verify_jwt(
                jwt,
                snapshot.keys,
                algorithms=rules.algorithms,
                allow_kid_less_trial=self._allow_trial,
            )
        except TokenRejectedError as error:
            return bare(error)
        token = read_access_token(jwt, rules)
        verdict = _Verdict(
            token,
            _start(jwt.claims) - rules.leeway,
            token.expires_at + rules.leeway,
            source,
            snapshot.generation,
        )
        self._remember(digest, verdict)
        return token

    def __repr__(self) -> str:
        """Show whose tokens are accepted, and for whom."""
        issuers, audience = self._rules.issuers, self._rules.audience
        return f"JWTValidator({', '.join(issuers)}, audience={audience!r})"


def _digest(token: object) -> bytes:
    """Return SHA-256 of a token: enough to know it again, useless to a thief.

    Empty for what cannot be a token.
    """
    text = token.reveal() if isinstance(token, Secret) else token
    if isinstance(text, str) and len(text) <= MAX_JWT and text.isascii():
        return hashlib.sha256(text.encode()).digest()
    return b""


def _start(claims: Mapping[str, object]) -> float:
    """Return from when on a token is good: what was checked, and has to be again."""
    issued_at = claims.get("iat")
    if type(issued_at) is int and "nbf" not in claims:
        return issued_at
    begins = [numeric_date(claims, name) for name in ("nbf", "iat")]
    return max((at for at in begins if at is not None), default=-math.inf)


def _credentials(
    authorization: str | Sequence[str] | None, *, other_methods: bool
) -> Secret | TokenRejectedError:
    """Return the token of a request, or why there is none."""
    values = (authorization,) if isinstance(authorization, str) else authorization or ()
    try:
        if not all(isinstance(value, str) for value in values):
            problem = rejected(
                RejectionReason.CREDENTIALS,
                "The request is refused: its Authorization header is not text. Give "
                "it decoded.",
            )
            problem.status = _BAD_REQUEST
            problem.error = "invalid_request"
            return problem
        return parse_authorization(values, other_methods=other_methods)
    except TokenRejectedError as error:
        return bare(error)


def _names(setting: str, value: str | Iterable[str]) -> tuple[str, ...]:
    """Return one name, or several, each once."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Iterable):
        refuse(setting, "is neither text nor a list of texts")
    names = tuple(value)
    for name in names:
        check_identifier(setting, name)
    if not names and setting != "required_claims":
        refuse(setting, "is empty: name at least one")
    return tuple(dict.fromkeys(names))

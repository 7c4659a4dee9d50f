"""Which key of a set may verify a token."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from freshtoken._protocol.body import UnreadableError
from freshtoken._protocol.jwk import (
    UnfitKeyError,
    VerificationKey,
    read_jwk,
    thumbprint,
)
from freshtoken._protocol.jws import ParsedJWT, verify_signature
from freshtoken._protocol.rejection import rejected
from freshtoken.errors import RejectionReason, TokenRejectedError

REFETCH_REASONS = frozenset({RejectionReason.UNKNOWN_KEY, RejectionReason.SIGNATURE})
"""What a newer key set may heal: the issuer has changed its keys, under a new name or
under the old one."""

_MAX_TRIALS = 8


@dataclass(frozen=True, slots=True)
class JWKSet:
    """The keys of one issuer that may verify, in its order.

    Attributes:
        keys: Those that are fit for it.
        skipped: For each other one, why not.
    """

    keys: tuple[VerificationKey, ...]
    skipped: tuple[str, ...]

    def select(self, *, kid: str | None, alg: str) -> VerificationKey:
        """Return the one key that may verify a signature.

        Args:
            kid: Name of the key from the token's header. Without one, exactly one
                key must fit.
            alg: The algorithm of the token, which the caller has allowed.

        Raises:
            TokenRejectedError: No key fits, or several do.

        Spec: OIDC Core §10.1; RFC 7515 §4.1.4; RFC 7517 §4; FAPI 2.0 §5.4.3.
        """
        if kid is not None:
            # The usual token names a key, and there is one of that name.
            same = [key for key in self.keys if key.kid == kid]
            if len(same) == 1 and alg in same[0].algorithms:
                return same[0]
        candidates = self.candidates(kid=kid, alg=alg)
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise _ambiguous(kid, len(candidates))
        raise self._unknown(kid, alg)

    def candidates(self, *, kid: str | None, alg: str) -> list[VerificationKey]:
        """Return all keys that fit: by algorithm first, then by name.

        Keys of several types may share a name. A key without a name (a local one, the
        client secret) answers to every name that no other key has; a key with another
        name never does, even if it is the only one.
        """
        fitting = [key for key in self.keys if alg in key.algorithms]
        if kid is None:
            return fitting
        named = [key for key in fitting if key.kid == kid]
        return named or [key for key in fitting if key.kid is None]

    def _unknown(self, kid: str | None, alg: str) -> TokenRejectedError:
        """Return the error for a token that no key fits."""
        message = "The token is refused: no key of the issuer has its kid and alg."
        if self.skipped:
            message += f" {len(self.skipped)} keys of the set cannot be used."
        return rejected(
            RejectionReason.UNKNOWN_KEY,
            f"{message} Look at the issuer's key set (jwks_uri).",
            claim="alg" if kid is None else "kid",
            received=alg if kid is None else kid,
        )


EMPTY = JWKSet((), ())


def parse_jwk_set(document: object) -> JWKSet:
    """Read a key set, key by key: one that cannot be used does not spoil the rest.

    Args:
        document: The JSON value.

    Raises:
        UnreadableError: It is no key set at all.

    Spec: RFC 7517 §5.
    """
    members = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(members, list):
        raise UnreadableError("it is no JWK set: it has no list of keys")
    keys: list[VerificationKey] = []
    skipped: list[str] = []
    seen: set[object] = set()
    for number, member in enumerate(members, start=1):
        try:
            key = read_jwk(member)
            # A set that lists one key twice is still clear about it.
            identity = (thumbprint(member), key.kid, key.algorithms)
        except UnfitKeyError as error:
            skipped.append(f"key {number}: {error}")
            continue
        if identity not in seen:
            keys.append(key)
            seen.add(identity)
    return JWKSet(tuple(keys), tuple(skipped))


def verify_jwt(
    jwt: ParsedJWT,
    keys: JWKSet,
    *,
    algorithms: Collection[str],
    allow_kid_less_trial: bool = False,
) -> VerificationKey:
    """Refuse a token that no key of the set signed; return the key that did.

    Args:
        jwt: The token.
        keys: The keys of the issuer whose token it should be, and no others.
        algorithms: What was agreed on with that issuer. ``none`` is never accepted.
        allow_kid_less_trial: Where a token names no key and several fit, try each
            of them, at most eight.

    Raises:
        TokenRejectedError: Its `reason` is one of `REFETCH_REASONS` where newer keys
            may help.

    Spec: RFC 7515 §5.2; RFC 8725 §3.1, §3.2; OIDC Core §10.1.
    """
    check_algorithm(jwt, algorithms)
    alg = jwt.alg
    if allow_kid_less_trial and jwt.kid is None:
        candidates = keys.candidates(kid=None, alg=alg)
        if 1 < len(candidates) <= _MAX_TRIALS:
            for key in candidates[:-1]:
                if key.verify(alg, jwt.signing_input, jwt.signature):
                    return key
            verify_signature(jwt, candidates[-1])
            return candidates[-1]
    key = keys.select(kid=jwt.kid, alg=alg)
    verify_signature(jwt, key)
    return key


def check_algorithm(jwt: ParsedJWT, algorithms: Collection[str]) -> None:
    """Refuse a token whose algorithm was not agreed on; ``none`` never was.

    Spec: RFC 8725 §3.1, §3.2.
    """
    alg = jwt.alg
    if alg not in algorithms or alg.lower() == "none":
        raise rejected(
            RejectionReason.ALGORITHM,
            "The token is refused: it is signed with another algorithm than was agreed "
            "on. If the issuer is right, register that one.",
            claim="alg",
            expected=tuple(algorithms),
            received=alg,
        )


def _ambiguous(kid: str | None, count: int) -> TokenRejectedError:
    """Return the error for a token that several keys fit."""
    why = "several have its kid" if kid is not None else "it has no kid"
    return rejected(
        RejectionReason.AMBIGUOUS_KEY,
        f"The token is refused: {count} keys of the issuer fit it, and {why}. Have the "
        "issuer give each key a kid of its own, and name it in its tokens.",
        claim="kid",
        received=kid,
    )

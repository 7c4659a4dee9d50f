"""ID tokens: what a sign-in has to bring, and what a refresh must not change.

The signature is always verified, also for a token that came straight from the token
endpoint. What was agreed on is in `IDTokenRules`; the token itself chooses nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from freshtoken._foundation.secret import Secret, reveal
from freshtoken._protocol.claims import (
    audiences,
    check_audience,
    check_expiry,
    check_issued_at,
    check_issuer,
    check_not_before,
    check_subject,
    numeric_date,
    text_claim,
)
from freshtoken._protocol.client import OAuthClient
from freshtoken._protocol.jwks import JWKSet, verify_jwt
from freshtoken._protocol.jws import ParsedJWT, parse_jwt
from freshtoken._protocol.rejection import rejected
from freshtoken._protocol.token_hash import half_hash
from freshtoken.errors import RejectionReason, TokenRejectedError

DEFAULT_ALGORITHM = "RS256"
# An ID token is made for the sign-in that it ends. A day leaves room for whatever a
# server caches, and none for a token that was kept for another occasion.
MAX_ID_TOKEN_AGE = 86_400.0

# RFC 8725 §3.11: an explicit type of another kind is a token of another kind.
_TYPES = (None, "jwt")
_CARRIED = ("nonce", "auth_time", "sid")


@dataclass(frozen=True, slots=True)
class IDTokenRules:
    """What was agreed on with the server about its ID tokens.

    Attributes:
        issuer: The server's issuer identifier.
        client_id: The client for which they have to be made.
        algorithms: How they may be signed.
        leeway: Seconds by which the clocks may differ.
        trusted_audiences: Who else they may be for.
        check_azp: Whether ``azp`` has to name the client wherever it is there.
    """

    issuer: str
    client_id: str
    algorithms: tuple[str, ...]
    leeway: float
    trusted_audiences: tuple[str, ...] = ()
    check_azp: bool = False


def id_token_rules(client: OAuthClient) -> IDTokenRules:
    """Return the rules that follow from a client's settings.

    Without a registered algorithm it is RS256, whatever the server's metadata list.

    Spec: OIDC Core §3.1.3.7 step 7; OIDC Dynamic Client Registration §2.
    """
    return IDTokenRules(
        issuer=client.issuer,
        client_id=client.client_id,
        algorithms=(client.id_token_signed_response_alg or DEFAULT_ALGORITHM,),
        leeway=client.leeway,
        trusted_audiences=tuple(client.trusted_audiences),
        check_azp=client.check_azp,
    )


def check_id_token(
    token: str | Secret,
    keys: JWKSet,
    rules: IDTokenRules,
    *,
    now: float,
    access_token: str | Secret | None,
    nonce: str | None,
    max_age: float | None = None,
    acr_values: Collection[str] = (),
    require_acr: bool = False,
    sent_at: float | None = None,
) -> Mapping[str, object]:
    """Return the claims of the ID token that ends a sign-in.

    Args:
        token: The ID token.
        keys: The keys of the issuer, or the client secret as a key.
        rules: What was agreed on.
        now: Epoch seconds.
        access_token: What came with it, to compare ``at_hash``.
        nonce: What the authorization request sent; ``None`` if it sent none.
        max_age: What the request asked for: seconds since the last authentication.
        acr_values: What the request asked for; voluntary for the server, unless…
        require_acr: …one of them has to be met.
        sent_at: Epoch seconds at which the browser was sent away. With ``max_age=0``
            the user has to have authenticated after it.

    Raises:
        TokenRejectedError: One of the checks failed; its `reason` says which.

    Spec: OIDC Core §2, §3.1.3.7, §3.1.3.8; RFC 8725 §3.
    """
    jwt = parse_jwt(reveal(token))
    crv = _check_signature(jwt, keys, rules)
    claims = jwt.claims
    check_issuer(claims, rules.issuer)
    check_subject(claims)
    _check_parties(claims, rules)
    _check_times(claims, rules, now)
    _check_age(claims, rules, now)
    _check_nonce(claims, nonce)
    _check_access_token_hash(jwt, crv, access_token)
    _check_authentication_time(claims, rules, now, max_age, sent_at)
    if require_acr:
        _check_authentication_context(claims, acr_values)
    return MappingProxyType(claims)


def check_refreshed_id_token(
    token: str | Secret,
    keys: JWKSet,
    rules: IDTokenRules,
    *,
    now: float,
    access_token: str | Secret | None,
    original: Mapping[str, object],
) -> Mapping[str, object]:
    """Return the claims of an ID token that came with a refresh.

    Whose it is comes first, before the signature: a token of another user ends the
    session whoever signed it, and one that lacks only the key is of the same user.
    ``max_age`` and ``acr_values`` of the sign-in do not apply again.

    Args:
        token: The ID token.
        keys: The keys of the issuer, or the client secret as a key.
        rules: What was agreed on.
        now: Epoch seconds.
        access_token: What came with it, to compare ``at_hash``.
        original: The claims of the session's first ID token; empty where the session
            never had one, and then nothing is compared.

    Raises:
        TokenRejectedError: One of the checks failed. See `ends_session`, and
            `REFETCH_REASONS` for what newer keys may heal.

    Spec: OIDC Core §12.2.
    """
    jwt = parse_jwt(reveal(token))
    claims = jwt.claims
    _check_identity(claims, rules, original)
    crv = _check_signature(jwt, keys, rules)
    _check_times(claims, rules, now)
    _check_access_token_hash(jwt, crv, access_token)
    if original:
        _check_continuity(claims, rules, original)
    return MappingProxyType(claims)


def check_same_identity(
    token: str | Secret, rules: IDTokenRules, original: Mapping[str, object]
) -> None:
    """Refuse an ID token of another issuer, user or audience, without any key.

    For the answer to a refresh whose signature cannot be verified yet.

    Raises:
        TokenRejectedError: It is no JWT, or not the same three.

    Spec: OIDC Core §12.2.
    """
    _check_identity(parse_jwt(reveal(token)).claims, rules, original)


def ends_session(error: TokenRejectedError) -> bool:
    """Tell whether a refreshed ID token names another issuer or another user.

    One that names nobody, or nothing that could be a name, is no token of theirs.
    """
    if error.reason is RejectionReason.SUBJECT:
        return True
    name = error.received
    return (
        error.reason is RejectionReason.INVALID_CLAIM
        and error.claim == "iss"
        and isinstance(name, str)
        and not name.startswith("<")  # "<dict>": what was there instead of a text
    )


def carried_claims(
    original: Mapping[str, object], refreshed: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the claims of a refreshed ID token with what only the first one says.

    Refreshed ones leave out what later ones are compared with (``nonce``,
    ``auth_time``) and what a logout names (``sid``). Everything else counts as the
    server says it now: a role that is gone is gone.

    Spec: OIDC Core §12.2.
    """
    kept = {name: original[name] for name in _CARRIED if name in original}
    return MappingProxyType({**kept, **refreshed})


def _check_signature(jwt: ParsedJWT, keys: JWKSet, rules: IDTokenRules) -> str | None:
    """Refuse a token of another kind or signer; return the curve of its key."""
    if jwt.typ not in _TYPES:
        raise rejected(
            RejectionReason.TYPE,
            "The ID token is refused: its typ is that of another kind of token. Look "
            "at what the server puts into id_token.",
            claim="typ",
            expected="JWT",
            received=jwt.typ,
        )
    key = verify_jwt(jwt, keys, algorithms=rules.algorithms)
    if "events" in jwt.claims:
        raise _invalid("events", "it is a logout token, or another message of events")
    return key.crv


def _check_parties(claims: Mapping[str, object], rules: IDTokenRules) -> None:
    """Refuse a token that is not for this client, or also for strangers.

    Spec: OIDC Core §3.1.3.7 steps 3 to 5.
    """
    check_audience(claims, rules.client_id)
    known = {rules.client_id, *rules.trusted_audiences}
    found = audiences(claims)
    is_named = claims.get("azp") == rules.client_id
    if not is_named and not known.issuperset(found):
        raise _invalid(
            "aud",
            "it is for others, too. If they may have it, name them in "
            "trusted_audiences",
            expected=tuple(sorted(known)),
            received=found,
        )
    if rules.check_azp and not is_named and ("azp" in claims or len(found) > 1):
        raise _wrong_party(claims, rules.client_id)


def _check_times(claims: Mapping[str, object], rules: IDTokenRules, now: float) -> None:
    """Refuse a token whose time is over, or has not come."""
    check_expiry(claims, now=now, leeway=rules.leeway)
    check_issued_at(claims, now=now, leeway=rules.leeway, required=True)
    check_not_before(claims, now=now, leeway=rules.leeway)


def _check_age(claims: Mapping[str, object], rules: IDTokenRules, now: float) -> None:
    """Refuse a token that was made long before this sign-in.

    Spec: OIDC Core §3.1.3.7 step 10.
    """
    issued_at = numeric_date(claims, "iat")
    oldest = now - MAX_ID_TOKEN_AGE - rules.leeway
    if issued_at is None or issued_at < oldest:
        raise _invalid(
            "iat",
            "it was issued long before this sign-in. Begin a new one; if that does "
            "not help, compare the clocks",
            expected=oldest,
            received=issued_at,
        )


def _check_nonce(claims: Mapping[str, object], nonce: str | None) -> None:
    """Refuse a token of another sign-in, also one with a nonce that nobody sent.

    Spec: OIDC Core §2, §3.1.3.7 step 11.
    """
    found = text_claim(claims, "nonce", required=nonce is not None)
    if found is not None and (nonce is None or not _equal(found, nonce)):
        raise rejected(
            RejectionReason.NONCE,
            "The ID token is refused: its nonce is not the one that was sent. It "
            "belongs to another sign-in; begin a new one.",
            claim="nonce",
        )


def _check_access_token_hash(
    jwt: ParsedJWT, crv: str | None, access_token: str | Secret | None
) -> None:
    """Refuse a token that was made for another access token.

    Spec: OIDC Core §3.1.3.8.
    """
    found = text_claim(jwt.claims, "at_hash", required=False)
    if found is None or access_token is None:
        return
    if not _equal(found, half_hash(jwt.alg, crv, reveal(access_token))):
        raise rejected(
            RejectionReason.HASH,
            "The ID token is refused: its at_hash is not that of the access token "
            "that came with it. Do not use either.",
            claim="at_hash",
        )


def _check_authentication_time(
    claims: Mapping[str, object],
    rules: IDTokenRules,
    now: float,
    max_age: float | None,
    sent_at: float | None,
) -> None:
    """Refuse a token of a user who authenticated too long ago.

    ``max_age=0`` asks for a new authentication: it has to follow the request, however
    long the user then took.

    Spec: OIDC Core §3.1.2.1, §3.1.3.7 step 13.
    """
    authenticated_at = numeric_date(claims, "auth_time")
    if max_age is None:
        return
    if authenticated_at is None:
        raise rejected(
            RejectionReason.MISSING_CLAIM,
            "The ID token is refused: it has no auth_time although max_age was asked "
            "for. Have the server send it.",
            claim="auth_time",
        )
    oldest = sent_at if max_age == 0 and sent_at is not None else now - max_age
    if authenticated_at < oldest - rules.leeway:
        raise rejected(
            RejectionReason.AUTHENTICATION_TOO_OLD,
            "The ID token is refused: the user's last authentication is longer ago "
            "than max_age allows. Begin a new sign-in.",
            claim="auth_time",
            expected=oldest,
            received=authenticated_at,
        )


def _check_authentication_context(
    claims: Mapping[str, object], acr_values: Collection[str]
) -> None:
    """Refuse a token of a user who authenticated in another way than was asked for.

    Spec: OIDC Core §3.1.3.7 step 12, §5.5.1.1.
    """
    found = text_claim(claims, "acr", required=False)
    if found not in acr_values:
        raise rejected(
            RejectionReason.AUTHENTICATION_CONTEXT,
            "The ID token is refused: the user did not authenticate in one of the "
            "ways that were asked for (acr_values). Begin a new sign-in, or ask for "
            "what the server can do.",
            claim="acr",
            expected=tuple(acr_values),
            received=found,
        )


def _check_identity(
    claims: Mapping[str, object], rules: IDTokenRules, original: Mapping[str, object]
) -> None:
    """Refuse what is not of the same issuer, for the same user and the same clients."""
    check_issuer(claims, rules.issuer)
    issuer = original.get("iss")
    if isinstance(issuer, str):
        check_issuer(claims, issuer)
    check_subject(claims)
    if "sub" in original and claims["sub"] != original["sub"]:
        # Who they are is nobody's business but the application's: no names here.
        raise rejected(
            RejectionReason.SUBJECT,
            "The ID token is refused: it is about another user than the session. Sign "
            "in again.",
            claim="sub",
        )
    if "aud" not in original:
        _check_parties(claims, rules)
        return
    # An audience alone, and a list of it, are the same; so is any order.
    check_audience(claims, rules.client_id)
    value, found = original["aud"], audiences(claims)
    items = value if isinstance(value, list | tuple) else (value,)
    before = {name for name in items if isinstance(name, str)}
    if before != set(found):
        raise _invalid(
            "aud",
            "it is for others than the session's first ID token. Sign in again if "
            "they should have it",
            expected=tuple(sorted(before)),
            received=found,
        )


def _check_continuity(
    claims: Mapping[str, object], rules: IDTokenRules, original: Mapping[str, object]
) -> None:
    """Refuse what a refresh must not change, or must.

    A claim that the first ID token did not have cannot be compared; but a nonce that
    it did not have was never sent.

    Spec: OIDC Core §12.2.
    """
    before, after = numeric_date(original, "iat"), numeric_date(claims, "iat")
    if before is not None and (after is None or after < before - rules.leeway):
        raise _invalid(
            "iat",
            "it is older than the one before. Have the server make a new one for each "
            "refresh",
            expected=before,
            received=after,
        )
    before, after = (
        numeric_date(original, "auth_time"),
        numeric_date(claims, "auth_time"),
    )
    if None not in (before, after) and before != after:
        raise _invalid(
            "auth_time",
            "it names another authentication than the session began with. Sign in "
            "again",
            expected=before,
            received=after,
        )
    if "nonce" in claims:
        _check_nonce(claims, text_claim(original, "nonce", required=False))
    if rules.check_azp and claims.get("azp") != original.get("azp"):
        raise _wrong_party(claims, original.get("azp"))


def _equal(one: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def _wrong_party(claims: Mapping[str, object], expected: object) -> TokenRejectedError:
    """Return the error for a token that was given to another client."""
    return _invalid(
        "azp",
        "its azp does not name this client. Have the server issue it to this one",
        expected=expected,
        received=claims.get("azp"),
    )


def _invalid(
    claim: str, why: str, *, expected: object = None, received: object = None
) -> TokenRejectedError:
    """Return the error for a claim that says the wrong thing."""
    return rejected(
        RejectionReason.INVALID_CLAIM,
        f"The ID token is refused: {why}.",
        claim=claim,
        expected=expected,
        received=received,
    )

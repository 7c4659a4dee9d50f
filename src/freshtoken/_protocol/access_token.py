"""Access tokens at a resource server: what a JWT has to say to open a door.

RFC 9068 is the rule, ``profile="any"`` the way to accept the tokens of issuers that do
not follow it. Either way a token has to be for this audience, and no ID token, logout
token or refresh token passes as an access token.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

from freshtoken._protocol.claims import (
    MAX_DATE,
    audiences,
    check_audience,
    check_expiry,
    check_issued_at,
    check_not_before,
    numeric_date,
    text_claim,
)
from freshtoken._protocol.jws import ParsedJWT
from freshtoken._protocol.rejection import rejected
from freshtoken._protocol.settings import check_identifier, check_leeway, refuse
from freshtoken._protocol.signing import ASYMMETRIC_ALGORITHMS
from freshtoken.errors import RejectionReason, TokenRejectedError

Profile = Literal["rfc9068", "any"]

_TYPE = "at+jwt"
# RFC 9068 §2.2, beyond what every token needs.
_REQUIRED = ("sub", "client_id", "jti", "iat")
_REQUIRED_SET = frozenset(_REQUIRED)
_NAMES = ("sub", "client_id", "jti")
# How issuers that do not follow RFC 9068 name the client.
_OTHER_CLIENT_NAMES = ("azp", "cid", "appid")
# What ID tokens and logout tokens have, and access tokens have no use for.
_FOREIGN = ("nonce", "at_hash", "c_hash", "events")
# Issuers with a claim of their own for the kind of token: Keycloak, Cognito. Its first
# word is that of access tokens; a nonce in those, from older releases, means nothing.
_KINDS = {
    "typ": ("Bearer", frozenset({"ID", "Refresh", "Offline", "Logout"})),
    "token_use": ("access", frozenset({"id", "refresh"})),
}


@dataclass(frozen=True, slots=True)
class AccessTokenRules:
    """What an access token has to be to be accepted here.

    Args:
        issuers: Issuer identifiers whose tokens are accepted, exactly as spelled.
        audience: Names of this resource; a token has to be for one of them.
        algorithms: How tokens may be signed: by default all with public keys.
        leeway: Seconds by which the clocks may differ, at most 300.
        required_claims: Names of further claims that have to be there.
        profile: ``"rfc9068"``, or ``"any"`` for issuers that do not follow it: then
            ``typ`` may be ``JWT`` or missing, and so may ``client_id``, ``jti``,
            ``sub`` and ``iat``.
        allow_scope_list: Also accept a ``scope`` that is a list, and ``scp`` (text or
            list) where there is no ``scope``.

    Raises:
        MisconfiguredError: A value is of no use; ``.setting`` names the parameter.

    Spec: RFC 9068 §2.2, §4; RFC 8725 §3.
    """

    issuers: tuple[str, ...]
    audience: tuple[str, ...]
    _: KW_ONLY
    algorithms: tuple[str, ...] = ASYMMETRIC_ALGORITHMS
    leeway: float = 30.0
    required_claims: tuple[str, ...] = ()
    profile: Profile = "rfc9068"
    allow_scope_list: bool = False

    def __post_init__(self) -> None:
        """Refuse rules that would accept anything, or nothing."""
        for setting in ("issuers", "audience", "algorithms", "required_claims"):
            _check_names(setting, getattr(self, setting))
        for setting in ("issuers", "audience", "algorithms"):
            if not getattr(self, setting):
                refuse(setting, "is empty: name at least one")
        if not set(ASYMMETRIC_ALGORITHMS).issuperset(self.algorithms):
            known = ", ".join(ASYMMETRIC_ALGORITHMS)
            refuse("algorithms", f"names one that is none of {known}")
        if self.profile not in get_args(Profile):
            refuse("profile", "is neither 'rfc9068' nor 'any'")
        check_leeway("leeway", self.leeway)


class _Claims(Mapping[str, object]):
    """The claims of a token that many may look at: nobody changes them for others."""

    __slots__ = ("_members",)

    def __init__(self, members: Mapping[str, object]) -> None:
        self._members = members

    def __getitem__(self, name: str) -> object:
        value = self._members[name]
        return _copy(value) if isinstance(value, list | dict) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __repr__(self) -> str:
        """Show which claims there are, nothing about the user."""
        return f"<claims {', '.join(self._members)}>"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ValidatedToken:
    """An access token that passed every check.

    Attributes:
        issuer: Who issued it.
        subject: On whose behalf it is used; ``None`` where the issuer does not say.
        client_id: Who uses it; ``None`` where the issuer does not say.
        audience: For whom it is, this resource among them.
        scope: What it allows.
        expires_at: Epoch seconds.
        claims: Everything that it says. It cannot be changed; lists and objects in
            it are handed out as copies, since a token may be validated once for many.
    """

    issuer: str
    subject: str | None
    client_id: str | None
    audience: tuple[str, ...]
    scope: tuple[str, ...]
    expires_at: float
    claims: Mapping[str, object]

    @property
    def is_client_subject(self) -> bool:
        """Whether a client acts for itself, and no user is there.

        Spec: RFC 9068 §2.2; RFC 9700 §4.15.
        """
        return self.subject is not None and self.subject == self.client_id

    def __repr__(self) -> str:
        """Show whose token it is and how long it lives, nothing about its user."""
        return f"ValidatedToken({self.issuer!r}, expires_at={self.expires_at})"


def select_issuer(jwt: ParsedJWT, rules: AccessTokenRules) -> str:
    """Return which of the configured issuers a token claims to be from.

    Only these are ever asked for keys; what a token says itself leads nowhere.

    Raises:
        TokenRejectedError: It is from none of them.

    Spec: RFC 9068 §4; RFC 8725 §3.8, §3.10.
    """
    found = jwt.claims.get("iss")
    if isinstance(found, str) and found in rules.issuers:
        return found
    found = text_claim(jwt.claims, "iss", required=True)
    raise _invalid(
        "iss",
        "it is from another issuer. Compare the issuers in the settings with the one "
        "in the server's metadata, character by character",
        expected=rules.issuers,
        received=found,
    )


def check_access_token(jwt: ParsedJWT, rules: AccessTokenRules, *, now: float) -> None:
    """Refuse a JWT whose claims do not make it an access token for this resource.

    The signature is another matter: `verify_jwt`.

    Args:
        jwt: The token.
        rules: What is accepted here.
        now: Epoch seconds.

    Raises:
        TokenRejectedError: One of the checks failed; its `reason` says which.

    Spec: RFC 9068 §2.2, §4, §5; RFC 7519 §4.1.
    """
    claims = jwt.claims
    _check_kind(jwt, rules)
    select_issuer(jwt, rules)
    aud = claims.get("aud")
    # Most tokens name one audience: no list is made for it.
    if not isinstance(aud, str) or aud not in rules.audience:
        check_audience(claims, rules.audience)
    _check_times(claims, now, rules.leeway)
    _check_required(claims, rules)
    _scope_value(claims, rules)
    if "cnf" in claims:
        # No binding is checked here yet, and whoever stole the token has no key.
        raise rejected(
            RejectionReason.CONFIRMATION,
            "The token is refused: it is bound to a key (cnf), which cannot be checked "
            "here. Have the client get a plain bearer token.",
            claim="cnf",
        )


def read_access_token(jwt: ParsedJWT, rules: AccessTokenRules) -> ValidatedToken:
    """Return what a token says, after both the signature and `check_access_token`."""
    claims = jwt.claims
    subject, audience, end = claims.get("sub"), claims["aud"], claims["exp"]
    expires_at = end if type(end) is int else numeric_date(claims, "exp") or 0.0
    return ValidatedToken(
        select_issuer(jwt, rules),
        subject if isinstance(subject, str) else None,
        _read_client(claims, rules),
        (audience,) if isinstance(audience, str) else audiences(claims),
        _read_scope(claims, rules),
        expires_at,
        _Claims(claims),
    )


def check_scope(token: ValidatedToken, required: str | Collection[str]) -> None:
    """Refuse a token that does not have all of *required*, each as a whole word.

    The error's `expected` is all of *required*: what a client has to ask for.

    Args:
        token: The token.
        required: Names of scopes, as a list or in one text with spaces.

    Raises:
        TokenRejectedError: One of them is missing.

    Spec: RFC 6749 §3.3; RFC 6750 §3.1; RFC 9068 §2.2.3.
    """
    names = required.split() if isinstance(required, str) else required
    for name in names:
        if name not in token.scope:
            raise rejected(
                RejectionReason.INSUFFICIENT_SCOPE,
                "The token is valid, but its scope does not allow this. Have the "
                "client ask for the scope that is needed. If the issuer sends scope as "
                "a list, or in scp, accept that with allow_scope_list=True.",
                claim="scope",
                expected=tuple(names),
                received=token.scope,
            )


def _check_kind(jwt: ParsedJWT, rules: AccessTokenRules) -> None:
    """Refuse tokens of other kinds.

    Spec: RFC 9068 §4, §5; RFC 8725 §3.11, §3.12.
    """
    typ, claims = jwt.typ, jwt.claims
    if typ == _TYPE:
        return
    if rules.profile != "any":
        raise _wrong_type(
            typ,
            "its typ is not at+jwt. If its issuer does not follow RFC 9068, accept its "
            'tokens with profile="any"',
        )
    if typ not in (None, "jwt"):
        raise _wrong_type(typ, "its typ is that of another kind of token")
    is_ours = False
    for name, (ours, others) in _KINDS.items():
        kind = claims.get(name)
        is_ours = is_ours or kind == ours
        if isinstance(kind, str) and kind in others:
            raise _not_an_access_token(name)
    for name in _FOREIGN:
        if name in claims and not (is_ours and name == "nonce"):
            raise _not_an_access_token(name)


def _check_times(claims: Mapping[str, object], now: float, leeway: float) -> None:
    """Refuse a token whose time is over, or has not come."""
    end, issued_at = claims.get("exp"), claims.get("iat")
    # The usual token: two whole numbers in their places. Any other, and with it every
    # refusal, goes the long way.
    if (
        type(end) is int
        and type(issued_at) is int
        and "nbf" not in claims
        and now < end + leeway
        and end <= MAX_DATE
        and 0 <= issued_at <= now
    ):
        return
    check_expiry(claims, now=now, leeway=leeway)
    check_not_before(claims, now=now, leeway=leeway)
    check_issued_at(claims, now=now, leeway=leeway, required=False)


def _check_required(claims: Mapping[str, object], rules: AccessTokenRules) -> None:
    """Refuse a token that does not say enough, or not in text."""
    if rules.profile == "rfc9068" and not claims.keys() >= _REQUIRED_SET:
        raise _missing(
            next(name for name in _REQUIRED if name not in claims),
            "If its issuer does not follow RFC 9068, accept its tokens with "
            'profile="any".',
        )
    for name in rules.required_claims:
        if claims.get(name) is None:
            raise _missing(name, "The rules of this resource require it.")
    for name in _NAMES:
        value = claims.get(name)
        if isinstance(value, str) and value:
            continue
        if name in claims and not text_claim(claims, name, required=True):
            raise _invalid(name, f"its {name} is empty. Have the issuer mend it")


def _read_client(claims: Mapping[str, object], rules: AccessTokenRules) -> str | None:
    """Return who uses a token: under the registered name, or the issuer's own."""
    found = claims.get("client_id")
    if isinstance(found, str):
        return found
    for name in _OTHER_CLIENT_NAMES if rules.profile == "any" else ():
        found = claims.get(name)
        if isinstance(found, str):
            return found
    return None


def _read_scope(
    claims: Mapping[str, object], rules: AccessTokenRules
) -> tuple[str, ...]:
    """Return what a token allows, name by name."""
    value = _scope_value(claims, rules)
    names = value.split(" ") if isinstance(value, str) else value
    return tuple(filter(None, names) if "" in names else names)


def _scope_value(
    claims: Mapping[str, object], rules: AccessTokenRules
) -> str | list[str]:
    """Return what a token allows, as its issuer writes it.

    Spec: RFC 9068 §2.2.3; RFC 8693 §4.2.
    """
    name = "scope"
    if rules.allow_scope_list and name not in claims:
        name = "scp"
    value = claims.get(name, "")
    if isinstance(value, str):
        return value
    if not rules.allow_scope_list:
        raise _invalid(
            name,
            "its scope is not text. If its issuer sends a list, accept that with "
            "allow_scope_list=True",
            received=value,
        )
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _invalid(name, "its scope is neither text nor a list of texts")
    return value


def _copy(value: object) -> object:
    """Return a JSON value that shares nothing that could be changed."""
    if isinstance(value, dict):
        return {name: _copy(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_copy(member) for member in value]
    return value


def _check_names(setting: str, value: object) -> None:
    """Refuse a setting that is not a tuple of names."""
    if not isinstance(value, tuple):
        refuse(setting, "is not a tuple of names")
    for name in value:
        check_identifier(setting, name)


def _wrong_type(typ: str | None, why: str) -> TokenRejectedError:
    """Return the error for a token that says it is of another kind."""
    return rejected(
        RejectionReason.TYPE,
        f"The token is refused: {why}.",
        claim="typ",
        expected=_TYPE,
        received=typ,
    )


def _not_an_access_token(name: str) -> TokenRejectedError:
    """Return the error for a token that a claim gives away."""
    return rejected(
        RejectionReason.TYPE,
        f"The token is refused: its claim {name} shows that it is no access token. "
        "Have the client send its access token.",
        claim=name,
    )


def _missing(name: str, advice: str) -> TokenRejectedError:
    """Return the error for a claim that is not there."""
    return rejected(
        RejectionReason.MISSING_CLAIM,
        f"The token is refused: it has no {name}. {advice}",
        claim=name,
    )


def _invalid(
    claim: str, why: str, *, expected: object = None, received: object = None
) -> TokenRejectedError:
    """Return the error for a claim that says the wrong thing."""
    return rejected(
        RejectionReason.INVALID_CLAIM,
        f"The token is refused: {why}.",
        claim=claim,
        expected=expected,
        received=received,
    )

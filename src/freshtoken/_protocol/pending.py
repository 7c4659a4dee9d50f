"""A sign-in that waits for its answer, as it is kept in the session store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias, get_args

from freshtoken._foundation.secret import MASK, refuse_pickle
from freshtoken._protocol.pkce import is_code_verifier
from freshtoken.errors import AuthorizationResponseError

ResponseMode: TypeAlias = Literal["query", "form_post"]
RESPONSE_MODES: tuple[str, ...] = get_args(ResponseMode)

OPENID = "openid"

MOST_MAX_AGE = 2**31 - 1
"""Seconds; the largest number that servers of every language can read."""

_MOST_SECONDS = 2**53


@dataclass(frozen=True, slots=True, repr=False)
class PendingSignIn:
    """What an answer has to fit; kept in the session store until it comes.

    Attributes:
        state: Names the sign-in in the answer.
        nonce: Comes back in the ID token; ``None`` where none is asked for.
        code_verifier: Proves that the code is ours (RFC 7636 §4.1).
        redirect_uri: As sent; the token request repeats it octet for octet.
        issuer: The one server that may answer, and that the code goes to.
        scope: What was asked for.
        binding_hash: SHA-256 of what the browser keeps in a cookie.
        created_at: Epoch seconds.
        max_age: Seconds since the user's authentication that will do.
        return_to: The application's own note on where to go afterwards.
    """

    state: str
    nonce: str | None
    code_verifier: str
    redirect_uri: str
    issuer: str
    client_id: str
    scope: tuple[str, ...] | None
    binding_hash: str
    created_at: float
    max_age: int | None = None
    acr_values: tuple[str, ...] = ()
    resource: tuple[str, ...] = ()
    response_mode: ResponseMode = "query"
    return_to: str | None = None

    def to_members(self) -> dict[str, object]:
        """Return it as members of a JSON object."""
        members: dict[str, object] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            members[name] = list(value) if isinstance(value, tuple) else value
        return members

    @classmethod
    def from_members(cls, members: Mapping[str, object]) -> PendingSignIn:
        """Return what `to_members` has written; unknown members are ignored.

        Raises:
            AuthorizationResponseError: Somebody else wrote it.
        """
        values = _read_members(members)
        if values is None:
            error = AuthorizationResponseError(
                "what the session store holds of this sign-in cannot be read: look at "
                "what else writes to the store, and begin a new sign-in"
            )
            error.reason = "unknown_state"
            raise error
        return cls(**values)

    def __repr__(self) -> str:
        """Show whose sign-in it is, nothing secret."""
        return f"PendingSignIn({self.issuer!r}, {self.client_id!r}, {MASK})"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        refuse_pickle(self)


_TEXT: tuple[type, ...] = (str,)
_MAYBE_TEXT: tuple[type, ...] = (str, type(None))
_LIST: tuple[type, ...] = (list, tuple)
_MAYBE_LIST: tuple[type, ...] = (list, tuple, type(None))
_KINDS: Mapping[str, tuple[type, ...]] = {
    "state": _TEXT,
    "nonce": _MAYBE_TEXT,
    "code_verifier": _TEXT,
    "redirect_uri": _TEXT,
    "issuer": _TEXT,
    "client_id": _TEXT,
    "scope": _MAYBE_LIST,
    "binding_hash": _TEXT,
    "created_at": (int, float),
    "max_age": (int, type(None)),
    "acr_values": _LIST,
    "resource": _LIST,
    "response_mode": _TEXT,
    "return_to": _MAYBE_TEXT,
}


def _read_members(members: object) -> dict[str, Any] | None:
    """Return the values of a pending sign-in, or nothing if one of them is garbage."""
    if not isinstance(members, Mapping):
        return None
    values: dict[str, Any] = {}
    for name, kinds in _KINDS.items():
        value = members.get(name)
        if not isinstance(value, kinds) or isinstance(value, bool):
            return None
        if isinstance(value, list | tuple):
            if not all(isinstance(item, str) for item in value):
                return None
            value = tuple(value)
        values[name] = value
    at, age = values["created_at"], values["max_age"]
    fits = (
        values["state"]
        and is_code_verifier(values["code_verifier"])
        # Without it, nothing would tie an ID token to this sign-in.
        and (values["nonce"] or OPENID not in (values["scope"] or ()))
        and values["response_mode"] in RESPONSE_MODES
        # Neither NaN nor the end of all days, which would never be over.
        and 0 <= at <= _MOST_SECONDS
        and (age is None or 0 <= age <= MOST_MAX_AGE)
    )
    return values if fits else None


def state_key(state: str) -> str:
    """Return the name under which a sign-in is stored: tells nothing of ``state``."""
    digest = hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()
    return f"sign-in-{digest}"


def hash_binding(binding: str) -> str:
    """Return what is stored of a binding."""
    return hashlib.sha256(binding.encode("utf-8", "surrogatepass")).hexdigest()


def requires_id_token(pending: PendingSignIn) -> bool:
    """Tell whether an ID token has to come (OpenID Connect Core §3.1.3.3)."""
    return OPENID in (pending.scope or ())

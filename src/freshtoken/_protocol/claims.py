"""The claims of a JWT, one function for each. *now* is an argument, and so is leeway.

A claim that is there but of the wrong type is refused everywhere: what one reader
takes for a date or an audience and another does not is a way in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, overload

from freshtoken._protocol.rejection import rejected
from freshtoken.errors import RejectionReason, TokenRejectedError

# The end of the year 9999. What lies beyond is no date but a mistake, such as
# milliseconds, and would be a token without an end.
MAX_DATE = 253_402_300_799
_MAX_SUBJECT = 255


def check_issuer(claims: Mapping[str, object], issuer: str) -> None:
    """Refuse a token of another issuer; every character counts.

    Spec: OIDC Core §3.1.3.7 step 2; RFC 7519 §4.1.1; RFC 9068 §4.
    """
    found = text_claim(claims, "iss", required=True)
    if found != issuer:
        raise _invalid(
            "iss",
            "it is from another issuer (.received). Compare the issuer in the settings "
            "with the one in the server's metadata, character by character",
            expected=issuer,
            received=found,
        )


def audiences(claims: Mapping[str, object]) -> tuple[str, ...]:
    """Return for whom a token is: one or more.

    Raises:
        TokenRejectedError: It does not say, or neither in text nor in a list of it.

    Spec: RFC 7519 §4.1.3.
    """
    value = _required(claims, "aud")
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value and all(isinstance(x, str) for x in value):
        return tuple(value)
    raise _wrong_type("aud", "text or a list of texts", value)


def check_audience(
    claims: Mapping[str, object], audience: str | Collection[str]
) -> None:
    """Refuse a token that is for nobody in *audience*; every character counts.

    Spec: RFC 7519 §4.1.3; RFC 8725 §3.9; OIDC Core §3.1.3.7 step 3.
    """
    accepted = (audience,) if isinstance(audience, str) else tuple(audience)
    found = audiences(claims)
    if not any(name in accepted for name in found):
        raise _invalid(
            "aud",
            "it is for somebody else. If it should be for you, compare the audience in "
            "the settings (.expected) with what the server puts into its tokens "
            "(.received)",
            expected=accepted,
            received=found,
        )


def check_expiry(claims: Mapping[str, object], *, now: float, leeway: float) -> None:
    """Refuse a token whose end has come, or that has none.

    Spec: RFC 7519 §4.1.4.
    """
    end = numeric_date(claims, "exp")
    if end is None:
        raise _missing("exp")
    if now >= end + leeway:
        raise rejected(
            RejectionReason.EXPIRED,
            "The token is refused: it has expired. Get a new one; if it is new, "
            "compare the clocks.",
            claim="exp",
            expected=now,
            received=end,
        )


def check_not_before(
    claims: Mapping[str, object], *, now: float, leeway: float
) -> None:
    """Refuse a token whose time has not come yet.

    Spec: RFC 7519 §4.1.5.
    """
    start = numeric_date(claims, "nbf")
    if start is not None and now < start - leeway:
        raise _from_the_future("nbf", now, start)


def check_issued_at(
    claims: Mapping[str, object], *, now: float, leeway: float, required: bool
) -> None:
    """Refuse a token that was issued in the future.

    Args:
        claims: What the token says.
        now: Epoch seconds.
        leeway: By how much the clocks may differ.
        required: Whether it has to say when it was issued.

    Spec: RFC 7519 §4.1.6; OIDC Core §3.1.3.7 step 10.
    """
    issued_at = numeric_date(claims, "iat")
    if issued_at is None:
        if required:
            raise _missing("iat")
    elif now < issued_at - leeway:
        raise _from_the_future("iat", now, issued_at)


def check_subject(claims: Mapping[str, object]) -> None:
    """Refuse a token that names its subject in a way that cannot be relied on.

    Spec: OIDC Core §2: at most 255 ASCII characters.
    """
    subject = text_claim(claims, "sub", required=True)
    if not subject or len(subject) > _MAX_SUBJECT or not subject.isascii():
        raise _invalid(
            "sub",
            "its subject is empty, too long or not in ASCII. Have the issuer name "
            "its users as OpenID Connect says",
        )


def numeric_date(claims: Mapping[str, object], name: str) -> float | None:
    """Return an instant in epoch seconds, or ``None`` if the claim is not there.

    Raises:
        TokenRejectedError: It is no number, or none that a date could be.

    Spec: RFC 7519 §2 (NumericDate).
    """
    if name not in claims:
        return None
    value = claims[name]
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -MAX_DATE <= value <= MAX_DATE
    ):
        raise _wrong_type(name, "a number of seconds since 1970", value)
    return value


@overload
def text_claim(
    claims: Mapping[str, object], name: str, *, required: Literal[True]
) -> str: ...
@overload
def text_claim(
    claims: Mapping[str, object], name: str, *, required: bool
) -> str | None: ...
def text_claim(
    claims: Mapping[str, object], name: str, *, required: bool
) -> str | None:
    """Return a claim that is text, or ``None`` if it is not there.

    Raises:
        TokenRejectedError: It is something else, or missing though *required*.
    """
    if name not in claims and not required:
        return None
    value = _required(claims, name)
    if not isinstance(value, str):
        raise _wrong_type(name, "text", value)
    return value


def _required(claims: Mapping[str, object], name: str) -> object:
    """Return a claim that has to be there."""
    if name not in claims:
        raise _missing(name)
    return claims[name]


def _missing(name: str) -> TokenRejectedError:
    """Return the error for a claim that is not there."""
    return rejected(
        RejectionReason.MISSING_CLAIM,
        f"The token is refused: it has no {name}. Have the issuer put it in.",
        claim=name,
    )


def _wrong_type(name: str, kind: str, value: object) -> TokenRejectedError:
    """Return the error for a claim that cannot be read."""
    return _invalid(
        name,
        f"its {name} is not {kind}. Have the issuer mend it",
        expected=kind,
        received=value,
    )


def _invalid(
    name: str, why: str, *, expected: object = None, received: object = None
) -> TokenRejectedError:
    """Return the error for a claim that says the wrong thing."""
    return rejected(
        RejectionReason.INVALID_CLAIM,
        f"The token is refused: {why}.",
        claim=name,
        expected=expected,
        received=received,
    )


def _from_the_future(name: str, now: float, start: float) -> TokenRejectedError:
    """Return the error for a token whose time has not come."""
    return rejected(
        RejectionReason.NOT_YET_VALID,
        f"The token is refused: its {name} lies in the future. Compare the clocks; "
        "if they cannot be set right, allow more leeway.",
        claim=name,
        expected=now,
        received=start,
    )

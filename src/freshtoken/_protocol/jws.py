"""Signed JWTs in the compact form: taken apart strictly, believed not at all.

Nothing here chooses a key or trusts what a token says about itself: ``jku``, ``jwk``,
``x5u`` and ``x5c`` are never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from freshtoken._foundation.secret import MASK
from freshtoken._protocol.base64url import decode_base64url
from freshtoken._protocol.body import UnreadableError, parse_json_object
from freshtoken._protocol.jwk import VerificationKey
from freshtoken._protocol.rejection import rejected
from freshtoken.errors import RejectionReason, TokenRejectedError

MAX_JWT = 65_536
_PARTS = 3
# Longer ones carry certificates: too large to be kept.
_MAX_CACHED_HEADER = 512


class _Header(NamedTuple):
    """A header, and what is asked of it."""

    members: Mapping[str, object]
    alg: str
    kid: str | None
    typ: str | None


class CompactJWS(NamedTuple):
    """The decoded parts of a compact JWS, and what the signature is over."""

    header: bytes
    payload: bytes
    signature: bytes
    signing_input: bytes


# Not frozen: one is made for every token, and freezing costs as much as the checks of
# all claims. Nor a tuple, whose parts error reporters would show.
@dataclass(slots=True, repr=False, eq=False)
class ParsedJWT:
    """A JWT that was read but not yet verified.

    Attributes:
        header: Its protected header.
        claims: What it says; believe nothing before the signature is verified.
        signing_input: What the signature is over.
        signature: Decoded; empty only for an unsigned token (``alg`` is ``none``).
        alg: As the header spells it.
        kid: Name of the key, if the header has one.
        typ: Lower case, without ``application/``.
    """

    header: Mapping[str, object]
    claims: Mapping[str, object]
    signing_input: bytes
    signature: bytes
    alg: str
    kid: str | None
    typ: str | None

    def __repr__(self) -> str:
        return f"ParsedJWT({MASK}, alg={self.alg[:20]!r})"


def parse_jwt(token: str) -> ParsedJWT:
    """Take a JWT apart; its signature is not looked at yet.

    Raises:
        TokenRejectedError: It is not in the compact form, one of its parts can be
            read in two ways, or its header asks for what nobody here understands.

    Spec: RFC 7515 §3.1, §4, §5.2; RFC 7519 §7.2; RFC 8725 §3.11, §3.12.
    """
    header, payload, signature, signing_input = _split(token)
    claims = _parse_object(payload, "payload")
    return _put_together(header, claims, signing_input, signature)


def split_compact(token: str) -> CompactJWS:
    """Decode the three parts of a compact JWS.

    Raises:
        TokenRejectedError: There are not three, or one is not plain base64url.

    Spec: RFC 7515 §3.1, §7.1.
    """
    return CompactJWS(*_split(token))


def read_parts(parts: CompactJWS, claims: Mapping[str, object]) -> ParsedJWT:
    """Read the header, and put it together with the claims.

    Raises:
        TokenRejectedError: The header is no JSON object, or cannot be followed.

    Spec: RFC 7515 §4.1.1, §4.1.4, §4.1.9, §4.1.11.
    """
    return _put_together(parts.header, claims, parts.signing_input, parts.signature)


def verify_signature(jwt: ParsedJWT, key: VerificationKey) -> None:
    """Refuse a token that *key* did not sign with the algorithm that it names.

    The caller has compared the algorithm with what is configured: see `verify_jwt`.

    Raises:
        TokenRejectedError: The signature is another's, or the token was changed.

    Spec: RFC 7515 §5.2; RFC 8725 §3.1.
    """
    if not key.verify(jwt.alg, jwt.signing_input, jwt.signature):
        raise rejected(
            RejectionReason.SIGNATURE,
            "The token is refused: its signature is not that of the issuer's key. It "
            "was changed, or signed by somebody else. Do not use it.",
        )


def _split(token: str) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the parts that `CompactJWS` names; every JWT comes by here."""
    if len(token) > MAX_JWT:
        raise _malformed(f"it is longer than {MAX_JWT} characters")
    if not token.isascii():
        raise _malformed("it holds characters that no JWT has")
    raw = token.encode()
    parts = raw.split(b".", _PARTS)
    if len(parts) != _PARTS:
        raise _malformed("it has not the three parts of a signed JWT")
    short = len(parts[0]) <= _MAX_CACHED_HEADER
    header = (_decode_header_once if short else decode_base64url)(parts[0])
    payload, signature = decode_base64url(parts[1]), decode_base64url(parts[2])
    if header is None or payload is None or signature is None:
        raise _malformed("a part of it is not base64url")
    signing_input = raw[: -len(parts[2]) - 1]
    return header, payload, signature, signing_input


def _put_together(
    octets: bytes, claims: Mapping[str, object], signing_input: bytes, signature: bytes
) -> ParsedJWT:
    """Read the header, and make the whole of it."""
    short = len(octets) <= _MAX_CACHED_HEADER
    header, alg, kid, typ = (_read_header_once if short else _read_header)(octets)
    if not signature and alg.lower() != "none":
        raise _malformed("it has no signature")
    return ParsedJWT(header, claims, signing_input, signature, alg, kid, typ)


def _read_header(octets: bytes) -> _Header:
    """Read a header, and refuse what cannot be followed."""
    header = _parse_object(octets, "header")
    alg, kid, typ = header.get("alg"), header.get("kid"), header.get("typ")
    if not isinstance(alg, str):
        raise rejected(
            RejectionReason.ALGORITHM,
            "The token is refused: its header names no algorithm. Do not use it.",
            claim="alg",
            received=alg,
        )
    if "crit" in header:
        # No extension is understood here, and a list that names none is not allowed.
        raise rejected(
            RejectionReason.CRITICAL_HEADER,
            "The token is refused: its header demands an extension (crit) that is not "
            "supported. Have the issuer send tokens without it.",
            claim="crit",
            received=header["crit"],
        )
    if "kid" in header and not isinstance(kid, str):
        raise _malformed("its kid is not text", claim="kid")
    if "typ" in header and not isinstance(typ, str):
        raise _malformed("its typ is not text", claim="typ")
    return _Header(
        MappingProxyType(header),
        alg,
        kid if isinstance(kid, str) else None,
        _media_type(typ) if isinstance(typ, str) else None,
    )


# All tokens that are signed with one key have the same header, so that most of them
# need not be read again. Nothing that is refused is remembered as good.
_decode_header_once = lru_cache(maxsize=64)(decode_base64url)
_read_header_once = lru_cache(maxsize=64)(_read_header)


def _parse_object(part: bytes, name: str) -> dict[str, object]:
    """Return the JSON object in a part; only UTF-8 will do, without a mark."""
    try:
        return parse_json_object(part.decode())
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except UnreadableError as error:
        reason = str(error)
    raise _malformed(f"its {name} cannot be read, {reason}")


def _media_type(typ: str) -> str:
    """Return a media type in lower case, without the prefix that may be left out."""
    return typ.lower().removeprefix("application/")


def _malformed(why: str, *, claim: str | None = None) -> TokenRejectedError:
    """Return the error for what is no JWT; *why* begins with "it" or "its"."""
    return rejected(
        RejectionReason.MALFORMED,
        f"The token is refused: {why}. Look at where it comes from.",
        claim=claim,
    )

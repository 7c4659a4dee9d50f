"""Proof that a code goes back to whoever asked for it (RFC 7636), and random values."""

from __future__ import annotations

import hashlib
import random
import re

from freshtoken._foundation.secret import redact
from freshtoken._protocol.base64url import encode_base64url
from freshtoken._protocol.metadata import ServerMetadata
from freshtoken._protocol.settings import refuse

CHALLENGE_METHOD = "S256"

_RANDOM_BITS = 256
_VERIFIER = re.compile(r"[A-Za-z0-9\-._~]{43,128}")


def random_text(rng: random.Random) -> str:
    """Return 256 random bits as 43 characters that no URL has to escape."""
    value = rng.getrandbits(_RANDOM_BITS)
    return encode_base64url(value.to_bytes(_RANDOM_BITS // 8, "big"))


def is_code_verifier(text: str) -> bool:
    """Tell whether *text* can be a verifier (RFC 7636 §4.1)."""
    return _VERIFIER.fullmatch(text) is not None


def check_code_verifier(text: str) -> None:
    """Refuse what cannot be a verifier; it is not shown."""
    if not is_code_verifier(text):
        refuse(
            "code_verifier",
            "is not 43 to 128 characters of A-Z, a-z, 0-9, '-', '.', '_' and '~'",
        )


def code_challenge(code_verifier: str) -> str:
    """Return the S256 challenge of a verifier (RFC 7636 §4.2)."""
    check_code_verifier(code_verifier)
    return encode_base64url(hashlib.sha256(code_verifier.encode("ascii")).digest())


def check_pkce(metadata: ServerMetadata) -> None:
    """Refuse a server that says it takes only weaker challenges.

    One that lists none at all is sent S256 like any other: where it is not understood
    it does no harm (RFC 6749 §3.1).

    Spec: RFC 7636 §7.2, RFC 8414 §2, RFC 9700 §2.1.1.
    """
    setting = "code_challenge_methods_supported"
    listed = metadata.values(setting)
    if listed is not None and CHALLENGE_METHOD not in listed:
        refuse(
            setting,
            f"lists only {redact(', '.join(listed))}: S256 is not given up for less; "
            "if the list is wrong, lay the right one over it with metadata=",
        )

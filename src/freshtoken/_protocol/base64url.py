"""Base64url as JOSE has it: without padding, and each value in one spelling only."""

from __future__ import annotations

import base64
import binascii

# The URL-safe alphabet becomes the usual one; what only the usual one has, and the
# padding, becomes a byte that no alphabet has.
_TO_BASE64 = bytes.maketrans(b"-_+/=", b"+/\x00\x00\x00")
# By the length of the rest: what is missing to a group of four, and the characters
# that may come last because they leave no unused bit set.
_PADDING = (b"", b"===", b"==", b"=")
_LAST = (None, b"", b"AQgw", b"AEIMQUYcgkosw048")


def decode_base64url(text: bytes) -> bytes | None:
    """Return what *text* stands for, or ``None`` if it is no base64url.

    A value has one spelling: characters outside the alphabet, padding and unused
    bits that are set make it none. Otherwise a token could be changed without
    breaking its signature.

    Spec: RFC 7515 §2, RFC 4648 §3.5, §5.
    """
    rest = len(text) % 4
    last = _LAST[rest]
    if last is not None and text[-1:] not in last:
        return None
    try:
        return binascii.a2b_base64(
            text.translate(_TO_BASE64) + _PADDING[rest], strict_mode=True
        )
    except binascii.Error:
        return None


def encode_base64url(value: bytes) -> str:
    """Return *value* in base64url without padding (RFC 7515 §2)."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

"""Answer bodies, decoded within bounds."""

from __future__ import annotations

import zlib

MOST_BYTES = 1024 * 1024

# 32 tells zlib to see for itself whether the data are gzip or zlib.
_AUTO = 32 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


class UnreadableBodyError(Exception):
    """The body is too large, cut, or encoded in a way that was not asked for."""


def check_size(size: int) -> None:
    """Refuse a body that is too large.

    Raises:
        UnreadableBodyError: It is.
    """
    if size > MOST_BYTES:
        raise UnreadableBodyError("the answer is larger than 1 MiB")


class BodyReader:
    """Collects one body, at most 1 MiB of it, and undoes gzip and deflate.

    A compressed bomb stops at the bound: nothing beyond it is ever inflated.

    Args:
        encoding: Value of ``Content-Encoding``, if there is one.

    Raises:
        UnreadableBodyError: The encoding is not one that was asked for.
    """

    def __init__(self, encoding: str | None) -> None:
        name = (encoding or "identity").strip().lower()
        if name not in {"identity", "gzip", "x-gzip", "deflate"}:
            raise UnreadableBodyError(
                "the answer has an encoding that was not asked for"
            )
        self._compressed = name != "identity"
        self._may_be_raw = name == "deflate"
        self._inflater = zlib.decompressobj(_AUTO)
        self._received = 0
        self._body = bytearray()

    def feed(self, chunk: bytes) -> UnreadableBodyError | None:
        """Take what came over the wire; return why no more of it is wanted, if so."""
        self._received += len(chunk)
        try:
            check_size(self._received)
            if self._compressed:
                self._inflate(chunk)
            else:
                self._body += chunk
        except UnreadableBodyError as error:
            return error
        except zlib.error:
            return UnreadableBodyError("the answer is not encoded as it says")
        return None

    def finish(self) -> bytes:
        """Return the whole body.

        Raises:
            UnreadableBodyError: The compressed data end too early.
        """
        if self._compressed and self._received and not self._inflater.eof:
            raise UnreadableBodyError("the answer ends too early")
        return bytes(self._body)

    def _inflate(self, chunk: bytes) -> None:
        """Inflate *chunk*, which may end one gzip member and begin the next."""
        data = chunk
        while data:
            if self._inflater.eof:
                self._inflater = zlib.decompressobj(_AUTO)
            room = MOST_BYTES - len(self._body)
            try:
                self._body += self._inflater.decompress(data, room + 1)
            except zlib.error:
                # Some servers send deflate without the zlib wrapper of RFC 9110 §8.4.
                if not self._may_be_raw or self._body:
                    raise
                self._inflater = zlib.decompressobj(_RAW)
                self._body += self._inflater.decompress(data, room + 1)
            self._may_be_raw = False
            check_size(len(self._body))
            data = self._inflater.unconsumed_tail or self._inflater.unused_data

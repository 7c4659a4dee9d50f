"""Bodies within bounds."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._wire.body import MOST_BYTES, BodyReader, UnreadableBodyError


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str | None, Callable[[bytes], bytes]] = {
    None: bytes,
    "identity": bytes,
    "gzip": gzip.compress,
    " GZIP ": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
}


def read(encoding: str | None, data: bytes, step: int = 65_536) -> bytes:
    reader = BodyReader(encoding)
    for start in range(0, len(data), step):
        problem = reader.feed(data[start : start + step])
        if problem is not None:
            raise problem
    return reader.finish()


@given(st.sampled_from(list(PACKERS)), st.binary(max_size=300), st.integers(1, 50))
def test_body_is_unpacked_however_it_is_cut(
    encoding: str | None, body: bytes, step: int
) -> None:
    assert read(encoding, PACKERS[encoding](body), step) == body


@given(st.binary(min_size=1, max_size=300))
def test_deflate_without_its_wrapper_is_read(body: bytes) -> None:
    assert read("deflate", raw_deflate(body)) == body


def test_gzip_in_two_members_is_read() -> None:
    assert read("gzip", gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"


def test_empty_body_is_empty_whatever_its_encoding() -> None:
    assert read("gzip", b"") == b""


@pytest.mark.parametrize("encoding", [None, "gzip"])
def test_limit_is_one_mebibyte(encoding: str | None) -> None:
    pack = PACKERS[encoding]

    assert len(read(encoding, pack(bytes(MOST_BYTES)))) == MOST_BYTES
    with pytest.raises(UnreadableBodyError):
        read(encoding, pack(bytes(MOST_BYTES + 1)))


def test_bomb_stops_at_the_limit() -> None:
    """A gigabyte of zeros in a megabyte: never more than the limit is inflated."""
    packer = zlib.compressobj(9, wbits=31)
    block = packer.compress(bytes(16 * MOST_BYTES)) + packer.flush(zlib.Z_SYNC_FLUSH)
    reader = BodyReader("gzip")

    problem = reader.feed(block)

    assert isinstance(problem, UnreadableBodyError)
    assert len(reader._body) <= MOST_BYTES + 1


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "nonsense"])
def test_encoding_that_was_not_asked_for_is_refused(encoding: str) -> None:
    with pytest.raises(UnreadableBodyError):
        BodyReader(encoding)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_damaged_and_cut_bodies_are_refused(encoding: str) -> None:
    whole = PACKERS[encoding](b"x" * 100)

    with pytest.raises(UnreadableBodyError):
        read(encoding, b"no archive" * 3)
    with pytest.raises(UnreadableBodyError):
        read(encoding, whole[:-4])

"""Odd shapes of answers, as real servers send them."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import urlencode

from freshtoken.testing.messages import MockResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

Shape = Literal[
    "array",
    "bom",
    "empty",
    "form",
    "gzip",
    "html",
    "json_as_html",
    "no_content_type",
    "not_utf8",
    "null",
    "padded",
    "utf16",
]

_HTML = b"<!doctype html><title>Login</title><h1>Please sign in</h1>"


def apply_shape(response: MockResponse, shape: Shape) -> MockResponse:
    """Return *response* in another shape.

    Raises:
        ValueError: No shape has this name.
    """
    change = _SHAPES.get(shape)
    if change is None:
        message = f"no shape {shape!r}; there are {', '.join(get_args(Shape))}"
        raise ValueError(message)
    return change(response)


def change_members(
    response: MockResponse, merge: Mapping[str, object], remove: Collection[str]
) -> MockResponse:
    """Return *response* with members of its JSON object set and left out."""
    members = {**response.members(), **merge}
    for name in remove:
        members.pop(name, None)
    return replace(response, body=json.dumps(members).encode())


def encode_body(
    body: Mapping[str, object] | str | bytes | None,
) -> tuple[bytes, str | None]:
    """Return bytes and content type for what a test gives as a body."""
    if body is None:
        return b"", None
    if isinstance(body, bytes):
        return body, None
    if isinstance(body, str):
        return body.encode(), "text/html; charset=utf-8"
    return json.dumps(dict(body)).encode(), "application/json"


def _without(response: MockResponse, header: str) -> MockResponse:
    """Return *response* without a header."""
    kept = tuple(pair for pair in response.headers if pair[0].lower() != header)
    return replace(response, headers=kept)


def _labelled(response: MockResponse, label: str, body: bytes) -> MockResponse:
    """Return *response* with another body and content type."""
    return replace(response.with_headers({"Content-Type": label}), body=body)


def _form(response: MockResponse) -> MockResponse:
    """As GitHub answers unless asked for JSON."""
    body = urlencode({name: str(v) for name, v in response.members().items()}).encode()
    return _labelled(response, "application/x-www-form-urlencoded", body)


def _gzip(response: MockResponse) -> MockResponse:
    """Compressed, and said so."""
    packed = replace(response, body=gzip.compress(response.body, mtime=0))
    return packed.with_headers({"Content-Encoding": "gzip"})


_SHAPES: Mapping[str, Callable[[MockResponse], MockResponse]] = {
    "array": lambda one: replace(one, body=b"[" + one.body + b"]"),
    "bom": lambda one: replace(one, body=b"\xef\xbb\xbf" + one.body),
    "empty": lambda one: _without(replace(one, body=b""), "content-type"),
    "form": _form,
    "gzip": _gzip,
    "html": lambda one: _labelled(one, "text/html; charset=utf-8", _HTML),
    "json_as_html": lambda one: _labelled(one, "text/html", one.body),
    "no_content_type": lambda one: _without(one, "content-type"),
    "not_utf8": lambda one: replace(one, body=b'{"error": "\xff\xfe"}'),
    "null": lambda one: replace(one, body=b"null"),
    "padded": lambda one: replace(one, body=b"\n \t" + one.body + b"\r\n\n"),
    "utf16": lambda one: replace(one, body=one.body.decode().encode("utf-16")),
}

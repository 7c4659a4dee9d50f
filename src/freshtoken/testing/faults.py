"""Faults: what a test makes the mock server do to coming requests."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Unpack

from freshtoken.testing.fault import Change, Fault, FaultOptions, Point
from freshtoken.testing.messages import MockResponse, NoAnswerKind, RequestRecord
from freshtoken.testing.shapes import Shape, apply_shape, change_members, encode_body

Body = Mapping[str, object] | str | bytes


class FaultInjection:
    """The part of the mock server by which tests queue faults.

    Faults are met in the order in which they were queued; a request meets at most
    one. Each method returns the `Fault`, and takes the keywords of `FaultOptions`.
    *endpoint* is one of ``"token"``, ``"revoke"``, ``"userinfo"``, ``"authorize"``,
    ``"end_session"``, ``"jwks"``, ``"openid_configuration"`` and
    ``"oauth_metadata"``.
    """

    def __init__(self) -> None:
        """Start without faults."""
        self._faults: list[Fault] = []
        self._faults_lock = threading.Lock()

    def fail_next(
        self,
        endpoint: str = "token",
        *,
        status: int | None = None,
        error: str | None = None,
        description: str | None = None,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        processed: bool = False,
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Answer with a failure.

        Args:
            status: 400 with an *error*, else 503, unless given.
            error: OAuth error code of a JSON body.
            description: The ``error_description`` beside it.
            body: In the place of these: a mapping is sent as JSON, text as HTML,
                bytes without a content type.
            headers: Added, or in the place of the usual ones.
            processed: Whether the server acts on the request all the same.
        """
        if status is None:
            status = 503 if error is None else 400
        if body is None and error is not None:
            body = {"error": error}
            if description is not None:
                body = {**body, "error_description": description}
        content, label = encode_body(body)
        answer = MockResponse(status, (), content)
        if label is not None:
            answer = answer.with_headers({"Content-Type": label})
        name = " ".join(str(part) for part in (status, error) if part is not None)
        fault = Fault(name, endpoint, _point(processed=processed), **options)
        fault.answer = answer.with_headers(headers or {})
        return self.queue_fault(fault)

    def delay_next(
        self,
        endpoint: str,
        seconds: float,
        *,
        processed: bool = False,
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Answer *seconds* late, by the injected clock.

        Args:
            processed: Whether the server acts on the request before the delay.
        """
        options["delay"] = seconds
        point = _point(processed=processed)
        return self.queue_fault(
            Fault(f"delay {seconds:g} s {point}", endpoint, point, **options)
        )

    def hang_next(
        self,
        endpoint: str = "token",
        *,
        processed: bool = False,
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Never answer, until released; a sender that gives up takes its request back.

        Args:
            processed: Whether the server acts on the request before it hangs.
        """
        options["hold"] = True
        point = _point(processed=processed)
        return self.queue_fault(Fault(f"hang {point}", endpoint, point, **options))

    def hold_next(
        self,
        endpoint: str = "token",
        *,
        at: Point = "before",
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Stop requests at a point until released, then go on as if nothing was.

        A request that is held before the server acted on it is acted on at the
        release even if its sender has given up: it was on the wire.
        """
        options["hold"] = True
        fault = Fault(f"hold {at}", endpoint, at, **options)
        fault.outlives_sender = True
        return self.queue_fault(fault)

    def drop_next(
        self,
        endpoint: str = "token",
        *,
        processed: bool,
        kind: NoAnswerKind = "read",
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Break the connection in the place of an answer.

        Args:
            processed: Whether the server acts on the request first: with a refresh,
                the token is rotated and the answer lost.
            kind: What the client meets: ``"read"`` (connection reset), ``"protocol"``
                (closed without an answer), ``"read_timeout"``, ``"write"``,
                ``"write_timeout"``. Over a socket each is a reset or a close.
        """
        point = _point(processed=processed)
        fault = Fault(f"drop {point} ({kind})", endpoint, point, **options)
        fault.no_answer = kind
        return self.queue_fault(fault)

    def refuse_next(
        self,
        endpoint: str = "token",
        *,
        kind: NoAnswerKind = "connect",
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Let requests fail before they are sent; the log does not see them.

        Args:
            kind: ``"connect"``, ``"connect_timeout"``, ``"dns"``, ``"tls"`` or
                ``"pool_timeout"``. Over a socket the connection is reset instead.
        """
        fault = Fault(f"refuse ({kind})", endpoint, "before", **options)
        fault.no_answer = kind
        return self.queue_fault(fault)

    def cut_next(
        self,
        endpoint: str = "token",
        *,
        keep: int = 20,
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Act on the request, then break off after *keep* bytes of the answer."""
        return self._change(
            "cut", endpoint, lambda one: replace(one, cut_after=keep), options
        )

    def garble_next(
        self,
        endpoint: str = "token",
        *,
        body: bytes = b'{"access_token": "at-0\x00\xff',
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Act on the request, then answer whole but unreadable."""
        return self._change(
            "garbled", endpoint, lambda one: replace(one, body=body), options
        )

    def reshape_next(
        self,
        endpoint: str = "token",
        *,
        merge: Mapping[str, object] | None = None,
        remove: Collection[str] = (),
        shape: Shape | None = None,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Act on the request, then answer in another shape.

        Args:
            merge: Members of the JSON object to set.
            remove: Members to leave out.
            shape: What to do to the body; see `freshtoken.testing.shapes`.
            status: In the place of the usual one.
            headers: Added, or in the place of the usual ones.
        """
        if shape is not None:
            apply_shape(MockResponse(200, (), b"{}"), shape)  # refuse unknown names

        def change(response: MockResponse) -> MockResponse:
            if merge or remove:
                response = change_members(response, merge or {}, remove)
            if shape is not None:
                response = apply_shape(response, shape)
            if status is not None:
                response = replace(response, status=status)
            return response.with_headers(headers or {})

        return self._change(f"reshape {shape or 'members'}", endpoint, change, options)

    def oversize_next(
        self,
        endpoint: str = "token",
        *,
        size: int = 8_000_000,
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Act on the request, then answer with *size* bytes: padded with spaces."""
        return self._change(
            "oversize",
            endpoint,
            lambda one: replace(one, body=one.body.rjust(size)),
            options,
        )

    def redirect_next(
        self,
        endpoint: str = "token",
        *,
        location: str = "https://elsewhere.test/token",
        status: int = 307,
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Redirect to *location* without acting on the request."""
        fault = Fault(f"redirect {status}", endpoint, "before", **options)
        fault.answer = MockResponse(status, (("Location", location),))
        return self.queue_fault(fault)

    def queue_fault(self, fault: Fault) -> Fault:
        """Queue a fault behind all others."""
        with self._faults_lock:
            self._faults.append(fault)
        return fault

    @property
    def pending_faults(self) -> list[Fault]:
        """Faults that requests are still to meet."""
        with self._faults_lock:
            return [fault for fault in self._faults if fault.pending]

    def assert_no_pending_faults(self) -> None:
        """Fail if a fault was queued and never met: the test tested less than it says.

        Raises:
            AssertionError: Names the faults.
        """
        pending = self.pending_faults
        if pending:
            message = f"no request met {', '.join(map(repr, pending))}"
            raise AssertionError(message)

    def clear_faults(self) -> None:
        """Forget all faults, met or not, and let all held requests go on."""
        with self._faults_lock:
            faults, self._faults = self._faults, []
        for fault in faults:
            fault.release()

    def _take_fault(self, record: RequestRecord) -> Fault | None:
        """Return the first fault that a request meets."""
        with self._faults_lock:
            for fault in self._faults:
                if fault.take(record):
                    return fault
        return None

    def _change(
        self, name: str, endpoint: str, change: Change, options: FaultOptions
    ) -> Fault:
        """Queue a fault that changes answers."""
        fault = Fault(name, endpoint, "after", **options)
        fault.change = change
        return self.queue_fault(fault)


def _point(*, processed: bool) -> Point:
    """Return the point of a fault."""
    return "after" if processed else "before"

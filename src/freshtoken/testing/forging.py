"""Forgeries: what the mock server is to say wrong in a sign-in."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Literal

from freshtoken.testing.faults import FaultInjection
from freshtoken.testing.keys import ALGORITHMS, SigningKey

Occasion = Literal["code", "refresh"]
Pairs = list[tuple[str, str]]


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class Forgery:
    """One queued forgery; made by the methods of the mock server.

    Attributes:
        name: What it changes.
        count: How often it is to be met.
        met: How often it was.
    """

    name: str
    count: int = 1
    met: int = 0

    @property
    def pending(self) -> bool:
        """Whether it is still to be met."""
        return self.met < self.count

    def __repr__(self) -> str:
        """Show what it changes, and how often it has; no values."""
        return f"{type(self).__name__}({self.name!r}, met {self.met} of {self.count})"


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class IDTokenForgery(Forgery):
    """How one ID token differs from a right one; see `Forging.forge_next_id_token`."""

    claims: Mapping[str, object] = field(default_factory=dict)
    remove: Collection[str] = ()
    headers: Mapping[str, object] = field(default_factory=dict)
    alg: str | None = None
    key: SigningKey | bytes | None = None
    kid: str | EllipsisType | None = ...
    break_signature: bool = False
    on: Occasion | None = None


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class AuthorizationForgery(Forgery):
    """How one answer to an authorization request differs from a right one."""

    parameters: Mapping[str, str] = field(default_factory=dict)
    remove: Collection[str] = ()
    repeat: Collection[str] = ()

    @property
    def refuses(self) -> bool:
        """Whether the answer is an error, for which there is no code."""
        return "error" in self.parameters

    def apply(self, pairs: Pairs) -> Pairs:
        """Return the parameters as the browser is to bring them."""
        right = {name: value for name, value in pairs if name not in self.remove}
        changed = list({**right, **self.parameters}.items())
        return [*changed, *(pair for pair in changed if pair[0] in self.repeat)]


class Forging(FaultInjection):
    """The part of the mock server by which tests queue forgeries.

    Like faults they are met in order, and fail the test if they never are.
    """

    def __init__(self) -> None:
        """Start honest."""
        super().__init__()
        self._forgeries: list[Forgery] = []
        self._forgeries_lock = threading.Lock()

    def forge_next_id_token(
        self,
        *,
        claims: Mapping[str, object] | None = None,
        remove: Collection[str] = (),
        headers: Mapping[str, object] | None = None,
        alg: str | None = None,
        key: SigningKey | bytes | None = None,
        kid: str | EllipsisType | None = ...,
        break_signature: bool = False,
        on: Occasion | None = None,
        count: int = 1,
    ) -> Forgery:
        """Give an ID token that is not as it should be; the rest of it is right.

        Args:
            claims: Set in the place of the right ones.
            remove: Claims to leave out.
            headers: Header members to set; ``None`` leaves one out.
            alg: Another algorithm to sign with, by the key that the server has for
                it, or by the client's secret; ``"none"`` leaves it unsigned.
            key: Another key; bytes are a shared secret, for HS256 unless *alg* says
                otherwise.
            kid: In the place of the key's own; ``None`` leaves it out.
            break_signature: Whether one bit of the signature is wrong.
            on: Only with a ``"code"``, or only with a ``"refresh"``.
            count: How many ID tokens.

        Raises:
            ValueError: Nothing can sign with *alg*; to name an algorithm in the
                header only, use *headers*.
        """
        if alg is not None and alg not in ALGORITHMS:
            message = f"no key for {alg!r}; there are {', '.join(ALGORITHMS)}"
            raise ValueError(message)
        changed = [*(claims or {}), *remove, *(headers or {})]
        return self._queue_forgery(
            IDTokenForgery(
                name=" ".join(["ID token", *changed]),
                count=count,
                claims=dict(claims or {}),
                remove=tuple(remove),
                headers=dict(headers or {}),
                alg=alg,
                key=key,
                kid=kid,
                break_signature=break_signature,
                on=on,
            )
        )

    def answer_authorization_with(
        self,
        *,
        remove: Collection[str] = (),
        repeat: Collection[str] = (),
        count: int = 1,
        **parameters: str,
    ) -> Forgery:
        """Send the browser back with other parameters than the right ones.

        With an ``error`` the user is refused, and there is no ``code`` unless one is
        given: ``answer_authorization_with(error="access_denied")``.

        Args:
            remove: Parameters to leave out.
            repeat: Parameters to send twice.
            count: How many answers.
            parameters: Set in the place of the right ones, such as ``iss``.
        """
        changed = [*parameters, *remove, *repeat]
        return self._queue_forgery(
            AuthorizationForgery(
                name=" ".join(["authorization answer", *changed]),
                count=count,
                parameters=parameters,
                remove=tuple(remove),
                repeat=tuple(repeat),
            )
        )

    @property
    def pending_forgeries(self) -> list[Forgery]:
        """Forgeries that are still to be met."""
        with self._forgeries_lock:
            return [forgery for forgery in self._forgeries if forgery.pending]

    def assert_no_pending_faults(self) -> None:
        """Fail if a fault or a forgery was queued and never met.

        Raises:
            AssertionError: Names them.
        """
        super().assert_no_pending_faults()
        pending = self.pending_forgeries
        if pending:
            message = f"no sign-in met {', '.join(map(repr, pending))}"
            raise AssertionError(message)

    def clear_faults(self) -> None:
        """Forget all faults and forgeries, and let all held requests go on."""
        super().clear_faults()
        with self._forgeries_lock:
            self._forgeries.clear()

    def take_id_token_forgery(self, occasion: Occasion) -> IDTokenForgery | None:
        """Return what is wrong with the ID token that is to be made now."""
        with self._forgeries_lock:
            for forgery in self._forgeries:
                if not isinstance(forgery, IDTokenForgery) or not forgery.pending:
                    continue
                if forgery.on in {None, occasion}:
                    forgery.met += 1
                    return forgery
        return None

    def take_authorization_forgery(self) -> AuthorizationForgery | None:
        """Return what is wrong with the answer that is to be sent now."""
        with self._forgeries_lock:
            for forgery in self._forgeries:
                if isinstance(forgery, AuthorizationForgery) and forgery.pending:
                    forgery.met += 1
                    return forgery
        return None

    def _queue_forgery(self, forgery: Forgery) -> Forgery:
        """Queue a forgery behind all others."""
        with self._forgeries_lock:
            self._forgeries.append(forgery)
        return forgery

"""The mock server's keys: which one signs, and which ones it publishes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from freshtoken.testing.clients import MockClient
from freshtoken.testing.keys import SECRET_ALGORITHMS, SigningKey, signing_key

KeyRotation = Literal["overlap", "hard", "same_kid"]

_FALLBACK = "RS256"


@dataclass(frozen=True, slots=True)
class KeyGeneration:
    """Keys that came into use together: one for each algorithm, made when asked for.

    Attributes:
        number: Which keys they are, from 1; the same in every server of a process,
            since making an RSA key takes its time.
        kid_number: Whose ``kid`` values they go by; another generation's after a
            rotation that kept them.
    """

    number: int = 1
    kid_number: int = 1

    def key(self, alg: str) -> SigningKey:
        """Return the key for an algorithm.

        Raises:
            ValueError: No key can be made for *alg*.
        """
        kid = f"{_name(self.kid_number)}-{alg}"
        return dataclasses.replace(signing_key(alg, _name(self.number)), kid=kid)


@dataclass(slots=True)
class KeyRing:
    """Two things apart: what signs, and what others can look up.

    Attributes:
        signing: The generation that signs.
        published: The generations in the key set; change it to make what no rotation
            makes, such as a key that is announced before it signs.
        due: What `MockIdP.publish_keys` publishes.
    """

    signing: KeyGeneration = field(default_factory=KeyGeneration)
    published: list[KeyGeneration] = field(default_factory=lambda: [KeyGeneration()])
    due: list[KeyGeneration] = field(default_factory=lambda: [KeyGeneration()])
    _count: int = 1

    def rotate(self, how: KeyRotation) -> None:
        """Let new keys sign; what is published stays for the moment."""
        if how not in get_args(KeyRotation):
            message = (
                f"no rotation {how!r}; there are {', '.join(get_args(KeyRotation))}"
            )
            raise ValueError(message)
        self._count += 1
        kid_number = self.signing.kid_number if how == "same_kid" else self._count
        self.signing = KeyGeneration(self._count, kid_number)
        kept = self.due if how == "overlap" else []
        self.due = [*kept, self.signing]

    def publish(self) -> None:
        """Publish what is due."""
        self.published = list(self.due)


class KeyManagement:
    """The part of `MockIdP` that owns its keys.

    Attributes:
        signing_alg: Algorithm of the JWTs that it signs, unless a client's
            `MockClient.id_token_alg` says otherwise.
        keys: See `KeyRing`.
        extra_keys: Put into the key set before the server's own, whatever they are.
    """

    clients: dict[str, MockClient]

    def __init__(self) -> None:
        """Start with one generation of keys."""
        super().__init__()
        self.signing_alg: str = _FALLBACK
        self.keys: KeyRing = KeyRing()
        self.extra_keys: list[Any] = []

    def rotate_keys(
        self, how: KeyRotation = "overlap", *, publish: bool = True
    ) -> SigningKey:
        """Let a new key sign from now on; return it.

        Args:
            how: ``"overlap"``: the key set has the old keys, too, until `retire_keys`.
                ``"hard"``: it has the new ones only. ``"same_kid"``: likewise, and
                they go by the ``kid`` of the old ones.
            publish: Whether the key set changes at once, or at `publish_keys`: until
                then tokens are signed with a key that nobody can look up.
        """
        self.keys.rotate(how)
        if publish:
            self.keys.publish()
        return self.current_key()

    def publish_keys(self) -> None:
        """Publish what a rotation with ``publish=False`` left out."""
        self.keys.publish()

    def retire_keys(self) -> None:
        """Publish the signing keys only, as at the end of an overlap."""
        self.keys.due = [self.keys.signing]
        self.keys.publish()

    def current_key(self, alg: str | None = None) -> SigningKey:
        """Return the key that signs now.

        Args:
            alg: The algorithm; by default the server's, or RS256 if that is one of
                shared secrets.
        """
        return self.keys.signing.key(alg or self.public_algorithms()[0])

    def public_algorithms(self) -> list[str]:
        """Return the algorithms of the keys that it publishes, its own one first."""
        own = _FALLBACK if self.signing_alg in SECRET_ALGORITHMS else self.signing_alg
        others = (client.id_token_alg for client in list(self.clients.values()))
        asked = (alg for alg in others if alg and alg not in SECRET_ALGORITHMS)
        return list(dict.fromkeys([own, *asked]))

    def jwks(self) -> dict[str, Any]:
        """Return the key set that the server publishes."""
        keys = [
            generation.key(alg).public_jwk()
            for generation in self.keys.published
            for alg in self.public_algorithms()
        ]
        return {"keys": [*self.extra_keys, *keys]}


def _name(number: int) -> str:
    """Return the name of a generation."""
    return "mock-idp" if number == 1 else f"mock-idp-{number}"

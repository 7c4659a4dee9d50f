"""What the driver of ``oidc-provider`` hands out: clients and log entries."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import secrets
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote_plus

import jwt
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class ServerError(Exception):
    """The server did not start, or refused what a test asked of it."""


def hash_token(token: str) -> str:
    """Return the form in which the server's log names a token."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class RegisteredClient:
    """A client as the server knows it, with the secret or private key it needs."""

    client_id: str
    token_endpoint_auth_method: str
    client_secret: str | None = None
    signing_alg: str | None = None
    id_token_signed_response_alg: str = "RS256"
    private_jwk: Mapping[str, str] | None = None

    @property
    def private_pem(self) -> str:
        """The private key in PKCS #8 form."""
        if self.private_jwk is None:
            raise ServerError(f"client {self.client_id!r} has no private key")
        key: PrivateKeyTypes = jwt.PyJWK(dict(self.private_jwk)).key
        encoding, form = Encoding.PEM, PrivateFormat.PKCS8
        return key.private_bytes(encoding, form, NoEncryption()).decode()

    @property
    def is_confidential(self) -> bool:
        """Whether the client may use client credentials."""
        return self.token_endpoint_auth_method != "none"

    def authenticate(self, issuer: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return headers and form fields that authenticate one request, by hand.

        Built without the library under test, so that the two can disagree.
        """
        match self.token_endpoint_auth_method:
            case "client_secret_basic":
                pair = f"{quote_plus(self.client_id)}:{quote_plus(self._secret)}"
                encoded = base64.b64encode(pair.encode()).decode()
                return {"Authorization": f"Basic {encoded}"}, {}
            case "client_secret_post":
                form = {"client_id": self.client_id, "client_secret": self._secret}
                return {}, form
            case "client_secret_jwt" | "private_key_jwt":
                return {}, self._assertion(issuer)
            case _:
                return {}, {"client_id": self.client_id}

    def _assertion(self, issuer: str) -> dict[str, str]:
        key = jwt.PyJWK(dict(self.private_jwk)) if self.private_jwk else self._secret
        now = int(time.time())
        claims = {
            "iss": self.client_id,
            "sub": self.client_id,
            "aud": issuer,
            "iat": now,
            "exp": now + 60,
            "jti": secrets.token_urlsafe(),
        }
        headers = {"kid": self.private_jwk["kid"]} if self.private_jwk else None
        assertion = jwt.encode(claims, key, self.signing_alg or "HS256", headers)
        return {
            "client_assertion_type": _ASSERTION_TYPE,
            "client_assertion": assertion,
        }

    @property
    def _secret(self) -> str:
        if self.client_secret is None:
            raise ServerError(f"client {self.client_id!r} has no secret")
        return self.client_secret


@dataclasses.dataclass(frozen=True, slots=True)
class IssuedCode:
    """An authorization code that nobody has redeemed yet, and what belongs to it."""

    code: str
    code_verifier: str
    redirect_uri: str


@dataclasses.dataclass(frozen=True, slots=True)
class LogEntry:
    """One request as the server saw it.

    ``status`` is what the provider decided, also when its answer was lost afterwards:
    ``processed`` says that the provider saw the request, ``answered`` that a whole
    answer went out. A request still under way has neither and no status. ``at`` is by
    the machine's clock, also while the server's is shifted.
    """

    at: float
    endpoint: str
    method: str
    path: str
    grant_type: str | None
    client_id: str | None
    client_auth: str | None
    scope: str | None
    code_sha256: str | None
    refresh_token_sha256: str | None
    issued_refresh_token_sha256: str | None
    id_token_kid: str | None
    status: int | None
    error: str | None
    fault: str | None
    processed: bool
    answered: bool

    def __str__(self) -> str:
        """Return one short line, for the report of a failed test."""
        parts = (self.method, self.path, self.grant_type, self.client_id)
        request = " ".join(part for part in parts if part)
        outcome = " ".join(str(part) for part in (self.status, self.error) if part)
        fault = f", fault: {self.fault}" if self.fault else ""
        return f"{self.at:.3f} {request} -> {outcome or 'nothing yet'}{fault}"


def parse_client(entry: Mapping[str, Any]) -> RegisteredClient:
    metadata = entry["metadata"]
    return RegisteredClient(
        client_id=metadata["client_id"],
        token_endpoint_auth_method=metadata["token_endpoint_auth_method"],
        client_secret=metadata.get("client_secret"),
        signing_alg=metadata.get("token_endpoint_auth_signing_alg"),
        id_token_signed_response_alg=metadata.get(
            "id_token_signed_response_alg", "RS256"
        ),
        private_jwk=entry.get("private_jwk"),
    )

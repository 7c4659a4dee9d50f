"""OAuth 2.0 and OpenID Connect tokens that are always fresh when asked for.

Names are imported when they are first used: pytest loads the plugin of this package
in every test run on the machine, which must cost nothing.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from freshtoken._foundation.records import AccessToken, Session
    from freshtoken._foundation.secret import Secret
    from freshtoken._lifecycle.manager import TokenManager
    from freshtoken._lifecycle.signing_in import SignIn
    from freshtoken._protocol.client import OAuthClient
    from freshtoken.errors import (
        AccessDeniedError,
        AuthorizationResponseError,
        ClientRejectedError,
        Disposition,
        FreshTokenError,
        IssuerMismatchError,
        MisconfiguredError,
        RejectionReason,
        RetryableError,
        SignInRequiredError,
        StoreError,
        TokenRejectedError,
        TransportError,
    )
    from freshtoken.stores.memory import MemoryStore
    from freshtoken.validator import JWTValidator, ValidatedToken

__all__ = [
    "AccessDeniedError",
    "AccessToken",
    "AuthorizationResponseError",
    "ClientRejectedError",
    "Disposition",
    "FreshTokenError",
    "IssuerMismatchError",
    "JWTValidator",
    "MemoryStore",
    "MisconfiguredError",
    "OAuthClient",
    "RejectionReason",
    "RetryableError",
    "Secret",
    "Session",
    "SignIn",
    "SignInRequiredError",
    "StoreError",
    "TokenManager",
    "TokenRejectedError",
    "TransportError",
    "ValidatedToken",
]

_HOMES = {
    "AccessToken": "_foundation.records",
    "JWTValidator": "validator",
    "MemoryStore": "stores.memory",
    "OAuthClient": "_protocol.client",
    "Secret": "_foundation.secret",
    "Session": "_foundation.records",
    "SignIn": "_lifecycle.signing_in",
    "TokenManager": "_lifecycle.manager",
    "ValidatedToken": "validator",
}


if not TYPE_CHECKING:  # Else a checker would believe in every name.

    def __getattr__(name: str) -> object:
        """Import a public name at its first use."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
        value: object = getattr(home, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__

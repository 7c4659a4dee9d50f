"""Doubles for tests of applications that use the library.

`MockIdP` is an authorization server inside the test, `FakeClock` a clock that stands
still until it is moved. With the pytest plugin both are fixtures: ``mock_idp`` and
``fake_clock``.
"""

from __future__ import annotations

from freshtoken.testing.browser import Browser, BrowserStoppedError, CallbackForm
from freshtoken.testing.clients import MockClient
from freshtoken.testing.clock import FakeClock
from freshtoken.testing.fault import Fault, FaultOptions
from freshtoken.testing.forging import Forgery
from freshtoken.testing.grants import MockGrant, TokenRules
from freshtoken.testing.idp import MockIdP
from freshtoken.testing.key_ring import KeyGeneration, KeyRing
from freshtoken.testing.keys import SigningKey, jwk_set, signing_key
from freshtoken.testing.messages import (
    MockRequest,
    MockResponse,
    NoAnswerError,
    RequestRecord,
)
from freshtoken.testing.shortcuts import (
    DEFAULT_CLIENT_ID,
    DEFAULT_CLIENT_SECRET,
    DEFAULT_REDIRECT_URI,
    DEFAULT_SCOPE,
)
from freshtoken.testing.users import DEFAULT_USER, MockUser

__all__ = [  # noqa: RUF022 -- sorted as text
    "Browser",
    "BrowserStoppedError",
    "CallbackForm",
    "DEFAULT_CLIENT_ID",
    "DEFAULT_CLIENT_SECRET",
    "DEFAULT_REDIRECT_URI",
    "DEFAULT_SCOPE",
    "DEFAULT_USER",
    "FakeClock",
    "Fault",
    "FaultOptions",
    "Forgery",
    "KeyGeneration",
    "KeyRing",
    "MockClient",
    "MockGrant",
    "MockIdP",
    "MockRequest",
    "MockResponse",
    "MockUser",
    "NoAnswerError",
    "RequestRecord",
    "SigningKey",
    "TokenRules",
    "jwk_set",
    "signing_key",
]

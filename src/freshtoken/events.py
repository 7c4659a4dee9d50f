"""The events that a `freshtoken.TokenManager` reports to its ``on_event`` handler."""

from freshtoken._lifecycle.events import (
    ClockSkewSeen,
    Event,
    LifetimeUnknown,
    RefreshFailed,
    RevocationFailed,
    RotationInDoubt,
    RotationLost,
    SaveFailing,
    SaveLost,
    ServedStale,
    SessionEnded,
    Stats,
    StoreForgot,
    StoreUnavailable,
    TokenRefreshed,
    TokenRequestCount,
)

__all__ = [
    "ClockSkewSeen",
    "Event",
    "LifetimeUnknown",
    "RefreshFailed",
    "RevocationFailed",
    "RotationInDoubt",
    "RotationLost",
    "SaveFailing",
    "SaveLost",
    "ServedStale",
    "SessionEnded",
    "Stats",
    "StoreForgot",
    "StoreUnavailable",
    "TokenRefreshed",
    "TokenRequestCount",
]

"""How applications tell failures apart: checked, never run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_type

from freshtoken import (
    AccessDeniedError,
    ClientRejectedError,
    Disposition,
    FreshTokenError,
    IssuerMismatchError,
    MisconfiguredError,
    RetryableError,
    SignInRequiredError,
    StoreError,
    TokenManager,
    TransportError,
)


async def orders(tokens: TokenManager) -> int:  # noqa: PLR0911 -- one for each class
    """Answer with a status."""
    try:
        await tokens.get_token("user-1")
    except SignInRequiredError as error:
        assert_type(error.cleared, bool)
        assert_type(error.lost_rotation, bool)
        assert_type(error.reason, str)
        assert_type(error.error, str | None)
        assert_type(error.original_error, str | None)
        assert_type(error.error_description, str | None)
        assert_type(error.request_id, str | None)
        assert_type(error.status, int | None)
        assert_type(error.extra, Mapping[str, object])
        return 401
    except TransportError as error:
        assert_type(error.cause, str | None)
        return 504
    except RetryableError as error:
        assert_type(error.retry_after, float | None)
        assert_type(error.request_sent, bool)
        assert_type(error.failing_since, float | None)
        return 503
    except AccessDeniedError as error:
        assert_type(error.retry_after, float | None)
        return 403
    except ClientRejectedError as error:
        assert_type(error.setting, str | None)
        return 500
    except IssuerMismatchError as error:
        assert_type((error.expected, error.received), tuple[str | None, str | None])
        return 500
    except MisconfiguredError as error:
        assert_type(error.setting, str | None)
        return 500
    except StoreError:
        return 503
    except FreshTokenError as error:
        assert_type(error.disposition, Disposition | None)
        assert_type(error.issuer, str | None)
        assert_type(error.session_id, str | None)
        return 500
    return 200

from __future__ import annotations

import anyio

from freshtoken import TokenManager
from freshtoken.testing import FakeClock, MockIdP


async def test_a_grant_from_elsewhere_gets_its_first_token(
    manager: TokenManager, idp: MockIdP
) -> None:
    grant = idp.new_grant()
    async with manager as tokens:
        await tokens.add_session("crm", refresh_token=grant.refresh_token or "")

        token = await tokens.get_token("crm")

        assert token.reveal() == grant.access_token
        assert len(idp.requests("token")) == 1


async def test_fifty_callers_cause_one_request(
    manager: TokenManager, idp: MockIdP, clock: FakeClock
) -> None:
    grant = idp.new_grant()
    async with manager as tokens:
        await tokens.add_session("crm", refresh_token=grant.refresh_token or "")
        seen: list[str] = []

        async def call() -> None:
            seen.append((await tokens.get_token("crm")).reveal())

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(call)

        assert seen == [grant.access_token] * 50
        assert len(idp.requests("token")) == 1

        await clock.advance(250)
        token = await tokens.get_token("crm")
        assert len(idp.requests("token")) == 2
        assert token.reveal() == grant.access_token

"""The tests that the author of `web_login.py` would write; run them with pytest.

The fixtures ``mock_idp`` and ``fake_clock`` come with freshtoken: no server is started,
and no test waits.
"""

from collections.abc import AsyncIterator

import httpx
import pytest
from web_login import make_app

from freshtoken import TokenManager
from freshtoken.testing import FakeClock, MockIdP

pytestmark = pytest.mark.anyio


@pytest.fixture
async def browser(
    mock_idp: MockIdP, fake_clock: FakeClock
) -> AsyncIterator[httpx.AsyncClient]:
    """A browser before the running application; its API is the provider's own."""
    tokens = TokenManager(
        mock_idp.client(), http_client=mock_idp.http_client(), clock=fake_clock
    )
    app = make_app(tokens, mock_idp.http_client(), mock_idp.issuer)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="https://app.test") as client,
    ):
        yield client


async def sign_in(browser: httpx.AsyncClient, mock_idp: MockIdP) -> httpx.Response:
    """Go through the sign-in as a browser does; return where it ends."""
    away = await browser.get("/login?return_to=/me")
    callback = await mock_idp.browse(away.headers["location"])
    return await browser.get(str(callback), follow_redirects=True)


async def test_user_signs_in_and_the_api_knows_them(
    browser: httpx.AsyncClient, mock_idp: MockIdP
) -> None:
    page = await sign_in(browser, mock_idp)

    assert page.json()["claims"]["sub"] == "alice"
    assert page.json()["api"]["sub"] == "alice"


async def test_user_stays_signed_in_when_tokens_expire_during_an_outage(
    browser: httpx.AsyncClient, mock_idp: MockIdP, fake_clock: FakeClock
) -> None:
    await sign_in(browser, mock_idp)
    mock_idp.fail_next("token", status=503)

    await fake_clock.advance(mock_idp.rules.access_token_lifetime)
    page = await browser.get("/me")

    assert page.status_code == 200


async def test_revoked_user_is_asked_to_sign_in_again_once(
    browser: httpx.AsyncClient, mock_idp: MockIdP, fake_clock: FakeClock
) -> None:
    await sign_in(browser, mock_idp)
    for grant in mock_idp.ledger.grants.values():
        mock_idp.revoke_grant(grant)
    await fake_clock.advance(mock_idp.rules.access_token_lifetime)
    browser.cookies.delete("__Host-session-fresh")  # a browser drops it after a minute

    script = await browser.get("/me")
    page = await browser.get("/me", headers={"Accept": "text/html"})
    again = await sign_in(browser, mock_idp)

    assert script.status_code == 401
    assert page.headers["location"] == "/login?return_to=%2Fme"
    assert again.json()["claims"]["sub"] == "alice"

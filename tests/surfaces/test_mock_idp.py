"""The mock server: documents, tokens, rotation, revocation, and its log."""

from __future__ import annotations

import random
from email.utils import parsedate_to_datetime

import jwt
import pytest

from freshtoken import Secret
from freshtoken.testing import (
    DEFAULT_SCOPE,
    FakeClock,
    MockIdP,
    MockRequest,
    NoAnswerError,
)
from freshtoken.testing.clients import AUTH_METHODS
from tests.testing.mock_calls import (
    DEFAULT_BASIC,
    client_credentials,
    get,
    post,
    refresh,
)

START = 1_800_000_000.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def idp(clock: FakeClock) -> MockIdP:
    return MockIdP(clock=clock, rng=random.Random(1))


# -- Documents ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("issuer", "openid", "oauth"),
    [
        (
            "https://idp.test",
            "https://idp.test/.well-known/openid-configuration",
            "https://idp.test/.well-known/oauth-authorization-server",
        ),
        (
            "https://idp.test/",
            "https://idp.test/.well-known/openid-configuration",
            "https://idp.test/.well-known/oauth-authorization-server",
        ),
        (
            "https://idp.test:8443/tenant/a",
            "https://idp.test:8443/tenant/a/.well-known/openid-configuration",
            "https://idp.test:8443/.well-known/oauth-authorization-server/tenant/a",
        ),
    ],
)
async def test_metadata_are_at_both_well_known_places(
    issuer: str, openid: str, oauth: str
) -> None:
    idp = MockIdP(issuer)

    for url in (openid, oauth):
        members = (await get(idp, url)).members()

        assert members["issuer"] == issuer
        assert members["token_endpoint"] == issuer.rstrip("/") + "/token"
        assert members["token_endpoint_auth_methods_supported"] == list(AUTH_METHODS)
    assert [one.endpoint for one in idp.requests()] == [
        "openid_configuration",
        "oauth_metadata",
    ]


async def test_every_advertised_address_answers(idp: MockIdP) -> None:
    members = (await get(idp, idp.url("oauth_metadata"))).members()
    addresses = [
        str(value)
        for name, value in members.items()
        if name.endswith(("_endpoint", "_uri"))
    ]

    answers = [await get(idp, address) for address in addresses]

    assert len(answers) == 6
    assert 404 not in [answer.status for answer in answers]


async def test_metadata_can_be_changed_and_thinned_out(idp: MockIdP) -> None:
    idp.metadata_overrides = {"issuer": "https://other.test", "jwks_uri": None}

    members = (await get(idp, idp.url("openid_configuration"))).members()

    assert members["issuer"] == "https://other.test"
    assert "jwks_uri" not in members


async def test_unknown_paths_and_methods_are_refused(idp: MockIdP) -> None:
    assert (await get(idp, "https://idp.test/nothing")).status == 404
    refused = await get(idp, idp.url("token"))

    assert (refused.status, refused.header("allow")) == (405, "POST")
    assert [one.endpoint for one in idp.requests()] == ["unknown", "token"]


async def test_other_origins_are_unknown_hosts(idp: MockIdP) -> None:
    for url in ("https://other.test/token", "http://idp.test/token"):
        with pytest.raises(
            NoAnswerError, match=r"serves https://idp\.test only"
        ) as met:
            await get(idp, url)

        assert (met.value.kind, met.value.sent) == ("dns", False)
    assert idp.requests() == []


async def test_origin_is_compared_without_case_and_default_port(idp: MockIdP) -> None:
    answer = await get(idp, "HTTPS://IDP.test:443/jwks")

    assert answer.status == 200


# -- Tokens -------------------------------------------------------------------------


async def test_refresh_gives_new_tokens(idp: MockIdP) -> None:
    grant = idp.new_grant("alice", scope="openid orders")
    first = (grant.refresh_token, grant.access_token)

    answer = await refresh(idp, grant.refresh_token)

    members = answer.members()
    assert answer.status == 200
    assert answer.header("cache-control") == "no-store"
    assert members == {
        "access_token": grant.access_token,
        "token_type": "Bearer",
        "expires_in": 300,
        "scope": "openid orders",
        "refresh_token": grant.refresh_token,
    }
    assert isinstance(members["expires_in"], int)
    assert grant.refreshes == 1
    assert grant.refresh_token not in first
    assert grant.access_token not in first


async def test_tokens_are_readable_and_repeatable() -> None:
    first, second = (MockIdP(rng=random.Random(5)).new_grant() for _ in range(2))

    assert first.refresh_token == second.refresh_token
    assert str(first.refresh_token).startswith("rt-1-")
    assert first.access_token.startswith("at-2-")


async def test_access_token_expires_to_the_second(
    idp: MockIdP, clock: FakeClock
) -> None:
    grant = idp.new_grant()

    await clock.advance(299.999)
    assert idp.is_active(grant.access_token)

    await clock.advance(0.001)
    assert not idp.is_active(grant.access_token)


async def test_server_lives_by_true_time(idp: MockIdP, clock: FakeClock) -> None:
    """Stepping this machine's clock changes no other machine's."""
    grant = idp.new_grant()

    clock.shift_wall(1000)
    assert idp.is_active(grant.access_token)

    clock.suspend(300)
    assert not idp.is_active(grant.access_token)


async def test_skewed_server_shows_it_in_its_date(
    idp: MockIdP, clock: FakeClock
) -> None:
    idp.clock_skew = -120.0

    answer = await refresh(idp, idp.new_grant().refresh_token)

    date = parsedate_to_datetime(answer.header("date") or "")
    assert date.timestamp() == clock.time() - 120


async def test_client_credentials_bring_no_refresh_token(idp: MockIdP) -> None:
    answer = await client_credentials(idp, scope="orders.read")

    members = answer.members()
    assert answer.status == 200
    assert members["scope"] == "orders.read"
    assert "refresh_token" not in members
    assert idp.is_active(str(members["access_token"]))


async def test_jwt_access_tokens_verify_with_the_published_keys(
    idp: MockIdP, clock: FakeClock
) -> None:
    idp.rules.access_token_format = "jwt"
    await clock.advance(0.9)
    answer = await client_credentials(idp, resource="https://api.test")
    token = str(answer.members()["access_token"])
    keys = jwt.PyJWKSet.from_dict((await get(idp, idp.url("jwks"))).members())

    header = jwt.get_unverified_header(token)
    claims = jwt.decode(
        token,
        keys[header["kid"]],
        algorithms=["RS256"],
        audience="https://api.test",
        issuer=idp.issuer,
        options={"verify_iat": False},  # PyJWT reads the real clock
    )

    assert header["typ"] == "at+jwt"
    assert claims["exp"] == START + 300
    await clock.advance(299)
    assert idp.is_active(token)
    await clock.advance(0.1)
    assert not idp.is_active(token)


async def test_members_can_be_laid_over_every_answer(idp: MockIdP) -> None:
    idp.token_members = {"expires_in": "300", "tenant": "a"}

    members = (await client_credentials(idp)).members()

    assert (members["expires_in"], members["tenant"]) == ("300", "a")


# -- Rotation -----------------------------------------------------------------------


async def test_reuse_kills_the_family_under_strict_rotation(idp: MockIdP) -> None:
    grant = idp.new_grant()
    old, first_access = grant.refresh_token, grant.access_token
    await refresh(idp, old)
    assert idp.is_active(first_access)

    reused = await refresh(idp, old)

    assert (reused.status, reused.members()["error"]) == (400, "invalid_grant")
    assert (grant.active, grant.ended_by) == (False, "reuse")
    assert not idp.is_active(grant.access_token)
    assert not idp.is_active(first_access)
    assert (await refresh(idp, grant.refresh_token)).status == 400


async def test_reuse_may_spare_the_family(idp: MockIdP) -> None:
    idp.rules.reuse_kills_family = False
    grant = idp.new_grant()
    old = grant.refresh_token
    await refresh(idp, old)

    assert (await refresh(idp, old)).status == 400
    assert grant.active
    assert (await refresh(idp, grant.refresh_token)).status == 200


@pytest.mark.parametrize(("later", "status"), [(9.999, 200), (10.0, 400)])
async def test_grace_ends_to_the_tick(
    idp: MockIdP, clock: FakeClock, later: float, status: int
) -> None:
    idp.rules.rotation = "grace"
    grant = idp.new_grant()
    old = grant.refresh_token
    await refresh(idp, old)

    await clock.advance(later)

    assert (await refresh(idp, old)).status == status
    assert grant.active == (status == 200)


async def test_grace_gives_the_same_successor_again(idp: MockIdP) -> None:
    idp.rules.rotation = "grace"
    grant = idp.new_grant()
    old = grant.refresh_token

    first = (await refresh(idp, old)).members()
    second = (await refresh(idp, old)).members()

    assert first["refresh_token"] == second["refresh_token"]
    assert first["access_token"] != second["access_token"]


async def test_using_the_successor_ends_the_grace(idp: MockIdP) -> None:
    idp.rules.rotation = "grace"
    grant = idp.new_grant()
    old = grant.refresh_token
    await refresh(idp, old)
    await refresh(idp, grant.refresh_token)

    assert (await refresh(idp, old)).status == 400
    assert grant.ended_by == "reuse"


async def test_grace_may_give_a_new_child_each_time(idp: MockIdP) -> None:
    idp.rules.rotation = "grace"
    idp.rules.grace_answer = "new"
    old = idp.new_grant().refresh_token

    children = [(await refresh(idp, old)).members()["refresh_token"] for _ in range(3)]

    assert len(set(children)) == 3
    for child in children:
        assert (await refresh(idp, str(child))).status == 200


async def test_without_rotation_the_token_stays(idp: MockIdP) -> None:
    idp.rules.rotation = "none"
    grant = idp.new_grant()
    token = grant.refresh_token

    for _ in range(3):
        assert (await refresh(idp, token)).members()["refresh_token"] == token


async def test_refresh_token_has_an_end_of_its_own(
    idp: MockIdP, clock: FakeClock
) -> None:
    idp.rules.refresh_token_lifetime = 60.0
    grant = idp.new_grant()
    await clock.advance(59)
    answer = await refresh(idp, grant.refresh_token)
    assert answer.members()["refresh_expires_in"] == 60

    await clock.advance(60)

    assert (await refresh(idp, grant.refresh_token)).status == 400
    assert grant.active


async def test_scope_may_shrink_and_not_grow(idp: MockIdP) -> None:
    grant = idp.new_grant(scope="a b")

    less = await refresh(idp, grant.refresh_token, scope="a")
    more = await refresh(idp, grant.refresh_token, scope="a c")
    again = await refresh(idp, grant.refresh_token)

    assert less.members()["scope"] == "a"
    assert more.members()["error"] == "invalid_scope"
    assert again.members()["scope"] == "a b"  # the refused one spent nothing


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ([], "invalid_request"),
        ([("scope", "a")], "invalid_request"),
        ([("grant_type", "password")], "unsupported_grant_type"),
        ([("grant_type", "refresh_token")], "invalid_request"),
        (
            [("grant_type", "client_credentials"), ("scope", "a"), ("scope", "b")],
            "invalid_request",
        ),
        (
            [("grant_type", "refresh_token"), ("refresh_token", "rt-0-x")],
            "invalid_grant",
        ),
    ],
)
async def test_malformed_token_requests_are_refused(
    idp: MockIdP, form: list[tuple[str, str]], error: str
) -> None:
    answer = await post(idp, "token", form)

    assert (answer.status, answer.members()["error"]) == (400, error)


async def test_log_keeps_the_first_of_repeated_parameters(idp: MockIdP) -> None:
    await post(idp, "token", [("scope", "a"), ("scope", "b")])

    assert idp.requests()[0].form["scope"] == "a"


async def test_refresh_token_of_another_client_is_refused(idp: MockIdP) -> None:
    idp.add_client("other", auth_method="none")
    grant = idp.new_grant(client_id="other")

    answer = await refresh(idp, grant.refresh_token)

    assert answer.members()["error"] == "invalid_grant"
    assert grant.active
    assert grant.refreshes == 0


async def test_body_that_is_no_form_is_refused(idp: MockIdP) -> None:
    request = MockRequest(
        "POST",
        idp.url("token"),
        (DEFAULT_BASIC, ("Content-Type", "application/json")),
        b'{"grant_type": "client_credentials"}',
    )

    assert (await idp.handle(request)).members()["error"] == "invalid_request"


async def test_several_resources_are_no_repetition(idp: MockIdP) -> None:
    form = [
        ("grant_type", "client_credentials"),
        ("resource", "https://a.test"),
        ("resource", "https://b.test"),
    ]

    token = str((await post(idp, "token", form)).members()["access_token"])

    assert idp.introspect(token)["aud"] == ["https://a.test", "https://b.test"]


# -- Revocation, userinfo, introspection --------------------------------------------


async def test_revoking_the_refresh_token_ends_the_grant(idp: MockIdP) -> None:
    grant, other = idp.new_grant(), idp.new_grant()

    answer = await post(idp, "revoke", {"token": grant.refresh_token or ""})

    assert (answer.status, answer.body) == (200, b"")
    assert (grant.active, grant.ended_by) == (False, "revocation")
    assert other.active
    assert idp.requests("revoke")[0].grant_id == grant.id


async def test_revocation_may_end_all_grants_of_the_user(idp: MockIdP) -> None:
    idp.rules.revocation = "subject"
    grant, same, other = (idp.new_grant(name) for name in ("ann", "ann", "bob"))

    await post(idp, "revoke", {"token": grant.refresh_token or ""})

    assert [one.active for one in (grant, same, other)] == [False, False, True]


@pytest.mark.parametrize("ends", [True, False])
async def test_revoking_an_access_token_may_end_the_grant(
    idp: MockIdP, *, ends: bool
) -> None:
    idp.rules.access_token_revocation_ends_grant = ends
    grant = idp.new_grant()

    await post(idp, "revoke", {"token": grant.access_token})

    assert not idp.is_active(grant.access_token)
    assert grant.active == (not ends)


async def test_unknown_token_is_revoked_without_complaint(idp: MockIdP) -> None:
    assert (await post(idp, "revoke", {"token": "rt-0-x"})).status == 200
    assert (await post(idp, "revoke", {"hint": "x"})).status == 400


async def test_token_of_another_client_is_not_revoked(idp: MockIdP) -> None:
    idp.add_client("other", auth_method="none")
    grant = idp.new_grant(client_id="other")

    answer = await post(idp, "revoke", {"token": grant.refresh_token or ""})

    assert answer.members()["error"] == "invalid_grant"
    assert grant.active


async def test_administrator_ends_grants_by_any_name(idp: MockIdP) -> None:
    grants = [idp.new_grant() for _ in range(3)]

    idp.revoke_grant(grants[0])
    idp.revoke_grant(grants[1].id)
    idp.revoke_grant(grants[2].refresh_token or "")

    assert {one.ended_by for one in grants} == {"admin"}
    with pytest.raises(KeyError):
        idp.revoke_grant("grant-99")


async def test_one_access_token_can_be_revoked(idp: MockIdP) -> None:
    grant = idp.new_grant()

    idp.revoke_access_token(grant.access_token)

    assert not idp.is_active(grant.access_token)
    assert (await refresh(idp, grant.refresh_token)).status == 200


async def test_userinfo_wants_a_live_token(idp: MockIdP) -> None:
    grant, plain = idp.new_grant("user-2"), idp.new_grant(scope="orders")
    url = idp.url("userinfo")

    good = await get(idp, url, Authorization=f"Bearer {grant.access_token}")
    none = await get(idp, url)
    narrow = await get(idp, url, Authorization=f"Bearer {plain.access_token}")
    idp.revoke_grant(grant)
    dead = await get(idp, url, Authorization=f"Bearer {grant.access_token}")

    assert good.members() == {"sub": "user-2"}
    assert (none.status, none.header("www-authenticate")) == (
        401,
        'Bearer realm="mock"',
    )
    assert narrow.status == 403
    assert dead.status == 401
    assert 'error="invalid_token"' in (dead.header("www-authenticate") or "")


async def test_introspection_tells_and_spends_nothing(
    idp: MockIdP, clock: FakeClock
) -> None:
    grant = idp.new_grant("alice")

    access = idp.introspect(grant.access_token)
    for _ in range(2):
        assert idp.introspect(grant.refresh_token or "")["active"] is True

    assert access == {
        "active": True,
        "iss": "https://idp.test",
        "sub": "alice",
        "client_id": "mock-client",
        "scope": DEFAULT_SCOPE,
        "exp": START + 300,
        "token_type": "Bearer",
        "aud": [],
    }
    await clock.advance(300)
    assert idp.introspect(grant.access_token) == {"active": False}
    assert not idp.is_active(grant.refresh_token or "")


# -- The log ------------------------------------------------------------------------


async def test_log_tells_what_happened(idp: MockIdP, clock: FakeClock) -> None:
    grant = idp.new_grant()
    old = grant.refresh_token
    await refresh(idp, old, scope="openid")
    await clock.advance(1)
    await refresh(idp, old)
    await client_credentials(idp)

    first, second = idp.requests("token", grant_type="refresh_token")

    assert (first.number, first.at, first.status) == (1, START, 200)
    assert (first.client_id, first.grant_id) == ("mock-client", grant.id)
    assert (first.error, first.fault, first.delivered) == (None, None, True)
    assert (first.method, first.path) == ("POST", "/token")
    assert first.form["refresh_token"] == old
    assert first.form["scope"] == "openid"
    assert first.headers["authorization"].startswith("Basic ")
    assert (second.at, second.status, second.error) == (START + 1, 400, "invalid_grant")
    assert len(idp.requests()) == len(idp.requests(client_id="mock-client")) == 3
    assert idp.requests("revoke") == idp.requests(client_id="nobody") == []


async def test_log_does_not_change_under_the_reader(idp: MockIdP) -> None:
    before = idp.requests()

    await client_credentials(idp)

    assert before == []
    with pytest.raises(AttributeError):
        idp.requests()[0].status = 500  # type: ignore[misc]  # frozen


async def test_reprs_hide_every_secret(idp: MockIdP) -> None:
    client = idp.add_client("web", client_secret="s3cr3t-s3cr3t")
    grant = idp.new_grant(client_id="web")
    fault = idp.fail_next(body={"access_token": grant.access_token})
    form = {
        "grant_type": "refresh_token",
        "refresh_token": grant.refresh_token or "",
        "client_id": "web",
        "client_secret": "s3cr3t-s3cr3t",
    }
    request = MockRequest("POST", idp.url("token") + f"?x={grant.access_token}", ())
    answer = await post(idp, "token", form, ("Cookie", grant.access_token))
    shown = repr(
        [idp, grant, client, fault, request, answer, idp.requests(), idp.ledger]
    )

    for secret in (grant.refresh_token, grant.access_token, "s3cr3t"):
        assert str(secret) not in shown
    assert "'client_id': 'web'" in shown


# -- What saves time ----------------------------------------------------------------


class StandInManager:
    """Does what `TokenManager.add_session` does, as far as the helper needs it."""

    def __init__(self) -> None:
        self.added: dict[str, Secret] = {}

    async def add_session(self, session_id: str, *, refresh_token: Secret) -> str:
        self.added[session_id] = refresh_token
        return session_id


async def test_new_session_hands_a_grant_to_the_manager(idp: MockIdP) -> None:
    tokens = StandInManager()

    first = await idp.new_session(tokens)
    named = await idp.new_session(tokens, "crm", subject="bob", scope="orders")

    assert [first, named] == ["session-1", "crm"]
    assert tokens.added["crm"].reveal() == idp.grant("crm").refresh_token
    assert (idp.grant("crm").subject, idp.grant("crm").scope) == ("bob", "orders")
    assert idp.grant(first).subject == "user-1"


async def test_client_is_ready_for_this_server(
    idp: MockIdP, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, dict[str, object]]] = []

    class StandInClient:
        def __init__(self, issuer: str, **options: object) -> None:
            made.append((issuer, options))

    monkeypatch.setattr("freshtoken.OAuthClient", StandInClient, raising=False)
    idp.add_client(
        "public", auth_method="none", redirect_uris=["https://web.test/back"]
    )

    idp.client()
    idp.client(client_id="public")
    idp.client(
        client_secret="wrong",
        issuer="https://other.test",
        redirect_uri="https://a.test",
    )

    secret = idp.clients["mock-client"].client_secret
    assert made == [
        (
            "https://idp.test",
            {
                "client_id": "mock-client",
                "client_secret": secret,
                "redirect_uri": "https://app.test/callback",
            },
        ),
        (
            "https://idp.test",
            {
                "client_id": "public",
                "token_endpoint_auth_method": "none",
                "redirect_uri": "https://web.test/back",
            },
        ),
        (
            "https://other.test",
            {
                "client_id": "mock-client",
                "client_secret": "wrong",
                "redirect_uri": "https://a.test",
            },
        ),
    ]

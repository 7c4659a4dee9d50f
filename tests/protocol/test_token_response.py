"""Token answers: strict in meaning, liberal in shape, the refresh token first."""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Iterable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._foundation.records import Failure, TokenSet
from freshtoken._protocol.exchange import ExchangeError, Response
from freshtoken._protocol.token_response import parse_token_response
from freshtoken.errors import Disposition
from tests.protocol.helpers import DATE, NOW, Anything, answer
from tests.protocol.strategies import bodies, headers, json_values, statuses, vschars

TOKENS = {
    "access_token": "at-1",
    "token_type": "Bearer",
    "expires_in": 3600,
    "refresh_token": "rt-1",
}
TEN_YEARS = 10 * 365 * 86_400


def read(
    response: Response,
    *,
    grant_type: str = "refresh_token",
    requested_scope: str | Iterable[str] | None = None,
    default_lifetime: float | None = None,
) -> TokenSet:
    return parse_token_response(
        response,
        grant_type=grant_type,
        requested_scope=requested_scope,
        default_lifetime=default_lifetime,
    )


def read_failure(response: Response, *, grant_type: str = "refresh_token") -> Failure:
    with pytest.raises(ExchangeError) as caught:
        read(response, grant_type=grant_type)
    assert caught.value.__context__ is None
    return caught.value.failure


def members(**changes: object) -> dict[str, object]:
    """Return a good answer with some members changed; ``...`` leaves one out."""
    changed = {**TOKENS, **changes}
    return {name: value for name, value in changed.items() if value is not ...}


def jwt_with(claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
    return f"eyJhbGciOiJub25lIn0.{payload.decode()}.c2ln"


def test_a_plain_answer_is_read() -> None:
    tokens = read(answer(200, TOKENS))

    assert tokens == TokenSet(
        access_token="at-1",
        token_type="Bearer",
        issued_at=NOW,
        expires_at=NOW + 3600,
        refresh_token="rt-1",
    )


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (json.dumps(TOKENS).encode(), "application/json; charset=utf-8"),
        (json.dumps(TOKENS).encode(), "text/plain"),
        (json.dumps(TOKENS).encode(), "text/html"),
        (codecs.BOM_UTF8 + json.dumps(TOKENS).encode(), "application/json"),
        (json.dumps(TOKENS).encode("utf-16"), "application/json; charset=utf-16"),
        (b" \r\n" + json.dumps(TOKENS).encode() + b"\n", ""),
        (
            b"access_token=at-1&token_type=bearer&expires_in=3600&refresh_token=rt-1",
            "application/x-www-form-urlencoded",
        ),
        (
            b"access_token=at%2D1&expires_in=3600&refresh_token=rt-1&x=\n",
            "text/plain",
        ),
    ],
    ids=count(),
)
def test_dress_does_not_matter(body: bytes, content_type: str) -> None:
    tokens = read(answer(200, body, {"Content-Type": content_type}))

    assert tokens.access_token == "at-1"
    assert tokens.refresh_token == "rt-1"
    assert tokens.expires_at == NOW + 3600
    assert tokens.problem is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (3600, 3600),
        ("3600", 3600),
        (" 3600 ", 3600),
        ("3600.9", 3600),
        ("+5", 5),
        (3600.5, 3600),
        (0, 0),
        ("0", 0),
        (0.4, 0),
        (TEN_YEARS, TEN_YEARS),
        (TEN_YEARS + 1, TEN_YEARS),
        (10**30, TEN_YEARS),
        ("9" * 20, TEN_YEARS),
        (1e300, TEN_YEARS),
    ],
    ids=count(),
)
def test_a_lifetime_is_read_in_every_shape(value: object, seconds: int) -> None:
    tokens = read(answer(200, members(expires_in=value)))

    assert tokens.expires_at == NOW + seconds
    assert tokens.notes == ()


@pytest.mark.parametrize(
    "value",
    [
        -1,
        "-1",
        True,
        False,
        "NaN",
        "inf",
        "soon",
        "3600s",
        "1e3",
        "٣",
        [],
        {},
        "9" * 21,
    ],
    ids=count(),
)
def test_a_senseless_lifetime_is_unknown_and_noted(value: object) -> None:
    tokens = read(answer(200, members(expires_in=value)))

    assert tokens.expires_at is None
    assert tokens.access_token == "at-1"
    assert any("expires_in" in note for note in tokens.notes)
    assert any("unknown" in note for note in tokens.notes)


def test_a_number_beyond_floats_is_an_unknown_lifetime() -> None:
    body = b'{"access_token":"at-1","token_type":"Bearer","expires_in":1e999}'

    assert read(answer(200, body)).expires_at is None


@pytest.mark.parametrize("value", [None, "", ...])
def test_an_absent_lifetime_is_unknown(value: object) -> None:
    tokens = read(answer(200, members(expires_in=value)))

    assert tokens.expires_at is None
    assert tokens.notes == ("the lifetime is unknown",)


@pytest.mark.parametrize("name", ["expires_at", "expires_on"])
@pytest.mark.parametrize(
    "value",
    [
        NOW + 600,
        str(int(NOW) + 600),
        (NOW + 600) * 1000,
        "2027-01-15T08:10:00Z",
        "2027-01-15T09:10:00+01:00",
    ],
    ids=count(),
)
def test_an_absolute_end_is_read(name: str, value: object) -> None:
    tokens = read(answer(200, members(expires_in=..., **{name: value})))

    assert tokens.expires_at == NOW + 600
    assert tokens.extra == {name: value}


@pytest.mark.parametrize("name", ["expires_at", "expires_on"])
@pytest.mark.parametrize(
    "value", [3600, True, "tomorrow", "2027-01-15T08:10:00", [], 1e18, -1, "+999999999"]
)
def test_a_senseless_end_is_unknown_and_noted(name: str, value: object) -> None:
    tokens = read(answer(200, members(expires_in=..., **{name: value})))

    assert tokens.expires_at is None
    assert any(name in note for note in tokens.notes)


def test_expires_in_goes_before_an_absolute_end() -> None:
    body = members(expires_in=60, expires_at=NOW + 600)

    assert read(answer(200, body)).expires_at == NOW + 60


def test_an_absolute_end_is_on_the_server_s_clock() -> None:
    """The server is 100 s behind: its end comes 100 s later on our clock."""
    behind = {"Date": "Fri, 15 Jan 2027 07:58:20 GMT"}
    body = members(expires_in=..., expires_at=NOW + 500)

    assert read(answer(200, body, behind)).expires_at == NOW + 600
    assert read(answer(200, body, {"Date": DATE})).expires_at == NOW + 500
    past = members(expires_in=..., expires_at=NOW - 500)
    assert read(answer(200, past)).expires_at == NOW


def test_the_token_s_own_end_is_a_hint() -> None:
    token = jwt_with({"exp": NOW + 900})

    tokens = read(answer(200, members(access_token=token, expires_in=...)))

    assert tokens.expires_at == NOW + 900
    assert any("exp" in note for note in tokens.notes)


@pytest.mark.parametrize(
    "token",
    [
        "opaque",
        "a.b",
        "a.!.c",
        "a.b.c.d.e",
        jwt_with([]),
        jwt_with({}),
        jwt_with({"exp": "1800000900"}),
        jwt_with({"exp": True}),
        jwt_with({"exp": 5}),
        jwt_with({"exp": NOW + 900, "x": "y" * 70_000}),
    ],
    ids=count(),
)
def test_a_token_that_says_nothing_lives_as_configured(token: str) -> None:
    response = answer(200, members(access_token=token, expires_in=...))

    assert read(response).expires_at is None
    assert read(response, default_lifetime=60).expires_at == NOW + 60


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"refresh_expires_in": 1800}, NOW + 1800),
        ({"refresh_token_expires_in": "15724800"}, NOW + 15_724_800),
        ({"refresh_expires_in": 0}, None),
        ({"refresh_expires_in": -1}, None),
        ({"refresh_expires_in": None}, None),
        ({"refresh_expires_in": 0, "refresh_token_expires_in": 7}, NOW + 7),
        ({"refresh_token_expires_at": NOW + 9}, NOW + 9),
        ({}, None),
    ],
)
def test_the_end_of_the_refresh_token(
    extra: dict[str, object], expected: float | None
) -> None:
    tokens = read(answer(200, members(**extra)))

    assert tokens.refresh_expires_at == expected
    assert tokens.refresh_token == "rt-1"


@pytest.mark.parametrize(
    ("value", "requested", "expected"),
    [
        ("b a", None, ("a", "b")),
        ("a  a\tb", None, ("a", "b")),
        (["b", "a"], None, ("a", "b")),
        (["a b", "c"], None, ("a", "b", "c")),
        ("a,b", None, ("a", "b")),
        ("a, b", None, ("a", "b")),
        ("a,b c", ["a,b", "c"], ("a,b", "c")),
        ("", None, ()),
        ([], None, ()),
        ("Ä", None, ("Ä",)),
        (None, "a b", None),
        (..., None, None),
        (7, None, None),
        (["a", 7], None, None),
    ],
    ids=count(),
)
def test_the_scope_is_read_in_every_shape(
    value: object, requested: Iterable[str] | None, expected: tuple[str, ...] | None
) -> None:
    response = answer(200, members(scope=value))

    assert read(response, requested_scope=requested).scope == expected


def test_less_scope_than_asked_for_is_noted() -> None:
    response = answer(200, members(scope="a"))

    assert read(response, requested_scope="a b").notes == (
        "less scope is granted than was asked for",
    )
    assert read(response, requested_scope=("a",)).notes == ()


@pytest.mark.parametrize(
    "value", ["bearer", "BEARER", "bEARER", " Bearer ", "BearerToken"]
)
def test_the_type_is_read_in_any_case(value: str) -> None:
    tokens = read(answer(200, members(token_type=value)))

    assert (tokens.access_token, tokens.token_type) == ("at-1", "Bearer")
    assert tokens.notes == ()


@pytest.mark.parametrize("value", [..., None, ""])
def test_a_missing_type_is_bearer_and_noted(value: object) -> None:
    tokens = read(answer(200, members(token_type=value)))

    assert (tokens.access_token, tokens.token_type) == ("at-1", "Bearer")
    assert any("token_type" in note for note in tokens.notes)


UNUSABLE: list[dict[str, object]] = [
    {"access_token": ...},
    {"access_token": None},
    {"access_token": ""},
    {"access_token": 7},
    {"access_token": ["at-1"]},
    {"access_token": "at-1\r\nX-Evil: 1"},
    {"access_token": "at-1\x00"},
    {"access_token": "ät"},
    {"token_type": "mac"},
    {"token_type": "N_A"},
    {"token_type": "DPoP"},
    {"token_type": 7},
    {"access_token": ..., "error": "server_error"},
]


@pytest.mark.parametrize("changes", UNUSABLE, ids=count())
def test_what_is_wrong_beside_it_never_loses_the_refresh_token(
    changes: dict[str, object],
) -> None:
    tokens = read(answer(200, members(**changes, scope="a")))

    assert tokens.access_token is None
    assert tokens.expires_at is None
    assert tokens.refresh_token == "rt-1"
    assert tokens.scope == ("a",)
    assert tokens.problem
    assert "at-1" not in tokens.problem


@pytest.mark.parametrize("changes", UNUSABLE[:-1], ids=count())
@pytest.mark.parametrize("grant_type", ["refresh_token", "client_credentials"])
def test_without_refresh_token_the_server_is_asked_again(
    changes: dict[str, object], grant_type: str
) -> None:
    kept = ... if grant_type == "refresh_token" else "rt-1"
    body = members(**{"refresh_token": kept, **changes})

    failure = read_failure(answer(200, body), grant_type=grant_type)

    assert failure.disposition is Disposition.RETRY
    assert (failure.in_doubt, failure.no_answer) == (True, False)
    assert "at-1" not in failure.advice


def test_tokens_win_over_an_error_beside_them() -> None:
    assert read(answer(200, members(error="x"))).access_token == "at-1"
    assert read(answer(200, members(error=None))).access_token == "at-1"


@pytest.mark.parametrize("value", ["", None, 7, ["rt"], True])
def test_a_refresh_token_that_is_none_is_absent(value: object) -> None:
    tokens = read(answer(200, members(refresh_token=value)))

    assert tokens.refresh_token is None
    assert tokens.access_token == "at-1"


UNREADABLE = [
    # Twice, but the refresh token once; twice the same.
    b'{"access_token":"a","access_token":"b","refresh_token":"rt-2"}',
    b'{"access_token":"a","refresh_token":"rt-2","refresh_token":"rt-2"}',
    b'{"expires_in":NaN,"refresh_token":"rt-2","access_token":"a"}',
    b'{"expires_in":-Infinity,"refresh_token":"rt-2"}',
    b'{"x":"\\ud800","refresh_token":"rt-2"}',
    b'{"x":' + b"[" * 65 + b"]" * 65 + b',"refresh_token":"rt-2"}',
    b'{"refresh_token":"rt-2","x":' + b"[" * 100_000,
    b'{"x":' + b"1" * 5000 + b',"refresh_token":"rt-2"}',
    # Cut, garbled, continued.
    b'{"access_token":"a","refresh_token":"rt-2","exp',
    b'{"access_token":"a","refresh_token":"rt-2"',
    b'{"x":"\xff","refresh_token":"rt-2"}',
    b'\xef\xbb\xbf{"refresh_token" : "rt-2" , }',
    b'{"refresh_token":"rt-2"} {"refresh_token":"rt-3"}',
    b'{"x":{"refresh_token":"rt-9"},"y":[{"refresh_token":"rt-9"}],"refresh_token":"rt\\u002d2",}',
    b"access_token=a&access_token=b&refresh_token=rt-2",
]


@pytest.mark.parametrize("body", UNREADABLE, ids=count())
def test_the_one_refresh_token_of_an_unreadable_answer_is_saved(body: bytes) -> None:
    tokens = read(answer(200, body))

    assert tokens.access_token is None
    assert tokens.refresh_token == "rt-2"
    assert tokens.problem is not None
    assert "unreadable" in tokens.problem


@pytest.mark.parametrize("body", UNREADABLE, ids=count())
def test_a_service_has_no_refresh_token_to_save(body: bytes) -> None:
    failure = read_failure(answer(200, body), grant_type="client_credentials")

    assert (failure.in_doubt, failure.no_answer) == (True, True)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"[]",
        b'"x"',
        b"null",
        b"ERROR: could not refresh now, try again.",
        b"<html>refresh_token=rt-2</html>",
        b"a=b&c=d",
        b"access_token=a&bad name=b",
        b"&&&",
        b"access_token=%ff",
        b"\xff\xfe\x00",
        # More than one refresh token, or none that is certain.
        b'{"refresh_token":"rt-2","refresh_token":"rt-3"}',
        b'{"refresh_token":"rt-2","refresh_token":"rt-3","x":NaN}',
        b'{"access_token":"a","refresh_token":"rt-',
        b'{"access_token":"a","refresh_token":7,}',
        b'{"access_token":"a","refresh_token":{"a":"b"},}',
        b'{"x":{"refresh_token":"rt-9"},}',
        b'{"refresh_token":"rt-\xff2"}',
        b'{"refresh_token":"rt\\n2",}',
        b'{"refresh_token":"rt\\x",}',
        b'{7:"x","y":"refresh_token",}',
        b"refresh_token=rt-2&refresh_token=rt-3",
        b"[" * 100_000,
    ],
    ids=count(),
)
def test_an_answer_that_cannot_be_read_is_no_answer(body: bytes) -> None:
    failure = read_failure(answer(200, body))

    assert failure.disposition is Disposition.RETRY
    assert (failure.in_doubt, failure.no_answer, failure.sent) == (True, True, True)
    assert failure.status == 200
    assert "rt-" not in failure.advice


def test_nesting_has_a_limit() -> None:
    def nested(depth: int) -> bytes:
        inner = b"[" * (depth - 1) + b"]" * (depth - 1)
        return b'{"access_token":"a","x":%s,"y":[[]]}' % inner

    assert read(answer(200, nested(64))).access_token == "a"
    assert read_failure(answer(200, nested(65))).no_answer


def test_a_status_other_than_200_is_tolerated_and_noted() -> None:
    tokens = read(answer(201, TOKENS))

    assert tokens.access_token == "at-1"
    assert tokens.notes == ("answered with status 201",)


@pytest.mark.parametrize("status", [302, 400, 503])
def test_tokens_under_another_status_are_none(status: int) -> None:
    assert read_failure(answer(status, TOKENS)).status == status


def test_unknown_members_are_kept() -> None:
    extra = {"account": {"id": 7, "tags": ["x"]}, "issued_at": "1770000000000"}

    tokens = read(answer(200, members(**extra, nothing=None)))

    assert tokens.extra == extra
    with pytest.raises(TypeError):
        tokens.extra["account"] = 1  # type: ignore[index]  # that it is refused


def test_unknown_members_have_a_bound() -> None:
    huge = {"big": "x" * 20_000, "small": 1, "numb": 1e308}
    body = json.dumps(members(**huge)).replace("1e+308", "1e999").encode()

    tokens = read(answer(200, body))

    assert tokens.extra == {"small": 1}
    assert sum("left out" in note for note in tokens.notes) == 2


def test_an_id_token_is_passed_on_unread() -> None:
    assert read(answer(200, members(id_token="a.b.c"))).id_token == "a.b.c"
    tokens = read(answer(200, members(id_token=7)))
    assert tokens.id_token is None
    assert tokens.notes == ("id_token is not text: ignored",)


@given(vschars, vschars)
def test_tokens_are_kept_octet_for_octet(access_token: str, refresh_token: str) -> None:
    body = members(access_token=access_token, refresh_token=refresh_token)

    tokens = read(answer(200, body))

    assert tokens.access_token == access_token
    assert tokens.refresh_token == refresh_token


def test_a_long_token_is_accepted() -> None:
    token = "x" * 65_536

    assert read(answer(200, members(access_token=token))).access_token == token


@given(
    st.dictionaries(
        st.sampled_from(
            ["access_token", "token_type", "expires_in", "scope", "id_token", "error"]
        ),
        json_values,
    )
)
def test_no_member_of_any_kind_loses_the_refresh_token(
    changes: dict[str, Anything],
) -> None:
    body = json.dumps({**changes, "refresh_token": "rt-2"}).encode()

    assert read(answer(200, body)).refresh_token == "rt-2"


@given(statuses, headers, bodies)
def test_no_answer_of_any_kind_breaks_the_reader(
    status: int, fields: tuple[tuple[str, str], ...], body: bytes
) -> None:
    response = Response(status, fields, body, sent_at=NOW)
    for grant_type in ("refresh_token", "client_credentials"):
        try:
            tokens = read(response, grant_type=grant_type)
        except ExchangeError:
            continue
        assert 200 <= status < 300
        assert tokens.access_token or tokens.refresh_token
        if tokens.expires_at is not None:
            assert NOW <= tokens.expires_at <= NOW + TEN_YEARS


@pytest.mark.parametrize("start", ["", "{", '{"a":', "access_token="])
@pytest.mark.parametrize(
    "unit",
    [
        "{",
        "[",
        '"',
        '{"',
        '"a":"b",',
        "\\",
        '"\\',
        " ",
        "&",
        "a=b&",
        "=",
        "%",
        "1",
        "\ud7ff",
    ],
)
def test_a_hostile_answer_is_read_without_going_back(start: str, unit: str) -> None:
    """Half a megabyte: a reader that goes back over its input would not end today."""
    body = (start + unit * (500_000 // len(unit))).encode()

    if start != "access_token=":
        assert read_failure(answer(200, body)).no_answer
    assert read_failure(answer(400, body)).disposition is Disposition.UNCLEAR


@given(st.integers(min_value=0, max_value=200))
def test_a_cut_answer_never_gives_a_part_of_a_token(length: int) -> None:
    body = json.dumps({"access_token": "at-1", "refresh_token": "rt-222"}).encode()
    response = answer(200, body[:length])

    try:
        found = read(response).refresh_token
    except ExchangeError:
        found = None

    assert found == ("rt-222" if length > body.index(b"222") + 3 else None)

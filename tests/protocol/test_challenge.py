"""``WWW-Authenticate``: what is asked for, and whether the token is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._protocol import challenge
from freshtoken._protocol.challenge import Challenge, parse_challenges, rejects_token
from tests.protocol.strategies import header_texts


def read(*values: str) -> list[tuple[str, dict[str, str], str | None]]:
    return [
        (item.scheme, dict(item.parameters), item.token68)
        for item in parse_challenges(values)
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["Bearer"], [("bearer", {}, None)]),
        (['bEaReR ERROR="x"'], [("bearer", {"error": "x"}, None)]),
        (["Bearer max_age=5"], [("bearer", {"max_age": "5"}, None)]),
        (['Bearer realm = "r" , a="b"'], [("bearer", {"realm": "r", "a": "b"}, None)]),
        (['Bearer a="b, DPoP c"'], [("bearer", {"a": "b, DPoP c"}, None)]),
        (['Bearer a="\\"x\\" \\\\"'], [("bearer", {"a": '"x" \\'}, None)]),
        (
            ['Bearer, DPoP algs="ES256"'],
            [("bearer", {}, None), ("dpop", {"algs": "ES256"}, None)],
        ),
        (
            ['Negotiate YQ==, Bearer realm=""'],
            [("negotiate", {}, "YQ=="), ("bearer", {"realm": ""}, None)],
        ),
        ([', ,Bearer a="b",, c="d", ,'], [("bearer", {"a": "b", "c": "d"}, None)]),
        (
            ["Basic realm=a", "Bearer"],
            [("basic", {"realm": "a"}, None), ("bearer", {}, None)],
        ),
        # Real servers: no quotes around a URL, no comma between parameters.
        (["Bearer u=https://a/b?c=d"], [("bearer", {"u": "https://a/b?c=d"}, None)]),
        (['Bearer a="b" c="d"'], [("bearer", {"a": "b", "c": "d"}, None)]),
        # A repeated parameter does not change the first one.
        (["Bearer a=b, a=c"], [("bearer", {"a": "b"}, None)]),
        # Unusable challenges are left out, the others read.
        (['Bearer realm="abc'], []),
        (['realm="abc"'], []),
        (["Bearer realm=\\a\\b, Basic"], [("basic", {}, None)]),
        (["Bearer ;, Basic"], [("basic", {}, None)]),
        (['Bearer "x, y", Basic'], [("basic", {}, None)]),
        (["Bearer error=a words follow, Basic"], [("basic", {}, None)]),
        (["Bearer@, Basic"], [("basic", {}, None)]),
        ([""], []),
        ([", ,"], []),
        ([], []),
    ],
)
def test_challenges_are_read(
    values: list[str], expected: list[tuple[str, dict[str, str], str | None]]
) -> None:
    assert read(*values) == expected


@pytest.mark.parametrize(
    ("values", "rejected"),
    [
        ([], True),
        (["Bearer"], True),
        (['bearer realm="x"'], True),
        (['Bearer error="invalid_token"'], True),
        (["Bearer error=Invalid_Token"], True),
        (["DPoP"], True),
        (['Basic realm="x", Bearer'], True),
        (['error="invalid_token"'], True),
        (['Bearer error="invalid_token", error_description="cut off'], True),
        (["Basic realm=x"], False),
        (['Basic realm="cut off'], False),
        (['Bearer error="insufficient_scope"'], False),
        (['Bearer error="invalid_request"'], False),
        (['Bearer error="insufficient_user_authentication"'], False),
        (['Bearer error="insufficient_scope", DPoP algs="ES256"'], False),
        (['Bearer realm="a", Bearer realm="b", error="insufficient_scope"'], False),
        (['DPoP error="use_dpop_nonce"'], False),
        (["Negotiate"], False),
    ],
)
def test_only_a_challenge_about_the_token_rejects_it(
    values: list[str], *, rejected: bool
) -> None:
    assert rejects_token(values) is rejected


def test_the_scheme_that_was_used_decides() -> None:
    values = ['Bearer error="insufficient_scope", DPoP error="invalid_token"']

    assert rejects_token(values, scheme="DPoP")
    assert not rejects_token(values, scheme="Bearer")


@given(st.lists(header_texts, max_size=4))
def test_no_text_breaks_the_parser(values: list[str]) -> None:
    for item in parse_challenges(values):
        assert item.scheme == item.scheme.lower()
    rejects_token(values)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}", fullmatch=True),
        st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20),
        min_size=1,
        max_size=4,
    )
)
def test_parsing_undoes_quoting(parameters: dict[str, str]) -> None:
    def quote(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"')

    value = ", ".join(f'{name}="{quote(text)}"' for name, text in parameters.items())

    assert parse_challenges([f"Bearer {value}"]) == (Challenge("bearer", parameters),)


@pytest.mark.parametrize(
    "unit",
    [
        ",",
        '"',
        "\\",
        "a=",
        "a,",
        'a="',
        "Bearer ",
        "=",
        " ",
        'a="\\"',
        "a b",
        "x y,",
        "\n",
    ],
)
@pytest.mark.parametrize("start", ["", "Bearer ", 'Bearer a="'])
def test_a_hostile_field_is_read_without_going_back(
    unit: str, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All patterns together look at each character a few times at most."""
    steps = Steps()
    for name in ("_TOKEN", "_SPACE", "_SEPARATORS", "_TOKEN68", "_EQUALS", "_QUOTED"):
        monkeypatch.setattr(challenge, name, steps.counting(getattr(challenge, name)))
    for name in ("_BARE", "_JUNK"):
        monkeypatch.setattr(challenge, name, steps.counting(getattr(challenge, name)))
    value = start + unit * (200_000 // len(unit))

    parse_challenges([value])

    assert 0 < steps.taken <= 8 * len(value)


class Steps:
    """Counts the attempts of patterns, and the characters that they match."""

    def __init__(self) -> None:
        self.taken = 0

    def counting(self, pattern: re.Pattern[str]) -> CountingPattern:
        return CountingPattern(self, pattern)


class CountingPattern:
    """A pattern that reports what it does."""

    def __init__(self, steps: Steps, pattern: re.Pattern[str]) -> None:
        self.steps = steps
        self.pattern = pattern

    def match(self, value: str, position: int) -> re.Match[str] | None:
        found = self.pattern.match(value, position)
        self.steps.taken += 1 + (found.end() - position if found else 0)
        return found

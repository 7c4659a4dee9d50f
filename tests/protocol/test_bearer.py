"""Bearer tokens at a resource server: what a request brings, what is answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._foundation.secret import Secret
from freshtoken._protocol.bearer import (
    DEFAULT_REALM,
    challenge_for,
    parse_authorization,
)
from freshtoken._protocol.challenge import Challenge, parse_challenges, rejects_token
from freshtoken._protocol.rejection import rejected
from freshtoken.errors import (
    MisconfiguredError,
    RejectionReason,
    TokenRejectedError,
)
from tests.protocol.strategies import header_texts

printable = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=30
) | st.text(st.sampled_from('"\\, =\ta'), max_size=20)
scope_tokens = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters='"\\'),
    min_size=1,
    max_size=8,
)


def refusal_of(
    values: list[str], *, other_methods: bool = False
) -> tuple[int | None, str | None]:
    """Return status and error code of a refused request, and look at its text."""
    with pytest.raises(TokenRejectedError) as caught:
        parse_authorization(values, other_methods=other_methods)

    error = caught.value
    assert error.reason is RejectionReason.CREDENTIALS
    assert error.__cause__ is None
    assert error.__context__ is None
    assert not any(value and value in str(error) for value in values)
    return error.status, error.error


def read(error: TokenRejectedError | None, **options: str) -> tuple[int, Challenge]:
    status, value = challenge_for(error, **options)
    (found,) = parse_challenges([value])
    return status, found


@pytest.mark.spec("6750-2.1-rs")
@pytest.mark.parametrize(
    ("value", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer abc", "abc"),
        ("BEARER abc", "abc"),
        ("Bearer  abc", "abc"),
        (" Bearer abc\t", "abc"),
        ("Bearer aZ09-._~+/==", "aZ09-._~+/=="),
        ("Bearer Bearer", "Bearer"),
    ],
)
def test_the_token_is_taken_from_the_header(value: str, token: str) -> None:
    found = parse_authorization([value])

    assert found == Secret(token)
    assert token not in repr(found)


@pytest.mark.spec("6750-3")
@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        ["Bearer"],
        ["Bearer "],
        ["Bearer \t"],
        ["Basic dXNlcjpwYXNz"],
        ["BearerToken abc"],
        ["DPoP abc"],
        ["abc"],
    ],
)
def test_a_request_without_a_bearer_token_is_401_without_an_error(
    values: list[str],
) -> None:
    assert refusal_of(values) == (401, None)


@pytest.mark.spec("6750-3")
@pytest.mark.spec("6750-2.1-rs")
@pytest.mark.parametrize(
    "values",
    [
        ["Bearer a b"],
        ["Bearer a,b"],
        ["Bearer aaa, Bearer bbb"],
        ['Bearer "abc"'],
        ["Bearer =abc"],
        ["Bearer ab=c"],
        ["Bearer abc\n"],
        ["Bearer äöü"],
        ["Bearer abc\x00"],
        ["Bearer aaa", "Bearer bbb"],
        ["Bearer aaa", "Basic dXNlcjpwYXNz"],
        ["Basic dXNlcjpwYXNz", "Basic dXNlcjpwYXNz"],
    ],
)
def test_credentials_that_cannot_be_read_are_400(values: list[str]) -> None:
    assert refusal_of(values) == (400, "invalid_request")


@pytest.mark.spec("6750-3")
def test_a_token_in_the_header_and_elsewhere_is_400() -> None:
    assert refusal_of(["Bearer abc"], other_methods=True) == (400, "invalid_request")


@pytest.mark.spec("6750-2.3-rs")
@pytest.mark.parametrize("values", [[], ["Basic dXNlcjpwYXNz"]])
def test_a_token_elsewhere_alone_is_as_if_absent(values: list[str]) -> None:
    assert refusal_of(values, other_methods=True) == (401, None)


@given(st.lists(header_texts, max_size=3))
def test_no_header_breaks_the_reader(values: list[str]) -> None:
    try:
        token = parse_authorization(values)
    except TokenRejectedError as error:
        assert error.status in (400, 401)  # noqa: PT017 -- not each text is refused
    else:
        assert token.reveal() in values[0]


@pytest.mark.spec("6750-3")
def test_no_token_is_asked_for_without_an_error() -> None:
    assert challenge_for() == (401, 'Bearer realm="api"')
    assert read(None, realm="orders") == (401, Challenge("bearer", {"realm": "orders"}))


@pytest.mark.spec("6750-3")
@pytest.mark.parametrize(
    ("values", "status", "parameters"),
    [
        ([], 401, {}),
        (["Bearer a b"], 400, {"error": "invalid_request"}),
        (["Bearer a", "Bearer b"], 400, {"error": "invalid_request"}),
    ],
)
def test_what_is_wrong_with_a_request_is_in_the_answer(
    values: list[str], status: int, parameters: dict[str, str]
) -> None:
    with pytest.raises(TokenRejectedError) as caught:
        parse_authorization(values)

    expected = Challenge("bearer", {"realm": DEFAULT_REALM, **parameters})
    assert read(caught.value) == (status, expected)


ABOUT_THE_TOKEN = set(RejectionReason) - {
    RejectionReason.CREDENTIALS,
    RejectionReason.INSUFFICIENT_SCOPE,
}


@pytest.mark.spec("9068-4-exp")
@pytest.mark.spec("6750-3.1-order")
@pytest.mark.parametrize("reason", sorted(ABOUT_THE_TOKEN, key=str))
def test_a_refused_token_is_401_and_no_reason_is_given(
    reason: RejectionReason,
) -> None:
    error = rejected(
        reason, "internal words", claim="aud", expected="api", received="theirs"
    )

    status, value = challenge_for(error)

    assert status == 401
    assert value == 'Bearer realm="api", error="invalid_token"'
    assert rejects_token([value])


@pytest.mark.spec("9068-2.2.3")
def test_a_missing_scope_is_403_and_named() -> None:
    error = rejected(
        RejectionReason.INSUFFICIENT_SCOPE, "more", expected=("read", "write")
    )

    assert challenge_for(error) == (
        403,
        'Bearer realm="api", error="insufficient_scope", scope="read write"',
    )
    assert read(error, scope="admin")[1].parameters["scope"] == "admin"
    assert not rejects_token([challenge_for(error)[1]])


@pytest.mark.parametrize("expected", [None, (), 7])
def test_a_scope_that_is_not_known_is_left_out(expected: object) -> None:
    error = rejected(RejectionReason.INSUFFICIENT_SCOPE, "more", expected=expected)

    status, challenge = read(error)

    assert status == 403
    assert "scope" not in challenge.parameters


@pytest.mark.spec("9728-5.1-rs")
def test_the_metadata_of_the_resource_are_named() -> None:
    url = "https://api.example/.well-known/oauth-protected-resource"

    status, challenge = read(None, resource_metadata=url)

    assert status == 401
    assert challenge.parameters["resource_metadata"] == url


def test_a_description_needs_an_error_to_describe() -> None:
    error = rejected(RejectionReason.EXPIRED, "over")

    assert "error_description" not in read(None, error_description="a")[1].parameters
    assert read(error, error_description="a")[1].parameters["error_description"] == "a"


@pytest.mark.spec("6750-3.1-order")
@given(realm=printable, description=printable, url=printable)
def test_whatever_can_be_sent_is_read_back(
    realm: str, description: str, url: str
) -> None:
    error = rejected(RejectionReason.SIGNATURE, "wrong")

    _, challenge = read(
        error, realm=realm, error_description=description, resource_metadata=url
    )

    assert challenge == Challenge(
        "bearer",
        {
            "realm": realm,
            "error": "invalid_token",
            "error_description": description,
            "resource_metadata": url,
        },
    )


@given(st.lists(scope_tokens, min_size=1, max_size=4))
def test_scope_is_read_back(scope: list[str]) -> None:
    _, value = challenge_for(None, scope=scope)

    (challenge,) = parse_challenges([value])
    assert challenge.parameters["scope"].split(" ") == scope
    assert challenge_for(None, scope=" ".join(scope))[1] == value


@pytest.mark.spec("6750-3.1-order")
@pytest.mark.parametrize("text", ["a\nb", "a\r\nSet-Cookie: b", "ä", "\x00", "\x7f"])
@pytest.mark.parametrize("name", ["realm", "error_description", "resource_metadata"])
def test_what_would_break_the_header_is_refused(name: str, text: str) -> None:
    error = rejected(RejectionReason.SIGNATURE, "wrong")
    options = {"realm": "api", name: text}

    with pytest.raises(MisconfiguredError) as caught:
        read(error, **options)

    assert caught.value.setting == name


@pytest.mark.parametrize("scope", ["a  b", " a", 'a"b', "a\\b", "a\nb", "ä", [""], " "])
def test_a_scope_that_is_none_is_refused(scope: str | list[str]) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        challenge_for(None, scope=scope)

    assert caught.value.setting == "scope"

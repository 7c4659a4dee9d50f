"""Compact JWS: taken apart strictly, believed not at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._protocol.base64url import decode_base64url, encode_base64url
from freshtoken._protocol.jwks import JWKSet, verify_jwt
from freshtoken._protocol.jws import MAX_JWT, parse_jwt, verify_signature
from freshtoken._protocol.signing import prepare_signing_key, sign_compact
from freshtoken.errors import RejectionReason, TokenRejectedError
from tests.protocol.helpers import Anything
from tests.protocol.jose import CLAIMS, b64, sign, sign_parts, verifier
from tests.protocol.keys import ED25519, P256, RSA, RSA_PEM

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."
TOKEN = sign(P256, "ES256", kid="k1", typ="JWT")
RSA_TOKEN = sign(RSA, "RS256", kid="k1")
KEY = verifier(P256)
RSA_KEY = verifier(RSA)


def refusal(token: str) -> TokenRejectedError:
    """Return the error with which a token cannot be read."""
    with pytest.raises(TokenRejectedError) as caught:
        parse_jwt(token)
    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    return error


def test_a_signed_token_is_read_and_verified() -> None:
    jwt = parse_jwt(TOKEN)

    verify_signature(jwt, KEY)
    assert jwt.claims == CLAIMS
    assert (jwt.alg, jwt.kid, jwt.typ) == ("ES256", "k1", "jwt")
    assert jwt.signing_input == TOKEN.rpartition(".")[0].encode()


@pytest.mark.spec("7515-3.1")
@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "...",
        TOKEN + ".",
        TOKEN + ".AAAA",
        TOKEN.rpartition(".")[0],
        TOKEN.rpartition(".")[0] + ".",
        json.dumps({"payload": "e30", "signatures": []}),
    ],
)
def test_what_has_not_three_parts_is_refused(token: str) -> None:
    assert refusal(token).reason is RejectionReason.MALFORMED


@pytest.mark.spec("8725bis-format")
@pytest.mark.parametrize(
    "mark",
    [" ", "=", "==", "\n", "\r\n", "?", "+", "/", "\x00", "é", "\udc80", "\uff11"],
)
def test_characters_outside_the_alphabet_are_refused(mark: str) -> None:
    for place in (0, 5, TOKEN.index("."), TOKEN.rindex("."), len(TOKEN)):
        token = TOKEN[:place] + mark + TOKEN[place:]
        assert refusal(token).reason is RejectionReason.MALFORMED


@pytest.mark.spec("7515-2-canon")
@pytest.mark.parametrize("text", [b"A", b"AAAAA", b"AB", b"AAB", b"AAAAAB", b"QR"])
def test_other_spellings_of_base64url_are_refused(text: bytes) -> None:
    assert decode_base64url(text) is None


@pytest.mark.spec("7515-2-canon")
@given(st.binary(max_size=40))
def test_base64url_that_is_read_undoes_what_was_written(value: bytes) -> None:
    assert decode_base64url(encode_base64url(value).encode()) == value


@pytest.mark.spec("7515-2-canon")
@given(st.text(ALPHABET[:-1], max_size=12))
def test_a_value_has_one_spelling_in_base64url(text: str) -> None:
    value = decode_base64url(text.encode())

    assert value is None or encode_base64url(value) == text


@pytest.mark.parametrize(
    ("header", "payload", "length"), [(48, 49_038, MAX_JWT), (49, 49_037, MAX_JWT + 1)]
)
def test_a_token_has_a_greatest_length(header: int, payload: int, length: int) -> None:
    token = sign_parts(
        P256,
        "ES256",
        '{"alg":"ES256"}'.ljust(header),
        "{}".ljust(payload),
    )

    assert len(token) == length
    assert (refusal_or_none(token) is None) == (length == MAX_JWT)


def refusal_or_none(token: str) -> TokenRejectedError | None:
    try:
        parse_jwt(token)
    except TokenRejectedError as error:
        return error
    return None


@pytest.mark.spec("7515-4-json")
@pytest.mark.parametrize(
    "header",
    [
        '{"alg":"ES256"}'.encode("utf-16"),
        '{"alg":"ES256"}'.encode("utf-8-sig"),
        b'{"alg":"ES256","x":"\xff"}',
        b'["ES256"]',
        b'"ES256"',
        b"",
        b" ",
        b"nothing",
        b'{"alg":"ES256","alg":"none"}',
        b'{"alg":"ES256","x":{"a":1,"a":2}}',
        b'{"alg":"ES256","x":NaN}',
        b'{"alg":"ES256","x":"\\ud800"}',
        b'{"alg":"ES256"}x',
        b'{"alg":"ES256","x":' + b"[" * 70 + b"]" * 70 + b"}",
    ],
)
def test_parts_that_are_no_plain_json_object_are_refused(header: bytes) -> None:
    good = b'{"alg":"ES256"}'

    for parts in ((header, b"{}"), (good, header)):
        token = sign_parts(P256, "ES256", *parts)
        assert refusal(token).reason is RejectionReason.MALFORMED
    assert parse_jwt(sign_parts(P256, "ES256", good, b"{}")).claims == {}


@pytest.mark.spec("7515-4.1.1-allow")
@pytest.mark.parametrize("header", ["{}", '{"alg":1}', '{"alg":null}', '{"alg":["a"]}'])
def test_a_header_without_an_algorithm_is_refused(header: str) -> None:
    error = refusal(sign_parts(P256, "ES256", header, "{}"))

    assert error.reason is RejectionReason.ALGORITHM
    assert error.claim == "alg"


@pytest.mark.spec("7515-4.1.11")
@pytest.mark.parametrize("crit", [["exp"], [], "exp", None, ["b64"], {}])
def test_every_critical_extension_is_refused(crit: object) -> None:
    error = refusal(sign(P256, "ES256", crit=crit, b64=False))

    assert error.reason is RejectionReason.CRITICAL_HEADER


@pytest.mark.spec("JWKS-kid-type")
@pytest.mark.parametrize("member", ["kid", "typ"])
@pytest.mark.parametrize("value", [["a"], 1, None, {}, True])
def test_a_name_that_is_no_text_is_refused(member: str, value: Anything) -> None:
    error = refusal(sign(P256, "ES256", **{member: value}))

    assert error.reason is RejectionReason.MALFORMED
    assert error.claim == member


@pytest.mark.spec("JWKS-kid-type")
def test_a_kid_of_a_megabyte_is_refused() -> None:
    token = sign(P256, "ES256", kid="k" * 1_000_000)

    assert refusal(token).reason is RejectionReason.MALFORMED


@pytest.mark.spec("7515-4.1.9")
@pytest.mark.parametrize("typ", ["at+jwt", "AT+JWT", "application/at+jwt"])
def test_spellings_of_a_media_type_are_equal(typ: str) -> None:
    assert parse_jwt(sign(P256, "ES256", typ=typ)).typ == "at+jwt"


def test_a_token_without_names_has_none() -> None:
    jwt = parse_jwt(sign(P256, "ES256"))

    assert (jwt.kid, jwt.typ) == (None, None)


@pytest.mark.spec("7519-4-unknown")
def test_members_that_nobody_knows_do_no_harm() -> None:
    jwt = parse_jwt(sign(P256, "ES256", {"x": [1.5, {"y": None}]}, z={"a": 1}))

    assert jwt.claims == {"x": [1.5, {"y": None}]}


@pytest.mark.parametrize("kid", ["k" * 10, "k" * 1_000])
def test_a_header_that_comes_again_is_read_the_same_and_cannot_be_changed(
    kid: str,
) -> None:
    first = parse_jwt(sign(P256, "ES256", {"sub": "a"}, kid=kid))
    second = parse_jwt(sign(P256, "ES256", {"sub": "b"}, kid=kid))

    assert first.kid == second.kid == kid
    assert first.header == second.header
    assert (first.claims, second.claims) == ({"sub": "a"}, {"sub": "b"})
    with pytest.raises(TypeError):
        first.header["kid"] = "x"  # type: ignore[index]


def test_a_header_is_refused_again_and_again() -> None:
    token = sign(P256, "ES256", crit=["exp"])

    assert refusal(token).reason is refusal(token).reason


@pytest.mark.spec("8725-3.1-none")
@pytest.mark.parametrize("alg", ["none", "None", "nOnE", "NONE"])
@pytest.mark.parametrize("signature", ["", "AAAA"])
def test_an_unsigned_token_is_never_accepted(alg: str, signature: str) -> None:
    token = f"{b64(json.dumps({'alg': alg}))}.{b64(json.dumps(CLAIMS))}.{signature}"

    with pytest.raises(TokenRejectedError) as caught:
        verify_jwt(parse_jwt(token), JWKSet((KEY,), ()), algorithms=("ES256", alg))

    assert caught.value.reason is RejectionReason.ALGORITHM


@given(place=st.integers(0, len(RSA_TOKEN) - 1), letter=st.sampled_from(ALPHABET))
@pytest.mark.parametrize(
    ("token", "key", "alg"),
    [(TOKEN, KEY, "ES256"), (RSA_TOKEN, RSA_KEY, "RS256")],
    ids=["EC", "RSA"],
)
def test_one_changed_byte_is_rejected(
    token: str, key: Anything, alg: str, place: int, letter: str
) -> None:
    place %= len(token)
    changed = token[:place] + letter + token[place + 1 :]
    keys = JWKSet((key,), ())

    if changed == token:
        verify_jwt(parse_jwt(changed), keys, algorithms=(alg,))
    else:
        with pytest.raises(TokenRejectedError):
            verify_jwt(parse_jwt(changed), keys, algorithms=(alg,))


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=10),
        st.text(st.characters(codec="utf-8")) | st.integers() | st.booleans(),
    )
)
def test_parsing_undoes_building(claims: dict[str, object]) -> None:
    key = prepare_signing_key(ED25519)

    jwt = parse_jwt(sign_compact(key, "EdDSA", {"kid": "k"}, claims))

    verify_signature(jwt, verifier(ED25519))
    assert dict(jwt.claims) == claims


@pytest.mark.spec("SEC-fuzz")
@given(
    st.text()
    | st.text(ALPHABET)
    | st.lists(st.binary(), max_size=4).map(lambda parts: ".".join(map(b64, parts)))
)
def test_any_text_is_read_or_refused(text: str) -> None:
    error = refusal_or_none(text)

    assert error is None or isinstance(error.reason, RejectionReason)


@pytest.mark.spec("SEC-repr")
def test_a_parsed_token_does_not_show_itself() -> None:
    shown = repr(parse_jwt(sign(P256, "ES256", {"sub": "alice-in-person"})))

    assert "alice" not in shown
    assert "ES256" in shown


def test_a_wrong_signature_says_so_and_shows_nothing() -> None:
    with pytest.raises(TokenRejectedError) as caught:
        verify_signature(parse_jwt(TOKEN), RSA_KEY)

    assert caught.value.reason is RejectionReason.SIGNATURE
    assert caught.value.received is None
    assert TOKEN not in str(caught.value)
    assert RSA_PEM not in str(caught.value)

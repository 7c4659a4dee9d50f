"""What browsers bring back: read in one way only, and refused unless it fits."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshtoken._foundation.records import Failure
from freshtoken._protocol.callback import (
    MOST_CHARACTERS,
    MOST_PARAMETERS,
    MOST_TOTAL,
    CallbackParameters,
    check_callback,
    read_callback,
)
from freshtoken._protocol.classification import classify, error_for
from freshtoken._protocol.exchange import ExchangeError
from freshtoken.errors import (
    AccessDeniedError,
    AuthorizationResponseError,
    ClientRejectedError,
    Disposition,
    FreshTokenError,
    MisconfiguredError,
    RetryableError,
    SignInRequiredError,
)
from tests.protocol.helpers import ISSUER, Anything, answer
from tests.protocol.sign_ins import (
    CODE,
    REDIRECT_URI,
    begin,
    callback,
    metadata,
    pending,
)

ADVERTISED = {"authorization_response_iss_parameter_supported": True}


def check(
    came: Anything,
    *,
    changes: Mapping[str, object] | None = None,
    members: Mapping[str, object] | None = None,
    **options: Anything,
) -> str:
    """Read and check an answer.

    Args:
        changes: Of what it has to fit.
        members: Of the server's metadata.
    """
    wanted = pending(**(changes or {}))
    server = metadata(**(members or {}))
    return check_callback(read_callback(came), wanted, server, **options)


def refusal_of(came: Anything, **options: Anything) -> AuthorizationResponseError:
    """Return why an answer is refused."""
    with pytest.raises(AuthorizationResponseError) as caught:
        check(came, **options)
    return caught.value


def failure_of(came: Anything, **options: Anything) -> Failure:
    """Return how an error of the server's is graded."""
    with pytest.raises(ExchangeError) as caught:
        check(came, **options)
    return caught.value.failure


# How an answer may come


def shapes() -> Iterator[Anything]:
    """Return one answer in every shape that applications have it in."""
    url = callback()
    query = url.partition("?")[2]
    pairs = [("code", CODE), ("state", pending().state)]
    yield url
    yield f"/cb?{query}"
    yield f"http://10.0.0.7:8000/cb?{query}"
    yield f"https://user@proxy.test/cb?{query}#fragment"
    yield f"?{query}"
    yield query
    yield f"{query}#code=other&state=other"
    yield pairs
    yield iter(pairs)
    yield [list(pair) for pair in pairs]
    yield dict(pairs)
    yield {name: [value] for name, value in pairs}


def test_an_answer_may_come_in_many_shapes() -> None:
    for number, came in enumerate(shapes()):
        assert check(came) == CODE, f"shape {number}"


@pytest.mark.spec("9207-2.4-a")
@pytest.mark.parametrize("prefix", ["", "?", "/cb?", "https://app.test/cb?"])
def test_a_query_may_hold_slashes_that_nobody_escaped(prefix: str) -> None:
    query = f"iss={ISSUER}&code=a/b?c&state={pending().state}"

    assert check(prefix + query, members=ADVERTISED) == "a/b?c"


@pytest.mark.spec("6749-4.1.2-unknown")
@pytest.mark.parametrize(
    "more", ["&foo=bar", "&foo=1&foo=2", "&foo", "&=x", "&&", "&session_state=a.b"]
)
def test_unknown_parameters_are_ignored_even_twice(more: str) -> None:
    assert check(callback() + more) == CODE


@pytest.mark.spec("6749-B")
def test_parameters_are_form_decoded_once() -> None:
    code = "a+b c%2Fd&e=f"

    assert check(callback(code=code)) == code
    assert check([("code", code), ("state", pending().state)]) == code


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1))
def test_a_code_comes_back_octet_for_octet(code: str) -> None:
    assert check(callback(code=code)) == code


class Repeating(Mapping[str, str]):
    """A mapping that shows one value of each name, as frameworks have them."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self.pairs = pairs

    def __getitem__(self, name: str) -> str:
        return dict(self.pairs)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self.pairs))

    def __len__(self) -> int:
        return len(dict(self.pairs))


class LikeStarlette(Repeating):
    def multi_items(self) -> list[tuple[str, str]]:
        return self.pairs


class LikeDjango(Repeating):
    def lists(self) -> Iterator[tuple[str, list[str]]]:
        for name in self:
            yield name, [value for key, value in self.pairs if key == name]


class LikeMultidict(Repeating):
    def items(self) -> Anything:
        return self.pairs


@pytest.mark.spec("6749-3.1-dup")
@pytest.mark.parametrize("kind", [LikeStarlette, LikeDjango, LikeMultidict])
def test_repeated_names_are_seen_through_a_framework_s_mapping(
    kind: type[Repeating],
) -> None:
    once = [("code", CODE), ("state", pending().state), ("x", "1"), ("x", "2")]

    assert check(kind(once)) == CODE
    assert refusal_of(kind([*once, ("code", "other")])).reason == "duplicate"


@pytest.mark.spec("6749-3.1-dup")
@pytest.mark.parametrize(
    "name",
    [
        "code",
        "state",
        "iss",
        "error",
        "error_description",
        "error_uri",
        "id_token",
        "access_token",
        "response",
    ],
)
@pytest.mark.parametrize("value", ["a", ""])
def test_a_repeated_parameter_makes_an_answer_invalid(name: str, value: str) -> None:
    twice = [("code", CODE), ("state", pending().state)]
    twice = [pair for pair in twice if pair[0] != name] + [(name, "a"), (name, value)]

    for came in (urlencode(twice), f"{REDIRECT_URI}?{urlencode(twice)}", twice):
        assert refusal_of(came).reason == "duplicate"
    assert (
        refusal_of({"state": "a", "code": "b", name: ["a", value]}).reason
        == "duplicate"
    )


# Bounds


@pytest.mark.parametrize("name", ["code", "state", "iss", "error", "id_token"])
def test_a_parameter_has_a_longest_length(name: str) -> None:
    longest = {"state": "s", name: "a" * MOST_CHARACTERS}
    too_long = {"state": "s", name: "a" * (MOST_CHARACTERS + 1)}

    assert read_callback(longest) == read_callback(list(longest.items()))
    assert read_callback(urlencode(longest)).state == longest["state"]
    for came in (too_long, urlencode(too_long)):
        assert refusal_of(came).reason == "malformed"


def test_a_query_has_a_most_number_of_parameters() -> None:
    pairs = [("state", pending().state), ("code", CODE)]
    pairs += [(f"x{number}", "1") for number in range(MOST_PARAMETERS - 2)]

    for came in (pairs, urlencode(pairs), dict(pairs)):
        assert check(came) == CODE
    pairs.append(("y", "1"))
    for came in (pairs, urlencode(pairs), dict(pairs)):
        assert refusal_of(came).reason == "malformed"
    assert refusal_of({"x": ["1"] * (MOST_PARAMETERS + 1)}).reason == "malformed"


def test_a_url_has_a_longest_length() -> None:
    url = callback() + "&x="
    longest = url + "a" * (MOST_TOTAL - len(url))

    assert check(longest) == CODE
    assert refusal_of(longest + "a").reason == "malformed"


@pytest.mark.parametrize(
    "came",
    [
        None,
        7,
        b"code=a&state=b",
        pytest.param(object(), id="object"),
        [7],
        ["ab"],
        [("state",)],
        [("state", "a", "b")],
        [("state", 7)],
        [("state", b"a")],
        [(7, "a")],
        [("state", None)],
        [("state", ["a", 7])],
        {"state": None},
        "https://[::1",
        "https://app.test/c\nb?state=a",
        "/c\tb?state=a",
        "code=%00&state=a",
        "code=a%0D%0Ab&state=a",
        "code=%ff&state=a",
        "code=%C3%A4&state=a",
    ],
    ids=repr,
)
def test_what_is_no_answer_is_malformed(came: Anything) -> None:
    assert refusal_of(came).reason == "malformed"


@pytest.mark.parametrize(
    "came",
    [
        "",
        "?",
        "#",
        "/",
        "/cb",
        "https://app.test/cb",
        "https://app.test/cb#code=a&state=b",
        "state",
        "state=&code=a",
        "code=a",
        "error=access_denied",
        "cb?code=a&state",
        [],
        {},
        [("state", "")],
        {"state": []},
    ],
    ids=repr,
)
def test_an_answer_without_state_is_not_ours(came: Anything) -> None:
    assert refusal_of(came).reason == "missing"


# State


@pytest.mark.spec("6749-4.1.2-state")
def test_another_state_is_refused() -> None:
    state = pending().state
    for other in (
        f"{state}1",
        state[:-1],
        state.swapcase(),
        f" {state}",
        f"{state}\x00",
        f"{state[:-1]}\ud800",
        f"ä{state}",
    ):
        assert refusal_of({"code": CODE, "state": other}).reason == "unknown_state"


def test_a_stored_state_that_no_url_carries_fits_nothing() -> None:
    refused = refusal_of(callback(), changes={"state": "\ud800"})

    assert refused.reason == "unknown_state"


@pytest.mark.spec("6749-4.1.2-state")
def test_the_state_comes_before_everything_else() -> None:
    came = "/other?state=other&iss=other&error=access_denied&id_token=x"

    reason = refusal_of(came, changes={"response_mode": "form_post"}).reason

    assert reason == "unknown_state"


# Where it came


@pytest.mark.spec("6749-redirect")
@pytest.mark.parametrize(
    ("redirect_uri", "came"),
    [
        ("https://app.test/cb", "/cb"),
        ("https://app.test/cb", "http://internal:8000/cb"),
        ("https://app.test/cb", "//internal/cb"),
        ("https://app.test", "https://app.test/"),
        ("https://app.test/", "https://app.test"),
        ("https://app.test/c%20b", "/c b"),
        ("https://app.test/ü", "/%C3%BC"),
        ("https://app.test/cb?tenant=1", "/cb"),
        ("com.example.app:/cb", "com.example.app:/cb"),
        ("com.example.app:cb", "com.example.app:cb"),
        ("myapp://cb", "myapp://cb"),
    ],
)
def test_of_a_url_only_the_path_is_compared(redirect_uri: str, came: str) -> None:
    query = callback().partition("?")[2]

    assert check(f"{came}?{query}", changes={"redirect_uri": redirect_uri}) == CODE


@pytest.mark.spec("6749-redirect")
@pytest.mark.parametrize(
    "path", ["/cb/", "/CB", "/cb2", "/", "//cb", "/x/../cb", "/cb;x", "/cb%2f"]
)
def test_another_path_is_refused(path: str) -> None:
    url = callback().replace("/cb?", f"{path}?")

    assert refusal_of(f"https://app.test{path}?{url.partition('?')[2]}").reason == (
        "redirect_uri"
    )


def test_a_stored_redirect_uri_that_is_no_url_fits_nothing() -> None:
    refused = refusal_of(callback(), changes={"redirect_uri": "https://[::1"})

    assert refused.reason == "redirect_uri"


@pytest.mark.spec("FormPost-2")
def test_a_form_that_was_asked_for_must_come_as_one() -> None:
    asked = {"response_mode": "form_post"}
    form = [("code", CODE), ("state", pending().state)]

    assert check(form, changes=asked) == CODE
    assert check(dict(form), changes=asked) == CODE
    for came in (callback(), urlencode(form), "?" + urlencode(form)):
        assert refusal_of(came, changes=asked).reason == "response_mode"


def test_a_query_may_come_as_a_mapping() -> None:
    form = {"code": CODE, "state": pending().state}

    assert check(form, changes={"response_mode": "query"}) == CODE


# The server's name


@pytest.mark.spec("9207-2.4-a")
@pytest.mark.spec("9207-2.4-c")
@pytest.mark.parametrize("advertised", [True, False, None, "yes"])
def test_the_right_name_is_accepted_whether_advertised_or_not(
    advertised: Anything,
) -> None:
    members = {"authorization_response_iss_parameter_supported": advertised}

    assert check(callback(iss=ISSUER), members=members) == CODE


@pytest.mark.spec("9207-2.4-a")
@pytest.mark.spec("9207-2.4-d")
@pytest.mark.parametrize("error", [None, "access_denied"])
@pytest.mark.parametrize("advertised", [True, False])
@pytest.mark.parametrize(
    "iss",
    [
        "https://evil.test",
        f"{ISSUER}/",
        f"{ISSUER}1",
        f" {ISSUER}",
        ISSUER.upper(),
        f"{ISSUER}:443",
        quote(ISSUER, safe=""),
        "",
    ],
)
def test_another_server_s_answer_is_refused_before_its_error(
    iss: str,
    error: str | None,
    advertised: bool,  # noqa: FBT001 -- parametrised
) -> None:
    came = {"state": pending().state, "code": CODE, "iss": iss}
    came |= {"error": error} if error else {}
    members = {"authorization_response_iss_parameter_supported": advertised}

    refused = refusal_of(came, members=members)

    assert (refused.reason, refused.error, refused.issuer) == ("issuer", None, ISSUER)


@pytest.mark.spec("9207-2.4-b")
@pytest.mark.parametrize("error", [None, "access_denied"])
def test_a_name_that_is_advertised_has_to_come(error: str | None) -> None:
    refused = refusal_of(callback(error=error), members=ADVERTISED)

    assert (refused.reason, refused.error) == ("issuer", None)


# What it brings


@pytest.mark.spec("6749-4.1.2-code")
@pytest.mark.parametrize(
    "came", ["state={}", "code=&state={}", "code=&state={}&error="]
)
def test_an_answer_without_code_and_error_is_refused(came: str) -> None:
    assert refusal_of(came.format(pending().state)).reason == "missing"


@pytest.mark.spec("Core-3.2.2.5")
def test_a_fragment_is_ignored() -> None:
    url = f"{REDIRECT_URI}?state={pending().state}"

    assert refusal_of(f"{url}#id_token=x&code=y").reason == "missing"


@pytest.mark.spec("Core-3.3.2.5")
@pytest.mark.parametrize("name", ["id_token", "access_token", "response"])
def test_tokens_in_the_front_channel_are_refused(name: str) -> None:
    assert refusal_of(callback(**{name: "x"})).reason == "unexpected"
    assert check(callback() + f"&{name}=") == CODE


@pytest.mark.spec("9700-4.4-a")
def test_nothing_in_an_answer_says_where_the_code_goes() -> None:
    extra = "&token_endpoint=https://evil.test&issuer=https://evil.test"

    assert check(callback() + extra) == CODE


# Errors of the server's


@pytest.mark.spec("6749-4.1.2.1")
@pytest.mark.spec("Core-3.1.2.6")
@pytest.mark.spec("FormPost-error")
@pytest.mark.parametrize("form", [True, False])
@pytest.mark.parametrize(
    ("code", "disposition", "kind"),
    [
        ("access_denied", Disposition.DENIED, AccessDeniedError),
        (
            "unmet_authentication_requirements",
            Disposition.DENIED,
            AccessDeniedError,
        ),
        ("login_required", Disposition.SIGN_IN, SignInRequiredError),
        ("interaction_required", Disposition.SIGN_IN, SignInRequiredError),
        ("consent_required", Disposition.SIGN_IN, SignInRequiredError),
        ("account_selection_required", Disposition.SIGN_IN, SignInRequiredError),
        ("server_error", Disposition.RETRY, RetryableError),
        ("temporarily_unavailable", Disposition.RETRY, RetryableError),
        ("invalid_request", Disposition.MISCONFIGURED, MisconfiguredError),
        ("invalid_scope", Disposition.MISCONFIGURED, MisconfiguredError),
        ("invalid_client", Disposition.MISCONFIGURED, MisconfiguredError),
        ("invalid_target", Disposition.MISCONFIGURED, MisconfiguredError),
        ("unauthorized_client", Disposition.MISCONFIGURED, MisconfiguredError),
        ("unsupported_response_type", Disposition.MISCONFIGURED, MisconfiguredError),
        ("invalid_request_object", Disposition.MISCONFIGURED, MisconfiguredError),
        ("invalid_request_uri", Disposition.MISCONFIGURED, MisconfiguredError),
        ("request_not_supported", Disposition.MISCONFIGURED, MisconfiguredError),
        ("request_uri_not_supported", Disposition.MISCONFIGURED, MisconfiguredError),
        ("registration_not_supported", Disposition.MISCONFIGURED, MisconfiguredError),
    ],
)
def test_an_error_is_graded(
    code: str,
    disposition: Disposition,
    kind: type[FreshTokenError],
    form: bool,  # noqa: FBT001 -- parametrised
) -> None:
    came = {"error": code, "error_description": "why so", "state": pending().state}
    mode = "form_post" if form else "query"

    failure = failure_of(
        came if form else urlencode(came), changes={"response_mode": mode}
    )
    error = error_for(failure, issuer=ISSUER, cleared=False)

    assert failure.disposition is disposition
    assert (failure.error, failure.original_error) == (code, None)
    assert failure.description == "why so"
    assert not failure.sent
    assert not failure.in_doubt
    assert bool(failure.setting) is (disposition is Disposition.MISCONFIGURED)
    assert type(error) is kind
    assert error.error == code
    assert not isinstance(error, ClientRejectedError)
    assert not getattr(error, "cleared", False)
    assert "session is kept" not in str(error)
    assert "sign-in" in str(error) or disposition is Disposition.DENIED


@pytest.mark.spec("6749-4.1.2.1")
def test_an_error_wins_over_a_code_and_over_tokens() -> None:
    came = callback(error="access_denied", id_token="x")

    assert failure_of(came).error == "access_denied"


def test_an_error_without_value_is_none() -> None:
    assert check(callback() + "&error=") == CODE


@pytest.mark.parametrize(
    ("spelled", "code"),
    [
        ("Access_Denied", "access_denied"),
        ("accessDenied", "access_denied"),
        ("internal_error", "server_error"),
    ],
)
def test_an_error_keeps_the_server_s_spelling(spelled: str, code: str) -> None:
    failure = failure_of(callback(error=spelled))

    assert (failure.error, failure.original_error) == (code, spelled)


def test_an_unknown_error_still_surfaces() -> None:
    refused = refusal_of(
        callback(
            error="vendor_thing",
            error_description="see the manual",
            error_uri="https://idp.test/errors",
        )
    )

    assert (refused.reason, refused.error) == ("error", "vendor_thing")
    assert refused.error_description == "see the manual"
    assert refused.error_uri == "https://idp.test/errors"
    assert refused.issuer == ISSUER


def test_the_caller_s_table_of_errors_goes_first() -> None:
    own = {
        "vendor-thing": Disposition.RETRY,
        "access_denied": Disposition.SIGN_IN,
        "odd": Disposition.MISCONFIGURED,
    }

    vendor = failure_of(callback(error="vendor_thing"), error_codes=own)
    denied = failure_of(callback(error="access_denied"), error_codes=own)
    odd = failure_of(callback(error="odd"), error_codes=own)
    other = failure_of(callback(error="login_required"), error_codes=own)

    assert (vendor.disposition, vendor.error) == (Disposition.RETRY, "vendor_thing")
    assert denied.disposition is Disposition.SIGN_IN
    assert (odd.disposition, odd.setting) == (Disposition.MISCONFIGURED, "error_codes")
    assert other.disposition is Disposition.SIGN_IN


def test_what_browsers_are_told_means_what_it_did_to_a_refresh() -> None:
    """The codes that mean something else at the browser keep their other meaning."""
    for code, disposition in (
        ("invalid_client", Disposition.CLIENT_REJECTED),
        ("unmet_authentication_requirements", Disposition.SIGN_IN),
    ):
        graded = classify(answer(400, {"error": code}), grant_type="refresh_token")
        assert graded.disposition is disposition


# Words of the server's


@pytest.mark.spec("6749-4.1.2.1-b")
@pytest.mark.parametrize("error", ["access_denied", "vendor_thing"])
def test_words_from_outside_are_cut_and_cleaned(error: str) -> None:
    words = "a\r\nSet-Cookie: x\x1b[2J <script>alert(1)</script> \u202e" + "ä " * 5_000

    with pytest.raises((ExchangeError, AuthorizationResponseError)) as caught:
        check(callback(error=error, error_description=words))

    raised = caught.value
    described = (
        raised.failure.description
        if isinstance(raised, ExchangeError)
        else (getattr(raised, "error_description", None))
    )
    description = described or ""
    assert description.startswith("a  Set-Cookie: x")
    assert len(description) <= 501
    for text in (description, str(raised)):
        assert text.isprintable()
        assert not {"<", ">"} & set(text)


@pytest.mark.spec("6749-4.1.2.1-b")
def test_an_error_code_from_outside_is_cut_and_cleaned() -> None:
    refused = refusal_of(callback(error="<b>x</b>\r\n" + "y " * 1_000))

    assert refused.error is not None
    assert len(refused.error) <= 100
    assert refused.error.isprintable()
    assert not {"<", ">"} & set(refused.error)


def test_words_that_are_not_utf_8_do_not_hide_the_error() -> None:
    came = f"state={pending().state}&error=access_denied&error_description=%FCber%FF"

    failure = failure_of(came)

    assert failure.error == "access_denied"
    assert failure.description == "ber"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://idp.test/errors?code=1#x", "https://idp.test/errors"),
        ("javascript:alert(1)", None),
        ("data:text/html,x", None),
        ("/errors", None),
        ("https://idp.test/\n", "https://idp.test/"),
        ("https://idp.test/a b", None),
        ('https://idp.test/"><script>', None),
        ("https://idp.test/\x7f", None),
        ("https://idp.test/ü", None),
        ("https://[", None),
        ("https://idp.test/" + "a" * 10_000, None),
    ],
)
def test_a_page_of_the_server_s_is_a_web_address_or_none(
    uri: str, shown: str | None
) -> None:
    failure = failure_of(callback(error="access_denied", error_uri=uri))

    assert failure.error_uri == shown


def test_an_echo_shows_neither_code_nor_state() -> None:
    state = pending().state
    code = "short words"
    came = callback(
        code=code,
        error="access_denied",
        error_description=f"no {code} for {state}",
        error_uri=f"https://idp.test/{state}",
    )

    failure = failure_of(came)

    for secret in (code, state):
        assert secret not in repr(failure)
        assert secret not in failure.advice
    assert failure.error_uri is None


@pytest.mark.parametrize(
    ("code", "described"),
    [
        ("e", "the user declined"),
        ("decline", "the user declined"),
        ("declined", "the user ***"),
    ],
)
def test_a_code_that_is_none_does_not_garble_the_words(
    code: str, described: str
) -> None:
    came = callback(
        code=code, error="access_denied", error_description="the user declined"
    )

    assert failure_of(came).description == described


def test_the_words_of_a_server_do_not_change_our_advice() -> None:
    failure = failure_of(
        callback(
            error="invalid_scope", error_description="; the session is kept. Call 555"
        )
    )

    assert failure.description == "; the session is kept. Call 555"
    assert '"; the session is kept. Call 555"' in failure.advice
    assert failure.advice.endswith("then begin a new sign-in.")


# Hostile answers


def text_of(error: BaseException) -> str:
    """Return all that an error shows, with its chain and notes."""
    shown = "".join(traceback.format_exception(error))
    return f"{shown} {error!r} {vars(error)!r}"


@pytest.mark.parametrize(
    "came",
    [
        callback(state="other-state-0123456789"),
        callback(iss="https://evil.test/0123456789-secret-in-path"),
        callback(id_token="eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0."),
        callback() + f"&code={CODE}",
        callback().replace("/cb", "/other"),
        callback(code="ä" + CODE),
        callback(error="vendor_thing"),
        callback(error="access_denied"),
    ],
    ids=range(8),
)
def test_no_refusal_shows_what_came(came: str) -> None:
    with pytest.raises((AuthorizationResponseError, ExchangeError)) as caught:
        check(came)

    shown = text_of(caught.value)
    for secret in (CODE, pending().state, "other-state", "evil", "eyJ"):
        assert secret not in shown
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_an_answer_shows_nothing() -> None:
    read = read_callback(callback(iss=ISSUER, error="x"))

    assert repr(read) == str(read) == "CallbackParameters(***)"


names = st.sampled_from(
    [
        "state",
        "code",
        "iss",
        "error",
        "error_description",
        "error_uri",
        "id_token",
        "response",
        "x",
    ]
)
values = st.text(max_size=20) | st.sampled_from(
    [
        ISSUER,
        CODE,
        pending().state,
        "access_denied",
        "invalid_scope",
        "%",
        "\ud800",
        "https://[",
    ]
)
junk = st.text() | st.text("?#&=%/:;+aZ0[]@\\\t\n\x00", max_size=60)
queries = st.lists(st.tuples(names, values), max_size=6).map(
    lambda pairs: "&".join(f"{name}={value}" for name, value in pairs)
)
urls = st.builds(
    lambda start, query, end: start + query + end,
    st.sampled_from(["", "?", "/cb?", f"{REDIRECT_URI}?", "x:", "//[?", "https:?"]),
    queries,
    st.just("") | junk,
)
pairs_lists = st.lists(st.tuples(names | st.text(max_size=3), values), max_size=6)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner),
    max_leaves=6,
)


@given(junk | urls | pairs_lists | anything, st.sampled_from(["query", "form_post"]))
def test_nothing_that_comes_raises_anything_of_another_kind(
    came: Anything, mode: str
) -> None:
    """Whatever a browser sends, the outcome is a code or an error of the library's."""
    wanted = pending(response_mode=mode)
    read: CallbackParameters | None = None

    with contextlib.suppress(FreshTokenError):
        read = read_callback(came)

    if read is not None:
        for parts in (read, read_callback(dict(state=wanted.state, **_parts(read)))):
            with contextlib.suppress(FreshTokenError, ExchangeError):
                assert check_callback(parts, wanted, metadata(**ADVERTISED))


def _parts(read: CallbackParameters) -> dict[str, str]:
    """Return what an answer says beside its state."""
    found = {
        "code": read.code,
        "iss": ISSUER,
        "error": read.error,
        "error_description": read.error_description,
        "error_uri": read.error_uri,
    }
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.spec("7636-4.5")
def test_each_answer_finds_its_own_sign_in() -> None:
    one, two = begin().pending, pending(state="b" * 43, code_verifier="v" * 43)

    for wanted, other in ((one, two), (two, one)):
        read = read_callback(callback(wanted))
        assert check_callback(read, wanted, metadata()) == CODE
        with pytest.raises(AuthorizationResponseError) as caught:
            check_callback(read, other, metadata())
        assert caught.value.reason == "unknown_state"

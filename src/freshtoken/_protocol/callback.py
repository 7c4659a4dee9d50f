"""What a browser brings back from the authorization server, and whether it fits."""

from __future__ import annotations

import contextlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

from freshtoken._foundation.records import Failure
from freshtoken._foundation.secret import MASK, redact
from freshtoken._protocol import advice
from freshtoken._protocol.body import is_vschars
from freshtoken._protocol.classification import meaning_at_browser
from freshtoken._protocol.error_answer import clean_uri
from freshtoken._protocol.exchange import ExchangeError
from freshtoken._protocol.metadata import ServerMetadata
from freshtoken._protocol.pending import PendingSignIn
from freshtoken._protocol.settings import has_control
from freshtoken.errors import AuthorizationResponseError, Disposition

MOST_PARAMETERS = 100
MOST_CHARACTERS = 8_192
"""Of one parameter."""
MOST_TOTAL = 65_536
"""Of a query or URL."""

# What a code flow with a query or a form never brings.
_UNEXPECTED = ("access_token", "id_token", "response")
# The server's own words are cut, not refused: they may be long.
_WORDS = ("error_description", "error_uri")
_KNOWN = frozenset({"state", "code", "iss", "error", *_WORDS, *_UNEXPECTED})
_ISS_ADVERTISED = "authorization_response_iss_parameter_supported"
# Below this a "code" is none, and masking it would only garble the words.
_SHORTEST_SECRET = 8
_MOST_CODE = 100
# A path, or a scheme: a query may hold slashes and colons too, but only behind a name.
_URL = re.compile(r"/|[A-Za-z][A-Za-z0-9+.\-]*:")
# Whoever shows an error as HTML must not show somebody's markup.
_NO_MARKUP = str.maketrans("<>", "  ")


@dataclass(frozen=True, slots=True, repr=False)
class CallbackParameters:
    """The parameters of an authorization response (RFC 6749 §4.1.2).

    Parameters without a value count as absent, but for ``iss``.

    Attributes:
        state: Never empty.
        path: Decoded path of the URL that they came in; ``None`` if no URL was given.
        posted: They came as pairs or a mapping, not in a URL or query.
        unexpected: A parameter that this flow never brings, if there is one.
    """

    state: str
    code: str | None = None
    iss: str | None = None
    error: str | None = None
    error_description: str | None = None
    error_uri: str | None = None
    path: str | None = None
    posted: bool = False
    unexpected: str | None = None

    def __repr__(self) -> str:
        """Show nothing that came from outside."""
        return f"CallbackParameters({MASK})"


def read_callback(
    callback: str | Mapping[str, str | list[str]] | Iterable[tuple[str, str]],
) -> CallbackParameters:
    """Read an authorization response: a URL, a query, or the pairs of a form.

    Args:
        callback: An absolute URL, or a path with its query; a query with or without
            its question mark; pairs, or a mapping. What a web framework makes of a
            query or form will do, also where a name can have several values.

    Raises:
        AuthorizationResponseError: It cannot be read in one way only.

    Spec: RFC 6749 §3.1, §4.1.2; OAuth 2.0 Form Post Response Mode §2.
    """
    path: str | None = None
    if isinstance(callback, str):
        path, pairs = _read_text(callback)
    else:
        pairs = _read_pairs(callback)
    members: dict[str, str] = {}
    for name, value in pairs:
        if name not in _KNOWN:
            continue
        if name in members:
            _refuse("duplicate", f"it names {name} twice")
        if len(value) > MOST_CHARACTERS and name not in _WORDS:
            _refuse("malformed", f"its {name} is too long")
        members[name] = value
    iss = members.get("iss")  # an empty one is another one
    members = {name: value for name, value in members.items() if value}
    if "state" not in members:
        _refuse("missing", "it has no state: not an answer to a sign-in of ours")
    code = members.get("code")
    if code is not None and not is_vschars(code):
        # RFC 6749 Appendix A.11.
        _refuse("malformed", "its code has characters that no code can have")
    return CallbackParameters(
        state=members["state"],
        code=code,
        iss=iss,
        error=members.get("error"),
        error_description=members.get("error_description"),
        error_uri=members.get("error_uri"),
        path=path,
        posted=not isinstance(callback, str),
        unexpected=next((name for name in _UNEXPECTED if name in members), None),
    )


def check_callback(
    answer: CallbackParameters,
    pending: PendingSignIn,
    metadata: ServerMetadata,
    *,
    error_codes: Mapping[str, Disposition] | None = None,
) -> str:
    """Return the code of an answer that fits its request.

    Where the server's name does not fit, nothing that the answer says is believed, not
    even its error.

    Args:
        error_codes: The caller's own table of error codes, which goes first.

    Raises:
        AuthorizationResponseError: It does not fit.
        ExchangeError: It is an error of the server's, which the failure grades.

    Spec: RFC 6749 §4.1.2, §4.1.2.1; RFC 9207 §2.4; OpenID Connect Core §3.1.2.6.
    """
    issuer = pending.issuer
    if not hmac.compare_digest(
        answer.state.encode("utf-8", "surrogatepass"),
        pending.state.encode("utf-8", "surrogatepass"),
    ):
        _refuse("unknown_state", "its state is another one", issuer)
    if answer.path is not None and answer.path != _path_of(pending.redirect_uri):
        _refuse(
            "redirect_uri",
            "it came to another path than the redirect_uri's: look at the route",
            issuer,
        )
    # Frameworks hand a query over as a mapping, too: only the other way is a mistake.
    if pending.response_mode == "form_post" and not answer.posted:
        _refuse(
            "response_mode",
            "form_post was asked for, and it did not come as a form: pass the form",
            issuer,
        )
    _check_iss(answer, issuer, metadata)
    if answer.error is not None:
        raise ExchangeError(authorization_failure(answer, issuer, error_codes))
    if answer.unexpected is not None:
        _refuse(
            "unexpected",
            f"it brings {answer.unexpected}, which was not asked for",
            issuer,
        )
    if answer.code is None:
        _refuse("missing", "it has neither code nor error", issuer)
    return answer.code


def authorization_failure(
    answer: CallbackParameters,
    issuer: str,
    error_codes: Mapping[str, Disposition] | None = None,
) -> Failure:
    """Grade an error that the server sent the browser back with.

    Anybody can make up such an address, so that its words are shown, never believed.

    Raises:
        AuthorizationResponseError: No table knows the error.

    Spec: RFC 6749 §4.1.2.1, OpenID Connect Core §3.1.2.6.
    """
    secrets = (answer.state, answer.code or "")
    hidden = tuple(text for text in secrets if len(text) >= _SHORTEST_SECRET)
    spelled = answer.error or ""
    code = _clean(spelled, hidden)[:_MOST_CODE]
    description = _clean(answer.error_description or "", hidden) or None
    error_uri = clean_uri(answer.error_uri, hidden)
    words = f': "{description}"' if description else ""
    happened = f"The authorization server sent the browser back with {code}{words}."
    meaning = meaning_at_browser(spelled, error_codes)
    if meaning is None:
        error = AuthorizationResponseError(
            f"{happened} No table knows this error: look it up at the server, and say "
            "in error_codes what it means.",
            issuer=issuer,
            error=code,
            error_description=description,
            error_uri=error_uri,
        )
        error.reason = "error"
        raise error
    registered = _clean(meaning.code, hidden)[:_MOST_CODE]
    next_step = advice.what_next(meaning.disposition, meaning.setting)
    return advice.for_sign_in(
        Failure(
            disposition=meaning.disposition,
            advice=f"{happened} {next_step}",
            error=registered,
            original_error=code if code != registered else None,
            description=description,
            error_uri=error_uri,
            setting=meaning.setting,
            sent=False,
        )
    )


def _clean(text: str, hidden: Iterable[str]) -> str:
    """Return words from outside, fit for a log, an error, and a page."""
    return redact(text, *hidden).translate(_NO_MARKUP).strip()


def _check_iss(
    answer: CallbackParameters, issuer: str, metadata: ServerMetadata
) -> None:
    """Refuse the answer of another server (RFC 9207 §2.4)."""
    if answer.iss is None:
        if metadata.document.get(_ISS_ADVERTISED) is True:
            _refuse(
                "issuer",
                "it does not say which server it comes from, as this server does",
                issuer,
            )
    elif answer.iss != issuer:
        _refuse("issuer", "it comes from another server than was asked", issuer)


def _read_text(callback: str) -> tuple[str | None, list[tuple[str, str]]]:
    """Return path and pairs of a URL, or the pairs of a query."""
    if len(callback) > MOST_TOTAL:
        _refuse("malformed", "it is too long")
    text = callback.partition("#")[0]
    path: str | None = None
    query = text.removeprefix("?")
    if _URL.match(text):
        head, _, query = text.partition("?")
        path = _path_of(head)
        if path is None:
            _refuse("malformed", "it is no URL")
    pairs = None
    with contextlib.suppress(ValueError):
        # What is not UTF-8 becomes halves of surrogate pairs, which fit nothing: an old
        # server's error text must not hide its error.
        pairs = parse_qsl(
            query,
            keep_blank_values=True,
            errors="surrogateescape",
            max_num_fields=MOST_PARAMETERS,
        )
    if pairs is None:
        _refuse("malformed", "it has too many parameters")
    return path, pairs


def _path_of(url: str) -> str | None:
    """Return the decoded path of a URL, if it is one."""
    if has_control(url):
        return None
    with contextlib.suppress(ValueError):
        return unquote(urlsplit(url).path) or "/"
    return None


def _read_pairs(callback: object) -> list[tuple[str, str]]:
    """Return the pairs of a form or mapping, however a framework gives them."""
    pairs: list[tuple[str, str]] = []
    for item in _items(callback):
        if not (isinstance(item, tuple | list) and len(item) == 2):  # noqa: PLR2004 -- a pair
            _refuse("malformed", "it holds something that is no pair")
        name, value = item
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in (name, *values)):
            _refuse("malformed", "it holds something that is no text")
        pairs += [(name, text) for text in values]
        if len(pairs) > MOST_PARAMETERS:
            _refuse("malformed", "it has too many parameters")
    return pairs


def _items(callback: object) -> Iterable[object]:
    """Return all items, also those that a framework's mapping hides.

    Repeated names have to be seen: ``multi_items`` is Starlette's way, ``lists``
    Django's and Werkzeug's; those of other frameworks have all in ``items``.
    """
    for name in ("multi_items", "lists", "items"):
        method = getattr(callback, name, None)
        if callable(method):
            callback = method()
            break
    if not isinstance(callback, Iterable):
        _refuse("malformed", "it is neither text nor pairs")
    return callback


def _refuse(reason: str, why: str, issuer: str | None = None) -> NoReturn:
    """Raise the error for an answer; *why* continues "because"."""
    error = AuthorizationResponseError(
        f"the answer to a sign-in is refused because {why}; begin a new sign-in",
        issuer=issuer,
    )
    error.reason = reason
    raise error

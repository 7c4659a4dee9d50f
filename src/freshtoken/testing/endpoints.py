"""What an endpoint of the mock server is, and how a request comes to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from freshtoken._foundation.secret import MASK
from freshtoken.testing.grants import MockGrant, OAuthFaultError
from freshtoken.testing.messages import (
    MockRequest,
    MockResponse,
    first_values,
    json_response,
)
from freshtoken.testing.pages import PageError, page

if TYPE_CHECKING:
    from freshtoken.testing.idp import MockIdP

Handler = Callable[["MockIdP", "Call"], MockResponse]


@dataclass(slots=True, repr=False)
class Call:
    """One request on its way through an endpoint; the endpoint notes what it finds.

    Attributes:
        form: Its parameters; of a GET, those of the query.
    """

    request: MockRequest
    form: Mapping[str, str]
    repeated: frozenset[str]
    resources: tuple[str, ...]
    now: float
    grant: MockGrant | None = None

    def __repr__(self) -> str:
        """Show the request only."""
        return f"Call({self.request!r} {MASK})"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go, and what answers them.

    Attributes:
        name: As faults and the request log call it.
        path: Below the issuer's path; well-known documents have places of their own.
        metadata: Member of the metadata that holds its address.
    """

    name: str
    path: str
    handler: Handler
    methods: tuple[str, ...] = ("GET",)
    metadata: str | None = None
    well_known: str | None = field(default=None)

    def path_under(self, issuer: str) -> str:
        """Return the path at which *issuer* has this endpoint.

        Spec: OpenID Connect Discovery §4, RFC 8414 §3.1.
        """
        base = urlsplit(issuer).path.rstrip("/")
        if self.well_known == "oauth-authorization-server":
            return f"/.well-known/{self.well_known}{base}"
        if self.well_known is not None:
            return f"{base}/.well-known/{self.well_known}"
        return base + self.path


def read_call(request: MockRequest, now: float) -> Call:
    """Read the parameters of a request: of a GET the query, else the form."""
    pairs = request.query if request.method == "GET" else request.form
    names = [name for name, _ in pairs]
    repeated = {one for one in names if one != "resource" and names.count(one) > 1}
    resources = tuple(value for name, value in pairs if name == "resource")
    form = first_values(pairs)
    return Call(request, form, frozenset(repeated), resources, now)


def answer(idp: MockIdP, endpoint: Endpoint | None, call: Call) -> MockResponse:
    """Return what the server says to a request, faults aside."""
    if endpoint is None:
        response = MockResponse(404, (("Content-Type", "text/plain"),), b"Not Found")
    elif call.request.method not in endpoint.methods:
        allowed = {"Allow": ", ".join(endpoint.methods)}
        response = MockResponse(405).with_headers(allowed)
    else:
        try:
            response = endpoint.handler(idp, call)
        except OAuthFaultError as refusal:
            response = _refuse(refusal)
        except PageError as refusal:
            response = page(400, refusal.title)
    return response.with_headers({"Date": http_date(call.now)})


def http_date(instant: float) -> str:
    """Return epoch seconds as a ``Date`` header has them."""
    return formatdate(instant, usegmt=True)


def _refuse(refusal: OAuthFaultError) -> MockResponse:
    """Return the answer for a refusal."""
    members = {"error": refusal.error, "error_description": refusal.description}
    challenge = refusal.challenge
    headers = {} if challenge is None else {"WWW-Authenticate": challenge}
    return json_response(refusal.status, members, headers)

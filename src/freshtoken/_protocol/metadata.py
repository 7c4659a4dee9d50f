"""Authorization-server metadata: discovered, given by hand, or one over the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType

from freshtoken._foundation.records import Failure
from freshtoken._protocol.body import UnreadableError, parse_json_object
from freshtoken._protocol.classification import DISCOVERY, classify
from freshtoken._protocol.client import Discovery, OAuthClient
from freshtoken._protocol.exchange import (
    Conversation,
    ExchangeError,
    Request,
    Response,
)
from freshtoken._protocol.settings import refuse
from freshtoken._protocol.urls import check_endpoint_url, issuer_mismatch
from freshtoken.errors import Disposition, MisconfiguredError

# "Later", said of a document: worth another look before it counts as missing.
_LATER = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_EARLY,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)
_SEGMENTS: Mapping[Discovery, str] = {
    "oidc": "/.well-known/openid-configuration",
    "oauth": "/.well-known/oauth-authorization-server",
}
_SUCCESS = 2
_CLIENT_ERROR = 4
_DEFAULT_AUTH_METHODS = ("client_secret_basic",)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ServerMetadata:
    """What is known of an authorization server.

    Members of the wrong type are refused when they are used, not before.

    Attributes:
        issuer: The issuer identifier, which the document names exactly so.
        document: All members, also those that the library does not know.
        insecure: Plain ``http`` is allowed to any host.

    Spec: RFC 8414 §2, OpenID Connect Discovery §3.
    """

    issuer: str
    document: Mapping[str, object]
    insecure: bool = False

    @property
    def token_endpoint(self) -> str | None:
        """Where tokens are asked for."""
        return self.find_endpoint("token_endpoint")

    @property
    def revocation_endpoint(self) -> str | None:
        """Where tokens are given back."""
        return self.find_endpoint("revocation_endpoint")

    @property
    def introspection_endpoint(self) -> str | None:
        """Where a resource server asks what a token is good for."""
        return self.find_endpoint("introspection_endpoint")

    @property
    def authorization_endpoint(self) -> str | None:
        """Where browsers are sent to sign in."""
        return self.find_endpoint("authorization_endpoint")

    @property
    def userinfo_endpoint(self) -> str | None:
        """Where claims about the user are had."""
        return self.find_endpoint("userinfo_endpoint")

    @property
    def end_session_endpoint(self) -> str | None:
        """Where browsers are sent to sign out."""
        return self.find_endpoint("end_session_endpoint")

    @property
    def jwks_uri(self) -> str | None:
        """Where the server's public keys are."""
        return self.find_endpoint("jwks_uri")

    @property
    def token_endpoint_auth_methods_supported(self) -> tuple[str, ...]:
        """Client authentication methods at the token endpoint, with the default."""
        return self.auth_methods("token") or _DEFAULT_AUTH_METHODS

    @property
    def revocation_endpoint_auth_methods_supported(self) -> tuple[str, ...]:
        """The same at the revocation endpoint, by default those of the other."""
        return self.auth_methods("revocation") or _DEFAULT_AUTH_METHODS

    @property
    def token_endpoint_auth_signing_alg_values_supported(self) -> tuple[str, ...]:
        """Algorithms of client assertions; empty if the server does not say."""
        return self.signing_algorithms("token") or ()

    def endpoint(self, name: str) -> str:
        """Return the URL of an endpoint that is needed now.

        Raises:
            MisconfiguredError: There is none, or one that nothing may be sent to.
        """
        url = self.find_endpoint(name)
        if url is None:
            refuse(
                name,
                "is missing in the server's metadata: give it in metadata= if the "
                "server has one",
            )
        return url

    def find_endpoint(self, name: str) -> str | None:
        """Return the URL of an endpoint, if the server lists one.

        Raises:
            MisconfiguredError: Nothing may be sent to it.
        """
        url = self.document.get(name)
        if url is None:
            return None
        return check_endpoint_url(name, url, insecure=self.insecure)

    def values(self, name: str) -> tuple[str, ...] | None:
        """Return a member that is a list of texts; ``None`` if absent or empty.

        Raises:
            MisconfiguredError: It is of another type.
        """
        found = self.document.get(name)
        if found is None:
            return None
        if not isinstance(found, list | tuple):
            refuse(name, "in the server's metadata is not a list of texts")
        texts = tuple(item for item in found if isinstance(item, str))
        if len(texts) < len(found):
            refuse(name, "in the server's metadata is not a list of texts")
        return texts or None

    def auth_methods(self, endpoint: str = "token") -> tuple[str, ...] | None:
        """Return the client authentication methods that are listed for an endpoint.

        Other endpoints take those of the token endpoint where they have no list.
        """
        return self._values_of(endpoint, "auth_methods_supported")

    def signing_algorithms(self, endpoint: str = "token") -> tuple[str, ...] | None:
        """Return the algorithms of client assertions that are listed."""
        return self._values_of(endpoint, "auth_signing_alg_values_supported")

    def _values_of(self, endpoint: str, name: str) -> tuple[str, ...] | None:
        """Return the list of an endpoint, else that of the token endpoint."""
        own = self.values(f"{endpoint}_endpoint_{name}")
        return own or self.values(f"token_endpoint_{name}")

    def __repr__(self) -> str:
        return f"ServerMetadata({self.issuer!r}, {len(self.document)} members)"


def well_known_url(issuer: str, form: Discovery) -> str:
    """Return where an issuer's metadata are.

    The issuer's text is kept as it is but for one slash at its end.

    Args:
        form: ``"oidc"`` puts the well-known segment at the end, ``"oauth"`` between
            host and path.

    Spec: OpenID Connect Discovery §4, RFC 8414 §3.
    """
    base = issuer.removesuffix("/")
    if form == "oidc":
        return base + _SEGMENTS[form]
    host, slash, path = base.partition("://")[2].partition("/")
    return f"{base.partition('://')[0]}://{host}{_SEGMENTS[form]}{slash}{path}"


def parse_metadata(response: Response, client: OAuthClient) -> ServerMetadata:
    """Read a metadata document and lay the client's own members over it.

    Raises:
        UnreadableError: It is no JSON object under status 200.
        MisconfiguredError: It names no issuer.
        IssuerMismatchError: It names another one.

    Spec: RFC 8414 §3.2, §3.3; OpenID Connect Discovery §4.2, §4.3.
    """
    if response.status != HTTPStatus.OK:
        raise UnreadableError("not an answer with status 200")
    document = parse_json_object(response.body)
    named = document.get("issuer")
    if not isinstance(named, str):
        raise MisconfiguredError(
            f"issuer is {client.issuer!r}, but its metadata name no issuer: that is a "
            "server's fault, or no metadata; give them by hand with discovery=None",
            setting="issuer",
            disposition=Disposition.MISCONFIGURED,
            issuer=client.issuer,
        )
    # Code point by code point: whatever else is equal may be somebody else's.
    if named != client.issuer:
        raise issuer_mismatch(client.issuer, named)
    return build_metadata(client, document)


def build_metadata(
    client: OAuthClient, document: Mapping[str, object]
) -> ServerMetadata:
    """Lay the client's own members over a document; ``None`` hides a member."""
    members = {**document, **(client.metadata or {}), "issuer": client.issuer}
    return ServerMetadata(
        issuer=client.issuer,
        document=MappingProxyType(members),
        insecure=client.allow_insecure_transport,
    )


def discover(client: OAuthClient) -> Conversation[ServerMetadata]:
    """Fetch a server's metadata, or take those that are given by hand.

    The second well-known form is asked where the first one gives a 4xx or no JSON
    object. With ``discovery=None`` nothing is asked at all: the generator ends at once.

    Raises:
        ExchangeError: The server is out of order, busy, or redirects.
        MisconfiguredError: There are no metadata under either form.
        IssuerMismatchError: They name another issuer.

    Spec: OpenID Connect Discovery §4, RFC 8414 §3, §5.
    """
    if client.discovery is None:
        return build_metadata(client, {})
    forms: tuple[Discovery, Discovery] = ("oidc", "oauth")
    if client.discovery == "oauth":
        forms = ("oauth", "oidc")
    later: Failure | None = None
    seen: list[str] = []
    status = None
    for form in forms:
        url = well_known_url(client.issuer, form)
        response = yield Request("GET", url, (("Accept", "application/json"),))
        status = response.status
        if status // 100 not in (_SUCCESS, _CLIENT_ERROR):
            raise ExchangeError(classify(response, grant_type=DISCOVERY))
        try:
            return parse_metadata(response, client)
        except UnreadableError as error:
            reason = str(error)
        if status in _LATER:
            later = later or classify(response, grant_type=DISCOVERY)
        seen.append(f"{url}: {reason if status == HTTPStatus.OK else status}")
    if later is not None:
        raise ExchangeError(later)
    raise MisconfiguredError(
        f"issuer {client.issuer!r} has no metadata ({'; '.join(seen)}): check its "
        "spelling, or give the endpoints as metadata with discovery=None",
        setting="issuer",
        disposition=Disposition.MISCONFIGURED,
        issuer=client.issuer,
        status=status,
    )

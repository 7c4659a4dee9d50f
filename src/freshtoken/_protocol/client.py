"""The client as it is registered at one authorization server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import Literal, NoReturn, Self, TypeAlias, get_args

from freshtoken._foundation.secret import Secret, refuse_pickle
from freshtoken._protocol.settings import (
    check_credential,
    check_duration,
    check_flag,
    check_identifier,
    check_leeway,
    check_members,
    refuse,
)
from freshtoken._protocol.signing import (
    ASYMMETRIC_ALGORITHMS,
    HMAC_ALGORITHMS,
    PrivateKeySource,
    SigningKey,
    prepare_signing_key,
)
from freshtoken._protocol.urls import (
    check_endpoint_url,
    check_issuer,
    check_redirect_uri,
    issuer_mismatch,
)
from freshtoken.errors import Disposition

SecretSource: TypeAlias = Callable[[], "str | Secret | Awaitable[str | Secret]"]

AuthMethod = Literal[
    "client_secret_basic",
    "client_secret_post",
    "client_secret_jwt",
    "private_key_jwt",
    "none",
]
Discovery = Literal["oidc", "oauth"]

DEFAULT_LEEWAY = 30.0

AUTH_METHODS: tuple[str, ...] = get_args(AuthMethod)
SECRET_METHODS = ("client_secret_basic", "client_secret_post", "client_secret_jwt")
ENDPOINT_MEMBERS = (
    "token_endpoint",
    "revocation_endpoint",
    "introspection_endpoint",
    "authorization_endpoint",
    "userinfo_endpoint",
    "end_session_endpoint",
    "jwks_uri",
)
ASSERTION_TYPE_HEADER = "client-authentication+jwt"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class OAuthClient:
    """A client at one authorization server: settings only, checked and immutable.

    Make it once, at start-up: nothing is sent, and it owns nothing to close.

    Args:
        issuer: The server's issuer identifier, exactly as its metadata spell it. An
            ``https`` URL, or ``http`` to a literal loopback address.
        client_id: The identifier that the server gave this client.
        client_secret: Text, or a function that returns it (it may be ``async``) and
            is asked at each request. ``None`` for a public client.
        redirect_uri: Where the server sends browsers back after a sign-in.
        token_endpoint_auth_method: How the client authenticates. By default what
            fits its credentials and the server's metadata; a name given here is
            used even where the metadata do not list it.
        private_key: For ``private_key_jwt``: PEM text, a JWK as a mapping, or a
            private key object of ``cryptography``.
        private_key_id: The ``kid`` under which the server knows the key's public
            half; by default the JWK's own.
        signing_algorithm: Of client assertions; by default what fits the key and
            the server's metadata. A name given here is used even if not listed.
        client_assertion_audience: ``"issuer"``; older servers want
            ``"token_endpoint"``, or a text of their own.
        client_assertion_typ: The ``typ`` header of client assertions; ``None`` leaves
            it out, for servers that refuse it.
        metadata: Server metadata by hand: laid over those that are discovered, or
            all there are if *discovery* is ``None``. ``None`` as a member's value
            hides what the server says.
        discovery: Which well-known document is asked for first: ``"oidc"``
            (OpenID Connect Discovery) or ``"oauth"`` (RFC 8414). ``None`` asks none.
        form_encode_basic: ``False`` for servers that do not decode the two halves
            of HTTP Basic as RFC 6749 §2.3.1 says.
        default_lifetime: Seconds that an access token is taken to live where neither
            the server nor the token itself says. By default it is then used until
            an API refuses it.
        error_codes: What further error codes of this server mean; goes before the
            library's own table.
        id_token_signed_response_alg: How the server signs this client's ID tokens, if
            not with RS256; what the metadata list does not widen it. ``HS256`` and its
            like need the *client_secret*.
        leeway: Seconds by which ``exp``, ``iat``, ``nbf`` and ``auth_time`` may be off;
            at most 300.
        trusted_audiences: Further audiences that an ID token may name beside this
            client.
        check_azp: Whether ``azp`` of an ID token has to name this client.
        allow_insecure_transport: Allow plain ``http`` to any host, for tests only.

    Raises:
        MisconfiguredError: A value is of no use; ``.setting`` names the parameter.

    Spec: RFC 6749 §2, RFC 8414 §2, OpenID Connect Core §3.1.3.7, §9.
    """

    issuer: str
    _: KW_ONLY
    client_id: str
    client_secret: str | Secret | SecretSource | None = None
    redirect_uri: str | None = None
    token_endpoint_auth_method: AuthMethod | None = None
    private_key: PrivateKeySource | SigningKey | None = None
    private_key_id: str | None = None
    signing_algorithm: str | None = None
    client_assertion_audience: str = "issuer"
    client_assertion_typ: str | None = ASSERTION_TYPE_HEADER
    metadata: Mapping[str, object] | None = None
    discovery: Discovery | None = "oidc"
    form_encode_basic: bool = True
    default_lifetime: float | None = None
    error_codes: Mapping[str, Disposition] | None = None
    id_token_signed_response_alg: str | None = None
    leeway: float = DEFAULT_LEEWAY
    trusted_audiences: Collection[str] = ()
    check_azp: bool = False
    allow_insecure_transport: bool = False

    def __post_init__(self) -> None:
        """Check every setting, wrap the secrets, prepare the key."""
        check_flag("allow_insecure_transport", self.allow_insecure_transport)
        check_flag("form_encode_basic", self.form_encode_basic)
        check_issuer(self.issuer, insecure=self.allow_insecure_transport)
        check_identifier("client_id", self.client_id)
        if self.redirect_uri is not None:
            check_redirect_uri(
                self.redirect_uri, insecure=self.allow_insecure_transport
            )
        if isinstance(self.client_secret, str | Secret):
            self._replace("client_secret", check_credential(self.client_secret))
        elif self.client_secret is not None and not callable(self.client_secret):
            refuse("client_secret", "is neither text nor a function that returns it")
        if self.private_key is not None:
            key = prepare_signing_key(self.private_key, self.private_key_id)
            self._replace("private_key", key)
        self._check_authentication()
        self._check_metadata()
        self._check_id_token_rules()
        self._check_rest()

    @property
    def secret(self) -> Secret | SecretSource | None:
        """The client secret, or the function to ask for it."""
        value = self.client_secret
        return Secret(value) if isinstance(value, str) else value

    @property
    def signing_key(self) -> SigningKey | None:
        """The prepared private key, if there is one."""
        key = self.private_key
        return key if isinstance(key, SigningKey) else None

    def _replace(self, name: str, value: object) -> None:
        """Put the checked form of a setting in its place."""
        object.__setattr__(self, name, value)

    def _check_authentication(self) -> None:
        """Refuse credentials that do not fit the authentication method."""
        method = self.token_endpoint_auth_method
        if method is not None and method not in AUTH_METHODS:
            refuse(
                "token_endpoint_auth_method",
                f"is none of {', '.join(AUTH_METHODS)}",
            )
        if method in SECRET_METHODS and self.client_secret is None:
            refuse("client_secret", f"is missing, and {method} needs one")
        if method == "private_key_jwt" and self.private_key is None:
            refuse("private_key", "is missing, and private_key_jwt needs one")
        has_credential = self.client_secret is not None or self.private_key is not None
        if method == "none" and has_credential:
            refuse(
                "token_endpoint_auth_method",
                "is 'none' although a client_secret or private_key is given",
            )
        if self.private_key is None and self.private_key_id is not None:
            refuse("private_key_id", "is given without a private_key")
        self._check_algorithm()
        if not self.form_encode_basic and ":" in self.client_id:
            refuse(
                "form_encode_basic",
                "cannot be False: the client_id contains a colon, which would end it",
            )
        check_identifier("client_assertion_audience", self.client_assertion_audience)
        if self.client_assertion_typ is not None:
            check_identifier("client_assertion_typ", self.client_assertion_typ)

    def _check_algorithm(self) -> None:
        """Refuse an algorithm that is unknown, or that the credential does not have.

        ``none`` is among the unknown ones (RFC 8725 §3.1).
        """
        algorithm, key = self.signing_algorithm, self.signing_key
        if algorithm is None:
            return
        if algorithm in HMAC_ALGORITHMS:
            fits = self.client_secret is not None
            method = "client_secret_jwt"
        elif algorithm in ASYMMETRIC_ALGORITHMS:
            fits = key is not None and algorithm in key.algorithms
            method = "private_key_jwt"
        else:
            known = ", ".join((*ASYMMETRIC_ALGORITHMS, *HMAC_ALGORITHMS))
            refuse("signing_algorithm", f"is none of {known}")
        if not fits:
            refuse("signing_algorithm", "does not fit the client's credentials")
        if self.token_endpoint_auth_method not in (None, method):
            refuse("signing_algorithm", "does not fit token_endpoint_auth_method")

    def _check_metadata(self) -> None:
        """Refuse metadata that are no JSON object, or another server's."""
        if self.discovery not in (*get_args(Discovery), None):
            refuse("discovery", "is none of 'oidc', 'oauth', None")
        if self.metadata is None:
            if self.discovery is None:
                refuse("metadata", "is missing, and discovery=None needs it")
            return
        check_members("metadata", self.metadata, object)
        self._replace("metadata", MappingProxyType(dict(self.metadata)))
        for name in ENDPOINT_MEMBERS:
            if self.metadata.get(name) is not None:
                insecure = self.allow_insecure_transport
                check_endpoint_url(name, self.metadata[name], insecure=insecure)
        named = self.metadata.get("issuer")
        if named is not None and named != self.issuer:
            raise issuer_mismatch(self.issuer, named)

    def _check_id_token_rules(self) -> None:
        """Refuse rules for ID tokens that could not be kept."""
        check_flag("check_azp", self.check_azp)
        check_leeway("leeway", self.leeway)
        audiences = self.trusted_audiences
        if isinstance(audiences, str) or not isinstance(audiences, Collection):
            refuse("trusted_audiences", "is not a collection of texts")
        for audience in audiences:
            check_identifier("trusted_audiences", audience)
        self._replace("trusted_audiences", tuple(audiences))
        algorithm = self.id_token_signed_response_alg
        if algorithm is None:
            return
        setting = "id_token_signed_response_alg"
        if algorithm not in (*ASYMMETRIC_ALGORITHMS, *HMAC_ALGORITHMS):
            known = ", ".join((*ASYMMETRIC_ALGORITHMS, *HMAC_ALGORITHMS))
            refuse(setting, f"is none of {known}")
        if algorithm in HMAC_ALGORITHMS and self.client_secret is None:
            refuse(setting, f"is {algorithm}, which needs a client_secret")

    def _check_rest(self) -> None:
        """Refuse a lifetime or table of error codes that cannot be used."""
        if self.default_lifetime is not None:
            check_duration("default_lifetime", self.default_lifetime)
        if self.error_codes is not None:
            check_members("error_codes", self.error_codes, Disposition)
            self._replace("error_codes", MappingProxyType(dict(self.error_codes)))

    def __repr__(self) -> str:
        """Show whose client it is, nothing secret."""
        return f"OAuthClient({self.issuer!r}, client_id={self.client_id!r})"

    def __copy__(self) -> Self:
        """Return itself: a client never changes."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        """Return itself: a client never changes."""
        return self

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        refuse_pickle(self)

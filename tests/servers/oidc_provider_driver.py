"""Start, steer and question a real OpenID Provider: ``oidc-provider`` from npm.

Everything here is synchronous and takes no side between asyncio and trio: the server is
a process of its own, and a control call takes a few milliseconds.

    with OidcProvider.start() as server:
        tokens = server.sign_in("client_secret_basic")
        server.fault(status=503, count=2)
        ...
        assert len(server.log("token", grant_type="refresh_token")) == 3
"""

import base64
import contextlib
import hashlib
import json
import secrets
import subprocess
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping
from typing import IO, Any, Literal, Self

import httpx

from tests.servers.browser import Browser, new_client
from tests.servers.oidc_provider_install import SOURCE, find_node, install
from tests.servers.oidc_provider_records import (
    IssuedCode,
    LogEntry,
    RegisteredClient,
    ServerError,
    hash_token,
    parse_client,
)

__all__ = [
    "DEFAULT_REDIRECT_URI",
    "JWT_RESOURCE",
    "OPAQUE_RESOURCE",
    "Browser",
    "IssuedCode",
    "LogEntry",
    "OidcProvider",
    "RegisteredClient",
    "ServerError",
    "hash_token",
]

_START_SECONDS = 60
_STOP_SECONDS = 5
DEFAULT_REDIRECT_URI = "http://127.0.0.1:8765/callback"
JWT_RESOURCE = "https://api.example.test/jwt"
OPAQUE_RESOURCE = "https://api.example.test/opaque"

Endpoint = Literal[
    "authorization",
    "end_session",
    "introspection",
    "jwks",
    "metadata",
    "revocation",
    "token",
    "userinfo",
]


Rotation = Literal["overlap", "hard", "same_kid"]


class OidcProvider:
    """A running server. Make one with `start`, once for a test session."""

    def __init__(self, process: subprocess.Popen[str], control_key: str) -> None:
        """Watch *process*; `start` is the way in for tests."""
        self._process = process
        self._output: deque[str] = deque(maxlen=5000)
        self._ready = threading.Event()
        self._announced: dict[str, Any] = {}
        self._drain = threading.Thread(target=self._read_output, daemon=True)
        self._drain.start()
        headers = {"X-Control-Key": control_key}
        self._control = new_client(headers)
        self._plain = new_client()
        self._metadata: dict[str, Any] = {}
        self.clients: dict[str, RegisteredClient] = {}
        """The built-in clients by name; the name is the client id of all but one."""

    @classmethod
    @contextlib.contextmanager
    def start(cls, **settings: float | bool) -> Generator[Self]:
        """Run a server on a free port of 127.0.0.1 for the length of the block.

        Args:
            settings: As for `configure`; they last until the first `reset`.

        Raises:
            UnavailableError: This machine lacks what the server needs.
            ServerError: The server did not come up; its output is in the message.
        """
        modules = install()
        key = secrets.token_urlsafe()
        environment = {
            "FRESHTOKEN_OIDC_CONTROL_KEY": key,
            "FRESHTOKEN_OIDC_MODULES": str(modules),
        }
        # Standard input stays open as long as we live; the server ends with it.
        process = subprocess.Popen(
            [find_node(modules), str(SOURCE / "server.mjs")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        server = cls(process, key)
        try:
            server._wait_until_ready()
            if settings:
                server.configure(**settings)
            yield server
        finally:
            server._stop()

    # ------------------------------------------------------------ what it is

    @property
    def issuer(self) -> str:
        """The issuer identifier, ``http://127.0.0.1:PORT``."""
        return str(self._announced["issuer"])

    @property
    def port(self) -> int:
        """The port the server listens on."""
        return int(self._announced["port"])

    @property
    def pid(self) -> int:
        """The process that serves."""
        return self._process.pid

    def endpoint(self, name: Endpoint) -> str:
        """Return the URL of an endpoint."""
        if name == "metadata":
            return f"{self.issuer}/.well-known/openid-configuration"
        member = {"jwks": "jwks_uri"}.get(name, f"{name}_endpoint")
        return str(self._metadata[member])

    def client(self, name: str) -> RegisteredClient:
        """Return a client by its name or its client id."""
        for key, client in self.clients.items():
            if name in {key, client.client_id}:
                return client
        raise ServerError(f"no client {name!r}, only {', '.join(self.clients)}")

    def output(self) -> str:
        """Return what the server has printed so far."""
        return "".join(self._output)

    # ------------------------------------------------------------ a user's part

    def sign_in(
        self,
        client: str,
        redirect_uri: str = DEFAULT_REDIRECT_URI,
        scope: str = "openid offline_access",
        user: str = "user-1",
        **parameters: str,
    ) -> dict[str, Any]:
        """Sign a user in and return the raw token response.

        The redirect URI is never called: the code is taken from the redirect to it.

        Args:
            client: Name or client id.
            redirect_uri: ``/callback`` or ``/auth/callback`` on any port of 127.0.0.1.
            user: The ``sub`` that the server will sign in.
            parameters: More for the authorization request, such as ``nonce``.

        Raises:
            ServerError: The server refused one of the two requests.
        """
        issued = self.get_code(client, redirect_uri, scope, user, **parameters)
        response = self.redeem(client, issued)
        if response.is_error:
            raise ServerError(
                f"the code was refused: {response.status_code} {response.text}"
            )
        tokens: dict[str, Any] = response.json()
        return tokens

    def get_code(
        self,
        client: str,
        redirect_uri: str = DEFAULT_REDIRECT_URI,
        scope: str = "openid offline_access",
        user: str = "user-1",
        **parameters: str,
    ) -> IssuedCode:
        """Go the first half of `sign_in`: to the code, which stays unredeemed.

        Raises:
            ServerError: The server refused the request.
        """
        verifier = secrets.token_urlsafe(48)
        digest = hashlib.sha256(verifier.encode()).digest()
        query = {
            "client_id": self.client(client).client_id,
            "redirect_uri": redirect_uri,
            "response_type": "code",
            "scope": scope,
            "state": secrets.token_urlsafe(),
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
            "login_hint": user,
            # Without it the server drops offline_access, silently.
            **({"prompt": "consent"} if "offline_access" in scope.split() else {}),
            **parameters,
        }
        url = str(httpx.URL(self.endpoint("authorization"), params=query))
        answer = dict(httpx.URL(self.sign_in_at(url)).params)
        if answer.get("state") != query["state"] or "code" not in answer:
            raise ServerError(
                f"sign-in failed: {answer.get('error_description', answer)}"
            )
        return IssuedCode(answer["code"], verifier, redirect_uri)

    def redeem(self, client: str, issued: IssuedCode, **form: str) -> httpx.Response:
        """Send a code to the token endpoint; a second time, if a test wants that."""
        return self.token_request(
            client,
            grant_type="authorization_code",
            code=issued.code,
            redirect_uri=issued.redirect_uri,
            code_verifier=issued.code_verifier,
            **form,
        )

    def sign_in_at(
        self,
        url: str,
        user: str | None = None,
        *,
        refusal: str | None = None,
        browser: Browser | None = None,
    ) -> str:
        """Open an authorization URL as a user's browser; return the callback URL.

        The redirect URI in *url* is where the browser stops, before the request.

        Args:
            url: The whole authorization request, as the library under test made it.
            user: Who signs in; by default the ``login_hint``, else ``user-1``.
            refusal: The error of a user who says no, such as ``access_denied``.
            browser: One that has been here before; it knows its user itself.

        Raises:
            ServerError: A page came instead, such as the server's error page.
        """
        if browser is not None:
            return browser.open(url)
        with Browser(user=user, refusal=refusal) as fresh:
            return fresh.open(url)

    def userinfo(self, access_token: str) -> httpx.Response:
        """Ask for the claims of the user whose access token this is."""
        headers = {"Authorization": f"Bearer {access_token}"}
        return self._plain.get(self.endpoint("userinfo"), headers=headers)

    def published_keys(self) -> list[dict[str, Any]]:
        """Return the key set as anybody can read it, in its order.

        The request is in the log like any other.
        """
        document = self._plain.get(self.endpoint("jwks")).json()
        return list(document["keys"])

    def token_request(self, client: str, **form: str) -> httpx.Response:
        """Send one request to the token endpoint as *client*, built by hand."""
        return self.authenticated_post("token", client, **form)

    def authenticated_post(
        self, endpoint: Endpoint, client: str, **form: str
    ) -> httpx.Response:
        """Send a form as *client* to the token, revocation or introspection endpoint.

        Raises:
            httpx.TransportError: No answer, or none that is whole.
        """
        headers, fields = self.client(client).authenticate(self.issuer)
        url = self.endpoint(endpoint)
        return self._plain.post(url, data={**fields, **form}, headers=headers)

    def refresh(self, client: str, refresh_token: str, **form: str) -> httpx.Response:
        """Spend a refresh token, as another holder of it would."""
        return self.token_request(
            client, grant_type="refresh_token", refresh_token=refresh_token, **form
        )

    # ------------------------------------------------------------ control

    def reset(self) -> None:
        """Forget tokens, grants, log, faults, added clients and changed settings.

        The built-in clients and their keys stay; the server signs with its first keys
        again, and its clock is right.
        """
        self._call("POST", "reset")
        self._load_clients()

    def configure(self, **settings: float | bool) -> None:
        """Change settings until the next `reset`.

        Args:
            settings: ``access_token_ttl``, ``authorization_code_ttl``,
                ``id_token_ttl`` and ``refresh_token_ttl`` (seconds; 5, 60, 3600 and
                two weeks),
                ``rotate_refresh_tokens`` (True), ``at_hash`` in ID tokens (False: the
                server leaves it out), ``keep_alive_ms`` (5000), after which an idle
                connection is closed (Node adds a second),
                ``online_refresh_tokens`` (False), also without ``offline_access``:
                they end with the browser's session, ``clock_offset`` (see
                `shift_clock`).
        """
        self._call("POST", "settings", settings)

    def shift_clock(self, seconds: float) -> None:
        """Put the server's clock so far ahead of this machine's (negative: behind).

        Lifetimes, claims and the ``Date`` header follow; what was stored before keeps
        its instants, so that a shift after the fact lets it expire without waiting.
        """
        self.configure(clock_offset=seconds)

    def rotate_keys(self, kind: Rotation) -> list[str]:
        """Give the server new signing keys of every type until the next `reset`.

        A request that is under way ends with the keys it began with.

        Args:
            kind: ``overlap``: new keys sign, the old ones stay published. ``hard``:
                everything older is gone. ``same_kid``: new keys under the old names.

        Returns:
            The key ids that are now published, signing ones first.
        """
        kids: list[str] = self._call("POST", "keys", {"kind": kind})
        return kids

    def register(self, **metadata: object) -> RegisteredClient:
        """Add a client until the next `reset`.

        Args:
            metadata: As in RFC 7591. Grant types and redirect URIs are those of the
                built-in clients unless given.

        Raises:
            ServerError: The server does not accept such a client.
        """
        client = parse_client(self._call("POST", "clients", metadata))
        self.clients[client.client_id] = client
        return client

    def fault(
        self,
        *,
        endpoint: Endpoint = "token",
        grant_type: str | None = None,
        client_id: str | None = None,
        skip: int = 0,
        count: int = 1,
        delay_ms: int = 0,
        delay_after_ms: int = 0,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: str | Mapping[str, object] | None = None,
        drop: Literal["before", "after"] | None = None,
        reset: bool = False,
        truncate: Literal["connection", "body"] | None = None,
        garble: bool = False,
    ) -> None:
        """Queue one fault; faults are met in the order in which they were queued.

        Args:
            endpoint: Together with *grant_type* and *client_id*: which requests.
            skip: How many matching requests pass unharmed first.
            count: How many are hit after that.
            delay_ms: Wait before the request is processed.
            delay_after_ms: Wait between processing and answer.
            status: Answered instead of processing, with *headers* and *body* (a
                mapping goes out as JSON).
            drop: The connection ends without a byte of answer, before the request is
                processed or after (tokens are then rotated).
            reset: With *drop* or *truncate*: by RST instead of FIN.
            truncate: The answer is cut: with the connection, or only its body.
            garble: The answer has its length, but is neither UTF-8 nor JSON.
        """
        given = {k: v for k, v in locals().items() if k != "self" and v is not None}
        self._call("POST", "faults", [given])

    def pending_faults(self) -> list[dict[str, Any]]:
        """Return the queued faults that were not met, or not often enough."""
        pending: list[dict[str, Any]] = self._call("GET", "faults")
        return pending

    def log(self, endpoint: Endpoint | None = None, **fields: object) -> list[LogEntry]:
        """Return the requests since the last `reset`, in order of arrival.

        Args:
            endpoint: Only those to this endpoint.
            fields: Only those whose fields have these values.
        """
        if endpoint is not None:
            fields["endpoint"] = endpoint
        entries = (LogEntry(**entry) for entry in self._call("GET", "log"))
        return [e for e in entries if all(getattr(e, k) == fields[k] for k in fields)]

    def revoke(
        self,
        *,
        refresh_token: str | None = None,
        client_id: str | None = None,
        user: str | None = None,
    ) -> int:
        """End all grants that fit, as an administrator would; return how many.

        Their tokens are dead at once. Without arguments every grant ends.
        """
        wanted = {
            "refresh_token": refresh_token,
            "client_id": client_id,
            "account_id": user,
        }
        given = {key: value for key, value in wanted.items() if value is not None}
        return int(self._call("POST", "revoke", given)["grants"])

    # ------------------------------------------------------------ inside

    def _call(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        url = f"{self.issuer}/control/{path}"
        content = None if body is None else json.dumps(body)
        response = self._control.request(method, url, content=content)
        if response.is_error:
            raise ServerError(
                f"{method} {path}: {response.status_code} {response.text}"
            )
        return response.json()

    def _load_clients(self) -> None:
        found = self._call("GET", "clients")
        self.clients = {name: parse_client(entry) for name, entry in found.items()}

    def _read_output(self) -> None:
        for line in _pipe(self._process.stdout):
            if not self._ready.is_set() and line.startswith('{"ready"'):
                self._announced = json.loads(line)
                self._ready.set()
            self._output.append(line)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._ready.wait(0.05):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._drain.join(0.5)
                raise ServerError(f"oidc-provider did not start:\n{self.output()}")
        self._load_clients()
        self._metadata = self._plain.get(self.endpoint("metadata")).json()

    def _stop(self) -> None:
        self._control.close()
        self._plain.close()
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._drain.join(_STOP_SECONDS)
        for stream in (self._process.stdin, self._process.stdout):
            _pipe(stream).close()


def _pipe(stream: IO[str] | None) -> IO[str]:
    """Return a stream that was asked for as a pipe, and so is one."""
    if stream is None:
        raise ServerError("the process was started without this pipe")
    return stream

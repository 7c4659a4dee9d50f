"""The calls of a token manager by which users sign in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from freshtoken._foundation.records import Session
from freshtoken._foundation.secret import Secret, reveal
from freshtoken._lifecycle.runtime import Runtime
from freshtoken._lifecycle.sessions import SessionKeeper
from freshtoken._lifecycle.signing_in import SignIn, SigningIn
from freshtoken._lifecycle.supply import Supply
from freshtoken._protocol.authorization import DEFAULT_PROMPT, ResponseMode
from freshtoken._protocol.callback import CallbackParameters, read_callback
from freshtoken._wire.outcome import Done, Outcome, bare, unwrap
from freshtoken.errors import AuthorizationResponseError


class SignsUsersIn:
    """The part of `freshtoken.TokenManager` that signs users in."""

    _supply: Supply
    _keeper: SessionKeeper

    async def begin_sign_in(
        self,
        *,
        scope: str | Iterable[str] | None = None,
        prompt: str | None = DEFAULT_PROMPT,
        max_age: int | None = None,
        acr_values: str | Iterable[str] | None = None,
        resource: str | Iterable[str] | None = None,
        login_hint: str | None = None,
        ui_locales: str | None = None,
        response_mode: ResponseMode | None = None,
        redirect_uri: str | None = None,
        return_to: str | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> SignIn:
        """Begin to sign a user in with the code flow, PKCE, state and nonce.

        Send the browser to `SignIn.url`, with `SignIn.binding` in a cookie of its own.
        Several may be under way at once, in several tabs and on several workers.

        Args:
            scope: What is asked for; ``openid`` brings an ID token and its claims.
            prompt: ``"none"``, ``"login"``, ``"consent"``, ``"select_account"``, or
                ``None``; ``"auto"`` asks for consent with ``offline_access``.
            max_age: Seconds since the user's last authentication that will do.
            acr_values: Wished classes of authentication, the preferred one first.
            resource: The APIs that the token is for (RFC 8707).
            login_hint: Whom the server may suggest.
            ui_locales: Languages of the server's pages, separated by blanks.
            response_mode: ``"query"``, or ``"form_post"`` for a POST.
            redirect_uri: In place of the client's.
            return_to: Comes back as `Session.return_to`; check it before you use it.
            extra: Further parameters that the server understands.

        Raises:
            MisconfiguredError: A value is of no use; ``.setting`` names it.
            ClientRejectedError: The server refuses the client's credentials: sending
                the browser there would bring it back for ever.
            RetryableError: The server's metadata cannot be had now.
            StoreError: The session store failed.

        Spec: RFC 6749 §4.1.1, RFC 7636 §4, OpenID Connect Core §3.1.2.1.
        """
        runtime = self._supply.runtime()
        begin = partial(
            self._signing_in(runtime).begin,
            scope=scope,
            prompt=prompt,
            max_age=max_age,
            acr_values=acr_values,
            resource=resource,
            login_hint=login_hint,
            ui_locales=ui_locales,
            response_mode=response_mode,
            redirect_uri=redirect_uri,
            return_to=return_to,
            extra=extra,
        )
        return await runtime.apart(begin)

    async def complete_sign_in(
        self,
        callback: str | Mapping[str, str] | Iterable[tuple[str, str]],
        *,
        binding: str | Secret,
        replaces: str | None = None,
    ) -> Session:
        """Complete a sign-in: once, on any worker that shares the store.

        The code is sent once, and the tokens are used only if the ID token is right.
        Put `Session.handle` into the session cookie; it is shown here only. A caller
        that is cancelled loses nothing: a session that nobody holds is ended.

        Args:
            callback: The URL that the browser came back to (of which only path and
                query count), its query, or the form of a POST.
            binding: What the cookie of this sign-in holds.
            replaces: Name of a session that this one takes the place of.

        Returns:
            The new session, with `Session.handle` and `Session.return_to`.

        Raises:
            AuthorizationResponseError: The answer does not fit, was used before, or
                belongs to another browser.
            AccessDeniedError: The user declined, or a policy forbids it.
            SignInRequiredError: The server wants the user to act, or refuses the
                code: begin a new sign-in, without ``prompt="none"``.
            TokenRejectedError: The ID token is refused; its tokens are revoked.
            ClientRejectedError: The server refuses the client's credentials.
            MisconfiguredError: A setting does not fit; ``.setting`` names it.
            RetryableError: The server cannot be reached now.
            StoreError: The session store failed.

        Spec: RFC 6749 §4.1.2, §4.1.3; RFC 9207 §2.4; OpenID Connect Core §3.1.2.5,
        §3.1.3.7.
        """
        outcome = _read(callback)
        held = Secret(reveal(binding))
        del callback, binding  # An error that is raised from here on shows this frame.
        runtime = self._supply.runtime()
        signing_in = self._signing_in(runtime)
        if isinstance(outcome, AuthorizationResponseError):
            signing_in.report(outcome)
        answer = unwrap(outcome)
        return await runtime.apart(
            lambda: signing_in.complete(answer, held, replaces),
            unclaimed=signing_in.unclaimed,
        )

    def _signing_in(self, runtime: Runtime) -> SigningIn:
        return SigningIn(runtime.context, self._keeper)


def _read(
    callback: str | Mapping[str, str] | Iterable[tuple[str, str]],
) -> Outcome[CallbackParameters]:
    """Read an answer; its errors show no frame that holds it."""
    try:
        return Done(read_callback(callback))
    except AuthorizationResponseError as error:
        return bare(error)

"""The sender of a request: a munge credential made for this very request, or a JSON Web Token of Slurm's (auth/jwt).

Munge: `Authorization: Munge CREDENTIAL`, whose payload is `request_digest` of the request; munged takes each credential
once. JWT: `Authorization: Bearer TOKEN` or `X-SLURM-USER-TOKEN`, as slurmrestd takes it: HS256 with Slurm's own key, the login
name in the claim `sun`, an expiry in `exp`. A SlurmUser's or root's token may name another user in X-SLURM-USER-NAME. A session
that a one-time link has opened (sessions.py) is named in the same headers.
"""

from __future__ import annotations

import pwd
from collections.abc import Mapping
from dataclasses import dataclass, field

import jwt
from synergy_core.errors import SynergyError
from synergy_core.wire import munge
from synergy_core.wire.munge import request_digest

from synergyd.rest.sessions import PREFIX, Sessions

MAX_TOKEN_BYTES = 8192


class UnknownCallerError(SynergyError):
    """The refusal of a request whose sender can't be identified: it is answered with 401."""


@dataclass(frozen=True)
class Identity:
    """The check of requests. `jwt_key`: Slurm's key, b"" if auth/jwt is not set up. `slurm_user` may speak for others."""

    jwt_key: bytes = b""
    slurm_user: str = "root"
    munge_socket: str = ""
    sessions: Sessions = field(default_factory=Sessions)

    def caller(self, method: str, target: str, headers: Mapping[str, str], body: bytes, *, near: bool = True) -> str:
        """Return the login name of the sender.

        `headers` by lower-case name; `target`: path with its query. `near`: it came over the Unix socket or from this host.
        Raises UnknownCallerError.
        """
        scheme, _, rest = headers.get("authorization", "").partition(" ")
        token = headers.get("x-slurm-user-token", "")
        if len(rest) > MAX_TOKEN_BYTES or len(token) > MAX_TOKEN_BYTES:
            raise UnknownCallerError("token", f"longer than {MAX_TOKEN_BYTES} characters", "send one of scontrol token")
        if scheme.lower() == "munge":
            return self._by_munge(rest.strip(), request_digest(method, target, body))
        if scheme.lower() == "bearer" or token:
            if not near:  # whoever reads the network could use it
                right = "send it through a TLS proxy on the service's host, or use munge"
                raise UnknownCallerError("token", "came over the network in clear", right)
            return self._by_token(token or rest.strip(), headers.get("x-slurm-user-name", ""))
        raise UnknownCallerError(
            "request", "says not who sends it", "send a munge credential or a token of `scontrol token`"
        )

    def _by_munge(self, credential: str, payload: bytes) -> str:
        try:
            credentials = munge.decode(credential, self.munge_socket)
        except SynergyError as error:
            if error.right:  # munged is not there
                raise
            raise UnknownCallerError("munge", error.what, error.right) from None
        if credentials.payload != payload:
            raise UnknownCallerError(
                "munge", "the credential was made for another request", "make one for each request"
            )
        return login_name(credentials.uid)

    def _by_token(self, token: str, other: str) -> str:
        if token.startswith(PREFIX):
            if not (session_user := self.sessions.user_of(token)):
                raise UnknownCallerError("session", "has ended", "sign in again: synergyctl page")
            return session_user
        if not self.jwt_key:
            raise UnknownCallerError(
                "token", "tokens are not taken here", "set up auth/jwt in slurm.conf, or use munge"
            )
        try:
            claims = jwt.decode(token, self.jwt_key, algorithms=["HS256"], options={"require": ["exp", "sun"]})
        except jwt.PyJWTError as error:
            raise UnknownCallerError("token", str(error), "ask for a new one: scontrol token") from None
        user = claims["sun"]
        if not isinstance(user, str) or not user:
            raise UnknownCallerError("token", "its claim sun is no login name", "ask for a new one: scontrol token")
        if other and other != user:
            if user not in ("root", self.slurm_user):
                raise UnknownCallerError("X-SLURM-USER-NAME", "is another user than the token's", "leave it out")
            user = other
        try:
            pwd.getpwnam(user)
        except (KeyError, ValueError):
            raise UnknownCallerError("token", "this host does not know its user", "ask the admin") from None
        return user


def login_name(uid: int) -> str:
    """Return the login name of `uid`. Raises UnknownCallerError for a uid without a name here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise UnknownCallerError(f"uid {uid}", "this host does not know the user", "ask the admin") from None

"""Sign-in to the page without auth/jwt: a link that works once, for a user whom munge vouched for, and the session that it opens.

Both are random secrets, kept as hashes in this process alone: a restart of the service ends all sessions.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable

from synergy_core.errors import SynergyError

LINK_S = 120.0  # a link is opened within so long
SESSION_S = 8 * 3600.0
LINKS_A_USER, SESSIONS_A_USER = 8, 16  # the oldest goes first
PREFIX = "synergy-session-"  # tells a session from a token of Slurm's


class LinkUsedError(SynergyError):
    """The refusal of a link that was used, has expired or never was: answered with 401."""


class Sessions:
    """The open links and sessions. For several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._links: dict[bytes, tuple[str, float]] = {}  # hash -> (user, end)
        self._sessions: dict[bytes, tuple[str, float]] = {}

    def make_link(self, user: str) -> str:
        """Return a secret that opens one session of `user`."""
        secret = secrets.token_urlsafe(32)
        with self._lock:
            self._add(self._links, secret, user, LINK_S, LINKS_A_USER)
        return secret

    def open_session(self, link: str) -> tuple[str, str]:
        """Return (user, the session's token). Raises LinkUsedError."""
        with self._lock:
            user, end_s = self._links.pop(_hash(link), ("", 0.0))
            if not user or self._clock() > end_s:
                raise LinkUsedError("link", "works once, for two minutes", "make another one: synergyctl page")
            token = PREFIX + secrets.token_urlsafe(32)
            self._add(self._sessions, token, user, SESSION_S, SESSIONS_A_USER)
        return user, token

    def user_of(self, token: str) -> str:
        """Return the user of an open session, or "" if there is no such session."""
        user, end_s = self._sessions.get(_hash(token), ("", 0.0))
        return user if self._clock() <= end_s else ""

    def _add(self, entries: dict[bytes, tuple[str, float]], secret: str, user: str, lasts_s: float, most: int) -> None:
        now_s = self._clock()
        for key in [key for key, (_, end_s) in entries.items() if now_s > end_s]:
            del entries[key]
        own = [key for key, (name, _) in entries.items() if name == user]
        for key in own[: max(0, len(own) - most + 1)]:
            del entries[key]
        entries[_hash(secret)] = user, now_s + lasts_s


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()

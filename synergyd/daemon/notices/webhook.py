"""The way by the admin's webhook: JSON, signed with a secret, no redirect followed."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import ssl
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from synergy_core.errors import UsageError
from synergy_core.notice import Notice
from synergy_core.wire.codec import encode

TIMEOUT_S = 10.0
LEAST_SECRET_BYTES, MOST_SECRET_BYTES = 16, 4096


class NotSentError(Exception):
    """The reason why a notice did not go out, in one line; the next try may do better."""


@dataclass(frozen=True)
class Webhook:
    """The webhook. `url` and `secret` are the admin's alone: nothing of a job's gets into where it goes."""

    url: str
    secret: bytes

    def post(self, notice: Notice) -> None:
        """Post the notice. Raises NotSentError unless the receiver answers 2xx."""
        parts = urlsplit(self.url)
        body = json.dumps({"format": 1, **encode(notice)}).encode()
        host, port = parts.hostname or "", parts.port
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            secure = ssl.create_default_context()
            connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=secure)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("POST", target, body, self._headers(notice, body))
            status = connection.getresponse().status
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise NotSentError(f"{host}: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
        if not 200 <= status < 300:
            raise NotSentError(f"{host} answered {status}")

    def _headers(self, notice: Notice, body: bytes) -> dict[str, str]:
        at = f"{time.time():.0f}"
        signature = hmac.new(self.secret, at.encode() + b"." + body, hashlib.sha256).hexdigest()
        return {
            "Content-Type": "application/json",
            "User-Agent": "synergyd",
            "Synergy-Notice": notice.key.encode("ascii", "replace").decode(),
            "Synergy-Time": at,
            "Synergy-Signature": f"sha256={signature}",
        }


KEY_FILE = "notice.key"  # in StateDir


def read_secret(path: Path) -> bytes:
    """Return the key of the signature of notices that are posted. Raises UsageError."""
    where = f"NoticeUrl's key {path}"
    try:
        with path.open("rb") as stream:
            mode = stat.S_IMODE(path.stat().st_mode)
            secret = stream.read(MOST_SECRET_BYTES + 1).rstrip()
    except OSError as error:
        raise UsageError(
            where, f"can't be read ({error.strerror})", f"openssl rand -hex 32 > {path}; chmod 600 {path}"
        ) from None
    if mode & 0o077:
        raise UsageError(where, "can be read by others than its owner", "chmod 600 it")
    if not LEAST_SECRET_BYTES <= len(secret) <= MOST_SECRET_BYTES:
        right = f"write {LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES} random bytes, such as openssl rand -hex 32 prints"
        raise UsageError(where, f"holds {len(secret)} bytes", right)
    return secret

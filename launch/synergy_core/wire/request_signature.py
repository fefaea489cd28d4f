"""The content of a munge credential for a request to the REST service."""

from __future__ import annotations

import hashlib


def request_digest(method: str, target: str, body: bytes) -> bytes:
    """Return the request's digest: a credential that was seen on its way serves for nothing else. `target`: path with its query."""
    digest = hashlib.sha256(f"{method} {target}\n".encode() + body).hexdigest()
    return f"synergy-rest-1 {digest}".encode()

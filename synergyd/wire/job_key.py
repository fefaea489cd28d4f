"""Reports where a job's processes have no munge, as in a container: signed with a key that the daemon hands to the job in a file.

The file lies beside the job's plan, and its owner alone can read it. The key is of one job, one incarnation and one user, and never on
the wire: HMAC-SHA256 over the message with it. `KEY:job:restarts:uid:seconds since 1970:signature:payload in base64`.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from synergyd.errors import UsageError
from synergyd.ordinary_file import read_bytes
from synergyd.wire.plan_file import plan_path

PREFIX = "KEY:"
STATE_DIR = "/var/lib/synergy"  # where $SYNERGY_STATE_DIR says nothing else
TTL_S = 300  # munge's own
SECRET = "reports.key"
_SECRET_BYTES = 32
_LINE = re.compile(r"KEY:([0-9]{1,10}):([0-9]{1,7}):([0-9]{1,10}):([0-9]{1,12}):([0-9a-f]{64}):([A-Za-z0-9+/=]*)\Z")
_FILE = re.compile(r"([0-9]{1,7}) ([0-9]{1,10}) ([0-9a-f]{64})\n\Z")


@dataclass(frozen=True)
class JobKey:
    """`key` signs for this incarnation of this user's job alone."""

    job_id: int
    restarts: int
    uid: int
    key: bytes = field(repr=False)

    def text(self) -> str:
        """What the job's file says."""
        return f"{self.restarts} {self.uid} {self.key.hex()}\n"

    def sign(self, payload: bytes, now_s: float) -> str:
        """One line."""
        head = f"{PREFIX}{self.job_id}:{self.restarts}:{self.uid}:{int(now_s)}"
        body = base64.b64encode(payload).decode()
        return f"{head}:{_mac(self.key, f'{head}:{body}')}:{body}"


def secret(state_dir: Path) -> bytes:
    """The daemons' own, made at the first start. Raises OSError."""
    path, fresh = state_dir / SECRET, state_dir / f".{SECRET}.{os.getpid()}"
    if not path.exists():
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(_SECRET_BYTES))
        with contextlib.suppress(FileExistsError):  # another daemon was first
            path.hardlink_to(fresh)
        fresh.unlink()
    return path.read_bytes()


def key_of(secret: bytes, job_id: int, restarts: int, uid: int) -> JobKey:
    key = hmac.digest(secret, f"{job_id} {restarts} {uid}".encode(), "sha256")
    return JobKey(job_id, restarts, uid, key)


def opened(line: str, secret: bytes, now_s: float) -> tuple[JobKey, bytes]:
    """(whose key signed the line, what it says). Raises UsageError for one that nobody has signed, or too long ago."""
    match = _LINE.match(line)
    if match is None or not secret:
        raise UsageError("report", "is signed with no job's key")
    job_id, restarts, uid, at_s = (int(match[i]) for i in range(1, 5))
    key = key_of(secret, job_id, restarts, uid)
    payload = _payload(match, key)
    if abs(now_s - at_s) > TTL_S:
        raise UsageError("report", f"was signed {now_s - at_s:.0f} s ago", "set the time by NTP on all hosts")
    return key, payload


def answered(line: str, key: JobKey) -> bytes:
    """What the daemon's answer says. Raises UsageError where it is not signed with this key."""
    match = _LINE.match(line)
    if match is None or tuple(int(match[i]) for i in range(1, 4)) != (key.job_id, key.restarts, key.uid):
        raise UsageError("answer", "is not signed with the job's key")
    return _payload(match, key)


def find(job_id: int, restarts: int, environment: Mapping[str, str]) -> JobKey | None:
    """The key that this incarnation was handed; None where there is none, or one of another incarnation."""
    named = environment.get("SYNERGY_PLAN", "")
    plan = Path(named) if named else plan_path(Path(environment.get("SYNERGY_STATE_DIR", STATE_DIR)), job_id)
    try:
        match = _FILE.match(read_bytes(plan.with_suffix(".key"), 1000).decode("ascii", "replace"))
    except OSError:
        return None
    if match is None or int(match[1]) != restarts:
        return None
    return JobKey(job_id, restarts, int(match[2]), bytes.fromhex(match[3]))


def _payload(match: re.Match[str], key: JobKey) -> bytes:
    head, body = match[0][: match.start(5) - 1], match[6]
    if not hmac.compare_digest(_mac(key.key, f"{head}:{body}"), match[5]):
        raise UsageError("report", "is signed with no job's key")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error:
        raise UsageError("report", "is signed with no job's key") from None


def _mac(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()

"""Reports of processes without munge, as in a container: signed with a key that the daemon hands to the job in a file.

The file is beside the job's plan, readable only by its owner. The key is of one job, incarnation and user, and is never sent. The
signature is HMAC-SHA256 over the message: `KEY:job:restarts:uid:seconds since 1970:nonce:signature:payload in base64`. An answer
also signs the signature of its report.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import hashlib
import hmac
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from synergy_core.errors import UsageError
from synergy_core.ordinary_file import read_bytes
from synergy_core.wire.plan_file import path_in_job

PREFIX = "KEY:"
TTL_S = 300  # munge's own
SECRET = "reports.key"
_SECRET_BYTES = 32
_NONCE_BYTES = 8  # equal reports of one second are two lines
_LINE = re.compile(
    r"KEY:([0-9]{1,10}):([0-9]{1,7}):([0-9]{1,10}):([0-9]{1,12}):([0-9a-f]{16}):([0-9a-f]{64}):([A-Za-z0-9+/=]*)\Z"
)
_FILE = re.compile(r"([0-9]{1,7}) ([0-9]{1,10}) ([0-9a-f]{64})\n\Z")


@dataclass(frozen=True)
class JobKey:
    """The key of this incarnation of this user's job; `key` signs for it alone."""

    job_id: int
    restarts: int
    uid: int
    key: bytes = field(repr=False)

    def text(self) -> str:
        """Return the content of the job's file."""
        return f"{self.restarts} {self.uid} {self.key.hex()}\n"

    def sign(self, payload: bytes, now_s: float, answers: str = "") -> str:
        """Return `payload` as one signed line. `answers`: the signature of the report that it answers."""
        head = f"{PREFIX}{self.job_id}:{self.restarts}:{self.uid}:{int(now_s)}:{os.urandom(_NONCE_BYTES).hex()}"
        body = base64.b64encode(payload).decode()
        return f"{head}:{_mac(self.key, f'{answers}{head}:{body}')}:{body}"


@dataclass(frozen=True)
class SignedReport:
    """The key that signed a report, and its signature, 64 hexadecimal digits: what its answer is signed with."""

    key: JobKey
    signature: str

    @property
    def incarnation(self) -> tuple[int, int]:
        """Return (job id, restarts)."""
        return self.key.job_id, self.key.restarts

    def answer(self, payload: bytes, now_s: float) -> str:
        """Return `payload` as one line, signed as the answer to this report."""
        return self.key.sign(payload, now_s, self.signature)

    def verify_answer(self, line: str) -> bytes:
        """Return what the daemon's answer says. Raises UsageError where it is not signed with this key, or answers another report."""
        match, key = _LINE.match(line), self.key
        if match is None or tuple(int(match[i]) for i in range(1, 4)) != (key.job_id, key.restarts, key.uid):
            raise UsageError("answer", "is not signed with the job's key")
        return _verified_payload(match, key, self.signature)


class SecretFile:
    """The secret that the keys of all jobs are made of: the daemons' own, kept from the first time that it was read."""

    def __init__(self, state_dir: Path) -> None:
        self.path, self._kept = state_dir / SECRET, b""

    def read(self) -> bytes:
        """Return the secret. Raises OSError, with a path, where there is none, or not of the right length."""
        if self._kept:
            return self._kept
        try:
            secret = read_bytes(self.path, 1000)
            if len(secret) != _SECRET_BYTES:
                problem = f"holds {len(secret)} bytes, not {_SECRET_BYTES}: remove it, and the daemon makes another"
                raise OSError(errno.EINVAL, problem)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        self._kept = secret
        return secret

    def read_or_make(self) -> bytes:
        """Return the secret, made if there is none, for the daemon that leads. Raises OSError as `read` does."""
        with contextlib.suppress(FileNotFoundError):
            return self.read()
        try:
            with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=f".{SECRET}.") as file:  # 0600
                file.write(os.urandom(_SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())  # before it has its name: after a power cut it is whole, or not there
                with contextlib.suppress(FileExistsError):  # another daemon was first
                    self.path.hardlink_to(file.name)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        return self.read()


def derive_job_key(secret: bytes, job_id: int, restarts: int, uid: int) -> JobKey:
    key = hmac.digest(secret, f"{job_id} {restarts} {uid}".encode(), "sha256")
    return JobKey(job_id, restarts, uid, key)


def open_line(line: str, secret: bytes, now_s: float) -> tuple[SignedReport, bytes]:
    """Return (whose key signed the line, what it says). Raises UsageError for one that nobody has signed, or too long ago."""
    match = _LINE.match(line)
    if match is None or not secret:
        raise UsageError("report", "is signed with no job's key")
    job_id, restarts, uid, at_s = (int(match[i]) for i in range(1, 5))
    key = derive_job_key(secret, job_id, restarts, uid)
    payload = _verified_payload(match, key)
    if abs(now_s - at_s) > TTL_S:
        raise UsageError("report", f"was signed {now_s - at_s:.0f} s ago", "set the time by NTP on all hosts")
    return SignedReport(key, match[6]), payload


def find_key(job_id: int, restarts: int, environment: Mapping[str, str]) -> JobKey | None:
    """Return the key that this incarnation was handed; None where there is none, or one of another incarnation."""
    try:
        text = read_bytes(path_in_job(job_id, environment).with_suffix(".key"), 1000).decode("ascii", "replace")
    except OSError:
        return None
    match = _FILE.match(text)
    if match is None or int(match[1]) != restarts:
        return None
    return JobKey(job_id, restarts, int(match[2]), bytes.fromhex(match[3]))


def sign_report(key: JobKey, payload: bytes, now_s: float) -> tuple[str, SignedReport]:
    """Return the line to send, and what its answer must be signed with."""
    line = key.sign(payload, now_s)
    return line, SignedReport(key, line.split(":")[6])


def _verified_payload(match: re.Match[str], key: JobKey, answers: str = "") -> bytes:
    head, body = match[0][: match.start(6) - 1], match[7]
    if not hmac.compare_digest(_mac(key.key, f"{answers}{head}:{body}"), match[6]):
        raise UsageError("report", "is signed with no job's key")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error:
        raise UsageError("report", "is signed with no job's key") from None


def _mac(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()

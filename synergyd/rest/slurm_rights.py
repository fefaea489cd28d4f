"""Slurm's own answer to who may do what: PrivateData, SlurmUser and auth/jwt's key from its configuration, levels from slurmdbd."""

from __future__ import annotations

import logging
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from synergy_core.errors import UnavailableError, UsageError, one_line

from synergyd.rest.caller import SlurmRights
from synergyd.slurm.parsed.associations import private_data
from synergyd.slurm.parsed.rows import config_values

log = logging.getLogger("synergyrestd")
FRESH_S = 60.0  # an admin's change of rights holds here after so long
ASK_S = 10.0
_USERS = ("sacctmgr", "-nP", "show", "user", "withcoord", "format=user,adminlevel,coordinators")
_OTHERS_BITS = 0o077


def run_text(command: Sequence[str]) -> str:
    """Return what a Slurm command prints. Raises UnavailableError."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, errors="replace", check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(command[0], one_line(str(error), 200), "is Slurm up?") from None
    if answer.returncode:
        raise UnavailableError(command[0], one_line(answer.stderr.strip(), 200), "is Slurm up?")
    return answer.stdout


def parse_rights(config: dict[str, str], users: str) -> SlurmRights:
    """Parse the rights.

    `users`: what `sacctmgr -nP show user withcoord format=user,adminlevel,coordinators` prints; "" without accounting.
    """
    operators, accounts_of = set(), {}
    for line in users.splitlines():
        name, _, rest = line.partition("|")
        level, _, accounts = rest.partition("|")
        if level.lower().startswith(("operator", "admin")):
            operators.add(name)
        if accounts:
            accounts_of[name] = frozenset(accounts.split(","))
    private = private_data(config)
    return SlurmRights(
        private_jobs="jobs" in private,
        private_usage="usage" in private,
        private_nodes="nodes" in private,
        slurm_user=re.sub(r"\(\d+\)$", "", config.get("SlurmUser", "root")),
        operators=frozenset(operators),
        accounts_of=accounts_of,
    )


def jwt_key(config: dict[str, str]) -> bytes:
    """Return Slurm's HS256 key if auth/jwt is set up, else b"". Raises UsageError for a key that can't be read or that others can read."""
    if "auth/jwt" not in config.get("AuthAltTypes", ""):
        return b""
    match = re.search(r"jwt_key=([^,\s]+)", config.get("AuthAltParameters", ""))
    path = Path(match[1]) if match else Path(config.get("StateSaveLocation", "")) / "jwt_hs256.key"
    try:
        if path.stat().st_mode & _OTHERS_BITS:
            raise UsageError(str(path), "others than its owner can read Slurm's token key", "chmod 600 it")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(str(path), f"Slurm's token key can't be read: {error.strerror}", "run as SlurmUser") from None


class RightsReader:
    """The reader of Slurm's rights, which asks anew each FRESH_S; while Slurm is away the last answer holds. For several threads."""

    def __init__(
        self, run: Callable[[Sequence[str]], str] = run_text, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run, self._clock = run, clock
        self._lock = threading.Lock()
        self._users = ""
        self.config, self._rights = self._ask()
        self._asked_s = clock()

    def rights(self) -> SlurmRights:
        """Return the rights. One thread asks anew; all others go on with the last answer."""
        if self._clock() - self._asked_s >= FRESH_S and self._lock.acquire(blocking=False):
            try:
                self.config, self._rights = self._ask()
            except UnavailableError as error:
                log.warning("rights stay as they were: %s", error)
            finally:
                self._asked_s = self._clock()
                self._lock.release()
        return self._rights

    def _ask(self) -> tuple[dict[str, str], SlurmRights]:
        config = config_values(self._run(("scontrol", "show", "config")))
        if not config.get("AccountingStorageType", "").endswith("none"):
            try:
                self._users = self._run(_USERS)
            except UnavailableError as error:
                log.warning("levels and coordinators stay as they were: %s", error)
        return config, parse_rights(config, self._users)

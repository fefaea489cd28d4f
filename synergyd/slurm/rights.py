"""Whether a user may do to jobs what the daemon does.

slurmctld decides by SlurmUser, and by AdminLevel in its own copy of slurmdbd's users.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable

from synergyd.slurm.client import DeniedError, SlurmError
from synergyd.slurm.parsed.rows import config_values

USERS = ("scontrol", "show", "assoc_mgr", "flags=users")
ENOUGH = "run synergyd as root, SlurmUser, or with AdminLevel=Admin"
_NAME_UID = re.compile(r"(\S*)\((\d+)\)\Z")
_LEVEL = re.compile(r"^UserName=\S*\((\d+)\) .*\bAdminLevel=([^\n]*?)\s*$", re.MULTILINE)


def demand_rights(run: Callable[..., bytes], *, writes: bool) -> str:
    """Check by `run(*argv)` whether this process's user has the rights it needs.

    A daemon that `writes` needs more than one that looks (and reads scripts). Returns `scontrol show config` if
    Slurm treats this user like others, else "". Raises DeniedError, and what `run` raises.
    """
    uid = os.geteuid()
    config = "" if uid == 0 else run("scontrol", "show", "config").decode(errors="replace")
    if uid == 0 or slurm_user(config)[1] == uid:
        return ""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = ""  # slurmctld knows no level of such a user either
    users = run(*USERS).decode(errors="replace") if name else ""
    if name and counts_users(config) and not _LEVEL.search(users):
        raise SlurmError("scontrol show assoc_mgr", "slurmctld has no users of slurmdbd yet", transient=True)
    level = admin_level(users, uid)
    if not may(level, writes=writes):
        needs = "" if writes else ", nor read their scripts"
        what = f"it may not write to jobs{needs}: it is neither root nor SlurmUser and has AdminLevel={level or 'None'}"
        raise DeniedError(f"user {name or uid}", what, ENOUGH)
    return config


def counts_users(config: str) -> bool:
    """Return whether Slurm has users of slurmdbd. It has none for a while if slurmdbd is away."""
    return "slurmdbd" in config_values(config).get("AccountingStorageType", "")


def slurm_user(config: str) -> tuple[str, int]:
    """Return (name, uid) from `scontrol show config`; root's if it does not say."""
    name_and_uid = _NAME_UID.match(config_values(config).get("SlurmUser", ""))
    return (name_and_uid[1], int(name_and_uid[2])) if name_and_uid else ("root", 0)


def admin_level(users: str, uid: int) -> str:
    """Return a user's admin level from `scontrol show assoc_mgr flags=users`, or "" if slurmctld knows of none."""
    for its, level in _LEVEL.findall(users):
        if int(its) == uid:
            return "" if level in ("Not Set", "None") else str(level)
    return ""


def may(level: str, *, writes: bool) -> bool:
    """Return whether a user of this admin level may do what the daemon does.

    AdminComment, where each plan is noted, takes an Admin; reading others' scripts takes an Operator.
    """
    low = level.lower()
    return low.startswith("admin") or (not writes and low.startswith("operator"))

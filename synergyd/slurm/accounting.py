"""Slurm's accounting through its commands: what it enforces, and updates in a job owner's name."""

from __future__ import annotations

import logging
import pwd
from collections.abc import Callable, Mapping
from typing import Any

from synergyd.slurm.client import SlurmError
from synergyd.slurm.parsed.associations import (
    QOS_FIELDS,
    AccountingRules,
    QosRules,
    enforced,
    has_slurmdbd,
    partition_qos,
    qos_rules,
    takes_tokens,
)

log = logging.getLogger("synergyd")
# SLURM_JWT is the daemon's own right; of the rest the command needs nothing
_OWNERS = ("PATH", "SLURM_CONF", "SLURM_CONF_SERVER", "MUNGE_SOCKET", "SLURM_TIME_FORMAT", "LC_ALL")
NO_GROUP = 65534
TOKEN_S = 60  # that a token holds: for one command


def read_rules(run: Callable[..., bytes]) -> AccountingRules:
    """By `run(*argv)`: one call where Slurm has no slurmdbd, two where it enforces no limits, else three. Raises what `run`
    raises."""
    config = run("scontrol", "show", "config").decode(errors="replace")
    words, tokens = enforced(config), takes_tokens(config)
    qos = _qos(run) if "limits" in words or has_slurmdbd(config) else {}
    if "limits" not in words:
        return AccountingRules(enforced=words, tokens=tokens, qos=qos)
    partitions = run("scontrol", "show", "partition", "-o").decode(errors="replace")
    return AccountingRules(enforced=words, tokens=tokens, qos=qos, partition_qos=partition_qos(partitions))


def _qos(run: Callable[..., bytes]) -> Mapping[str, QosRules]:
    try:
        text = run("sacctmgr", "-nP", "show", "qos", f"format={','.join(QOS_FIELDS)}")
    except SlurmError as error:  # slurmdbd is away, or sacctmgr is not here: what assoc_mgr shows must do
        log.warning("limits of one user in a QOS are known only of users with jobs in it: %s", error)
        return {}
    return qos_rules(text.decode(errors="replace"))


def owners_token(run: Callable[..., bytes], uid: int) -> str:
    """A token by which Slurm takes a command for user `uid`'s: SlurmUser alone gets one. Raises SlurmError."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        # the same call for another job's owner may do
        raise SlurmError("scontrol token", f"this host knows no user {uid}", transient=True) from None
    text = run("scontrol", "token", f"username={name}", f"lifespan={TOKEN_S}").decode(errors="replace").strip()
    word, _, token = text.partition("=")
    if word != "SLURM_JWT" or not token.isprintable() or not token:
        raise SlurmError("scontrol token", "answer not understood", transient=False)
    return token


def owner_process(uid: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Popen's arguments for a command as user `uid`, who can look into the process: it is given nothing of the daemon's own."""
    try:
        group = pwd.getpwuid(uid).pw_gid
    except KeyError:  # Slurm knows users that this host does not
        group = NO_GROUP
    env = {k: v for k, v in environment.items() if k in _OWNERS}
    return {"env": env, "user": uid, "group": group, "extra_groups": [], "cwd": "/"}

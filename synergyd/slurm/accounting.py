"""Slurm's accounting through its commands: what it enforces, and updates in a job owner's name."""

from __future__ import annotations

import logging
import pwd
from collections.abc import Callable, Mapping
from dataclasses import replace

from synergyd.slurm.client import SlurmError
from synergyd.slurm.parsed.associations import (
    QOS_FIELDS,
    AccountingRules,
    QosRules,
    enforcement_words,
    has_slurmdbd,
    partition_qos,
    private_data,
    qos_rules,
    takes_tokens,
)
from synergyd.slurm.parsed.rows import config_values

log = logging.getLogger("synergyd")
TOKEN_S = 60  # lifetime of a token: enough for one command


def read_rules(run: Callable[..., bytes]) -> AccountingRules:
    """Read the rules by `run(*argv)`: one call if Slurm has no slurmdbd, two if it enforces no limits, else three.

    Raises what `run` raises.
    """
    config = run("scontrol", "show", "config").decode(errors="replace")
    words, tokens = enforcement_words(config), takes_tokens(config)
    qos = _qos(run) if "limits" in words or has_slurmdbd(config) else {}
    rules = AccountingRules(enforcement=words, tokens=tokens, private=private_data(config_values(config)), qos=qos)
    if "limits" not in words:
        return rules
    partitions = run("scontrol", "show", "partition", "-o").decode(errors="replace")
    return replace(rules, partition_qos=partition_qos(partitions))


def _qos(run: Callable[..., bytes]) -> Mapping[str, QosRules]:
    try:
        text = run("sacctmgr", "-nP", "show", "qos", f"format={','.join(QOS_FIELDS)}")
    except SlurmError as error:  # slurmdbd is away, or sacctmgr is not here: what assoc_mgr shows must do
        log.warning("limits of one user in a QOS are known only of users with jobs in it: %s", error)
        return {}
    return qos_rules(text.decode(errors="replace"))


def owners_token(run: Callable[..., bytes], uid: int) -> str:
    """Return a token by which Slurm takes a command for user `uid`'s: only SlurmUser gets one. Raises SlurmError."""
    name = pwd.getpwuid(known_user(uid)).pw_name
    text = run("scontrol", "token", f"username={name}", f"lifespan={TOKEN_S}").decode(errors="replace").strip()
    word, _, token = text.partition("=")
    if word != "SLURM_JWT" or not token.isprintable() or not token:
        raise SlurmError("scontrol token", "answer not understood", transient=False)
    return token


def known_user(uid: int) -> int:
    """Return `uid` if this host knows the user: scontrol acts for no other. Raise SlurmError."""
    try:
        return pwd.getpwuid(uid).pw_uid
    except KeyError:
        # the same call for another job's owner may do
        raise SlurmError("scontrol", f"this host knows no user {uid}", transient=True) from None

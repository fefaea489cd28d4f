"""The environment that the launcher gives a training process, checked, and which plans can be run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from synergy_core.errors import UsageError
from synergy_core.exchange import EXACT, Exchange, parse_exchange
from synergy_core.records import MAY_BE_0, Plan

from synergy_launch.batch.tuner import parse_batch_range

DAEMON_CHOOSES = "told"  # value of SYNERGY_GLOBAL_BATCH
OWN_BATCH = "SYNERGY_OWN_BATCH"
COMM = "SYNERGY_COMM"
ASKED_GPUS = "SYNERGY_ASKED_GPUS"  # those of the sbatch line
LOOP = "SYNERGY_LOOP"  # the directive's loop=
SKIP_SPIKES = "SYNERGY_SKIP_SPIKES"  # the directive's skip_spikes=
MEMORY_DIR = "SYNERGY_MEMORY_DIR"
TRY = "SYNERGY_TRY"  # the folder for the records of `synergy-launch --try`


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The settings in this process's environment. `plan` is None where the launcher had none."""

    run_dir: Path | None = None
    plan: Plan | None = None
    own_batch: bool = False  # nobody chose the plan's global batch: the script keeps its own (see at_own_batch)
    restarts: int = 0
    checkpoint_dir: Path | None = None
    step_log: Path | None = None
    memory_dir: Path | None = None  # this node's folder for memory checkpoints of this run
    hold_s: float = 20.0
    grace_s: float = 25.0
    rank: int = 0
    local_rank: int = 0
    world: int = 1
    accepts: Mapping[str, Any] | None = None  # what the script's arguments accept, for the report
    batch_range: tuple[int, int] | None = None
    daemon_chooses_batch: bool = False
    background_saves: bool = True  # periodic checkpoints are written while training goes on, where the script can
    skip_spikes: bool = False  # after a loss spike the run may go back, and leave out the examples that led to it
    exchange: Exchange = EXACT  # the exchange that the user allowed and the plan chose

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> AgentSettings:
        """Read the settings from the environment. Raises UsageError in one line for a value that can't be used."""
        env = os.environ if environment is None else environment
        run_dir = Path(env["SYNERGY_RUN_DIR"]) if env.get("SYNERGY_RUN_DIR") else None
        if run_dir is not None and not run_dir.is_dir():
            raise UsageError("SYNERGY_RUN_DIR", f"{run_dir} is not a folder", "the launcher makes it before the start")
        step_log = None
        if run_dir is not None:
            step_log = run_dir.parent / env.get("SYNERGY_STEP_LOG", "steps.jsonl")
        elif env.get("SYNERGY_STEP_LOG"):
            step_log = Path(env["SYNERGY_STEP_LOG"])
        text = env.get("SYNERGY_PLAN_JSON")
        world = read_number(env, "WORLD_SIZE", int, 1)
        limits = env.get("SYNERGY_GLOBAL_BATCH", "")
        return cls(
            run_dir=run_dir,
            plan=parse_plan(text, world) if text else None,
            own_batch=env.get(OWN_BATCH) == "1" and bool(text),
            restarts=read_number(env, "SYNERGY_RESTARTS", int, 0),
            checkpoint_dir=Path(env["SYNERGY_CHECKPOINT_DIR"]) if env.get("SYNERGY_CHECKPOINT_DIR") else None,
            step_log=step_log,
            memory_dir=Path(env[MEMORY_DIR]) if env.get(MEMORY_DIR) else None,
            hold_s=read_number(env, "SYNERGY_HOLD_S", float, 20.0),
            grace_s=read_number(env, "SYNERGY_GRACE_S", float, 25.0),
            rank=read_number(env, "RANK", int, 0),
            local_rank=read_number(env, "LOCAL_RANK", int, 0),
            world=world,
            accepts=_mapping(env.get("SYNERGY_ACCEPTS_JSON", "")),
            batch_range=parse_batch_range(limits, "SYNERGY_GLOBAL_BATCH")
            if limits and limits != DAEMON_CHOOSES
            else None,
            daemon_chooses_batch=limits == DAEMON_CHOOSES,
            background_saves=env.get("SYNERGY_BACKGROUND_SAVES", "1") != "0",
            skip_spikes=env.get(SKIP_SPIKES) == "1",
            exchange=parse_exchange(env[COMM], COMM) if env.get(COMM) else EXACT,
        )


def parse_plan(text: str, world: int) -> Plan:
    """Return the Plan of a JSON object. Raises UsageError if it is malformed, impossible, or not for `world` processes."""
    where = "SYNERGY_PLAN_JSON"
    right = "a JSON object with the fields of a plan, such as " + json.dumps(asdict(Plan()))
    try:
        content = json.loads(text)
    except ValueError:
        raise UsageError(where, f"not JSON: {text[:80]}", right) from None
    if not isinstance(content, dict):
        raise UsageError(where, "not an object", right)
    kinds = {field.name: type(getattr(Plan(), field.name)) for field in fields(Plan)}
    for key, value in content.items():
        if key not in kinds:
            raise UsageError(where, f"unknown field {key}", right)
        least = 0 if key in MAY_BE_0 else 1
        if type(value) is not kinds[key] or (kinds[key] is int and value < least):
            raise UsageError(where, f"{key}={value!r} can't be used", right)
    plan = Plan(**content)
    return check_plan(plan, world, where)


def check_plan(plan: Plan, world: int, where: str = "plan") -> Plan:
    """Return `plan` itself if it uses exactly `world` processes and its batch divides; else raise UsageError."""
    if plan.gpus != world:
        degrees = f"tp={plan.tp} pp={plan.pp}" + (f" cp={plan.cp}" if plan.cp > 1 else "") + f" dp={plan.dp}"
        what = f"{degrees} needs {plan.gpus} processes, there are {world}"
        raise UsageError(where, what, "tp * pp * cp * dp must be the number of processes")
    if plan.global_batch % (plan.dp * plan.micro_batch):
        what = f"global batch {plan.global_batch} can't be cut into micro-batches of {plan.micro_batch} on dp={plan.dp}"
        raise UsageError(where, what, "global_batch must be a multiple of dp * micro_batch")
    return plan


def micro_batch(batch: int, dp: int, most: int) -> int | None:
    """Return the largest micro-batch up to `most` in which `dp` replicas do `batch` sequences exactly; None: they can't."""
    each, rest = divmod(batch, dp)
    return None if rest or not each else next(m for m in range(min(most, each), 0, -1) if each % m == 0)


def at_own_batch(plan: Plan, batch: int, where: str) -> Plan:
    """Return `plan` with the script's own global batch. Raises UsageError where its replicas can't share that out."""
    micro = micro_batch(batch, plan.dp, plan.micro_batch)
    if micro is None:
        raise UsageError(where, f"global batch {batch} can't be shared out to dp={plan.dp}", "a multiple of dp")
    return replace(plan, global_batch=batch, micro_batch=micro)


def check_degrees(plan: Plan, names: tuple[str, ...], where: str = "plan") -> Plan:
    """Return `plan` itself if its degrees besides dp and those of `names` are 1. Raises UsageError otherwise: this script can't take it."""
    for name in ("tp", "pp", "vpp", "cp", "ep"):
        value = getattr(plan, name)
        if value != 1 and name not in names:
            what = f"{name}={value} was given to a script that can't split itself so"
            raise UsageError(where, what, f"such a job can change {', '.join((*names, 'dp'))} only")
    if plan.shard and "shard" not in names:
        what = f"shard={plan.shard} was given to a script that can't share out over some of its ranks"
        raise UsageError(where, what, "it must be 0")
    return plan


def _mapping(text: str) -> Mapping[str, Any] | None:
    """Return the launcher's JSON object in `text`, passed on as it is; None where the text is not one."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def read_number(env: Mapping[str, str], name: str, kind: type, default: Any) -> Any:
    """Return a number of 0 or more from the environment. Raises UsageError."""
    text = env.get(name)
    if text is None or text == "":
        return default
    try:
        value = kind(text)
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(text)
    except ValueError:
        raise UsageError(name, f"{text!r} is not a number of 0 or more", f"such as {default}") from None
    return value

"""The command and environment of one node, from a plan and an allocation. Pure."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from synergy_core.accepts import NOTHING_MORE
from synergy_core.exchange import EXACT
from synergy_core.records import Plan
from synergy_core.wire.codec import encode
from synergy_core.wire.plan_file import PlanFile

from synergy_launch.agent.settings import ASKED_GPUS, COMM, DAEMON_CHOOSES, LOOP, OWN_BATCH, SKIP_SPIKES
from synergy_launch.launcher.group import meeting
from synergy_launch.launcher.job.allocation import JobAllocation, rendezvous_port
from synergy_launch.megatron_lm import arguments as megatron_arguments
from synergy_launch.megatron_lm import batch_arguments
from synergy_launch.megatron_lm.batch_arguments import Trained
from synergy_launch.megatron_lm.capabilities import accepts
from synergy_launch.megatron_lm.loss_mask import is_bound_to_micro_batch
from synergy_launch.megatron_lm.own_batch import at_own_batch, at_own_micro_batch

TORCHRUN = "synergy_launch.launcher.torchrun"
HOOKED_SCRIPT = "synergy_launch.megatron_core.hooked_script"
AUTO = "synergy_launch.auto"


@dataclass(frozen=True)
class NodeCommand:
    """One node's command, the additions to its environment, remarks for the log, and the plan of the run (see `plan_of_run`)."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    remarks: tuple[str, ...] = ()
    plan: Plan | None = None

    @property
    def has_torchrun(self) -> bool:
        """Return whether the training processes are torchrun's children."""
        return TORCHRUN in self.argv


def fit_plan(plan: Plan | None, world: int) -> tuple[Plan | None, str]:
    """Return the plan for `world` GPUs, itself where it fits, else the same with another dp, else none; and a remark.

    The two differ when Slurm started the job with another size than the planned one (a daemon that died half-way).
    """
    if plan is None or plan.gpus == world:
        return plan, ""
    dp, rest = divmod(world, plan.tp * plan.pp * plan.cp)
    # virtual stages need a multiple of pp micro-batches, experts a multiple of ep replicas
    unit = dp * (plan.pp if plan.vpp > 1 else 1)
    if not rest and dp and plan.global_batch % unit == 0 and dp % plan.ep == 0:
        micro = plan.micro_batch
        while plan.global_batch % (unit * micro):
            micro -= 1
        shard = plan.shard if plan.shard and dp * plan.cp % plan.shard == 0 and plan.shard < dp * plan.cp else 0
        return replace(
            plan, dp=dp, micro_batch=micro, shard=shard
        ), f"plan was for {plan.gpus} GPUs, there are {world}: dp is {dp}"
    return None, f"plan was for {plan.gpus} GPUs, there are {world}: the script's own degrees are used"


def plan_of_run(
    plan_file: PlanFile | None, script: Sequence[str], world: int, style: str = "auto"
) -> tuple[Plan | None, str]:
    """Return the plan that `world` GPUs run `script` with; and a remark.

    The plan keeps what the script's options fix, and has the script's own batch where that is known here.
    """
    file_plan, megatron = plan_file.plan if plan_file else None, is_megatron(style, script[1:])
    plan, remark = fit_plan(
        megatron_arguments.with_users_degrees(file_plan, script[1:]) if file_plan and megatron else file_plan, world
    )
    if plan is None or plan_file is None or not megatron:
        return plan, remark
    remarks = [remark]
    if plan_file.own_batch:
        plan, other = at_own_batch(plan, script[1:], plan_file.asked)
        remarks.append(other)
    if plan is not None and is_bound_to_micro_batch(script[0], script[1:]):
        plan, other = _at_own_micro_batch(plan, script[1:], world)
        remarks.append(other)
    return plan, "; ".join(filter(None, remarks))


def _at_own_micro_batch(plan: Plan, arguments: Sequence[str], world: int) -> tuple[Plan | None, str]:
    """Return the plan with the script's own micro-batch, where the loss depends on it; and a remark."""
    if (own_plan := at_own_micro_batch(plan, arguments)) is not None:
        return own_plan, ""
    why = f"the script's own micro-batch can't make up the global batch {plan.global_batch} on dp={plan.dp}"
    if megatron_arguments.read_plan(arguments, world) is not None:
        return None, f"{why}: its own degrees are used"
    return plan, f"{why}, so it is {plan.micro_batch}, which weighs masked tokens otherwise"


def is_megatron(style: str, arguments: Sequence[str]) -> bool:
    """Return whether the script takes its degrees as Megatron-LM's arguments."""
    return style == "megatron" or (style == "auto" and megatron_arguments.is_megatron(arguments))


def _shards_optimizer(plan: Plan | None, arguments: Sequence[str], world: int) -> bool:
    """Return whether Megatron-LM shards the optimizer under `plan`, or by the user's own arguments.

    If it does not, its checkpoints do not load where it does (core_v0.16.1: "ShardedTensor.flattened_range is not supported").
    """
    runs = plan or megatron_arguments.read_plan(arguments, world)
    return runs is None or runs.zero_stage > 0


def node_command(
    script: Sequence[str],
    allocation: JobAllocation,
    plan_file: PlanFile | None,
    *,
    run_dir: Path,
    checkpoint: str,
    runner: str,
    master: str,
    style: str = "auto",
    step_log: str = "",
    threads: str = "1",
    batch_limits: str = "",
    trained: Trained = megatron_arguments.NOTHING_YET,
    version: tuple[int, int] | None = megatron_arguments.NEWEST,
    run: int = 0,
    local_rank: str = "",
    is_hooked: bool = False,
) -> NodeCommand:
    """Return what this node runs.

    `script`: its path, or `module:` and its name, and its arguments. `threads` becomes OMP_NUM_THREADS. `batch_limits` (LO:HI): the batches
    that the run may choose from. `trained`: where a Megatron-LM checkpoint stands. `version`: Megatron-LM's own. `run`: which run of this
    incarnation it is. `local_rank`: the option by which the script gets its local rank, "" for none.
    `is_hooked`: the script gets Synergy's adapter from outside (synergy_launch.auto).
    """
    plan, remark = plan_of_run(plan_file, script, allocation.world, style)
    own_batch = plan_file is not None and plan_file.own_batch
    checkpoint = checkpoint or (plan_file.checkpoint if plan_file else "")
    name, arguments = script[0], list(script[1:])
    may_overlap = megatron_arguments.is_known_to_overlap(name, arguments)
    capabilities = accepts(arguments, version, may_overlap) if style in ("auto", "megatron") else NOTHING_MORE
    if capabilities != NOTHING_MORE and not _shards_optimizer(plan, arguments, allocation.world):
        capabilities = replace(capabilities, whole_optimizer=True, shard=False)
    if is_megatron(style, arguments) and is_bound_to_micro_batch(name, arguments):
        capabilities = replace(capabilities, own_micro=True)
    if plan and is_megatron(style, arguments):
        arguments = megatron_arguments.with_plan(arguments, plan, checkpoint, trained, version, may_overlap, own_batch)
    environment = {
        "SYNERGY_RUN_DIR": str(run_dir),
        "SYNERGY_RESTARTS": str(allocation.restarts),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "60",
        "OMP_NUM_THREADS": threads,
    }
    if capabilities != NOTHING_MORE:
        environment["SYNERGY_ACCEPTS_JSON"] = json.dumps(encode(capabilities))
    # a daemon that gets reports of the run chooses its batch
    environment["SYNERGY_GLOBAL_BATCH"] = DAEMON_CHOOSES if plan_file and plan_file.is_decided_about else batch_limits
    remarks = [remark]
    environment |= _environment_of_submission(plan_file) if plan_file else {}
    if plan:
        environment["SYNERGY_PLAN_JSON"] = plan_json(plan)
        if plan.exchange != str(EXACT) and plan.dp > 1:
            exact_only = is_megatron(style, arguments)
            remarks.append(no_exchange_message(plan.exchange) if exact_only else "")
            environment |= {} if exact_only else {COMM: plan.exchange}
        if own_batch and not is_megatron(style, script[1:]):
            environment[OWN_BATCH] = "1"
        if megatron_arguments.is_one_connection_required(plan, arguments):
            environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if plan_file and plan_file.links and len(allocation.nodes) > 1:
        environment["SYNERGY_LINK_ARBITER"] = plan_file.links
        if plan_file.by is not None:
            environment["SYNERGY_LINK_ARBITER_UID"] = str(plan_file.by)
    if checkpoint:
        environment["SYNERGY_CHECKPOINT_DIR"] = checkpoint
        environment["SYNERGY_STEP_LOG"] = step_log or str(Path(checkpoint) / "steps.jsonl")
    target = ["-m", name.removeprefix("module:")] if name.startswith("module:") else [name]
    if is_megatron(style, arguments) and (plan or "SYNERGY_LINK_ARBITER" in environment):
        target = ["-m", HOOKED_SCRIPT, *target]
        environment["SYNERGY_MEGATRON_RUN"] = json.dumps(batch_arguments.run_length(script[1:]))
    if local_rank or is_hooked:
        target = ["-m", AUTO, *(("--local-rank-option", local_rank) if local_rank else ()), *target]
    before = [sys.executable] if runner == "python" else _torchrun(allocation, master, run)
    if len(allocation.nodes) > 1 and runner != "python":
        step = allocation.step or 0
        environment[meeting.VARIABLE] = f"{allocation.job_id or 0} {allocation.restarts} {step} {run}"
    return NodeCommand((*before, *target, *arguments), environment, tuple(filter(None, remarks)), plan)


def _environment_of_submission(plan_file: PlanFile) -> dict[str, str]:
    """Return what the script is told of its own directive and sbatch line."""
    environment = {LOOP: plan_file.loop} if plan_file.loop else {}
    if plan_file.skip_spikes:
        environment[SKIP_SPIKES] = "1"
    if plan_file.asked is not None:
        environment[ASKED_GPUS] = str(plan_file.asked.nodes * plan_file.asked.gpus_per_node)
    return environment


def plan_json(plan: Plan) -> str:
    """Return the plan for training processes.

    The exchange is said beside it: an adapter that knows nothing of exchanges reads the plan too.
    """
    return json.dumps({name: value for name, value in encode(plan).items() if name != "exchange"})


def no_exchange_message(exchange: str) -> str:
    """Return a remark for the log of a script that can't exchange by `exchange`, as it was asked to."""
    return f"comm=: its replicas can't exchange by {exchange}: every gradient is exchanged in every step"


def _torchrun(allocation: JobAllocation, master: str, run: int) -> list[str]:
    rendezvous = ["--standalone"]
    if len(allocation.nodes) > 1:
        port = rendezvous_port(allocation.job_id or 0, allocation.restarts, run)
        rendezvous = ["--node-rank", str(allocation.node_rank), "--master-addr", master, "--master-port", str(port)]
    return [
        sys.executable, "-P", "-m", TORCHRUN, "--nnodes", str(len(allocation.nodes)),
        "--nproc-per-node", str(allocation.processes), *rendezvous,
    ]  # fmt: skip

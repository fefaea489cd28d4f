"""Megatron-LM's command-line arguments with a plan's degrees in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from synergy_core.pipeline_stages import stage_layers
from synergy_core.recompute import FULL, KINDS, MODULES, NONE, SELECTIVE, list_modules, of_modules
from synergy_core.records import CP_COMMS, Plan
from synergy_core.wire.plan import MAX_NUMBER

from synergy_launch.megatron_lm.batch_arguments import Trained, with_batch
from synergy_launch.megatron_lm.options import (
    drop_options,
    has_option,
    only_options,
    option_number,
    option_values,
    option_words,
)
from synergy_launch.megatron_lm.own_batch import RAMP
from synergy_launch.megatron_lm.refused_options import (
    VIRTUAL_LAYERS,
    VIRTUAL_STAGES,
    can_interleave,
    drop_refused_options,
    expert_degree,
    has_whole_optimizer,
    is_bound_to_recompute,
    is_bound_to_tp,
    with_expert_degrees,
)

KNOWN = ("--num-layers", "--tensor-model-parallel-size", "--micro-batch-size", "--num-attention-heads")
_INSTANCES, _MODULES = "--num-distributed-optimizer-instances", "--recompute-modules"
_GATHER_IN_STEP = "--overlap-param-gather-with-optimizer-step"  # not with checkpoints that reshard
_RECOMPUTE = (
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers", _MODULES, "--recompute-activations",
    "--moe-layer-recompute",
)  # fmt: skip
_FLAGS_WITH_VALUE = (
    "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--micro-batch-size", "--global-batch-size",
    "--ckpt-format", *_RECOMPUTE,
)  # fmt: skip
_FLAGS = (
    "--sequence-parallel", "--use-distributed-optimizer", "--dist-ckpt-optim-fully-reshardable",
    "--override-opt_param-scheduler", "--ckpt-fully-parallel-load", "--exit-signal-handler", "--use-mp-args-from-checkpoint-args",
    _GATHER_IN_STEP,
)  # fmt: skip
_RESHARDABLE = "--dist-ckpt-optim-fully-reshardable"
_FIRST_START = ("--finetune", "--no-load-optim", "--no-load-rng")
NOTHING_YET = Trained()
NEWEST = (0, 16)  # that this is written for
# The version that plans with a shard group, all-to-alls between context ranks and recomputed modules were run with. The options came with
# core_v0.10 and core_v0.12; what older versions make of them was not seen, and one that does not know them ends the job.
YOUNG_DEGREES_FROM = (0, 16)
_EXCHANGE, _HIERARCHY = "--cp-comm-type", "--hierarchical-context-parallel-sizes"
_CONTEXT = "--context-parallel-size"
_FIRST_LAYERS, _LAST_LAYERS = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
_ENDS_COUNT = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
_OVERLAPS = ("--overlap-grad-reduce", "--overlap-param-gather")
_OVERLAPS_FROM = (0, 8)  # before, gathering so needs --use-mcore-models
# They lay the layers out for one pp and vpp.
_LAYOUT = ("--pipeline-model-parallel-layout", _FIRST_LAYERS, _LAST_LAYERS)
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}  # Megatron FSDP's names of the ZeRO stages


def is_megatron(arguments: Sequence[str]) -> bool:
    """Return whether a script's arguments are Megatron-LM's."""
    return sum(has_option(arguments, k) for k in KNOWN) >= 2


def with_plan(
    arguments: Sequence[str],
    plan: Plan,
    checkpoint: str = "",
    trained: Trained = NOTHING_YET,
    version: tuple[int, int] | None = NEWEST,
    may_overlap: bool = True,
    own_batch: bool = False,
) -> list[str]:
    """Return `arguments` with the plan's degrees and what a later reshard needs; all else stays as the user wrote it.

    Option names are those of Megatron-LM core_v0.16.1. Virtual stages, context and expert parallelism are set where the plan has them;
    where it has not, the user's own stay if they still divide, for a plan may not know of them. The vocabulary is padded to the same size
    on every plan: Megatron pads to a multiple of (divisor x tp), so the divisor shrinks as tp grows. Where the plan's batch is not the
    user's, learning rate and lengths follow (batch_arguments); `trained` is where the checkpoint stands. An older `version` gets no
    option that it does not know, an unknown one (None) none of the youngest: its modules are then computed again by whole layers, which
    takes less memory still. Data-parallel traffic is hidden behind compute where the script can do that; without `may_overlap` that stays
    as the user wrote it. `own_batch`: the plan's batch is the user's own, and so is its ramp.
    """
    plan, version = _without_unknown_degrees(plan, version, arguments), version or NEWEST
    rest = _remove_options(with_batch(arguments, plan.global_batch, trained), own_batch)
    padded = option_number(arguments, "--make-vocab-size-divisible-by", 128)
    padded *= option_number(arguments, "--tensor-model-parallel-size", 1)
    out = [
        *drop_options(rest, ("--make-vocab-size-divisible-by",) if padded % plan.tp == 0 else ()),
        "--tensor-model-parallel-size", str(plan.tp), "--pipeline-model-parallel-size", str(plan.pp),
        "--micro-batch-size", str(plan.micro_batch), "--global-batch-size", str(plan.global_batch),
    ]  # fmt: skip
    if padded % plan.tp == 0:
        out += ["--make-vocab-size-divisible-by", str(padded // plan.tp)]
    laid_out = any(has_option(arguments, name) for name in (*_LAYOUT, *_ENDS_COUNT))
    own = laid_out and option_number(arguments, "--pipeline-model-parallel-size", 1) == plan.pp
    out = _with_degrees(out, plan, own, version)
    # torch's LayerNorm, which the local layers may be left with, refuses it: only a user who asks for it knows of Apex's
    unable = "local" in option_values(arguments, "--transformer-impl") and not has_option(
        arguments, "--sequence-parallel"
    )
    if plan.sequence_parallel and plan.tp > 1 and not unable:
        out.append("--sequence-parallel")
    out += only_options(arguments, _RECOMPUTE) if is_bound_to_recompute(arguments) else _recompute_options(plan)
    out = drop_refused_options(_with_sharding(out, plan, version), plan)
    if may_overlap and can_overlap(out, version):
        out = _with_overlap(out, plan)
    if plan.precision == "fp8":
        form = next((a for a in ("e4m3", "hybrid") if a in option_values(out, "--fp8-format")), "hybrid")
        out = [*drop_options(out, ("--fp8-format",)), "--fp8-format", form]
    out += ["--override-opt_param-scheduler", "--exit-signal-handler"]
    return _with_folder(out, checkpoint, trained) if checkpoint else out


def _without_unknown_degrees(plan: Plan, version: tuple[int, int] | None, arguments: Sequence[str]) -> Plan:
    """Return `plan` without the youngest degrees where neither `version` nor the user's own command line shows that they are known."""
    if version is not None and version >= YOUNG_DEGREES_FROM:
        return plan
    if not has_option(arguments, _INSTANCES):
        plan = replace(plan, shard=0)
    if not has_option(arguments, _EXCHANGE):
        plan = replace(plan, cp_comm=CP_COMMS[0])
    if plan.recompute not in KINDS and not has_option(arguments, _MODULES):
        plan = replace(plan, recompute=FULL, recompute_layers=0)
    return plan


def _recompute_options(plan: Plan) -> list[str]:
    """Return the options for what `plan` computes again.

    A block is the first layers of each virtual stage. The core of the attention is selective's default, which versions before
    --recompute-modules know too.
    """
    if plan.recompute == NONE:
        return []
    if plan.recompute == FULL:
        method = "block" if plan.recompute_layers else "uniform"
        how = ["--recompute-method", method, "--recompute-num-layers", str(plan.recompute_layers or 1)]
        return ["--recompute-granularity", "full", *how]
    modules = [] if plan.recompute == SELECTIVE else [_MODULES, *list_modules(plan.recompute)]
    return ["--recompute-granularity", "selective", *modules]


def _read_recompute(arguments: Sequence[str], layers: int) -> tuple[str, int]:
    """Return (recompute, recompute_layers) of a plan, as the inverse of `_recompute_options`.

    `layers`: of a virtual stage, 0 where that is not known.
    """
    granularity = (option_values(arguments, "--recompute-granularity") or [NONE])[-1]
    if granularity == FULL:
        some = option_number(arguments, "--recompute-num-layers", 0)
        block = (option_values(arguments, "--recompute-method") or [""])[-1] == "block"
        return FULL, some if block and not (layers and some >= layers) else 0
    if granularity != SELECTIVE and not has_option(arguments, "--recompute-activations"):
        return NONE, 0
    modules = frozenset(option_words(arguments, _MODULES))
    return of_modules(modules & set(MODULES)) if modules else SELECTIVE, 0


def with_users_degrees(plan: Plan, arguments: Sequence[str]) -> Plan:
    """Return `plan` with the degrees that the user's options keep as they are. With another tp it is for another number of processes."""
    if is_bound_to_tp(arguments):
        tp = option_number(arguments, "--tensor-model-parallel-size", 1)
        plan = replace(plan, tp=tp, sequence_parallel=plan.sequence_parallel and tp > 1)
    if has_whole_optimizer(arguments):
        plan = replace(plan, zero_stage=0, shard=0)
    if is_bound_to_recompute(arguments):
        layers = -(-option_number(arguments, "--num-layers", 0) // (plan.pp * plan.vpp))
        recompute, some = _read_recompute(arguments, layers)
        plan = replace(plan, recompute=recompute, recompute_layers=some)
    return plan


def _with_folder(out: list[str], checkpoint: str, trained: Trained) -> list[str]:
    """Return `out` with options that save to `checkpoint` and resume from it.

    A run that begins with another run's weights loads them at its first start only, or each restart would begin anew.
    """
    out = [*drop_options(out, ("--save",)), "--save", checkpoint]
    elsewhere = [folder for folder in option_values(out, "--load") if folder != checkpoint]
    if elsewhere and not trained.iteration:
        return out
    rest = drop_options(out, ("--load",))
    return [*(word for word in rest if not elsewhere or word not in _FIRST_START), "--load", checkpoint]


def with_resume(command: Sequence[str]) -> list[str]:
    """Return the whole command so that it resumes from what the run has saved itself, wherever its first weights came from."""
    saves = option_values(command, "--save")[-1:]
    if not saves or option_values(command, "--load")[-1:] == saves:
        return list(command)
    return _with_folder(list(command), saves[0], Trained(1))


def is_sharded(arguments: Sequence[str]) -> bool:
    """Return whether the parameters are shared out too: Megatron FSDP or PyTorch's FSDP2."""
    return has_option(arguments, "--use-megatron-fsdp") or has_option(arguments, "--use-torch-fsdp2")


def is_one_connection_required(plan: Plan, arguments: Sequence[str]) -> bool:
    """Return whether Megatron-LM's validate_args wants CUDA_DEVICE_MAX_CONNECTIONS=1 with these arguments of `with_plan`.

    It does for tp and cp (Hopper and older; no harm on newer GPUs). Where the parameters are shared out it refuses 1.
    """
    return (plan.tp > 1 or plan.cp > 1) and not is_sharded(arguments)


def _with_overlap(out: list[str], plan: Plan) -> list[str]:
    out = [word for word in out if word not in _OVERLAPS]
    if plan.dp * plan.cp == 1:
        return out
    # newer versions save parameters alone only where they are not gathered so
    gathers = has_option(out, "--use-distributed-optimizer") and not has_option(out, "--save-params-interval")
    return [*out, *(_OVERLAPS if gathers else _OVERLAPS[:1])]


def is_known_to_overlap(script: str, arguments: Sequence[str]) -> bool:
    """Return whether all parameters are known to get a gradient in each step, which Megatron's overlapped reduce asserts.

    They do in Megatron-LM's own GPT script, and where the user overlaps. Another script would end at its start.
    """
    return script.rpartition("/")[2] == "pretrain_gpt.py" or has_option(arguments, _OVERLAPS[0])


def can_overlap(arguments: Sequence[str], version: tuple[int, int] = NEWEST) -> bool:
    """Return whether Megatron-LM's DDP can reduce gradients and gather parameters behind compute under these arguments.

    Its FSDP has ways of its own; the old models, Muon and delayed weight gradients can't, or not with every version.
    """
    if version < _OVERLAPS_FROM:
        return False
    unable = ("--use-legacy-models", "--delay-wgrad-compute")
    whole = has_whole_optimizer(arguments)
    return not (is_sharded(arguments) or whole or any(has_option(arguments, name) for name in unable))


def can_reshard(arguments: Sequence[str]) -> bool:
    """Return whether checkpoints written with these arguments of `with_plan` load under another tp and pp."""
    plain = not has_option(arguments, "--use-distributed-optimizer")
    return (
        not is_sharded(arguments)
        and option_values(arguments, "--ckpt-format")[-1:] == ["torch_dist"]
        and (plain or has_option(arguments, _RESHARDABLE))
    )


def read_plan(arguments: Sequence[str], world: int) -> Plan | None:
    """Return the plan that a complete command line of `world` processes amounts to; None where it does not add up."""
    tp, pp, cp = (
        option_number(arguments, f"--{kind}-parallel-size", 1) for kind in ("tensor-model", "pipeline-model", "context")
    )
    micro, batch = option_number(arguments, "--micro-batch-size", 0), option_number(arguments, "--global-batch-size", 0)
    dp, rest = divmod(world, tp * pp * cp)
    batch = batch or micro * dp  # as Megatron has it
    if rest or not dp or not micro or batch % (dp * micro) or max(tp, pp, cp, micro, batch) > MAX_NUMBER:
        return None
    layers, each = option_number(arguments, "--num-layers", 0), option_number(arguments, VIRTUAL_LAYERS, 0)
    vpp = layers // (pp * each) if each and layers >= pp * each else option_number(arguments, VIRTUAL_STAGES, 1)
    recompute, recompute_layers = _read_recompute(arguments, -(-layers // (pp * vpp)))
    precision = "bf16" if has_option(arguments, "--bf16") else "fp16" if has_option(arguments, "--fp16") else "fp32"
    zero = (
        3
        if has_option(arguments, "--use-torch-fsdp2")
        else 1
        if has_option(arguments, "--use-distributed-optimizer")
        else 0
    )
    if has_option(arguments, "--use-megatron-fsdp"):
        strategy = (option_values(arguments, "--data-parallel-sharding-strategy") or [""])[-1]
        zero = {name: stage for stage, name in _SHARDING.items()}.get(strategy, zero)
    instances, exchange = option_number(arguments, _INSTANCES, 1), option_words(arguments, _EXCHANGE)
    return Plan(
        tp, pp, dp, micro, batch, recompute,
        sequence_parallel=has_option(arguments, "--sequence-parallel"),
        zero_stage=zero,
        vpp=vpp,
        cp=cp,
        ep=expert_degree(arguments, tp),
        precision="fp8" if has_option(arguments, "--fp8-format") else precision,
        recompute_layers=recompute_layers,
        shard=dp * cp // instances if zero and instances > 1 and dp * cp % instances == 0 else 0,
        cp_comm=exchange[-1] if cp > 1 and exchange and set(exchange) <= set(CP_COMMS) else CP_COMMS[0],
    )  # fmt: skip


def find_version(script: Path) -> tuple[int, int] | None:
    """Return (major, minor) of the Megatron-LM checkout that `script` lies in; None where that is unknown."""
    try:
        with (script.parent / "megatron" / "core" / "package_info.py").open(encoding="utf-8", errors="replace") as file:
            text = file.read(65_536)
    except OSError:
        return None
    numbers = [re.search(rf"^{name} *= *([0-9]{{1,4}})\b", text, re.MULTILINE) for name in ("MAJOR", "MINOR")]
    return (int(numbers[0][1]), int(numbers[1][1])) if numbers[0] and numbers[1] else None


def _with_sharding(out: list[str], plan: Plan, version: tuple[int, int]) -> list[str]:
    """Return `out` with what data-parallel ranks share out, and the checkpoint format that goes with it."""
    if has_option(out, "--use-torch-fsdp2"):  # the user's own, which takes no distributed optimizer
        return [*out, "--ckpt-format", "torch_dist"]
    if has_whole_optimizer(out):
        return [*drop_options(out, (_INSTANCES,)), "--ckpt-format", "torch_dist"]
    # the user's own number stays where the plan says none, while it divides the ranks that hold the same experts
    same = max(1, plan.dp * plan.cp // expert_degree(out, plan.tp))
    if plan.shard or not plan.zero_stage or same % option_number(out, _INSTANCES, 1):
        out = drop_options(out, (_INSTANCES,))
    # Megatron FSDP takes it for hybrid sharding
    out = [*out, _INSTANCES, str(plan.dp * plan.cp // plan.shard)] if plan.shard else out
    if plan.zero_stage in _SHARDING:
        out = drop_options(out, ("--data-parallel-sharding-strategy", "--use-megatron-fsdp"))
        out += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", _SHARDING[plan.zero_stage]]
    if has_option(out, "--use-megatron-fsdp"):  # fsdp_dtensor is the only format that it writes
        return [*out, "--use-distributed-optimizer", "--ckpt-format", "fsdp_dtensor"]
    if plan.distributed_optimizer:
        # before 0.15 it has another form by itself, which was made to reshard too
        out = [*out, "--use-distributed-optimizer", *([_RESHARDABLE] if version >= (0, 15) else [])]
    return [*out, "--ckpt-format", "torch_dist"]


def _with_degrees(out: list[str], plan: Plan, own: bool, version: tuple[int, int]) -> list[str]:
    """Set virtual stages, context and expert parallelism as the plan has them, else keep the user's own while they divide.

    `own`: the user has laid out the layers for this pp; a layout for another pp does not stay.
    """
    # Megatron counts dp without cp; a plan of cp 1 may be one that knows nothing of the user's
    cp = plan.cp if plan.cp > 1 else option_number(out, _CONTEXT, 1)
    if plan.cp > 1 or plan.dp % cp:
        out = _with_exchange(out, plan)
        out = drop_options(out, (_CONTEXT,))
        out += [_CONTEXT, str(plan.cp)] if plan.cp > 1 else []
    out = with_expert_degrees(out, plan, version)
    interleaved = can_interleave(out, plan)
    if own:
        return out if interleaved else drop_options(out, (VIRTUAL_LAYERS, VIRTUAL_STAGES))
    out = [a for a in drop_options(out, _LAYOUT) if a not in _ENDS_COUNT]
    layers = option_number(out, "--num-layers", 0)
    stages = stage_layers(layers, plan.pp, option_number(out, "--mtp-num-layers", 0)) if layers else None
    if stages is not None and not stages.is_even:
        out = drop_options(out, (VIRTUAL_LAYERS, VIRTUAL_STAGES))
        if plan.vpp > 1 and interleaved:  # Megatron can't interleave a first stage of another size
            return [*out, *_ENDS_COUNT, VIRTUAL_STAGES, str(plan.vpp)]
        return [*out, _FIRST_LAYERS, str(stages.first), _LAST_LAYERS, str(stages.last)]
    if plan.vpp > 1 and interleaved:
        out = drop_options(out, (VIRTUAL_LAYERS, VIRTUAL_STAGES))
        # the first one is known to every version
        each = layers // (plan.pp * plan.vpp)
        out += [VIRTUAL_LAYERS, str(each)] if each else [VIRTUAL_STAGES, str(plan.vpp)]
        return out
    stage, rest = divmod(layers, plan.pp)
    own_stages, odd = option_number(out, VIRTUAL_STAGES, 1), 0
    if has_option(out, VIRTUAL_LAYERS):
        own_stages, odd = divmod(stage, option_number(out, VIRTUAL_LAYERS, 1))
    if not interleaved or own_stages < 2 or rest or odd or stage % own_stages:
        out = drop_options(out, (VIRTUAL_LAYERS, VIRTUAL_STAGES))
    return out


def _with_exchange(out: list[str], plan: Plan) -> list[str]:
    """Return `out` with the way in which context-parallel ranks exchange, as the plan has it.

    The user's own choices that no plan knows (all-gathers, groups in groups, one for each layer) stay while cp does.
    """
    own = option_words(out, _EXCHANGE)
    if (
        own
        and not set(own) <= set(CP_COMMS)
        and option_number(out, _CONTEXT, 1) == plan.cp
        and plan.cp_comm == CP_COMMS[0]
    ):
        return out
    out = drop_options(out, (_EXCHANGE, _HIERARCHY))
    # Megatron's default is p2p, which older versions have alone
    return [*out, _EXCHANGE, plan.cp_comm] if plan.cp > 1 and plan.cp_comm != CP_COMMS[0] else out


def _remove_options(arguments: Sequence[str], keeps_ramp: bool) -> list[str]:
    names = (*_FLAGS_WITH_VALUE, *(() if keeps_ramp else (RAMP,)))
    return [a for a in drop_options(list(arguments), names) if a not in _FLAGS]

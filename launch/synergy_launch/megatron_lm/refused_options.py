"""Options of the user's that Megatron-LM refuses beside some degrees of a plan. Pure.

Each would end the run at its start. Those here make a run faster or smaller, not another training, so they are left out where the plan's
degrees do not allow them. The checks are those of arguments.py, model_parallel_config.py, transformer_config.py and
schedules.py, core_v0.16.1; tests/integration/test_megatron_lm_arguments.py asks them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from synergy_core.recompute import FULL
from synergy_core.records import Plan

from synergy_launch.megatron_lm.options import drop_options, has_option, option_number, option_values

VIRTUAL_LAYERS, VIRTUAL_STAGES = "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"
EXPERT, EXPERT_TENSOR = "--expert-model-parallel-size", "--expert-tensor-parallel-size"
_BETWEEN = "--no-overlap-p2p-communication"
_GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"
_OFFLOADED = "--cpu-offloading-num-layers"
_PADDED = "--moe-pad-experts-for-cuda-graph-inference"
_NOT_CUT_FROM = (0, 15)  # before, experts with biases are cut as others are; the option came with 0.10


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The facts of a complete command line and its plan that the checks look at."""

    tp: int
    pp: int
    ep: int
    is_interleaved: bool
    sequence_parallel: bool
    recompute: str
    predicts_more: bool  # multi-token prediction

    @property
    def overlaps_experts(self) -> bool:
        deep = self.pp == 1 or self.is_interleaved
        return self.ep > 1 and deep and self.recompute != FULL and (self.pp > 1 or not self.predicts_more)


# An option with those that need it, and whether Megatron-LM takes it in a run.
_CHECKS: tuple[tuple[tuple[str, ...], Callable[[_Run], bool]], ...] = (
    (("--tp-comm-overlap",), lambda run: run.sequence_parallel),
    (
        ("--distribute-saved-activations",),
        lambda run: run.tp > 1 and run.recompute == FULL and not run.sequence_parallel,
    ),
    (("--defer-embedding-wgrad-compute",), lambda run: run.pp > 1),
    (("--inference-batch-times-seqlen-threshold",), lambda run: run.pp > 1),
    (("--overlap-p2p-communication-warmup-flush",), lambda run: run.is_interleaved),
    ((_OFFLOADED,), lambda run: run.pp == 1),
    (
        ("--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute", "--ep-overlap-early-attn-memory-release"),
        lambda run: run.overlaps_experts,
    ),
)


def drop_refused_options(out: Sequence[str], plan: Plan) -> list[str]:
    """Return a complete command line without the options that Megatron-LM refuses beside the degrees in it."""
    run = _Run(
        tp=plan.tp,
        pp=plan.pp,
        ep=option_number(out, EXPERT, 1),
        is_interleaved=has_option(out, VIRTUAL_LAYERS) or has_option(out, VIRTUAL_STAGES),
        sequence_parallel=has_option(out, "--sequence-parallel"),
        recompute=(option_values(out, "--recompute-granularity") or [""])[-1],
        predicts_more=has_option(out, "--mtp-num-layers"),
    )
    refused = [name for names, takes in _CHECKS if has_option(out, names[0]) and not takes(run) for name in names]
    group, count = option_number(out, _GROUP, plan.pp), plan.micro_batches
    if not plan.pp <= group <= count or 0 < count % group < plan.pp:
        refused.append(_GROUP)
    return drop_options(out, refused)


def can_interleave(arguments: Sequence[str], plan: Plan) -> bool:
    """Return whether virtual stages are taken: not by two ranks whose sends and receives wait for one another."""
    return plan.pp > (2 if has_option(arguments, _BETWEEN) else 1) and plan.micro_batches % plan.pp == 0


def is_bound_to_recompute(arguments: Sequence[str]) -> bool:
    """Return whether what is computed again is bound to the user's other options: CUDA graphs, layers kept in host memory."""
    return has_graphs(arguments) or _has_offloading(arguments)


def _has_offloading(arguments: Sequence[str]) -> bool:
    return option_number(arguments, _OFFLOADED, 0) > 0


def has_graphs(arguments: Sequence[str]) -> bool:
    """Return whether CUDA graphs are on, by their option or its older names."""
    kinds = option_values(arguments, "--cuda-graph-impl")
    older = ("--enable-cuda-graph", "--external-cuda-graph")
    return (bool(kinds) and kinds[-1] != "none") or any(has_option(arguments, name) for name in older)


def is_bound_to_experts(arguments: Sequence[str]) -> bool:
    """Return whether ep stays as the user has it: CUDA graphs want inputs that are padded where experts are shared out."""
    return has_graphs(arguments) and not has_option(arguments, _PADDED)


def is_bound_to_one_stage(arguments: Sequence[str]) -> bool:
    """Return whether the options rule out a pipeline."""
    others = ("--use-torch-fsdp2", "--hybrid-context-parallel")
    return _has_offloading(arguments) or any(has_option(arguments, name) for name in others)


def has_whole_optimizer(arguments: Sequence[str]) -> bool:
    """Return whether the optimizer refuses to be shared out: Muon needs whole matrices."""
    return any("muon" in kind for kind in option_values(arguments, "--optimizer"))


def is_bound_to_tp(arguments: Sequence[str]) -> bool:
    """Return whether another tp would be another training: Muon makes each rank's part of a matrix orthogonal by itself.

    It does not where it is told to look at the whole (--muon-tp-mode, muon.py).
    """
    mode = (option_values(arguments, "--muon-tp-mode") or ["blockwise"])[-1]
    return has_whole_optimizer(arguments) and mode == "blockwise"


def with_expert_degrees(out: list[str], plan: Plan, version: tuple[int, int]) -> list[str]:
    """Set expert parallelism as the plan has it, else keep the user's own while it divides.

    A plan's experts are cut by tp, as Megatron-LM's are unless --expert-tensor-parallel-size says otherwise, and shared out over ep of
    the data-parallel ranks. Where they are not cut by the plan's tp (the user's own size, or biases, which are not cut), ep is as much
    larger.
    """
    experts = option_number(out, "--num-experts", 0)
    biased = experts > 0 and plan.tp > 1 and not has_option(out, "--disable-bias-linear") and version >= _NOT_CUT_FROM
    cut = 1 if biased else option_number(out, EXPERT_TENSOR, plan.tp)
    ranks = plan.tp * plan.dp * plan.cp
    if ranks % cut:
        out, cut = drop_options(out, (EXPERT_TENSOR,)), plan.tp
    if biased:
        out = [*drop_options(out, (EXPERT_TENSOR,)), EXPERT_TENSOR, "1"]
    own = option_number(out, EXPERT, 1)
    ep = plan.ep * plan.tp // cut if plan.ep * plan.tp % cut == 0 else plan.ep
    if plan.ep == 1 and (has_option(out, EXPERT) or is_bound_to_experts(out)) and ranks % (cut * own) == 0:
        ep = own  # the plan may not know of it
    while ep > 1 and (experts % ep or ranks % (cut * ep)):
        ep -= 1
    out = drop_options(out, (EXPERT,))
    return [*out, EXPERT, str(ep)] if ep > 1 else out


def expert_degree(arguments: Sequence[str], tp: int) -> int:
    """Return the ep of a plan, as the inverse of `with_expert_degrees`."""
    ep, cut = option_number(arguments, EXPERT, 1), option_number(arguments, EXPERT_TENSOR, tp)
    return max(1, ep * cut // tp) if ep * cut % tp == 0 else ep

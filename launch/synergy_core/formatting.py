"""A shape, a plan, a job's size, a time span and several jobs in words: as explanations, stories and errors say them."""

from __future__ import annotations

from collections.abc import Sequence

from synergy_core.recompute import KINDS, format_recompute
from synergy_core.records import Cell, Plan, Shape

_NAMED = 3  # the most of several jobs or nodes that are named


def format_shape(shape: Shape, nodes: Sequence[str] = ()) -> str:
    """Return a text such as `4 a100 GPUs on one node` or `2 nodes x 8 h100 GPUs`.

    With names: `4 a100 GPUs on n1`, `2 nodes x 8 h100 GPUs on n1,n2`.
    """
    gpus = f"{shape.gpus_per_node} {shape.gpu_type} GPU{'s' * (shape.gpus_per_node != 1)}"
    where = f" on {','.join(nodes)}" if nodes else " on one node" * (shape.nodes == 1)
    return gpus + where if shape.nodes == 1 else f"{shape.nodes} nodes x {gpus}{where}"


def format_plan(plan: Plan) -> str:
    """Return a text such as `tp 2, pp 1, dp 4, micro-batch 2, global batch 64`.

    It adds vpp, cp, ep, the ZeRO stage, parts that are computed again and the exchange where they are not as usual.
    """
    words = [f"tp {plan.tp}, pp {plan.pp}, dp {plan.dp}"]
    words += [f"{name} {degree}" for name in ("vpp", "cp", "ep") if (degree := getattr(plan, name)) > 1]
    words += [f"zero {plan.zero_stage}"] * (plan.zero_stage != 1)
    words += [f"cp by {plan.cp_comm}"] * (plan.cp_comm != "p2p")
    words += [f"shared out over {plan.shard}"] * (plan.shard > 0)
    words += [f"exchange {plan.exchange}"] * (plan.exchange != "exact")
    if plan.recompute_layers or plan.recompute not in KINDS:
        words.append(f"recompute {format_recompute(plan.recompute, plan.recompute_layers)}")
    return ", ".join([*words, f"micro-batch {plan.micro_batch}, global batch {plan.global_batch}"])


def format_exchange(cell: Cell, exact: Cell) -> str:
    """Return a text for an exchange, beside a plan that exchanges every gradient.

    For example `exchange local:8: step 1.9 s in place of 3.2 s, an example worth 0.97`.
    """
    # both have the same batch, or an example's worth by the batch is in it too
    worth = cell.efficiency / exact.efficiency if exact.efficiency > 0 else 1.0
    step = f"step {cell.step_s:.2g} s in place of {exact.step_s:.2g} s"
    if cell.plan.global_batch != exact.plan.global_batch:
        step = f"{cell.throughput:.3g} sequences/s in place of {exact.throughput:.3g}"
    return f"exchange {cell.plan.exchange}: {step}, an example worth {worth:.2f}"


def format_size(shape: Shape, plan: Plan | None = None, nodes: Sequence[str] = ()) -> str:
    """Return what a job has or is to have as text. For example `4 a100 GPUs on n1 (tp 2, pp 1, dp 2, micro-batch 1, global batch 8)`."""
    return format_shape(shape, nodes) + (f" ({format_plan(plan)})" if plan is not None else "")


def format_duration(seconds: float) -> str:
    """Return a text such as `90 s` or `45 min`."""
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def format_jobs(jobs: Sequence[int]) -> str:
    """Return a text such as `job 3` or `jobs 3, 5, 7 and 2 more`."""
    return f"job{'s' * (len(jobs) != 1)} {format_names(list(map(str, jobs)))}"


def format_names(names: Sequence[str]) -> str:
    """Return a text such as `n1, n2, n3 and 2 more`."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")

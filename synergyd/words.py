"""A shape, a plan, a job's size, a time span and several jobs in words: as explanations, stories and errors say them."""

from __future__ import annotations

from collections.abc import Sequence

from synergyd.recompute import KINDS, recompute_words
from synergyd.records import Cell, Plan, Shape

_NAMED = 3  # of several jobs or nodes


def shape_words(shape: Shape, nodes: Sequence[str] = ()) -> str:
    """`4 a100 GPUs on one node`, `2 nodes x 8 h100 GPUs`; with names `4 a100 GPUs on n1`, `2 nodes x 8 h100 GPUs on n1,n2`."""
    gpus = f"{shape.gpus_per_node} {shape.gpu_type} GPU{'s' * (shape.gpus_per_node != 1)}"
    where = f" on {','.join(nodes)}" if nodes else " on one node" * (shape.nodes == 1)
    return gpus + where if shape.nodes == 1 else f"{shape.nodes} nodes x {gpus}{where}"


def plan_words(plan: Plan) -> str:
    """`tp 2, pp 1, dp 4, micro-batch 2, global batch 64`, and vpp, cp, ep, the ZeRO stage, parts that are computed again and the exchange
    where they are not as usual."""
    words = [f"tp {plan.tp}, pp {plan.pp}, dp {plan.dp}"]
    words += [f"{name} {degree}" for name in ("vpp", "cp", "ep") if (degree := getattr(plan, name)) > 1]
    words += [f"zero {plan.zero_stage}"] * (plan.zero_stage != 1)
    words += [f"cp by {plan.cp_comm}"] * (plan.cp_comm != "p2p")
    words += [f"shared out over {plan.shard}"] * (plan.shard > 0)
    words += [f"exchange {plan.exchange}"] * (plan.exchange != "exact")
    if plan.recompute_layers or plan.recompute not in KINDS:
        words.append(f"recompute {recompute_words(plan.recompute, plan.recompute_layers)}")
    return ", ".join([*words, f"micro-batch {plan.micro_batch}, global batch {plan.global_batch}"])


def exchange_words(cell: Cell, exact: Cell) -> str:
    """`exchange local:8: step 1.9 s in place of 3.2 s, an example worth 0.97`, beside a plan that exchanges every gradient."""
    # both have the same batch, or an example's worth by the batch is in it too
    worth = cell.efficiency / exact.efficiency if exact.efficiency > 0 else 1.0
    step = f"step {cell.step_s:.2g} s in place of {exact.step_s:.2g} s"
    if cell.plan.global_batch != exact.plan.global_batch:
        step = f"{cell.throughput:.3g} sequences/s in place of {exact.throughput:.3g}"
    return f"exchange {cell.plan.exchange}: {step}, an example worth {worth:.2f}"


def size_words(shape: Shape, plan: Plan | None = None, nodes: Sequence[str] = ()) -> str:
    """What a job has or is to have: `4 a100 GPUs on n1 (tp 2, pp 1, dp 2, micro-batch 1, global batch 8)`."""
    return shape_words(shape, nodes) + (f" ({plan_words(plan)})" if plan is not None else "")


def span_words(seconds: float) -> str:
    """`90 s`, `45 min`."""
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def job_words(jobs: Sequence[int]) -> str:
    """`job 3`, `jobs 3, 5, 7 and 2 more`."""
    return f"job{'s' * (len(jobs) != 1)} {names_words(list(map(str, jobs)))}"


def names_words(names: Sequence[str]) -> str:
    """`n1, n2, n3 and 2 more`."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")

"""What less communication leaves of the data-parallel part of a step, for whole arrays of plans at once. Symbols as in step_time.py."""

from __future__ import annotations

import numpy as np

from synergyd.exchange import Exchange
from synergyd.task.model.arrays import Floats, Ints, PlanArrays
from synergyd.task.model.dims import Dims
from synergyd.task.model.group_links import GroupLink, ring
from synergyd.task.model.layer_time import Kernels

_PARAMETER_BYTES = 4.0  # of what local steps average: DDP's parameters are fp32 under autocast
_HALF_BYTES = 2.0
# Of each parameter's fp32 gradient: it and its error are read and written, and read twice more for P = MQ and Q = M'P, and P Q' is
# written (PowerSGD, Vogels et al. 2019, algorithm 1).
_POWERSGD_PASSES = 7


def exchange_s(
    model: Dims,
    at: Kernels,
    plans: PlanArrays,
    *,
    exact: Floats,
    gradient_bytes: Floats,
    shard: Floats,
    link: GroupLink,
    ranks: Ints,
    hidden: Floats,
    work: Floats,
) -> Floats:
    """Seconds a step that compute does not hide, (N,): `exact` where every gradient is exchanged.

    `link`, over which `ranks` all-reduce the gradients of `shard` parameters, hides `hidden` seconds behind the last backward pass;
    `work` is the forward and backward of the whole step.
    - local:H (Stich, ICLR 2019): an all-reduce of the parameters each H steps, which nothing hides.
    - delayed (DaSGD, Zhou et al. 2020; pipelined SGD, Li et al. 2018): hidden by the whole next step.
    - compressed:bf16: half of fp32 gradients' bytes; nothing of others'.
    - compressed:powersgd-r: r (n + m) numbers of each matrix (n, m) in two all-reduces, and the GEMMs.
    """
    if plans.exchange is None:
        return exact
    whole = 2 * ring(link, ranks, gradient_bytes * shard)
    result = exact
    for option in set(plans.exchange.tolist()):
        if option.kind != "exact":
            found = _of(option, model, at, shard, gradient_bytes, link, ranks, hidden, work, whole)
            result = np.where(plans.exchange == option, found, result)
    return result


def _of(
    option: Exchange,
    model: Dims,
    at: Kernels,
    shard: Floats,
    gradient_bytes: Floats,
    link: GroupLink,
    ranks: Ints,
    hidden: Floats,
    work: Floats,
    whole: Floats,
) -> Floats:
    if option.kind == "local":
        return 2 * ring(link, ranks, _PARAMETER_BYTES * shard) / option.period
    if option.kind == "delayed":
        return np.maximum(0.0, whole - work)
    if not option.rank:
        return np.maximum(0.0, 2 * ring(link, ranks, np.minimum(gradient_bytes, _HALF_BYTES) * shard) - hidden)
    low_rank = np.minimum(4.0 * option.rank * _sides(model), gradient_bytes * shard)
    sent = 2 * ring(link, ranks, low_rank) + 2 * ring(link, ranks, np.zeros_like(shard))
    again = _POWERSGD_PASSES * 4.0 * shard / at.memory_rate + 6.0 * option.rank * shard / at.flops_rate
    return np.maximum(0.0, sent - hidden) + again


def _sides(model: Dims) -> Floats:
    """n + m of all weight matrices (n, m) together, of a replica that holds the whole model."""
    h, wide = model.hidden, (1 - model.moe_share) * model.dense_ffn
    attention = (h + model.query) + 2 * (h + model.kv) + (model.value + h)
    mlp = model.gates * ((1 - model.moe_share) * h + wide)
    experts = model.moe_share * model.gates * (model.experts * (h + model.ffn) + h + model.shared_ffn)
    ends = np.where(model.head_parameters > 0, 2, 1) * (model.vocab + h)
    return np.asarray(model.layers * (attention + mlp + experts) + ends)

"""The data-parallel part of a step with less communication, for whole arrays of plans at once. Symbols as in step_time.py."""

from __future__ import annotations

import numpy as np

from synergyd.jobmodel.model.arrays import Floats, Ints, PlanArrays
from synergyd.jobmodel.model.group_links import GroupLink, ring

_PARAMETER_BYTES = 4.0  # bytes of each number that local steps average: DDP's parameters are fp32 under autocast
_HALF_BYTES = 2.0


def exchange_s(
    plans: PlanArrays,
    *,
    exact: Floats,
    gradient_bytes: Floats,
    shard: Floats,
    link: GroupLink,
    ranks: Ints,
    hidden: Floats,
) -> Floats:
    """Return the seconds a step that compute does not hide, (N,): `exact` where every gradient is exchanged.

    `link`, over which `ranks` all-reduce the gradients of `shard` parameters, hides `hidden` seconds behind the last backward pass.
    - local:H (Stich, ICLR 2019): an all-reduce of the parameters each H steps, which nothing hides.
    - compressed:bf16: half of fp32 gradients' bytes; nothing of others'.
    """
    if plans.exchange is None:
        return exact
    result = exact
    for option in set(plans.exchange.tolist()):
        if option.kind == "local":
            seconds = 2 * ring(link, ranks, _PARAMETER_BYTES * shard) / option.period
        elif option.kind == "compressed":
            transfer_s = 2 * ring(link, ranks, np.minimum(gradient_bytes, _HALF_BYTES) * shard)
            seconds = np.maximum(0.0, transfer_s - hidden)
        else:
            continue
        result = np.where(plans.exchange == option, seconds, result)
    return result

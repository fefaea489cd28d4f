"""`synergyctl profiles measure --pairs`: the cost of sharing a node's network link, measured between nodes."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from typing import Any

from synergy_core.errors import UsageError

from synergyd.jobmodel.model.measure_links import PairTimings, link_figures, pair_timings
from synergyd.links.model import make_link

# bytes a rank: large sizes, since a link is shared by rate
_SIZES = {"cpu": (1 << 20, 1 << 22, 1 << 23), "cuda": (1 << 22, 1 << 24, 1 << 27)}


def measured_pairs(device: str, link: str, as_json: bool) -> str | None:
    """Return the text to write, or None on ranks that leave it to the first one. Raises UsageError."""
    try:
        make_link(link)
    except UsageError as error:
        raise UsageError("--link", error.what, error.right) from None
    world, local = (int(os.environ.get(key) or 1) for key in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if local != 2 or world < 4 or world % local:
        right = "torchrun --nnodes 2 --nproc-per-node 2 ... -m synergyd.cli.measure --pairs"
        raise UsageError("--pairs", "needs several nodes with 2 processes each", right)
    timings = _time_pairs(device, world, local)
    if timings is None:
        return None
    per_mb, penalty = link_figures(timings)
    value = f"{link.lower().partition('@')[0]}@{per_mb:.4g}+{penalty:.4g}"
    if as_json:
        record = {"link": value, "per_mb_ms": per_mb, "penalty_ms": penalty, "measured": asdict(timings)}
        return json.dumps(record, indent=2) + "\n"
    return (
        f"# Over {timings.nodes} nodes: {per_mb:.4g} ms for a MB alone; with two at once each needs {2 * per_mb + penalty:.4g}, "
        f"{penalty:.4g} more than half the link would.\n#SYNERGY NodeLink={value}\n"
    )


def _time_pairs(device: str, world: int, local: int) -> PairTimings | None:
    import torch
    import torch.distributed as dist

    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    # every rank has to make every group
    groups: list[Any] = [dist.new_group(list(range(first, world, local))) for first in range(local)]
    rank = dist.get_rank()
    nodes = world // local
    timings = pair_timings(
        torch, device, groups[rank % local], rank % local == 0, nodes, _SIZES[device], time.perf_counter
    )
    dist.barrier()
    dist.destroy_process_group()
    return timings if rank == 0 else None

"""From the name of a trace to a scenario: for notebooks and scripts; the command line has further sources."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from synergy_sim.records import Scenario, build_cluster
from synergy_sim.traces.kinds import cluster_of_trace, find_gpu_type, read_trace


def load_trace(
    trace: str,
    *,
    cluster: Mapping[str, tuple[int, int]] | None = None,
    profiles: Path | None = None,
    epoch_s: float = 60.0,
    seed: int = 0,
) -> Scenario:
    """Read a trace `KIND:PATH` (traces/kinds.py lists the kinds) and return its jobs on a cluster.

    `cluster`: GPU type -> (nodes, GPUs per node); by default the one that the trace comes with, else 16 nodes of 4 GPUs. `profiles`: the
    folder of the measurements where it does not lie beside the trace. `epoch_s`: seconds between two decisions. Raises UsageError for a
    trace that can't be read.
    """
    groups = dict(cluster or cluster_of_trace(trace, profiles) or {find_gpu_type(trace): (16, 4)})
    gpu_type, (_, gpus_per_node) = next(iter(groups.items()))
    gpus = sum(nodes * each for nodes, each in groups.values())
    loaded = read_trace(trace, profiles, gpu_type, gpus, gpus_per_node, seed)
    return Scenario(loaded.jobs, build_cluster(groups), loaded.costs, epoch_s, seed=seed)

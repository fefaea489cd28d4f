"""The kinds of traces by name, for the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from synergy_core.errors import UsageError

from synergy_sim.records import Costs, TraceJob
from synergy_sim.traces import arena, cluster_logs, gavel, generate, morphling, pollux, sia

KINDS = {
    "pollux": "a workload of the Pollux artifact, its measurements in ../traces or --profiles",
    "sia": "a workload of the Sia artifact, its measurements in ../../traces or --profiles",
    "morphling": "a workload of the Rubick (Morphling) artifact, its measurements in ../traces or --profiles",
    "arena": "a trace of the Crius (Arena) artifact, its tables in .. or --profiles",
    "generate": "JOBS[,HOURS]: made up, no data needed",
    "gavel": "a trace of Gavel's or Shockwave's, *throughputs.json beside it or --profiles",
    "philly": "philly.csv as arrivals, sizes and lengths",
    "sacct": "sacct -X --parsable2 --format=JobID,Submit,ElapsedRaw,AllocTRES of a real cluster",
}
_TYPES = {"pollux": "t4", "gavel": "v100", "morphling": "a800"}  # the GPU type that was measured
_OTHER = "a100"


@dataclass(frozen=True)
class LoadedTrace:
    """A trace, and what goes with it unless the command line says otherwise."""

    jobs: tuple[TraceJob, ...]
    costs: Costs = field(default_factory=Costs)


def find_gpu_type(text: str) -> str:
    """Return the GPU type that a trace `KIND:PATH` was measured on. Raises UsageError."""
    return _TYPES.get(_split(text)[0], _OTHER)


def cluster_of_trace(text: str, profiles: Path | None) -> dict[str, tuple[int, int]] | None:
    """Return GPU type -> (nodes, GPUs a node) of the cluster that a trace comes with; None if it has none. Raises UsageError."""
    kind, rest = _split(text)
    if kind == "morphling":
        return morphling.CLUSTER
    if kind == "sia":
        return sia.CLUSTER
    return arena.read_cluster(profiles or Path(rest).parent.parent) if kind == "arena" else None


def read_trace(
    text: str, profiles: Path | None, gpu_type: str, gpus: int, gpus_per_node: int, seed: int = 0
) -> LoadedTrace:
    """Read the trace `KIND:PATH` for a cluster of `gpus` GPUs. Raises UsageError."""
    kind, rest = _split(text)
    if kind == "pollux":
        return LoadedTrace(pollux.read(Path(rest), profiles, gpu_type))
    if kind == "sia":
        return LoadedTrace(sia.read(Path(rest), profiles), sia.COSTS)
    if kind == "morphling":
        return LoadedTrace(morphling.read(Path(rest), profiles, gpu_type, gpus_per_node), morphling.COSTS)
    if kind == "arena":
        return LoadedTrace(arena.read(Path(rest), profiles), arena.COSTS)
    if kind == "generate":
        return LoadedTrace(generate.generate(rest, gpu_type, gpus, gpus_per_node, seed))
    if kind == "gavel":
        return LoadedTrace(gavel.read(Path(rest), profiles, gpu_type))
    if kind == "philly":
        return LoadedTrace(cluster_logs.read_philly(Path(rest), gpu_type, gpus_per_node))
    return LoadedTrace(cluster_logs.read_sacct(Path(rest), gpu_type, gpus_per_node))


def _split(text: str) -> tuple[str, str]:
    kind, colon, rest = text.partition(":")
    if not colon or not rest or kind not in KINDS:
        raise UsageError("--trace", f"{text!r} is not KIND:PATH", f"KIND is one of {', '.join(KINDS)}")
    return kind, rest

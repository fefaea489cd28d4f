"""The kinds of traces by name, for the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from synergyd.errors import UsageError
from synergyd.sim.records import Costs, TraceJob
from synergyd.sim.traces import arena, cluster_logs, gavel, generate, morphling, pollux, sia

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
_TYPES = {"pollux": "t4", "gavel": "v100", "morphling": "a800"}  # what the measurements are of
_OTHER = "a100"


@dataclass(frozen=True)
class Loaded:
    """A trace, and what goes with it unless the command line says otherwise."""

    jobs: tuple[TraceJob, ...]
    costs: Costs = field(default_factory=Costs)


def gpu_type_of(text: str) -> str:
    """The GPU type that a trace `KIND:PATH` was measured on. Raises UsageError."""
    return _TYPES.get(_split(text)[0], _OTHER)


def cluster_of_trace(text: str, profiles: Path | None) -> dict[str, tuple[int, int]] | None:
    """GPU type -> (nodes, GPUs a node) of the cluster that a trace comes with; None if it has none. Raises UsageError."""
    kind, rest = _split(text)
    if kind == "morphling":
        return morphling.CLUSTER
    if kind == "sia":
        return sia.CLUSTER
    return arena.read_cluster(profiles or Path(rest).parent.parent) if kind == "arena" else None


def read_trace(text: str, profiles: Path | None, gpu_type: str, gpus: int, gpus_per_node: int, seed: int = 0) -> Loaded:
    """`KIND:PATH` for a cluster of `gpus` GPUs. Raises UsageError."""
    kind, rest = _split(text)
    if kind == "pollux":
        return Loaded(pollux.read(Path(rest), profiles, gpu_type))
    if kind == "sia":
        return Loaded(sia.read(Path(rest), profiles), sia.COSTS)
    if kind == "morphling":
        return Loaded(morphling.read(Path(rest), profiles, gpu_type, gpus_per_node), morphling.COSTS)
    if kind == "arena":
        return Loaded(arena.read(Path(rest), profiles), arena.COSTS)
    if kind == "generate":
        return Loaded(generate.generate(rest, gpu_type, gpus, gpus_per_node, seed))
    if kind == "gavel":
        return Loaded(gavel.read(Path(rest), profiles, gpu_type))
    if kind == "philly":
        return Loaded(cluster_logs.read_philly(Path(rest), gpu_type, gpus_per_node))
    return Loaded(cluster_logs.read_sacct(Path(rest), gpu_type, gpus_per_node))


def _split(text: str) -> tuple[str, str]:
    kind, colon, rest = text.partition(":")
    if not colon or not rest or kind not in KINDS:
        raise UsageError("--trace", f"{text!r} is not KIND:PATH", f"KIND is one of {', '.join(KINDS)}")
    return kind, rest

"""The kinds of traces by name, for the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from synergyd.errors import UsageError
from synergyd.sim.records import Costs, Outage, TraceJob
from synergyd.sim.traces import pollux

KINDS = ("pollux",)


@dataclass(frozen=True)
class Loaded:
    """A trace, and what goes with it unless the command line says otherwise."""

    jobs: tuple[TraceJob, ...]
    gpu_type: str
    costs: Costs = Costs()
    outages: tuple[Outage, ...] = ()


def read_trace(text: str, profiles: Path | None, gpu_type: str = "", seed: int = 0) -> Loaded:
    """`KIND:PATH`. Raises UsageError."""
    kind, colon, rest = text.partition(":")
    if not colon or not rest or kind not in KINDS:
        raise UsageError("--trace", f"{text!r} is not KIND:PATH", f"KIND is one of {', '.join(KINDS)}")
    wanted = gpu_type or "t4"
    return Loaded(pollux.read(Path(rest), profiles, wanted), wanted)

"""The simulator: recorded or made-up clusters run through the very code of the daemon, on ground truth of their own.

from synergy_sim import load_trace, simulate

run = simulate(load_trace("generate:40,4", cluster={"a100": (4, 8)}), "synergy")
mean_jct_s = sum(job.jct_s for job in run.jobs) / len(run.jobs)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: what notebooks use -> where it is; imported when it is first asked for
_PUBLIC = {
    "load_trace": "synergy_sim.traces.load",
    "simulate": "synergy_sim.runs",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})

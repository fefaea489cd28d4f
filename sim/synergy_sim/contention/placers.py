"""Placers: the choice of the simulated machine's GPUs for a job."""

from __future__ import annotations

from collections.abc import Sequence

from synergy_core.errors import UsageError

from synergy_sim.contention.engine import Engine, Placer
from synergyd.scheduler.placement.lwf import choose_gpus


def _open_gpus(engine: Engine, job: int) -> list[bool]:
    need, exclusive = engine.jobs[job].memory_mb, engine.machine.exclusive
    return [
        free >= need and not (exclusive and some)
        for free, some in zip(engine.memory, engine.residents, strict=True)
    ]  # fmt: skip


def first_fit(engine: Engine, job: int) -> Sequence[int] | None:
    """Return the first GPUs, in order, that have the memory, or None if there are too few."""
    gpus = [g for g, free in enumerate(_open_gpus(engine, job)) if free]
    need = engine.jobs[job].gpus
    return gpus[:need] if len(gpus) >= need else None


def make_lwf_placer(kappa: int) -> Placer:
    """Return the placer LWF-kappa."""

    def placer(engine: Engine, job: int) -> Sequence[int] | None:
        size = engine.machine.gpus
        nodes = [range(n * size, (n + 1) * size) for n in range(engine.machine.nodes)]
        return choose_gpus(engine.gpu_work_left_ms(), _open_gpus(engine, job), nodes, engine.jobs[job].gpus, kappa)

    return placer


def find_placer(name: str) -> Placer:
    """Return the placer called `first-fit` or `lwf-KAPPA`. Raises UsageError."""
    if name == "first-fit":
        return first_fit
    kind, _, kappa = name.partition("-")
    if kind == "lwf" and kappa.isdecimal():
        return make_lwf_placer(int(kappa))
    raise UsageError("placement", f"no placement {name!r}", "first-fit or lwf-KAPPA, such as lwf-1")

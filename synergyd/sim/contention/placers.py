"""Which GPUs of the simulated machine a job gets."""

from __future__ import annotations

from collections.abc import Sequence

from synergyd.errors import UsageError
from synergyd.scheduler.placement.lwf import choose_gpus
from synergyd.sim.contention.engine import Engine, Placer


def _open(engine: Engine, job: int) -> list[bool]:
    need, exclusive = engine.jobs[job].memory_mb, engine.machine.exclusive
    return [
        free >= need and not (exclusive and some)
        for free, some in zip(engine.memory, engine.residents, strict=True)
    ]  # fmt: skip


def first_fit(engine: Engine, job: int) -> Sequence[int] | None:
    """The first GPUs in order that have the memory."""
    found = [g for g, free in enumerate(_open(engine, job)) if free]
    need = engine.jobs[job].gpus
    return found[:need] if len(found) >= need else None


def lwf(kappa: int) -> Placer:
    """LWF-kappa."""

    def placer(engine: Engine, job: int) -> Sequence[int] | None:
        size = engine.machine.gpus
        nodes = [range(n * size, (n + 1) * size) for n in range(engine.machine.nodes)]
        return choose_gpus(engine.gpu_work(), _open(engine, job), nodes, engine.jobs[job].gpus, kappa)

    return placer


def placer_named(name: str) -> Placer:
    """`first-fit` or `lwf-KAPPA`. Raises UsageError."""
    if name == "first-fit":
        return first_fit
    kind, _, kappa = name.partition("-")
    if kind == "lwf" and kappa.isdecimal():
        return lwf(int(kappa))
    raise UsageError("placement", f"no placement {name!r}", "first-fit or lwf-KAPPA, such as lwf-1")

"""The figures of nodes' checks, what is usual for nodes of a kind, and which figures fall short of it. Pure.

Like is compared with like: GPUs that Slurm and their driver call the same, CPUs for as many CPUs. What is usual is the median over nodes,
of LEAST_NODES at least: then three nodes stand against one. A check is its job's word, so for each user it is the lowest of the medians
without the checks of any one other user. So nobody alone can make it high, and a low one only spares nodes a mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from synergy_core.node_check import NodeCheck

LEAST_NODES = 4
#: For so long a figure counts. Nodes change seldom, and many are checked once in weeks.
FIGURES_S = 30 * 86_400.0
#: Least share of what is usual, by measure. Healthy GPUs of one type differ by 8 % on average and 22 % at most (Sinha et al., "Not All GPUs
#: Are Created Equal", SC 2022); a missing NVLink is always a fault, and so is one of ten adapters.
LEAST_SHARES: Mapping[str, float] = MappingProxyType(
    {
        **dict.fromkeys(("gemm_flops", "device_bytes_per_s", "sm_clock_hz", "host_bytes_per_s"), 0.8),
        "nvlinks": 1.0,
        "network_bits_per_s": 0.9,
    }
)


@dataclass(frozen=True, kw_only=True)
class NodeFigure:
    """The latest figure of one measure on one node. `kind`: what it may be compared with."""

    measure: str
    kind: str
    value: float
    uid: int
    job_id: int
    at_s: float
    #: the check's own time, by which a repeated one is known
    taken_s: float


@dataclass(frozen=True, kw_only=True)
class Shortfall:
    """A figure of a node that falls short of what is usual; `usual` None: the measurement did not end."""

    measure: str
    value: float = 0.0
    usual: float | None = None

    @property
    def share(self) -> float:
        """Return the figure as a share of what is usual."""
        return self.value / self.usual if self.usual else 0.0


def figures_of(
    check: NodeCheck, gpu_type: str, uid: int, job_id: int, now_s: float, *, has_whole_node: bool
) -> tuple[NodeFigure, ...]:
    """Return what a check by a job of user `uid` says of a node with GPUs of `gpu_type`, as Slurm has it.

    Host figures and those of CPUs count only if the job `has_whole_node`: other jobs there would disturb them.
    """
    of_cpus = f"{gpu_type}, {check.cpus} CPUs"
    kinds = {"network_bits_per_s": gpu_type, "host_bytes_per_s": of_cpus}
    if not check.gpus:
        kinds["gemm_flops"] = of_cpus
    return tuple(
        NodeFigure(
            measure=measure,
            kind=kinds.get(measure, f"{gpu_type}, {check.device}"),
            value=value,
            uid=uid,
            job_id=job_id,
            at_s=now_s,
            taken_s=check.taken_s,
        )
        for measure, value in check.figures().items()
        if has_whole_node or kinds.get(measure) != of_cpus
    )


def usual_value(figures: Iterable[NodeFigure], uid: int) -> float | None:
    """Return what is usual for user `uid` by the `figures` of one measure and kind, one a node; None where too few nodes say so."""
    ordered = sorted(figures, key=lambda figure: figure.value)
    medians = []
    for left_out in {figure.uid for figure in ordered} - {uid} | {None}:
        values = [figure.value for figure in ordered if figure.uid != left_out]
        if len(values) < LEAST_NODES:
            return None
        medians.append((values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2)
    return min(medians)


def find_shortfalls(
    figures: Sequence[NodeFigure], usual: Mapping[tuple[str, str], float | None], hung_at: str = ""
) -> tuple[Shortfall, ...]:
    """Return which of a node's `figures` fall short of what is `usual`, by measure and kind, the worst first.

    `hung_at`: the measure that did not end, "" for none.
    """
    short = [Shortfall(measure=hung_at)] if hung_at else []
    for figure in figures:
        expected = usual.get((figure.measure, figure.kind))
        if expected is not None and figure.value < LEAST_SHARES[figure.measure] * expected:
            short.append(Shortfall(measure=figure.measure, value=figure.value, usual=expected))
    return tuple(sorted(short, key=lambda each: each.share))

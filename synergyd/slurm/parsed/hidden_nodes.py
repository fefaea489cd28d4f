"""Cloud nodes that Slurm 22.05 does not show while they are powered down (it does with PrivateData=cloud; from 23.02 on always). Pure.

A partition names all of its nodes. One that was shown once is known from then on, and sleeps while it is not shown. Of one that was
never shown nobody knows what it has: a job that may need such nodes is left to Slurm, which wakes them as for a plain job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from synergyd.records import Cluster, Job, JobState
from synergyd.slurm.parsed.rows import NodeRow, PartitionRow


@dataclass
class HiddenNodes:
    """`shown` is called with each read of the nodes."""

    _met: dict[str, NodeRow] = field(default_factory=dict)
    #: of each partition that has some: nodes that were never shown
    _unknown: dict[str, int] = field(default_factory=dict)

    def shown(self, rows: tuple[NodeRow, ...], partitions: Mapping[str, PartitionRow]) -> tuple[NodeRow, ...]:
        """The rows, with those of nodes that were shown before."""
        names = {row.name for row in rows}
        self._met.update((row.name, row) for row in rows if "cloud" in row.state.split("+"))
        of = {p.name: [name for name in p.nodes if name not in names] for p in partitions.values()}
        self._unknown = {p: n for p, hidden in of.items() if (n := sum(name not in self._met for name in hidden))}
        asleep = {name for hidden in of.values() for name in hidden if name in self._met}
        return (*rows, *(_asleep(self._met[name]) for name in sorted(asleep)))

    def may_need(self, job: Job, cluster: Cluster, partitions: Mapping[str, PartitionRow]) -> str:
        """Why a waiting job is to be left to Slurm, ""."""
        own = [p for p in job.partition.split(",") if p in self._unknown]
        if not own or job.state is not JobState.PENDING:
            return ""
        nodes = [n for n in cluster.nodes if set(own) & set(n.partitions)]
        there = sum(n.gpus for n in nodes)
        totals = [total for p in own if (total := partitions[p].gpus) is not None]
        if totals and max(totals) <= there:
            return ""  # those not shown have no GPUs
        needed = job.asked.gpus if totals else (job.directive.min_gpus if job.directive else None) or 1
        free = (
            sum(n.gpus - n.gpus_used for n in nodes if n.up)
            if totals
            else sum(n.gpus for n in nodes if n.up or n.wakeable)
        )
        if needed <= free:
            return ""
        count = max(self._unknown[p] for p in own)
        return f"its partition has {count} nodes that Slurm does not show while they are powered down"


def _asleep(row: NodeRow) -> NodeRow:
    return replace(row, state="idle+cloud+powered_down", gres_used="", cpus_alloc=0, memory_alloc_mib=0, reason="")

"""Cloud nodes that Slurm 22.05 does not show while they are powered down (it does with PrivateData=cloud; from 23.02 on always). Pure.

A partition names all of its nodes. A node that was shown once is known from then on, and sleeps while it is not shown.
Nobody knows what a node has that was never shown: a job that may need such nodes is left to Slurm, which wakes them as
for a plain job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from synergy_core.records import Cluster, Job, JobState

from synergyd.slurm.parsed.rows import PartitionRow, SlurmNodeRow


@dataclass
class HiddenNodes:
    """The hidden nodes met so far. `with_hidden` is called with each read of the nodes."""

    _rows_by_name: dict[str, SlurmNodeRow] = field(default_factory=dict)
    #: number of nodes that were never shown, by partition that has some
    _unknown: dict[str, int] = field(default_factory=dict)

    def with_hidden(
        self, rows: tuple[SlurmNodeRow, ...], partitions: Mapping[str, PartitionRow]
    ) -> tuple[SlurmNodeRow, ...]:
        """Return the rows, with those of nodes that were shown before."""
        names = {row.name for row in rows}
        self._rows_by_name.update((row.name, row) for row in rows if "cloud" in row.state.split("+"))
        of = {p.name: [name for name in p.nodes if name not in names] for p in partitions.values()}
        self._unknown = {
            p: n
            for p, names_hidden in of.items()
            if (n := sum(name not in self._rows_by_name for name in names_hidden))
        }
        asleep = {name for names_hidden in of.values() for name in names_hidden if name in self._rows_by_name}
        return (*rows, *(_asleep(self._rows_by_name[name]) for name in sorted(asleep)))

    def may_need(self, job: Job, cluster: Cluster, partitions: Mapping[str, PartitionRow]) -> str:
        """Return why a waiting job is to be left to Slurm, or "" if it is not."""
        own = [p for p in job.partition.split(",") if p in self._unknown]
        if not own or job.state is not JobState.PENDING:
            return ""
        nodes = [n for n in cluster.nodes if set(own) & set(n.partitions)]
        there = sum(n.gpus for n in nodes)
        totals = [total for p in own if (total := partitions[p].gpus) is not None]
        if totals and max(totals) <= there:
            return ""  # those not shown have no GPUs
        least_gpus = job.asked.gpus if totals else (job.directive.min_gpus if job.directive else None) or 1
        free = (
            sum(n.gpus - n.gpus_used for n in nodes if n.up)
            if totals
            else sum(n.gpus for n in nodes if n.up or n.wakeable)
        )
        if least_gpus <= free:
            return ""
        count = max(self._unknown[p] for p in own)
        return f"its partition has {count} nodes that Slurm does not show while they are powered down"


def _asleep(row: SlurmNodeRow) -> SlurmNodeRow:
    return replace(row, state="idle+cloud+powered_down", gres_used="", cpus_alloc=0, memory_alloc_mib=0, reason="")

"""Nodes that are kept as spares: lent to jobs that can shrink, and given to a job that has lost a node. Pure.

So many nodes of a partition (or for a QOS) are idle or lent at any time: a job waits where its start would leave fewer. A node is
lent where a job that Synergy may resize holds more GPUs than its smallest size has. A job that Slurm has requeued since a node of
its own failed gets the size that it had: on the nodes that it had left, on idle ones, and on those that others give back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from synergyd.records import Action, Cell, Cluster, Decision, Job, JobState, Node, Snapshot
from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.from_snapshot import UntouchedJob, node_capacities
from synergyd.scheduler.problem.records import JobRequest
from synergyd.scheduler.problem.utility import relative_goodput
from synergyd.settings import Settings
from synergyd.words import job_words, shape_words

Classified = JobRequest | UntouchedJob
_LENT = "lent as a spare"
_LENDERS = 64  # jobs asked for nodes back, for one job that lost one: each is some placements


@dataclass(frozen=True)
class _Group:
    """A partition, or (`qos`) a QOS, and how many nodes are kept for it."""

    name: str
    qos: bool
    nodes: tuple[Node, ...]
    kept: int

    def claims(self, job: Job) -> bool:
        """May the job have its spares?"""
        return job.qos == self.name if self.qos else self.name in job.partition.split(",")

    def words(self) -> str:
        """`1 of the 4 nodes of partition gpu`."""
        where = f"for QOS {self.name}" if self.qos else f"of partition {self.name}"
        return f"{self.kept} of the {len(self.nodes)} nodes {where}"


@dataclass(frozen=True)
class Spared:
    """The epoch with spares given and kept. `left`: by job id, the Cell and nodes of the jobs that give back, and why."""

    snapshot: Snapshot
    jobs: tuple[Classified, ...]
    left: Mapping[int, tuple[Cell, tuple[str, ...]]] = field(default_factory=dict)
    whys: Mapping[int, str] = field(default_factory=dict)

    def named(self, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        """The jobs, with the reason of those that give back."""
        return tuple(replace(j, gives_back=self.whys[j.job_id]) if j.job_id in self.whys else j for j in jobs)


def with_spares(snapshot: Snapshot, jobs: Sequence[Classified], settings: Settings) -> Spared:
    """`jobs`: those of the snapshot, in its order. A job that gets a spare has its start decided; one whose start would take a spare
    waits; one that gives back is decided about as if it had."""
    groups = _groups(snapshot.cluster, settings)
    if not groups:
        return Spared(snapshot, tuple(jobs))
    epoch = _Epoch(snapshot, jobs)
    for job, asking in zip(snapshot.jobs, jobs, strict=True):
        mine = [g for g in groups if g.claims(job)]
        if job.lost and mine and isinstance(asking, JobRequest) and asking.current is None:
            epoch.replace_lost(job, asking, max(mine, key=lambda g: g.kept))
    for group in groups:
        epoch.keep(group)
    return epoch.spared()


def _groups(cluster: Cluster, settings: Settings) -> list[_Group]:
    found = []
    up = [n for n in cluster.by_name.values() if n.gpus > 0 and n.up]
    for names, qos in ((settings.spare_nodes, False), (settings.qos_spare_nodes, True)):
        for name, many in names.items():
            nodes = tuple(n for n in up if qos or name in n.partitions)
            # a share is rounded up: a tenth of four nodes is one
            kept = int(many) if many >= 1 else -int(-many * len(nodes) // 1)
            if kept:
                found.append(_Group(name, qos, nodes, kept))
    return found


class _Epoch:
    """What is found for one job after another."""

    def __init__(self, snapshot: Snapshot, jobs: Iterable[Classified]) -> None:
        self._snapshot, self._jobs = snapshot, list(jobs)
        self._of = {job.job_id: job for job in snapshot.jobs}
        self._index = {job.job_id: i for i, job in enumerate(snapshot.jobs)}
        self._left: dict[int, tuple[Cell, tuple[str, ...]]] = {}
        self._whys: dict[int, str] = {}
        self._started: dict[int, tuple[Cell, tuple[str, ...]]] = {}

    @cached_property
    def _free(self) -> FreeGpus:
        """What nobody holds now."""
        running = [j for j in self._jobs if isinstance(j, JobRequest) and j.current is not None]
        free = FreeGpus(node_capacities(self._snapshot, running))
        for job in running:
            free.take(job.nodes, job.cells[job.current or 0].shape.gpus_per_node, job.needs)
        return free

    def spared(self) -> Spared:
        """All together: what starts with a spare holds its GPUs from now on."""
        taken: dict[str, int] = {}
        for cell, names in self._started.values():
            for name in names:
                taken[name] = taken.get(name, 0) + cell.shape.gpus_per_node
        nodes = tuple(
            replace(n, gpus_used=min(n.gpus, n.gpus_used + taken[n.name])) if n.name in taken else n
            for n in self._snapshot.cluster.nodes
        )
        cluster = Cluster(nodes) if taken else self._snapshot.cluster
        return Spared(replace(self._snapshot, cluster=cluster), tuple(self._jobs), self._left, self._whys)

    # -- a job that lost a node ------------------------------------------------------------------------------------

    def replace_lost(self, job: Job, asking: JobRequest, group: _Group) -> None:
        """Its start at the size that it had, where spares make that possible; nothing else changes."""
        size = job.lost_shape
        cells = [c for c in asking.cells if size is not None and c.shape == size]
        if not cells:
            return
        cell = max(cells, key=lambda c: c.goodput)
        back: dict[int, tuple[int, tuple[str, ...]]] = {}
        names = self._pick(cell, asking)
        for lender in () if names is not None else self._lenders(job.job_id):
            for index in _smaller(lender):
                kept = lender.nodes[: lender.cells[index].shape.nodes]
                freed = [n for n in lender.nodes if n not in kept]
                given = sum(len(self._request(i).nodes) - len(kept_of) for i, (_, kept_of) in back.items())
                if given + len(freed) > group.kept:
                    continue
                self._move(lender, index, kept, 1)
                names = self._pick(cell, asking)
                if names is not None:
                    back[lender.job_id] = index, kept
                    break
                self._move(lender, index, kept, -1)
            else:
                self._take_part(lender, group, back)
                names = self._pick(cell, asking)
            if names is not None:
                break
        if names is None:
            for job_id, (index, kept) in back.items():
                self._move(self._request(job_id), index, kept, -1)
            return
        self._start(job, asking, cell, names, group, back)

    def _take_part(self, lender: JobRequest, group: _Group, back: dict[int, tuple[int, tuple[str, ...]]]) -> None:
        """What one job can give is too little: its smallest size, and others beside it."""
        given = sum(len(self._request(i).nodes) - len(kept_of) for i, (_, kept_of) in back.items())
        index = CellIndex.of(lender.cells).smallest
        kept = lender.nodes[: lender.cells[index].shape.nodes]
        if index in _smaller(lender) and given + len(lender.nodes) - len(kept) <= group.kept:
            self._move(lender, index, kept, 1)
            back[lender.job_id] = index, kept

    def _start(
        self,
        job: Job,
        asking: JobRequest,
        cell: Cell,
        names: tuple[str, ...],
        group: _Group,
        back: Mapping[int, tuple[int, tuple[str, ...]]],
    ) -> None:
        self._free.take(names, cell.shape.gpus_per_node, asking.needs)
        lost = ", ".join(job.lost[:3])
        given = f", which {job_words(sorted(back))} give{'s' * (len(back) == 1)} back" if back else ""
        why = f"Starts on {shape_words(cell.shape, names)}, as before it lost {lost}, with a spare node ({group.words()} are kept){given}."
        relative = relative_goodput(cell, asking.cells, asking.asked)
        self._started[job.job_id] = cell, names
        self._set(job.job_id, UntouchedJob(Action.START, why, cell, _hosts(names), relative))
        for job_id, (index, kept) in back.items():
            lender = self._request(job_id)
            self._left[job_id] = lender.cells[index], _hosts(kept)
            self._whys[job_id] = f"{_LENT}, and job {job.job_id} has lost {lost}"
            self._set(job_id, replace(lender, current=index, nodes=kept, banned=lender.banned - {index}))

    def _pick(self, cell: Cell, asking: JobRequest) -> tuple[str, ...] | None:
        return self._free.pick(cell.shape, asking.node_filter, (), None, asking.needs, asking.shun)

    def _lenders(self, job_id: int) -> list[JobRequest]:
        """The running jobs that can give GPUs back, those that would lose least first."""
        able = [j for j in self._jobs if isinstance(j, JobRequest) and j.job_id not in self._left and _smaller(j)]
        able = [j for j in able if j.discount > 0 and j.job_id != job_id]
        return sorted(able, key=lambda j: (j.weight, -j.gpus(j.current), j.job_id))[:_LENDERS]

    def _move(self, lender: JobRequest, index: int, kept: tuple[str, ...], sign: int) -> None:
        """Frees what the job has beyond its Cell `index` on `kept`; `sign` -1: takes it again."""
        held, then = lender.cells[lender.current or 0].shape, lender.cells[index].shape
        if sign > 0:
            self._free.give(lender.nodes, held.gpus_per_node, lender.needs)
            self._free.take(kept, then.gpus_per_node, lender.needs)
        else:
            self._free.give(kept, then.gpus_per_node, lender.needs)
            self._free.take(lender.nodes, held.gpus_per_node, lender.needs)

    # -- spares are kept -------------------------------------------------------------------------------------------

    def keep(self, group: _Group) -> None:
        """Waiting jobs whose start would leave too few spares wait, the first in the queue last."""
        names = {n.name for n in group.nodes}
        each = max((n.gpus for n in group.nodes), default=0)
        room = sum(n.gpus - n.gpus_used for n in group.nodes) - group.kept * each
        room += sum(self._lent(j, names) for j in self._jobs if isinstance(j, JobRequest))
        room -= sum(c.shape.gpus_per_node * len(names.intersection(some)) for c, some in self._started.values())
        waiting = [j for j in self._jobs if isinstance(j, JobRequest) and j.current is None]
        for asking in sorted(waiting, key=lambda j: (-j.weight, j.submit_s)):
            job = self._of[asking.job_id]
            if not (group.qos or group.claims(job)):
                continue
            least = asking.cells[CellIndex.of(asking.cells).smallest].shape.gpus
            others = asking.node_filter.partition.split(",") if not group.qos else []
            others = [name for name in others if name != group.name]
            if least <= room:
                room -= least
            elif others:
                elsewhere = asking.node_filter._replace(partition=",".join(others))
                self._set(asking.job_id, replace(asking, node_filter=elsewhere))
            else:
                self._set(asking.job_id, UntouchedJob(Action.WAIT, _waits(least, group, each)))

    def _lent(self, asking: JobRequest, names: set[str]) -> int:
        """GPUs on these nodes that the job holds beyond its smallest size. One that may not be resized just now may be soon."""
        job = self._of[asking.job_id]
        if job.state is not JobState.RUNNING or asking.current is None:
            return 0
        there = len(names.intersection(job.node_names))
        least = asking.cells[CellIndex.of(asking.cells).smallest].shape.gpus
        return max(0, min(job.shape.gpus - least, there * job.shape.gpus_per_node))

    def _request(self, job_id: int) -> JobRequest:
        found = self._jobs[self._index[job_id]]
        assert isinstance(found, JobRequest)  # who gives back runs
        return found

    def _set(self, job_id: int, to: Classified) -> None:
        self._jobs[self._index[job_id]] = to


def lent_words(decision: Decision) -> str:
    """Why the job gives a spare back; "" where it does not."""
    return decision.why.partition(": ")[2].partition(".")[0] if f": {_LENT}" in decision.why else ""


def _smaller(job: JobRequest) -> list[int]:
    """Indices of its Cells that fit on a part of what it holds, the best first."""
    if job.current is None:
        return []
    held = job.cells[job.current].shape
    fits = [
        i
        for i, c in enumerate(job.cells)
        if c.shape.gpu_type == held.gpu_type
        and c.shape.gpus < held.gpus
        and c.shape.nodes <= len(job.nodes)
        and c.shape.gpus_per_node <= held.gpus_per_node
    ]
    return sorted(fits, key=lambda i: -job.cells[i].goodput)


def _waits(least: int, group: _Group, each: int) -> str:
    never = least > (len(group.nodes) - group.kept) * each
    words = "Can't start" if never else "Waits"
    return (
        f"{words}: with its {least} GPU{'s' * (least != 1)} fewer than {group.words()} would be idle or lent as spares."
    )


def _hosts(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.partition(":")[0] for name in names)

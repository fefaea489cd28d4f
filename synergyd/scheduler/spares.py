"""Nodes that are kept as spares: lent to jobs that can shrink, and given to a job that has lost a node. Pure.

A set number of nodes of a partition (or for a QOS) is idle or lent at any time: a job waits where its start would leave fewer.
A node is lent where a job that Synergy may resize holds more GPUs than its smallest size has. A job that Slurm has requeued
because a node of its own failed gets the size that it had: on the nodes that it had left, on idle ones, and on those that
others give back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from synergy_core.formatting import format_shape
from synergy_core.reasons import Reason
from synergy_core.records import Action, Cell, Cluster, Job, JobState, Node, Snapshot

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.from_snapshot import UntouchedJob, node_capacities
from synergyd.scheduler.problem.gpu_limits import NO_SLURM_LIMITS, SlurmLimits, usage_limits, with_own_limits
from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, UsageLimit
from synergyd.scheduler.problem.rules import LimitRules, SpareRules
from synergyd.scheduler.problem.utility import relative_goodput

Classified = JobRequest | UntouchedJob
_EXACT = 1e-6  # sums of floats, as in gpu_limits.py
_LENDERS = 64  # jobs asked for nodes back, for one job that lost one: each is some placements


@dataclass(frozen=True)
class _Group:
    """A partition, or (`qos`) a QOS, and how many nodes are kept for it."""

    name: str
    qos: bool
    nodes: tuple[Node, ...]
    kept_spares: int

    @property
    def each(self) -> int:
        """Return the number of GPUs of the group's largest node."""
        return max((n.gpus for n in self.nodes), default=0)

    def claims(self, job: Job) -> bool:
        """Return whether the job may have the group's spares."""
        return job.qos == self.name if self.qos else self.name in job.partition.split(",")

    def words(self) -> str:
        """Return the group in words: `1 of the 4 nodes of partition gpu`."""
        where = f"for QOS {self.name}" if self.qos else f"of partition {self.name}"
        return f"{self.kept_spares} of the {len(self.nodes)} nodes {where}"


@dataclass(frozen=True)
class SparesPlan:
    """The epoch with spares given and kept. `remaining_cells`: by job id, the Cell and nodes of the jobs that give back, and why."""

    snapshot: Snapshot
    jobs: tuple[Classified, ...]
    remaining_cells: Mapping[int, tuple[Cell, tuple[str, ...]]] = field(default_factory=dict)
    reasons: Mapping[int, Reason] = field(default_factory=dict)


def with_spares(
    snapshot: Snapshot,
    jobs: Sequence[Classified],
    rules: SpareRules,
    limits: LimitRules,
    slurm: SlurmLimits = NO_SLURM_LIMITS,
) -> SparesPlan:
    """Return the epoch with spares given and kept.

    `jobs`: those of the snapshot, in its order. A job that gets a spare has its start decided; one whose start would take a
    spare waits; one that gives back is decided about as if it had. `slurm`: limits that a job with a spare is held to, too.
    """
    groups = _groups(snapshot.cluster, rules)
    if not groups:
        return SparesPlan(snapshot, tuple(jobs))
    epoch = _Epoch(snapshot, jobs, limits, slurm)
    for job, asking in zip(snapshot.jobs, jobs, strict=True):
        mine = [g for g in groups if g.claims(job)]
        if job.lost and mine and isinstance(asking, JobRequest) and asking.current is None:
            epoch.start_on_spares(job, asking, max(mine, key=lambda g: g.kept_spares))
    for group in groups:
        epoch.keep(group)
    return epoch.assign_spares()


def _groups(cluster: Cluster, rules: SpareRules) -> list[_Group]:
    groups = []
    up = [n for n in cluster.by_name.values() if n.gpus > 0 and n.up]
    for names, qos in ((rules.spare_nodes, False), (rules.qos_spare_nodes, True)):
        for name, many in names.items():
            nodes = tuple(n for n in up if qos or name in n.partitions)
            # a share is rounded up: a tenth of four nodes is one
            count = int(many) if many >= 1 else -int(-many * len(nodes) // 1)
            if count:
                groups.append(_Group(name, qos, nodes, count))
    return groups


class _Epoch:
    """The changes for spares so far, as one job after another is looked at."""

    def __init__(self, snapshot: Snapshot, jobs: Iterable[Classified], rules: LimitRules, slurm: SlurmLimits) -> None:
        self._snapshot, self._jobs, self._rules, self._slurm = snapshot, list(jobs), rules, slurm
        self._of = {job.job_id: job for job in snapshot.jobs}
        self._index = {job.job_id: i for i, job in enumerate(snapshot.jobs)}
        self._left: dict[int, tuple[Cell, tuple[str, ...]]] = {}
        self._reasons: dict[int, Reason] = {}
        self._started: dict[int, tuple[Cell, tuple[str, ...]]] = {}
        self._given: dict[tuple[str, bool], int] = {}  # GPUs given back so far, by the group's name and kind

    @cached_property
    def _capacities(self) -> dict[str, NodeCapacity]:
        running = [j for j in self._jobs if isinstance(j, JobRequest) and j.current is not None]
        return {node.name: node for node in node_capacities(self._snapshot, running)}

    @cached_property
    def _free(self) -> FreeGpus:
        """Return the GPUs that no job holds now."""
        free = FreeGpus(self._capacities.values())
        for job in self._jobs:
            if isinstance(job, JobRequest) and job.current is not None:
                free.take(job.nodes, job.cells[job.current].shape.gpus_per_node, job.needs)
        return free

    @cached_property
    def _limits(self) -> tuple[tuple[UsageLimit, ...], list[float]]:
        """Return (the limits of accounts, partitions and Slurm, what the jobs use of each)."""
        jobs = [j for j in self._jobs if isinstance(j, JobRequest)]
        limits = usage_limits(jobs, self._snapshot.jobs, self._rules, self._slurm)
        return limits, [sum(limit.use(job, job.current) for job in jobs) for limit in limits]

    def assign_spares(self) -> SparesPlan:
        """Return the epoch with spares given and kept, where jobs that start with a spare hold its GPUs from now on."""
        gpus_by_node: dict[str, int] = {}
        for cell, names in self._started.values():
            for name in names:
                gpus_by_node[name] = gpus_by_node.get(name, 0) + cell.shape.gpus_per_node
        nodes = tuple(
            replace(n, gpus_used=min(n.gpus, n.gpus_used + gpus_by_node[n.name])) if n.name in gpus_by_node else n
            for n in self._snapshot.cluster.nodes
        )
        if not gpus_by_node:
            return SparesPlan(self._snapshot, tuple(self._jobs), self._left, self._reasons)
        jobs = tuple(self._with_running_state(job) for job in self._snapshot.jobs)
        snapshot = replace(self._snapshot, cluster=Cluster(nodes), jobs=jobs)
        return SparesPlan(snapshot, tuple(self._jobs), self._left, self._reasons)

    def _with_running_state(self, job: Job) -> Job:
        """Return the job as running if it starts with a spare: it counts in limits as a running job does."""
        if job.job_id not in self._started:
            return job
        cell, names = self._started[job.job_id]
        return replace(job, state=JobState.RUNNING, shape=cell.shape, node_names=_hosts(names))

    # -- a job that lost a node ------------------------------------------------------------------------------------

    def start_on_spares(self, job: Job, asking: JobRequest, group: _Group) -> None:
        """Start the job at the size that it had, where spares make that possible; nothing else changes."""
        size = job.lost_shape
        banned = with_own_limits((asking,), self._slurm)[0].banned_cells
        fits = [i for i, c in enumerate(asking.cells) if c.shape == size and i not in banned]
        if not fits:
            return
        want = max(fits, key=lambda i: asking.cells[i].goodput)
        back: dict[int, tuple[int, tuple[str, ...]]] = {}
        names = self._pick(want, asking, back)
        spares = group.kept_spares * group.each - self._given.get((group.name, group.qos), 0)
        for lender in () if names is not None else self._lenders(asking.cells[want], asking):
            most = spares - sum(self._gives(self._request(i), x) for i, (x, _) in back.items())
            smaller = [i for i in _smaller(lender) if self._gives(lender, i) <= most]
            for index in smaller:
                self._lend(lender, index, back)
                names = self._pick(want, asking, back)
                if names is not None:
                    break
                self._unlend(lender, back)
            else:
                # one job alone can't give enough: take its smallest size, and others beside it
                if (least := CellIndex.build(lender.cells).smallest) in smaller:
                    self._lend(lender, least, back)
                    names = self._pick(want, asking, back)
            if names is not None:
                break
        for job_id, (index, _) in list(back.items()):  # no job gives back what is not needed
            self._unlend(self._request(job_id), back)
            without = None if names is None else self._pick(want, asking, back)
            if names is not None and without is None:
                self._lend(self._request(job_id), index, back)
            names = without or names
        if names is not None:
            self._start(job, asking, want, names, group, back)

    def _gives(self, lender: JobRequest, index: int) -> int:
        """Return the number of GPUs that the lender gives back with its Cell `index`."""
        return lender.gpus(lender.current) - lender.gpus(index)

    def _lend(self, lender: JobRequest, index: int, back: dict[int, tuple[int, tuple[str, ...]]]) -> None:
        nodes = lender.nodes[: lender.cells[index].shape.nodes]
        self._move(lender, index, nodes, 1)
        back[lender.job_id] = index, nodes

    def _unlend(self, lender: JobRequest, back: dict[int, tuple[int, tuple[str, ...]]]) -> None:
        self._move(lender, *back.pop(lender.job_id), -1)

    def _start(
        self,
        job: Job,
        asking: JobRequest,
        want: int,
        names: tuple[str, ...],
        group: _Group,
        back: Mapping[int, tuple[int, tuple[str, ...]]],
    ) -> None:
        cell, (limits, use) = asking.cells[want], self._limits
        use[:] = [self._used_amount(n, asking, want, back) for n in range(len(limits))]
        self._free.take(names, cell.shape.gpus_per_node, asking.needs)
        lost_nodes = ", ".join(job.lost[:3])
        fields = {
            "size": format_shape(cell.shape, names),
            "lost": lost_nodes,
            "kept": group.words(),
            "jobs": sorted(back),
        }
        why = Reason("spare-start-lent" if back else "spare-start", {**fields, "s": "s" * (len(back) == 1)})
        relative = relative_goodput(cell, asking.cells, asking.requested_cell)
        self._started[job.job_id] = cell, names
        kind, given_gpus = (group.name, group.qos), sum(self._gives(self._request(i), x) for i, (x, _) in back.items())
        self._given[kind] = self._given.get(kind, 0) + given_gpus
        self._set(job.job_id, UntouchedJob(Action.START, why, cell, _hosts(names), relative))
        for job_id, (index, nodes) in back.items():
            lender = self._request(job_id)
            self._left[job_id] = lender.cells[index], _hosts(nodes)
            self._reasons[job_id] = Reason("lent-spare", {"jobs": [job.job_id], "lost": lost_nodes})
            self._set(job_id, replace(lender, current=index, nodes=nodes, banned_cells=lender.banned_cells - {index}))

    def _pick(
        self, want: int, asking: JobRequest, back: Mapping[int, tuple[int, tuple[str, ...]]]
    ) -> tuple[str, ...] | None:
        """Return nodes for the job's Cell `want`, within all limits, where the jobs of `back` have given back."""
        if any(
            self._used_amount(n, asking, want, back) > limit.most + _EXACT for n, limit in enumerate(self._limits[0])
        ):
            return None
        shape = asking.cells[want].shape
        return self._free.pick(shape, asking.node_filter, (), None, asking.needs, asking.shun)

    def _used_amount(
        self, n: int, asking: JobRequest, want: int, back: Mapping[int, tuple[int, tuple[str, ...]]]
    ) -> float:
        """Return how much of limit `n` all jobs use then."""
        limit, use = self._limits[0][n], self._limits[1][n]
        lenders = [(self._request(job_id), index) for job_id, (index, _) in back.items()]
        freed = sum(limit.use(lender, lender.current) - limit.use(lender, index) for lender, index in lenders)
        return use + limit.use(asking, want) - freed

    def _lenders(self, cell: Cell, asking: JobRequest) -> list[JobRequest]:
        """Return the running jobs that can give GPUs back which the job may use, those that would lose least first."""
        able = [j for j in self._jobs if isinstance(j, JobRequest) and j.job_id not in self._left and _smaller(j)]
        able = [j for j in able if j.discount > 0 and j.job_id != asking.job_id]
        able = [j for j in able if any(self._of_use(name, cell, asking) for name in j.nodes)]
        return sorted(able, key=lambda j: (j.weight, -j.gpus(j.current), j.job_id))[:_LENDERS]

    def _of_use(self, name: str, cell: Cell, asking: JobRequest) -> bool:
        node = self._capacities.get(name)
        return node is not None and node.gpu_type == cell.shape.gpu_type and node.admits(asking.node_filter)

    def _move(self, lender: JobRequest, index: int, nodes: tuple[str, ...], sign: int) -> None:
        """Free what the job has beyond its Cell `index` on `nodes`. With `sign` -1, take it again."""
        present_shape, then = lender.cells[lender.current or 0].shape, lender.cells[index].shape
        if sign > 0:
            self._free.give(lender.nodes, present_shape.gpus_per_node, lender.needs)
            self._free.take(nodes, then.gpus_per_node, lender.needs)
        else:
            self._free.give(nodes, then.gpus_per_node, lender.needs)
            self._free.take(lender.nodes, present_shape.gpus_per_node, lender.needs)

    # -- spares are kept -------------------------------------------------------------------------------------------

    def keep(self, group: _Group) -> None:
        """Let jobs wait whose start would leave too few spares, the first in the queue last."""
        names = {n.name for n in group.nodes}
        each = group.each
        room = sum(n.gpus - n.gpus_used for n in group.nodes) - group.kept_spares * each
        room += sum(self._gpus_beyond_smallest(j, names) for j in self._jobs if isinstance(j, JobRequest))
        room -= sum(c.shape.gpus_per_node * len(names.intersection(some)) for c, some in self._started.values())
        waiting = [j for j in self._jobs if isinstance(j, JobRequest) and j.current is None]
        for asking in sorted(waiting, key=lambda j: (-j.weight, j.submit_s)):
            job = self._of[asking.job_id]
            if not (group.qos or group.claims(job)):
                continue
            least = asking.cells[CellIndex.build(asking.cells).smallest].shape.gpus
            others = asking.node_filter.partition.split(",") if not group.qos else []
            others = [name for name in others if name != group.name]
            if least <= room:
                room -= least
            elif others:
                elsewhere = asking.node_filter._replace(partition=",".join(others))
                self._set(asking.job_id, replace(asking, node_filter=elsewhere))
            else:
                self._set(asking.job_id, UntouchedJob(Action.WAIT, _waits(least, group, each)))

    def _gpus_beyond_smallest(self, asking: JobRequest, names: set[str]) -> int:
        """Return the number of GPUs on these nodes that the job holds beyond its smallest size.

        One that may not be resized just now may be soon.
        """
        job = self._of[asking.job_id]
        if job.state is not JobState.RUNNING or asking.current is None:
            return 0
        there = len(names.intersection(job.node_names))
        least = asking.cells[CellIndex.build(asking.cells).smallest].shape.gpus
        return max(0, min(job.shape.gpus - least, there * job.shape.gpus_per_node))

    def _request(self, job_id: int) -> JobRequest:
        job = self._jobs[self._index[job_id]]
        assert isinstance(job, JobRequest)  # a job that gives back runs
        return job

    def _set(self, job_id: int, to: Classified) -> None:
        self._jobs[self._index[job_id]] = to


def _smaller(job: JobRequest) -> list[int]:
    """Return the indices of the job's Cells that fit on a part of what it holds, the best first."""
    if job.current is None:
        return []
    present_shape = job.cells[job.current].shape
    fits = [
        i
        for i, c in enumerate(job.cells)
        if c.shape.gpus < present_shape.gpus and c.shape.is_inside(present_shape, len(job.nodes))
    ]
    return sorted(fits, key=lambda i: -job.cells[i].goodput)


def _waits(least: int, group: _Group, each: int) -> Reason:
    never = least > (len(group.nodes) - group.kept_spares) * each
    fields = {"waits": "Can't start" if never else "Waits", "s": "s" * (least != 1)}
    return Reason("spares-kept", {"gpus": least, "kept": group.words(), **fields})


def _hosts(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.partition(":")[0] for name in names)

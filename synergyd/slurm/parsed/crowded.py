"""Jobs that Synergy does not decide about and that wait for GPUs. Pure.

Nobody grows beyond the size asked for where they wait, and running jobs give back what they have beyond it.

A running job gives back only where that lets one of them start: as Slurm would start them, in their order, on the nodes that
each may use.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from synergy_core.constraint import has_features
from synergy_core.node_needs import NodeNeeds, Room
from synergy_core.records import Job, JobState, Node

from synergyd.slurm.parsed.needs import needs_of
from synergyd.slurm.parsed.rows import JobRow, PartitionRow, parse_gpus

#: Slurm has looked at the job, and others hold what it asks for
LOOKED_AT = frozenset(("Resources", "Priority"))
_WAITING = LOOKED_AT | {"None", ""}
_NO_LISTS: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@dataclass(frozen=True)
class CrowdedPlaces:
    """The places where such jobs wait: `partitions` and `accounts`.

    `keeps`: by job id, the nodes that a running job keeps if giving the others back lets one of them start.
    `full_accounts`: accounts whose own jobs fill a limit, for an epoch at least.
    """

    partitions: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    keeps: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    full_accounts: frozenset[str] = frozenset()

    def why(self, job: Job) -> str:
        """Return why the job may have no more than it asked for, or "" if it may."""
        if self.partitions & set(job.partition.split(",")):
            return "jobs that Synergy does not decide about wait for GPUs in its partition"
        return "jobs of its account wait for what a limit leaves to it" if job.account in self.accounts else ""

    def is_of_use(self, job: Job) -> bool:
        """Return whether one of the waiting jobs starts if this running job gives back what it did not ask for."""
        return job.account in self.full_accounts or job.job_id in self.keeps


def find_waiting_jobs(rows: Iterable[JobRow], ours: Container[int]) -> list[JobRow]:
    """Return the pending jobs with GPUs that are neither held nor Synergy's, in the order in which Slurm takes them."""
    plain = (
        r
        for r in rows
        if r.job_id not in ours and r.state == "PENDING" and r.priority > 0
        if parse_gpus(r.tres_per_node)[1] or parse_gpus(r.tres_other)[1]
    )
    return sorted(plain, key=lambda r: (-r.priority, r.submit_s, r.job_id))


def wait_reason(row: JobRow) -> str:
    return row.reason.strip("()")


def find_crowded(waiting: Iterable[JobRow], nodes: Iterable[Node], ready: Container[int]) -> CrowdedPlaces:
    """Return where jobs wait that Synergy does not decide about.

    `ready`: jobs whose reason has stood for an epoch at least.
    """
    partition_types, accounts, full_accounts = (
        set[tuple[str, str]](),
        set[str](),
        set[str](),
    )  # partitions and GPU type ("": any)
    for r in waiting:
        if wait_reason(r) in _WAITING:
            kind = parse_gpus(r.tres_per_node)[0] or parse_gpus(r.tres_other)[0]
            partition_types.update((name, kind) for name in r.partition.split(","))
        elif is_filled_now(wait_reason(r)) and r.account:
            accounts.add(r.account)
            full_accounts |= {r.account} if r.job_id in ready else set()
    partitions = {name for name, _ in partition_types}
    for node in nodes if partition_types else ():
        if any((p, kind) in partition_types for p in node.partitions for kind in ("", node.gpu_type)):
            partitions.update(node.partitions)
    return CrowdedPlaces(frozenset(partitions), frozenset(accounts), full_accounts=frozenset(full_accounts))


def is_filled_now(reason: str) -> bool:
    """Return whether Slurm's reason names a limit of an account that is free again as soon as its running jobs have less.

    A budget of minutes that is used up is not.
    """
    used_up = "Wall" in reason or ("Minutes" in reason and "RunMinutes" not in reason)
    return reason.startswith("AssocGrp") and "Jobs" not in reason and not used_up


def can_use(row: JobRow, names: Collection[str], nodes: Iterable[Node]) -> bool:
    """Return whether the waiting job may have one of the nodes `names`, as far as partition, GPU type, features and --nodelist tell."""
    return any(n.name in names and _may_have(row, n, _NO_LISTS) for n in nodes)


def least_kept_gpus(job: Job) -> int:
    """Return the GPUs that a job keeps at the least while others wait."""
    return max(job.asked.gpus, (job.directive.min_gpus if job.directive else None) or 1)


def limit_to_requested_size(job: Job, why: str, keeps: tuple[str, ...] | None = ()) -> Job:
    """Return the job as it is while others wait (`why`): at most the size it asked for.

    It gives back what it runs on beyond that, on all nodes but those of `keeps` (empty: any). If `keeps` is None it
    keeps that, as it would be of no use to them.
    """
    if job.directive is None:
        return job
    most = least_kept_gpus(job)
    beyond = job.state is JobState.RUNNING and job.shape.gpus > most
    if beyond and keeps is None:
        most = job.shape.gpus
    directive = replace(job.directive, max_gpus=min(most, job.directive.max_gpus or most))
    if not beyond or keeps is None:
        return replace(job, directive=directive)
    return replace(job, directive=directive, gives_back=why, keeps=keeps)


# -- who gives back ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Holder:
    """A running job with more than it asked for: it may keep `each` GPUs on `many` of its nodes."""

    job: Job
    many: int
    each: int

    def keeps(self, nodes_to_free: Container[str]) -> tuple[str, ...]:
        """Return the nodes that the job keeps if the `nodes_to_free` ones are to be given back."""
        names = sorted(self.job.node_names, key=lambda name: name in nodes_to_free)[: self.many]
        return tuple(name for name in self.job.node_names if name in names)

    def frees(self, name: str, keeps: Container[str]) -> int:
        """Return the GPUs that the job gives back on a node of its own."""
        return self.job.shape.gpus_per_node - (self.each if name in keeps else 0)


def find_holders(jobs: Iterable[Job]) -> list[_Holder]:
    """Return the running jobs that Synergy may shrink to the size asked for."""
    able = []
    for job in jobs:
        most, present = least_kept_gpus(job), job.shape
        may = job.directive is not None and job.directive.resize and not (job.fixed or job.paused or job.gives_back)
        if job.state is JobState.RUNNING and may and present.gpus > most > 0 and job.node_names:
            many = -(-most // present.gpus_per_node)
            able.append(_Holder(job, many, most // many))
    return able


def who_gives_back(
    waiting: Sequence[JobRow],
    holders: Sequence[_Holder],
    nodes: Sequence[Node],
    lists: Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]],
    partitions: Mapping[str, PartitionRow],
    now_s: float,
    exempt: Container[str] = (),
) -> dict[int, tuple[str, ...]]:
    """Return by job id the nodes that each job keeps that gives back the others.

    `waiting` in Slurm's order; `lists`: their (ReqNodeList, ExcNodeList); `exempt`: nodes of reservations. A job
    that can't start even so makes those behind it in its partitions wait, except for jobs that end before Slurm
    expects to start it.
    """
    stock = _Stock([n for n in nodes if n.up and n.name not in exempt])
    giving: dict[int, tuple[str, ...]] = {}
    not_before_s: dict[str, float] = {}
    for row in waiting:
        if row.reservation or (row.licenses and wait_reason(row) != "Resources"):
            continue  # whether these would let it start nobody knows
        names = row.partition.split(",")
        most_s = math.inf if row.time_limit_s is None else row.time_limit_s
        open_names = [p for p in names if now_s + most_s <= not_before_s.get(p, math.inf)]
        limits = [partitions[p] for p in open_names if p in partitions]
        asks = replace(row, partition=",".join(open_names))
        free = [h for h in holders if h.job.job_id not in giving]
        needs = needs_of(row, row.num_cpus // max(1, row.num_nodes), limits)
        places = stock.place(asks, needs, free, lists.get(row.job_id, _NO_LISTS))
        if places is None:
            begins_s = row.start_s if row.start_s is not None and row.start_s > now_s else now_s
            not_before_s.update({p: min(begins_s, not_before_s.get(p, math.inf)) for p in names})
        else:
            giving.update(places)
    return giving


class _Stock:
    """The free GPUs, and what else there is, of each node, as jobs are placed one after another."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._free = {self._key(n): n.gpus - n.gpus_used for n in nodes}
        self._room = {n.name: n.room.plus(n.used, -1) for n in nodes if n.room is not None}

    def place(
        self, row: JobRow, needs: NodeNeeds, holders: Sequence[_Holder], lists: tuple[tuple[str, ...], tuple[str, ...]]
    ) -> dict[int, tuple[str, ...]] | None:
        """Take what the job asks for.

        Return what each of the `holders` keeps that gives back for that, or None if the job can't start.
        """
        per_node, nodes = parse_gpus(row.tres_per_node)[1], max(1, row.num_nodes)
        gpus = per_node or -(-parse_gpus(row.tres_other)[1] // nodes)
        nodes_for_row = [n for n in self._nodes if _may_have(row, n, lists)]
        names = {n.name for n in nodes_for_row}
        keeps = {h.job.job_id: h.keeps(names) for h in holders}
        on: defaultdict[tuple[str, str], list[_Holder]] = defaultdict(list)
        for holder in holders:
            for name in holder.job.node_names:
                if holder.frees(name, keeps[holder.job.job_id]):
                    on[name, holder.job.shape.gpu_type].append(holder)
        fits: list[tuple[bool, int, int, list[_Holder]]] = []
        for i, node in enumerate(nodes_for_row):
            givers = self._givers(node, gpus, needs, on[self._key(node)], keeps)
            if givers is not None:
                fits.append((node.name not in lists[0], len(givers), i, givers))
        best = sorted(fits, key=lambda fit: fit[:3])[:nodes]
        if len(best) < nodes or not set(lists[0]) <= {nodes_for_row[i].name for _, _, i, _ in best}:
            return None
        giving = {h.job.job_id: h for *_, givers in best for h in givers}
        for holder in giving.values():
            self._give(holder, keeps[holder.job.job_id])
        for _, _, i, _ in best:
            node = nodes_for_row[i]
            self._free[self._key(node)] -= gpus
            if node.room is not None:
                room = needs.room_for(gpus, node.threads_per_core, node.room.memory_mib)
                self._room[node.name] = self._room[node.name].plus(room, -1)
        return {job_id: keeps[job_id] for job_id in giving}

    def _givers(
        self,
        node: Node,
        gpus: int,
        needs: NodeNeeds,
        holders: Sequence[_Holder],
        keeps: Mapping[int, tuple[str, ...]],
    ) -> list[_Holder] | None:
        """Return the fewest of the holders that have to give back for so many GPUs of the node, or None if all are too few."""
        free, room, givers = self._free[self._key(node)], self._room.get(node.name), list[_Holder]()
        others = sorted(holders, key=lambda h: -h.frees(node.name, keeps[h.job.job_id]))
        while free < gpus or not _holds(node, room, needs, gpus):
            if not others:
                return None
            holder = others.pop(0)
            givers.append(holder)
            free += holder.frees(node.name, keeps[holder.job.job_id])
            room = None if room is None else room.plus(_freed_room(holder, node, keeps[holder.job.job_id]))
        return givers

    def _give(self, holder: _Holder, keeps: tuple[str, ...]) -> None:
        for node in self._nodes:
            if node.name in holder.job.node_names and node.gpu_type == holder.job.shape.gpu_type:
                self._free[self._key(node)] += holder.frees(node.name, keeps)
                if node.name in self._room:
                    self._room[node.name] = self._room[node.name].plus(_freed_room(holder, node, keeps))

    @staticmethod
    def _key(node: Node) -> tuple[str, str]:
        return node.name, node.gpu_type


def _freed_room(holder: _Holder, node: Node, keeps: Container[str]) -> Room:
    """Return what goes with the GPUs that the holder gives back on the node."""
    threads, memory = node.threads_per_core, node.room.memory_mib if node.room is not None else 0
    before = holder.job.needs.room_for(holder.job.shape.gpus_per_node, threads, memory)
    return before.plus(holder.job.needs.room_for(holder.each, threads, memory), -1) if node.name in keeps else before


def _holds(node: Node, room: Room | None, needs: NodeNeeds, gpus: int) -> bool:
    if room is None or node.room is None:
        return True
    if needs.whole_nodes:
        return room == node.room
    return room.has_room_for(needs.room_for(gpus, node.threads_per_core, node.room.memory_mib))


def _may_have(row: JobRow, node: Node, lists: tuple[tuple[str, ...], tuple[str, ...]]) -> bool:
    """Return whether the waiting job may have this node, whoever holds it now."""
    kind = parse_gpus(row.tres_per_node)[0] or parse_gpus(row.tres_other)[0]
    required_nodes = lists[0] or row.req_nodes
    return (
        node.gpus > 0
        and (not kind or kind == node.gpu_type)
        and not set(row.partition.split(",")).isdisjoint(node.partitions)
        and node.name not in lists[1]
        # with --nodelist, a job may have other nodes only if it asks for more than the list names
        and (not required_nodes or node.name in required_nodes or row.num_nodes > len(required_nodes))
        and has_features(row.features, node.features)
    )

"""The state that a requeue depends on, read anew just before it: a job that would not start again at once goes on as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from synergy_core.formatting import format_names
from synergy_core.records import Cluster, Job

from synergyd.control.controller import Controller
from synergyd.control.resize.gpus_free import has_cpus
from synergyd.control.resize.instructions import Requeue, Target
from synergyd.control.state.time_view import START_S, Reservation
from synergyd.daemon.account_limits import describe_use
from synergyd.daemon.observer import Observer
from synergyd.scheduler.problem.gpu_limits import find_exceeded_limit
from synergyd.slurm.actuator import NoPlaceError, PlaceCheck
from synergyd.slurm.parsed.crowded import can_use, find_waiting_jobs
from synergyd.slurm.parsed.reservations import read_reservations, read_shields
from synergyd.slurm.parsed.rows import JobRow, parse_gpus


@dataclass(frozen=True)
class RestartPlace(PlaceCheck):
    """The check of a job's place before its requeue. It makes at most seven calls to Slurm for a requeue, a few milliseconds each."""

    observer: Observer
    controller: Controller
    clock: Callable[[], float]

    def conflict(self, requeue: Requeue) -> str:
        """Return which other job that is being restarted has one of the nodes kept for it. Raises SlurmError.

        The reservations themselves are read: two jobs that were put off for a third one's do not wait for each other.
        """
        for shield in read_shields(self.observer.writer.reservations()):
            if shield.job_id != requeue.job_id and (shared := shield.nodes.intersection(requeue.shield)):
                return f"{format_names(sorted(shared))} kept for a job that is started again"
        return ""

    def obstacle(self, requeue: Requeue, row: JobRow, unshielded: str) -> str:
        """Return why the job would not start again at once, "" if it would. Raises SlurmError."""
        observer = self.observer
        observer.read_partitions()
        if why := observer.partition_obstacle(row):
            return why
        if requeue.target is None:
            return ""
        cluster = self._nodes(requeue.target)
        job = self.controller.jobs[row.job_id].job if row.job_id in self.controller.jobs else None
        text = observer.writer.reservations()
        cpus = {n.name: n.room.cpus for n in cluster.nodes if n.room is not None}
        return (
            _find_taken_nodes(requeue.target, row, job, cluster)
            or _reservation_obstacle(requeue.target, row, read_reservations(text, cpus), self.clock())
            or self._limit(requeue.target, row, cluster)
            or (self._rival(requeue, row, cluster, unshielded) if unshielded else "")
        )

    def _nodes(self, target: Target) -> Cluster:
        """Return the nodes as they are now. Raises SlurmError; a transient one while slurmctld, which has just started, waits for them."""
        cluster = self.observer.read_nodes()
        if silent := self.observer.unheard_nodes & set(target.nodes):
            raise NoPlaceError("its place", f"slurmctld waits for {format_names(sorted(silent))}", transient=True)
        return cluster

    def _limit(self, target: Target, row: JobRow, cluster: Cluster) -> str:
        observer = self.observer
        if not observer.accounts.has_limits:
            return ""
        use = describe_use(
            row, observer.registry.submitted[row.job_id], observer.gpu_types, self.clock(), observer.limits
        )
        return find_exceeded_limit(observer.accounts.read().limits([use], cluster), row.job_id, target.shape)

    def _rival(self, requeue: Requeue, row: JobRow, cluster: Cluster, unshielded: str) -> str:
        """Return which waiting job could take the place, which can't be kept, or "" if there is none."""
        submitted_jobs = self.observer.registry.submitted
        ours = {i for i, k in submitted_jobs.items() if k.directive is not None} - self.observer.left_to_slurm
        names = {*row.node_names, *requeue.shield}
        for other in find_waiting_jobs(self.observer.reader.jobs(), ours):
            if can_use(other, names, cluster.nodes):
                return f"another job waits for GPUs there, and they can't be kept ({unshielded})"
        return ""


def _find_taken_nodes(target: Target, row: JobRow, job: Job | None, cluster: Cluster) -> str:
    gpus = target.shape.gpus_per_node
    for name in target.nodes:
        node = cluster.node(name, target.shape.gpu_type)
        if node is None or not node.up:
            return f"{name} can't take jobs now"
        own = parse_gpus(row.tres_per_node)[1] if name in row.node_names else 0
        room = own or job is None or has_cpus(node, job, gpus)
        if node.gpus - node.gpus_used + own < gpus or not room:
            return f"others have taken GPUs of {name} meanwhile"
    return ""


def _reservation_obstacle(target: Target, row: JobRow, reservations: Iterable[Reservation], now_s: float) -> str:
    left_s = None if row.end_s is None or row.time_limit_s is None else row.end_s - now_s
    for one in reservations:
        begins = left_s is None or now_s + START_S + left_s > one.start_s
        names = one.nodes.intersection(target.nodes)
        if names and one.name != row.reservation and one.bars and begins and one.end_s > now_s:
            return f"the reservation {one.name} takes {format_names(sorted(names))}"
    return ""

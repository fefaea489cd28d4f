"""Why a job waits, with the numbers behind it: Slurm's one word for it, as reasons that name what is free and who frees more. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synergy_core.expected import Expected
from synergy_core.reasons import Reason, Reasons, format_span

from synergyd.start_times.forecast import JobForecast
from synergyd.start_times.records import Amounts, PendingJob, Queue, QueueNode, RunningJob
from synergyd.start_times.simulation import able_nodes

_FOR_NODES = ("Resources", "Nodes_required_for_job_are_DOWN", "ReqNodeNotAvail")
_NAMED = 3  # jobs that free something, at most


class Waits:
    """The reasons of all jobs that wait in one queue. `ends`: when the running jobs are expected to end."""

    def __init__(self, queue: Queue, forecasts: Mapping[int, JobForecast]) -> None:
        self._queue = queue
        self._ends = {job_id: f.end for job_id, f in forecasts.items() if f.end is not None}
        self._rank = {job.job_id: rank for rank, job in enumerate(queue.pending)}
        self._numbers: dict[tuple[object, ...], int] = {}  # of kinds of requests
        self._keys: dict[int, int] = {}  # the same by job
        self._able: dict[int, tuple[QueueNode, ...]] = {}
        self._shared: dict[tuple[int, int], bool] = {}

    def reasons(self, job: PendingJob) -> Reasons:
        """Return why the job waits."""
        word = job.slurm_reason.partition(",")[0].replace(" ", "_").strip("()")
        if word.startswith("JobHeld"):
            return (Reason("wait-held", {"holder": "user" if word.endswith("User") else "administrator"}),)
        if word == "BeginTime":
            return (Reason("wait-begin", {"wait_s": max(0.0, job.may_start_s - self._queue.now_s)}),)
        if word == "DependencyNeverSatisfied":
            return (Reason("wait-broken-dependency", {"dependency": job.note}),)
        if word == "Dependency":
            return (self._dependency(job),)
        if word == "JobArrayTaskLimit" or (job.cap is not None and job.cap[0] == "array"):
            return (Reason("wait-tasks", {"running": sum(_is_under(job, r) for r in self._queue.running)}),)
        if job.cap is not None:
            return (self._limit(job, word),)
        if word == "Licenses":
            return (Reason("wait-licenses", {"licenses": job.note}),)
        if word == "Reservation":
            return (Reason("wait-reservation", {"reservation": job.reservation}),)
        if word.startswith("Partition"):
            return (Reason("wait-partition", {"partition": ",".join(sorted(job.partitions)), "slurm_reason": word}),)
        if word.startswith(_FOR_NODES):
            return self._resources(job)
        if word == "Priority":
            return (*self._resources(job)[:1], *self._ahead(job))
        if word in ("None", ""):
            return ()  # Slurm has not looked at it yet
        return (Reason("wait-other", {"slurm_reason": word}),)

    def _resources(self, job: PendingJob) -> Reasons:
        able = self._able_nodes(job)
        need, where = _format_need(job), _format_where(job)
        if len(able) < job.nodes:
            s, takes = ("", "takes") if len(able) == 1 else ("s", "take")
            return (Reason("wait-never", {"need": need, "where": where, "able": len(able), "s": s, "takes": takes}),)
        free, total = sum(_main(n.free, job) for n in able), sum(_main(n.total, job) for n in able)
        fits = sum(node.free.holds(job.need) for node in able)
        if free >= _main(job.need, job) * job.nodes and fits < job.nodes:
            where += f" ({fits} node{'s' * (fits != 1)} of the {job.nodes} that it needs {'has' if fits == 1 else 'have'} room)"
        details = {"need": need, "where": where, "free": free, "total": total, "is_are": "is" if free == 1 else "are"}
        return (Reason("wait-resources", details), *self._freed(job, able))

    def _freed(self, job: PendingJob, able: Sequence[QueueNode]) -> Reasons:
        """Return which running jobs should give enough nodes free for it to start, the first ones first."""
        free = {node.name: node.free for node in able}
        fits = sum(some.holds(job.need) for some in free.values())
        ending = [(self._ends[r.job_id].middle_s, r) for r in self._queue.running if r.job_id in self._ends]
        jobs: list[int] = []
        freed, at_s = 0, self._queue.now_s
        for end_s, running in sorted(ending, key=lambda one: (one[0], one[1].job_id)):
            if fits >= job.nodes:
                break
            here = [name for name in running.nodes if name in free]
            if not here or not _main(running.need, job):
                continue
            fits -= sum(free[name].holds(job.need) for name in here)
            for name in here:
                free[name] += running.need
            fits += sum(free[name].holds(job.need) for name in here)
            freed += _main(running.need, job) * len(here)
            jobs.append(running.job_id)
            at_s = end_s
        if not jobs or fits < job.nodes or len(jobs) > 2 * _NAMED:
            return ()
        what = f"{freed} {_unit(job, freed)}"
        return (Reason("wait-freed", {"jobs": jobs, "freed": what, "in_s": max(0.0, at_s - self._queue.now_s)}),)

    def _ahead(self, job: PendingJob) -> Reasons:
        own = self._able_key(job)
        count = gpus = 0
        for other in self._queue.pending[: self._rank.get(job.job_id, 0)]:
            if other.cap is None and self._share_nodes(own, other):
                count += other.tasks
                gpus += other.need.gpus * other.nodes * other.tasks
        if not count:
            return ()
        asks = f", and ask{'s' * (count == 1)} for {gpus} GPUs in all" if gpus else ""
        fields = {"count": count, "s": "s" * (count != 1), "waits": "s" * (count == 1), "ahead": asks}
        return (Reason("wait-priority", fields),)

    def _share_nodes(self, own: int, other: PendingJob) -> bool:
        key = own, self._able_key(other)
        if key not in self._shared:
            names = {node.name for node in self._able[key[0]]}
            self._shared[key] = any(node.name in names for node in self._able[key[1]])
        return self._shared[key]

    def _dependency(self, job: PendingJob) -> Reason:
        if not job.after:
            return Reason("wait-dependency", {"dependency": job.note})
        ends: list[Expected | None] = [self._ends.get(other) for other in job.after]
        middles_s = [end.middle_s for end in ends if end is not None]
        all_known = len(middles_s) == len(ends)
        expected = f", expected in about {format_span(max(middles_s) - self._queue.now_s)}" if all_known else ""
        return Reason("wait-jobs", {"jobs": list(job.after), "dependency": job.note, "expected": expected})

    def _limit(self, job: PendingJob, word: str) -> Reason:
        """Return the limit. What an account holds is other users' business where PrivateData hides their jobs: it is not named."""
        assert job.cap is not None
        kind, whose, measure = job.cap
        holds = ""
        if kind == "user":
            amount = sum(_limit_use(measure, r) for r in self._queue.running if _is_under(job, r))
            unit = {"gpus": "GPU", "cpus": "CPU", "nodes": "node", "jobs": "running job"}[measure]
            holds = f": user {whose} holds {amount} {unit}{'s' * (amount != 1)} now"
        elif kind == "account":
            holds = f": it is that of account {whose}"
        return Reason("wait-limit", {"slurm_reason": word, "holds": holds})

    def _able_nodes(self, job: PendingJob) -> tuple[QueueNode, ...]:
        return self._able[self._able_key(job)]

    def _able_key(self, job: PendingJob) -> int:
        """Return what the nodes that may take the job are known by."""
        if job.job_id not in self._keys:
            what = (job.need, job.partitions, job.gpu_type, job.features, job.node_names, job.excluded, job.nodes)
            number = self._numbers.setdefault(what, len(self._numbers))
            self._keys[job.job_id] = number
            if number not in self._able:
                self._able[number] = tuple(able_nodes(job, self._queue.nodes))
        return self._keys[job.job_id]


def _limit_use(measure: str, job: RunningJob) -> int:
    one = {"gpus": job.need.gpus, "cpus": job.need.cpus, "nodes": 1}.get(measure)
    return 1 if one is None else one * len(job.nodes)


def _is_under(job: PendingJob, running: RunningJob) -> bool:
    if job.cap is None:
        return False
    return job.cap in running.caps


def _main(amounts: Amounts, job: PendingJob) -> int:
    return amounts.gpus if job.need.gpus else amounts.cpus


def _unit(job: PendingJob, count: int) -> str:
    return ("GPU" if job.need.gpus else "CPU") + "s" * (count != 1)


def _format_need(job: PendingJob) -> str:
    count = _main(job.need, job) * job.nodes
    kind = f"{job.gpu_type} " if job.gpu_type and job.need.gpus else ""
    return f"{count} {kind}{_unit(job, count)} on {job.nodes} node{'s' * (job.nodes != 1)}"


def _format_where(job: PendingJob) -> str:
    words = [f"partition {','.join(sorted(job.partitions))}"]
    words += [f"with feature {job.features}"] * bool(job.features)
    words += [f"among {len(job.node_names)} named nodes"] * bool(job.node_names)
    words += [f"of reservation {job.reservation}"] * bool(job.reservation)
    return f" in {' '.join(words)}"

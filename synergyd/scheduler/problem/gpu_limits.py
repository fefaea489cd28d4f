"""The room that is left under limits (GPUs of accounts and partitions, Slurm's own) while jobs get Cells one after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from synergy_core.records import Job, JobState, Shape

from synergyd.scheduler.problem.records import GPUS, Allocation, JobRequest, Problem, UsageLimit
from synergyd.scheduler.problem.rules import LimitRules
from synergyd.scheduler.problem.utility import allocation as allocation_of

_HOLDING = (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)


_EXACT = 1e-6  # sums of parts of nodes and of minutes are not exact


class Allowance:
    """The room that is left under each of the problem's limits, with `choice` given out."""

    def __init__(self, problem: Problem, choice: Sequence[int | None] = ()) -> None:
        self._limits = problem.limits
        self._left = [limit.most for limit in problem.limits]
        for job, picked in zip(problem.jobs, choice, strict=False):
            self.change(job, None, picked)

    def allows(self, job: JobRequest, before: int | None, after: int | None) -> bool:
        """Return whether the job may go from one of its Cells (None: it waits) to another. It may always give GPUs back."""
        return self.find_exceeded_limit(job, before, after) is None

    def find_exceeded_limit(
        self, job: JobRequest, before: int | None, after: int | None
    ) -> tuple[UsageLimit, float] | None:
        """Return the first limit that such a step would go beyond, and what is left of it."""
        for limit, remaining in zip(self._limits, self._left, strict=True):
            if limit.use(job, after) - limit.use(job, before) > max(remaining, 0) + _EXACT:
                return limit, max(remaining, 0)
        return None

    def change(self, job: JobRequest, before: int | None, after: int | None) -> None:
        for i, limit in enumerate(self._limits):
            self._left[i] -= limit.use(job, after) - limit.use(job, before)


def within_limits(problem: Problem, allocated: Allocation) -> Allocation:
    """Return `allocated` with the changes undone that exceed a limit: for policies that ignore limits.

    Among the jobs that start or change, the last submitted give way first.
    """
    if not problem.limits:
        return allocated
    choices = [
        job.current if picked is not None else None for job, picked in zip(problem.jobs, allocated.choice, strict=True)
    ]
    allowance = Allowance(problem, choices)
    order = sorted(range(len(choices)), key=lambda i: (problem.jobs[i].submit_s, problem.jobs[i].job_id))
    # those that give GPUs back first: others may take them
    order.sort(key=lambda i: problem.jobs[i].gpus(allocated.choice[i]) > problem.jobs[i].gpus(choices[i]))
    for i in order:
        if allowance.allows(problem.jobs[i], choices[i], allocated.choice[i]):
            allowance.change(problem.jobs[i], choices[i], allocated.choice[i])
            choices[i] = allocated.choice[i]
    if tuple(choices) == allocated.choice:
        return allocated
    moved = frozenset(i for i in allocated.moved_jobs if choices[i] == allocated.choice[i])
    return replace(allocation_of(problem, choices, moved), upper_bound=allocated.upper_bound)


@dataclass(frozen=True, kw_only=True)
class SlurmLimits:
    """The room that Slurm's associations and QOS leave to Synergy's jobs. Mappings are by job id."""

    #: `most` is what Slurm's other jobs leave to all of Synergy's
    shared_limits: tuple[UsageLimit, ...] = ()
    #: limits of one job alone
    job_limits: Mapping[int, tuple[UsageLimit, ...]] = field(default_factory=dict)
    #: why a running job may not be restarted now
    restart_obstacles: Mapping[int, str] = field(default_factory=dict)
    #: Slurm's fair-share factor, 0 to 1
    fair_shares: Mapping[int, float] = field(default_factory=dict)


NO_SLURM_LIMITS = SlurmLimits()


def usage_limits(
    requests: Sequence[JobRequest], jobs: Iterable[Job], rules: LimitRules, slurm: SlurmLimits = NO_SLURM_LIMITS
) -> tuple[UsageLimit, ...]:
    """Return the limits of accounts and partitions, and Slurm's, less what jobs outside of the problem hold.

    A limit is never below what the jobs of the problem hold now, for they may stay.
    """
    limits = [UsageLimit("account", name, gpus, gpus) for name, gpus in rules.account_limits.items()]
    limits += [UsageLimit("partition", name, gpus, gpus) for name, gpus in rules.partition_limits.items()]
    limits += slurm.shared_limits
    if not limits:
        return ()
    taking = {request.job_id for request in requests}
    # one that was released to nodes of Slurm's choice (no node named) holds nothing before Slurm starts it, however long that takes
    holding = [job for job in jobs if job.job_id not in taking and job.state in _HOLDING and job.node_names]
    bounds = []
    for limit in limits:
        outside_use = sum(_held_amount(limit, job) for job in holding)
        own = sum(limit.use(request, request.current) for request in requests)
        bounds.append(replace(limit, most=max(limit.most - outside_use, own, 0)))
    return tuple(bounds)


def _held_amount(limit: UsageLimit, job: Job) -> float:
    """Return how much of a limit a job outside of the problem holds."""
    if limit.rates is not None:
        rate = limit.rates.get(job.job_id)
    else:
        rate = GPUS if limit.name in ([job.account] if limit.kind == "account" else job.partition.split(",")) else None
    return rate.count_use(job.shape.gpu_type, job.shape.nodes, job.shape.gpus_per_node) if rate is not None else 0.0


def with_own_limits(requests: Sequence[JobRequest], slurm: SlurmLimits) -> tuple[JobRequest, ...]:
    """Return the jobs with the Cells beyond Slurm's limits of one job banned. A running job may stay as it is, but not move."""
    if not slurm.job_limits:
        return tuple(requests)
    banned_by_key: dict[tuple[int, int], frozenset[int]] = {}
    limited = []
    for job in requests:
        own = slurm.job_limits.get(job.job_id, ())
        if not own:
            limited.append(job)
            continue
        key = id(job.cells), id(own)  # like jobs share both
        if key not in banned_by_key:
            banned_by_key[key] = frozenset(
                i for i in range(len(job.cells)) if any(_breaks(x.use(job, i), x.most, x.at_least) for x in own)
            )
        limited.append(
            replace(job, banned_cells=job.banned_cells | banned_by_key[key], own_limits=own)
            if banned_by_key[key]
            else job
        )
    return tuple(limited)


def _breaks(use: float, most: float, at_least: bool) -> bool:
    return use < most - _EXACT if at_least else use > most + _EXACT


def own_limit_obstacle(job: JobRequest, index: int) -> str:
    """Return which of Slurm's limits of this job alone its Cell `index` is beyond, in words, or "" if none."""
    full = next((x for x in job.own_limits if _breaks(x.use(job, index), x.most, x.at_least)), None)
    if full is None:
        return ""
    bound = "must have at least" if full.at_least else "may have at most"
    return f"a job of {full.kind} {full.name} {bound} {full.most:g} {full.unit} ({full.slurm})"


def find_exceeded_limit(limits: SlurmLimits, job_id: int, shape: Shape) -> str:
    """Return which of `limits` a job that waits would be beyond with `shape`, in words, or "" if none."""
    for limit in (*limits.shared_limits, *limits.job_limits.get(job_id, ())):
        rate = limit.job_rate or (limit.rates or {}).get(job_id)
        if rate is None:
            continue
        if _breaks(rate.count_use(shape.gpu_type, shape.nodes, shape.gpus_per_node), limit.most, limit.at_least):
            return format_limit(limit, limit.most)
    return ""


def format_limit(limit: UsageLimit, remaining: float) -> str:
    """Return what is left of a limit over several jobs: `account chem may hold 8 more GPUs (GrpTRES)`."""
    more = f"{limit.kind} {limit.name} may hold {remaining:g} more {limit.unit}"
    if limit.slurm:
        return f"{more} ({limit.slurm})"
    return f"{more}: its limit is {limit.configured_limit:g} for all of its jobs"

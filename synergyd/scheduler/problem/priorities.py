"""Priorities of jobs in an epoch: weights, deadlines, equal shares."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from synergy_core.reasons import Reason, Reasons
from synergy_core.records import Job

from synergyd.scheduler.problem.cell_index import CellIndex, RelativeGoodput
from synergyd.scheduler.problem.finish_time_fairness import equal_share, finish_time_fairness, job_parts
from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, Objective, Progress, count_gpus
from synergyd.scheduler.problem.rules import ClaimRules, WeightRules
from synergyd.scheduler.problem.utility import stop_value, utility, waiting_utility
from synergyd.scheduler.problem.waiting_bound import with_due

_PRIORITY_REACH = 10.0  # a Slurm priority, or fair-share factor, counts as at most this many times the median, and at least its inverse
_LEAST_SHARE = 1e-6  # Slurm's fair-share factor is 0 where an association has no shares, or no use of its parent's
_SHORT_REACH = 3.0  # a job's own length counts as at most this factor, and at least its inverse
_LEAST_TIME_S = 1.0
# no job is due earlier: within them one that arrives is decided about, and those that leave for it have left
WAIT_EPOCHS = 2
_LEAST_LEFT = 1e-6  # sequences: keeps a job that is about to end from dividing by nothing


def weights(
    jobs: Iterable[Job], rules: WeightRules, fair_shares: Mapping[int, float] | None = None
) -> dict[int, float]:
    """Return each job's weight by job id.

    It is the directive's, times its Slurm priority over the median where that is on, times Slurm's fair-share factor of its
    association (`fair_shares`, by job id) over the median where that is on.

    A directive's weight counts as MaxWeight at most. Those of a user's jobs are divided by their mean where it is above 1, so
    that all of a user's jobs together weigh no more than jobs without weights.
    """
    jobs = tuple(jobs)
    stated = {job.job_id: _stated_weight(job, rules.max_weight) for job in jobs}
    of_user: dict[int, list[float]] = {}
    for job in jobs:
        of_user.setdefault(job.uid, []).append(stated[job.job_id])
    means = {uid: max(1.0, fmean(some)) for uid, some in of_user.items()}
    middle = median([j.priority for j in jobs if j.priority > 0] or [1.0])
    shares = (fair_shares or {}) if rules.fair_share_weight else {}
    middle_share = max(median(shares.values() or [1.0]), _LEAST_SHARE)
    weight_of: dict[int, float] = {}
    for job in jobs:
        weight = stated[job.job_id] / means[job.uid]
        if rules.priority_weight and job.priority > 0:
            weight *= min(max(job.priority / middle, 1 / _PRIORITY_REACH), _PRIORITY_REACH)
        if job.job_id in shares:
            share = max(shares[job.job_id], _LEAST_SHARE) / middle_share
            weight *= min(max(share, 1 / _PRIORITY_REACH), _PRIORITY_REACH)
        weight_of[job.job_id] = weight
    return weight_of


def _stated_weight(job: Job, most: float) -> float:
    weight = job.directive.weight if job.directive else 1.0
    return min(weight, most) if math.isfinite(weight) and weight > 0 else 1.0


def disbelief(job: Job, progress: Progress, max_weight: float) -> Reasons:
    """Return what the job says of itself that does not count as it says it."""
    weight = job.directive.weight if job.directive else 1.0
    notes: Reasons = ()
    if weight > max_weight:
        notes += (Reason("weight-capped", {"weight": weight, "max_weight": max_weight}),)
    return (*notes, Reason("length-refuted")) if progress.is_claim_refuted else notes


def likely_length(progress: Progress, short_first: float) -> Reasons:
    """Return how much is likely left of a job that does not tell, where that counts (ShortFirst)."""
    gpu_s = progress.likely_gpu_s
    if gpu_s is None or short_first <= 0 or progress.likely_evidence <= 0:
        return ()
    size, unit = (gpu_s / 3600, "GPU hours") if gpu_s >= 3600 else (gpu_s / 60, "GPU minutes")
    # coarse: it moves a little in each epoch
    return (Reason("likely-length", {"left": f"{float(f'{size:.1g}'):g} {unit}"}),)


def with_claims(
    jobs: Sequence[JobRequest],
    nodes: Sequence[NodeCapacity],
    terms: Objective,
    rules: ClaimRules,
    now_s: float,
    typical_s: float | None = None,
) -> tuple[tuple[JobRequest, ...], dict[int, float]]:
    """Return the jobs with their claims, and by job id the finish-time fairness, where known, if all went on as they are.

    The jobs get relative goodput by the objective's reference, weights by time left, and needs by deadline and fairness.
    """
    shares = _Shares(jobs, nodes)
    short = _length_factors(jobs, shares, rules.short_first)
    requests, fairness = [], {}
    for job in jobs:
        length_known = job.progress.trained_sequences is not None or job.progress.remaining is not None
        share = shares.user_share_goodput(job) if length_known or terms.reference == "share" else 0.0
        relative = _relative(job, terms, share)
        need = _deadline(job, now_s)
        if need[0] and rules.deadline_share > 0:
            need = _within_share(job, need, rules.deadline_share * shares.share_gpus(job))
        goodput = 0.0 if job.current is None else job.cells[job.current].goodput
        rho = finish_time_fairness(job.age_s, job.progress, goodput or share, share)
        if rho is not None:
            fairness[job.job_id] = rho
            if not need[0] and rules.fairness_bound > 0 and job.current is not None:
                # judged by what an equal share can still do, whatever it has now: else a job that has its share needs nothing, loses
                # it to others in the next epoch, and needs it again in the one after
                due = finish_time_fairness(job.age_s, job.progress, share, share)
                if due is not None and due > rules.fairness_bound:
                    late = f"it ends {due:.2f} times as late as on one from its submission on"
                    need = _timely(job, share, goodput, f"even on an equal share of the GPUs {late}")
        remaining = job.progress.remaining
        drag = job.restart.cost.mean_s / max(remaining, _LEAST_LEFT) if remaining is not None else 0.0
        factor = short.get(job.job_id, 1.0)
        if relative is not job.relative or need[0] or drag or factor != 1.0:
            job = replace(
                job,
                relative=relative,
                needed_goodput=need[0],
                need_after_restart=need[1],
                need_why=need[2],
                restart_drag=drag,
                weight=job.weight * factor,
                length_factor=factor,
            )
        requests.append(job)
    if rules.fairness_bound > 0:
        floor_s = WAIT_EPOCHS * rules.epoch_s
        return with_due(requests, rules.fairness_bound, typical_s, floor_s, shares.user_share_goodput), fairness
    return tuple(requests), fairness


class _Shares:
    """Goodput on equal shares (sequences/s), computed once for like jobs, which have the same Cells."""

    def __init__(self, jobs: Sequence[JobRequest], nodes: Iterable[NodeCapacity]) -> None:
        self._capacity = count_gpus(nodes)
        self.gpus, self.jobs = sum(self._capacity.values()), len(jobs)
        self._parts = job_parts(jobs, self._capacity)
        self._known: dict[tuple[int, float], float] = {}

    def user_share_goodput(self, job: JobRequest) -> float:
        """Return the job's goodput on its user's part of the GPUs over the user's jobs."""
        return self._goodput(job, self._parts.get(job.uid, 0.0))

    def share_gpus(self, job: JobRequest) -> float:
        """Return the number of GPUs of the job's equal share."""
        parts = self._parts.get(job.uid, 0.0)
        return self.gpus / parts if parts > 0 else 0.0

    def equal_share_goodput(self, job: JobRequest) -> float:
        """Return the job's goodput on all GPUs over all jobs."""
        return self._goodput(job, self.jobs)

    def _goodput(self, job: JobRequest, parts: float) -> float:
        key = id(job.cells), parts
        if key not in self._known:
            self._known[key] = equal_share(job.cells, self._capacity, parts)
        return self._known[key]


def _length_factors(jobs: Sequence[JobRequest], shares: _Shares, exponent: float) -> dict[int, float]:
    """Return (median time left / own time left)^exponent by job id, on all GPUs over all jobs.

    It is 1 for jobs of which nothing is known.

    The mean completion time falls when short jobs go first (heSRPT: Berg, Vesilo, Harchol-Balter 2020, allocates GPUs so for
    known lengths and concave speed-ups). A job of unknown length counts by Gittins' index over what like jobs have taken, with
    the exponent times the evidence for it. Without any it counts as 1: by strangers' lengths alone the order of jobs moves with the
    time that they have had, and the restarts that this costs bring nothing.
    """
    if exponent <= 0:
        return {}
    times: dict[int, float] = {}
    exponents: dict[int, float] = {}
    for job in jobs:
        remaining = job.progress.remaining
        if job.progress.is_claim_refuted:
            continue
        if remaining is not None and (share := shares.equal_share_goodput(job)) > 0:
            times[job.job_id] = remaining / share
        elif remaining is None and job.progress.likely_gpu_s is not None and shares.gpus > 0:
            times[job.job_id] = job.progress.likely_gpu_s / (shares.gpus / len(jobs))
            exponents[job.job_id] = exponent * job.progress.likely_evidence
    refuted = {job.job_id: 1 / _SHORT_REACH for job in jobs if job.progress.is_claim_refuted}
    if not times:
        return refuted
    middle = max(median(times.values()), _LEAST_TIME_S)
    return refuted | {
        job_id: min(
            max((middle / max(length_s, _LEAST_TIME_S)) ** exponents.get(job_id, exponent), 1 / _SHORT_REACH),
            _SHORT_REACH,
        )
        for job_id, length_s in times.items()
    }


def without_partial_nodes(job: JobRequest, nodes: Iterable[NodeCapacity]) -> JobRequest:
    """Return the job without the Cells that span nodes and use a part of each, where no two jobs that span nodes may share one.

    Jobs on whole nodes never share, so every allocation can be placed. A job that has no other Cells keeps them.
    """
    most: dict[str, int] = {}
    for node in nodes:
        most[node.gpu_type] = max(most.get(node.gpu_type, 0), node.free)
    parts = frozenset(
        i
        for i, cell in enumerate(job.cells)
        if cell.shape.nodes > 1 and cell.shape.gpus_per_node < most.get(cell.shape.gpu_type, 0)
    )
    return (
        replace(job, banned_cells=job.banned_cells | parts) if len(parts | job.banned_cells) < len(job.cells) else job
    )


def with_need_bonus(terms: Objective, jobs: Sequence[JobRequest]) -> Objective:
    """Return the terms with a bonus for needs that exceeds what all jobs together can gain or lose."""
    if not any(job.needed_goodput for job in jobs):
        return terms
    spread = 1.0
    for job in jobs:
        best = job.relative[CellIndex.build(job.cells).best_of_each_shape[0]]
        low = min(waiting_utility(job, terms), utility(job.relative[CellIndex.build(job.cells).least], terms))
        low = low if job.current is None else min(low, stop_value(job, terms) / job.weight)
        spread += job.weight * max(0.0, utility(best, terms) - low)
    return replace(terms, need_bonus=spread)


def _relative(job: JobRequest, terms: Objective, share: float) -> Sequence[float]:
    cells = CellIndex.build(job.cells)
    if terms.reference == "asked" or not cells.sound:
        return job.relative
    base = share
    if terms.reference == "smallest" or share <= 0:
        least = cells[cells.least]
        base = least.goodput / least.shape.gpus
    return RelativeGoodput(cells, base)


def _deadline(job: JobRequest, now_s: float) -> tuple[float, float, str]:
    """Return (goodput needed as it runs or starts, goodput needed after a restart, why).

    The goodputs are 0 without a deadline, where the work left is not known, or where no Cell can meet it any more.
    """
    remaining, until = job.progress.remaining, job.deadline_s
    if until is None or remaining is None or remaining <= 0 or until <= now_s:
        return 0.0, 0.0, ""
    need, why = remaining / (until - now_s), f"so it meets its deadline in {until - now_s:.0f} s"
    best = CellIndex.build(job.cells).best_goodput
    later = until - now_s - job.restart.cost.mean_s
    anew = remaining / later if later > 0 else math.inf
    now = job.cells[job.current].goodput if job.current is not None else 0.0
    reachable = best >= (need if job.current is None else anew) or now >= need
    return (need, anew, why) if reachable else (0.0, 0.0, "")


def _within_share(job: JobRequest, need: tuple[float, float, str], gpus: float) -> tuple[float, float, str]:
    """Return the need, at most the best goodput on `gpus` GPUs, or none where each Cell is larger.

    Interpolation as in `equal_share` would need the next larger size, which is more than the share.
    """
    most = max((cell.goodput for cell in job.cells if cell.shape.gpus <= gpus), default=0.0)
    if most >= need[1]:
        return need
    why = f"{need[2]}, as far as its share of the GPUs goes"
    return (min(need[0], most), most, why) if most > 0 else (0.0, 0.0, "")


def _timely(job: JobRequest, share: float, goodput: float, why: str) -> tuple[float, float, str]:
    """Return the need for an equal share, or for the best that the job can have below it.

    It is what the job has, `goodput`, where the job ends as soon with that as with the share after another restart.
    """
    need = min(share, CellIndex.build(job.cells).best_goodput)
    remaining = job.progress.remaining
    if remaining and 0 < goodput < need and remaining / goodput <= job.restart.cost.mean_s + remaining / need:
        need = goodput
    return need, need, why

"""Tiresias: discretised two-dimensional least attained service (Gu et al., NSDI'19)."""

from __future__ import annotations

from bisect import bisect_right

from synergy_sim.policies.list_scheduling import serve_in_order
from synergy_sim.policies.requested_size import by_submission, requested_size
from synergyd.scheduler.problem.records import Allocation, Policy, Problem

_THRESHOLDS = (16 * 3600.0,)  # GPU seconds; two queues parted at 16 GPU hours, as in Pollux' comparison (OSDI'21)


class TiresiasPolicy(Policy):
    """Queues by attained service, GPUs x seconds (sec. 3.2); first submitted first inside a queue; preemptive.

    Each job has the size asked for ("TunedJobs" of OSDI'21 where users ask for the right size). A job that does not fit
    is passed over.

    A job with exactly a threshold's service is in the queue behind it. A policy here keeps no state, so a demoted job queues
    up by its submission instead of its demotion. Nothing is promoted after starving (off in the paper's default as well).
    The placement by message skew (sec. 3.3) is left to `place`.
    """

    preempts = True
    sizes_fixed = True
    rule = "the job that has had the fewest GPU hours comes first, at the size asked for"

    def __init__(self, thresholds: tuple[float, ...] = _THRESHOLDS) -> None:
        self._thresholds = tuple(sorted(thresholds))

    def allocate(self, problem: Problem) -> Allocation:
        queue = [bisect_right(self._thresholds, job.progress.attained_gpu_s) for job in problem.jobs]
        order = sorted(by_submission(problem), key=lambda i: queue[i])
        return serve_in_order(problem, order, [requested_size(job) for job in problem.jobs])

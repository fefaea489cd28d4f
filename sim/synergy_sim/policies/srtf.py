"""Shortest remaining time first, and shortest remaining service first."""

from __future__ import annotations

import math

from synergy_sim.policies.list_scheduling import serve_in_order
from synergy_sim.policies.requested_size import by_submission, requested_size, seconds_left
from synergyd.scheduler.problem.records import Allocation, Policy, Problem


class SrtfPolicy(Policy):
    """Jobs in order of the seconds that they have left at the size asked for.

    Preemptive: a shorter job takes the GPUs of a longer one. A job that does not fit is passed over. Those whose
    remaining work is not known come last, in order of submission. The cost of stopping a job is not weighed: neither
    rule knows of it.
    """

    preempts = True
    sizes_fixed = True

    rule = "the job with the least time left at the size asked for comes first"
    _counts_gpus = False

    def allocate(self, problem: Problem) -> Allocation:
        wants = [requested_size(job) for job in problem.jobs]
        keys = []
        for job, want in zip(problem.jobs, wants, strict=True):
            if want is None:
                keys.append(math.inf)
                continue
            cell = job.cells[want]
            keys.append(seconds_left(job, cell) * (cell.shape.gpus if self._counts_gpus else 1))
        order = sorted(by_submission(problem), key=lambda i: keys[i] if math.isfinite(keys[i]) else math.inf)
        return serve_in_order(problem, order, wants)


class SrsfPolicy(SrtfPolicy):
    """The same by seconds x GPUs: the order of Tiresias' oracle (Gu et al., NSDI'19, sec. 3.1) and of Wang et al. (arXiv 2002.10105)."""

    rule = "the job with the least GPU time left at the size asked for comes first"
    _counts_gpus = True

"""Shortest remaining time first, and shortest remaining service first."""

from __future__ import annotations

import math

from synergyd.scheduler.policies.list_scheduling import serve_in_order
from synergyd.scheduler.policies.requested_size import by_submission, requested_size, seconds_left
from synergyd.scheduler.problem.records import Allocation, Policy, Problem


class SrtfPolicy(Policy):
    """Jobs in order of the seconds they have left at the size asked for; with `service` of seconds x GPUs (SRSF, the
    order of Tiresias' oracle, Gu et al., NSDI'19, sec. 3.1, and of Wang et al., arXiv 2002.10105).

    Preemptive: a shorter job takes the GPUs of a longer one. A job that does not fit is passed over. Those whose
    remaining work is not known come last, in order of submission. What stopping a job costs is not weighed: neither
    rule knows of it.
    """

    preempts = True
    sizes_fixed = True

    def __init__(self, service: bool = False) -> None:
        self._service = service
        self.rule = f"the job with the least {'GPU ' if service else ''}time left at the size asked for comes first"

    def allocate(self, problem: Problem) -> Allocation:
        wants = [requested_size(job) for job in problem.jobs]
        left = []
        for job, want in zip(problem.jobs, wants, strict=True):
            if want is None:
                left.append(math.inf)
                continue
            cell = job.cells[want]
            left.append(seconds_left(job, cell) * (cell.shape.gpus if self._service else 1))
        order = sorted(by_submission(problem), key=lambda i: left[i] if math.isfinite(left[i]) else math.inf)
        return serve_in_order(problem, order, wants)

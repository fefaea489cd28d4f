"""First fit: FIFO in which a job that does not fit delays no other."""

from __future__ import annotations

from synergy_sim.policies.list_scheduling import serve_in_order
from synergy_sim.policies.requested_size import by_submission, requested_size
from synergyd.scheduler.problem.records import Allocation, Policy, Problem


class FirstFitPolicy(Policy):
    """Waiting jobs in order of submission: each one that fits starts at the size asked for; running jobs stay as they are.

    A cluster without reservations behaves so: GPUs are seldom idle, and a large job may wait for ever behind small ones.
    """

    sizes_fixed = True
    rule = "jobs start in order of submission at the size asked for, and one that does not fit is passed over"

    def allocate(self, problem: Problem) -> Allocation:
        jobs = problem.jobs
        order = sorted(by_submission(problem), key=lambda i: jobs[i].current is None)
        return serve_in_order(
            problem, order, [requested_size(job) if job.current is None else job.current for job in jobs]
        )

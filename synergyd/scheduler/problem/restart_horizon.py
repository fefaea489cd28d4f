"""How long a job keeps a size that it has changed to. Pure.

Sia's restart factor and the share of the work left that a restart costs (utility.restart_factor) both count as if a job kept
its new Cell to its end. It does not: others come and go, and its noise scale grows. The gain of a change lasts until the next
one, so a change must gain that much more.
"""

from __future__ import annotations

from dataclasses import replace

from synergyd.scheduler.problem.records import JobRequest

# Mean over changes of (time to the job's next change, or its end) / (time to its end), of made-up jobs that were themselves priced so:
# 0.39, 0.35, 0.38 and 0.31 with generate:80,4, 160,8 and 100,4 (two seeds) on 16 x 4 GPUs
HELD = 0.4


def with_horizon(job: JobRequest) -> JobRequest:
    """Return a running job whose restarts count as if only that share of its time were left to make up for them.

    Sia's r = 1 / (1 + c), c the restart's cost over the time that makes up for it, becomes 1 / (1 + c / HELD), and so does the share
    by the work left. 0 (no change pays) and 1 (a change is free) stay.
    """
    if job.current is None or job.discount <= 0.0:
        return job
    r = min(job.discount, 1.0)
    return replace(job, discount=r / (r + (1.0 - r) / HELD), restart_drag=job.restart_drag / HELD)

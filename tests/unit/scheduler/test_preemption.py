"""Which running jobs may be stopped for others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.restarts import RestartBudget, RestartCost

from synergyd.scheduler.preemption import LEAST_RUN, stoppable
from synergyd.scheduler.problem.records import Progress
from tests.unit.scheduler.builders import NOW, job, sized, snapshot

COST = RestartCost(mean_s=60.0)
LEAST_S = LEAST_RUN * COST.mean_s


@pytest.mark.parametrize(
    ("ran_s", "left_s", "may"),
    [
        (LEAST_S - 1, None, False),  # it has started lately
        (LEAST_S + 1, None, True),
        (LEAST_S + 1, LEAST_S - 1, False),  # it ends soon
        (LEAST_S + 1, LEAST_S + 1, True),
    ],
)
def test_a_job_is_stopped_neither_just_after_its_start_nor_just_before_its_end(
    ran_s: float, left_s: float | None, may: bool
) -> None:
    runs = job(1, nodes=("n0",), gpus=4, start_s=NOW - ran_s)
    asks = sized(1, 4, left_s, ("n0",), restart=RestartBudget(cost=COST), overdue_s=-1.0)
    reports, alike = asks, replace(asks, progress=Progress(likely_gpu_s=None if left_s is None else 4 * left_s))
    for request in (reports, alike):
        assert stoppable([request], snapshot([], [replace(runs, node_names=())]))[0].stoppable is may


def test_a_claim_to_end_soon_that_time_has_refuted_does_not_count() -> None:
    late = Progress(remaining=2.0, is_claim_refuted=True)
    asks = sized(1, 4, 1.0, ("n0",), restart=RestartBudget(cost=COST), overdue_s=-1.0, progress=late)
    runs = job(1, nodes=("n0",), gpus=4, start_s=NOW - 2 * LEAST_S)
    assert stoppable([asks], snapshot([], [replace(runs, node_names=())]))[0].stoppable

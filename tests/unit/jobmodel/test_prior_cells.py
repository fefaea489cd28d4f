"""The Cells of a plain job, by the forecast's prior of speed-ups."""

from __future__ import annotations

import random
from statistics import fmean, pstdev

import pytest
from synergy_core.records import Cluster, Job, JobState, Node, Shape

from synergyd.jobmodel.prior_cells import SHARED_VARIANCE, hypothetical, prior_cells
from synergyd.jobmodel.speed_up import MEASURED

CLUSTER = Cluster((*(Node(f"n{i}", "a100", 8) for i in range(4)), Node("v1", "v100", 8)))
JOB = Job(
    job_id=1, name="plain", user="ann", uid=1000, partition="", state=JobState.RUNNING, reason="", submit_s=0.0, start_s=0.0, begin_s=None,
    restarts=0, shape=Shape("a100", 1, 4), asked=Shape("a100", 1, 4), node_names=("n0",), fixed="it has no line",
)  # fmt: skip


def test_the_requested_size_is_certain_and_no_other_type_is_offered() -> None:
    job = hypothetical(JOB)
    cells = {cell.shape: cell for cell in prior_cells(job, CLUSTER)}
    assert job.directive is not None and not job.fixed and {shape.gpu_type for shape in cells} == {"a100"}
    own = cells[JOB.asked]
    assert own.goodput == pytest.approx(1.0) and own.uncertainty == pytest.approx(0.0)
    assert {shape.gpus for shape in cells} >= {1, 2, 4, 8, 16, 24, 32}
    assert all(cell.plan.gpus == cell.shape.gpus for cell in cells.values())


@pytest.mark.parametrize(
    "shape", [Shape("a100", 1, 1), Shape("a100", 1, 8), Shape("a100", 4, 8)], ids=lambda s: f"{s.gpus}"
)
def test_mean_and_sigma_are_those_of_the_forecasts_draws(shape: Shape) -> None:
    (cell,) = [cell for cell in prior_cells(hypothetical(JOB), CLUSTER) if cell.shape == shape]
    draw = random.Random(1)
    speeds = [
        MEASURED.of_job(MEASURED.of_cluster(draw), draw).speed(shape.gpus / 4, 1, shape.nodes) for _ in range(20_000)
    ]
    assert cell.goodput == pytest.approx(fmean(speeds), rel=0.02)
    assert cell.goodput * cell.uncertainty == pytest.approx(pstdev(speeds), rel=0.1)


def test_what_a_clusters_jobs_share_does_not_average_out() -> None:
    assert pytest.approx(0.62**2 / (0.62**2 + 1.28**2)) == SHARED_VARIANCE

"""What a user asked for is evidence of how the job scales."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import (
    Action,
    Cell,
    Cluster,
    Directive,
    Job,
    Measurement,
    Node,
    Plan,
    Profile,
    Shape,
    Snapshot,
)

from synergyd.jobmodel.asked_size import at_least_linear
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.model.hardware import GpuFigures, figures
from synergyd.jobmodel.shapes import job_shapes
from synergyd.settings import Settings
from tests.unit.scheduler.builders import job as made
from tests.unit.scheduler.epochs import decide

FORTY = Cluster(tuple(Node(f"n{i}", "a100", 4) for i in range(10)))
#: a network that the figures hold for slow
GPU = replace(figures("a100"), intra_gbs=1.0, inter_gbs=0.1)
EIGHT = Shape("a100", 2, 4)


def waiting(asked: Shape = EIGHT, job_id: int = 1) -> Job:
    directive = Directive(global_batch=(64, 64), max_micro_batch=64)
    return replace(made(job_id, 1), shape=asked, asked=asked, directive=directive)


def planner(job: Job, *measured: Measurement) -> JobPlanner:
    return JobPlanner(job, Profile(samples=len(measured), measured=measured), None, {"a100": GPU})


def started(job: Job, *measured: Measurement) -> int:
    """On how many GPUs of the empty cluster."""
    (decision,) = decide(
        Snapshot(0.0, FORTY, (job,)), Settings(), {job.job_id: planner(job, *measured).cells(FORTY)}, {}
    )
    assert decision.action is Action.START and decision.cell is not None
    return decision.cell.shape.gpus


def took(nodes: int, each: int, step_s: float) -> Measurement:
    gpus = nodes * each
    plan = Plan(dp=gpus, micro_batch=64 // gpus, global_batch=64, zero_stage=0)
    return Measurement(plan, Shape("a100", nodes, each), step_s, samples=9)


def test_a_job_alone_starts_no_smaller_than_it_asked_for() -> None:
    assert started(waiting()) >= 8
    assert started(waiting(Shape("a100", 4, 4))) >= 16


def test_one_that_was_measured_on_fewer_gpus_still_goes_to_what_it_asked_for() -> None:
    assert started(waiting(), took(1, 1, 0.05)) >= 8


def test_what_was_measured_there_outweighs_what_was_asked_for() -> None:
    assert started(waiting(), took(1, 1, 0.05), took(1, 4, 0.02), took(2, 4, 0.4)) < 8


def cell(gpus: int, goodput: float, pp: int = 1) -> Cell:
    return Cell(
        Shape("a100", 1, gpus), Plan(pp=pp, dp=gpus // pp, global_batch=8), goodput, 1.0, goodput, 8 / goodput, 0
    )


def test_rates_by_hand() -> None:
    cells = [cell(1, 10.0), cell(2, 12.0), cell(4, 50.0), cell(8, 40.0), cell(8, 20.0, pp=2), cell(16, 60.0)]
    # linear from one GPU, then from four; of sixteen as much more than of eight as before
    assert [c.goodput for c in at_least_linear(cells, 8, ())] == pytest.approx([10, 20, 50, 100, 50, 150])
    # what was measured counts as it is, and the rest from its rate on
    known = took(1, 2, 1.0)
    assert [c.goodput for c in at_least_linear(cells, 8, (known,))] == pytest.approx([10, 12, 50, 100, 50, 150])
    assert at_least_linear(cells, 8, (took(1, 8, 1.0), known)) == cells == at_least_linear(cells, 1, ())
    # of eight alone: four are no better
    alone = at_least_linear(cells, 8, (took(1, 8, 1.0),))
    assert [c.goodput for c in alone] == pytest.approx([10, 12, 40, 40, 20, 60])
    slower = at_least_linear(cells, 8, ())[3]
    assert slower.step_s == pytest.approx(0.2 / 2.5) and slower.throughput == pytest.approx(100)


def test_a_size_of_no_goodput_is_left_as_it_is() -> None:
    offers = [replace(cell(1, 1.0), goodput=0.0), cell(2, 1.0), replace(cell(4, 1.0), goodput=0.0), cell(8, 1.2)]
    found = at_least_linear(offers, 8, ())
    assert found[0] == offers[0] and found[2] == offers[2] and found[3].goodput == pytest.approx(4.0)


def test_a_smaller_size_is_no_better_than_the_only_measured_one() -> None:
    """Steps of one size can't tell computation from traffic: the user's request can."""
    four = Shape("h100", 1, 4)
    fast = GpuFigures("h100", 1e6, 80.0, 3000.0, 1.0, 0.1)
    measured = (Measurement(Plan(dp=4, micro_batch=2, global_batch=8), four, 2.0, 9),)
    job = replace(waiting(four), directive=Directive(), shape=four, asked=four)
    plans = JobPlanner(job, Profile(samples=9, global_batch=8, measured=measured), None, {"h100": fast})
    cells = plans.cells(Cluster((Node("n", "h100", 8),)))
    goodput = {cell.shape.gpus: cell.goodput for cell in cells}
    assert goodput[1] == pytest.approx(goodput[4]) and goodput[2] <= goodput[4]


def test_a_job_has_one_mig_slice_or_as_many_as_it_asked_for() -> None:
    cluster = Cluster((Node("n", "a100_3g.20gb", 2), Node("m", "a100_3g.20gb", 2), Node("w", "a100", 4)))

    def layouts(asked: Shape) -> dict[str, list[int]]:
        return {kind: [s.gpus for s in some] for kind, some in job_shapes(waiting(asked), cluster).items()}

    assert layouts(Shape("a100", 1, 4)) == {"a100": [1, 2, 4], "a100_3g.20gb": [1]}
    assert layouts(Shape("a100_3g.20gb", 1, 2))["a100_3g.20gb"] == [1, 2]

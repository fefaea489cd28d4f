"""Cells of jobs whose model is not known, after the steps that were measured: on small tables made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from synergy_core.exchange import EXACT, parse_exchange
from synergy_core.records import Cell, Cluster, Directive, Measurement, Node, Plan, Profile, Shape

from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.model import throughput
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.unknown_model import expected_steps_s
from tests.unit.scheduler.builders import job as made

BATCH = 6720
CLUSTER = Cluster(tuple(Node(f"n{i}", "a40", 2) for i in range(8)))
ASKED = Shape("a40", 1, 2)


def measurement(nodes: int, each: int, step_s: float, *, passes: int = 1) -> Measurement:
    gpus = nodes * each
    plan = Plan(dp=gpus, micro_batch=BATCH // gpus // passes, global_batch=BATCH, zero_stage=0)
    return Measurement(plan, Shape("a40", nodes, each), step_s, 1)


def planner(*measured: Measurement) -> JobPlanner:
    directive = Directive(global_batch=(BATCH, BATCH), max_micro_batch=BATCH)
    job = replace(made(1, 2), directive=directive, shape=ASKED, asked=ASKED)
    return JobPlanner(job, Profile(measured=measured, samples=len(measured)), None, {})


def cells(*measured: Measurement) -> dict[Shape, Cell]:
    return {cell.shape: cell for cell in planner(*measured).cells(CLUSTER)}


def test_two_cells_of_one_type_are_told_apart_after_one_report_each() -> None:
    """Eight GPUs take longer than four here, which no constants of the formula can say: it would keep the job on eight."""
    measured = (measurement(1, 2, 4.0), measurement(2, 2, 2.0), measurement(4, 2, 2.6))
    after = cells(*measured)
    for m in measured:
        assert after[m.shape].step_s == pytest.approx(m.step_s, rel=1e-6)
        assert planner(*measured).expected_step_s(m.shape, m.plan) == pytest.approx(m.step_s, rel=1e-6)
    # two GPUs of one node and of two
    apart = cells(measurement(1, 2, 4.0), measurement(2, 1, 9.0), measurement(1, 1, 4.4))
    assert (apart[Shape("a40", 1, 2)].step_s, apart[Shape("a40", 1, 1)].step_s) == pytest.approx((4.0, 4.4), rel=1e-6)


def test_a_size_that_was_not_measured_is_off_by_as_much_as_those_beside_it() -> None:
    """The formula alone is drawn to the sizes that it can explain, and promises the others half the time of those measured."""
    measured = (measurement(1, 2, 4.0), measurement(2, 2, 2.0), measurement(4, 2, 2.6))
    after = cells(*measured)
    # between four and eight GPUs, and from eight to sixteen at most as much faster as there are more
    assert 2.0 < after[Shape("a40", 3, 2)].step_s < 2.6
    assert after[Shape("a40", 8, 2)].step_s >= 0.99 * 2.6 / 2
    # what is not known stays uncertain
    assert after[Shape("a40", 8, 2)].uncertainty > 5 * after[Shape("a40", 4, 2)].uncertainty


def test_other_micro_batches_on_a_measured_shape_are_off_by_as_much() -> None:
    measured = (measurement(1, 2, 4.0), measurement(2, 2, 2.0), measurement(4, 2, 2.6))
    alone = planner(*measured)
    shape = Shape("a40", 4, 2)
    plans = [measurement(4, 2, 0.0, passes=passes).plan for passes in (1, 2)]
    one, two = (alone.expected_step_s(shape, plan) for plan in plans)
    assert one is not None and two is not None and abs(math.log(two / one)) < 0.1


def test_one_slow_measurement_is_no_rule_for_larger_sizes() -> None:
    slow = cells(measurement(1, 1, 4.0), measurement(1, 2, 4.2), measurement(2, 2, 21.0))
    assert slow[Shape("a40", 2, 2)].step_s == pytest.approx(21.0, rel=1e-6)
    assert slow[Shape("a40", 8, 2)].step_s < 0.7 * 21.0


def test_an_exchange_that_was_not_measured_is_off_by_as_much_as_the_exact_one() -> None:
    measured = (measurement(1, 2, 4.0), measurement(2, 2, 2.0), measurement(4, 2, 2.6))
    arguments = planner(*measured).to_fit()
    assert arguments is not None
    fit, gpu = throughput.fit(*arguments), figures("a40")
    counts = np.array([[8, 4, 8, BATCH // 8, 1]], dtype=np.int64).T
    less = parse_exchange("compressed:bf16", "test")
    gain = fit.model.steps_s(gpu, counts, EXACT) / fit.model.steps_s(gpu, counts, less)
    assert expected_steps_s(gpu, counts, fit) / expected_steps_s(gpu, counts, fit, less) == pytest.approx(
        gain, rel=0.02
    )


@pytest.mark.parametrize(("most", "some"), [(8, {8}), (12, {8, 12}), (200, {8, 16, 64})])
def test_micro_batches_of_a_free_batch_are_those_of_which_kernels_are_made(most: int, some: set[int]) -> None:
    """Seven samples take longer than eight on many GPUs, and the formula finds seven as good: a job would stay there."""
    directive = Directive(global_batch=(8, 512), max_micro_batch=most)
    job = replace(made(1, 4), directive=directive, shape=Shape("a40", 1, 4), asked=Shape("a40", 1, 4))
    cluster = Cluster(tuple(Node(f"n{i}", "a40", 4) for i in range(4)))
    seen = set()
    for noise in (1.0, 30.0, 130.0, 300.0, 1000.0, 1e5):
        profile = Profile(noise_scale=noise, global_batch=8)
        seen |= {cell.plan.micro_batch for cell in JobPlanner(job, profile, None, {}).cells(cluster)}
    assert some <= seen
    assert all(micro in (1, 2, 4, most) or micro % 8 == 0 for micro in seen), sorted(seen)


def test_a_narrow_range_is_used_whatever_kernels_are_made_for() -> None:
    job = replace(made(1, 1), directive=Directive(global_batch=(20, 22), max_micro_batch=64), asked=Shape("a40", 1, 1))
    cluster = Cluster((Node("n1", "a40", 2),))
    for noise in (None, 500.0):
        cells = JobPlanner(job, Profile(noise_scale=noise, global_batch=20), None, {}).cells(cluster)
        assert {cell.shape.gpus for cell in cells} == {1, 2}
        assert all(20 <= cell.plan.global_batch <= 22 for cell in cells)

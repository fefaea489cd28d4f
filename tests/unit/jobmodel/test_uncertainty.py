"""One sigma of a Cell's step time: small where the job was measured, growing with the distance from there."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from synergy_core.records import Cell, Cluster, Directive, Measurement, ModelSpec, Node, Plan, Profile, Shape

from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.model.throughput import ThroughputModel, fit
from tests.unit.scheduler.builders import job as made

# what is learnt of memory changes which plan is best: not the question here
GPU = replace(figures("a100"), memory_uncertainty=0.0)
CLUSTER = Cluster(tuple(Node(f"n{i}", "a100", 8) for i in range(8)))
ONE = Shape("a100", 1, 8)
LARGE = load_model("llama2-7b")


def cells(model: ModelSpec | None, *measured: Measurement) -> dict[int, Cell]:
    """The best Cell of each number of GPUs."""
    directive = Directive(global_batch=(256, 256), max_micro_batch=32)
    one = replace(made(1, 8), directive=directive, shape=ONE, asked=ONE)
    found = JobPlanner(one, Profile(measured=measured, samples=len(measured)), model, {"a100": GPU}).cells(CLUSTER)
    return {c.shape.gpus: c for c in sorted(found, key=lambda c: c.goodput)}


def as_predicted(cell: Cell, samples: int = 9) -> Measurement:
    return Measurement(cell.plan, cell.shape, cell.step_s, samples)


@pytest.mark.parametrize("model", [None, LARGE])
def test_one_node_says_little_of_eight(model: ModelSpec | None) -> None:
    before = cells(model)
    near = cells(model, as_predicted(before[8]))
    assert near[8].uncertainty < 0.15 and near[8].uncertainty < before[8].uncertainty / 1.5
    assert near[8].uncertainty < near[16].uncertainty <= near[64].uncertainty * 1.02
    assert near[64].uncertainty <= before[64].uncertainty * 1.01
    far = cells(model, as_predicted(before[8]), as_predicted(before[64]))
    assert far[64].uncertainty < near[64].uncertainty / 1.2
    assert min(c.uncertainty for some in (before, near, far) for c in some.values()) >= 0.03


def test_steps_that_the_formula_misses_make_it_less_sure() -> None:
    draw, model = random.Random(3), ThroughputModel()

    def of(noise: float) -> float:
        steps = []
        for gpus in (1, 2, 4, 8):
            for micro in (4, 8, 16, 32):
                shape = Shape("a100", 1, gpus)
                step_s = model.step_s(GPU, shape, gpus, micro, 1) * float(np.exp(draw.gauss(0, noise)))
                steps.append(Measurement(Plan(dp=gpus, micro_batch=micro, global_batch=gpus * micro), shape, step_s))
        counts = np.array([[8], [1], [8], [24], [1]], dtype=np.int64)
        return float(fit(tuple(steps), (GPU,) * len(steps)).sigmas(GPU, counts)[0])

    assert of(0.0) < 0.1 < of(0.4)


def test_what_was_measured_varies_by_its_noise_however_much_the_formula_misses_it() -> None:
    before = cells(None)
    near = cells(None, as_predicted(before[8]), replace(as_predicted(before[16]), step_s=5 * before[16].step_s))
    for gpus in (8, 16):
        assert near[gpus].plan == before[gpus].plan and near[gpus].uncertainty == 0.03
    assert near[64].uncertainty > 0.1

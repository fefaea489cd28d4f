"""No job waits for longer than FairnessBound allows: bursts of small jobs, and wide short ones that arrive behind them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from synergy_core.records import Shape
from synergy_sim.records import Costs, PlacedGpus, Scenario, SimulatedRun, TraceJob, build_cluster
from synergy_sim.runs import simulate
from synergy_sim.scaling_truth import ScalingTruth

from synergyd.scheduler.due_jobs import DueProblem, due_problem
from synergyd.settings import Settings

pytestmark = pytest.mark.slow

_NODES, _GPUS, _WIDE = 4, 8, 16
_COSTS = Costs()
# those that leave for it write a checkpoint and are requeued; one that started just before it was due may run for five restart costs
_HAND_OVER_S = _COSTS.resize_s + 60.0
_AT_MOST_S = 5 * _COSTS.resize_s + _HAND_OVER_S


def burst(seed: int) -> Scenario:
    """Jobs of half a node that hold all GPUs for long, and short ones that need two nodes: the first ones tell what the others take."""
    draw = random.Random(seed)

    def job(name: str, at_s: float, least: int, seconds: float) -> TraceJob:
        asked = PlacedGpus("a100", (min(least, _GPUS),) * max(1, least // _GPUS))
        truth = ScalingTruth(("a100",), seconds, asked, 64, parallel=0.99, step_s=0.5)

        def can_run(shape: Shape) -> bool:
            return least <= shape.gpus <= 2 * least

        return TraceJob(name, "burst", at_s, least, 64, truth, gpu_type="a100", can_run=can_run)

    first = [job(f"wide-{i}", 10.0 * i, _WIDE, draw.uniform(60, 140)) for i in range(2)]
    small = [job(f"small-{i}", draw.uniform(400, 700), 4, draw.uniform(2500, 4000)) for i in range(10)]
    wide = [job(f"wide-{i}", draw.uniform(800, 1500), _WIDE, draw.uniform(60, 140)) for i in range(2, 4)]
    made = sorted([*first, *small, *wide], key=lambda one: one.submit_s)
    return Scenario(tuple(made), build_cluster({"a100": (_NODES, _GPUS)}), _COSTS, lengths_known=False, seed=seed)


@pytest.fixture
def due_since(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, float]]:
    """By job id, the first epoch in which a job that had never run was due."""
    found: dict[int, float] = {}

    def watched(problem: Any, *args: Any) -> DueProblem:
        for job in problem.jobs:
            if job.current is None and job.restarts == 0 and job.overdue_s >= 0:
                found.setdefault(job.job_id, problem.now_s)
        return due_problem(problem, *args)

    monkeypatch.setattr("synergyd.scheduler.epoch_answer.due_problem", watched)
    yield found


def late_s(run: SimulatedRun, due_since: dict[int, float]) -> dict[str, float]:
    """By name, how long after it was due a job started."""
    pairs = ((run.jobs[i - 1], since_s) for i, since_s in due_since.items())
    return {result.job.name: result.start_s - since_s for result, since_s in pairs}


@pytest.mark.parametrize("seed", range(3))
def test_a_wide_job_behind_many_small_ones_starts_when_it_is_due(seed: int, due_since: dict[int, float]) -> None:
    run = simulate(burst(seed), "synergy", Settings(fairness_bound=2.0))
    late = late_s(run, due_since)
    assert any(name.startswith("wide") for name in late)
    assert max(late.values()) <= _AT_MOST_S

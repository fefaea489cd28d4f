"""Trials of uncertain sizes on idle GPUs."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from synergyd.records import Action, Cell, Decision, Job, Node, Plan, Shape, Snapshot
from synergyd.scheduler.decide import decide
from synergyd.scheduler.exploration import trial_worth
from synergyd.settings import Settings
from tests.unit.scheduler.builders import NOW, job, snapshot

NODES = tuple(Node(f"n{i}", "a100", 4) for i in range(4))


def cells(*of_sizes: tuple[int, float, float]) -> tuple[Cell, ...]:
    """(GPUs, goodput, sigma), on as few nodes as can be."""
    made = []
    for gpus, goodput, sigma in of_sizes:
        shape = Shape("a100", max(1, gpus // 4), min(gpus, 4))
        made.append(Cell(shape, Plan(dp=gpus, global_batch=gpus), goodput, 1.0, goodput, gpus / goodput, 0, sigma))
    return tuple(made)


def decided(jobs: list[Job], table: dict[int, tuple[Cell, ...]], age_s: float = 10_000.0) -> dict[int, Decision]:
    looked: Snapshot = snapshot(NODES, jobs)
    plans = {1: Plan(dp=4, global_batch=4)}
    return {d.job_id: d for d in decide(looked, Settings(), table, {}, plans, {j.job_id: age_s for j in jobs})}


RUNS = job(1, 4, ("n0",), 4)
UNCERTAIN = cells((4, 10.0, 0.03), (8, 9.5, 1.0))


def test_what_is_uncertain_is_tried_on_idle_gpus_and_nowhere_else() -> None:
    found = decided([RUNS], {1: UNCERTAIN})[1]
    assert found.action is Action.RESIZE and found.cell == UNCERTAIN[1]
    assert "Tries" in found.why and "uncertain by 100%" in found.why
    # what is known is not tried, nor what can't be much better, nor what a restart costs too much for
    assert decided([RUNS], {1: cells((4, 10.0, 0.03), (8, 9.5, 0.03))})[1].action is Action.KEEP
    assert decided([RUNS], {1: cells((4, 10.0, 0.03), (8, 1.0, 0.5))})[1].action is Action.KEEP
    assert decided([RUNS], {1: UNCERTAIN}, age_s=60.0)[1].action is Action.KEEP
    # more than twice as many at once are a leap
    assert decided([RUNS], {1: cells((4, 10.0, 0.03), (16, 9.5, 1.0))})[1].action is Action.KEEP


def test_gpus_that_others_want_are_not_for_trials() -> None:
    others = [job(i, 4, (f"n{i - 1}",), 4) for i in (2, 3, 4)]
    known = cells((4, 10.0, 0.03))
    assert decided([RUNS, *others], {1: UNCERTAIN} | dict.fromkeys((2, 3, 4), known))[1].action is Action.KEEP
    # one that waits and can't be placed wants them too
    waits = replace(job(5, 16), submit_s=NOW - 5)
    table = {1: UNCERTAIN, 2: known, 5: cells((16, 30.0, 0.03))}
    found = decided([RUNS, others[0], waits], table, age_s=100.0)
    assert found[5].action is Action.WAIT and found[1].action is Action.KEEP


def test_idle_gpus_let_a_job_start_as_it_asked_unless_it_was_measured_there() -> None:
    waits = replace(job(1, 8), asked=Shape("a100", 2, 4), shape=Shape("a100", 2, 4))
    slow = cells((4, 10.0, 0.2), (8, 3.0, 0.2))
    found = decided([waits], {1: slow})[1]
    assert found.action is Action.START and found.cell == slow[1]
    known = cells((4, 10.0, 0.2), (8, 3.0, 0.04))
    assert decided([waits], {1: known})[1].cell == known[0]
    # the GPUs are not idle: others run on them, and one more starts
    others = [job(i, 4, (f"n{i - 2}",), 4) for i in (2, 3, 4)]
    busy = decided([waits, *others], {1: slow} | dict.fromkeys((2, 3, 4), cells((4, 10.0, 0.03))))
    assert busy[1].cell == slow[0]


@pytest.mark.parametrize(("goodput", "sigma", "fallback"), [(10.0, 1.0, 9.0), (5.0, 0.4, 9.0), (20.0, 2.0, 9.0)])
def test_worth_of_a_trial_against_draws(goodput: float, sigma: float, fallback: float) -> None:
    draw = random.Random(1)
    drawn = [max(fallback, goodput * math.exp(draw.gauss(-(sigma**2) / 2, sigma))) for _ in range(200_000)]
    assert trial_worth(goodput, sigma, fallback) == pytest.approx(sum(drawn) / len(drawn), rel=0.03)
    assert trial_worth(goodput, 0.0, fallback) == max(goodput, fallback)

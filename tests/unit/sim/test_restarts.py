"""Restarts in the simulator: jobs whose starts cost different times, learnt as the daemon learns them; and none that thrashes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from synergy_sim.metrics import restart_share
from synergy_sim.records import Costs, Scenario, build_cluster
from synergy_sim.runs import simulate
from synergy_sim.simulated_forecast import OracleForecast
from synergy_sim.synergy_director import SynergyDirector
from synergy_sim.traces.generate import generate
from synergy_sim.world import World, results_in_order

from synergyd.scheduler.policies import load_policy
from synergyd.settings import Settings
from tests.unit.sim.builders import job, scenario

pytestmark = pytest.mark.slow

USUAL = Costs(first_start_s=30.0, checkpoint_s=8.0, requeue_s=2.0, start_s=20.0)
SLOW = Costs(first_start_s=260.0, checkpoint_s=60.0, requeue_s=2.0, start_s=250.0)


def test_the_director_learns_what_each_job_s_restarts_cost() -> None:
    slow = replace(job(0.0, 2, 60_000.0), name="slow", costs=SLOW)
    fast = replace(job(10.0, 2, 60_000.0), name="fast")
    short = [job(7_000.0 * (i + 1), 2, 2_000.0) for i in range(3)]
    given = scenario(slow, fast, *short, costs=USUAL)
    director = SynergyDirector(Settings(restart_cost_s=30.0), load_policy("exact"), OracleForecast(), USUAL)
    world, costs = World(given, director), {}

    def look(done: int, now_s: float) -> None:
        for tracked in director.controller.jobs.values():
            if tracked.job is not None and tracked.job.name in ("slow", "fast"):
                costs[tracked.job.name] = director.controller.restart_budgets.expected_cost(tracked, tracked.job)

    world.run(look)
    assert costs["slow"].own >= 2 and costs["fast"].own >= 2
    assert costs["slow"].mean_s == pytest.approx(SLOW.resize_s, rel=0.2)
    assert costs["fast"].mean_s == pytest.approx(USUAL.resize_s, rel=0.2)
    assert all(result.finish_s > 0 for result in results_in_order(world))


@pytest.mark.parametrize(("seed", "lengths"), [(1, True), (2, False), (3, True)])
def test_no_job_of_a_generated_trace_spends_more_than_a_tenth_of_its_life_in_restarts(seed: int, lengths: bool) -> None:
    """Jobs' costs differ by up to 20 times from what the setting says, and are not told: a job may be wrong about its first restart."""
    draws = random.Random(seed)
    jobs = []
    for made in generate("30,2", "a100", 16, 4, seed):
        start_s = 20.0 * draws.choice((0.5, 1, 3, 10))
        jobs.append(replace(made, costs=Costs(start_s, draws.choice((1.0, 8.0, 40.0)), 2.0, start_s)))
    given = Scenario(tuple(jobs), build_cluster({"a100": (4, 4)}), USUAL, lengths_known=lengths, seed=seed)
    run = simulate(given, "synergy")
    assert sum(result.restarts for result in run.jobs) > 10
    for result in run.jobs:
        share = restart_share(result, USUAL)
        assert share <= 0.1 or result.restarts <= 1, (result.job.name, share, result.restarts)


def test_a_setting_that_lets_them_thrash_is_what_holds_them_back() -> None:
    """A job may be wrong about its first restart, as above. What a tenth of the time saved pays for comes on top of a tenth of its life."""
    jobs = [replace(made, costs=SLOW) for made in generate("30,2", "a100", 16, 4, 4)]
    given = Scenario(tuple(jobs), build_cluster({"a100": (4, 4)}), SLOW, seed=4)
    worst = [
        max(
            restart_share(r, SLOW)
            for r in simulate(given, "synergy", Settings(restart_share=share)).jobs
            if r.restarts > 1
        )
        for share in (0.1, 1.0)
    ]
    assert worst[0] <= 0.15 < worst[1]

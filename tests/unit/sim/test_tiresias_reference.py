"""Tiresias as the reference plays it, on hand-worked queues."""

from __future__ import annotations

from synergy_sim.records import JobResult, Scenario
from synergy_sim.tiresias_reference import TiresiasReference
from synergy_sim.world import World, results_in_order

from tests.unit.sim.builders import job, scenario


def run(given: Scenario, start_s: float = 0.0) -> tuple[World, tuple[JobResult, ...]]:
    world = World(given, TiresiasReference(start_s))
    world.run()
    return world, results_in_order(world)


def test_small_jobs_pass_a_big_one_that_does_not_fit() -> None:
    # a (3 of 4 GPUs) until 160; b wants 4; c (1 GPU) starts beside a at once and b once both are done
    _, (a, b, c) = run(scenario(job(0.0, 3, 300.0), job(1.0, 4, 40.0), job(2.0, 1, 20.0)))
    assert (a.finish_s, c.start_s, b.start_s, b.finish_s) == (160.0, 60.0, 180.0, 190.0)


def test_placements_take_from_the_emptiest_node_and_may_be_uneven() -> None:
    world, _ = run(scenario(job(0.0, 6, 60.0), job(1.0, 1, 10.0), nodes=2))
    assert [h.nodes for h in sorted(world.occupancies, key=lambda h: h.job)] == [
        (("a100-0", 4), ("a100-1", 2)),
        (("a100-1", 1),),
    ]


def test_after_sixteen_gpu_hours_a_job_stands_behind_newer_ones() -> None:
    # a on 4 GPUs is demoted after 4 hours of rounds: at 60 + 14400. b came long before that and then takes the node:
    # 400 GPU s on 4 GPUs, to 14560; a goes on at the next round, 14580, with the 30 s of a start
    a, b = run(scenario(job(0.0, 4, 4 * 15_000.0), job(100.0, 4, 400.0)), start_s=30.0)[1]
    assert b.start_s == 14_460.0
    assert b.finish_s == 14_460 + 30 + 100
    assert a.restarts == 1
    done = 14_460 - 90
    assert a.finish_s == 14_640 + 30 + (15_000 - done)


def test_jobs_that_end_within_a_round_free_their_gpus_at_the_next() -> None:
    _, (a, b) = run(scenario(job(0.0, 4, 40.0), job(1.0, 4, 40.0)))
    assert (a.finish_s, b.start_s) == (70.0, 120.0)

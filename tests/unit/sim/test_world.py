"""The simulator's world: two and three jobs whose times are worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Plan
from synergy_sim.records import Costs, JobResult, Outage, Scenario
from synergy_sim.world import World, results_in_order

from tests.unit.sim.builders import FirstFit, job, scenario


def run(given: Scenario, director: FirstFit | None = None) -> tuple[World, tuple[JobResult, ...]]:
    world = World(given, director or FirstFit())
    world.run()
    return world, results_in_order(world)


def test_one_job_starts_at_the_first_epoch_and_ends_on_the_second() -> None:
    # 4 GPUs, 400 GPU s: from 60 to 160
    world, (only,) = run(scenario(job(5.0, 4, 400.0)))
    assert (only.start_s, only.finish_s, only.jct_s) == (60.0, 160.0, 155.0)
    assert (only.gpu_s, only.idle_s, only.restarts) == (400.0, 0.0, 0)
    assert world.occupancies[0].gpus == 4


def test_an_arrival_at_an_epochs_instant_takes_part_in_it() -> None:
    _, (only,) = run(scenario(job(60.0, 1, 10.0)))
    assert only.start_s == 60.0


def test_an_epoch_comes_early_for_an_arrival() -> None:
    """Slurm's count is seen within a twelfth of 60 s; two early ones are a sixth apart."""
    director = FirstFit()
    world = World(scenario(job(100.0, 1, 100.0), job(101.0, 1, 10.0), job(106.0, 1, 10.0)), director, early=True)
    world.run()
    assert [one.start_s for one in results_in_order(world)] == [105.0, 105.0, 115.0]
    assert director.epochs[:4] == [105.0, 115.0, 120.0, 180.0]


def test_starts_cost_time_on_the_gpus() -> None:
    _, (only,) = run(scenario(job(0.0, 2, 100.0)), FirstFit(delay_s=30.0))
    assert only.finish_s == 60 + 30 + 50
    assert (only.gpu_s, only.idle_s) == (160.0, 30.0)


def test_a_job_keeps_its_gpus_for_a_while_after_its_last_step() -> None:
    # 4 GPUs, 400 GPU s from 60 to 160; b could start at the epoch at 180, when a still ends
    costs = Costs(0.0, 0.0, 0.0, 0.0, end_s=30.0)
    _, (a, b) = run(scenario(job(0.0, 4, 400.0), job(1.0, 4, 40.0), costs=costs))
    assert (a.finish_s, a.gpu_s, a.idle_s) == (190.0, 520.0, 30.0)
    assert (b.start_s, b.finish_s) == (240.0, 280.0)


def test_three_jobs_queue_for_one_node() -> None:
    # a holds 3 of 4 GPUs from 60 to 160, b (2 GPUs) has to wait for the epoch at 180, c (1 GPU) runs beside a
    _, (a, b, c) = run(scenario(job(0.0, 3, 300.0), job(1.0, 2, 100.0), job(2.0, 1, 50.0)))
    assert (a.finish_s, b.start_s, b.finish_s, c.finish_s) == (160.0, 180.0, 230.0, 110.0)


def test_no_epoch_while_nobody_is_there() -> None:
    director = FirstFit()
    run(scenario(job(0.0, 4, 4.0), job(10_000.0, 4, 4.0)), director)
    assert director.epochs[0] == 60.0
    assert len([t for t in director.epochs if 200 < t < 10_000]) == 0
    assert director.epochs[-1] == 10_020.0


def test_stages_are_told_before_the_pace_changes() -> None:
    director = FirstFit()
    _, (only,) = run(scenario(job(0.0, 2, 120.0, stages=3)), director)
    assert director.paces == [(80.0, 2.0), (100.0, 2.0), (120.0, 2.0)]
    assert only.finish_s == 120.0


def test_whole_seconds_round_each_stage() -> None:
    # 3 stages of 20.4 s each on one GPU: 20 + 20 + 20
    _, (only,) = run(scenario(job(0.0, 1, 61.2, stages=3), whole_seconds=True))
    assert only.finish_s == pytest.approx(120.0)
    _, (exact,) = run(scenario(job(0.0, 1, 61.2, stages=3)))
    assert exact.finish_s == pytest.approx(121.2)


def test_what_is_rounded_down_into_an_epoch_frees_its_gpus_after_it() -> None:
    # a ends at 120.4, rounded to 120: the epoch at 120 must not see its GPU free yet
    _, (_, b) = run(scenario(job(0.0, 1, 60.4), job(1.0, 1, 5.0), gpus=1, whole_seconds=True))
    assert b.start_s == 180.0
    # rounded up into it, it must
    _, (_, b) = run(scenario(job(0.0, 1, 59.6), job(1.0, 1, 5.0), gpus=1, whole_seconds=True))
    assert b.start_s == 120.0


def test_a_failed_node_costs_what_was_done_since_the_last_checkpoint() -> None:
    # 1000 GPU s from 60; own checkpoints every 100 s, at 160 and 260; the node is away from 285 to 290: 25 s are lost
    given = scenario(job(0.0, 1, 1000.0), outages=(Outage("a100-0", 285.0, 290.0),), checkpoint_every_s=100.0)
    _, (only,) = run(given)
    assert only.restarts == 1
    assert only.finish_s == 300 + (1000 - 200)
    assert only.gpu_s == pytest.approx(225 + 800)


def test_a_pause_is_idle_time_and_a_resume_goes_on() -> None:
    world = World(scenario(job(0.0, 2, 100.0)), FirstFit())
    world.schedule_call(80.0, 3, lambda: world.pause(world.jobs[1]))
    world.schedule_call(95.0, 3, lambda: world.resume(world.jobs[1]))
    world.run()
    only = results_in_order(world)[0]
    assert (only.finish_s, only.idle_s) == (125.0, 15.0)


def test_another_batch_keeps_progress() -> None:
    world = World(scenario(job(0.0, 2, 100.0)), FirstFit())
    plan = Plan(dp=2, micro_batch=64, global_batch=128, zero_stage=0)
    world.schedule_call(80.0, 3, lambda: world.replan(world.jobs[1], plan))
    world.run()
    assert results_in_order(world)[0].finish_s == 110.0


def test_a_trace_that_can_never_run_out_is_an_error_and_not_a_result() -> None:
    with pytest.raises(UsageError, match=r"trace.csv:2: never starts under this policy"):
        run(scenario(job(0.0, 5, 10.0), epoch_s=86400.0))


def test_the_same_scenario_gives_the_same_results() -> None:
    given = scenario(*[job(float(i), 1 + i % 3, 100.0 + i) for i in range(20)], costs=Costs())
    assert run(given)[1] == run(replace(given))[1]


def test_progress_is_reported_each_hour_though_no_job_ends() -> None:
    reports: list[tuple[int, float]] = []
    world = World(scenario(job(0.0, 4, 4 * 4 * 3600.0)), FirstFit())
    world.run(lambda done, now_s: reports.append((done, now_s)))
    assert [done for done, _ in reports] == [0, 0, 0, 0, 1]
    assert all(after - before >= 3600.0 for (_, before), (done, after) in pairwise(reports) if not done)

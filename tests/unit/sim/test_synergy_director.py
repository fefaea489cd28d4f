"""Synergy in the simulator: the lifecycle's times by hand, and what decides what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Cell, Measurement, Plan, Profile, Shape
from synergy_sim.records import Costs, JobResult, Outage, Scenario, TrainingSpeed, build_cluster, requested_shape
from synergy_sim.runs import RIGID, policies, simulate
from synergy_sim.simulated_forecast import LearntForecast, OracleForecast, make_directive, queued_job
from synergy_sim.simulated_slurm import SimulatedSlurm
from synergy_sim.synergy_director import SynergyDirector
from synergy_sim.world import SimulatedJob, World, results_in_order

from synergyd.control.controller import Controller
from synergyd.control.resize.events import CheckpointTaken, ControlEvent
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState
from synergyd.control.tracked import TrackedJob
from synergyd.daemon.forecast import Forecast
from synergyd.scheduler.policies import load_policy
from synergyd.settings import Settings
from synergyd.settings.policies import POLICIES
from tests.unit.sim.builders import Linear, job, scenario

COSTS = Costs(first_start_s=30.0, checkpoint_s=8.0, requeue_s=2.0, start_s=20.0)


def run(given: Scenario, policy: str = "exact") -> tuple[World, SynergyDirector, tuple[JobResult, ...]]:
    settings = Settings(restart_cost_s=given.costs.resize_s)
    director = SynergyDirector(settings, load_policy(policy), OracleForecast(), given.costs, policy == "fifo")
    world = World(given, director)
    world.run()
    return world, director, results_in_order(world)


def test_a_job_alone_gets_the_node_at_the_first_epoch() -> None:
    _, director, (only,) = run(scenario(job(5.0, 2, 400.0), costs=COSTS))
    assert (only.start_s, only.finish_s, only.idle_s) == (60.0, 60 + 30 + 100, 30.0)
    assert director.controller.jobs == {}
    assert len(director.decisions_s) == 3


def test_a_job_that_waited_starts_a_grant_after_the_decision_and_a_resized_one_does_not() -> None:
    costs = replace(COSTS, grant_s=3.0)
    world, _, (a, b) = run(scenario(job(0.0, 2, 40_000.0), job(3590.0, 2, 200.0), costs=costs))
    held = [(h.start_s, h.end_s, h.gpus) for h in world.occupancies if h.job == 1]
    assert (a.start_s, held[0], held[1][0]) == (63.0, (63.0, 3608.0, 4), 3610.0)
    # decided at 3600, and told to Slurm once a's GPUs were free
    assert b.start_s == 3613.0
    assert b.finish_s == 3613 + 30 + 100


@pytest.mark.slow
def test_a_newcomer_makes_a_running_job_shrink_by_the_lifecycles_steps() -> None:
    # a has the node's 4 GPUs from 60 (trains from 90). b comes: at 3600 a is asked for its checkpoint, requeued at 3608,
    # starts on 2 GPUs at 3610, trains from 3630. b's GPUs were not free at 3600, so it starts at 3610 too
    world, _, (a, b) = run(scenario(job(0.0, 2, 40_000.0), job(3590.0, 2, 200.0), costs=COSTS))
    held = [(h.start_s, h.end_s, h.gpus) for h in world.occupancies if h.job == 1]
    assert held[:2] == [(60.0, 3608.0, 4), (3610.0, held[1][1], 2)]
    assert (b.start_s, b.finish_s, b.restarts) == (3610.0, 3610 + 30 + 100, 0)
    # b is done at 3740: at 3780 a may grow again, and does if that is worth a restart
    assert a.restarts == 2
    assert held[1][1] == 3780.0 + 8
    trained = 4 * (3600 - 90) + 2 * (3780 - 3630)
    assert a.finish_s == pytest.approx(3790 + 20 + (40_000 - trained) / 4)
    assert a.idle_s == 30 + 2 * 28


def test_whole_nodes_leave_and_join_a_running_job_without_a_requeue() -> None:
    # as above with nodes in place of GPUs: asked at 3600, a's processes start on one node at 3608 and train from 3613; b gets the
    # other at 3610, when those there have ended. b is done at 3690. At 3720 the node joins a within a second, and after its
    # checkpoint it trains there from 3734
    live = replace(COSTS, live_s=5.0)
    world, _, (a, b) = run(scenario(job(0.0, 4, 40_000.0), job(3590.0, 4, 200.0), nodes=2, costs=live))
    held = [(h.start_s, h.end_s, h.gpus) for h in world.occupancies if h.job == 1]
    assert held[:4] == [(60.0, 3608.0, 8), (3608.0, 3610.0, 8), (3610.0, 3720.0, 4), (3720.0, 3729.0, 8)]
    assert (b.start_s, b.finish_s, b.restarts) == (3610.0, 3610 + 30 + 50, 0)
    assert (a.restarts, a.idle_s) == (2, 30 + 2 * 13)
    trained = 8 * (3600 - 90) + 4 * (3721 - 3613)
    assert a.finish_s == pytest.approx(3734 + (40_000 - trained) / 8)
    assert a.gpu_s == pytest.approx(sum((end - start) * gpus for start, end, gpus in held))
    assert world.free == {"a100-0": 4, "a100-1": 4}


def test_a_job_whose_joining_node_fails_starts_again_on_the_other() -> None:
    live = replace(COSTS, live_s=5.0)
    given = scenario(job(0.0, 4, 40_000.0), job(3590.0, 4, 200.0), nodes=2, costs=live)
    outages = (Outage("a100-1", 3725.0, 90_000.0),)  # while its checkpoint is awaited
    world, _, (a, b) = run(replace(given, outages=outages))
    assert (a.restarts, b.restarts) == (2, 0)  # the first change, and the requeue that the failure made
    assert sum(node.gpus for node in given.cluster.nodes) == sum(world.free.values())


@dataclass(frozen=True)
class Whole(Linear):
    """Runs on 4 GPUs or not at all."""

    def plans(self, shape: Shape, batch: int | None = None) -> tuple[Plan, ...]:
        return super().plans(shape, batch) if shape.gpus == 4 else ()


@pytest.mark.slow
def test_a_long_job_that_can_not_shrink_makes_way_for_a_short_one_and_goes_on_where_it_was() -> None:
    # a trains from 90 to 3600, is asked for its checkpoint and gone at 3608; b starts at 3610 and ends at 3690; a has its GPUs
    # again at 3720 and trains from 3740
    long, short = (replace(job(at, 4, work), truth=Whole(work)) for at, work in ((0.0, 40_000.0), (3590.0, 200.0)))
    _, _, (a, b) = run(scenario(long, short, costs=COSTS))
    assert (b.start_s, b.finish_s) == (3610.0, 3610 + 30 + 50)
    assert a.restarts == 1 and a.finish_s == pytest.approx(3720 + 20 + 10_000 - 3510)
    settings = Settings(preemption=False, restart_cost_s=COSTS.resize_s)
    kept = World(
        scenario(long, short, costs=COSTS), SynergyDirector(settings, load_policy("exact"), OracleForecast(), COSTS)
    )
    kept.run()
    assert results_in_order(kept)[0].restarts == 0 and results_in_order(kept)[1].start_s > 10_000


def test_a_failed_node_and_a_new_start() -> None:
    given = scenario(
        job(0.0, 4, 4000.0), nodes=2, costs=COSTS, outages=(Outage("a100-0", 100.0, 5000.0),), checkpoint_every_s=1e9
    )
    world, _, (only,) = run(given, "fifo")
    # 10 s of training are lost; the other node takes it at the next epoch
    assert only.restarts == 1
    assert only.finish_s == 120 + 20 + 1000
    assert [h.nodes[0][0] for h in world.occupancies] == ["a100-0", "a100-1"]


def test_fifo_keeps_sizes_and_order() -> None:
    _, _, (a, b, c) = run(scenario(job(0.0, 4, 400.0), job(1.0, 2, 100.0), job(2.0, 1, 50.0)), "fifo")
    assert (a.start_s, b.start_s, c.start_s) == (60.0, 180.0, 180.0)
    assert a.restarts == b.restarts == c.restarts == 0


def test_a_learnt_profile_comes_from_reports_alone() -> None:
    given = scenario(job(0.0, 2, 4000.0), costs=COSTS)
    forecast = LearntForecast(seed=1)
    director = SynergyDirector(Settings(restart_cost_s=30.0), load_policy("exact"), forecast, COSTS)
    world = World(given, director)
    seen = []
    world.schedule_call(200.0, 3, lambda: seen.append(director.controller.profiles[1]))
    world.run()
    profile = seen[0]
    # it trains from 90: 3 reports by 120 and 6 by 180
    assert profile.samples == 9
    held = world.occupancies[0].gpus
    assert profile.measured[0].step_s == pytest.approx(1.0 / held, rel=0.03)
    assert director.controller.profiles == {}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run() -> None:
    given = scenario(*[job(7.0 * i, 1 + i % 4, 3000.0) for i in range(6)], nodes=2, costs=COSTS)
    assert simulate(given, "synergy").jobs == simulate(given, "synergy").jobs


@pytest.mark.slow
def test_every_policy_finishes_every_job() -> None:
    given = scenario(*[job(7.0 * i, (1, 2, 4)[i % 3], 3000.0) for i in range(6)], nodes=2, costs=COSTS)
    for name in policies():
        found = simulate(given, name)
        assert [r.job for r in found.jobs] == list(given.jobs), name
        # no GPU is held by two at once, and the cluster's are not exceeded
        events = sorted(
            [(h.end_s, 0, -h.gpus) for h in found.occupancies] + [(h.start_s, 1, h.gpus) for h in found.occupancies]
        )
        used = 0
        for _, _, change in events:
            used += change
            assert 0 <= used <= given.gpus, name


def test_a_size_that_the_cluster_cannot_hold_is_told_before_anything_runs() -> None:
    with pytest.raises(UsageError, match=r"trace.csv:2: 9 GPUs of type a100 can't be held by the cluster \(8 a100\)"):
        simulate(scenario(job(0.0, 9, 10.0), nodes=2), "fifo")


def test_the_shape_asked_for_is_even_over_the_fewest_nodes() -> None:
    cluster = build_cluster({"a100": (3, 4)})
    for gpus, want in ((3, (1, 3)), (6, (2, 3)), (8, (2, 4)), (9, (3, 3))):
        found = requested_shape(job(0.0, gpus, 1.0), cluster)
        assert found is not None and (found.nodes, found.gpus_per_node) == want
    assert requested_shape(job(0.0, 7, 1.0), cluster) is None


def test_plans_of_the_oracle_are_the_truths() -> None:
    given = scenario(job(0.0, 2, 400.0))
    world, director = (
        World(given, SynergyDirector(Settings(), load_policy("fifo"), OracleForecast(), given.costs)),
        OracleForecast(),
    )
    offers: list[Cell] = []
    world.schedule_call(65.0, 3, lambda: offers.extend(_cells(world, director)))
    world.run()
    assert {(c.shape.gpus, c.goodput) for c in offers} == {(1, 64.0), (2, 128.0), (4, 256.0)}
    assert all(isinstance(c.plan, Plan) and c.efficiency == 1.0 for c in offers)


def _cells(world: World, oracle: OracleForecast) -> tuple:  # type: ignore[type-arg]
    live = world.jobs[1]
    director = world.director
    assert isinstance(director, SynergyDirector)
    return oracle.cells(live, director._job(world, live), Profile(), None, world.scenario.cluster).cells


def test_a_simulated_job_reports_as_its_launcher_would() -> None:
    made = job(0.0, 4, 40_000.0)
    live = SimulatedJob(
        1, made, plan=Plan(dp=4, micro_batch=16, global_batch=64), pace=TrainingSpeed(4.0, 0.5, 100.0), ready_s=30.0
    )
    asked = queued_job(live, scenario(made).cluster, rigid=False)
    forecast = LearntForecast()
    (begun,) = forecast.reports(live, asked, 31.0)
    assert begun.step_s is None and begun.noise_scale is None
    assert forecast.reports(live, asked, 31.4) == ()
    (first,) = forecast.reports(live, asked, 31.5)  # three steps
    assert first.step_s == pytest.approx(0.5, rel=0.1) and first.noise_scale == pytest.approx(100.0, rel=0.1)
    assert forecast.reports(live, asked, 41.0) == ()
    assert len(forecast.reports(live, asked, 62.0)) == 3  # at 41.5, 51.5, 61.5
    assert len(forecast.reports(live, asked, 63.0, stops=True)) == 1
    live.ready_s, asked = 100.0, replace(asked, restarts=1)
    assert len(forecast.reports(live, asked, 145.0)) == 5  # nobody asked before: at 101.5 and each 10 s


def test_a_user_s_own_plan_is_in_the_directive() -> None:
    own = Plan(tp=2, pp=1, dp=2, micro_batch=1, global_batch=64)
    mine = replace(job(0.0, 4, 1.0), plan=own, plan_fixed=True, max_micro_batch=8)
    said = make_directive(mine, rigid=False)
    assert (said.tp, said.pp, said.micro_batch, said.max_micro_batch, said.global_batch) == (2, 1, 1, None, (64, 64))
    assert make_directive(replace(mine, plan_fixed=False), rigid=False).tp is None


def test_policies_of_fixed_sizes_keep_the_batch_that_was_asked_for_too() -> None:
    fixed = {name for name in POLICIES if load_policy(name).sizes_fixed}
    assert "backfill" in fixed and fixed <= RIGID


def test_daemon_and_simulator_offer_a_job_the_same_cells() -> None:
    cluster = build_cluster({"a100": (3, 4)})
    live = SimulatedJob(1, replace(job(0.0, 4, 400.0), model="gpt2"))
    queued = queued_job(live, cluster, rigid=False)
    plan = Plan(dp=4, micro_batch=4, global_batch=64, zero_stage=0)
    measured = Profile(samples=4, speed=0.8, measured=(Measurement(plan, queued.asked, 0.3, 4),), global_batch=64)
    for profile, present in ((Profile(), None), (measured, plan)):
        simulated = LearntForecast().cells(live, queued, profile, present, cluster)
        assert simulated.cells and simulated == Forecast(Settings()).cells(queued, profile, present, cluster)


def test_a_checkpoint_counts_as_a_new_one_although_reports_name_none() -> None:
    """The count began anew with a report between two changes without a requeue: the second change waited for ever."""
    tracked = TrackedJob(lifecycle=JobLifecycle(7, 0.0, state=ResizeState.CHECKPOINTING, acks_at_request=1))
    assert tracked.checkpoints_taken == 0
    controller = SimpleNamespace(jobs={7: tracked})
    events: list[ControlEvent] = []
    slurm = SimulatedSlurm(
        Costs(), cast(Controller, controller), lambda _, event: events.append(event), cast(Any, None)
    )
    slurm._finish_checkpoint(cast(World, SimpleNamespace(jobs={})), 7, 0)
    assert events == [CheckpointTaken(7, 0, 2)]

"""Yardsticks: lower bounds and fairness against numbers worked out by hand, and against every schedule tried."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from synergy_core.records import Cluster
from synergy_sim.ideal import Ideals, compute_lower_bound, schedule_one_machine
from synergy_sim.metrics import cluster_throughput, compute_metrics, energy_kwh, fairness
from synergy_sim.placement_truth import BATCH, PlacementTruth, Times
from synergy_sim.records import Costs, Scenario, SimulatedRun, TraceJob, build_cluster
from synergy_sim.runs import simulate
from synergy_sim.tiresias_reference import TiresiasReference
from synergy_sim.world import World, results_in_order

from tests.unit.sim.builders import job, scenario


def test_srpt_on_one_machine() -> None:
    # a: 10 s at 0; b: 2 s at 1 takes over; c: 3 s at 2: a has 9 left, b 1, so b, c, a
    ends, _ = schedule_one_machine([0.0, 1.0, 2.0], [10.0, 2.0, 3.0], by_remaining=True)
    assert ends == [15.0, 3.0, 6.0]


def test_mean_busy_times_go_by_whole_lengths() -> None:
    # a of 4 s has 1 s left when b of 2 s comes at 3: by whole length b still goes first
    ends, middles = schedule_one_machine([0.0, 3.0], [4.0, 2.0], by_remaining=False)
    assert ends == [6.0, 5.0]
    assert middles == [(1.5 * 3 + 5.5 * 1) / 4, 4.0]
    ends, _ = schedule_one_machine([0.0, 3.0], [4.0, 2.0], by_remaining=True)
    assert ends == [4.0, 6.0]


def test_bounds_of_two_jobs() -> None:
    # 4 GPUs; a: 400 GPU s, b: 80 GPU s on at most 1 GPU; no costs
    found = scenario(job(0.0, 4, 400.0), job(0.0, 1, 80.0, most=1))
    bound = compute_lower_bound(found, Ideals(found))
    assert bound.alone_s == (100 + 80) / 2
    assert bound.work_s == (20 + 120) / 2
    # busy times: b from 0 to 20, mean 10, then half of its own 80 s; a from 20 to 120, mean 70, and half of 100 s
    assert bound.both_s == pytest.approx((10 + 40 + 70 + 50) / 2)
    assert bound.average_s == 90


def test_a_start_is_part_of_the_bound() -> None:
    found = scenario(job(0.0, 4, 400.0), costs=Costs(first_start_s=30.0))
    assert compute_lower_bound(found, Ideals(found)).alone_s == 130


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@example([(1.0000000000000002, 1, 1.0, 1)])
@given(
    st.lists(
        st.tuples(st.floats(0, 500), st.sampled_from([1, 2, 4]), st.floats(1, 2000), st.sampled_from([1, 2, 4])),
        min_size=1,
        max_size=8,
    )
)
def test_no_schedule_beats_the_bound(jobs: list[tuple[float, int, float, int]]) -> None:
    rows = [job(s, g, w, most=m) for s, g, w, m in sorted(jobs, key=lambda j: j[0])]
    found = scenario(*rows, costs=Costs(first_start_s=10.0), epoch_s=1.0)
    world = World(found, TiresiasReference(10.0))
    world.run()
    results = results_in_order(world)
    bound = compute_lower_bound(found, Ideals(found))
    assert sum(r.jct_s for r in results) / len(results) >= bound.average_s - 1e-6


def test_cluster_throughput_and_energy_by_hand() -> None:
    # a: 2 GPUs asked for, from 60 to 260; b, submitted at 300, has them all
    found = scenario(job(0.0, 2, 400.0), job(300.0, 2, 800.0))
    ideals = Ideals(found)
    rates = ideals.requested_rates(found.jobs[0])
    assert rates is not None and rates.tolist() == [2.0]
    run = simulate(found, "fifo", ideals=ideals)
    one = compute_metrics(run, ideals)
    assert one.throughput_jobs == pytest.approx(200 / 300)
    assert one.energy_kwh == pytest.approx(400 * (400 + 800) / 3.6e6)  # an A100: 400 W
    assert cluster_throughput(replace(run, scenario=scenario(job(0.0, 2, 400.0)))) is None
    assert energy_kwh(replace(run, scenario=replace(found, cluster=cluster_named(found, "odd")))) is None


def cluster_named(given: Scenario, gpu_type: str) -> Cluster:
    """The same nodes with GPUs of another type."""
    return Cluster(tuple(replace(node, gpu_type=gpu_type) for node in given.cluster.nodes))


def test_metrics_and_fairness_by_hand() -> None:
    # both want the whole node: a from 60 to 160, b from 180 to 280
    found = scenario(job(0.0, 4, 400.0), job(0.0, 4, 400.0))
    world = World(found, TiresiasReference(0.0))
    world.run()
    run = SimulatedRun("tiresias", found, results_in_order(world), tuple(world.occupancies), wall_s=2.0)
    one = compute_metrics(run, Ideals(found))
    assert (one.jobs, one.finished, one.avg_jct_s, one.median_jct_s, one.makespan_s) == (2, 2, 220.0, 220.0, 280.0)
    assert one.p99_jct_s == pytest.approx(160 + 0.99 * 120)
    assert one.avg_queueing_s == (60 + 180) / 2
    assert one.gpu_hours == pytest.approx(800 / 3600)
    assert one.utilisation == pytest.approx(800 / (4 * 280))
    assert one.efficiency == 1.0
    # a: two jobs were there while it was: alone on 2 GPUs it takes 200 s. b: (2 * 160 + 120) / 280 jobs on average
    share = 4 / ((2 * 160 + 120) / 280)
    assert share == pytest.approx(2.545, abs=1e-3)
    assert fairness(run.jobs, found.cluster, Ideals(found)) == [160 / 200, 280 / 200]
    assert (one.worst_ftf, one.unfair_share) == (1.4, 0.5)
    # with a start of 50 s each alone takes 250 s
    assert fairness(run.jobs, found.cluster, Ideals(found), 50.0) == [160 / 250, 280 / 250]


def test_a_fair_share_of_several_types_is_no_share_of_the_best() -> None:
    """6 GPUs for one job: alone on the slow ones it takes 100 s, on the fast ones 25 s; two of three GPUs are slow ones."""
    cluster = build_cluster({"t4": (1, 4), "a100": (1, 2)})
    times = Times({"t4": {(1,): 1.0, (2,): 1.0, (4,): 1.0}, "a100": {(1,): 0.25, (2,): 0.25}})
    ideal = Ideals(Scenario((), cluster)).find_ideal(TraceJob("a", "net", 0.0, 1, BATCH, PlacementTruth(times, 100.0)))
    assert ideal is not None
    assert ideal.seconds(6.0, {"t4": 4, "a100": 2}) == pytest.approx((2 * 100 + 25) / 3)
    assert ideal.alone_s == 25.0 and ideal.fastest.tolist() == [4.0]
    # a type that can't run it has no part in it
    small = Times({"a100": {(2,): 0.25}})
    only = Ideals(Scenario((), cluster)).find_ideal(TraceJob("b", "net", 0.0, 2, BATCH, PlacementTruth(small, 100.0)))
    assert only is not None and only.seconds(1.0, {"t4": 4, "a100": 2}) == pytest.approx(50.0)

"""Dally on examples worked by hand: who comes first, who is stopped, and who holds out for which nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.restarts import RestartBudget, RestartCost
from synergy_sim.policies.dally import DallyPolicy, network_score
from synergy_sim.policies.nearest import nearest_tier

from synergyd.scheduler.placement.place import make_placement_requests, place
from synergyd.scheduler.problem.delays import LEASE_S, DelayHistory, Tier, Wait
from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, NodeFilter, Problem, Progress
from tests.unit.scheduler.builders import ask, cell, sized

ROOMS = tuple(NodeCapacity(f"n{i}", "a100", 4, leaf="xxyy"[i]) for i in range(4))
NOW = 50_000.0
COST = RestartBudget(cost=RestartCost(mean_s=60.0))
BUSY = tuple(sized(i, 4, None, (name,), restart=COST) for i, name in ((8, "n1"), (9, "n3")))  # one node of each leaf
LEASED = dict.fromkeys(range(5, 30), NOW - 10.0)


def wide(job_id: int, nodes: int = 2, **changes: object) -> JobRequest:
    return ask(job_id, (cell(8.0, nodes, 4),), nodes * 4, **changes)


def problem(*jobs: JobRequest, waited: float = 0.0, **delays: object) -> Problem:
    """At NOW; the jobs that wait have waited for so many leases."""
    history = DelayHistory({job.job_id: NOW - waited * LEASE_S for job in jobs if job.current is None})
    return Problem(jobs, ROOMS, now_s=NOW, delays=replace(history, **{"running": LEASED, **delays}))  # type: ignore[arg-type]


def nodes_of(asked: Problem) -> dict[int, tuple[str, ...]]:
    return place(asked.nodes, make_placement_requests(asked, DallyPolicy().allocate(asked))).nodes


def test_the_nearest_tier_is_that_of_the_empty_cluster() -> None:
    assert nearest_tier(ROOMS, cell(1.0, 1, 4).shape, NodeFilter()) is Tier.NODE
    assert nearest_tier(ROOMS, cell(1.0, 2, 4).shape, NodeFilter()) is Tier.LEAF
    assert nearest_tier(ROOMS, cell(1.0, 3, 4).shape, NodeFilter()) is Tier.ACROSS
    assert nearest_tier(ROOMS, cell(1.0, 2, 4).shape, NodeFilter(excluded_nodes=("n0", "n3"))) is Tier.ACROSS


def test_a_wide_job_holds_out_for_one_leaf_until_its_timer_ends() -> None:
    assert 1 not in nodes_of(problem(*BUSY, wide(1), waited=11.9))
    assert nodes_of(problem(*BUSY, wide(1), waited=12))[1] == ("n0", "n2")
    assert nodes_of(problem(BUSY[0], wide(1)))[1] == ("n2", "n3")  # a leaf is free: at once
    # like jobs lately waited for longer
    long = (Wait(NOW, 8, Tier.LEAF, 15 * LEASE_S),)
    assert 1 not in nodes_of(problem(*BUSY, wide(1), waited=12, waits=long))
    assert nodes_of(problem(*BUSY, wide(1), waited=15, waits=long))[1] == ("n0", "n2")


def test_one_that_no_leaf_could_hold_starts_at_once() -> None:
    assert nodes_of(problem(BUSY[0], wide(1, 3)))[1] == ("n0", "n2", "n3")


def test_a_job_whose_lease_is_over_makes_way_inside_the_leaf() -> None:
    found = nodes_of(problem(*BUSY, wide(1), waited=1, running={}))
    assert found[1] == ("n0", "n1") and found[8] == ("n2",) and found[9] == ("n3",)


def test_while_one_holds_out_those_behind_it_start() -> None:
    assert nodes_of(problem(*BUSY, wide(1), sized(2, 4, None), waited=5)).keys() == {2, 8, 9}


def test_a_small_job_holds_out_for_one_node_then_for_one_leaf() -> None:
    small = ask(1, (cell(4.0, 1, 4), cell(3.0, 2, 2)), 4)
    halves = [sized(5 + i, 2, None, (f"n{i}",), restart=COST) for i in range(4)]
    assert 1 not in nodes_of(problem(*halves, small, waited=5))
    assert nodes_of(problem(*halves, small, waited=6))[1] == ("n0", "n1")
    assert nodes_of(problem(*halves[1:], small))[1] == ("n0",)
    # across leaves only after the second timer
    apart = [*halves, *(sized(i, 2, None, (name,), restart=COST) for i, name in ((20, "n0"), (21, "n2")))]
    assert 1 not in nodes_of(problem(*apart, small, waited=6))
    assert nodes_of(problem(*apart, small, waited=12))[1] == ("n1", "n3")


def test_the_score_is_the_time_without_communication_over_the_time_run() -> None:
    sends = replace(cell(2.0, 2, 4), sync_s=0.25)  # of a step of 1 s
    runs = ask(1, (sends,), 8, current=0, nodes=("n0", "n1"))
    # 300 sequences at 2 a second take 150 s, without what they send 112.5 s; it has run for 200 s on 8 GPUs
    known = replace(runs, progress=Progress(attained_gpu_s=1600.0, trained_sequences=300.0))
    assert network_score(known) == pytest.approx(112.5 / 200)
    assert network_score(replace(known, progress=Progress(attained_gpu_s=1600.0))) == 0.75
    assert network_score(runs) == 0.0
    # it has run and says that it has done nothing: no reason to come before all others for good
    assert network_score(replace(known, progress=Progress(attained_gpu_s=1600.0, trained_sequences=0.0))) == 0.75


def test_the_job_that_the_network_slows_most_is_stopped_last() -> None:
    def runs(job_id: int, name: str, done: float) -> JobRequest:
        return sized(
            job_id, 4, None, (name,), progress=Progress(attained_gpu_s=4000.0, trained_sequences=done), restart=COST
        )

    jobs = [runs(5, "n0", 900.0), runs(6, "n1", 1800.0), runs(7, "n2", 1000.0), runs(8, "n3", 1100.0)]
    since = {job.job_id: NOW - 400.0 for job in jobs}
    # two sequences a second: all have run for 1000 s, job 6 at nine tenths of its pace
    assert nodes_of(problem(*jobs, sized(1, 4, None), running=since)).keys() == {1, 5, 7, 8}
    # it has its GPUs for less than five restart costs: the next one is stopped
    assert nodes_of(problem(*jobs, sized(1, 4, None), running={**since, 6: NOW - 299.0})).keys() == {1, 5, 6, 7}

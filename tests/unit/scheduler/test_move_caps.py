"""Bounds on how many running jobs change at once: what gains most goes first, the others wait and say so."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from synergy_core.node_needs import NodeNeeds, Room
from synergy_core.reasons import text_reason
from synergy_core.records import Action, Decision, Node, Snapshot

from synergyd.scheduler.move_caps import MoveCaps, within_caps
from synergyd.scheduler.problem.records import NodeCapacity, Problem
from synergyd.settings import Settings
from tests.unit.scheduler.builders import Cells, ask, cell, cells, job, node, snapshot
from tests.unit.scheduler.epochs import decide

GOOD = cells(1.0, 1.9, 3.6)  # 1, 2, 4 GPUs
BETTER = cells(1.0, 1.99, 3.97)
ALONE = cells(1.0)  # 1 GPU
OLD = {i: 1e7 for i in range(1, 10)}  # restarts cost them nothing
SETTINGS = Settings(restart_cost_s=60.0)


def decided(
    snap: Snapshot, offers: dict[int, Cells], caps: MoveCaps, settings: Settings = SETTINGS
) -> dict[int, Decision]:
    answer = {d.job_id: d for d in decide(snap, settings, offers, {}, ages_s=OLD, caps=caps)}
    held: dict[str, int] = {}
    for each in answer.values():
        for name in each.node_names:
            held[name] = held.get(name, 0) + (each.cell.shape.gpus_per_node if each.cell else 0)
    assert all(held.get(n.name, 0) <= n.gpus for n in snap.cluster.nodes), held  # handed out once
    return answer


def growing() -> tuple[Snapshot, dict[int, Cells]]:
    """Three jobs on two GPUs, each of which would grow to the four of its node; the second gains most."""
    jobs = [job(i, nodes=(f"n{i}",), gpus=2) for i in (1, 2, 3)]
    return snapshot([node(f"n{i}") for i in (1, 2, 3)], jobs), {1: GOOD, 2: BETTER, 3: GOOD}


def test_without_bounds_all_change_and_with_one_the_best_does() -> None:
    snap, offers = growing()
    free = decided(snap, offers, MoveCaps())
    assert [free[i].action for i in (1, 2, 3)] == [Action.RESIZE] * 3
    found = decided(snap, offers, MoveCaps(most=1))
    assert [found[i].action for i in (1, 2, 3)] == [Action.KEEP, Action.RESIZE, Action.KEEP]
    waits = found[1]
    assert waits.node_names == ("n1",) and waits.cell == GOOD[1] and dict(waits.worth).keys() == {"goodput"}
    assert "would change to 4 a100 GPUs on n1, and waits" in waits.why and "MaxResizes" in waits.why
    assert found[2] == free[2]


def test_those_under_way_count() -> None:
    snap, offers = growing()
    assert {d.action for d in decided(snap, offers, MoveCaps(most=2, under_way=2)).values()} == {Action.KEEP}
    found = decided(snap, offers, MoveCaps(most=2, under_way=1))
    assert [found[i].action for i in (1, 2, 3)] == [Action.KEEP, Action.RESIZE, Action.KEEP]


def test_a_need_does_not_wait_and_counts() -> None:
    snap, offers = growing()
    found = decided(snap, offers, MoveCaps(most=1, urgent_jobs=frozenset({3})))
    assert [found[i].action for i in (1, 2, 3)] == [Action.KEEP, Action.KEEP, Action.RESIZE]


@pytest.mark.parametrize(
    ("rates", "writing", "changes"),
    [
        ({1: 3.0, 2: 6.0, 3: 3.0}, 0.0, {1, 2}),  # the best, and one beside it: 9 of 10
        ({1: 3.0, 2: 6.0, 3: 3.0}, 2.0, {2}),
        ({1: 3.0, 2: 6.0, 3: 3.0}, 8.0, set()),
        ({1: 3.0, 2: 20.0, 3: 3.0}, 0.0, {2}),  # too fast for the bound, so alone
        ({1: 3.0, 3: 3.0}, 0.0, {2}),  # not known: alone
        ({1: 3.0, 3: 3.0}, 1.0, {1, 3}),  # and not beside another
    ],
)
def test_checkpoints_stay_below_what_the_file_system_takes(
    rates: dict[int, float], writing: float, changes: set[int]
) -> None:
    snap, offers = growing()
    found = decided(snap, offers, MoveCaps(write_gib_s=10.0, writing_gib_s=writing, rates_gib_s=rates))
    assert {i for i, d in found.items() if d.action is Action.RESIZE} == changes
    assert all("MaxCheckpointGiBps" in d.why for d in found.values() if d.action is Action.KEEP)


def shrinking(waiting: int) -> tuple[Snapshot, dict[int, Cells]]:
    """Jobs 1 and 2 have a node each; `waiting` jobs of one GPU arrive."""
    jobs = [job(1, nodes=("n1",), gpus=4), job(2, nodes=("n2",), gpus=4)]
    jobs += [job(3 + i, asked=1) for i in range(waiting)]
    return snapshot([node("n1"), node("n2")], jobs), {1: GOOD, 2: GOOD, **{3 + i: ALONE for i in range(waiting)}}


def test_a_start_waits_with_the_job_that_is_to_leave_its_gpus() -> None:
    snap, offers = shrinking(1)
    free = decided(snap, offers, MoveCaps())
    assert free[3].action is Action.START
    (giver,) = (i for i in (1, 2) if free[i].action is Action.RESIZE)
    found = decided(snap, offers, MoveCaps(most=1, under_way=1))
    assert found[3].action is Action.WAIT and not found[3].node_names
    assert found[giver].action is Action.KEEP and found[giver].cell == GOOD[2]
    assert f"waits for the GPUs of job {giver}, which can't change yet" in found[3].why
    assert decided(snap, offers, MoveCaps(most=1)) == free


def test_a_start_on_free_gpus_does_not_wait() -> None:
    snap, offers = shrinking(1)
    roomy = replace(snap, cluster=replace(snap.cluster, nodes=(*snap.cluster.nodes, node("n3", gpus=1))))
    found = decided(roomy, offers, MoveCaps(most=1, under_way=1))
    assert (found[3].action, found[3].node_names) == (Action.START, ("n3",))


def test_nobody_shrinks_for_a_job_that_waits_all_the_same() -> None:
    """Two shrink for four that wait; one may: the others' GPUs stay with the other job."""
    snap, offers = shrinking(4)
    free = decided(snap, offers, MoveCaps())
    assert [free[i].action for i in (1, 2)] == [Action.RESIZE] * 2
    found = decided(snap, offers, MoveCaps(most=1))
    (stays,) = (i for i in (1, 2) if found[i].action is Action.KEEP)
    starts = [d for i, d in found.items() if i >= 3 and d.action is Action.START]
    assert len(starts) == 2 and all(d.node_names == (f"n{3 - stays}",) for d in starts)


def test_what_needs_more_than_the_bound_at_once_is_begun_in_part() -> None:
    """A job of two whole nodes needs both to leave; with one at a time, one leaves now."""
    jobs = [job(1, nodes=("n1",), gpus=4), job(2, nodes=("n2",), gpus=4), job(3, asked=4)]
    wide = tuple(replace(c, shape=replace(c.shape, nodes=2, gpus_per_node=2)) for c in cells(9.0))
    snap, offers = snapshot([node("n1"), node("n2")], jobs), {1: GOOD, 2: GOOD, 3: wide}
    free = decided(snap, offers, MoveCaps())
    assert [free[i].action for i in (1, 2, 3)] == [Action.RESIZE, Action.RESIZE, Action.START]
    found = decided(snap, offers, MoveCaps(most=1))
    assert sorted(found[i].action.value for i in (1, 2)) == ["keep", "resize"]
    assert found[3].action is Action.WAIT and "waits for the GPUs of jobs 1, 2" in found[3].why


def test_cpus_that_a_job_has_to_leave_count_as_its_gpus_do() -> None:
    """The node has a free GPU, but its CPUs are all with job 1, which is to shrink."""
    needs = NodeNeeds(cpus_per_gpu=2)
    cpu_node = Node("n1", "a100", 6, room=Room(8, 0), used=Room(8, 0))
    jobs = [job(1, nodes=("n1",), gpus=4, needs=needs), job(2, asked=1, needs=needs)]
    snap, offers = snapshot([cpu_node], jobs), {1: GOOD, 2: ALONE}
    assert decided(snap, offers, MoveCaps())[2].action is Action.START
    found = decided(snap, offers, MoveCaps(most=1, under_way=1))
    assert (found[1].action, found[2].action) == (Action.KEEP, Action.WAIT)


def test_what_a_limit_leaves_once_a_job_has_shrunk_is_not_taken_before() -> None:
    """On another type of GPUs: no node is shared, the limit is."""
    four = replace(SETTINGS, partition_limits={"main": 4})
    h100 = cells(1.0, 1.9, 3.6, kind="h100")
    waits = replace(job(2, partition="main"), shape=h100[2].shape, asked=h100[2].shape)
    snap = snapshot([node("n0"), node("n1", kind="h100")], [job(1, nodes=("n0",), gpus=4, partition="main"), waits])
    offers = {1: GOOD, 2: h100}
    assert [d.action for d in decided(snap, offers, MoveCaps(), four).values()] == [Action.RESIZE, Action.START]
    found = decided(snap, offers, MoveCaps(most=1, under_way=1), four)
    assert [found[i].action for i in (1, 2)] == [Action.KEEP, Action.WAIT]
    assert "waits for the GPUs of job 1, which can't change yet" in found[2].why
    assert [d.action for d in decided(snap, offers, MoveCaps(most=1), four).values()] == [Action.RESIZE, Action.START]


def test_jobs_leave_a_node_that_drains_one_after_another() -> None:
    """None is handed out there, and nobody needs what they leave."""
    offers = (cell(1.0, gpus=2), cell(6.0, gpus=4))
    jobs = [job(i, nodes=("n0",), gpus=2) for i in (1, 2)]
    snap = snapshot([node("n0", up=False), node("n1"), node("n2")], jobs)
    found = decided(snap, {1: offers, 2: offers}, MoveCaps(most=1))
    assert sorted(d.action.value for d in found.values()) == ["keep", "resize"]


def test_a_growth_that_waits_for_a_node_to_power_up_takes_no_slot() -> None:
    wide = (cell(3.6, gpus=4, kind="h100"), cell(7.9, nodes=2, gpus=4, kind="h100"))
    runs = replace(job(1, nodes=("h0",), gpus=4), shape=wide[0].shape, asked=wide[0].shape)
    asleep = Node("h1", "h100", 4, up=False, wakeable=True, wake_s=30.0)
    snap = snapshot([node("h0", kind="h100"), asleep, node("n0")], [runs, job(2, nodes=("n0",), gpus=2)])
    found = decided(snap, {1: wide, 2: GOOD}, MoveCaps(most=1))
    assert [found[i].node_names for i in (1, 2)] == [("h0", "h1"), ("n0",)]
    assert {d.action for d in found.values()} == {Action.RESIZE}
    full = decided(snap, {1: wide, 2: GOOD}, MoveCaps(most=1, under_way=1))
    assert [full[i].action for i in (1, 2)] == [Action.RESIZE, Action.KEEP]


def test_a_change_finds_those_that_leave_beside_nodes_that_sleep() -> None:
    """Job 1 would have half of two nodes: job 2 is to leave one of them, the other sleeps."""
    offers = (cell(1.0, gpus=2), cell(9.0, nodes=2, gpus=2))
    jobs = (
        ask(1, offers, current=0, nodes=("n1",)),
        ask(2, GOOD, current=2, nodes=("n3",)),
    )
    nodes = (NodeCapacity("n1", "a100", 2), NodeCapacity("n2", "a100", 0), NodeCapacity("n3", "a100", 4))
    found = [
        Decision(1, Action.RESIZE, offers[1], ("n2", "n3"), text_reason(""), worth=(("goodput", 2.0),)),
        Decision(2, Action.RESIZE, GOOD[1], ("n3",), text_reason(""), worth=(("goodput", -9.0),)),
    ]
    problem = Problem(jobs, nodes)
    full = within_caps(found, problem, MoveCaps(most=1, under_way=1))
    assert [d.action for d in full] == [Action.KEEP, Action.KEEP] and "job 2 would change" in full[0].why
    assert within_caps(found, problem, MoveCaps(most=1)) == tuple(found)


@pytest.mark.parametrize("seed", range(20))
def test_no_limit_is_broken_whatever_has_to_wait(seed: int) -> None:
    rnd = random.Random(seed)
    nodes = [node(f"n{i}") for i in range(6)]
    jobs = [job(i, nodes=(f"n{i}",), gpus=rnd.choice([2, 4]), partition="main") for i in range(4)]
    jobs += [job(i, asked=rnd.choice([1, 2, 4]), partition="main") for i in range(4, 9)]
    offers = {j.job_id: cells(1.0, rnd.uniform(1.1, 2), rnd.uniform(2, 4)) for j in jobs}
    limit = sum(j.shape.gpus for j in jobs[:4]) + rnd.choice([0, 1, 2])
    caps = MoveCaps(most=rnd.choice([1, 2]), under_way=rnd.choice([0, 1]))
    found = decided(snapshot(nodes, jobs), offers, caps, replace(SETTINGS, partition_limits={"main": limit}))
    assert sum(d.cell.shape.gpus for d in found.values() if d.cell) <= limit

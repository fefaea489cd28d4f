"""Placement over GPUs, CPUs, memory and named nodes together: nothing lies where Slurm would not start it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.node_needs import NodeNeeds, Room
from synergy_core.reasons import text_reason
from synergy_core.records import Action, Decision, Job, Node, Shape, Snapshot

from synergyd.control.resize.gpus_free import gpus_free
from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.place import PlacementRequest, place
from synergyd.scheduler.problem.from_snapshot import node_capacities
from synergyd.scheduler.problem.records import NodeCapacity, NodeFilter
from synergyd.settings import Settings
from synergyd.settings.policies import POLICIES
from tests.unit.scheduler.builders import Cells, ask, cell, cells, job, node, snapshot
from tests.unit.scheduler.epochs import decide

GOOD = cells(1.0, 1.9, 3.6)  # 1, 2, 4 GPUs of one node
WIDE = (*GOOD, cell(7.0, 2, 4), cell(10.0, 3, 4))
SETTINGS = Settings(restart_cost_s=60.0, max_weight=1000.0)
FULL = Room(64, 64_000)


def roomy(name: str, cpus: int = 0, memory: int = 0, total: Room = FULL, **changes: Any) -> Node:
    """A node with so much of its CPUs and memory in use."""
    return replace(node(name), room=total, used=Room(cpus, memory), **changes)


def run(nodes: list[Node], *jobs: Job, offers: Cells = GOOD, policy: str = "synergy") -> dict[int, Decision]:
    found = decide(snapshot(nodes, jobs), replace(SETTINGS, policy=policy), {j.job_id: offers for j in jobs}, {})
    return {d.job_id: d for d in found}


# -- what Slurm was seen to refuse --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_an_excluded_node_is_never_named(policy: str) -> None:
    found = run([node("n1"), node("n2")], job(1, exclude=("n1",)), policy=policy)[1]
    assert found.node_names == ("n2",)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_nodes_asked_for_by_name_are_among_those_named(policy: str) -> None:
    found = run([node("n1"), node("n2")], job(1, nodelist=("n2",)), policy=policy)[1]
    assert found.node_names == ("n2",)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_node_whose_cpus_are_taken_is_passed_over(policy: str) -> None:
    needs = NodeNeeds(cpus=8)
    found = run([roomy("n1", cpus=60), roomy("n2")], job(1, needs=needs), policy=policy)[1]
    assert found.node_names == ("n2",)


# -- beside it ------------------------------------------------------------------------------------------------------------


def test_growing_beyond_the_named_node_keeps_it() -> None:
    found = run([node(f"n{i}") for i in range(4)], job(1, nodelist=("n3",)), offers=WIDE)[1]
    assert found.cell == WIDE[4] and "n3" in found.node_names
    two = run([node(f"n{i}") for i in range(4)], job(1, nodelist=("n1", "n3")), offers=WIDE[:4])[1]
    assert set(two.node_names) == {"n1", "n3"}


def test_fewer_nodes_than_are_named_are_no_answer() -> None:
    busy = [node("n1", used=4), node("n2")]
    found = run(busy, job(1, nodelist=("n1", "n2")), offers=WIDE)[1]
    assert found.action is Action.WAIT


def test_memory_and_cpus_of_a_gpu_bound_its_size() -> None:
    nodes = [roomy("n1", memory=40_000), roomy("n2", memory=50_000)]
    found = run(nodes, job(1, needs=NodeNeeds(cpus_per_gpu=1, memory_per_gpu_mib=7_000)))[1]
    assert found.cell is not None and (found.cell.shape.gpus, found.node_names) == (2, ("n2",)), "the tighter fit"


def test_who_waits_for_cpus_is_told_so() -> None:
    found = run([roomy("n1", cpus=60)], job(1, needs=NodeNeeds(cpus=8)))[1]
    assert found.action is Action.WAIT and "have the CPUs, memory and the like free" in found.why
    halved = run([roomy("n1")], job(1, needs=NodeNeeds(cpus_per_gpu=20)))[1]
    assert halved.cell == GOOD[1] and "CPUs, memory and the like free" in halved.alternatives[0].why_not


def test_two_jobs_share_a_node_only_as_far_as_its_cpus_go() -> None:
    needs = NodeNeeds(cpus=40)
    found = run([roomy("n1"), roomy("n2")], job(1, needs=needs), job(2, needs=needs), job(3, needs=needs))
    started = [d.node_names for d in found.values() if d.action is Action.START]
    assert sorted(started) == [("n1",), ("n2",)]


def test_whole_nodes_go_to_one_job_and_only_empty_ones() -> None:
    needs = NodeNeeds(cpus=1, whole_nodes=True)
    nodes = [roomy("n1", cpus=1), roomy("n2"), roomy("n3")]
    found = run(nodes, job(1, needs=needs), job(2, needs=NodeNeeds(cpus=1)), job(3, needs=needs))
    assert {found[1].node_names, found[3].node_names} == {("n2",), ("n3",)} and found[2].node_names == ("n1",)


def test_a_running_job_may_always_stay() -> None:
    # the job holds all CPUs in use, and more than its needs say
    held = roomy("n1", cpus=64, memory=64_000)
    running = job(1, nodes=("n1",), gpus=4, needs=NodeNeeds(cpus=32, whole_memory=True))
    assert run([held], running)[1].action is Action.KEEP
    assert run([replace(held, up=False)], running)[1].action is Action.KEEP


def test_its_own_cpus_count_as_free_when_it_grows() -> None:
    running = job(1, nodes=("n1",), gpus=2, needs=NodeNeeds(cpus_per_gpu=16))
    found = run([roomy("n1", cpus=32)], running)[1]
    assert found.cell is not None and found.cell.shape.gpus == 4


def test_several_nodes_lie_in_one_partition() -> None:
    nodes = [replace(node(f"n{i}"), partitions=("a" if i < 2 else "b",)) for i in range(5)]
    found = run(nodes, job(1, partition="a,b"), offers=WIDE)[1]
    assert found.cell == WIDE[4] and set(found.node_names) == {"n2", "n3", "n4"}
    assert run(nodes[:4], job(1, partition="a,b"), offers=WIDE)[1].cell == WIDE[3]


def test_partition_limits_cap_the_size() -> None:
    nodes = [roomy(f"n{i}") for i in range(4)]
    assert run(nodes, job(1, max_nodes=2), offers=WIDE)[1].cell == WIDE[3]
    capped = NodeNeeds(cpus_per_gpu=4, max_cpus=8)
    assert run(nodes, job(1, needs=capped), offers=WIDE)[1].cell == GOOD[1]


def test_types_of_one_node_share_its_cpus() -> None:
    nodes = [roomy("n1", total=Room(10, 64_000)), roomy("n1", total=Room(10, 64_000), gpu_type="v100")]
    both = (*GOOD, *cells(0.9, 1.7, 3.5, kind="v100"))
    found = run(nodes, job(1, needs=NodeNeeds(cpus=6)), job(2, needs=NodeNeeds(cpus=6)), offers=both)
    assert sorted(d.action for d in found.values()) == [Action.START, Action.WAIT]
    found = run(nodes, job(1, needs=NodeNeeds(cpus=5)), job(2, needs=NodeNeeds(cpus=5)), offers=both)
    assert {d.cell.shape.gpu_type for d in found.values() if d.cell} == {"a100", "v100"}
    assert [d.node_names for d in found.values()] == [("n1",), ("n1",)]
    second = job(3, nodes=("n1",), gpus=4, needs=NodeNeeds(cpus=10))
    second = replace(second, shape=Shape("v100", 1, 4))
    busy = [replace(nodes[0], used=Room(10)), replace(nodes[1], used=Room(10), gpus_used=4)]
    snap = Snapshot(0.0, snapshot(busy, []).cluster, (second,))
    assert decide(snap, SETTINGS, {3: both}, {})[0].action is Action.KEEP


def test_nothing_is_started_before_its_cpus_are_free() -> None:
    waits = job(1, needs=NodeNeeds(cpus=8))
    start = Decision(1, Action.START, GOOD[2], ("n1",), text_reason(""))
    assert gpus_free(start, snapshot([roomy("n1")], [waits]))
    assert not gpus_free(start, snapshot([roomy("n1", cpus=60)], [waits]))
    whole = replace(waits, needs=NodeNeeds(whole_nodes=True))
    assert not gpus_free(start, snapshot([roomy("n1", cpus=1)], [whole]))


def test_gpus_that_no_job_could_have_are_not_handed_out() -> None:
    waits = job(1, needs=NodeNeeds(cpus=8))
    snap = snapshot([roomy("n1", cpus=60), roomy("n2", cpus=40)], [waits])
    found = node_capacities(snap, [ask(1, GOOD, needs=NodeNeeds(cpus=4, cpus_per_gpu=8))])
    assert [n.free for n in found] == [0, 3]


def test_a_node_that_is_barred_is_barred_with_all_its_types_of_gpus() -> None:
    second = NodeCapacity("n1:v100", "v100", 2, host="n1")
    assert second.admits(NodeFilter()) and not second.admits(NodeFilter(excluded_nodes=("n1",)))
    assert not second.admits(NodeFilter(excluded_nodes=("n1:v100",))) and second.admits(
        NodeFilter(excluded_nodes=("n2",))
    )


# -- any problem ----------------------------------------------------------------------------------------------------------

NEEDS = st.builds(
    NodeNeeds,
    cpus=st.integers(0, 12),
    cpus_per_gpu=st.integers(0, 4),
    memory_mib=st.integers(0, 60),
    memory_per_gpu_mib=st.integers(0, 20),
    whole_memory=st.sampled_from([False, False, False, True]),
    whole_nodes=st.sampled_from([False, False, False, True]),
    gres=st.sampled_from([(), (), (("nic", 1),)]),
)
NAMES = [f"n{i}" for i in range(5)]


def filters(rnd: random.Random) -> NodeFilter:
    barred = tuple(sorted(rnd.sample(NAMES, rnd.randint(0, 2))))
    rest = [n for n in NAMES if n not in barred]
    return NodeFilter(
        rnd.choice(["", "p", "p,q"]), "", barred, tuple(sorted(rnd.sample(rest, rnd.choice([0, 0, 1, 2]))))
    )


def capacity(name: str, rnd: random.Random) -> NodeCapacity:
    total = Room(16, 100, (("nic", 2),))
    room = total if rnd.random() < 0.6 else Room(rnd.randint(0, 16), rnd.randint(0, 100), (("nic", rnd.randint(0, 2)),))
    partitions = rnd.choice([(), ("p",), ("q",), ("p", "q")])
    return NodeCapacity(name, "a100", rnd.randint(0, 4), partitions, room=room, total=total, threads=rnd.choice([1, 2]))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.lists(NEEDS, min_size=1, max_size=8))
def test_no_placement_takes_more_than_there_is_nor_what_is_forbidden(seed: int, needs: list[NodeNeeds]) -> None:
    rnd = random.Random(seed)
    nodes = [capacity(name, rnd) for name in NAMES]
    asked = [
        PlacementRequest(i, Shape("a100", rnd.choice([1, 1, 2, 3]), rnd.randint(1, 4)), filters(rnd), needs=need)
        for i, need in enumerate(needs)
    ]
    found = place(nodes, asked)
    by_name = {n.name: n for n in nodes}
    for request in asked:
        names = found.nodes.get(request.job_id)
        if names is None:
            assert request.job_id in found.unplaced_reasons
            continue
        assert len(set(names)) == len(names) == request.shape.nodes
        assert set(request.node_filter.required_nodes) <= set(names) and not set(
            request.node_filter.excluded_nodes
        ) & set(names)
        assert all(by_name[n].admits(request.node_filter) for n in names)
        assert request.node_filter.allows(names, {n.name: n.partitions for n in nodes})
    for n in nodes:
        here = [r for r in asked if n.name in found.nodes.get(r.job_id, ())]
        room = n.room or Room()
        for r in here:
            room = room.plus(r.needs.room_for(r.shape.gpus_per_node, n.threads, n.total.memory_mib), -1)
            if r.needs.whole_nodes:
                assert here == [r] and n.is_untouched
        assert room.has_room_for(Room()) and all(count >= 0 for _, count in room.gres)
        assert sum(r.shape.gpus_per_node for r in here) <= n.free


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.lists(NEEDS, min_size=1, max_size=6))
def test_giving_back_undoes_taking(seed: int, needs: list[NodeNeeds]) -> None:
    rnd = random.Random(seed)
    nodes = [capacity(name, rnd) for name in NAMES]
    bins = FreeGpus(nodes)
    before, room = dict(bins.free), dict(bins._room)
    taken = []
    for need in needs:
        shape = Shape("a100", rnd.choice([1, 2]), rnd.randint(1, 3))
        counted = bins.count(shape, NodeFilter("p"), needs=need)
        names = bins.pick(shape, NodeFilter("p"), needs=need)
        assert (counted >= shape.nodes) == (names is not None)
        if names is not None:
            bins.take(names, shape.gpus_per_node, need)
            assert bins.count(shape, NodeFilter("p"), names, shape.gpus_per_node, need) >= shape.nodes
            taken.append((names, shape.gpus_per_node, need))
    for names, gpus, need in reversed(taken):
        bins.give(names, gpus, need)
    assert (bins.free, bins._room) == (before, room)

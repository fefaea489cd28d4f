"""Rows for CPUs and memory: none where they are plenty, and where they are scarce what is allocated finds its place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.node_needs import NodeNeeds, Room
from synergy_core.records import Action, Node, Shape

from synergyd.scheduler import epoch_answer
from synergyd.scheduler.epoch_answer import solve
from synergyd.scheduler.placement.place import PlacementRequest, make_placement_requests, place
from synergyd.scheduler.problem.records import NodeCapacity, Problem
from synergyd.scheduler.problem.room_rows import room_rows
from synergyd.scheduler.synergy_policy import SynergyPolicy
from synergyd.settings import Settings
from tests.unit.scheduler.builders import ask, cells, job, snapshot
from tests.unit.scheduler.test_decide import run

GOOD = cells(1.0, 1.9, 3.6)  # 1, 2, 4 GPUs
EACH = Room(32, 64_000)  # of a node


def node(name: str, kind: str = "a100") -> NodeCapacity:
    return NodeCapacity(name, kind, 4, room=EACH, total=EACH)


def rows(needs: NodeNeeds, *nodes: NodeCapacity) -> list[tuple[str, str, float]]:
    jobs = [ask(i, GOOD, needs=needs) for i in (1, 2)]
    return [(row.name, row.unit, row.most) for row in room_rows(jobs, nodes or (node("n1"), node("n2")))]


def test_there_are_none_where_all_gpus_can_be_used() -> None:
    for needs in (NodeNeeds(), NodeNeeds(cpus=8), NodeNeeds(cpus_per_gpu=8, memory_per_gpu_mib=16_000)):
        assert rows(needs) == []
    assert rows(NodeNeeds(cpus=99), replace(node("n1"), room=None)) == []  # it is not known what it has
    assert rows(NodeNeeds(cpus=99), replace(node("n1", "h100"))) == []  # no job can have its GPUs


def test_they_count_in_what_goes_with_a_gpu() -> None:
    assert rows(NodeNeeds(cpus_per_gpu=16)) == [("a100", "CPUs", 8.0)]
    assert rows(NodeNeeds(memory_mib=40_000)) == [("a100", "MiB", 8.0)]
    assert rows(NodeNeeds(cpus=9, memory_per_cpu_mib=4_000)) == [("a100", "CPUs", 8.0), ("a100", "MiB", 8.0)]
    one = ask(1, GOOD, needs=NodeNeeds(cpus_per_gpu=16, cpus=24))
    (row,) = room_rows([one], [node("n1"), node("n2")])
    assert [row.use(one, i) for i in (None, 0, 1, 2)] == [0.0, 3.0, 4.0, 8.0]  # 24, 32 and 64 CPUs of 8 a GPU
    whole = ask(1, GOOD, needs=NodeNeeds(whole_nodes=True))
    assert [row.use(whole, 0) for row in room_rows([whole], [node("n1")])] == [4.0, 4.0]


def test_running_jobs_are_never_beyond_them() -> None:
    holds = ask(1, GOOD, needs=NodeNeeds(cpus_per_gpu=16), current=2, nodes=("n1",))
    (row,) = room_rows([holds], [node("n1")])
    assert row.most == row.use(holds, 2) == 8.0


def test_what_jobs_hold_of_nodes_that_drain_is_not_charged_to_the_others() -> None:
    needs = NodeNeeds(cpus_per_gpu=16)
    drains = [replace(node(name), free=0) for name in ("d1", "d2")]
    stays = [ask(i, GOOD, needs=needs, current=1, nodes=(n.name,)) for i, n in enumerate(drains)]
    waits = [ask(i, GOOD, needs=needs) for i in (7, 8)]
    (row,) = room_rows([*stays, *waits], [node("n1"), node("n2"), *drains])
    assert row.most - sum(row.use(job, 1) for job in stays) == 8.0 == sum(row.use(job, 1) for job in waits)
    wide = replace(GOOD[2], shape=Shape("a100", 2, 2))
    half = ask(1, (*GOOD, wide), needs=needs, current=3, nodes=("d1", "n1"))
    (row,) = room_rows([half], [node("n1"), *drains])
    assert row.most == 4.0 + row.use(half, 3) / 2


def scarce(jobs: int, nodes: int) -> Problem:
    """Every other job takes half of a node's CPUs with its first GPU, the others a quarter of a node with each."""
    needs = (NodeNeeds(cpus=16), NodeNeeds(cpus_per_gpu=8), NodeNeeds(cpus_per_gpu=12))
    offers = [ask(i, cells(1.0, 1.9 - i % 7 / 50, 3.6 - i % 5 / 9), needs=needs[i % 3]) for i in range(1, jobs + 1)]
    all_nodes = tuple(node(f"n{i}") for i in range(nodes))
    return Problem(tuple(offers), all_nodes, room=room_rows(offers, all_nodes))


def test_with_them_the_answer_is_better_and_holds_on_every_node() -> None:
    problem, policy = scarce(60, 12), SynergyPolicy(exact_columns=0)
    assert problem.room
    seen, blind = solve(problem, policy), solve(replace(problem, room=()), policy)
    assert seen.allocation.objective >= blind.allocation.objective
    assert not seen.placement.unplaced_reasons
    taken = {n.name: (0, 0) for n in problem.nodes}
    for i, cell, _ in seen.allocation.assignments(problem):
        for name in seen.placement.nodes[problem.jobs[i].job_id]:
            gpus, cpus = taken[name]
            own = problem.jobs[i].needs.room_for(cell.shape.gpus_per_node)
            taken[name] = gpus + cell.shape.gpus_per_node, cpus + own.cpus
    assert all(gpus <= 4 and cpus <= 32 for gpus, cpus in taken.values())


def test_most_of_what_is_allocated_is_placed() -> None:
    def failed(problem: Problem) -> int:
        requests: list[PlacementRequest] = make_placement_requests(
            problem, SynergyPolicy(exact_columns=0).allocate(problem)
        )
        return len(place(problem.nodes, requests).unplaced_reasons)

    problem = scarce(300, 60)
    assert failed(problem) <= failed(replace(problem, room=())) / 2


def test_the_exact_program_knows_them_too() -> None:
    """One node; two jobs with half of its CPUs each beat one with all of its GPUs."""
    hungry = [job(i, asked=1, needs=NodeNeeds(cpus=16)) for i in (1, 2, 3)]
    there = Node("n1", "a100", 4, room=Room(32, 0))
    found = run(snapshot([there], hungry), dict.fromkeys((1, 2, 3), GOOD), Settings())
    assert sorted(found[i].action for i in (1, 2, 3)) == [Action.START, Action.START, Action.WAIT]


def test_whatever_can_not_be_repaired_every_job_with_a_cell_has_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, policy = scarce(120, 20), SynergyPolicy(exact_columns=0)
    # a repair that places nothing of what it keeps
    monkeypatch.setattr(epoch_answer, "_without_unplaceable", lambda _, allocated: replace(allocated, objective=1e9))
    found = solve(problem, policy)
    assert {problem.jobs[i].job_id for i, _, _ in found.allocation.assignments(problem)} == found.placement.nodes.keys()
    assert found.allocation.objective < 1e9

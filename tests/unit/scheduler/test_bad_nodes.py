"""Nodes with a penalty: taken last, taken where nothing better pays; a job leaves a node that holds it up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from synergy_core.records import Action, Cell, Decision, Job, Node, Snapshot

from synergyd.scheduler.epoch_answer import solve, weigh_bad_nodes
from synergyd.scheduler.policies import load_policy
from synergyd.scheduler.problem.records import NodeCapacity, Problem
from synergyd.settings import Settings
from tests.unit.scheduler.builders import ask, cell, cells, job, node, snapshot
from tests.unit.scheduler.epochs import decide

SETTINGS = Settings(restart_cost_s=60.0)


def decided(seen: Snapshot, offers: Mapping[int, tuple[Cell, ...]], **penalties: float) -> dict[int, Decision]:
    found = decide(replace(seen, penalties=penalties), SETTINGS, offers, {})
    return {d.job_id: d for d in found}


def test_a_bad_node_is_taken_last() -> None:
    seen = snapshot([node("n1"), node("n2"), node("n3")], [job(1), job(2)])
    offers = {i: (cell(4.0, gpus=4),) for i in (1, 2)}
    assert {decided(seen, offers)[i].node_names for i in (1, 2)} == {("n1",), ("n2",)}
    found = decided(seen, offers, n1=0.6)
    assert {found[i].node_names for i in (1, 2)} == {("n2",), ("n3",)}
    assert "fared badly" not in found[1].why


def test_it_is_taken_where_nothing_better_is_free_and_that_is_said() -> None:
    found = decided(snapshot([node("n1")], [job(1)]), {1: (cell(4.0, gpus=4),)}, n1=1.0)[1]
    assert found.action is Action.START and found.node_names == ("n1",)
    assert "Jobs have fared badly on n1 lately" in found.why


def test_of_bad_nodes_the_least_bad_one_is_taken() -> None:
    seen = snapshot([node("n1"), node("n2"), node("n3")], [job(1, asked=4)])
    found = decided(seen, {1: (cell(4.0, nodes=1, gpus=4),)}, n1=0.9, n2=0.3, n3=0.5)[1]
    assert found.node_names == ("n2",)
    found = decided(seen, {1: (cell(8.0, nodes=2, gpus=4),)}, n1=0.9, n2=0.3)[1]
    assert set(found.node_names) == {"n2", "n3"}


def test_a_second_node_that_is_bad_must_gain_more_than_it_is_expected_to_lose() -> None:
    nodes = [node("n1"), node("n2")]
    little, much = ((cell(4.0, gpus=4), cell(gain, nodes=2, gpus=4)) for gain in (4.6, 8.0))
    for offers, without, with_bad in ((little, 2, 1), (much, 2, 2)):
        seen = snapshot(nodes, [job(1)])
        assert len(decided(seen, {1: offers})[1].node_names) == without
        assert len(decided(seen, {1: offers}, n2=1.0)[1].node_names) == with_bad


def test_a_job_that_runs_there_stays() -> None:
    seen = snapshot([node("n1"), node("n2")], [job(1, nodes=("n1",), gpus=4)])
    found = decided(seen, {1: (cell(4.0, gpus=4),)}, n1=1.0)[1]
    assert found.action is Action.KEEP and found.node_names == ("n1",)


def straggling(slowed: float, **changes: object) -> Job:
    wide = job(1, nodes=("n1", "n2"), gpus=4, submit_s=0.0, shun=("n2",), slowed=slowed)
    return replace(wide, **changes)  # type: ignore[arg-type]


def test_a_job_leaves_the_node_that_holds_it_up_where_that_pays() -> None:
    nodes = [node("n1"), node("n2"), node("n3")]
    offers = {1: (cell(8.0, nodes=2, gpus=4),)}
    found = decided(snapshot(nodes, [straggling(1.5)]), offers)[1]
    assert found.action is Action.RESIZE and set(found.node_names) == {"n1", "n3"}
    assert "It leaves n2, which takes 1.50 times as long as its peers" in found.why
    # a young job: its restart costs more than that
    young = straggling(1.5, submit_s=100_000.0 - 90, start_s=100_000.0 - 80)
    assert decided(snapshot(nodes, [young]), offers)[1].action is Action.KEEP


def test_without_another_node_it_stays_or_shrinks_onto_the_good_one() -> None:
    nodes: list[Node] = [node("n1"), node("n2")]
    wide = cell(8.0, nodes=2, gpus=4)
    assert decided(snapshot(nodes, [straggling(1.5)]), {1: (wide,)})[1].action is Action.KEEP
    seen = snapshot(nodes, [straggling(3.0)])
    found = decided(seen, {1: (*cells(1.0, 2.0, 6.0), wide)})[1]
    assert found.node_names in (("n1",), ("n1", "n2"))


def test_what_it_sends_takes_no_longer_on_a_slow_node() -> None:
    nodes = [node("n1"), node("n2"), node("n3")]
    sends = replace(cell(8.0, nodes=2, gpus=4), sync_s=1.0)  # all of a step of 1 s
    assert decided(snapshot(nodes, [straggling(1.5)]), {1: (sends,)})[1].action is Action.KEEP


def test_what_is_decided_later_sees_the_bad_nodes_that_are_spared() -> None:
    nodes = (NodeCapacity("n1", "a100", 4), NodeCapacity("n2", "a100", 4, penalty=1.0))
    problem, policy = (
        Problem((ask(1, (cell(4.0, gpus=4), cell(4.6, nodes=2, gpus=4)), 4),), nodes),
        load_policy("synergy"),
    )
    found = weigh_bad_nodes(solve(problem, policy), problem, policy)
    assert found.allocation.choice == (0,) and found.problem.nodes == nodes

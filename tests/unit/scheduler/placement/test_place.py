"""Which nodes: keep in place, grow in place, best fit, never more than is free; and when a decision may be acted on."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.reasons import text_reason
from synergy_core.records import Action, Decision, Shape

from synergyd.control.resize.gpus_free import gpus_free
from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.place import PlacementRequest, place
from synergyd.scheduler.problem.records import ANY_NODE, NodeCapacity, NodeFilter
from tests.unit.scheduler.builders import can_lie, cell, job, node, snapshot


def rooms(*free: int, kind: str = "a100") -> list[NodeCapacity]:
    return [NodeCapacity(f"n{i}", kind, f) for i, f in enumerate(free)]


def ask_for(job_id: int, gpus: int, nodes: int = 1, home: tuple[str, ...] = (), stay: bool = False) -> PlacementRequest:
    return PlacementRequest(job_id, Shape("a100", nodes, gpus), ANY_NODE, home, stay)


def test_staying_jobs_keep_exactly_their_nodes() -> None:
    found = place(rooms(8, 8), [ask_for(1, 8), ask_for(2, 2, home=("n0",), stay=True)])
    assert found.nodes == {1: ("n1",), 2: ("n0",)} and found.free_gpus == {"n0": 6, "n1": 0}


def test_best_fit_leaves_whole_nodes_whole() -> None:
    found = place(rooms(8, 3, 2), [ask_for(1, 2), ask_for(2, 1)])
    assert found.nodes == {1: ("n2",), 2: ("n1",)}


def test_bigger_pieces_leave_a_changing_job_its_home() -> None:
    found = place(rooms(8, 8), [ask_for(1, 8), ask_for(2, 4, home=("n0",))])
    assert found.nodes == {1: ("n1",), 2: ("n0",)}


def test_several_nodes_are_distinct_ones() -> None:
    assert "2 nodes" in place(rooms(8), [ask_for(1, 4, nodes=2)]).unplaced_reasons[1]
    assert place(rooms(8, 4), [ask_for(1, 4, nodes=2)]).nodes == {1: ("n0", "n1")}


def test_a_job_that_gives_nodes_back_keeps_its_first_one() -> None:
    """Its script runs there; others want that node as well, and it is the last in order."""
    shrinks = ask_for(1, 4, nodes=2, home=("n3", "n0", "n1"))
    other = ask_for(2, 4, nodes=2, home=("n3", "n2"))
    assert set(place(rooms(4, 4, 4, 4), [shrinks, other]).nodes[1]) == {"n3", "n0"}


def test_refusal_counts_what_is_left() -> None:
    found = place(rooms(3, 3), [ask_for(1, 4)])
    assert found.unplaced_reasons == {1: "it needs 1 node with 4 free a100 GPUs each, 0 left (6 free GPUs in all)"}


def test_partitions_and_types_bound_the_choice() -> None:
    mixed = [
        NodeCapacity("a", "h100", 8),
        NodeCapacity("b", "a100", 8, ("q",)),
        NodeCapacity("c", "a100", 8, ("p", "q")),
    ]
    bins = FreeGpus(mixed)
    assert bins.pick(Shape("a100", 1, 4), NodeFilter("q")) == ("b",)  # the node that fewer partitions share
    assert bins.pick(Shape("a100", 1, 4), NodeFilter("p")) == ("c",)
    assert bins.pick(Shape("a100", 1, 4), NodeFilter("x,p")) == ("c",)
    assert bins.pick(Shape("a100", 2, 4), NodeFilter("p")) is None


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_powers_of_two_and_whole_nodes_lie_whenever_they_can(seed: int) -> None:
    rnd = random.Random(seed)
    free = rooms(*(rnd.choice([8, 8, 7, 6, 5, 3, 1]) for _ in range(rnd.randint(1, 4))))
    wanted = []
    for j in range(rnd.randint(1, 6)):
        g, n = rnd.choice([(1, 1), (2, 1), (4, 1), (8, 1), (8, 2)])
        home = tuple(r.name for r in free if rnd.random() < 0.3)
        wanted.append(ask_for(j, g, n, home))
    found = place(free, wanted)
    assert bool(found.unplaced_reasons) == (not can_lie(free, wanted))
    used: Counter[str] = Counter()
    for request in wanted:
        for name in found.nodes.get(request.job_id, ()):
            used[name] += request.shape.gpus_per_node
    assert all(used[r.name] + found.free_gpus[r.name] == r.free for r in free)
    assert place(free, wanted) == found


def test_ready_counts_the_jobs_own_gpus_and_waits_for_the_others() -> None:
    small, big = cell(1.0, gpus=2), cell(2.0, gpus=4)
    runs = job(1, nodes=("n0",), gpus=2)
    grow = Decision(1, Action.RESIZE, big, ("n0",), text_reason(""))
    assert gpus_free(grow, snapshot([node("n0", 4)], [runs]))
    assert not gpus_free(grow, snapshot([node("n0", 4, used=1)], [runs]))
    assert not gpus_free(grow, snapshot([node("n0", 4, up=False)], [runs]))
    assert not gpus_free(replace(grow, node_names=("gone",)), snapshot([node("n0", 4)], [runs]))
    assert not gpus_free(replace(grow, job_id=7), snapshot([node("n0", 4)], [runs]))
    shrink = Decision(1, Action.RESIZE, cell(0.5), ("n0",), text_reason(""))
    assert gpus_free(shrink, snapshot([node("n0", 4, used=4)], [runs]))
    start = Decision(2, Action.START, small, ("n0",), text_reason(""))
    assert gpus_free(start, snapshot([node("n0", 4)], [runs, job(2)]))
    assert not gpus_free(start, snapshot([node("n0", 3)], [runs, job(2)]))
    assert gpus_free(Decision(2, Action.WAIT, None, (), text_reason("")), snapshot([], [job(2)]))


def switched(*leaves: str, free: int = 8) -> list[NodeCapacity]:
    return [NodeCapacity(f"n{i}", "a100", free, leaf=leaf) for i, leaf in enumerate(leaves)]


def test_a_job_on_several_nodes_stays_inside_one_leaf_switch() -> None:
    # s1 has two free nodes, s0 three: the tighter one is taken, and what is wider goes to the other
    found = place(switched("s0", "s1", "s0", "s1", "s0"), [ask_for(1, 8, 2), ask_for(2, 8, 3)])
    assert found.nodes == {1: ("n1", "n3"), 2: ("n0", "n2", "n4")}
    # nodes of its own draw it to a leaf that has room for all of it, and not to one that has not
    drawn = place(switched("s0", "s0", "s1", "s1", "s1"), [ask_for(1, 8, 2, home=("n2",))])
    assert drawn.nodes == {1: ("n2", "n3")}
    short = place(switched("s0", "s1", "s1"), [ask_for(1, 8, 2, home=("n0",))])
    assert short.nodes == {1: ("n1", "n2")}


def test_a_job_too_wide_for_a_leaf_is_on_as_few_as_possible() -> None:
    found = place(switched("s0", "s1", "s1", "s1", "s2", "s2"), [ask_for(1, 8, 4)])
    assert found.nodes == {1: ("n0", "n1", "n2", "n3")}
    assert not place(switched("s0", "s1"), [ask_for(1, 8, 2)]).unplaced_reasons


def test_only_nodes_with_the_features_asked_for() -> None:
    ib, both = NodeCapacity("n0", "a100", 8, ("gpu",), ("ib",)), NodeCapacity("n1", "a100", 8, ("gpu",), ("ib", "fast"))
    assert [r.admits(NodeFilter("gpu", "ib&fast")) for r in (ib, both)] == [False, True]
    assert [r.admits(NodeFilter("gpu", "fast|ib")) for r in (ib, both)] == [True, True]
    assert [r.admits(NodeFilter("other", "ib")) for r in (ib, both)] == [False, False]
    assert [r.admits(NodeFilter("", "fast")) for r in (ib, both)] == [False, True] and ib.admits(NodeFilter("gpu"))
    made = PlacementRequest(1, Shape("a100", 1, 4), NodeFilter("gpu", "fast"))
    assert place([ib, both], [made]).nodes == {1: ("n1",)}

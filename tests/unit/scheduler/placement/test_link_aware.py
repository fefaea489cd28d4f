"""Sizes, nodes and links together: what neighbours on a link cost, and what is done about it, worked out by hand.

Jobs of a step of 1 s, half of it sending, on 10 GbE (h/b = 0.2745). Two of them on a link, weighed: each sends for u = 0.5 of its
time, so the other's MB costs 1 + 1.2745 * 0.5 = 1.6373 times as much and its step takes 0.5 + 0.5 * 1.6373 = 1.3186 s. Told: the
fixed point c = 1 + 1.2745 c/(1 + c), c = 1.8231, a step of 1.4115 s.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from synergy_core.reasons import format_reasons
from synergy_core.records import Action, Cell, Job, JobState, Shape
from synergy_core.shared_links import SharedLink, Sharing
from synergy_core.wire.codec import decode, encode

from synergyd.links.model import TEN_GBE, Topology, build_topology
from synergyd.links.sharing import expected_slowdown, find_slowdowns, lines, make_traffic, sharing_reasons, sharings
from synergyd.links.slowdown import Traffic
from synergyd.scheduler.placement.least_loaded_links import least_loaded_nodes
from synergyd.scheduler.placement.link_aware import LinkAwareAnswer, place_link_aware
from synergyd.scheduler.placement.place import PlacementRequest, make_placement_requests, place
from synergyd.scheduler.problem.records import ANY_NODE, NodeCapacity, Objective, Problem
from synergyd.scheduler.problem.utility import allocation, value, value_terms
from synergyd.settings import Settings
from tests.unit.scheduler.builders import ask, cell, job, node, snapshot
from tests.unit.scheduler.epochs import decide

WEIGHED, TOLD = 1.3186, 1.4115
PLAIN = Topology()


def sends(goodput: float, nodes: int, gpus: int, sync_s: float = 0.5) -> Cell:
    return replace(cell(goodput, nodes, gpus), sync_s=sync_s if nodes > 1 else 0.0)


def rooms(count: int, per_leaf: int = 0) -> tuple[NodeCapacity, ...]:
    return tuple(NodeCapacity(f"n{i}", "a100", 4, leaf=f"l{i // per_leaf}" if per_leaf else "") for i in range(count))


def solved(
    problem: Problem, sizes: bool = True, topology: Topology = PLAIN, others: tuple[Traffic, ...] = ()
) -> LinkAwareAnswer:
    first = allocation(problem, [0 if a.current is None else a.current for a in problem.jobs])
    return place_link_aware(
        problem, first, place(problem.nodes, make_placement_requests(problem, first)), topology, others, sizes
    )


def test_the_forecast_while_weighing_and_as_told() -> None:
    one = make_traffic(1, sends(1.0, 2, 2), ("a", "b"), PLAIN)
    assert one is not None
    assert one.compute_s == 0.5 and one.message_mb == pytest.approx(0.5 * 1000 / TEN_GBE.per_mb)
    assert expected_slowdown(one, {"nic:a": 0.5, "nic:b": 0.1}, PLAIN) == pytest.approx(WEIGHED, abs=1e-4)
    assert expected_slowdown(one, {}, PLAIN) == 1.0
    two = sharings([one, replace(one, job_id=2, nodes=("b", "c"))], PLAIN)
    assert two[1].slowdown == two[2].slowdown == pytest.approx(TOLD, abs=1e-4)
    assert two[1] == Sharing(two[1].slowdown, "nic:b", (SharedLink("nic:b", (2,)),))
    assert sharings([one, replace(one, job_id=2, nodes=("c", "d"))], PLAIN) == {}
    assert make_traffic(1, sends(1.0, 1, 4), ("a",), PLAIN) is None
    assert make_traffic(1, replace(sends(1.0, 2, 2), sync_s=0.0), ("a", "b"), PLAIN) is None


def test_two_that_would_share_nodes_get_their_own() -> None:
    offers = (sends(1.0, 2, 2),)
    problem = Problem((ask(1, offers, 4), ask(2, offers, 4)), rooms(4))
    tight = place(problem.nodes, make_placement_requests(problem, allocation(problem, [0, 0]))).nodes
    assert tight[1] == tight[2] == ("n0", "n1")
    found = solved(problem)
    assert set(found.placement.nodes[1]).isdisjoint(found.placement.nodes[2])
    assert found.total == pytest.approx(0.0) and not found.away
    assert found.placement.free_gpus == dict.fromkeys(("n0", "n1", "n2", "n3"), 2)
    # as they are they would lose two times log 1.3186
    full = replace(problem, nodes=rooms(2))
    assert solved(full).total == pytest.approx(-2 * math.log(WEIGHED), abs=1e-3)


@pytest.mark.parametrize(("narrow", "taken"), [(0.9, True), (0.65, True), (0.55, False)])
def test_a_smaller_cell_is_taken_where_all_together_gain(narrow: float, taken: bool) -> None:
    # on three nodes they share one link whatever nodes they get; on one node a job loses log narrow, and both lose no more
    # 2 log 1.3186 = 0.553: worth it down to 0.575
    pair = (sends(1.0, 2, 2), sends(narrow, 1, 4))
    asks = (
        replace(ask(1, pair, 4), relative=(1.0, narrow)),
        replace(ask(2, pair, 4), relative=(1.0, narrow), current=0, nodes=("n0", "n1"), discount=0.0),
    )
    found = solved(Problem(asks, rooms(3)))
    assert (found.allocation.choice[0] == 1) is taken
    assert found.placement.nodes[1] == (("n2",) if taken else found.placement.nodes[1])
    assert found.placement.nodes[2] == ("n0", "n1")
    assert (found.away == {0: frozenset({0})}) is taken
    assert found.total == pytest.approx(max(math.log(narrow), -2 * math.log(WEIGHED)), abs=1e-3)


def test_a_running_job_moves_only_if_that_pays_for_its_restart() -> None:
    offers = (sends(1.0, 2, 2),)

    def both(discount: float) -> Problem:
        held = [ask(i, offers, 4, current=0, nodes=("n0", "n1"), discount=discount) for i in (1, 2)]
        return Problem(tuple(held), rooms(4))

    gains = solved(both(0.9))
    assert (
        sorted(gains.placement.nodes.values()) == [("n0", "n1"), ("n2", "n3")] and len(gains.allocation.moved_jobs) == 1
    )
    assert gains.total == pytest.approx(math.log(0.9))
    # 1 / 1.3186^2 = 0.575: less than that is not worth the two slowdowns
    for problem, sizes in ((both(0.5), True), (both(0.0), True), (both(0.9), False)):
        kept = solved(problem, sizes)
        assert set(kept.placement.nodes.values()) == {("n0", "n1")} and not kept.allocation.moved_jobs


@pytest.mark.parametrize(("sync_s", "moved"), [(0.15, False), (0.2, True)])
def test_a_gain_within_the_forecasts_error_moves_nobody(sync_s: float, moved: bool) -> None:
    # steps take 1.029 and 1.051 times as long; both jobs gain that: log 1.029^2 = 0.057, log 1.051^2 = 0.1; log 1.07 = 0.068
    offers = (sends(1.0, 2, 2, sync_s),)
    found = solved(Problem((ask(1, offers, 4), ask(2, offers, 4)), rooms(4)))
    assert (found.placement.nodes[1] != found.placement.nodes[2]) is moved


def test_neighbours_outside_of_the_problem_count() -> None:
    beside = Traffic(9, ("n0", "n1"), 0.5, 500 / TEN_GBE.per_mb)
    problem = Problem((ask(1, (sends(1.0, 2, 2),), 4),), rooms(4))
    assert solved(problem).placement.nodes[1] == ("n0", "n1")
    assert solved(problem, others=(beside,)).placement.nodes[1] == ("n2", "n3")


def test_policies_that_fix_sizes_keep_cells() -> None:
    pair = (sends(1.0, 2, 2), sends(0.99, 1, 4))
    problem = Problem((ask(1, pair, 4), ask(2, pair, 4)), rooms(3))
    assert solved(problem, sizes=False).allocation.choice == (0, 0)
    assert set(solved(problem).allocation.choice) == {0, 1}


def test_uplinks_count_too() -> None:
    tree = build_topology("10gbe", "10gbe", {f"n{i}": f"l{i // 2}" for i in range(8)})
    # job 2 (running) crosses l0 and l1; job 1 on three whole nodes has to cross two leaves of l0..l3
    offers = (sends(1.0, 3, 4),)
    asks = (ask(1, offers, 12), ask(2, (sends(1.0, 2, 4),), 8, current=0, nodes=("n1", "n2"), discount=0.0))
    found = solved(Problem(asks, rooms(8, 2)), topology=tree)
    assert {int(name[1]) // 2 for name in found.placement.nodes[1]} == {2, 3}


def test_quiet_nodes() -> None:
    names, leaf = ["a", "b", "c", "d", "e"], {"a": "x", "b": "x", "c": "y", "d": "y", "e": "y"}
    free = dict.fromkeys(names, 4)
    assert least_loaded_nodes(names, 6, (), {}, leaf, free) == []
    assert least_loaded_nodes(names, 2, (), {}, leaf, free) == [("a", "b")]  # the tightest leaf
    assert least_loaded_nodes(names, 2, ("d",), {}, leaf, free) == [("c", "d")]  # its own
    assert least_loaded_nodes(names, 2, (), {"nic:a": 0.5, "nic:d": 0.2}, leaf, free) == [("c", "e")]
    # four: over both leaves; the larger first, or the one with the quieter uplink first
    assert least_loaded_nodes(names, 4, (), {}, leaf, free) == [("a", "c", "d", "e")]
    three = {**leaf, "f": "z", "g": "z"}
    some = least_loaded_nodes([*names, "f", "g"], 4, (), {"leaf:y": 0.6}, three, {**free, "f": 4, "g": 4})
    assert some == [("a", "c", "d", "e"), ("a", "b", "f", "g")]


def test_value_with_a_need_that_sharing_breaks() -> None:
    one = replace(ask(1, (sends(10.0, 2, 2),), 4), needed_goodput=8.0, weight=2.0)
    terms = Objective(need_bonus=100.0)
    assert value(one, 0, False, terms) == 100.0
    assert value(one, 0, False, terms, 2.0) == pytest.approx(2.0 * math.log(0.5))
    told = dict(value_terms(one, 0, False, terms, slowdown=2.0))
    assert told["links"] == pytest.approx(math.log(0.5)) and told["weight"] == pytest.approx(math.log(0.5))


# -- one job that spans nodes on a node --------------------------------------------------------------------------------


def test_one_multi_node_job_a_node() -> None:
    pair = [PlacementRequest(i, Shape("a100", 2, 2)) for i in (1, 2)]
    single = PlacementRequest(3, Shape("a100", 1, 2))
    assert place(rooms(4), pair).nodes == {1: ("n0", "n1"), 2: ("n0", "n1")}
    apart = place(rooms(4), [*pair, single], frozenset())
    assert (apart.nodes[1], apart.nodes[2]) == (("n0", "n1"), ("n2", "n3"))
    assert apart.nodes[3] == ("n0",)  # jobs on one node go anywhere
    full = place(rooms(3), pair, frozenset())
    assert "1 left" in full.unplaced_reasons[2] or "no other job that spans nodes" in full.unplaced_reasons[2]
    assert place(rooms(4), pair[:1], frozenset({"n0", "n2"})).nodes == {1: ("n1", "n3")}
    stays = PlacementRequest(1, Shape("a100", 2, 2), ANY_NODE, ("n0", "n1"), True)
    assert place(rooms(4), [stays, pair[1]], frozenset()).nodes[2] == ("n2", "n3")


# -- decisions ---------------------------------------------------------------------------------------------------------


def spanning(job_id: int) -> Job:
    shape = Shape("a100", 2, 2)
    return replace(job(job_id, 4, ("n0", "n1"), 2, fixed="it says resize=no"), asked=shape)


def test_a_decision_tells_who_shares_what_and_what_it_costs() -> None:
    site = snapshot([node(f"n{i}") for i in range(2)], [spanning(1), spanning(2)])
    offers = {i: (sends(8.0, 2, 2),) for i in (1, 2)}
    quiet = decide(site, Settings(), offers, {})
    assert [d.sharing for d in quiet] == [None, None] and "shares" not in quiet[0].why
    aware = decide(site, Settings(link_aware=True), offers, {})
    one = aware[0].sharing
    assert one is not None and one.slowdown == pytest.approx(TOLD, abs=1e-4)
    assert one.links == (SharedLink("nic:n0", (2,)), SharedLink("nic:n1", (2,)))
    assert aware[0].why.endswith(
        "It shares the network of n1 and 1 more link with job 2, so its steps take 1.41 times as long."
    )
    assert lines(one, 8.0) == [
        "shares the network of n0, the network of n1 with job 2",
        "steps take 1.41 times as long: goodput 5.67 in place of 8 sequences/s; it waits most for the network of n1",
    ]
    assert find_slowdowns(aware) == {1: one.slowdown, 2: one.slowdown}
    assert decode(type(aware[0]), encode(aware[0])) == aware[0]
    assert decode(type(aware[0]), {k: v for k, v in encode(aware[0]).items() if k != "sharing"}).sharing is None


def test_formatting() -> None:
    many = Sharing(2.0, "leaf:l0", tuple(SharedLink(f"leaf:l{i}", (3, 4, 5, 6)) for i in range(3)))
    assert format_reasons(sharing_reasons(many)) == (
        "It shares the uplink of leaf switch l0 and 2 more links with jobs 3, 4, 5 and 1 more, so its steps take 2.00 times as long."
    )
    assert sharing_reasons(None) == () == sharing_reasons(Sharing(1.001, "nic:a", (SharedLink("nic:a", (2,)),)))
    assert lines(many, 0.0)[-1] == "steps take 2.00 times as long; it waits most for the uplink of leaf switch l0"


def test_the_daemons_default_policy_weighs_links() -> None:
    # job 2 holds two GPUs on n0 and n1 and may not be resized; job 1 does best on two nodes, and there are two quiet ones
    nodes = [node(f"n{i}") for i in range(4)]
    wants = replace(job(1, 4), asked=Shape("a100", 2, 2))
    offers = {1: (sends(8.0, 2, 2), sends(2.0, 1, 1)), 2: (sends(8.0, 2, 2),)}
    site = snapshot(nodes, [wants, spanning(2)])
    blind = decide(site, Settings(), offers, {})[0]
    aware = decide(site, Settings(link_aware=True), offers, {})[0]
    assert blind.node_names == ("n0", "n1") and aware.node_names == ("n2", "n3")
    assert (aware.action, aware.sharing) == (Action.START, None)
    # with those taken, one node of four GPUs, which alone has 5 % less, is better than sharing
    offers[1] = (sends(8.0, 2, 2), sends(7.6, 1, 4))
    crowded = snapshot([node("n0"), node("n1"), node("n2"), node("n3", used=4)], [wants, spanning(2)])
    found = decide(crowded, Settings(link_aware=True), offers, {})[0]
    assert found.node_names == ("n2",) and found.cell == offers[1][1]
    (other,) = [a for a in found.alternatives if a.cell == offers[1][0]]
    assert "would share links with others" in other.why_not
    alone = decide(crowded, Settings(one_multi_node_job_per_node=True), offers, {})[0]
    assert alone.node_names == ("n2",) and wants.state is JobState.PENDING

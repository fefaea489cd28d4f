"""Links, SRSF(t), AdaDUAL, LWF-kappa: the rules by themselves, with numbers worked by hand."""

from __future__ import annotations

import pytest
from synergy_core.errors import UsageError
from synergy_core.link_names import NETWORK_LINKS as NAMES
from synergy_core.records import Shape

from synergyd.links.disciplines import AdaDual, Srsf, make_discipline
from synergyd.links.model import LINKS, TEN_GBE, Link, Topology, make_link, pace
from synergyd.scheduler.placement.lwf import choose_gpus, place_lwf
from synergyd.scheduler.placement.place import PlacementRequest, place
from synergyd.scheduler.problem.records import NodeCapacity


def test_cost_of_sharing() -> None:
    assert [TEN_GBE.cost(k) for k in (1, 2, 3)] == pytest.approx([0.856, 1.947, 3.038])
    assert TEN_GBE.threshold() == pytest.approx(0.856 / 2.182)
    assert pace([Link(1.0, 0.5), Link(3.0, 0.0)], [3, 1]) == 4.0  # 3*1 + 2*0.5 on the first beats 3 on the second
    assert pace([], []) == 0.0


def test_figures_scale_with_the_line_rate() -> None:
    assert LINKS["100gbe"].per_mb == pytest.approx(0.0856)
    assert make_link("IB-HDR") == TEN_GBE.faster(20)
    assert make_link("4x10GbE") == TEN_GBE.faster(4) and set(LINKS) == set(NAMES)
    assert make_link("eth-25") == TEN_GBE.faster(2.5) and make_link("roce-400") == TEN_GBE.faster(40)
    for wrong in ("nvlink4", "token-ring", "x10gbe", "0x10gbe", "-1x10gbe", "2x", "2x3x10gbe", ""):
        with pytest.raises(UsageError, match="one of 1gbe, 10gbe"):
            make_link(wrong)


def test_topology_names_the_links_an_all_reduce_crosses() -> None:
    slow, up = Link(2.0, 0.1), Link(0.5, 0.2)
    tree = Topology(nics={"c": slow}, leaf={"a": "l1", "b": "l1", "c": "l2"}, uplink=up)
    assert tree.links_crossed(["a", "a"]) == ()
    assert tree.links_crossed(["a", "b"]) == ("nic:a", "nic:b")
    assert tree.links_crossed(["b", "c"]) == ("nic:b", "nic:c", "leaf:l1", "leaf:l2")
    assert [tree.figures(x) for x in ("nic:a", "nic:c", "leaf:l2")] == [TEN_GBE, slow, up]
    assert Topology(leaf={"a": "l1", "b": "l2"}).links_crossed(["a", "b"]) == ("nic:a", "nic:b")


@pytest.mark.parametrize(
    ("most", "sharers", "may"), [(1, 0, True), (1, 1, False), (2, 1, True), (2, 2, False), (3, 2, True)]
)
def test_srsf(most: int, sharers: int, may: bool) -> None:
    assert Srsf(most).admits(10.0, sharers, [5.0] * sharers, TEN_GBE) is may


@pytest.mark.parametrize("h", [0.0, 0.235, 1.0, 5.0])
@pytest.mark.parametrize("rest", [1.0, 40.0, 526.4])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.39, 0.4, 0.5, 0.51, 1.0, 3.0])
def test_adadual_takes_the_lesser_sum_of_finish_times(h: float, rest: float, share: float) -> None:
    """Both ways to treat two tasks on one link, each worked out by playing it through."""
    link, size = Link(0.856, h), share * rest
    waits = link.cost(1) * rest + link.cost(1) * (rest + size)
    first, second = min(size, rest), max(size, rest)
    together = link.cost(2) * first
    shares = together + (together + link.cost(1) * (second - first))
    assert AdaDual().admits(size, 1, [rest], link) is (shares <= waits + 1e-12)


def test_adadual_at_its_threshold() -> None:
    link = Link(1.0, 1.0)  # threshold 1/4
    assert AdaDual().admits(10.0, 1, [40.0], link)
    assert not AdaDual().admits(10.001, 1, [40.0], link)
    assert not AdaDual().admits(10.0, 1, [80.0, 39.9], link)  # two links, one task on each: both must have enough left
    assert AdaDual().admits(1e9, 0, [], link)
    assert not AdaDual().admits(1e-9, 2, [1e9, 1e9], link)


def test_discipline_names_round_trip() -> None:
    for name in ("srsf-1", "srsf-12", "ada-srsf", "ada-srsf-time", "srsf-2-reserve", "srsf-1-time-reserve"):
        assert make_discipline(name).name == name
    for name in ("srsf-0", "srsf-", "srsf", "ada", "", "srsf-²", "-time"):
        with pytest.raises(UsageError, match="no discipline"):
            make_discipline(name)


def test_lwf_takes_least_loaded_gpus_up_to_kappa_and_whole_nodes_beyond() -> None:
    nodes = [(0, 1), (2, 3), (4, 5)]
    work = [9.0, 1.0, 4.0, 4.0, 0.0, 20.0]
    free = [True] * 6
    assert choose_gpus(work, free, nodes, 2, kappa=2) == (4, 1)  # two nodes
    assert choose_gpus(work, free, nodes, 2, kappa=1) == (2, 3)  # mean 4 against 5 and 10
    assert choose_gpus(work, free, nodes, 3, kappa=1) == (2, 3, 1)
    assert choose_gpus(work, [True, False, False, True, True, True], nodes, 2, kappa=1) == (3, 0)
    assert choose_gpus(work, [True, False, False, False, False, False], nodes, 2, kappa=1) is None


ROOMS = [NodeCapacity(f"n{i}", "h100", 4) for i in range(4)]


def test_place_lwf_puts_big_jobs_on_the_idlest_nodes() -> None:
    work = {"n0": (50.0,), "n1": (), "n2": (10.0,), "n3": (20.0, 20.0, 20.0)}
    rooms = [
        NodeCapacity("n0", "h100", 3),
        NodeCapacity("n1", "h100", 4),
        NodeCapacity("n2", "h100", 3),
        NodeCapacity("n3", "h100", 1),
    ]
    placed = place_lwf(rooms, [PlacementRequest(1, Shape("h100", 2, 2))], 1, work)
    assert placed.nodes == {1: ("n1", "n2")}
    assert placed.free_gpus == {"n0": 3, "n1": 2, "n2": 1, "n3": 1}
    assert not placed.unplaced_reasons


def test_place_lwf_fits_small_jobs_tightly_and_spreads_large_ones() -> None:
    rooms = [
        NodeCapacity("n0", "h100", 4),
        NodeCapacity("n1", "h100", 1),
        NodeCapacity("n2", "h100", 4),
        NodeCapacity("n3", "h100", 4),
    ]
    asked = [
        PlacementRequest(1, Shape("h100", 1, 1)),
        PlacementRequest(2, Shape("h100", 2, 2)),
        PlacementRequest(3, Shape("h100", 1, 2)),
    ]
    placed = place_lwf(rooms, asked, 1, {})
    assert placed.nodes == {1: ("n1",), 2: ("n0", "n2"), 3: ("n3",)}


def test_place_lwf_keeps_stays_and_says_why_not_like_place() -> None:
    stay = PlacementRequest(1, Shape("h100", 2, 4), nodes=("n2", "n3"), stay=True)
    asked = [stay, PlacementRequest(2, Shape("h100", 3, 4)), PlacementRequest(3, Shape("a100", 1, 1))]
    mine, theirs = place_lwf(ROOMS, asked, 1, {}), place(ROOMS, asked)
    assert (mine.nodes, mine.unplaced_reasons, mine.free_gpus) == (
        theirs.nodes,
        theirs.unplaced_reasons,
        theirs.free_gpus,
    )
    assert mine.nodes == {1: ("n2", "n3")} and set(mine.unplaced_reasons) == {2, 3}


def test_place_lwf_lays_down_all_that_the_counts_allow() -> None:
    """Sizes that divide each other always fit where their counts do, whatever the loads."""
    asked = [PlacementRequest(i, Shape("h100", 1, g)) for i, g in enumerate((1, 1, 2, 4, 1, 1, 2, 4))]
    for first in range(4):
        placed = place_lwf(ROOMS, asked, 2, {f"n{first}": (5.0, 5.0)})
        assert not placed.unplaced_reasons and sum(placed.free_gpus.values()) == 0

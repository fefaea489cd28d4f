"""The setting Placement: LWF-kappa and quiet nodes, in an epoch's decisions and by themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.node_needs import NodeNeeds, Room
from synergy_core.reasons import Reason
from synergy_core.records import Action, Cell, Shape

from synergyd.scheduler.layout import node_work, place_by_rule
from synergyd.scheduler.placement.lwf import place_lwf
from synergyd.scheduler.placement.place import Placement, PlacementRequest
from synergyd.scheduler.problem.from_snapshot import UntouchedJob
from synergyd.scheduler.problem.records import NodeCapacity, NodeFilter, Problem, Progress
from synergyd.scheduler.problem.utility import allocation
from synergyd.settings import Settings
from tests.unit.scheduler.builders import cell, job, node, sized, snapshot
from tests.unit.scheduler.epochs import decide


def wide(sync_s: float) -> tuple[Cell, ...]:
    """Two nodes with two GPUs each, sending for that long of each second."""
    return (replace(cell(2.0, 2, 2), sync_s=sync_s),)


@pytest.mark.parametrize(
    ("rule", "nodes"),
    [("pack", ("n0", "n1")), ("lwf-1", ("n2", "n3")), ("lwf-4", ("n0", "n1")), ("quiet", ("n2", "n3"))],
)
def test_a_wide_job_starts_where_the_rule_says(rule: str, nodes: tuple[str, ...]) -> None:
    """On n0 and n1 runs a job with much to do that sends half of its time, on n2 and n3 one with little to do that sends little."""
    jobs = [
        job(1, nodes=("n0", "n1"), gpus=2),
        job(2, nodes=("n2", "n3"), gpus=2),
        job(3),
    ]
    decisions = decide(
        snapshot([node(f"n{i}") for i in range(4)], jobs),
        Settings(placement=rule),
        {1: wide(0.5), 2: wide(0.1), 3: wide(0.5)},
        {},
        {1: wide(0.5)[0].plan, 2: wide(0.1)[0].plan},
        progress={1: Progress(remaining=20_000.0), 2: Progress(remaining=200.0)},
    )
    assert [d.action for d in decisions] == [Action.KEEP, Action.KEEP, Action.START]
    assert decisions[2].node_names == nodes
    assert decisions[2].sharing is None  # what it shares is weighed and told with LinkAware alone


def test_work_counts_jobs_that_stay_and_those_outside() -> None:
    staying = sized(1, 2, 100.0, ("n0", "n1"))
    silent = sized(2, 1, None, ("n2",))
    problem = Problem((staying, silent), tuple(NodeCapacity(f"n{i}", "a100", 4) for i in range(4)))
    outside = [
        UntouchedJob(Action.KEEP, Reason("text", {"text": ""}), cell(1.0, 1, 3), ("n3",)),
        UntouchedJob(Action.WAIT, Reason("text", {"text": ""})),
    ]
    work = node_work(problem, allocation(problem, [0, 0]), outside)
    # who does not tell has the median of those who do
    assert work == {"n0": [100.0] * 2, "n1": [100.0] * 2, "n2": [100.0], "n3": [100.0] * 3}
    nobody = Problem((silent,), problem.nodes)
    assert node_work(nobody, allocation(nobody, [0]), ()) == {"n2": [1.0]}


def test_all_stays_packed_where_the_rule_leaves_a_job_out() -> None:
    """The wide job would take n0 and n1, which have no work yet, and the narrow one may use those alone."""
    nodes = tuple(NodeCapacity(f"n{i}", "a100", 4) for i in range(4))
    narrow = replace(sized(2, 4, 10.0), node_filter=NodeFilter(excluded_nodes=("n2", "n3")))
    problem = Problem((replace(sized(1, 4, 10.0), cells=(cell(2.0, 2, 4),)), narrow), nodes)
    taken = allocation(problem, [0, 0])
    packed = Placement({1: ("n2", "n3"), 2: ("n0",)}, {}, {"n0": 0, "n1": 4, "n2": 0, "n3": 0})
    busy = [UntouchedJob(Action.KEEP, Reason("text", {"text": ""}), cell(1.0, 2, 1), ("n2", "n3"))]
    assert place_by_rule(problem, taken, packed, "lwf-1", busy) == packed


ROOMS = tuple(NodeCapacity(f"n{i}", "h100", 4) for i in range(4))


def test_lwf_honours_what_slurm_weighs() -> None:
    busy = {"n0": (0.0,), "n1": (1.0,), "n2": (2.0,), "n3": (3.0,)}

    def lands(request: PlacementRequest, rooms: tuple[NodeCapacity, ...] = ROOMS) -> tuple[str, ...] | None:
        return place_lwf(rooms, [request], 1, busy).nodes.get(1)

    two = PlacementRequest(1, Shape("h100", 2, 2))
    assert lands(two) == ("n0", "n1")
    assert lands(replace(two, node_filter=NodeFilter(required_nodes=("n3",)))) == ("n0", "n3")
    assert lands(replace(two, node_filter=NodeFilter(excluded_nodes=("n1",)))) == ("n0", "n2")
    assert lands(replace(two, shun=frozenset({"n0"}))) == ("n1", "n2")
    # one partition's nodes alone, that one where the busiest of them is idlest
    parts = tuple(replace(r, partitions=("a",) if r.name in ("n0", "n3") else ("b",)) for r in ROOMS)
    assert lands(replace(two, node_filter=NodeFilter("a,b")), parts) == ("n1", "n2")
    # CPUs and memory
    full = replace(ROOMS[0], room=Room(cpus=1, memory_mib=0), total=Room(cpus=8, memory_mib=0))
    rooms = (full, *(replace(r, room=Room(cpus=8, memory_mib=0), total=Room(cpus=8, memory_mib=0)) for r in ROOMS[1:]))
    assert lands(replace(two, needs=NodeNeeds(cpus_per_gpu=2)), rooms) == ("n1", "n2")
    refused = place_lwf(ROOMS, [replace(two, node_filter=NodeFilter(excluded_nodes=("n0", "n1", "n2")))], 1, busy)
    assert not refused.nodes and "it needs 2 nodes" in refused.unplaced_reasons[1]

"""Placement=dally: who holds out for nodes of one leaf, for how long at most, and what a user reads of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from synergy_core.records import Action, Decision
from synergy_sim.delayed_starts import Delay, delay_starts

from synergyd.links.model import TEN_GBE, Topology
from synergyd.scheduler.placement.place import make_placement_requests, place
from synergyd.scheduler.problem.delays import LEASE_S, DelayHistory
from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, NodeFilter, Problem, Progress
from synergyd.scheduler.problem.utility import allocation
from synergyd.settings import Settings
from tests.unit.scheduler.builders import NOW, ask, cell, job, node, sized, snapshot
from tests.unit.scheduler.epochs import decide

LEAVES = dict(zip(("n0", "n1", "n2", "n3"), "xxyy", strict=True))
ROOMS = tuple(NodeCapacity(name, "a100", 4, leaf=leaf) for name, leaf in LEAVES.items())
BUSY = (sized(8, 4, None, ("n1",)), sized(9, 4, None, ("n3",)))
# a tenth of the nodes' rate: a job that sends for a tenth of its step takes 1.9 times as long across leaves
SLOW = Topology(leaf=LEAVES, uplink=TEN_GBE.faster(0.1))
SENDS = replace(cell(8.0, 2, 4), sync_s=0.1)  # of a step of 1 s
WIDE = replace(ask(1, (SENDS,), 8), overdue_s=-1e4, holds_s=1e4)


def asked(*jobs: JobRequest, waited: float = 0.0) -> Problem:
    return Problem(jobs, ROOMS, now_s=NOW, delays=DelayHistory({1: NOW - waited * LEASE_S}))


def delayed(problem: Problem, topology: Topology = SLOW) -> tuple[Mapping[int, tuple[str, ...]], dict[int, Delay]]:
    """(nodes by job id, who is delayed) where every job was to have its first Cell if it could be placed."""
    chosen = allocation(problem, [0] * len(problem.jobs))
    lost = place(problem.nodes, make_placement_requests(problem, chosen)).unplaced_reasons
    chosen = allocation(problem, [None if one.job_id in lost else 0 for one in problem.jobs])
    _, placed, found = delay_starts(
        problem, chosen, place(problem.nodes, make_placement_requests(problem, chosen)), topology, ()
    )
    return placed.nodes, found


def left_s(job: JobRequest, waited: float = 0.0) -> float | None:
    """Seconds for which job 1 may hold out beside BUSY; None: it starts."""
    nodes, found = delayed(asked(*BUSY, job, waited=waited))
    assert (2 in found) == (1 not in nodes)
    return found[2].left_s if found else None


def test_it_holds_out_no_longer_than_its_timer_its_loss_and_its_due_time() -> None:
    assert left_s(WIDE) == 12 * LEASE_S
    assert left_s(WIDE, waited=11) == LEASE_S
    assert left_s(WIDE, waited=12) is None
    # 500 s are left of it, and crossing leaves would cost 0.9 of these
    assert left_s(replace(WIDE, holds_s=500.0)) == pytest.approx(450.0)
    assert left_s(replace(WIDE, holds_s=500.0), waited=7.6) is None
    assert left_s(replace(WIDE, overdue_s=-100.0)) == 100.0
    assert left_s(replace(WIDE, overdue_s=0.0)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"deadline_s": NOW + 1e5},
        {"needed_goodput": 1.0},
        {"node_filter": NodeFilter(required_nodes=("n0",))},
        {"cells": (replace(SENDS, sync_s=0.0),)},  # it sends nothing
        {"node_filter": NodeFilter(excluded_nodes=("n1", "n3"))},  # no leaf could hold it
    ],
)
def test_who_never_holds_out(changes: dict[str, object]) -> None:
    assert left_s(replace(WIDE, **changes)) is None  # type: ignore[arg-type]


def test_nobody_does_where_a_leaf_is_free_or_uplinks_are_wide() -> None:
    nodes, found = delayed(asked(BUSY[0], WIDE))
    assert nodes[1] == ("n2", "n3") and not found
    nodes, found = delayed(asked(*BUSY, WIDE), replace(SLOW, uplink=None))
    assert nodes[1] == ("n0", "n2") and not found


def test_a_running_job_is_never_delayed() -> None:
    runs = replace(WIDE, current=0, nodes=("n0", "n2"))
    nodes, found = delayed(asked(*BUSY, runs))
    assert nodes[1] == ("n0", "n2") and not found


def test_others_start_on_its_gpus_meanwhile() -> None:
    nodes, found = delayed(asked(*BUSY, WIDE, sized(2, 4, 100.0), sized(3, 4, 100.0), sized(4, 4, 100.0)))
    assert found.keys() == {2}
    assert sorted(nodes) == [2, 3, 8, 9] and {nodes[2], nodes[3]} == {("n0",), ("n2",)}


def epoch(placement: str, waited: float = 0.0, uplink: str = "1gbe") -> Decision:
    """What job 3 is told, that needs two nodes and would get one of each leaf."""
    nodes = [replace(node(name), leaf=leaf) for name, leaf in LEAVES.items()]
    jobs = [job(1, nodes=("n1",), gpus=4), job(2, nodes=("n3",), gpus=4), job(3)]
    one = (cell(4.0, 1, 4),)
    return decide(
        snapshot(nodes, jobs),
        Settings(placement=placement, leaf_uplink=uplink),
        {1: one, 2: one, 3: (SENDS,)},
        {},
        {1: one[0].plan, 2: one[0].plan},
        {1: 9_000.0, 2: 9_000.0, 3: 10.0},
        progress={i: Progress(remaining=1e6, trained_sequences=1e4) for i in (1, 2, 3)},
        delays=DelayHistory({3: NOW - waited}),
    )[2]


def test_an_epoch_says_how_long_it_waits_for_what() -> None:
    assert epoch("pack").node_names == ("n0", "n2")
    waits = epoch("dally", waited=20.0)
    assert (waits.action, waits.cell, waits.node_names) == (Action.WAIT, None, ())
    # at 1 Gbit/s the tenth of a step that it sends takes ten times as long
    assert waits.why.startswith(
        "Waits up to 700 s for nodes of one leaf: across leaves, its steps would take 1.90 times as long."
    )
    assert epoch("dally", waited=720.0).node_names == ("n0", "n2")
    assert epoch("dally", uplink="").node_names == ("n0", "n2")

"""SRTF, SRSF and Tiresias on examples worked by hand, and what becomes of a stopped job in an epoch."""

from __future__ import annotations

from dataclasses import replace

from synergy_core.records import Action
from synergy_sim.policies.srtf import SrsfPolicy, SrtfPolicy
from synergy_sim.policies.tiresias import TiresiasPolicy

from synergyd.scheduler.placement.place import make_placement_requests, place
from synergyd.scheduler.preemption import without_stopping
from synergyd.scheduler.problem.records import Allocation, NodeCapacity, Policy, Problem, Progress
from synergyd.scheduler.problem.utility import allocation
from synergyd.settings import Settings
from tests.unit.scheduler.builders import ask, cell, cells, job, node, sized, snapshot
from tests.unit.scheduler.epochs import decide

ONE = (NodeCapacity("n0", "a100", 4),)
GOOD = cells(1.0, 1.9, 3.6)


def has(problem: Problem, policy: Policy) -> list[int]:
    found = policy.allocate(problem)
    return [a.job_id for a, c in zip(problem.jobs, found.choice, strict=True) if c is not None]


def test_the_shorter_job_takes_the_gpus_of_the_longer_one() -> None:
    long, short, unknown = sized(0, 4, 1000.0, ("n0",)), sized(1, 4, 999.0), sized(2, 4, None)
    assert has(Problem((long, short, unknown), ONE), SrtfPolicy()) == [1]
    assert has(Problem((long, replace(short, progress=Progress(remaining=2002.0)), unknown), ONE), SrtfPolicy()) == [0]


def test_service_counts_gpus() -> None:
    # 100 s on 4 GPUs are 400 GPU seconds, 300 s on 1 GPU are 300, 50 s on 2 GPUs are 100.
    problem = Problem((sized(0, 4, 100.0), sized(1, 1, 300.0), sized(2, 2, 50.0)), ONE)
    # 50 s, then 100 s (no room for 4 GPUs beside 2), then 300 s.
    assert has(problem, SrtfPolicy()) == [1, 2]
    assert has(Problem(problem.jobs[:2], ONE), SrtfPolicy()) == [0]
    assert has(Problem(problem.jobs[:2], ONE), SrsfPolicy()) == [1]


def test_a_runner_stays_on_its_nodes_and_goes_elsewhere_only_when_it_must() -> None:
    two = (NodeCapacity("n0", "a100", 4), NodeCapacity("n1", "a100", 4))
    small, other = sized(0, 1, 50.0, ("n0",)), sized(1, 1, 60.0, ("n1",))
    stay = SrtfPolicy().allocate(Problem((small, other, sized(2, 2, 10.0)), two))
    assert stay.choice == (0, 0, 0) and not stay.moved_jobs
    # 4 GPUs on one node come first: one of the small ones makes way, beside the other.
    problem = Problem((small, other, sized(2, 4, 10.0)), two)
    move = SrtfPolicy().allocate(problem)
    assert move.choice == (0, 0, 0) and len(move.moved_jobs) == 1
    nodes = place(problem.nodes, make_placement_requests(problem, move)).nodes
    assert nodes[0] == nodes[1] != nodes[2]


def test_a_runner_of_the_right_shape_keeps_its_plan_and_one_of_another_gets_its_size() -> None:
    offers = (cell(3.0, gpus=4, tp=2), cell(3.6, gpus=4), cell(1.9, gpus=2))
    for current, expected in ((0, 0), (1, 1), (2, 1)):
        running = ask(0, offers, 4, current=current, nodes=("n0",))
        for policy in (SrtfPolicy(), TiresiasPolicy()):
            assert policy.allocate(Problem((running,), ONE)).choice == (expected,)


def test_tiresias_parts_queues_at_a_threshold_and_keeps_order_inside() -> None:
    # 16 GPU hours = 57,600 GPU seconds end the first queue, to the second.
    def runner(attained: float) -> Problem:
        first = sized(0, 4, None, ("n0",), progress=Progress(attained))
        return Problem((first, sized(2, 4, None), sized(1, 4, None)), ONE)

    assert has(runner(57_599.0), TiresiasPolicy()) == [0]
    assert has(runner(57_600.0), TiresiasPolicy()) == [1]  # of the two without service the first submitted
    assert has(runner(57_600.0), TiresiasPolicy(thresholds=(60_000.0, 1e6))) == [0]


def test_what_does_not_fit_is_passed_over() -> None:
    problem = Problem((sized(0, 3, 10.0), sized(1, 2, 20.0), sized(2, 1, 30.0)), ONE)
    assert has(problem, SrtfPolicy()) == [0, 2] and has(problem, TiresiasPolicy()) == [0, 2]


def test_an_epoch_stops_a_job_only_where_it_may() -> None:
    snap = snapshot([node("n0")], [job(1, nodes=("n0",), gpus=4), job(2)])
    offers = {1: GOOD, 2: GOOD}
    settings = Settings(policy="srtf", preemption=False)
    left = {1: Progress(1e4, 3600.0), 2: Progress(0.0, 36.0)}
    kept, waits = decide(snap, settings, offers, {}, progress=left)
    assert (kept.action, kept.node_names, kept.cell) == (Action.KEEP, ("n0",), GOOD[2])
    assert waits.action is Action.WAIT and "least time left at the size asked for comes first" in waits.why
    stopped, starts = decide(snap, replace(settings, preemption=True), offers, {}, progress=left)
    assert (stopped.action, stopped.cell, stopped.node_names) == (Action.WAIT, None, ())
    assert stopped.why.startswith("Preempted: it gives back 4 a100 GPUs on one node and waits for its turn: ")
    assert "they go to job 2 (starts on 4)" in stopped.why
    assert all("another rule" in a.why_not or "size it asked for" in a.why_not for a in stopped.alternatives)
    assert (starts.action, starts.node_names) == (Action.START, ("n0",))


class StopsTheFirst(Policy):
    """Stops the first running job that it is shown, whatever happens."""

    preempts = True

    def allocate(self, problem: Problem) -> Allocation:
        running = [i for i, a in enumerate(problem.jobs) if a.current is not None]
        return allocation(problem, [None if i in running[:1] else a.current for i, a in enumerate(problem.jobs)])


def test_a_policy_that_keeps_stopping_stops_nobody() -> None:
    rooms = tuple(NodeCapacity(f"n{i}", "a100", 4) for i in range(8))
    problem = Problem((*(sized(i, 4, None, (f"n{i}",)) for i in range(8)), sized(9, 4, None)), rooms)
    assert without_stopping(StopsTheFirst(), problem).choice == (0,) * 8 + (None,)


def test_what_is_kept_is_gone_for_the_others() -> None:
    # Short job 2 would stop job 0 (1000 s) for n0; kept, job 0 leaves n1, where job 1 (50 s) runs on and job 2 finds no room.
    two = (NodeCapacity("n0", "a100", 4), NodeCapacity("n1", "a100", 4))
    problem = Problem(
        (sized(0, 4, 1000.0, ("n0",)), sized(1, 2, 50.0, ("n1",)), sized(2, 4, 5.0), sized(3, 2, 2e3)), two
    )
    assert SrtfPolicy().allocate(problem).choice == (None, 0, 0, 0)
    kept = without_stopping(SrtfPolicy(), problem)
    assert kept.choice == (0, 0, None, 0)
    assert not place(two, make_placement_requests(problem, kept)).unplaced_reasons

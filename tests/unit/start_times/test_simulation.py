"""The simulated queue: by priority, with backfill, within limits, dependencies and reservations."""

from __future__ import annotations

from synergyd.start_times.records import Program, Queue
from synergyd.start_times.run_lengths import LengthDraw, RunLengths
from synergyd.start_times.simulation import Simulation
from tests.unit.start_times.queues import NOW, node, pending, program, queue, running


class Known(LengthDraw):
    """Every job's length is in its name."""

    def __init__(self) -> None:
        super().__init__(RunLengths(), 0)

    def seconds(self, program: Program, had_s: float = 0.0) -> float:
        return float(program.name)


def starts(of: Queue) -> dict[int, float]:
    return {job: at_s - NOW for job, at_s in Simulation(of).run(Known())[0].items()}


def test_a_job_starts_when_enough_has_ended() -> None:
    full = (node("n1", 0), node("n2", 0))
    runs = (running(1, ("n1",), program=program(name="150")), running(2, ("n2",), program=program(name="400")))
    waits = (pending(3, program=program(name="10")), pending(4, nodes=2, program=program(name="10")))
    assert starts(queue(full, runs, waits)) == {3: 50.0, 4: 300.0}


def test_nodes_stay_empty_for_a_while_between_two_jobs() -> None:
    waits = (pending(3, program=program(name="10")), pending(4, program=program(name="1")))
    of = queue((node("n1", 0),), (running(1, ("n1",), program=program(name="150")),), waits)
    runs = Simulation(of, turnaround_s=7.0).run(Known())[0]
    assert {job: at_s - NOW for job, at_s in runs.items()} == {3: 57.0, 4: 74.0}


def test_a_short_job_passes_and_a_long_one_does_not() -> None:
    """Job 3 plans both nodes for the end of job 1's limit, 500 s from now: only what ends before then may use the free one."""
    runs = (running(1, ("n1",), program=program(name="600")),)
    wide = pending(3, nodes=2, program=program(name="10"))
    long = pending(4, program=program(name="400", limit_s=600.0))
    short = pending(5, program=program(name="400", limit_s=450.0))
    assert starts(queue((node("n1", 0), node("n2")), runs, (wide, long, short))) == {5: 0.0, 3: 500.0, 4: 510.0}


def test_nodes_that_may_not_have_it_do_not_count() -> None:
    nodes = (
        node("n1", partitions=frozenset("q")),
        node("n2", gpu_type="v100"),
        node("n3", 0, gpu_type="a100", features=frozenset(["ib"])),
    )
    runs = (running(1, ("n3",), program=program(name="150")),)
    waits = pending(3, gpu_type="a100", features="ib", program=program(name="1"))
    assert starts(queue(nodes, runs, (waits,))) == {3: 50.0}
    assert starts(queue(nodes[:2], (), (waits,))) == {}


def test_dependencies_begin_times_and_plans() -> None:
    waits = (
        pending(3, program=program(name="70")),
        pending(4, after=(3,), program=program(name="1")),
        pending(5, may_start_s=NOW + 30, program=program(name="1")),
        pending(6, planned_s=NOW + 10, program=program(name="1")),
    )
    nodes = tuple(node(f"n{i}") for i in range(4))
    assert starts(queue(nodes, (), waits)) == {3: 0.0, 4: 70.0, 5: 30.0, 6: 10.0}


def test_a_limit_that_is_reached_lets_the_next_job_start_at_an_end() -> None:
    cap = ("user", "mina", "gpus")
    runs = (running(1, ("n1",), program=program(name="150"), caps=frozenset([cap])),)
    waits = (pending(3, cap=cap, program=program(name="20")), pending(4, cap=cap, program=program(name="1")))
    nodes = (node("n1", 0), node("n2"), node("n3"))
    assert starts(queue(nodes, runs, waits)) == {3: 50.0, 4: 70.0}


def test_a_reservation_keeps_out_what_might_still_run() -> None:
    closed = node("n1", closed=((NOW + 100, NOW + 200, "maint"),))
    waits = (pending(3, program=program(name="1", limit_s=90.0)), pending(4, program=program(name="1", limit_s=150.0)))
    assert starts(queue((closed,), (), waits)) == {3: 0.0, 4: 200.0}
    inside = pending(4, reservation="maint", program=program(name="1"))
    assert starts(queue((closed,), (), (inside,))) == {4: 0.0}


def test_an_arrays_rest_starts_task_by_task_and_others_behind_it() -> None:
    waits = (pending(3, tasks=3, program=program(name="10")), pending(4, program=program(name="1")))
    assert starts(queue((node("n1"),), (), waits)) == {3: 0.0, 4: 30.0}


def test_whole_nodes_and_given_back_ones() -> None:
    runs = (
        running(1, ("n1",), gpus=1, program=program(name="600")),
        running(2, ("n2",), program=program(name="600"), freed_s=NOW + 40),
    )
    whole = pending(3, gpus=1, whole_nodes=True, program=program(name="5"))
    assert starts(queue((node("n1", 3), node("n2", 0)), runs, (whole,))) == {3: 40.0}

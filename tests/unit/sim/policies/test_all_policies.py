"""What holds for every policy, whatever it goes by."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.records import Action, Cluster, JobState, Snapshot
from synergy_sim.policies.pollux import PolluxPolicy

from synergyd.scheduler.placement.place import make_placement_requests, place
from synergyd.scheduler.policies import load_policy
from synergyd.scheduler.problem.records import Allocation, NodeCapacity, Policy, Problem, Progress
from synergyd.scheduler.problem.utility import is_growth_refused
from synergyd.settings.policies import POLICIES
from tests.unit.scheduler.builders import Cells, ask, cells, node, random_problem
from tests.unit.scheduler.builders import job as queued
from tests.unit.scheduler.epochs import decide
from tests.unit.scheduler.test_decide import SETTINGS, epochs

OTHERS = sorted(set(POLICIES) - {"synergy", "exact"})


def made(name: str) -> Policy:
    return PolluxPolicy(population=12, generations=6) if name == "pollux" else load_policy(name)


def sound(problem: Problem, found: Allocation, policy: Policy) -> None:
    """Within capacity, placeable, allowed: each job by what is open to it."""
    placed = place(problem.nodes, make_placement_requests(problem, found))
    assert not placed.unplaced_reasons
    used: Counter[str] = Counter()
    rooms = {room.name: room for room in problem.nodes}
    for i, cell, stays in found.assignments(problem):
        asked, names = problem.jobs[i], placed.nodes[problem.jobs[i].job_id]
        assert len(set(names)) == cell.shape.nodes
        for name in names:
            # of a node that went down under its jobs nothing is handed out, but they may stay
            used[name] += 0 if stays and not rooms[name].free else cell.shape.gpus_per_node
        if stays:
            assert names == asked.nodes
        else:
            assert all(rooms[n].gpu_type == cell.shape.gpu_type and rooms[n].admits(asked.node_filter) for n in names)
            assert found.choice[i] not in asked.banned_cells
        choice = found.choice[i]
        if not policy.sizes_fixed and choice is not None and choice != asked.current:
            assert not is_growth_refused(asked, choice, problem.terms)
    assert all(used[name] <= room.free for name, room in rooms.items())
    stopped = [a for a, c in zip(problem.jobs, found.choice, strict=True) if a.current is not None and c is None]
    assert policy.preempts or not stopped


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), partitions=st.sampled_from([("",), ("p", "q"), ("p", "q", "p,q", "")]))
def test_every_allocation_is_sound_and_the_same_twice(name: str, seed: int, partitions: tuple[str, ...]) -> None:
    rnd = random.Random(seed)
    problem = random_problem(rnd, rnd.randint(0, 12), rnd.randint(1, 6), partitions)
    policy = made(name)
    found = policy.allocate(problem)
    assert len(found.choice) == len(problem.jobs)
    sound(problem, found, policy)
    assert made(name).allocate(problem) == found


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("may_stop", [False, True])
@settings(max_examples=15, deadline=None)
@given(epoch=epochs())
def test_whole_epochs_lose_no_job(name: str, may_stop: bool, epoch: tuple[Snapshot, dict[int, Cells]]) -> None:
    """A running job keeps nodes, or is stopped where that is allowed; nobody gets GPUs of others or of a node that is
    down."""
    snap, offers = epoch
    left = {j.job_id: Progress(1e4 * j.job_id, 1e4 / (1 + j.job_id) if j.job_id % 3 else None) for j in snap.jobs}
    found = decide(snap, replace(SETTINGS, preemption=may_stop), offers, {}, policy=made(name), progress=left)
    used = Counter({n.name: n.gpus_used for n in snap.cluster.nodes})
    up = {n.name for n in snap.cluster.nodes if n.up}
    for job, decision in zip(snap.jobs, found, strict=True):
        assert decision.job_id == job.job_id and decision.why.endswith((".", ")"))
        assert all(a.why_not for a in decision.alternatives)
        used.subtract({n: job.shape.gpus_per_node for n in job.node_names})
        size = decision.cell.shape if decision.cell else job.shape
        used.update({n: size.gpus_per_node for n in decision.node_names})
        if job.state is JobState.RUNNING and decision.action is Action.WAIT:
            assert (
                may_stop
                and (made(name).preempts or name in ("synergy", "exact"))
                and decision.why.startswith("Preempted: ")
            )
            assert decision.node_names == () and not job.paused
        elif job.state is JobState.RUNNING:
            assert decision.action in (Action.KEEP, Action.RESIZE) and decision.node_names
        if decision.action is Action.KEEP:
            assert decision.node_names == job.node_names
        if decision.action in (Action.START, Action.RESIZE):
            assert len(set(decision.node_names)) == size.nodes and set(decision.node_names) <= up
    assert all(used[n.name] <= n.gpus for n in snap.cluster.nodes)


@pytest.mark.parametrize("name", OTHERS)
def test_two_hundred_jobs(name: str) -> None:
    problem = random_problem(random.Random(7), 200, 40)
    policy = made(name)
    sound(problem, policy.allocate(problem), policy)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_nobody_and_nothing(name: str) -> None:
    assert made(name).allocate(Problem((), ())).choice == ()
    problem = random_problem(random.Random(1), 3, 2)
    empty = Problem(tuple(a for a in problem.jobs if a.current is None), ())
    assert set(made(name).allocate(empty).choice) <= {None}


@pytest.mark.parametrize("name", ["fifo", "first-fit", "backfill", "srtf", "srsf", "tiresias", "dally"])
def test_a_fixed_size_that_no_plan_fits_is_no_other_size(name: str) -> None:
    """As plain Slurm would: it starts as asked, with a goodput that nobody knows; the one that runs goes on."""
    rooms = (NodeCapacity("n0", "a100", 4), NodeCapacity("n1", "a100", 4))
    small = cells(1.0, 1.9)  # on 1 and 2 GPUs
    odd, runs = ask(1, small, 3), ask(3, small, 3, current=1, nodes=("n1",))
    assert odd.requested_cell is None
    problem = Problem((odd, ask(2, small, 2), runs), rooms, now_s=100.0)
    assert made(name).allocate(problem).choice == (None, 1, 1)
    snapshot = Snapshot(100.0, Cluster((node("n0"), node("n1"))), (queued(1, 3), queued(2, 2)))
    as_asked, planned = decide(snapshot, SETTINGS, {1: small, 2: small}, {}, policy=made(name))
    assert as_asked.action is Action.START and as_asked.cell is not None
    assert (as_asked.cell.shape, as_asked.cell.goodput) == (snapshot.jobs[0].asked, 0.0)
    assert as_asked.why.startswith("Starts on 3 a100 GPUs on one node: its goodput can't be predicted.")
    assert planned.action is Action.START and planned.cell == small[1]
    full = replace(snapshot, cluster=Cluster((node("n0", used=4), node("n1", used=2))))
    waits, _ = decide(full, SETTINGS, {1: small, 2: small}, {}, policy=made(name))
    assert waits.action is Action.WAIT and "the least that it can run on is 3 a100 GPUs on one node" in waits.why

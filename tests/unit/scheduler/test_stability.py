"""Nobody is resized for less than the restart costs, and epochs do not swing: same input, same answer; small change, few moves."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.records import Action, Cell, Decision, Job, JobState

from synergyd.scheduler.epoch_answer import solve
from synergyd.scheduler.exact_policy import ExactPolicy
from synergyd.scheduler.problem.priorities import without_partial_nodes
from synergyd.scheduler.problem.records import Allocation, NodeCapacity, Policy, Problem, Progress
from synergyd.scheduler.problem.utility import allocation
from synergyd.scheduler.synergy_policy import SynergyPolicy
from synergyd.settings import Settings
from tests.unit.scheduler.builders import ask, cell, cells, job, node, snapshot
from tests.unit.scheduler.epochs import decide

NODES = [node(f"n{i}", 4) for i in range(6)]
SHAPES = ((1, 1), (1, 2), (1, 4), (2, 4), (4, 4))
POLICIES: list[Policy] = [ExactPolicy(), SynergyPolicy(exact_columns=0)]


class World:
    """Jobs on NODES, one epoch a minute; what was decided is carried out at once."""

    def __init__(self, rnd: random.Random, jobs: int, policy: Policy) -> None:
        self.rnd, self.policy, self.minute = rnd, policy, 0
        self.jobs: dict[int, Job] = {i: job(i, 1) for i in range(1, jobs + 1)}
        self.true = {
            i: tuple(cell(round((n * g) ** power, 3), n, g) for n, g in SHAPES)
            for i, power in ((i, rnd.uniform(0.4, 0.95)) for i in self.jobs)
        }

    def seen(self, spread: float) -> dict[int, tuple[Cell, ...]]:
        """The true Cells, each job's goodput off by up to `spread`, as learning moves it."""
        found = {}
        for i, own in self.true.items():
            factor = 1 + self.rnd.uniform(-spread, spread)
            found[i] = tuple(replace(c, goodput=c.goodput * factor) for c in own)
        return found

    def epoch(self, offers: dict[int, tuple[Cell, ...]]) -> tuple[Decision, ...]:
        self.minute += 1
        ages = {i: 60.0 * self.minute for i in self.jobs}
        site = snapshot(NODES, list(self.jobs.values()))
        plans = {i: c.plan for i, j in self.jobs.items() for c in self.true[i] if c.shape == j.shape}
        return decide(site, Settings(restart_cost_s=60.0), offers, {}, plans, ages, self.policy)

    def carry_out(self, decisions: tuple[Decision, ...]) -> int:
        """How many running jobs were resized."""
        count = 0
        for d in decisions:
            if d.cell is None or d.action is Action.KEEP:
                continue
            one, again = self.jobs[d.job_id], d.action is Action.RESIZE
            count += again
            self.jobs[d.job_id] = replace(
                one, state=JobState.RUNNING, shape=d.cell.shape, node_names=d.node_names, restarts=one.restarts + again
            )
        return count


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=["exact", "prices"])
@pytest.mark.parametrize("seed", range(3))
def test_learning_that_wavers_by_two_per_cent_resizes_hardly_anyone(policy: Policy, seed: int) -> None:
    world = World(random.Random(seed), 9, policy)
    counts = [world.carry_out(world.epoch(world.seen(0.02))) for _ in range(25)]
    # the first minutes settle who gets what, as jobs become old enough for a restart to pay
    assert sum(counts) <= len(world.jobs) and sum(counts[-10:]) <= 1


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(POLICIES))
def test_same_input_same_answer_and_a_small_change_moves_few(seed: int, policy: Policy) -> None:
    world = World(random.Random(seed), 8, policy)
    for _ in range(6):
        world.carry_out(world.epoch(world.true))
    first, again = world.epoch(world.true), world.epoch(world.true)
    assert [(d.action, d.cell, d.node_names) for d in first] == [(d.action, d.cell, d.node_names) for d in again]
    one = world.rnd.choice(list(world.true))
    changed = {**world.true, one: tuple(replace(c, goodput=c.goodput * 1.03) for c in world.true[one])}
    assert world.carry_out(world.epoch(changed)) <= world.carry_out(first) + 1


def test_no_resize_that_does_not_pay_its_restart() -> None:
    """At 600 s of age and a restart of 60 s the factor is 1 / (1 + 60/600/0.4): a gain below 25 % is none."""
    site = snapshot([node("n0", 4)], [job(1, 2, nodes=("n0",), gpus=2)])

    def action(gain: float, **more: object) -> Action:
        offers = {1: cells(0.1, 1.0, 1.0 + gain)}
        (found,) = decide(site, Settings(), offers, {}, ages_s={1: 600.0}, **more)  # type: ignore[arg-type]
        return found.action

    assert [action(g) for g in (0.05, 0.24, 0.26, 0.5)] == [Action.KEEP, Action.KEEP, Action.RESIZE, Action.RESIZE]
    # with 100 sequences left, 100 s as it is: 60 s of restart and 100/1.5 s are more than that
    assert action(0.5, progress={1: Progress(remaining=100.0)}) is Action.KEEP
    assert action(0.5, progress={1: Progress(remaining=1000.0)}) is Action.RESIZE


class Stubborn(Policy):
    """Shrinks the job that runs for one that can't be laid, whatever is refused."""

    def allocate(self, problem: Problem) -> Allocation:
        return allocation(problem, [0] * len(problem.jobs))


def test_nobody_shrinks_for_a_job_that_can_not_be_laid() -> None:
    runs = ask(1, cells(1.0, 1.9, 3.5), current=2, nodes=("n0",), discount=0.9)
    wide = ask(2, (cell(9.0, 2, 4),))
    answer = solve(Problem((runs, wide), (NodeCapacity("n0", "a100", 4), NodeCapacity("n1", "a100", 2))), Stubborn())
    assert answer.allocation.choice == (2, None) and answer.placement.nodes == {1: ("n0",)}


def test_where_jobs_that_span_nodes_may_not_meet_they_take_whole_ones() -> None:
    rooms = (NodeCapacity("n0", "a100", 8), NodeCapacity("n1", "a100", 8), NodeCapacity("h", "h100", 4))
    mixed = ask(1, (cell(1.0, 1, 4), cell(2.0, 2, 4), cell(3.0, 2, 8), cell(4.0, 2, 4, "h100")))
    assert without_partial_nodes(mixed, rooms).banned_cells == {1}
    only = ask(2, (cell(2.0, 2, 4),))
    assert without_partial_nodes(only, rooms).banned_cells == frozenset()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "other",
    [{"recompute_layers": 6}, {"recompute": "selective", "recompute_layers": 0}, {"shard": 2}, {"cp_comm": "a2a"}],
)
def test_no_restart_for_another_recompute_of_the_same_work(policy: Policy, other: dict[str, str | int]) -> None:
    """The fewest layers that fit move with each report of the peak: on the same GPUs, with the same work, the job stays as it is."""
    found = cell(4.0, gpus=4)
    present = replace(found.plan, recompute="full", recompute_layers=5)
    running = job(1, nodes=("n1",), gpus=4)
    offers = {1: (replace(found, plan=replace(present, **other), goodput=8.0),)}  # type: ignore[arg-type]
    (decision,) = decide(
        snapshot([node("n1", 4)], [running]), Settings(restart_cost_s=0.0), offers, {}, {1: present}, {1: 1e6}, policy
    )
    assert decision.action is Action.KEEP

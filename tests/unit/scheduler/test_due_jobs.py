"""Waiting jobs that are due: who starts, who gives way, and which nodes are kept."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from synergy_core.records import Action, Cell, Decision, Directive, Job, Node, Shape
from synergy_core.restarts import RestartBudget, RestartCost

from synergyd.scheduler.due_jobs import MOST
from synergyd.scheduler.problem.records import JobRequest, Progress
from synergyd.scheduler.problem.waiting_bound import with_due
from synergyd.settings import Settings
from tests.unit.scheduler.builders import NOW, ask, cell, cells, job, node, snapshot
from tests.unit.scheduler.epochs import decide

BOUND = Settings(fairness_bound=2.0, restart_cost_s=30.0)
LONG = Progress(attained_gpu_s=1e4, remaining=1e6, trained_sequences=1e5)
SHORT = Progress(remaining=100.0, trained_sequences=0.0)
WIDE = (cell(8.0, 1, 8),)


def decided(
    nodes: Sequence[Node],
    jobs: Sequence[Job],
    offers: Mapping[int, tuple[Cell, ...]],
    settings: Settings = BOUND,
    ages_s: Mapping[int, float] | None = None,
) -> dict[int, Decision]:
    progress = {j.job_id: LONG if j.node_names else SHORT for j in jobs}
    found = decide(snapshot(nodes, jobs), settings, offers, {}, ages_s=ages_s, progress=progress)
    return {d.job_id: d for d in found}


def smalls(count: int, **changes: object) -> list[Job]:
    """Running jobs of 2 GPUs that can't shrink, four a node."""
    said = Directive(min_gpus=2, max_gpus=2)
    return [job(i, 2, (f"n{(i - 1) // 4}",), 2, directive=said, **changes) for i in range(1, count + 1)]


def test_a_wide_job_that_is_due_starts_on_what_small_ones_hold() -> None:
    jobs = [*smalls(8), job(20, 8)]
    offers = {**{i: (cell(2.0, 1, 2),) for i in range(1, 9)}, 20: WIDE}
    nodes = [node("n0", 8), node("n1", 8)]
    for age_s, settings, action in (
        (10_000.0, BOUND, Action.START),
        (100.0, BOUND, Action.WAIT),  # less than two epochs
        (10_000.0, replace(BOUND, fairness_bound=0.0), Action.WAIT),
        (10_000.0, replace(BOUND, preemption=False), Action.WAIT),
    ):
        found = decided(nodes, jobs, offers, settings, {20: age_s, **dict.fromkeys(range(1, 9), 9000.0)})
        assert found[20].action is action, (age_s, settings)
    found = decided(nodes, jobs, offers, ages_s={20: 10_000.0, **dict.fromkeys(range(1, 9), 9000.0)})
    assert sum(d.action is Action.WAIT for d in found.values()) == 4
    assert "FairnessBound" in found[20].why


def test_a_job_that_has_just_started_or_would_be_due_itself_is_not_stopped() -> None:
    offers = {**{i: (cell(2.0, 1, 2),) for i in range(1, 5)}, 20: WIDE}
    ages = {20: 10_000.0, **dict.fromkeys(range(1, 5), 9000.0)}
    for start_s, age_s in ((NOW - 100, 9000.0), (NOW - 9000, 9e9)):
        jobs = [*smalls(4, start_s=start_s), job(20, 8)]
        found = decided([node("n0", 8)], jobs, offers, ages_s={**ages, **dict.fromkeys(range(1, 5), age_s)})
        assert {d.action for d in found.values()} == {Action.KEEP, Action.WAIT} and found[20].action is Action.WAIT


def test_nodes_are_kept_for_a_due_job_that_does_not_fit_yet() -> None:
    """A wide job waits for n0, where one runs that may not be stopped: nobody else starts beside it, and n1 is open."""
    runs = job(1, 4, ("n0",), 4, directive=Directive(min_gpus=4, max_gpus=4), start_s=NOW - 10)
    other = job(2, 4, ("n1",), 4, directive=Directive(min_gpus=4, max_gpus=4), start_s=NOW - 10)
    also = job(3, 2, ("n1",), 2, directive=Directive(min_gpus=2, max_gpus=2), start_s=NOW - 10)
    waiting = [job(i, 2) for i in (30, 31)]
    offers = {1: (cell(4.0, 1, 4),), 2: (cell(4.0, 1, 4),), 3: cells(1.0, 2.0), 20: WIDE}
    offers |= {i: (cell(2.0, 1, 2),) for i in (30, 31)}
    nodes = [node("n0", 8), node("n1", 8)]
    ages = {1: 10.0, 2: 10.0, 3: 10.0, 20: 10_000.0, 30: 1.0, 31: 1.0}
    found = decided(nodes, [runs, other, also, job(20, 8), *waiting], offers, ages_s=ages)
    assert found[20].action is Action.WAIT
    assert found[20].why.startswith(
        "Waits: the least that it can run on is 8 a100 GPUs on one node, and others still hold"
    )
    assert "GPUs on n0. " in found[20].why
    assert "Nobody else starts or grows there" in found[20].why
    assert Counter(n for i in (30, 31) for n in found[i].node_names) == {"n1": 1}
    [other_waits] = [found[i].why for i in (30, 31) if found[i].action is Action.WAIT]
    assert "1 node is kept for jobs that waited" in other_waits
    # nodes that are kept are neither down nor held by plain jobs
    assert "of the 16 a100 GPUs" in other_waits and "down" not in other_waits
    ages[20] = 130.0 - 60.0  # not due
    found = decided(nodes, [runs, other, also, job(20, 8), *waiting], offers, ages_s=ages)
    assert {found[i].action for i in (30, 31)} == {Action.START}


def test_no_nodes_are_kept_for_longer_than_the_due_job_takes() -> None:
    """One GPU of n0 is held by a job that may not be stopped: a short one is waited for, a long one leaves the nodes to others."""
    nodes = [node(f"n{i}", 8) for i in range(4)]
    runs = job(1, 1, ("n0",), 1, directive=Directive(min_gpus=1, max_gpus=1))
    jobs = [
        runs,
        replace(job(20, 8), asked=Shape("a100", 4, 8), shape=Shape("a100", 4, 8)),
        *(job(30 + i, 1) for i in range(24)),
    ]
    offers = {1: (cell(1.0, 1, 1),), 20: (cell(32.0, 4, 8),), **{30 + i: (cell(1.0, 1, 1),) for i in range(24)}}
    ages = {1: 9e6, 20: 1e5, **{30 + i: 50.0 for i in range(24)}}
    for left, started in ((50.0, 0), (1e5, 24)):
        known = dict.fromkeys(ages, SHORT) | {1: Progress(attained_gpu_s=1e3, remaining=left, trained_sequences=1e3)}
        found = decide(snapshot(nodes, jobs), BOUND, offers, {}, ages_s=ages, progress=known)
        assert sum(d.action is Action.START for d in found) == started, left


def test_due_jobs_that_a_limit_holds_take_nobodys_turn() -> None:
    held = [job(100 + i, 8, account="full") for i in range(MOST)]
    offers = {**{i: (cell(2.0, 1, 2),) for i in range(1, 5)}, **{j.job_id: WIDE for j in held}, 20: WIDE}
    ages = {20: 10_000.0, **dict.fromkeys(range(1, 5), 9000.0), **{j.job_id: 20_000.0 for j in held}}
    settings = replace(BOUND, account_limits={"full": 0})
    found = decided([node("n0", 8)], [*smalls(4), *held, job(20, 8)], offers, settings, ages)
    assert found[20].action is Action.START


def test_a_job_that_has_spent_its_restart_share_is_stopped_for_a_due_job_alone() -> None:
    """Two of them run, and two wide ones wait, of which one is due: it alone gets a node."""
    said = Directive(min_gpus=8, max_gpus=8)
    jobs = [*(job(i + 1, 8, (f"n{i}",), 8, directive=said) for i in range(2)), job(20, 8), job(30, 8)]
    known = dict.fromkeys((1, 2), Progress(attained_gpu_s=1e4, remaining=2e4, trained_sequences=1e6)) | {
        20: SHORT,
        30: SHORT,
    }
    spent = RestartBudget(cost=RestartCost(mean_s=30.0), lost_s=5000.0, life_s=9000.0)
    for restarts, age_s, started in (
        ({}, 50.0, {20, 30}),
        ({1: spent, 2: spent}, 50.0, set()),
        ({1: spent, 2: spent}, 1e4, {20}),
    ):
        ages = {1: 9000.0, 2: 9000.0, 20: age_s, 30: 50.0}
        site, offers = snapshot([node("n0", 8), node("n1", 8)], jobs), dict.fromkeys((1, 2, 20, 30), WIDE)
        found = decide(site, BOUND, offers, {}, ages_s=ages, progress=known, restarts=restarts)
        assert {d.job_id for d in found if d.action is Action.START} == started


@pytest.mark.parametrize(
    ("lost_s", "half", "action"),
    [
        (0.0, 6.0, Action.RESIZE),
        # one restart is left, and a shrink needs the way back, too: until there may be one 8 s are lost, or 1600 s
        (1485.0, 7.99, Action.RESIZE),
        (1485.0, 6.0, Action.WAIT),
        # none is left
        (2000.0, 7.99, Action.RESIZE),
        (5000.0, 7.99, Action.WAIT),
    ],
)
def test_a_job_whose_restarts_are_spent_shrinks_for_a_due_one_where_a_stop_costs_more(
    lost_s: float, half: float, action: Action
) -> None:
    """A stop costs a restart of 30 s, too, and an epoch without GPUs besides. 16 GPUs give 8 sequences/s, 8 GPUs `half`."""
    jobs = [job(1, 1, ("n0", "n1"), 8), job(20, 1)]
    offers = {1: (cell(1.0, 1, 1), cell(half, 1, 8), cell(8.0, 2, 8)), 20: (cell(1.0, 1, 1),)}
    spent = RestartBudget(cost=RestartCost(mean_s=30.0), lost_s=lost_s, life_s=9000.0)
    known = {1: Progress(attained_gpu_s=1e4, remaining=1e5, trained_sequences=1e6), 20: SHORT}
    site = snapshot([node("n0", 8), node("n1", 8)], jobs)

    def found(age_s: float) -> list[Decision]:
        return list(decide(site, BOUND, offers, {}, ages_s={1: 9e3, 20: age_s}, progress=known, restarts={1: spent}))

    gives, starts = found(1e4)
    assert starts.action is Action.START
    assert gives.action is action and (gives.cell is None) == (action is Action.WAIT)
    if lost_s:
        assert [d.action for d in found(100.0)] == [Action.KEEP, Action.WAIT]


def test_of_more_than_there_is_the_earliest_due_comes_first() -> None:
    jobs = [*smalls(4), *(job(i, 8) for i in (20, 21, 22))]
    offers = {**{i: (cell(2.0, 1, 2),) for i in range(1, 5)}, **dict.fromkeys((20, 21, 22), WIDE)}
    ages = {20: 9000.0, 21: 12_000.0, 22: 10_000.0, **dict.fromkeys(range(1, 5), 9000.0)}
    found = decided([node("n0", 8)], jobs, offers, ages_s=ages)
    assert [found[i].action for i in (20, 21, 22)] == [Action.WAIT, Action.START, Action.WAIT]


@pytest.mark.parametrize("seed", range(12))
def test_every_due_job_that_could_fit_starts_or_has_its_nodes_kept(seed: int) -> None:
    """Random clusters under overload: running jobs that may all be stopped, due ones of any size within what there is."""
    draw = random.Random(seed)
    nodes = [node(f"n{i}", 8) for i in range(draw.randint(2, 5))]
    running = smalls(draw.randint(4, 4 * len(nodes)))
    waits = [job(i, draw.choice((1, 2, 4, 8))) for i in range(50, 50 + draw.randint(2, 12))]
    offers: dict[int, tuple[Cell, ...]] = {j.job_id: (cell(2.0, 1, 2),) for j in running}
    left, due = 8 * len(nodes), []
    for one in waits:
        gpus = one.asked.gpus
        offers[one.job_id] = (cell(float(gpus), 1, gpus),)
        if draw.random() < 0.5 and gpus <= left:
            left -= gpus
            due.append(one.job_id)
    ages = {j.job_id: 1e6 if j.job_id in due else 50.0 for j in waits} | {j.job_id: 9000.0 for j in running}
    found = decided(nodes, [*running, *waits], offers, ages_s=ages)
    assert all(found[i].action is Action.START for i in due)
    held: Counter[str] = Counter()
    for decision in found.values():
        for name in decision.node_names if decision.cell else ():
            held[name] += decision.cell.shape.gpus_per_node if decision.cell else 0
    assert all(gpus <= 8 for gpus in held.values())


def allowed_age_s(job: JobRequest, share: float, bound: float, typical_s: float | None) -> float:
    """Return the seconds after its submission at which the job is due if it has no GPUs then."""
    (one,) = with_due([job], bound, typical_s, 0.0, lambda _: share)
    return job.age_s - one.overdue_s


def test_how_long_a_job_may_wait() -> None:
    offers = cells(1.0, 2.0, 3.5)
    one = ask(1, offers, 4, progress=Progress(remaining=700.0, trained_sequences=0.0))
    # equal share of 2 GPUs: 350 s there, slower than the 200 s at the size asked for
    assert allowed_age_s(one, 2.0, 2.0, None) == pytest.approx(2 * 350 - 350)
    # of 4 GPUs and more: as asked for
    assert allowed_age_s(one, 3.5, 2.0, None) == pytest.approx(200)
    unknown = replace(one, progress=Progress())
    assert allowed_age_s(unknown, 3.5, 2.0, 100.0) == pytest.approx(100)
    assert allowed_age_s(unknown, 1.75, 2.0, 100.0) == pytest.approx(200)
    likely = replace(one, progress=Progress(likely_gpu_s=40.0))
    assert allowed_age_s(likely, 3.5, 2.0, 100.0) == pytest.approx(10)
    liar = replace(
        one, progress=Progress(attained_gpu_s=4000.0, remaining=1.0, trained_sequences=0.0, is_claim_refuted=True)
    )
    assert allowed_age_s(liar, 3.5, 2.0, 100.0) == pytest.approx(2 * 2000 - 1000)

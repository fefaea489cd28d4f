"""No job spends more than its share of its life in restarts that Synergy chooses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Action, Cell, Decision, Directive, Job, Snapshot
from synergy_core.restarts import RestartBudget, RestartCost

from synergyd.scheduler.policies import load_policy
from synergyd.scheduler.problem.records import Progress
from synergyd.scheduler.problem.restart_bound import ban_costly_restarts, restart_bound_obstacle
from synergyd.settings import Settings
from tests.unit.scheduler.builders import ask, cell, cells, job, node, snapshot
from tests.unit.scheduler.epochs import decide

SETTINGS = Settings(restart_cost_s=60.0)
GOOD = cells(1.0, 1.9, 3.6)  # 1, 2, 4 GPUs
UNKNOWN = Progress()
COST = RestartCost(mean_s=40.0, spread_s=12.0, own=3)
MAY_GROW = job(1, asked=2, nodes=("n1",), gpus=2)  # goodput 1.9 on 2 GPUs, 3.6 on 4


def decided(
    restarts: RestartBudget,
    progress: Progress = UNKNOWN,
    settings: Settings = SETTINGS,
    policy: str = "",
    runs: Job = MAY_GROW,
    others: tuple[Job, ...] = (),
    offers: tuple[Cell, ...] = GOOD,
) -> Decision:
    told: Snapshot = snapshot([node("n1")], [runs, *others])
    (found, *_) = decide(
        told,
        settings,
        {j.job_id: offers for j in told.jobs},
        {},
        policy=load_policy(policy) if policy else None,
        progress={1: progress},
        restarts={1: restarts},
    )
    return found


@pytest.mark.parametrize(
    ("lost_s", "life_s", "left", "grows"),
    [
        (0.0, 100.0, None, False),  # 40 s of 140 s
        (0.0, 361.0, None, True),  # 40 s of 401 s
        (60.0, 900.0, None, False),
        (60.0, 961.0, None, True),
        # 360 s must be there, 100 have passed: what is left at the goodput to come, 3.6 sequences/s, must be the rest
        (0.0, 100.0, 3.6 * 250, False),
        (0.0, 100.0, 3.6 * 265, True),
        # after one it counts half: of 1000 s, 300 have passed
        (60.0, 300.0, 3.6 * 2 * 650, False),
        (60.0, 300.0, 3.6 * 2 * 665, True),
    ],
)
def test_a_restart_is_within_a_tenth_of_its_whole_life(
    lost_s: float, life_s: float, left: float | None, grows: bool
) -> None:
    slight = cells(1.0, 2.4, 3.6)  # so much that a restart pays, and too little for the time saved to count
    found = decided(RestartBudget(cost=COST, lost_s=lost_s, life_s=life_s), Progress(remaining=left), offers=slight)
    assert (found.action is Action.RESIZE) == grows
    if not grows:
        assert "a restart of this job costs 40 s (measured, 3 restarts; +-12 s)" in found.why, found.why
        assert "10 % of its time is the most that goes into restarts which Synergy chooses" in found.why, found.why
        assert (f"on top of {lost_s:.0f} s so far" in found.why) == (lost_s > 0)


@pytest.mark.parametrize(("left", "grows"), [(3150.0, False), (3290.0, True), (None, False)])
def test_a_restart_within_a_tenth_of_the_time_that_it_saves_is_no_waste(left: float | None, grows: bool) -> None:
    """Half of what is left at 1.9 and at 3.6 sequences/s: 400 s apart for 3219 sequences. By far too much was spent before."""
    spent = RestartBudget(cost=COST, lost_s=1000.0, life_s=2000.0)
    found = decided(spent, Progress(remaining=left))
    assert (found.action is Action.RESIZE) == grows
    assert grows or "is the most that goes into restarts" in found.why
    assert decided(spent, Progress(remaining=left, is_claim_refuted=True)).action is Action.KEEP


@pytest.mark.parametrize(("left", "may_grow"), [(310.0, False), (335.0, True), (None, False)])
def test_a_job_behind_what_it_asked_for_may_grow_where_that_saves_its_cost(left: float | None, may_grow: bool) -> None:
    """Half of what is left at 1.9 and at 3.6 sequences/s, the 4 GPUs asked for: 40 s apart for 322 sequences."""
    spent = RestartBudget(cost=COST, lost_s=1000.0, life_s=2000.0, share=0.1)
    request = replace(ask(1, GOOD, asked=4, current=1), restart=spent, progress=Progress(remaining=left))
    assert (2 not in ban_costly_restarts(request).banned_cells) == may_grow
    refuted = replace(request, progress=Progress(remaining=left, is_claim_refuted=True))
    assert 2 in ban_costly_restarts(refuted).banned_cells


def test_a_step_that_leaves_it_behind_is_held_to_the_share() -> None:
    """On 1 of the 4 GPUs asked for: 2 save what a restart costs and so do 4, and neither ten times that."""
    spent, left = RestartBudget(cost=COST, lost_s=1000.0, life_s=2000.0, share=0.1), Progress(remaining=250.0)
    request = replace(ask(1, GOOD, asked=4, current=0), restart=spent, progress=left)
    assert ban_costly_restarts(request).banned_cells - {0} == {1}  # staying is never banned
    assert restart_bound_obstacle(request, 1) and not restart_bound_obstacle(request, 2)


@pytest.mark.parametrize(("life_s", "shrinks"), [(700.0, False), (721.0, True)])
def test_a_shrink_leaves_room_for_the_way_back(life_s: float, shrinks: bool) -> None:
    full, other = job(1, nodes=("n1",), gpus=4), job(2)
    found = decided(RestartBudget(cost=COST, life_s=life_s), runs=full, others=(other,))
    assert (found.action is Action.RESIZE) == shrinks
    if not shrinks:
        assert any("and another to come back" in a.why_not for a in found.alternatives), found.alternatives


@pytest.mark.parametrize(("asked", "shrinks"), [(2, True), (4, False)])
def test_gpus_beyond_the_requested_size_go_to_those_that_wait(asked: int, shrinks: bool) -> None:
    """It holds all 4 and is old enough for one restart, but not for two."""
    full, other = job(1, asked=asked, nodes=("n1",), gpus=4), job(2)
    found = decided(RestartBudget(cost=COST, life_s=400.0), runs=full, others=(other,))
    assert (found.action is Action.RESIZE) == shrinks, found
    young = decided(RestartBudget(cost=COST, life_s=100.0), runs=full, others=(other,))
    assert young.action is Action.KEEP, "RestartShare holds for them too"
    request = ask(1, GOOD, asked=asked, current=2, restart=RestartBudget(cost=COST, life_s=400.0, share=0.1))
    assert {0, 1} <= ban_costly_restarts(request).banned_cells
    assert (1 in ban_costly_restarts(replace(request, others_wait=True)).banned_cells) != shrinks
    assert 0 in ban_costly_restarts(replace(request, others_wait=True)).banned_cells


def test_a_job_that_can_never_start_makes_nobody_give_gpus_back() -> None:
    full, other = job(1, asked=2, nodes=("n1",), gpus=4), job(2, directive=Directive(min_gpus=64))
    found = decided(RestartBudget(cost=COST, life_s=400.0), runs=full, others=(other,))
    [at_requested_size] = [a for a in found.alternatives if a.cell.shape.gpus == 2]
    assert "and another to come back" in at_requested_size.why_not, at_requested_size


def test_what_a_refuted_job_says_is_left_is_no_life() -> None:
    long = Progress(remaining=1e9)
    assert decided(RestartBudget(cost=COST, life_s=100.0), long).action is Action.RESIZE
    assert decided(RestartBudget(cost=COST, life_s=100.0), replace(long, is_claim_refuted=True)).action is Action.KEEP


def test_it_is_not_stopped_for_others_either() -> None:
    waiting = tuple(job(i, gpus=1) for i in range(2, 6))
    runs = replace(MAY_GROW, start_s=0.0)
    for life_s in (100.0, 1e6):
        found = decided(RestartBudget(cost=COST, lost_s=200.0, life_s=life_s), runs=runs, others=waiting)
        assert life_s > 100 or (found.action is Action.KEEP and found.node_names == ("n1",))


def test_the_share_is_the_admins_and_free_restarts_have_none() -> None:
    young = RestartBudget(cost=COST, life_s=50.0)
    assert decided(young).action is Action.KEEP
    assert decided(young, settings=replace(SETTINGS, restart_share=1.0)).action is Action.RESIZE
    assert decided(replace(young, cost=RestartCost(mean_s=0.0))).action is Action.RESIZE


def test_what_goes_back_to_plain_jobs_is_not_held_back() -> None:
    full = replace(job(1, nodes=("n1",), gpus=4), gives_back="jobs wait")
    assert full.directive is not None
    full = replace(full, directive=replace(full.directive, max_gpus=2))
    found = decided(RestartBudget(cost=COST, life_s=1.0), runs=full)
    assert found.action is Action.RESIZE and "Gives back" in found.why


def test_other_policies_go_by_their_own_rules() -> None:
    young = RestartBudget(cost=COST, life_s=1.0, lost_s=1e6)
    assert decided(young, policy="optimus").action is decided(replace(young, lost_s=0.0), policy="optimus").action


def test_its_own_cost_counts_and_not_the_setting() -> None:
    dear = replace(SETTINGS, restart_cost_s=86_000.0)
    assert decided(RestartBudget(cost=COST), settings=dear).action is Action.RESIZE
    assert decided(RestartBudget(cost=replace(COST, mean_s=86_000.0))).action is Action.KEEP


def test_a_cell_of_equal_goodput_needs_room_for_one_restart_as_it_is_said() -> None:
    offers = (cell(2.0, 1, 2), cell(2.0, 1, 4), cell(3.0, 1, 8), cell(1.9, 1, 1))
    # one restart of 60 s is a tenth of a life of 600 s, two are of 1200 s
    known = RestartBudget(cost=RestartCost(mean_s=60.0), life_s=900.0, share=0.1)
    runs = ask(1, offers, 2, current=0, nodes=("n1",), restart=known, progress=Progress(remaining=100.0))
    assert ban_costly_restarts(runs).banned_cells == {3}
    assert [bool(restart_bound_obstacle(runs, i)) for i in range(4)] == [False, False, False, True]

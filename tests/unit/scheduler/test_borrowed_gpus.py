"""Jobs that have grown give GPUs back to waiting jobs that would start under Slurm alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Action, Cell, Decision, Job, Plan, Shape
from synergy_core.restarts import RestartBudget, RestartCost

from synergyd.scheduler.policies import load_policy
from synergyd.settings import Settings
from tests.unit.scheduler.builders import cell, job, node, snapshot
from tests.unit.scheduler.epochs import decide

SIZES = ((1, 1), (1, 2), (1, 4), (2, 4), (3, 4), (4, 4))
#: hardly faster on more GPUs
FLAT = tuple(cell((n * g) ** 0.1, n, g) for n, g in SIZES)
STEEP = tuple(cell(float(n * g), n, g) for n, g in SIZES)
#: as much as RestartShare allows, and more
SPENT = RestartBudget(cost=RestartCost(mean_s=90.0), lost_s=2000.0, life_s=900.0)
ALL = ("n0", "n1", "n2", "n3")


def asking(job_id: int, nodes: int, each: int = 4, on: tuple[str, ...] = (), **changes: object) -> Job:
    """A job that asks for `nodes` x `each` GPUs, and has 4 on each node of `on`."""
    return replace(job(job_id, nodes=on, gpus=4), asked=Shape("a100", nodes, each), **changes)  # type: ignore[arg-type]


def decided(
    jobs: list[Job], offers: dict[int, tuple[Cell, ...]], settings: Settings, **inputs: object
) -> dict[int, Decision]:
    """Decide about four nodes of 4 GPUs; the running jobs are 900 s old, the waiting ones 5 s."""
    plans = {one.job_id: Plan(dp=one.shape.gpus, global_batch=64) for one in jobs if one.node_names}
    ages = {one.job_id: 900.0 if one.node_names else 5.0 for one in jobs}
    site = snapshot([node(name) for name in ALL], jobs)
    found = decide(site, settings, offers, {}, plans, ages, **inputs)  # type: ignore[arg-type]
    return {one.job_id: one for one in found}


@pytest.mark.parametrize(
    ("own", "asks", "starts"),
    [
        (1, (1, 1), True),
        (1, (3, 4), True),
        # with its requested size there would be no room
        (1, (4, 4), False),
        (4, (1, 1), False),
    ],
)
def test_what_a_job_has_borrowed_it_gives_back_whatever_its_restarts_have_cost(
    own: int, asks: tuple[int, int], starts: bool
) -> None:
    """Job 1 asked for `own` nodes and has all four."""
    found = decided([asking(1, own, on=ALL), asking(2, *asks)], {1: STEEP, 2: FLAT}, Settings(), restarts={1: SPENT})
    assert found[2].action is (Action.START if starts else Action.WAIT)
    assert found[1].action is (Action.RESIZE if starts else Action.KEEP)
    if starts:
        assert found[1].cell is not None and found[1].cell.shape.gpus >= 4 and "others have borrowed" in found[2].why


def test_a_job_gives_back_no_more_than_it_has_borrowed() -> None:
    """Two jobs want GPUs, and there is room for one beside what job 1 asked for: the first of them comes first."""
    jobs = [asking(1, 3, on=ALL), asking(2, 1), asking(3, 1)]
    found = decided(jobs, {1: STEEP, 2: STEEP, 3: STEEP}, Settings(), restarts={1: SPENT})
    assert found[1].cell is not None and found[1].cell.shape.gpus == 12 and found[2].action is Action.START


def test_what_fills_a_limit_is_called_back_too() -> None:
    jobs = [asking(1, 1, on=ALL, partition="main"), asking(2, 1, 1, partition="main")]
    found = decided(jobs, {1: STEEP, 2: FLAT}, Settings(partition_limits={"main": 16}), restarts={1: SPENT})
    assert found[2].action is Action.START


@pytest.mark.parametrize(("cost_s", "starts"), [(119.0, True), (121.0, False)])
def test_a_job_gives_nothing_back_if_its_restart_takes_longer_than_the_other_would_wait(
    cost_s: float, starts: bool
) -> None:
    """No job is due before two epochs of 60 s have passed."""
    spent = replace(SPENT, cost=RestartCost(mean_s=cost_s))
    found = decided([asking(1, 1, on=ALL), asking(2, 1, 1)], {1: STEEP, 2: FLAT}, Settings(), restarts={1: spent})
    assert found[2].action is (Action.START if starts else Action.WAIT)


def test_a_peer_goes_by_its_paper() -> None:
    jobs = [asking(1, 1, on=ALL), asking(2, 1, 1)]
    found = decided(jobs, {1: STEEP, 2: FLAT}, Settings(), policy=load_policy("optimus"))
    assert "borrowed" not in found[2].why

"""A restart is priced by the time for which what it gains lasts."""

from __future__ import annotations

import pytest
from synergy_core.records import Action
from synergy_core.restarts import RestartBudget

from synergyd.scheduler.problem.records import Progress
from synergyd.scheduler.problem.restart_bound import KEPT_SHARE, with_horizon
from synergyd.scheduler.problem.utility import restart_factor
from tests.unit.scheduler.builders import ask, cells
from tests.unit.scheduler.test_restart_bound import COST, decided

GOOD = cells(1.0, 1.9, 3.6)  # 1, 2, 4 GPUs


def test_a_cost_counts_as_if_that_share_of_the_time_were_left() -> None:
    # 40 s and 700 sequences left at 3.6 a second; Sia's (T - N S) / (T + S) for T = 500 s, N = 1
    job = with_horizon(ask(1, GOOD, current=1, discount=460 / 540, restart_drag=40 / 700))
    assert job.discount == pytest.approx(1 / (1 + (80 / 460) / KEPT_SHARE))
    assert restart_factor(job, 2) == pytest.approx(1 / (1 + 40 * 3.6 / (KEPT_SHARE * 700)))


@pytest.mark.parametrize("discount", [0.0, 1.0])
def test_what_no_change_pays_for_and_what_is_free_stay(discount: float) -> None:
    assert with_horizon(ask(1, GOOD, current=1, discount=discount)).discount == discount


def test_a_start_costs_no_restart() -> None:
    waiting = ask(1, GOOD, restart_drag=0.1)
    assert with_horizon(waiting) is waiting


@pytest.mark.parametrize(("left", "grows"), [(300.0, False), (380.0, False), (425.0, True)])
def test_a_gain_must_pay_within_that_share(left: float, grows: bool) -> None:
    """From 1.9 to 3.6 sequences/s for 40 s: held to the end of 161 sequences that pays, held for 0.4 of it from 402 on."""
    long_there = RestartBudget(cost=COST, life_s=1e6)
    assert (decided(long_there, Progress(remaining=left)).action is Action.RESIZE) == grows

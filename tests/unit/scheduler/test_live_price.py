"""A change of nodes that needs no requeue is priced by what it costs, beside changes that need one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synergy_core.records import Action, Decision
from synergy_core.restarts import RestartBudget, RestartCost

from synergyd.scheduler.problem.records import NodeCapacity, Objective, Problem, Progress
from synergyd.scheduler.problem.restart_bound import ban_costly_restarts, restart_bound_obstacle
from synergyd.scheduler.problem.utility import change_value, restart_factor, stay_value
from synergyd.scheduler.solver.column_table import column_table
from synergyd.settings import Settings
from tests.unit.scheduler.builders import ask, cell, job, node, snapshot
from tests.unit.scheduler.epochs import decide

#: half a node, one and two
OFFERS = (cell(1.9, gpus=2), cell(3.6, gpus=4), cell(6.8, 2, 4))
HALF, ONE, TWO = range(3)
REQUEUE, LIVE = RestartCost(mean_s=400.0, own=3), RestartCost(mean_s=4.0, own=2)
YOUNG = RestartBudget(cost=REQUEUE, live_cost=LIVE, life_s=100.0)


def decided(restarts: RestartBudget, nodes: tuple[str, ...], gpus: int) -> Decision:
    """The decision about a job that runs on `nodes` of two free ones."""
    runs = job(1, asked=4, nodes=nodes, gpus=gpus)
    (found,) = decide(
        snapshot([node("n1"), node("n2")], [runs]),
        Settings(restart_cost_s=400.0),
        {1: OFFERS},
        {},
        progress={1: Progress(remaining=6.8 * 300)},
        restarts={1: restarts},
    )
    return found


@pytest.mark.parametrize(("live_cost", "action"), [(LIVE, Action.RESIZE), (None, Action.KEEP)])
def test_a_node_joins_where_a_requeue_would_not_pay(live_cost: RestartCost | None, action: Action) -> None:
    found = decided(replace(YOUNG, live_cost=live_cost), ("n1",), 4)
    assert found.action is action


def test_growth_inside_a_node_costs_a_requeue() -> None:
    assert decided(YOUNG, ("n1",), 2).action is Action.KEEP


def test_explain_gives_the_price_of_the_change_that_it_is_about() -> None:
    found = decided(YOUNG, ("n1",), 4)
    assert LIVE.format() in str(found.reasons) and REQUEUE.format() not in str(found.reasons)


def test_the_bound_on_restarts_goes_by_the_change() -> None:
    one = ask(
        1, OFFERS, 4, current=ONE, nodes=("n1",), restart=replace(YOUNG, share=0.1), live_cells=frozenset({ONE, TWO})
    )
    assert ban_costly_restarts(one).banned_cells == {HALF}
    assert restart_bound_obstacle(one, TWO) == "" and "400 s" in restart_bound_obstacle(one, HALF)
    assert ban_costly_restarts(replace(one, live_cells=frozenset())).banned_cells >= {HALF, TWO}


def test_the_factor_of_a_change_is_that_of_its_cost() -> None:
    # Sia's (T - N S)/(T + S) of 500 s; 2000 sequences left
    one = ask(
        1,
        OFFERS,
        4,
        current=ONE,
        discount=500 / 900,
        restart_drag=400 / 2000,
        restart=YOUNG,
        live_cells=frozenset({TWO}),
    )
    assert restart_factor(one, HALF) == pytest.approx(min(500 / 900, 1 / (1 + 1.9 * 400 / 2000)))
    assert restart_factor(one, TWO) == pytest.approx(min(500 / 504, 1 / (1 + 6.8 * 4 / 2000)))
    assert restart_factor(replace(one, discount=0.0), TWO) == 0.0


def test_the_solvers_table_has_the_same_values() -> None:
    live, requeued = (
        ask(
            i,
            OFFERS,
            4,
            current=ONE,
            nodes=(f"n{i}",),
            discount=0.5,
            restart_drag=0.01,
            restart=YOUNG,
            live_cells=cells,
        )
        for i, cells in ((1, frozenset({TWO})), (2, frozenset[int]()))
    )
    posed = Problem((live, requeued), tuple(NodeCapacity(f"n{i}", "a100", 4) for i in range(1, 5)), Objective())
    table = column_table(posed)
    taken = table.cell >= 0
    expected = [
        change_value(posed.jobs[i], c, posed.terms) - stay_value(posed.jobs[i], posed.terms)
        for i, c in zip(table.job[taken].tolist(), table.cell[taken].tolist(), strict=True)
    ]
    assert {(0, TWO), (1, TWO)} <= set(zip(table.job[taken].tolist(), table.cell[taken].tolist(), strict=True))
    np.testing.assert_allclose(table.instance.utility[taken], expected)

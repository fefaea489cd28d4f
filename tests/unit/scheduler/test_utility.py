"""The numbers behind the objective, against values worked out by hand."""

from __future__ import annotations

import math

import pytest
from synergy_core.records import Shape

from synergyd.scheduler.problem.records import Objective
from synergyd.scheduler.problem.utility import (
    change_value,
    find_requested_cell,
    payback_s,
    power_utility,
    relative_goodputs,
    restart_discount,
    same_shape,
    smallest,
    stay_value,
)
from synergyd.scheduler.solver.columns import columns
from tests.unit.scheduler.builders import ask, cell, cells


def test_utility_by_hand() -> None:
    assert power_utility(2.0, 0.0) == pytest.approx(math.log(2))
    assert power_utility(4.0, -0.5) == pytest.approx(1.0)  # (1/2 - 1)/-0.5
    assert power_utility(0.25, 0.5) == pytest.approx(-1.0)
    assert power_utility(3.0, 1.0) == pytest.approx(2.0)
    assert power_utility(2.0, 1e-12) == pytest.approx(math.log(2))
    for p in (-100.0, -1.0, 0.0, 1.0, 5.0):
        assert (
            power_utility(1.0, p) == 0.0
            and math.isfinite(power_utility(0.0, p))
            and power_utility(0.5, p) < 0 < power_utility(2.0, p)
        )


def test_restart_discount_by_hand() -> None:
    assert restart_discount(540, 0, 60) == pytest.approx(0.9)
    assert restart_discount(540, 3, 60) == pytest.approx(0.6)
    assert restart_discount(100, 2, 60) == 0.0
    assert restart_discount(-5, 0, 60) == 0.0
    assert restart_discount(0, 5, 0) == 1.0


def test_payback_by_hand() -> None:
    # 60 s at 2/s are 120 sequences; 3/s against 2/s makes them up in 120 s.
    assert payback_s(2.0, 3.0, 60.0) == pytest.approx(120.0)
    assert payback_s(2.0, 2.0, 60.0) == math.inf


def test_size_asked_for() -> None:
    offers = (cell(1.0), cell(3.0, 1, 4, pp=1), cell(3.5, 1, 4, pp=2), cell(3.2, 2, 2), cell(9.0, 1, 4, "h100"))
    assert find_requested_cell(offers, Shape("a100", 1, 4)) == 2
    assert find_requested_cell(offers, Shape("a100", 2, 2)) == 3
    assert find_requested_cell(offers, Shape("a100", 4, 1)) == 2
    assert find_requested_cell(offers, Shape("", 1, 4)) == 4
    assert find_requested_cell(offers, Shape("v100", 1, 4)) == 4
    assert find_requested_cell(offers, Shape("a100", 1, 8)) is None
    assert smallest(offers) == 0
    assert relative_goodputs(offers, 1)[0] == pytest.approx(1 / 3)
    assert relative_goodputs(offers, None)[1] == 3.0
    assert same_shape(Shape("a100", 1, 4), Shape("", 1, 4)) and not same_shape(Shape("", 1, 4), Shape("a100", 1, 4))


def test_waiting_is_worth_a_tenth_of_the_smallest_cell_and_changes_are_discounted() -> None:
    offers = cells(1.0, 2.0)
    waits = ask(1, offers, asked=2, weight=3.0)
    assert stay_value(waits, Objective()) == pytest.approx(3 * math.log(0.05))
    assert change_value(waits, 1, Objective()) == 0.0
    runs = ask(1, offers, asked=2, current=0, nodes=("n",), discount=0.75)
    assert stay_value(runs, Objective()) == pytest.approx(math.log(0.5))
    assert change_value(runs, 1, Objective()) == pytest.approx(math.log(0.75))


def test_columns_leave_out_what_is_beaten() -> None:
    offers = (
        cell(1.0),
        cell(0.9, gpus=2),
        cell(2.0, gpus=4),
        cell(2.0, gpus=4, pp=2),
        cell(1.9, 2, 4),
        cell(0.9, kind="h"),
    )
    assert [c.cell for c in columns(ask(1, offers), Objective())] == [2, 0, 5]
    runs = ask(1, offers, current=0, nodes=("n",), discount=0.0)
    assert columns(runs, Objective()) == []

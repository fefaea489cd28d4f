"""Cells and time limits: what finishes in time comes first, and a restart must pay before the limit."""

from __future__ import annotations

import pytest
from synergy_core.records import Cell, Plan, Shape

from synergyd.scheduler.problem.from_snapshot import finishing_first, time_discount
from synergyd.scheduler.problem.records import Progress

CELLS = tuple(Cell(Shape("a100", 1, n), Plan(dp=n, global_batch=8), float(n), 1.0, float(n), 1.0, 0) for n in (1, 2, 4))
RELATIVE = (0.5, 1.0, 2.0)


@pytest.mark.parametrize(
    ("remaining", "left_s", "relative"),
    [
        (300.0, 100.0, (0.4, 0.8, 2.0)),
        (200.0, 100.0, (0.4, 1.0, 2.0)),
        (50.0, 100.0, RELATIVE),  # each finishes
        (900.0, 100.0, RELATIVE),  # none does
        (300.0, None, RELATIVE),
        (None, 100.0, RELATIVE),
    ],
)
def test_cells_that_finish_in_time_come_first(
    remaining: float | None, left_s: float | None, relative: tuple[float, ...]
) -> None:
    found = finishing_first(RELATIVE, CELLS, Progress(remaining=remaining), left_s)
    assert tuple(found) == pytest.approx(relative)


def test_a_length_that_was_refuted_gains_nothing() -> None:
    assert finishing_first(RELATIVE, CELLS, Progress(remaining=300.0, is_claim_refuted=True), 100.0) == RELATIVE


def test_a_change_is_worth_it_only_where_its_restart_pays_in_time() -> None:
    """From 1 to 2 sequences/s with a restart of 60 s: paid back after 120 s."""
    assert 2.0 * time_discount(119.0, 60.0) < 1.0 < 2.0 * time_discount(121.0, 60.0)
    assert time_discount(None, 60.0) == 1.0 and time_discount(50.0, 60.0) == 0.0 == time_discount(0.0, 60.0)

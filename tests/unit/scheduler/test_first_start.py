"""A job whose like nobody has measured starts on a few times the GPUs asked for at most."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Action, Cell, Decision

from synergyd.scheduler.policies import load_policy
from synergyd.scheduler.problem.first_start import reach_obstacle, within_reach
from synergyd.scheduler.problem.records import Objective
from synergyd.settings import Settings
from tests.unit.scheduler.builders import ask, cell, job, node, snapshot
from tests.unit.scheduler.epochs import decide

SIZES = ((1, 1), (1, 4), (2, 4), (4, 4))
TERMS = Objective(first_start=8.0)


def offers(sigma: float, *measured: int) -> tuple[Cell, ...]:
    """Cells of 1, 4, 8, 16 GPUs that scale well, unsure by `sigma` but for those `measured`."""
    found = [cell((n * g) ** 0.9, n, g) for n, g in SIZES]
    return tuple(replace(c, uncertainty=0.03 if c.shape.gpus in measured else sigma) for c in found)


def started(cells: tuple[Cell, ...], policy: str = "", most: float = 8.0) -> Decision:
    site = snapshot([node(f"n{i}") for i in range(4)], [job(1, asked=1)])
    (found,) = decide(site, Settings(first_start=most), {1: cells}, {}, policy=load_policy(policy) if policy else None)
    return found


@pytest.mark.parametrize(
    ("sigma", "measured", "gpus"), [(0.2, (), 8), (0.03, (), 16), (0.2, (1,), 16), (0.2, (16,), 16)]
)
def test_only_guesses_are_bounded(sigma: float, measured: tuple[int, ...], gpus: int) -> None:
    """A size that was measured may be taken, and once the size asked for was, its like is known."""
    found = started(offers(sigma, *measured))
    assert found.action is Action.START and found.cell is not None and found.cell.shape.gpus == gpus


@pytest.mark.parametrize(("most", "gpus"), [(1.0, 1), (4.0, 4), (0.0, 16)])
def test_the_bound_is_a_setting(most: float, gpus: int) -> None:
    found = started(offers(0.2), most=most)
    assert found.cell is not None and found.cell.shape.gpus == gpus


def test_explain_says_so() -> None:
    alternatives = started(offers(0.2)).alternatives
    larger = {a.why_not for a in alternatives if a.cell.shape.gpus > 8}
    assert larger == {
        "it starts on at most 8 times the GPUs asked for until its speed, or that of its like, was measured (FirstStart)"
    }


def test_a_peer_goes_by_its_paper() -> None:
    found = started(offers(0.2), policy="optimus")
    assert found.cell is not None and found.cell.shape.gpus == 16


def test_a_running_job_and_one_with_a_deadline_are_free() -> None:
    for free in (
        ask(1, offers(0.2), current=0),
        ask(1, offers(0.2), deadline_s=9.0),
        replace(ask(1, offers(0.2)), requested_cell=None),
    ):
        assert within_reach(free, TERMS) is free and not reach_obstacle(free, 3, TERMS)
    assert within_reach(ask(1, offers(0.2)), TERMS).banned_cells == {3}

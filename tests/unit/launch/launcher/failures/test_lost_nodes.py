"""What goes on after the loss of nodes, and which end was the cause of the others."""

from __future__ import annotations

import pytest
from synergy_core.records import Plan
from synergy_launch.launcher.failures.lost_nodes import first_cause, largest_fit

NODES = ("n1", "n2", "n3", "n4")
PLAN = Plan(dp=8, global_batch=24)


@pytest.mark.parametrize(
    ("lost", "plan", "fit"),
    [
        ({"n3"}, PLAN, (("n1", "n2", "n4"), Plan(dp=6, global_batch=24))),
        ({"n2", "n4"}, PLAN, (("n1", "n3"), Plan(dp=4, global_batch=24))),
        ({"n2"}, Plan(dp=8, global_batch=16), (("n1", "n3"), Plan(dp=4, global_batch=16))),  # 16 does not divide by 6
        ({"n2"}, Plan(tp=4, dp=2, global_batch=16), (("n1", "n3"), Plan(tp=4, dp=1, global_batch=16))),
        ({"n2"}, Plan(tp=8, global_batch=16), None),
        ({"n1"}, PLAN, None),  # the batch script runs there
        ({"n2"}, None, None),
    ],
)
def test_the_largest_plan_that_fits_the_nodes_that_are_left(
    lost: set[str], plan: Plan | None, fit: tuple[tuple[str, ...], Plan] | None
) -> None:
    assert largest_fit(NODES, lost, plan, 2) == fit


@pytest.mark.parametrize(
    ("code", "own", "ends", "first"),
    [
        (137, True, {1: (1, "exit")}, (137, "", 0)),
        (1, True, {1: (1, "exit"), 2: (137, "killed")}, (137, "killed", 2)),
        (1, True, {1: (1, "nccl"), 2: (137, "killed")}, (137, "killed", 2)),  # the error followed from the kill
        (1, True, {1: (1, "nccl"), 2: (1, "oom")}, (1, "oom", 2)),
        (1, True, {1: (9, "exit")}, (1, "", 0)),
        (1, True, {1: (9, "memory")}, (9, "memory", 1)),
        (137, False, {2: (9, "exit"), 1: (1, "exit")}, (9, "exit", 2)),
        (137, False, {1: (143, "exit"), 2: (7, "exit")}, (7, "exit", 2)),
        (137, False, {}, (137, "", None)),
    ],
)
def test_the_end_that_the_others_followed_from(
    code: int, own: bool, ends: dict[int, tuple[int, str]], first: tuple[int, str, int | None]
) -> None:
    assert first_cause(code, own, ends, 0) == first


def test_a_node_that_knows_the_cause_of_its_own_end_is_the_first() -> None:
    ends = {1: (1, "nccl")}
    assert first_cause(1, True, ends, 0, knows=True) == (1, "", 0)
    assert first_cause(1, True, ends, 0) == (1, "nccl", 1)

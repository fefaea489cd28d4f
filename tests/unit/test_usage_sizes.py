"""Jobs whose GPUs change while they run: Slurm's rows of each allocation, put together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synergy_core.usage import RESIZING, PastRun, Usage, reconcile_usage, totals, whole_jobs


def part(from_s: float, to_s: float, gpus: int = 4, **changes: object) -> Usage:
    fields: dict[str, object] = {"job_id": 7, "user": "mina", "account": "chem", "start_s": from_s, "asked_gpus": 4}
    return Usage(**(fields | {"from_s": from_s, "to_s": to_s, "gpus": gpus} | changes))  # type: ignore[arg-type]


def test_an_allocation_beside_a_jobs_own_is_the_jobs() -> None:
    own = part(0.0, 100.0, nodes="n1", trained_s=100.0, useful_gpu_s=400.0, state="COMPLETED", waited_s=9.0)
    beside = part(40.0, 70.0, 8, job_id=9, of_job=7, nodes="n[2-3]", state="CANCELLED")
    parts = list(whole_jobs([own, beside, part(0.0, 10.0, job_id=11)]))
    assert [(p.job_id, p.from_s, p.to_s, p.gpus, p.nodes) for p in parts] == [
        (7, 0, 40, 4, "n1"), (7, 40, 70, 12, "n1,n[2-3]"), (7, 70, 100, 4, "n1"), (11, 0, 10, 4, "")
    ]  # fmt: skip
    found = totals(parts)
    assert found.jobs == 2 and found.held_gpu_h * 3600 == pytest.approx(400 + 240 + 40)
    assert found.known_gpu_h * 3600 == pytest.approx(4 * 70 + 12 * 30)
    assert found.asked_gpu_h * 3600 == pytest.approx(440) and sum(p.waited_s for p in parts) == 9.0


def test_an_allocation_that_outlives_the_job_is_held_to_its_end() -> None:
    parts = list(whole_jobs([part(0.0, 100.0), part(40.0, 103.0, 8, job_id=9, of_job=7, asked_gpus=8)]))
    assert [(p.from_s, p.to_s, p.gpus, p.asked_gpus) for p in parts] == [
        (0, 40, 4, 4),
        (40, 100, 12, 4),
        (100, 103, 8, 4),
    ]


spans = st.tuples(st.integers(0, 200), st.integers(1, 60), st.integers(1, 8))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4), st.lists(spans, max_size=4))
def test_gpu_seconds_are_those_of_all_allocations(lengths: list[int], beside: list[tuple[int, int, int]]) -> None:
    ends = [0, *(sum(lengths[: i + 1]) for i in range(len(lengths)))]
    own = [part(float(a), float(b), trained_s=float(b - a)) for a, b in pairwise(ends)]
    others = [part(float(a), float(a + n), g, job_id=20 + i, of_job=7) for i, (a, n, g) in enumerate(beside)]
    parts = list(whole_jobs([*own, *others]))
    assert sum(p.gpus * p.held_s for p in parts) == pytest.approx(sum(p.gpus * p.held_s for p in (*own, *others)))
    assert sum(p.trained_s for p in parts) == pytest.approx(float(ends[-1]))
    assert all(p.job_id == 7 and not p.of_job for p in parts)


def run(start_s: float, to_s: float, gpus: int, state: str = "COMPLETED", **changes: Any) -> PastRun:
    return replace(PastRun(7, "mina", "chem", start_s, to_s, gpus, state=state), **changes)


def test_each_row_of_a_job_that_was_made_smaller_corrects_its_own_part() -> None:
    """The changes were seen half a second early and 3 s late; sacct has a row for each size."""
    first = part(0.0, 39.5, 12, state=RESIZING, trained_s=38.0)
    second = part(39.5, 73.0, 8, state=RESIZING, changed_s=0.0, trained_s=33.5)
    third = part(73.0, 100.0, 4, changed_s=0.0, trained_s=27.0)
    rows = [run(0.0, 40.0, 12, RESIZING), run(40.0, 70.0, 8, RESIZING), run(70.0, 101.0, 4)]
    for order in (rows, rows[::-1]):
        changed = reconcile_usage({7: [first, second, third]}, order, 0.0)
        kept = {p.from_s: p for p in (first, second, third)} | {p.from_s: p for p in changed}
        there = [kept[t] for t in sorted(kept) if kept[t].held_s]
        assert [(p.start_s, p.from_s, p.to_s, p.gpus, p.state) for p in there] == [
            (0, 0, 40, 12, RESIZING), (40, 40, 70, 8, RESIZING), (70, 70, 101, 4, "COMPLETED")
        ]  # fmt: skip
        assert reconcile_usage({7: there}, order, 0.0) == []


def test_the_begin_of_a_part_that_goes_on_stays_until_it_ends() -> None:
    """The ledger keeps it, and would write it again."""
    first, second = part(0.0, 38.0, 12, state=RESIZING), part(38.0, 60.0, 4, changed_s=0.0, is_open=True)
    (changed,) = reconcile_usage({7: [first, second]}, [run(0.0, 40.0, 12, RESIZING), run(40.0, 70.0, 4)], 0.0)
    assert (changed.from_s, changed.to_s) == (0, 40)


@pytest.mark.parametrize(
    ("whose", "of_job"), [({}, 7), ({"user": "joao"}, 0), ({"account": "phys"}, 0)], ids=["own", "user", "account"]
)
def test_a_name_makes_an_allocation_the_jobs_with_the_same_owner_only(whose: dict[str, Any], of_job: int) -> None:
    unseen = run(40.0, 50.0, 8, of_job=7, job_id=9, **whose)
    (added,) = reconcile_usage({7: [part(0.0, 100.0, state="COMPLETED")]}, [unseen], 0.0)
    assert (added.job_id, added.of_job, added.gpus) == (9, of_job, 8)

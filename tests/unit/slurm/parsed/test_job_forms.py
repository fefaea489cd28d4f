"""Array tasks and dependencies: what names a record, who waits, who becomes a job of its own."""

from __future__ import annotations

import pytest

from synergyd.slurm.parsed.job_forms import (
    SPLITS_AN_EPOCH,
    TASKS_AHEAD,
    Forms,
    is_pending_array_remainder,
    read_throttle,
    slurm_name,
    sort_by_form,
)
from synergyd.slurm.parsed.rows import JobRow
from tests.unit.slurm.fake_slurm import row


def task(job_id: int, tasks: str, state: str = "PENDING", array_id: int = 10) -> JobRow:
    return row(job_id, state=state, array=True, array_job_id=array_id, array_task=tasks)


def forms(*rows: JobRow, throttle: int = 0, **those: set[int]) -> Forms:
    given: dict[str, set[int]] = {"in_transit": set(), "untouched": set(), "fixed": set(), **those}
    return sort_by_form(rows, {10: throttle}, given["in_transit"], given["untouched"], given["fixed"])


@pytest.mark.parametrize(
    ("text", "name", "rest", "throttle"),
    [
        ("7", "10_7", False, 0),
        ("7%2", "10_7", False, 2),
        ("1-9%1", "10_[1-9]", True, 1),
        ("1,3-9:2", "10_[1,3-9:2]", True, 0),
        ("1,3,5,...", "", True, 0),  # cut by Slurm
        ("1,3,5,...%4", "", True, 4),
        ("1];x", "", True, 0),
    ],
)
def test_names_of_an_arrays_records(text: str, name: str, rest: bool, throttle: int) -> None:
    record = task(10, text)
    assert (slurm_name(record), is_pending_array_remainder(record), read_throttle(record)) == (name, rest, throttle)


def test_a_plain_job_is_named_by_its_id() -> None:
    assert slurm_name(row(7)) == 7 and not is_pending_array_remainder(row(7))


def test_a_chain_has_one_task_that_may_start_and_the_next_ready() -> None:
    fresh = forms(task(10, "1-9%1"), throttle=1)
    assert (fresh.split, fresh.park, list(fresh.waits)) == ([(10, 1), (10, 2)], [10], [10])
    split = forms(task(11, "1"), task(12, "2"), task(10, "3-9%1"), throttle=1)
    assert (split.split, split.park) == ([], [12, 10])
    assert split.waits[12] == "its array runs at most 1 task at a time"
    runs = forms(task(11, "1", "RUNNING"), task(12, "2"), task(10, "3-9%1"), throttle=1)
    assert (runs.split, runs.park) == ([], [12, 10])
    over = forms(task(12, "2"), task(10, "3-9%1"), throttle=1)
    assert (over.split, over.park) == ([(10, 3)], [10])


def test_a_task_that_is_resized_keeps_its_turn() -> None:
    resized = forms(task(11, "1"), task(12, "2"), task(10, "3-9%1"), throttle=1, in_transit={11})
    assert set(resized.waits) == {12, 10}
    requeued = forms(task(12, "2"), task(11, "1"), throttle=1)  # by Slurm: the earlier task goes first
    assert set(requeued.waits) == {12}


def test_held_paused_and_later_tasks_take_no_turn() -> None:
    assert set(forms(task(11, "1"), task(12, "2"), throttle=1, untouched={11}).waits) == set()
    left = forms(task(10, "1-9%2"), throttle=2, untouched={10})
    assert (left.split, left.park, list(left.waits)) == ([], [], [10])


def test_arrays_that_keep_their_size_or_whose_list_is_cut_are_slurms() -> None:
    for those, text in (({10}, "1-9"), (set(), "1,3,5,...")):
        left = forms(task(10, text), fixed=those)
        assert (left.split, left.park, list(left.waits)) == ([], [], [10])


def test_without_a_throttle_a_bounded_number_of_tasks_are_ready() -> None:
    many = forms(task(10, "0-999"))
    assert many.split == [(10, n) for n in range(TASKS_AHEAD)]
    ready = [task(11 + n, str(n)) for n in range(TASKS_AHEAD)]
    assert forms(*ready, task(10, "32-999")).split == []
    assert set(forms(*ready, task(10, "32-999")).waits) == {10}
    arrays = [task(1000 * a, "0-99", array_id=1000 * a) for a in range(1, 9)]
    assert len(sort_by_form(arrays, {}, (), (), ()).split) == SPLITS_AN_EPOCH
    assert forms(task(10, "2,5-9:4,20-29"), throttle=3).split == [(10, 2), (10, 5), (10, 9), (10, 20)]


def test_a_job_that_depends_on_others_is_neither_decided_about_nor_parked() -> None:
    text = "afterok:4(unfulfilled)"
    waits = forms(row(7, dependency=text), row(8), row(9, dependency=text, state="RUNNING"))
    assert waits.waits == {7: f"Slurm does not start it yet: it depends on other jobs ({text})"}
    assert (waits.park, waits.split) == ([], [])
    rest = row(10, array=True, array_job_id=10, array_task="1-3", dependency=text)
    assert (forms(rest).park, forms(rest).split) == ([], [])

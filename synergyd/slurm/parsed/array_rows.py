"""Pending tasks of an array that have job ids of their own, as rows of their own.

From 23.02 squeue shows all pending tasks of an array as one row, that of the array's record, and that row then lacks the array's
throttle. 22.05 shows them apart where SQUEUE_ARRAY_UNIQUE is set. With `-r` every release has a line for each task. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from synergyd.slurm.parsed.job_forms import is_pending_array_remainder
from synergyd.slurm.parsed.rows import JobRow

MERGES_TASKS = (23, 2)  # the release that began to
TASK_FIELDS = (("JobID", 12), ("ArrayJobID", 12), ("ArrayTaskID", 12))  # columns of `squeue -r`
SPANS_BYTES = 1024  # a longer list is cut as Slurm cuts one: Synergy then leaves its tasks to Slurm


def may_hide(rows: Iterable[JobRow]) -> bool:
    """Return whether one of these rows can stand for tasks with other job ids."""
    return any(map(is_pending_array_remainder, rows))


def separate_tasks(rows: Sequence[JobRow], lines: Iterable[Mapping[str, str]]) -> tuple[list[JobRow], list[int]]:
    """Return (`rows` with the tasks that are truly theirs, ids of the jobs that no row is for). `lines` have TASK_FIELDS."""
    tasks, arrays = defaultdict(list), {}
    for line in lines:
        if line["JobID"].isdecimal() and line["ArrayTaskID"].isdecimal():
            tasks[int(line["JobID"])].append(int(line["ArrayTaskID"]))
            arrays[int(line["JobID"])] = line["ArrayJobID"]
    hidden_ids = sorted(tasks.keys() - {row.job_id for row in rows})
    merged_ids = {arrays[job_id] for job_id in hidden_ids}
    own = [
        replace(row, array_task=spans(sorted(tasks[row.job_id])), merged=True)
        if is_pending_array_remainder(row) and str(row.array_job_id) in merged_ids and row.job_id in tasks
        else row
        for row in rows
    ]
    return own, hidden_ids


def spans(tasks: Sequence[int]) -> str:
    """Return Slurm's text for sorted task numbers: `1,3-9`, or its beginning and dots."""
    spans = []
    for _, run in groupby(enumerate(tasks), lambda pair: pair[1] - pair[0]):
        numbers = [task for _, task in run]
        spans.append(f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0]))
    text = ",".join(spans)
    return text if len(text) <= SPANS_BYTES else f"{text[:SPANS_BYTES]}..."

"""Jobs that are more than one record of Slurm's or wait for others: array tasks, dependencies. Pure.

An array's pending tasks are one record until Slurm starts a task, or until somebody writes to one: then that task has a job id
of its own, and the record keeps the others. An array's id names all of its tasks, and is the last one's own job id too: so a
task is written to as `ARRAY_TASK`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from synergyd.slurm.parsed.rows import JobRow

TASKS_AHEAD = 32  # tasks of one array that pend as jobs of their own: as many can start at an epoch
SPLITS_AN_EPOCH = 50  # for all arrays; each is an update to slurmctld
_ONE = re.compile(r"[0-9]+(%[0-9]+)?\Z")
_TASKS = re.compile(r"[0-9][0-9,:-]*")  # the tasks in `1-9:2%3`; Slurm cuts a long list, and ends it with dots


def is_pending_array_remainder(row: JobRow) -> bool:
    """Return whether this is the record of several pending tasks of an array."""
    return row.array and not _ONE.match(row.array_task)


def slurm_name(row: JobRow) -> int | str:
    """Return what names this record alone in Slurm's commands: a job id, `ARRAY_TASK` or `ARRAY_[TASKS]`.

    Return "" if its list is cut, and for a heterogeneous job's leader, whose id names all components.
    """
    if not row.array:
        return "" if row.het and not row.het_offset else row.job_id
    tasks = row.array_task.partition("%")[0]
    if not is_pending_array_remainder(row):
        return f"{row.array_job_id}_{tasks}"
    return f"{row.array_job_id}_[{tasks}]" if _TASKS.fullmatch(tasks) else ""


def squeue_name(row: JobRow) -> str:
    """Return what squeue calls this record, or '' if that is its id: `ARRAY_TASK`, `ARRAY_[TASKS]`, `LEADER+OFFSET`."""
    if row.het:
        return f"{row.het_job_id}+{row.het_offset}"
    return str(slurm_name(row)) if row.array else ""


def slurm_name_of_whole_job(row: JobRow) -> int | str:
    """Return what names all that starts, is requeued and has its time limit together: a heterogeneous job by its leader."""
    return row.het_job_id if row.het else slurm_name(row)


def read_throttle(row: JobRow) -> int:
    """Return the most tasks that may run at once, or 0 if the record does not say: only the one of several pending tasks does."""
    limit = row.array_task.partition("%")[2]
    return int(limit) if limit.isdecimal() else 0


@dataclass
class Forms:
    """The forms of Synergy's jobs, as far as they matter to decisions.

    `waits`: why Synergy does not decide about a pending job now. `park`: those of them that are not to start by
    themselves. `split`: (job id of an array's record, its task that is to become a job of its own).
    """

    waits: dict[int, str] = field(default_factory=dict)
    park: list[int] = field(default_factory=list)
    split: list[tuple[int, int]] = field(default_factory=list)
    slurms: set[int] = field(default_factory=set)  # those of `waits` that are Slurm's alone to start


def sort_by_form(
    rows: Iterable[JobRow],
    throttles: Mapping[int, int],
    in_transit: Container[int],
    untouched_ids: Container[int],
    fixed_ids: Container[int],
) -> Forms:
    """Sort Synergy's jobs `rows` by what their forms allow.

    `throttles`: by array id. `in_transit`: being resized or started. `untouched_ids`: held or paused jobs, and those
    whose user's begin time has not come. `fixed_ids`: jobs that keep their size.
    """
    forms = Forms()
    arrays: dict[int, list[JobRow]] = defaultdict(list)
    for row in rows:
        if row.array:
            arrays[row.array_job_id].append(row)
        if row.state == "PENDING" and row.dependency and row.job_id not in in_transit:
            forms.waits[row.job_id] = f"Slurm does not start it yet: it depends on other jobs ({row.dependency})"
    for array_id, tasks in arrays.items():
        _array(forms, tasks, throttles.get(array_id, 0), in_transit, untouched_ids, fixed_ids)
    del forms.split[SPLITS_AN_EPOCH:]
    return forms


def _array(
    forms: Forms,
    rows: list[JobRow],
    throttle: int,
    in_transit: Container[int],
    untouched_ids: Container[int],
    fixed_ids: Container[int],
) -> None:
    rest = next((r for r in rows if is_pending_array_remainder(r)), None)
    single = [r for r in rows if r is not rest]
    active = sum(r.state != "PENDING" or r.job_id in in_transit for r in single)
    pending = sorted(
        (
            r
            for r in single
            if r.state == "PENDING"
            if not (
                r.job_id in in_transit or r.job_id in untouched_ids or r.job_id in fixed_ids or r.job_id in forms.waits
            )
        ),
        key=lambda r: int(r.array_task.partition("%")[0]),
    )
    room = max(0, throttle - active) if throttle else len(pending)
    for row in pending[room:]:
        forms.waits[row.job_id] = f"its array runs at most {throttle} task{'s' * (throttle > 1)} at a time"
        forms.park.append(row.job_id)
    if rest is None or rest.job_id in forms.waits:
        return
    if rest.job_id in untouched_ids or rest.job_id in fixed_ids or not slurm_name(rest):
        forms.waits[rest.job_id] = f"tasks {rest.array_task} of its array wait for Slurm"
        forms.slurms.add(rest.job_id)
        return
    forms.waits[rest.job_id] = f"tasks {rest.array_task} of its array wait for the tasks before them"
    forms.park.append(rest.job_id)
    # one more than may run: it starts at the epoch that sees a task end
    ahead = min(TASKS_AHEAD, room + 1) if throttle else TASKS_AHEAD
    forms.split += [(rest.job_id, task) for task in _first(rest.array_task, ahead - len(pending))]


def _first(text: str, count: int) -> list[int]:
    """Return the first `count` tasks of a list such as `1,3-9:2%4`."""
    first_ids: list[int] = []
    for part in text.partition("%")[0].split(","):
        span, _, step = part.partition(":")
        low, _, high = span.partition("-")
        if not low.isdecimal() or len(first_ids) >= count:
            break
        last = int(high) if high.isdecimal() else int(low)
        first_ids += range(int(low), last + 1, int(step) if step.isdecimal() and int(step) else 1)[
            : count - len(first_ids)
        ]
    return first_ids[: max(0, count)]

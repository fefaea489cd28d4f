"""A job as its user names it: `123`, an array's task `123_4`, a heterogeneous job's component `123+1`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
from synergy_core.errors import UsageError

if TYPE_CHECKING:  # --help and completion, at each Tab, do without the database's library
    from synergyd.control.decision_log import JobStatus
    from synergyd.store.store import Store

_NAME = re.compile(r"([0-9]{1,10})(?:([_+])([0-9]{1,10}))?\Z")
_LARGEST = 2**32 - 1


class _JobName(click.types.StringParamType):
    name = "job"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        match = _NAME.match(value) if isinstance(value, str) and value.isascii() else None
        if match is None or not 1 <= int(match[1]) <= _LARGEST or int(match[3] or 0) > _LARGEST:
            self.fail(
                f"{value!r} is no job id: write 123, 123_4 (a task of an array) or 123+1 (a component)", param, ctx
            )
        return f"{int(match[1])}" + (f"{match[2]}{int(match[3])}" if match[2] else "")


JOB_NAME = _JobName()


def find_job_id(store: Store, name: str) -> int:
    """Return the id of the job that JOB_NAME let through: one of the last epoch, else the last that had this name.

    A heterogeneous job's own id is that of its component which Synergy knows. Raises UsageError for a task that has no id of its own
    yet, and for a name that nobody knows.
    """
    here = _present(store)
    if name.isdecimal():
        own = int(name)
        if any(job.job_id == own for job in here) or store.last_decision(own) or store.story(own):
            return own
    job_id = store.find_job_id(name) or (store.find_job_id(f"{name}+", beginning=True) if name.isdecimal() else None)
    return find_job_id_among(here, name, job_id)


def find_job_id_among(here: Iterable[JobStatus], name: str, before: int | None = None) -> int:
    """Return the id of the job with this name among the jobs of the last epoch.

    `before`: the job that had it earlier. Raises UsageError.
    """
    here = list(here)
    for job in here:
        if job.slurm_name == name or (name.isdecimal() and job.slurm_name.startswith(f"{name}+")):
            return job.job_id
    if before is not None:
        return before
    array, _, task = name.partition("_")
    if task and any(_waits(job.slurm_name, array, int(task)) for job in here):
        what = "waits in its array and has no job id of its own yet"
        raise UsageError(f"job {name}", what, f"synergyctl explain {array} tells what its array waits for")
    if name.isdecimal():
        return int(name)  # what nobody knows of it each verb says itself
    raise UsageError(
        f"job {name}",
        "was never seen by the daemon",
        "it needs a #SYNERGY line; synergyctl status lists the jobs it knows",
    )


def _present(store: Store) -> list[JobStatus]:
    from synergy_core.wire.codec import decode

    from synergyd.control.decision_log import JobStatus

    epoch = store.latest_epoch()
    return [] if epoch is None else [decode(JobStatus, row, "stored status") for row in epoch.present]


def _waits(name: str, array: str, task: int) -> bool:
    """Return whether `task` is one of the record `ARRAY_[1-3,7-9:2]`."""
    own, _, tasks = name.partition("_[")
    return own == array and any(task in span for span in _spans(tasks.rstrip("]")))


def _spans(text: str) -> Iterable[range]:
    for part in text.partition("%")[0].split(","):
        ends, _, step = part.partition(":")
        low, _, high = ends.partition("-")
        if low.isdecimal() and (high or low).isdecimal():
            yield range(int(low), int(high or low) + 1, int(step) if step.isdecimal() and int(step) else 1)

"""The account of a dry run: for each job, what the epochs' decisions would have made of the time for which it was watched. Pure.

A job counts with the goodput of the size that an epoch decides for it, until the next epoch. A change of that size costs a restart. Jobs
are as they are: one that would have ended sooner goes on to hold its GPUs, so the account tends to be too low.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from synergy_core.errors import one_line
from synergy_core.records import Action, Decision, Job, JobState, Shape
from synergy_core.would_have import WouldHave, WouldHaveTotals, totals

from synergyd.jobmodel.prior_cells import SHARED_VARIANCE

MAILED_JOBS = 20
_RUNS = (Action.KEEP, Action.START, Action.RESIZE)


@dataclass(frozen=True)
class Predicted:
    """The speed that an epoch predicts for a job on `shape`, relative to its requested size, with one sigma."""

    speed: float
    sigma: float
    shape: Shape


class WouldHaveLedger:
    """The account of all jobs in the queue.

    `restart_s`: what a change of size costs; `longest_s`: the longest time that one epoch stands for.
    """

    def __init__(self, restart_s: float, longest_s: float) -> None:
        self._restart_s, self._longest_s = restart_s, longest_s
        self._kept: dict[int, tuple[WouldHave, Job, Predicted | None]] = {}
        self._stored: Mapping[tuple[int, float], WouldHave] = {}

    def restore(self, rows: Iterable[WouldHave]) -> None:
        """Take what was stored by an earlier daemon; each job goes on from its next look."""
        self._stored = {(row.job_id, row.submit_s): row for row in rows}

    def see(
        self, now_s: float, jobs: Iterable[tuple[Job, bool]], predicted: Mapping[int, Predicted | None]
    ) -> list[WouldHave]:
        """Count the time since the last look. `jobs` with whether they have a line. Return the accounts that changed."""
        before, self._kept = self._kept, {}
        for job, has_line in jobs:
            row, last, prediction = before.pop(job.job_id, (None, None, None))
            if row is None or last is None or row.submit_s != job.submit_s:
                row, prediction = self._begin(job, has_line, now_s), None
            else:
                row = self._after(row, last, prediction, min(now_s - row.to_s, self._longest_s))
            now = predicted.get(job.job_id)
            if now is not None and _restarts(job, prediction, now):
                lost_s = self._restart_s * now.speed
                row = replace(row, changes=row.changes + 1, useful_s=row.useful_s - lost_s)
            wanted_gpus = now.shape.gpus if now is not None else 0
            self._kept[job.job_id] = (replace(row, to_s=now_s, wanted_gpus=wanted_gpus), job, now)
        # one that has ended since did so in the middle of the time, as the mean goes
        ended = [
            replace(self._after(row, job, prediction, min(now_s - row.to_s, self._longest_s) / 2), to_s=now_s)
            for row, job, prediction in before.values()
        ]
        return [*(row for row, _, _ in self._kept.values()), *ended]

    def _begin(self, job: Job, has_line: bool, now_s: float) -> WouldHave:
        stored = self._stored.get((job.job_id, job.submit_s))
        if stored is not None and stored.has_line == has_line:
            return stored
        return WouldHave(
            job_id=job.job_id,
            submit_s=job.submit_s,
            name=job.name,
            user=job.user,
            account=job.account,
            asked_gpus=job.asked.gpus,
            has_line=has_line,
            from_s=now_s,
            to_s=now_s,
        )

    @staticmethod
    def _after(row: WouldHave, job: Job, predicted: Predicted | None, seconds: float) -> WouldHave:
        """Return the account after `seconds` in which the job was as `job` and would have been as `predicted`."""
        if seconds <= 0:
            return row
        if job.state is JobState.PENDING:
            sooner_s = seconds if predicted is not None and not job.held else 0.0
            return replace(row, waited_s=row.waited_s + seconds, sooner_s=row.sooner_s + sooner_s)
        speed, sigma = (predicted.speed, predicted.sigma) if predicted is not None else (0.0, 0.0)
        return replace(
            row,
            ran_s=row.ran_s + seconds,
            useful_s=row.useful_s + seconds * speed,
            sigma_s=row.sigma_s + seconds * sigma,
        )


def _restarts(job: Job, before: Predicted | None, now: Predicted) -> bool:
    """Return whether the job would be restarted on another size than it had in the account, or than it holds where it is new there."""
    if before is not None:
        return before.shape != now.shape
    return job.state is JobState.RUNNING and now.shape != job.shape


def predict(job: Job, decision: Decision | None, sigma: float) -> Predicted | None:
    """Return what a decision predicts for a job, or None if it would wait.

    `sigma`: relative, of its goodput against that of the requested size.
    """
    if decision is None or decision.action not in _RUNS:
        return None
    if decision.action is Action.KEEP and (decision.cell is None or decision.relative_goodput is None):
        return Predicted(1.0, 0.0, job.shape)
    if decision.cell is None:
        return Predicted(1.0, 0.0, job.asked)
    speed = decision.relative_goodput if decision.relative_goodput is not None else 1.0
    return Predicted(speed, speed * sigma, decision.cell.shape)


def would_have_totals(rows: Iterable[WouldHave]) -> WouldHaveTotals:
    """Return the sums over jobs. What is not known of how a cluster's jobs scale does not average out."""
    return totals(rows, SHARED_VARIANCE)


def format_account(rows: Iterable[WouldHave]) -> str:
    """Return the account of a dry run as lines: the sum first, then the jobs for which most would have changed."""
    rows = list(rows)
    total = would_have_totals(rows)
    gain = "unknown" if total.gain is None else f"{100 * total.gain:+.0f} % +- {100 * total.gain_sigma:.0f}"
    lined = sum(row.has_line for row in rows)
    lines = [
        f"gain {gain}, had Synergy acted",
        f"{lined} jobs with a #SYNERGY line, and {len(rows) - lined} without, as if they had one, ran {total.ran_h:.1f} job hours.",
        f"Their training would have taken {total.saved_h:.1f} +- {total.sigma_h:.1f} hours less. They waited {total.waited_h:.1f} hours, "
        f"and would have run in {total.sooner_h:.1f} of them.",
        "",
    ]
    first = sorted(rows, key=lambda row: -(abs(row.saved_s) + row.sooner_s))[:MAILED_JOBS]
    return "\n".join([*lines, *map(_format_job, first)])


def _format_job(row: WouldHave) -> str:
    line = "with" if row.has_line else "without"
    return (
        f"job {row.job_id} ({one_line(row.name, 40)}) of {row.user}, {line} a line: {row.asked_gpus} GPUs asked for, {row.wanted_gpus} "
        f"chosen; {row.saved_s / 3600:+.1f} +- {row.sigma_s / 3600:.1f} h of {row.ran_s / 3600:.1f} h"
    )

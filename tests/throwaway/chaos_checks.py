"""What must hold in a chaos run, whatever fails: pure functions of what was seen. Each returns lines, one a finding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.throwaway.ledger import Line, lost_steps, overlaps

Row = Mapping[str, Any]  # of a job, as `squeue --json` has it
ENDED = frozenset(
    {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE"}
)
# fields that Slurm itself leaves as they were at sbatch, whatever happens to the job
_KEPT = (
    "name", "comment", "admin_comment", "required_nodes", "excluded_nodes", "features", "tres_per_node", "tasks",
    "time_limit", "nice", "requeue", "partition", "dependency",
)  # fmt: skip
_CLOCK_S = 5  # Slurm's times are whole seconds, and a row is a moment old
#: a failed job that Synergy runs once more is out of the queue for a moment (failed_starts.RERUN_S bounds it)
GONE_S = 30.0
#: within which the hold of a failed launch is lifted: a few looks at the queue
LIFTED_S = 20.0
#: Slurm puts off what it requeues after a node failure by cred_expire
REQUEUED_S = 121.0
#: Slurm 22.05 starts jobs without their GPUs on nodes that have not registered yet (docs/admin/high-availability.md)
NO_GPUS = "Invalid generic resource (gres) specification"


@dataclass(frozen=True, kw_only=True)
class JobSeen:
    """What is known of one job. Times in seconds since 1970."""

    job_id: int
    managed: bool  # it has a directive
    at_sbatch: Row
    last: Row  # as it was last seen in the queue
    here: bool  # it was in the queue at the last look
    ledger: Sequence[Line] = ()
    gone_s: float = GONE_S  # for how long it has not been in the queue, or has ended there
    held_s: float = math.inf  # for how long Slurm has shown it with priority 0
    output: str = ""  # the end of what it printed
    acts: frozenset[str] = field(default_factory=frozenset)  # what its user did: "cancel", "hold" (and did not release)


def of_job(job: JobSeen, now_s: float, park_s: float) -> list[str]:
    """All that is wrong with one job at a moment when nothing fails."""
    return [*lost(job), *overlaps(job.ledger), *steps_lost(job), *held(job, now_s, park_s), *written_to(job)]


def lost(job: JobSeen) -> list[str]:
    """It left the queue without being done, and no user cancelled it."""
    gone = not job.here or job.last["job_state"] in ENDED
    if not gone or "cancel" in job.acts or any(x.what == "done" for x in job.ledger):
        return []
    if job.gone_s < GONE_S:
        return []
    if not job.last["restart_cnt"] and NO_GPUS in job.output:
        return []  # its first start is Slurm's own: without Synergy it had failed as well
    return [f"lost: it left the queue, last seen {job.last['job_state']} ({job.last['state_reason']})"]


def steps_lost(job: JobSeen) -> list[str]:
    """An incarnation began before the last checkpoint of those before it. Plain jobs have none."""
    return lost_steps(job.ledger) if job.managed else []


def held(job: JobSeen, now_s: float, park_s: float) -> list[str]:
    """It is kept from starting longer than Synergy may, or for ever, and its user did not ask for that."""
    row = job.last
    if not job.here or row["job_state"] != "PENDING" or "hold" in job.acts:
        return []
    if row["priority"] == 0 and job.managed and job.held_s < LIFTED_S:
        return []  # a launch that has just failed: Synergy lifts that hold at its next look
    if row["priority"] == 0:
        return [f"held: priority 0 ({row['state_reason']})"]
    away_s = row["eligible_time"] - now_s
    most_s = max(park_s, REQUEUED_S if row["restart_cnt"] else 0.0)
    if job.managed and away_s > most_s + _CLOCK_S:
        return [f"held: it may not start for {away_s:.0f} s"]
    # Slurm itself puts off one that it has requeued, by cred_expire
    put_off = not job.managed and not row["restart_cnt"] and away_s > _CLOCK_S
    return ["held: a plain job is put off"] if put_off else []


def written_to(job: JobSeen) -> list[str]:
    """A job without a directive differs from what its user submitted."""
    if job.managed:
        return []
    names = _KEPT if job.last["restart_cnt"] else (*_KEPT, "eligible_time")
    before, now = job.at_sbatch, job.last
    # a time limit that was not given becomes the partition's at the start
    return [f"written to: {n} was {before[n]!r}, is {now[n]!r}" for n in names if before[n] not in (now[n], None)]


def changed_words(expected: Row, row: Row) -> list[str]:
    """What a user wrote on a job of Synergy's and is not there any more."""

    def kept(name: str) -> bool:
        # Synergy lowers a time limit to what is left of it when it requeues the job
        return row[name] == expected[name] or (name == "time_limit" and 0 < (row[name] or 0) < expected[name])

    return [f"its user's {n} was {value!r}, is {row[n]!r}" for n, value in expected.items() if not kept(n)]


@dataclass(frozen=True)
class Epoch:
    """A completed epoch of one daemon; `time_s` on the monotonic clock. `acts`: as the leader."""

    daemon: str
    time_s: float
    acts: bool


def longest_gap_s(epochs: Sequence[Epoch], since_s: float, until_s: float) -> float:
    """The longest time within [since_s, until_s] without a completed epoch of a daemon that leads."""
    times = [since_s, *sorted(e.time_s for e in epochs if e.acts and since_s < e.time_s < until_s), until_s]
    return max(b - a for a, b in pairwise(times))


def taken_over_s(epochs: Sequence[Epoch], since_s: float) -> float | None:
    """From a leader's loss to the next completed epoch of any leader; None if there was none."""
    after = [e.time_s for e in epochs if e.acts and e.time_s > since_s]
    return min(after) - since_s if after else None


def two_leaders(epochs: Sequence[Epoch], since_s: float) -> list[str]:
    """A daemon goes on acting after another has begun to, without having seen in between that it does not lead."""
    found: list[str] = []
    began: dict[str, float] = {}  # of those that act as far as they know: since when
    for epoch in sorted(epochs, key=lambda e: e.time_s):
        if not epoch.acts:
            began.pop(epoch.daemon, None)
            continue
        newer = [d for d, s in began.items() if d != epoch.daemon and s > began.get(epoch.daemon, epoch.time_s)]
        if newer and epoch.time_s >= since_s:
            late_s = epoch.time_s - began[newer[0]]
            found.append(
                f"two leaders: {epoch.daemon} completed an epoch {late_s:.1f} s after {newer[0]} had begun to act"
            )
        began.setdefault(epoch.daemon, epoch.time_s)
    return found[:1]

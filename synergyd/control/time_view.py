"""A job as an epoch may decide about it, by its time limit and the cluster's reservations. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from synergyd.control.walltime import Walltime
from synergyd.records import Job, JobState

START_S = 5.0  # from a decision to the job's start
_NAMED = 3  # nodes named in a sentence


@dataclass(frozen=True)
class Reservation:
    """Nodes that Slurm keeps free of jobs that are not in it, from `start_s` to `end_s` (seconds since 1970)."""

    name: str
    start_s: float
    end_s: float
    nodes: frozenset[str]


def in_time(
    job: Job,
    walltime: Walltime,
    reservations: Iterable[Reservation],
    now_s: float,
    *,
    lead_s: float = 0.0,
    restart_s: float = 0.0,
    least_s: float = 0.0,
) -> Job:
    """The job with the time that it has left, the nodes that reservations bar it from, and when one cuts it short.

    Slurm starts no job that might still run when a reservation of its nodes begins: of a running job it is the requeued one
    that would wait. `restart_s`: what a restart takes; `lead_s`: how long before the end a checkpoint is asked for; `least_s`: to
    which Slurm may shorten its limit to start it before a reservation (--time-min), 0 where it may not.
    """
    runs = job.state is JobState.RUNNING
    left_s = _left_s(job, walltime, now_s)
    if least_s and not runs:
        left_s = least_s if left_s is None else min(left_s, least_s)
    begins_s = now_s + (restart_s if runs else START_S)
    bars = [
        r for r in reservations if r.end_s > now_s and (left_s is None or begins_s + left_s > r.start_s) and r.nodes
    ]
    barred = tuple(sorted(frozenset().union(*(r.nodes for r in bars))))
    own = [r for r in bars if runs and r.start_s > now_s and r.nodes & set(job.node_names)]
    cut_s = min((r.start_s for r in own if walltime.ends_s is None or walltime.ends_s > r.start_s), default=None)
    timed = replace(
        job,
        time_left_s=None if walltime.goes_on else left_s,
        cut_s=cut_s,
        barred=barred,
        barred_why="".join(_words(r, left_s, now_s) for r in sorted(bars, key=lambda r: (r.start_s, r.name))),
    )
    if runs and not job.fixed and left_s is not None and left_s <= walltime.lead_s(lead_s) + restart_s:
        ends = "is over" if left_s <= 0 else f"is over in {_span(left_s)}"
        then = "it then goes on with a new one" if walltime.goes_on else "a restart would not pay any more"
        return replace(timed, fixed=f"its time limit {ends}, and {then}")
    return timed


def _left_s(job: Job, walltime: Walltime, now_s: float) -> float | None:
    """Seconds for which its present or next incarnation may run; None: no limit."""
    if job.state is JobState.RUNNING:
        return None if walltime.ends_s is None else max(0.0, walltime.ends_s - now_s)
    return job.time_limit_s if walltime.left_s is None else walltime.left_s


def _words(reservation: Reservation, left_s: float | None, now_s: float) -> str:
    names = sorted(reservation.nodes)
    nodes = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    if reservation.start_s <= now_s:
        return f" The reservation {reservation.name} has {nodes} for another {_span(reservation.end_s - now_s)}."
    runs = "has no time limit" if left_s is None else f"may run for {_span(left_s)}"
    return f" The reservation {reservation.name} takes {nodes} in {_span(reservation.start_s - now_s)}, and the job {runs}."


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"

"""A job as an epoch may decide about it, by its time limit and the cluster's reservations. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from synergy_core.formatting import format_duration, format_names
from synergy_core.records import Job, JobState

from synergyd.control.resize.walltime import Walltime

START_S = 5.0  # from a decision to the job's start


@dataclass(frozen=True)
class Reservation:
    """Nodes that Slurm keeps for the jobs that are in it, from `start_s` to `end_s` (seconds since 1970)."""

    name: str
    start_s: float
    end_s: float
    nodes: frozenset[str]
    #: it keeps its nodes free of all jobs that are not in it
    bars: bool = True
    #: why its own jobs are not resized, ""
    holds: str = ""
    #: its jobs end with it
    ends_jobs: bool = True


def with_time_left(
    job: Job,
    walltime: Walltime,
    reservations: Sequence[Reservation],
    now_s: float,
    *,
    lead_s: float = 0.0,
    restart_s: float = 0.0,
    least_s: float = 0.0,
    reserved: frozenset[str] = frozenset(),
) -> Job:
    """Return the job with its time left, the nodes that reservations bar it from or keep for it, and when one cuts it short.

    Slurm starts no job that might still run when a reservation of its nodes begins: for a running job, the requeued
    one would wait. `restart_s`: what a restart takes; `lead_s`: how long before the end a checkpoint is asked for;
    `least_s`: to which Slurm may shorten its limit to start it before a reservation (--time-min), 0 if it may not.
    `reserved`: nodes that Slurm shows to be in a reservation now.
    """
    runs = job.state is JobState.RUNNING
    own = next((r for r in reservations if r.name == job.reservation), None)
    if job.reservation:
        job = _within_reservation(job, own, now_s)
    left_s, end_s = _left_s(job, walltime, now_s), own.end_s if own is not None and own.ends_jobs else None
    if least_s and not runs:
        left_s = least_s if left_s is None else min(left_s, least_s)
    begins_s = now_s + (restart_s if runs else START_S)
    bars = [
        r
        for r in reservations
        if r.bars and r is not own and r.end_s > now_s and (left_s is None or begins_s + left_s > r.start_s) and r.nodes
    ]
    others = reserved - own.nodes if own is not None else reserved
    time_left_s = None if walltime.can_begin_anew else left_s
    if end_s is not None:
        time_left_s = max(0.0, end_s - now_s if time_left_s is None else min(time_left_s, end_s - now_s))
    own_bars = [r for r in bars if r.nodes.intersection(job.node_names)] if runs else []
    cut_s, cut_why, again_s = _find_cut(job, walltime, own_bars, end_s if runs else None, now_s)
    timed = replace(
        job,
        time_left_s=time_left_s,
        cut_s=cut_s,
        cut_why=cut_why,
        free_again_s=again_s,
        barred=_names(frozenset((*(r.nodes for r in bars), others))),
        barred_why=_reservation_message(bars, others, own, left_s, now_s),
    )
    if not runs or job.fixed:
        return timed
    if left_s is not None and left_s <= walltime.lead_s(lead_s) + restart_s:
        ends = "is over" if left_s <= 0 else f"is over in {format_duration(left_s)}"
        then = "it then goes on with a new one" if walltime.can_begin_anew else "a restart would not pay any more"
        return replace(timed, fixed=f"its time limit {ends}, and {then}")
    if end_s is not None and end_s - now_s <= walltime.lead_s(lead_s) + restart_s:
        over = f"its reservation {job.reservation} ends in {format_duration(max(0.0, end_s - now_s))}"
        return replace(timed, fixed=f"{over}, and a restart would not pay any more")
    return timed


def _within_reservation(job: Job, own: Reservation | None, now_s: float) -> Job:
    """Return a job that names a reservation, limited to its nodes or left to Slurm if these can't be named."""
    why = own.holds if own is not None else "Slurm shows none of this name"
    if own is not None and own.start_s > now_s:
        why = f"it begins in {format_duration(own.start_s - now_s)}"
    elif own is not None and own.end_s <= now_s:
        why = "it has ended"
    if own is not None and not why:
        return replace(job, within=tuple(sorted(own.nodes)))
    if job.state is JobState.RUNNING:
        return replace(job, fixed=job.fixed or f"it is in the reservation {job.reservation}: {why}")
    if job.directive is None:
        return job
    error = f"Synergy leaves the job to Slurm: it is in the reservation {job.reservation}, and {why}"
    return replace(job, directive=None, directive_error=error)


def _find_cut(
    job: Job, walltime: Walltime, bars: list[Reservation], end_s: float | None, now_s: float
) -> tuple[float | None, str, float | None]:
    """Return when a running job is cut short, why, and when the nodes are free again.

    It is cut short by the first of `bars`, which take nodes of it, or at `end_s`. A reservation that began while it
    ran may end it at any time.
    """
    cuts = [(r.start_s, f"the reservation {r.name} takes its nodes", r.end_s) for r in bars if r.start_s > now_s]
    if end_s is not None:
        cuts.append((end_s, f"its reservation {job.reservation} ends", math.nan))
    cuts = [cut for cut in cuts if walltime.ends_s is None or walltime.ends_s > cut[0]]
    if not cuts:
        since_s = now_s if job.start_s is None else job.start_s
        begun = [r for r in bars if since_s < r.start_s <= now_s]
        cuts = [(r.start_s, f"the reservation {r.name} has its nodes", math.nan) for r in begun]
    if not cuts:
        return None, "", None
    cut_s, why, again_s = min(cuts, key=lambda cut: cut[:2])
    return cut_s, why, None if math.isnan(again_s) else again_s


@lru_cache(maxsize=256)
def _names(sets: frozenset[frozenset[str]]) -> tuple[str, ...]:
    """Return all names, sorted. Many jobs have the same ones."""
    return tuple(sorted(frozenset().union(*sets)))


def _left_s(job: Job, walltime: Walltime, now_s: float) -> float | None:
    """Return the seconds for which the job's present or next incarnation may run, or None if there is no limit."""
    if job.state is JobState.RUNNING:
        return None if walltime.ends_s is None else max(0.0, walltime.ends_s - now_s)
    return job.time_limit_s if walltime.left_s is None else walltime.left_s


def _reservation_message(
    bars: list[Reservation], reserved: frozenset[str], own: Reservation | None, left_s: float | None, now_s: float
) -> str:
    text = "".join(_format_reservation(r, left_s, now_s) for r in sorted(bars, key=lambda r: (r.start_s, r.name)))
    text += _format_unnamed(reserved, frozenset(r.nodes for r in bars)) if reserved else ""
    if own is not None and own.ends_jobs and own.start_s <= now_s < own.end_s:
        text += f" Its reservation {own.name} has {_format_nodes(own.nodes)} for another {format_duration(own.end_s - now_s)}."
    return text


def _format_reservation(reservation: Reservation, left_s: float | None, now_s: float) -> str:
    nodes = _format_nodes(reservation.nodes)
    if reservation.start_s <= now_s:
        return (
            f" The reservation {reservation.name} has {nodes} for another {format_duration(reservation.end_s - now_s)}."
        )
    runs = "has no time limit" if left_s is None else f"may run for {format_duration(left_s)}"
    return f" The reservation {reservation.name} takes {nodes} in {format_duration(reservation.start_s - now_s)}, and the job {runs}."


@lru_cache(maxsize=256)
def _format_unnamed(reserved: frozenset[str], named_node_sets: frozenset[frozenset[str]]) -> str:
    rest = reserved.difference(*named_node_sets)
    return f" {_format_nodes(rest)} {'are' if len(rest) > 1 else 'is'} in a reservation of others." if rest else ""


@lru_cache(maxsize=256)
def _format_nodes(nodes: frozenset[str]) -> str:
    return format_names(sorted(nodes))

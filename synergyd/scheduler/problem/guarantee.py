"""Jobs with guaranteed=yes: at least the goodput of the size asked for, whenever they run. Pure.

Such a job has no Cell with less, is due at once while it waits (due_jobs.py), and is not stopped. The admin's GuaranteedShare bounds
what all of them ask for: first comes the user whose guarantees count for the fewest GPUs, and of a user's jobs the one submitted first, so
that nobody takes the whole share while others ask for it. Beyond it a job counts as an ordinary one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from synergyd.records import Job
from synergyd.scheduler.problem.records import JobRequest

_TOLERANCE = 0.97  # of the goodput: what measured steps vary by (throughput.NOISE) is no reason for a restart
_WHY = "guaranteed=yes keeps the goodput of the size asked for"


def with_guarantees(
    requests: Sequence[JobRequest], gpus: int, share: float, jobs: Iterable[Job], ages_s: Mapping[int, float]
) -> tuple[JobRequest, ...]:
    """The requests; `guaranteed` holds for those alone that are within `share` of the cluster's GPUs.

    Of `jobs` (`ages_s` by job id) those that hold GPUs and that nobody touches now count in the share like the others: they have what
    they asked for. `gpus`: what can be handed out, their own not among it."""
    claims = [
        (one.uid, -one.age_s, one.job_id, one.gpus(one.asked))
        for one in requests
        if one.guaranteed and one.asked is not None
    ]
    asking = {one.job_id for one in requests}
    for job in jobs:
        if job.directive is not None and job.directive.guaranteed and job.node_names and job.job_id not in asking:
            claims.append((job.uid, -ages_s[job.job_id], job.job_id, job.asked.gpus))
            gpus += job.shape.gpus
    kept = _within(claims, share * gpus)
    return tuple(
        _guaranteed(job) if job.job_id in kept else replace(job, guaranteed=False) if job.guaranteed else job
        for job in requests
    )


def _within(claims: Sequence[tuple[int, float, int, int]], left: float) -> set[int]:
    """Ids of the jobs whose claims (uid, when it was submitted, job id, GPUs) count within `left` GPUs."""
    of_user: dict[int, list[tuple[float, int, int]]] = {}
    for uid, submit, job_id, asked in sorted(claims, reverse=True):
        of_user.setdefault(uid, []).append((submit, job_id, asked))  # the first one last
    turns = [(0, own[-1], uid) for uid, own in of_user.items()]  # (GPUs that count already, next claim, uid)
    heapify(turns)
    kept = set()
    while turns:
        had, (_, job_id, asked), uid = heappop(turns)
        of_user[uid].pop()
        if asked <= left:
            left, had = left - asked, had + asked
            kept.add(job_id)
        if of_user[uid]:
            heappush(turns, (had, of_user[uid][-1], uid))
    return kept


def below_guarantee(job: JobRequest, index: int) -> str:
    """Why a job whose guarantee counts may not have cells[index]; "" where it may."""
    if not job.guaranteed or index not in job.banned or job.asked is None or job.overdue_s < 0:
        return ""
    low = job.cells[index].goodput < _TOLERANCE * job.cells[job.asked].goodput
    return "it is less than the goodput at the size asked for, which guaranteed=yes keeps" if low else ""


def _guaranteed(job: JobRequest) -> JobRequest:
    floor = _TOLERANCE * job.cells[job.asked or 0].goodput
    low = frozenset(i for i, cell in enumerate(job.cells) if cell.goodput < floor)
    banned = job.banned | low
    if len(banned) == len(job.cells) and job.current is None:
        return replace(job, guaranteed=False)  # it would never start
    job = replace(job, banned=banned, overdue_s=max(job.overdue_s, job.age_s, 0.0))
    if job.current in low:
        return replace(job, need=floor, need_anew=floor, need_why=_WHY)
    return job


def guarantee_words(said: bool, job: JobRequest, share: float) -> str:
    """A sentence on a guarantee that was asked for (`said`) and counts for nothing now; "" else."""
    if not said or job.guaranteed:
        return ""
    if share <= 0:
        return " guaranteed= counts for nothing here (GuaranteedShare=0)."
    return f" guaranteed= does not count while what it asks for is more than other guaranteed jobs leave of GuaranteedShare={share:g}."

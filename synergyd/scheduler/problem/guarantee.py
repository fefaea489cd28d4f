"""Jobs with guaranteed=yes: at least the goodput of the size asked for, whenever they run. Pure.

Such a job has no Cell with less, is due at once while it waits (due_jobs.py), and is not stopped. The admin's GuaranteedShare bounds
what all of them ask for. First come the jobs that have what they asked for, since a guarantee lasts, then the user whose guarantees count
for the fewest GPUs, and of a user's jobs the one submitted first. Beyond it a job counts as an ordinary one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from synergyd.records import Job
from synergyd.scheduler.problem.records import JobRequest

_TOLERANCE = 0.97  # of the goodput: what measured steps vary by (throughput.NOISE) is no reason for a restart
_WHY = "guaranteed=yes keeps the goodput of the size asked for"


class _Claim(NamedTuple):
    """What a job asks of the share."""

    waits: bool  # for what it asked for
    uid: int
    submit_s: float  # on any clock
    job_id: int
    gpus: int


def with_guarantees(
    requests: Sequence[JobRequest], gpus: int, share: float, jobs: Iterable[Job], ages_s: Mapping[int, float]
) -> tuple[JobRequest, ...]:
    """The requests; `guaranteed` holds for those alone that are within `share` of the cluster's GPUs.

    Of `jobs` (`ages_s` by job id) those that hold GPUs and that nobody touches now count in the share like the others: they have what
    they asked for. `gpus`: what can be handed out, their own not among it."""
    claims = [
        _Claim(not _has(one), one.uid, -one.age_s, one.job_id, one.gpus(one.asked))
        for one in requests
        if one.guaranteed and one.asked is not None
    ]
    asking = {one.job_id for one in requests}
    for job in jobs:
        if job.directive is not None and job.directive.guaranteed and job.node_names and job.job_id not in asking:
            claims.append(_Claim(False, job.uid, -ages_s[job.job_id], job.job_id, job.asked.gpus))
            gpus += job.shape.gpus
    kept = _within(claims, share * gpus)
    return tuple(
        _guaranteed(job) if job.job_id in kept else replace(job, guaranteed=False) if job.guaranteed else job
        for job in requests
    )


def _has(job: JobRequest) -> bool:
    """Whether it runs with the goodput of the size asked for."""
    if job.current is None or job.asked is None:
        return False
    return job.cells[job.current].goodput >= _TOLERANCE * job.cells[job.asked].goodput


def _within(claims: Iterable[_Claim], left: float) -> set[int]:
    """Ids of the jobs whose claims count within `left` GPUs."""
    kept, had = set[int](), Counter[int]()  # had: by uid, GPUs that count
    of_user: dict[int, deque[_Claim]] = {}
    for claim in sorted(claims, key=lambda c: (c.waits, c.submit_s, c.job_id)):
        if claim.waits:
            of_user.setdefault(claim.uid, deque()).append(claim)
        elif claim.gpus <= left:
            left -= claim.gpus
            had[claim.uid] += claim.gpus
            kept.add(claim.job_id)
    turns = [(had[uid], own[0].submit_s, own[0].job_id, uid) for uid, own in of_user.items()]
    heapify(turns)
    while turns:
        _, _, job_id, uid = heappop(turns)
        claim = of_user[uid].popleft()
        if claim.gpus <= left:
            left -= claim.gpus
            had[uid] += claim.gpus
            kept.add(job_id)
        if of_user[uid]:
            following = of_user[uid][0]
            heappush(turns, (had[uid], following.submit_s, following.job_id, uid))
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

"""The expected slowdown of every job whose all-reduce crosses shared links, and the jobs that share each.

A mean-field forecast, no schedule: a job sends for a share u of its step, and while it does so every other job on the same link pays
b + h more for a MB (cost(k) = b + (k-1)(b+h), links/model.py), so that job i pays b + (b+h) * sum of the others' u on its costliest link.
Shares and costs depend on each other; starting from quiet links and repeating, both only grow and are bounded, so this converges.
Jobs that happen to (or are made to) alternate do better, jobs in step do worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from synergyd.links.model import Link, Topology

_ROUNDS = 200
_CLOSE = 1e-9


@dataclass(frozen=True)
class Traffic:
    """One placed job: its nodes, seconds of compute a step, MB its all-reduce sends each step over every link it crosses."""

    job_id: int
    nodes: tuple[str, ...]
    compute_s: float
    message_mb: float


@dataclass(frozen=True)
class JobSlowdown:
    """The slowdown of one job.

    `slowdown`: expected step time over that with its links to itself (>= 1). `link` is the costliest shared one ("" if none),
    `others` the jobs on any link it crosses.
    """

    job_id: int
    slowdown: float
    link: str
    others: tuple[int, ...]


def slowdowns(jobs: Sequence[Traffic], topology: Topology) -> dict[int, JobSlowdown]:
    """Return the slowdowns by job id. Jobs that cross no link, send nothing or share with no job have slowdown 1."""
    links_of = {job.job_id: topology.links_crossed(job.nodes) for job in jobs if job.message_mb > 0}
    users: dict[str, list[int]] = {}
    for job_id, links in links_of.items():
        for link in links:
            users.setdefault(link, []).append(job_id)
    figures = {link: topology.figures(link) for link in users}
    meet = {job_id: [x for x in links if len(users[x]) > 1] for job_id, links in links_of.items()}
    alone = {job_id: max((figures[x].per_mb for x in links), default=0.0) for job_id, links in links_of.items()}
    busy = [job for job in jobs if meet.get(job.job_id)]
    cost = _fixed_point(busy, meet, alone, figures)
    forecasts = {}
    for job in jobs:
        if not meet.get(job.job_id):
            forecasts[job.job_id] = JobSlowdown(job.job_id, 1.0, "", ())
            continue
        per_mb, worst = cost[job.job_id]
        quiet = job.compute_s + job.message_mb * alone[job.job_id] / 1000.0
        others = sorted({o for x in meet[job.job_id] for o in users[x]} - {job.job_id})
        slowdown = (job.compute_s + job.message_mb * per_mb / 1000.0) / quiet
        forecasts[job.job_id] = JobSlowdown(job.job_id, slowdown, worst, tuple(others))
    return forecasts


def _fixed_point(
    busy: Iterable[Traffic], meet: dict[int, list[str]], alone: dict[int, float], figures: dict[str, Link]
) -> dict[int, tuple[float, str]]:
    """Return (ms/MB, costliest shared link) of every job that shares a link."""
    jobs = [(j.job_id, j.compute_s * 1000.0, j.message_mb, meet[j.job_id]) for j in busy]
    cost = {job_id: (alone[job_id], links[0]) for job_id, _, _, links in jobs}
    share = {j: size * cost[j][0] / (compute + size * cost[j][0]) for j, compute, size, _ in jobs}
    for _ in range(_ROUNDS):
        sums: dict[str, float] = {}
        for job_id, _, _, links in jobs:
            for link in links:
                sums[link] = sums.get(link, 0.0) + share[job_id]
        change = 0.0
        for job_id, compute, size, links in jobs:
            own = share[job_id]
            each = max((f.per_mb + (f.per_mb + f.penalty) * (sums[x] - own), x) for x in links for f in (figures[x],))
            # A link of its own may still be the slower one.
            cost[job_id] = (max(each[0], alone[job_id]), each[1])
            share[job_id] = size * cost[job_id][0] / (compute + size * cost[job_id][0])
            change = max(change, abs(share[job_id] - own))
        if change < _CLOSE:
            break
    return cost

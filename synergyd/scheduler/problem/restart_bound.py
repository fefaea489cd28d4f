"""The share of its time that a job may spend in restarts that Synergy chooses: the setting RestartShare. Pure.

The share is of the job's whole life: the time since its first start, the restart itself, and the time that the job itself says
is left. That time is at the goodput of the Cell that it would take, or at the present one where that is higher: it may come
back to it. The time left is a belief. It counts half from the second restart on, so that only a first one may turn out to have
been too much. A job that says nothing of its length has only the time that has passed: whenever it ends, that share of its life
is the most that was spent.

A Cell with less goodput needs room for two restarts, there and back: a job that could shrink for others and then not grow again
would stay small on an idle cluster. While others wait, GPUs beyond the requested size are theirs: room for one restart is enough.

A restart may also be spent on a Cell that brings the end so much nearer that the restart is within that share of the time
saved, by half of what is believed to be left. Otherwise a job that shrank for others while it had long to go would end far
later for it. A job that is behind the size that it asked for is owed as much: by the same half, a restart to that goodput or
more need only save what it costs.

A size lasts until others come and go or the noise scale grows, not to the job's end. So a change must gain what its restart costs within
KEPT_SHARE of the time left (`with_horizon`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.records import JobRequest

_BELIEVED = 0.5  # share of the time left that counts once a restart was spent: a job may be twice as fast as believed
# Mean over changes of (time to the job's next change, or its end) / (time to its end), of made-up jobs that were themselves priced so:
# 0.39, 0.35, 0.38 and 0.31 with generate:80,4, 160,8 and 100,4 (two seeds) on 16 x 4 GPUs
KEPT_SHARE = 0.4


def ban_costly_restarts(job: JobRequest) -> JobRequest:
    """Return a running job with those Cells `banned` that a restart may not be spent on."""
    if job.current is None:
        return job
    banned = _costly_cells(job, job.current)
    if job.live_cells:
        banned = (banned - job.live_cells) | (_costly_cells(_at_live_cost(job), job.current) & job.live_cells)
    return replace(job, banned_cells=job.banned_cells | banned) if banned else job


def _at_live_cost(job: JobRequest) -> JobRequest:
    """Return the job as if each of its changes cost what one without a requeue does."""
    return replace(job, restart=replace(job.restart, cost=job.restart.live_cost or job.restart.cost))


def _costly_cells(job: JobRequest, current: int) -> frozenset[int]:
    """Return those Cells that a restart of restart.cost may not be spent on."""
    if (most := _most(job, 2)) is None:
        return frozenset()
    cells = CellIndex.build(job.cells)
    present = cells[current].goodput
    banned: frozenset[int] = frozenset()
    if present > most:
        banned = cells.indices_above(-1.0) - cells.indices_above(math.nextafter(present, -math.inf)) - {current}
    most = _most(job, 1)
    if job.others_wait and (most is None or present <= most):
        banned = frozenset(i for i in banned if not _gives_back(job, i))
    if most is not None:
        banned |= cells.indices_above(-1.0) if present > most else cells.indices_above(most)
        banned -= cells.indices_above(math.nextafter(_least_repaying_goodput(job, present), -math.inf))
    return banned


def _gives_back(job: JobRequest, index: int) -> bool:
    """Return whether cells[index] leaves a running job no fewer GPUs than it asked for, and others get those that it has beyond."""
    if not job.others_wait or job.requested_cell is None:
        return False
    return job.gpus(job.requested_cell) <= job.gpus(index) < job.gpus(job.current)


def instead_of_a_stop(job: JobRequest) -> frozenset[int]:
    """Return those Cells of a running job that only this bound forbids and that are better for it than none.

    Until its share pays for another restart, which may make it grow again, they cost it less than a restart takes. A stop costs
    a restart, too, and the time until the next start.
    """
    if job.current is None:
        return frozenset()
    small_s = max(0.0, _least_life_s(job, 2) - job.restart.life_s)
    present = job.cells[job.current].goodput
    lost_s = {i: (1.0 - cell.goodput / present) * small_s for i, cell in enumerate(job.cells)} if present > 0 else {}
    forbidden = ban_costly_restarts(replace(job, banned_cells=frozenset())).banned_cells
    return frozenset(i for i in forbidden if lost_s.get(i, math.inf) <= job.restart.cost.mean_s)


def restart_bound_obstacle(job: JobRequest, index: int) -> str:
    """Return why cells[index] may not cost a running job a restart, or "" where it may."""
    if job.current is None:
        return ""
    goodput, present = job.cells[index].goodput, job.cells[job.current].goodput
    job = _at_live_cost(job) if index in job.live_cells else job
    restarts = 2 if goodput < present and not _gives_back(job, index) else 1
    most = _most(job, restarts)
    if most is None or max(goodput, present) <= most or goodput >= _least_repaying_goodput(job, present):
        return ""
    spent = f" on top of {job.restart.lost_s:.0f} s so far" if job.restart.lost_s >= 1 else ""
    back = ", and another to come back," if restarts == 2 else ""
    return (
        f"a restart of this job costs {job.restart.cost.format()}{back}{spent}: as {job.restart.share * 100:.0f} % of its time is the "
        f"most that goes into restarts which Synergy chooses, that takes a life of {_least_life_s(job, restarts) / 60:.0f} min"
    )


def _least_repaying_goodput(job: JobRequest, present: float) -> float:
    """Return the goodput from which on a restart is within its share of the time that it saves.

    For a job behind the size that it asked for, a second goodput counts if it is lower: the one at which the job is no longer
    behind, and the restart saves its cost.
    """
    remaining = job.progress.remaining
    if remaining is None or job.progress.is_claim_refuted or present <= 0:
        return math.inf
    now_s, cost_s = _BELIEVED * remaining / present, job.restart.cost.mean_s

    def saves(least_s: float) -> float:
        return _BELIEVED * remaining / (now_s - least_s) if now_s > least_s else math.inf

    least_goodput = saves(cost_s / job.restart.share)
    if job.requested_cell is None or (asked_goodput := job.cells[job.requested_cell].goodput) <= present:
        return least_goodput
    return min(least_goodput, max(asked_goodput, saves(cost_s)))


def _least_life_s(job: JobRequest, restarts: int) -> float:
    """Return the shortest life, in seconds, in which so many more restarts are within the job's share."""
    return (job.restart.lost_s + restarts * job.restart.cost.mean_s) / job.restart.share


def _most(job: JobRequest, restarts: int) -> float | None:
    """Return the highest goodput at which what is left takes long enough, or None where the job's life is long enough already."""
    cost_s = job.restart.cost.mean_s
    missing_s = _least_life_s(job, restarts) - job.restart.life_s - restarts * cost_s
    if cost_s <= 0 or missing_s <= 0:
        return None
    remaining = job.progress.remaining
    believed = _BELIEVED if job.restart.lost_s else 1.0
    return 0.0 if remaining is None or job.progress.is_claim_refuted else believed * remaining / missing_s


def with_horizon(job: JobRequest) -> JobRequest:
    """Return a running job whose restarts count as if only that share of its time were left to make up for them.

    Sia's r = 1 / (1 + c), c the restart's cost over the time that makes up for it, becomes 1 / (1 + c / KEPT_SHARE), and so does the share
    by the work left. 0 (no change pays) and 1 (a change is free) stay.
    """
    if job.current is None or job.discount <= 0.0:
        return job
    r = min(job.discount, 1.0)
    return replace(job, discount=r / (r + (1.0 - r) / KEPT_SHARE), restart_drag=job.restart_drag / KEPT_SHARE)

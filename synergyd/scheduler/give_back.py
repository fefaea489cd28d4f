"""Jobs that hold more than they may keep (plain jobs wait for GPUs, their owner wants fewer): they are decided about as if they had
given it back.

So the allocation need not know of it: a job that "keeps" what it would be left with is resized to that, and the GPUs that it
gives back are nobody's in this epoch, for Slurm to hand out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from synergyd.records import Action, Cell, Decision, Job, JobState, Plan, Snapshot


@dataclass(frozen=True)
class GivenBack:
    """The epoch as it is decided about. `left`: by job id, the Cell and the nodes of those that give back."""

    snapshot: Snapshot
    plans: Mapping[int, Plan]
    left: Mapping[int, tuple[Cell, tuple[str, ...]]]


def give_back(snapshot: Snapshot, cells: Mapping[int, tuple[Cell, ...]], plans: Mapping[int, Plan]) -> GivenBack:
    """Every job that is to give back, on the part of its nodes and GPUs where its best Cell within its limit fits.

    One without such a Cell stays as it is.
    """
    jobs, left = [], {}
    for job in snapshot.jobs:
        keeps = job.keeps or job.node_names
        open_to = tuple(n for n in job.node_names if n in keeps and n not in (*job.barred, *job.avoid))
        best = _best(job, cells.get(job.job_id, ()), len(open_to)) if job.gives_back else None
        if best is None:
            jobs.append(job)
            continue
        names = open_to[: best.shape.nodes]
        left[job.job_id] = best, names
        jobs.append(replace(job, shape=best.shape, node_names=names))
    if not left:
        return GivenBack(snapshot, plans, left)
    # Slurm counts the GPUs given back as used still, which now are of no job here: they are handed out to nobody
    smaller = replace(snapshot, jobs=tuple(jobs))
    return GivenBack(smaller, {**plans, **{i: cell.plan for i, (cell, _) in left.items()}}, left)


def as_resize(decision: Decision, job: Job, given: GivenBack) -> Decision:
    """The decision about the job as it is."""
    if decision.job_id not in given.left:
        return decision
    gpus = job.shape.gpus - (decision.cell.shape.gpus if decision.cell else 0)
    why = f"Gives back {gpus} GPUs: {job.gives_back}. {decision.why}"
    action = Action.RESIZE if decision.action is Action.KEEP else decision.action
    return replace(decision, action=action, why=why)


def _best(job: Job, cells: tuple[Cell, ...], nodes: int) -> Cell | None:
    """On so many of its nodes at most."""
    if (
        job.state is not JobState.RUNNING
        or job.fixed
        or job.paused
        or job.directive is None
        or not job.directive.resize
    ):
        return None
    most, held = job.directive.max_gpus or 0, job.shape
    fits = [c for c in cells if c.shape.gpus <= most and c.shape.is_inside(held, nodes)]
    return max(fits, key=lambda c: c.goodput, default=None)

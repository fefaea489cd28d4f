"""Jobs that hold more than they may keep are decided about as if they had given it back.

Such a job gives GPUs back because plain jobs wait for GPUs or its owner wants fewer. The allocation need not know of it: a job
that "keeps" what it would be left with is resized to that. The GPUs that it gives back belong to no job in this epoch, and
Slurm hands them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from synergy_core.reasons import Reason, nest_reason
from synergy_core.records import Action, Cell, Decision, Job, JobState, Plan, Snapshot


@dataclass(frozen=True)
class ForcedShrinks:
    """The epoch as it is decided about. `remaining_cells`: by job id, the Cell and nodes that remain to jobs that give GPUs back."""

    snapshot: Snapshot
    plans: Mapping[int, Plan]
    remaining_cells: Mapping[int, tuple[Cell, tuple[str, ...]]]
    #: by job id, why it gives GPUs back where that is the epoch's own decision
    reasons: Mapping[int, Reason] = field(default_factory=dict)


def give_back(snapshot: Snapshot, cells: Mapping[int, tuple[Cell, ...]], plans: Mapping[int, Plan]) -> ForcedShrinks:
    """Shrink every job that is to give GPUs back to the part of its nodes and GPUs where its best Cell within its limit fits.

    One without such a Cell stays as it is.
    """
    jobs, remaining_cells = [], {}
    for job in snapshot.jobs:
        keeps = job.keeps or job.node_names
        open_to = tuple(n for n in job.node_names if n in keeps and n not in (*job.barred, *job.avoid))
        best = _best(job, cells.get(job.job_id, ()), len(open_to)) if job.gives_back else None
        if best is None:
            jobs.append(job)
            continue
        names = open_to[: best.shape.nodes]
        remaining_cells[job.job_id] = best, names
        jobs.append(replace(job, shape=best.shape, node_names=names))
    if not remaining_cells:
        return ForcedShrinks(snapshot, plans, remaining_cells)
    # Slurm still counts the GPUs given back as used, and no job here holds them: they are handed out to nobody
    smaller = replace(snapshot, jobs=tuple(jobs))
    return ForcedShrinks(
        smaller, {**plans, **{i: cell.plan for i, (cell, _) in remaining_cells.items()}}, remaining_cells
    )


def to_resize_decision(decision: Decision, job: Job, shrinks: ForcedShrinks) -> Decision:
    """Turn the decision about what a job is left with into one about the job as it is."""
    if decision.job_id not in shrinks.remaining_cells:
        return decision
    gpus = job.shape.gpus - (decision.cell.shape.gpus if decision.cell else 0)
    because = nest_reason(own) if (own := shrinks.reasons.get(job.job_id)) is not None else job.gives_back
    reasons = (Reason("gives-back", {"gpus": gpus, "because": because}), *decision.reasons)
    action = Action.RESIZE if decision.action is Action.KEEP else decision.action
    return replace(decision, action=action, reasons=reasons)


def _best(job: Job, cells: tuple[Cell, ...], nodes: int) -> Cell | None:
    """Return the best Cell on at most `nodes` of the job's nodes."""
    if (
        job.state is not JobState.RUNNING
        or job.fixed
        or job.paused
        or job.directive is None
        or not job.directive.resize
    ):
        return None
    most, present_shape = job.directive.max_gpus or 0, job.shape
    fits = [c for c in cells if c.shape.gpus <= most and c.shape.is_inside(present_shape, nodes)]
    return max(fits, key=lambda c: c.goodput, default=None)

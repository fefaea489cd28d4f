"""What an epoch finds out about a running job besides its size: a better batch, and whether it is well."""

from __future__ import annotations

from synergyd.control.events import BatchReviewed
from synergyd.control.health import warnings
from synergyd.control.rebatch import better_batch
from synergyd.control.resize import ResizeState
from synergyd.control.tracked import Output, Remember, TellBatch, Tracked


def review_batch(tracked: Tracked | None, event: BatchReviewed) -> list[Output]:
    """Tells the job of a better batch on the GPUs that it holds."""
    job = tracked.job if tracked else None
    if tracked is None or job is None or tracked.lifecycle.state is not ResizeState.RUNNING:
        return []
    report = event.report or (tracked.alone(tracked.report) if tracked.report else None)
    noise = event.noise_scale if tracked.profile is None else tracked.profile.noise_scale
    plan = better_batch(job, report, event.cells, noise)
    before, tracked.told_plan = tracked.told_plan, (job.restarts, plan) if plan else None
    if plan is None:
        return []
    told: list[Output] = [TellBatch(job.job_id, job.restarts, plan)]
    if before != tracked.told_plan:
        text = f"global batch {plan.global_batch}, micro-batch {plan.micro_batch} from its next step on"
        told.insert(0, Remember(tracked.lifecycle, tracked.lifecycle.state, "Batch", (text,)))
    return told


def review_health(tracked: Tracked, now_s: float) -> list[Output]:
    """What is newly wrong with the job, for its story."""
    report, job = tracked.report, tracked.job
    running = tracked.lifecycle.state is ResizeState.RUNNING
    if report is None or job is None or not running or report.restarts != job.restarts:
        tracked.warned = (0, frozenset())
        return []
    present = warnings(report, tracked.heard_s, now_s)
    known = tracked.warned[1] if tracked.warned[0] == job.restarts else frozenset()
    fresh = tuple(w.text for w in present if w.kind not in known)
    tracked.warned = (job.restarts, frozenset(w.kind for w in present))
    return [Remember(tracked.lifecycle, tracked.lifecycle.state, "Warning", fresh)] if fresh else []

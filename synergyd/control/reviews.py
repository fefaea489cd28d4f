"""Reviews of a running job in each epoch, besides its size: a better batch, whether it is well, and the end of its time."""

from __future__ import annotations

from dataclasses import replace

from synergy_core.job_report import Report
from synergy_core.loss_trend import can_grow
from synergy_core.records import Job, Plan

from synergyd.control.resize.events import BatchReviewed, Wanted
from synergyd.control.resize.instructions import AskCheckpoint, Target
from synergyd.control.resize.lifecycle import ResizeState
from synergyd.control.resize.walltime import checkpoint_due_s
from synergyd.control.state.health import warnings
from synergyd.control.state.rebatch import better_batch
from synergyd.control.tracked import Output, Remember, TellBatch, TrackedJob

#: twice Slurm's default SlurmdTimeout of 300 s, after which it would have found the node down
SHORT_S = 600.0


def review_batch(tracked: TrackedJob | None, event: BatchReviewed) -> list[Output]:
    """Tell the job of a better batch on the GPUs that it holds."""
    job = tracked.job if tracked else None
    if tracked is None or job is None or tracked.lifecycle.state is not ResizeState.RUNNING:
        return []
    if withdrawals := [*take_back(tracked), *take_back_exchange(tracked)]:
        return withdrawals
    report = event.report or (tracked.without_contention(tracked.report) if tracked.report else None)
    noise = event.noise_scale if tracked.profile is None else tracked.profile.noise_scale
    plan = better_batch(job, report, event.cells, noise)
    if plan is not None and _too_soon(tracked, job, report, plan):
        plan = None
    before, tracked.announced_plan = tracked.announced_plan, (job.restarts, plan) if plan else None
    if plan is None:
        return []
    outputs: list[Output] = [TellBatch(job.job_id, job.restarts, plan)]
    if before != tracked.announced_plan:
        text = f"global batch {plan.global_batch}, micro-batch {plan.micro_batch} from its next step on"
        outputs.insert(0, Remember(tracked.lifecycle, tracked.lifecycle.state, "Batch", (text,)))
    return outputs


def _too_soon(tracked: TrackedJob, job: Job, report: Report | None, plan: Plan) -> bool:
    """Return whether the batch of `plan` would come too soon.

    A range that only Synergy has chosen is gone through one batch after the other, and the loss is compared at
    each.
    """
    adapts = job.directive is not None and job.directive.adapt
    own = report.base_batch if report is not None else None
    present = report.plan.global_batch if report is not None and report.plan is not None else 0
    return adapts and plan.global_batch > max(present, own or 0) and not can_grow(tracked.losses)


def take_back(tracked: TrackedJob) -> list[Output]:
    """Take back a larger batch at which the job's loss does worse: the next epoch chooses below it."""
    life, worse, report = tracked.lifecycle, tracked.losses.worse, tracked.report
    reported_bound = report.batch_bound if report is not None and report.restarts == life.incarnation else None
    bound = min(filter(None, (worse.good if worse is not None else None, reported_bound)), default=0)
    if not bound or (life.batch_cap and life.batch_cap <= bound):
        return []
    tracked.lifecycle = replace(life, batch_cap=bound)
    text = f"no global batch above {bound} comes again: the loss was no number there"
    if worse is not None and bound == worse.good:
        text = (
            f"global batch {worse.batch} is taken back, and none above {bound} comes again: the loss is {worse.loss:.4g}, where its "
            f"trend let expect {worse.expected_loss:.4g} at the most"
        )
    return [Remember(tracked.lifecycle, life.state, "Batch", (text,))]


def take_back_exchange(tracked: TrackedJob) -> list[Output]:
    """Make a job exchange every gradient again if its loss does worse since its replicas exchange less.

    The next epoch has no other plan.
    """
    life, worse = tracked.lifecycle, tracked.exchange_losses.worse
    if worse is None or life.exact_only:
        return []
    tracked.lifecycle = replace(life, exact_only=True)
    how = tracked.plan.exchange if tracked.plan is not None else "less"
    text = (
        f"exchange {how} is taken back, and every gradient is exchanged from its next start on: the loss is {worse.loss:.4g}, where its "
        f"trend let expect {worse.expected_loss:.4g} at the most"
    )
    return [Remember(tracked.lifecycle, life.state, "Exchange", (text,))]


def review_health(tracked: TrackedJob, now_s: float) -> list[Output]:
    """Return what is newly wrong with the job, for its story."""
    report, job = tracked.report, tracked.job
    running = tracked.lifecycle.state is ResizeState.RUNNING
    if report is None or job is None or not running or report.restarts != job.restarts:
        tracked.warning_kinds = (0, frozenset())
        return []
    present = warnings(report, tracked.heard_s, now_s)
    known_kinds = tracked.warning_kinds[1] if tracked.warning_kinds[0] == job.restarts else frozenset()
    fresh = tuple(w.text for w in present if w.kind not in known_kinds)
    tracked.warning_kinds = (job.restarts, frozenset(w.kind for w in present))
    return [Remember(tracked.lifecycle, tracked.lifecycle.state, "Warning", fresh)] if fresh else []


def review_loss(tracked: TrackedJob, now_s: float) -> Wanted | None:
    """Ask for a restart, on all that it holds, of a job that has gone on without a node which Slurm still counts as its own and as up."""
    job, report, life = tracked.job, tracked.report, tracked.lifecycle
    short = (
        job is not None
        and report is not None
        and report.plan is not None
        and report.in_place is not None
        and report.in_place.crashes > 0
        and not report.in_place.code
        and report.restarts == job.restarts
        and life.state is ResizeState.RUNNING
        and report.plan.gpus < job.shape.gpus
        and not (job.paused or tracked.form or life.left_to_slurm_reason)
    )
    if not short or job is None:
        tracked.short_since_s = None
        return None
    if tracked.short_since_s is None:
        tracked.short_since_s = now_s
    if not 0.0 <= now_s - tracked.short_since_s < SHORT_S:
        tracked.short_since_s = now_s
        plan = life.plan if life.plan is not None and life.plan.gpus == job.shape.gpus else None
        present = Target(job.shape, job.node_names, plan)
        return Wanted(
            present,
            "it runs on fewer GPUs than it holds",
            tracked.checkpoints_taken,
            present,
            Target(job.asked),
            is_due=True,
        )
    return None


def review_time(tracked: TrackedJob, now_s: float, lead_s: float) -> list[Output | Wanted]:
    """Ask for a checkpoint in time before Slurm ends the job, or for a restart if that begins its time limit anew.

    Only an incarnation that has reported can be asked. A second checkpoint is asked for only if the end was put
    off.
    """
    life, job, report = tracked.lifecycle, tracked.job, tracked.report
    if job is None or job.directive is None or life.state is not ResizeState.RUNNING:
        return []
    if report is None or report.restarts != job.restarts or tracked.is_training_over:
        return []
    if (again := review_loss(tracked, now_s)) is not None:
        return [again]
    due = checkpoint_due_s(life.walltime, lead_s, job.cut_s)
    if due is None or now_s < due:
        return []
    by_limit = job.cut_s is None or (life.walltime.ends_s is not None and life.walltime.ends_s <= job.cut_s)
    if life.walltime.can_begin_anew and by_limit and not job.paused:
        present = Target(job.shape, job.node_names, life.plan)
        cause, requested_target = "its time limit begins anew", Target(job.asked)
        return [Wanted(present, cause, tracked.checkpoints_taken, present, requested_target, is_due=True)]
    restarts, before_s = tracked.final_checkpoint
    if restarts == job.restarts and due < before_s + lead_s:
        return []
    tracked.final_checkpoint = (job.restarts, due)
    end = "its time limit ends it" if by_limit else (job.cut_why or "a reservation takes its nodes")
    over = not by_limit and job.cut_s is not None and job.cut_s <= now_s
    text = f"checkpoint asked for{':' if over else ' before'} {end}"
    return [Remember(life, life.state, "Time", (text,)), AskCheckpoint(job.job_id, life.incarnation)]

"""Changes of a running job's batch alone: said in the answer to its report, without a restart. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from synergy_core.job_report import Report
from synergy_core.rates import equivalent_sequences
from synergy_core.recompute import keeps_as_much
from synergy_core.records import Cell, Job, JobState, Plan

from synergyd.jobmodel.model.efficiency import efficiency_at

GAIN = 1.05  # predicted over measured goodput from which a change is worth its trouble


def better_batch(job: Job, report: Report | None, cells: Iterable[Cell], noise_scale: float | None) -> Plan | None:
    """Return the plan that a job should go on with: its own GPUs and degrees with another batch, or None if no batch is better.

    A batch beyond the job's range (Job.batches) is taken back whatever it gains. The job recomputes as it does now,
    which must be enough for that batch. Its present goodput is what it measured: sequences/s x (phi + M0) / (phi +
    M), M0 the low end of the directive's range (synergyd.jobmodel.model.efficiency). Only a job that says so
    (`Report.rebatching`) can be told.
    """
    if job.state is not JobState.RUNNING or job.paused or job.held or job.directive is None:
        return None
    if report is None or not report.rebatching or report.restarts != job.restarts:
        return None
    plan, limits = report.plan, job.batch_range
    if plan is None or limits is None:
        return None
    # its range is narrower than it was, or its batch was assumed before its own was known
    beyond = job.batches is not None and not limits[0] <= plan.global_batch <= limits[1]
    if not beyond and (not report.step_s or limits[0] == limits[1] or not noise_scale):
        return None
    best: Cell | None = None
    for cell in cells:
        own = replace(cell.plan, recompute=plan.recompute, recompute_layers=plan.recompute_layers)
        same = replace(own, micro_batch=plan.micro_batch, global_batch=plan.global_batch) == plan
        if (
            same
            and keeps_as_much(cell.plan, plan)
            and cell.shape == job.shape
            and (best is None or cell.goodput > best.goodput)
        ):
            best = replace(cell, plan=own)
    if best is None or best.plan == plan:
        return None
    if beyond:
        return best.plan if limits[0] <= best.plan.global_batch <= limits[1] else None
    now = equivalent_sequences(limits[0], plan.global_batch, noise_scale) / report.step_s if report.step_s else 0.0
    if plan.exchange != "exact" and noise_scale:  # the worth of an example is the same at both batches
        now *= best.efficiency / efficiency_at(best.plan.global_batch, noise_scale, plan.global_batch, limits[0])
    return None if best.goodput < GAIN * now else best.plan

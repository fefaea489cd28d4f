"""All jobs of a look at the cluster as the usage ledger takes them: the GPUs that each holds, and what is known of its training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import hypot

from synergy_core.job_report import Report
from synergy_core.records import Action, Cell, Decision, Job, JobState
from synergy_core.wire.expander import job_of_expander

from synergyd.control.resize.lifecycle import IN_TRANSIT
from synergyd.control.tracked import TrackedJob
from synergyd.control.usage_ledger import Holding
from synergyd.jobmodel.cell_search import CellSearchResult
from synergyd.slurm.parsed.rows import JobRow, gpu_items
from synergyd.slurm.parsed.snapshot import is_managed, state_from_row

#: an end that is so much ahead is still one that has come, on a slurmctld whose clock is ahead; a planned one is a minute ahead or more
CLOCKS_APART_S = 30.0


def holdings(
    rows: Sequence[JobRow],
    partitions: tuple[str, ...],
    tracked: Mapping[int, TrackedJob],
    decisions: Sequence[Decision],
    forecasts: Mapping[int, CellSearchResult],
    now_s: float,
) -> Iterator[Holding]:
    """Yield a holding for each job with GPUs that has begun, of those that the setting Partitions names. `rows` were read at `now_s`."""
    decided = {d.job_id: d for d in decisions}
    owners = {row.job_id: (row.uid, row.account) for row in rows}
    for row in rows:
        state = state_from_row(row)
        if not is_managed(row, partitions) and row.job_id not in tracked:
            continue
        if state is JobState.PENDING and not row.restarts:
            continue  # most of a queue
        gpus = gpus_of_job(row)
        if not gpus:
            continue
        each = tracked.get(row.job_id)
        start_s, ended_s = find_span(row, now_s)
        holding = Holding(
            job_id=row.job_id,
            user=row.user,
            account=row.account,
            gpus=gpus,
            asked_gpus=each.job.asked.gpus if each is not None and each.job is not None else gpus,
            start_s=start_s,
            submit_s=row.submit_s,
            restarts=row.restarts,
            ended_s=ended_s,
            of_job=_find_owner(row, owners),
            nodes=",".join(row.node_names),
        )
        if each is not None:
            holding = _training(holding, each, decided.get(row.job_id), forecasts.get(row.job_id))
        yield holding


def _find_owner(row: JobRow, owners: Mapping[int, tuple[int, str]]) -> int:
    """Return the job that this allocation is beside by its name, or 0: with the same owner only, since it is a mere name."""
    job_and_restarts = job_of_expander(row.name)
    return (
        job_and_restarts[0]
        if job_and_restarts is not None and owners.get(job_and_restarts[0]) == (row.uid, row.account)
        else 0
    )


def find_span(row: JobRow, now_s: float) -> tuple[float | None, float | None]:
    """Return when the incarnation that a row shows began and ended, each None if it has not. `now_s` is just before the row was read.

    While the processes of a job that is being requeued are on their way out, Slurm shows it as COMPLETING with the start and end that
    it would have if it started now: the incarnation that held GPUs is over, and the row does not say since when.
    """
    state = state_from_row(row)
    if state is JobState.PENDING:
        return None, None
    if state in (JobState.RUNNING, JobState.SUSPENDED):
        return row.start_s, None
    if row.end_s is None or row.end_s > now_s + CLOCKS_APART_S:
        return None, None
    return row.start_s, row.end_s


def gpus_of_job(row: JobRow) -> int:
    """Return the GPUs of all the job's nodes, as Slurm counts them, else by its request."""
    return row.tres_gpus or sum(count for _, count in gpu_items(row.tres_per_node)) * max(1, row.num_nodes)


def midnight(after_s: float) -> float:
    """Return the first midnight after a time, by this machine's clock."""
    day = datetime.fromtimestamp(after_s).date() + timedelta(days=1)
    return datetime(day.year, day.month, day.day).timestamp()


def week_begin(at_s: float) -> float:
    """Return the last midnight from a Sunday to a Monday, by this machine's clock."""
    day = datetime.fromtimestamp(at_s).date()
    day -= timedelta(days=day.weekday())
    return datetime(day.year, day.month, day.day).timestamp()


def _training(
    holding: Holding, each: TrackedJob, decision: Decision | None, forecast: CellSearchResult | None
) -> Holding:
    """Return the holding with what is known of what the job does with its GPUs."""
    report, job, under_way = each.report, each.job, each.lifecycle.restart_history.under_way
    is_idle = job is not None and job.restarts == holding.restarts and job.idle_s is not None
    holding = replace(holding, has_trained_before=report is not None, is_idle=is_idle)
    if report is not None and report.restarts == holding.restarts and not report.silent:
        holding = replace(holding, training_s=each.heard_s - (report.trained_s or 0.0))
    cell = decision.cell if decision is not None else None
    if cell is None or decision is None or job is None:
        pass
    elif decision.action is not Action.KEEP:
        if decision.relative_goodput is not None:
            holding = replace(holding, decided_change=(cell.shape.gpus, decision.relative_goodput))
    elif each.lifecycle.state not in IN_TRANSIT:  # else it is about what the job is on its way to
        sigma = relative_sigma(cell, job, forecast.cells if forecast is not None else ())
        goodput = reported_goodput(report, cell) if holding.training_s is not None else None
        holding = replace(
            holding, relative=decision.relative_goodput, sigma=sigma, goodput=goodput, slowed=max(1.0, job.slowed)
        )
    holding = _changing(holding, each)
    if under_way is not None:
        holding = replace(holding, is_synergys_restart=under_way.chosen, checkpoint_s=under_way.checkpoint_s or 0.0)
    return holding


def _changing(holding: Holding, each: TrackedJob) -> Holding:
    """Return the holding with what is known of changes of the job while it runs."""
    life, report = each.lifecycle, each.report
    history, one = life.restart_history, life.restart_history.under_way
    holding = replace(holding, lost_s=history.lost_s, in_transit=one is not None or life.state in IN_TRANSIT)
    if report is None or report.restarts != holding.restarts or holding.training_s is None:
        return holding
    if report.in_place is not None and report.step_s is not None:  # else it is of the run before, or of none
        plan = report.plan or life.plan
        holding = replace(holding, order=report.in_place.order, training_gpus=plan.gpus if plan is not None else 0)
    elif one is not None and one.in_place:  # the decision is about the new run already
        holding = replace(holding, relative=None, goodput=None)
    if one is not None and one.in_place and one.chosen:
        lost_s = (one.checkpoint_s or 0.0) + max(0.0, (holding.training_s or 0.0) - one.started_s)
        holding = replace(holding, lost_s=history.lost_s + lost_s)
    return holding


def reported_goodput(report: Report | None, cell: Cell) -> float | None:
    """Return sequences a second times statistical efficiency by a job's report, or None if it tells no step time.

    `cell`: what the job runs with; its efficiency is that of the batch at the noise scale reported, and no prediction of speed.
    """
    if report is None or not report.step_s or report.step_s <= 0:
        return None
    batch = report.plan.global_batch if report.plan is not None else cell.plan.global_batch
    return batch / report.step_s * cell.efficiency


def relative_sigma(cell: Cell, job: Job, cells: Sequence[Cell]) -> float:
    """Return the relative uncertainty of the goodput on these GPUs over that on those asked for, by the model's figure for either."""
    if cell.shape == job.asked:
        return 0.0
    requested_uncertainty = min((c.uncertainty for c in cells if c.shape == job.asked), default=cell.uncertainty)
    return hypot(cell.uncertainty, requested_uncertainty)

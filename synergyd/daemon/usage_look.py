"""All jobs of a look at the cluster as the usage ledger takes them: who holds which GPUs, and what is known of its training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import hypot

from synergyd.control.resize.lifecycle import IN_TRANSIT
from synergyd.control.tracked import Tracked
from synergyd.control.usage_ledger import Holding
from synergyd.daemon.forecast import CellsOrWhy
from synergyd.job_report import Report
from synergyd.records import Action, Cell, Decision, Job, JobState
from synergyd.slurm.parsed.rows import JobRow, gpu_items
from synergyd.slurm.parsed.snapshot import is_in, state_of

#: an end that is so much ahead is still one that has come, on a slurmctld whose clock is ahead; a planned one is a minute ahead or more
CLOCKS_APART_S = 30.0


def holdings(
    rows: Sequence[JobRow],
    partitions: tuple[str, ...],
    tracked: Mapping[int, Tracked],
    decisions: Sequence[Decision],
    forecasts: Mapping[int, CellsOrWhy],
    now_s: float,
) -> Iterator[Holding]:
    """Yield one for each job with GPUs that has begun, in these partitions (all, where none is named). `now_s`: when `rows` were read."""
    decided = {d.job_id: d for d in decisions}
    for row in rows:
        state = state_of(row)
        if not is_in(row, partitions) and row.job_id not in tracked:
            continue
        if state is JobState.PENDING and not row.restarts:
            continue  # most of a queue
        gpus = gpus_of_job(row)
        if not gpus:
            continue
        each = tracked.get(row.job_id)
        start_s, ended_s = span_of(row, now_s)
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
            nodes=",".join(row.node_names),
        )
        if each is not None:
            holding = _training(holding, each, decided.get(row.job_id), forecasts.get(row.job_id))
        yield holding


def span_of(row: JobRow, now_s: float) -> tuple[float | None, float | None]:
    """Return when the incarnation that a row shows began and ended, each None where it has not. `now_s`: just before the row was read.

    While the processes of a job that is being requeued are on their way out, Slurm shows it as COMPLETING with the start and end that
    it would have if it started now: the incarnation that held GPUs is over, and the row does not say since when.
    """
    state = state_of(row)
    if state is JobState.PENDING:
        return None, None
    if state in (JobState.RUNNING, JobState.SUSPENDED):
        return row.start_s, None
    if row.end_s is None or row.end_s > now_s + CLOCKS_APART_S:
        return None, None
    return row.start_s, row.end_s


def gpus_of_job(row: JobRow) -> int:
    """Of all its nodes: as Slurm counts them, else by its request."""
    return row.tres_gpus or sum(count for _, count in gpu_items(row.tres_per_node)) * max(1, row.num_nodes)


def midnight(after_s: float) -> float:
    """The first midnight by this machine's clock after a time."""
    day = datetime.fromtimestamp(after_s).date() + timedelta(days=1)
    return datetime(day.year, day.month, day.day).timestamp()


def _training(holding: Holding, each: Tracked, decision: Decision | None, forecast: CellsOrWhy | None) -> Holding:
    """With what is known of what it does with them."""
    report, job, under_way = each.report, each.job, each.lifecycle.restart.under_way
    holding = replace(holding, trained_before=report is not None)
    if report is not None and report.restarts == holding.restarts and not report.silent:
        holding = replace(holding, training_s=each.heard_s - (report.trained_s or 0.0))
    cell = decision.cell if decision is not None else None
    if cell is None or decision is None or job is None:
        pass
    elif decision.action is not Action.KEEP:
        if decision.relative_goodput is not None:
            holding = replace(holding, decided=(cell.shape.gpus, decision.relative_goodput))
    elif each.lifecycle.state not in IN_TRANSIT:  # else it is about what the job is on its way to
        sigma = _sigma(cell, job, forecast.cells if forecast is not None else ())
        goodput = reported_goodput(report, cell) if holding.training_s is not None else None
        holding = replace(holding, relative=decision.relative_goodput, sigma=sigma, goodput=goodput)
    if under_way is not None:
        holding = replace(holding, chosen=under_way.chosen, checkpoint_s=under_way.checkpoint_s or 0.0)
    return holding


def reported_goodput(report: Report | None, cell: Cell) -> float | None:
    """Return sequences a second times statistical efficiency by a job's report, None where it tells no step time.

    `cell`: what the job runs with; its efficiency is that of the batch at the noise scale reported, and no prediction of speed.
    """
    if report is None or not report.step_s or report.step_s <= 0:
        return None
    batch = report.plan.global_batch if report.plan is not None else cell.plan.global_batch
    return batch / report.step_s * cell.efficiency


def _sigma(cell: Cell, job: Job, cells: Sequence[Cell]) -> float:
    """Relative, of the goodput on these GPUs over that on those asked for, as the model says of either."""
    if cell.shape == job.asked:
        return 0.0
    asked = min((c.uncertainty for c in cells if c.shape == job.asked), default=cell.uncertainty)
    return hypot(cell.uncertainty, asked)

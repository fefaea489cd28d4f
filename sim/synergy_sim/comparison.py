"""One run beside another of the same jobs: job by job, and by kind of job. Pure but for `run_plain`, which simulates."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from synergy_sim.ideal import Ideals
from synergy_sim.records import JobResult, Scenario, SimulatedRun, TraceJob
from synergy_sim.runs import simulate

SLOWER, MUCH_SLOWER = 1.10, 1.25


@dataclass(frozen=True, kw_only=True)
class JobRatios:
    """The completion times of a run's jobs over those of the same jobs in another run."""

    jobs: int
    #: seconds
    mean_s: float
    other_mean_s: float
    #: shares of the jobs that take more than SLOWER and MUCH_SLOWER times as long
    slower: float
    much_slower: float
    worst: float
    #: the trace's job of that ratio, from 1
    worst_job: int
    median: float


@dataclass(frozen=True, kw_only=True)
class KindRow:
    """The jobs of one kind: their mean completion time, over that in the other run, and where they spent their lives."""

    kind: str
    jobs: int
    #: seconds
    mean_s: float
    ratio: float
    restarts_per_job: float
    other_restarts_per_job: float
    #: number of GPUs -> share of the time in which these jobs held any
    life: Mapping[int, float]


def compare_jobs(jobs: Sequence[JobResult], other: Sequence[JobResult]) -> JobRatios:
    """Compare two runs job by job; both are in the trace's order."""
    ratios = [one.jct_s / two.jct_s for one, two in zip(jobs, other, strict=True)]
    count, worst = len(ratios), max(ratios)
    return JobRatios(
        jobs=count,
        mean_s=math.fsum(one.jct_s for one in jobs) / count,
        other_mean_s=math.fsum(one.jct_s for one in other) / count,
        slower=sum(ratio > SLOWER for ratio in ratios) / count,
        much_slower=sum(ratio > MUCH_SLOWER for ratio in ratios) / count,
        worst=worst,
        worst_job=ratios.index(worst) + 1,
        median=statistics.median(ratios),
    )


def compare_kinds(run: SimulatedRun, other: SimulatedRun) -> tuple[KindRow, ...]:
    """Return a row for each kind of job, by name."""
    seconds_by_size: defaultdict[str, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for one in run.occupancies:
        seconds_by_size[run.scenario.jobs[one.job - 1].kind][one.gpus] += one.end_s - one.start_s
    pairs: defaultdict[str, list[tuple[JobResult, JobResult]]] = defaultdict(list)
    for ours, theirs in zip(run.jobs, other.jobs, strict=True):
        pairs[ours.job.kind].append((ours, theirs))
    rows = []
    for kind, of_kind in sorted(pairs.items()):
        count, life_s = len(of_kind), math.fsum(seconds_by_size[kind].values())
        mean_s = math.fsum(ours.jct_s for ours, _ in of_kind) / count
        rows.append(
            KindRow(
                kind=kind,
                jobs=count,
                mean_s=mean_s,
                ratio=mean_s * count / math.fsum(theirs.jct_s for _, theirs in of_kind),
                restarts_per_job=sum(ours.restarts for ours, _ in of_kind) / count,
                other_restarts_per_job=sum(theirs.restarts for _, theirs in of_kind) / count,
                life={gpus: spent / life_s for gpus, spent in sorted(seconds_by_size[kind].items())} if life_s else {},
            )
        )
    return tuple(rows)


def plain_scenario(scenario: Scenario) -> Scenario:
    """Return the jobs as Slurm alone runs them: at the size and batch asked for, with time limits that are right to the second.

    Right limits are the best that backfill can be given, and nobody writes such.
    """
    ideals = Ideals(scenario)
    jobs = (replace(job, plain=True, time_limit_s=_requested_s(job, scenario, ideals)) for job in scenario.jobs)
    return replace(scenario, jobs=tuple(jobs))


def _requested_s(job: TraceJob, scenario: Scenario, ideals: Ideals) -> float | None:
    rates, truth = ideals.requested_rates(job), job.truth
    if rates is None or not (rates > 0).all():
        return None
    ends = [truth.end(stage) for stage in range(truth.stages)]
    costs = job.costs or scenario.costs
    stages_s = ((end - start) / rate for start, end, rate in zip([0.0, *ends], ends, rates.tolist(), strict=False))
    return costs.first_start_s + math.fsum(stages_s) + costs.end_s


def run_plain(scenario: Scenario) -> SimulatedRun:
    """Run the jobs under Slurm alone, see `plain_scenario`."""
    return simulate(plain_scenario(scenario), "synergy")

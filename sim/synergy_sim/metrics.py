"""The metrics of a run. Every job counts; a run in which one did not finish has no metrics."""

from __future__ import annotations

import bisect
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from synergy_core.records import Cluster

from synergy_sim.ideal import Ideals
from synergy_sim.records import Costs, JobResult, SimulatedRun
from synergyd.jobmodel.model.hardware import figures


@dataclass(frozen=True)
class RunMetrics:
    """Seconds unless said otherwise.

    `utilisation` = GPU time held / (GPUs x makespan); `efficiency` = the least GPU time that the work needs / GPU time
    held; `goodput_gpus` = that least GPU time / makespan, so many GPUs' worth of work.

    Finish-time fairness of a job (Themis, NSDI 2020): its JCT over the time it would take alone on its fair share, the
    cluster's GPUs / jobs present on average while it was there (of several types: ideal.Ideal.seconds), its one start included
    (without it a job of a second would be unfairly treated by any scheduler); `unfair_share` of the jobs are above 1.
    `worst_restart_share`: see `restart_share`. `throughput_jobs`: cluster throughput, the sum over the running jobs of the rate
    of progress over that on the GPUs and with the batch asked for; its mean from the first to the last submission. It counts
    jobs at the speed that their users asked for; None where all jobs come at once. `energy_kwh`: of the GPUs held, each at its
    type's `watts`, so an upper bound; None where the watts of a type that was held are not known.
    """

    jobs: int
    finished: int
    avg_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    makespan_s: float
    avg_queueing_s: float
    longest_wait_s: float
    avg_idle_s: float
    restarts_per_job: float
    most_restarts: int
    worst_restart_share: float
    gpu_hours: float
    utilisation: float
    efficiency: float
    goodput_gpus: float
    throughput_jobs: float | None
    energy_kwh: float | None
    worst_ftf: float | None
    unfair_share: float | None
    decision_ms_median: float | None
    decision_ms_p99: float | None
    decisions: int
    wall_s: float
    simulated_hours_per_s: float


def compute_metrics(run: SimulatedRun, ideals: Ideals) -> RunMetrics:
    """Return all metrics of a run. p99 is interpolated linearly between the two jobs around it."""
    jcts = sorted(result.jct_s for result in run.jobs)
    # from zero of the trace's clock, as the peers print it
    makespan_s = max(result.finish_s for result in run.jobs)
    gpu_s = math.fsum(result.gpu_s for result in run.jobs)
    job_ideals = [ideals.find_ideal(result.job) for result in run.jobs]
    work_s = math.fsum(one.work_gpu_s for one in job_ideals if one is not None)
    unfair = fairness(run.jobs, run.scenario.cluster, ideals, run.scenario.costs.first_start_s)
    count = len(run.jobs)
    took = sorted(run.decisions_s)
    return RunMetrics(
        jobs=len(run.scenario.jobs),
        finished=count,
        avg_jct_s=math.fsum(jcts) / count,
        median_jct_s=statistics.median(jcts),
        p99_jct_s=float(np.percentile(jcts, 99)),
        makespan_s=makespan_s,
        avg_queueing_s=math.fsum(r.start_s - r.job.submit_s for r in run.jobs) / count,
        longest_wait_s=max(r.start_s - r.job.submit_s for r in run.jobs),
        avg_idle_s=math.fsum(r.idle_s for r in run.jobs) / count,
        restarts_per_job=sum(r.restarts for r in run.jobs) / count,
        most_restarts=max(r.restarts for r in run.jobs),
        worst_restart_share=max(restart_share(r, run.scenario.costs) for r in run.jobs),
        gpu_hours=gpu_s / 3600,
        utilisation=gpu_s / (run.scenario.gpus * makespan_s) if makespan_s else 0.0,
        efficiency=min(1.0, work_s / gpu_s) if gpu_s else 0.0,
        goodput_gpus=work_s / makespan_s if makespan_s else 0.0,
        throughput_jobs=cluster_throughput(run),
        energy_kwh=energy_kwh(run),
        worst_ftf=max(unfair) if unfair else None,
        unfair_share=sum(rho > 1 for rho in unfair) / len(unfair) if unfair else None,
        decision_ms_median=1e3 * statistics.median(took) if took else None,
        decision_ms_p99=1e3 * took[math.ceil(0.99 * len(took)) - 1] if took else None,
        decisions=len(took),
        wall_s=run.wall_s,
        simulated_hours_per_s=makespan_s / 3600 / run.wall_s if run.wall_s > 0 else 0.0,
    )


def cluster_throughput(run: SimulatedRun) -> float | None:
    """Return the cluster throughput, see RunMetrics."""
    submits = [job.submit_s for job in run.scenario.jobs]
    span_s = max(submits) - min(submits)
    return run.usual_work_s / span_s if span_s > 0 else None


def energy_kwh(run: SimulatedRun) -> float | None:
    """Return the energy in kWh, see RunMetrics."""
    watts = {node.name: figures(node.gpu_type).watts for node in run.scenario.cluster.nodes}
    loads = [(watts[name], gpus * (one.end_s - one.start_s)) for one in run.occupancies for name, gpus in one.nodes]
    return None if any(w <= 0 for w, _ in loads) else math.fsum(w * gpu_s for w, gpu_s in loads) / 3.6e6


def restart_share(result: JobResult, costs: Costs) -> float:
    """Return the share of a job's life, from its first start to its end, that went to requested checkpoints and to starts but the first."""
    life_s = result.finish_s - result.start_s
    own = result.job.costs or costs
    idle_s = result.idle_s - own.first_start_s - own.end_s
    return max(0.0, idle_s) / life_s if life_s > 0 else 0.0


def fairness(results: Sequence[JobResult], cluster: Cluster, ideals: Ideals, start_s: float = 0.0) -> list[float]:
    """Return the finish-time fairness of every job, in the order of `results`; alone it would take `start_s` besides its training.

    Return an empty result where the ideal of one is not known.
    """
    present, gpus_by_type = _JobCount(results), Counter[str]()
    for node in cluster.nodes:
        gpus_by_type[node.gpu_type] += node.gpus
    gpus, ratios = gpus_by_type.total(), []
    for result in results:
        best = ideals.find_ideal(result.job)
        if best is None:
            return []
        others = max(1.0, present.mean(result.job.submit_s, result.finish_s))
        ratios.append(result.jct_s / (start_s + best.seconds(gpus / others, gpus_by_type)) if result.jct_s > 0 else 0.0)
    return ratios


class _JobCount:
    """The number of jobs that are there, as a step function of time with its integral."""

    def __init__(self, results: Sequence[JobResult]) -> None:
        changes = sorted([(r.job.submit_s, 1) for r in results] + [(r.finish_s, -1) for r in results])
        self._times = [t for t, _ in changes]
        self._counts = np.cumsum([n for _, n in changes])
        areas = np.diff(self._times) * self._counts[:-1]
        self._areas = np.concatenate([[0.0], np.cumsum(areas)])

    def mean(self, start_s: float, end_s: float) -> float:
        if end_s <= start_s:
            return 1.0
        return (self._integrate_until(end_s) - self._integrate_until(start_s)) / (end_s - start_s)

    def _integrate_until(self, time_s: float) -> float:
        i = bisect.bisect_right(self._times, time_s) - 1
        return float(self._areas[i] + self._counts[i] * (time_s - self._times[i])) if i >= 0 else 0.0

"""From a history to a forecast: the same jobs through the queue model, with and without Synergy, and what is not known as intervals.

A share of the jobs with several GPUs, drawn by chance, takes part; how they scale is drawn from a prior (speed_up.py). Each draw draws the
cluster's mean, the jobs that take part and their curves again. The forecast is what was measured, less what the queue model saves; what
the queue model does not explain of the measured waits (limits, reservations, licences) is left as it is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pstdev, stdev

from scipy.stats import t as student

from synergy_sim.forecast.history import History, PastJob
from synergy_sim.forecast.queue_model import QueueJob, QueueModel, QueueResult
from synergyd.jobmodel.speed_up import MEASURED, PRIORS, SpeedUp, SpeedUpPrior

SHARES = (0.2, 0.5, 1.0)
COVERAGE = 0.8  # of the intervals
#: jobs up to which a forecast makes the larger number of draws, so that 100,000 jobs take under 5 minutes on two cores
FEW_JOBS = 30_000
DRAWS = (8, 4)
#: draws of each other prior; compared with the same draws of MEASURED
OTHER_DRAWS = (3, 1)
#: One sigma of the queue model's own error: its result against the simulator's for the same jobs with their true speeds, in standard
#: errors of the history's means (a small history is decided by chance: which job comes in another's way), on histories that no forecast
#: is judged on: python -m tests.benchmarks.forecast_truth --calibrate --histories 16
MODEL_ERRORS = {"wait": 0.44, "run": 0.15, "gpu": 0.22}
#: The same as a share of the mean, of all histories together: what does not become less with more jobs.
MODEL_BIAS = {"wait": 0.01, "run": 0.01, "gpu": 0.06}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Means over the jobs that count, in seconds, and the GPU hours that they held."""

    wait_s: float
    run_s: float
    gpu_h: float
    restarts: float = 0.0

    @property
    def completion_s(self) -> float:
        return self.wait_s + self.run_s


@dataclass(frozen=True)
class Range:
    """A forecast number: `low` to `high` holds it in COVERAGE of all cases, if the assumptions hold."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ShareForecast:
    """The forecast for one share of jobs under one prior."""

    share: float
    prior: str
    draws: int
    wait_s: Range
    completion_s: Range
    gpu_h: Range
    restarts: float


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A forecast of what Synergy would have changed.

    `measured_outcome`: the history's own means; `replayed_outcome`: those of the queue model for the same jobs, all plain; `sigmas`: its
    own error.
    """

    history: History
    measured_outcome: Outcome
    replayed_outcome: Outcome
    sigmas: Outcome
    multi: int
    shares: tuple[ShareForecast, ...]

    def of_prior(self, name: str) -> list[ShareForecast]:
        return [one for one in self.shares if one.prior == name]

    @property
    def explained_share(self) -> float:
        """Return the part of the measured wait that the queue model accounts for."""
        return explained_share(self.measured_outcome, self.replayed_outcome)


@dataclass(frozen=True)
class Task:
    """One run of the queue model; share 0 is plain Slurm."""

    prior: SpeedUpPrior
    share: float
    draw: int


def list_tasks(history: History) -> list[Task]:
    """Return the runs that a forecast needs, the longest first."""
    many = len(history.jobs) > FEW_JOBS
    draws = {prior: (DRAWS if prior is MEASURED else OTHER_DRAWS)[many] for prior in PRIORS}
    tasks = [Task(prior, share, n) for prior in PRIORS for share in SHARES for n in range(draws[prior])]
    return [*sorted(tasks, key=lambda task: -task.share), Task(MEASURED, 0.0, 0)]


def measured_outcome(history: History) -> Outcome:
    """Return the history's own means."""
    jobs = history.forecast_jobs
    return Outcome(
        wait_s=fmean(job.start_s - job.ready_s for job in jobs),
        run_s=fmean(job.seconds for job in jobs),
        gpu_h=sum(job.gpus * job.seconds for job in jobs) / 3600,
    )


def compute_scatter(history: History) -> Outcome:
    """Return the standard errors of the history's own means, and of the sum of GPU hours."""
    jobs = history.forecast_jobs
    root = len(jobs) ** 0.5
    return Outcome(
        wait_s=pstdev(job.start_s - job.ready_s for job in jobs) / root,
        run_s=pstdev(job.seconds for job in jobs) / root,
        gpu_h=pstdev(job.gpus * job.seconds for job in jobs) * root / 3600,
    )


def model_sigmas(measured: Outcome, scatter: Outcome) -> Outcome:
    """Return one sigma of the queue model's own error in each mean."""

    def sigma(name: str, mean: float, standard: float) -> float:
        return math.hypot(MODEL_ERRORS[name] * standard, MODEL_BIAS[name] * mean)

    return Outcome(
        wait_s=sigma("wait", measured.wait_s, scatter.wait_s),
        run_s=sigma("run", measured.run_s, scatter.run_s),
        gpu_h=sigma("gpu", measured.gpu_h, scatter.gpu_h),
    )


def run_task(history: History, task: Task, seed: int = 0) -> Outcome:
    """Return the outcome of one task, over the jobs that count."""
    outcomes = []
    curves = draw_curves(history, task, seed)
    for gpu_type, nodes in history.nodes.items():
        past = [(job, curve) for job, curve in zip(history.jobs, curves, strict=True) if job.gpu_type == gpu_type]
        jobs = [queue_job(history, job, curve) for job, curve in past]
        results = QueueModel(jobs, nodes).run()
        outcomes += [
            (job.submit_s, result)
            for job, (was, _), result in zip(jobs, past, results, strict=True)
            if not was.goes_on and was.ready_s >= history.from_s
        ]
    return mean_outcome(outcomes)


def mean_outcome(outcomes: Sequence[tuple[float, QueueResult]]) -> Outcome:
    """Return the means of (submission, result)."""
    return Outcome(
        wait_s=fmean(result.start_s - submit_s for submit_s, result in outcomes),
        run_s=fmean(result.end_s - result.start_s for _, result in outcomes),
        gpu_h=sum(result.gpu_s for _, result in outcomes) / 3600,
        restarts=fmean(result.restarts for _, result in outcomes),
    )


def draw_curves(history: History, task: Task, seed: int) -> list[SpeedUp | None]:
    """Draw who takes part, and how each job scales. The same draw at a larger share has the same jobs, and more."""
    draw = random.Random(f"{seed} {task.draw}")
    mean = task.prior.of_cluster(draw)
    eligible = {id(job) for job in history.forecast_jobs if job.gpus > 1}
    curves: list[SpeedUp | None] = []
    for job in history.jobs:
        taking_part, curve = draw.random() < task.share, task.prior.of_job(mean, draw)
        curves.append(curve if taking_part and id(job) in eligible else None)
    return curves


def queue_job(history: History, job: PastJob, curve: SpeedUp | None) -> QueueJob:
    """Return the job as the queue model takes it. One that ran before the span holds its GPUs from its begin."""
    before_s = max(0.0, history.from_s - job.start_s)
    return QueueJob(
        submit_s=history.from_s - 1.0 if before_s > 0 else max(job.ready_s, history.from_s),
        nodes=job.nodes,
        each=job.each,
        seconds=job.seconds - before_s,
        limit_s=max(job.limit_s - before_s, job.seconds - before_s),
        curve=curve,
    )


def forecast(history: History, results: Sequence[tuple[Task, Outcome]]) -> Forecast:
    """Return the forecast from the outcomes of `tasks_of`."""
    measured = measured_outcome(history)
    plain = next(outcome for task, outcome in results if task.share == 0.0)
    sigmas = model_sigmas(measured, compute_scatter(history))
    shares = []
    for prior in PRIORS:
        for share in SHARES:
            drawn = {task.draw: outcome for task, outcome in results if (task.prior, task.share) == (prior, share)}
            reference = {
                task.draw: outcome for task, outcome in results if (task.prior, task.share) == (MEASURED, share)
            }
            shares.append(_share_forecast(prior.name, share, Means(measured, plain, sigmas), drawn, reference))
    multi = sum(job.gpus > 1 for job in history.forecast_jobs)
    return Forecast(
        history=history,
        measured_outcome=measured,
        replayed_outcome=plain,
        sigmas=sigmas,
        multi=multi,
        shares=tuple(shares),
    )


def explained_share(measured: Outcome, replayed: Outcome) -> float:
    """Return the part of the measured wait that the queue model accounts for, at most 1."""
    return min(1.0, measured.wait_s / replayed.wait_s) if replayed.wait_s > 0 else 0.0


@dataclass(frozen=True)
class Means:
    """What was measured, what the queue model makes of it without Synergy, and one sigma of that model's own error."""

    measured_outcome: Outcome
    plain: Outcome
    sigmas: Outcome

    def wait_s(self, one: Outcome) -> float:
        """Return the forecast wait: the measured one, less what the queue model saves of the part that it accounts for."""
        return self.measured_outcome.wait_s - explained_share(self.measured_outcome, self.plain) * (
            self.plain.wait_s - one.wait_s
        )

    def completion_s(self, one: Outcome) -> float:
        return self.wait_s(one) + self.measured_outcome.run_s * one.run_s / self.plain.run_s

    def gpu_h(self, one: Outcome) -> float:
        return self.measured_outcome.gpu_h * one.gpu_h / self.plain.gpu_h


def _share_forecast(
    prior: str, share: float, means: Means, drawn: Mapping[int, Outcome], reference: Mapping[int, Outcome]
) -> ShareForecast:
    """Return the forecast from the outcomes `drawn`, by draw. `reference`: those of MEASURED, of which there are more."""

    def interval(value: Callable[[Outcome], float], sigma: float) -> Range:
        values = [value(one) for one in reference.values()]
        # the same draws differ by the prior alone, so few of them show its effect
        shift = fmean(value(one) - value(reference[draw]) for draw, one in drawn.items())
        return _interval(values, shift, sigma)

    sigmas = means.sigmas
    return ShareForecast(
        share=share,
        prior=prior,
        draws=len(drawn),
        wait_s=interval(means.wait_s, sigmas.wait_s),
        completion_s=interval(means.completion_s, math.hypot(sigmas.wait_s, sigmas.run_s)),
        gpu_h=interval(means.gpu_h, sigmas.gpu_h),
        restarts=fmean(one.restarts for one in drawn.values()),
    )


def _interval(values: Sequence[float], shift: float, sigma: float) -> Range:
    """Return the mean of `values` with the interval of one more draw, by Student's t, and of `sigma`; all moved by `shift`."""
    count = len(values)
    spread = stdev(values) if count > 1 else 0.0
    level = (1 + COVERAGE) / 2
    drawn = float(student.ppf(level, max(1, count - 1))) * spread * math.sqrt(1 + 1 / count)
    half = math.hypot(drawn, NormalDist().inv_cdf(level) * sigma)
    middle = max(0.0, fmean(values) + shift)
    return Range(middle, max(0.0, middle - half), middle + half)

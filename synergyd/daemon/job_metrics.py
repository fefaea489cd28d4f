"""Metrics of jobs and accounts, as an epoch leaves them."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from synergy_core.achieved import Achieved
from synergy_core.records import Action, Decision, Job, JobState

from synergyd.control.resize.lifecycle import IN_TRANSIT, ResizeState
from synergyd.control.tracked import StoryEntry, TrackedJob
from synergyd.daemon.loop import Daemon
from synergyd.slurm.parsed.associations import ALL_PRIVATE

_QUEUE_BUCKETS = (10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400)
_ERROR_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
# why a running job left its GPUs or its plan, by the controller's event
_CAUSES = {"Wanted": "decision", "Preempted": "preemption", "PlanFailed": "failed_plan", "Observed": "slurm"}


class JobMetrics:
    """The metrics of jobs and accounts.

    Call `epoch` after each epoch. Counters begin at the daemon's start, as Prometheus expects. The page has no
    password, so it names what PrivateData lets every user see: accounts that are hidden count together under no name,
    and hidden jobs have no series.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.gpus = Gauge(
            "synergy_account_gpus",
            "GPUs of the account's jobs: requested, held, decided by the last epoch",
            ["account", "kind"],
            registry=registry,
        )
        self.goodput = Gauge(
            "synergy_job_relative_goodput_ratio",
            "Predicted goodput of a running job relative to its requested size",
            ["job_id", "account"],
            registry=registry,
        )
        self.goodput_gpus = Gauge(
            "synergy_account_goodput_gpus",
            "Predicted goodput of the account's running jobs, in GPUs of their requested sizes",
            ["account"],
            registry=registry,
        )
        by_job = ["job_id", "account"]
        self.mfu = Gauge(
            "synergy_job_mfu_ratio", "Model FLOPs of a running job over the peak of its GPUs", by_job, registry=registry
        )
        self.step_time = Gauge(
            "synergy_job_step_time_ratio",
            "Measured step time of a running job over the predicted one",
            by_job,
            registry=registry,
        )
        self.busy = Gauge(
            "synergy_job_gpu_utilisation_ratio",
            "Share of time in which a kernel ran on a running job's GPUs (NVML, reporting node)",
            by_job,
            registry=registry,
        )
        self.power = Gauge(
            "synergy_job_gpu_power_watts",
            "Power of a running job's GPU (NVML, reporting node)",
            by_job,
            registry=registry,
        )
        self.gpu_seconds = Counter(
            "synergy_gpu_seconds",
            "GPU time held: training (the job reports), starting (not yet after a restart), silent (never)",
            ["account", "use"],
            registry=registry,
        )
        self.idle = Counter("synergy_idle_gpu_seconds", "GPU time of idle nodes that are up", registry=registry)
        self.queue = Histogram(
            "synergy_queue_seconds",
            "Time from sbatch to a job's first start",
            registry=registry,
            buckets=_QUEUE_BUCKETS,
        )
        self.error = Histogram(
            "synergy_step_time_error_ratio",
            "Relative error of the predicted step time, for each running job and epoch",
            registry=registry,
            buckets=_ERROR_BUCKETS,
        )
        self.resizes = Counter(
            "synergy_resizes",
            "Changes of a running job's GPUs or plan, by a decision, preemption, a failed plan, or Slurm itself",
            ["cause"],
            registry=registry,
        )
        self._at_s: float | None = None
        self._started: set[int] = set()  # jobs that have been seen to run
        self._last: StoryEntry | None = None
        self._private = ALL_PRIVATE

    def epoch(self, daemon: Daemon, now_s: float) -> None:
        """Update the metrics. `now_s` is the start of the epoch that has ended."""
        self._private = daemon.dependencies.writer.private
        tracked = daemon.controller.jobs
        jobs = [t.job for t in tracked.values() if t.job is not None]
        self._counts(jobs, {d.job_id: d for d in daemon.decisions})
        self._speeds(tracked, daemon.speeds)
        since_s, self._at_s = self._at_s, now_s
        if since_s is None:
            self._started = {job.job_id for job in jobs if job.state is not JobState.PENDING}
        else:
            self._times(tracked, max(0.0, now_s - since_s))
            nodes = daemon.observer.cluster.nodes
            self.idle.inc(max(0.0, now_s - since_s) * sum(max(0, n.gpus - n.gpus_used) for n in nodes if n.up))
        self._queue(jobs)
        self._errors(tracked, daemon.decisions)
        self._causes(daemon.controller.log)

    def _counts(self, jobs: Iterable[Job], decided: Mapping[int, Decision]) -> None:
        gpus: Count[tuple[str, str]] = Count()
        goodput: Count[str] = Count()
        for gauge in (self.gpus, self.goodput, self.goodput_gpus):
            gauge.clear()
        for job in jobs:
            decision = decided.get(job.job_id)
            running = job.state is JobState.RUNNING
            account = self._account(job)
            gpus[account, "asked"] += job.asked.gpus
            gpus[account, "held"] += job.shape.gpus if running else 0
            gpus[account, "wanted"] += decision.cell.shape.gpus if decision and decision.cell else 0
            if running and decision is not None and decision.relative_goodput is not None:
                if "jobs" not in self._private:
                    self.goodput.labels(str(job.job_id), account).set(decision.relative_goodput)
                goodput[account] += decision.relative_goodput * job.asked.gpus  # type: ignore[assignment]
        for (account, kind), number in gpus.items():
            self.gpus.labels(account, kind).set(number)
        for account, value in goodput.items():
            self.goodput_gpus.labels(account).set(value)

    def _speeds(self, tracked: Mapping[int, TrackedJob], speeds: Mapping[int, Achieved]) -> None:
        for gauge in (self.mfu, self.step_time, self.busy, self.power):
            gauge.clear()
        if "jobs" in self._private:
            return
        for job_id, speed in speeds.items():
            each = tracked.get(job_id)
            if each is None or each.job is None:
                continue
            activity = each.report.gpu_activity if each.report is not None else None
            ratio = speed.step_s / speed.predicted_step_s if speed.predicted_step_s else None
            busy, power_w = (activity.utilisation, activity.power_w) if activity is not None else (None, None)
            for gauge, value in (
                (self.mfu, speed.mfu),
                (self.step_time, ratio),
                (self.busy, busy),
                (self.power, power_w),
            ):
                if value is not None:
                    gauge.labels(str(job_id), self._account(each.job)).set(value)

    def _account(self, job: Job) -> str:
        """Return the job's account, or "" if users may not see it."""
        return "" if self._private & {"accounts", "jobs", "usage"} else job.account

    def _times(self, tracked: Mapping[int, TrackedJob], seconds: float) -> None:
        for each in tracked.values():
            job = each.job
            if job is not None and job.state is JobState.RUNNING:
                self.gpu_seconds.labels(self._account(job), classify_use(each, job)).inc(seconds * job.shape.gpus)

    def _queue(self, jobs: Iterable[Job]) -> None:
        here = {job.job_id: job for job in jobs}
        for job_id, job in here.items():
            if job.state is JobState.RUNNING and job_id not in self._started:
                self._started.add(job_id)
                if job.start_s is not None and not job.restarts:
                    self.queue.observe(max(0.0, job.start_s - job.submit_s))
        self._started &= here.keys()

    def _errors(self, tracked: Mapping[int, TrackedJob], decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            each = tracked.get(decision.job_id)
            if each is None or each.report is None or decision.cell is None or decision.action is not Action.KEEP:
                continue
            report, job = each.without_contention(each.report), each.job
            if job is None or report.restarts != job.restarts or not report.step_s or report.plan != decision.cell.plan:
                continue
            self.error.observe(abs(decision.cell.step_s / report.step_s - 1.0))

    def _causes(self, log: Iterable[StoryEntry]) -> None:
        fresh = []
        for entry in reversed(list(log)):
            if entry is self._last:
                break
            fresh.append(entry)
        for entry in fresh:
            moved = IN_TRANSIT | {ResizeState.QUEUED}
            if entry.was is ResizeState.RUNNING and entry.state in moved:
                self.resizes.labels(_CAUSES.get(entry.event, "other")).inc()
        self._last = fresh[0] if fresh else self._last


def classify_use(tracked: TrackedJob, job: Job) -> str:
    """Return what a running job does with its GPUs, judged by its reports."""
    report = tracked.report
    if report is not None and report.restarts == job.restarts:
        return "training"
    return "starting" if report is not None else "silent"

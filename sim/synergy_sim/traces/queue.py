"""The queue that a daemon has recorded, as a trace.

The facts that its database keeps of a job, and their use:
  - submission: the lifecycle's own time while the job is in the queue; of one that has left, its first decision or event,
    which came within an epoch of sbatch;
  - size asked for: of jobs in the last epoch as sbatch said; of others the first size that they were given;
  - work: of a job that has left, what its last report says it had done (examples, else tokens / sequence length, else steps x
    batch); of one that is still there, the total that it says it has;
  - speed: its profile, see sim/recorded_truth.py; batch range: the smallest and largest batch it was seen with;
  - a directive's bounds (min_gpus, max_gpus, gpu_types, weight, deadline) are not kept: every job is as free as one that
    states none; one without a model takes no larger micro-batch than it was seen with.
Jobs of which that is not enough are left out, and counted by reason: one that is still there and states no total, one that
left without having been measured, one whose number was used again by a later job.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from synergy_core.errors import UsageError
from synergy_core.job_report import Report
from synergy_core.records import Directive, Job, JobState, Profile, Shape

from synergy_sim.recorded_truth import RecordedTruth
from synergy_sim.records import TraceJob
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.model.hardware import GpuFigures, figures

RUNS = "still there and no total stated"
NEVER_RAN = "still waiting, never measured"
NO_STEPS = "left without a measured step"
NO_WORK = "left without any progress reported"
USED_AGAIN = "number used again by a later job"
UNREADABLE = "with a stored report, profile or decision that can't be read"


@dataclass(frozen=True)
class RecordedJob:
    """One job as the database has it. Times are seconds since 1970; None: not known."""

    job_id: int
    submit_s: float
    end_s: float | None = None  # it has left the queue
    name: str = ""
    ran: bool = False
    first_shape: Shape | None = None
    asked_gpus: int | None = None
    profile: Profile | None = None
    report: Report | None = None
    why_not: str = ""  # it can't be replayed


@dataclass(frozen=True)
class Replay:
    """A trace, the jobs that are not in it by reason, and how the jobs of the trace that have left really fared."""

    jobs: tuple[TraceJob, ...]
    excluded_jobs: Mapping[str, int] = field(default_factory=dict)
    recorded_jcts_s: tuple[float, ...] = ()

    def format_excluded_jobs(self) -> str:
        """Return a line that says how many recorded jobs are left out and why, or "" if none is."""
        count = sum(self.excluded_jobs.values())
        why = ", ".join(f"{n} {reason}" for reason, n in self.excluded_jobs.items())
        return f"{count} of {count + len(self.jobs)} recorded jobs are left out: {why}" if count else ""


def replay_queue(recorded: Iterable[RecordedJob], where: str, gpu_types: Iterable[str]) -> Replay:
    """Return the trace of those jobs, in order of submission, with time zero at the first one's.

    `gpu_types` are those of the cluster that it is for. Raises UsageError: no jobs, or none that can be replayed.
    """
    left_out: Counter[str] = Counter()
    pairs: list[tuple[RecordedJob, TraceJob]] = []
    types = tuple(gpu_types)
    gpu_figures: dict[str, GpuFigures] = {}
    count = 0
    for job in sorted(recorded, key=lambda job: (job.submit_s, job.job_id)):
        count += 1
        why = job.why_not or _omission_reason(job)
        if why:
            left_out[why] += 1
            continue
        pairs.append((job, _trace_job(job, where, types, gpu_figures)))
    if not count:
        raise UsageError(where, "the database has no jobs", "let synergyd run for a while, or use --trace")
    if not pairs:
        why = ", ".join(f"{n} {reason}" for reason, n in left_out.items())
        raise UsageError(
            where,
            f"none of its {count} jobs can be replayed: {why}",
            "jobs are replayed from what their agents report; `synergyctl forecast` needs no reports",
        )
    first_s = pairs[0][0].submit_s
    return Replay(
        tuple(replace(trace_job, submit_s=trace_job.submit_s - first_s) for _, trace_job in pairs),
        dict(left_out),
        tuple(job.end_s - job.submit_s for job, _ in pairs if job.end_s is not None),
    )


def _omission_reason(job: RecordedJob) -> str:
    if job.profile is None or not job.profile.measured:
        return NO_STEPS if job.end_s is not None else RUNS if job.ran else NEVER_RAN
    work, steps = _work(job), [m.step_s for m in job.profile.measured]
    if not all(math.isfinite(x) for x in (work, *steps, job.profile.noise_scale or 0.0)) or min(steps) <= 0:
        return UNREADABLE
    if work <= 0:
        return NO_WORK if job.end_s is not None else RUNS
    return ""


def _batches(profile: Profile) -> tuple[int, int]:
    """Return the smallest and the largest batch that the job was seen with; without a noise scale, the one that it has, twice."""
    batches = [m.plan.global_batch for m in profile.measured]
    if profile.noise_scale is None or profile.noise_scale <= 0:
        return (profile.global_batch or batches[-1],) * 2
    batches += [profile.global_batch] if profile.global_batch else []
    return min(batches), max(batches)


def _work(job: RecordedJob) -> float:
    """Return the sequences that the job has trained, or is to train where it is still there; 0 if not known."""
    report, profile = job.report, job.profile
    if report is None or profile is None:
        return 0.0
    if job.end_s is None:
        return report.total or 0.0
    if report.done is not None:
        return report.done
    model = report.model or profile.model
    if report.tokens and model is not None and model.seq > 0:
        return report.tokens / model.seq
    return float(report.step * (report.plan.global_batch if report.plan else profile.measured[-1].plan.global_batch))


def _trace_job(job: RecordedJob, where: str, types: tuple[str, ...], gpu_figures: dict[str, GpuFigures]) -> TraceJob:
    profile = job.profile
    assert profile is not None
    low, high = _batches(profile)
    first = job.first_shape or profile.measured[0].shape
    gpus = job.asked_gpus or first.gpus
    micro = max(m.plan.micro_batch for m in profile.measured)
    directive = Directive(
        model=profile.model.name if profile.model else None,
        global_batch=(low, high),
        max_micro_batch=None if profile.model else micro,
    )
    for gpu_type in {*types, first.gpu_type, *(m.shape.gpu_type for m in profile.measured)}:
        gpu_figures.setdefault(gpu_type, figures(gpu_type))
    asked_shape = first if first.gpus == gpus else Shape(first.gpu_type, 1, gpus)
    plain = Job(job.job_id, job.name, "", 0, "", JobState.PENDING, "", 0.0, None, None, 0, asked_shape, asked_shape)
    task = JobPlanner(replace(plain, directive=directive), profile, profile.model, gpu_figures)
    truth = RecordedTruth(task, 0.0, low, high, directive.max_micro_batch)
    truth.examples = _work(job) * _efficiency(truth, profile)
    return TraceJob(
        job.name or f"job {job.job_id}",
        profile.model.name if profile.model else "plain",
        job.submit_s,
        gpus,
        profile.global_batch or low,
        truth,
        f"{where}: job {job.job_id}",
        first.gpu_type if first.gpu_type in types else "",
        model=directive.model,
        batch_fixed=low == high,
        max_micro_batch=directive.max_micro_batch,
        spec=profile.model,
        plan=next((m.plan for m in reversed(profile.measured) if m.plan.gpus == gpus), None),
        reshard=profile.resharding,
    )


def _efficiency(truth: RecordedTruth, profile: Profile) -> float:
    """Return the statistical efficiency of the recorded examples: that of each measured batch, by the examples trained with it.

    Reports come at equal times.
    """
    done = [(m.plan.global_batch, m.samples * m.plan.global_batch / m.step_s) for m in profile.measured if m.step_s > 0]
    total = sum(examples for _, examples in done)
    return sum(truth.efficiency(batch) * examples for batch, examples in done) / total if total else 1.0

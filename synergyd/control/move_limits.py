"""Which running jobs are left alone for now, and what may begin beside the changes that are under way. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from synergy_core.records import Job, JobState

from synergyd.control.resize.lifecycle import IN_TRANSIT, LEAVING, JobLifecycle, ResizeState
from synergyd.control.resize.moves import Moves
from synergyd.control.tracked import TrackedJob
from synergyd.jobmodel.model.counts import parameters
from synergyd.jobmodel.model.spec import presets
from synergyd.scheduler.move_caps import NO_CAPS, MoveCaps
from synergyd.settings import Settings

#: bytes a parameter: half-precision weights, and master weights and both of Adam's moments in single precision; the 13.8 TB that
#: Narayanan et al. 2021, section 5.10, measured for 10^12 parameters
CHECKPOINT_BYTES = 14
_GIB = 2.0**30


def with_move_limits(job: Job, moves: Moves, settings: Settings, now_s: float, minute: int) -> Job:
    """Return the job, fixed if only a need may change it now: in QuietHours, and after MaxResizesPerDay changes.

    `minute`: of the day, by the admin's clock.
    """
    if job.state is not JobState.RUNNING or job.fixed or job.directive is None or needs_change(job, settings, now_s):
        return job
    end, most = find_quiet_end_minute(settings.quiet_hours, minute), settings.max_resizes_per_day
    if end is not None:
        return replace(job, fixed=f"no running job is resized before {end // 60:02d}:{end % 60:02d} (QuietHours)")
    if most and (again_s := moves.again_s(most, now_s)) > 0:
        words = f"it was resized {moves.count(now_s)} times within a day (MaxResizesPerDay={most})"
        return replace(job, fixed=f"{words}; again in {max(1.0, again_s / 60):.0f} min")
    return job


def needs_change(job: Job, settings: Settings, now_s: float) -> bool:
    """Return whether a change of the running job is more than a gain.

    It is if a reservation cuts the job short soon, or if it holds GPUs that others have a right to.
    """
    near_s = settings.checkpoint_timeout_s + 2 * settings.epoch_s + settings.restart_cost_s
    return (job.cut_s is not None and job.cut_s - now_s <= near_s) or bool(job.gives_back)


def find_quiet_end_minute(spans: Iterable[tuple[int, int]], minute: int) -> int | None:
    """Return the minute of the day at which the present quiet hours end, or None outside of them. A span may pass midnight."""
    ends = [end for begin, end in spans if (begin <= minute < end if begin < end else minute >= begin or minute < end)]
    return max(ends, key=lambda end: (end - minute) % 1440, default=None)


def remaining_move_caps(jobs: Mapping[int, TrackedJob], settings: Settings, now_s: float) -> MoveCaps:
    """Return what the settings leave for changes of running jobs, besides those that are under way."""
    if not settings.max_resizes and not settings.max_checkpoint_gibps:
        return NO_CAPS
    rates = {}
    if settings.max_checkpoint_gibps:
        rates = {i: r for i, t in jobs.items() if (r := write_gib_s(t)) is not None}
    writing = [i for i, t in jobs.items() if t.lifecycle.state is ResizeState.CHECKPOINTING]
    return MoveCaps(
        most=settings.max_resizes,
        write_gib_s=settings.max_checkpoint_gibps,
        under_way=sum(is_changing(t.lifecycle) for t in jobs.values()),
        writing_gib_s=sum(rates.get(i, settings.max_checkpoint_gibps) for i in writing),
        rates_gib_s=rates,
        urgent_jobs=frozenset(i for i, t in jobs.items() if t.job is not None and needs_change(t.job, settings, now_s)),
    )


def is_changing(life: JobLifecycle) -> bool:
    """Return whether the job is on its way from one size, plan or set of nodes to another, or to none."""
    ran = life.origin is not None and bool(life.origin.nodes)
    return life.state in LEAVING or (life.state in IN_TRANSIT and ran)


def write_gib_s(tracked: TrackedJob) -> float | None:
    """Return the mean rate at which the job's last checkpoint was written, in GiB/s, or None if its size or its time is not known."""
    model = tracked.profile.model if tracked.profile is not None else None
    if model is None and tracked.job is not None and tracked.job.directive is not None:
        model = presets().get((tracked.job.directive.model or "").strip().lower())
    seconds = tracked.lifecycle.moves.checkpoint_s
    return None if model is None or seconds <= 0 else parameters(model) * CHECKPOINT_BYTES / _GIB / seconds

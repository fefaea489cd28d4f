"""The use that jobs made of the GPUs that they held: parts of their incarnations, and sums of them over a span of time. Pure.

A part's times are Slurm's own, so that GPU hours held are those of `sacct -D`. Its training is counted by relative goodput:
`useful_gpu_s` are the GPU seconds that the size asked for at sbatch would have taken for the same training.

`relative_gain` is the one definition of what Synergy has brought: the page, `synergyctl usage` and the REST service show its result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

#: state at the end of a part whose job ran on with other GPUs: Slurm's own word
RESIZING = "RESIZING"


@dataclass(frozen=True, kw_only=True)
class Usage:
    """One allocation of a job, or the part of it within one day or until a change. Times are seconds since 1970, `_gpu_s` GPU seconds.

    An incarnation that gets fewer GPUs while it runs goes on in another allocation for Slurm's accounting, and GPUs that join it are an
    allocation beside its own. `whole_jobs` puts them together.
    """

    job_id: int
    user: str
    account: str
    #: the time when the allocation began, by Slurm
    start_s: float
    from_s: float
    to_s: float
    #: it still held its GPUs when it was last seen
    is_open: bool = False
    gpus: int
    asked_gpus: int
    #: seconds in which it trained with a known goodput
    trained_s: float = 0.0
    #: seconds of restarts: the checkpoint before its end, and from its start to the begin of training
    restart_s: float = 0.0
    useful_gpu_s: float = 0.0
    #: one sigma of `useful_gpu_s`, by the model's own
    sigma_gpu_s: float = 0.0
    #: seconds without GPUs before `start_s`, in a restart that Synergy chose
    stopped_s: float = 0.0
    #: names of its nodes with commas, or Slurm's host list; "": not known
    nodes: str = ""
    #: Slurm's state at its end, RESIZING if the job ran on with other GPUs; "": it runs, or nobody told
    state: str = ""
    #: seconds from its submission or requeue to `start_s`, `stopped_s` included
    waited_s: float = 0.0
    #: seconds for which training before stood still to save, for the change that began this run; without a requeue: for all of the change
    checkpoint_s: float = 0.0
    #: the part of `trained_s` with a reported step time
    measured_s: float = 0.0
    #: goodput in these seconds as it was reported, times seconds
    measured_work: float = 0.0
    #: the job of the same user that this allocation is beside; 0: it is a job's own
    of_job: int = 0
    #: when the job began to train after a change without a requeue; None: there was none since `start_s`
    changed_s: float | None = None
    #: goodput over that of the run before, as predicted when Synergy decided the change; 0: not known; None: no change of Synergy's
    predicted_ratio: float | None = None
    #: goodput of the run before, as it was reported last; None: not known
    before_goodput: float | None = None
    #: the part of `trained_s` in which other ranks waited for a slow node
    slow_s: float = 0.0
    #: seconds in which its GPUs did nothing, as its launcher saw it; no training
    idle_s: float = 0.0

    @property
    def held_s(self) -> float:
        return max(0.0, self.to_s - self.from_s)

    @property
    def measured_ratio(self) -> float | None:
        """Return the goodput over that of the run before, both as they were reported; None where one of them is not known."""
        if not self.before_goodput or self.measured_s <= 0:
            return None
        return self.measured_work / self.measured_s / self.before_goodput


@dataclass(frozen=True)
class PastRun:
    """An incarnation that has ended, as Slurm's accounting has it. `to_s`: less the time in which it was suspended."""

    job_id: int
    user: str
    account: str
    start_s: float
    to_s: float
    gpus: int
    waited_s: float = 0.0
    nodes: str = ""
    state: str = ""
    #: the job that its name says it is beside, which anybody's may; 0: none
    of_job: int = 0
    name: str = ""
    limit_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Totals over jobs. "Asked" means the requested sizes."""

    #: jobs that held GPUs
    jobs: int = 0
    #: at the requested sizes, for as long as the jobs held any GPUs
    asked_gpu_h: float = 0.0
    #: held, as Slurm accounts them
    held_gpu_h: float = 0.0
    #: what the requested sizes would have taken for the same training
    useful_gpu_h: float = 0.0
    #: in restarts: checkpoints before them, starts after them
    restart_gpu_h: float = 0.0
    #: in training with a known goodput, on which `useful_gpu_h`, `saved_h` and `gain` are based
    known_gpu_h: float = 0.0
    #: job hours saved over the requested sizes, started at the same times; below 0: lost
    saved_h: float = 0.0
    #: one sigma of `saved_h`, from the model's
    saved_sigma_h: float = 0.0
    #: job hours that the same training took: in training, in restarts, and without GPUs in restarts that Synergy chose
    spent_h: float = 0.0
    #: saved_h / spent_h: 0.11 is 11 % more training in the same time than at the requested sizes
    gain: float | None = None
    #: one sigma of `gain`, from the model's
    gain_sigma: float = 0.0
    #: changes of size, plan or nodes by Synergy's choice, with a requeue or without
    changes: int = 0
    #: those of `changes` with a prediction, and reports of training before and after
    audited: int = 0
    #: job hours of training after the audited changes, as reported
    audited_h: float = 0.0
    #: job hours saved over the previous size for the same training, as predicted when the change was decided
    predicted_h: float = 0.0
    #: the same, from the reports before and after the change
    measured_h: float = 0.0
    #: job hours of the audited changes themselves: checkpoint, requeue or restart in place, start
    change_h: float = 0.0
    #: mean of |measured goodput / predicted goodput - 1| over `audited_h`
    prediction_error: float | None = None


def relative_gain(useful_s: float, spent_s: float) -> float | None:
    """Return the gain: by how much more jobs trained than they would have at the sizes asked for in the same time.

        gain = (sum of useful_s) / (sum of spent_s) - 1, over jobs
        useful_s = useful_gpu_s / asked_gpus: seconds that the size asked for would have taken for the same training
        spent_s = trained_s + restart_s + stopped_s: seconds that the job took for it, with its restarts

    The unit is 1: 0.11 is +11 %. The hours saved are the same comparison in job hours, (sum of useful_s - sum of spent_s) / 3600,
    so gain = saved_h / spent_h. None where no job has spent any time that is known.
    """
    return useful_s / spent_s - 1.0 if spent_s > 0 else None


def clip_usage(part: Usage, from_s: float, to_s: float) -> Usage | None:
    """Return the share of the part that lies between two times, its sums in proportion; None for nothing."""
    low, high = max(part.from_s, from_s), min(part.to_s, to_s)
    if high <= low:
        return None
    if (low, high) == (part.from_s, part.to_s):
        return part
    share = (high - low) / part.held_s
    return replace(
        part,
        from_s=low,
        to_s=high,
        trained_s=part.trained_s * share,
        restart_s=part.restart_s * share,
        useful_gpu_s=part.useful_gpu_s * share,
        sigma_gpu_s=part.sigma_gpu_s * share,
        measured_s=part.measured_s * share,
        slow_s=part.slow_s * share,
        idle_s=part.idle_s * share,
        measured_work=part.measured_work * share,
        # the time before its start goes with its start
        stopped_s=part.stopped_s if low == part.from_s else 0.0,
        waited_s=part.waited_s if low == part.from_s else 0.0,
        checkpoint_s=part.checkpoint_s if low == part.from_s else 0.0,
    )


def with_end_time(part: Usage, to_s: float) -> Usage:
    """Return the part as it is once its end is known better."""
    if to_s <= part.from_s:
        nothing = without_training(part)
        return replace(nothing, to_s=part.from_s, is_open=False)
    cut = clip_usage(part, part.from_s, to_s) if to_s < part.to_s else part
    return replace(cut or part, to_s=to_s, is_open=False)


def without_training(part: Usage) -> Usage:
    """Return the part as if nothing had been trained in it so far."""
    return replace(
        part,
        trained_s=0.0,
        restart_s=0.0,
        useful_gpu_s=0.0,
        sigma_gpu_s=0.0,
        measured_s=0.0,
        measured_work=0.0,
        slow_s=0.0,
        idle_s=0.0,
    )


def with_less_training(part: Usage, lost_s: float) -> Usage:
    """Return the part with so much of its training counted as a restart's time instead."""
    remaining_share = 1.0 - lost_s / part.trained_s
    return replace(
        part,
        trained_s=part.trained_s - lost_s,
        restart_s=part.restart_s + lost_s,
        useful_gpu_s=part.useful_gpu_s * remaining_share,
        sigma_gpu_s=part.sigma_gpu_s * remaining_share,
        measured_s=part.measured_s * remaining_share,
        slow_s=part.slow_s * remaining_share,
        measured_work=part.measured_work * remaining_share,
    )


def without_overlaps(parts: Iterable[Usage]) -> Iterator[Usage]:
    """Yield the parts, each cut where the next one of its job begins: a job holds its GPUs once.

    `parts` come by job and begin. Stores of 0.2.0 have such parts: for a job that was being requeued they hold an end that was only
    planned.
    """
    before: Usage | None = None
    for part in parts:
        if before is not None:
            overlaps = before.job_id == part.job_id and before.to_s > part.from_s
            yield with_end_time(before, part.from_s) if overlaps else before
        before = part
    if before is not None:
        yield before


class UsageSum:
    """A sum of parts, added up one after another: a year's parts are too many to be held.

    They come by job and begin. Errors of one job's parts are one error; those of different jobs are independent.
    """

    def __init__(self) -> None:
        self._asked_s = self._held_s = self._useful_gpu_s = self._restart_s = self._known_s = 0.0
        self._useful_s = self._spent_s = 0.0
        self._sigma_s: dict[int, float] = {}  # by job
        self._audit = _Audit()

    def add(self, part: Usage) -> None:
        if part.held_s <= 0:
            return
        requested_gpus = max(1, part.asked_gpus)
        self._useful_s += part.useful_gpu_s / requested_gpus
        self._spent_s += part.trained_s + part.restart_s + part.stopped_s
        self._sigma_s[part.job_id] = self._sigma_s.get(part.job_id, 0.0) + part.sigma_gpu_s / requested_gpus
        self._asked_s += part.asked_gpus * part.held_s
        self._held_s += part.gpus * part.held_s
        self._useful_gpu_s += part.useful_gpu_s
        self._restart_s += part.gpus * part.restart_s
        self._known_s += part.gpus * part.trained_s
        self._audit.add(part)

    def totals(self) -> Totals:
        sigma_s, audit = math.sqrt(sum(s * s for s in self._sigma_s.values())), self._audit
        return Totals(
            jobs=len(self._sigma_s),
            asked_gpu_h=self._asked_s / 3600,
            held_gpu_h=self._held_s / 3600,
            useful_gpu_h=self._useful_gpu_s / 3600,
            restart_gpu_h=self._restart_s / 3600,
            known_gpu_h=self._known_s / 3600,
            saved_h=(self._useful_s - self._spent_s) / 3600,
            saved_sigma_h=sigma_s / 3600,
            spent_h=self._spent_s / 3600,
            gain=relative_gain(self._useful_s, self._spent_s),
            gain_sigma=sigma_s / self._spent_s if self._spent_s > 0 else 0.0,
            changes=audit.changes,
            audited=audit.audited,
            audited_h=audit.trained_s / 3600,
            predicted_h=audit.predicted_s / 3600,
            measured_h=audit.measured_s / 3600,
            change_h=audit.change_s / 3600,
            prediction_error=audit.error_s / audit.trained_s if audit.trained_s > 0 else None,
        )


class _Audit:
    """The sum of what was predicted of Synergy's changes against what reports measured. A change counts once, whatever its parts."""

    def __init__(self) -> None:
        self.changes = self.audited = 0
        self.trained_s = self.predicted_s = self.measured_s = self.change_s = self.error_s = 0.0
        # the change that was counted last, and the one that was audited last
        self._counted: tuple[int, float] | None = None
        self._audited: tuple[int, float] | None = None
        self._waiting_s = 0.0  # seconds of the present change, until its training is reported
        self._restart_s = 0.0  # those of them on its GPUs; the end of a run is among them, which the next change takes

    def add(self, part: Usage) -> None:
        predicted, measured = part.predicted_ratio, part.measured_ratio
        if predicted is None:
            return
        run = part.job_id, part.start_s if part.changed_s is None else part.changed_s
        if run != self._counted:
            if self._audited is not None and self._audited == self._counted and run[0] == self._counted[0]:
                self.change_s -= min(part.checkpoint_s, self._restart_s)
            self._counted, self._waiting_s, self._restart_s = run, 0.0, 0.0
            self.changes += 1
        self._waiting_s += part.checkpoint_s + part.stopped_s + part.restart_s
        self._restart_s += part.restart_s
        if predicted <= 0 or measured is None:
            return
        if run != self._audited:
            self._audited = run
            self.audited += 1
        self.trained_s += part.measured_s
        self.predicted_s += (predicted - 1.0) * part.measured_s
        self.measured_s += (measured - 1.0) * part.measured_s
        self.error_s += abs(measured / predicted - 1.0) * part.measured_s
        self.change_s += self._waiting_s
        self._waiting_s = 0.0


def totals(parts: Iterable[Usage]) -> Totals:
    """Return the sum of parts, which come by job and begin."""
    usage_sum = UsageSum()
    for part in parts:
        usage_sum.add(part)
    return usage_sum.totals()


def whole_jobs(parts: Iterable[Usage]) -> Iterator[Usage]:
    """Yield parts of jobs with all GPUs that each had at a time: allocations beside a job's own are added to its parts.

    `parts` come by job, an allocation beside another one as its job's, and do not overlap within an allocation.
    """
    for job_id, group in groupby(parts, lambda p: p.of_job or p.job_id):
        of_job = list(group)
        own = [p for p in of_job if not p.of_job]
        beside = [replace(p, job_id=job_id, of_job=0) for p in of_job if p.of_job]
        yield from _with_beside(own, beside) if beside else own


def _with_beside(own: Sequence[Usage], beside: Sequence[Usage]) -> Iterator[Usage]:
    """Yield the parts by begin, each cut where an allocation beside it begins or ends, with the GPUs and nodes of all."""
    cuts = sorted({t for p in beside for t in (p.from_s, p.to_s)})
    pieces: list[Usage] = []
    for part in own:
        times = [part.from_s, *(t for t in cuts if part.from_s < t < part.to_s), part.to_s]
        for low, high in pairwise(times):
            piece = clip_usage(part, low, high) or part
            others = [p for p in beside if p.from_s <= low and high <= p.to_s and high > low]
            nodes = ",".join(p.nodes for p in (part, *others) if p.nodes)
            piece = replace(piece, gpus=part.gpus + sum(p.gpus for p in others), nodes=nodes)
            pieces.append(replace(piece, is_open=part.is_open and high == part.to_s))
    for part in beside:  # what it held before or after the job's own: it takes its time to end
        for low, high in _gaps(part.from_s, part.to_s, own):
            rest = clip_usage(part, low, high)
            pieces += [replace(rest, asked_gpus=own[-1].asked_gpus if own else rest.asked_gpus)] if rest else []
    yield from sorted(pieces, key=lambda p: p.from_s)


def _gaps(from_s: float, to_s: float, covered: Iterable[Usage]) -> Iterator[tuple[float, float]]:
    """Yield what lies between two times and within none of these parts, which come by begin."""
    for part in covered:
        if part.from_s > from_s:
            yield from_s, min(part.from_s, to_s)
        from_s = max(from_s, part.to_s)
        if from_s >= to_s:
            return
    yield from_s, to_s


def reconcile_usage(
    parts_by_job: Mapping[int, Iterable[Usage]], ended: Iterable[PastRun], from_s: float
) -> list[Usage]:
    """Return the parts that Slurm's accounting shows to be other than they were kept, and those of runs that nobody saw.

    `parts_by_job`: by job id. `from_s`: runs that began before are left out unless they are known: they were not recorded then. A part that
    lasted no time takes the place of one that goes.
    """
    changes: list[Usage] = []
    for run in ended:
        of_job = sorted(parts_by_job.get(run.job_id, ()), key=lambda p: p.from_s)
        parts = [p for p in of_job if abs(p.start_s - run.start_s) < 1.0]
        late = [] if parts and parts[0].start_s == run.start_s else _cut_near_change(run, of_job)
        if late:
            changes.append(replace(without_training(late[0]), to_s=late[0].from_s))
            parts = [_with_begin(late[0], run.start_s), *(replace(p, start_s=run.start_s) for p in late[1:])]
        of_other = _find_owner(run, parts_by_job)
        for part in parts:
            # one that was open when it was stored last reaches to the end
            to_s = run.to_s if part is parts[-1] else min(part.to_s, run.to_s)
            gpus, state = run.gpus or part.gpus, run.state or part.state
            reconciled = replace(
                part, gpus=gpus, nodes=part.nodes or run.nodes, state=state, of_job=part.of_job or of_other
            )
            if late or to_s != part.to_s or part.is_open or reconciled != part:
                changes.append(with_end_time(reconciled, to_s))
        # a run that a part covers already is no other run
        apart = all(p.to_s <= run.start_s or p.from_s >= run.to_s for p in of_job)
        if not parts and apart and run.gpus and run.start_s >= from_s and run.to_s > run.start_s:
            changes.append(_unseen_usage(run, of_job[0].asked_gpus if of_job else run.gpus, of_other))
    return changes


def _cut_near_change(run: PastRun, of_job: Sequence[Usage]) -> list[Usage]:
    """Return the parts that are `run`, if they began with a change of size that was seen a little before or after it happened."""

    def overlap_s(group: Sequence[Usage]) -> float:
        return min(group[-1].to_s, run.to_s) - max(group[0].from_s, run.start_s)

    groups = [list(group) for _, group in groupby(of_job, lambda p: p.start_s)]
    cut = [after for before, after in pairwise(groups) if before[-1].state == RESIZING and not after[-1].is_open]
    alike = [group for group in cut if group[0].gpus == run.gpus and overlap_s(group) > 0]
    return max(alike, key=overlap_s, default=[])


def _with_begin(part: Usage, at_s: float) -> Usage:
    """Return the part as it is once the begin of its allocation is known better."""
    cut = clip_usage(part, at_s, part.to_s) if at_s > part.from_s else part
    return replace(cut or without_training(part), start_s=at_s, from_s=at_s)


def _find_owner(run: PastRun, parts_by_job: Mapping[int, Iterable[Usage]]) -> int:
    """Return the job that a run is beside, or 0: anybody can give a job such a name, so it counts with the same user and account only."""
    parts = parts_by_job.get(run.of_job, ()) if run.of_job else ()
    return run.of_job if any((p.user, p.account, p.of_job) == (run.user, run.account, 0) for p in parts) else 0


def _unseen_usage(run: PastRun, asked_gpus: int, of_job: int) -> Usage:
    return Usage(
        job_id=run.job_id,
        user=run.user,
        account=run.account,
        start_s=run.start_s,
        from_s=run.start_s,
        to_s=run.to_s,
        gpus=run.gpus,
        asked_gpus=asked_gpus,
        nodes=run.nodes,
        state=run.state,
        waited_s=run.waited_s,
        of_job=of_job,
    )

"""The use that each job makes of the GPUs that it holds, from one look at the cluster to the next. Pure.

An incarnation is cut at each midnight, so that months can be told apart, and while it runs at each change of its GPUs or of what it
trains with, as Slurm's accounting and the audit count them. GPUs that join it are an allocation of their own beside it. Held time is
by Slurm's own times; training counts by what the job reports and by the relative goodput of what it runs with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from synergy_core.usage import RESIZING, Usage, with_end_time, with_less_training, without_training

#: a part that goes on is stored so often: a daemon that dies loses so much of what was trained at the most
WRITE_S = 600.0
OLDEST_S = 400 * 86400.0  # if a run began before that, Slurm's clock is wrong about it


@dataclass(frozen=True, kw_only=True)
class Holding:
    """A job as one look shows it. Times are seconds since 1970."""

    job_id: int
    user: str
    account: str
    gpus: int
    asked_gpus: int
    #: start of its present incarnation; None: it is pending
    start_s: float | None
    #: when it came into the queue, which a requeue sets anew
    submit_s: float
    restarts: int = 0
    #: it has ended, and its last processes are on their way out
    ended_s: float | None = None
    #: since when it trains; None: it has not said so
    training_s: float | None = None
    #: the job that this allocation is beside; 0: it is a job's own
    of_job: int = 0
    #: Synergy's latest order to restart in place after which it has reported steps; None: it has not reported any
    order: int | None = None
    #: seconds that restarts of Synergy's choice have taken so far, the one in place that has just ended included
    lost_s: float = 0.0
    #: it is on its way to another plan or size, or has not been measured there: `lost_s` may lack what that takes
    in_transit: bool = False
    #: GPUs that it trains on by the same report; 0: not known
    training_gpus: int = 0
    #: earlier incarnations have trained
    has_trained_before: bool = False
    #: relative goodput of what it runs with, and its relative error (one sigma); None: not known
    relative: float | None = None
    sigma: float = 0.0
    #: its GPUs do nothing, as its launcher sees it
    is_idle: bool = False
    #: times that its slowest node takes for the same work
    slowed: float = 1.0
    #: its last restart was Synergy's choice
    is_synergys_restart: bool = False
    #: for how long the checkpoint before its present restart held it up
    checkpoint_s: float = 0.0
    #: names of its nodes
    nodes: str = ""
    #: goodput by its last report; None: not known
    goodput: float | None = None
    #: (GPUs, relative goodput) that have just been decided for it in place of what it has
    decided_change: tuple[int, float] | None = None


@dataclass(frozen=True)
class _Change:
    """The last thing that a job ran with, and what was decided for it since."""

    relative: float | None
    goodput: float | None
    decided_change: tuple[int, float] | None = None

    def ratio(self, gpus: int) -> float:
        """Return the predicted goodput of a run on so many GPUs over that of the run before, or 0 if it is not known."""
        if self.decided_change is None or self.decided_change[0] != gpus or not self.relative:
            return 0.0
        return self.decided_change[1] / self.relative


@dataclass
class _Open:
    """A part that goes on.

    `run_s`: start of its incarnation, None if that was read from a store. `counted_s`: until when its training has been counted.
    `order`, `lost_s`, `training_gpus`: as in Holding, before the change that is under way. `is_cost_unknown`: the change that began the
    part was seen before what it took.
    """

    part: Usage
    restarts: int
    run_s: float | None = None
    order: int | None = None
    lost_s: float | None = None
    is_cost_unknown: bool = False
    changed_part: Usage | None = None  # the part that the last change ended
    training_gpus: int = 0
    training_s: float | None = None
    counted_s: float | None = None
    relative: float | None = None
    sigma: float = 0.0
    goodput: float | None = None
    decided_change: tuple[int, float] | None = None
    is_idle: bool = False
    previous_part: Usage | None = None  # the part before it, of the same run
    seen_s: float = 0.0
    written_s: float = 0.0


@dataclass
class UsageLedger:
    """The account of the GPUs that all jobs hold.

    `look` is called once an epoch; `pending` is what is to be stored. `midnight`: the first midnight after a time.
    """

    midnight: Callable[[float], float]
    _open: dict[int, _Open] = field(default_factory=dict)
    _ended_starts: dict[int, float] = field(
        default_factory=dict
    )  # starts of runs that are over, while they are shown still
    _restarting: dict[int, _Change] = field(default_factory=dict)  # jobs on their way to their next run
    _changed_parts: dict[tuple[int, float], Usage] = field(default_factory=dict)

    def restore(self, parts: Iterable[Usage]) -> None:
        """Restore the parts that were open when they were last stored."""
        for part in sorted(parts, key=lambda p: p.from_s):
            self._open[part.job_id] = _Open(part, -1, counted_s=part.to_s, seen_s=part.to_s)

    def look(self, now_s: float, jobs: Iterable[Holding]) -> None:
        here: set[int] = set()
        for job in jobs:
            here.add(job.job_id)
            self._follow(job, now_s)
        for job_id in [i for i in self._open if i not in here]:
            # somewhere between two looks; Slurm's accounting, where there is any, knows better
            self._end(job_id, _estimate_end_s(self._open[job_id].seen_s, now_s))
        self._ended_starts = {i: s for i, s in self._ended_starts.items() if i in here}
        self._restarting = {i: change for i, change in self._restarting.items() if i in here}

    def pending(self) -> list[Usage]:
        """Return the parts that are to be stored."""
        return list(self._changed_parts.values())

    def mark_stored(self, parts: Iterable[Usage]) -> None:
        """Note that these parts have been stored."""
        for part in parts:
            if self._changed_parts.get((part.job_id, part.from_s)) is part:
                del self._changed_parts[part.job_id, part.from_s]

    def _follow(self, job: Holding, now_s: float) -> None:
        now = self._open.get(job.job_id)
        # Slurm says whole seconds, and may begin a run in the second in which it looks
        start_s = None if job.start_s is None or job.start_s > now_s + 1 else job.start_s
        if now is not None and (start_s is None or not _is_same_run(now, start_s)):
            self._restarting[job.job_id] = _Change(now.relative, now.goodput, now.decided_change)
            self._end(job.job_id, _over_s(now, job, start_s, now_s), job.checkpoint_s, "REQUEUED")
            now = None
        if now is None and job.decided_change is not None and (change := self._restarting.get(job.job_id)) is not None:
            self._restarting[job.job_id] = replace(change, decided_change=job.decided_change)
        if (
            start_s is None
            or job.gpus < 1
            or start_s < now_s - OLDEST_S
            or self._ended_starts.get(job.job_id) == start_s
        ):
            return
        if now is None:
            now = self._begin(job, start_s, now_s)
        elif now.restarts < 0:
            now.restarts = job.restarts
        now.run_s = start_s
        now.decided_change = job.decided_change or now.decided_change
        until_s = min(now_s, job.ended_s or now_s)
        self._follow_changes(now, job, until_s)
        if job.nodes and job.nodes != now.part.nodes:
            now.part = replace(now.part, nodes=job.nodes)
        self._train(now, job, until_s)
        if job.ended_s is not None:
            self._end(job.job_id, job.ended_s)
            self._ended_starts[job.job_id] = start_s

    def _begin(self, job: Holding, start_s: float, now_s: float) -> _Open:
        waited_s, change = max(0.0, start_s - job.submit_s), self._restarting.pop(job.job_id, None)
        part = Usage(
            job_id=job.job_id, user=job.user, account=job.account, start_s=start_s, from_s=start_s, to_s=start_s, is_open=True,
            gpus=job.gpus, asked_gpus=job.asked_gpus, nodes=job.nodes, waited_s=waited_s, of_job=job.of_job,
        )  # fmt: skip
        if job.is_synergys_restart and job.restarts:
            part = replace(
                part,
                stopped_s=waited_s,
                checkpoint_s=job.checkpoint_s,
                predicted_ratio=change.ratio(job.gpus) if change is not None else 0.0,
                before_goodput=change.goodput if change is not None else None,
            )
        self._open[job.job_id] = open_part = _Open(part, job.restarts, seen_s=now_s)
        return open_part

    def _follow_changes(self, now: _Open, job: Holding, until_s: float) -> None:
        """Cut the part of a run that trains with another plan or on other GPUs since the last look, or holds others."""
        ordered = now.order is not None and job.order is not None and job.order > now.order
        other = (
            bool(now.training_gpus and job.training_gpus) and now.training_gpus != job.training_gpus
        )  # a node was lost
        if job.training_s is not None and (ordered or other):
            self._change(now, job, until_s, ordered)
        elif now.is_cost_unknown:
            self._charge_change(now, job)
        now.order = now.order if job.order is None else job.order
        now.training_gpus = job.training_gpus or now.training_gpus
        if now.lost_s is None or not job.in_transit:
            now.lost_s = job.lost_s
        if job.ended_s is None and job.gpus != now.part.gpus:
            at_s = max(now.part.from_s, _estimate_end_s(now.seen_s, until_s))
            self._count_until(now, at_s, job)
            began_s = now.part.start_s if now.part.changed_s is None else now.part.changed_s
            now.part = replace(now.part, state=RESIZING)
            self._cut(now, at_s)
            now.part = replace(now.part, start_s=at_s, gpus=job.gpus, nodes=job.nodes, changed_s=began_s, state="")

    def _change(self, now: _Open, job: Holding, until_s: float, ordered: bool) -> None:
        """Begin a part with what the run trains with now: at an order of Synergy's, which is audited, or not."""
        assert job.training_s is not None
        # what is counted already was before the change: its first report took its time to come
        at_s = min(until_s, max(job.training_s, now.seen_s, now.part.from_s))
        ratio = _Change(now.relative, now.goodput, now.decided_change).ratio(job.training_gpus)
        lost_s = max(0.0, job.lost_s - (now.lost_s or 0.0)) if ordered else 0.0
        self._count_until(now, at_s, job)
        self._cut(now, at_s, lost_s)
        now.changed_part = now.previous_part
        now.part = replace(
            now.part,
            changed_s=at_s,
            checkpoint_s=lost_s,
            predicted_ratio=ratio if ordered else None,
            before_goodput=now.goodput if ordered else None,
        )
        now.relative = (
            now.decided_change[1] if now.decided_change is not None and ratio else None
        )  # until the next decision
        now.goodput, now.decided_change = None, None
        now.is_cost_unknown = ordered and not lost_s and job.in_transit

    def _charge_change(self, now: _Open, job: Holding) -> None:
        """Take what the last change took from the part before it, once that is known."""
        lost_s = max(0.0, job.lost_s - (now.lost_s or 0.0))
        before = now.changed_part
        if lost_s > 0 and before is not None:
            part = _less_training(before, lost_s)
            self._changed_parts[before.job_id, before.from_s] = now.changed_part = part
            now.previous_part = part if now.previous_part is before else now.previous_part
            now.part = replace(now.part, checkpoint_s=lost_s)
        now.is_cost_unknown = job.in_transit and not lost_s

    def _count_until(self, now: _Open, until_s: float, job: Holding) -> None:
        """Count what passed since the last look, cut at each midnight."""
        while (midnight_s := self.midnight(now.part.from_s)) < until_s:
            self._count(now, midnight_s, job)
            self._cut(now, midnight_s)
        self._count(now, until_s, job)

    def _cut(self, now: _Open, at_s: float, lost_s: float = 0.0) -> None:
        """End the part, whose last `lost_s` seconds were no training, and begin another one of the same run."""
        part, before = replace(now.part, is_open=False), now.previous_part
        if before is not None and lost_s > part.trained_s:  # its GPUs or the day have changed meanwhile
            self._changed_parts[before.job_id, before.from_s] = _less_training(before, lost_s - part.trained_s)
        self._changed_parts[part.job_id, part.from_s] = now.previous_part = _less_training(part, lost_s)
        now.part = replace(
            without_training(now.part), from_s=at_s, to_s=at_s, stopped_s=0.0, waited_s=0.0, checkpoint_s=0.0
        )  # fmt: skip
        now.written_s = 0.0

    def _train(self, now: _Open, job: Holding, until_s: float) -> None:
        """Count what passed since the last look or change, with what is known now."""
        if now.training_s is None and job.training_s is not None:
            now.training_s = max(job.training_s, now.part.start_s)
            now.counted_s = max(now.counted_s or 0.0, now.training_s)
        if job.relative is not None:
            now.relative, now.sigma = job.relative, job.sigma
        now.goodput, now.is_idle = job.goodput if job.goodput is not None else now.goodput, job.is_idle
        self._count_until(now, until_s, job)
        now.seen_s = until_s
        if until_s - now.written_s >= WRITE_S:
            self._changed_parts[now.part.job_id, now.part.from_s] = now.part
            now.written_s = until_s

    def _count(self, now: _Open, until_s: float, job: Holding) -> None:
        part = now.part
        if until_s < part.to_s:  # Slurm says whole seconds of its end, after a look that counted more
            part = replace(with_end_time(part, until_s), is_open=part.is_open)
        part = replace(part, to_s=max(until_s, part.from_s))
        starting = now.restarts > 0 and job.has_trained_before and now.training_s is None
        if job.is_idle and not starting:  # what passed before it was seen to be idle stays as it was counted
            since_s = max(now.part.to_s, now.counted_s or 0.0)
            part = replace(part, idle_s=part.idle_s + max(0.0, part.to_s - since_s))
            now.counted_s = max(now.counted_s or 0.0, until_s)
        if now.restarts > 0 and (now.training_s is not None or job.has_trained_before):
            begun_s = min(until_s, now.training_s if now.training_s is not None else until_s)
            part = replace(part, restart_s=max(0.0, begun_s - part.from_s))
        if now.training_s is not None and now.relative is not None and now.counted_s is not None:
            seconds = max(0.0, until_s - max(now.counted_s, part.from_s))
            useful = seconds * now.relative * part.asked_gpus
            part = replace(
                part,
                trained_s=part.trained_s + seconds,
                useful_gpu_s=part.useful_gpu_s + useful,
                sigma_gpu_s=part.sigma_gpu_s + useful * now.sigma,
                measured_s=part.measured_s + seconds * (now.goodput is not None),
                measured_work=part.measured_work + seconds * (now.goodput or 0.0),
                slow_s=part.slow_s + seconds * (1.0 - 1.0 / max(1.0, job.slowed)),
            )
            now.counted_s = max(now.counted_s, until_s)
        now.part = part

    def _end(self, job_id: int, to_s: float, checkpoint_s: float = 0.0, state: str = "") -> None:
        now = self._open.pop(job_id)
        part = now.part
        if to_s > part.to_s and now.training_s is not None and now.relative is not None:
            self._count(now, to_s, replace(_NOBODY, is_idle=now.is_idle))
            part = now.part
        part = replace(with_end_time(part, to_s), state=state)
        self._changed_parts[job_id, part.from_s] = _less_training(part, checkpoint_s)


def _is_same_run(now: _Open, start_s: float) -> bool:
    """Return whether the part is of the incarnation that began at `start_s`. A part that a change of size began, began later."""
    if now.run_s is None:
        return start_s < now.part.start_s + 1.0
    return abs(start_s - now.run_s) < 1.0


def _less_training(part: Usage, lost_s: float) -> Usage:
    """Return the part with `lost_s` seconds, in which it did not train, in a restart instead of in training."""
    lost_s = min(lost_s, part.trained_s)
    return with_less_training(part, lost_s) if lost_s > 0 else part


def _over_s(now: _Open, job: Holding, start_s: float | None, now_s: float) -> float:
    """Return when the run that was open ended, now that the job is pending or has another start."""
    if now.part.start_s < job.submit_s <= now_s:
        return job.submit_s  # its requeue
    if start_s is not None and start_s > now.part.start_s and now.restarts in (-1, job.restarts):
        # the same run: once its nodes are powered up Slurm has it begin anew, in the accounts too
        return now.part.from_s
    return _estimate_end_s(now.seen_s, now_s)


def _estimate_end_s(seen_s: float, now_s: float) -> float:
    """Return when a run ended that was there at `seen_s` and is not now. After a long time without a look the end is not known."""
    return min((seen_s + now_s) / 2, seen_s + WRITE_S)


_NOBODY = Holding(job_id=0, user="", account="", gpus=0, asked_gpus=0, start_s=None, submit_s=0.0)

"""What jobs made of the GPUs that they held: parts of their incarnations, and sums of them over a span of time. Pure.

A part's times are Slurm's own, so that GPU hours held are those of `sacct -D`. What was trained in it is counted by relative goodput:
`useful_gpu_s` are the GPU seconds that the size asked for at sbatch would have taken for the same training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Usage:
    """One incarnation of a job, or the part of it within one day. Times are seconds since 1970, `_gpu_s` GPU seconds."""

    job_id: int
    user: str
    account: str
    #: when the incarnation began, by Slurm
    start_s: float
    from_s: float
    to_s: float
    #: it held its GPUs still when it was last seen
    is_open: bool = False
    gpus: int
    asked_gpus: int
    #: in which it trained with a goodput that is known
    trained_s: float = 0.0
    #: of restarts: the checkpoint before its end, and from its start to the begin of training
    restart_s: float = 0.0
    useful_gpu_s: float = 0.0
    #: one sigma of `useful_gpu_s`, by the model's own
    sigma_gpu_s: float = 0.0
    #: without GPUs before `start_s`, in a restart that Synergy chose
    stopped_s: float = 0.0

    @property
    def held_s(self) -> float:
        return max(0.0, self.to_s - self.from_s)


@dataclass(frozen=True)
class PastRun:
    """An incarnation that has ended, as Slurm's accounting has it. `to_s`: less the time in which it was suspended."""

    job_id: int
    user: str
    account: str
    start_s: float
    to_s: float
    gpus: int


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Of all parts together. `_gpu_h` are GPU hours."""

    #: jobs that held GPUs
    jobs: int = 0
    #: of the sizes asked for at sbatch, for as long as the jobs held any
    asked_gpu_h: float = 0.0
    #: as Slurm accounts them
    held_gpu_h: float = 0.0
    #: that the sizes asked for would have taken for the same training
    useful_gpu_h: float = 0.0
    #: in restarts: checkpoints before them, starts after them
    restart_gpu_h: float = 0.0
    #: in training whose goodput is known: what `useful_gpu_h` and `saved_h` speak of
    known_gpu_h: float = 0.0
    #: job hours less than at the size asked for, started at the same times; below 0: more
    saved_h: float = 0.0
    #: one sigma of `saved_h`, by the model's own
    saved_sigma_h: float = 0.0


def within(part: Usage, from_s: float, to_s: float) -> Usage | None:
    """What of the part lies between two times, its sums in proportion; None for nothing."""
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
        # before its start, so with its start
        stopped_s=part.stopped_s if low == part.from_s else 0.0,
    )


def ending(part: Usage, to_s: float) -> Usage:
    """The part as it is once its end is known better."""
    if to_s <= part.from_s:
        nothing = replace(part, trained_s=0.0, restart_s=0.0, useful_gpu_s=0.0, sigma_gpu_s=0.0)
        return replace(nothing, to_s=part.from_s, is_open=False)
    cut = within(part, part.from_s, to_s) if to_s < part.to_s else part
    return replace(cut or part, to_s=to_s, is_open=False)


def without_overlaps(parts: Iterable[Usage]) -> Iterator[Usage]:
    """Yield the parts, each cut where the next one of its job begins: a job holds its GPUs once. `parts` come by job and begin.

    Stores of 0.2.0 have such parts: of a job that was being requeued they hold an end that was only planned.
    """
    before: Usage | None = None
    for part in parts:
        if before is not None:
            overlaps = before.job_id == part.job_id and before.to_s > part.from_s
            yield ending(before, part.from_s) if overlaps else before
        before = part
    if before is not None:
        yield before


class Sum:
    """Adds parts up, one after another: a year's parts are too many to be held. Errors of one job's parts are one error; those of
    different jobs are independent."""

    def __init__(self) -> None:
        self._asked_s = self._held_s = self._useful_s = self._restart_s = self._known_s = self._saved_s = 0.0
        self._sigma_s: dict[int, float] = {}  # by job

    def add(self, part: Usage) -> None:
        if part.held_s <= 0:
            return
        asked, sigma_s = max(1, part.asked_gpus), 0.0
        if part.trained_s:
            self._saved_s += part.useful_gpu_s / asked - part.trained_s - part.restart_s
            sigma_s = part.sigma_gpu_s / asked
        elif part.restart_s:
            self._saved_s -= part.restart_s
        self._saved_s -= part.stopped_s
        self._sigma_s[part.job_id] = self._sigma_s.get(part.job_id, 0.0) + sigma_s
        self._asked_s += part.asked_gpus * part.held_s
        self._held_s += part.gpus * part.held_s
        self._useful_s += part.useful_gpu_s
        self._restart_s += part.gpus * part.restart_s
        self._known_s += part.gpus * part.trained_s

    def totals(self) -> Totals:
        return Totals(
            jobs=len(self._sigma_s),
            asked_gpu_h=self._asked_s / 3600,
            held_gpu_h=self._held_s / 3600,
            useful_gpu_h=self._useful_s / 3600,
            restart_gpu_h=self._restart_s / 3600,
            known_gpu_h=self._known_s / 3600,
            saved_h=self._saved_s / 3600,
            saved_sigma_h=math.sqrt(sum(s * s for s in self._sigma_s.values())) / 3600,
        )


def totals(parts: Iterable[Usage]) -> Totals:
    """Their sum."""
    found = Sum()
    for part in parts:
        found.add(part)
    return found.totals()


def reconciled(known: Mapping[int, Iterable[Usage]], ended: Iterable[PastRun], from_s: float) -> list[Usage]:
    """The parts that Slurm's accounting shows to be other than they were kept, and those of runs that nobody saw. `known`: by job
    id. `from_s`: runs that began before are left out unless they are known: they were not recorded then."""
    found: list[Usage] = []
    for run in ended:
        of_job = sorted(known.get(run.job_id, ()), key=lambda p: p.from_s)
        parts = [p for p in of_job if abs(p.start_s - run.start_s) < 1.0]
        for part in parts:
            # one that was open when it was stored last reaches to the end
            to_s = run.to_s if part is parts[-1] else min(part.to_s, run.to_s)
            gpus = run.gpus or part.gpus
            if to_s != part.to_s or part.is_open or gpus != part.gpus:
                found.append(replace(ending(part, to_s), gpus=gpus))
        # what a part of it covers already is no other run: a running job that was made smaller has two records
        apart = all(p.to_s <= run.start_s or p.from_s >= run.to_s for p in of_job)
        if not parts and apart and run.gpus and run.start_s >= from_s and run.to_s > run.start_s:
            found.append(_unseen(run, of_job[0].asked_gpus if of_job else run.gpus))
    return found


def _unseen(run: PastRun, asked_gpus: int) -> Usage:
    return Usage(
        job_id=run.job_id,
        user=run.user,
        account=run.account,
        start_s=run.start_s,
        from_s=run.start_s,
        to_s=run.to_s,
        gpus=run.gpus,
        asked_gpus=asked_gpus,
    )

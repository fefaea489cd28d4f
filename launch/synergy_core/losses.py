"""The ledger of GPU hours: how much of what jobs held went into training, and what took the rest. Pure.

Every second that a job held counts once, so the parts add up to the GPU hours held, which are those of `sacct -D`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from synergy_core.usage import Usage


@dataclass(frozen=True, kw_only=True)
class Losses:
    """GPU hours by what they went into. All but `queue_gpu_h` and `size_gpu_h` add up to `held_gpu_h`."""

    #: held, as Slurm accounts them
    held_gpu_h: float = 0.0
    #: in training, less what slow nodes took
    training_gpu_h: float = 0.0
    #: before a job's first training
    start_gpu_h: float = 0.0
    #: held up by checkpoints before requeues that Synergy chose
    checkpoint_gpu_h: float = 0.0
    #: in the rest of changes that Synergy chose: starts after requeues, restarts in place
    resize_gpu_h: float = 0.0
    #: in starts after other requeues: failed nodes, preemption, users
    failure_gpu_h: float = 0.0
    #: in training that waited for a slow node
    straggler_gpu_h: float = 0.0
    #: while a job's GPUs did nothing by its launcher's samples, outside of starts
    idle_gpu_h: float = 0.0
    #: of jobs that don't report training, and without a known goodput
    unknown_gpu_h: float = 0.0
    #: requested sizes while jobs waited in the queue; not held
    queue_gpu_h: float = 0.0
    #: of training: predicted loss to a size that uses each GPU less well than the requested one; below 0: gain
    size_gpu_h: float = 0.0
    #: effective training time ratio: `training_gpu_h` / (`held_gpu_h` - `unknown_gpu_h`)
    effective: float | None = None


#: fields of Losses that are lost, with their names
LOSSES = (
    ("start", "start_gpu_h"), ("checkpoint", "checkpoint_gpu_h"), ("resize", "resize_gpu_h"), ("failure", "failure_gpu_h"),
    ("straggler", "straggler_gpu_h"), ("idle", "idle_gpu_h"),
)  # fmt: skip


class LossSum:
    """A sum of parts, added up one after another, by job and begin."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(
            ("held", "training", "start", "resize", "failure", "straggler", "idle", "unknown", "queue", "size"), 0.0
        )
        self._checkpoint = 0.0
        self._before_training: dict[int, float] = {}  # GPU seconds of jobs that have not trained
        self._trained: set[int] = set()
        self._last: tuple[Usage, str] | None = None  # the part before, and what its restart counts as

    def add(self, part: Usage) -> None:
        if part.held_s <= 0:
            return
        sums, gpus = self._sums, part.gpus
        slow_s = min(part.slow_s, part.trained_s)
        sums["held"] += gpus * part.held_s
        sums["training"] += gpus * (part.trained_s - slow_s)
        sums["straggler"] += gpus * slow_s
        sums["queue"] += part.asked_gpus * part.waited_s
        sums["size"] += gpus * part.trained_s - part.useful_gpu_s
        kind = "failure" if part.predicted_ratio is None else "resize"
        sums[kind] += gpus * part.restart_s
        self._count_change(part)
        self._last = part, kind
        idle_s = min(part.idle_s, max(0.0, part.held_s - part.trained_s - part.restart_s))
        sums["idle"] += gpus * idle_s
        rest = gpus * max(0.0, part.held_s - part.trained_s - part.restart_s - idle_s)
        if part.job_id in self._trained:
            sums["unknown"] += rest
        elif part.trained_s > 0:
            self._trained.add(part.job_id)
            sums["start"] += rest + self._before_training.pop(part.job_id, 0.0)
        else:
            self._before_training[part.job_id] = self._before_training.get(part.job_id, 0.0) + rest

    def _count_change(self, part: Usage) -> None:
        """Count the seconds before a change of Synergy's, which the part before holds, as the change's."""
        if self._last is None or self._last[0].job_id != part.job_id or not part.checkpoint_s:
            return
        before, kind = self._last
        moved = before.gpus * min(part.checkpoint_s, before.restart_s)
        self._sums[kind] -= moved
        if part.changed_s is not None:  # in place: nobody tells the save from the rest
            self._sums["resize"] += moved
        else:
            self._checkpoint += moved

    def losses(self) -> Losses:
        sums = {name: seconds / 3600 for name, seconds in self._sums.items()}
        unknown_gpu_h = sums["unknown"] + sum(self._before_training.values()) / 3600
        known_gpu_h = sums["held"] - unknown_gpu_h
        return Losses(
            held_gpu_h=sums["held"],
            training_gpu_h=sums["training"],
            start_gpu_h=sums["start"],
            checkpoint_gpu_h=self._checkpoint / 3600,
            resize_gpu_h=sums["resize"],
            failure_gpu_h=sums["failure"],
            straggler_gpu_h=sums["straggler"],
            idle_gpu_h=sums["idle"],
            unknown_gpu_h=unknown_gpu_h,
            queue_gpu_h=sums["queue"],
            size_gpu_h=sums["size"],
            effective=sums["training"] / known_gpu_h if known_gpu_h > 1e-9 else None,
        )


def losses(parts: Iterable[Usage]) -> Losses:
    """Return the ledger of parts, which come by job and begin."""
    added = LossSum()
    for part in parts:
        added.add(part)
    return added.losses()


def losses_message(ledger: Losses) -> str:
    """Return a line such as `LEDGER: 71 % of 120.0 held GPU hours in training; start 2.1, resize 1.0; ...`."""
    if ledger.effective is None:
        return "LEDGER: no job has told of its training."
    known_gpu_h = ledger.held_gpu_h - ledger.unknown_gpu_h
    loss_text = ", ".join(f"{name} {value:.2f}" for name, key in LOSSES if (value := getattr(ledger, key)) >= 0.005)
    size = f"; sizes, as predicted, {ledger.size_gpu_h:+.2f}" if abs(ledger.size_gpu_h) >= 0.005 else ""
    return (
        f"LEDGER: {100 * ledger.effective:.1f} % of {known_gpu_h:.2f} GPU hours in training; lost: {loss_text or 'nothing'}{size}. "
        f"Queue: {ledger.queue_gpu_h:.2f}; not known: {ledger.unknown_gpu_h:.2f}."
    )

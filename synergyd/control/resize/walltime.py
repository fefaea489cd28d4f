"""The time limit of a job over its incarnations, and when a checkpoint is due. Pure.

A requeue by Synergy is part of one run: the next incarnation gets what the one before left, so that the sum never
passes what was asked for at sbatch. A requeue by Slurm or its user begins the limit anew, as it does for a plain job.
Slurm's own times count: EndTime of the running incarnation, SubmitTime of the requeued job (the second in which Slurm
ended it).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from synergy_core.field_marks import renamed_from

LEAST_S = 60.0  # Slurm counts limits in minutes


@dataclass(frozen=True)
class TimeGrant:
    """The time limit of a requeued job's next incarnation.

    `asked_s`: of its sbatch line; `continuations`: number of times that it began again.
    """

    limit_s: float
    asked_s: float | None = None
    continuations: int = 0

    @property
    def minutes(self) -> int:
        """Return the limit as Slurm is told it: whole minutes, rounded down, at least one."""
        return max(1, int(self.limit_s // 60))


@dataclass(frozen=True, kw_only=True)
class Walltime:
    """The state of a job's time limit. Seconds; `ends_s` since 1970."""

    #: limit of its sbatch line; None: none, or not known yet
    asked_s: float | None = None
    #: when Slurm ends the running incarnation; None: it has no limit, or does not run
    ends_s: float | None = None
    #: seconds for which the job may run after a requeue by Synergy; None: as Slurm has it
    left_s: float | None = None
    #: times that its limit may begin anew (directive key walltime)
    continues: int = 0
    #: times that it has
    continuations: int = field(default=0, metadata=renamed_from("continued"))
    #: Slurm's limit for it is one that Synergy has lowered
    lowered: bool = False
    #: seconds of `left_s` that the running incarnation's limit, in whole minutes, leaves out: the next one gets them
    spare_s: float = 0.0

    @property
    def grant(self) -> TimeGrant | None:
        """Return what the next incarnation is given, or None if nothing is changed."""
        return None if self.left_s is None else TimeGrant(self.left_s, self.asked_s, self.continuations)

    @property
    def can_begin_anew(self) -> bool:
        """Return whether the job's limit begins anew when it ends."""
        return self.continuations < self.continues

    def with_limit_seen(self, limit_s: float | None) -> Walltime:
        """Return the walltime once Slurm has shown this limit: the first is the one of its sbatch line."""
        return self if self.asked_s is not None or limit_s is None else replace(self, asked_s=limit_s)

    def with_run(self, ends_s: float | None, limit_s: float | None) -> Walltime:
        """Return the walltime as Slurm shows the job running, until `ends_s` with the limit `limit_s`."""
        spare_s = self.spare_s
        if self.left_s is not None:
            cut_s = 0.0 if limit_s is None else self.left_s - limit_s
            spare_s = cut_s if 0.0 < cut_s < LEAST_S else 0.0  # else somebody has set another limit
        return replace(self, ends_s=ends_s, left_s=None, spare_s=spare_s)

    def after_requeue(self, ended_s: float, lead_s: float) -> Walltime:
        """Return the walltime after a requeue by Synergy that ended the job at `ended_s`.

        With little left, the limit begins anew if it may.
        """
        if self.ends_s is None:
            return self
        left_s = self.ends_s + self.spare_s - ended_s
        if self.can_begin_anew and self.asked_s is not None and left_s <= self.lead_s(lead_s):
            return replace(self, ends_s=None, left_s=self.asked_s, continuations=self.continuations + 1, lowered=False)
        return replace(self, ends_s=None, left_s=max(LEAST_S, left_s), lowered=True)

    def after_loss(self) -> Walltime:
        """Return the walltime after a requeue by Slurm or its user: its limit begins anew, as a plain job's does."""
        return replace(self, ends_s=None, left_s=self.asked_s if self.lowered else None, lowered=False, spare_s=0.0)

    def format_time_left(self) -> str:
        """Return what a requeued job has left, as the end of a sentence, or "" if nothing is changed."""
        if self.left_s is None:
            return ""
        minutes = f"{self.left_s / 60:.0f} min"
        if self.continuations and self.left_s == self.asked_s:
            return f"; its time limit of {minutes} begins anew, time {self.continuations} of {self.continues}"
        return f" with {minutes} of its time limit left"

    def lead_s(self, lead_s: float) -> float:
        """Return how many seconds before the end a checkpoint is asked for: `lead_s`, and at most half of the limit."""
        return lead_s if self.asked_s is None else min(lead_s, self.asked_s / 2)


UNTIMED = Walltime()


def checkpoint_due_s(walltime: Walltime, lead_s: float, cut_s: float | None = None) -> float | None:
    """Return when a running job's last checkpoint is to be asked for; None: never. `cut_s`: when its nodes are taken away."""
    ends = [s for s in (walltime.ends_s, cut_s) if s is not None]
    return min(ends) - walltime.lead_s(lead_s) if ends else None


def validate_walltime(walltime: Walltime) -> str:
    """Return what is inconsistent, or "" if nothing is."""
    if walltime.continuations < 0 or walltime.continues < 0:
        return "negative count"
    return ""

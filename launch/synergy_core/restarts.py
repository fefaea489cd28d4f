"""The cost of a restart to a job: as it was measured once, as it is believed, and the sum spent on restarts. Pure records.

A restart has three phases. checkpoint: training stands still until the state is written. requeue: from then until Slurm starts the job
again. start: from that until training is at its usual pace: the script's own preparations, loading, and what the first step takes
longer than a usual one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PHASES = ("checkpoint_s", "requeue_s", "start_s")


@dataclass(frozen=True, kw_only=True)
class RestartTimes:
    """One restart, or the first start of a job, as it was measured. Seconds; None: not measured."""

    job_id: int
    #: the incarnation that it began
    restarts: int
    checkpoint_s: float | None = None
    requeue_s: float | None = None
    start_s: float | None = None
    #: bytes of the checkpoint on each GPU that wrote a part of it; None: not told
    bytes_per_writer: float | None = None

    @property
    def is_first_start(self) -> bool:
        """Return whether this is a first start.

        A first start loads no checkpoint and may prepare what later ones find: it says less of the next.
        """
        return self.restarts == 0

    @property
    def total_s(self) -> float:
        """Return the seconds of all phases that were measured."""
        return sum(getattr(self, phase) or 0.0 for phase in PHASES)


@dataclass(frozen=True, kw_only=True)
class RestartCost:
    """The cost that the next restart of a job is believed to have."""

    mean_s: float
    #: one sigma
    spread_s: float = 0.0
    #: restarts of the job itself behind it
    own: int = 0
    #: the number of restarts measured on other jobs of its program
    others: int = 0
    #: the checkpoint's part of it
    checkpoint_s: float = 0.0
    checkpoint_spread_s: float = 0.0

    def format(self) -> str:
        """Return a text such as `41 s (measured, 3 restarts; +-12 s)`."""
        if self.own:
            source = f"measured, {self.own} restart{'s' * (self.own != 1)}"
        elif self.others:
            source = f"measured on {self.others} restart{'s' * (self.others != 1)} of its program"
        else:
            source = "expected"
        spread = f"; +-{self.spread_s:.0f} s" if self.spread_s else ""
        return f"{self.mean_s:.0f} s ({source}{spread})"


@dataclass(frozen=True, kw_only=True)
class RestartBudget:
    """A job's restarts as an epoch sees them."""

    cost: RestartCost
    #: cost of a change without a requeue; None where there is none, or where `cost` is already that
    live_cost: RestartCost | None = None
    #: spent in restarts that Synergy chose, the present one as far as it has come
    lost_s: float = 0.0
    #: since its first start; infinite where that is not known
    life_s: float = math.inf
    #: the most of its life that may be spent on restarts
    share: float = 1.0

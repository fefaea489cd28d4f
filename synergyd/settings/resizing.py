"""The admin's settings of how running jobs change: what a restart may cost, how many at once, what counts as hung."""

from __future__ import annotations

from dataclasses import dataclass, field

from synergy_core.exchange import KINDS

from synergyd.settings.types import COUNT, DAY_TIMES, FLAG, about, duration, number


@dataclass(frozen=True, kw_only=True)
class ResizingSettings:
    """The values; see `synergyd.settings.Settings`."""

    restart_cost_s: float = field(
        default=60.0,
        metadata=about(
            "RestartCost",
            duration(0, 86400, "0 to 1 day, such as 60s"),
            "The cost of a restart (checkpoint, requeue and start) until restarts of the job or its program have been "
            "measured. A resize must gain more than it costs. 0: restarts count as free, whatever they take.",
        ),
    )
    restart_share: float = field(
        default=0.1,
        metadata=about(
            "RestartShare",
            number(0, 1, "more than 0 to 1, such as 0.1", above=True),
            "The largest share of a job's life, from its first start to its end, that goes into restarts which Synergy "
            "chooses. A restart that costs at most this share of the time that it saves is allowed nevertheless, and so is "
            "one that saves more than it costs and brings a slower job back to the speed of its requested size, and one that "
            "gives GPUs beyond the requested size back to a waiting job in less time than that would wait otherwise. Restarts "
            "after a failure, by a user or by a time limit don't count. Policies other than synergy and exact restart jobs "
            "by rules of their own.",
        ),
    )
    live: bool = field(
        default=True,
        metadata=about(
            "Live",
            FLAG,
            "yes: a running job gets whole nodes, through a second allocation of its user's, and gives them back without a "
            "requeue, if its launchers, its script and slurm.conf (WaitTime) allow it; the node on which its script runs stays. "
            "no: each change of its nodes is a checkpoint, a requeue and a start.",
        ),
    )
    checkpoint_timeout_s: float = field(
        default=300.0,
        metadata=about(
            "CheckpointTimeout",
            duration(1, 86400, "1 s to 1 day, such as 5m"),
            "The time that a job may take to write its checkpoint before a resize.",
        ),
    )
    restart_delay_s: float = field(
        default=2.0,
        metadata=about(
            "RestartDelay",
            duration(1, 300, "1 s to 5 minutes, such as 2s"),
            "The time from a job's end to its next start in a resize. Slurm itself waits two minutes after a requeue; it "
            "fails a job that starts again in the same second. Keep this above one second and above any jump of your "
            "controllers' clocks.",
        ),
    )
    park_s: float = field(
        default=900.0,
        metadata=about(
            "Park",
            duration(0, 604800, "0 to 7 days, such as 15m"),
            "If the daemon dies, a job waits for it at most this long and then runs as a plain Slurm job.",
        ),
    )
    max_resizes: int = field(
        default=0,
        metadata=about(
            "MaxResizes",
            COUNT,
            "The most running jobs that change size, plan or nodes at the same time. Changes that gain most begin first; "
            "the others wait, and so do starts that need their GPUs. GPUs that plain jobs wait for and jobs that a "
            "reservation cuts short do not wait, but count. 0: no bound.",
        ),
    )
    quiet_hours: tuple[tuple[int, int], ...] = field(
        default=(),
        metadata=about(
            "QuietHours",
            DAY_TIMES,
            "Times of day, by the daemon's local clock, in which a running job is resized, moved or stopped only if "
            "necessary: a reservation cuts it short, plain jobs wait for GPUs beyond its requested size, its plan has "
            "failed, or its time limit begins again. Waiting jobs start on free GPUs.",
            unset="none",
            example="08:00-18:00,22:30-06:00",
        ),
    )
    hang_timeout_s: float = field(
        default=0.0,
        metadata=about(
            "HangTimeout",
            duration(0, 604800, "0 (never) to 7 days, such as 30m"),
            "A run without a step for this long counts as hung, and is restarted from its last checkpoint, on other nodes "
            "if possible, at most three times a job. A run that has paused for longer before and continued (an evaluation), "
            "has long steps, or has made no step yet gets more time. Set it to more than your users' longest evaluation or "
            "save. 0: hung runs are only reported.",
        ),
    )
    idle_reclaim_s: float = field(
        default=0.0,
        metadata=about(
            "IdleReclaim",
            duration(0, 604800, "0 (never) to 7 days, such as 60m"),
            "A job that has used no CPU time and no GPU for this long, and made no step meanwhile, is restarted at its smallest size, "
            "after a notice to its owner; one that has made steps only if it has a checkpoint. 0: only the notice.",
        ),
    )
    drain_slow: bool = field(
        default=False,
        metadata=about(
            "DrainSlow",
            FLAG,
            "yes: a node where jobs of two users were slow or hung, or that Slurm has lost twice, within hours, is drained "
            "with a Reason that begins with synergy:. At most a tenth of the nodes (at least one) is drained at a time, and "
            "none within a day after it was resumed. no: jobs only use it last.",
        ),
    )

    # No line of slurm.conf sets these: tests, benchmarks and the simulator vary them.
    #: GiB/s that the checkpoints of changes that begin may add up to; 0 for no bound, MaxResizes is one
    max_checkpoint_gibps: float = 0.0
    #: changes of one running job that may begin within 24 hours; 0 for no bound, RestartShare is one
    max_resizes_per_day: int = 0
    #: kinds of less communication that a job's comm= may take
    comm_options: tuple[str, ...] = KINDS

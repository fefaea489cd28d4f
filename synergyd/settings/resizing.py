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
            "The cost of a restart (checkpoint, requeue, start) before restarts of the job or its program have been measured. "
            "A resize must gain more than it costs. 0: restarts are free.",
        ),
    )
    restart_share: float = field(
        default=0.1,
        metadata=about(
            "RestartShare",
            number(0, 1, "more than 0 to 1, such as 0.1", above=True),
            "The largest share of a job's life, from its first start to its end, for restarts that Synergy chooses, but those that "
            "soon repay (docs/design/allocation.md has the exceptions). Restarts after a failure, by a user "
            "or by a time limit don't count. Policies other than synergy and exact have rules of their own.",
        ),
    )
    live: bool = field(
        default=True,
        metadata=about(
            "Live",
            FLAG,
            "yes: a running job gets whole nodes and gives them back without a requeue, if its launchers, its script and "
            "slurm.conf (WaitTime) allow it (docs/concepts/resize.md). no: each change of nodes is a checkpoint, a requeue "
            "and a start.",
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
            "The time from a job's end to its next start in a resize. Slurm itself waits two minutes after a requeue, and "
            "fails a job that starts again in the same second. Keep it above one second and above any jump of your "
            "controllers' clocks.",
        ),
    )
    park_s: float = field(
        default=900.0,
        metadata=about(
            "Park",
            duration(0, 604800, "0 to 7 days, such as 15m"),
            "How long a job waits for a dead daemon before it runs as a plain Slurm job.",
        ),
    )
    max_resizes: int = field(
        default=0,
        metadata=about(
            "MaxResizes",
            COUNT,
            "The most running jobs that change size, plan or nodes at the same time. The largest gains go first; the other "
            "changes, and starts that need their GPUs, wait. Changes for plain jobs that wait for GPUs or for a reservation "
            "do not wait, but count. 0: no bound.",
        ),
    )
    quiet_hours: tuple[tuple[int, int], ...] = field(
        default=(),
        metadata=about(
            "QuietHours",
            DAY_TIMES,
            "Times of day, by the daemon's local clock, in which a running job is resized, moved or stopped only if a "
            "reservation cuts it short, plain jobs wait for GPUs beyond its requested size, its plan has failed, or its time "
            "limit begins again. Waiting jobs start on free GPUs.",
            unset="none",
            example="08:00-18:00,22:30-06:00",
        ),
    )
    hang_timeout_s: float = field(
        default=0.0,
        metadata=about(
            "HangTimeout",
            duration(0, 604800, "0 (never) to 7 days, such as 30m"),
            "A run without a step for this long counts as hung and restarts from its last checkpoint, on other nodes if "
            "possible, at most three times a job. Runs with long pauses or steps get more time (docs/admin/bad-nodes.md), but "
            "set it above your users' longest evaluation or save. 0: hung runs are only reported.",
        ),
    )
    idle_reclaim_s: float = field(
        default=0.0,
        metadata=about(
            "IdleReclaim",
            duration(0, 604800, "0 (never) to 7 days, such as 60m"),
            "A job that has used no CPU time and no GPU and made no step for this long restarts at its smallest size, after a "
            "notice to its owner; one that has made steps, only if it has a checkpoint. 0: only the notice.",
        ),
    )
    drain_slow: bool = field(
        default=False,
        metadata=about(
            "DrainSlow",
            FLAG,
            "yes: a node where jobs of two users were slow or hung, or that Slurm has lost twice, within hours, is drained "
            "with a Reason that begins with synergy: (docs/admin/bad-nodes.md). no: jobs only use it last.",
        ),
    )

    # No line of slurm.conf sets these: tests, benchmarks and the simulator vary them.
    #: GiB/s that the checkpoints of changes that begin may add up to; 0 for no bound, MaxResizes is one
    max_checkpoint_gibps: float = 0.0
    #: changes of one running job that may begin within 24 hours; 0 for no bound, RestartShare is one
    max_resizes_per_day: int = 0
    #: kinds of less communication that a job's comm= may take
    comm_options: tuple[str, ...] = KINDS

"""The admin's settings of how running jobs change: what a restart may cost, how many at once, what counts as hung."""

from __future__ import annotations

from dataclasses import dataclass, field

from synergyd.exchange import KINDS
from synergyd.setting import about
from synergyd.setting_types import COUNT, DAY_TIMES, FLAG, duration, number, some_of


@dataclass(frozen=True, kw_only=True)
class ResizingSettings:
    """The values; see `synergyd.settings.Settings`."""

    restart_cost_s: float = field(
        default=60.0,
        metadata=about(
            "RestartCost",
            duration(0, 86400, "0 to 1 day, such as 60s"),
            "What a restart costs a job until its own restarts, and those of its program, have been measured: checkpoint, requeue "
            "and start. A resize must gain more than it costs. 0: restarts count as free, whatever they take.",
        ),
    )
    restart_share: float = field(
        default=0.1,
        metadata=about(
            "RestartShare",
            number(0, 1, "more than 0 to 1, such as 0.1", above=True),
            "The most of a job's life, from its first start to its end, that goes into restarts which Synergy chooses. One that is "
            "within this share of the time that it saves is not held back; nor is one that saves more than it costs, where it takes a "
            "slower job back to the speed of the size it asked for. Restarts after a failure, by a user or by a time limit "
            "don't count. Policies other than synergy and exact restart jobs by rules of their own.",
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
            "The time from a job's end to its next start in a resize. Slurm itself waits two minutes after a requeue; it fails "
            "a job that starts again in the same second. Leave this above one second and above what your controllers' clocks "
            "may jump by.",
        ),
    )
    park_s: float = field(
        default=900.0,
        metadata=about(
            "Park",
            duration(0, 604800, "0 to 7 days, such as 15m"),
            "The longest that a job waits for a daemon that died before it runs as a plain Slurm job.",
        ),
    )
    max_resizes: int = field(
        default=0,
        metadata=about(
            "MaxResizes",
            COUNT,
            "The most running jobs that are on their way to another size, plan or set of nodes at once. Changes that gain most "
            "begin first; the others wait, and so do starts that need their GPUs. GPUs that plain jobs wait for and jobs that a "
            "reservation cuts short do not wait, but count. 0: no bound.",
        ),
    )
    max_checkpoint_gibps: float = field(
        default=0.0,
        metadata=about(
            "MaxCheckpointGiBps",
            number(0.001, 100_000, "0 (no bound), or GiB/s, such as 20", or_zero=True),
            "What the file system takes of checkpoints, GiB/s: changes of running jobs begin as long as their expected rates add up "
            "to no more; the others wait as with MaxResizes. A job's rate is the size of its checkpoint (14 bytes a parameter of "
            "its model) over the time that its last one took. A job of which either is not known writes alone. 0: no bound.",
        ),
    )
    max_resizes_per_day: int = field(
        default=0,
        metadata=about(
            "MaxResizesPerDay",
            COUNT,
            "The most changes of one running job that Synergy begins within 24 hours, but for those that are needed (see "
            "QuietHours). 0: no bound.",
        ),
    )
    quiet_hours: tuple[tuple[int, int], ...] = field(
        default=(),
        metadata=about(
            "QuietHours",
            DAY_TIMES,
            "Times of day, by the daemon's local clock, in which no running job is resized, moved or stopped but by need: a "
            "reservation cuts it short, plain jobs wait for GPUs beyond those that it asked for, its plan has failed, or its time "
            "limit begins anew. Waiting jobs start on what is free.",
            unset="none",
            example="08:00-18:00,22:30-06:00",
        ),
    )
    adapt_batch: float = field(
        default=4.0,
        metadata=about(
            "AdaptBatch",
            number(1, 1024, "0 (never), or a factor of 1 to 1024, such as 4", or_zero=True),
            "The largest batch that Synergy chooses for a job with adapt=yes and no range of its own, in times the batch that its "
            "script names. Jobs without adapt=yes keep theirs. 0: adapt=yes changes nothing.",
        ),
    )
    comm_options: tuple[str, ...] = field(
        default=KINDS,
        metadata=about(
            "CommOptions",
            some_of(KINDS),
            "Kinds of less communication between replicas that Synergy may take for jobs whose directive allows them (comm=). Jobs "
            "that allow none exchange every gradient in every step, whatever this says. exact: none for any job.",
        ),
    )
    hang_timeout_s: float = field(
        default=0.0,
        metadata=about(
            "HangTimeout",
            duration(0, 604800, "0 (never) to 7 days, such as 30m"),
            "A run without a step for so long counts as hung. It is started again from its last checkpoint, elsewhere if that "
            "can be, at most three times a job. It is given longer where it has paused for longer before and went on (an "
            "evaluation), where its steps are long, and before its first step. Set it to more than the longest evaluation or "
            "save of your users. 0: a run is never started again for that, only told.",
        ),
    )
    idle_reclaim_s: float = field(
        default=0.0,
        metadata=about(
            "IdleReclaim",
            duration(0, 604800, "0 (never) to 7 days, such as 60m"),
            "A job that has used no CPU time and no GPU for so long, and has made no step since its start, is restarted on the "
            "smallest size that it can have. Its owner is told before. 0: it is only told.",
        ),
    )
    drain_slow: bool = field(
        default=False,
        metadata=about(
            "DrainSlow",
            FLAG,
            "yes: a node where jobs of two users were slow or hung, or that Slurm has lost twice, within hours, is drained with a "
            "Reason that begins with synergy:. At most a tenth of the nodes is so at a time, one at least, and none "
            "within a day after somebody has taken it back. no: it is only taken last.",
        ),
    )

"""The admin's settings, each written once: its Key in slurm.conf, type, default and text.

slurm.conf's `#SYNERGY Key=Value` lines fill them (synergyd/slurm/conf.py). slurm_plugins/synergy.conf and the reference
page are printed from this table (synergyd/settings_text.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from synergyd.notice import EVENTS
from synergyd.setting_types import (
    COUNT,
    DATABASE,
    DAY_TIMES,
    FLAG,
    GPUS,
    HOST,
    LINK,
    NAMES,
    PLACEMENT,
    PORT,
    RULE,
    SPARES,
    UPLINK,
    WEB,
    ValueType,
    by_name,
    duration,
    figures,
    number,
    one_of,
    path,
    some_of,
)

OBJECTIVES = ("power", "sia", "pollux", "max-min")  # what they are: scheduler/problem/priorities.py
POLICIES = (
    "synergy",
    "exact",
    "fifo",
    "first-fit",
    "backfill",
    "srtf",
    "srsf",
    "tiresias",
    "optimus",
    "pollux",
    "sia",
    "crius",
)
#: those that may stop any running job, by their papers' rules
STOPPING_POLICIES = ("srtf", "srsf", "tiresias", "pollux", "sia")
#: what a GpuType line may say of a GPU type
FIGURES = ("peak_tflops", "memory_gib", "bandwidth_gbs", "intra_gbs", "inter_gbs")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One Key of slurm.conf."""

    #: as slurm.conf spells it
    key: str
    #: its field of Settings
    field: str = ""
    type: ValueType
    #: what it does, a paragraph
    text: str
    #: where the default is to set nothing: what then holds
    unset: str = ""
    #: where the default is to set nothing: a value
    example: str = ""


def _about(key: str, value_type: ValueType, text: str, *, unset: str = "", example: str = "") -> dict[str, Setting]:
    """A field's metadata."""
    return {"setting": Setting(key=key, type=value_type, text=text, unset=unset, example=example)}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The values. A field is its Key in snake case, durations with `_s`: `RestartCost` is `restart_cost_s`."""

    database: str = field(
        default="",
        metadata=_about(
            "Database",
            DATABASE,
            "Where profiles and decisions are stored: an SQLAlchemy URL. Keep the password out of it: put it into a .pgpass "
            "file, or name such a file as PGPASSFILE in /etc/default/synergyd.",
            unset="an SQLite file, synergy.db in StateDir",
            example="sqlite:////var/lib/synergy/synergy.db",
        ),
    )
    epoch_s: float = field(
        default=60.0,
        metadata=_about(
            "Epoch",
            duration(1, 86400, "1 s to 1 day, such as 60, 60s or 5m"),
            "The time between two decisions of the daemon.",
        ),
    )
    partitions: tuple[str, ...] = field(
        default=(),
        metadata=_about(
            "Partitions", NAMES, "The partitions that Synergy looks at.", unset="all", example="gpu,gpu-long"
        ),
    )
    policy: str = field(
        default="synergy",
        metadata=_about(
            "Policy",
            one_of(POLICIES, f"one of: {', '.join(POLICIES)}"),
            "How GPUs are divided. synergy gives the highest total utility. exact solves the same problem as an integer program "
            "and is slower. The others are there to be compared with. With Preemption=yes, synergy and exact stop a running "
            f"job where others gain more; {', '.join(STOPPING_POLICIES[:-1])} and {STOPPING_POLICIES[-1]} stop running jobs by "
            "the rules of their papers; the rest stop none. With Preemption=no no policy stops a running "
            "job.",
        ),
    )
    fairness: float = field(
        default=0.0,
        metadata=_about(
            "Fairness",
            number(-100, 1, "a number from -100 (max-min) over 0 (Nash) to 1 (sum)"),
            "The exponent p of a job's utility ((relative goodput)^p - 1)/p. 0 is its logarithm, proportional fairness "
            "(Nash). At 1 only the sum of goodput counts. Far below 0 the worst-off job counts (max-min).",
        ),
    )
    objective: str = field(
        default="power",
        metadata=_about(
            "Objective",
            one_of(OBJECTIVES, "power, sia, pollux or max-min"),
            "What is added up over all jobs: power (with the exponent that Fairness sets), sia (SOSP'23), pollux (OSDI'21) "
            "or max-min.",
        ),
    )
    fairness_bound: float = field(
        default=0.0,
        metadata=_about(
            "FairnessBound",
            number(1, 1000, "0 (none), or 1 and more, such as 1.5", or_zero=True),
            "A job's finish-time fairness is its time to finish over that with an equal share of the GPUs. A job beyond this "
            "bound gets an equal share before others gain anything. 0: no bound.",
        ),
    )
    short_first: float = field(
        default=0.5,
        metadata=_about(
            "ShortFirst",
            number(0, 2, "a number from 0 (length does not count) to 2, such as 0.5"),
            "Short jobs weigh more: a job's weight is multiplied by (median time left / its own time left) to this power, at "
            "most by three and at least by a third. A job whose reports do not say how far it is counts as typical of those "
            "that have ended.",
        ),
    )
    deadlines: bool = field(
        default=True,
        metadata=_about(
            "Deadlines",
            FLAG,
            "yes: a job that can still meet its deadline= gets what it needs for it before others gain anything.",
        ),
    )
    deadline_share: float = field(
        default=1.0,
        metadata=_about(
            "DeadlineShare",
            number(1, 1024, "0 (no bound), or 1 and more, such as 2", or_zero=True),
            "The most that a deadline= gets a job first: the largest of its sizes within so many equal shares of the GPUs. An "
            "equal share is all GPUs over all jobs. A deadline costs its user nothing to write, so at 1 it takes no share "
            "of others. 0: no bound.",
        ),
    )
    max_weight: float = field(
        default=1.0,
        metadata=_about(
            "MaxWeight",
            number(0.001, 1000, "a number from 0.001 to 1000, such as 4"),
            "The most that a job's weight= counts as. The weights of a user's jobs are also divided by their mean where it is "
            "above 1: a higher weight= of one job lowers the others of the same user, not those of other users.",
        ),
    )
    priority_weight: bool = field(
        default=False,
        metadata=_about(
            "PriorityWeight", FLAG, "yes: a job's weight= is multiplied by its Slurm priority over the median one."
        ),
    )
    fair_share_weight: bool = field(
        default=False,
        metadata=_about(
            "FairShareWeight",
            FLAG,
            "yes: a job's weight= is multiplied by Slurm's fair-share factor of its association over the median one, at most by "
            "ten and at least by a tenth. It needs slurmdbd and PriorityType=priority/multifactor.",
        ),
    )
    qos_weights: dict[str, float] = field(
        default_factory=dict,
        metadata=_about(
            "QosWeights",
            by_name(number(0.001, 1000, ""), "QOS:WEIGHT with commas between, such as high:4"),
            "A job's weight= is multiplied by the number of its QOS. A QOS that is not named has 1.",
            unset="none",
            example="high:4,low:0.5",
        ),
    )
    account_limits: dict[str, int] = field(
        default_factory=dict,
        metadata=_about(
            "AccountLimits",
            by_name(GPUS, "ACCOUNT:GPUS with commas between, such as physics:64"),
            "The most GPUs of all Synergy jobs of a Slurm account together.",
            unset="none",
            example="physics:64,chemistry:32",
        ),
    )
    partition_limits: dict[str, int] = field(
        default_factory=dict,
        metadata=_about(
            "PartitionLimits",
            by_name(GPUS, "PARTITION:GPUS with commas between"),
            "The most GPUs of all Synergy jobs of a partition together.",
            unset="none",
            example="debug:8",
        ),
    )
    spare_nodes: dict[str, float] = field(
        default_factory=dict,
        metadata=_about(
            "SpareNodes",
            by_name(SPARES, "PARTITION:NODES or PARTITION:SHARE% with commas between"),
            "So many nodes of a partition are idle, or lent to jobs that can shrink: a job waits where its start would leave "
            "fewer. A job that Slurm requeues since it has lost a node gets the size back that it had, within seconds.",
            unset="none",
            example="gpu:1,large:5%",
        ),
    )
    qos_spare_nodes: dict[str, float] = field(
        default_factory=dict,
        metadata=_about(
            "QosSpareNodes",
            by_name(SPARES, "QOS:NODES or QOS:SHARE% with commas between"),
            "The same of all nodes, for the jobs of a QOS that lose a node.",
            unset="none",
            example="high:2",
        ),
    )
    restart_cost_s: float = field(
        default=60.0,
        metadata=_about(
            "RestartCost",
            duration(0, 86400, "0 to 1 day, such as 60s"),
            "What a restart costs a job until its own restarts, and those of its program, have been measured: checkpoint, requeue "
            "and start. A resize must gain more than it costs. 0: restarts count as free, whatever they take.",
        ),
    )
    restart_share: float = field(
        default=0.1,
        metadata=_about(
            "RestartShare",
            number(0, 1, "more than 0 to 1, such as 0.1", above=True),
            "The most of a job's life, from its first start to its end, that goes into restarts which Synergy chooses. Restarts "
            "after a failure, by a user or by a time limit don't count. Policies other than synergy and exact restart jobs by rules "
            "of their own.",
        ),
    )
    preemption: bool = field(
        default=True,
        metadata=_about(
            "Preemption",
            FLAG,
            "yes: a running job that can't be shrunk any further may be stopped at a checkpoint and wait, where others gain "
            "more from its GPUs than it loses and a restart costs; not within five times what its restart costs of its start. no: a "
            "running job always keeps some GPUs. Policies other than synergy and exact stop jobs by rules of their own, or "
            "never: see Policy.",
        ),
    )
    hang_timeout_s: float = field(
        default=0.0,
        metadata=_about(
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
        metadata=_about(
            "IdleReclaim",
            duration(0, 604800, "0 (never) to 7 days, such as 60m"),
            "A job that has used no CPU time and no GPU for so long, and has made no step since its start, is restarted on the "
            "smallest size that it can have. Its owner is told before. 0: it is only told.",
        ),
    )
    drain_slow: bool = field(
        default=False,
        metadata=_about(
            "DrainSlow",
            FLAG,
            "yes: a node where jobs of two users were slow or hung, or that Slurm has lost twice, within hours, is drained with a "
            "Reason that begins with synergy:. At most a tenth of the nodes is so at a time, one at least, and none "
            "within a day after somebody has taken it back. no: it is only taken last.",
        ),
    )
    dry_run: bool = field(
        default=False, metadata=_about("DryRun", FLAG, "yes: decide, store and explain, but change no job.")
    )
    profile: Path | None = field(
        default=None,
        metadata=_about(
            "Profile",
            path("an absolute path of what `synergyctl profiles fit` wrote"),
            "The file that `synergyctl profiles fit` wrote from this cluster's measured rows. It comes over the built-in GPU "
            "figures.",
            unset="none",
            example="/etc/slurm/synergy/cluster.profile",
        ),
    )
    state_dir: Path = field(
        default=Path("/var/lib/synergy"),
        metadata=_about(
            "StateDir",
            path("an absolute path, such as /var/lib/synergy"),
            "The daemon's folder: heartbeat, plans of jobs, the SQLite file. The job_submit plugin reads the heartbeat on the "
            "slurmctld host. Jobs read their plans here where compute nodes see the folder, and from AdminComment elsewhere.",
        ),
    )
    metrics_port: int = field(
        default=0, metadata=_about("MetricsPort", PORT, "The port where Prometheus reads metrics.")
    )
    report_port: int = field(
        default=7321,
        metadata=_about(
            "ReportPort",
            PORT,
            "The port that jobs report to. 0: no job can acknowledge a checkpoint, so no job is resized.",
        ),
    )
    report_host: str = field(
        default="",
        metadata=_about(
            "ReportHost",
            HOST,
            "The name or address under which jobs reach ReportPort and LinkArbiterPort.",
            unset="this host",
            example="slurmctl.example.org",
        ),
    )
    rest_port: int = field(
        default=0,
        metadata=_about(
            "RestPort",
            PORT,
            "The port of the REST service (synergyrestd). synergyctl asks it from login nodes, at ReportHost or else at "
            "SlurmctldHost. 0: it serves on its Unix socket in StateDir alone.",
        ),
    )
    link_arbiter_port: int = field(
        default=0,
        metadata=_about(
            "LinkArbiterPort",
            PORT,
            "The port where jobs that span nodes ask before each gradient all-reduce. Those that share a node's link then take "
            "turns where that is faster. 0: no job asks.",
        ),
    )
    link_arbiter_rule: str = field(  # the rules: links/disciplines.py
        default="ada-srsf",
        metadata=_about(
            "LinkArbiterRule",
            RULE,
            "Who takes turns on a shared link. srsf-N: at most N jobs on a link at once. ada-srsf: a second job joins only with "
            "a message that is short against what is left of the first one's. -time behind it: the shortest remaining time "
            "comes first, instead of the least remaining GPU time. -reserve behind it: a job that must wait has its links "
            "reserved.",
        ),
    )
    link_arbiter_wait_s: float = field(
        default=0.5,
        metadata=_about(
            "LinkArbiterWait",
            duration(0.001, 10, "0.001 s to 10 s, such as 0.5s"),
            "The longest that an all-reduce waits for its turn.",
        ),
    )
    checkpoint_timeout_s: float = field(
        default=300.0,
        metadata=_about(
            "CheckpointTimeout",
            duration(1, 86400, "1 s to 1 day, such as 5m"),
            "The time that a job may take to write its checkpoint before a resize.",
        ),
    )
    restart_delay_s: float = field(
        default=2.0,
        metadata=_about(
            "RestartDelay",
            duration(1, 300, "1 s to 5 minutes, such as 2s"),
            "The time from a job's end to its next start in a resize. Slurm itself waits two minutes after a requeue; it fails "
            "a job that starts again in the same second. Leave this above one second and above what your controllers' clocks "
            "may jump by.",
        ),
    )
    park_s: float = field(
        default=900.0,
        metadata=_about(
            "Park",
            duration(0, 604800, "0 to 7 days, such as 15m"),
            "The longest that a job waits for a daemon that died before it runs as a plain Slurm job.",
        ),
    )
    max_growth: float = field(
        default=0.0,
        metadata=_about(
            "MaxGrowth",
            number(1, 1024, "0 (no bound), or more than 1, such as 2", or_zero=True, above=True),
            "The most by which a job may grow in one epoch: 2 is doubled, 0 is no bound.",
        ),
    )
    max_resizes: int = field(
        default=0,
        metadata=_about(
            "MaxResizes",
            COUNT,
            "The most running jobs that are on their way to another size, plan or set of nodes at once. Changes that gain most "
            "begin first; the others wait, and so do starts that need their GPUs. GPUs that plain jobs wait for and jobs that a "
            "reservation cuts short do not wait, but count. 0: no bound.",
        ),
    )
    max_checkpoint_gibps: float = field(
        default=0.0,
        metadata=_about(
            "MaxCheckpointGiBps",
            number(0.001, 100_000, "0 (no bound), or GiB/s, such as 20", or_zero=True),
            "What the file system takes of checkpoints, GiB/s: changes of running jobs begin as long as their expected rates add up "
            "to no more; the others wait as with MaxResizes. A job's rate is the size of its checkpoint (14 bytes a parameter of "
            "its model) over the time that its last one took. A job of which either is not known writes alone. 0: no bound.",
        ),
    )
    max_resizes_per_day: int = field(
        default=0,
        metadata=_about(
            "MaxResizesPerDay",
            COUNT,
            "The most changes of one running job that Synergy begins within 24 hours, but for those that are needed (see "
            "QuietHours). 0: no bound.",
        ),
    )
    quiet_hours: tuple[tuple[int, int], ...] = field(
        default=(),
        metadata=_about(
            "QuietHours",
            DAY_TIMES,
            "Times of day, by the daemon's local clock, in which no running job is resized, moved or stopped but by need: a "
            "reservation cuts it short, plain jobs wait for GPUs beyond those that it asked for, its plan has failed, or its time "
            "limit begins anew. Waiting jobs start on what is free.",
            unset="none",
            example="08:00-18:00,22:30-06:00",
        ),
    )
    placement: str = field(  # the rules: scheduler/layout.py
        default="pack",
        metadata=_about(
            "Placement",
            PLACEMENT,
            "Which nodes jobs get that start or change. pack: the fullest that fit, inside a leaf switch where they can. lwf-N: a job "
            "of more than N GPUs gets the nodes with the least work left to do, smaller ones the fullest that fit. quiet: those "
            "where shared links are expected to cost least.",
        ),
    )
    link_aware: bool = field(
        default=False,
        metadata=_about(
            "LinkAware",
            FLAG,
            "yes: the links that jobs share count in where jobs are placed and how many GPUs they get.",
        ),
    )
    node_link: str = field(
        default="10gbe",
        metadata=_about("NodeLink", LINK, "The network link of each node, for LinkAware and the link arbiter."),
    )
    leaf_uplink: str = field(
        default="",
        metadata=_about(
            "LeafUplink",
            UPLINK,
            "The link of a leaf switch to the other switches, for LinkAware. none: it is never the bottleneck.",
        ),
    )
    one_multi_node_job_per_node: bool = field(
        default=False,
        metadata=_about(
            "OneMultiNodeJobPerNode",
            FLAG,
            "yes: at most one job that spans nodes on each node, so that no two share its network.",
        ),
    )
    keep_usage_s: float = field(
        default=400 * 86400.0,
        metadata=_about(
            "KeepUsage",
            duration(86400, 36500 * 86400, "1 day or more, such as 400d"),
            "For how long the GPU hours of jobs are kept for `synergyctl report`: a row a job, restart and day.",
        ),
    )
    notice_url: str = field(
        default="",
        metadata=_about(
            "NoticeUrl",
            WEB,
            "Notices of all jobs are posted there as JSON, signed with NoticeSecretFile. Redirects are not followed.",
            unset="no webhook",
            example="https://chat.example.org/hooks/synergy",
        ),
    )
    notice_secret_file: Path | None = field(
        default=None,
        metadata=_about(
            "NoticeSecretFile",
            path("an absolute path of a file with 16 bytes or more that only its owner can read"),
            "The key of the signature of what is posted to NoticeUrl, which needs one. White space at its end does not count.",
            unset="none",
            example="/etc/synergy/notice.key",
        ),
    )
    notice_events: tuple[str, ...] = field(
        default=EVENTS,
        metadata=_about(
            "NoticeEvents",
            some_of(EVENTS),
            "What is posted to NoticeUrl: resize, a job runs on another size; hold, it was stopped or its start failed for good; "
            "ban, a plan failed and is not taken again; deadline, it can't be met.",
        ),
    )
    mail_prog: Path | None = field(
        default=None,
        metadata=_about(
            "MailProg",
            path("an absolute path of a program, such as /usr/bin/mail"),
            "Sends notices to owners who ask for them by notify= or --mail-type, called as Slurm calls its MailProg: "
            "-s SUBJECT ADDRESS, with the text on its standard input.",
            unset="no mail",
            example="/usr/bin/mail",
        ),
    )
    gpu_figures: dict[str, dict[str, float]] = field(
        default_factory=dict,
        metadata=_about(
            "GpuType",
            figures(f"the type's name, then some of {', '.join(FIGURES)}, each above 0 and at most 1000000"),
            "Figures of a GPU type, named as in Gres=gpu:TYPE, on a line of its own for each type. They come over the built-in "
            "figures and over those of Profile. peak_tflops: dense half-precision TFLOP/s. memory_gib: device memory, GiB. "
            "bandwidth_gbs: device memory, GB/s. intra_gbs: GB/s to another GPU of the node, one direction. inter_gbs: a GPU's "
            "share of the node's network, GB/s, one direction.",
            unset="the built-in figures",
            example="a100 peak_tflops=312 memory_gib=80 bandwidth_gbs=2000 intra_gbs=300 inter_gbs=25",
        ),
    )

    def rest_socket(self) -> Path:
        """The Unix socket of the REST service."""
        return self.state_dir / "rest.sock"

    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.state_dir / 'synergy.db'}"


def _entry(settings_field: Any) -> Setting:
    entry: Setting = settings_field.metadata["setting"]
    return replace(entry, field=settings_field.name)


#: all Keys, in the order of the documentation
TABLE: tuple[Setting, ...] = tuple(_entry(each) for each in fields(Settings))
#: those of one value, and GpuType, whose line holds several
SETTINGS, GPU_TYPE = TABLE[:-1], TABLE[-1]

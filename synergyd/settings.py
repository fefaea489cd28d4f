"""The admin's settings, typed, with defaults. slurm.conf's `#SYNERGY Key=Value` lines fill them (synergyd/slurm/conf.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

OBJECTIVES = ("power", "sia", "pollux", "max-min")  # what they are: scheduler/claims.py
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
LINKS = ("1gbe", "10gbe", "25gbe", "100gbe", "ib-edr", "ib-hdr", "ib-ndr")  # their figures: scheduler/links.py


@dataclass(frozen=True)
class Settings:
    """Each field is one `Key` of slurm.conf, in snake case: `RestartCost` is `restart_cost_s`, `DryRun` is `dry_run`."""

    database: str = ""  # SQLAlchemy URL; empty: SQLite in state_dir
    epoch_s: float = 60.0
    partitions: tuple[str, ...] = ()  # empty: all
    policy: str = "synergy"  # one of POLICIES
    fairness: float = 0.0  # exponent p of the utility ((goodput ratio)^p - 1)/p; 0 is log (Nash), towards -inf max-min
    objective: str = "power"  # one of OBJECTIVES; power is the one that takes the exponent above
    fairness_bound: float = 0.0  # finish-time fairness beyond which a job gets an equal share first; 0: none
    short_first: float = 0.5  # exponent of median time left / own time left in a job's weight; 0: length does not count
    deadlines: bool = True  # a job that can still meet its deadline gets what it needs first
    priority_weight: bool = False  # Slurm's priority over the median multiplies a job's weight
    qos_weights: dict[str, float] = field(default_factory=dict)
    account_limits: dict[str, int] = field(default_factory=dict)  # GPUs of all Synergy jobs of a Slurm account
    partition_limits: dict[str, int] = field(default_factory=dict)
    restart_cost_s: float = 60.0
    preemption: bool = True  # a running job may be made to wait for others that gain more; False: it keeps some GPUs
    dry_run: bool = False
    profile: Path | None = None  # measured rows' fit (`synergyctl profiles fit`) over the built-in GPU figures
    state_dir: Path = Path("/var/lib/synergy")
    metrics_port: int = 0  # 0: off
    report_port: int = 7321  # 0: off, and then no job is ever resized
    report_host: str = ""  # what jobs connect to; empty: this host's name
    link_arbiter_port: int = 0  # 0: off; else jobs ask here before each all-reduce between nodes
    link_arbiter_rule: str = "ada-srsf"  # of scheduler/adadual.py
    link_arbiter_wait_s: float = 0.5  # the longest that an all-reduce waits for its turn
    checkpoint_timeout_s: float = 300.0
    park_s: float = 900.0  # longest a job waits for a daemon that died before it runs as a plain Slurm job
    restart_delay_s: float = 2.0  # from a job's end to its next start; Slurm fails a job that starts in the same second
    max_growth: float = 0.0  # 0: no bound; 2: at most doubled in an epoch
    link_aware: bool = False  # placement and sizes account for links that jobs share
    node_link: str = "10gbe"  # a node's: one of LINKS, `Nx` before it for N together
    leaf_uplink: str = ""  # a leaf switch's, likewise; empty: never the bottleneck
    one_multi_node_job_per_node: bool = False
    # GPU type -> peak_tflops, memory_gib, bandwidth_gbs, intra_gbs, inter_gbs: they override the built-in figures
    gpu_figures: dict[str, dict[str, float]] = field(default_factory=dict)

    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.state_dir / 'synergy.db'}"

"""The admin's settings of what jobs get: policy, weights, limits, placement, links."""

from __future__ import annotations

from dataclasses import dataclass, field

from synergyd.setting import about
from synergyd.setting_types import (
    FLAG,
    GPUS,
    LINK,
    PLACEMENT,
    PORT,
    RULE,
    SPARES,
    UPLINK,
    by_name,
    duration,
    number,
    one_of,
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
    "dally",
)
#: those that may stop any running job, by their papers' rules
STOPPING_POLICIES = ("srtf", "srsf", "tiresias", "pollux", "sia", "dally")


@dataclass(frozen=True, kw_only=True)
class AllocationSettings:
    """The values; see `synergyd.settings.Settings`."""

    policy: str = field(
        default="synergy",
        metadata=about(
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
        metadata=about(
            "Fairness",
            number(-100, 1, "a number from -100 (max-min) over 0 (Nash) to 1 (sum)"),
            "The exponent p of a job's utility ((relative goodput)^p - 1)/p. 0 is its logarithm, proportional fairness "
            "(Nash). At 1 only the sum of goodput counts. Far below 0 the worst-off job counts (max-min).",
        ),
    )
    objective: str = field(
        default="power",
        metadata=about(
            "Objective",
            one_of(OBJECTIVES, "power, sia, pollux or max-min"),
            "What is added up over all jobs: power (with the exponent that Fairness sets), sia (SOSP'23), pollux (OSDI'21) "
            "or max-min.",
        ),
    )
    fairness_bound: float = field(
        default=2.0,
        metadata=about(
            "FairnessBound",
            number(1, 1000, "0 (none), or 1 and more, such as 1.5", or_zero=True),
            "A job's finish-time fairness is its time to finish over that with an equal share of the GPUs. A waiting job that would "
            "be beyond this bound starts before others gain anything: others shrink for it or, with Preemption=yes, are stopped, and "
            "where that is not enough nodes are kept for it. A running job that would be beyond it even on an equal share from now "
            "on gets that before others gain anything. 0: no bound.",
        ),
    )
    short_first: float = field(
        default=0.5,
        metadata=about(
            "ShortFirst",
            number(0, 2, "a number from 0 (length does not count) to 2, such as 0.5"),
            "Short jobs weigh more: a job's weight is multiplied by (median time left / its own time left) to this power, at "
            "most by three and at least by a third. A job whose reports do not say how far it is counts by what like jobs have "
            "taken (Gittins' index); until one of these has ended, as typical of those that have.",
        ),
    )
    deadlines: bool = field(
        default=True,
        metadata=about(
            "Deadlines",
            FLAG,
            "yes: a job that can still meet its deadline= gets what it needs for it before others gain anything.",
        ),
    )
    deadline_share: float = field(
        default=1.0,
        metadata=about(
            "DeadlineShare",
            number(1, 1024, "0 (no bound), or 1 and more, such as 2", or_zero=True),
            "The most that a deadline= gets a job first: the largest of its sizes within so many equal shares of the GPUs. An "
            "equal share is all GPUs over the users with jobs, and a user's over that user's jobs. A deadline costs its user "
            "nothing to write, so at 1 it takes no share of others. 0: no bound.",
        ),
    )
    max_weight: float = field(
        default=1.0,
        metadata=about(
            "MaxWeight",
            number(0.001, 1000, "a number from 0.001 to 1000, such as 4"),
            "The most that a job's weight= counts as. The weights of a user's jobs are also divided by their mean where it is "
            "above 1: a higher weight= of one job lowers the others of the same user, not those of other users.",
        ),
    )
    priority_weight: bool = field(
        default=False,
        metadata=about(
            "PriorityWeight", FLAG, "yes: a job's weight= is multiplied by its Slurm priority over the median one."
        ),
    )
    fair_share_weight: bool = field(
        default=False,
        metadata=about(
            "FairShareWeight",
            FLAG,
            "yes: a job's weight= is multiplied by Slurm's fair-share factor of its association over the median one, at most by "
            "ten and at least by a tenth. It needs slurmdbd and PriorityType=priority/multifactor.",
        ),
    )
    qos_weights: dict[str, float] = field(
        default_factory=dict,
        metadata=about(
            "QosWeights",
            by_name(number(0.001, 1000, ""), "QOS:WEIGHT with commas between, such as high:4"),
            "A job's weight= is multiplied by the number of its QOS. A QOS that is not named has 1.",
            unset="none",
            example="high:4,low:0.5",
        ),
    )
    account_limits: dict[str, int] = field(
        default_factory=dict,
        metadata=about(
            "AccountLimits",
            by_name(GPUS, "ACCOUNT:GPUS with commas between, such as physics:64"),
            "The most GPUs of all Synergy jobs of a Slurm account together.",
            unset="none",
            example="physics:64,chemistry:32",
        ),
    )
    partition_limits: dict[str, int] = field(
        default_factory=dict,
        metadata=about(
            "PartitionLimits",
            by_name(GPUS, "PARTITION:GPUS with commas between"),
            "The most GPUs of all Synergy jobs of a partition together.",
            unset="none",
            example="debug:8",
        ),
    )
    spare_nodes: dict[str, float] = field(
        default_factory=dict,
        metadata=about(
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
        metadata=about(
            "QosSpareNodes",
            by_name(SPARES, "QOS:NODES or QOS:SHARE% with commas between"),
            "The same of all nodes, for the jobs of a QOS that lose a node.",
            unset="none",
            example="high:2",
        ),
    )
    preemption: bool = field(
        default=True,
        metadata=about(
            "Preemption",
            FLAG,
            "yes: a running job that can't be shrunk any further may be stopped at a checkpoint and wait, where others gain "
            "more from its GPUs than it loses and a restart costs; not within five times what its restart costs of its start. no: a "
            "running job always keeps some GPUs. Policies other than synergy and exact stop jobs by rules of their own, or "
            "never: see Policy.",
        ),
    )
    max_growth: float = field(
        default=0.0,
        metadata=about(
            "MaxGrowth",
            number(1, 1024, "0 (no bound), or more than 1, such as 2", or_zero=True, above=True),
            "The most by which a job may grow in one epoch: 2 is doubled, 0 is no bound.",
        ),
    )
    first_start: float = field(
        default=4.0,
        metadata=about(
            "FirstStart",
            number(1, 1024, "0 (no bound), or 1 and more, such as 4", or_zero=True),
            "The most times the GPUs asked for that a job starts on whose speed, or that of its like, nobody has measured: 0 is no bound. "
            "Jobs with a deadline and the peers' policies are free of it.",
        ),
    )
    placement: str = field(  # the rules: scheduler/layout.py
        default="pack",
        metadata=about(
            "Placement",
            PLACEMENT,
            "Which nodes jobs get that start or change. pack: the fullest that fit, inside a leaf switch where they can. lwf-N: a job "
            "of more than N GPUs gets the nodes with the least work left to do, smaller ones the fullest that fit. quiet: those "
            "where shared links are expected to cost least. dally: as pack, and with Policy synergy or exact a job that would start across "
            "leaf switches waits a while for nodes of one, no longer than that would cost it. It needs LeafUplink.",
        ),
    )
    link_aware: bool = field(
        default=False,
        metadata=about(
            "LinkAware",
            FLAG,
            "yes: the links that jobs share count in where jobs are placed and how many GPUs they get.",
        ),
    )
    node_link: str = field(
        default="10gbe",
        metadata=about(
            "NodeLink",
            LINK,
            "The network link of each node, for LinkAware and the link arbiter. What sharing it costs is a guess scaled from 10 GbE, "
            "unless the figures that synergyctl profiles measure --pairs prints stand behind it, such as 10gbe@0.86+0.24.",
        ),
    )
    leaf_uplink: str = field(
        default="",
        metadata=about(
            "LeafUplink",
            UPLINK,
            "The link of a leaf switch to the other switches, for LinkAware. none: it is never the bottleneck.",
        ),
    )
    one_multi_node_job_per_node: bool = field(
        default=False,
        metadata=about(
            "OneMultiNodeJobPerNode",
            FLAG,
            "yes: at most one job that spans nodes on each node, so that no two share its network.",
        ),
    )
    link_arbiter_port: int = field(
        default=0,
        metadata=about(
            "LinkArbiterPort",
            PORT,
            "The port where jobs that span nodes ask before each gradient all-reduce. Those that share a node's link then take "
            "turns where that is faster. 0: no job asks.",
        ),
    )
    link_arbiter_rule: str = field(  # the rules: links/disciplines.py
        default="look-ahead",
        metadata=about(
            "LinkArbiterRule",
            RULE,
            "Who takes turns on a shared link. look-ahead: whichever of the rules below, or none, is forecast to end the jobs that share "
            "links soonest. srsf-N: at most N jobs on a link at once. ada-srsf: a second job joins only with "
            "a message that is short against what is left of the first one's. -time behind it: the shortest remaining time "
            "comes first, instead of the least remaining GPU time. -reserve behind it: a job that must wait has its links "
            "reserved.",
        ),
    )
    link_arbiter_wait_s: float = field(
        default=0.5,
        metadata=about(
            "LinkArbiterWait",
            duration(0.001, 10, "0.001 s to 10 s, such as 0.5s"),
            "The longest that an all-reduce waits for its turn.",
        ),
    )

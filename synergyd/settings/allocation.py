"""The admin's settings of what jobs get: policy, weights, limits, placement, links."""

from __future__ import annotations

from dataclasses import dataclass, field

from synergyd.settings.policies import POLICIES
from synergyd.settings.types import (
    FLAG,
    GPUS,
    LINK,
    PLACEMENT,
    PORT,
    RULE,
    SPARES,
    UPLINK,
    WEIGHT_SOURCE,
    about,
    by_name,
    number,
    one_of,
)

OBJECTIVES = ("power", "sia", "pollux", "max-min")  # what they are: scheduler/problem/priorities.py
QOS = "qos/"  # before the name of a QOS in SpareNodes


@dataclass(frozen=True, kw_only=True)
class AllocationSettings:
    """The values; see `synergyd.settings.Settings`."""

    policy: str = field(
        default="synergy",
        metadata=about(
            "Policy",
            one_of(tuple(POLICIES), f"one of: {', '.join(POLICIES)}"),
            "How GPUs are divided. synergy gives the highest total utility; exact solves the same problem more slowly, as an "
            "integer program. The others are for comparison (docs/design/add-a-policy.md says how to add one). With "
            "Preemption=no none stops a running job.",
        ),
    )
    fairness: float = field(
        default=0.0,
        metadata=about(
            "Fairness",
            number(-100, 1, "a number from -100 (max-min) over 0 (Nash) to 1 (sum)"),
            "The exponent p of a job's utility ((relative goodput)^p - 1)/p. 0 is the logarithm, proportional fairness "
            "(Nash). At 1 only the sum of goodput counts; far below 0 the worst-off job (max-min).",
        ),
    )
    fairness_bound: float = field(
        default=2.0,
        metadata=about(
            "FairnessBound",
            number(1, 1000, "0 (none), or 1 and more, such as 1.5", or_zero=True),
            "A bound on finish-time fairness: a job's time to finish relative to that with an equal share of the GPUs. A "
            "waiting job that would exceed it starts first, if necessary in place of others (with Preemption=yes) or on nodes "
            "kept for it. A running job that would exceed it even on an equal share from now on gets that share first "
            "(docs/concepts/fairness.md). 0: no bound.",
        ),
    )
    short_first: float = field(
        default=0.5,
        metadata=about(
            "ShortFirst",
            number(0, 2, "a number from 0 (length does not count) to 2, such as 0.5"),
            "Short jobs weigh more: a job's weight is multiplied by (median time left / its own time left) to this power, "
            "between a third and three. Unreported lengths are estimated (docs/concepts/fairness.md).",
        ),
    )
    deadline_share: float = field(
        default=1.0,
        metadata=about(
            "DeadlineShare",
            number(1, 1024, "0 (no bound), or 1 and more, such as 2", or_zero=True),
            "A job with deadline= gets, before others, at most its largest size within this many equal shares of the GPUs "
            "(docs/concepts/fairness.md). At 1 deadlines, which cost nothing to write, take no share of others. 0: no bound.",
        ),
    )
    max_weight: float = field(
        default=1.0,
        metadata=about(
            "MaxWeight",
            number(0.001, 1000, "a number from 0.001 to 1000, such as 4"),
            "The largest effective weight= of a job. A user's weights are also divided by their mean if it exceeds 1, so a "
            "higher weight= lowers only that user's other jobs.",
        ),
    )
    priority_weight: str = field(
        default="no",
        metadata=about(
            "PriorityWeight",
            WEIGHT_SOURCE,
            "yes: a job's weight= is multiplied by its Slurm priority over the median one, which includes QOS and fair share "
            "with PriorityType=priority/multifactor. fair-share: by its association's fair-share factor over the median one "
            "(needs slurmdbd). Both factors lie between a tenth and ten.",
        ),
    )
    account_limits: dict[str, int] = field(
        default_factory=dict,
        metadata=about(
            "AccountLimits",
            by_name(GPUS, "ACCOUNT:GPUS with commas between, such as physics:64"),
            "The most GPUs that all Synergy jobs of a Slurm account may hold together.",
            unset="none",
            example="physics:64,chemistry:32",
        ),
    )
    spare_nodes: dict[str, float] = field(
        default_factory=dict,
        metadata=about(
            "SpareNodes",
            by_name(SPARES, "PARTITION:NODES, PARTITION:SHARE% or qos/QOS:NODES with commas between", QOS),
            "Nodes of a partition that stay idle or are lent to jobs that can shrink, so that a job that loses a node gets "
            "its former size back within seconds. A job waits if its start would leave fewer. qos/QOS: that many of all "
            "nodes, for jobs of a QOS.",
            unset="none",
            example="gpu:1,large:5%,qos/high:2",
        ),
    )
    preemption: bool = field(
        default=True,
        metadata=about(
            "Preemption",
            FLAG,
            "yes: a running job that can't shrink further may be stopped at a checkpoint, if others gain more from its GPUs "
            "than it loses and a restart costs, but not within five restart costs of its start or its expected end. no: a "
            "running job always keeps some GPUs. Policies other than synergy and exact have rules of their own.",
        ),
    )
    first_start: float = field(
        default=4.0,
        metadata=about(
            "FirstStart",
            number(1, 1024, "0 (no bound), or 1 and more, such as 4", or_zero=True),
            "A job whose speed neither it nor a similar job has measured starts on at most this multiple of its requested GPUs. "
            "0: no bound. Jobs with a deadline and the peers' policies are exempt.",
        ),
    )
    placement: str = field(  # the rules: scheduler/layout.py
        default="pack",
        metadata=about(
            "Placement",
            PLACEMENT,
            "The nodes of a job that starts or changes. pack: the fullest that fit, inside a leaf switch if possible. lwf-N: "
            "the nodes with the least work left for a job of more than N GPUs, the fullest for smaller ones; fewer jobs share "
            "a link, but it is no better than pack in docs/benchmarks.md.",
        ),
    )
    link_aware: bool = field(
        default=False,
        metadata=about(
            "LinkAware",
            FLAG,
            "yes: shared links count when jobs are placed and sized.",
        ),
    )
    node_link: str = field(
        default="10gbe",
        metadata=about(
            "NodeLink",
            LINK,
            "The network link of each node, for LinkAware and the link arbiter. Sharing costs what it costs on 10 GbE, "
            "scaled, unless the figures that synergyctl profiles measure --pairs prints follow the name, such as "
            "10gbe@0.86+0.24.",
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
    link_arbiter_port: int = field(
        default=0,
        metadata=about(
            "LinkArbiterPort",
            PORT,
            "Where jobs that span nodes ask before each gradient all-reduce, so that jobs on one link take turns if that is "
            "faster. 0: no job asks.",
        ),
    )
    link_arbiter_rule: str = field(  # the rules: links/disciplines.py
        default="look-ahead",
        metadata=about(
            "LinkArbiterRule",
            RULE,
            "Which jobs take turns on a shared link (docs/concepts/contention.md). look-ahead: the rule below, or none, that "
            "is predicted to end them soonest. srsf-N: at most N jobs at once, those with the least remaining GPU time. "
            "ada-srsf: AdaDUAL.",
        ),
    )

    # No line of slurm.conf sets these: tests, benchmarks and the simulator vary them.
    #: Sia's and Pollux's sums are for comparison; Fairness covers the rest
    objective: str = "power"
    #: times its GPUs that a running job may grow to in an epoch, 0 for no bound: its restarts bound it by what they cost
    max_growth: float = 0.0
    #: where users spread jobs over part-used nodes this makes wide jobs wait long (tests.benchmarks.joint)
    one_multi_node_job_per_node: bool = False
    #: the limits of the partition's QOS in Slurm hold
    partition_limits: dict[str, int] = field(default_factory=dict)

    @property
    def fair_share_weight(self) -> bool:
        return self.priority_weight == "fair-share"

    @property
    def qos_spare_nodes(self) -> dict[str, float]:
        """Return the spare nodes of each QOS."""
        return {name.removeprefix(QOS): many for name, many in self.spare_nodes.items() if name.startswith(QOS)}

    @property
    def partition_spare_nodes(self) -> dict[str, float]:
        """Return the spare nodes of each partition."""
        return {name: many for name, many in self.spare_nodes.items() if not name.startswith(QOS)}

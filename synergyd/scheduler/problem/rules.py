"""The part of the settings that an epoch's decisions use, grouped by the stage that needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from synergy_core.errors import UsageError

from synergyd.scheduler.problem.records import Objective
from synergyd.settings import Settings
from synergyd.settings.allocation import OBJECTIVES

# Setting Objective -> the terms' form, exponent (None: the setting Fairness) and reference
_OBJECTIVES: dict[str, tuple[str, float | None, str]] = {
    "power": ("power", None, "asked"),
    "sia": ("sia", -0.5, "smallest"),
    "pollux": ("power", -1.0, "share"),
    "max-min": ("power", -3.0, "asked"),
}


@dataclass(frozen=True, kw_only=True)
class WeightRules:
    """How much each job counts."""

    #: the most that a directive's weight counts
    max_weight: float = 1.0
    priority_weight: bool = False
    fair_share_weight: bool = False


@dataclass(frozen=True, kw_only=True)
class ClaimRules:
    """Which jobs come before others: by deadline, finish-time fairness and time left."""

    deadline_share: float = 0.0
    fairness_bound: float = 0.0
    short_first: float = 0.0
    epoch_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class LimitRules:
    """GPUs that accounts and partitions may hold at most."""

    account_limits: Mapping[str, int] = field(default_factory=dict)
    partition_limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SpareRules:
    """Nodes that are kept idle or lent, by partition and by QOS: a number from 1 on, a share below."""

    spare_nodes: Mapping[str, float] = field(default_factory=dict)
    qos_spare_nodes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LinkRules:
    """Where jobs are placed, and whether the links that they share count."""

    placement: str = "pack"
    link_aware: bool = False
    node_link: str = ""
    leaf_uplink: str = ""
    one_multi_node_job_per_node: bool = False


@dataclass(frozen=True, kw_only=True)
class RestartRules:
    """The assumed cost of restarts, and the most that they may cost."""

    #: for a job of which nothing was measured
    cost_s: float = 0.0
    #: the largest share of a job's life that goes into restarts which Synergy chooses
    share: float = 1.0
    #: time before a reservation at which a job's last checkpoint is asked for, in seconds
    reservation_lead_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DecisionRules:
    """All of it."""

    objective: Objective = field(default_factory=Objective)
    weights: WeightRules = WeightRules()
    claims: ClaimRules = ClaimRules()
    limits: LimitRules = LimitRules()
    spares: SpareRules = SpareRules()
    links: LinkRules = LinkRules()
    restarts: RestartRules = RestartRules()
    #: running jobs may be stopped
    preemption: bool = False


def make_decision_rules(settings: Settings) -> DecisionRules:
    """Pick the rules out of the settings. Raises UsageError for an Objective that is not known."""
    return DecisionRules(
        objective=make_objective(settings),
        weights=WeightRules(
            max_weight=settings.max_weight,
            priority_weight=settings.priority_weight == "yes",
            fair_share_weight=settings.fair_share_weight,
        ),
        claims=ClaimRules(
            deadline_share=settings.deadline_share,
            fairness_bound=settings.fairness_bound,
            short_first=settings.short_first,
            epoch_s=settings.epoch_s,
        ),
        limits=LimitRules(account_limits=settings.account_limits, partition_limits=settings.partition_limits),
        spares=SpareRules(spare_nodes=settings.partition_spare_nodes, qos_spare_nodes=settings.qos_spare_nodes),
        links=LinkRules(
            placement=settings.placement,
            link_aware=settings.link_aware,
            node_link=settings.node_link,
            leaf_uplink=settings.leaf_uplink,
            one_multi_node_job_per_node=settings.one_multi_node_job_per_node,
        ),
        restarts=RestartRules(
            cost_s=settings.restart_cost_s,
            share=settings.restart_share,
            reservation_lead_s=settings.checkpoint_timeout_s + 2 * settings.epoch_s,
        ),
        preemption=settings.preemption,
    )


def make_objective(settings: Settings) -> Objective:
    """Return the objective that the settings ask for. Raises UsageError for an Objective that is not known."""
    if settings.objective not in _OBJECTIVES:
        raise UsageError("Objective", f"'{settings.objective}' is not known", f"one of: {', '.join(OBJECTIVES)}")
    form, exponent, reference = _OBJECTIVES[settings.objective]
    return Objective(
        exponent=settings.fairness if exponent is None else exponent,
        max_growth=settings.max_growth,
        first_start=settings.first_start,
        form=form,
        reference=reference,
    )

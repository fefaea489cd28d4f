"""What comes next for a released job that Slurm does not start: pure.

    as decided -> same size, nodes of Slurm's choice -> the size it ran with -> its own size -> left to Slurm

A job is never pinned twice to nodes that Slurm refused it: the refusal is remembered until Slurm shows one of the nodes
otherwise, for an hour at most, and for a time that doubles with each refusal of the job at least.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from synergyd.constraint import has_features
from synergyd.control.resize.gpus_free import has_cpus
from synergyd.control.resize.instructions import Target
from synergyd.records import Cluster, Job, Node, Shape

#: Slurm's reason of before the release may stand for as long as its scheduler takes to look at the job again
STALE_REASON_S = 5.0
#: Slurm's main scheduler looks at the whole queue each sched_interval, 60 s by default (slurm.conf): until then a job has no reason
UNSEEN_S = 60.0
#: a reason that no node shows (a limit, a licence) may end unseen
LONGEST_S = 3600.0
#: nodes change all the time on a busy cluster: what was refused is not tried at every change
SHORTEST_S = 300.0
_KEPT = 8  # refusals of one job
_DOUBLINGS = 4

# Slurm has looked at the job, and it has to wait for its turn: a plain job of this size would wait too
_TURN = frozenset({"", "None", "Resources", "Priority"})
# not of the nodes or the size that Synergy chose: no other choice would start it
_ELSEWHERE = frozenset(
    {"BeginTime", "Dependency", "DependencyNeverSatisfied", "JobHeldUser", "JobHeldAdmin", "JobArrayTaskLimit", "Licenses"}
    | {"PartitionDown", "PartitionInactive", "Reservation", "Cleaning", "Prolog"}
    | {"launch_failed_requeued_held"}
)  # fmt: skip


class Rung(IntEnum):
    """How far down the ladder a start is."""

    AS_DECIDED = 0
    ANY_NODES = 1
    AS_BEFORE = 2
    AS_ASKED = 3
    LEFT = 4


@dataclass(frozen=True)
class Refusal:
    """Nodes that Slurm did not start the job on."""

    nodes: tuple[str, ...]
    reason: str
    at_s: float


def refuses(reason: str) -> bool:
    """Does Slurm's reason say that it will not start the job as it was released?"""
    return not waits_its_turn(reason) and _word(reason) not in _ELSEWHERE


def waits_its_turn(reason: str) -> bool:
    """Does Slurm's reason say that the job waits for GPUs, or for jobs before it?"""
    return _word(reason) in _TURN


def unseen(reason: str) -> bool:
    """Has Slurm not looked at the job yet?"""
    return _word(reason) in ("", "None")


def names_limit(reason: str) -> bool:
    """Does Slurm's reason name a limit of an account or a QOS? It ends with others' jobs, and is nothing of the job's own."""
    return _word(reason).startswith(("Assoc", "QOS"))


def alike(asked: Shape, tried: Shape) -> bool:
    """Is `tried` what the sbatch line asks for? One that names no type of GPU never has one."""
    return asked in (tried, replace(tried, gpu_type=""))


def next_try(
    tried: Target, rung: Rung, origin: Target | None, asked: Target | None, reason: str = ""
) -> tuple[Rung, Target | None]:
    """The next rung with what to release the job with; (LEFT, None) after the last.

    `origin`: what it ran with before, `asked`: what its sbatch line asks for. `reason`: Slurm's; where it names a limit, other
    nodes are only tried for a limit of nodes, which may count one that two jobs share once.
    """
    limited = names_limit(reason)
    choices = {
        Rung.ANY_NODES: Target(tried.shape, (), tried.plan),
        Rung.AS_BEFORE: Target(origin.shape, (), origin.plan) if origin is not None and origin.nodes else None,
        Rung.AS_ASKED: Target(asked.shape) if asked is not None else None,
    }
    for below, choice in choices.items():
        if below <= rung or choice is None:
            continue
        same = alike(choice.shape, tried.shape)
        if same and choice.nodes == tried.nodes:
            continue
        helps = not limited or (same and "Node" in reason) or choice.shape.gpus < tried.shape.gpus
        if not helps and below is not Rung.AS_ASKED:  # as asked, on any nodes, it waits for the limit to be free
            continue
        return below, choice
    return Rung.LEFT, None


def has_room(target: Target, cluster: Cluster, job: Job) -> bool:
    """Are there GPUs for `target` that nobody holds, on nodes that the job may use, as far as the nodes show?"""
    shape, by_name = target.shape, cluster.by_name
    if target.nodes:
        return all(name in by_name and _fits(by_name[name], target, job) for name in target.nodes)
    return sum(_fits(node, target, job) for node in cluster.nodes) >= shape.nodes


def still_refused(
    refusals: tuple[Refusal, ...], count: int, then: Mapping[str, Node], cluster: Cluster, now_s: float
) -> tuple[Refusal, ...]:
    """The refusals that hold still. `count`: how often the job was refused so far; `then`: the nodes as they were after it was
    refused, where that is known."""
    shortest_s = SHORTEST_S * 2 ** min(max(0, count - 1), _DOUBLINGS)

    def holds(refusal: Refusal) -> bool:
        age_s = abs(now_s - refusal.at_s)  # whichever way a clock was set
        same = all(name not in then or cluster.by_name.get(name) == then[name] for name in refusal.nodes)
        return age_s < shortest_s or (same and age_s < LONGEST_S)

    return tuple(r for r in refusals if holds(r))


def remembered(refusals: tuple[Refusal, ...], target: Target, reason: str, now_s: float) -> tuple[Refusal, ...]:
    """With one more, where `target` names nodes."""
    if not target.nodes:
        return refusals
    others = tuple(r for r in refusals if set(r.nodes) != set(target.nodes))
    return (*others, Refusal(target.nodes, reason, now_s))[-_KEPT:]


def _fits(node: Node, target: Target, job: Job) -> bool:
    shape, partitions = target.shape, (job.open_partitions or job.partition).split(",")
    right = not shape.gpu_type or node.gpu_type == shape.gpu_type
    inside = not node.partitions or partitions == [""] or bool(set(partitions) & set(node.partitions))
    allowed = (
        inside
        and node.name not in (*job.exclude, *job.barred, *job.avoid)
        and (not job.within or node.name in job.within)
        and has_features(job.features, node.features)
    )
    free = node.gpus - node.gpus_used >= shape.gpus_per_node and has_cpus(node, job, shape.gpus_per_node)
    return right and allowed and node.up and free


def _word(reason: str) -> str:
    """Slurm's reason without brackets and details: `ReqNodeNotAvail, UnavailableNodes:n1` is one of many words."""
    return reason.strip().strip("()").split(",")[0].strip()

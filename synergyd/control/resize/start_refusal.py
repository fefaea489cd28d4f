"""What comes next for a released job that Slurm does not start: pure.

    as decided -> same size, nodes of Slurm's choice -> the size it ran with -> its own size -> left to Slurm

A job is never pinned twice to nodes that Slurm refused it: the refusal is remembered until Slurm shows one of the nodes
otherwise, for an hour at most, and for a time that doubles with each refusal of the job at least.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from synergy_core.constraint import has_features
from synergy_core.records import Cluster, Job, Node, Shape

from synergyd.control.resize.gpus_free import has_cpus
from synergyd.control.resize.instructions import Target

#: Slurm's reason from before the release may stand until its scheduler looks at the job again
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


class StartAttempt(IntEnum):
    """The attempts to start a job, from the decision down to leaving it to Slurm."""

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


def is_refusal(reason: str) -> bool:
    """Return whether Slurm's reason says that it will not start the job as it was released."""
    return not is_waiting_its_turn(reason) and _word(reason) not in _ELSEWHERE


def is_waiting_its_turn(reason: str) -> bool:
    """Return whether Slurm's reason says that the job waits for GPUs, or for jobs before it."""
    return _word(reason) in _TURN


def is_unseen(reason: str) -> bool:
    """Return whether Slurm has not looked at the job yet."""
    return _word(reason) in ("", "None")


def names_limit(reason: str) -> bool:
    """Return whether Slurm's reason names a limit of an account or a QOS.

    Such a reason ends with others' jobs, and is not about the job itself.
    """
    return _word(reason).startswith(("Assoc", "QOS"))


def is_as_asked(requested_shape: Shape, shape: Shape) -> bool:
    """Return whether `shape` is what the sbatch line asks for.

    An sbatch line that names no type of GPU never has one.
    """
    return requested_shape in (shape, replace(shape, gpu_type=""))


def next_try(
    refused_target: Target,
    attempt: StartAttempt,
    origin: Target | None,
    requested_target: Target | None,
    reason: str = "",
) -> tuple[StartAttempt, Target | None]:
    """Return the next attempt and what to release the job with; (LEFT, None) after the last.

    `origin`: what the job ran with before, `requested_target`: what its sbatch line asks for. `reason`: Slurm's; if it names a
    limit, other nodes are only tried for a limit of nodes, which may count a node that two jobs share once.
    """
    limited = names_limit(reason)
    choices = {
        StartAttempt.ANY_NODES: Target(refused_target.shape, (), refused_target.plan),
        StartAttempt.AS_BEFORE: Target(origin.shape, (), origin.plan) if origin is not None and origin.nodes else None,
        StartAttempt.AS_ASKED: Target(requested_target.shape) if requested_target is not None else None,
    }
    for below, choice in choices.items():
        if below <= attempt or choice is None:
            continue
        same = is_as_asked(choice.shape, refused_target.shape)
        if same and choice.nodes == refused_target.nodes:
            continue
        helps = not limited or (same and "Node" in reason) or choice.shape.gpus < refused_target.shape.gpus
        if (
            not helps and below is not StartAttempt.AS_ASKED
        ):  # as asked, on any nodes, it waits for the limit to be free
            continue
        return below, choice
    return StartAttempt.LEFT, None


def has_room(target: Target, cluster: Cluster, job: Job) -> bool:
    """Return whether there are GPUs for `target` that nobody holds, on nodes that the job may use, as far as the nodes show."""
    shape, by_name = target.shape, cluster.by_name
    if target.nodes:
        return all(name in by_name and _fits(by_name[name], target, job) for name in target.nodes)
    return sum(_fits(node, target, job) for node in cluster.nodes) >= shape.nodes


def current_refusals(
    refusals: tuple[Refusal, ...], count: int, then: Mapping[str, Node], cluster: Cluster, now_s: float
) -> tuple[Refusal, ...]:
    """Return the refusals that still hold.

    `count`: how often the job was refused so far; `then`: the nodes as they were after it was refused, if that is
    known.
    """
    shortest_s = SHORTEST_S * 2 ** min(max(0, count - 1), _DOUBLINGS)

    def is_in_force(refusal: Refusal) -> bool:
        """Return whether the refusal is recent, or none of its nodes has changed."""
        age_s = abs(now_s - refusal.at_s)  # whichever way a clock was set
        same = all(name not in then or cluster.by_name.get(name) == then[name] for name in refusal.nodes)
        return age_s < shortest_s or (same and age_s < LONGEST_S)

    return tuple(r for r in refusals if is_in_force(r))


def with_refusal_of(refusals: tuple[Refusal, ...], target: Target, reason: str, now_s: float) -> tuple[Refusal, ...]:
    """Return the refusals with one more, if `target` names nodes."""
    if not target.nodes:
        return refusals
    others = tuple(r for r in refusals if set(r.nodes) != set(target.nodes))
    return (*others, Refusal(target.nodes, reason, now_s))[-_KEPT:]


def _fits(node: Node, target: Target, job: Job) -> bool:
    """Return whether the node has room for its share of `target`, and the job may use it."""
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
    """Return Slurm's reason without brackets and details: `ReqNodeNotAvail, UnavailableNodes:n1` is one of many words."""
    return reason.strip().strip("()").split(",")[0].strip()

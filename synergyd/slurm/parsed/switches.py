"""--switches: a job under so many leaf switches at most. Pure.

The leaves are chosen before anything is decided, anew each epoch, and all other nodes are barred to the job: so every size that it
is offered fits under them. Slurm's own patience (max_switch_wait) is not counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

from synergy_core.constraint import has_features
from synergy_core.errors import UsageError
from synergy_core.records import Cluster, Job, JobState, Node
from synergy_core.wire.hostlist import expand


class Leaves:
    """The leaf switches of one look at the cluster.

    Jobs that ask for few leaves take turns: each leaves the others what they ask for.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._nodes: dict[str, list[Node]] = defaultdict(list)
        for node in cluster.nodes:
            self._nodes[node.leaf].append(node)
        self._claimed: Counter[str] = Counter()  # GPUs

    def keep_in_one_leaf(self, job: Job, switches: int) -> Job:
        """Return the job with the nodes of all other leaves excluded.

        It is left to Slurm if no such leaves have nodes for what it asks for.
        """
        if not switches or job.directive is None or switches >= len(self._nodes):
            return job
        names = set(job.node_names)
        own_leaves = {leaf for leaf, nodes in self._nodes.items() if any(n.name in names for n in nodes)}
        leaves = sorted(self._nodes, key=lambda leaf: self._rank(leaf, job, leaf in own_leaves))
        leaves_within = leaves[: max(switches, len(own_leaves))]
        if job.state is JobState.PENDING:
            there = sum(len(self._usable(leaf, job)) for leaf in leaves_within)
            if there < job.asked.nodes:
                what = (
                    f"no {switches} leaf switch{'es have' if switches > 1 else ' has'} {job.asked.nodes} nodes for it"
                )
                return replace(
                    job, directive=None, directive_error=f"Synergy leaves the job to Slurm: {what} (--switches)"
                )
            self._claimed[leaves_within[0]] += job.asked.gpus
        others = {n.name for leaf in leaves[len(leaves_within) :] for n in self._nodes[leaf]}
        return replace(job, exclude=tuple(sorted(others.union(job.exclude))))

    def _rank(self, leaf: str, job: Job, is_own: bool) -> tuple[bool, int, int, int, str]:
        """Rank the job's own leaf first, then the one with most nodes free for what it asks for, most free GPUs, most GPUs."""
        usable = self._usable(leaf, job)
        free = {n.name: n.gpus - n.gpus_used + job.shape.gpus_per_node * (n.name in job.node_names) for n in usable}
        fit = sum(gpus >= job.asked.gpus_per_node for gpus in free.values())
        gpus_left = sum(free.values()) - self._claimed[leaf]
        fit = min(fit, job.asked.nodes) if gpus_left >= job.asked.gpus else 0
        return not is_own, -fit, -gpus_left, -sum(n.gpus for n in usable), leaf

    def _usable(self, leaf: str, job: Job) -> list[Node]:
        partitions = set((job.open_partitions or job.partition).split(","))
        return [
            n
            for n in self._nodes[leaf]
            if (n.up or n.name in job.node_names) and n.name not in job.exclude and n.gpus >= job.asked.gpus_per_node
            if (not n.partitions or partitions & set(n.partitions)) and has_features(job.features, n.features)
        ]


def leaf_switches(lines: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return (node name -> its leaf, what was not understood, a line each).

    Leaves are the switches of level 0 (topology/tree) or the blocks (topology/block). A leaf whose nodes are not understood is
    passed over: the others hold.
    """
    leaf_of: dict[str, str] = {}
    problems: list[str] = []
    for line in lines:
        words = dict(word.partition("=")[::2] for word in line.split())
        leaf = words.get("BlockName") or (words.get("Level") == "0" and words.get("SwitchName"))
        if not leaf:
            continue
        try:
            leaf_of.update(dict.fromkeys(expand(words.get("Nodes", ""), f"leaf {leaf}"), leaf))
        except UsageError as error:
            problems.append(f"{error}; its nodes count as under no leaf")
    return leaf_of, tuple(problems)

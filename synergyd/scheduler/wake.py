"""Nodes that are powered down. Pure.

Jobs that would wait are left to Slurm, which wakes nodes for them, and running jobs grow onto nodes that are woken first.

Waiting jobs come before running ones, at the size that they asked for. The time that a node takes to power up counts in a
growth's restart cost: with it the growth has to gain more than going on as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from synergy_core.formatting import format_shape
from synergy_core.reasons import Reason, Reasons
from synergy_core.records import Action, Cluster, Decision, Node, Snapshot

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.from_snapshot import node_capacities
from synergyd.scheduler.problem.gpu_limits import Allowance, own_limit_obstacle
from synergyd.scheduler.problem.node_limits import NodeLimits
from synergyd.scheduler.problem.records import JobRequest, Problem
from synergyd.scheduler.problem.restart_bound import ban_costly_restarts
from synergyd.scheduler.problem.utility import (
    change_value,
    is_growth_refused,
    payback_s,
    relative_goodput,
    restart_cost_s,
    stay_value,
    value_terms,
    with_delay,
)

_Option = tuple[float, int, tuple[str, ...], float]  # (value gained, Cell, nodes, seconds until they are up)


def with_wakes(
    decisions: Iterable[Decision],
    problem: Problem,
    allowance: Allowance,
    snapshot: Snapshot,
    *,
    grows: bool = True,
) -> tuple[Decision, ...]:
    """Start jobs that got no GPUs on nodes of Slurm's choice where powered-down ones have room for the size asked for.

    With `grows`, also let running jobs that were to go on as they are grow onto such nodes. Each of these nodes is counted on
    for one job's GPUs only. The GPUs that these changes take are taken from `allowance`.
    """
    decisions = tuple(decisions)
    if not any(node.wakeable for node in snapshot.cluster.nodes):
        return decisions
    with_gpus = (node for node in snapshot.cluster.nodes if node.gpus > 0)
    # keyed by the problem's names: a node with two types of GPUs counts as two
    asleep = {c.name: node for node, c in zip(with_gpus, problem.nodes, strict=True) if node.wakeable}
    free_by_node = {name: max(0, node.gpus - node.gpus_used) for name, node in asleep.items()}
    decisions = _starts(
        decisions, problem, allowance, free_by_node, {name: node.wake_s for name, node in asleep.items()}
    )
    if not grows:
        return decisions
    return _Growth(decisions, problem, allowance, snapshot, asleep, free_by_node).decisions()


def _starts(
    decisions: tuple[Decision, ...],
    problem: Problem,
    allowance: Allowance,
    asleep: dict[str, int],
    wake_s: Mapping[str, float],
) -> tuple[Decision, ...]:
    requests = {request.job_id: request for request in problem.jobs}
    result = []
    for decision in decisions:
        job = requests.get(decision.job_id)
        if (
            job is not None
            and decision.action is Action.WAIT
            and job.current is None
            and job.requested_cell is not None
        ):
            names = _room(job, problem, asleep, wake_s)
            if (
                names
                and not own_limit_obstacle(job, job.requested_cell)
                and allowance.find_exceeded_limit(job, None, job.requested_cell) is None
            ):
                allowance.change(job, None, job.requested_cell)
                cell = job.cells[job.requested_cell]
                for name in names:
                    asleep[name] -= cell.shape.gpus_per_node
                fields = {"size": format_shape(cell.shape), "nodes": list(_hosts(names))}
                why = (Reason("starts-woken", fields),)
                decision = replace(decision, action=Action.START, cell=cell, node_names=(), reasons=why)
        result.append(decision)
    return tuple(result)


class _Growth:
    """Running jobs that grow onto nodes that sleep (`asleep`, by the problem's names).

    `free_by_node`: the GPUs of these nodes that no start counts on.
    """

    def __init__(
        self,
        decisions: tuple[Decision, ...],
        problem: Problem,
        allowance: Allowance,
        snapshot: Snapshot,
        asleep: Mapping[str, Node],
        free_by_node: Mapping[str, int],
    ) -> None:
        self._problem, self._decisions, self._allowance = problem, decisions, allowance
        self._jobs = {job.job_id: job for job in snapshot.jobs}
        waiting = [
            request
            for request, decision in self._pairs()
            if request.current is None and decision.action in (Action.WAIT, Action.START) and not decision.node_names
        ]
        self._asleep = {
            capacity.name: node
            for capacity in problem.nodes
            if (node := asleep.get(capacity.name)) is not None
            and node.wake_s < math.inf
            and free_by_node[capacity.name] == node.gpus - node.gpus_used
            and not any(
                _may_have(request, capacity.gpu_type) and capacity.admits(request.node_filter) for request in waiting
            )
        }
        asleep_keys = {(node.name, node.gpu_type) for node in self._asleep.values()}
        woken = (replace(n, up=True) if (n.name, n.gpu_type) in asleep_keys else n for n in snapshot.cluster.nodes)
        nodes = node_capacities(replace(snapshot, cluster=Cluster(tuple(woken))), problem.jobs)
        self._limits = NodeLimits(nodes)
        self._free = FreeGpus(nodes, problem.spanned_nodes)
        names = {(node.host or node.name, node.gpu_type): node.name for node in nodes}
        for request, decision in self._pairs():
            cell = decision.cell
            if cell is not None and decision.node_names:
                on = [
                    names[host, cell.shape.gpu_type]
                    for host in decision.node_names
                    if (host, cell.shape.gpu_type) in names
                ]
                self._free.take(on, cell.shape.gpus_per_node, request.needs)

    def _pairs(self) -> list[tuple[JobRequest, Decision]]:
        of = {decision.job_id: decision for decision in self._decisions}
        return [(request, of[request.job_id]) for request in self._problem.jobs]

    def decisions(self) -> tuple[Decision, ...]:
        """Return all decisions. Growths are decided in order of gain, the largest first."""
        if not self._asleep:
            return self._decisions
        growths: dict[int, Decision] = {}
        running = [
            (r, d) for r, d in self._pairs() if d.action is Action.KEEP and r.current is not None and r.discount > 0
        ]
        gains = [(option[0], r.job_id, r, d) for r, d in running if (option := self._best(r)) is not None]
        for _, _, request, decision in sorted(gains, key=lambda gain: (-gain[0], gain[1])):
            option = self._best(request)
            if option is not None:
                growths[request.job_id] = self._growth_decision(request, decision, option)
        return tuple(growths.get(decision.job_id, decision) for decision in self._decisions)

    def _best(self, request: JobRequest) -> _Option | None:
        """Return the growth onto nodes that sleep that gains most, or None where none gains anything."""
        # Cells that placement refused may fit with nodes that are woken; those that a restart may not be spent on stay banned
        anew = ban_costly_restarts(replace(request, banned_cells=frozenset()))
        bound, cells = self._limits.restrict_job(anew), CellIndex.build(request.cells)
        now, terms = cells[request.current or 0], self._problem.terms
        stays, least_s = stay_value(request, terms), min(node.wake_s for node in self._asleep.values())
        last = {name: 1 for name in self._asleep}
        best: _Option | None = None
        self._free.give(request.nodes, now.shape.gpus_per_node, request.needs)
        for index in cells.best_of_each_shape:
            shape = cells[index].shape
            if cells[index].goodput <= now.goodput:
                break
            if shape.gpus <= now.shape.gpus or index in bound.banned_cells or is_growth_refused(request, index, terms):
                continue
            most = change_value(self._with_delay(request, least_s), index, terms) - stays
            if most <= (best[0] if best else 0.0) or own_limit_obstacle(request, index):
                continue
            if self._allowance.find_exceeded_limit(request, request.current, index) is not None:
                continue
            names = self._free.pick(shape, bound.node_filter, frozenset(request.nodes), last, request.needs)
            woken = [self._asleep[name] for name in names or () if name in self._asleep]
            if names is None or not woken:
                continue
            wake_s = max(node.wake_s for node in woken)
            gain = change_value(self._with_delay(request, wake_s), index, terms) - stays
            if gain > (best[0] if best else 0.0):
                best = gain, index, names, wake_s
        self._free.take(request.nodes, now.shape.gpus_per_node, request.needs)
        return best

    def _with_delay(self, request: JobRequest, delay_s: float) -> JobRequest:
        job = self._jobs[request.job_id]
        return with_delay(request, restart_cost_s(request, self._problem), delay_s, job.time_left_s)

    def _growth_decision(self, request: JobRequest, decision: Decision, option: _Option) -> Decision:
        _, index, names, wake_s = option
        now, cell = request.cells[request.current or 0], request.cells[index]
        self._free.give(request.nodes, now.shape.gpus_per_node, request.needs)
        self._free.take(names, cell.shape.gpus_per_node, request.needs)
        self._allowance.change(request, request.current, index)
        hosts, woken = _hosts(names), _hosts(name for name in names if name in self._asleep)
        cost_s = restart_cost_s(request, self._problem) + wake_s
        fields = {
            "old_size": format_shape(now.shape),
            "size": format_shape(cell.shape),
            "nodes": list(woken),
            "is_are": "is" if len(woken) == 1 else "are",
            "old_goodput": now.goodput,
            "goodput": cell.goodput,
            "cost_s": cost_s,
            "payback_s": payback_s(now.goodput, cell.goodput, cost_s),
        }
        why = (Reason("grows-woken", fields),)
        relative = relative_goodput(cell, request.cells, request.requested_cell)
        worth = value_terms(self._with_delay(request, wake_s), index, False, self._problem.terms)
        return replace(
            decision,
            action=Action.RESIZE,
            cell=cell,
            node_names=hosts,
            reasons=why,
            relative_goodput=relative,
            worth=worth,
        )


def _hosts(names: Iterable[str]) -> tuple[str, ...]:
    """Return the nodes' own names, without the mark that tells a node's types of GPUs apart."""
    return tuple(name.partition(":")[0] for name in names)


def _may_have(request: JobRequest, gpu_type: str) -> bool:
    return gpu_type in CellIndex.build(request.cells).types


def leaked_gpus(nodes: Iterable[Node]) -> Reasons:
    """Return which GPUs Slurm counts as in use that no job holds: jobs that wait should know."""
    leaked = [f"{node.leaked} of {node.name}" for node in nodes if node.leaked]
    if not leaked:
        return ()
    more = f" and of {len(leaked) - 3} more nodes" if len(leaked) > 3 else ""
    return (Reason("leaked-gpus", {"nodes": f"{', '.join(leaked[:3])}{more}"}),)


def _room(job: JobRequest, problem: Problem, asleep: Mapping[str, int], wake_s: Mapping[str, float]) -> list[str]:
    """Return nodes that sleep for the size asked for, the soonest up first; empty where there are too few."""
    shape = job.cells[job.requested_cell or 0].shape
    names = [
        node.name
        for node in problem.nodes
        if asleep.get(node.name, 0) >= shape.gpus_per_node
        and node.gpu_type == shape.gpu_type
        and node.admits(job.node_filter)
    ]
    return sorted(names, key=lambda name: wake_s[name])[: shape.nodes] if len(names) >= shape.nodes else []

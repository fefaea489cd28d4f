"""Placement=dally: jobs that would start across leaf switches hold out for nodes of one leaf, for a bounded time. Pure.

The delay timers are Dally's (problem/delays.py). The bound on them is ours: a job waits no longer than shared uplinks would cost it, and
never until it is due (FairnessBound). Its GPUs go to other waiting jobs meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from synergy_core.reasons import Reason

from synergy_sim.policies.nearest import nearest_tier
from synergyd.links.model import Topology
from synergyd.links.sharing import make_traffic
from synergyd.links.slowdown import Traffic, slowdowns
from synergyd.scheduler.placement.place import Placement, make_placement_requests, place
from synergyd.scheduler.problem.delays import Tier, find_tier, timer_s
from synergyd.scheduler.problem.records import Allocation, JobRequest, Problem
from synergyd.scheduler.problem.utility import allocation as allocation_of
from synergyd.scheduler.solver.greedy import fill


@dataclass(frozen=True)
class Delay:
    """A job's delay: seconds that it may still hold out, and times that its steps would take across leaves."""

    left_s: float
    slowdown: float

    def reason(self) -> Reason:
        """Return for how long the job waits, and why."""
        return Reason("holds-out", {"wait_s": max(1.0, self.left_s), "slowdown": self.slowdown})


def delay_starts(
    problem: Problem, allocation: Allocation, placement: Placement, topology: Topology, others: Iterable[Traffic]
) -> tuple[Allocation, Placement, dict[int, Delay]]:
    """Take back the starts that are better delayed, and give their GPUs to other waiting jobs.

    Return the delays by index of the job, too. `others`: traffic of jobs outside of the problem. All stays as it is where no uplink
    can be the bottleneck.
    """
    leaf = {node.name: node.leaf for node in problem.nodes}
    apart = [
        i
        for i, cell, _ in allocation.assignments(problem)
        if problem.jobs[i].current is None
        and cell.shape.nodes > 1
        and find_tier(placement.nodes[problem.jobs[i].job_id], leaf) is Tier.ACROSS
        and _can_be_delayed(problem.jobs[i])
        and nearest_tier(problem.nodes, cell.shape, problem.jobs[i].node_filter) is Tier.LEAF
    ]
    if topology.uplink is None or not apart:
        return allocation, placement, {}
    slowed = _forecast_slowdowns(problem, allocation, placement, topology, others)
    delays = {i: delay for i in apart if (delay := _delay(problem, allocation, i, slowed.get(i, 1.0))) is not None}
    if not delays:
        return allocation, placement, {}
    new_allocation = allocation_of(
        problem, [None if i in delays else c for i, c in enumerate(allocation.choice)], allocation.moved_jobs
    )
    new_placement = place(problem.nodes, make_placement_requests(problem, new_allocation), problem.spanned_nodes)
    if new_placement.unplaced_reasons:
        return allocation, placement, {}
    barred = (
        replace(job, banned_cells=frozenset(range(len(job.cells)))) if i in delays else job
        for i, job in enumerate(problem.jobs)
    )
    filled = fill(replace(problem, jobs=tuple(barred)), new_allocation, new_placement.nodes)
    refound = place(problem.nodes, make_placement_requests(problem, filled), problem.spanned_nodes)
    if not refound.unplaced_reasons:
        new_allocation, new_placement = filled, refound
    return new_allocation, new_placement, delays


def _can_be_delayed(job: JobRequest) -> bool:
    """Return whether the job's start may be delayed: it isn't due, was promised no goodput, and requires no nodes by name."""
    promised = job.deadline_s is not None or job.needed_goodput > 0
    return job.overdue_s < 0 and not promised and not job.node_filter.required_nodes


def _delay(problem: Problem, allocation: Allocation, i: int, slowdown: float) -> Delay | None:
    job, choice = problem.jobs[i], allocation.choice[i]
    waited_s = problem.now_s - problem.delays.waiting.get(job.job_id, problem.now_s)
    timer = timer_s(problem.delays, job.gpus(choice), Tier.LEAF) - waited_s
    left_s = min(timer, (slowdown - 1.0) * job.holds_s - waited_s, -job.overdue_s)
    return Delay(left_s, slowdown) if slowdown > 1.0 and left_s > 0 else None


def _forecast_slowdowns(
    problem: Problem, allocation: Allocation, placement: Placement, topology: Topology, others: Iterable[Traffic]
) -> dict[int, float]:
    """Return, by index of the job, its forecast step where it is placed, over its step if no uplink were a bottleneck."""
    sends, index = list(others), {}
    for i, cell, _ in allocation.assignments(problem):
        job_id = problem.jobs[i].job_id
        one = make_traffic(job_id, cell, placement.nodes[job_id], topology)
        if one is not None:
            sends.append(one)
            index[job_id] = i
    steps = [_steps_s(sends, links) for links in (topology, replace(topology, uplink=None))]
    return {i: steps[0][job_id] / steps[1][job_id] for job_id, i in index.items()}


def _steps_s(sends: list[Traffic], topology: Topology) -> dict[int, float]:
    """Return the forecast step in seconds by job id."""
    forecast = slowdowns(sends, topology)
    alone = {
        one.job_id: max((topology.figures(x).per_mb for x in topology.links_crossed(one.nodes)), default=0.0)
        for one in sends
    }
    return {
        one.job_id: forecast[one.job_id].slowdown * (one.compute_s + one.message_mb * alone[one.job_id] / 1000.0)
        for one in sends
    }

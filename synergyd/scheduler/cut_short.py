"""Jobs whose nodes a reservation takes while they run: shrunk, moved or left alone, whatever ends them soonest. Pure.

Slurm itself leaves a job on nodes whose reservation begins; the user who reserved them ends it. So a job that is left alone
counts as standing still from the reservation's begin to its end. A job that changes trains on other nodes, or on those of its
own that stay, but for its restart. The better option is the one that has trained more by the reservation's end: after that both
are restarted once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from synergy_core.formatting import format_shape
from synergy_core.reasons import Reason
from synergy_core.records import Action, Decision, Job

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.place import Placement
from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.gpu_limits import Allowance, own_limit_obstacle
from synergyd.scheduler.problem.records import Allocation, JobRequest, Objective, Problem
from synergyd.scheduler.problem.utility import is_growth_refused, relative_goodput, restart_cost_s, value_terms


@dataclass(frozen=True, kw_only=True)
class Window:
    """The part of a job's time that a reservation leaves. Seconds from now."""

    cut_s: float
    #: its nodes are free again, or the job's own time is over
    end_s: float
    #: cost of its restart, in seconds
    cost_s: float
    #: sequences; None: not known
    remaining: float | None

    def sequences_if_unchanged(self, goodput: float) -> float:
        """Return the number of sequences that the job trains by the end on what it has."""
        return goodput * self.cut_s

    def sequences_if_changed(self, goodput: float) -> float:
        """Return the number of sequences that the job trains by the end if it changes to a Cell with this goodput."""
        return goodput * max(0.0, self.end_s - self.cost_s)

    def pays(self, now: float, then: float) -> bool:
        """Return whether a change from goodput `now` to `then` ends the job sooner."""
        if self.remaining is not None and self.remaining <= self.sequences_if_unchanged(now):
            return False
        return self.sequences_if_changed(then) > self.sequences_if_unchanged(now)


def avoid_reservations(
    decisions: Iterable[Decision],
    jobs: Iterable[Job],
    problem: Problem,
    allocation: Allocation,
    placement: Placement,
    allowance: Allowance,
    *,
    lead_s: float,
    sizes_fixed: bool = False,
) -> tuple[Decision, ...]:
    """Change jobs that were to go on as they are where that ends them sooner.

    `lead_s` is how long before the reservation a job's last checkpoint is asked for: until then the job is left alone, since it
    can change later as well. The GPUs that changes take are taken from `allowance`. With `sizes_fixed` jobs move in their
    present shape only.
    """
    decisions = tuple(decisions)
    cost_s = {request.job_id: restart_cost_s(request, problem) for request in problem.jobs}
    near_s = problem.now_s + lead_s
    cuts = {
        j.job_id: j
        for j in jobs
        if j.cut_s is not None and j.free_again_s is not None and j.cut_s <= near_s + cost_s.get(j.job_id, 0.0)
    }
    if not cuts:
        return decisions
    free = FreeGpus(problem.nodes, problem.spanned_nodes)
    for i, cell, _ in allocation.assignments(problem):
        request = problem.jobs[i]
        free.take(placement.nodes[request.job_id], cell.shape.gpus_per_node, request.needs)
    requests = {request.job_id: request for request in problem.jobs if request.current is not None}
    result = []
    for decision in decisions:
        job, asking = cuts.get(decision.job_id), requests.get(decision.job_id)
        if job is not None and asking is not None and decision.action is Action.KEEP:
            decision = _decide_one(decision, job, asking, problem, free, allowance, sizes_fixed)
        result.append(decision)
    return tuple(result)


def _decide_one(
    decision: Decision,
    job: Job,
    request: JobRequest,
    problem: Problem,
    free: FreeGpus,
    allowance: Allowance,
    sizes_fixed: bool,
) -> Decision:
    current = request.cells[request.current or 0]
    window = _window(job, request, problem)
    free.give(request.nodes, current.shape.gpus_per_node, request.needs)
    best = None if request.discount <= 0 else _best(request, problem.terms, free, allowance, sizes_fixed)
    if best is not None and window.pays(current.goodput, request.cells[best[0]].goodput):
        index, names = best
        cell = request.cells[index]
        free.take(names, cell.shape.gpus_per_node, request.needs)
        allowance.change(request, request.current, index)
        hosts = tuple(name.partition(":")[0] for name in names)
        before, then = current.shape.gpus, cell.shape.gpus
        fields = {
            "verb": "Moves" if then == before else "Shrinks" if then < before else "Grows",
            "size": format_shape(cell.shape),
            "nodes": list(hosts),
            "because": job.cut_why,
            "in_s": max(0.0, (job.cut_s or 0.0) - problem.now_s),
            "changed": window.sequences_if_changed(cell.goodput),
            "left_alone": window.sequences_if_unchanged(current.goodput),
        }
        return replace(
            decision,
            action=Action.RESIZE,
            cell=cell,
            node_names=hosts,
            reasons=(Reason("leaves-reservation", fields),),
            relative_goodput=relative_goodput(cell, request.cells, request.requested_cell),
            worth=value_terms(request, index, False, problem.terms),
        )
    free.take(request.nodes, current.shape.gpus_per_node, request.needs)
    if request.discount <= 0:
        in_time = job.time_left_s is None or job.time_left_s > window.cost_s
        why = (
            "its restarts took as long as it has been there" if in_time else "a restart takes longer than the time left"
        )
    else:
        why = "no other nodes are free for it" if best is None else "a restart elsewhere would not end it sooner"
    reason = Reason("left-on-reservation", {"event": job.cut_why, "because": why})
    return replace(decision, reasons=(*decision.reasons, reason))


def _window(job: Job, request: JobRequest, problem: Problem) -> Window:
    again_s = (job.free_again_s or 0.0) - problem.now_s
    progress = request.progress
    return Window(
        cut_s=max(0.0, (job.cut_s or 0.0) - problem.now_s),
        end_s=again_s if job.time_left_s is None else min(again_s, job.time_left_s),
        cost_s=restart_cost_s(request, problem),
        remaining=None if progress.is_claim_refuted else progress.remaining,
    )


def _best(
    request: JobRequest, terms: Objective, free: FreeGpus, allowance: Allowance, sizes_fixed: bool
) -> tuple[int, tuple[str, ...]] | None:
    """Return the Cell of the highest goodput that fits on nodes that no reservation bars, and these nodes."""
    cells = CellIndex.build(request.cells)
    now = cells[request.current or 0].shape
    for index in cells.best_of_each_shape:
        shape = cells[index].shape
        if (index in request.banned_cells and index != request.current) or (sizes_fixed and shape != now):
            continue
        if is_growth_refused(request, index, terms) or own_limit_obstacle(request, index):
            continue
        if allowance.find_exceeded_limit(request, request.current, index) is not None:
            continue
        names = free.pick(shape, request.node_filter, frozenset(request.nodes), needs=request.needs)
        if names is not None:
            return index, names
    return None

"""Jobs whose nodes a reservation takes while they run: shrunk, moved or left alone, whatever ends them soonest. Pure.

Slurm itself leaves a job on nodes whose reservation begins; whoever reserved them ends it. So a job that is left alone counts as
standing still from the reservation's begin to its end. One that changes trains on other nodes, or on those of its own that
stay, but for its restart. What was trained by the reservation's end decides: behind that both are restarted once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from synergyd.records import Action, Decision, Job
from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.place import Placement
from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.gpu_limits import Allowance, beyond_own
from synergyd.scheduler.problem.records import Allocation, JobRequest, Objective, Problem
from synergyd.scheduler.problem.utility import beyond_growth, relative_goodput, restart_cost_s, value_terms
from synergyd.words import shape_words


@dataclass(frozen=True, kw_only=True)
class Window:
    """What a reservation leaves of a job's time. Seconds from now."""

    cut_s: float
    #: its nodes are free again, or the job's own time is over
    end_s: float
    #: of its restart
    cost_s: float
    #: sequences; None: not known
    remaining: float | None

    def left_alone(self, goodput: float) -> float:
        """Sequences that it trains by the end on what it has."""
        return goodput * self.cut_s

    def changed(self, goodput: float) -> float:
        """Sequences that it trains by the end on something else, with this goodput."""
        return goodput * max(0.0, self.end_s - self.cost_s)

    def pays(self, now: float, then: float) -> bool:
        """Does a change from goodput `now` to `then` end it sooner?"""
        if self.remaining is not None and self.remaining <= self.left_alone(now):
            return False
        return self.changed(then) > self.left_alone(now)


def around_reservations(
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
    """The decisions; a job that was to go on as it is changes where that ends it sooner. `lead_s`: how long before the
    reservation its last checkpoint is asked for: until then it is left alone, since it can change later as well. What changes
    take is taken from `allowance`. With `sizes_fixed` jobs move in their present shape only."""
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
    free = FreeGpus(problem.nodes, problem.spanned)
    for i, cell, _ in allocation.taken(problem):
        request = problem.jobs[i]
        free.take(placement.nodes[request.job_id], cell.shape.gpus_per_node, request.needs)
    requests = {request.job_id: request for request in problem.jobs if request.current is not None}
    found = []
    for decision in decisions:
        job, asking = cuts.get(decision.job_id), requests.get(decision.job_id)
        if job is not None and asking is not None and decision.action is Action.KEEP:
            decision = _decided(decision, job, asking, problem, free, allowance, sizes_fixed)
        found.append(decision)
    return tuple(found)


def _decided(
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
        return replace(
            decision,
            action=Action.RESIZE,
            cell=cell,
            node_names=hosts,
            why=_why(job, current.shape.gpus, shape_words(cell.shape), hosts, cell.shape.gpus, problem.now_s)
            + f" By the reservation's end it trains {window.changed(cell.goodput):.3g} sequences so, "
            f"{window.left_alone(current.goodput):.3g} if it were left alone.",
            relative_goodput=relative_goodput(cell, request.cells, request.asked),
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
    return replace(decision, why=f"{decision.why} It is left alone although {job.cut_why}: {why}.")


def _window(job: Job, request: JobRequest, problem: Problem) -> Window:
    again_s = (job.free_again_s or 0.0) - problem.now_s
    progress = request.progress
    return Window(
        cut_s=max(0.0, (job.cut_s or 0.0) - problem.now_s),
        end_s=again_s if job.time_left_s is None else min(again_s, job.time_left_s),
        cost_s=restart_cost_s(request, problem),
        remaining=None if progress.refuted else progress.remaining,
    )


def _best(
    request: JobRequest, terms: Objective, free: FreeGpus, allowance: Allowance, sizes_fixed: bool
) -> tuple[int, tuple[str, ...]] | None:
    """The Cell of the highest goodput that fits on nodes that no reservation bars, and these."""
    cells = CellIndex.of(request.cells)
    now = cells[request.current or 0].shape
    for index in cells.ranked:
        shape = cells[index].shape
        if (index in request.banned and index != request.current) or (sizes_fixed and shape != now):
            continue
        if beyond_growth(request, index, terms) or beyond_own(request, index):
            continue
        if allowance.exceeded(request, request.current, index) is not None:
            continue
        names = free.pick(shape, request.node_filter, frozenset(request.nodes), needs=request.needs)
        if names is not None:
            return index, names
    return None


def _why(job: Job, before: int, words: str, names: tuple[str, ...], gpus: int, now_s: float) -> str:
    verb = "Moves" if gpus == before else "Shrinks" if gpus < before else "Grows"
    in_s = max(0.0, (job.cut_s or 0.0) - now_s)
    return f"{verb} to {words} on {', '.join(names[:3])}{' and more' if len(names) > 3 else ''}: {job.cut_why} in {in_s:.0f} s."

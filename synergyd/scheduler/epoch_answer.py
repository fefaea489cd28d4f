"""An epoch's allocation with nodes for every job that has a Cell. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from synergyd.scheduler.bad_nodes import newly_on_bad, value_with_penalties, without_bad_nodes
from synergyd.scheduler.due_jobs import DueProblem, due_problem, missing
from synergyd.scheduler.placement.make_placeable import make_placeable
from synergyd.scheduler.placement.place import Placement, make_placement_requests, place
from synergyd.scheduler.preemption import without_stopping, without_wasteful_stops
from synergyd.scheduler.problem.gpu_limits import within_limits
from synergyd.scheduler.problem.records import Allocation, Objective, Policy, Problem
from synergyd.scheduler.problem.utility import allocation as allocation_of
from synergyd.scheduler.solver.greedy import fill, greedy, greedy_on_nodes

# Share of the jobs without a place in a round from which on no further round is tried where CPUs and memory count: one Cell
# banned at a time converges slower than the last resort, which places each job as it takes it (epoch benchmark, 1000 jobs,
# --room scarce: objective -2158 after one round, -2236 after four).
_MANY = 0.02
_ROUNDS = 4  # allocations tried while placement refuses Cells; each refusal bans the Cell for this epoch


@dataclass(frozen=True)
class EpochAnswer:
    """An epoch's allocation with the nodes of every job that has a Cell.

    No job in it failed to be placed. `away`: by index of the job, the Cells that it did not get because of links that it would
    share.
    """

    problem: Problem
    allocation: Allocation
    placement: Placement
    away: Mapping[int, frozenset[int]] = field(default_factory=dict)


def solve_due_first(problem: Problem, policy: Policy, terms: Objective) -> tuple[EpochAnswer, DueProblem]:
    """Run `solve` with the waiting jobs that are due first. If one of them finds no place all the same, keep nodes for it."""
    if policy.rule or policy.sizes_fixed:
        return solve(problem, policy), DueProblem(problem)
    due = due_problem(problem, terms)
    answer = solve(due.problem, policy)
    if unplaced := missing(due, answer.allocation):
        due = due_problem(problem, terms, unplaced)
        answer = solve(due.problem, policy)
    return answer, due


def solve(problem: Problem, policy: Policy) -> EpochAnswer:
    """Allocate and place until every allocated job has nodes.

    The packability rows make the first round succeed, unless sizes do not divide each other, Cells span nodes in part, or
    features and partitions overlap. Then the refused Cells are banned and the rest is solved again. After the last round the
    jobs that can be placed are, and the GPUs left over go to waiting jobs. Without preemption a job that the policy would
    stop keeps its Cell.
    """
    counts_room = any(node.room is not None for node in problem.nodes)
    for _ in range(_ROUNDS):
        if policy.preempts:
            allocation = policy.allocate(problem) if problem.may_stop else without_stopping(policy, problem)
        else:
            allocation = without_wasteful_stops(policy, problem)
        allocation = within_limits(problem, allocation)
        placement = place(problem.nodes, make_placement_requests(problem, allocation), problem.spanned_nodes)
        if not placement.unplaced_reasons:
            # a problem from which Cells were banned is not the one that was asked: its optimum proves nothing
            proven = allocation.optimal and not any(job.banned_cells for job in problem.jobs)
            return EpochAnswer(problem, replace(allocation, optimal=proven), placement)
        if problem.room and len(placement.unplaced_reasons) > _ROUNDS and not (policy.rule or policy.sizes_fixed):
            return _place_by_turns(problem, allocation)
        if (
            len(placement.unplaced_reasons) > _MANY * len(problem.jobs)
            and len(placement.unplaced_reasons) > _ROUNDS
            and counts_room
        ):
            break
        jobs = []
        for job, choice in zip(problem.jobs, allocation.choice, strict=True):
            refused = job.job_id in placement.unplaced_reasons and choice is not None
            jobs.append(
                replace(job, banned_cells=job.banned_cells | {choice}) if refused and choice is not None else job
            )
        problem = replace(problem, jobs=tuple(jobs))
    attempts = [_without_unplaceable(problem, allocation), greedy(problem), greedy(problem, grow=False)]
    # the best objective first: to shrink jobs for one that can't be placed gains nothing
    for attempt in sorted(attempts, key=lambda attempt: -attempt.objective):
        placement = place(problem.nodes, make_placement_requests(problem, attempt), problem.spanned_nodes)
        if not placement.unplaced_reasons:
            return EpochAnswer(problem, attempt, placement)
    pairs = zip(problem.jobs, attempt.choice, strict=True)
    attempt = allocation_of(
        problem, [job.current if job.job_id in placement.unplaced_reasons else c for job, c in pairs]
    )
    return EpochAnswer(problem, attempt, replace(placement, unplaced_reasons={}))


def _place_by_turns(problem: Problem, allocated: Allocation) -> EpochAnswer:
    """Return the better of two answers where CPUs or memory are scarce.

    One is what of `allocated` can be placed, the other has jobs placed one by one as they are chosen. Banning one Cell at a
    time would converge slower.
    """
    repaired = _without_unplaceable(problem, allocated)
    placement = place(problem.nodes, make_placement_requests(problem, repaired), problem.spanned_nodes)
    by_turns, nodes = greedy_on_nodes(problem)
    if placement.unplaced_reasons or by_turns.objective > repaired.objective:
        return EpochAnswer(problem, by_turns, nodes)
    return EpochAnswer(problem, repaired, placement)


def weigh_bad_nodes(answer: EpochAnswer, problem: Problem, policy: Policy) -> EpochAnswer:
    """Return `answer` to `problem`, or the answer without bad nodes.

    The latter is returned where `answer` brings jobs to bad nodes and all jobs together are worth more without those nodes.
    """
    by_rule = policy.sizes_fixed or policy.rule
    if by_rule or not newly_on_bad(answer.problem, answer.allocation, answer.placement):
        return answer
    spared = solve(without_bad_nodes(problem), policy)
    answers = [(a.problem, a.allocation, a.placement) for a in (answer, spared)]
    if value_with_penalties(*answers[1]) <= value_with_penalties(*answers[0]):
        return answer
    # the nodes as they are, for what is decided after this
    return replace(spared, problem=replace(spared.problem, nodes=problem.nodes))


def _without_unplaceable(problem: Problem, allocated: Allocation) -> Allocation:
    """Return `allocated` without the Cells that can't be placed, with waiting jobs started on the GPUs left over."""
    placeable = within_limits(problem, make_placeable(problem, allocated.choice, allocated.moved_jobs))
    placement = place(problem.nodes, make_placement_requests(problem, placeable), problem.spanned_nodes)
    return placeable if placement.unplaced_reasons else fill(problem, placeable, placement.nodes)

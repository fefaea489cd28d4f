"""The second phase of an epoch: Cells and nodes for the jobs of the problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synergyd.links.model import Topology, build_topology
from synergyd.links.sharing import make_traffic, sharings
from synergyd.links.slowdown import Traffic
from synergyd.scheduler.epoch import Draft, Stage
from synergyd.scheduler.epoch_answer import EpochAnswer, solve, solve_due_first, weigh_bad_nodes
from synergyd.scheduler.exploration import explore, start_at_requested_size
from synergyd.scheduler.layout import place_by_rule
from synergyd.scheduler.placement.link_aware import place_link_aware
from synergyd.scheduler.problem.records import Policy


def make_topology(draft: Draft) -> Topology:
    """Return the links between the nodes of the problem."""
    links = draft.rules.links
    return build_topology(links.node_link, links.leaf_uplink, {node.name: node.leaf for node in draft.problem.nodes})


def find_outside_traffic(draft: Draft, topology: Topology) -> list[Traffic]:
    """Return what jobs outside of the problem send over the links."""
    flows = (make_traffic(i, one.cell, one.nodes, topology) for i, one in draft.untouched_jobs.items() if one.cell)
    return [one for one in flows if one is not None]


def _allocate(draft: Draft) -> Draft:
    answer, due = solve_due_first(draft.problem, draft.policy, draft.rules.objective)
    return replace(draft, answer=answer, due_problem=due)


def _spare_bad_nodes(draft: Draft) -> Draft:
    return replace(draft, answer=weigh_bad_nodes(draft.answer, draft.due_problem.problem, draft.policy))


def _start_at_requested_size(draft: Draft) -> Draft:
    answer = draft.answer
    if (
        draft.by_rule
        or (started := start_at_requested_size(answer.problem, answer.allocation, answer.placement)) is None
    ):
        return draft
    return replace(draft, answer=EpochAnswer(answer.problem, *started))


def _try_sizes(draft: Draft) -> Draft:
    answer = draft.answer
    if draft.by_rule or (trial := explore(answer.problem, answer.allocation, answer.placement)) is None:
        return draft
    allocation, placement, job, cell = trial
    return replace(draft, answer=EpochAnswer(answer.problem, allocation, placement), trial=(job, cell))


def _place_by_rule(draft: Draft) -> Draft:
    answer = draft.answer
    placement = place_by_rule(
        answer.problem,
        answer.allocation,
        answer.placement,
        draft.rules.links.placement,
        draft.untouched_jobs.values(),
    )
    return replace(draft, answer=replace(answer, placement=placement))


def _weigh_links(draft: Draft) -> Draft:
    if not draft.rules.links.link_aware:
        return draft
    topology = make_topology(draft)
    others = find_outside_traffic(draft, topology)
    return replace(draft, answer=weigh_links(draft.answer, draft.policy, topology, others))


def _forecast_sharing(draft: Draft) -> Draft:
    if not draft.rules.links.link_aware:
        return draft
    topology, answer, senders = make_topology(draft), draft.answer, []
    for i, cell, _ in answer.allocation.assignments(answer.problem):
        job_id = answer.problem.jobs[i].job_id
        senders.append(make_traffic(job_id, cell, answer.placement.nodes[job_id], topology))
    flows = [one for one in senders if one is not None]
    return replace(draft, sharing=sharings([*find_outside_traffic(draft, topology), *flows], topology))


def weigh_links(answer: EpochAnswer, policy: Policy, topology: Topology, others: Sequence[Traffic]) -> EpochAnswer:
    """Weigh what shared links cost (placement/link_aware.py).

    Where that gives a job a Cell of fewer GPUs, the GPUs that it leaves are allocated once more, and the better of the two
    answers is taken. `others`: traffic of jobs outside of the problem.
    """
    sizes = not policy.sizes_fixed and not policy.rule
    first = place_link_aware(answer.problem, answer.allocation, answer.placement, topology, others, sizes)
    as_placed = EpochAnswer(answer.problem, first.allocation, first.placement, first.away)
    if not first.away:
        return as_placed
    banned = tuple(
        replace(job, banned_cells=job.banned_cells | first.away.get(i, frozenset()))
        for i, job in enumerate(answer.problem.jobs)
    )
    again = solve(replace(answer.problem, jobs=banned), policy)
    second = place_link_aware(again.problem, again.allocation, again.placement, topology, others, sizes)
    if second.total <= first.total:
        return as_placed
    away = {i: first.away.get(i, frozenset()) | second.away.get(i, frozenset()) for i in {*first.away, *second.away}}
    return EpochAnswer(again.problem, second.allocation, second.placement, away)


SOLVE = (
    Stage(
        name="allocate",
        text="The policy chooses each job's Cell, due jobs first, and placement its nodes; if it fails, the choice is repeated.",
        run=_allocate,
    ),
    Stage(
        name="bad-nodes",
        text="If jobs get bad nodes, the answer is compared with one without those nodes.",
        run=_spare_bad_nodes,
    ),
    Stage(
        name="start-as-asked",
        text="Jobs that would start below their requested size get it, on GPUs that no other job needs.",
        run=_start_at_requested_size,
    ),
    Stage(
        name="try-sizes",
        text="One running job tries a larger size of uncertain goodput, on GPUs that no other job needs.",
        run=_try_sizes,
    ),
    Stage(name="layout", text="The setting Placement may give the same Cells other nodes.", run=_place_by_rule),
    Stage(
        name="links",
        text="With LinkAware, jobs get other nodes or another Cell if that costs less than shared links.",
        run=_weigh_links,
    ),
    Stage(name="sharing", text="With LinkAware, each job's cost of shared links is noted.", run=_forecast_sharing),
)

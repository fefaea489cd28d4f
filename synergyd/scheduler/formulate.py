"""The first phase of an epoch: from what was observed to the allocation's problem."""

from __future__ import annotations

import math
from dataclasses import replace

from synergy_core.records import Job, JobState
from synergy_core.restarts import RestartBudget, RestartCost

from synergyd.scheduler.epoch import Draft, Stage
from synergyd.scheduler.give_back import ForcedShrinks, give_back
from synergyd.scheduler.preemption import stoppable
from synergyd.scheduler.problem.first_start import within_reach
from synergyd.scheduler.problem.from_snapshot import UntouchedJob, classify_job, node_capacities
from synergyd.scheduler.problem.gpu_limits import usage_limits, with_own_limits
from synergyd.scheduler.problem.node_limits import NodeLimits
from synergyd.scheduler.problem.priorities import weights, with_claims, with_need_bonus, without_partial_nodes
from synergyd.scheduler.problem.records import JobRequest, Problem, Progress
from synergyd.scheduler.problem.restart_bound import with_horizon
from synergyd.scheduler.problem.room_rows import room_rows
from synergyd.scheduler.spares import with_spares

_UNKNOWN = Progress()


def _apply_forced_shrinks(draft: Draft) -> Draft:
    inputs = draft.inputs
    shrinks = give_back(inputs.snapshot, inputs.cells, inputs.current_plans)
    return replace(draft, shrinks=shrinks, snapshot=shrinks.snapshot)


def _classify(draft: Draft) -> Draft:
    inputs, rules, snapshot = draft.inputs, draft.rules, draft.snapshot
    weight = weights(snapshot.jobs, rules.weights, inputs.slurm_limits.fair_shares)
    # a peer goes by its paper, which knows of one cost for all jobs
    restarts = {} if draft.by_rule else inputs.restarts
    usual = RestartBudget(cost=RestartCost(mean_s=rules.restarts.cost_s))

    def classify(job: Job, others_wait: bool = False) -> JobRequest | UntouchedJob:
        return classify_job(
            job,
            snapshot,
            inputs.cells.get(job.job_id, ()),
            inputs.no_cell_reasons.get(job.job_id, ""),
            draft.shrinks.plans.get(job.job_id),
            inputs.ages_s.get(job.job_id, snapshot.time_s - job.submit_s),
            _budget(restarts.get(job.job_id, usual), rules.restarts.share, job.job_id in draft.shrinks.remaining_cells),
            inputs.progress.get(job.job_id, _UNKNOWN),
            weight[job.job_id],
            sizes_fixed=draft.policy.sizes_fixed,
            others_wait=others_wait,
        )

    waiting = {job.job_id: classify(job) for job in snapshot.jobs if job.state is JobState.PENDING}
    # a job that no node can take, such as one that asks for a thousand GPUs, is nobody to give GPUs back to
    others_wait = any(isinstance(one, JobRequest) for one in waiting.values())
    classified = tuple(waiting.get(job.job_id) or classify(job, others_wait) for job in snapshot.jobs)
    return replace(draft, requests_in_order=classified)


def _budget(budget: RestartBudget, share: float, gives_back: bool) -> RestartBudget:
    """Return the budget with its share; what goes back to others is not Synergy's choice, and counts against nothing."""
    return replace(budget, share=share, life_s=math.inf if gives_back else budget.life_s)


def _replace_lost_nodes(draft: Draft) -> Draft:
    rules = draft.rules
    spared = with_spares(draft.snapshot, draft.requests_in_order, rules.spares, rules.limits, draft.inputs.slurm_limits)
    remaining_cells = {**draft.shrinks.remaining_cells, **spared.remaining_cells}
    shrinks = ForcedShrinks(spared.snapshot, draft.shrinks.plans, remaining_cells, spared.reasons)
    lent = frozenset(spared.remaining_cells)
    return replace(
        draft, snapshot=spared.snapshot, requests_in_order=spared.jobs, shrinks=shrinks, spare_returners=lent
    )


def _bound_sizes(draft: Draft) -> Draft:
    asking = tuple(job for job in draft.requests_in_order if isinstance(job, JobRequest))
    requests = with_own_limits(asking, draft.inputs.slurm_limits)
    limits = NodeLimits(node_capacities(draft.snapshot, requests))
    return replace(draft, requests=tuple(limits.restrict_job(request) for request in requests))


def _claim(draft: Draft) -> Draft:
    inputs, rules, snapshot = draft.inputs, draft.rules, draft.snapshot
    nodes = node_capacities(snapshot, draft.requests)
    requests, fairness = with_claims(
        draft.requests, nodes, rules.objective, rules.claims, snapshot.time_s, inputs.typical_s
    )
    return replace(draft, requests=requests, fairness=fairness)


def _bound_changes(draft: Draft) -> Draft:
    requests = stoppable(draft.requests, draft.snapshot) if draft.rules.preemption else draft.requests
    if not draft.policy.rule:  # a peer goes by its paper
        requests = tuple(within_reach(with_horizon(request), draft.rules.objective) for request in requests)
    return replace(draft, requests=requests)


def _pose(draft: Draft) -> Draft:
    rules, snapshot, requests = draft.rules, draft.snapshot, draft.requests
    nodes, spanned = node_capacities(snapshot, requests), None
    if rules.links.one_multi_node_job_per_node:
        spanned = frozenset(name for one in draft.untouched_jobs.values() if len(one.nodes) > 1 for name in one.nodes)
    problem = Problem(
        requests if spanned is None else tuple(without_partial_nodes(request, nodes) for request in requests),
        nodes,
        with_need_bonus(rules.objective, requests),
        now_s=snapshot.time_s,
        restart_cost_s=rules.restarts.cost_s,
        limits=usage_limits(requests, snapshot.jobs, rules.limits, draft.inputs.slurm_limits),
        room=room_rows(requests, nodes),
        spanned_nodes=spanned,
        may_stop=rules.preemption,
        delays=draft.inputs.delays,
    )
    return replace(draft, problem=problem)


FORMULATE = (
    Stage(
        name="shrink",
        text="Jobs that must give GPUs back (others wait, their owner wants fewer) count as having done so.",
        run=_apply_forced_shrinks,
    ),
    Stage(
        name="classify",
        text="Each job gets candidate Cells, weight, age and restart budget, or a reason why it is left as it is.",
        run=_classify,
    ),
    Stage(
        name="spares",
        text="A job that lost a node gets a spare; a job whose start would leave too few spares waits.",
        run=_replace_lost_nodes,
    ),
    Stage(
        name="sizes",
        text="Cells beyond the job's limits in Slurm, or beyond any node's CPUs and memory, are ruled out.",
        run=_bound_sizes,
    ),
    Stage(
        name="claims",
        text="Deadlines, finish-time fairness and remaining time give jobs a need or another weight.",
        run=_claim,
    ),
    Stage(
        name="changes",
        text="Changes that don't repay their restart, stops and large first starts are ruled out.",
        run=_bound_changes,
    ),
    Stage(
        name="pose", text="Nodes, limits of accounts and partitions, CPUs and memory complete the problem.", run=_pose
    ),
)

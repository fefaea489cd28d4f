"""One epoch's decisions: allocate, place, and explain. A pure function of its arguments."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from synergyd.links.model import Topology, topology_of
from synergyd.links.sharing import sentence, sharings, traffic_of
from synergyd.links.slowdown import Traffic
from synergyd.records import Action, Cell, Decision, Plan, Snapshot
from synergyd.restarts import JobRestarts, RestartCost
from synergyd.scheduler.bad_nodes import words as bad_node_words
from synergyd.scheduler.cut_short import around_reservations
from synergyd.scheduler.delayed_starts import DALLY, NOT_DELAYED, DelayedStarts, with_delays
from synergyd.scheduler.due_jobs import DueProblem
from synergyd.scheduler.epoch_answer import EpochAnswer, solve, solve_due, weigh_bad_nodes
from synergyd.scheduler.explain import ExplanationContext, explain
from synergyd.scheduler.exploration import explore, start_as_asked, trial_words
from synergyd.scheduler.give_back import GivenBack, as_resize, give_back
from synergyd.scheduler.layout import laid_out
from synergyd.scheduler.move_caps import NO_CAPS, MoveCaps, within_caps
from synergyd.scheduler.placement.link_aware import place_link_aware
from synergyd.scheduler.policies.registry import policy_named
from synergyd.scheduler.preemption import stoppable
from synergyd.scheduler.problem.delays import NO_DELAYS, DelayHistory
from synergyd.scheduler.problem.first_start import within_reach
from synergyd.scheduler.problem.from_snapshot import UntouchedJob, classify_job, node_capacities
from synergyd.scheduler.problem.gpu_limits import (
    NO_SLURM_LIMITS,
    Allowance,
    SlurmLimits,
    usage_limits,
    with_own_limits,
)
from synergyd.scheduler.problem.node_limits import NodeLimits
from synergyd.scheduler.problem.priorities import (
    disbelief,
    likely_words,
    objective_of,
    weights,
    with_claims,
    with_need_bonus,
    without_partial_nodes,
)
from synergyd.scheduler.problem.records import (
    JobRequest,
    NodeCapacity,
    Policy,
    Problem,
    Progress,
)
from synergyd.scheduler.problem.restart_horizon import with_horizon
from synergyd.scheduler.problem.room_rows import room_rows
from synergyd.scheduler.problem.utility import relative_goodput, value_terms
from synergyd.scheduler.spares import with_spares
from synergyd.scheduler.turn import with_turns
from synergyd.scheduler.wake import leak_words, with_wakes
from synergyd.settings import Settings
from synergyd.shared_links import Sharing

_UNKNOWN = Progress()


def decide(
    snapshot: Snapshot,
    settings: Settings,
    cells: Mapping[int, tuple[Cell, ...]],
    no_cell_reasons: Mapping[int, str],
    current_plans: Mapping[int, Plan] | None = None,
    ages_s: Mapping[int, float] | None = None,
    policy: Policy | None = None,
    progress: Mapping[int, Progress] | None = None,
    typical_s: float | None = None,
    slurm_limits: SlurmLimits = NO_SLURM_LIMITS,
    caps: MoveCaps = NO_CAPS,
    restarts: Mapping[int, JobRestarts] | None = None,
    passed: Container[int] = (),
    delays: DelayHistory = NO_DELAYS,
) -> tuple[Decision, ...]:
    """One Decision per job of the snapshot, in its order.

    By job id: `cells`, `no_cell_reasons` (why a job has none), `current_plans` (of running jobs), `progress` and `ages_s`
    (Sia's T in seconds; without it the time since submission, which Slurm resets at each requeue). `typical_s`: the median
    training time of jobs that have ended, seconds. `policy` overrides the one that the settings name. Raises UsageError
    for an unknown policy name. `slurm_limits`: what Slurm's associations and QOS leave; `caps`: what the bounds on changes of
    running jobs leave. `restarts`: what restarts cost and have cost, by job id; RestartCost where it is not known, and for policies
    that go by a rule of their own. `passed`: waiting jobs that others without a directive passed. `delays`: of this snapshot, for Dally.

    A running job is stopped (Action.WAIT: it gives back all its GPUs) only with the setting Preemption; else it keeps at
    least its smallest Cell, whatever the policy. Held jobs, jobs with a wrong directive and fixed ones are not touched:
    the GPUs that they hold are not handed out, like those of other users of Slurm.
    """
    policy = policy or policy_named(settings.policy)
    held_jobs, given = snapshot.jobs, give_back(snapshot, cells, current_plans or {})
    snapshot, current_plans = given.snapshot, given.plans
    weight = weights(snapshot.jobs, settings, slurm_limits.fair_shares)
    known = {} if policy.rule or policy.sizes_fixed else restarts or {}
    ages = {job.job_id: (ages_s or {}).get(job.job_id, snapshot.time_s - job.submit_s) for job in snapshot.jobs}
    usual = JobRestarts(cost=RestartCost(mean_s=settings.restart_cost_s))
    sorted_jobs = [
        classify_job(
            job,
            snapshot,
            cells.get(job.job_id, ()),
            no_cell_reasons.get(job.job_id, ""),
            current_plans.get(job.job_id),
            ages[job.job_id],
            _restarts(known.get(job.job_id, usual), settings, job.job_id in given.left),
            (progress or {}).get(job.job_id, _UNKNOWN),
            weight[job.job_id],
            sizes_fixed=policy.sizes_fixed,
        )
        for job in snapshot.jobs
    ]
    spared = with_spares(snapshot, sorted_jobs, settings, slurm_limits)
    snapshot, sorted_jobs = spared.snapshot, list(spared.jobs)
    given, held_jobs = GivenBack(snapshot, given.plans, {**given.left, **spared.left}), spared.named(held_jobs)
    requests = with_own_limits(tuple(job for job in sorted_jobs if isinstance(job, JobRequest)), slurm_limits)
    pairs = zip(snapshot.jobs, sorted_jobs, strict=True)
    outside = {job.job_id: left for job, left in pairs if isinstance(left, UntouchedJob)}
    problem, fairness = _problem(requests, outside.values(), snapshot, settings, typical_s, slurm_limits, policy)
    solved, due = solve_due(replace(problem, delays=delays), policy, objective_of(settings))
    answer, tried = _explored(weigh_bad_nodes(solved, due.problem, policy), policy)
    answer, shared, delayed = _linked(answer, policy, settings, outside)
    told = _Told(answer, policy, fairness, shared, tried, problem.nodes, delayed)
    decisions = _decisions(snapshot, sorted_jobs, told, due, progress or {}, settings)
    as_held: Sequence[Decision] = [as_resize(d, job, given) for d, job in zip(decisions, held_jobs, strict=True)]
    # one for all: each takes from what the last one left
    allowance = Allowance(answer.problem, answer.allocation.choice)
    as_held = around_reservations(
        as_held,
        snapshot.jobs,
        answer.problem,
        answer.allocation,
        answer.placement,
        allowance,
        lead_s=settings.checkpoint_timeout_s + 2 * settings.epoch_s,
        sizes_fixed=policy.sizes_fixed or bool(policy.rule),
    )
    grows = not policy.sizes_fixed and not policy.rule
    woken = with_wakes(as_held, answer.problem, allowance, snapshot, grows=grows)
    turned = with_turns(woken, answer.problem, allowance, passed)
    return within_caps(turned, answer.problem, replace(caps, needed=caps.needed | spared.left.keys()))


def _decisions(
    snapshot: Snapshot,
    sorted_jobs: Sequence[JobRequest | UntouchedJob],
    told: _Told,
    due: DueProblem,
    progress: Mapping[int, Progress],
    settings: Settings,
) -> list[Decision]:
    """One for each job of the snapshot, with all that `explain` says of it."""
    decisions = []
    leaked = leak_words(snapshot.cluster.nodes)
    for job, sorted_job in zip(snapshot.jobs, sorted_jobs, strict=True):
        if isinstance(sorted_job, UntouchedJob):
            left = _untouched(job.job_id, sorted_job, told.shared.get(job.job_id))
            decisions.append(replace(left, why=left.why + job.barred_why))
            continue
        index = told.by_id[job.job_id]
        found = told.delayed.told(due.told(told.decision(job.job_id), index), index)
        how_far = progress.get(job.job_id, _UNKNOWN)
        note = disbelief(job, how_far, settings) + likely_words(how_far, settings)
        note += f" It keeps the size asked for: {job.fixed}." if job.own_plan and job.fixed else ""
        note += job.barred_why if found.action in (Action.WAIT, Action.KEEP) else ""
        note += leaked if found.action is Action.WAIT else bad_node_words(found, job, snapshot.penalties)
        decisions.append(replace(found, why=found.why + note) if note else found)
    return decisions


def _explored(answer: EpochAnswer, policy: Policy) -> tuple[EpochAnswer, tuple[int, int] | None]:
    """The answer with sizes that are started or tried on GPUs that nobody wants; the indices of the job that tries one and of that
    Cell."""
    if policy.rule or policy.sizes_fixed:
        return answer, None
    if (started := start_as_asked(answer.problem, answer.allocation, answer.placement)) is not None:
        answer = EpochAnswer(answer.problem, *started)
    if (trial := explore(answer.problem, answer.allocation, answer.placement)) is None:
        return answer, None
    allocation, placement, *tried = trial
    return EpochAnswer(answer.problem, allocation, placement), (tried[0], tried[1])


def _linked(
    answer: EpochAnswer, policy: Policy, settings: Settings, outside: Mapping[int, UntouchedJob]
) -> tuple[EpochAnswer, Mapping[int, Sharing], DelayedStarts]:
    """The answer with the setting Placement and shared links weighed, who shares which, and whose start is delayed."""
    if settings.placement == "pack" and not settings.link_aware:
        return answer, {}, NOT_DELAYED
    leaves = {node.name: node.leaf for node in answer.problem.nodes}
    topology = topology_of(settings.node_link, settings.leaf_uplink, leaves)
    others = [t for i, x in outside.items() if x.cell and (t := traffic_of(i, x.cell, x.nodes, topology)) is not None]
    laid = laid_out(
        answer.problem, answer.allocation, answer.placement, settings.placement, outside.values(), topology, others
    )
    answer = replace(answer, allocation=laid[0], placement=laid[1])
    if settings.link_aware:
        answer = weigh_links(answer, policy, topology, others)
    delayed = NOT_DELAYED
    if settings.placement == DALLY and not policy.rule:
        held = with_delays(answer.problem, answer.allocation, answer.placement, topology, others)
        answer, delayed = replace(answer, allocation=held[0], placement=held[1]), held[2]
    shared = sharings([*others, *_traffic(answer, topology)], topology) if settings.link_aware else {}
    return answer, shared, delayed


def _restarts(known: JobRestarts, settings: Settings, gives_back: bool) -> JobRestarts:
    """With the share that they may take: what goes back to plain jobs is not Synergy's choice."""
    return replace(known, share=settings.restart_share, life_s=math.inf if gives_back else known.life_s)


def _problem(
    requests: tuple[JobRequest, ...],
    outside: Iterable[UntouchedJob],
    snapshot: Snapshot,
    settings: Settings,
    typical_s: float | None,
    slurm_limits: SlurmLimits,
    policy: Policy,
) -> tuple[Problem, dict[int, float]]:
    """The allocation's problem, and by job id the finish-time fairness as far as it is known."""
    terms, nodes = objective_of(settings), node_capacities(snapshot, requests)
    limits_of_nodes = NodeLimits(nodes)
    requests = tuple(limits_of_nodes.bound(request) for request in requests)
    requests, fairness = with_claims(requests, nodes, terms, settings, snapshot.time_s, typical_s)
    requests = stoppable(requests, snapshot) if settings.preemption else requests
    if not policy.rule:  # a peer goes by its paper
        requests = tuple(within_reach(with_horizon(request), terms) for request in requests)
    limits = usage_limits(requests, snapshot.jobs, settings, slurm_limits)
    spanned = None
    if settings.one_multi_node_job_per_node:
        spanned = frozenset(name for left in outside if len(left.nodes) > 1 for name in left.nodes)
    problem = Problem(
        requests if spanned is None else tuple(without_partial_nodes(request, nodes) for request in requests),
        nodes,
        with_need_bonus(terms, requests),
        now_s=snapshot.time_s,
        restart_cost_s=settings.restart_cost_s,
        limits=limits,
        room=room_rows(requests, nodes),
        spanned=spanned,
        may_stop=settings.preemption,
    )
    return problem, fairness


def weigh_links(answer: EpochAnswer, policy: Policy, topology: Topology, others: Sequence[Traffic]) -> EpochAnswer:
    """The answer with shared links weighed (link_aware.py). Where that gives a job a Cell of fewer GPUs, the GPUs that it leaves
    are allocated once more, and the better of the two answers is taken."""
    sizes = not policy.sizes_fixed and not policy.rule
    first = place_link_aware(answer.problem, answer.allocation, answer.placement, topology, others, sizes)
    as_placed = EpochAnswer(answer.problem, first.allocation, first.placement, first.away)
    if not first.away:
        return as_placed
    banned = tuple(
        replace(job, banned=job.banned | first.away.get(i, frozenset())) for i, job in enumerate(answer.problem.jobs)
    )
    again = solve(replace(answer.problem, jobs=banned), policy)
    second = place_link_aware(again.problem, again.allocation, again.placement, topology, others, sizes)
    if second.total <= first.total:
        return as_placed
    away = {i: first.away.get(i, frozenset()) | second.away.get(i, frozenset()) for i in {*first.away, *second.away}}
    return EpochAnswer(again.problem, second.allocation, second.placement, away)


def _traffic(answer: EpochAnswer, topology: Topology) -> list[Traffic]:
    """Of every job that has a Cell and sends between nodes."""
    senders = []
    for i, cell, _ in answer.allocation.taken(answer.problem):
        job_id = answer.problem.jobs[i].job_id
        sends = traffic_of(job_id, cell, answer.placement.nodes[job_id], topology)
        senders += [] if sends is None else [sends]
    return senders


def _untouched(job_id: int, left: UntouchedJob, shared: Sharing | None) -> Decision:
    why = left.why + sentence(shared)
    return Decision(job_id, left.action, left.cell, left.nodes, why, left.relative_goodput, sharing=shared)


class _Told:
    """An answer's decisions with their reasons. `tried`: the indices of the job that tries a size and of that Cell. `nodes`: with
    what is kept for jobs that are due."""

    def __init__(
        self,
        answer: EpochAnswer,
        policy: Policy,
        fairness: Mapping[int, float],
        shared: Mapping[int, Sharing],
        tried: tuple[int, int] | None,
        nodes: Sequence[NodeCapacity] | None = None,
        delayed: DelayedStarts = NOT_DELAYED,
    ) -> None:
        self.delayed = delayed
        self._answer, self._fairness, self.shared, self._tried = answer, fairness, shared, tried
        self._context = ExplanationContext(
            answer.problem,
            answer.allocation,
            answer.placement,
            sizes_fixed=policy.sizes_fixed,
            rule=policy.rule,
            away=answer.away,
            nodes=nodes,
        )
        self.by_id = {request.job_id: i for i, request in enumerate(answer.problem.jobs)}

    def decision(self, job_id: int) -> Decision:
        index, answer = self.by_id[job_id], self._answer
        fairness, shared = self._fairness.get(job_id), self.shared.get(job_id)
        job, terms = answer.problem.jobs[index], answer.problem.terms
        choice = answer.allocation.choice[index]
        if choice is None:
            why, alternatives = explain(self._context, index, Action.WAIT)
            worth = value_terms(job, None, False, terms)
            return Decision(job_id, Action.WAIT, None, (), why, None, alternatives, worth, fairness)
        nodes = answer.placement.nodes[job_id]
        action = _action(job, choice, nodes)
        why, alternatives = explain(self._context, index, action)
        cell = job.cells[choice]
        worth = value_terms(job, choice, action is Action.KEEP, terms, shared.slowdown if shared else 1.0)
        relative = relative_goodput(cell, job.cells, job.asked)
        why = trial_words(answer.problem, answer.allocation, index) if self._tries(index, action) else why
        why += sentence(shared)
        return Decision(job_id, action, cell, _hosts(nodes), why, relative, alternatives, worth, fairness, shared)

    def _tries(self, index: int, action: Action) -> bool:
        # links may have given it another Cell
        return action is Action.RESIZE and (index, self._answer.allocation.choice[index]) == self._tried


def _hosts(names: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes' own names, of those that tell a node's types of GPUs apart."""
    return tuple(name.partition(":")[0] for name in names)


def _action(job: JobRequest, choice: int, nodes: tuple[str, ...]) -> Action:
    if job.current is None:
        return Action.START
    if choice == job.current and set(nodes) == set(job.nodes):
        return Action.KEEP
    return Action.RESIZE

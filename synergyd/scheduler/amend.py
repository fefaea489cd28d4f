"""The third phase of an epoch: decisions with their reasons, and what happens around the allocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synergy_core.reasons import Reason, text_reason
from synergy_core.records import Action, Decision, Job
from synergy_core.shared_links import Sharing

from synergyd.links.sharing import sharing_reasons
from synergyd.scheduler.bad_nodes import bad_node_reasons
from synergyd.scheduler.cut_short import avoid_reservations
from synergyd.scheduler.epoch import Draft, Stage
from synergyd.scheduler.explain import ExplanationContext, explain
from synergyd.scheduler.exploration import trial_reason
from synergyd.scheduler.give_back import to_resize_decision
from synergyd.scheduler.move_caps import within_caps
from synergyd.scheduler.problem.from_snapshot import UntouchedJob
from synergyd.scheduler.problem.gpu_limits import Allowance
from synergyd.scheduler.problem.priorities import disbelief, likely_length
from synergyd.scheduler.problem.records import JobRequest, Progress
from synergyd.scheduler.problem.utility import relative_goodput, value_terms
from synergyd.scheduler.turn import release_overtaken_jobs
from synergyd.scheduler.wake import leaked_gpus, with_wakes

_UNKNOWN = Progress()


class DecisionBuilder:
    """The decisions of a solved epoch with their reasons."""

    def __init__(self, draft: Draft) -> None:
        answer = draft.answer
        self._draft, self._answer = draft, answer
        self._context = ExplanationContext(
            answer.problem,
            answer.allocation,
            answer.placement,
            sizes_fixed=draft.policy.sizes_fixed,
            rule=draft.policy.rule,
            away=answer.away,
            nodes=draft.problem.nodes,
        )
        self.by_id = {request.job_id: i for i, request in enumerate(answer.problem.jobs)}

    def decision(self, job_id: int) -> Decision:
        """Return the decision about a job of the problem."""
        index, answer, draft = self.by_id[job_id], self._answer, self._draft
        fairness, shared = draft.fairness.get(job_id), draft.sharing.get(job_id)
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
        relative = relative_goodput(cell, job.cells, job.requested_cell)
        # links may have given a job that tries a size another Cell
        if action is Action.RESIZE and (index, choice) == draft.trial:
            why = (trial_reason(answer.problem, answer.allocation, index),)
        why += sharing_reasons(shared)
        hosts = tuple(name.partition(":")[0] for name in nodes)  # without the type of GPUs behind a node's own name
        return Decision(job_id, action, cell, hosts, why, relative, alternatives, worth, fairness, shared)


def _action(job: JobRequest, choice: int, nodes: tuple[str, ...]) -> Action:
    if job.current is None:
        return Action.START
    if choice == job.current and set(nodes) == set(job.nodes):
        return Action.KEEP
    return Action.RESIZE


def _untouched_decision(job_id: int, one: UntouchedJob, shared: Sharing | None) -> Decision:
    why = (one.reason, *sharing_reasons(shared))
    return Decision(job_id, one.action, one.cell, one.nodes, why, one.relative_goodput, sharing=shared)


def _explain(draft: Draft) -> Draft:
    builder, rules, snapshot = DecisionBuilder(draft), draft.rules, draft.snapshot
    decisions, leaked = [], leaked_gpus(snapshot.cluster.nodes)
    for job, one in zip(snapshot.jobs, draft.requests_in_order, strict=True):
        if isinstance(one, UntouchedJob):
            decision = _untouched_decision(job.job_id, one, draft.sharing.get(job.job_id))
            decisions.append(replace(decision, reasons=decision.reasons + text_reason(job.barred_why.strip())))
            continue
        decision = draft.due_problem.annotate(builder.decision(job.job_id), builder.by_id[job.job_id])
        if decision.action is Action.WAIT and job.job_id in draft.wait_reasons:
            decision = replace(decision, reasons=(draft.wait_reasons[job.job_id],))
        progress = draft.inputs.progress.get(job.job_id, _UNKNOWN)
        notes = disbelief(job, progress, rules.weights.max_weight) + likely_length(progress, rules.claims.short_first)
        if job.own_plan and job.fixed:
            notes += (Reason("keeps-asked-size", {"because": job.fixed}),)
        if decision.action in (Action.WAIT, Action.KEEP):
            notes += text_reason(job.barred_why.strip())
        notes += leaked if decision.action is Action.WAIT else bad_node_reasons(decision, job, snapshot.penalties)
        decisions.append(replace(decision, reasons=decision.reasons + notes))
    return replace(draft, decisions=tuple(decisions))


def _carry_out_shrinks(draft: Draft) -> Draft:
    pairs = zip(draft.decisions, draft.inputs.snapshot.jobs, strict=True)
    decisions = tuple(to_resize_decision(decision, job, draft.shrinks) for decision, job in pairs)
    allowance = Allowance(draft.answer.problem, draft.answer.allocation.choice)
    return replace(draft, decisions=decisions, allowance=allowance)


def _avoid_reservations(draft: Draft) -> Draft:
    answer = draft.answer
    decisions: Sequence[Decision] = avoid_reservations(
        draft.decisions,
        draft.snapshot.jobs,
        answer.problem,
        answer.allocation,
        answer.placement,
        draft.allowance,
        lead_s=draft.rules.restarts.reservation_lead_s,
        sizes_fixed=draft.by_rule,
    )
    return replace(draft, decisions=tuple(decisions))


def _wake_nodes(draft: Draft) -> Draft:
    grows = not draft.by_rule
    decisions = with_wakes(draft.decisions, draft.answer.problem, draft.allowance, draft.snapshot, grows=grows)
    return replace(draft, decisions=decisions)


def _takes_turns(job: Job) -> bool:
    """Return whether another order than Slurm's cannot serve the job: it keeps its size, and its user puts no others first."""
    return bool(job.fixed) and job.directive is not None and job.directive.weight >= 1.0


def _release_overtaken(draft: Draft) -> Draft:
    inputs = draft.inputs
    overtaken = {
        job.job_id
        for job in draft.snapshot.jobs
        if job.job_id in inputs.overtaken or (job.job_id in inputs.outrun and _takes_turns(job))
    }
    decisions = release_overtaken_jobs(draft.decisions, draft.answer.problem, draft.allowance, overtaken)
    return replace(draft, decisions=decisions)


def _cap_changes(draft: Draft) -> Draft:
    caps = draft.inputs.caps
    caps = replace(caps, urgent_jobs=caps.urgent_jobs | draft.spare_returners)
    return replace(draft, decisions=within_caps(draft.decisions, draft.answer.problem, caps))


AMEND = (
    Stage(
        name="explain",
        text="Each job gets its decision, the reason, and the best Cells that it did not get.",
        run=_explain,
    ),
    Stage(
        name="give-back",
        text="A job that keeps only what a forced shrink leaves is resized to that.",
        run=_carry_out_shrinks,
    ),
    Stage(
        name="reservations",
        text="Jobs whose nodes a reservation takes are moved or shrunk if they then end sooner.",
        run=_avoid_reservations,
    ),
    Stage(
        name="wake",
        text="Waiting jobs start on powered-down nodes, which Slurm wakes; running ones may grow onto them.",
        run=_wake_nodes,
    ),
    Stage(
        name="overtaken",
        text="Waiting jobs that plain jobs have overtaken, or any if they keep their size, are released into Slurm's queue.",
        run=_release_overtaken,
    ),
    Stage(
        name="caps",
        text="If the number of changes is bounded, those that gain most go first.",
        run=_cap_changes,
    ),
)

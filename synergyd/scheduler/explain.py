"""An epoch's answer explained: the reason for each job's Cell, and why it got no other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from synergy_core.formatting import format_exchange, format_plan, format_shape, format_size
from synergy_core.reasons import Reason, Reasons, nest_reason, reason_codes
from synergy_core.records import Action, Alternative, Cell, Shape

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.place import Placement
from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.first_start import reach_obstacle
from synergyd.scheduler.problem.gpu_limits import Allowance, format_limit, own_limit_obstacle
from synergyd.scheduler.problem.records import Allocation, JobRequest, NodeCapacity, NodeFilter, Problem, count_gpus
from synergyd.scheduler.problem.restart_bound import restart_bound_obstacle
from synergyd.scheduler.problem.utility import change_value, is_growth_refused, payback_s, smallest, stay_value

_ALTERNATIVES = 5
_WEIGHED = 1e-3  # a certified gap below which every alternative counts as weighed
_NAMED = 3  # rival jobs named in a sentence


class ExplanationContext:
    """An epoch's answer with the figures that every explanation needs, computed once.

    `sizes_fixed` and `rule` are the policy's. `away`: by index of the job, the Cells that it did not get because of links that
    it would share. `nodes`: those of the cluster, with the GPUs that the problem keeps for jobs that are due (None: it keeps
    none).
    """

    def __init__(
        self,
        problem: Problem,
        allocation: Allocation,
        placement: Placement,
        sizes_fixed: bool = False,
        rule: str = "",
        away: Mapping[int, frozenset[int]] | None = None,
        nodes: Sequence[NodeCapacity] | None = None,
    ) -> None:
        self._nodes = problem.nodes if nodes is None else nodes
        self.away = away or {}
        self.problem, self.allocation, self.placement = problem, allocation, placement
        self.sizes_fixed, self.rule = sizes_fixed, rule
        self.empty, self.left = FreeGpus(self._nodes), FreeGpus(problem.nodes)
        for i, cell, _ in allocation.assignments(problem):
            request = problem.jobs[i]
            self.left.take(placement.nodes[request.job_id], cell.shape.gpus_per_node, request.needs)
        self.capacity = count_gpus(self._nodes)
        self.weighed = allocation.optimal or allocation.gap <= _WEIGHED or bool(self.away)
        self.allowance = Allowance(problem, allocation.choice)
        self._free: dict[tuple[NodeFilter, str], int] = {}
        self._fit: dict[tuple[NodeFilter, Shape], int] = {}  # nodes with the GPUs of a shape, whatever else is in use
        self._explained: dict[Hashable, tuple[Reasons, tuple[Alternative, ...]]] = {}
        self.winners: dict[str, list[tuple[int, int | None, int]]] = defaultdict(list)  # (job, GPUs before, GPUs then)
        for i, cell, stays in allocation.assignments(problem):
            request = problem.jobs[i]
            old = None if request.current is None else request.cells[request.current].shape
            before = old.gpus if old and old.gpu_type == cell.shape.gpu_type else 0
            if not stays and cell.shape.gpus > before:
                self.winners[cell.shape.gpu_type].append((request.job_id, before if old else None, cell.shape.gpus))
        for winners in self.winners.values():
            winners.sort(key=lambda winner: ((winner[1] or 0) - winner[2], winner[0]))
        self._winning = {(gpu_type, winner[0]) for gpu_type, winners in self.winners.items() for winner in winners}

    def rivals(self, gpu_type: str, but: int) -> list[list[int | None]]:
        """Return the jobs that start or grow most on GPUs of this type, as (job, GPUs before or None, GPUs then)."""
        first = [winner for winner in self.winners.get(gpu_type, [])[: _NAMED + 1] if winner[0] != but]
        return [list(winner) for winner in first[:_NAMED]]

    def more_rivals(self, gpu_type: str, but: int) -> int:
        """Return how many jobs beyond `rivals` start or grow there."""
        count = len(self.winners.get(gpu_type, [])) - ((gpu_type, but) in self._winning)
        return max(0, count - _NAMED)

    def waits(self, index: int) -> tuple[Reasons, tuple[Alternative, ...]]:
        """Explain jobs[index], which waits and goes on waiting; computed once for all jobs like it."""
        job = self.problem.jobs[index]
        like = (
            id(job.cells),
            job.banned_cells,
            job.node_filter,
            job.needs,
            job.account,
            tuple(limit.rate(job) for limit in self.problem.limits),
            tuple(limit.most for limit in job.own_limits),
        )  # nothing else of a waiting job is part of a reason
        if like not in self._explained:
            self._explained[like] = _waits(self, job), _alternatives(self, index)
        return self._explained[like]

    def fits_empty(self, job: JobRequest, cell: Cell) -> bool:
        """Return whether the Cell would fit if no other job of this problem had GPUs."""
        return self.empty.count(cell.shape, job.node_filter, needs=job.needs) >= cell.shape.nodes

    def lacks_room(self, job: JobRequest, cell: Cell) -> bool:
        """Return whether the Cell would fit on the empty nodes but for what the job asks beside GPUs, or for the nodes that it names."""
        anywhere = job.node_filter._replace(excluded_nodes=(), required_nodes=())
        shape, key = cell.shape, (anywhere, cell.shape)
        if self.fits_empty(job, cell):
            return False
        if key not in self._fit:
            nodes = (n for n in self._nodes if n.gpu_type == shape.gpu_type and n.admits(anywhere))
            self._fit[key] = sum(n.free + n.unusable_gpus >= shape.gpus_per_node for n in nodes)
        return self._fit[key] >= shape.nodes

    def would_fit(self, job: JobRequest, own_nodes: tuple[tuple[str, ...], int] | None, cell: Cell) -> bool:
        """Return whether the Cell would fit on what is left over, the job's own (node names, GPUs on each) given back."""
        names, gpus = own_nodes or ((), 0)
        return self.left.count(cell.shape, job.node_filter, names, gpus, job.needs) >= cell.shape.nodes

    def free(self, job: JobRequest, gpu_type: str) -> int:
        """Return the number of GPUs left over on nodes that the job may use."""
        key = job.node_filter, gpu_type
        if key not in self._free:
            nodes = [r for r in self.problem.nodes if r.gpu_type == gpu_type and r.admits(job.node_filter)]
            self._free[key] = sum(self.left.free[r.name] for r in nodes)
        return self._free[key]


def explain(context: ExplanationContext, index: int, action: Action) -> tuple[Reasons, tuple[Alternative, ...]]:
    """Return (why, the best other Cells with why not) for jobs[index]."""
    job = context.problem.jobs[index]
    choice = context.allocation.choice[index]
    if choice is None and job.current is None:
        return context.waits(index)
    others = _alternatives(context, index)
    if choice is None:
        return _explain_stop(context, job), others
    own_cell = job.cells[choice]
    better = next((a for a in others if a.cell.goodput > own_cell.goodput), None)
    first: Reasons = ()
    if _is_needed(job, choice, action) and not context.rule:
        first = (Reason("comes-first", {"because": job.need_why}),)
    tail = first
    if better is not None and own_cell.goodput > 0:
        gain = _percent(own_cell.goodput, better.cell.goodput)
        size = format_shape(better.cell.shape)
        tail += (Reason("better-size", {"size": size, "gain": gain, "because": nest_reason(better.reason)}),)
    less = _exchange(job, choice)
    if action is Action.START:
        return (Reason("starts", {"size": _what(own_cell), "goodput": _goodput(job, choice)}), *less, *tail), others
    if action is Action.KEEP:
        keeps = Reason("keeps", {"size": _what(own_cell), "goodput": _goodput(job, choice)})
        return (keeps, *less, *tail, *_restart(job, tail)), others
    why = (_changes(context, job, choice), *less, *first)
    return (*why, *_restart(job, why)), others


def _what(cell: Cell) -> str:
    return format_size(cell.shape, cell.plan if cell.goodput > 0 else None)


def _rate(goodput: float) -> str:
    return f"{goodput:.3g}"


def _percent(now: float, then: float) -> str:
    return f"{(then / now - 1) * 100:+.0f} %"


def _goodput(job: JobRequest, choice: int) -> str:
    goodput = job.cells[choice].goodput
    if goodput <= 0:
        return "its goodput can't be predicted"
    text = f"predicted goodput {_rate(goodput)} sequences/s"
    if job.requested_cell is not None and job.requested_cell != choice:
        share, asked_gpus = goodput / job.cells[job.requested_cell].goodput, job.cells[job.requested_cell].shape.gpus
        text += f", {share * 100:.0f} % of that of the size asked for ({asked_gpus} GPU{'s' * (asked_gpus != 1)})"
    return text


def _changes(context: ExplanationContext, job: JobRequest, choice: int) -> Reason:
    old, new = job.cells[job.current or 0], job.cells[choice]
    percent = _percent(old.goodput, new.goodput)
    rates = f"predicted goodput {_rate(old.goodput)} -> {_rate(new.goodput)} sequences/s ({percent})"
    cost = job.change_cost(choice)
    back_s = payback_s(old.goodput, new.goodput, cost.mean_s)
    paid = nest_reason(Reason("paid-back", {"cost": cost.format(), "payback_s": back_s}))
    fields = {"rates": rates, "because": paid if new.goodput > old.goodput else _gives(context, job)}
    if new.shape == old.shape and new.plan == old.plan:
        return Reason("moves", {"size": format_shape(new.shape), "because": _gives(context, job)})
    if new.shape == old.shape:
        plans = {"old_plan": format_plan(old.plan), "plan": format_plan(new.plan)}
        return Reason("changes-plan", {"size": format_shape(new.shape), **plans, **fields})
    code = "grows" if new.shape.gpus > old.shape.gpus else "shrinks" if new.shape.gpus < old.shape.gpus else "changes"
    return Reason(code, {"old_size": format_shape(old.shape), "size": _what(new), **fields})


def _gives(context: ExplanationContext, job: JobRequest) -> str | dict[str, Any]:
    """Return what the others gain by the change: the policy's rule as a text, or a reason of its own."""
    gpu_type = job.cells[job.current or 0].shape.gpu_type
    if context.rule:
        return context.rule
    if not (rivals := context.rivals(gpu_type, job.job_id)):
        return nest_reason(Reason("all-gain-more"))
    return nest_reason(Reason("gain-more", {"groups": [[rivals, context.more_rivals(gpu_type, job.job_id)]]}))


def _restart(job: JobRequest, reasons: Reasons) -> Reasons:
    """Return what its own restarts have cost, unless `reasons` say it already."""
    cost = job.restart.cost.format()
    if not job.restart.cost.own or reason_codes(reasons) & {"paid-back", "restart-bound"}:
        return ()
    return (Reason("restart-cost", {"cost": cost}),)


def _exchange(job: JobRequest, choice: int) -> Reasons:
    """Return what less communication saves and costs, beside the best plan of the shape that exchanges every gradient."""
    own_cell, cells = job.cells[choice], CellIndex.build(job.cells)
    if own_cell.plan.exchange == "exact":
        return ()
    shape = own_cell.shape
    same = (cells[i] for i in cells.by_shape[shape.gpu_type, shape.nodes, shape.gpus_per_node])
    exact = next((cell for cell in same if cell.plan.exchange == "exact"), None)
    words = format_exchange(own_cell, exact) if exact is not None else ""
    return (Reason("exchange", {"words": f"{words[0].upper()}{words[1:]}"}),) if words else ()


def _is_needed(job: JobRequest, choice: int, action: Action) -> bool:
    need = job.need_after_restart if action is Action.RESIZE else job.needed_goodput
    return 0 < need <= job.cells[choice].goodput


def _waits(context: ExplanationContext, job: JobRequest) -> Reasons:
    cell = job.cells[smallest(job.cells)]
    least = {"least": format_shape(cell.shape)}
    cells = CellIndex.build(job.cells)
    possible = [c.shape for c in (cells[own[0]] for own in cells.by_shape.values()) if context.fits_empty(job, c)]
    if not possible and context.lacks_room(job, cell):
        return (Reason("no-room", {**least, "because": nest_reason(Reason("needs-room"))}),)
    if not possible:
        total = context.capacity.get(cell.shape.gpu_type, 0)
        return (Reason("too-few-gpus", {**least, "gpus": total, "gpu_type": cell.shape.gpu_type}),)
    if beyond := own_limit_obstacle(job, smallest(job.cells)):
        return (Reason("limited", {**least, "because": beyond}),)
    full = context.allowance.find_exceeded_limit(job, None, smallest(job.cells))
    if full is not None:
        return (Reason("limited", {**least, "because": format_limit(*full)}),)
    if context.rule:
        return (Reason("rule", {"because": context.rule}),)
    types = sorted({shape.gpu_type for shape in possible})
    total = sum(context.capacity.get(t, 0) for t in types)
    free = sum(context.free(job, t) for t in types)
    if free >= min(shape.gpus for shape in possible):
        return (Reason("scattered", {**least, "free_gpus": free}),)
    stops = "running jobs are shrunk for others but never stopped"
    if context.problem.may_stop:
        stops = "none of those that run gains less than a restart costs"
    kinds = " and ".join(types)
    why = Reason("outweighed", {**least, "free_gpus": free, "gpus": total, "gpu_types": kinds, "because": stops})
    groups = [[rivals, context.more_rivals(t, job.job_id)] for t in types if (rivals := context.rivals(t, job.job_id))]
    return (why, *(Reason("gpus-went-to", {"groups": groups}) for _ in groups[:1]))


def _explain_stop(context: ExplanationContext, job: JobRequest) -> Reasons:
    shape = job.cells[job.current or 0].shape
    rule = f": {context.rule}" if context.rule else ""
    why = Reason("preempted", {"size": format_shape(shape), "rule": rule})
    rivals, more = context.rivals(shape.gpu_type, job.job_id), context.more_rivals(shape.gpu_type, job.job_id)
    return (why, Reason("gpus-go-to", {"groups": [[rivals, more]]})) if rivals else (why,)


def _alternatives(context: ExplanationContext, index: int) -> tuple[Alternative, ...]:
    """Return the best Cell of each other shape and the best other plan of the chosen shape, best goodput first."""
    job = context.problem.jobs[index]
    choice = context.allocation.choice[index]
    cells = CellIndex.build(job.cells)
    first = [i for i in cells.best_of_each_shape[: _ALTERNATIVES + 1] if i != choice]
    if choice is not None:
        shape = cells[choice].shape
        same = cells.by_shape[shape.gpu_type, shape.nodes, shape.gpus_per_node]
        if same[0] == choice and len(same) > 1:
            first.append(same[1])
            first.sort(key=lambda i: (-cells[i].goodput, i))
    stay = stay_value(job, context.problem.terms) if job.current is not None else 0.0
    return tuple(Alternative(cells[i], _why_not(context, index, i, stay)) for i in first[:_ALTERNATIVES])


def _why_not(context: ExplanationContext, index: int, i: int, stay: float) -> Reason:
    """Return why jobs[index] did not get its Cell `i`. `stay`: the value of going on as it is, for a running job."""
    job, terms = context.problem.jobs[index], context.problem.terms
    choice = context.allocation.choice[index]
    cell = job.cells[i]
    shape, goodput = cell.shape, cell.goodput
    own_cell = None if choice is None else job.cells[choice]
    if context.lacks_room(job, cell):
        return Reason("needs-room")
    if not context.fits_empty(job, cell):
        return Reason("too-large", {"size": format_shape(shape)})
    if i in context.away.get(index, ()):
        return Reason("would-share-links")
    if beyond := own_limit_obstacle(job, i):
        return Reason("own-limit", {"text": beyond})
    if beyond := restart_bound_obstacle(job, i):
        return Reason("restart-bound", {"text": beyond})
    if not context.rule and (beyond := reach_obstacle(job, i, terms)):
        return Reason("first-start", {"text": beyond})
    if i in job.banned_cells:
        return Reason("unplaceable")
    if context.sizes_fixed:
        return Reason("fixed-sizes")
    full = context.allowance.find_exceeded_limit(job, choice, i)
    if full is not None:
        return Reason("limit", {"text": format_limit(*full)})
    if context.rule:
        return Reason("other-rule", {"rule": context.rule})
    if is_growth_refused(job, i, terms):
        return Reason("growth-bound", {"max_growth": terms.max_growth})
    gpus = shape.nodes * shape.gpus_per_node
    if own_cell is not None and goodput <= own_cell.goodput:
        lower = f"goodput {_percent(own_cell.goodput, goodput)}" if own_cell.goodput > 0 else "no better"
        return Reason("worse-on-fewer" if gpus < own_cell.shape.gpus else "worse-on-more", {"goodput": lower})
    if job.current is not None and i != job.current and change_value(job, i, terms) <= stay:
        gain = _percent(job.cells[job.current].goodput, goodput)
        return Reason("not-repaid", {"gain": gain, "cost": job.change_cost(i).format()})
    own = own_cell.shape.gpus if own_cell is not None and own_cell.shape.gpu_type == shape.gpu_type else 0
    missing = gpus - own - context.free(job, shape.gpu_type)
    if missing > 0:
        return Reason("others-gain", {"gpus": missing, "s": "s" * (missing != 1)})
    own_nodes = None if own_cell is None else (context.placement.nodes[job.job_id], own_cell.shape.gpus_per_node)
    if not context.would_fit(job, own_nodes, cell):
        return Reason("not-beside")
    if job.current is None and own_cell is not None and choice == job.requested_cell and gpus < own_cell.shape.gpus:
        return Reason("as-asked", {"gpus": own_cell.shape.gpus})
    return Reason("no-gain" if context.weighed else "not-weighed")

"""An epoch's answer in words: the reason for each job's Cell, and why it got no other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

from synergyd.records import Action, Alternative, Cell, Shape
from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.place import Placement
from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.first_start import beyond_reach
from synergyd.scheduler.problem.gpu_limits import Allowance, beyond_own, limit_words
from synergyd.scheduler.problem.records import Allocation, JobRequest, NodeCapacity, NodeFilter, Problem, capacity_of
from synergyd.scheduler.problem.restart_bound import beyond_bound
from synergyd.scheduler.problem.utility import beyond_growth, change_value, payback_s, smallest, stay_value
from synergyd.words import exchange_words, plan_words, shape_words, size_words

_ALTERNATIVES = 5
_WEIGHED = 1e-3  # a certified gap below which every alternative counts as weighed
_NO_ROOM = "too few of the nodes that it may use have the CPUs, memory and the like free that it asks for beside GPUs"
_NAMED = 3  # rival jobs named in a sentence


class ExplanationContext:
    """An epoch's answer with the figures that every explanation needs, computed once. `sizes_fixed` and `rule` are the
    policy's. `away`: by index of the job, the Cells that it did not get because of links that it would share. `nodes`: those of the
    cluster, with the GPUs that the problem keeps for jobs that are due (None: it keeps none)."""

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
        for i, cell, _ in allocation.taken(problem):
            request = problem.jobs[i]
            self.left.take(placement.nodes[request.job_id], cell.shape.gpus_per_node, request.needs)
        self.capacity = capacity_of(self._nodes)
        self.weighed = allocation.optimal or allocation.gap <= _WEIGHED or bool(self.away)
        self.allowance = Allowance(problem, allocation.choice)
        self._free: dict[tuple[NodeFilter, str], int] = {}
        self._fit: dict[tuple[NodeFilter, Shape], int] = {}  # nodes with the GPUs of a shape, whatever else is in use
        self._told: dict[Hashable, tuple[str, tuple[Alternative, ...]]] = {}
        self.winners: dict[str, list[tuple[int, int, str]]] = defaultdict(list)  # type -> (-GPUs gained, job, words)
        for i, cell, stays in allocation.taken(problem):
            request = problem.jobs[i]
            old = None if request.current is None else request.cells[request.current].shape
            before = old.gpus if old and old.gpu_type == cell.shape.gpu_type else 0
            if not stays and cell.shape.gpus > before:
                words = (
                    f"job {request.job_id} ({before} -> {cell.shape.gpus})"
                    if old
                    else f"job {request.job_id} (starts on {cell.shape.gpus})"
                )
                self.winners[cell.shape.gpu_type].append((before - cell.shape.gpus, request.job_id, words))
        for winners in self.winners.values():
            winners.sort()
        self._winning = {(gpu_type, job) for gpu_type, winners in self.winners.items() for _, job, _ in winners}

    def rivals(self, gpu_type: str, but: int) -> str:
        """The jobs that start or grow on GPUs of this type, in words; "" if there are none."""
        winners = self.winners.get(gpu_type, [])
        first = [entry for entry in winners[: _NAMED + 1] if entry[1] != but]
        words = [words for _, _, words in first[:_NAMED]]
        count = len(winners) - ((gpu_type, but) in self._winning)
        more = f" and {count - _NAMED} more" if count > _NAMED else ""
        return ", ".join(words) + more

    def waits(self, index: int) -> tuple[str, tuple[Alternative, ...]]:
        """`explain` for jobs[index], which waits and goes on waiting; computed once for all jobs like it."""
        job = self.problem.jobs[index]
        like = (
            id(job.cells),
            job.banned,
            job.node_filter,
            job.needs,
            job.account,
            tuple(limit.rate(job) for limit in self.problem.limits),
            tuple(limit.most for limit in job.own_limits),
        )  # nothing else of a waiting job is part of a reason
        if like not in self._told:
            self._told[like] = _waits(self, job), _alternatives(self, index)
        return self._told[like]

    def fits_empty(self, job: JobRequest, cell: Cell) -> bool:
        """Would it fit if no other job of this problem had GPUs?"""
        return self.empty.count(cell.shape, job.node_filter, needs=job.needs) >= cell.shape.nodes

    def lacks_room(self, job: JobRequest, cell: Cell) -> bool:
        """Would it fit on the empty nodes but for what it asks beside GPUs, or for the nodes that it names?"""
        anywhere = job.node_filter._replace(barred=(), required=())
        shape, key = cell.shape, (anywhere, cell.shape)
        if self.fits_empty(job, cell):
            return False
        if key not in self._fit:
            nodes = (n for n in self._nodes if n.gpu_type == shape.gpu_type and n.admits(anywhere))
            self._fit[key] = sum(n.free + n.shut >= shape.gpus_per_node for n in nodes)
        return self._fit[key] >= shape.nodes

    def fits_beside(self, job: JobRequest, held: tuple[tuple[str, ...], int] | None, cell: Cell) -> bool:
        """Would it fit on what is left over, the job's own (node names, GPUs on each) given back?"""
        names, gpus = held or ((), 0)
        return self.left.count(cell.shape, job.node_filter, names, gpus, job.needs) >= cell.shape.nodes

    def free(self, job: JobRequest, gpu_type: str) -> int:
        """GPUs left over on nodes that the job may use."""
        key = job.node_filter, gpu_type
        if key not in self._free:
            nodes = [r for r in self.problem.nodes if r.gpu_type == gpu_type and r.admits(job.node_filter)]
            self._free[key] = sum(self.left.free[r.name] for r in nodes)
        return self._free[key]


def explain(context: ExplanationContext, index: int, action: Action) -> tuple[str, tuple[Alternative, ...]]:
    """(why, the best other Cells with why not) for jobs[index]."""
    job = context.problem.jobs[index]
    choice = context.allocation.choice[index]
    if choice is None and job.current is None:
        return context.waits(index)
    others = _alternatives(context, index)
    if choice is None:
        return _stopped(context, job), others
    chosen = job.cells[choice]
    better = next((a for a in others if a.cell.goodput > chosen.goodput), None)
    tail = first = f" It comes first, {job.need_why}." if _needed(job, choice, action) and not context.rule else ""
    if better is not None and chosen.goodput > 0:
        gain = _percent(chosen.goodput, better.cell.goodput)
        tail += f" {shape_words(better.cell.shape)} would give {gain}: {better.why_not}."
    less = _exchange(job, choice)
    if action is Action.START:
        return _starts(job, choice) + less + tail, others
    if action is Action.KEEP:
        return f"Keeps {_what(chosen)}: {_goodput(job, choice)}.{less}{tail}{_restart(job, tail)}", others
    why = _changes(context, job, choice) + less + first
    return why + _restart(job, why), others


def _what(cell: Cell) -> str:
    return size_words(cell.shape, cell.plan if cell.goodput > 0 else None)


def _rate(goodput: float) -> str:
    return f"{goodput:.3g}"


def _percent(now: float, then: float) -> str:
    return f"{(then / now - 1) * 100:+.0f} %"


def _goodput(job: JobRequest, choice: int) -> str:
    goodput = job.cells[choice].goodput
    if goodput <= 0:
        return "its goodput can't be predicted"
    text = f"predicted goodput {_rate(goodput)} sequences/s"
    if job.asked is not None and job.asked != choice:
        share, asked = goodput / job.cells[job.asked].goodput, job.cells[job.asked].shape.gpus
        text += f", {share * 100:.0f} % of that of the size asked for ({asked} GPU{'s' * (asked != 1)})"
    return text


def _starts(job: JobRequest, choice: int) -> str:
    return f"Starts on {_what(job.cells[choice])}: {_goodput(job, choice)}."


def _changes(context: ExplanationContext, job: JobRequest, choice: int) -> str:
    old, new = job.cells[job.current or 0], job.cells[choice]
    percent = _percent(old.goodput, new.goodput)
    rates = f"predicted goodput {_rate(old.goodput)} -> {_rate(new.goodput)} sequences/s ({percent})"
    back_s = payback_s(old.goodput, new.goodput, job.restart.cost.mean_s)
    paid = f"a restart of this job costs {job.restart.cost.words()}, paid back in about {back_s:.0f} s"
    rivals = context.rivals(old.shape.gpu_type, job.job_id)
    gives = context.rule or (f"its GPUs gain more with {rivals}" if rivals else "all jobs together gain more so")
    if new.shape == old.shape and new.plan == old.plan:
        return f"Moves to other nodes with the same {shape_words(new.shape)}: {gives}."
    if new.shape == old.shape:
        start = (
            f"Keeps {shape_words(new.shape)} but changes its plan from {plan_words(old.plan)} to {plan_words(new.plan)}"
        )
    else:
        verb = (
            "Grows" if new.shape.gpus > old.shape.gpus else "Shrinks" if new.shape.gpus < old.shape.gpus else "Changes"
        )
        start = f"{verb} from {shape_words(old.shape)} to {_what(new)}"
    return f"{start}: {rates}; {paid if new.goodput > old.goodput else gives}."


def _restart(job: JobRequest, said: str) -> str:
    """What its own restarts have cost, unless it is `said` already."""
    words = f"a restart of this job costs {job.restart.cost.words()}"
    return f" {words[0].upper()}{words[1:]}." if job.restart.cost.own and words not in said else ""


def _exchange(job: JobRequest, choice: int) -> str:
    """What less communication saves and costs, beside the best plan of the shape that exchanges every gradient."""
    chosen, cells = job.cells[choice], CellIndex.of(job.cells)
    if chosen.plan.exchange == "exact":
        return ""
    shape = chosen.shape
    same = (cells[i] for i in cells.by_shape[shape.gpu_type, shape.nodes, shape.gpus_per_node])
    exact = next((cell for cell in same if cell.plan.exchange == "exact"), None)
    words = exchange_words(chosen, exact) if exact is not None else ""
    return f" {words[0].upper()}{words[1:]}." if words else ""


def _needed(job: JobRequest, choice: int, action: Action) -> bool:
    need = job.need_anew if action is Action.RESIZE else job.need
    return 0 < need <= job.cells[choice].goodput


def _waits(context: ExplanationContext, job: JobRequest) -> str:
    cell = job.cells[smallest(job.cells)]
    least = f"the least that it can run on is {shape_words(cell.shape)}"
    cells = CellIndex.of(job.cells)
    possible = [c.shape for c in (cells[own[0]] for own in cells.by_shape.values()) if context.fits_empty(job, c)]
    if not possible and context.lacks_room(job, cell):
        return f"Waits: {least}, and {_NO_ROOM} now."
    if not possible:
        total = context.capacity.get(cell.shape.gpu_type, 0)
        return (
            f"Waits: {least}, and only {total} {cell.shape.gpu_type} GPUs can be handed out now; the others are down "
            "or held by jobs that Synergy does not resize."
        )
    if beyond := beyond_own(job, smallest(job.cells)):
        return f"Waits: {least}, and {beyond}."
    full = context.allowance.exceeded(job, None, smallest(job.cells))
    if full is not None:
        return f"Waits: {least}, and {limit_words(*full)}."
    if context.rule:
        return f"Waits for its turn: {context.rule}."
    types = sorted({shape.gpu_type for shape in possible})
    total = sum(context.capacity.get(t, 0) for t in types)
    rivals = "; ".join(r for r in (context.rivals(t, job.job_id) for t in types) if r)
    newly = f" This epoch they went to {rivals}." if rivals else ""
    free = sum(context.free(job, t) for t in types)
    if free >= min(shape.gpus for shape in possible):
        return (
            f"Waits: {least}, and the {free} free GPUs do not lie so; moving other jobs would cost more than it gains."
        )
    stops = "running jobs are shrunk for others but never stopped"
    if context.problem.may_stop:
        stops = "none of those that run gains less than a restart costs"
    return (
        f"Waits: {least}, and all but {free} of the {total} {' and '.join(types)} GPUs are with jobs whose weighted "
        f"goodput gains more from them; {stops}.{newly}"
    )


def _stopped(context: ExplanationContext, job: JobRequest) -> str:
    shape = job.cells[job.current or 0].shape
    rivals = context.rivals(shape.gpu_type, job.job_id)
    newly = f" This epoch they go to {rivals}." if rivals else ""
    rule = f": {context.rule}" if context.rule else ""
    return f"Preempted: it gives back {shape_words(shape)} and waits for its turn{rule}.{newly}"


def _alternatives(context: ExplanationContext, index: int) -> tuple[Alternative, ...]:
    """The best Cell of each other shape, and the best other plan of the chosen shape; best goodput first."""
    job = context.problem.jobs[index]
    choice = context.allocation.choice[index]
    cells = CellIndex.of(job.cells)
    first = [i for i in cells.ranked[: _ALTERNATIVES + 1] if i != choice]
    if choice is not None:
        shape = cells[choice].shape
        same = cells.by_shape[shape.gpu_type, shape.nodes, shape.gpus_per_node]
        if same[0] == choice and len(same) > 1:
            first.append(same[1])
            first.sort(key=lambda i: (-cells[i].goodput, i))
    stay = stay_value(job, context.problem.terms) if job.current is not None else 0.0
    return tuple(Alternative(cells[i], _why_not(context, index, i, stay)) for i in first[:_ALTERNATIVES])


def _why_not(context: ExplanationContext, index: int, i: int, stay: float) -> str:
    """`stay`: the value of going on as it is, for a running job."""
    job, terms = context.problem.jobs[index], context.problem.terms
    choice = context.allocation.choice[index]
    cell = job.cells[i]
    shape, goodput = cell.shape, cell.goodput
    chosen = None if choice is None else job.cells[choice]
    if context.lacks_room(job, cell):
        return _NO_ROOM
    if not context.fits_empty(job, cell):
        return f"it needs {shape_words(shape)}, more than the nodes that are up and open to it have"
    if i in context.away.get(index, ()):
        return "on the nodes left for it, it would share links with others, which costs all of them more than it gains"
    if beyond := beyond_own(job, i) or beyond_bound(job, i):
        return beyond
    if not context.rule and (beyond := beyond_reach(job, i, terms)):
        return beyond
    if i in job.banned:
        return "its GPUs could not be placed on the nodes beside the jobs that stay"
    if context.sizes_fixed:
        return "the policy gives each job the size it asked for"
    full = context.allowance.exceeded(job, choice, i)
    if full is not None:
        return limit_words(*full)
    if context.rule:
        return f"the policy goes by another rule: {context.rule}"
    if beyond_growth(job, i, terms):
        return f"it is more than {terms.max_growth:g} times the present GPUs, the bound of one epoch"
    gpus = shape.nodes * shape.gpus_per_node
    if chosen is not None and goodput <= chosen.goodput:
        fewer = gpus < chosen.shape.gpus
        lower = f"goodput {_percent(chosen.goodput, goodput)}" if chosen.goodput > 0 else "no better"
        return f"{lower} on fewer GPUs, and nobody gains enough from the rest" if fewer else f"{lower} on no fewer GPUs"
    if job.current is not None and i != job.current and change_value(job, i, terms) <= stay:
        gain = _percent(job.cells[job.current].goodput, goodput)
        return f"a gain of {gain} does not repay a restart at this job's age, which costs {job.restart.cost.words()}"
    own = chosen.shape.gpus if chosen is not None and chosen.shape.gpu_type == shape.gpu_type else 0
    missing = gpus - own - context.free(job, shape.gpu_type)
    if missing > 0:
        return f"it would take {missing} GPU{'s' * (missing != 1)} from jobs that gain more from them"
    held = None if chosen is None else (context.placement.nodes[job.job_id], chosen.shape.gpus_per_node)
    if not context.fits_beside(job, held, cell):
        return "it does not fit on the free nodes, and moving other jobs would cost more than it gains"
    if job.current is None and chosen is not None and choice == job.asked and gpus < chosen.shape.gpus:
        return f"it starts on the {chosen.shape.gpus} GPUs asked for, which nobody else wants, until its speed there was measured"
    if context.weighed:
        return "all jobs together gain no more by it"
    return "the solver's time limit struck before it was weighed"

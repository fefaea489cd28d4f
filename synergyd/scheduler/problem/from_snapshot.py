"""From a snapshot to the allocation's problem: jobs that take part, jobs that are not touched and why, free GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from synergy_core.node_needs import NO_ROOM, NodeNeeds
from synergy_core.reasons import Reason
from synergy_core.records import Action, Cell, Directive, Job, JobState, Node, Plan, Shape, Snapshot
from synergy_core.restarts import RestartBudget

from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.node_limits import usable_gpus
from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, NodeFilter, Progress
from synergyd.scheduler.problem.restart_bound import ban_costly_restarts
from synergyd.scheduler.problem.utility import (
    find_requested_cell,
    relative_goodput,
    relative_goodputs,
    restart_discount,
    same_shape,
)

_UNKNOWN = Progress()
# share of its goodput that a Cell counts for which does not finish in time: a job that lies about its length can gain a
# quarter by it at most
_UNFINISHED = 0.8


@dataclass(frozen=True)
class UntouchedJob:
    """A job that this epoch does not touch. `cell` and `nodes`: what it holds, where known."""

    action: Action
    reason: Reason
    cell: Cell | None = None
    nodes: tuple[str, ...] = ()
    relative_goodput: float | None = None


def classify_job(
    job: Job,
    snapshot: Snapshot,
    cells: tuple[Cell, ...],
    no_cell_reason: str,
    current_plan: Plan | None,
    age_s: float,
    restarts: RestartBudget,
    progress: Progress = _UNKNOWN,
    weight: float = 1.0,
    *,
    sizes_fixed: bool = False,
    others_wait: bool = False,
) -> JobRequest | UntouchedJob:
    """Return a JobRequest if this job takes part in the allocation, else an UntouchedJob.

    `age_s` seconds is Sia's T. Jobs that run at a fixed size are not touched; those that wait for one request exactly that.
    `sizes_fixed`: the policy gives each job the size it asked for. Where no plan is known for that, a waiting job requests it
    all the same, as plain Slurm would start it: else it would wait for ever. `others_wait`: for GPUs that Synergy may give them.
    """
    usable = _usable(cells, job.directive)
    history = _History(age_s, progress, weight, restarts)
    untouched = _untouched_reason(job, snapshot.time_s)
    if untouched:
        return _leave(job, usable, current_plan, untouched)
    fixed = fixed_reason(job)
    if job.shape.gpus < 1:
        return _leave(job, usable, current_plan, Reason("gpus-not-by-node"))
    if job.state is JobState.RUNNING:
        if fixed:
            return _leave(job, usable, current_plan, Reason("keeps-fixed", {"because": fixed}))
        if not usable:
            reason = no_cell_reason or "no plan is known that trains this model on these GPUs"
            return _leave(job, usable, current_plan, Reason("keeps-unpredicted", {"because": reason}))
        cells_with_current, current = _with_current(usable, job, current_plan)
        discount = restart_discount(age_s, job.restarts, restarts.cost.mean_s)
        discount *= time_discount(job.time_left_s, restarts.cost.mean_s)
        further, kind = snapshot.cluster.keys, job.shape.gpu_type
        nodes = tuple(further.get((name, kind), name) for name in job.node_names) if further else job.node_names
        request = _request(job, cells_with_current, history, current=current, nodes=nodes, discount=discount)
        request = replace(request, live_cells=_live_cells(request, job.shape), others_wait=others_wait)
        return ban_costly_restarts(request)
    impossible = _impossible(job, snapshot)
    if impossible:
        return UntouchedJob(Action.WAIT, impossible)
    if fixed:
        exact = () if job.own_plan else tuple(c for c in usable if same_shape(c.shape, job.shape))
        exact = exact or _unpredicted_cells(job, snapshot)
        return _request(job, exact, history) if exact else UntouchedJob(Action.WAIT, Reason("no-node"))
    if not usable:
        reason = no_cell_reason or "no plan fits the GPUs' memory within this job's limits"
        return UntouchedJob(Action.WAIT, Reason("no-cell", {"because": reason}))
    if sizes_fixed and find_requested_cell(usable, job.asked) is None:
        types = job.directive.gpu_types if job.directive else ()
        as_asked = _unpredicted_cells(replace(job, shape=job.asked), snapshot)
        usable = CellIndex(c for c in as_asked if not types or c.shape.gpu_type in types) or usable
    return _request(job, usable, history)


def fixed_reason(job: Job) -> str:
    """Return why this job may not be resized, or "" if it may."""
    if job.paused:
        return "it is paused (`synergyctl resume` lets Synergy resize it again)"
    if job.fixed:
        return job.fixed
    if job.directive is not None and not job.directive.resize:
        return "its directive says resize=no"
    return ""


def node_capacities(snapshot: Snapshot, jobs: Iterable[JobRequest]) -> tuple[NodeCapacity, ...]:
    """Return every node with the GPUs that can be handed out: up, and not held by anyone but the asking jobs themselves.

    A node that is not up hands out none; jobs that run there may stay. A node that shows fewer GPUs than its asking
    jobs hold (it lost some) hands out what they hold, so that staying is always possible.
    """
    own: dict[str, list[tuple[int, NodeNeeds]]] = {}
    jobs = tuple(jobs)
    for job in jobs:
        if job.current is not None:
            for name in job.nodes:
                own.setdefault(name, []).append((job.cells[job.current].shape.gpus_per_node, job.needs))
    # the most modest first: most often they can have all that there is
    needs = sorted({job.needs for job in jobs}, key=lambda n: (n.cpus, n.cpus_per_gpu, n.memory_mib))
    capacities, further = [], snapshot.cluster.keys
    for node in snapshot.cluster.nodes:
        if node.gpus > 0:
            key = further.get((node.name, node.gpu_type), node.name)
            own_shares = own.get(key, [])
            capacity = _capacity(node, own_shares, key)
            if penalty := snapshot.penalties.get(node.name):
                capacity = replace(capacity, penalty=penalty)
            capacities.append(usable_gpus(capacity, needs, sum(gpus for gpus, _ in own_shares)))
    return tuple(capacities)


def current_cell(cells: tuple[Cell, ...], shape: Shape, plan: Plan | None) -> Cell | None:
    """Return the Cell a job runs with: of its shape and plan; else of its shape and tp, pp; else the best of its shape.

    The nearest Cell stands for a plan that is not among them, under the plan's own name. A caller that knows the
    goodput of the present plan should put it among the Cells: only then can a better plan of the same shape be seen.
    """
    index = CellIndex.build(cells)
    keys = [(t, shape.nodes, shape.gpus_per_node) for t in ((shape.gpu_type,) if shape.gpu_type else index.types)]
    same = [index[i] for key in keys for i in index.by_shape.get(key, ())]
    if not same:
        return None
    if plan is None:
        return max(same, key=lambda c: c.goodput)
    work = _work(plan)
    for cell in same:
        if _work(cell.plan) == work:
            return cell
    degrees = [c for c in same if (c.plan.tp, c.plan.pp) == (plan.tp, plan.pp)]
    return replace(max(degrees or same, key=lambda c: c.goodput), plan=plan)


def _capacity(node: Node, own: Sequence[tuple[int, NodeNeeds]] = (), key: str = "") -> NodeCapacity:
    """Return the capacity of a node.

    `own`: GPUs and needs of each asking job that runs there. `key`: its name where another type of this node came before.
    """
    whole = any(needs.whole_nodes for _, needs in own)  # one job has all that is in use
    own_gpus = node.gpus_used if whole else sum(gpus for gpus, _ in own)
    others = max(0, node.gpus_used - own_gpus)
    free = max(node.gpus - others, own_gpus) if node.up else 0
    room = node.room
    if room is not None:
        ours = NO_ROOM
        for gpus, needs in own:
            ours = ours.plus(
                node.used if needs.whole_nodes else needs.room_for(gpus, node.threads_per_core, room.memory_mib)
            )
        # at least what the asking jobs hold: staying is always possible
        room = room.plus(node.used.plus(ours, -1).maximum(NO_ROOM), -1).maximum(ours)
    return NodeCapacity(
        key or node.name,
        node.gpu_type,
        free,
        node.partitions,
        node.features,
        node.leaf,
        room,
        node.room or NO_ROOM,
        node.threads_per_core,
        node.tmp_disk_mib,
        host="" if key in ("", node.name) else node.name,
    )


def _work(plan: Plan) -> tuple[int | str, ...]:
    return plan.tp, plan.pp, plan.dp, plan.micro_batch, plan.global_batch, plan.exchange


def _usable(cells: tuple[Cell, ...], directive: Directive | None) -> CellIndex:
    """Return the Cells with a goodput that is a positive number, within the directive's limits."""
    low = (directive.min_gpus if directive else None) or 1
    high = (directive.max_gpus if directive else None) or math.inf
    types = directive.gpu_types if directive else ()
    index = CellIndex.build(cells)
    least, most = index.sizes
    if index.sound and low <= least and most <= high and (not types or set(index.types) <= set(types)):
        return index
    return CellIndex(
        c
        for c in cells
        if 0.0 < c.goodput < math.inf and low <= c.shape.gpus <= high and (not types or c.shape.gpu_type in types)
    )


def _untouched_reason(job: Job, now_s: float) -> Reason | None:
    """Return why Synergy may not touch this job at all; None if it may."""
    if job.directive_error:
        return Reason("directive-error", {"error": job.directive_error})
    if job.directive is None:
        return Reason("no-directive")
    if job.state is JobState.DONE:
        return Reason("ended")
    if job.state is JobState.COMPLETING:
        return Reason("ending")
    if job.state is JobState.SUSPENDED:
        return Reason("suspended")
    if job.held and job.launch_failed:
        return Reason("held-after-failed-start")
    if job.held and job.reason.lower().replace(" ", "_") == "reservationdeleted":
        return Reason("held-reservation-deleted")
    if job.held:
        return Reason("held")
    if job.state is JobState.PENDING and job.reason.startswith("Dependency"):
        return Reason("dependency", {"slurm_reason": job.reason})
    if job.state is JobState.PENDING and job.begin_s is not None and job.begin_s > now_s:
        return Reason("begin-time", {"wait_s": job.begin_s - now_s})
    return None


def _leave(job: Job, cells: tuple[Cell, ...], plan: Plan | None, why: Reason) -> UntouchedJob:
    holds = job.state in (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)
    if not holds:
        return UntouchedJob(Action.KEEP if job.state is JobState.DONE else Action.WAIT, why)
    if job.own_plan:
        relative = 1.0 if same_shape(job.shape, job.asked) else None
        return UntouchedJob(Action.KEEP, why, _without_plan(job.shape), job.node_names, relative)
    cell = current_cell(cells, job.shape, plan)
    relative = relative_goodput(cell, cells, find_requested_cell(cells, job.asked)) if cell else None
    return UntouchedJob(Action.KEEP, why, cell, job.node_names, relative)


def make_node_filter(job: Job, avoid: tuple[str, ...] = ()) -> NodeFilter:
    """Return a filter of the nodes that the job names itself, without those that are reserved while it would run and those to `avoid`."""
    barred = job.barred or job.exclude
    if avoid or (job.barred and job.exclude):
        barred = tuple(sorted({*job.exclude, *job.barred, *avoid}))
    return NodeFilter(job.open_partitions or job.partition, job.features, barred, job.nodelist, job.within)


def _impossible(job: Job, snapshot: Snapshot) -> Reason | None:
    """Return why a waiting job can't start on this cluster whatever runs; None if it can."""
    directive = job.directive or Directive()
    types = directive.gpu_types
    fixed = fixed_reason(job)
    need = job.shape.gpus if fixed else directive.min_gpus or 1
    usable, up = [], 0
    node_filter = make_node_filter(replace(job, barred=()))
    for n in snapshot.cluster.nodes:
        if (not types or n.gpu_type in types) and _capacity(n).admits(node_filter):
            usable.append(n)
            up += n.gpus if (n.up or n.wakeable) and n.name not in job.avoid else 0
            if up >= need > 0:
                return None  # seen enough: the others need not be counted
    kinds = f" of type {' or '.join(types)}" if types else ""
    where = f" in partition {job.partition}" if job.partition else ""
    where += f" with features {job.features}" if job.features else ""
    where += f" in its reservation {job.reservation}" if job.within else ""
    there = sum(n.gpus for n in usable)
    need_text = f"min_gpus={need}" if directive.min_gpus and not fixed else f"at least {need} GPU{'s' * (need != 1)}"
    if need > there:
        return Reason("never-fits", {"need": need_text, "kinds": kinds, "gpus": there, "where": where})
    if need > up:
        avoid_text = f" (and not {', '.join(job.avoid)}, where it has just failed)" if job.avoid else ""
        fields = {"need": need_text, "kinds": kinds, "up_gpus": up, "gpus": there, "where": where, "tried": avoid_text}
        return Reason("nodes-down", fields)
    return None


def _with_current(cells: tuple[Cell, ...], job: Job, plan: Plan | None) -> tuple[tuple[Cell, ...], int]:
    """Return the Cells and the index of the one the job runs with, which is added where none of them is of its shape."""
    current = current_cell(cells, job.shape, plan)
    if current is None:
        current = _interpolate_cell(cells, job.shape, plan)
    for i in CellIndex.build(cells).by_shape.get(
        (current.shape.gpu_type, current.shape.nodes, current.shape.gpus_per_node), ()
    ):
        if cells[i] is current or cells[i] == current:
            return cells, i
    return CellIndex((*cells, current)), len(cells)


def _interpolate_cell(cells: tuple[Cell, ...], shape: Shape, plan: Plan | None) -> Cell:
    """Return a stand-in for a present shape that has no Cell: goodput interpolated over the GPU count (sequences/s)."""
    same = [c for c in cells if c.shape.gpu_type == shape.gpu_type] or list(cells)
    best: dict[int, Cell] = {}
    for cell in sorted(same, key=lambda c: c.goodput):
        best[cell.shape.gpus] = cell
    below = max((k for k in best if k <= shape.gpus), default=None)
    above = min((k for k in best if k >= shape.gpus), default=None)
    near = best[below if below is not None else above if above is not None else min(best)]
    goodput = near.goodput
    if below is None:
        goodput *= shape.gpus / near.shape.gpus
    elif above is not None and above > below:
        share = (shape.gpus - below) / (above - below)
        goodput += share * max(0.0, best[above].goodput - near.goodput)
    scale = goodput / near.goodput
    return replace(
        near,
        shape=shape,
        plan=plan or Plan(dp=shape.gpus, global_batch=shape.gpus),
        goodput=goodput,
        throughput=near.throughput * scale,
        step_s=near.step_s / scale,
    )


def _unpredicted_cells(job: Job, snapshot: Snapshot) -> tuple[Cell, ...]:
    """Return Cells of exactly the size that a job asks for, where no plan is known for it: goodput 0 says unknown."""
    types = [job.shape.gpu_type] if job.shape.gpu_type else list(snapshot.cluster.gpu_types())
    allowed = job.directive.gpu_types if job.directive else ()
    return tuple(_without_plan(replace(job.shape, gpu_type=t)) for t in types if not allowed or t in allowed)


def _without_plan(shape: Shape) -> Cell:
    """Return a Cell of which only its GPUs are known."""
    return Cell(shape, Plan(dp=shape.gpus, global_batch=shape.gpus), 0.0, 0.0, 0.0, 0.0, 0)


@dataclass(frozen=True)
class _History:
    age_s: float
    progress: Progress
    weight: float
    restarts: RestartBudget


def _request(
    job: Job,
    cells: tuple[Cell, ...],
    history: _History,
    current: int | None = None,
    nodes: tuple[str, ...] = (),
    discount: float = 1.0,
) -> JobRequest:
    requested_cell = find_requested_cell(cells, job.asked)
    is_sound = CellIndex.build(cells).sound
    relative = relative_goodputs(cells, requested_cell) if is_sound else (1.0,) * len(cells)
    return JobRequest(
        job.job_id,
        cells,
        finishing_first(relative, cells, history.progress, job.time_left_s),
        weight=history.weight,
        submit_s=job.submit_s,
        node_filter=make_node_filter(job, job.avoid),
        needs=job.needs,
        max_nodes=job.max_nodes,
        requested_cell=requested_cell,
        current=current,
        nodes=nodes,
        discount=discount,
        restart=history.restarts,
        age_s=history.age_s,
        restarts=job.restarts,
        progress=history.progress,
        deadline_s=job.directive.deadline_s if job.directive else None,
        account=job.account,
        shun=frozenset(job.shun),
        node_slowdown=1.0 if current is None else _slowdown(job, cells[current]),
        uid=job.uid,
    )


def _live_cells(request: JobRequest, present: Shape) -> frozenset[int]:
    """Return the Cells that the running job reaches without a requeue, if it can change so: other plans, or nodes like its own."""
    if request.restart.live_cost is None:
        return frozenset()
    shapes = ((cell.shape.gpu_type, cell.shape.gpus_per_node) for cell in request.cells)
    return frozenset(i for i, shape in enumerate(shapes) if shape == (present.gpu_type, present.gpus_per_node))


def _slowdown(job: Job, cell: Cell) -> float:
    """Return the factor by which the job's slowest node makes its steps longer. Transfers between nodes take no longer."""
    if job.slowed <= 1.0 or cell.step_s <= 0:
        return 1.0
    sends = min(1.0, cell.sync_s / cell.step_s)
    return 1.0 / (sends + (1.0 - sends) / job.slowed)


def time_discount(left_s: float | None, restart_cost_s: float) -> float:
    """Return the share of the time left in which a job trains that is restarted now.

    `left_s` is in seconds (None: no limit). The share multiplies the goodput of every change, so that one is chosen only if it
    pays before the limit ends the job. A share of 0 forbids changes.
    """
    if left_s is None or restart_cost_s <= 0:
        return 1.0
    return max(0.0, 1.0 - restart_cost_s / left_s) if left_s > 0 else 0.0


def finishing_first(
    relative: Sequence[float], cells: Sequence[Cell], progress: Progress, left_s: float | None
) -> Sequence[float]:
    """Return the relative goodputs. Where some Cells finish the sequences left within `left_s`, those that can't count for less."""
    if left_s is None or left_s <= 0 or progress.remaining is None or progress.is_claim_refuted:
        return relative
    ends = [cell.goodput * left_s >= progress.remaining for cell in cells]
    if all(ends) or not any(ends):
        return relative
    return tuple(r if end else _UNFINISHED * r for r, end in zip(relative, ends, strict=True))

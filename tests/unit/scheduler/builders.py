"""Small builders for the scheduler's tests, and an exhaustive reference for its allocation."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

from synergy_core.records import Cell, Cluster, Directive, Job, JobState, Node, Plan, Shape, Snapshot
from synergy_core.restarts import RestartBudget, RestartCost

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.place import PlacementRequest
from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, NodeFilter, Objective, Problem, Progress
from synergyd.scheduler.problem.utility import find_requested_cell, objective, relative_goodputs, restart_discount

NOW = 100_000.0
_LIVE = RestartBudget(cost=RestartCost(mean_s=60.0), live_cost=RestartCost(mean_s=10.0))
Cells = tuple[Cell, ...]


def cell(
    goodput: float, nodes: int = 1, gpus: int = 1, kind: str = "a100", pp: int = 1, tp: int = 1, batch: int = 64
) -> Cell:
    plan = Plan(tp=tp, pp=pp, dp=max(1, nodes * gpus // (pp * tp)), micro_batch=1, global_batch=batch)
    return Cell(Shape(kind, nodes, gpus), plan, goodput, 1.0, goodput, 1.0, 10**9)


def cells(*goodputs: float, kind: str = "a100") -> tuple[Cell, ...]:
    """One-node Cells of 1, 2, 4, ... GPUs."""
    return tuple(cell(g, gpus=2**i, kind=kind) for i, g in enumerate(goodputs))


def node(
    name: str, gpus: int = 4, used: int = 0, up: bool = True, kind: str = "a100", partitions: tuple[str, ...] = ()
) -> Node:
    return Node(name, kind, gpus, used, up, partitions)


def job(job_id: int, asked: int = 4, nodes: tuple[str, ...] = (), gpus: int = 0, **changes: object) -> Job:
    """A waiting job that asks for `asked` GPUs on one node; with `nodes` it runs there with `gpus` on each."""
    shape = Shape("a100", len(nodes), gpus) if nodes else Shape("a100", 1, asked)
    plain = Job(
        job_id=job_id,
        name=f"job{job_id}",
        user="ann",
        uid=1000,
        partition="",
        state=JobState.RUNNING if nodes else JobState.PENDING,
        reason="",
        submit_s=NOW - 10_000 + job_id,
        start_s=NOW - 9_000 if nodes else None,
        begin_s=None,
        restarts=0,
        shape=shape,
        asked=Shape("a100", 1, asked),
        node_names=nodes,
        directive=Directive(),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def snapshot(nodes: Sequence[Node], jobs: Sequence[Job], count_used: bool = True) -> Snapshot:
    """With `count_used` the running jobs' own GPUs are added to what the nodes say is used, as Slurm shows it."""
    held = {n.name: 0 for n in nodes}
    for j in jobs:
        for name in j.node_names:
            held[name] += j.shape.gpus_per_node
    counted = tuple(replace(n, gpus_used=n.gpus_used + held[n.name] * count_used) for n in nodes)
    return Snapshot(NOW, Cluster(counted), tuple(jobs))


def ask(job_id: int, offers: tuple[Cell, ...], asked: int = 1, **changes: object) -> JobRequest:
    index = find_requested_cell(offers, Shape("a100", 1, asked))
    plain = JobRequest(job_id, offers, relative_goodputs(offers, index), requested_cell=index, submit_s=float(job_id))
    return replace(plain, **changes)  # type: ignore[arg-type]


def sized(job_id: int, gpus: int, seconds: float | None, nodes: tuple[str, ...] = (), **changes: object) -> JobRequest:
    """A job of one size only: `gpus` GPUs on one node, or on each of `nodes`, where it then runs; `seconds` left there."""
    offers = (cell(2.0, len(nodes) or 1, gpus),)
    running: dict[str, object] = {"current": 0, "nodes": nodes} if nodes else {}
    left = Progress(remaining=None if seconds is None else 2.0 * seconds)
    return ask(job_id, offers, gpus * (len(nodes) or 1), **{"progress": left, **running, **changes})


def can_lie(rooms: Sequence[NodeCapacity], requests: Sequence[PlacementRequest]) -> bool:
    """Exhaustive: is there any way to lay the requests on the rooms?"""
    free = {r.name: r.free for r in rooms}
    for request in requests:
        if request.stay:
            for name in request.nodes:
                if name in free:
                    free[name] = max(0, free[name] - request.shape.gpus_per_node)

    def lay(rest: list[PlacementRequest]) -> bool:
        if not rest:
            return True
        first = rest[0]
        usable = [
            r.name
            for r in rooms
            if r.gpu_type == first.shape.gpu_type
            and r.admits(first.node_filter)
            and free[r.name] >= first.shape.gpus_per_node
        ]
        for names in itertools.combinations(usable, first.shape.nodes):
            for name in names:
                free[name] -= first.shape.gpus_per_node
            done = lay(rest[1:])
            for name in names:
                free[name] += first.shape.gpus_per_node
            if done:
                return True
        return False

    return lay(sorted((r for r in requests if not r.stay), key=lambda r: -r.shape.gpus_per_node))


def brute_force(problem: Problem) -> float:
    """The best objective over every choice of every job, stays and moves told apart, each tried for placement."""
    options: list[list[tuple[int | None, bool]]] = []
    for a in problem.jobs:
        takes: list[tuple[int | None, bool]] = [(i, True) for i in range(len(a.cells))]
        if a.current is not None and a.discount <= 0:
            takes = []
        elif a.stoppable:
            takes.append((None, True))
        options.append([(a.current, False), *takes])
    scored = []
    for combo in itertools.product(*options):
        choice = [c for c, _ in combo]
        moved = frozenset(
            i
            for i, (c, anew) in enumerate(combo)
            if anew and c == problem.jobs[i].current and problem.jobs[i].current is not None
        )
        scored.append((objective(problem, choice, moved), choice, moved))
    scored.sort(key=lambda entry: -entry[0])
    for value, choice, moved in scored:
        if within(problem, choice) and can_lie(problem.nodes, requests(problem, choice, moved)):
            return value
    raise AssertionError("going on as it is must always be possible")


def within(problem: Problem, choice: Sequence[int | None]) -> bool:
    """Do the jobs keep every limit?"""
    return all(
        sum(limit.use(a, c) for a, c in zip(problem.jobs, choice, strict=True)) <= limit.most + 1e-6
        for limit in problem.limits
    )


def requests(problem: Problem, choice: Sequence[int | None], moved: frozenset[int]) -> list[PlacementRequest]:
    return [
        PlacementRequest(a.job_id, a.cells[c].shape, a.node_filter, a.nodes, c == a.current and i not in moved)
        for i, (a, c) in enumerate(zip(problem.jobs, choice, strict=True))
        if c is not None
    ]


def random_problem(rnd: random.Random, jobs: int, nodes: int, partitions: tuple[str, ...] = ("",)) -> Problem:
    """`nodes` nodes of 8 GPUs, some half taken or down, of two types; jobs of all kinds, about half of them running."""
    rooms = []
    for n in range(nodes):
        at = tuple(p for p in partitions if p and rnd.random() < 0.7)
        free = rnd.choice([8, 8, 8, 8, 5, 0])
        rooms.append(
            NodeCapacity(f"n{n}", rnd.choice(["a100", "a100", "h100"]), free, at or tuple(p for p in partitions if p))
        )
    bins = FreeGpus(rooms)
    asks = []
    for j in range(jobs):
        power, speed = rnd.uniform(0.3, 1), rnd.uniform(0.5, 20)
        offers = [
            cell(speed * (2.5 if kind == "h100" else 1) * (n * g) ** power * (0.9 if tp > 1 else 1), n, g, kind, tp=tp)
            for kind in ("a100", "h100")
            for n, g in ((1, 1), (1, 2), (1, 3), (1, 4), (1, 8), (2, 2), (2, 8), (4, 8))
            for tp in (1, 2)[:g]
            if rnd.random() < 0.6
        ] or [cell(speed)]
        age = rnd.uniform(0, 50_000)
        changes: dict[str, object] = {
            "submit_s": NOW - age,
            "age_s": age,
            "restarts": rnd.randrange(4),
            "node_filter": NodeFilter(rnd.choice(partitions)),
            "progress": Progress(rnd.uniform(0, 200_000), rnd.choice([None, rnd.uniform(0, 1e5)])),
            "banned_cells": frozenset(rnd.sample(range(len(offers)), rnd.choice([0, 0, 0, 1]))),
        }
        current, node_filter = rnd.randrange(len(offers)), changes["node_filter"]
        assert isinstance(node_filter, NodeFilter)
        names = bins.pick(offers[current].shape, node_filter)
        if names and rnd.random() < 0.6:
            bins.take(names, offers[current].shape.gpus_per_node)
            discount = restart_discount(age, int(str(changes["restarts"])), 60.0)
            changes |= {"current": current, "nodes": names, "discount": discount}
            if j % 3 == 0:  # some change without a requeue
                several = frozenset(i for i, offer in enumerate(offers) if offer.shape.nodes > 1)
                changes |= {"restart": _LIVE, "live_cells": several}
        asks.append(ask(j, tuple(offers), rnd.choice([1, 2, 4, 8, 16]), **changes))
    if rnd.random() < 0.3:  # a node went down, perhaps under its jobs: it hands out none, and they may stay
        gone = rnd.randrange(nodes)
        rooms[gone] = replace(rooms[gone], free=0)
    return Problem(
        tuple(asks), tuple(rooms), Objective(max_growth=rnd.choice([0.0, 2.0])), now_s=NOW, restart_cost_s=60.0
    )

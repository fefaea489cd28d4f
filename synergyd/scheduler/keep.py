"""The answer of a policy that preempts, where no running job may be stopped."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from synergyd.scheduler.policy import Allocation, Policy, Problem
from synergyd.scheduler.utility import allocation

_ROUNDS = 3  # then every running job is kept as it is


def without_stopping(policy: Policy, problem: Problem) -> Allocation:
    """A job that the policy would stop keeps its Cell and its nodes, and the policy shares out the rest once more.

    So a policy that preempts can serve where jobs can't be paused: it loses what stopping would have brought, no job.
    Should it keep stopping others, all running jobs stay as they are and it starts waiting ones beside them.
    """
    running = {i for i, ask in enumerate(problem.asks) if ask.current is not None}
    kept: set[int] = set()
    for attempt in range(_ROUNDS + 1):
        rest = [i for i in range(len(problem.asks)) if i not in kept]
        found = policy.allocate(_beside(problem, rest, kept))
        stopped = {i for i, choice in zip(rest, found.choice, strict=True) if choice is None} & running
        if not stopped:
            break
        kept = kept | stopped if attempt < _ROUNDS - 1 else running
    choice: list[int | None] = [ask.current for ask in problem.asks]
    for i, picked in zip(rest, found.choice, strict=True):
        choice[i] = picked
    return allocation(problem, choice, frozenset(rest[i] for i in found.moved))


def _beside(problem: Problem, rest: list[int], kept: set[int]) -> Problem:
    """The problem of the jobs of `rest` on what those of `kept` leave."""
    held: Counter[str] = Counter()
    for i in kept:
        ask = problem.asks[i]
        for name in ask.nodes:
            held[name] += ask.cells[ask.current or 0].shape.gpus_per_node
    rooms = tuple(replace(room, free=max(0, room.free - held[room.name])) for room in problem.rooms)
    return replace(problem, asks=tuple(problem.asks[i] for i in rest), rooms=rooms)

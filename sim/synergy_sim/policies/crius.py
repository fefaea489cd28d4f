"""Crius: a search over Cells that shrinks running jobs for arrivals and grows them on departures (Arena, EuroSys'26)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from synergy_core.records import Shape

from synergy_sim.policies.requested_size import best_of_shapes, by_submission, requested_or_smallest
from synergy_sim.policies.trial import TrialPlacement
from synergyd.scheduler.placement.make_placeable import make_placeable
from synergyd.scheduler.problem.records import Allocation, JobRequest, Policy, Problem
from synergyd.scheduler.problem.utility import is_growth_refused


@dataclass(frozen=True)
class _ResizeStep:
    """jobs[job] to Cell `new`, for `loss` of relative goodput (negative: it gains)."""

    job: int
    new: int
    loss: float


class CriusPolicy(Policy):
    """Waiting jobs in order of submission, each placed at the size asked for or by downgrades.

    If a job does not fit, the downgrade that makes room for it with the least loss of throughput is looked for breadth
    first, one step, then two. A downgrade halves the GPUs of a running job or of the arrival itself, or takes as many
    GPUs of another type. A job that can't be placed waits on and delays no other. Then up to `upgrades` steps double a
    job's GPUs or change their type, the greatest gain first.

    GPU counts are powers of two; running jobs are never stopped. Throughput counts relative to the size asked for, so
    that jobs of different models compare, and a change of a running job counts with its restart discount. Bounded:
    the `width` cheapest steps of each GPU type are combined, for the first `searches` waiting jobs. Arrivals and departures are one
    call here (the paper: rounds of 300 s with an event each); bubble migration is left out, and which pipeline stages
    a Cell has was settled when the Cells were made.
    """

    rule = "jobs start in order of submission, shrinking others by the least loss of throughput where they must"

    def __init__(self, depth: int = 2, upgrades: int = 10, width: int = 12, searches: int = 50) -> None:
        self._depth, self._upgrades, self._width, self._searches = depth, upgrades, width, searches

    def allocate(self, problem: Problem) -> Allocation:
        search = _Search(problem)
        searches = self._searches
        for i in by_submission(problem):
            if search.choice[i] is not None:
                continue
            want = requested_or_smallest(problem.jobs[i])
            if want not in search.banned_cells(i) and search.put({i: want}):
                continue
            if searches > 0:
                searches -= 1
                self._make_room(search, i, want)
        for _ in range(self._upgrades):
            if not any(search.put({step.job: step.new}) for step in search.upgrades()):
                break
        return make_placeable(problem, search.choice)

    def _make_room(self, search: _Search, arrival: int, want: int) -> None:
        """Make the downgrades of least loss, fewest first, that let the arrival start; change nothing where there are none."""
        own = search.downgrades(arrival, want)
        kinds = {search.find_shape(arrival, want).gpu_type, *(search.find_shape(arrival, s.new).gpu_type for s in own)}
        others = [
            s for j, c in enumerate(search.choice) if c is not None and j != arrival for s in search.downgrades(j, c)
        ]
        steps = sorted(
            own + search.helpful_steps(arrival, kinds, sorted(others, key=_by_loss), self._width), key=_by_loss
        )
        spare = search.spare_gpus()
        level: list[tuple[_ResizeStep, ...]] = [(step,) for step in steps]
        for depth in range(self._depth):
            if depth:
                level = [(*path, step) for path in level for step in _next_steps(search, path, steps)]
            for path in sorted(level, key=lambda path: (sum(s.loss for s in path), [_by_loss(s) for s in path])):
                changes = {arrival: want, **{step.job: step.new for step in path}}
                shape = search.find_shape(arrival, changes[arrival])
                freed = sum(search.freed_gpus(j, new, shape.gpu_type) for j, new in changes.items() if j != arrival)
                if spare[shape.gpu_type] + freed < shape.gpus or changes[arrival] in search.banned_cells(arrival):
                    continue
                if search.put(changes):
                    return


class _Search(TrialPlacement):
    """A trial placement with the steps that lead on from it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._problem = problem
        self._node_of = {node.name: node for node in problem.nodes}
        self._shapes = [_power_of_two_cells(job) for job in problem.jobs]

    def banned_cells(self, i: int) -> frozenset[int]:
        return self._jobs[i].banned_cells

    def downgrades(self, i: int, cell: int) -> list[_ResizeStep]:
        """Return the steps of jobs[i] from `cell` to half its GPUs, or to as many of another type."""
        shape = self._jobs[i].cells[cell].shape
        return self._steps(i, cell, (1 << (shape.gpus - 1).bit_length()) // 2)

    def upgrades(self) -> list[_ResizeStep]:
        """Return the steps of every job to twice its GPUs, or to as many of another type, where that gains; the greatest gain first."""
        steps: list[_ResizeStep] = []
        for i, cell in enumerate(self.choice):
            if cell is not None:
                gpus = self._jobs[i].cells[cell].shape.gpus
                steps += [s for s in self._steps(i, cell, 1 << gpus.bit_length()) if s.loss < 0]
        return sorted(steps, key=_by_loss)

    def helpful_steps(self, arrival: int, kinds: set[str], steps: list[_ResizeStep], most: int) -> list[_ResizeStep]:
        """Return, for each type in `kinds`, the first `most` steps that can be taken and free such GPUs where the arrival may run."""
        node_filter = self._jobs[arrival].node_filter
        usable = {name for name, node in self._node_of.items() if node.gpu_type in kinds and node.admits(node_filter)}
        count = dict.fromkeys(kinds, 0)
        picks = []
        for step in steps:
            kind = self.find_shape(step.job, self.choice[step.job] or 0).gpu_type
            if count.get(kind, most) < most and usable.intersection(self.nodes[step.job]):
                same = self.find_shape(step.job, step.new).gpu_type == kind
                if same or self.put({step.job: step.new}, keep=False):
                    count[kind] += 1
                    picks.append(step)
        return picks

    def find_shape(self, i: int, cell: int) -> Shape:
        return self._jobs[i].cells[cell].shape

    def spare_gpus(self) -> Counter[str]:
        """Return the free GPUs by type."""
        total: Counter[str] = Counter()
        for name, free in self.free_gpus.free.items():
            total[self._node_of[name].gpu_type] += free
        return total

    def freed_gpus(self, i: int, new: int, kind: str) -> int:
        """Return the GPUs of a type that jobs[i] gives back by going to Cell `new` (negative: it takes some)."""
        before, after = self.find_shape(i, self.choice[i] or 0), self.find_shape(i, new)
        return before.gpus * (before.gpu_type == kind) - after.gpus * (after.gpu_type == kind)

    def _steps(self, i: int, cell: int, gpus: int) -> list[_ResizeStep]:
        """Return the steps to `gpus` GPUs of the same type, and to as many as now of any other."""
        job = self._jobs[i]
        if job.current is not None and job.discount <= 0:
            return []
        now = job.cells[cell].shape
        steps = []
        for (kind, count), new in self._shapes[i].items():
            if count == (gpus if kind == now.gpu_type else now.gpus) and not is_growth_refused(
                job, new, self._problem.terms
            ):
                steps.append(_ResizeStep(i, new, _value(job, cell) - _value(job, new)))
        return steps


def _power_of_two_cells(job: JobRequest) -> dict[tuple[str, int], int]:
    """Return (GPU type, GPUs) -> the best Cell of so many GPUs, where that is a power of two."""
    best: dict[tuple[str, int], int] = {}
    for shape, i in best_of_shapes(job).items():
        key = shape.gpu_type, shape.gpus
        if shape.gpus & (shape.gpus - 1) == 0 and (key not in best or job.relative[i] > job.relative[best[key]]):
            best[key] = i
    return best


def _value(job: JobRequest, cell: int) -> float:
    """Return the relative goodput, with the restart discount where the Cell is a change of a running job."""
    return job.relative[cell] * (1.0 if job.current in (None, cell) else job.discount)


def _next_steps(search: _Search, path: tuple[_ResizeStep, ...], steps: list[_ResizeStep]) -> list[_ResizeStep]:
    """Return the steps that may follow a path: of jobs that come later in `steps` (no pair twice), or further down with its own."""
    last = path[-1]
    jobs = {step.job for step in path}
    return [s for s in steps if _by_loss(s) > _by_loss(last) and s.job not in jobs] + search.downgrades(
        last.job, last.new
    )


def _by_loss(step: _ResizeStep) -> tuple[float, int, int]:
    return step.loss, step.job, step.new

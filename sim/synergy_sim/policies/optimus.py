"""Optimus: GPUs go one step at a time to the job whose end that brings nearest (Peng et al., EuroSys'18, sec. 4.1)."""

from __future__ import annotations

import heapq
import math

from synergy_sim.policies.requested_size import (
    best_of_shapes,
    by_submission,
    requested_or_smallest,
    seconds_left,
)
from synergy_sim.policies.trial import TrialPlacement
from synergyd.scheduler.placement.make_placeable import make_placeable
from synergyd.scheduler.problem.records import Allocation, JobRequest, Policy, Problem
from synergyd.scheduler.problem.utility import is_growth_refused


class OptimusPolicy(Policy):
    """Every job starts with its least GPUs (running ones first, then in order of submission).

    Then again and again the next step goes to the job with the greatest (seconds left - seconds left after it) / GPUs
    added.

    A step is the job's next GPU count with a better goodput; one that does not fit ends the job's growth. All is shared
    out anew at each call, so running jobs shrink and grow, and what a restart costs is not weighed, as in the paper.
    Jobs of unknown length count as long as the mean of the known ones at the size asked for. Parameter servers have no
    counterpart here: a step is of GPUs alone.
    """

    rule = "GPUs go one step at a time to the job whose end they bring nearest"

    def allocate(self, problem: Problem) -> Allocation:
        lengths = _lengths(problem)
        jobs = [_SizeLadder(job, problem, length) for job, length in zip(problem.jobs, lengths, strict=True)]
        trial = TrialPlacement(problem, running=False)

        def take(i: int, at: int) -> bool:
            """Put jobs[i] at one of its steps, on the best Cell of that GPU count that fits; return whether one fits."""
            return any(trial.put({i: cell}) for cell in jobs[i].steps[at])

        heap: list[tuple[float, int, int]] = []
        for i in sorted(by_submission(problem), key=lambda i: problem.jobs[i].current is None):
            if jobs[i].steps and take(i, 0):
                heapq.heappush(heap, (-jobs[i].gain(0), i, 0))
        while heap:
            gain, i, at = heapq.heappop(heap)
            if gain < 0 and take(i, at + 1):
                heapq.heappush(heap, (-jobs[i].gain(at + 1), i, at + 1))
        choice = [job.current if c is None else c for job, c in zip(problem.jobs, trial.choice, strict=True)]
        moved = {i for i, c in enumerate(choice) if c is not None and set(trial.nodes[i]) != set(problem.jobs[i].nodes)}
        return make_placeable(problem, choice, moved)


class _SizeLadder:
    """The GPU counts of one job that each beat all smaller ones: `steps` are the Cells of a count, best first.

    `length`: the seconds it has left at relative goodput 1.
    """

    def __init__(self, job: JobRequest, problem: Problem, length: float) -> None:
        self._job, self._length = job, length
        counts: dict[int, list[int]] = {}
        for shape, i in best_of_shapes(job).items():
            if i == job.current or not is_growth_refused(job, i, problem.terms):
                counts.setdefault(shape.gpus, []).append(i)
        self.steps: list[list[int]] = []
        most = 0.0
        for _, cells in sorted(counts.items()):
            better = sorted((i for i in cells if job.relative[i] > most), key=lambda i: (-job.relative[i], i))
            if better:
                self.steps.append(better)
                most = job.relative[better[0]]

    def gain(self, at: int) -> float:
        """Return the seconds, per GPU, by which the step from `at` brings the end nearer; 0 at the top."""
        if at + 1 >= len(self.steps):
            return 0.0
        now, then = self.steps[at][0], self.steps[at + 1][0]
        gpus = self._job.cells[then].shape.gpus - self._job.cells[now].shape.gpus
        return self._length * (1 / self._job.relative[now] - 1 / self._job.relative[then]) / gpus


def _lengths(problem: Problem) -> list[float]:
    """Return the seconds that each job has left at the size asked for; the mean of the others where that is not known."""
    lengths_s = [
        seconds_left(job, job.cells[requested_or_smallest(job)]) * job.relative[requested_or_smallest(job)]
        for job in problem.jobs
    ]
    finite_s = [s for s in lengths_s if math.isfinite(s)]
    mean = sum(finite_s) / len(finite_s) if finite_s else 1.0
    return [s if math.isfinite(s) else mean for s in lengths_s]

"""The jobs' Cells and nodes while a policy searches: changes are tried, and kept or undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.problem.records import Problem


class TrialPlacement:
    """The jobs' Cells and nodes on trial.

    `choice` and `nodes` are by index of the job. With `running` all begin where they run; else no job has a Cell at first, and
    nodes on which a job runs are left to it where others have a choice.
    """

    def __init__(self, problem: Problem, running: bool = True) -> None:
        self._jobs = problem.jobs
        self._homes = Counter[str]()
        self.free_gpus = FreeGpus(problem.nodes)
        self.choice: list[int | None] = [None] * len(problem.jobs)
        self.nodes: list[tuple[str, ...]] = [()] * len(problem.jobs)
        for i, job in enumerate(problem.jobs):
            if running and job.current is not None:
                self.choice[i], self.nodes[i] = job.current, job.nodes
                self.free_gpus.take(job.nodes, self._gpus_on_node(i), job.needs)
            self._homes.update(() if running else job.nodes)

    def put(self, changes: Mapping[int, int], keep: bool = True) -> bool:
        """Give each job (by index) its new Cell, and return whether all fit.

        Jobs that have a Cell come first, each as near to its present nodes as can be. If one does not fit, all stays as it is.
        Without `keep` all stays as it is in any case.
        """
        order = sorted(changes, key=lambda i: (self.choice[i] is None, i))
        for i in order:
            self.free_gpus.give(self.nodes[i], self._gpus_on_node(i), self._jobs[i].needs)
        placements: list[tuple[int, tuple[str, ...]]] = []
        for i in order:
            job, shape = self._jobs[i], self._jobs[i].cells[changes[i]].shape
            names = self.free_gpus.pick(
                shape, job.node_filter, (*self.nodes[i], *job.nodes), self._homes, job.needs, job.shun
            )
            if names is None:
                break
            self.free_gpus.take(names, shape.gpus_per_node, job.needs)
            placements.append((i, names))
        fits = len(placements) == len(order)
        if fits and keep:
            for i, names in placements:
                self.choice[i], self.nodes[i] = changes[i], names
            return True
        for i, names in placements:
            self.free_gpus.give(names, self._jobs[i].cells[changes[i]].shape.gpus_per_node, self._jobs[i].needs)
        for i in order:
            self.free_gpus.take(self.nodes[i], self._gpus_on_node(i), self._jobs[i].needs)
        return fits

    def _gpus_on_node(self, i: int) -> int:
        """Return the number of GPUs on each of the job's nodes."""
        cell = self.choice[i]
        return 0 if cell is None else self._jobs[i].cells[cell].shape.gpus_per_node

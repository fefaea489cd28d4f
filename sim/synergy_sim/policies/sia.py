"""Sia: an integer program over restricted configurations (Jayaram Subramanya et al., SOSP'23, sec. 3.4)."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, vstack
from synergy_core.records import Shape

from synergy_sim.policies.packing_rows import packing, packing_item
from synergy_sim.policies.requested_size import best_of_shapes, within_growth
from synergyd.scheduler.placement.make_placeable import make_placeable
from synergyd.scheduler.problem.records import Allocation, Policy, Problem
from synergyd.scheduler.solver.highs import maximise


class SiaPolicy(Policy):
    """The minimum of sum_ij A_ij (r_i G_ij)^p + lam sum_i (1 - |A_i|), p < 0.

    G_ij is the goodput of job i on configuration j over the least in its row, times the fewest GPUs on that one's type;
    lam is what a job without GPUs costs.

    Configurations: 2^k GPUs on one node, or m whole nodes. r_i = (T - N S)/(T + S) for all but the present one, 1 for a
    job younger than a restart takes (as in the released code). Per round a running job at most doubles its GPUs, a
    waiting one starts on its least. Rows of `packing` in place of GPUs per type, since nodes here may be partly taken by
    others. Weights are not in the paper and do not count; a job whose only Cells are no configuration (a size fixed by
    its user) takes part with those. Within `relative_gap` of the optimum, or the best found in `time_limit_s` seconds;
    all goes on as it is if none is found.
    """

    preempts = True
    rule = "the sum of goodputs, each over the job's least one, to the power of -0.5, decides"

    def __init__(
        self,
        p: float = -0.5,
        lam: float = 1.1,
        growth: float = 2.0,
        time_limit_s: float = 5.0,
        relative_gap: float = 1e-4,
    ) -> None:
        self._p, self._lam, self._growth = p, lam, growth
        self._time_limit_s, self._relative_gap = time_limit_s, relative_gap

    def allocate(self, problem: Problem) -> Allocation:
        picks, gains = [], []
        for i in range(len(problem.jobs)):
            for cell, gain in self.gains(problem, i).items():
                picks.append((i, cell))
                gains.append(gain)
        if not picks:
            return make_placeable(problem, [None] * len(problem.jobs))
        use, limit = packing(problem, [packing_item(problem, i, cell) for i, cell in picks])
        job = np.array([i for i, _ in picks])
        once = csr_array((np.ones(len(picks)), (job, np.arange(len(picks)))), shape=(len(problem.jobs), len(picks)))
        upper = np.concatenate([np.ones(len(problem.jobs)), limit])
        matrix = csr_array(vstack([once, csr_array(use.T)]))
        lower, most = np.full(len(upper), -np.inf), np.ones(len(picks))
        result = maximise(np.array(gains), most, matrix, lower, upper, self._time_limit_s, self._relative_gap)
        if result.x is None:
            return make_placeable(problem, [request.current for request in problem.jobs])
        choice: list[int | None] = [None] * len(problem.jobs)
        for (i, cell), is_picked in zip(picks, result.x, strict=True):
            if is_picked:
                choice[i] = cell
        return make_placeable(problem, choice)

    def gains(self, problem: Problem, i: int) -> dict[int, float]:
        """Return Cell -> lam - (r G)^p of jobs[i], where that is above zero (what waiting gains)."""
        job = problem.jobs[i]
        whole = {node.gpu_type: 0 for node in problem.nodes}
        for node in problem.nodes:
            whole[node.gpu_type] = max(whole[node.gpu_type], node.free)
        every = best_of_shapes(job)
        row = {s: c for s, c in every.items() if c == job.current or _configuration(s, whole)} or every
        if not row:
            return {}
        worst, least = min(((s, job.relative[c]) for s, c in row.items()), key=lambda sg: (sg[1], sg[0].gpus))
        gpus = min(shape.gpus for shape in row if shape.gpu_type == worst.gpu_type)
        open_now = within_growth(job, problem, self._growth)
        gains = {}
        for shape, cell in row.items():
            free = cell == job.current or job.current is None or job.age_s < problem.restart_cost_s
            r = 1.0 if free else job.discount
            if r > 0 and shape in open_now:
                gain = self._lam - (r * gpus * job.relative[cell] / least) ** self._p
                if gain > 0:
                    gains[cell] = gain
        return gains


def _configuration(shape: Shape, whole: dict[str, int]) -> bool:
    """Return whether the shape is 2^k GPUs on one node, or whole nodes (the fullest of its type counts as whole)."""
    if shape.gpus_per_node == whole.get(shape.gpu_type):
        return True
    return shape.nodes == 1 and shape.gpus & (shape.gpus - 1) == 0

"""Pollux: a genetic algorithm over everybody's GPUs for the best mean of speedups (Qiao et al., OSDI'21, sec. 4.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from synergy_sim.policies.packing_rows import Floats, PackingItem, packing, packing_item
from synergy_sim.policies.requested_size import best_of_shapes, by_submission, within_growth
from synergyd.scheduler.placement.make_placeable import make_placeable
from synergyd.scheduler.problem.records import Allocation, Policy, Problem

Ints = NDArray[np.intp]
_LEAST = 1e-3  # speedup of a job without GPUs: the power mean needs a number above zero


class PolluxPolicy(Policy):
    """fitness = (mean_i speedup_i^p)^(1/p), p = -1 (eq.

    14, 15); speedup = goodput over goodput at a fair share of the GPUs, times (T - N S)/(T + S) for a running job that
    changes (as the released code has it; the same as Sia's).

    A genome names one Cell (or none) of each job. `population` genomes, the present allocation among them, go through
    `generations` of tournament, row-wise crossover, mutation and repair; the best survive with their children. Repair
    takes the jobs with least attained service first (as the released code has it): a Cell that no longer fits is cut to
    the job's least of each GPU type, then to nothing.

    Simplified: the genome is of Cells where the paper's matrix is of GPUs per job and node, so nodes are named by
    `place`, and "at most one distributed job a node" is a limit on their number; a running job at most doubles its GPUs
    and a waiting one starts on its least (the paper: twice the most it has ever had). The same `seed`, the same answer.
    """

    preempts = True
    rule = "the harmonic mean of all jobs' speedups over a fair share decides, as far as a genetic search finds it"

    def __init__(
        self, population: int = 100, generations: int = 100, seed: int = 0, p: float = -1.0, growth: float = 2.0
    ) -> None:
        self._population, self._generations, self._seed, self._p = population, generations, seed, p
        self._growth = growth

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return make_placeable(problem, [])
        genes = self._search(_table(problem, self._growth))
        return make_placeable(problem, genes)

    def _search(self, table: _Options) -> list[int | None]:
        random = np.random.default_rng(self._seed)
        jobs = len(table.count)
        genomes = np.tile(table.present, (self._population, 1))
        # Besides: everyone at its least; everyone as now, and those that wait at their least.
        genomes[1::3] = [own[0] if own else 0 for own in table.least]
        genomes[2::3] = np.where(table.present > 0, table.present, genomes[1])
        genomes[3:] = self._mutate(random, genomes[3:], table, rate=0.1)
        genomes = _repair(genomes, table)
        fitness = self.fitness(genomes, table)
        for _ in range(self._generations):
            # The better of two drawn at random is a parent; each row (job) comes from one of two parents.
            drawn = random.integers(len(genomes), size=(2, 2, self._population))
            parents = np.where(fitness[drawn[0]] >= fitness[drawn[1]], drawn[0], drawn[1])
            mother = random.random((self._population, jobs)) < 0.5
            children = np.where(mother, genomes[parents[0]], genomes[parents[1]])
            children = _repair(self._mutate(random, children, table, rate=1.0 / jobs), table)
            genomes = np.unique(np.concatenate([genomes, children]), axis=0)
            fitness = self.fitness(genomes, table)
            best = np.argsort(-fitness, kind="stable")[: self._population]
            genomes, fitness = genomes[best], fitness[best]
        return [table.cells[j][int(option)] for j, option in enumerate(genomes[0])]

    def fitness(self, genomes: Ints, table: _Options) -> Floats:
        """Return [genomes]: the power mean of the jobs' speedups."""
        speedups = np.maximum(table.speedup[np.arange(len(table.count)), genomes], _LEAST)
        mean: Floats = np.mean(speedups**self._p, axis=1) ** (1.0 / self._p)
        return mean

    @staticmethod
    def _mutate(random: np.random.Generator, genomes: Ints, table: _Options, rate: float) -> Ints:
        anything = (random.random(genomes.shape) * table.count).astype(np.intp)
        return np.where(random.random(genomes.shape) < rate, anything, genomes)


@dataclass(frozen=True)
class _Options:
    """Options of each job, padded to the longest: option 0 is to have nothing.

    `cells` [jobs][options], `count` [jobs] options, `present` [jobs], `order` [jobs] (least service
    first), `least` [jobs] options of fewest GPUs of each type, `speedup` [jobs x options] (restart factor in),
    `use` [jobs x options x rows], `limit` [rows].
    """

    cells: list[list[int | None]]
    count: Ints
    present: Ints
    order: Ints
    least: list[list[int]]
    speedup: Floats
    use: Floats
    limit: Floats


def _table(problem: Problem, growth: float) -> _Options:
    share = -(-sum(node.free for node in problem.nodes) // len(problem.jobs))
    cells: list[list[int | None]] = []
    for job in problem.jobs:
        open_now = within_growth(job, problem, growth).items()
        cells.append(
            [None, *(i for _, i in sorted(open_now, key=lambda si: (si[0].gpus, -job.relative[si[1]], si[1])))]
        )
    count = np.array([len(own) for own in cells], dtype=np.intp)
    speedup = np.zeros((len(cells), int(count.max())))
    present = np.zeros(len(cells), dtype=np.intp)
    items: list[PackingItem] = []
    where = []
    least_of: list[list[int]] = []
    for j, (job, own) in enumerate(zip(problem.jobs, cells, strict=True)):
        kinds = [None if cell is None else job.cells[cell].shape.gpu_type for cell in own]
        least_of.append([kinds.index(kind) for kind in dict.fromkeys(kinds) if kind is not None])
        every = best_of_shapes(job)
        least = min((shape.gpus for shape in every), default=0)
        fair = max((job.relative[i] for s, i in every.items() if s.gpus <= max(share, least)), default=1.0)
        for option, cell in enumerate(own):
            if cell is not None:
                factor = 1.0 if job.current in (None, cell) else job.discount
                speedup[j, option] = factor * job.relative[cell] / fair
                items.append(packing_item(problem, j, cell))
                where.append((j, option))
                present[j] = option if cell == job.current else present[j]
    rows, limit = packing(problem, items)
    distributed, nodes = _distributed_needs(problem, items)
    use = np.zeros((len(cells), int(count.max()), len(limit) + len(nodes)))
    for (j, option), row, wide in zip(where, rows, distributed, strict=True):
        use[j, option] = np.concatenate([row, wide])
    jobs = problem.jobs
    order = sorted(by_submission(problem), key=lambda j: jobs[j].progress.attained_gpu_s)
    return _Options(
        cells, count, present, np.array(order, dtype=np.intp), least_of, speedup, use, np.concatenate([limit, nodes])
    )


def _distributed_needs(problem: Problem, items: list[PackingItem]) -> tuple[Floats, Floats]:
    """Return the nodes that each take needs as a distributed job, by GPU type, and how many there are: at most one such job a node."""
    kinds = sorted({node.gpu_type for node in problem.nodes})
    use = [[float(t.nodes) * (t.shape.gpu_type == kind and t.shape.nodes > 1) for kind in kinds] for t in items]
    limit = [float(sum(node.free > 0 for node in problem.nodes if node.gpu_type == kind)) for kind in kinds]
    return np.array(use, dtype=float).reshape(len(items), len(kinds)), np.array(limit, dtype=float)


def _repair(genomes: Ints, table: _Options) -> Ints:
    """Return the genomes cut to the limits: jobs in the table's order, each cut to its least Cells, then to none, where it does not fit."""
    load = np.zeros((len(genomes), len(table.limit)))
    fixed = genomes.copy()
    for j in table.order:
        use, option = table.use[j], genomes[:, j]
        over = np.any(load + use[option] > table.limit, axis=1)
        for least in table.least[j]:
            if not over.any():
                break
            option = np.where(over, least, option)
            over = np.any(load + use[option] > table.limit, axis=1)
        fixed[:, j] = option = np.where(over, 0, option)
        load += use[option]
    return fixed

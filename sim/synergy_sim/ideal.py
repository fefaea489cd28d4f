"""The best that could be had: the yardsticks of every policy. They come from the ground truth and are never shown to a scheduler."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from synergy_core.records import Cluster, Shape

from synergy_sim.records import Floats, Scenario, TraceJob, Truth, requested_shape


def all_shapes(cluster: Cluster) -> tuple[Shape, ...]:
    """Return every shape of equal GPUs a node that the whole cluster can hold."""
    keys = set()
    for gpu_type in cluster.gpu_types():
        sizes = [node.gpus for node in cluster.nodes if node.gpu_type == gpu_type]
        for each in range(1, max(sizes) + 1):
            keys |= {(gpu_type, nodes, each) for nodes in range(1, sum(size >= each for size in sizes) + 1)}
    return tuple(Shape(*key) for key in sorted(keys))


@dataclass(frozen=True)
class Ideal:
    """One truth on one cluster, all arrays per stage.

    `fastest`: units of progress a second on the best shape there is. `gpu_s`: GPU seconds a unit where that is least.
    `rates[gpu_type][k]`: the best rate on at most k GPUs of that type, of those that can run it.
    """

    lengths: Floats
    fastest: Floats
    gpu_s: Floats
    rates: dict[str, dict[int, Floats]]

    def seconds(self, gpus: float, gpus_by_type: Mapping[str, int]) -> float:
        """Return the seconds alone on `gpus` GPUs all the time; below one GPU the job has one for that share of the time.

        A fair share of a cluster of several types is no share of its best type: this is the mean over the types that can run the job,
        each with the weight of its GPUs in the cluster, as in Sia's artifact (ftf_simulator.py, combine_cluster_jcts).
        """
        weights = [gpus_by_type[gpu_type] for gpu_type in self.rates]
        return float(np.average([self._seconds_on(gpus, of_type) for of_type in self.rates.values()], weights=weights))

    def _seconds_on(self, gpus: float, rates: Mapping[int, Floats]) -> float:
        most = max((k for k in rates if k <= max(1.0, gpus)), default=min(rates))
        share = min(1.0, gpus / most)
        return float((self.lengths / rates[most]).sum()) / share

    @property
    def alone_s(self) -> float:
        return float((self.lengths / self.fastest).sum())

    @property
    def work_gpu_s(self) -> float:
        return float((self.lengths * self.gpu_s).sum())


class Ideals:
    """The Ideal of every job of a scenario, made once for each truth."""

    def __init__(self, scenario: Scenario) -> None:
        self._shapes = all_shapes(scenario.cluster)
        self._cluster = scenario.cluster
        self._asked: dict[tuple[int, int, str, int, int], Floats | None] = {}
        self._known: dict[tuple[int, int, int, int | None], Ideal | None] = {}
        self._largest = max((s.gpus for s in self._shapes), default=0)

    def requested_rates(self, job: TraceJob) -> Floats | None:
        """Return (stages,) units of progress a second at the size and batch that the job's user asks for.

        The plan is the user's own if the trace has one, else the best there. Return None where nothing can run there.
        """
        truth = job.requested_truth or job.truth
        key = id(truth), job.gpus, job.gpu_type, job.nodes, job.batch
        if key not in self._asked:
            shape = requested_shape(job, self._cluster)
            rates = None if shape is None else truth.best_rates(shape, job.batch)
            if rates is None and shape is not None:  # it has no plan with just that batch
                rates = truth.best_rates(shape)
            self._asked[key] = rates
        return self._asked[key]

    def find_ideal(self, job: TraceJob) -> Ideal | None:
        """Return the job's ideal, or None where nothing that was measured fits the cluster."""
        batch = job.batch if job.batch_fixed else 0
        key = id(job.truth), batch, 1, job.max_gpus
        if key not in self._known:
            most = min(self._largest, job.max_gpus or self._largest)
            fixed = job.batch if job.batch_fixed else None
            self._known[key] = find_ideal(job.truth, [s for s in self._shapes if s.gpus <= most], fixed)
        return self._known[key]


def find_ideal(truth: Truth, shapes: Sequence[Shape], batch: int | None = None) -> Ideal | None:
    """Return the ideal of `truth` on `shapes`, or None if none can run it.

    `batch`: the one that the job's user insists on, None if any may be used.
    """
    ends = np.array([truth.end(stage) for stage in range(truth.stages)])
    lengths = np.diff(ends, prepend=0.0)
    best: dict[str, dict[int, Floats]] = {}
    for shape in shapes:
        rates = truth.best_rates(shape, batch)
        if rates is not None:
            of_type = best.setdefault(shape.gpu_type, {})
            of_type[shape.gpus] = np.maximum(of_type.get(shape.gpus, 0.0), rates)
    if not best:
        return None
    gpu_s = np.min([k / rates for of_type in best.values() for k, rates in of_type.items()], axis=0)
    fastest = np.max([rates for of_type in best.values() for rates in of_type.values()], axis=0)
    return Ideal(lengths, fastest, gpu_s, {gpu_type: _up_to(of_type) for gpu_type, of_type in best.items()})


def _up_to(best: Mapping[int, Floats]) -> dict[int, Floats]:
    """Return the highest rates on at most k GPUs, for each number k of `best`."""
    sizes = sorted(best)
    return dict(zip(sizes, np.maximum.accumulate([best[k] for k in sizes], axis=0), strict=True))


@dataclass(frozen=True)
class LowerBound:
    """Relaxations of the average JCT in seconds; `average_s` is the largest.

    No schedule on shapes of equal GPUs a node with any batch of the job's range can beat one of them.

    alone_s: every job by itself on its fastest shape (no job waits for another).
    work_s: the cluster as one machine that works off GPU seconds, each job needing its least, in order of the shortest
        remaining work (SRPT is optimal for one preemptive machine).
    both_s: mean busy times. Let f be the share of a job's least GPU seconds that is done. On that one machine the sum of
        the mean busy times, the integral of t df, is least where the job of least work always goes first (preemptive WSPT:
        Goemans 1997). And from its mean busy time to its end a job needs what is left of it at its fastest pace,
        integrated over f: a fixed number. Together they bound the sum of completion times.
    """

    alone_s: float
    work_s: float
    both_s: float

    @property
    def average_s(self) -> float:
        return max(self.alone_s, self.work_s, self.both_s)


def compute_lower_bound(scenario: Scenario, ideals: Ideals) -> LowerBound:
    """Return the bounds on a scenario without outages (they only make it worse).

    Each job also starts once: that takes `first_start_s` on one GPU at least.
    """
    start_s, gpus = scenario.costs.first_start_s, scenario.gpus
    alone, tails, works, submits = [], [], [], []
    for job in scenario.jobs:
        ideal = ideals.find_ideal(job)
        if ideal is None:
            return LowerBound(0.0, 0.0, 0.0)
        fast = np.concatenate([[start_s], ideal.lengths / ideal.fastest])
        work = np.concatenate([[start_s], ideal.lengths * ideal.gpu_s])
        # work at its least and time at its fastest may be on different shapes: both are only bounded from below
        left_s = fast.sum() - np.cumsum(fast) + fast / 2
        alone.append(float(fast.sum()))
        works.append(float(work.sum()))
        tails.append(float((work * left_s).sum() / work.sum()) if work.sum() > 0 else 0.0)
        submits.append(job.submit_s)
    count = len(submits)
    ends, _ = schedule_one_machine(submits, [w / gpus for w in works], by_remaining=True)
    _, middles = schedule_one_machine(submits, [w / gpus for w in works], by_remaining=False)
    return LowerBound(
        alone_s=math.fsum(alone) / count,
        work_s=math.fsum(e - s for e, s in zip(ends, submits, strict=True)) / count,
        both_s=math.fsum(m - s + t for m, s, t in zip(middles, submits, tails, strict=True)) / count,
    )


def schedule_one_machine(
    submits: Sequence[float], lengths: Sequence[float], *, by_remaining: bool
) -> tuple[list[float], list[float]]:
    """Return (ends, mean busy times) of jobs on one preemptive machine, least remaining (else least whole) length first."""
    order = sorted(range(len(submits)), key=lambda i: submits[i])
    remaining, ends, middles = list(lengths), [0.0] * len(lengths), [0.0] * len(lengths)
    ready: list[tuple[float, int]] = []
    now, nth = 0.0, 0
    while nth < len(order) or ready:
        if not ready:
            now = max(now, submits[order[nth]])
        while nth < len(order) and submits[order[nth]] <= now:
            i = order[nth]
            heapq.heappush(ready, (remaining[i], i))
            nth += 1
        key, i = heapq.heappop(ready)
        until = submits[order[nth]] if nth < len(order) else math.inf
        spent = min(remaining[i], until - now)
        if lengths[i] > 0:
            middles[i] += (now + spent / 2) * spent / lengths[i]
        else:
            middles[i] = now
        now += spent
        remaining[i] -= spent
        if (remaining[i] > 0 and now < until) or remaining[i] <= 1e-9 * max(1.0, lengths[i]):
            ends[i] = now
        else:
            heapq.heappush(ready, (remaining[i] if by_remaining else key, i))
    return ends, middles

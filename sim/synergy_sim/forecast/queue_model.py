"""A queue model of one GPU type: plain jobs by Slurm's rules, elastic ones by Synergy's, in milliseconds where the simulator takes minutes.

It knows each job's GPUs and nodes, and no profiles, reports or plans. Plain jobs start by plain_queue.py. Elastic jobs are decided about
every `epoch_s`, as the default policy would with the true speeds:
  - GPUs are divided by proportional fairness: each further GPU goes where it adds most to the sum of log(speed / requested speed), and
    short jobs weigh more (ShortFirst);
  - jobs that run are shrunk for those that wait to start; they grow into GPUs that are free, where that is worth the restart;
  - while plain jobs wait no elastic job grows beyond its requested size, and it gives back what it has beyond that if a plain job then
    starts.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from synergy_sim.node_pool import NodePool, Placement
from synergy_sim.plain_queue import PlainQueue, PlainRequest
from synergy_sim.records import Costs, Floats
from synergyd.jobmodel.speed_up import SpeedUp

_WEIGHTS = (1 / 3, 3.0)  # bounds of ShortFirst's factor, as in the setting's description
_SHORT_FIRST = 0.5  # the setting's default
_ARRIVAL, _END, _EPOCH = range(3)
#: seconds between two looks at growth while nobody waits. Of eight histories of forecast_truth.py, all taking part, the mean completion
#: time is 52.1 min with 60, 52.2 with 120 and 52.9 with 300; the shorter, the longer a forecast takes.
GROW_S = 120.0
#: further rungs that are tried where the next does not fit into what is left
LOOKS = 100


@dataclass(frozen=True, kw_only=True)
class QueueJob:
    """One job of a history: `seconds` it ran, `limit_s` its time limit. `curve`: how it scales; None: it keeps its size."""

    submit_s: float
    nodes: int
    each: int
    seconds: float
    limit_s: float
    curve: SpeedUp | None = None

    @property
    def gpus(self) -> int:
        return self.nodes * self.each


@dataclass(frozen=True)
class QueueResult:
    """The outcome of one job."""

    start_s: float
    end_s: float
    gpu_s: float
    restarts: int


@dataclass(frozen=True)
class Option:
    """A shape that an elastic job can run on. `speed` is relative to the shape asked for."""

    gpus: int
    nodes: int
    each: int
    speed: float


@dataclass(frozen=True)
class _Ladder:
    """The options on the concave envelope of log(speed) over GPUs. `gains`: what each rung adds a GPU; `more`: GPUs that it adds."""

    rungs: tuple[Option, ...]
    gains: Floats
    more: npt.NDArray[np.int64]
    rungs_to_requested: int  # rungs up to the size asked for


def _ladder(options: Sequence[Option], asked_gpus: int) -> _Ladder:
    rungs, gains, at = [options[0]], [], 0
    while at + 1 < len(options):
        now = options[at]
        slopes = [math.log(o.speed / now.speed) / (o.gpus - now.gpus) for o in options[at + 1 :]]
        best = max(range(len(slopes)), key=lambda i: slopes[i])
        if slopes[best] <= 0:
            break
        at += best + 1
        gains.append(slopes[best])
        rungs.append(options[at])
    more = np.array([after.gpus - before.gpus for before, after in pairwise(rungs)], dtype=np.int64)
    return _Ladder(tuple(rungs), np.array(gains), more, sum(rung.gpus <= asked_gpus for rung in rungs[1:]))


@dataclass
class _Elastic:
    """An elastic job that waits or runs. `work` is left, in seconds at the speed asked for."""

    index: int
    job: QueueJob
    options: tuple[Option, ...]
    ladder: _Ladder
    work: float
    chosen_option: Option | None = None
    placement: Placement = ()
    synced_s: float = 0.0  # until then its work is counted; it trains from then on
    granted_s: float = 0.0
    start_s: float | None = None
    restarts: int = 0
    gpu_s: float = 0.0
    version: int = 0

    @property
    def requested_gpus(self) -> int:
        return self.job.gpus


@dataclass
class QueueModel:
    """One run over `jobs`, in order of submission, on nodes with `node_gpus` GPUs. Call `run` once."""

    jobs: Sequence[QueueJob]
    node_gpus: Sequence[int]
    costs: Costs = field(default_factory=Costs)
    epoch_s: float = 60.0
    on_progress: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        self._pool = NodePool(self.node_gpus)
        self._largest = max(self.node_gpus, default=0)
        self._queue = PlainQueue()
        self._heap: list[tuple[float, int, int, int]] = []
        self._plain_limits: list[tuple[float, int, Placement]] = []  # of running plain jobs, by the end of their limit
        self._plain: dict[int, tuple[float, Placement]] = {}
        self._elastic: dict[int, _Elastic] = {}
        self._results: list[QueueResult | None] = [None] * len(self.jobs)
        self._epoch_at_s: float | None = None
        self._last_epoch_s = -math.inf
        self._divided_s = -math.inf
        self._now_s = 0.0

    def run(self) -> list[QueueResult]:
        """Return the outcome of each job, in their order."""
        for index, job in enumerate(self.jobs):
            self._heap.append((job.submit_s, _ARRIVAL, index, 0))
        heapq.heapify(self._heap)
        ended = 0
        while self._heap:
            self._now_s, kind, index, version = heapq.heappop(self._heap)
            if kind == _ARRIVAL:
                self._arrive(index)
            elif kind == _END:
                if not self._end(index, version):
                    continue
                ended += 1
                if self.on_progress is not None and not ended % 500:
                    self.on_progress(ended)
            elif self._epoch_at_s == self._now_s:
                self._epoch_at_s, self._last_epoch_s = None, self._now_s
                self._decide()
            if self._queue and not (self._heap and self._heap[0][:2] == (self._now_s, kind)):
                self._start_plain()
        assert all(result is not None for result in self._results), "a job is larger than the pool"
        return [result for result in self._results if result is not None]

    # -- events ----------------------------------------------------------------------------------------------------------

    def _arrive(self, index: int) -> None:
        job = self.jobs[index]
        if job.curve is None:
            self._queue.add(PlainRequest(index, job.submit_s, job.nodes, job.each, job.limit_s))
            if self._elastic and self._epoch_at_s is None:
                self._schedule_epoch()
            return
        work = max(1.0, job.seconds - self.costs.first_start_s)
        options = self._options(job, job.curve)
        self._elastic[index] = _Elastic(index, job, options, _ladder(options, job.gpus), work)
        self._schedule_epoch()

    def _end(self, index: int, version: int) -> bool:
        """End a job. Return False if the event is out of date."""
        if (plain := self._plain.pop(index, None)) is not None:
            limit_end_s, placement = plain
            self._plain_limits.pop(bisect_left(self._plain_limits, (limit_end_s, index)))
            self._pool.change(placement, 1)
        else:
            live = self._elastic.get(index)
            if live is None or live.version != version:
                return False
            self._release(live)
            del self._elastic[index]
            assert live.start_s is not None
            self._results[index] = QueueResult(live.start_s, self._now_s, live.gpu_s, live.restarts)
        if self._elastic:
            self._schedule_epoch()
        return True

    def _schedule_epoch(self) -> None:
        """Decide at the next point of the grid, as soon as one period has passed."""
        if self._epoch_at_s is None:
            period = self.epoch_s
            self._epoch_at_s = max(math.floor(self._now_s / period) * period + period, self._last_epoch_s + period)
            heapq.heappush(self._heap, (self._epoch_at_s, _EPOCH, 0, 0))

    def _start_plain(self) -> None:
        for job, placement in self._queue.start(self._now_s, self._pool, self._running()):
            one = self.jobs[job.key]
            limit_end_s = self._now_s + one.limit_s
            self._plain[job.key] = limit_end_s, placement
            insort(self._plain_limits, (limit_end_s, job.key, placement))
            end_s = self._now_s + one.seconds
            self._results[job.key] = QueueResult(self._now_s, end_s, one.gpus * one.seconds, 0)
            heapq.heappush(self._heap, (end_s, _END, job.key, 0))

    def _running(self) -> Iterator[tuple[float, Placement]]:
        elastic = [
            (live.granted_s + live.job.limit_s, live.index, live.placement)
            for live in self._elastic.values()
            if live.chosen_option is not None
        ]
        merged = heapq.merge(self._plain_limits, sorted(elastic)) if elastic else self._plain_limits
        return ((end_s, placement) for end_s, _, placement in merged)

    # -- elastic jobs ----------------------------------------------------------------------------------------------------

    def _options(self, job: QueueJob, curve: SpeedUp) -> tuple[Option, ...]:
        """Return the shapes worth having, the smallest first: more GPUs only where they are faster."""
        node, count = self._largest, len(self.node_gpus)
        shapes = {(1, 2**i) for i in range(node.bit_length()) if 2**i <= node} | {(1, node), (job.nodes, job.each)}
        many = 2
        while many <= count:
            shapes.add((many, node))
            many += max(1, many // 2)
        options: list[Option] = []
        for nodes, each in sorted(shapes, key=lambda s: (s[0] * s[1], s[0])):
            times = nodes * each / job.gpus
            own = (nodes, each) == (job.nodes, job.each)
            if not own and not curve.least <= times <= curve.most:
                continue
            speed = 1.0 if own else curve.speed(times, job.nodes, nodes)
            if own or not options or (speed > options[-1].speed * 1.01 and nodes * each > options[-1].gpus):
                options.append(Option(nodes * each, nodes, each, speed))
        return tuple(options)

    def _sync(self, live: _Elastic) -> None:
        if live.chosen_option is not None and self._now_s > live.synced_s:
            live.work = max(0.0, live.work - (self._now_s - live.synced_s) * live.chosen_option.speed)
            live.synced_s = self._now_s

    def _release(self, live: _Elastic) -> None:
        assert live.chosen_option is not None
        self._sync(live)
        live.gpu_s += live.chosen_option.gpus * (self._now_s - live.granted_s)
        self._pool.change(live.placement, 1)
        live.chosen_option, live.placement = None, ()
        live.version += 1

    def _begin(self, live: _Elastic, option: Option, placement: Placement) -> None:
        first = live.start_s is None
        live.chosen_option, live.placement, live.granted_s = option, placement, self._now_s
        live.synced_s = self._now_s + (self.costs.first_start_s if first else self.costs.resize_s)
        live.start_s = self._now_s if live.start_s is None else live.start_s
        live.restarts += not first
        live.version += 1
        heapq.heappush(self._heap, (live.synced_s + live.work / option.speed, _END, live.index, live.version))

    def _decide(self) -> None:
        """Decide about all elastic jobs."""
        for live in self._elastic.values():
            self._sync(live)
        crowded = bool(self._queue)
        if crowded:
            self._give_back()
            self._start_plain()
            crowded = bool(self._queue)
        waiting = sorted((e for e in self._elastic.values() if e.chosen_option is None), key=lambda e: e.job.submit_s)
        waiting = [live for live in waiting if not self._start_at_requested_size(live)]
        running = [live for live in self._elastic.values() if live.chosen_option is not None]
        if not waiting and (crowded or not self._pool.total):
            return
        if not waiting and self._now_s < self._divided_s + GROW_S:
            self._schedule_epoch()
            return
        self._divided_s = self._now_s
        target = self._divide(running, waiting, crowded)
        self._make_room(running, waiting, target)
        for live in waiting:
            self._start_elastic(live, target.get(live.index))
        if not crowded:
            self._grow(running, target)
            if self._pool.total and any(
                live.chosen_option is not None and live.chosen_option.gpus < target[live.index].gpus
                for live in running + waiting
            ):
                self._schedule_epoch()  # a start was not complete, or a restart is not worth it yet

    def _give_back(self) -> None:
        """Shrink jobs to the size they asked for as far as that lets the first plain job start."""
        head = self._queue.first()
        assert head is not None
        holders = [
            e for e in self._elastic.values() if e.chosen_option is not None and e.chosen_option.gpus > e.requested_gpus
        ]
        spare = sum(e.chosen_option.gpus - e.requested_gpus for e in holders if e.chosen_option is not None)
        if self._pool.total + spare < head.gpus:
            return
        for live in sorted(holders, key=lambda e: -(e.chosen_option.gpus - e.requested_gpus if e.chosen_option else 0)):
            if self._pool.has_room(head.nodes, head.each):
                return
            self._move(live, max((o for o in live.options if o.gpus <= live.requested_gpus), key=lambda o: o.gpus))

    def _weight(self, live: _Elastic, median_s: float) -> float:
        left_s = live.work
        factor = (median_s / left_s) ** _SHORT_FIRST if left_s > 0 and live.start_s is not None else 1.0
        return min(max(factor, _WEIGHTS[0]), _WEIGHTS[1])

    def _divide(self, running: list[_Elastic], waiting: list[_Elastic], crowded: bool) -> dict[int, Option]:
        """Return by index the share of each job: the sum of weight x log(speed) is largest, as far as GPU counts tell."""
        budget = self._pool.total + sum(live.chosen_option.gpus for live in running if live.chosen_option is not None)
        works = sorted(live.work for live in running)
        median_s = works[len(works) // 2] if works else 1.0
        sharing = []
        for live in running + waiting:
            if live.ladder.rungs[0].gpus <= budget:
                budget -= live.ladder.rungs[0].gpus
                sharing.append(live)
        if not sharing:
            return {}
        lengths = [live.ladder.rungs_to_requested if crowded else len(live.ladder.gains) for live in sharing]
        weights = np.repeat([self._weight(live, median_s) for live in sharing], lengths)
        gains = np.concatenate([e.ladder.gains[:n] for e, n in zip(sharing, lengths, strict=True)]) * weights
        owners = np.repeat(np.arange(len(sharing)), lengths)
        order = np.argsort(-gains, kind="stable")  # a job's own rungs stay in their order
        gpus = np.concatenate([e.ladder.more[:n] for e, n in zip(sharing, lengths, strict=True)])[order]
        sure = int(np.searchsorted(np.cumsum(gpus), budget, side="right"))
        budget -= int(gpus[:sure].sum())
        climbed = np.bincount(owners[order[:sure]], minlength=len(sharing)).tolist()
        skipped: set[int] = set()
        last = sure + LOOKS
        for owner, more in zip(owners[order[sure:last]].tolist(), gpus[sure:last].tolist(), strict=True):
            if owner not in skipped and more <= budget:
                budget -= more
                climbed[owner] += 1
            else:
                skipped.add(owner)  # its further rungs stand on this one
        return {live.index: live.ladder.rungs[n] for live, n in zip(sharing, climbed, strict=True)}

    def _make_room(self, running: list[_Elastic], waiting: list[_Elastic], target: dict[int, Option]) -> None:
        """Shrink running jobs to their shares, those with the most to give first, until the waiting ones have theirs."""
        need = sum(target[live.index].gpus for live in waiting if live.index in target) - self._pool.total
        if need <= 0:
            return

        def surplus(live: _Elastic) -> int:
            return (
                live.chosen_option.gpus - target[live.index].gpus if live.chosen_option and live.index in target else 0
            )

        for live in sorted(running, key=lambda e: -surplus(e)):
            if need <= 0 or surplus(live) <= 0:
                return
            # a job about to end is not worth a restart
            if live.chosen_option is None or live.work / live.chosen_option.speed <= self.costs.resize_s:
                continue
            need -= surplus(live)
            self._move(live, target[live.index])

    def _start_elastic(self, live: _Elastic, share: Option | None) -> None:
        """Start a waiting job on its share, or on the most below it that is free, unless that delays an earlier plain job."""
        if share is None:
            return
        head, reservation = self._queue.first(), self._queue.reservation
        behind = head is not None and reservation is not None and head.submit_s < live.job.submit_s
        for option in reversed(live.options):
            if option.gpus > share.gpus or not self._pool.has_room(option.nodes, option.each):
                continue
            if behind and reservation is not None:
                if not reservation.allows(self._now_s, live.job.limit_s, option.gpus):
                    continue
                if self._now_s + live.job.limit_s > reservation.start_s:
                    reservation.spare -= option.gpus
            placement = self._pool.take(option.nodes, option.each)
            assert placement is not None
            self._begin(live, option, placement)
            return

    def _start_at_requested_size(self, live: _Elastic) -> bool:
        """Start a waiting job at the size it asked for if that is free: nobody need be moved for it."""
        asked_option = next(o for o in live.options if (o.nodes, o.each) == (live.job.nodes, live.job.each))
        if self._pool.has_room(asked_option.nodes, asked_option.each):
            self._start_elastic(live, asked_option)
        return live.chosen_option is not None

    def _grow(self, running: list[_Elastic], target: dict[int, Option]) -> None:
        """Let running jobs grow into free GPUs up to their shares, where that is worth the restart (Sia's factor)."""
        cost_s = self.costs.resize_s
        for live in sorted(
            running, key=lambda e: target[e.index].gpus - (e.chosen_option.gpus if e.chosen_option else 0)
        ):
            if not self._pool.total:
                return
            have = live.chosen_option
            if (
                have is None
                or target[live.index].gpus <= have.gpus
                or self._now_s < live.synced_s
                or self._now_s <= live.granted_s
            ):
                continue
            age_s = self._now_s - live.job.submit_s
            discount = max(0.0, age_s - live.restarts * cost_s) / (age_s + cost_s)
            self._pool.change(live.placement, 1)
            best = None
            for option in reversed(live.options):
                if have.gpus < option.gpus <= target[live.index].gpus and self._pool.has_room(
                    option.nodes, option.each
                ):
                    lasting = 1.0 / (1.0 + cost_s * option.speed / live.work) if live.work > 0 else 0.0
                    if option.speed * min(discount, lasting) > have.speed:
                        best = option
                        break
            self._pool.change(live.placement, -1)
            if best is not None:
                self._move(live, best)

    def _move(self, live: _Elastic, option: Option) -> None:
        """Restart a running job on `option`, or on the largest smaller one that its GPUs and the free ones can hold."""
        before, placement_before = live.chosen_option, live.placement
        assert before is not None
        self._release(live)
        for smaller in reversed(live.options):
            if smaller.gpus <= option.gpus and (placement := self._pool.take(smaller.nodes, smaller.each)) is not None:
                self._begin(live, smaller, placement)
                return
        self._pool.change(placement_before, -1)
        self._begin(live, before, placement_before)

"""The cost of the next restart of a job: from its own restarts, those of its program on the same storage, and the cluster's. Pure.

Each phase's seconds are log-normal. A job's mean (of the logarithm) lies around its program's, that around its user's on this cluster, and
that around the setting RestartCost: a normal distribution at each level, so that the estimate is a mean weighted by precisions, of
which few measurements weigh little and a job's own most. Widths are stated below. The checkpoint and the start may grow with
the bytes that each GPU writes: the exponent is a ridge regression over a program's restarts, 0 until they show it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from synergy_core.records import Job, Profile
from synergy_core.restarts import PHASES, RestartCost, RestartTimes

from synergyd.jobmodel.shared_profiles import program

PREFIX = "restart:"  # starts the stored keys of requeues
LIVE_PREFIX = "live-restart:"  # of changes without one
# One sigma of the logarithm: RestartCost is right to a factor of 2, programs differ by as much.
_SETTING, _PROGRAM = math.log(2), math.log(2)
# Jobs of one program differ by a fifth until they are seen to differ by more, and what that counts for, in jobs: many programs are
# called `train`.
_JOB, _JOB_COUNTS = 0.2, 2
# One sigma of a job's restarts around their own mean before it is measured, and what that counts for, in restarts.
_SPREAD, _SPREAD_COUNTS = 0.3, 4
_FIRST = 0.5  # one sigma more: a first start is like a restart to a factor of 1.6
_EXPONENT = 0.5  # one sigma of the exponent of the bytes per writer
_CLIP = math.log(20.0)  # log of a ratio to the setting: anything beyond has another cause than the restart
_LEAST_S = 0.05  # a phase that takes less counts as this
# Shares of RestartCost: checkpoint, requeue, start, as in the simulator's costs (8, 2 and 20 s)
_SHARES = (8 / 30, 2 / 30, 20 / 30)
_GROW = ("checkpoint_s", "start_s")  # these grow with the bytes per writer
_KEPT, _PROGRAMS = 32, 10_000
_SIZES = 256  # computed (phase, bytes per writer) pairs that are kept for a program
# With three users, a liar among them is between two honest ones. _MOST_VOTES users agree as much as one's own programs do
_USERS, _MOST_VOTES = 3, 8
_GRID = 0.02  # grid of the cluster's mean: on a finer one, each restart of any job would change the estimates of all


class Normal(NamedTuple):
    """A normal distribution of a logarithm of seconds."""

    mean: float
    variance: float

    def with_seen(self, measurements: Iterable[Normal]) -> Normal:
        """Return the posterior after independent measurements, each with its own variance."""
        precision = 1.0 / self.variance
        total = precision * self.mean
        for one in measurements:
            precision += 1.0 / one.variance
            total += one.mean / one.variance
        return Normal(total / precision, 1.0 / precision)

    def wider(self, sigma: float) -> Normal:
        return Normal(self.mean, self.variance + sigma * sigma)


@dataclass(frozen=True)
class _Phase:
    """One phase of a program's restarts: each job's own mean, the variance of a job's restarts around it, and the spread of the means.

    `apart` is one sigma of the jobs' means around the program's. `others` is what each job's own mean says of the program's.
    """

    jobs: Mapping[int, Normal]
    variance: float
    apart: float
    others: Mapping[int, Normal]


def storage_mark(path: str | None) -> str:
    """Return what stands for the storage of a checkpoint folder: the first part of its path. Return "" if no path is given."""
    parts = [part for part in (path or "").split("/") if part]
    return f"/{parts[0]}" if path and path.startswith("/") and parts else ""


def restart_key(job: Job, prefix: str = PREFIX) -> str:
    """Return the key for the restarts of a job's program on its storage."""
    directive = job.directive
    if directive is None:
        return prefix + program(job.uid, job.name)
    batches = directive.global_batch, directive.micro_batch, directive.max_micro_batch
    mark = program(job.uid, job.name, directive.model, *batches, storage_mark(directive.checkpoint))
    return prefix + mark


class RestartCostModel:
    """The restarts of each program, by key of the store; `learn` returns what to store.

    `prior_s`: the setting RestartCost. `prefix`: starts its keys.
    """

    def __init__(self, prior_s: float, prefix: str = PREFIX) -> None:
        self.prior_s, self._prefix = prior_s, prefix
        self._known: dict[str, tuple[RestartTimes, ...]] = {}
        self._phases: dict[str, dict[tuple[str, float | None], _Phase]] = {}  # by key, then phase and bytes per writer
        self._means: dict[str, dict[str, Normal]] = {}  # by key and phase: the mean by the program's own restarts alone
        self._owners: dict[str, int] = {}  # uid by key, of programs of which a job was seen
        # by uid and phase, the estimate for the user's jobs; it has to be computed for a user that is not there
        self._cluster: dict[int, dict[str, Normal]] = {}
        self._votes: dict[str, dict[int, Normal]] = {}  # by phase and uid: the joint estimate of a user's programs
        self._coarse: dict[int, tuple[Normal, ...]] = {}
        # by job, or by the negative of uid + 1 for all of a user's that were not measured: of which state, and the estimate
        self._kept: dict[int, tuple[object, RestartCost]] = {}

    def load(self, profiles: Mapping[str, Profile]) -> None:
        """Load the restarts that an earlier daemon has stored."""
        for key, profile in profiles.items():
            if key.startswith(self._prefix):
                self._keep(key, profile.restarts)

    def learn(self, job: Job, times: RestartTimes) -> dict[str, Profile]:
        """Take over a measured restart of `job`. Return what to store."""
        key = restart_key(job, self._prefix)
        self._owners[key] = job.uid
        before = (t for t in self._known.get(key, ()) if (t.job_id, t.restarts) != (times.job_id, times.restarts))
        latest = (*before, times)[-_KEPT:]
        self._keep(key, latest)
        return {key: Profile(samples=len(latest), restarts=latest)}

    def forget(self, job_id: int) -> None:
        """Drop the state of a job that has ended. The restarts that it has taught stay."""
        self._kept.pop(job_id, None)

    def cost(self, job: Job, bytes_per_writer: float | None = None) -> RestartCost:
        """Return the cost of the next restart of `job`, whose checkpoint each GPU writes `bytes_per_writer` of.

        The cost is 0 where RestartCost is 0.
        """
        if self.prior_s <= 0:
            return RestartCost(mean_s=0.0)
        key = restart_key(job, self._prefix)
        self._record_owner(key, job.uid)
        times, cluster = self._known.get(key, ()), self._of_cluster(job.uid)
        # all unmeasured programs of a user have the same estimate
        state, place = (times, cluster, bytes_per_writer if times else None), job.job_id if times else -job.uid - 1
        cache_entry = self._kept.get(place)
        if cache_entry is None or cache_entry[0] != state:
            cache_entry = self._kept[place] = state, self._estimate(job, key, times, bytes_per_writer)
        return cache_entry[1]

    def _record_owner(self, key: str, uid: int) -> None:
        """Record that a program is user `uid`'s.

        Restarts from an earlier daemon's life count from then on, because the key does not tell whose they are.
        """
        if key in self._known and key not in self._owners:
            self._owners[key] = uid
            self._cluster, self._votes = {}, {}

    def _estimate(
        self, job: Job, key: str, times: Sequence[RestartTimes], bytes_per_writer: float | None
    ) -> RestartCost:
        job_id = job.job_id
        mean_s, variance_s, checkpoint = 0.0, 0.0, (0.0, 0.0)
        for phase in PHASES:
            phase_stats = self._phase(key, phase, bytes_per_writer)
            others = [mean for other, mean in phase_stats.others.items() if other != job_id]
            own = [phase_stats.jobs[job_id]] if job_id in phase_stats.jobs else []
            of_program = self._mean_without(job.uid, key, phase).wider(_PROGRAM).with_seen(others)
            believed = of_program.wider(phase_stats.apart).with_seen(own)
            seconds = math.exp(believed.mean + phase_stats.variance / 2)
            spread_s = seconds * math.sqrt(math.expm1(believed.variance + phase_stats.variance))
            mean_s, variance_s = mean_s + seconds, variance_s + spread_s**2
            checkpoint = (seconds, spread_s) if phase == "checkpoint_s" else checkpoint
        restarts = [t for t in times if not t.is_first_start]
        own_count = sum(t.job_id == job_id for t in restarts)
        return RestartCost(
            mean_s=mean_s,
            spread_s=math.sqrt(variance_s),
            own=own_count,
            others=len(restarts) - own_count,
            checkpoint_s=checkpoint[0],
            checkpoint_spread_s=checkpoint[1],
        )

    def _phase(self, key: str, phase: str, bytes_per_writer: float | None) -> _Phase:
        """Return what the program's restarts say of `phase`. It is computed once for all jobs that write as much."""
        phases = self._phases.setdefault(key, {})
        if len(phases) > _SIZES:
            phases.clear()
        if (phase, bytes_per_writer) not in phases:
            usual = self._setting(phase).mean
            phases[phase, bytes_per_writer] = _phase(self._known.get(key, ()), phase, usual, bytes_per_writer)
        return phases[phase, bytes_per_writer]

    def _setting(self, phase: str) -> Normal:
        """Return the prior of `phase`, with the mean in seconds that the setting says, at the usual spread."""
        share = _SHARES[PHASES.index(phase)]
        return Normal(math.log(max(share * self.prior_s, _LEAST_S)) - _SPREAD**2 / 2, _SETTING**2)

    def _of_cluster(self, uid: int) -> tuple[Normal, ...]:
        """Return the mean of programs for user `uid`, by phase and on the grid.

        It is made of the setting, the user's own programs, and the votes of others.
        """
        if uid not in self._cluster:
            own = [self._means[key] for key in self._means if self._owners.get(key) == uid]
            self._cluster[uid] = {
                phase: self._setting(phase).with_seen(
                    [means[phase].wider(_PROGRAM) for means in own if phase in means] + self._of_others(uid, phase)
                )
                for phase in PHASES
            }
            self._coarse[uid] = tuple(
                Normal(round(normal.mean / _GRID) * _GRID, math.ceil(normal.variance / _GRID) * _GRID)
                for normal in self._cluster[uid].values()
            )
        return self._coarse[uid]

    def _of_others(self, uid: int, phase: str) -> list[Normal]:
        """Return what other users say: nothing before _USERS of them do, then their median, once for each of them.

        A user has one vote, however many programs. A single vote moves the median no further than to the next honest one.
        """
        if phase not in self._votes:
            of_user: dict[int, list[Normal]] = {}
            for key, means in self._means.items():
                if phase in means and key in self._owners:
                    of_user.setdefault(self._owners[key], []).append(means[phase].wider(_PROGRAM))
            self._votes[phase] = {
                user: Normal(median(one.mean for one in some), median(one.variance for one in some))
                for user, some in of_user.items()
            }
        others = [vote for user, vote in self._votes[phase].items() if user != uid]
        if len(others) < _USERS:
            return []
        vote = Normal(median(one.mean for one in others), median(one.variance for one in others))
        return [vote] * min(len(others), _MOST_VOTES)

    def _mean_without(self, uid: int, key: str, phase: str) -> Normal:
        """Return the cluster's mean for user `uid` without what this program has added to it."""
        own = self._means.get(key, {}).get(phase)
        if own is None:
            return self._of_cluster(uid)[PHASES.index(phase)]
        self._of_cluster(uid)
        every, own = self._cluster[uid][phase], own.wider(_PROGRAM)
        precision = 1.0 / every.variance - 1.0 / own.variance
        return Normal((every.mean / every.variance - own.mean / own.variance) / precision, 1.0 / precision)

    def _keep(self, key: str, restarts: tuple[RestartTimes, ...]) -> None:
        self._known.pop(key, None)
        self._phases.pop(key, None)
        self._known[key] = restarts
        means = {}
        for phase in PHASES:
            phase_stats = _phase(restarts, phase, self._setting(phase).mean, None)
            if jobs := list(phase_stats.others.values()):
                means[phase] = jobs[0].with_seen(jobs[1:])
        self._means[key], self._cluster, self._votes = means, {}, {}
        while len(self._known) > _PROGRAMS:
            oldest = next(iter(self._known))
            del self._known[oldest], self._means[oldest]
            self._phases.pop(oldest, None)
            self._owners.pop(oldest, None)


def _phase(restarts: Iterable[RestartTimes], phase: str, usual: float, bytes_per_writer: float | None) -> _Phase:
    """Return what a program's restarts say of one phase, as if each GPU had written `bytes_per_writer`."""
    samples: list[tuple[RestartTimes, float]] = []
    for times in restarts:
        if (seconds := getattr(times, phase)) is not None:
            y = math.log(max(seconds, _LEAST_S))
            samples.append((times, min(max(y, usual - _CLIP), usual + _CLIP)))
    if phase in _GROW and bytes_per_writer:
        samples = _at_bytes(samples, math.log(bytes_per_writer))
    of_job: dict[int, list[tuple[float, bool]]] = {}
    for times, y in samples:
        of_job.setdefault(times.job_id, []).append((y, times.is_first_start))
    off, count = 0.0, 0
    for some in of_job.values():
        own = [y for y, first in some if not first]
        middle = sum(own) / len(own) if own else 0.0
        off, count = off + sum((y - middle) ** 2 for y in own), count + max(0, len(own) - 1)
    variance = (_SPREAD_COUNTS * _SPREAD**2 + off) / (_SPREAD_COUNTS + count)
    jobs = {}
    for job_id, some in of_job.items():
        each = [Normal(y, variance + (_FIRST**2 if first else 0.0)) for y, first in some]
        jobs[job_id] = each[0].with_seen(each[1:])
    means = [mean.mean for mean in jobs.values()]
    middle = sum(means) / len(means) if means else 0.0
    between = _JOB_COUNTS * _JOB**2 + sum((mean - middle) ** 2 for mean in means)
    apart = math.sqrt(between / (_JOB_COUNTS + max(0, len(means) - 1)))
    return _Phase(jobs, variance, apart, {job_id: mean.wider(apart) for job_id, mean in jobs.items()})


def _at_bytes(samples: Sequence[tuple[RestartTimes, float]], log_bytes: float) -> list[tuple[RestartTimes, float]]:
    """Return the logarithms as they would be at `log_bytes`, the logarithm of the bytes per writer.

    They are unchanged where the bytes are not known.
    """
    points = [(math.log(t.bytes_per_writer), y) for t, y in samples if t.bytes_per_writer and not t.is_first_start]
    if len(points) < 2:
        return list(samples)
    x_mean, y_mean = (sum(column) / len(points) for column in zip(*points, strict=True))
    products = sum((x - x_mean) * (y - y_mean) for x, y in points)
    squares = sum((x - x_mean) ** 2 for x, _ in points)
    exponent = min(max(products / (squares + _SPREAD**2 / _EXPONENT**2), 0.0), 1.0)
    return [
        (t, y + exponent * (log_bytes - math.log(t.bytes_per_writer)) if t.bytes_per_writer else y) for t, y in samples
    ]

"""The likely rest of a job that does not tell its length: Gittins' index over what like jobs have taken. Pure.

Work is counted in GPU seconds. Jobs are alike by levels, each within the next: the same program (user, name, batches), the same user,
model and batches, the same user and size asked for, the same user, other users' jobs of that size, other users' jobs. The GPU seconds of
each job of a level are spread around their own logarithm by a normal kernel, and the next level's distribution counts as `_PRIOR` jobs
more (the predictive mean of a Dirichlet process); beyond all jobs lies 1/x, for which each length is as likely as twice that length. So
few samples count little. Each other user has one vote, the median of their jobs, from `_LEAST_VOTES` users on: nobody decides alone what
a job of somebody else counts for.

Gittins' index of a job that has had a GPU seconds is min over d of E[min(X - a, d)] / P(X <= a + d), given X > a: the least GPU seconds
that are spent for one end. Running the job of the least index first has the least mean completion time of all orders that know the
distribution alone (M/G/1; Gittins 1989; Aalto, Ayesta, Righter 2009). For a known length it is what is left.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from synergy_core.records import Job, Profile

from synergyd.jobmodel.shared_profiles import program

Floats = NDArray[np.float64]

_PRIOR = 2.0  # number of jobs that the next level counts as
_LOW, _HIGH, _BINS = 10.0, 1e9, 160  # GPU seconds: one report of one GPU, and 30 years; a bin is 12 % wide
_EDGES = np.geomspace(_LOW, _HIGH, _BINS + 1)
_LOG_EDGES = np.log(_EDGES)
PREFIX = "length:"  # prefix of the stored keys: `length:PROGRAM:ALIKE:GPUS:BIN:UID`, with the number of jobs
_KEPT, _KEPT_OF_ALL = 32, 200  # the latest jobs, or users, of a level, and of the level that knows no size
_LEAST_VOTES = 3  # least number of votes of other users, as for the cost of restarts
_MARKS = 40_000  # levels at most: 10,000 programs
_ALL = "all"
_WIDEST = math.log(10.0)  # one sigma of the logarithm before jobs are seen: a factor of ten


class Lengths:
    """The distribution of the GPU seconds of jobs that are alike, on bins. `wider` is that of the next level."""

    def __init__(self, took_gpu_s: Sequence[float] = (), wider: Lengths | None = None) -> None:
        logs = np.log(np.clip(np.asarray(took_gpu_s, dtype=np.float64), _LOW, _HIGH))
        before = np.full(_BINS, 1.0 / _BINS) if wider is None else wider.mass
        self.variance: float = _WIDEST**2 if wider is None else wider.variance
        if logs.size:
            apart = float(((logs - logs.mean()) ** 2).sum())
            self.variance = (_PRIOR * self.variance + apart) / (_PRIOR + logs.size - 1)
            mass = _kernels(logs, math.sqrt(self.variance) * logs.size**-0.2)  # Scott 1992's rule
            before = (mass + _PRIOR * before) / (logs.size + _PRIOR)
        self.mass: Floats = before
        self._new: float | None = None  # the index of a job that has had no GPU time, as all waiting jobs
        self._survival: Floats = np.concatenate([np.cumsum(before[::-1])[::-1], [0.0]])

    def index_gpu_s(self, had_gpu_s: float) -> float:
        """Return Gittins' index of a job that has had `had_gpu_s` GPU seconds."""
        if had_gpu_s <= _LOW:
            self._new = self._index(_LOW) if self._new is None else self._new
            return self._new
        return self._index(had_gpu_s)

    def _index(self, had: float) -> float:
        edges = np.concatenate([[0.0], _EDGES])
        survival = np.concatenate([[1.0], self._survival / self._survival[0]])
        now = float(np.interp(had, edges, survival))
        ahead = edges > had
        if now <= 0.0 or np.count_nonzero(ahead) < 2:
            return had  # as by 1/x
        at = np.concatenate([[had], edges[ahead]])
        surviving_share = np.concatenate([[now], survival[ahead]])
        spent = np.cumsum(np.diff(at) * (surviving_share[1:] + surviving_share[:-1]) / 2)
        ended = now - surviving_share[1:]
        possible = ended > 1e-12
        return float(np.min(spent[possible] / ended[possible])) if possible.any() else had


def _kernels(logs: Floats, width: float) -> Floats:
    """Return the sum of normal kernels around `logs`, by bin. Mass outside the bins counts in the last bin on its side."""
    z = (_LOG_EDGES[None, :] - logs[:, None]) / (width * math.sqrt(2.0))
    below = 0.5 * (1.0 + _erf(z))
    below[:, 0], below[:, -1] = 0.0, 1.0
    return np.asarray(np.diff(below, axis=1).sum(axis=0))


def _erf(x: Floats) -> Floats:
    """Return the error function by Abramowitz and Stegun 7.1.26, to 1.5e-7."""
    t = 1.0 / (1.0 + 0.3275911 * np.abs(x))
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.asarray(np.sign(x) * (1.0 - poly * np.exp(-x * x)))


class LearntLengths:
    """The GPU seconds that ended jobs of unstated length have taken, by level. `record_end` returns what to store."""

    def __init__(self) -> None:
        self._took: dict[str, deque[float]] = {}  # GPU seconds, by level of one user's jobs
        self._users: dict[
            str, dict[int, None]
        ] = {}  # the uids whose jobs have ended, the latest last, by level of all users' jobs
        self._counts: dict[str, int] = {}  # by key of the store
        self._known: dict[tuple[str, ...], Lengths | None] = {}

    def load(self, profiles: Mapping[str, Profile]) -> None:
        """Take over what a daemon before this one has stored: to 12 %, and not in order.

        Entries that 0.2 stored name no user, and count for their program and for those that are alike.
        """
        took: dict[str, list[float]] = {}
        for key, profile in sorted(profiles.items()):
            program_mark, _, rest = key.removeprefix(PREFIX).partition(":")
            alike, *numbers = rest.split(":")
            sound = len(numbers) in (2, 3) and all(n.isdecimal() for n in numbers) and profile.samples > 0
            if not key.startswith(PREFIX) or not sound:
                continue
            self._counts[key] = profile.samples
            gpus, bin_, *uids = (int(n) for n in numbers)
            gpu_s = float(np.sqrt(_EDGES[:-1] * _EDGES[1:])[min(bin_, _BINS - 1)])
            marks = [f"alike:{alike}", f"program:{program_mark}"]
            for uid in uids:
                marks += _of_user(uid, gpus)
                self._count_user(uid, gpus)
            for mark in marks:
                took.setdefault(mark, []).extend([gpu_s] * min(profile.samples, _KEPT))
        for mark, some in took.items():
            # where there are too many, each length keeps its share
            quantiles = np.quantile(sorted(some), np.linspace(0, 1, min(len(some), _most(mark))), method="nearest")
            self._took[mark] = deque(quantiles.tolist(), maxlen=_most(mark))

    def record_end(self, job: Job, gpu_s: float) -> dict[str, Profile]:
        """Record that the job has left after so many GPU seconds. A job that never ran says nothing of its length."""
        if gpu_s <= 0:
            return {}
        gpus = job.asked.gpus
        alike, mark = _programs(job)
        for level in (*_of_user(job.uid, gpus), f"alike:{alike}", f"program:{mark}"):
            lengths_gpu_s = self._took.pop(level, None) or deque(maxlen=_most(level))
            lengths_gpu_s.append(gpu_s)
            self._took[level] = lengths_gpu_s
        self._count_user(job.uid, gpus)
        _forget_oldest(self._took)
        self._known.clear()
        bin_ = int(np.clip(np.searchsorted(_EDGES, gpu_s) - 1, 0, _BINS - 1))
        key = f"{PREFIX}{mark}:{alike}:{gpus}:{bin_}:{job.uid}"
        self._counts[key] = self._counts.pop(key, 0) + 1
        _forget_oldest(self._counts)
        return {key: Profile(samples=self._counts[key])}

    def index_gpu_s(self, job: Job, had_gpu_s: float) -> float | None:
        """Return Gittins' index of the job, GPU seconds, or None before any like it has ended."""
        if not self._took:
            return None
        uid, gpus = job.uid, job.asked.gpus
        alike, mark = _programs(job)
        wide = tuple((level, f"{level}:without:{uid}") for level in _levels_of_all_users(gpus))
        lengths: Lengths | None = None
        place: tuple[str, ...] = ()
        for level, name in (*wide, *(("", own) for own in (*_of_user(uid, gpus), f"alike:{alike}", f"program:{mark}"))):
            place = (*place, name)
            if place not in self._known:
                took = self._votes(level, uid, gpus) if level else tuple(self._took.get(name, ()))
                self._known[place] = Lengths(took, lengths) if took else lengths  # without any: as the wider level
            lengths = self._known[place]
        return None if lengths is None else lengths.index_gpu_s(had_gpu_s)

    def evidence(self, job: Job) -> float:
        """Return how far jobs like this one bear its index out, from 0 (none has ended) to 1.

        The jobs of its user count as n / (n + the weight of the next level); what others' jobs took is no evidence for this one.
        """
        alike, mark = _programs(job)
        levels = (*_of_user(job.uid, job.asked.gpus), f"alike:{alike}", f"program:{mark}")
        count = max(len(self._took.get(level, ())) for level in levels)
        return count / (count + _PRIOR)

    def _votes(self, level: str, uid: int, gpus: int) -> tuple[float, ...]:
        """Return the medians of the jobs of other users than `uid`, GPU seconds. Return none if there are too few users."""
        place = _levels_of_all_users(gpus).index(level)
        own = [_of_user(other, gpus)[place] for other in reversed(self._users.get(level, {})) if other != uid]
        votes = [statistics.median(self._took[mark]) for mark in own[: _most(level)] if mark in self._took]
        return tuple(votes) if len(votes) >= _LEAST_VOTES else ()

    def _count_user(self, uid: int, gpus: int) -> None:
        for level in _levels_of_all_users(gpus):
            users = self._users.setdefault(level, {})
            users.pop(uid, None)
            users[uid] = None
            while len(users) > _most(level) + 1:  # and the one who asks
                del users[next(iter(users))]
        _forget_oldest(self._users)


def _most(mark: str) -> int:
    """Return how many jobs, or users, are kept of a level."""
    return _KEPT if mark.startswith(("size:", "alike:", "program:")) else _KEPT_OF_ALL


def _forget_oldest(by_mark: dict[str, Any]) -> None:
    while len(by_mark) > _MARKS:
        del by_mark[next(iter(by_mark))]


def _levels_of_all_users(gpus: int) -> tuple[str, str]:
    """Return the levels of all users' jobs, the wider first."""
    return _ALL, f"size:{gpus}"


def _of_user(uid: int, gpus: int) -> tuple[str, str]:
    """Return the levels of a user's jobs, the wider first."""
    return f"user:{uid}", f"size:{gpus}:of:{uid}"


def _programs(job: Job) -> tuple[str, str]:
    """Return the marks of the jobs that are alike, and of the job's program: both are of its user alone."""
    directive = job.directive
    batches = () if directive is None else (directive.global_batch, directive.micro_batch, directive.max_micro_batch)
    model = None if directive is None else directive.model
    return program(job.uid, "", model, *batches), program(job.uid, job.name, model, *batches)

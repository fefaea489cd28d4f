"""How long jobs run here, learnt from those that have ended, as lengths drawn for the jobs of a queue. Pure.

Runs are alike by levels, each within the next: the same user, name and limit; the same user and name; the same user and limit; the same
user; other users of the account; other users; and behind all of them any share of the time limit, each as likely (Mu'alem and Feitelson,
TPDS 2001, figure 4: what jobs use of their limits is close to uniform). A level with n runs is taken with the chance n / (n + `_PRIOR`),
else the next one (a Dirichlet process: few runs count little), and a length that was drawn joins its level for the rest of the draw. So
lengths of one program are drawn together: where they are not known, all are long in one draw and short in the next.

Each other user has one vote: a user is drawn first, then one of that user's runs. Nobody decides alone how long others are expected to run.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from synergyd.start_times.records import Program

_PRIOR = 2.0  # runs that the next level counts as
_KEPT = 32  # latest runs of a level
_LEAST_VOTES = 3  # other users
_MARKS = 20_000  # levels that are remembered
_SHORTEST_S, _LONGEST_S = (
    60.0,
    30 * 86400.0,
)  # of a job without a limit about which nothing is known: each length as likely as twice it


@dataclass(frozen=True)
class EndedRun:
    """A run that has ended, and how long it took. `at_s`: when it ended."""

    program: Program
    seconds: float
    at_s: float = 0.0


Run = tuple[float, float | None]  # seconds, limit
T = TypeVar("T")


class RunLengths:
    """The runs that have ended, by level."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[object, ...], deque[Run]] = OrderedDict()
        self._users: dict[tuple[str, ...], OrderedDict[str, None]] = {}

    def add(self, ended: EndedRun) -> None:
        """Learn a run. One that took no time says nothing."""
        if ended.seconds <= 0:
            return
        program = ended.program
        for mark in _own_marks(program):
            runs = self._runs.pop(mark, None) or deque(maxlen=_KEPT)
            runs.append((ended.seconds, program.limit_s))
            self._runs[mark] = runs
        for group in _groups(program):
            users = self._users.setdefault(group, OrderedDict())
            users.pop(program.user, None)
            users[program.user] = None
            while len(users) > _KEPT + 1:  # and the one who asks
                users.popitem(last=False)
        while len(self._runs) > _MARKS:
            self._runs.popitem(last=False)

    def runs_of(self, mark: tuple[object, ...]) -> deque[Run]:
        return self._runs.get(mark) or deque()

    def voters(self, group: tuple[str, ...], without: str) -> list[str]:
        """Return the other users of a group, none if they are too few."""
        others = [user for user in self._users.get(group, ()) if user != without and ("user", user) in self._runs]
        return others if len(others) >= _LEAST_VOTES else []


class LengthDraw:
    """One draw of the lengths of all jobs of a queue."""

    def __init__(self, lengths: RunLengths, seed: int) -> None:
        self._lengths = lengths
        self._chances = _chances(seed)
        self._drawn: dict[tuple[object, ...], list[Run]] = {}

    def seconds(self, program: Program, had_s: float = 0.0) -> float:
        """Return how long a job runs in all that has run for `had_s` seconds."""
        limit_s = program.limit_s
        most_s = max(had_s, limit_s if limit_s is not None else _LONGEST_S)
        marks = _own_marks(program)
        wider = self._share_beyond(had_s, limit_s)
        for mark in marks:
            by_share = mark[0] in ("limit", "user")
            past_runs, drawn = self._lengths.runs_of(mark), self._drawn.get(mark, ())
            if had_s > 0:
                fit = [s for run in (*past_runs, *drawn) if (s := _as_long(run, limit_s, by_share)) > had_s]
                if fit and self._is_taken(len(fit), wider):
                    return self._keep(marks, min(most_s, self._one(fit)), limit_s)
            elif self._is_taken(len(past_runs) + len(drawn), wider):
                at = int(next(self._chances) * (len(past_runs) + len(drawn)))
                run = past_runs[at] if at < len(past_runs) else drawn[at - len(past_runs)]
                return self._keep(marks, _as_long(run, limit_s, by_share), limit_s)
        for group in _groups(program):
            voters = self._lengths.voters(group, program.user)
            by_vote = [(u, fit) for u in voters if (fit := self._of_user(u, limit_s, had_s))]
            if by_vote and self._is_taken(len(by_vote), wider):
                return self._keep(marks, min(most_s, self._one(self._one(by_vote)[1])), limit_s)
        return self._keep(marks, self._unknown(had_s, limit_s, most_s), limit_s)

    def _of_user(self, user: str, limit_s: float | None, had_s: float) -> list[float]:
        return [s for run in self._lengths.runs_of(("user", user)) if (s := _as_long(run, limit_s, True)) > had_s]

    def _unknown(self, had_s: float, limit_s: float | None, most_s: float) -> float:
        chance = next(self._chances)
        if limit_s is not None:
            return had_s + chance * max(0.0, most_s - had_s)
        low_s = max(had_s, _SHORTEST_S)
        return float(low_s * (max(most_s, low_s * 2) / low_s) ** chance)

    def _share_beyond(self, had_s: float, limit_s: float | None) -> float:
        """Return the chance that a job of which nothing is known runs for longer than `had_s`."""
        if not had_s:
            return 1.0
        if limit_s is not None:
            return max(0.0, 1.0 - had_s / limit_s) if limit_s > 0 else 0.0
        return float(np.clip(np.log(_LONGEST_S / max(had_s, _SHORTEST_S)) / np.log(_LONGEST_S / _SHORTEST_S), 0.0, 1.0))

    def _keep(self, marks: tuple[tuple[object, ...], ...], seconds: float, limit_s: float | None) -> float:
        for mark in marks:
            self._drawn.setdefault(mark, []).append((seconds, limit_s))
        return seconds

    def _is_taken(self, count: int, wider: float) -> bool:
        """Return whether a level with `count` runs is taken, where the next one holds the share `wider` of what it knows."""
        return count > 0 and next(self._chances) * (count + _PRIOR * wider) < count

    def _one(self, some: Sequence[T]) -> T:
        return some[int(next(self._chances) * len(some))]


def _as_long(run: Run, limit_s: float | None, by_share: bool) -> float:
    """Return how long a job with this limit runs if it is like `run`: the same time, or the same share of its limit."""
    seconds, of_s = run
    if by_share and limit_s and of_s:
        return limit_s * min(1.0, seconds / of_s)
    return seconds if limit_s is None else min(seconds, limit_s)


def _own_marks(program: Program) -> tuple[tuple[object, ...], ...]:
    user, name, limit_s = program.user, program.name, program.limit_s
    return ("run", user, name, limit_s), ("name", user, name), ("limit", user, limit_s), ("user", user)


def _groups(program: Program) -> tuple[tuple[str, ...], ...]:
    return (("account", program.account), ("all",)) if program.account else (("all",),)


def _chances(seed: int) -> Iterator[float]:
    source = np.random.default_rng(seed)
    while True:
        yield from source.random(1024).tolist()

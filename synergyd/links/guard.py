"""Whether turns really help: a group of jobs that takes turns is left alone for some steps now and then, and what it does in these is
compared with its steps before. Pure.

This rests on no model of links or jobs: where steps are slower in turns than without, the group is not gated for long.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from synergyd.links.disciplines import NOBODY_WAITS, Discipline

#: the steps of a job that were seen, oldest first: (begin, end) in seconds
Steps = Mapping[int, Sequence[tuple[float, float]]]

FIRST_STEPS = 16  # in turns of each job before the group is first left alone; doubled each time turns stand the trial
MOST_STEPS = 256  # then 3 % of the steps are trials
TRIAL_STEPS = 8  # of each job left alone
KEPT_STEPS = 2 * MOST_STEPS  # of a job, to compare
BARRED_S = 3600.0  # a group that was slower in turns is not gated
_LEAST = 0.02  # slower by less is no harm worth a word
_ERRORS = (
    3.0  # standard errors that a difference must exceed: noise of 30 % a step does so in less than one trial of 100
)
_PAUSE = 4.0  # a step of so many times the median is no step: the job evaluated, or saved


class Phase(Enum):
    """Of a group that is to take turns: it does, it is left alone for a trial, or for long."""

    TURNS = "turns"
    TRIAL = "trial"
    BARRED = "barred"


@dataclass(frozen=True)
class Watch:
    """One group. `since_s`: of the phase, `turns_s`: of the turns before a trial. `steps` in turns until the next one. `slower`: by what
    share turns were, where that has barred it; `told`: it had been barred before."""

    phase: Phase
    since_s: float
    turns_s: float = 0.0
    steps: int = FIRST_STEPS
    slower: float = 0.0
    told: bool = False


def first_watch(now_s: float) -> Watch:
    """Of a group that begins to take turns."""
    return Watch(Phase.TURNS, now_s)


def watched(watch: Watch, jobs: Sequence[int], steps: Steps, now_s: float) -> Watch:
    """The watch now."""
    if watch.phase is Phase.BARRED:
        return Watch(Phase.TURNS, now_s, told=True) if now_s >= watch.since_s + BARRED_S else watch
    mine = {j: [s for s in steps.get(j, ()) if s[0] >= watch.since_s] for j in jobs}
    seen = min((len(some) for some in mine.values()), default=0)
    if watch.phase is Phase.TURNS:
        return watch if seen < watch.steps else replace(watch, phase=Phase.TRIAL, since_s=now_s, turns_s=watch.since_s)
    if seen < TRIAL_STEPS:
        return watch
    turns = {j: [s for s in steps.get(j, ()) if s[0] >= watch.turns_s and s[1] <= watch.since_s] for j in jobs}
    slower = slower_in_turns(turns, mine)
    if slower > 0:
        return Watch(Phase.BARRED, now_s, slower=slower, told=watch.told)
    return Watch(Phase.TURNS, now_s, steps=min(MOST_STEPS, 2 * watch.steps), told=watch.told)


class Guards:
    """The watch of each group that is to take turns. A group is its jobs with the links of each: one with another job, or with a job on
    other nodes, is another."""

    def __init__(self) -> None:
        self._watches: dict[frozenset[tuple[int, tuple[str, ...]]], Watch] = {}
        #: jobs of groups that are left alone for a trial: their steps are to be seen
        self.on_trial: frozenset[int] = frozenset()

    def in_force(
        self,
        wanted: Iterable[Mapping[int, Discipline]],
        links: Mapping[int, tuple[str, ...]],
        steps: Steps,
        now_s: float,
    ) -> tuple[dict[int, Discipline], list[tuple[list[int], Watch]]]:
        """(each job's discipline, from what is `wanted` of each group; the groups barred now for the first time, for the log)."""
        found: dict[int, Discipline] = {}
        barred: list[tuple[list[int], Watch]] = []
        watches: dict[frozenset[tuple[int, tuple[str, ...]]], Watch] = {}
        on_trial: set[int] = set()
        for group in wanted:
            found |= group
            if not takes_turns(group.values()) or any(j not in links for j in group):
                continue
            name = frozenset((j, tuple(links[j])) for j in group)
            before = self._watches.get(name) or first_watch(now_s)
            now = watches[name] = watched(before, list(group), steps, now_s)
            if now.phase is Phase.TURNS:
                continue
            found |= dict.fromkeys(group, NOBODY_WAITS)
            if now.phase is Phase.TRIAL:
                on_trial.update(group)
            elif before.phase is Phase.TRIAL and not now.told:
                barred.append((sorted(group), now))
        # a group may be away for a while, as one of its jobs evaluates: its trial is void, but not what came of it
        for name, watch in self._watches.items():
            if name not in watches and watch.phase is Phase.BARRED and all(links.get(j) == x for j, x in name):
                watches[name] = watch
        self._watches, self.on_trial = watches, frozenset(on_trial)
        return found, barred


def takes_turns(disciplines: Collection[Discipline]) -> bool:
    """Whether by these, one a job of a group, anybody may have to wait."""
    return any(discipline.rule.most < len(disciplines) for discipline in disciplines)


def slower_in_turns(turns: Steps, alone: Steps) -> float:
    """The share of their steps that jobs make less in the same time in turns than left alone, mean over jobs; 0 where it is within the
    noise, or less than _LEAST."""
    gains, variances = [], []
    for job_id in turns:
        before, after = _durations(turns[job_id]), _durations(alone.get(job_id, ()))
        if len(before) < 2 or len(after) < 2:
            continue  # so short steps that those before the trial are not kept any more
        rate = statistics.fmean(after) / statistics.fmean(before)
        gains.append(rate - 1.0)
        variances.append(rate**2 * (_error(before) ** 2 + _error(after) ** 2))
    if not gains:
        return 0.0
    lost, error = -statistics.fmean(gains), math.sqrt(sum(variances)) / len(gains)
    return lost if lost > max(_LEAST, _ERRORS * error) else 0.0


def _durations(steps: Sequence[tuple[float, float]]) -> list[float]:
    took = [end - begin for begin, end in steps]
    longest = _PAUSE * statistics.median(took) if took else 0.0
    return [x for x in took if 0 < x <= longest]


def _error(took: Sequence[float]) -> float:
    """The standard error of their mean, as a share of it."""
    return statistics.stdev(took) / statistics.fmean(took) / math.sqrt(len(took))

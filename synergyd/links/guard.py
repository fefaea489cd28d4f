"""A check of whether turns really help. Pure.

A group of jobs that is to take turns is left alone for some steps first, and now and then later. To stay in turns, its steps in
turns must be faster than those, and not slower later. This rests on no model of links or jobs.
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

_Name = frozenset[tuple[int, tuple[str, ...]]]

PROOF_STEPS = 16  # steps in turns of each job, after which they must have been faster
LEAST_STEPS = 4  # likewise, after which clear harm ends them
FIRST_STEPS = 32  # steps in turns of each job from then on, before the group is left alone again; doubled each time turns stand the trial
MOST_STEPS = 256  # then 3 % of the steps are trials
TRIAL_STEPS = 8  # steps of each job left alone
KEPT_STEPS = 2 * MOST_STEPS  # steps kept of a job, to compare
BARRED_S = 3600.0  # a group that was slower in turns is not gated
_LEAST = 0.02  # slower by less is no harm worth a word
# Standard errors that a difference must exceed. Harm: noise of 30 % a step does so in less than one trial of 100. Gain: it is forecast
# already, so what is likelier than not to be none is enough to reject.
_ERRORS, _GAIN_ERRORS = 3.0, 1.0
_PAUSE = 4.0  # a step that takes this many times the median is no step: the job evaluated, or saved


class Phase(Enum):
    """The phase of a group that is to take turns: it does, it is left alone for a trial, or it is left alone for long."""

    TURNS = "turns"
    TRIAL = "trial"
    BARRED = "barred"


@dataclass(frozen=True)
class TurnTrial:
    """The watch of one group.

    `since_s`: start of the phase, `before_s`: start of the other phase before it, None for the first. `proven`: turns have been
    faster once; then `steps` in turns are left until the next trial. `slower`: the share by which turns were slower, where that
    has barred it; `was_barred`: it had been barred before.
    """

    phase: Phase
    since_s: float
    before_s: float | None = None
    proven: bool = False
    steps: int = FIRST_STEPS
    slower: float = 0.0
    was_barred: bool = False


def first_trial(now_s: float) -> TurnTrial:
    """Return the watch of a group that is to take turns. It begins with a trial, in which the group is left alone."""
    return TurnTrial(Phase.TRIAL, now_s)


def advance_trial(watch: TurnTrial, jobs: Sequence[int], steps: Steps, now_s: float) -> TurnTrial:
    """Return `watch` after the `steps` that `jobs` have made until `now_s`, in the next phase if this one is over."""
    if watch.phase is Phase.BARRED:
        return replace(first_trial(now_s), was_barred=True) if now_s >= watch.since_s + BARRED_S else watch
    mine = {j: [s for s in steps.get(j, ()) if s[0] >= watch.since_s] for j in jobs}
    fewest = min((len(some) for some in mine.values()), default=0)
    turned = replace(watch, since_s=now_s, before_s=watch.since_s)
    if watch.phase is Phase.TRIAL:
        if fewest < TRIAL_STEPS:
            return watch
        if watch.before_s is not None:
            if (slower := compute_turn_loss(_steps_before(watch, jobs, steps), mine).harm) > 0:
                return _bar(watch, now_s, slower)
            turned = replace(turned, steps=min(MOST_STEPS, 2 * watch.steps))
        return replace(turned, phase=Phase.TURNS)
    if watch.proven:
        return replace(turned, phase=Phase.TRIAL) if fewest >= watch.steps else watch
    if fewest < LEAST_STEPS:
        return watch
    loss = compute_turn_loss(mine, _steps_before(watch, jobs, steps))
    if loss.harm > 0 or fewest >= PROOF_STEPS:
        return replace(watch, proven=True) if loss.is_gain else _bar(watch, now_s, loss.harm)
    return watch


def _steps_before(watch: TurnTrial, jobs: Sequence[int], steps: Steps) -> Steps:
    """Return the steps within the phase before this one."""
    from_s = math.inf if watch.before_s is None else watch.before_s
    return {j: [s for s in steps.get(j, ()) if s[0] >= from_s and s[1] <= watch.since_s] for j in jobs}


def _bar(watch: TurnTrial, now_s: float, slower: float) -> TurnTrial:
    return TurnTrial(Phase.BARRED, now_s, slower=slower, was_barred=watch.was_barred)


class Guards:
    """The watch of each group that is to take turns.

    A group is its jobs with the links of each: a group with another job, or with a job on other nodes, is another.
    """

    def __init__(self) -> None:
        self._watches: dict[_Name, TurnTrial] = {}
        #: jobs of groups that are left alone for a trial: their steps are to be seen
        self.on_trial: frozenset[int] = frozenset()

    def in_force(
        self,
        proposals: Iterable[Mapping[int, Discipline]],
        links: Mapping[int, tuple[str, ...]],
        steps: Steps,
        now_s: float,
    ) -> tuple[dict[int, Discipline], list[tuple[list[int], TurnTrial]]]:
        """Return each job's discipline, and the groups barred now for the first time, for the log.

        `proposals` has the disciplines of each group.
        """
        in_force: dict[int, Discipline] = {}
        pending: list[tuple[list[int], TurnTrial]] = []
        watches: dict[_Name, TurnTrial] = {}
        on_trial: set[int] = set()
        for group in proposals:
            in_force |= group
            if not takes_turns(group.values()) or any(j not in links for j in group):
                continue
            name = frozenset((j, tuple(links[j])) for j in group)
            before = self._watches.get(name) or self._trial_of_unseen_group(name, now_s)
            now = watches[name] = advance_trial(before, list(group), steps, now_s)
            if now.phase is Phase.TURNS:
                continue
            in_force |= dict.fromkeys(group, NOBODY_WAITS)
            if now.phase is Phase.TRIAL:
                on_trial.update(group)
            elif before.phase is not Phase.BARRED and not now.was_barred:
                pending.append((sorted(group), now))
        # a group may be away for a while, as one of its jobs evaluates: its trial is void, but not the outcome so far
        for name, watch in self._watches.items():
            if name not in watches and all(links.get(j) == x for j, x in name):
                if watch.phase is Phase.BARRED:
                    watches[name] = watch
                elif watch.proven:
                    watches[name] = replace(watch, phase=Phase.TURNS, since_s=now_s, before_s=None)
        self._watches, self.on_trial = watches, frozenset(on_trial)
        return in_force, pending

    def _trial_of_unseen_group(self, name: _Name, now_s: float) -> TurnTrial:
        """Return the watch of a group that has not been seen.

        The outcome for a larger group also holds for the jobs that remain when others have left it.
        """
        watches = [watch for larger, watch in self._watches.items() if name < larger]
        for watch in watches:
            if watch.phase is Phase.BARRED:
                return watch
            if watch.proven:
                return TurnTrial(Phase.TURNS, now_s, proven=True)
        return first_trial(now_s)


def takes_turns(disciplines: Collection[Discipline]) -> bool:
    """Return whether any job may have to wait by these disciplines, one for each job of a group."""
    return any(discipline.rule.most < len(disciplines) for discipline in disciplines)


@dataclass(frozen=True)
class TurnLoss:
    """The loss by turns.

    `share`: the share of their steps that jobs make less in the same time in turns than left alone, mean over jobs; negative:
    more. `error`: its standard error, infinite where nothing can be compared.
    """

    share: float = 0.0
    error: float = math.inf

    @property
    def harm(self) -> float:
        """Return the share, or 0 where it is within the noise, or too little to speak of."""
        return self.share if self.share > max(_LEAST, _ERRORS * self.error) else 0.0

    @property
    def is_gain(self) -> bool:
        return self.share < -_GAIN_ERRORS * self.error


def compute_turn_loss(turns: Steps, alone: Steps) -> TurnLoss:
    """Compute what turns cost from the steps seen in turns and alone."""
    gains, variances = [], []
    for job_id in turns:
        before, after = _durations(turns[job_id]), _durations(alone.get(job_id, ()))
        if len(before) < 2 or len(after) < 2:
            continue  # so short steps that those before the trial are not kept any more
        rate = statistics.fmean(after) / statistics.fmean(before)
        gains.append(rate - 1.0)
        variances.append(rate**2 * (_error(before) ** 2 + _error(after) ** 2))
    if not gains:
        return TurnLoss()
    return TurnLoss(-statistics.fmean(gains), math.sqrt(sum(variances)) / len(gains))


def _durations(steps: Sequence[tuple[float, float]]) -> list[float]:
    took = [end - begin for begin, end in steps]
    longest = _PAUSE * statistics.median(took) if took else 0.0
    return [x for x in took if 0 < x <= longest]


def _error(took: Sequence[float]) -> float:
    """Return the standard error of their mean, as a share of it."""
    return statistics.stdev(took) / statistics.fmean(took) / math.sqrt(len(took))

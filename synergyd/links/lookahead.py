"""The choice, among several disciplines, of the one whose forecast has the least sum of finish times (a rollout). Pure.

No fixed rule is best everywhere: gating wastes links while jobs wait for all of theirs, sharing wastes the penalty, and which
weighs more depends on penalty, message sizes and load. `choose` is the rule. Each caller brings its own forecast: the
contention simulation plays itself to its end (sim/contention/lookahead.py), the link arbiter plays its own state machine with
what it has seen of each job (below).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from synergyd.links.arbiter import (
    ArbiterState,
    ArbiterTerms,
    ArbiterTick,
    Event,
    JobLeft,
    SendAsked,
    SendDone,
    step,
    wake_s,
)
from synergyd.links.disciplines import NOBODY_WAITS, AdaDual, Discipline, Srsf

# Ours that does best by itself (it orders by time and keeps small messages from starving wide ones), the paper's three, and between.
CANDIDATES = (
    Discipline(Srsf(1), by_time=True, reserve=True),
    Discipline(Srsf(1)),
    Discipline(Srsf(2)),
    Discipline(AdaDual()),
    Discipline(Srsf(2), by_time=True, reserve=True),
    Discipline(Srsf(1), by_time=True),
    Discipline(AdaDual(), by_time=True, reserve=True),
    Discipline(Srsf(3)),
)
WITH_NONE = (
    NOBODY_WAITS,
    *CANDIDATES,
)  # the arbiter may also leave everybody alone, and does where turns bring nothing
#: (discipline, a limit) -> sum of the finish times with it in force; inf once that exceeds the limit.
Forecast = Callable[[Discipline, float], float]

STEPS = 40  # steps of the longest job in a forecast: its steps stand for all that it has left, and shorter jobs have fewer in proportion
EVENTS = 2000  # events of one forecast, about: many jobs get fewer steps
_LEAST_STEPS = 8
# The cost of turns beside what is forecast: a job that waited has to be told and to wake up. Cautious: on shaped links SRSF(1) came to
# 0.839 and 0.884 of the time without turns (shaped_links: medium, large), in virtual time without that to 0.785 and 0.848.
TURNS_COST = 0.02
MOST_JOBS = 50  # jobs of a forecast group: a choice for 50 on 8 nodes takes 8 s of a core, for 200 more than 80 s


def choose(
    present: Discipline, candidates: Sequence[Discipline], forecast: Forecast, jobs: int, now: float, margin: float
) -> tuple[Discipline, float]:
    """Return (the discipline to be in force from now, its sum of finish times of `jobs` jobs).

    `present` is left only for one that saves more than `margin` of the forecast remaining time.
    """
    best, least = present, forecast(present, math.inf)
    # Others must come below this at first, then below the best so far.
    limit = least - margin * (least - jobs * now)
    for discipline in candidates:
        if discipline != present and (total := forecast(discipline, limit)) < limit:
            best, least, limit = discipline, total, total
    return best, least


@dataclass(frozen=True)
class Sender:
    """The observations of a job.

    `compute_s` is from a message's end to the next question, `message_mb` and `share` are as in SendAsked; `due_s` is when it
    next asks, for one that neither waits nor sends.
    """

    job_id: int
    compute_s: float
    message_mb: float
    due_s: float
    share: float = 1.0


def sharing_groups(links: Mapping[int, Sequence[str]]) -> list[frozenset[int]]:
    """Return the jobs in groups that share links, directly or through others; those that share none are in no group."""
    group_of: dict[str, set[int]] = {}
    for job_id, names in links.items():
        group = {job_id}.union(*(group_of.get(x, ()) for x in names))
        for other in group:
            for x in links[other]:
                group_of[x] = group
    return [frozenset(g) for g in {id(g): g for g in group_of.values()}.values() if len(g) > 1]


def chosen_disciplines(
    state: ArbiterState,
    senders: Mapping[int, Sender],
    now_s: float,
    terms: ArbiterTerms,
    candidates: Sequence[Discipline] = WITH_NONE,
    margin: float = 0.005,
    cost: float = TURNS_COST,
    idle: Collection[int] = (),
) -> Iterator[dict[int, Discipline]]:
    """Yield, for each group of jobs that share links, the discipline of each job, one group after another.

    A group with a job of which nothing has been seen yet, or of more than MOST_JOBS, keeps `terms.discipline`. `cost`: of
    turns, as a share of the time. `idle`: jobs that send nothing at present, as if they were not there.
    """
    for group in sharing_groups({j: names for j, names in state.links.items() if j not in idle}):
        if len(group) > MOST_JOBS or not all(job_id in senders for job_id in group):
            yield dict.fromkeys(group, terms.discipline)
            continue
        own = ArbiterState(
            {j: x for j, x in state.members.items() if j in group},
            {j: x for j, x in state.links.items() if j in group},
            {j: x for j, x in state.waiting.items() if j in group},
            {j: x for j, x in state.flights.items() if j in group},
        )
        some = [senders[j] for j in sorted(group)]
        present = terms.disciplines.get(min(group), terms.discipline)

        def forecast(discipline: Discipline, limit: float, own: ArbiterState = own, some: list[Sender] = some) -> float:
            slower, base = 1.0 if discipline == NOBODY_WAITS else 1.0 + cost, len(some) * now_s
            how = replace(terms, discipline=discipline, disciplines={})
            return base + slower * (finish_sum(own, some, now_s, how, base + (limit - base) / slower) - base)

        best, _ = choose(present, candidates, forecast, len(group), now_s, margin)
        yield dict.fromkeys(group, best)


def finish_sum(
    state: ArbiterState, senders: Sequence[Sender], now_s: float, terms: ArbiterTerms, limit: float = math.inf
) -> float:
    """Return the sum of the finish times of `senders`, with `terms` in force from now, or inf once it exceeds `limit`.

    All of them are members, and nobody else is counted.

    Lengths are scaled down together so that the longest job has STEPS steps; those that do not tell theirs have the mean of the
    others.
    """
    play = ArbiterPlay(state, senders, now_s, terms)
    scale = play.scale
    while play.advance():
        least = sum(play.finish.get(j, play.now_s + play.least_s(j)) - now_s for j in play.steps)
        if len(senders) * now_s + least * scale >= limit:
            return math.inf
    return sum(now_s + (at - now_s) * scale for at in play.finish.values())


class ArbiterPlay:
    """Jobs that compute, ask, send and compute again under the arbiter's state machine, in virtual time."""

    def __init__(
        self,
        state: ArbiterState,
        senders: Sequence[Sender],
        now_s: float,
        terms: ArbiterTerms,
        steps: Mapping[int, int] | None = None,
    ) -> None:
        """Begin with `steps`, how many each has left. Without it each has as many as `finish_sum` says, at 1 / `scale`."""
        # no message is lost here, however long it takes
        self.state, self.now_s, self.terms = state, now_s, replace(terms, lost_s=math.inf)
        self.senders = {s.job_id: s for s in senders}
        figures = terms.topology.figures
        #: seconds of a step with its links to itself, by job id
        self.cycle = {
            s.job_id: s.compute_s
            + s.message_mb * max((figures(x).per_mb for x in state.links[s.job_id]), default=0.0) / 1000.0
            for s in senders
        }
        self.steps, self.scale = (dict(steps), 1.0) if steps is not None else self._scale()
        self.finish: dict[int, float] = {}
        self._due = [(s.due_s, s.job_id) for s in senders if not self._busy(s.job_id)]
        heapq.heapify(self._due)

    def _busy(self, job_id: int) -> bool:
        return job_id in self.state.waiting or job_id in self.state.flights

    def _scale(self) -> tuple[dict[int, int], float]:
        cycles_left = {j: self.state.members[j].left_s / self.cycle[j] for j in self.senders}
        finite = [x for x in cycles_left.values() if math.isfinite(x)]
        mean = sum(finite) / len(finite) if finite else 1.0
        cycles_left = {j: x if math.isfinite(x) else mean for j, x in cycles_left.items()}
        most = max(_LEAST_STEPS, min(STEPS, EVENTS // (2 * len(cycles_left))))
        scale = max(max(cycles_left.values()) / most, 1e-9)
        return {j: max(1, round(x / scale)) for j, x in cycles_left.items()}, scale

    def least_s(self, job_id: int) -> float:
        """Return the seconds that a job has left at least; the step in progress is given to it."""
        return max(0, self.steps[job_id] - 1) * self.cycle[job_id]

    def compute_s(self, job_id: int) -> float:
        """Return the seconds that the job computes in its next step."""
        return self.senders[job_id].compute_s

    def due_s(self, job_id: int) -> float:
        """Return when a job asks next; now for one that waits or sends."""
        return next((at_s for at_s, j in self._due if j == job_id), self.now_s)

    def advance(self) -> bool:
        """Play one event, and return whether any job is unfinished."""
        if len(self.finish) == len(self.senders):
            return False
        ends = [(f.since_s + f.left_mb * f.ms_per_mb / 1000.0, j) for j, f in self.state.flights.items()]
        wake = wake_s(self.state, self.terms)
        at_s, job_id = min(
            min(ends, default=(math.inf, 0)),
            self._due[0] if self._due else (math.inf, 0),
            (math.inf if wake is None else wake, -1),
        )
        self.now_s = max(self.now_s, at_s)
        if job_id == -1:
            self._take(ArbiterTick())
        elif job_id in self.state.flights:
            self._take(SendDone(job_id))
            self._step_ends(job_id)
        else:
            heapq.heappop(self._due)
            self._take(SendAsked(job_id, self.senders[job_id].message_mb, self.senders[job_id].share))
        return True

    def _take(self, event: Event) -> None:
        self.state, _ = step(self.state, event, self.now_s, self.terms)

    def _step_ends(self, job_id: int) -> None:
        self.steps[job_id] -= 1
        if self.steps[job_id] <= 0:
            self.finish[job_id] = self.now_s
            self._take(JobLeft(job_id))
            return
        heapq.heappush(self._due, (self.now_s + self.compute_s(job_id), job_id))
        member = self.state.members[job_id]
        if math.isfinite(member.left_s):
            left_s = self.steps[job_id] * self.cycle[job_id] * self.scale
            self.state = replace(self.state, members={**self.state.members, job_id: replace(member, left_s=left_s)})

"""A discipline chosen by forecast: whichever makes the mean JCT of the jobs at hand least if it stayed in force (a rollout).

No fixed rule is best everywhere: gating wastes links while jobs wait for all of theirs, sharing wastes the penalty, and which
weighs more depends on penalty, message sizes and load. So whenever a job with links has started or ended, every candidate is
tried on a copy of the present state, run to the end of the jobs that are there (arrivals to come are not known), and the one with
the least sum of finish times is in force until the next change. Without arrivals it cannot do worse than any candidate kept
throughout, but for `margin`; with them that holds as far as arrivals treat the candidates alike. Changes that follow closely are
taken together: the next look is no earlier than `patience` times the jobs' mean forecast remaining time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synergyd.links.disciplines import AdaDual, Discipline, Srsf
from synergyd.sim.contention.engine import Engine

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


@dataclass(frozen=True)
class LookAhead:
    """The rule: `candidates`, of which the first is in force at the start. The one in force is left only for one that saves more than
    `margin` of the jobs' forecast remaining time: lesser differences are gone with the next arrival."""

    candidates: Sequence[Discipline] = CANDIDATES
    patience: float = 0.01
    margin: float = 0.005
    name: str = "look-ahead"

    def run(self, engine: Engine) -> dict[str, int]:
        """Runs the engine to its end; how often each candidate was chosen."""
        engine.follow(self.candidates[0])
        chosen: dict[str, int] = {}
        again = 0.0
        while engine.advance(to_change=True):
            if engine.now < again or len(engine.unfinished) < 2:
                continue
            best, mean = self.choose(engine)
            engine.follow(best)
            chosen[best.name] = chosen.get(best.name, 0) + 1
            again = engine.now + self.patience * mean
        return chosen

    def choose(self, engine: Engine) -> tuple[Discipline, float]:
        """(the discipline to be in force from now, the mean of the remaining times forecast with it in ms)."""
        present, best = engine.unfinished, engine.discipline
        least = forecast(engine, best, present)
        # Others must come below this at first, then below the best so far.
        limit = least - self.margin * (least - len(present) * engine.now)
        for discipline in self.candidates:
            if discipline != engine.discipline and (total := forecast(engine, discipline, present, limit)) < limit:
                best, least, limit = discipline, total, total
        return best, least / len(present) - engine.now


def forecast(engine: Engine, discipline: Discipline, jobs: Sequence[int], limit: float = float("inf")) -> float:
    """Sum of the finish times (ms) of `jobs` with `discipline` in force from now and no arrivals; inf once it exceeds `limit`."""
    copy = engine.fork(discipline)
    finish, work = copy.finish, copy.work
    while copy.advance(to_change=True):
        # No job ends sooner than alone; the iteration in progress is given to it.
        least = sum(f if (f := finish[j]) >= 0 else copy.now + max(0.0, work(j) - copy.cycle[j]) for j in jobs)
        if least >= limit:
            return float("inf")
    return sum(finish[j] for j in jobs)

"""A discipline chosen by forecast: whichever makes the mean JCT of the jobs at hand least if it stayed in force (a rollout).

The rule is links/lookahead.py's, the forecast this simulation played to its end. Whenever a job with links has started or ended,
every candidate is tried on a copy of the present state, run to the end of the jobs that are there (arrivals to come are not known),
and the one with the least sum of finish times is in force until the next change. Without arrivals it cannot do worse than any
candidate kept throughout, but for `margin`; with them that holds as far as arrivals treat the candidates alike. Changes that follow
closely are taken together: the next look is no earlier than `patience` times the jobs' mean forecast remaining time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synergy_sim.contention.engine import Engine
from synergyd.links.disciplines import LOOK_AHEAD, Discipline
from synergyd.links.lookahead import CANDIDATES, choose


@dataclass(frozen=True)
class LookAhead:
    """The rule: `candidates`, of which the first is in force at the start.

    The one in force is left only for one that saves more than `margin` of the jobs' forecast remaining time: lesser
    differences are gone with the next arrival.
    """

    candidates: Sequence[Discipline] = CANDIDATES
    patience: float = 0.01
    margin: float = 0.005
    name: str = LOOK_AHEAD

    def run(self, engine: Engine) -> dict[str, int]:
        """Run the engine to its end; return how often each candidate was chosen."""
        engine.set_discipline(self.candidates[0])
        counts: dict[str, int] = {}
        again = 0.0
        while engine.advance(to_change=True):
            if engine.now < again or len(engine.unfinished_jobs) < 2:
                continue
            best, mean = self.choose(engine)
            engine.set_discipline(best)
            counts[best.name] = counts.get(best.name, 0) + 1
            again = engine.now + self.patience * mean
        return counts

    def choose(self, engine: Engine) -> tuple[Discipline, float]:
        """Return (the discipline to be in force from now, the mean of the remaining times forecast with it in ms)."""
        present = engine.unfinished_jobs

        def total(discipline: Discipline, limit: float) -> float:
            return forecast(engine, discipline, present, limit)

        best, least = choose(engine.discipline, self.candidates, total, len(present), engine.now, self.margin)
        return best, least / len(present) - engine.now


def forecast(engine: Engine, discipline: Discipline, jobs: Sequence[int], limit: float = float("inf")) -> float:
    """Return the sum of `jobs`' finish times (ms) with `discipline` in force from now and no arrivals; inf once it exceeds `limit`."""
    copy = engine.fork(discipline)
    finish, work = copy.finish, copy.work_left_ms
    while copy.advance(to_change=True):
        # No job ends sooner than alone; the iteration in progress is given to it.
        least = sum(f if (f := finish[j]) >= 0 else copy.now + max(0.0, work(j) - copy.cycle[j]) for j in jobs)
        if least >= limit:
            return float("inf")
    return sum(finish[j] for j in jobs)

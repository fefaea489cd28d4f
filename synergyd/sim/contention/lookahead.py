"""A discipline chosen by forecast: whichever makes the mean JCT of the jobs at hand least if it stayed in force (a rollout).

No fixed rule is best everywhere: gating wastes links while jobs wait for all of theirs, sharing wastes the penalty, and which weighs
more depends on penalty, message sizes and load. So whenever a job with links has started or ended, every candidate is tried on a
copy of the present state, run to the end of the jobs that are there (arrivals to come are not known), and the one with the least
sum of finish times is in force until the next change. Changes that follow closely are taken together: the next look is no earlier
than `patience` times the jobs' mean forecast remaining time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synergyd.scheduler.adadual import AdaDual, Discipline, Srsf
from synergyd.sim.contention.engine import Engine

# The paper's three, and the one of ours that does best by itself: it orders by time and keeps small messages from starving wide ones.
CANDIDATES = (
    Discipline(Srsf(1), by_time=True, reserve=True),
    Discipline(Srsf(1)),
    Discipline(Srsf(2)),
    Discipline(AdaDual()),
)


@dataclass(frozen=True)
class LookAhead:
    """The rule: `candidates`, of which the first is in force at the start."""

    candidates: Sequence[Discipline] = CANDIDATES
    patience: float = 0.01
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
        """(the candidate with the least forecast sum of finish times, that sum's mean less now). The one in force is kept on a tie."""
        present = engine.unfinished
        order = sorted(self.candidates, key=lambda d: d != engine.discipline)
        best, least = order[0], float("inf")
        for discipline in order:
            total = forecast(engine, discipline, present, least)
            if total < least:
                best, least = discipline, total
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

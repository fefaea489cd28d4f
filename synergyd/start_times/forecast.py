"""When each job of a queue will start and end, with an interval that holds in 8 of 10 cases. Pure."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from synergy_core.expected import Expected

from synergyd.start_times.arrivals import Arrivals
from synergyd.start_times.calibration import COVERAGE, Calibration
from synergyd.start_times.records import Queue
from synergyd.start_times.run_lengths import EndedRun, LengthDraw, RunLengths
from synergyd.start_times.simulation import Simulation

DRAWS, LEAST_DRAWS = 40, 8
_KEPT, _FEW, _LONGEST_S = 200, 10, 300.0  # turnarounds


@dataclass(frozen=True)
class JobForecast:
    """One job's start and end, None where nobody can tell. Of a running job only the end."""

    start: Expected | None = None
    end: Expected | None = None


class StartForecaster:
    """The forecaster of one cluster's queue: it learns from runs that end, and from how its forecasts come out."""

    def __init__(self) -> None:
        self.lengths = RunLengths()
        self.starts, self.ends = Calibration(), Calibration()
        self._arrivals = Arrivals()
        self._turnarounds: deque[float] = deque(maxlen=_KEPT)
        self._seed = 0

    def learn(self, runs: Iterable[EndedRun]) -> None:
        for run in runs:
            self.lengths.add(run)

    def see(self, queue: Queue) -> None:
        """Learn which jobs have come since the last look. Cheap: it is done at each look, with a forecast or without."""
        self._arrivals.look(queue)

    def forecast(self, queue: Queue, is_late: Callable[[], bool] = lambda: False) -> Mapping[int, JobForecast]:
        """Return the forecast of each job by id. After `LEAST_DRAWS` draws it takes no further one once `is_late`."""
        simulation = Simulation(queue, self._arrivals, self.turnaround_s)
        starts: dict[int, list[float]] = {}
        ends: dict[int, list[float]] = {}
        draws = 0
        while draws < DRAWS and (draws < LEAST_DRAWS or not is_late()):
            self._seed += 1
            draws += 1
            start_s, end_s = simulation.run(LengthDraw(self.lengths, self._seed), self._seed)
            for times_by_job, drawn in ((starts, start_s), (ends, end_s)):
                for job_id, at_s in drawn.items():
                    times_by_job.setdefault(job_id, []).append(at_s)
        since = {job.job_id: max(job.submit_s, job.may_start_s) for job in queue.pending}
        running = {job.job_id: job.start_s for job in queue.running}
        forecasts: dict[int, JobForecast] = {}
        for job_id in (*since, *running):
            start, end = _expected(starts.get(job_id), draws), _expected(ends.get(job_id), draws)
            began_s = since.get(job_id, running.get(job_id, queue.now_s))
            if start is not None:
                self.starts.note(job_id, queue.now_s, start, began_s)
                start = self.starts.apply(queue.now_s, start)
            if end is not None:
                self.ends.note(job_id, queue.now_s, end, began_s)
                end = self.ends.apply(queue.now_s, end)
            forecasts[job_id] = JobForecast(start, end)
        return forecasts

    def note_started(self, job_id: int, at_s: float) -> None:
        """Learn from a start."""
        self.starts.settle(job_id, at_s)

    def note_turnaround(self, seconds: float) -> None:
        """Learn how long nodes stayed empty between two jobs, of which the second had waited for them."""
        if seconds < _LONGEST_S:
            self._turnarounds.append(max(0.0, seconds))

    @property
    def turnaround_s(self) -> float:
        """Return the usual time from a job's end to the next start on its nodes: epilogs, and Slurm's own rounds."""
        return statistics.median(self._turnarounds) if len(self._turnarounds) >= _FEW else 0.0

    def note_ended(self, job_id: int, at_s: float) -> None:
        """Learn from the end of a job that has run."""
        self.ends.settle(job_id, at_s)

    def errors(self) -> dict[str, object]:
        """Return how forecasts have come out, to be stored."""
        return {"starts": self.starts.to_json(), "ends": self.ends.to_json()}

    def load_errors(self, stored: Mapping[str, object]) -> None:
        """Take over what `errors` returned."""
        self.starts.load(stored.get("starts"))
        self.ends.load(stored.get("ends"))

    def forget_all_but(self, job_ids: Iterable[int]) -> None:
        """Forget jobs that have left the queue."""
        here = frozenset(job_ids)
        self.starts.forget_all_but(here)
        self.ends.forget_all_but(here)


def _expected(times: list[float] | None, draws: int) -> Expected | None:
    """Return the quantiles of a time over the draws. One that does not come in some of them comes last."""
    if times is None:
        return None
    ordered = sorted(times) + [math.inf] * (draws - len(times))
    tail = (1 - COVERAGE) / 2
    low_s, middle_s, high_s = (_quantile(ordered, share) for share in (tail, 0.5, 1 - tail))
    return Expected(low_s=low_s, middle_s=middle_s, high_s=high_s) if math.isfinite(high_s) else None


def _quantile(ordered: list[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    below = ordered[math.floor(at)]
    above = ordered[math.ceil(at)]
    return below if below == above else below + (above - below) * (at - math.floor(at))

"""The forecast of the whole queue, in a thread of its own: an epoch hands over what it saw and goes on.

The thread has a connection of its own to the database. It learns from starts and ends that looks show, at its start from Slurm's
accounting too, and takes a bounded share of the time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from synergy_core.errors import SynergyError
from synergy_core.expected import ExpectedJob
from synergy_core.reasons import Reasons
from synergy_core.records import JobState
from synergy_core.usage import RESIZING, PastRun
from synergy_core.wire.codec import encode

from synergyd.daemon.look_thread import LookThread
from synergyd.daemon.queue_look import QueueLook, name_of_program, program_of, queue_of
from synergyd.daemon.usage_look import gpus_of_job
from synergyd.slurm.parsed.job_forms import squeue_name
from synergyd.slurm.parsed.rows import JobRow
from synergyd.slurm.parsed.snapshot import state_from_row
from synergyd.start_times.forecast import JobForecast, StartForecaster
from synergyd.start_times.records import Program, Queue
from synergyd.start_times.run_lengths import EndedRun
from synergyd.start_times.why import Waits
from synergyd.store.store import Store

log = logging.getLogger("synergyd.starts")
LEARNT_S = 7 * 86400.0  # how far back it learns at its start
BUDGET_S = 2.0  # of one forecast, if the least number of draws takes no longer
SHARE = 0.05  # of the time, at most
MOST = 2000  # waiting jobs that are forecast, and held ones that are explained: the first ones
#: ends that say nothing about how long a job takes
_PARTS = (RESIZING, "REQUEUED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL")
_HOLDING = (JobState.RUNNING, JobState.SUSPENDED)


class StartKeeper:
    """The keeper of forecasts. `past_runs(from_s, to_s)`: what Slurm's accounting holds."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        past_runs: Callable[[float, float], Iterable[PastRun]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._past_runs, self._monotonic = past_runs, monotonic
        self._forecaster = StartForecaster()
        self._began: dict[
            int, tuple[float, float, Program]
        ] = {}  # running jobs: first start, present start, what they are like
        self._waiting: frozenset[int] = frozenset()
        self._decided: set[int] = set()  # jobs of Synergy's: a requeue of theirs goes on with the same run
        self._looked_s = 0.0
        self._nodes: dict[int, tuple[str, ...]] = {}  # of jobs that ran at the last look
        self._freed: dict[str, float] = {}  # when a job on it ended last, by node
        self._learnt = False
        self._rest_until = 0.0
        self._thread = LookThread("starts", open_store, self.take, log, "no forecast of starts")
        self.see, self.close = self._thread.see, self._thread.close

    def take(self, store: Store, look: QueueLook) -> None:
        """Learn from a look, and store a forecast if it is time."""
        if not self._learnt:
            self._learnt = True
            self._learn_past(store, look.at_s)
        self._learn_changes(look)
        queue = queue_of(look, {job_id: first_s for job_id, (first_s, _, _) in self._began.items()})
        self._forecaster.see(queue)
        queue = replace(queue, pending=queue.pending[:MOST], held=queue.held[:MOST])
        began = self._monotonic()
        if began < self._rest_until:
            return
        forecasts = self._forecaster.forecast(queue, lambda: self._monotonic() - began > BUDGET_S)
        jobs = tuple(expected_jobs(look, queue, forecasts))
        took_s = self._monotonic() - began
        self._rest_until = began + took_s / SHARE
        store.put_expected(look.at_s, [encode(job) for job in jobs], self._forecaster.errors())

    def _learn_past(self, store: Store, now_s: float) -> None:
        """Learn from what an earlier daemon stored, and from the runs of the last days: the latest last."""
        if (stored := store.expected()) is not None:
            self._forecaster.load_errors(stored.errors)
        runs: list[EndedRun] = []
        try:
            for run in self._past_runs(now_s - LEARNT_S, now_s):
                if run.state not in _PARTS and not run.of_job:
                    program = Program(run.user, run.account, name_of_program(run.name), run.limit_s)
                    runs.append(EndedRun(program, run.to_s - run.start_s, run.to_s))
        except SynergyError as error:  # Slurm keeps no accounts: the GPU hours that are stored name no job and no limit
            log.info("lengths of past jobs are those of the GPU hours kept here: %s", error)
            for part in store.usage_between(now_s - LEARNT_S, now_s):
                if not part.is_open and part.state not in (*_PARTS, "") and not part.of_job:
                    program = Program(part.user, part.account, "", None)
                    runs.append(EndedRun(program, part.to_s - part.start_s, part.to_s))
        self._forecaster.learn(sorted(runs, key=lambda run: run.at_s))

    def _learn_changes(self, look: QueueLook) -> None:
        """Learn from what has started and ended since the last look."""
        rows = {row.job_id: row for row in look.rows}
        self._decided |= look.decided.keys()
        now = {i: row for i, row in rows.items() if state_from_row(row) in _HOLDING and row.start_s is not None}
        for job_id, (first_s, _, program) in list(self._began.items()):
            row = rows.get(job_id)
            goes_on = job_id in now or (
                row is not None and state_from_row(row) is JobState.PENDING and job_id in self._decided
            )
            if goes_on:
                continue
            del self._began[job_id]
            if (
                row is None or state_from_row(row) is JobState.COMPLETING
            ):  # else it was requeued: how long it takes is not known
                end_s = _end_s(row, self._looked_s, look.at_s)
                self._forecaster.note_ended(job_id, end_s)
                self._freed.update(dict.fromkeys(self._nodes.get(job_id, ()), end_s))
                self._forecaster.learn([EndedRun(program, end_s - first_s, end_s)])
        for job_id, row in now.items():
            start_s = row.start_s or look.at_s
            earlier_start = self._began.get(job_id)
            if earlier_start is not None and earlier_start[1] == start_s:
                continue
            if job_id in self._waiting:
                self._forecaster.note_started(job_id, start_s)
                freed_s = [self._freed[name] for name in row.node_names if name in self._freed]
                if freed_s and row.submit_s < max(freed_s):
                    self._forecaster.note_turnaround(start_s - max(freed_s))
            first_s = earlier_start[0] if earlier_start is not None and job_id in self._decided else start_s
            self._began[job_id] = first_s, start_s, program_of(row, look.partitions)
        self._waiting = frozenset(i for i, row in rows.items() if state_from_row(row) is JobState.PENDING)
        self._nodes = {job_id: row.node_names for job_id, row in now.items()}
        self._decided &= rows.keys()
        self._looked_s = look.at_s
        self._forecaster.forget_all_but(rows)


def _end_s(row: JobRow | None, looked_s: float, now_s: float) -> float:
    """Return when a job ended that was there at `looked_s` and is not now."""
    if row is not None and row.end_s is not None and row.end_s <= now_s:
        return row.end_s
    return (looked_s + now_s) / 2


def expected_jobs(look: QueueLook, queue: Queue, forecasts: Mapping[int, JobForecast]) -> Iterable[ExpectedJob]:
    """Yield what users read of each job that waits or runs, those that wait first, in the order of the queue."""
    waits = Waits(queue, forecasts)
    rows = {row.job_id: row for row in look.rows}
    for job in (*queue.pending, *queue.held):
        reasons = () if job.job_id in look.decided else waits.reasons(job)
        yield _expected_job(rows[job.job_id], forecasts.get(job.job_id, JobForecast()), reasons)
    for job_id in dict.fromkeys(job.job_id for job in queue.running):
        yield _expected_job(rows[job_id], replace(forecasts.get(job_id, JobForecast()), start=None), ())


def _expected_job(row: JobRow, forecast: JobForecast, reasons: Reasons) -> ExpectedJob:
    return ExpectedJob(
        job_id=row.job_id,
        slurm_name=squeue_name(row),
        name=row.name,
        user=row.user,
        account=row.account,
        state=state_from_row(row).value,
        gpus=gpus_of_job(row),
        nodes=max(1, row.num_nodes),
        start=forecast.start,
        end=forecast.end,
        reasons=reasons,
    )

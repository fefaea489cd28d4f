"""A dry run's account: what the decisions would have changed, for jobs with a line, and for plain ones as if they had one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from synergy_core.notice import DRY_RUN, Notice
from synergy_core.records import Cell, Decision, Job
from synergy_core.would_have import WouldHave, WouldHaveTotals

from synergyd.control.would_have import Predicted, WouldHaveLedger, format_account, predict, would_have_totals
from synergyd.daemon.usage_look import midnight, relative_sigma
from synergyd.jobmodel.cell_search import CellSearchResult
from synergyd.jobmodel.prior_cells import prior_cells
from synergyd.scheduler.epoch import EpochInputs
from synergyd.store.months import present_month

log = logging.getLogger("synergyd")
DAY_S = 86400.0
MONTH_EVERY_S = 600.0  # between two sums of the present month
LONGEST_EPOCHS = 3.0  # an epoch stands for at most so many: a daemon that was away counts nothing


class DryRun:
    """The account. `decide` decides about an epoch's inputs, as the daemon itself does; `read` returns what was stored before."""

    def __init__(
        self,
        epoch_s: float,
        restart_s: float,
        decide: Callable[[EpochInputs], Sequence[Decision]],
        read: Callable[[], Sequence[WouldHave]],
    ) -> None:
        self._decide, self._read = decide, read
        self._ledger = WouldHaveLedger(restart_s, LONGEST_EPOCHS * epoch_s)
        self._loaded = False
        self._month_at_s = 0.0
        self._day_s: float | None = None  # the midnight after the last look
        self.month: WouldHaveTotals | None = None  # as `synergyctl usage --would-have` shows it; not known yet

    def account(
        self,
        inputs: EpochInputs,
        decisions: Sequence[Decision],
        forecasts: Mapping[int, CellSearchResult],
        plain: Sequence[Job],
    ) -> list[WouldHave]:
        """Return the accounts that this epoch changed. `decisions` are the dry run's own; `plain`: hypothetical jobs."""
        if not self._loaded:
            self._ledger.restore(self._read())
            self._loaded = True
        now_s = inputs.snapshot.time_s
        if not 0 <= self._month_at_s - now_s <= MONTH_EVERY_S:
            self._month_at_s = now_s + MONTH_EVERY_S
            self.month = would_have_totals(row for row in self._read() if row.to_s >= present_month()[0])
        own = [job for job in inputs.snapshot.jobs if job.directive is not None]
        cells = {job.job_id: forecasts[job.job_id].cells if job.job_id in forecasts else () for job in own}
        predicted = _predictions(own, decisions, cells)
        if plain:
            predicted |= self._with_plain(inputs, plain)
        return self._ledger.see(now_s, [*((job, True) for job in own), *((job, False) for job in plain)], predicted)

    def daily_notice(self, now_s: float, user: str) -> Notice | None:
        """Return the account of the day that has ended since the last call, for `user`, or None."""
        due_s, self._day_s = self._day_s, midnight(now_s)
        if due_s in (None, self._day_s):
            return None
        rows = [row for row in self._read() if row.to_s >= now_s - DAY_S]
        day = datetime.fromtimestamp(now_s).date()
        if not rows:
            return None
        return Notice(key=f"{DRY_RUN} {day}", event=DRY_RUN, job_id=0, user=user, at_s=now_s, text=format_account(rows))

    def _with_plain(self, inputs: EpochInputs, plain: Sequence[Job]) -> dict[int, Predicted | None]:
        """Decide about all jobs together, and return what that predicts for the plain ones."""
        cells = {job.job_id: prior_cells(job, inputs.snapshot.cluster) for job in plain}
        together = tuple(sorted((*inputs.snapshot.jobs, *plain), key=lambda job: job.job_id))
        joint = replace(inputs, snapshot=replace(inputs.snapshot, jobs=together), cells={**inputs.cells, **cells})
        return _predictions(plain, self._decide(joint), cells)


def _predictions(
    jobs: Sequence[Job], decisions: Sequence[Decision], cells: Mapping[int, tuple[Cell, ...]]
) -> dict[int, Predicted | None]:
    decided = {d.job_id: d for d in decisions}
    result = {}
    for job in jobs:
        decision = decided.get(job.job_id)
        cell = decision.cell if decision is not None else None
        sigma = relative_sigma(cell, job, cells[job.job_id]) if cell is not None else 0.0
        result[job.job_id] = predict(job, decision, sigma)
    return result

"""The ledger of the use that jobs made of their GPUs, in a thread of its own: an epoch hands over what it saw and goes on.

The thread has a connection of its own to the database. If Slurm keeps accounts (slurmdbd), their data on runs that have ended
is taken over: exact ends, and runs that began and ended between two looks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from synergy_core.errors import SynergyError
from synergy_core.usage import PastRun, Totals, Usage, UsageSum, clip_usage, reconcile_usage

from synergyd.control.notices import idle_week_notices
from synergyd.control.usage_ledger import Holding, UsageLedger
from synergyd.daemon.look_thread import LookThread
from synergyd.daemon.usage_look import midnight, week_begin
from synergyd.store.months import present_month
from synergyd.store.records import RefusedError
from synergyd.store.store import Store

log = logging.getLogger("synergy_core.usage")
OVERLAP_S = 900.0  # slurmctld may tell slurmdbd of an end so much later
ASK_S = 60.0  # between two questions to Slurm's accounting at the most
NO_ACCOUNTS_S = 3600.0  # until it is asked again where Slurm keeps none
LONGEST_S = 31 * 86400.0  # longest time that is made up for after the daemon was away
PRUNE_EVERY_S = 86400.0
MONTH_EVERY_S = 600.0  # between two sums of the present month


@dataclass(frozen=True)
class Look:
    """The observations of one epoch, by the leader of `term`."""

    at_s: float
    jobs: Sequence[Holding]
    term: int | None


class UsageKeeper:
    """The keeper of the usage ledger.

    `past_runs(from_s, to_s)`: what Slurm's accounting holds. `keep_s`: parts older than that are deleted. `notifies`: users hear of
    their idle hours.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        past_runs: Callable[[float, float], Iterable[PastRun]],
        keep_s: float,
        clock: Callable[[], float],
        ask_s: float = ASK_S,
        *,
        notifies: bool = False,
    ) -> None:
        self._past_runs, self._keep_s, self._clock, self._ask_s = past_runs, keep_s, clock, ask_s
        self._notifies, self._week_s = notifies, 0.0  # begin of the week at the last look
        self._ledger = UsageLedger(midnight)
        self._term: int | None = None
        self._loaded = False
        self._began_s = 0.0  # begin of this ledger: unknown runs that began before it were not recorded
        self._asked_s = 0.0
        self._ask_at_s = self._prune_at_s = self._month_at_s = 0.0
        # of all jobs in the present month, as `synergyctl usage` shows it; not known yet
        self.month: Totals | None = None
        self._thread = LookThread(
            "usage", open_store, self.take, log, "GPU hours are not stored", most=2, finishes=True
        )
        self.close = self._thread.close

    def see(self, at_s: float, jobs: Sequence[Holding], term: int | None) -> None:
        """Hand a look to the thread. Never waits. The next look replaces one that waits: ends are found by their own times."""
        self._thread.see(Look(at_s, jobs, term))

    def take(self, store: Store, look: Look) -> None:
        """Store what a look shows, and what Slurm's accounting says since it was asked last."""
        if not self._loaded or look.term != self._term:
            self._ledger = UsageLedger(midnight)
            open_parts, seen_s = store.open_usage(), store.usage_seen_s()
            self._ledger.restore(open_parts)
            self._term, self._loaded = look.term, True
            self._began_s = look.at_s if seen_s is None else seen_s
            asked_s = min((p.to_s for p in open_parts), default=self._began_s)
            self._asked_s, self._ask_at_s = max(asked_s, look.at_s - LONGEST_S), 0.0
        self._ledger.look(look.at_s, look.jobs)
        if changed := self._ledger.pending():
            _store_parts(store, changed, look.term)
            self._ledger.mark_stored(changed)
        now_s = self._clock()
        if now_s >= self._ask_at_s:
            self._reconcile(store, look)
        if now_s >= self._month_at_s:
            self._month_at_s = now_s + MONTH_EVERY_S
            from_s, to_s = present_month()
            whole = UsageSum()
            for part in store.usage_between(from_s, to_s):
                if (cut := clip_usage(part, from_s, to_s)) is not None:
                    whole.add(cut)
            self.month = whole.totals()
        self._notify_week(store, look)
        if now_s >= self._prune_at_s:
            self._prune_at_s = now_s + PRUNE_EVERY_S
            store.prune_usage(look.at_s - self._keep_s)

    def _notify_week(self, store: Store, look: Look) -> None:
        """Put notices of the idle hours of the week before this one into the outbox, once a week, which it holds for as long."""
        week_s = week_begin(look.at_s)
        if not self._notifies or week_s == self._week_s:
            return
        before_s = week_begin(week_s - 1.0)
        first, last = (datetime.fromtimestamp(at_s).date() for at_s in (before_s, week_s - 1.0))
        parts = store.usage_between(before_s, week_s)
        store.put_notices(idle_week_notices(parts, before_s, week_s, f"from {first} to {last}"))
        self._week_s = week_s

    def _reconcile(self, store: Store, look: Look) -> None:
        """Store what Slurm's accounting says of runs that have ended since it was asked last."""
        from_s = self._asked_s - OVERLAP_S
        try:
            runs = list(self._past_runs(from_s, look.at_s + 1.0))
        except SynergyError as error:
            again_s = self._ask_s * 5 if getattr(error, "transient", False) else NO_ACCOUNTS_S
            self._ask_at_s = self._clock() + again_s
            log.info("ends of jobs are as the daemon saw them: %s", error)
            return
        self._ask_at_s, self._asked_s = self._clock() + self._ask_s, look.at_s
        by_job: dict[int, list[Usage]] = {}
        for part in store.usage_of([r.job_id for r in runs]):
            by_job.setdefault(part.job_id, []).append(part)
        if better := reconcile_usage(by_job, runs, self._began_s - OVERLAP_S):
            _store_parts(store, better, look.term)


def _store_parts(store: Store, parts: Sequence[Usage], term: int | None) -> None:
    """Store the parts, leaving out only those that the database refuses for their content."""
    try:
        store.put_usage(parts, term)
    except RefusedError:
        for part in parts:
            try:
                store.put_usage([part], term)
            except RefusedError as error:
                log.warning("GPU hours of job %d are left out: %s", part.job_id, error)

"""From prices to a choice: round the jobs that are torn, free what is over a limit, and fill what is left.

Everything is measured in regret: a job's best margin (utility less price) less that of the column it gets. For any feasible
choice  dual bound - objective = sum of regrets + prices . unused limit,  so the least of that sum is the best choice.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from synergyd.scheduler.solver.instance import Bools, Floats, Ints, segment_max
from synergyd.scheduler.solver.smoothed_dual import ReducedCore, SmoothedDual

NONE = -1
_TORN = 0.02  # a job whose likeliest choice is less likely than 1 less this is rounded one by one
_MOST_TORN = 3_000
_STATES = 20_000  # GPUs that the knapsack of one row looks at


class PrimalRounding:
    """A choice over a core's columns, worked on in place: `pick` [m] is a column of the core, or -1."""

    def __init__(self, core: ReducedCore, prices: Floats) -> None:
        self.core, self.prices = core, prices
        self.row = core.row
        margin = core.utility - (core.use @ prices)[core.kind]
        self.best = segment_max(margin, core.ptr)
        self.regret = self.best[self.row] - margin
        self.pick: Ints = np.full(len(core.jobs), NONE, dtype=np.intp)
        self.free = core.limit.copy()

    def round(self, guess: SmoothedDual) -> None:
        """Round to the likeliest choice of each job.

        Jobs that are torn are rounded one after another, so that the use stays close to its expectation (error feedback).
        """
        core = self.core
        top = segment_max(guess.share, core.ptr)
        at = np.flatnonzero(guess.share >= top[self.row])
        self.pick[self.row[at[::-1]]] = at[::-1]
        self.pick[guess.none > top] = NONE
        doubt = 1.0 - np.maximum(top, guess.none)
        torn = np.flatnonzero(doubt > _TORN)
        if len(torn) > _MOST_TORN:
            torn = np.sort(torn[np.argpartition(-doubt[torn], _MOST_TORN)[:_MOST_TORN]])
        if len(torn):
            self._round_guess(guess, torn)
        self.count()

    def _round_guess(self, guess: SmoothedDual, torn: Ints) -> None:
        core = self.core
        sure = self.pick.copy()
        sure[torn] = NONE
        bound = self.prices > 0
        scale = np.where(bound, self.prices, 0.0)
        sure_use = np.bincount(core.kind[sure[sure >= 0]], minlength=len(core.use)) @ core.use
        offers = []
        expected = np.zeros(len(core.limit))
        for j in torn:
            columns = np.arange(core.ptr[j], core.ptr[j + 1])
            likely = columns[guess.share[columns] > 0.01]
            uses = core.use[core.kind[likely]] * scale
            mean = guess.share[likely] @ uses
            regrets = self.regret[likely]
            if guess.none[j] > 0.01 or not len(likely):
                likely, uses = np.append(likely, NONE), np.vstack([uses, np.zeros(len(scale))])
                regrets = np.append(regrets, self.best[j])
            expected += mean
            offers.append((float(np.abs(uses - mean).max(initial=0.0)), j, likely, uses, mean, regrets))
        # The rest beyond what the torn jobs would take on average is theirs too.
        remaining = np.where(bound, core.limit - sure_use, 0.0) * scale - expected
        offers.sort(key=lambda o: (-o[0], o[1]))
        for _, j, likely, uses, mean, regrets in offers:
            remaining += mean
            best = int(np.argmin(np.abs(remaining - uses).sum(axis=1) + regrets))
            self.pick[j] = likely[best]
            remaining = remaining - uses[best]

    def count(self) -> None:
        """Compute `free` again from the choice."""
        core, columns = self.core, self.pick[self.pick >= 0]
        self.free = core.limit - np.bincount(core.kind[columns], minlength=len(core.use)) @ core.use

    def gap_to_bound(self) -> float:
        """Return regrets plus price of what is unused: how far the choice is from the dual bound."""
        has_column = self.pick >= 0
        regrets = self.regret[self.pick[has_column]].sum() + self.best[~has_column].sum()
        return float(regrets + self.prices @ self.free)

    def _changes(self) -> tuple[Ints, Ints, Floats, Floats]:
        """Return (job, column or -1, utility gained [n], use added [n, R]) of every single change."""
        core = self.core
        sits = self.pick >= 0
        at = np.where(sits, self.pick, 0)
        present_use = core.use[core.kind[at]] * sits[:, None]
        utility = np.where(sits, core.utility[at], 0.0)
        out = np.flatnonzero(sits)
        job = np.concatenate([self.row, out])
        column = np.concatenate([np.arange(len(core.kind)), np.full(len(out), NONE, dtype=np.intp)])
        gain = np.concatenate([core.utility - utility[self.row], -utility[out]])
        added = np.concatenate([core.use[core.kind] - present_use[self.row], -present_use[out]])
        return job, column, gain, added

    def _take(self, job: int, column: int) -> Floats:
        """Make one change, and return the use that it adds."""
        core, old = self.core, int(self.pick[job])
        added: Floats = np.zeros(len(core.limit))
        if old >= 0:
            added -= core.use[core.kind[old]]
        if column >= 0:
            added += core.use[core.kind[column]]
        self.pick[job] = column
        self.free -= added
        return added

    def fit(self) -> None:
        """Change single jobs, least loss per unit freed first, until no limit is exceeded."""
        core = self.core
        eps = 1e-9 * (1.0 + core.limit)
        weight = self.prices + 1e-3 * self.prices.max(initial=0.0) + 1e-12
        while (self.free < -eps).any():
            over = np.maximum(-self.free, 0.0)
            job, column, gain, added = self._changes()
            # Nothing else may be exceeded by it, so that every change brings the end nearer.
            freed = np.clip(-added, 0.0, over) @ weight
            freed[(added > np.maximum(self.free, 0.0) + eps).any(axis=1)] = 0.0
            useful = np.flatnonzero(freed > 1e-12 * weight.max())
            waste = np.maximum(-added[useful] - over, 0.0) @ self.prices
            order = useful[np.argsort((waste - gain[useful]) / freed[useful], kind="stable")]
            done: set[int] = set()
            for change in order[: 1 + len(order) // 50]:
                j, new = int(job[change]), added[change]
                if j in done or (new > np.maximum(self.free, 0.0) + eps).any():
                    continue
                if not ((new < 0) & (self.free < -eps)).any():
                    continue
                done.add(j)
                self._take(j, int(column[change]))

    def fill(self, rounds: int = 50) -> None:
        """Take single changes that gain and fit, best first, until there are none."""
        eps = 1e-9 * (1.0 + self.core.limit)
        for _ in range(rounds):
            job, column, gain, added = self._changes()
            scale = 1e-12 * (1.0 + float(np.abs(gain).max(initial=0.0)))
            fits = np.flatnonzero((gain > scale) & (added <= self.free + eps).all(axis=1))
            if not len(fits):
                return
            done: set[int] = set()
            for change in fits[np.argsort(-gain[fits], kind="stable")][:200]:
                j = int(job[change])
                if j not in done and (added[change] <= self.free + eps).all():
                    done.add(j)
                    self._take(j, int(column[change]))

    def knapsacks(self, candidates: int) -> None:
        """Choose anew, row by row and all together, for the jobs that lose least by another choice, by dynamic programming.

        This is for rows that stand alone: kinds take of one row only (GPU counts of one type).
        """
        alone = (self.core.use > 0).sum(axis=1) <= 1
        for r in range(len(self.core.limit)):
            own = alone & (self.core.use[:, r] > 0)
            if self.prices[r] > 0 and own.any():
                self._knapsack(r, own, candidates)

    def _knapsack(self, r: int, own: Bools, candidates: int) -> None:
        core = self.core
        inside = own[core.kind]
        sits = self.pick >= 0
        at = np.where(sits, self.pick, 0)
        mine = ~sits | own[core.kind[at]]
        usable = np.flatnonzero(inside & mine[self.row] & (np.arange(len(core.kind)) != at[self.row] * sits[self.row]))
        other = np.where(mine & sits, self.best, np.inf)
        np.minimum.at(other, self.row[usable], self.regret[usable])
        now = np.where(sits, self.regret[at], self.best)
        score = other - np.minimum(now, other)
        ready = np.flatnonzero(np.isfinite(score))
        if not len(ready):
            return
        if len(ready) > candidates:
            ready = ready[np.argpartition(score[ready], candidates)[:candidates]]
        ready = ready[np.argsort(score[ready], kind="stable")]
        size = np.rint(core.use[:, r]).astype(np.intp)
        present_sizes = np.where(sits[ready], size[core.kind[at[ready]]], 0)
        capacity = int(np.floor(self.free[r] + 1e-6)) + int(present_sizes.sum())
        if capacity <= 0 or capacity > _STATES or (np.abs(core.use[own, r] - size[own]) > 1e-9).any():
            return
        cost = np.full(capacity + 1, np.inf)
        cost[0] = 0.0
        steps: list[NDArray[np.int32]] = []
        reach = 0
        for j in ready:
            span = np.arange(core.ptr[j], core.ptr[j + 1])
            span = span[inside[span]]
            sizes = size[core.kind[span]]
            limit = min(capacity, reach + int(sizes.max(initial=0)))
            fresh = np.full(capacity + 1, np.inf)
            fresh[: reach + 1] = cost[: reach + 1] + self.best[j]
            column_at = np.full(limit + 1, NONE, dtype=np.int32)
            for column, s in zip(span, sizes, strict=True):
                if s > capacity:
                    continue
                end = min(limit, reach + int(s))
                offer = cost[: end - s + 1] + self.regret[column]
                better = offer < fresh[s : end + 1]
                np.copyto(fresh[s : end + 1], offer, where=better)
                np.copyto(column_at[s : end + 1], np.int32(column), where=better)
            cost, reach = fresh, limit
            steps.append(column_at)
        final = cost + self.prices[r] * (capacity - np.arange(capacity + 1))
        state = int(np.argmin(final))
        before = now[ready].sum() + self.prices[r] * self.free[r]
        if self.free[r] >= -1e-6 and not final[state] < before - 1e-12 * (1.0 + abs(before)):
            return
        for j, column_at in zip(ready[::-1], reversed(steps), strict=True):
            column = int(column_at[state]) if state < len(column_at) else NONE
            self._take(int(j), column)
            if column >= 0:
                state -= int(size[core.kind[column]])

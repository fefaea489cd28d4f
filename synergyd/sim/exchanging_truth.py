"""Ground truth of jobs that allow `comm=`: any other truth, with the seconds that less communication saves and the examples that it costs.

Of the c seconds of a step in which replicas exchange, w seconds of work beside them, an option leaves c / H (local:H), max(0, c - w)
(delayed), c / 2 (bf16) or c R / 100 (PowerSGD of rank R), as task/model/throughput.py has it. An example is then worth what the daemon
takes it for before any is measured (task/model/exchange_cost.py): what is simulated shows what jobs gain if that is so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from synergyd.exchange import EXACT, Exchange, exchange
from synergyd.records import Plan, Shape
from synergyd.sim.records import Floats, Pace, Placed, TraceJob, Truth, placed_on
from synergyd.task.model import exchange_cost
from synergyd.task.model.throughput import volume_share


@dataclass(frozen=True)
class ExchangingTruth:
    """`exact`, whose replicas may exchange by `options` too."""

    exact: Truth
    options: tuple[Exchange, ...]

    @property
    def low(self) -> int:
        return self.exact.low

    @property
    def high(self) -> int:
        return self.exact.high

    @property
    def unit(self) -> float:
        return self.exact.unit

    @property
    def stages(self) -> int:
        return self.exact.stages

    def end(self, stage: int) -> float:
        return self.exact.end(stage)

    def executed(self, plan: Plan) -> Plan:
        return replace(self.exact.executed(replace(plan, exchange=str(EXACT))), exchange=plan.exchange)

    def pace(self, stage: int, placed: Placed, plan: Plan) -> Pace | None:
        option = exchange(plan.exchange, "simulated plan")
        pace = self.exact.pace(stage, placed, replace(plan, exchange=str(EXACT)))
        return pace if pace is None or option == EXACT or plan.dp < 2 else exchanged(pace, option, plan.dp)

    def plans(self, shape: Shape, batch: int | None = None) -> tuple[Plan, ...]:
        """Those of `exact` with each of the options, where replicas exchange at all."""
        found = self.exact.plans(shape, batch)
        sends = shape.gpus > 1 and any(
            (pace := self.pace(0, placed_on(shape), plan)) and pace.exchange_s > 0 for plan in found
        )
        return found + tuple(replace(plan, exchange=str(o)) for o in self.options for plan in found if sends)

    def best_rates(self, shape: Shape, batch: int | None = None) -> Floats | None:
        best = self.exact.best_rates(shape, batch)
        if best is None:
            return None
        for plan in self.plans(shape, batch):
            if plan.exchange != str(EXACT):
                paces = [self.pace(stage, placed_on(shape), plan) for stage in range(self.stages)]
                best = np.maximum(best, [0.0 if pace is None else pace.rate for pace in paces])
        return best


def exchanged(pace: Pace, option: Exchange, replicas: int) -> Pace:
    """`pace` with every gradient exchanged, by `option` in its place."""
    work_s = pace.step_s - pace.exchange_s
    hidden = option.kind == "delayed"
    left_s = max(0.0, pace.exchange_s - work_s) if hidden else pace.exchange_s * min(1.0, volume_share(option))
    step_s = work_s + left_s
    return replace(
        pace,
        rate=pace.rate * pace.step_s / step_s * exchange_cost.prior_worth(option, replicas),
        step_s=step_s,
        sync_s=pace.sync_s * left_s / pace.exchange_s if pace.exchange_s > 0 else 0.0,
        exchange_s=left_s,
    )


def told_worth(plan: Plan) -> float | None:
    """What such a job's reports say that an example brings it; None where a run can't measure that, as under local steps."""
    option = exchange(plan.exchange, "simulated plan")
    return None if option.kind in ("exact", "local") else exchange_cost.prior_worth(option, plan.dp)


def with_comm(jobs: Iterable[TraceJob], kinds: Collection[str]) -> tuple[TraceJob, ...]:
    """`jobs` whose directives say `comm=` with these kinds: those of replicas alone, as SynergyTask's are; the others as they were."""
    options, found = exchange_cost.options(kinds), []
    truths: dict[int, ExchangingTruth] = {}
    for job in jobs:
        if job.model is None and job.spec is None and job.plan is None:
            # jobs of one kind go on sharing a truth: its yardsticks are made once
            truth = truths.setdefault(id(job.truth), ExchangingTruth(job.truth, options))
            job = replace(job, truth=truth, comm=tuple(kinds))
        found.append(job)
    return tuple(found)

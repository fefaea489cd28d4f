"""Ground truth of jobs that allow `comm=`: any other truth, with the seconds that less communication saves and the examples that it costs.

Of the c seconds of a step in which replicas exchange, an option leaves c / H (local:H) or c / 2 (bf16), as jobmodel/model/throughput.py
has it. An example is then worth what the daemon takes it for before any is measured (jobmodel/model/exchange_cost.py): a simulation shows
what jobs gain if that is so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np
from synergy_core.exchange import EXACT, Exchange, parse_exchange
from synergy_core.records import Plan, Shape

from synergy_sim.records import Floats, PlacedGpus, TraceJob, TrainingSpeed, Truth, place_shape
from synergyd.jobmodel.model import exchange_cost
from synergyd.jobmodel.model.throughput import volume_share


@dataclass(frozen=True)
class ExchangingTruth:
    """The truth `exact` of a job whose replicas may also exchange by `options`."""

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

    def executed_plan(self, plan: Plan) -> Plan:
        return replace(self.exact.executed_plan(replace(plan, exchange=str(EXACT))), exchange=plan.exchange)

    def pace(self, stage: int, placement: PlacedGpus, plan: Plan) -> TrainingSpeed | None:
        option = parse_exchange(plan.exchange, "simulated plan")
        pace = self.exact.pace(stage, placement, replace(plan, exchange=str(EXACT)))
        return pace if pace is None or option == EXACT or plan.dp < 2 else speed_with_exchange(pace, option, plan.dp)

    def plans(self, shape: Shape, batch: int | None = None) -> tuple[Plan, ...]:
        """Return the plans of `exact`, and those with each of the options where replicas exchange at all."""
        exact_plans = self.exact.plans(shape, batch)
        sends = shape.gpus > 1 and any(
            (pace := self.pace(0, place_shape(shape), plan)) and pace.exchange_s > 0 for plan in exact_plans
        )
        return exact_plans + tuple(
            replace(plan, exchange=str(o)) for o in self.options for plan in exact_plans if sends
        )

    def best_rates(self, shape: Shape, batch: int | None = None) -> Floats | None:
        best = self.exact.best_rates(shape, batch)
        if best is None:
            return None
        for plan in self.plans(shape, batch):
            if plan.exchange != str(EXACT):
                paces = [self.pace(stage, place_shape(shape), plan) for stage in range(self.stages)]
                best = np.maximum(best, [0.0 if pace is None else pace.rate for pace in paces])
        return best


def speed_with_exchange(pace: TrainingSpeed, option: Exchange, replicas: int) -> TrainingSpeed:
    """Return `pace`, which is that of exchanging every gradient, with `option` in its place."""
    left_s = pace.exchange_s * volume_share(option)
    step_s = pace.step_s - pace.exchange_s + left_s
    return replace(
        pace,
        rate=pace.rate * pace.step_s / step_s * exchange_cost.prior_worth(option, replicas),
        step_s=step_s,
        sync_s=pace.sync_s * left_s / pace.exchange_s if pace.exchange_s > 0 else 0.0,
        exchange_s=left_s,
    )


def reported_efficiency(plan: Plan) -> float | None:
    """Return the worth of an example that such a job's reports tell, or None where a run can't measure it, as under local steps."""
    option = parse_exchange(plan.exchange, "simulated plan")
    return None if option.kind in ("exact", "local") else exchange_cost.prior_worth(option, plan.dp)


def with_comm(jobs: Iterable[TraceJob], kinds: Collection[str]) -> tuple[TraceJob, ...]:
    """Return `jobs` with `comm=` of these kinds in the directives of those made of replicas alone, as SynergyTask's are.

    The others stay as they were.
    """
    options, result = exchange_cost.options(kinds), []
    truths: dict[int, ExchangingTruth] = {}
    for job in jobs:
        if job.model is None and job.spec is None and job.plan is None:
            # jobs of one kind go on sharing a truth: its yardsticks are made once
            truth = truths.setdefault(id(job.truth), ExchangingTruth(job.truth, options))
            job = replace(job, truth=truth, comm=tuple(kinds))
        result.append(job)
    return tuple(result)

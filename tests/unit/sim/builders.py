"""Small worlds whose every second can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from synergy_core.records import Plan, Shape
from synergy_sim.records import Costs, Floats, PlacedGpus, Scenario, TraceJob, TrainingSpeed, build_cluster
from synergy_sim.world import SimulatedJob, World

NO_COST = Costs(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Linear:
    """`work` GPU seconds, spread over `stages` equal stages; K GPUs are K times as fast, on up to `most`."""

    work: float
    stages: int = 1
    most: int = 1000
    low: int = 64
    high: int = 64
    unit: float = 64.0

    def end(self, stage: int) -> float:
        return self.work * (stage + 1) / self.stages

    def executed_plan(self, plan: Plan) -> Plan:
        return plan

    def pace(self, stage: int, placed: PlacedGpus, plan: Plan) -> TrainingSpeed | None:
        rate = float(min(placed.gpus, self.most))
        return TrainingSpeed(rate, plan.global_batch / (rate * self.unit), None)

    def plans(self, shape: Shape, batch: int | None = None) -> tuple[Plan, ...]:
        if 64 % shape.gpus:
            return ()
        return (Plan(dp=shape.gpus, micro_batch=64 // shape.gpus, global_batch=64, zero_stage=0),)

    def best_rates(self, shape: Shape, batch: int | None = None) -> Floats | None:
        return np.full(self.stages, float(min(shape.gpus, self.most))) if self.plans(shape) else None


def job(submit_s: float, gpus: int, work: float, stages: int = 1, most: int = 1000) -> TraceJob:
    return TraceJob(f"j{submit_s:g}", "linear", submit_s, gpus, 64, Linear(work, stages, most), "trace.csv:2", "a100")


def scenario(*jobs: TraceJob, nodes: int = 1, gpus: int = 4, costs: Costs = NO_COST, **changes: object) -> Scenario:
    return Scenario(jobs, build_cluster({"a100": (nodes, gpus)}), costs, **changes)  # type: ignore[arg-type]


@dataclass
class FirstFit:
    """A director: at each epoch, waiting jobs in order, each at its own size where it fits; `delay_s` a start."""

    delay_s: float = 0.0
    epochs: list[float] = field(default_factory=list)
    paces: list[tuple[float, float]] = field(default_factory=list)

    def on_arrival(self, world: World, live: SimulatedJob) -> None: ...
    def on_finish(self, world: World, live: SimulatedJob) -> None: ...
    def on_node_failure(self, world: World, live: SimulatedJob) -> None: ...
    def on_out_of_memory(self, world: World, live: SimulatedJob) -> None: ...

    def on_speed_change(self, world: World, live: SimulatedJob) -> None:
        assert live.pace is not None
        self.paces.append((world.now_s, live.pace.rate))

    def reserved_gpus(self, world: World) -> dict[str, int]:
        return {}

    def run_epoch(self, world: World) -> None:
        self.epochs.append(world.now_s)
        for live in world.jobs.values():
            name = next((n for n, free in world.free.items() if free >= live.job.gpus and n not in world.down), None)
            if not live.grant and name is not None:
                gpus = live.job.gpus
                plan = Plan(dp=gpus, micro_batch=64 // gpus, global_batch=64, zero_stage=0)
                world.begin(live, ((name, gpus),), plan, self.delay_s)

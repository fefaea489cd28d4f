"""One scenario under one policy, from its name to its Run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from synergy_core.errors import UsageError

from synergy_sim.ideal import Ideals
from synergy_sim.records import Scenario, SimulatedRun, requested_shape
from synergy_sim.simulated_forecast import LearntForecast, OracleForecast
from synergy_sim.synergy_director import SynergyDirector
from synergy_sim.tiresias_reference import TiresiasReference
from synergy_sim.world import SimulatedJob, World, results_in_order
from synergyd.control.arrivals import should_come_early
from synergyd.jobmodel.model.hardware import GpuFigures
from synergyd.scheduler.policies import load_policy
from synergyd.settings import Settings
from synergyd.settings.policies import POLICIES

# Policies that take a job's size and batch as its user asked for them.
RIGID = frozenset({"fifo", "first-fit", "backfill", "srtf", "srsf", "tiresias", "dally"})
REFERENCE = "tiresias"  # plays the artifact's own scheduler, uneven placements and all (tiresias_reference.py)


def policies() -> tuple[str, ...]:
    """Return the names that `simulate` takes."""
    return tuple(sorted({REFERENCE, *POLICIES}))


def check_scenario(scenario: Scenario) -> Scenario:
    """Return the scenario itself. Raises UsageError: no jobs, no nodes, a job larger than the cluster."""
    if not scenario.jobs:
        raise UsageError("--trace", "has no jobs")
    if not scenario.cluster.nodes:
        raise UsageError("--nodes", "there are no nodes", "at least 1")
    for job in scenario.jobs:
        if requested_shape(job, scenario.cluster) is None:
            have = {
                t: sum(n.gpus for n in scenario.cluster.nodes if n.gpu_type == t) for t in scenario.cluster.gpu_types()
            }
            there = ", ".join(f"{count} {gpu_type}" for gpu_type, count in have.items())
            kind = f" of type {job.gpu_type}" if job.gpu_type else ""
            raise UsageError(job.where or job.name, f"{job.gpus} GPUs{kind} can't be held by the cluster ({there})")
    return scenario


def simulate(
    scenario: Scenario,
    policy: str,
    settings: Settings | None = None,
    *,
    oracle: bool = False,
    rigid: bool | None = None,
    restart_cost_s: float | None = None,
    ideals: Ideals | None = None,
    figures: Mapping[str, GpuFigures] | None = None,
    on_progress: Callable[[int, float], None] | None = None,
) -> SimulatedRun:
    """Run the scenario to its end.

    `oracle`: the scheduler sees the truth instead of learning it. `rigid`: jobs keep the size and the batch that was asked for (None:
    under the policies in RIGID). `figures` by GPU type: what the scheduler takes the hardware for (the built-in ones where it is not
    there). `restart_cost_s`: what RestartCost says (None: the truth). Raises UsageError: a policy that is not known, a job that can't run
    or never starts.
    """
    check_scenario(scenario)
    director: TiresiasReference | SynergyDirector
    early, as_requested = False, rigid if rigid is not None else policy in RIGID
    if policy == REFERENCE:
        if len(scenario.cluster.gpu_types()) > 1 and any(job.can_run is None for job in scenario.jobs):
            raise UsageError(
                "--policy", f"{REFERENCE} knows one GPU type only", "give one of --types, or another policy"
            )
        director = TiresiasReference(scenario.costs.first_start_s)
    else:
        values = settings or Settings()
        # a trace's weights are its own, not a user's wish
        most = max(values.max_weight, *(job.weight for job in scenario.jobs))
        cost_s = scenario.costs.resize_s if restart_cost_s is None else restart_cost_s
        values = replace(values, epoch_s=scenario.epoch_s, restart_cost_s=cost_s, max_weight=most)
        learning_forecast = LearntForecast(dict(figures or {}), scenario.seed, scenario.lengths_known)
        forecast = OracleForecast() if oracle else learning_forecast
        director = SynergyDirector(values, load_policy(policy), forecast, scenario.costs, as_requested)
        early = should_come_early(values, director.policy)
    yardsticks = ideals or Ideals(scenario)

    def gpu_s_per_unit(live: SimulatedJob) -> float:
        best = yardsticks.find_ideal(live.job)
        return 0.0 if best is None else float(best.gpu_s[live.stage])

    def usual_s(live: SimulatedJob) -> float:
        rates = yardsticks.requested_rates(live.job)
        return 0.0 if rates is None or rates[live.stage] <= 0 else 1.0 / float(rates[live.stage])

    world = World(scenario, director, early, as_requested, gpu_s_per_unit=gpu_s_per_unit, usual_s=usual_s)
    began = time.perf_counter()
    world.run(on_progress)
    return SimulatedRun(
        policy,
        scenario,
        results_in_order(world),
        tuple(world.occupancies),
        tuple(director.decisions_s),
        time.perf_counter() - began,
        tuple(world.goodput),
        world.usual_work_s,
    )

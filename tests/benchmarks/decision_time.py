"""How long one epoch's Cells and decision take while jobs that nobody knows arrive: processor milliseconds, in the simulator.

    python -m tests.benchmarks.decision_time [--jobs 210] [--hours 0.15] [--nodes 160] [--gpus-per-node 8] [--epochs 22] [--seed 1]

The jobs are plain ones (`--trace generate:JOBS,HOURS`) that come one upon the other, so that in each epoch most of them have measured
something new, or others of their program have: the dearest epochs that a queue of that length has. Prints median, 90th percentile,
99th and worst of all that the daemon works out as well (what the cluster has in common, fits, Cells, restart costs, decision), and of
the decision alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
from synergy_sim import synergy_director
from synergy_sim.records import Scenario, build_cluster
from synergy_sim.simulated_forecast import LearntForecast
from synergy_sim.synergy_director import SynergyDirector
from synergy_sim.traces.generate import generate
from synergy_sim.world import World

from synergyd.scheduler.policies import load_policy
from synergyd.settings import Settings


class _Enough(Exception):
    """As many epochs as were asked for."""


class _Timed(SynergyDirector):
    """Ends the run after `epochs`."""

    epochs = 0
    most_jobs = 0

    def run_epoch(self, world: World) -> None:
        super().run_epoch(world)
        self.most_jobs = max(self.most_jobs, len(world.jobs))
        if len(self.decisions_s) >= self.epochs:
            raise _Enough


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=210)
    parser.add_argument("--hours", type=float, default=0.15)
    parser.add_argument("--nodes", type=int, default=160)
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=22)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    made = generate(
        f"{given.jobs},{given.hours}", "a100", given.nodes * given.gpus_per_node, given.gpus_per_node, given.seed
    )
    scenario = Scenario(made, build_cluster({"a100": (given.nodes, given.gpus_per_node)}), seed=given.seed)
    deciding, decide_s = vars(synergy_director)["decide_simulated_epoch"], []

    def decide(*args: Any, **more: Any) -> Any:
        begin = time.process_time()
        answer = deciding(*args, **more)
        decide_s.append(time.process_time() - begin)
        return answer

    # as the director looks them up; processor time, since other work of this machine is no part of it
    vars(synergy_director).update(decide_simulated_epoch=decide, time=SimpleNamespace(perf_counter=time.process_time))
    forecast = LearntForecast(seed=given.seed)
    director = _Timed(Settings(), load_policy("synergy"), forecast, scenario.costs)
    director.epochs = given.epochs
    with suppress(_Enough):
        World(scenario, director).run()
    print(
        f"{given.nodes * given.gpus_per_node} GPUs, up to {director.most_jobs} jobs, {len(decide_s)} epochs; ms of CPU"
    )
    for name, seconds in (("Cells and decision", director.decisions_s), ("decision alone", decide_s)):
        median, p90, p99 = (float(v) * 1e3 for v in np.percentile(seconds, (50, 90, 99)))
        print(f"{name:20} median {median:.0f}, p90 {p90:.0f}, p99 {p99:.0f}, worst {max(seconds) * 1e3:.0f}")


if __name__ == "__main__":
    if "OMP_NUM_THREADS" not in os.environ:  # one core, as the numbers say: libraries read it when they are loaded
        os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        os.execv(sys.executable, sys.orig_argv)
    main()

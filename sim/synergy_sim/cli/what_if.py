"""The process of one what-if run: `python -m synergy_sim.cli.what_if`, started by synergyrestd.

One line of JSON comes in: conf, database, policy, settings. Lines go out: {"share": 0.5}, then {"figures": [...], "left_out": ""}
or {"problem": "..."}. It ends when its standard input does: with the service that asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import threading
from pathlib import Path
from typing import Any

from synergy_core.errors import SynergyError, UsageError
from synergy_core.wire.codec import encode

from synergy_sim.cli.database import read_database, recorded_cluster, recorded_jobs
from synergy_sim.ideal import Ideals
from synergy_sim.metrics import RunMetrics, compute_metrics
from synergy_sim.records import Costs, Scenario, build_cluster
from synergy_sim.runs import check_scenario, policies, simulate
from synergy_sim.traces.queue import replay_queue
from synergyd.cli.shared.context import Context
from synergyd.settings import Settings
from synergyd.slurm.directives.conf import with_values
from synergyd.views.what_if import WhatIfFigures

MOST_BYTES = 3 * 2**30  # bytes of addresses: libraries' threads reserve half of it
MOST_CPU_S = 900  # the service ends it sooner, by the clock


def main() -> int:
    with contextlib.suppress(OSError):  # a sandbox may refuse either
        os.nice(19)
        Path("/proc/self/oom_score_adj").write_text("1000")  # where memory runs out, this goes first
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_service, daemon=True).start()
    try:
        write_answer(run_both(request))
    except SynergyError as error:
        write_answer({"problem": str(error)})
    except MemoryError:
        write_answer({"problem": "it needs more memory than a what-if run may have"})
    return 0


def _end_with_the_service() -> None:
    sys.stdin.read()
    os._exit(1)


def write_answer(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def run_both(request: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of both runs. Raises SynergyError."""
    present = Context(Path(request["conf"]) if request["conf"] else None, request["database"]).settings
    trial_settings = with_values(present, "settings", request["settings"])
    policy = request["policy"] or present.policy
    for name in (present.policy, policy):
        if name not in policies():
            raise UsageError("policy", f"none is called {name!r}", f"one of: {', '.join(policies())}")
    where, recording = read_database(request["database"])
    groups = recorded_cluster(recording, where)
    replayed = replay_queue(recorded_jobs(recording), where, groups)
    costs = Costs()

    def scenario(settings: Settings) -> Scenario:
        return check_scenario(Scenario(replayed.jobs, build_cluster(groups), costs, settings.epoch_s))

    both = []
    for number, (label, name, settings) in enumerate(
        (("as it is now", present.policy, present), (_label(policy, request["settings"]), policy, trial_settings))
    ):
        world = scenario(settings)
        ideals = Ideals(world)

        def show_progress(done: int, _: float, number: int = number) -> None:
            write_answer({"share": (number + done / len(replayed.jobs)) / 2})

        both.append(
            figures(
                label,
                compute_metrics(simulate(world, name, settings, ideals=ideals, on_progress=show_progress), ideals),
            )
        )
    return {"figures": encode(both), "left_out": replayed.format_excluded_jobs()}


def _label(policy: str, settings: list[str]) -> str:
    return ", ".join([policy, *settings])


def figures(label: str, one: RunMetrics) -> WhatIfFigures:
    return WhatIfFigures(
        label=label,
        jobs=one.jobs,
        avg_jct_s=one.avg_jct_s,
        median_jct_s=one.median_jct_s,
        p99_jct_s=one.p99_jct_s,
        makespan_s=one.makespan_s,
        avg_queueing_s=one.avg_queueing_s,
        restarts_per_job=one.restarts_per_job,
        gpu_hours=one.gpu_hours,
        efficiency=one.efficiency,
        worst_ftf=one.worst_ftf,
    )


if __name__ == "__main__":
    sys.exit(main())

"""A recorded workload on a real Slurm cluster in compressed time, beside the simulator with the costs that the replay measured.

    python -m tests.benchmarks.replay --workload FILE [--jobs N] [--first N] [--nodes 10] [--gpus-per-node 4] [--compress 12]
        [--policy synergy,pollux,plain] [--set KEY=VALUE] [--verbose] [--json FILE]

FILE is a workload of the Pollux artifact, its measurements beside it. Slurm, plugin, daemon, launcher, agent, checkpoints,
requeues and reports are real; steps only sleep, as long as was measured, divided by --compress. So are times between
submissions, the epoch, RestartCost; the GPU type's figures are as many times as high. `plain` is Slurm alone with its backfill, where each
job states its length (rounded up to minutes) as its time limit; the simulator's `backfill` with an oracle stands beside it.
The simulation runs in the same compressed time, with the same settings, and with the seconds that grants (from a decision to a
job's start), starts, checkpoints, requeues, ends and changes without a requeue took in the replay. All times are printed in the
workload's own seconds; `restarts` are all starts of training after the first, without a requeue too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from synergy_sim.records import Costs, JobResult, Scenario, TraceJob, build_cluster, requested_shape
from synergy_sim.runs import simulate
from synergy_sim.traces import pollux

from synergyd.jobmodel.model.hardware import GpuFigures, figures
from synergyd.settings import Settings
from synergyd.slurm.directives.conf import with_values
from tests.throwaway.replay_site import PLAIN, RATES, Outcome, Replayed, replay
from tests.throwaway.replay_truth import compressed, scaled

EPOCH_S, RESTART_COST_S = 60.0, 60.0  # the settings' defaults, of the workload's time
PLAIN_EPOCH_S = 1.0  # Slurm's own scheduler looks at least so often (bf_interval), real time


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run came to, in the workload's time."""

    avg_jct_s: float
    median_jct_s: float
    avg_wait_s: float
    restarts_per_job: float
    gpu_hours: float
    makespan_s: float


def summary(jobs: Sequence[Replayed | JobResult], factor: float) -> Summary:
    jcts = [j.jct_s for j in jobs]
    return Summary(
        avg_jct_s=factor * statistics.fmean(jcts),
        median_jct_s=factor * statistics.median(jcts),
        avg_wait_s=factor * statistics.fmean(j.start_s - j.finish_s + j.jct_s for j in jobs),
        restarts_per_job=statistics.fmean(j.restarts for j in jobs),
        gpu_hours=factor * sum(j.gpu_s for j in jobs) / 3600,
        makespan_s=factor * max(j.finish_s for j in jobs),
    )


def faster(gpu_type: str, factor: float) -> GpuFigures:
    gpu = figures(gpu_type)
    changes: dict[str, Any] = {name: getattr(gpu, name) * factor for name in RATES}
    return replace(gpu, **changes)


def simulated(
    jobs: tuple[TraceJob, ...],
    policy: str,
    groups: tuple[int, int],
    factor: float,
    settings: Settings,
    costs: Costs,
    seed: int,
) -> tuple[JobResult, ...]:
    """The same jobs in the simulator, in compressed time. `seed`: of the noise of their reports."""
    gpu_type = jobs[0].gpu_type
    epoch_s = PLAIN_EPOCH_S if policy == PLAIN else EPOCH_S / factor
    scenario = Scenario(jobs, build_cluster({gpu_type: groups}), costs, epoch_s, seed=seed)
    name = "backfill" if policy == PLAIN else policy
    known = {gpu_type: faster(gpu_type, factor)}
    cost_s, oracle = settings.restart_cost_s, policy == PLAIN
    return simulate(scenario, name, settings, oracle=oracle, figures=known, restart_cost_s=cost_s).jobs


def of_real(real: Outcome, factor: float) -> dict[str, Any]:
    """What --json keeps of a replay, in the workload's time."""
    jobs = [
        {
            "job": j.job.name,
            "wait_s": factor * (j.start_s - j.submit_s),
            "run_s": factor * (j.finish_s - j.start_s),
            "restarts": j.restarts,
            "gpu_s": factor * j.gpu_s,
        }
        for j in real.jobs
    ]
    return {
        "real": asdict(summary(real.jobs, factor)),
        "costs": asdict(scaled(real.costs, factor)),
        "counted": dict(real.counted),
        "load": real.load,
        "busy": real.busy,
        "jobs": jobs,
    }


def compared(policy: str, real: dict[str, float], sims: list[dict[str, float]]) -> str:
    """Lines of the table: real, the simulations' mean, how far apart, and how far the simulations are from one another."""
    means = {key: statistics.fmean(one[key] for one in sims) for key in real}
    rows = []
    for label, one in (("real", real), ("simulated", means)):
        rows.append(
            f"{policy:>9} {label:>9} {one['avg_jct_s']:>9.0f} {one['median_jct_s']:>9.0f} {one['avg_wait_s']:>9.0f} "
            f"{one['restarts_per_job']:>9.2f} {one['gpu_hours']:>9.1f} {one['makespan_s']:>9.0f}"
        )
    differences = {key: means[key] - real[key] for key in real}
    spreads = {key: max(s[key] for s in sims) - min(s[key] for s in sims) for key in real}
    for label, of in (("", differences), ("spread", spreads)):
        apart = [f"{100 * of[key] / real[key]:>+8.1f}%" if real[key] else f"{of[key]:>+9.2f}" for key in real]
        rows.append(f"{policy:>9} {label:>9} " + " ".join(apart))
    return "\n".join(rows)


def each_job(real: list[dict[str, Any]], sim: tuple[JobResult, ...], factor: float) -> list[dict[str, Any]]:
    """Waiting, running, restarts and GPU seconds of each job, (real, simulated)."""
    rows = []
    for r, s in zip(real, sim, strict=True):
        mine = {
            "wait_s": factor * (s.start_s - s.job.submit_s),
            "run_s": factor * (s.finish_s - s.start_s),
            "restarts": s.restarts,
            "gpu_s": factor * s.gpu_s,
        }
        rows.append({"job": r["job"], **{key: (r[key], value) for key, value in mine.items()}})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", type=Path, required=True, metavar="FILE")
    parser.add_argument("--jobs", type=int, default=40, help="so many of those that fit the cluster")
    parser.add_argument("--first", type=int, default=0, help="without the first so many")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--gpus-per-node", type=int, default=4)
    parser.add_argument("--compress", type=float, default=12.0)
    parser.add_argument("--policy", default=f"synergy,{PLAIN}")
    parser.add_argument("--set", dest="given", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=5, help="simulations, of which the mean counts")
    parser.add_argument(
        "--costs-of", type=Path, metavar="FILE", help="what --json wrote: simulate anew beside that replay"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs and the daemon's database there")
    parser.add_argument("--verbose", action="store_true", help="print each job as it is submitted, and how it went")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not args.workload.exists():
        print(f"skipped: {args.workload} is not here")
        return
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    groups, factor = (args.nodes, args.gpus_per_node), args.compress
    some = [j for j in pollux.read(args.workload, None) if requested_shape(j, build_cluster({j.gpu_type: groups}))]
    jobs = compressed(some[args.first :][: args.jobs], factor)
    told = [f"RestartCost={max(1.0, RESTART_COST_S / factor):g}", *args.given]
    settings = with_values(Settings(), "--set", told)
    found: dict[str, Any] = {"jobs": len(jobs), "gpus": groups[0] * groups[1], "compress": factor, "policies": {}}
    before = json.loads(args.costs_of.read_text())["policies"] if args.costs_of else {}
    columns = ("avg JCT", "median", "waiting", "restarts", "GPU hours", "makespan")
    print(f"{'policy':>9} {'':>9} " + " ".join(f"{name:>9}" for name in columns), flush=True)
    for policy in args.policy.split(","):
        if policy in before:
            mine = before[policy]
        else:
            real = replay(
                jobs,
                policy,
                groups,
                epoch_s=EPOCH_S / factor,
                factor=factor,
                settings=told,
                keep=args.keep,
                say=lambda text: print(text, file=sys.stderr, flush=True) if args.verbose else None,
            )
            mine = of_real(real, factor)
        costs = scaled(Costs(**mine["costs"]), 1 / factor)
        sims = [simulated(jobs, policy, groups, factor, settings, costs, seed) for seed in range(args.seeds)]
        mine["simulated"] = [asdict(summary(sim, factor)) for sim in sims]
        mine["each"] = each_job(mine["jobs"], sims[0], factor)
        print(compared(policy, mine["real"], mine["simulated"]))
        print(
            "  seconds of a " + ", ".join(f"{name.removesuffix('_s')} {s:.1f}" for name, s in mine["costs"].items() if s is not None)
            + f" ({mine['counted']}); load {mine['load']:.1f}, processors {100 * mine['busy']:.0f} % busy",
            flush=True,
        )  # fmt: skip
        for row in mine["each"] if args.verbose else ():
            print("   ", row["job"], *(f"{k} {a:.0f}/{b:.0f}" for k, (a, b) in list(row.items())[1:]), flush=True)
        found["policies"][policy] = mine
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

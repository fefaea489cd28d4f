"""What wrong figures cost: made-up jobs whose compute and network are so many times as fast as the figures say.

    python -m tests.benchmarks.misspecified [--seeds 11,12,13] [--jobs 40] [--hours 2] [--compute 12,1,...] [--network 10,1,...]
        [--policy synergy,fifo,pollux] [--json FILE]

40 jobs on 10 x 4 GPUs. A job's seconds at the size asked for stay what they are, so its load does; its steps become shorter, and
the share that the network takes of them changes. `well specified` is the same truth where the figures say so: compute as made
up, the network's figures as many times as fast as the truth's are relative to compute (a unit of time is no figure).
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from synergy_sim.ideal import Ideals
from synergy_sim.metrics import RunMetrics, compute_metrics
from synergy_sim.records import Scenario, TraceJob, build_cluster
from synergy_sim.runs import simulate
from synergy_sim.scaling_truth import ScalingTruth
from synergy_sim.traces.generate import generate

from synergyd.jobmodel.model.hardware import GpuFigures, figures
from synergyd.settings import Settings

GPU_TYPE, NODES, EACH = "a100", 10, 4
FACTORS_COMPUTE = (1 / 12, 1.0, 12.0)
FACTORS_NETWORK = (1 / 10, 1.0, 10.0)


def faster(job: TraceJob, compute: float, network: float) -> TraceJob:
    """The job with its truth's compute and network so many times as fast; as many seconds at the size asked for."""
    truth = job.truth
    assert isinstance(truth, ScalingTruth)
    changed = replace(truth, network=truth.network * compute / network)
    step_s = truth.step_s / compute * changed.relative(truth.requested_gpus) / truth.relative(truth.requested_gpus)
    return replace(job, truth=replace(changed, step_s=step_s))


def scenario_of(jobs: int, hours: float, seed: int, compute: float, network: float) -> Scenario:
    some = generate(f"{jobs},{hours:g}", GPU_TYPE, NODES * EACH, EACH, seed)
    made = tuple(faster(job, compute, network) for job in some)
    return Scenario(made, build_cluster({GPU_TYPE: (NODES, EACH)}), seed=seed)


def networked(factor: float) -> GpuFigures:
    """The figures with both links so many times as fast."""
    gpu = figures(GPU_TYPE)
    return replace(gpu, intra_gbs=gpu.intra_gbs * factor, inter_gbs=gpu.inter_gbs * factor)


def measured(
    jobs: int, hours: float, seed: int, compute: float, network: float, policy: str
) -> tuple[RunMetrics, RunMetrics | None]:
    """(as misspecified, where the figures say so)."""
    own = run(scenario_of(jobs, hours, seed, compute, network), policy)
    if policy != "synergy":
        return own, None
    ratio = network / compute
    return own, run(scenario_of(jobs, hours, seed, 1.0, ratio), policy, networked(ratio))


def run(scenario: Scenario, policy: str, gpu: GpuFigures | None = None) -> RunMetrics:
    ideals = Ideals(scenario)
    known = {} if gpu is None else {GPU_TYPE: gpu}
    return compute_metrics(simulate(scenario, policy, Settings(), ideals=ideals, figures=known), ideals)


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="11,12,13")
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--compute", type=numbers, default=FACTORS_COMPUTE)
    parser.add_argument("--network", type=numbers, default=FACTORS_NETWORK)
    parser.add_argument("--policy", default="synergy,fifo,pollux")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    names = args.policy.split(",")
    found: list[dict[str, Any]] = []
    print(
        f"{'compute':>8} {'network':>8}",
        *(f"{name:>9}" for name in names),
        f"{'told':>9} {'loss':>7} restarts",
        flush=True,
    )
    for compute in args.compute:
        for network in args.network:
            runs = {n: [measured(args.jobs, args.hours, s, compute, network, n) for s in seeds] for n in names}
            mean = {n: statistics.fmean(own.avg_jct_s for own, _ in some) for n, some in runs.items()}
            known = [best.avg_jct_s for _, best in runs.get("synergy", []) if best is not None]
            told_s = statistics.fmean(known) if known else float("nan")
            loss = mean["synergy"] / told_s - 1 if known else float("nan")
            again = statistics.fmean(o.restarts_per_job for o, _ in runs[names[0]])
            row = f"{compute:>8.3g} {network:>8.3g} " + " ".join(f"{mean[n]:>9.0f}" for n in names)
            print(row, f"{told_s:>9.0f} {100 * loss:>+6.1f}% {again:.2f}", flush=True)
            each = {n: [asdict(own) for own, _ in some] for n, some in runs.items()}
            found.append({"compute": compute, "network": network, "told_s": known, "mean_s": mean, "runs": each})
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""What each part of Synergy brings, in simulation: the plan alone, the batch alone, the allocation alone, all together.

    python -m tests.benchmarks.parts [--data DIR] [--trace NAME,...] [--part NAME,...] [--jobs N] [--json FILE]

Each part is switched on beside plain Slurm, where every job runs as its user asked: first in, first out, fixed numbers of GPUs,
plan and batch as asked.

    fifo        plain Slurm without backfill: strict order of submission
    backfill    plain Slurm with EASY backfill, lengths as the jobs' reports and ended jobs tell them
    plan        as fifo, but Synergy chooses each job's plan (tp, pp, micro-batch ...) on the GPUs asked for
    batch       as fifo, but Synergy chooses each job's global batch on the GPUs asked for, and changes it as the noise scale grows
    allocation  Synergy decides who gets how many GPUs, when and where; tp, pp, micro-batch and the global batch stay as asked, and
                the number of replicas follows
    all         all three

Traces:
    pollux      workload 6 of the Pollux artifact (DIR/pollux), 16 x 4 T4. Jobs are data-parallel, so there is no plan to choose.
    morphling   Rubick's trace (DIR/morphling), 8 x 8 A800. As asked: the row's exec_plan. Chosen: the fastest plan that was
                measured on the GPUs. Batches are fixed there.
    megatron    made up: GPT and Llama jobs of 0.35 to 30 billion parameters on 8 x 8 A100-80. As asked: the rule of
                Megatron-LM's guide (the least tp, within a node, then the least pp that fit the memory; micro-batch 1; data parallelism
                for the rest), and a batch drawn from 64 to 1,024 sequences, as the noise scale is, by itself. Their true
                speeds are those of the performance model for a cluster whose efficiencies and links are not the built-in ones (drawn
                once, see `TRUE_SIGMA`); the scheduler knows the built-in ones and learns.
Prints a Markdown table a trace. Exit code 0; a line for each trace that is not there.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from synergy_core.records import Directive, Job, JobState, ModelSpec, Plan, Profile, Shape
from synergy_sim.ideal import Ideal, Ideals
from synergy_sim.metrics import RunMetrics, compute_metrics
from synergy_sim.recorded_truth import RecordedTruth
from synergy_sim.records import Scenario, TraceJob, build_cluster
from synergy_sim.runs import simulate
from synergy_sim.traces import morphling, pollux
from synergy_sim.traces.generate import generate

from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.model.hardware import GpuFigures, figures
from synergyd.jobmodel.model.spec import load_model
from synergyd.settings import Settings

POLLUX, MORPHLING = "pollux/workloads/workload-6.csv", "morphling/workloads/workload-base.csv"
GPU_TYPE, NODES, EACH = "a100-80", 8, 8
# (fewest GPUs asked for, models that such jobs train)
MODELS = ((1, ("gpt3-350m", "gpt3-760m")), (4, ("gpt3-1.3b", "gpt3-2.7b")), (8, ("llama2-7b", "llama3-8b", "gpt3-6.7b")),
          (16, ("llama2-13b", "gpt3-13b", "gpt-neox-20b")), (32, ("qwen3-32b", "gpt-neox-20b")))  # fmt: skip
BATCHES = (64, 1024)
# One sigma of the logarithm of what the made-up cluster's figures are over the built-in ones: GEMMs and kernels differ by a tenth
# between clusters of one GPU type (docs/design/measurements/model.md), links by site.
TRUE_SIGMA = {"gemm_efficiency": 0.1, "attention_efficiency": 0.1, "intra_gbs": 0.2, "inter_gbs": 0.4}


@dataclass(frozen=True)
class Part:
    """Which policy, and what stays as users asked for it."""

    policy: str
    keeps_plan: bool
    keeps_batch: bool


PARTS = {
    "fifo": Part("fifo", True, True),
    "backfill": Part("backfill", True, True),
    "plan": Part("fifo", False, True),
    "batch": Part("fifo", True, False),
    "allocation": Part("synergy", True, True),
    "all": Part("synergy", False, False),
}
# What a trace has nothing to choose of
LACKS = {"pollux": {"plan"}, "morphling": {"batch"}, "megatron": set[str]()}


def pollux_scenario(data: Path, keeps_plan: bool) -> Scenario:
    return Scenario(pollux.read(data / POLLUX, None), build_cluster({"t4": (16, 4)}))


def morphling_scenario(data: Path, keeps_plan: bool) -> Scenario:
    (gpu_type, (_, each)), *_ = morphling.CLUSTER.items()
    jobs = morphling.read(data / MORPHLING, None, gpu_type, each, keep_plan=keeps_plan)
    return Scenario(jobs, build_cluster(morphling.CLUSTER), morphling.COSTS)


def true_figures(seed: int) -> GpuFigures:
    """The made-up cluster's own."""
    draw, gpu = random.Random(seed), figures(GPU_TYPE)
    changes: dict[str, Any] = {
        name: getattr(gpu, name) * math.exp(draw.gauss(0.0, sigma)) for name, sigma in TRUE_SIGMA.items()
    }
    for name in ("gemm_efficiency", "attention_efficiency"):
        changes[name] = min(1.0, changes[name])
    return replace(gpu, **changes)


def megatron_jobs(count: int, hours: float, seed: int) -> tuple[TraceJob, ...]:
    """Arrivals, sizes and lengths at those sizes from traces.generate; models, batches and noise scales drawn here."""
    draw, gpu = random.Random(seed), true_figures(seed)
    jobs = []
    for made in generate(f"{count},{hours:g}", GPU_TYPE, NODES * EACH, EACH, seed):
        names = next(some for least, some in reversed(MODELS) if made.gpus >= least)
        name = draw.choice(names)
        batch, noise_scale = (math.exp(draw.uniform(*map(math.log, BATCHES))) for _ in range(2))
        asked = Shape(GPU_TYPE, -(-made.gpus // EACH), min(made.gpus, EACH))
        batch = 2 ** round(math.log2(batch))
        seconds = made.truth.end(0) * made.truth.step_s  # type: ignore[attr-defined]
        job = megatron_job(made, load_model(name), asked, int(batch), noise_scale, gpu, seconds)
        jobs.append(replace(job, kind=name))
    return tuple(jobs)


def megatron_job(
    made: TraceJob, model: ModelSpec, asked: Shape, batch: int, noise_scale: float, gpu: GpuFigures, seconds: float
) -> TraceJob:
    """A job that takes `seconds` as its user asked for it. Raises ValueError where it fits no plan of the guide's."""
    low, high = BATCHES
    directive = Directive(model=model.name, global_batch=(low, high), reshard=True)
    plain = Job(1, made.name, "", 0, "", JobState.PENDING, "", 0.0, None, None, 0, asked, asked, directive=directive)
    known, profile = {GPU_TYPE: gpu}, Profile(noise_scale=noise_scale)
    plan = guide_plan(replace(plain, directive=replace(directive, global_batch=(batch, batch))), model, gpu)
    if plan is None:
        raise ValueError(f"{model.name} does not fit {asked}")
    truth = RecordedTruth(JobPlanner(plain, profile, model, known), 0.0, low, high)
    step_s = truth.task.expected_step_s(asked, plan)
    assert step_s is not None
    truth.examples = seconds / step_s * batch * truth.efficiency(batch)
    return replace(
        made, batch=batch, truth=truth, model=model.name, spec=model, plan=plan, reshard=True, max_gpus=NODES * EACH
    )


def guide_plan(job: Job, model: ModelSpec, gpu: GpuFigures) -> Plan | None:
    """The least tp within a node, then the least pp, that fit, with micro-batches of one sequence."""
    degrees = [2**i for i in range(8)]
    for pp in degrees:
        for tp in degrees:
            if tp <= job.asked.gpus_per_node and tp * pp <= job.asked.gpus:
                assert job.directive is not None
                directive = replace(job.directive, tp=tp, pp=pp, micro_batch=1)
                task = JobPlanner(replace(job, directive=directive), Profile(), model, {GPU_TYPE: gpu})
                if (cell := task.best_plan(job.asked)) is not None:
                    return cell.plan
    return None


def megatron_scenario(data: Path, keeps_plan: bool) -> Scenario:
    return Scenario(megatron_jobs(120, 8.0, 1), build_cluster({GPU_TYPE: (NODES, EACH)}))


TRACES: dict[str, Callable[[Path, bool], Scenario]] = {
    "pollux": pollux_scenario,
    "morphling": morphling_scenario,
    "megatron": megatron_scenario,
}
_NEEDS = {"pollux": POLLUX, "morphling": MORPHLING}


def with_part(scenario: Scenario, part: Part) -> Scenario:
    """Jobs whose users fix what stays as they asked for it: resize=no, one global_batch=, and tp=, pp=, micro_batch=."""
    jobs = tuple(
        replace(
            job,
            resize=part.policy == "synergy",
            batch_fixed=job.batch_fixed or part.keeps_batch,
            plan_fixed=part.keeps_plan and job.plan is not None,
            requested_truth=job.requested_truth if part.keeps_plan else None,
        )
        for job in scenario.jobs
    )
    return replace(scenario, jobs=jobs)


class NoIdeals(Ideals):
    """Nothing is compared with the best that is possible, which takes longer than the simulations."""

    def find_ideal(self, job: TraceJob) -> Ideal | None:
        return None


def measure(trace: str, data: Path, name: str, jobs: int) -> RunMetrics:
    part = PARTS[name]
    scenario = with_part(TRACES[trace](data, part.keeps_plan), part)
    scenario = replace(scenario, jobs=scenario.jobs[:jobs])
    ideals = NoIdeals(scenario)
    # a batch that does not divide by the GPUs asked for is rounded up where both stay as asked
    rigid = part.policy != "synergy" and part.keeps_batch
    return compute_metrics(simulate(scenario, part.policy, Settings(), rigid=rigid, ideals=ideals), ideals)


def row(name: str, one: RunMetrics, base: RunMetrics) -> str:
    gain = f"{one.avg_jct_s / base.avg_jct_s - 1:+.0%}"
    cells = (one.avg_jct_s, one.median_jct_s, one.p99_jct_s, one.makespan_s, one.gpu_hours)
    return f"| {name} | {gain} | " + " | ".join(f"{c:,.0f}" for c in cells) + f" | {one.restarts_per_job:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(), metavar="DIR")
    parser.add_argument("--trace", default=",".join(TRACES))
    parser.add_argument("--part", default=",".join(PARTS))
    parser.add_argument("--jobs", type=int, default=10_000, help="the first so many of each trace")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for trace in args.trace.split(","):
        if trace in _NEEDS and not (args.data / _NEEDS[trace]).exists():
            print(f"skipped: {args.data / _NEEDS[trace]} is not here")
            continue
        print(f"\n{trace}\n\n| part | mean JCT | s | median | p99 | makespan | GPU hours | restarts a job |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
        base: RunMetrics | None = None
        for name in args.part.split(","):
            if name in LACKS[trace]:
                print(f"| {name} | nothing to choose | | | | | | |", flush=True)
                continue
            one = measure(trace, args.data, name, args.jobs)
            base = base or one
            print(row(name, one, base), flush=True)
            found.setdefault(trace, {})[name] = asdict(one)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Does the gain that `synergyctl forecast` states hold the true one?

    python -m tests.benchmarks.forecast_truth [--histories 24] [--first-seed 1000] [--large] [--calibrate] [--truths FILE] [--json FILE]

Each history is made by the simulator under plain Slurm (all jobs plain): 3 or 4 nodes of 8 GPUs, 6 or 8 hours, load 0.7 to 1.1, lengths,
sizes and speed-ups as `generate:` draws them (Amdahl's law and a network cost: not the prior's family), time limits 1.2 to 4 times the
length. It is written as sacct would list it and read back; the forecast sees nothing else. The truth is the simulator again, with the same
jobs and their true speeds, of which Synergy decides about 20, 50 and 100 % of those with several GPUs. Reported: how often the stated
interval (80 %) holds the truth, and the mean error of the middle.

--calibrate: the queue model with the true speeds against the simulator, the origin of estimate.MODEL_ERRORS. Its histories have the
seeds from 0 on, those of the coverage from 1000 on.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import NormalDist, fmean

import numpy as np
from synergy_sim.forecast.estimate import (
    COVERAGE,
    SHARES,
    Outcome,
    compute_scatter,
    forecast,
    list_tasks,
    measured_outcome,
    run_task,
)
from synergy_sim.forecast.history import COLUMNS, History, read_history
from synergy_sim.forecast.queue_model import QueueJob, QueueModel
from synergy_sim.records import JobResult, PlacedGpus, Scenario, SimulatedRun, TraceJob, build_cluster
from synergy_sim.runs import simulate
from synergy_sim.scaling_truth import ScalingTruth
from synergy_sim.tables import parse_table
from synergy_sim.traces.generate import generate

START_S = 1_700_000_000.0


@dataclass(frozen=True)
class TrueCurve:
    """A job's true speed-up, in the place of a drawn one. It stands in for SpeedUp."""

    truth: ScalingTruth
    least: float = 0.0
    most: float = float("inf")

    def speed(self, times: float, asked_nodes: int, nodes: int) -> float:
        gpus = round(times * self.truth.requested_gpus.gpus)
        placed = PlacedGpus(self.truth.requested_gpus.gpu_type, (gpus // nodes,) * nodes)
        return self.truth.relative(self.truth.requested_gpus) / self.truth.relative(placed)


def make_scenario(seed: int, large: bool = False) -> Scenario:
    """Return a workload on a cluster, with time limits."""
    draw = random.Random(seed)
    nodes, hours, load = draw.choice((3, 4)), draw.choice((6, 8)), draw.uniform(0.7, 1.1)
    if large:
        nodes, hours = 10, 12
    cluster = build_cluster({"a100": (nodes, 8)})
    jobs: list[TraceJob] = []
    held, count = 0.0, 10
    while held < load * nodes * 8 * hours * 3600 and count < 400:
        count += 10
        jobs = list(generate(f"{count},{hours}", "a100", nodes * 8, 8, seed))
        held = sum(job.gpus * seconds_of(job) for job in jobs)
    limited = [replace(job, time_limit_s=seconds_of(job) * draw.choice((1.2, 2.0, 4.0))) for job in jobs]
    return Scenario(tuple(limited), cluster, seed=seed)


def seconds_of(job: TraceJob) -> float:
    assert isinstance(job.truth, ScalingTruth)
    return job.truth.seconds


def taking_part(scenario: Scenario, share: float) -> set[int]:
    """Return the share of the jobs with several GPUs that Synergy decides about."""
    several = [i for i, job in enumerate(scenario.jobs) if job.gpus > 1]
    random.Random(scenario.seed).shuffle(several)
    return set(several[: round(share * len(several))])


def run_share(scenario: Scenario, share: float) -> SimulatedRun:
    """Run the simulator with Synergy for a share of the jobs with several GPUs."""
    chosen = taking_part(scenario, share)
    jobs = tuple(replace(job, plain=i not in chosen) for i, job in enumerate(scenario.jobs))
    return simulate(replace(scenario, jobs=jobs), "synergy")


class Truths:
    """The true outcomes, each simulated once. `path` keeps them: delete it after a change of the simulator."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Outcome] = {}
        if path is not None and path.exists():
            self._known = {key: Outcome(**values) for key, values in json.loads(path.read_text()).items()}

    def of(self, scenario: Scenario, share: float) -> Outcome:
        key = f"{scenario.seed} {share}"
        if key not in self._known:
            self._known[key] = outcome_of(run_share(scenario, share).jobs)
            if self._path is not None:
                self._path.write_text(json.dumps({k: asdict(one) for k, one in self._known.items()}, indent=1))
        return self._known[key]


def outcome_of(jobs: tuple[JobResult, ...]) -> Outcome:
    return Outcome(
        wait_s=fmean(one.start_s - one.job.submit_s for one in jobs),
        run_s=fmean(one.finish_s - one.start_s for one in jobs),
        gpu_h=sum(one.gpu_s for one in jobs) / 3600,
        restarts=fmean(one.restarts for one in jobs),
    )


def as_history(run: SimulatedRun) -> History:
    """Return the run as sacct and sinfo would tell of it."""
    held = {one.job: one for one in run.occupancies}
    lines = ["|".join(COLUMNS) + "\n"]
    for number, one in enumerate(run.jobs, start=1):
        nodes = held[number].nodes
        times = [f"{START_S + s:.0f}" for s in (one.job.submit_s, one.job.submit_s, one.start_s)]
        took = max(1, round(one.finish_s - one.start_s))
        limit = -(-int(one.job.time_limit_s or 0) // 60) + 1
        tres = f"billing=1,gres/gpu:a100={one.job.gpus},gres/gpu={one.job.gpus}"
        names = ",".join(name for name, _ in nodes)
        row = [str(number), "u", *times, str(took), str(limit), tres, str(len(nodes)), names, "COMPLETED"]
        lines.append("|".join(row) + "\n")
    sinfo = "".join(f"{node.name}|gpu:{node.gpu_type}:{node.gpus}\n" for node in run.scenario.cluster.nodes)
    return read_history(parse_table(Path("sacct"), lines, COLUMNS, "|"), 365.0, sinfo)


def calibrate(seeds: range, truths: Truths) -> None:
    """Print the queue model's error with the true speeds: in standard errors of the history's means, and as a share of the mean."""
    errors: dict[str, list[float]] = {"wait": [], "run": [], "gpu": []}
    shares: dict[str, list[float]] = {"wait": [], "run": [], "gpu": []}
    for seed in seeds:
        scenario = make_scenario(seed)
        history = as_history(run_share(scenario, 0.0))
        plain, scatter = measured_outcome(history), compute_scatter(history)
        for share in SHARES:
            truth, model = truths.of(scenario, share), model_outcome(scenario, taking_part(scenario, share))
            found = {
                "wait": (model.wait_s - truth.wait_s, scatter.wait_s, plain.wait_s),
                "run": (model.run_s - truth.run_s, scatter.run_s, plain.run_s),
                "gpu": (model.gpu_h - truth.gpu_h, scatter.gpu_h, plain.gpu_h),
            }
            for name, (error, standard, mean) in found.items():
                errors[name].append(error / standard if standard else 0.0)
                shares[name].append(error / mean if mean else 0.0)
            shown = ", ".join(f"{n} {errors[n][-1]:+.2f} ({100 * shares[n][-1]:+.1f} %)" for n in found)
            print(f"seed {seed}, {len(scenario.jobs)} jobs, {100 * share:.0f} %: {shown}", flush=True)
    for name, some in errors.items():
        # a few histories in which chance decided would make all intervals wide, so the sigma is that of the interval itself
        within = float(np.quantile(np.abs(some), COVERAGE)) / NormalDist().inv_cdf((1 + COVERAGE) / 2)
        mean = 100 * fmean(shares[name])
        print(f"{name}: one sigma {within:.2f} standard errors (of {len(some)}), mean {mean:+.1f} % of the mean")


def model_outcome(scenario: Scenario, chosen: set[int]) -> Outcome:
    """Return what the queue model makes of the same jobs, given their true speeds."""
    jobs = []
    for number, job in enumerate(scenario.jobs):
        truth = job.truth
        assert isinstance(truth, ScalingTruth)
        took_s = truth.seconds + scenario.costs.first_start_s
        curve = TrueCurve(truth) if number in chosen else None
        per_node = truth.requested_gpus.per_node
        jobs.append(
            QueueJob(
                submit_s=job.submit_s,
                nodes=len(per_node),
                each=per_node[0],
                seconds=took_s,
                limit_s=job.time_limit_s or took_s,
                curve=curve,  # type: ignore[arg-type]
            )
        )
    results = QueueModel(jobs, [node.gpus for node in scenario.cluster.nodes]).run()
    return Outcome(
        wait_s=fmean(one.start_s - job.submit_s for job, one in zip(jobs, results, strict=True)),
        run_s=fmean(one.end_s - one.start_s for one in results),
        gpu_h=sum(one.gpu_s for one in results) / 3600,
    )


def judge(seeds: range, truths: Truths, large: bool) -> list[dict[str, float]]:
    """Return one row for each history and share: truth, forecast and whether its interval holds it."""
    rows: list[dict[str, float]] = []
    for seed in seeds:
        began, scenario = time.perf_counter(), make_scenario(seed, large)
        history = as_history(run_share(scenario, 0.0))
        results = [(task, run_task(history, task, seed)) for task in list_tasks(history)]
        told = forecast(history, results)
        for one in told.of_prior("measured"):
            truth = truths.of(scenario, one.share)
            row: dict[str, float] = {"seed": seed, "share": one.share, "jobs": len(scenario.jobs)}
            for name, true, stated in (
                ("wait", truth.wait_s, one.wait_s),
                ("completion", truth.completion_s, one.completion_s),
                ("gpu_h", truth.gpu_h, one.gpu_h),
            ):
                row |= {f"{name}_true": true, f"{name}_middle": stated.middle}
                row |= {f"{name}_low": stated.low, f"{name}_high": stated.high}
                row[f"{name}_held"] = float(stated.low <= true <= stated.high)
            row |= {"plain_wait": told.measured_outcome.wait_s, "plain_completion": told.measured_outcome.completion_s}
            rows.append(row)
        shown = "; ".join(
            f"{100 * r['share']:.0f} %: completion {r['completion_true'] / 60:.1f} min"
            f" in [{r['completion_low'] / 60:.1f}, {r['completion_high'] / 60:.1f}]"
            for r in rows[-len(SHARES) :]
        )
        print(f"seed {seed}, {len(scenario.jobs)} jobs, {time.perf_counter() - began:.0f} s: {shown}", flush=True)
    return rows


def report(rows: list[dict[str, float]]) -> None:
    for share in SHARES:
        some = [row for row in rows if row["share"] == share]
        texts = []
        for name in ("wait", "completion", "gpu_h"):
            held = fmean(row[f"{name}_held"] for row in some)
            width = fmean((row[f"{name}_high"] - row[f"{name}_low"]) / 2 for row in some)
            error = fmean(row[f"{name}_middle"] - row[f"{name}_true"] for row in some)
            unit = ("h", 1.0) if name == "gpu_h" else ("min", 60.0)
            texts.append(
                f"{name} {100 * held:.0f} % (half-width {width / unit[1]:.1f}, bias {error / unit[1]:+.1f} {unit[0]})"
            )
        print(f"{100 * share:.0f} %: the interval holds the truth of " + ", ".join(texts))
    everything = [row[f"{name}_held"] for row in rows for name in ("wait", "completion", "gpu_h")]
    print(f"all: {100 * fmean(everything):.0f} % of {len(everything)} intervals; stated 80 %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=24)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--large", action="store_true", help="10 nodes and 12 hours, minutes each")
    parser.add_argument("--truths", type=Path, metavar="FILE", help="keeps the true outcomes for the next time")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    truths = Truths(args.truths)
    print(datetime.now(UTC).strftime("begun %Y-%m-%d %H:%M:%S UTC"))
    if args.calibrate:
        calibrate(range(args.histories), truths)
        return
    rows = judge(range(args.first_seed, args.first_seed + args.histories), truths, args.large)
    report(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

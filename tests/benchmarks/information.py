"""What Synergy and its peers know, and what that is worth: each trace with lengths and names, without lengths, without both, and without
anything that jobs have in common.

    python -m tests.benchmarks.information --data DIR [--trace NAME,...] [--policy NAME,...] [--live] [--json FILE]

NAME of a trace: pollux-1 ... pollux-8, half-1 ... half-8 (half the load), morphling (Rubick's base), morphling-bp, morphling-mt, arena
(Crius's pai), arena-venus, arena-philly, sia-philly-N, sia-saturn-N, sia-newtrace-N; those that DIR holds by default. DIR/sia is the
artifact's sia-simulator/. Plain Slurm has the sizes, plans and batches that users asked for, and time limits that are right to the
second. "Fit known": of Rubick's and Crius's jobs Synergy knows beforehand where they do not fit, as those artifacts' schedulers do. Without
lengths no job tells how much it has left to do; without names besides, each job is called differently, so that runs of one program
are not known as such by their name; what they say of their batches may still show it. Apart besides, each is of a user of its own,
and what others' jobs took counts with one vote a user alone. A policy other than synergy is run once, with lengths and
names, in the same simulator.

--live: whole nodes join and leave running jobs, and plans change, without a requeue (Live=yes). Processes then start in LIVE_SHARE of the
time of a start; the checkpoint before it takes as long as before a requeue. All other changes are requeues, as without --live.

Prints a table in Markdown for each trace: mean, median and p99 of the JCT, worst finish-time fairness, restarts a job, the longest
wait, makespan; what no scheduler can beat; the peer's own figure on the very same jobs where its artifact stores one; and of what the
truth is made that Synergy's run met, in shares of GPU time. Exit code 0; a line for each trace that is not there.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from synergy_sim.comparison import run_plain
from synergy_sim.ideal import Ideals, compute_lower_bound
from synergy_sim.memory_fit import with_known_fit
from synergy_sim.metrics import RunMetrics, compute_metrics
from synergy_sim.placement_truth import PlacementTruth
from synergy_sim.pollux_truth import PolluxTruth
from synergy_sim.records import PlacedGpus, Scenario, SimulatedRun, build_cluster, with_live_changes
from synergy_sim.runs import simulate
from synergy_sim.traces import pollux
from synergy_sim.traces.load import load_trace

from synergyd.settings import Settings
from tests.benchmarks import truths

FOLDERS = {"pollux": "workloads", "half": "workloads-0.5"}
# by name: kind and path
OTHERS = {
    **{f"morphling-{name}": f"morphling:morphling/workloads/workload-{name}.csv" for name in ("bp", "mt")},
    **{f"arena-{name}": f"arena:arena/traces/simulate_trace_{name}.csv" for name in ("venus", "philly")},
    **{
        f"sia-{name}-{number}": f"sia:sia/workloads/{name}/workload-{number}.csv"
        for name in ("philly", "saturn", "newtrace")
        for number in range(1, 11)
    },
}
# Mean JCT in s of the very same jobs, as the peers' artifacts store or print it
PUBLISHED = {
    "pollux-6": "Pollux 2446",
    "morphling": "Rubick 3638, by a simulator whose jobs keep GPUs that others were given (simulator.py:109 before :127): up to "
    "344 of 64 GPUs in use; with that mended 7475",
    "arena": "Crius 2510",
}
# Over several workloads together
MEANS = {
    "pollux-1 2 3 4 6": "Pollux 2553.5",
    "half-1 2 3 4": "Pollux 1423.5",
}
#: a warm restart in place over a start, both of 1.1B parameters on an H100: docs/design/measurements/gpu.md
LIVE_SHARE = 18.1 / 34.5
COLUMNS = (
    ("avg_jct_s", "mean"),
    ("median_jct_s", "median"),
    ("p99_jct_s", "p99"),
    ("worst_ftf", "worst fairness"),
    ("restarts_per_job", "restarts a job"),
    ("most_restarts", "most"),
    ("longest_wait_s", "longest wait"),
    ("makespan_s", "makespan"),
)


def scenario_of(data: Path, name: str) -> Scenario | None:
    """The trace on its own cluster; None where it is not there."""
    kind, _, number = name.partition("-")
    if kind in FOLDERS:
        path = data / "pollux" / FOLDERS[kind] / f"workload-{number}.csv"
        return Scenario(pollux.read(path, None), build_cluster({"t4": (16, 4)})) if path.exists() else None
    if name in OTHERS:
        trace_kind, _, relative_path = OTHERS[name].partition(":")
        path = data / relative_path
        return load_trace(f"{trace_kind}:{path}") if path.exists() else None
    there = kind in truths.TRACES and (data / truths.TRACES[kind][0]).exists()
    return truths.scenario_of(data, kind) if there else None


def without_names(scenario: Scenario) -> Scenario:
    """Each job under a name of its own, whose end is no number: those that differ in that alone count as the same program."""
    return replace(scenario, jobs=tuple(replace(job, name=f"{i}x") for i, job in enumerate(scenario.jobs)))


def apart(scenario: Scenario) -> Scenario:
    """Each job of a user of its own: no two are taken for runs of one program. Fairness between users is that between jobs then."""
    return replace(scenario, jobs=tuple(replace(job, uid=i + 1) for i, job in enumerate(scenario.jobs)))


def informed(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    untold = replace(scenario, lengths_known=False)
    yield "with lengths and names", scenario
    if any(job.expected_fit is not None for job in scenario.jobs):
        yield "fit known besides", with_known_fit(scenario)
    yield "without lengths", untold
    yield "without both", without_names(untold)
    yield "apart besides", apart(without_names(untold))


def made_of(run: SimulatedRun) -> dict[str, float]:
    """Share of the GPU time that was held on GPUs whose times are measured, interpolated, estimated, lent, by a formula."""
    types = {node.name: node.gpu_type for node in run.scenario.cluster.nodes}
    seconds: defaultdict[str, float] = defaultdict(float)
    for held in run.occupancies:
        truth = run.scenario.jobs[held.job - 1].truth
        placed = PlacedGpus(types[held.nodes[0][0]], tuple(gpus for _, gpus in held.nodes))
        seconds[_origin(truth, placed)] += held.gpus * (held.end_s - held.start_s)
    total = sum(seconds.values())
    most_first = sorted(seconds.items(), key=lambda one: -one[1])
    return {origin: spent / total for origin, spent in most_first} if total else {}


def _origin(truth: object, placed: PlacedGpus) -> str:
    if isinstance(truth, PlacementTruth):
        return truth.times.origin(placed)
    return truth.origin(placed) if isinstance(truth, PolluxTruth) else "by a formula"


def measure(scenario: Scenario, policies: Iterable[str]) -> dict[str, Any]:
    """All runs of one trace: RunMetrics by words, the bound, the shares."""
    ideals, found = Ideals(scenario), dict[str, Any]()
    found["bound"] = compute_lower_bound(scenario, ideals).average_s
    found["plain Slurm, right time limits"] = compute_metrics(run_plain(scenario), ideals)
    for words, given in informed(scenario):
        run = simulate(given, "synergy", Settings(), ideals=ideals)
        found[f"Synergy, {words}"] = compute_metrics(run, ideals)
        found.setdefault("made of", made_of(run))
    for policy in policies:
        found[f"{policy}, with lengths and names"] = compute_metrics(simulate(scenario, policy, Settings()), ideals)
    return found


def table(name: str, found: dict[str, Any]) -> str:
    """In Markdown."""
    lines = [
        f"### {name}",
        "",
        "| | " + " | ".join(words for _, words in COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for words, metrics in found.items():
        if isinstance(metrics, RunMetrics):
            values = (getattr(metrics, key) for key, _ in COLUMNS)
            lines.append(f"| {words} | " + " | ".join("-" if v is None else f"{v:.4g}" for v in values) + " |")
    lines += ["", f"No scheduler can beat a mean of {found['bound']:.0f} s."]
    if name in PUBLISHED:
        lines.append(f"As published: {PUBLISHED[name]}.")
    shares = ", ".join(f"{share:.0%} {origin}" for origin, share in found["made of"].items())
    return "\n".join([*lines, f"The truth, by GPU time: {shares}.", ""])


def means(found: dict[str, dict[str, Any]]) -> list[str]:
    """Means over the workloads of which the peer's own mean is known."""
    lines = []
    for names, published in MEANS.items():
        kind, _, numbers = names.partition("-")
        some = [found.get(f"{kind}-{number}") for number in numbers.split()]
        if None in some:
            continue
        for words in next(one for one in some if one):
            values = [one[words].avg_jct_s for one in some if one and isinstance(one[words], RunMetrics)]
            if len(values) == len(some):
                lines.append(f"{names}: {words} {sum(values) / len(values):.1f} s; {published} s")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--trace", default="")
    parser.add_argument("--policy", default="pollux,sia", help="peers to run beside it")
    parser.add_argument("--live", action="store_true", help="changes without a requeue")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    every = [f"{kind}-{n}" for kind in FOLDERS for n in range(1, 9)] + [*truths.TRACES, *OTHERS]
    found: dict[str, dict[str, Any]] = {}
    for name in args.trace.split(",") if args.trace else every:
        if (scenario := scenario_of(args.data, name)) is None:
            print(f"skipped: {args.data} has no {name}")
            continue
        if args.live:
            scenario = with_live_changes(scenario, LIVE_SHARE)
        peers = [policy for policy in args.policy.split(",") if policy not in ("", "synergy")]
        found[name] = measure(scenario, peers)
        print(table(name, found[name]), flush=True)
    print("\n".join(means(found)))
    if args.json:
        plain = {n: {k: asdict(v) if isinstance(v, RunMetrics) else v for k, v in f.items()} for n, f in found.items()}
        args.json.write_text(json.dumps(plain, indent=2) + "\n")


if __name__ == "__main__":
    main()

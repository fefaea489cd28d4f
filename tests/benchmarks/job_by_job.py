"""Each job beside itself under plain Slurm (or a peer's policy): who ends later, and which kinds of jobs lose.

    python -m tests.benchmarks.job_by_job --data DIR [--trace NAME,...] [--level LEVEL] [--nodes N,...] [--peer plain|POLICY]
        [--live] [--standstill S] [--kinds] [--json FILE]

NAME as in tests.benchmarks.information, LEVEL told, names, neither or apart: what jobs tell and share (apart: strictly equal information).
--nodes scales the cluster of a trace with one GPU type to so many nodes. Under `plain` each job has the size and batch that its user asked
for, Slurm's order with backfill, and time limits that are right to the second; its batches come with the trace, tuned for that size. A
row for each trace and number of nodes: mean JCT of both, share of the jobs that take more than 1.10 and 1.25 times as long, the worst.
--kinds adds a table: mean JCT by kind of job, over the peer's, restarts a job of both, share of life by number of GPUs. Exit code 0; a line
for each trace that is not there.

--live: changes without a requeue, as in tests.benchmarks.information.
--standstill: each change of a running job stops it for S seconds and costs nothing else. That bounds what changes without a requeue can
bring: they take about 2 s for a light job, and a part of all changes is none of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from synergy_sim.comparison import JobRatios, KindRow, compare_jobs, compare_kinds, run_plain
from synergy_sim.records import Costs, Scenario, build_cluster, with_live_changes
from synergy_sim.runs import simulate

from synergyd.settings import Settings
from tests.benchmarks.information import LIVE_SHARE, apart, scenario_of, without_names

LEVELS: dict[str, Callable[[Scenario], Scenario]] = {
    "told": lambda scenario: scenario,
    "names": lambda scenario: replace(scenario, lengths_known=False),
    "neither": lambda scenario: without_names(replace(scenario, lengths_known=False)),
    "apart": lambda scenario: apart(without_names(replace(scenario, lengths_known=False))),
}
_LEAST_LIFE = 0.02  # shares of life below it are not shown


def on_nodes(scenario: Scenario, nodes: int) -> Scenario:
    """The scenario on a cluster of so many of its nodes."""
    ((gpu_type, each),) = {(node.gpu_type, node.gpus) for node in scenario.cluster.nodes}
    return replace(scenario, cluster=build_cluster({gpu_type: (nodes, each)}))


def with_standstill(scenario: Scenario, standstill_s: float) -> Scenario:
    """The scenario with changes that stop a job for `standstill_s` alone, on its new GPUs; first starts take as long as before."""

    def costs(own: Costs) -> Costs:
        return Costs(own.first_start_s, 0.0, 0.0, standstill_s, own.end_s, own.grant_s)

    jobs = tuple(replace(job, costs=costs(job.costs)) if job.costs else job for job in scenario.jobs)
    return replace(scenario, jobs=jobs, costs=costs(scenario.costs))


def ratio_row(name: str, found: JobRatios) -> str:
    return (
        f"| {name} | {found.mean_s:.0f} | {found.other_mean_s:.0f} | {100 * found.slower:.1f} | {100 * found.much_slower:.1f} "
        f"| {found.worst:.2f} (job {found.worst_job}) | {found.median:.2f} |"
    )


def kind_row(name: str, row: KindRow) -> str:
    life = " ".join(f"{gpus}:{100 * share:.0f}" for gpus, share in row.life.items() if share >= _LEAST_LIFE)
    return (
        f"| {name} | {row.kind} | {row.jobs} | {row.mean_s:.0f} | {row.ratio:.2f} | {row.restarts_per_job:.1f} "
        f"| {row.other_restarts_per_job:.1f} | {life} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--trace", default="pollux-6")
    parser.add_argument("--level", choices=LEVELS, default="apart")
    parser.add_argument("--nodes", default="", help="such as 16,32,64 (default: the trace's own cluster)")
    parser.add_argument("--peer", default="plain")
    parser.add_argument("--live", action="store_true", help="changes without a requeue")
    parser.add_argument("--standstill", type=float, metavar="S")
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(
        f"| {args.level} | mean s | {args.peer} s | > 1.10, % | > 1.25, % | worst | median |\n|---|---|---|---|---|---|---|"
    )
    kinds: list[str] = []
    out: dict[str, Any] = {}
    for trace in args.trace.split(","):
        if (own := scenario_of(args.data, trace)) is None:
            print(f"skipped: {args.data} has no {trace}")
            continue
        for nodes in args.nodes.split(",") if args.nodes else [""]:
            name = f"{trace}, {nodes} nodes" if nodes else trace
            scenario = LEVELS[args.level](on_nodes(own, int(nodes)) if nodes else own)
            if args.live:
                scenario = with_live_changes(scenario, LIVE_SHARE)
            if args.standstill is not None:
                scenario = with_standstill(scenario, args.standstill)
            other = run_plain(scenario) if args.peer == "plain" else simulate(scenario, args.peer, Settings())
            run = simulate(scenario, "synergy", Settings())
            found, rows = compare_jobs(run.jobs, other.jobs), compare_kinds(run, other)
            print(ratio_row(name, found), flush=True)
            kinds += [kind_row(name, row) for row in rows]
            out[name] = {"jobs": asdict(found), "kinds": [asdict(row) for row in rows]}
    if args.kinds:
        head = f"| | kind | jobs | mean s | over {args.peer} | restarts | {args.peer}'s | life by GPUs, % |"
        print(f"\n{head}\n|---|---|---|---|---|---|---|---|")
        print("\n".join(kinds))
    if args.json:
        args.json.write_text(json.dumps(out, indent=2) + "\n")


if __name__ == "__main__":
    main()

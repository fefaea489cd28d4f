"""Shared links in the simulator: sizes and nodes chosen with them in mind against the same scheduler that does not look at them.

    python -m tests.benchmarks.joint [--seeds 5] [--first-seed 0] [--jobs 160] [--hours 8] [--nodes 16] [--leaf 4] [--uplink 10gbe]
                                     [--network 1] [--spread 0.5] [--policy synergy] [--oracle] [--trace KIND:PATH] [--json]
    python -m tests.benchmarks.joint --speed

Generated traces (synergyctl simulate --trace generate:JOBS,HOURS) on nodes of 4 GPUs with 10 GbE, leaves of --leaf nodes with an
uplink of --uplink; jobs that share a link slow each other down in truth, by slowdown.py's mean-field model. `--network` multiplies
what spanning nodes costs each job. `--spread` is the share of the jobs of several GPUs whose users ask for twice the nodes that they
need and forbid a resize (--nodes=2 --gres=gpu:2, resize=no): elsewhere jobs take whole nodes, and no node's link is shared.

Ways: `alone` the policy as it is; `one` with OneMultiNodeJobPerNode; `joint` with LinkAware; `joint+one` with both; `lwf-K`,
`quiet` and `dally` with that Placement, also as `joint+lwf-K`; `policy=NAME`, also as `policy=NAME+lwf-K`, in place of --policy;
`free`: alone without contention in truth, for what contention costs; `comm`: alone, every job of replicas alone says
comm=local,compressed, also as `free+comm`.

How to read it: mean JCT over seeds in seconds; then each way's mean JCT over that of `alone` on the same jobs, mean and standard
deviation over seeds.

`--speed`: processor milliseconds of placing, of weighing links (joint.py) and of telling who shares what, on 1,280 nodes of 4 GPUs
behind leaves of 32 that are full of jobs of 1 to 32 nodes, a part of them on half nodes and new; `lost`: what the links take from the
sum of the logarithms of the jobs' goodputs, before and after.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from synergy_core.exchange import KINDS
from synergy_core.records import Cell, Plan, Shape
from synergy_sim.exchanging_truth import with_comm
from synergy_sim.ideal import Ideals
from synergy_sim.metrics import compute_metrics
from synergy_sim.records import Scenario, TraceJob, build_cluster
from synergy_sim.runs import simulate
from synergy_sim.scaling_truth import ScalingTruth
from synergy_sim.traces.kinds import find_gpu_type, read_trace

from synergyd.links.model import TEN_GBE, Topology, build_topology
from synergyd.links.sharing import make_traffic, sharings
from synergyd.scheduler.placement.link_aware import place_link_aware
from synergyd.scheduler.placement.place import make_placement_requests, place
from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, Problem
from synergyd.scheduler.problem.utility import allocation, find_requested_cell, relative_goodputs
from synergyd.settings import Settings

GPUS = 4
WAYS = ("free", "alone", "one", "joint", "joint+one", "lwf-1", "lwf-4", "quiet", "joint+lwf-1", "dally", "comm")


def jobs_of(args: argparse.Namespace, seed: int) -> tuple[TraceJob, ...]:
    trace = args.trace or f"generate:{args.jobs},{args.hours}"
    loaded = read_trace(trace, None, find_gpu_type(trace), args.nodes * GPUS, GPUS, seed).jobs
    found, draw = [], random.Random(seed)
    for job in loaded:
        if isinstance(job.truth, ScalingTruth):
            job = replace(job, truth=replace(job.truth, network=job.truth.network * args.network))
        fewest = -(-job.gpus // GPUS)
        if draw.random() < args.spread and job.gpus > 1 and job.gpus % (2 * fewest) == 0 and 2 * fewest <= args.nodes:
            job = replace(job, nodes=2 * fewest, resize=False)
        found.append(job)
    return tuple(found)


def one_seed(args: argparse.Namespace, seed: int) -> dict[str, dict[str, float]]:
    """By way: mean JCT, 99 % and makespan (s), restarts a job, GPU hours, median and 99 % of an epoch's decision (ms)."""
    cluster = build_cluster({find_gpu_type(args.trace or "generate:1"): (args.nodes, GPUS)})
    nodes = tuple(replace(n, leaf=f"leaf{i // args.leaf}") for i, n in enumerate(cluster.nodes))
    cluster = replace(cluster, nodes=nodes)
    topology = build_topology("10gbe", args.uplink, {n.name: n.leaf for n in nodes})
    scenario = Scenario(jobs_of(args, seed), cluster, seed=seed)
    ideals = Ideals(scenario)
    less = replace(scenario, jobs=with_comm(scenario.jobs, KINDS[1:]))
    found = {}
    for way in args.ways:
        parts = way.split("+")
        rules = [part for part in parts if part in ("quiet", "dally") or part.startswith("lwf-")]
        policy = next((part.removeprefix("policy=") for part in parts if part.startswith("policy=")), args.policy)
        settings = Settings(
            placement=rules[0] if rules else "pack",
            link_aware="joint" in parts,
            one_multi_node_job_per_node="one" in parts,
            node_link="10gbe",
            leaf_uplink=args.uplink,
        )
        truth = less if "comm" in parts else scenario
        truth = truth if "free" in parts else replace(truth, topology=topology)
        told = compute_metrics(simulate(truth, policy, settings, oracle=args.oracle, ideals=ideals), ideals)
        found[way] = {
            "jct_s": told.avg_jct_s,
            "p99_s": told.p99_jct_s,
            "makespan_s": told.makespan_s,
            "restarts": told.restarts_per_job,
            "gpu_hours": told.gpu_hours,
            "decision_ms": told.decision_ms_median or 0.0,
            "decision_p99_ms": told.decision_ms_p99 or 0.0,
        }
    return found


def spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def speed(nodes: int = 1280, per_leaf: int = 32, repeats: int = 5) -> dict[str, float]:
    """Median processor ms of `place` and of `joint` after it: jobs of 1 to 32 nodes, half of them on half nodes, fill the machine."""
    topology = Topology(leaf={f"n{i}": f"leaf{i // per_leaf}" for i in range(nodes)}, uplink=TEN_GBE.faster(8))
    rooms = tuple(NodeCapacity(f"n{i}", "a100", GPUS, leaf=f"leaf{i // per_leaf}") for i in range(nodes))
    spent: dict[str, list[float]] = {"place_ms": [], "joint_ms": [], "sharings_ms": [], "lost": [], "lost_after": []}
    count = 0
    for repeat in range(repeats):
        problem = _full(rooms, random.Random(repeat))
        count = len(problem.jobs)
        chosen = allocation(problem, [0 for _ in problem.jobs])
        begun = time.process_time()
        placed = place(rooms, make_placement_requests(problem, chosen))
        spent["place_ms"].append(1e3 * (time.process_time() - begun))
        chosen = allocation(problem, [None if a.job_id in placed.unplaced_reasons else 0 for a in problem.jobs])
        begun = time.process_time()
        found = place_link_aware(problem, chosen, placed, topology)
        spent["joint_ms"].append(1e3 * (time.process_time() - begun))
        pairs = [(problem.jobs[i].job_id, cell) for i, cell, _ in found.allocation.assignments(problem)]
        begun = time.process_time()
        traffic = [make_traffic(job, cell, found.placement.nodes[job], topology) for job, cell in pairs]
        sharings([one for one in traffic if one is not None], topology)
        spent["sharings_ms"].append(1e3 * (time.process_time() - begun))
        quiet = tuple(replace(a, cells=tuple(replace(c, sync_s=0.0) for c in a.cells)) for a in problem.jobs)
        alone = place_link_aware(replace(problem, jobs=quiet), chosen, placed, topology, tries=0).total
        spent["lost"].append(alone - place_link_aware(problem, chosen, placed, topology, tries=0).total)
        spent["lost_after"].append(alone - found.total)
    return {"nodes": nodes, "jobs": count, **{k: statistics.median(v) for k, v in spent.items()}}


def _full(rooms: tuple[NodeCapacity, ...], rnd: random.Random) -> Problem:
    asks: list[JobRequest] = []
    left, at = len(rooms) * GPUS, 0
    names = [room.name for room in rooms]
    while left >= GPUS:
        shape = Shape(
            "a100",
            min(rnd.choice((1, 1, 1, 2, 2, 2, 4, 8, 32) if len(asks) % 10 == 0 else (1, 2, 2, 2)), left // GPUS),
            rnd.choice((2, 4)),
        )
        shapes = list(
            dict.fromkeys(
                [shape, Shape("a100", 1, 4), Shape("a100", 1, 2), *([Shape("a100", 2, 4)] * (shape.gpus >= 8))]
            )
        )
        cells = []
        for one in shapes:
            sync = rnd.uniform(0.1, 0.6) if one.nodes > 1 else 0.0
            good = one.gpus**0.8
            cells.append(Cell(one, Plan(dp=one.gpus, global_batch=64), good, 1.0, good, 1.0, 0, sync_s=sync))
        offers = tuple(cells)
        asked = find_requested_cell(offers, shape)
        running = rnd.random() < 0.95 and shape.gpus_per_node == GPUS
        held = tuple(names[at : at + shape.nodes]) if running and at + shape.nodes <= len(names) else ()
        at += shape.nodes if held else 0
        ask = JobRequest(len(asks), offers, relative_goodputs(offers, asked), requested_cell=asked)
        asks.append(replace(ask, current=0, nodes=held, discount=0.9) if held else ask)
        left -= shape.gpus
    return Problem(tuple(asks), rooms)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true", help="time of the weighing at 1,280 nodes only")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=160)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--leaf", type=int, default=4, help="nodes behind a leaf switch")
    parser.add_argument("--uplink", default="10gbe")
    parser.add_argument("--network", type=float, default=1.0, help="times what spanning nodes costs")
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--policy", default="synergy")
    parser.add_argument("--oracle", action="store_true")
    parser.add_argument("--trace", default="")
    parser.add_argument("--ways", default=",".join(WAYS), type=lambda text: text.split(","))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if args.leaf < 1:
        parser.error(f"--leaf {args.leaf}: a leaf has at least one node")
    if args.speed:
        print(json.dumps(speed()))
        return 0
    rows = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        rows.append(one_seed(args, seed))
        line = "  ".join(f"{way} {told['jct_s']:.1f}" for way, told in rows[-1].items())
        print(f"seed {seed}: {line}", file=sys.stderr, flush=True)
    over = {w: [row[w]["jct_s"] / row["alone"]["jct_s"] for row in rows] for w in args.ways}
    means = {w: {key: statistics.fmean(row[w][key] for row in rows) for key in rows[0][w]} for w in args.ways}
    if args.json:
        print(json.dumps({"options": vars(args), "seeds": rows, "over_alone": over, "means": means}))
        return 0
    for w in args.ways:
        told = means[w]
        print(
            f"{w:<24} JCT {told['jct_s']:>9.1f} s  over alone {statistics.fmean(over[w]):.4f} ±{spread(over[w]):.4f}  "
            f"better on {sum(r < 1 for r in over[w])}/{len(rows)}  p99 {told['p99_s']:.0f}  makespan {told['makespan_s']:.0f}  "
            f"restarts {told['restarts']:.2f}  GPU h {told['gpu_hours']:.0f}  decision {told['decision_ms']:.1f} ms, "
            f"99 % {told['decision_p99_ms']:.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Real jobs on shaped links: when each rule of the link arbiter ends them, against nobody gated.

    python -m tests.benchmarks.shaped_links [--cases small,medium,large,mixed,medium+overlap,mixed+overlap] [--repeats 3]
                                            [--rules none,srsf-1,srsf-2,ada-srsf,look-ahead] [--mbit 200]
                                            [--link 10gbe@B+H] [--times 1] [--json]
    python -m tests.benchmarks.shaped_links --penalty [--mbit 200]

Five torchrun jobs (gloo, DDP, two ranks each, real munge and arbiter) on four network namespaces, each with one link of --mbit each
way to a switch; every node has two or three jobs. Compute sleeps, so that a few cores suffice; `+overlap` sleeps half of it in the
backward pass while gradients are on their way. Jobs start together and each trains a fixed number of steps; then its links are free.
They last for 8 to 20 s, --times as long.
Needs root, tc and munged.

`--penalty`: what sharing one of these links costs, by `synergyctl profiles measure --pairs` on two of the nodes.

How to read it: seconds until a job ends, mean over jobs, and until the last one ends; mean over repeats +- standard deviation; and the
ratio to `none` of the same repeat. Repeats take the rules in turn, so that other work on the machine meets them all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from synergy_core.wire import munge

from synergyd.cli.measure_pairs import measured_pairs
from synergyd.daemon.links.arbiter import LinkArbiter, Member, listen
from synergyd.links.arbiter import make_terms
from synergyd.links.disciplines import LOOK_AHEAD
from synergyd.links.model import TEN_GBE, Link, Topology, make_link
from tests.paths import ROOT, python_path
from tests.throwaway.gating import Places, start_pair
from tests.throwaway.netns import ShapedNodes, why_not
from tests.throwaway.slurm import SlurmCluster, missing_programs

OPEN = "none"
PAIRS = ((0, 1), (1, 2), (2, 3), (3, 0), (0, 2))
BOUND_S = 2.0


@dataclass(frozen=True)
class Load:
    """A job: seconds of compute a step, MB of gradients (2**20 bytes), steps, the share of the compute that overlaps."""

    compute_s: float
    megabytes: int
    steps: int
    overlap: float = 0.0


def _equal(megabytes: int, steps: Sequence[int] = (18, 12, 15, 20, 10)) -> tuple[Load, ...]:
    # each its own pace, so that every offset comes up
    return tuple(Load(0.4 * (1 + 0.04 * n), megabytes, count) for n, count in enumerate(steps))


MIXED = (Load(0.4, 15, 12), Load(0.15, 1, 40), Load(0.4, 10, 15), Load(0.2, 2, 30), Load(0.3, 5, 18))
CASES = {"small": _equal(1), "medium": _equal(5), "large": _equal(15), "mixed": MIXED}
CASES |= {f"{name}+overlap": tuple(replace(x, overlap=0.5) for x in CASES[name]) for name in ("medium", "mixed")}


def measure(loads: Sequence[Load], rules: Sequence[str], mbit: float, link: Link) -> list[list[dict[str, Any]]]:
    """For each phase (a rule's name) what each job wrote."""
    cluster = SlurmCluster(folder=Path(tempfile.mkdtemp(prefix="syn-links-")))
    started: list[subprocess.Popen[bytes]] = []
    topology = Topology(nic=link)
    try:
        (cluster.folder / "log").mkdir()
        cluster.start_munged()
        socket = str(cluster.munge_socket)
        with ShapedNodes("lnk", mbit, 4, len(loads)) as nodes:
            arbiter = LinkArbiter(
                listen(nodes.here, 0),
                make_terms("srsf-1", topology, BOUND_S),
                decode=lambda credential: munge.decode(credential, socket),
                encode=lambda words: munge.encode(words, socket),
            )
            try:
                arbiter.follow(_members(loads, topology))
                for number, load in enumerate(loads):
                    started += _start(nodes, cluster, arbiter.port, number, load, rules)
                return [
                    _phase(cluster.folder, arbiter, n, rule, loads, topology, started) for n, rule in enumerate(rules)
                ]
            finally:
                arbiter.close()
                for process in started:
                    process.terminate()  # torchrun ends its workers
                for process in started:
                    process.wait(60)
    finally:
        cluster.stop()


def _members(loads: Sequence[Load], topology: Topology) -> dict[int, Member]:
    return {
        n + 1: Member(
            os.getuid(),
            0,
            tuple(f"h{i}" for i in PAIRS[n]),
            2,
            load.steps * (load.compute_s + load.megabytes * 1.048576 * topology.nic.per_mb / 1000.0),
        )
        for n, load in enumerate(loads)
    }


def _start(
    nodes: ShapedNodes, cluster: SlurmCluster, port: int, number: int, load: Load, rules: Sequence[str]
) -> list[subprocess.Popen[bytes]]:
    spec = f"{load.compute_s},{load.megabytes},{load.overlap},{load.steps}"
    gated = ",".join(str(int(rule != OPEN)) for rule in rules)
    script = ["-m", "tests.throwaway.shaped_job", str(cluster.folder), f"job{number}", spec, gated]
    pair = PAIRS[number]
    where = Places(
        nodes.interface(number), [f"h{i}" for i in pair], nodes.address(pair[0], number), f"{nodes.here}:{port}"
    )
    return start_pair(cluster, number, [partial(nodes.command, node) for node in pair], where, script)


def _phase(
    folder: Path,
    arbiter: LinkArbiter,
    number: int,
    rule: str,
    loads: Sequence[Load],
    topology: Topology,
    started: Sequence[subprocess.Popen[bytes]],
) -> list[dict[str, Any]]:
    if rule != OPEN:
        arbiter.terms = make_terms(rule, topology, BOUND_S)
    _wait(folder, [f"job{n}.{number}.ready" for n in range(len(loads))], started, 240.0)
    if rule == LOOK_AHEAD:
        _forget(arbiter, loads, topology)
    draft = folder / "go.tmp"
    draft.write_text(str(time.time() + 0.5))
    draft.replace(folder / f"{number}.go")
    names = [f"job{n}.{number}.json" for n in range(len(loads))]
    _wait(folder, names, started, 60.0 + 6.0 * sum(load.steps for load in loads))
    return [json.loads((folder / name).read_text()) for name in names]


def _forget(arbiter: LinkArbiter, loads: Sequence[Load], topology: Topology) -> None:
    """What an earlier phase has shown of the jobs: each repeat begins anew. Their gates connect again within a second or two."""
    arbiter.follow({})
    time.sleep(3.0)
    arbiter.follow(_members(loads, topology))


def _wait(folder: Path, names: Sequence[str], started: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not all((folder / name).exists() for name in names):
        if time.monotonic() > end or any(process.poll() for process in started):
            logs = "\n".join(
                f"{p.name}:\n{p.read_text(errors='replace')[-2000:]}" for p in sorted(folder.glob("*.log"))
            )
            raise TimeoutError(f"no {', '.join(names)}\n{logs}")
        time.sleep(0.02)


def penalty(mbit: float) -> str:
    """What `profiles measure --pairs` prints on two nodes with 2 processes each."""
    found = []
    with ShapedNodes("pen", mbit, 2, 2) as nodes:
        for node in range(2):
            command = [sys.executable, "-m", "synergy_launch.launcher.torchrun", "--nnodes", "2"]
            command += ["--node-rank", str(node)]
            command += ["--nproc-per-node", "2", "--master-addr", nodes.address(0, 0), "--master-port", "29500"]
            command += ["-m", "tests.benchmarks.shaped_links", "--rank", nodes.interface(0), nodes.interface(1)]
            argv = nodes.command(node, command)
            environment = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
            found.append(subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT))
        return "".join(process.communicate(timeout=300)[0] for process in found)


def spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def case(
    name: str, rules: Sequence[str], repeats: int, mbit: float, link: Link, times: int
) -> dict[str, dict[str, Any]]:
    """By rule: each repeat's mean and last end in seconds, and the messages that waited."""
    loads = [replace(load, steps=times * load.steps) for load in CASES[name]]
    phases = [rule for n in range(repeats) for rule in (rules if n % 2 == 0 else list(rules)[::-1])]
    found: dict[str, dict[str, Any]] = {rule: {"mean_s": [], "last_s": [], "each_s": []} for rule in rules}
    for rule, jobs in zip(phases, measure(loads, phases, mbit, link), strict=True):
        ends = [job["ends"][-1] for job in jobs]
        found[rule]["mean_s"].append(statistics.fmean(ends))
        found[rule]["last_s"].append(max(ends))
        found[rule]["each_s"].append(ends)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rules", default=f"{OPEN},srsf-1,srsf-2,ada-srsf,look-ahead")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mbit", type=float, default=200.0)
    parser.add_argument("--link", default="", help="the arbiter's NodeLink; default: 10gbe's scaled to --mbit, a guess")
    parser.add_argument("--times", type=int, default=1, help="as many times the steps")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--penalty", action="store_true", help="measure what sharing a link costs only")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)  # a process of --penalty, and the interfaces
    args = parser.parse_args(argv)
    if unknown := [name for name in args.cases.split(",") if name not in CASES]:
        parser.error(f"--cases: {unknown[0]!r} is none of {', '.join(CASES)}")
    if args.rank:
        # each of a node's processes has its own share of the link's queue, as jobs have
        os.environ["GLOO_SOCKET_IFNAME"] = args.rank[int(os.environ["LOCAL_RANK"])]
        print(measured_pairs("cpu", "10gbe", False) or "", end="")
        return 0
    reason = why_not() or ("munged is not installed" if "munged" in missing_programs() else "")
    if reason:
        print(f"skipped: {reason}")
        return 0
    if args.penalty:
        print(penalty(args.mbit), end="")
        return 0
    link = make_link(args.link) if args.link else TEN_GBE.faster(args.mbit / 10_000)
    told = {}
    rules = args.rules.split(",")
    for name in args.cases.split(","):
        told[name] = case(name, rules, args.repeats, args.mbit, link, args.times)
        for rule, one in told[name].items():
            over = [a / b for a, b in zip(one["mean_s"], told[name][rules[0]]["mean_s"], strict=True)]
            print(
                f"{name:<15} {rule:<11} mean {statistics.fmean(one['mean_s']):6.2f} ±{spread(one['mean_s']):.2f} s  "
                f"last {statistics.fmean(one['last_s']):6.2f} ±{spread(one['last_s']):.2f} s  "
                f"over {rules[0]} {statistics.fmean(over):.3f} ±{spread(over):.3f}",
                file=sys.stderr if args.json else sys.stdout,
                flush=True,
            )
    if args.json:
        print(json.dumps({"load": os.getloadavg(), "mbit": args.mbit, "link": args.link, "cases": told}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

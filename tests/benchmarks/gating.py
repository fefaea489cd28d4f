"""The link arbiter: what asking costs when nothing contends, and what it is good for where two jobs share a link.

    python -m tests.benchmarks.gating [--questions 2000] [--members 2] [--steps 100] [--seconds 15] [--no-jobs]

1. Questions on loopback to the arbiter's own process (real munge), with the daemon's process idle and computing; and as a share of
   the step of a real DDP job: two ranks on gloo over loopback, gated and ungated models taking turns step by step.
2. Two torchrun jobs on gloo across two network namespaces, 400 Mbit/s between them (root and tc): mean step with and without gating,
   for a case where ada-srsf gates and one where it shares. Alone: the same job with the link to itself.
Numbers, never a verdict. Times are wall times: without a free core for each of the two ends the scheduler's turns are in them, which is
why the load of the machine comes first, and the quickest tenth before the median.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from synergy_core.wire.link_protocol import Hello
from synergy_launch.links.link_gate import LinkGate

from synergyd.daemon.links.arbiter import Member
from synergyd.daemon.links.process import LinkProcess
from tests.integration import training_ranks
from tests.integration.training_ranks import Call
from tests.throwaway.gating import DRIFT, GATE, NODES, OPEN, SHARE, Load, Outcome, Phase, measure
from tests.throwaway.netns import why_not
from tests.throwaway.slurm import SlurmCluster, missing_programs

HERE = "tests.benchmarks.gating:"


def questions(pipe: Any, port: int, count: int) -> None:
    """A job's process: begin and end, each 5 ms; the milliseconds of both together."""
    gate = LinkGate(("127.0.0.1", port), Hello(1, 0, NODES))
    if not gate.wait_for_connection(30):
        pipe.send(gate.counts.problem)
        return
    took = []
    for _ in range(count):
        time.sleep(0.005)
        began = time.perf_counter()
        gate.begin(100_000_000)
        gate.end()
        took.append((time.perf_counter() - began) * 1000)
    pipe.send((took, gate.counts))


def ask(port: int, count: int) -> str:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=questions, args=(theirs, port, count))
    process.start()
    found = ours.recv()
    process.join()
    if isinstance(found, str):
        return f"no connection: {found}"
    took, counts = found
    took.sort()
    at = {share: took[min(len(took) - 1, int(share * len(took)))] for share in (0.1, 0.5, 0.9, 0.99)}
    return (
        f"10 % {at[0.1]:.3f} ms, median {at[0.5]:.3f}, 90 % {at[0.9]:.3f}, 99 % {at[0.99]:.3f}, worst {took[-1]:.3f}; "
        f"{counts.waited} of {counts.asked} waited, {counts.failures} failures"
    )


def busy(what: Callable[[], str]) -> str:
    """`what` while another thread of this process computes, as the daemon does in an epoch."""
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(i * i for i in range(10_000))

    threading.Thread(target=burn, daemon=True).start()
    try:
        return what()
    finally:
        stop.set()


def steps(count: int, megabytes: int) -> dict[str, Any]:
    """In each rank: a gated and an ungated model of one size, in turns. Rank 0's milliseconds of each step."""
    import torch
    import torch.distributed as dist
    from synergy_launch.links.hooks import gate_ddp
    from torch.nn.parallel import DistributedDataParallel

    from tests.throwaway.gated_job import Weights

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    models: dict[str, Any] = {name: DistributedDataParallel(Weights(megabytes, 0.02)) for name in ("gated", "ungated")}
    gate = gate_ddp(models["gated"])
    if dist.get_rank() == 0 and (gate is None or not gate.wait_for_connection(30)):
        raise RuntimeError("the arbiter does not answer")
    took: dict[str, list[float]] = {name: [] for name in models}
    for number in range(count + 3):
        order = list(models) if number % 2 else list(models)[::-1]
        for name in order:
            dist.barrier()
            began = time.perf_counter()
            models[name](torch.ones(1)).backward()
            models[name].zero_grad()
            if number >= 3:
                took[name].append((time.perf_counter() - began) * 1000)
    return {"took": took, "counts": gate.counts if gate is not None else None}


def overhead(count: int, step_count: int, members: int) -> None:
    if "munged" in missing_programs():
        print("skipped: munged is not installed")
        return
    cluster = SlurmCluster(folder=Path(tempfile.mkdtemp(prefix="syn-gate-")))
    process = None
    neighbours: list[LinkGate] = []  # who shares no link need not ask
    try:
        (cluster.folder / "log").mkdir()
        cluster.start_munged()
        os.environ["MUNGE_SOCKET"] = str(cluster.munge_socket)
        process = LinkProcess("127.0.0.1", 0, "ada-srsf", 0.5)
        process.follow({n: Member(os.getuid(), 0, NODES, 2, 1000.0) for n in range(1, members + 1)})
        port = process.port
        neighbours = [LinkGate(("127.0.0.1", port), Hello(n, 0, NODES)) for n in range(2, members + 1)]
        if not all(neighbour.wait_for_connection(60) for neighbour in neighbours):
            print(f"no connection: {neighbours[0].counts.problem}")
            return
        print(f"a question and its end, {count} of them, daemon idle:      {ask(port, count)}")
        print(f"a question and its end, {count} of them, daemon computing: {busy(lambda: ask(port, count))}")
        environment = {
            "LOCAL_WORLD_SIZE": "1",
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NODELIST": ",".join(NODES),
            "SYNERGY_LINK_ARBITER": f"127.0.0.1:{port}",
        }
        for megabytes in (4, 32) if step_count else ():
            call = Call(HERE + "steps", step_count, megabytes)
            folder = cluster.folder / str(megabytes)
            result, _ = training_ranks.run(folder, 2, call, environment=environment, timeout_s=240)
            gated, ungated = (result["took"][name] for name in ("gated", "ungated"))
            apart = statistics.median(a - b for a, b in zip(gated, ungated, strict=True))
            counts = result["counts"]
            mean_ms, whole = counts.waited_s / counts.asked * 1000, statistics.median(ungated)
            print(
                f"DDP step of {megabytes} MB on loopback: ungated median {whole:.2f} ms, gated {statistics.median(gated):.2f}, "
                f"pairwise difference {apart:+.3f} ms; asking took {mean_ms:.3f} ms on average, {mean_ms / whole:.2%} of a step"
            )
    finally:
        for neighbour in neighbours:
            neighbour.close()
        if process is not None:
            process.close()
        cluster.stop()


def jobs(seconds: float) -> None:
    reason = why_not() or ("munged is not installed" if "munged" in missing_programs() else "")
    if reason:
        print(f"skipped: {reason}")
        return
    cases = {"gates, in step": GATE, "gates, drifting": DRIFT, "shares": SHARE}
    nobody = Load(5.0, 1)
    phases, names = [], []
    for name, loads in cases.items():
        if loads[0] == loads[1]:
            phases.append(Phase(OPEN, (loads[0], nobody)))
            names.append((name, "alone", [0]))
        else:
            phases += [Phase(OPEN, (loads[0], nobody)), Phase(OPEN, (nobody, loads[1]))]
            names += [(name, "alone", [0]), (name, "alone", [1])]
        for rule in (OPEN, "ada-srsf", "srsf-1"):
            phases.append(Phase(rule, loads))
            names.append((name, rule, [0, 1]))
    for (name, rule, whose), phase, outcomes in zip(names, phases, measure(phases, seconds=seconds), strict=True):
        found = "; ".join(_words(number, phase.loads[number], outcomes[number]) for number in whose)
        print(f"the rule {name:15} | {rule:8} | {found}")


def _words(number: int, load: Load, outcome: Outcome) -> str:
    error = statistics.stdev(outcome.steps_s) / len(outcome.steps_s) ** 0.5 if len(outcome.steps_s) > 1 else 0.0
    return (
        f"job {number} ({load.compute_s:g} s + {load.megabytes} MB): {outcome.mean_s * 1000:.0f} ± {error * 1000:.0f} ms a step, "
        f"{outcome.waited} of {outcome.asked} waited, {outcome.waited_s:.2f} s in all"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--members", type=int, default=2, help="jobs on the same links, all but one silent")
    parser.add_argument("--steps", type=int, default=100, help="0: no DDP steps")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each phase with two jobs")
    parser.add_argument("--no-jobs", action="store_true", help="only what asking costs")
    args = parser.parse_args()
    print(json.dumps({"cpus": os.cpu_count(), "load": os.getloadavg()}))
    overhead(args.questions, args.steps, args.members)
    if not args.no_jobs:
        jobs(args.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())

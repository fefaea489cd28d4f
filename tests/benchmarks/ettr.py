"""What failures of a job on several nodes cost, answered in place and by requeues alone, on a real cluster with real processes.

    python -m tests.benchmarks.ettr [--kinds killed,stopped,node] [--ways "in place,requeue"] [--times 1] [--json]
    python -m tests.benchmarks.ettr --random 30 [--seed 1] [--json]

The job is synergy_launch.examples.ddp under torchrun with gloo on four nodes, all of them this machine; it saves every ten steps, and a
failure comes in the middle between two checkpoints. `killed`: SIGKILL of a rank; `stopped`: SIGSTOP of one, for which its peers wait;
`node`: a node's slurmd and all that runs on it are killed, the launcher included. `requeue` is with SYNERGY_IN_PLACE=0 and a script that
requeues its job where srun fails.

How to read it: seconds from the failure until it was noticed (the launcher's line, or Slurm's), until the first step afterwards, and until
the first step that had not been trained before; steps trained twice, and steps that are missing; how far the losses of the steps that
were trained twice lie apart. A row without a new step within its limit has that limit as its least cost.

The effective training time ratio is COMPUTED from these single failures, not measured: 1 - rate x mean cost, each kind as often as the
others. The rate is Llama 3's, 419 unexpected interruptions in 54 days on 16,384 GPUs (arXiv 2407.21783, section 3.3.4), times 1, 3 and 10.
What a large job adds (the load of its state, NCCL's start) is not in it.

`--random`: so many failures one after another, of all kinds, a fifth of them pairs at once, in jobs that begin anew where two of four nodes
are lost. The losses are compared with those of a run that nothing interrupts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.ettr_failures import KINDS, NODES, WAYS, Cost, measure
from tests.benchmarks.ettr_random import run_random
from tests.integration.daemon_site import until_beat
from tests.throwaway.slurm import MissingProgram, NodeGroup
from tests.throwaway.synergy import make_cluster, synergyd

# arXiv 2407.21783, section 3.3.4 and table 5
LLAMA_3_FAILURES, LLAMA_3_S = 419, 54 * 86_400
TIMES = (1, 3, 10)
#: an admin's short one: Slurm's default of 300 s would only make requeues look worse
SLURMD_TIMEOUT_S = 30


def ratio(costs_s: Sequence[float], times: float) -> float:
    """Return the effective training time ratio at `times` Llama 3's failure rate, where a failure costs the mean of `costs_s`."""
    return 1.0 - times * LLAMA_3_FAILURES / LLAMA_3_S * statistics.fmean(costs_s)


def ratios(costs: Sequence[Cost], way: str) -> dict[str, float]:
    """Return the ratio by multiple of the rate, each kind of failure as often as the others."""
    by_kind = [
        statistics.fmean(c.cost_s for c in costs if (c.kind, c.way) == (kind, way))
        for kind in dict.fromkeys(c.kind for c in costs if c.way == way)
    ]
    return {f"{times}x": round(ratio(by_kind, times), 4) for times in TIMES}


def run_single(kinds: Sequence[str], ways: Sequence[str], times: int, say: Callable[[str], None]) -> list[Cost]:
    """Measure each failure `times` times each way."""
    costs = []
    cluster = make_cluster([NodeGroup("cpu", NODES, 1)], epoch_s=1)
    cluster.slurmd_timeout_s = SLURMD_TIMEOUT_S
    with cluster, synergyd(cluster):
        until_beat(cluster)  # a job that starts before is a plain one
        for kind in kinds:
            for way in ways:
                for _ in range(times):
                    costs.append(measure(cluster, kind, way))
                    say(costs[-1].line())
    return costs


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS), help="default %(default)s")
    parser.add_argument("--ways", default=",".join(WAYS), help="default %(default)s")
    parser.add_argument("--times", type=int, default=1, help="failures of each kind, each way (default %(default)s)")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="N random failures in place, instead")
    parser.add_argument("--seed", type=int, default=1, help="of the random ones (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    args = parser.parse_args(argv)
    kinds, ways = args.kinds.split(","), args.ways.split(",")
    if not set(kinds) <= set(KINDS) or not set(ways) <= set(WAYS) or args.times < 1 or args.random < 0:
        parser.error(f"--kinds: of {', '.join(KINDS)}; --ways: of {', '.join(WAYS)}; --times: at least 1")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    out = sys.stderr if args.json else sys.stdout
    # a benchmark that is stopped takes its cluster and processes down
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def say(text: str) -> None:
        print(text, file=out, flush=True)

    try:
        if args.random:
            result = run_random(args.random, args.seed, say)
            say(result.line())
            if args.json:
                print(json.dumps(asdict(result)))
            return 0 if result.is_right else 1
        costs = run_single(kinds, ways, args.times, say)
    except (MissingProgram, RuntimeError) as error:
        print(f"ettr: {error}", file=sys.stderr)
        return 1
    shares = {way: ratios(costs, way) for way in ways}
    for way, share in shares.items():
        bound = "at most " if any(c.new_step_s is None for c in costs if c.way == way) else ""
        said = ", ".join(f"{bound}{value:.2%} at {times}" for times, value in share.items())
        say(f"computed effective training time ratio, {way}: {said}")
    if args.json:
        print(json.dumps({"failures": [asdict(c) for c in costs], "computed_ratio": shares}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

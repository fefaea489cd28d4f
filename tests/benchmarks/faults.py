"""Fault runs: every state of a resize x every fault, on a real Slurm cluster with a real daemon. Prints a table.

python -m tests.benchmarks.faults [--controllers|--live] [STATE[/FAULT] ...]

--controllers: a second slurmctld takes over, and scontrol reconfigure, in place of the other faults. --live: changes of a running job's
nodes, without a requeue, with their own states and faults (tests/throwaway/live_faults.py).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.throwaway import live_faults
from tests.throwaway.faults import FAULTS, OF_CONTROLLERS, STATES, matrix


def main(wanted: list[str]) -> int:
    """0 when every pair that was tried ended right."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    several, live = "--controllers" in wanted, "--live" in wanted
    wanted = [word for word in wanted if not word.startswith("--")]
    states: tuple[str, ...] = live_faults.STATES if live else STATES
    faults: tuple[str, ...] = live_faults.FAULTS if live else OF_CONTROLLERS if several else FAULTS
    pairs = [(s, f) for s in states for f in faults if not wanted or s in wanted or f"{s}/{f}" in wanted or f in wanted]
    reasons: list[str] = []
    began, right = time.monotonic(), 0
    print(f"{'state':<14} {'fault':<18} {'result':<8} {'settled':>8}  ended")
    with live_faults.live_matrix() if live else matrix(controllers=2 if several else 1) as running:
        for state, fault in pairs:
            done = running.run(state, fault)
            right += not done.wrong
            result = "WRONG" if done.wrong else "right"
            print(f"{state:<14} {fault:<18} {result:<8} {done.settled_s:>6.1f} s  {done.ended}", flush=True)
            for text in done.wrong:
                print(f"    {text}", flush=True)
            if done.wrong:
                reasons.append(f"\n== {state} {fault} ==\n{done.told}")
    print(f"{right} of {len(pairs)} pairs ended right, in {time.monotonic() - began:.0f} s")
    print("".join(reasons), end="", file=sys.stderr)
    return int(right < len(pairs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What a node's check costs, and how much its figures differ from one check to the next on one machine.

    python -m tests.benchmarks.node_check [--repeats 10]

A start as the launcher makes it: the ranks' imports in a waiting process, then the check, which is a fork of it. Printed are medians and
ranges: of the seconds of the imports, which a start has anyway, of the check after them, and of each figure relative to its median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from functools import partial

from synergy_core.node_check import NodeCheck
from synergy_launch.launcher.before_run import environment_at_import
from synergy_launch.node_check.check import check_node
from synergy_launch.warm_start.starter import Starter

IMPORTS = ("numpy", "torch", "torch.distributed.run")
LIMIT_S = 120.0


def start() -> tuple[float, float, NodeCheck | None]:
    """Return the seconds of the imports, those of the check after them, and what it measured."""
    environment, starter, began_s = environment_at_import(os.environ), Starter(IMPORTS), time.monotonic()
    starter.prepare(environment)
    starter.await_ready(LIMIT_S)
    ready_s = time.monotonic()
    fork = partial(starter.start, output=True, errors=False)
    check = check_node("here", environment, start=fork, ready_s=LIMIT_S, measuring_s=LIMIT_S)
    ended_s = time.monotonic()
    starter.close()
    return ready_s - began_s, ended_s - ready_s, check


def describe(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    runs = [start() for _ in range(repeats)]
    print(f"imports  {describe([imports_s for imports_s, _, _ in runs])} s")
    print(f"check    {describe([check_s for _, check_s, _ in runs])} s")
    measured = [check.figures() for _, _, check in runs if check is not None]
    for name in sorted(set[str]().union(*measured)):
        values = [figures[name] for figures in measured if name in figures]
        usual = statistics.median(values)
        print(f"{name}: median {usual:.3g}, of it {describe([value / usual for value in values])}")


if __name__ == "__main__":
    main()

"""Chaos: random faults, alone and in pairs, on a real cluster with two daemons and several jobs. Prints faults and a table.

python -m tests.benchmarks.chaos --minutes 10 --seed 1 [--database postgresql|sqlite] [--kinds KIND,KIND]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from tests.throwaway.chaos import Chaos
from tests.throwaway.chaos_faults import KINDS
from tests.throwaway.chaos_site import Site


def main() -> int:
    """0 when nothing was found, else 1."""
    parser = argparse.ArgumentParser(description="Random faults on a throwaway cluster; exit code 1 on findings.")
    parser.add_argument("--minutes", type=float, default=10.0, help="time for faults; then all jobs are to end")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--kinds", default="", help=f"only these faults, with commas between: {', '.join(KINDS)}")
    options = parser.parse_args()
    names = [k for k in options.kinds.split(",") if k]
    if wrong := [k for k in names if k not in KINDS]:
        parser.error(f"--kinds: no fault {wrong[0]!r}; there are {', '.join(KINDS)}")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # ends what it has started
    with Site(options.database) as site:
        chaos = Chaos(site, options.seed, say=lambda text: print(text, flush=True))
        chaos.run(options.minutes, names)
        print(chaos.table())
    return int(bool(chaos.findings))


if __name__ == "__main__":
    sys.exit(main())

"""The twin run: random jobs on two clusters, one without Synergy. Prints how much later jobs start, and who is worse off.

python -m tests.benchmarks.twin --jobs 300 --seed 1 [--epoch 5] [--verbose]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from tests.throwaway import twin


def main() -> int:
    """0 when nothing was found, else 1."""
    parser = argparse.ArgumentParser(description="The same jobs with and without Synergy; exit code 1 on findings.")
    parser.add_argument("--jobs", type=int, default=300, help="sbatch calls on each cluster")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epoch", type=float, default=5.0, help="seconds")
    parser.add_argument("--verbose", action="store_true", help="tell all of each job that starts later")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error("--jobs: at least 1")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # ends what it has started
    outcome = twin.run(
        options.jobs,
        options.seed,
        epoch_s=options.epoch,
        verbose=options.verbose,
        say=lambda text: print(text, flush=True),
    )
    print(outcome.table())
    return int(bool(outcome.findings or outcome.plain_breaches))


if __name__ == "__main__":
    sys.exit(main())

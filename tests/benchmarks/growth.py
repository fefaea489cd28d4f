"""How the allocation's cost grows with the work: a table over sizes, and the exponent fitted to it.

    python -m tests.benchmarks.growth [--sizes 100,1000,10000,100000] [--types 8] [--family cells] [--repeats 3] [--json]

Each size is `tests.benchmarks.allocate` in a process of its own, with as many jobs as GPUs (to 2.4 %). The exponent is the
slope of log CPU milliseconds over log jobs, least squares. Below 3,000 jobs fixed costs and the exact program bend the line,
so they are left out of it where at least three larger sizes are there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import numpy as np

_PATTERN = ("cpu_ms_cold", "cpu_ms_cold_worst", "cpu_ms_warm", "cpu_ms_warm_worst", "gap", "rss_bytes")
_BENT = 3_000


def measured(family: str, jobs: int, types: int, repeats: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.allocate", "--json", "--family", family]
    command += [
        "--jobs",
        str(jobs),
        "--gpus",
        str(jobs * 1024 // 1000),
        "--types",
        str(types),
        "--repeats",
        str(repeats),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"growth: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return {"jobs": jobs, **{key: found[key] for key in _PATTERN}}


def exponent(rows: list[dict[str, Any]], key: str) -> float | None:
    """The slope of log `key` over log jobs; None for fewer than two sizes."""
    large = [row for row in rows if row["jobs"] >= _BENT]
    used = large if len(large) >= 3 else rows
    if len(used) < 2:
        return None
    return float(np.polyfit(np.log([row["jobs"] for row in used]), np.log([row[key] for row in used]), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="100,300,1000,3000,10000,30000,100000")
    parser.add_argument("--types", type=int, default=8)
    parser.add_argument("--family", default="cells")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [measured(given.family, int(size), given.types, given.repeats) for size in given.sizes.split(",")]
    found = {key: exponent(rows, key) for key in ("cpu_ms_cold", "cpu_ms_warm")}
    if given.json:
        print(json.dumps({"family": given.family, "types": given.types, "sizes": rows, "exponent": found}))
        return
    print(f"{'jobs':>8}{'cold ms':>10}{'worst':>10}{'warm ms':>10}{'worst':>10}{'gap':>10}{'MiB':>8}")
    for row in rows:
        times = "".join(f"{row[key]:>10.1f}" for key in _PATTERN[:4])
        print(f"{row['jobs']:>8}{times}{row['gap']:>10.1e}{row['rss_bytes'] / 2**20:>8.0f}")
    print("CPU grows as jobs to the power of " + ", ".join(f"{v:.2f} ({k})" for k, v in found.items() if v is not None))


if __name__ == "__main__":
    main()

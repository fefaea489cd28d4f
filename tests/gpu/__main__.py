"""Everything that only a GPU can show, in under ten minutes on one H100 or H200, without a network:

    python -m tests.gpu --out FOLDER [--only SECTION ...] [--tiny]

Needs torch 2.11 or newer, megatron-core, click and rich. Each section is a process of its own with a time limit: one that fails or
hangs costs its own numbers. FOLDER gets results.jsonl (as they come), results.json, gpu_rows.csv (for `synergyctl profiles fit`) and
table.md. --tiny takes sizes that a CPU manages in a minute or two, and says nothing about speed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.gpu import table
from tests.gpu.section import SECTIONS
from tests.paths import ROOT, python_path

LIMITS_S = {"hardware": 90, "counters": 40, "adapters": 120, "plain": 210, "megatron": 270, "restart": 180}


def run_section(name: str, arguments: Sequence[str], limit_s: float) -> str:
    """Why it did not end as it should; "" where it did. Its process group is gone afterwards."""
    environment = {**os.environ, "PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.section", name, *arguments], cwd=ROOT, env=environment, start_new_session=True
    )
    try:
        return "" if process.wait(limit_s) == 0 else f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        return f"took more than {limit_s:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.gpu", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="default: all")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    parser.add_argument("--limit-s", type=float, default=540.0, help="of the whole run (default %(default)s)")
    told = parser.parse_args(argv)
    told.out.mkdir(parents=True, exist_ok=True)
    lines = told.out / "results.jsonl"
    lines.write_text("")
    until, bad = time.monotonic() + told.limit_s, {}
    work = Path(tempfile.mkdtemp(prefix="synergy-gpu-"))
    try:
        for name in told.only or SECTIONS:
            began, left = time.monotonic(), until - time.monotonic()
            arguments = ["--out", str(lines.absolute()), "--work", str(work), *(["--tiny"] if told.tiny else [])]
            why = run_section(name, arguments, min(LIMITS_S[name], left)) if left > 1 else "no time was left"
            print(f"section {name}: {time.monotonic() - began:.0f} s {why}", flush=True)
            if why:
                bad[name] = why
    finally:
        shutil.rmtree(work, ignore_errors=True)
    results = [json.loads(line) for line in lines.read_text().splitlines()]
    found = table.collected(results, told.out / "gpu_rows.csv", bad)
    (told.out / "results.json").write_text(json.dumps(found, indent=1))
    text = table.markdown(found)
    (told.out / "table.md").write_text(text)
    print(text)
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

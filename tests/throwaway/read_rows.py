"""Reads a cluster through one backend in a process of its own, and prints what it got as JSON.

    python -m tests.throwaway.read_rows BACKEND      # "command line" or "pyslurm"; the cluster is SLURM_CONF's

A process of its own, because libslurm reads SLURM_CONF once: pyslurm sees one cluster in a process's life.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from synergyd.slurm.backends import open_reader
from synergyd.slurm.client import SlurmError


def read(backend: str) -> dict[str, Any]:
    """`version`, `jobs`, `nodes`: the answer or {error, transient}; of each `seconds` and the `cpu_seconds` of this process and its
    commands; `name`, `why` of the backend."""
    reader, why = open_reader({}, backend)
    answers: dict[str, Any] = {"name": reader.name, "why": why, "seconds": {}, "cpu_seconds": {}}
    calls: dict[str, Callable[[], Any]] = {"version": reader.version, "jobs": reader.jobs, "nodes": reader.nodes}
    for what, call in calls.items():
        start, cpu_s = time.monotonic(), sum(os.times()[:4])
        try:
            got = call()
            answers[what] = got if isinstance(got, str) else [dataclasses.asdict(row) for row in got]
        except SlurmError as error:
            answers[what] = {"error": str(error), "transient": error.transient}
        answers["seconds"][what] = time.monotonic() - start
        answers["cpu_seconds"][what] = sum(os.times()[:4]) - cpu_s
    return answers


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1])))

"""What Slurm prints, in one form for all releases: that of 22.05."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.throwaway.slurm import SlurmCluster

SBIN = ":/usr/sbin:/sbin"


@functools.cache
def release() -> tuple[int, int]:
    """(22, 5) of the Slurm that PATH names; (0, 0) where there is none."""
    path = shutil.which("slurmctld", path=os.environ.get("PATH", "") + SBIN)
    if path is None:
        return 0, 0
    said = subprocess.run([path, "-V"], capture_output=True, text=True, check=True, timeout=30).stdout
    first, second = said.split()[-1].split(".")[:2]
    return int(first), int(second)


def queue(cluster: SlurmCluster) -> list[dict[str, Any]]:
    """All jobs as squeue's JSON has them."""
    return job_rows(cluster.run("squeue", "-t", "all", "--json", errors="replace").stdout)


def job_rows(text: str) -> list[dict[str, Any]]:
    """The jobs in squeue's JSON, which from 23.11 on has lists and {set, infinite, number}. Raises ValueError."""
    return [{key: _plain(key, value) for key, value in row.items()} for row in json.loads(text)["jobs"]]


def row_of(cluster: SlurmCluster, job_id: int) -> dict[str, Any]:
    """The job as squeue's JSON has it: unlike scontrol's text, no name or comment can imitate another field."""
    return next(r for r in queue(cluster) if r["job_id"] == job_id)


def gres(text: str) -> str:
    """A job's `gpu:a100:2` as squeue prints it."""
    return f"{'gres/' if release() >= (23, 11) else 'gres:'}{text}"


def _plain(key: str, value: Any) -> Any:
    if key == "job_state" and isinstance(value, list):
        return value[0]
    if isinstance(value, dict) and {"set", "number"} <= value.keys():
        unset = None if key == "time_limit" else 0
        return value["number"] if value["set"] else unset
    return value

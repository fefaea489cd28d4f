"""A node of a throwaway cluster loses its power: slurmd and everything that runs on it end at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.throwaway.slurm import SlurmCluster


def power_off(cluster: SlurmCluster, node: str) -> None:
    """Ends the node's slurmd and everything that runs on it, at once. `cluster.start_node` brings it back."""
    cluster.kill(node)
    mark, conf = f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={cluster.conf}".encode()
    processes: set[int] = set()
    stepds: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "environ").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            above = (Path("/proc") / str(parent) / "comm").read_text()
        except (OSError, ValueError):
            continue
        if mark in words and conf in words:
            processes.add(int(entry.name))
            if above.startswith("slurmstepd"):
                stepds.add(parent)
    # first those that would tell slurmctld how the others ended: a node without power tells nothing
    for pid in (*stepds, *(processes - stepds)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue

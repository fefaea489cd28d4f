"""Nodes of a throwaway cluster that lose their power, or have none until Slurm powers them up."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.slurm_output import release

# what nodes answered waits up to 2 s for slurmctld's own thread (src/slurmctld/agent.c, _agent_nodes_update, from 23.11 on)
ANSWERS_WAIT_S = 2.5


def cloud_settings(cluster: SlurmCluster, *, resume_timeout_s: int) -> tuple[str, ...]:
    """Lines of slurm.conf with which Slurm powers nodes of `cloud` groups up and down: their slurmd is started and ended. One of
    which a file broken-NAME lies in the cluster's folder does not come up."""
    head = f"""#!/bin/bash
export PATH=$PATH:/usr/sbin:/sbin SLURM_CONF={cluster.conf} MUNGE_SOCKET={cluster.munge_socket}
for node in $(scontrol show hostnames "$1"); do"""
    # -b: else slurmctld takes a slurmd of a machine that has not booted since for one that was up before
    # -D: one that made itself a daemon here refused batch jobs that were given to it while it came up (22.05.8)
    slurmd = f"setsid slurmd -D -b -f {cluster.conf} -N $node </dev/null >/dev/null 2>&1"
    up = f"[ -e {cluster.folder}/broken-$node ] || {slurmd} &"
    # a slurmd that is only asked to end may go on for minutes, and the next one then waits for it
    down = f"kill -KILL $(cat {cluster.folder}/slurmd-$node.pid)"
    programs = {}
    for name, line in (("resume", up), ("suspend", down)):
        programs[name] = cluster.folder / f"{name}.sh"
        programs[name].write_text(f"{head}\n  {line}\ndone\n")
        programs[name].chmod(0o755)
    return (
        f"ResumeProgram={programs['resume']}",
        f"SuspendProgram={programs['suspend']}",
        f"ResumeTimeout={resume_timeout_s}",
        "SuspendTimeout=3",
        "SuspendTime=3600",
        # addresses as configured; looks each second
        "SlurmctldParameters=cloud_dns,power_save_interval=1,power_save_min_interval=0",
    )


def power_off(cluster: SlurmCluster, node: str) -> None:
    """Ends the node's slurmd and everything that runs on it, at once. `power_on` brings it back."""
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


def power_on(cluster: SlurmCluster, *nodes: str) -> None:
    """Bring nodes back that have lost their power. Return when Slurm has them idle.

    Slurm resumes none while it counts a job there as COMPLETING, which ends once the node is DOWN.
    """
    for node in nodes:
        cluster.start_node(node)

    def are_idle() -> bool:
        rows = cluster.run("sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", "%N %t").stdout.splitlines()
        others = [name for name, state in map(str.split, rows) if state != "idle"]
        for name in others:
            for update in ("DOWN", "RESUME"):
                cluster.run("scontrol", "update", f"NodeName={name}", f"State={update}", "Reason=test", check=False)
        return not others

    cluster.wait_for(are_idle, 120, f"{', '.join(nodes)} to be idle")


def set_down(cluster: SlurmCluster, node: str) -> float:
    """Sets a node that has lost its power DOWN, for good: with ReturnToService=2 an answer from before, taken in afterwards, makes
    it idle again (node_mgr.c, _node_did_resp). Returns when Slurm was told, in seconds since 1970."""
    if release() >= (23, 11):
        time.sleep(ANSWERS_WAIT_S)
    at_s = time.time()
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    return at_s

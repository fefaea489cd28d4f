"""Slurm preempts the job (PreemptMode=REQUEUE with a GraceTime): SIGTERM now, the requeue when the grace time is over.

A step that ends within the grace time ends the batch script, and Slurm takes the job for one that is done and never requeues
it. So the launcher asks for the requeue itself, as the job's owner, as soon as the checkpoint is written.
"""

from __future__ import annotations

import os
import subprocess
import time

COMMAND_S = 30.0  # for an answer of Slurm's
ASK_EVERY_S = 2.0
LONGEST_S = 3600.0  # no grace time is longer


def preempted(job_id: int) -> bool:
    """Is the job running, and has Slurm begun to preempt it? False where Slurm does not say."""
    text = _slurm("squeue", "-h", "-j", str(job_id), "-O", "State:20,PreemptTime:30")
    words = (text or "").split()
    return len(words) == 2 and words[0] == "RUNNING" and words[1][:1].isdigit()


def give_way(job_id: int, node_rank: int) -> None:
    """Has a preempted job requeued by its first node, and waits for that on the others; returns at once for any other job."""
    end = time.monotonic() + LONGEST_S
    while preempted(job_id) and time.monotonic() < end:
        if node_rank == 0:
            # refused with --no-requeue: then Slurm ends the job when its grace time is over
            _slurm("scontrol", "requeue", str(job_id))
        time.sleep(ASK_EVERY_S)


def _slurm(*argv: str) -> str | None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SQUEUE_", "SLURM_CLUSTERS"))}
    environment["SLURM_TIME_FORMAT"] = "%s"
    try:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None

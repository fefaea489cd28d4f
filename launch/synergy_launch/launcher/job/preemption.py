"""Preemption by Slurm (PreemptMode=REQUEUE with a GraceTime): SIGTERM now, the requeue when the grace time is over.

A step that ends within the grace time ends the batch script, and Slurm takes the job for one that is done and never requeues
it. So the launcher asks for the requeue itself, as the job's owner, as soon as the checkpoint is written. Where Slurm does not say
clearly that it would requeue the job, the step only stays open, and Slurm does what its site wants.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from types import FrameType

from synergy_launch.launcher.job.allocation import JobAllocation, requeued_name, slurm_name

COMMAND_S = 30.0  # for an answer of Slurm's
#: the first node's pauses between two questions: each costs slurmctld an RPC
ASK_EVERY_S, LONGEST_PAUSE_S = 2.0, 30.0
#: the other nodes'; hundreds of them must not ask in the same second
OTHERS_PAUSE_S, OTHERS_SPREAD_S = 15.0, 15.0
LONGEST_S = 3600.0  # no grace time is longer
_SPREAD = 16
_LOOK_S = 0.1


def is_preempted(job_id: int) -> bool:
    """Return whether the job is running and Slurm has begun to preempt it; False where Slurm does not say."""
    name = slurm_name(job_id, os.environ)
    text = ask_slurm("squeue", "-h", "-r", "-j", name, "-O", "State:20,PreemptTime:30")
    words = (text or "").split()
    return len(words) == 2 and words[0] == "RUNNING" and words[1][:1].isdigit()


def is_requeued_by_preemption() -> bool:
    """Return whether preemption surely requeues this job, by its partition's PreemptMode, or the cluster's where that has none."""
    conf = ask_slurm("scontrol", "show", "config") or ""
    if "preempt/partition_prio" not in read_value(conf, "PreemptType"):
        return False  # a QOS may have a mode of its own
    partition = os.environ.get("SLURM_JOB_PARTITION", "")
    partition_text = ask_slurm("scontrol", "show", "partition", partition) if partition else None
    if partition_text is None:
        return False
    mode = read_value(partition_text, "PreemptMode")
    if mode in ("", "(null)", "N/A"):
        mode = read_value(conf, "PreemptMode")
    return "REQUEUE" in mode.upper().split(",")


def give_way(allocation: JobAllocation) -> None:
    """Requeue a preempted job from its first node, and wait for the requeue on the others; return at once for any other job.

    Slurm's next SIGTERM, at the requeue or at the end of the grace time, cuts a pause short.
    """
    job_id, rank = allocation.job_id, allocation.node_rank
    if job_id is None or not is_preempted(job_id):
        return
    signals: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    before = signal.signal(signal.SIGTERM, note)
    try:
        end, pause_s = time.monotonic() + LONGEST_S, ASK_EVERY_S
        asks = rank == 0 and is_requeued_by_preemption()
        while time.monotonic() < end:
            if asks:
                # refused with --no-requeue: then Slurm ends the job when its grace time is over
                asks = ask_slurm("scontrol", "requeue", "incomplete", requeued_name(job_id, os.environ)) is not None
            _pause(pause_s if rank == 0 else _others_pause_s(rank), rank, signals)
            pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)
            if not is_preempted(job_id):
                return
    finally:
        signal.signal(signal.SIGTERM, before)


def _others_pause_s(rank: int) -> float:
    return OTHERS_PAUSE_S + OTHERS_SPREAD_S * (rank % _SPREAD) / _SPREAD


def _pause(pause_s: float, rank: int, signals: list[int]) -> None:
    """Sleep for `pause_s` seconds; a signal that comes meanwhile ends the pause, a little later on each node."""
    signals_before, end = len(signals), time.monotonic() + pause_s
    while (left_s := end - time.monotonic()) > 0:
        if len(signals) > signals_before:
            time.sleep(min(left_s, _LOOK_S * (rank % _SPREAD)))
            return
        time.sleep(min(left_s, _LOOK_S))


def read_value(text: str, key: str) -> str:
    """Return the value in `scontrol show`'s `Key=value` or `Key   = value`; empty where there is none."""
    match = re.search(rf"(?:^|\s){key}\s*=[ \t]*(\S*)", text)
    return match[1] if match else ""


def ask_slurm(*argv: str) -> str | None:
    """Return what a Slurm command prints; None where it fails. Times are in seconds since 1970."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SQUEUE_", "SLURM_CLUSTERS"))}
    environment["SLURM_TIME_FORMAT"] = "%s"
    try:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None

"""A job that trains in earnest on several nodes: torchrun's ranks, one a GPU, with gloo (synergy_launch.examples.ddp)."""

from __future__ import annotations

import time
from pathlib import Path

from tests.throwaway.slurm import SlurmCluster

MODULE = "synergy_launch.examples.ddp"
BATCH = 24  # in equal parts on 1 to 4 ranks
CHECKPOINT_EVERY = 10  # steps


def submit(
    cluster: SlurmCluster,
    nodes: int,
    *,
    steps: int = 100_000,
    step_s: float = 0.2,
    checkpoint_every: int = CHECKPOINT_EVERY,
    hidden: int = 32,
    before: str = "",
    after: str = "",
    options: tuple[str, ...] = (),
) -> int:
    """Submit it with one GPU of each node.

    `step_s`: added to each step. `checkpoint_every`: in steps. `hidden`: width of the model. `before`, `after`: lines of its script around
    the launcher's.
    """
    folder = cluster.folder / "torch"
    folder.mkdir(exist_ok=True)
    checkpoint = folder / f"checkpoint-{time.monotonic_ns()}"
    script = (
        f"#!/bin/bash\n#SBATCH --nodes={nodes} --gres=gpu:1 --open-mode=append\n"
        f"#SYNERGY min_gpus={nodes} max_gpus={nodes} global_batch={BATCH} checkpoint={checkpoint}\n{before}"
        f"srun synergy-launch --checkpoint {checkpoint} -m {MODULE} --steps {steps} --global-batch {BATCH} --hidden {hidden} --seq 32 "
        f"--step-delay {step_s} --checkpoint-interval {checkpoint_every}\n{after}"
    )
    return cluster.sbatch(script, f"--output={folder}/%j.out", *options)


def output(cluster: SlurmCluster, job_id: int) -> str:
    """Return what the job has printed so far."""
    path = cluster.folder / "torch" / f"{job_id}.out"
    return path.read_text(errors="replace") if path.exists() else ""


def nodes_of(cluster: SlurmCluster, job_id: int) -> list[str]:
    """Return the job's nodes in the order of their ranks."""
    names = cluster.run("squeue", "-h", "-j", str(job_id), "-o", "%N").stdout.strip()
    return cluster.run("scontrol", "show", "hostnames", names).stdout.split()


def rank_on(cluster: SlurmCluster, job_id: int, node: str) -> int:
    """Return the pid of the job's one rank on `node`. Raises LookupError where there is none.

    It is the launcher's grandchild, below torchrun, and leads a session. A forked one shows the command of what it was forked from.
    """
    marks = {f"SLURMD_NODENAME={node}", f"SLURM_JOB_ID={job_id}", f"SLURM_CONF={cluster.conf}"}
    parents: dict[int, int] = {}
    leaders, launchers = set[int](), set[int]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = set((entry / "environ").read_bytes().decode(errors="replace").split("\0"))
            command = (entry / "cmdline").read_bytes()
            _, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if marks <= words:
            pid = int(entry.name)
            parents[pid] = int(parent)
            leaders |= {pid} if session == entry.name else set()
            launchers |= {pid} if b"/synergy-launch\0" in command else set()
    for pid in leaders:
        if parents.get(parents[pid]) in launchers:
            return pid
    raise LookupError(f"job {job_id} has no rank on {node}")

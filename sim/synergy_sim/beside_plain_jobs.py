"""Synergy's jobs while plain jobs wait, as the daemon sees them (synergyd/slurm/parsed/crowded.py reads that from Slurm).

None grows beyond the size asked for, and what jobs have beyond it they give back where the first plain job then starts. A waiting job
that was submitted after that plain job starts only as Slurm's backfill would let it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from synergy_core.records import Job, JobState

from synergy_sim.node_pool import NodePool
from synergy_sim.plain_queue import PlainRequest
from synergy_sim.world import World

WHY = "jobs that Synergy does not decide about wait for GPUs"


def beside_plain_jobs(world: World, jobs: Mapping[int, Job]) -> dict[int, Job]:
    """Return the jobs that are decided about, each within what the plain jobs leave to it."""
    result = dict(jobs)
    for gpu_type in world.scenario.cluster.gpu_types():
        first = world.plain.first(gpu_type)
        if first is None:
            continue
        head, reservation = first
        own = {i: job for i, job in result.items() if job.asked.gpu_type in ("", gpu_type)}
        pool = world.plain.pool(gpu_type, world.director.reserved_gpus(world))
        giving = _who_gives_back(head, own, pool, world, gpu_type)
        spare = reservation.spare if reservation is not None else 0
        for job_id, job in own.items():
            most = job.asked.gpus
            if job.state is JobState.RUNNING:
                if job.shape.gpus > most and job_id not in giving:
                    most = job.shape.gpus
            elif job.submit_s > head.submit_s and reservation is not None:
                limit_s = world.jobs[job_id].job.time_limit_s
                if limit_s is None or world.now_s + limit_s > reservation.start_s:
                    most = min(most, spare)
                    spare -= most
                if most <= 0:
                    del result[job_id]
                    continue
            assert job.directive is not None
            directive = replace(job.directive, max_gpus=min(most, job.directive.max_gpus or most))
            result[job_id] = replace(job, directive=directive, gives_back=WHY if job_id in giving else "")
    return result


def _who_gives_back(
    head: PlainRequest, jobs: Mapping[int, Job], pool: NodePool, world: World, gpu_type: str
) -> set[int]:
    """Return the jobs that give back what they did not ask for, those with the most first, or none where it is of no use."""
    index = {n.name: i for i, n in enumerate(n for n in world.scenario.cluster.nodes if n.gpu_type == gpu_type)}
    holders = [
        job
        for job in jobs.values()
        if job.state is JobState.RUNNING and job.shape.gpu_type == gpu_type and job.shape.gpus > job.asked.gpus
        if job.directive is not None and job.directive.resize
    ]
    giving: set[int] = set()
    for job in sorted(holders, key=lambda j: j.asked.gpus - j.shape.gpus):
        if pool.has_room(head.nodes, head.each):
            break
        giving.add(job.job_id)
        each = job.shape.gpus_per_node
        keeps, rest = divmod(job.asked.gpus, each)
        for n, name in enumerate(job.node_names):
            gives = each if n > keeps else each - rest if n == keeps else 0
            if gives:
                pool.change(((index[name], gives),), 1)
    return giving if pool.has_room(head.nodes, head.each) else set()

"""Plain jobs: Slurm's queue by itself, and beside Synergy's jobs in a simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from synergy_core.errors import UsageError
from synergy_sim.node_pool import NodePool, Placement
from synergy_sim.plain_queue import PlainQueue, PlainRequest
from synergy_sim.records import Costs, Scenario, TraceJob, build_cluster
from synergy_sim.runs import simulate
from synergy_sim.traces.generate import generate

from tests.unit.sim.builders import Linear


def start(queue: PlainQueue, pool: NodePool, *running: tuple[float, Placement]) -> list[int]:
    return [job.key for job, _ in queue.start(0.0, pool, running)]


def test_nodes_are_taken_where_least_is_free_and_given_back() -> None:
    pool = NodePool([4, 2, 8])
    assert pool.take(1, 2) == ((1, 2),)
    assert pool.take(2, 4) == ((0, 4), (2, 4))
    assert pool.take(1, 8) is None
    assert (pool.free, pool.total) == ([0, 0, 4], 4)
    pool.change(((2, 4),), 1)
    assert pool.has_room(1, 8)


def test_a_job_passes_the_first_one_only_if_it_does_not_delay_it() -> None:
    """4 of 8 GPUs run until 100. The first job needs 8; of those behind it only the one that ends by 100 starts."""
    pool, queue = NodePool([8]), PlainQueue()
    placed = pool.take(1, 4)
    assert placed is not None
    queue.add(PlainRequest(1, 0.0, 1, 8, 1000.0))
    queue.add(PlainRequest(2, 1.0, 1, 4, 101.0))
    queue.add(PlainRequest(3, 2.0, 1, 4, 100.0))
    assert start(queue, pool, (100.0, placed)) == [3]
    assert queue.reservation is not None
    assert queue.reservation.start_s == 100.0


def test_what_the_first_one_leaves_over_is_free_for_long_jobs() -> None:
    pool, queue = NodePool([8, 8]), PlainQueue()
    placed = pool.take(2, 6)
    assert placed is not None
    queue.add(PlainRequest(1, 0.0, 1, 8, 1000.0))
    queue.add(PlainRequest(2, 1.0, 1, 2, math.inf))
    assert start(queue, pool, (100.0, placed)) == [2]


def scenario(*jobs: TraceJob, gpus: int = 8) -> Scenario:
    return Scenario(jobs, build_cluster({"a100": (1, gpus)}), Costs(0.0, 0.0, 0.0, 0.0))


def job(submit_s: float, gpus: int, work: float, *, plain: bool, limit_s: float | None = None) -> TraceJob:
    linear = Linear(work)
    return TraceJob(
        f"j{submit_s:g}", "linear", submit_s, gpus, 64, linear, "t:1", "a100", plain=plain, time_limit_s=limit_s
    )


def test_plain_jobs_start_at_once_and_wait_for_no_epoch() -> None:
    run = simulate(scenario(job(5.0, 8, 800.0, plain=True), job(6.0, 8, 80.0, plain=True)), "synergy")
    assert [(one.start_s, one.finish_s) for one in run.jobs] == [(5.0, 105.0), (105.0, 115.0)]
    assert not run.decisions_s


def test_a_job_that_grew_gives_back_for_a_plain_one() -> None:
    """It asked for 4 of 8 GPUs and has all of them when the plain job comes, which starts within some epochs."""
    grows = job(0.0, 4, 80_000.0, plain=False)
    run = simulate(scenario(grows, job(4000.0, 4, 400.0, plain=True)), "synergy")
    elastic, plain = run.jobs
    assert max(one.gpus for one in run.occupancies if one.job == 1) == 8
    assert elastic.finish_s > plain.finish_s
    assert 4000.0 < plain.start_s < 4000.0 + 5 * 60.0


def test_a_job_that_has_what_it_asked_for_gives_nothing_back() -> None:
    keeps = replace(job(0.0, 8, 16_000.0, plain=False), max_gpus=8)
    run = simulate(scenario(keeps, job(100.0, 4, 400.0, plain=True)), "synergy")
    assert run.jobs[1].start_s >= run.jobs[0].finish_s


def test_all_jobs_plain_need_no_more_than_their_events() -> None:
    """300 jobs in 48 hours: no epoch is run, so it takes no time."""
    jobs = tuple(replace(one, plain=True) for one in generate("300,48", "a100", 32, 8, 0))
    run = simulate(Scenario(jobs, build_cluster({"a100": (4, 8)})), "synergy")
    assert len(run.jobs) == 300
    assert not run.decisions_s


def test_a_plain_job_larger_than_the_cluster_is_refused() -> None:
    with pytest.raises(UsageError, match="16 GPUs"):
        simulate(scenario(job(0.0, 16, 1.0, plain=True)), "synergy")

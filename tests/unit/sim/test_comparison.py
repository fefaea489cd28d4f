"""Runs beside one another: job by job, by kind, and under Slurm alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_sim.comparison import compare_jobs, compare_kinds, plain_scenario, run_plain
from synergy_sim.records import Costs, JobResult, Occupancy, Scenario, SimulatedRun

from tests.unit.sim.builders import job, scenario


def results(site: Scenario, *jct_s: float, restarts: int = 0) -> tuple[JobResult, ...]:
    return tuple(
        JobResult(one, one.submit_s, one.submit_s + took_s, restarts, 0.0, 0.0)
        for one, took_s in zip(site.jobs, jct_s, strict=True)
    )


def test_jobs_are_compared_one_by_one() -> None:
    site = scenario(*(job(float(i), 1, 1.0) for i in range(4)))
    found = compare_jobs(results(site, 100.0, 111.0, 130.0, 50.0), results(site, 100.0, 100.0, 100.0, 200.0))
    assert (found.mean_s, found.other_mean_s, found.median) == pytest.approx((97.75, 125.0, 1.055))
    assert (found.slower, found.much_slower, found.worst, found.worst_job) == pytest.approx((0.5, 0.25, 1.3, 3))


def test_kinds_show_where_their_jobs_spent_their_lives() -> None:
    site = scenario(*(replace(job(float(i), 1, 1.0), kind=kind) for i, kind in enumerate("aab")))
    held = (Occupancy(1, 0.0, 30.0, (("n0", 1),)), Occupancy(2, 0.0, 90.0, (("n0", 2), ("n1", 2))))
    run = SimulatedRun("synergy", site, results(site, 100.0, 200.0, 30.0, restarts=2), held)
    a, b = compare_kinds(run, SimulatedRun("peer", site, results(site, 300.0, 300.0, 10.0), ()))
    assert (a.kind, a.jobs, a.mean_s, a.ratio, a.restarts_per_job, a.other_restarts_per_job) == (
        "a",
        2,
        150.0,
        0.5,
        2.0,
        0.0,
    )
    assert a.life == {1: 0.25, 4: 0.75} and (b.ratio, b.life) == (3.0, {})


def test_slurm_alone_keeps_sizes_and_backfills_what_delays_nobody() -> None:
    """4 GPUs: b must wait for a, c ends before then on a GPU that a leaves, d would delay b."""
    site = scenario(job(0.0, 2, 200.0), job(1.0, 4, 160.0), job(2.0, 1, 50.0), job(3.0, 1, 99.0))
    timed = plain_scenario(replace(site, costs=Costs(30.0, 8.0, 2.0, 20.0, end_s=5.0)))
    assert [one.time_limit_s for one in timed.jobs] == pytest.approx([135.0, 75.0, 85.0, 134.0])
    run = run_plain(site)
    assert [one.start_s for one in run.jobs] == pytest.approx([0.0, 100.0, 2.0, 140.0])
    assert [one.restarts for one in run.jobs] == [0, 0, 0, 0]

"""The queue model: jobs whose times are worked out by hand."""

from __future__ import annotations

import math

import pytest
from synergy_sim.forecast.queue_model import QueueJob, QueueModel, QueueResult
from synergy_sim.records import Costs

from synergyd.jobmodel.speed_up import SpeedUp

FREE = Costs(0.0, 0.0, 0.0, 0.0)
LINEAR = SpeedUp(overhead=0.0)


def job(submit_s: float, gpus: int, seconds: float, *, curve: SpeedUp | None = None, limit_s: float = 1e6) -> QueueJob:
    return QueueJob(submit_s=submit_s, nodes=1, each=gpus, seconds=seconds, limit_s=limit_s, curve=curve)


def run(*jobs: QueueJob, nodes: tuple[int, ...] = (8,), costs: Costs = FREE) -> list[QueueResult]:
    return QueueModel(jobs, nodes, costs).run()


def test_plain_jobs_run_first_come_first_served() -> None:
    first, second, third = run(job(0.0, 8, 100.0), job(1.0, 8, 50.0), job(2.0, 1, 10.0))
    assert (first.start_s, second.start_s, third.start_s) == (0.0, 100.0, 150.0)
    assert (first.end_s, first.gpu_s, first.restarts) == (100.0, 800.0, 0)


def test_a_short_job_is_backfilled_by_its_time_limit() -> None:
    _, second, third = run(job(0.0, 4, 100.0, limit_s=100.0), job(1.0, 8, 50.0), job(2.0, 4, 10.0, limit_s=60.0))
    assert (second.start_s, third.start_s) == (100.0, 2.0)


def test_an_elastic_job_grows_into_idle_gpus() -> None:
    """It starts as asked at the first epoch and grows at the third: 120 s at 4 GPUs, then 1880 / 2 at 8."""
    (only,) = run(job(0.0, 4, 2000.0, curve=LINEAR))
    assert (only.start_s, only.restarts) == (60.0, 1)
    assert only.end_s == pytest.approx(180.0 + 1880.0 / 2)
    assert only.gpu_s == pytest.approx(8000.0)


def test_a_job_that_does_not_scale_stays() -> None:
    (only,) = run(job(0.0, 4, 2000.0, curve=SpeedUp(overhead=0.999)))
    assert only.restarts == 0


def test_growth_costs_its_restart() -> None:
    (free,), (dear,) = (
        run(job(0.0, 4, 2000.0, curve=LINEAR), costs=costs) for costs in (FREE, Costs(0.0, 8.0, 2.0, 20.0))
    )
    assert dear.end_s == pytest.approx(free.end_s + 30.0)


def test_running_elastic_jobs_shrink_for_a_waiting_one() -> None:
    first, second = run(job(0.0, 8, 4000.0, curve=LINEAR), job(1000.0, 8, 4000.0, curve=LINEAR))
    assert second.start_s <= 1080.0
    assert first.restarts >= 1
    # no GPU idles: 64,000 GPU seconds from 60 on
    assert max(first.end_s, second.end_s) == pytest.approx(60.0 + 8000.0, abs=120.0)


def test_an_elastic_job_gives_back_for_a_plain_one_what_it_did_not_ask_for() -> None:
    grown, plain = run(job(0.0, 4, 100_000.0, curve=LINEAR), job(1000.0, 4, 50.0))
    assert 1000.0 < plain.start_s <= 1060.0
    assert grown.restarts >= 2


def test_an_elastic_job_keeps_what_it_asked_for_from_plain_ones() -> None:
    elastic, plain = run(job(0.0, 8, 3000.0, curve=LINEAR), job(1000.0, 4, 50.0))
    assert plain.start_s == elastic.end_s


def test_bounds_of_a_curve_hold() -> None:
    held = run(job(0.0, 2, 2000.0, curve=SpeedUp(overhead=0.0, most=2.0)))[0]
    assert held.gpu_s == pytest.approx(4000.0)
    assert held.end_s > 60.0 + 1000.0


def test_speed_is_one_as_asked_and_grows_by_amdahls_law() -> None:
    curve = SpeedUp(overhead=0.2)
    assert curve.speed(1.0, 1, 1) == pytest.approx(1.0)
    assert curve.speed(2.0, 1, 1) == pytest.approx(1 / 0.6)
    assert curve.speed(2.0, 1, 2) == pytest.approx(1 / 0.8)
    assert curve.speed(0.5, 2, 1) == pytest.approx(1 / 1.7)


def test_a_growing_batch_is_never_slower_and_bounded_by_its_noise() -> None:
    fixed, grows = SpeedUp(overhead=0.5), SpeedUp(overhead=0.5, noise_scale=1e9)
    assert grows.speed(4.0, 1, 1) == pytest.approx(4.0)
    assert fixed.speed(4.0, 1, 1) == pytest.approx(1 / 0.625)
    little = SpeedUp(overhead=0.5, noise_scale=1e-9)
    assert little.speed(4.0, 1, 1) == pytest.approx(fixed.speed(4.0, 1, 1))
    assert math.isfinite(grows.speed(0.25, 1, 1))

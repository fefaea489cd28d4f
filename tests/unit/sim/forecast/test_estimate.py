"""From outcomes to a forecast."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from synergy_sim.forecast.estimate import (
    MODEL_BIAS,
    SHARES,
    Outcome,
    Task,
    draw_curves,
    forecast,
    list_tasks,
    measured_outcome,
    queue_job,
    run_task,
)
from synergy_sim.forecast.history import History, PastJob
from synergy_sim.forecast.speed_up import MEASURED, PRIORS


def past(start_s: float, gpus: int = 4, ready_s: float | None = None, seconds: float = 3600.0) -> PastJob:
    return PastJob(
        user="ann",
        ready_s=start_s if ready_s is None else ready_s,
        start_s=start_s,
        seconds=seconds,
        limit_s=2 * seconds,
        gpu_type="a100",
        nodes=1,
        each=gpus,
        names=("n1",),
    )


def busy(jobs: int = 40) -> History:
    """Each job of an hour takes all GPUs; one comes each 50 minutes, so the queue grows."""
    some = tuple(past(i * 3600.0, 8, i * 3000.0) for i in range(jobs))
    return History(from_s=0.0, to_s=jobs * 3600.0, jobs=some, nodes={"a100": (8,)}, source="sinfo")


def test_the_queue_model_replays_a_first_come_first_served_history() -> None:
    history = busy()
    measured, replayed = measured_outcome(history), run_task(history, Task(MEASURED, 0.0, 0))
    assert replayed.wait_s == pytest.approx(measured.wait_s)
    assert replayed.run_s == measured.run_s
    assert replayed.gpu_h == pytest.approx(measured.gpu_h)


def test_more_jobs_take_part_at_a_larger_share_and_the_same_ones_scale_alike() -> None:
    history = busy(200)
    few, many = (draw_curves(history, Task(MEASURED, share, 3), 7) for share in (0.2, 0.5))
    assert 20 < sum(curve is not None for curve in few) < 60 < sum(curve is not None for curve in many) < 140
    assert all(b == a for a, b in zip(few, many, strict=True) if a is not None)
    assert draw_curves(history, Task(MEASURED, 0.2, 3), 8) != few


def test_jobs_with_one_gpu_running_ones_and_those_before_the_span_keep_their_size() -> None:
    jobs = (past(-10.0), past(10.0, 1), replace(past(20.0), goes_on=True), past(30.0))
    history = History(from_s=0.0, to_s=4000.0, jobs=jobs, nodes={"a100": (32,)}, source="sinfo")
    assert [curve is not None for curve in draw_curves(history, Task(MEASURED, 1.0, 0), 0)] == [False] * 3 + [True]
    before = queue_job(history, jobs[0], None)
    assert (before.submit_s, before.seconds) == (-1.0, 3590.0)


def test_half_of_all_jobs_have_the_overhead_that_the_prior_says() -> None:
    draw = random.Random(0)
    drawn = sorted(MEASURED.of_job(MEASURED.centre, draw).overhead for _ in range(4000))
    assert drawn[1000] == pytest.approx(0.095, abs=0.02)
    assert drawn[2000] == pytest.approx(0.2, abs=0.02)
    assert drawn[3000] == pytest.approx(0.37, abs=0.02)


def outcomes(history: History, wait_s: float, plain_s: float) -> list[tuple[Task, Outcome]]:
    """All draws agree: waits of `wait_s` against `plain_s` without Synergy, run times halved."""
    measured = measured_outcome(history)
    with_it = Outcome(wait_s=wait_s, run_s=measured.run_s / 2, gpu_h=measured.gpu_h, restarts=1.0)
    plain = Outcome(wait_s=plain_s, run_s=measured.run_s, gpu_h=measured.gpu_h)
    return [(task, with_it if task.share else plain) for task in list_tasks(history)]


def test_what_the_model_does_not_explain_stays() -> None:
    """10 h were measured; the model sees 4 h, of which Synergy saves 3: 7 h stay."""
    history = busy()
    measured_s = measured_outcome(history).wait_s
    found = forecast(history, outcomes(history, measured_s / 10, measured_s / 2))
    one = found.of_prior("measured")[0]
    assert one.wait_s.middle == pytest.approx(0.6 * measured_s)
    assert one.completion_s.middle == pytest.approx(0.6 * measured_s + 1800.0)
    assert one.gpu_h.middle == pytest.approx(found.measured_outcome.gpu_h)


def test_savings_of_a_model_that_waits_longer_are_scaled_down() -> None:
    history = busy()
    measured_s = measured_outcome(history).wait_s
    found = forecast(history, outcomes(history, measured_s, 2 * measured_s))
    assert found.explained_share == pytest.approx(0.5)
    assert found.of_prior("measured")[0].wait_s.middle == pytest.approx(0.5 * measured_s)


def test_an_interval_is_at_least_as_wide_as_the_queue_models_own_error() -> None:
    history = busy()
    found = forecast(history, outcomes(history, 100.0, measured_outcome(history).wait_s))
    one = found.of_prior("measured")[0]
    assert found.sigmas.gpu_h > MODEL_BIAS["gpu"] * found.measured_outcome.gpu_h - 1e-9
    assert one.gpu_h.high - one.gpu_h.middle > found.sigmas.gpu_h
    assert one.wait_s.low >= 0.0


def test_every_share_of_every_prior_is_forecast() -> None:
    history = busy()
    found = forecast(history, [(task, run_task(history, task)) for task in list_tasks(history)])
    assert [(one.prior, one.share) for one in found.shares] == [(p.name, s) for p in PRIORS for s in SHARES]
    waits = [one.wait_s.middle for one in found.of_prior("measured")]
    assert waits[-1] < found.measured_outcome.wait_s

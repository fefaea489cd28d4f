"""Forecasts: quantiles over draws, and what past outcomes change about them."""

from __future__ import annotations

import json
import random

from synergy_core.expected import Expected

from synergyd.start_times.calibration import Calibration
from synergyd.start_times.forecast import DRAWS, LEAST_DRAWS, StartForecaster
from synergyd.start_times.run_lengths import EndedRun
from tests.unit.start_times.queues import NOW, node, pending, program, queue, running


def test_a_start_lies_between_now_and_the_limit() -> None:
    """Job 3 waits for job 1, of which nothing is known but its limit: 500 s are left."""
    told = StartForecaster().forecast(queue((node("n1", 0),), (running(1, ("n1",)),), (pending(3),)))
    start, end = told[3].start, told[3].end
    assert start is not None and end is not None
    assert NOW < start.low_s < start.middle_s < start.high_s < NOW + 500
    assert start.middle_s < end.middle_s < NOW + 1100
    assert told[1].start is None and told[1].end == start


def test_what_has_ended_narrows_it() -> None:
    forecaster = StartForecaster()
    forecaster.learn([EndedRun(program(), 200.0 + i) for i in range(32)])
    start = forecaster.forecast(queue((node("n1", 0),), (running(1, ("n1",)),), (pending(3),)))[3].start
    assert start is not None
    assert NOW + 95 < start.middle_s < NOW + 140


def test_a_job_that_never_fits_has_no_forecast() -> None:
    told = StartForecaster().forecast(queue((node("n1"),), (), (pending(3, gpus=8),)))
    assert told[3].start is None and told[3].end is None


def test_draws_stop_when_time_is_up() -> None:
    calls: list[int] = []

    def is_late() -> bool:
        calls.append(1)
        return True

    StartForecaster().forecast(queue((node("n1"),), (), (pending(3),)), is_late)
    assert len(calls) == 1 and LEAST_DRAWS < DRAWS


def test_jobs_to_come_delay_those_that_they_pass() -> None:
    """For hours a job comes each minute and passes all others: a node that is free in 100 s is not for the job that waits."""
    quiet, busy = StartForecaster(), StartForecaster()
    hour = 3600.0
    for number in range(4 * 60):
        at_s = number * 60.0
        passing = pending(5000 + number, submit_s=at_s, program=program("boss", limit_s=900.0))
        behind = pending(4000, submit_s=0.0)
        of = queue((node("n1", 0),), (), (passing, behind))
        busy.see(type(of)(now_s=at_s + 1, nodes=of.nodes, running=(), pending=of.pending))
    now_s = 4 * hour
    full = queue(
        (node("n1", 0),),
        (running(1, ("n1",), start_s=now_s - 100, limit_end_s=now_s + 500),),
        (pending(3, submit_s=now_s),),
    )
    full = type(full)(now_s=now_s, nodes=full.nodes, running=full.running, pending=full.pending)
    alone, beside = (f.forecast(full, lambda: True)[3].start for f in (quiet, busy))
    assert alone is not None
    assert beside is None or beside.middle_s > alone.middle_s + 1000


def expected(low: float, middle: float, high: float) -> Expected:
    return Expected(low_s=low, middle_s=middle, high_s=high)


def test_outcomes_make_8_in_10_hold() -> None:
    """A simulation that says 100 s +- 10 where the truth is 50 to 500 s: after some outcomes its intervals hold."""
    calibration, source, held = Calibration(), random.Random(1), 0
    for job in range(600):
        now_s = 1000.0 * job
        said = expected(now_s + 90, now_s + 100, now_s + 110)
        calibration.note(job, now_s, said, now_s)
        told, true_s = calibration.apply(now_s, said), now_s + source.uniform(50, 500)
        held += job >= 100 and told.low_s <= true_s <= told.high_s
        calibration.settle(job, true_s)
    assert 0.75 < held / 500 < 0.85


def test_few_outcomes_change_nothing_and_stored_ones_come_back() -> None:
    calibration, said = Calibration(), expected(90, 100, 110)
    for job in range(9):
        calibration.note(job, 0.0, said, 0.0)
        calibration.settle(job, 400.0)
    assert calibration.apply(0.0, said) == said
    calibration.note(9, 0.0, said, 0.0)
    calibration.settle(9, 400.0)
    changed = calibration.apply(0.0, said)
    assert changed.middle_s > 390
    again = Calibration()
    again.load(json.loads(json.dumps(calibration.to_json())))
    assert abs(again.apply(0.0, said).middle_s - changed.middle_s) < 1
    for wrong in (None, [], [[1]] * 4, [[["x"], [1], [2]]] * 4):
        again.load(wrong)


def test_a_job_counts_again_when_its_wait_has_doubled() -> None:
    calibration = Calibration()
    for at_s in range(0, 1000, 60):
        calibration.note(1, float(at_s), expected(at_s + 1, at_s + 2, at_s + 3), 0.0)
    assert [made_s for made_s, _ in calibration._open[1]] == [0.0, 60.0, 180.0, 420.0, 900.0]

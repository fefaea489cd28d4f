"""Time limits over resizes: what each incarnation is given, and that the sum never passes what was asked for."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.wire.codec import decode, encode

from synergyd.control.resize.events import Observed
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState, validate
from synergyd.control.resize.machine import advance
from synergyd.control.resize.walltime import LEAST_S, TimeGrant, Walltime, checkpoint_due_s
from tests.unit.control.resize.resize_world import JOB, LARGE, LIMITS, SMALL, World
from tests.unit.slurm.fake_slurm import FakeSlurm, row

HOUR = 3600.0


def world(folder: Path, *, limit_s: float | None = HOUR, continues: int = 0, **changes: object) -> World:
    made = World(folder, FakeSlurm(jobs={JOB: row(JOB, time_limit_s=limit_s, **changes)}))
    made.life = made.stored = replace(made.life, walltime=Walltime(continues=continues))
    return made


def resize(made: World, target: object = LARGE) -> None:
    made.want(target)  # type: ignore[arg-type]
    made.slurm.pass_time(1)
    made.checkpoint()
    made.settle()


# -- what an incarnation is given --------------------------------------------------------------------------------------


def test_a_resized_job_gets_what_is_left_of_its_limit(tmp_path: Path) -> None:
    made = world(tmp_path)
    made.start()
    started_s = made.slurm.jobs[JOB].start_s or 0.0
    made.slurm.pass_time(1000)
    resize(made)
    job = made.slurm.jobs[JOB]
    ran_s = made.slurm.ran_s[JOB]
    assert ran_s == pytest.approx(job.submit_s - started_s) and ran_s >= 1000
    assert job.time_limit_s == (HOUR - ran_s) // 60 * 60
    assert "min of its time limit left" in "\n".join(made.story)


def test_a_limit_that_was_never_set_is_never_written(tmp_path: Path) -> None:
    made = world(tmp_path, limit_s=None)
    made.start()
    resize(made)
    assert made.slurm.jobs[JOB].time_limit_s is None
    assert not any("TimeLimit" in word for call in made.slurm.calls for word in call)


def test_a_job_that_makes_way_waits_with_what_is_left(tmp_path: Path) -> None:
    made = world(tmp_path)
    made.start()
    made.slurm.pass_time(1000)
    made.preempt()
    made.slurm.pass_time(1)
    made.checkpoint()
    for _ in range(3):
        made.round(2)
    assert made.life.state is ResizeState.QUEUED
    assert made.slurm.jobs[JOB].time_limit_s == 2580.0  # of 3600, some 1000 are used
    assert " time=3600,0 " in made.slurm.comments[JOB]
    made.kill_daemon()
    made.want(SMALL)
    made.settle()
    assert made.slurm.jobs[JOB].time_limit_s == 2580.0


def test_requeued_by_slurm_a_job_gets_slurms_limit(tmp_path: Path) -> None:
    """As a plain job would after a node's failure."""
    made = world(tmp_path)
    made.start()
    made.slurm.pass_time(1000)
    made.slurm.end(JOB, again=True)
    made.settle()
    assert made.slurm.jobs[JOB].time_limit_s == HOUR


def test_a_limit_that_its_user_lowered_is_not_raised(tmp_path: Path) -> None:
    made = world(tmp_path)
    made.start()
    made.slurm.set(JOB, time_limit_s=600.0)  # the next incarnation's, so to say: its end time stays
    resize(made)
    assert made.slurm.jobs[JOB].time_limit_s == 600.0


def test_least_time_is_lowered_with_the_limit(tmp_path: Path) -> None:
    made = world(tmp_path, min_time_s=HOUR)
    made.start()
    made.slurm.pass_time(1000)
    resize(made)
    assert made.slurm.jobs[JOB].min_time_s == made.slurm.jobs[JOB].time_limit_s == 2580.0


@pytest.mark.parametrize(("left_s", "minutes"), [(0.0, 1), (59.0, 1), (119.9, 1), (120.0, 2), (3600.0, 60)])
def test_slurm_is_told_whole_minutes(left_s: float, minutes: int) -> None:
    assert TimeGrant(left_s).minutes == minutes


# -- going on with the limit anew --------------------------------------------------------------------------------------


def test_near_the_end_the_limit_begins_anew_as_often_as_was_said(tmp_path: Path) -> None:
    made = world(tmp_path, continues=2)
    made.start()
    for time in (1, 2, 3):
        made.slurm.pass_time(made.life.walltime.ends_s - made.now_s - 100)  # type: ignore[operator]
        resize(made)
        assert made.life.walltime.continuations == min(time, 2)
        assert made.slurm.jobs[JOB].time_limit_s == (HOUR if time < 3 else 60.0)
        assert f"time={HOUR:.0f},{min(time, 2)}" in made.slurm.comments[JOB]
    assert "its time limit of 60 min begins anew, time 1 of 2" in "\n".join(made.story)


def test_a_resize_in_the_middle_takes_nothing_of_what_may_go_on(tmp_path: Path) -> None:
    made = world(tmp_path, continues=2)
    made.start()
    made.slurm.pass_time(1000)
    resize(made)
    assert made.life.walltime.continuations == 0
    assert (made.slurm.jobs[JOB].time_limit_s or 0.0) < HOUR


# -- properties --------------------------------------------------------------------------------------------------------

_steps = st.lists(
    st.tuples(st.sampled_from(["resize", "preempt", "kill", "lose", "silent"]), st.floats(0, 1500)), max_size=8
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(_steps, st.sampled_from([600.0, HOUR, 5 * HOUR]), st.integers(0, 2))
def test_over_any_history_of_resizes_no_more_is_given_than_was_asked_for(
    steps: list[tuple[str, float]], limit_s: float, continues: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = world(Path(folder), limit_s=limit_s, continues=continues)
        made.start()
        for what, seconds in steps:
            made.slurm.pass_time(seconds)
            made.tell(made.slurm.observe(JOB))
            if made.life.state is ResizeState.GONE:
                break
            if what == "resize":
                made.want(LARGE if made.slurm.jobs[JOB].num_nodes == 1 else SMALL)
            elif what == "preempt":
                made.preempt()
            made.slurm.pass_time(1)
            if what != "silent":
                made.checkpoint()
            made.lose_answers = what == "lose"
            made.round(2)
            if what == "kill":
                made.kill_daemon()
            for _ in range(3):
                made.round(2)
            if made.life.state is ResizeState.QUEUED and JOB in made.slurm.jobs:
                made.want(SMALL)
            made.settle()
            job = made.slurm.jobs.get(JOB)
            if job is None:
                break
            given_s = made.slurm.ran_s.get(JOB, 0.0) + (job.time_limit_s or 0.0)
            # a limit is a minute at least
            assert given_s <= limit_s * (1 + made.life.walltime.continuations) + LEAST_S
            assert made.life.walltime.continuations <= continues


@given(st.lists(st.floats(0.0, 400.0), max_size=40), st.integers(1, 600))
def test_over_any_number_of_resizes_less_than_a_minute_of_the_limit_is_lost(runs: list[float], minutes: int) -> None:
    """Slurm counts limits in whole minutes: what a resize cuts off is given to a later incarnation."""
    walltime, limit_s, now_s, ran_s = Walltime().with_limit_seen(60.0 * minutes), 60.0 * minutes, 1000.0, 0.0
    for seconds in runs:
        walltime = walltime.with_limit_seen(limit_s).with_run(now_s + limit_s, limit_s)
        used_s = min(seconds, limit_s)
        if 60.0 * minutes - ran_s - used_s < LEAST_S:
            break  # no shorter limit can be given
        ran_s, now_s = ran_s + used_s, now_s + used_s
        walltime = walltime.with_run(walltime.ends_s, limit_s).after_requeue(now_s, 0.0)
        assert walltime.grant is not None
        limit_s, now_s = 60.0 * walltime.grant.minutes, now_s + 17.0
        assert 60.0 * minutes - 60.0 < ran_s + limit_s <= 60.0 * minutes + 1e-6


def test_what_whole_minutes_left_out_is_forgotten_where_the_limit_is_another() -> None:
    resized = Walltime(asked_s=HOUR).with_run(10_000.0, HOUR).after_requeue(9_345.0, 0.0)
    assert resized.with_run(20_600.0, 600.0).spare_s == 55.0
    assert resized.with_run(20_300.0, 300.0).spare_s == 0.0  # its user lowered it meanwhile
    assert resized.with_run(20_600.0, 600.0).after_loss().with_run(30_000.0, HOUR).spare_s == 0.0


def test_a_lifecycle_of_an_older_release_reads_back() -> None:
    life = JobLifecycle(JOB, 0.0, walltime=Walltime(asked_s=HOUR, continues=3, continuations=1))
    assert decode(JobLifecycle, encode(life)) == life
    old = {k: v for k, v in encode(life).items() if k != "walltime"}
    assert decode(JobLifecycle, old) == JobLifecycle(JOB, 0.0)
    assert validate(replace(life, walltime=Walltime(continuations=-1))) == "negative count"


def test_the_end_is_by_slurms_clock_as_far_as_it_can_be_right() -> None:
    walltime = Walltime(asked_s=HOUR, ends_s=10_000.0)
    life = JobLifecycle(JOB, 0.0, ResizeState.REQUEUING, since_s=8000.0, target=LARGE, walltime=walltime)
    for queued_s, left_s in ((8100.0, 1900.0), (7000.0, 1800.0), (9000.0, 1800.0), (None, 1800.0)):
        seen = Observed("PENDING", 1, 8200.0, queued_s=queued_s, limit_s=HOUR)
        assert advance(life, seen, 8200.0, LIMITS).life.walltime.left_s == left_s


def test_when_the_last_checkpoint_is_due() -> None:
    walltime = Walltime(asked_s=HOUR, ends_s=10_000.0)
    assert checkpoint_due_s(walltime, 400.0) == 9600.0
    assert checkpoint_due_s(walltime, 400.0, cut_s=5000.0) == 4600.0
    assert checkpoint_due_s(replace(walltime, asked_s=300.0), 400.0) == 9850.0
    assert checkpoint_due_s(Walltime(), 400.0) is None


def test_a_requeue_by_slurm_gets_the_limit_back_that_synergy_had_lowered() -> None:
    """As a plain job's, its limit begins anew; one that nobody lowered is left as Slurm has it."""
    resized = Walltime(asked_s=HOUR).with_run(10_000.0, HOUR).after_requeue(9_400.0, 300.0)
    assert resized.left_s == 600.0
    lost = resized.with_run(12_000.0, 600.0).after_loss()
    assert lost.left_s == HOUR and lost.grant == TimeGrant(HOUR, HOUR, 0)
    assert lost.with_run(20_000.0, HOUR).after_loss().left_s is None
    assert Walltime(asked_s=HOUR).with_run(10_000.0, HOUR).after_loss().grant is None

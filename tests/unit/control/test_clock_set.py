"""Somebody sets the clock by an hour: no wait ends sooner or later than it would have."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product

import pytest
from synergy_core.job_report import Report
from synergy_core.records import Plan

from synergyd.control.clock_set import TIMES, read_back, set_clock, with_clock_set
from synergyd.control.controller import Controller
from synergyd.control.resize.events import (
    Acknowledged,
    CarriedOut,
    ClockSet,
    Observed,
    Preempted,
    Refused,
    ResizeEvent,
    Tick,
    Unwanted,
    Wanted,
)
from synergyd.control.resize.instructions import AskCheckpoint, Release, Requeue, Update
from synergyd.control.resize.launch_failure import LaunchFailures
from synergyd.control.resize.lifecycle import (
    JobLifecycle,
    ResizeState,
    validate,
    wait_ends_s,
)
from synergyd.control.resize.machine import advance
from synergyd.control.tracked import Remember, TrackedJob
from tests.unit.control.resize.resize_world import JOB, LARGE, LIMITS, SMALL

NOW_S, HOUR_S = 100_000.0, 3600.0
EVENTS: tuple[ResizeEvent, ...] = (
    Tick(), Observed("PENDING", 0), Observed("PENDING", 1), Observed("PENDING", 1, None, True), Observed("RUNNING", 0),
    Observed("RUNNING", 1), Observed("SUSPENDED", 0), Wanted(LARGE, "cause", 0, SMALL), Preempted("cause"), Unwanted("cause"),
    Acknowledged(0, 1), CarriedOut(AskCheckpoint(JOB, 0)), CarriedOut(Update(JOB, LARGE, LIMITS.park_s)), CarriedOut(Release(JOB)),
    Refused(AskCheckpoint(JOB, 0), "no", True), Refused(Requeue(JOB, 0), "no", True), Refused(Requeue(JOB, 0), "no", False),
    Refused(Update(JOB, LARGE, LIMITS.park_s), "busy", True), Refused(Release(JOB), "busy", True),
)  # fmt: skip


def lives(state: ResizeState) -> list[JobLifecycle]:
    made = (
        JobLifecycle(
            JOB, 0.0, state, NOW_S - 2, target=target, origin=SMALL, sent_s=sent_s, asked_s=asked_s, ended_s=ended_s,
            retry_after_s=retry_s, stopping=target is None, failures=LaunchFailures(nodes=("n1",), until_s=NOW_S + 30),
        )
        for target, (sent_s, asked_s), (ended_s, retry_s) in product(
            (LARGE, None), ((0.0, 0.0), (NOW_S - 1, NOW_S - 1), (NOW_S - 1, NOW_S - 50)), ((0.0, 0.0), (NOW_S - 1, NOW_S + 100))
        )
    )  # fmt: skip
    return [life for life in made if not validate(life)]


@pytest.mark.slow
@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
@pytest.mark.parametrize("state", ResizeState)
def test_in_every_state_all_goes_on_as_if_the_clock_had_not_been_set(state: ResizeState, by_s: float) -> None:
    for life, event, later_s in product(lives(state), EVENTS, (0.0, 30.0, 200.0)):
        usual = advance(life, event, NOW_S + later_s, LIMITS)
        set_ = advance(with_clock_set(life, by_s), event, NOW_S + later_s + by_s, LIMITS)
        assert set_.instructions == usual.instructions and set_.story == usual.story, (life, event, later_s)
        # start times are Slurm's
        assert replace(set_.life, written_start=None) == with_clock_set(replace(usual.life, written_start=None), by_s)


def test_every_time_of_a_life_is_moved() -> None:
    assert {f.name for f in fields(JobLifecycle) if f.name.endswith("_s")} == set(TIMES)


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_the_controller_keeps_and_stores_the_moved_times(by_s: float) -> None:
    controller = Controller(LIMITS, 15.0)
    life = JobLifecycle(JOB, 0.0, ResizeState.RUNNING, NOW_S - 10, retry_after_s=NOW_S + 100)
    report = Report(JOB, 0, 5, plan=Plan(), step_s=1.0, done=1.0, total=10.0)
    controller.restore([life], {}, {JOB: (report, NOW_S - 5)})
    (kept,) = controller.handle(ClockSet(by_s), NOW_S + by_s)
    tracked = controller.jobs[JOB]
    assert isinstance(kept, Remember) and kept.lifecycle == tracked.lifecycle and not kept.story
    assert tracked.lifecycle.retry_after_s == NOW_S + 100 + by_s and tracked.heard_s == NOW_S - 5 + by_s
    assert tracked.claim is not None and tracked.claim.heard_s == NOW_S - 5 + by_s
    tracked.short_since_s = NOW_S - 50
    set_clock(tracked, by_s)
    assert tracked.short_since_s == NOW_S - 50 + by_s
    assert set_clock(TrackedJob(lifecycle=JobLifecycle(2, 0.0)), by_s) == []


@pytest.mark.parametrize("state", ResizeState)
def test_a_clock_that_was_set_back_while_no_daemon_ran_prolongs_no_wait_by_more_than_itself(state: ResizeState) -> None:
    for life in lives(state):
        back = read_back(life, NOW_S - HOUR_S, LIMITS)
        assert validate(back) == "" and back.state is life.state
        assert wait_ends_s(back, LIMITS) <= NOW_S - HOUR_S + 2 * LIMITS.park_s or state not in (
            ResizeState.CHECKPOINTING,
            ResizeState.PARKED,
            ResizeState.RELEASED,
        )
        assert back.retry_after_s <= NOW_S - HOUR_S + LIMITS.retry_s
        assert back.failures.until_s <= NOW_S - HOUR_S + 240
        # no daemon took the report that it waits for, or was there to ask for the checkpoint
        unasked = state is ResizeState.CHECKPOINTING and not life.asked_s
        since_s = NOW_S if state is ResizeState.RESTARTING or unasked else life.since_s
        assert read_back(life, NOW_S, LIMITS) == replace(
            life,
            since_s=since_s,
            retry_after_s=min(life.retry_after_s, NOW_S + LIMITS.retry_s),
            must_leave=state is ResizeState.REQUEUING and bool(life.sent_s),
        )


def test_a_checkpoint_that_nobody_was_there_to_ask_for_is_asked_for_by_the_next_daemon() -> None:
    """However long the daemon was away: the job has not been asked yet, so it has missed nothing."""
    life = JobLifecycle(JOB, 0.0, ResizeState.CHECKPOINTING, NOW_S - HOUR_S, target=LARGE)
    late = advance(life, Tick(), NOW_S, LIMITS)
    assert late.life.state is ResizeState.RUNNING and not late.instructions, "this daemon had its time"
    back = advance(replace(read_back(life, NOW_S, LIMITS), sent_s=0.0), Tick(), NOW_S + 1, LIMITS)
    assert back.life.state is ResizeState.CHECKPOINTING and back.instructions == (AskCheckpoint(JOB, 0),)
    assert wait_ends_s(back.life, LIMITS) == NOW_S + LIMITS.checkpoint_timeout_s

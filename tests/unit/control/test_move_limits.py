"""When a running job is left alone, and what is counted of the changes that are under way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Directive, JobState, Profile

from synergyd.control.move_limits import (
    find_quiet_end_minute,
    is_changing,
    remaining_move_caps,
    with_move_limits,
    write_gib_s,
)
from synergyd.control.resize.events import Acknowledged, CarriedOut, Preempted, Wanted
from synergyd.control.resize.instructions import AskCheckpoint
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState
from synergyd.control.resize.machine import advance
from synergyd.control.resize.moves import DAY_S, NO_MOVES, Moves
from synergyd.control.tracked import TrackedJob
from synergyd.jobmodel.model.counts import parameters
from synergyd.jobmodel.model.spec import presets
from synergyd.scheduler.move_caps import NO_CAPS
from synergyd.settings import SETTINGS, Settings
from tests.unit.control.resize.resize_world import JOB, LARGE, LIMITS, SMALL
from tests.unit.control.test_controller import JOB as RUNS

NOW_S = 1_000_000.0
QUIET = Settings(quiet_hours=((480, 1080), (1350, 360)))
TWICE = Settings(max_resizes_per_day=2)
NIGHT, NOON, EVENING = 5, 720, 1200


@pytest.mark.parametrize(
    ("minute", "until"), [(479, None), (480, 1080), (1079, 1080), (1080, None), (1350, 360), (5, 360), (360, None)]
)
def test_a_span_may_pass_midnight(minute: int, until: int | None) -> None:
    assert find_quiet_end_minute(QUIET.quiet_hours, minute) == until


def test_in_quiet_hours_only_a_need_changes_a_running_job() -> None:
    fixed = with_move_limits(RUNS, NO_MOVES, QUIET, NOW_S, NOON).fixed
    assert fixed == "no running job is resized before 18:00 (QuietHours)"
    assert "06:00" in with_move_limits(RUNS, NO_MOVES, QUIET, NOW_S, NIGHT).fixed
    assert with_move_limits(RUNS, NO_MOVES, QUIET, NOW_S, EVENING) == RUNS
    assert with_move_limits(RUNS, NO_MOVES, Settings(), NOW_S, NOON) == RUNS
    for needed in (replace(RUNS, cut_s=NOW_S + 60), replace(RUNS, gives_back="plain jobs wait")):
        assert with_move_limits(needed, NO_MOVES, QUIET, NOW_S, NOON) == needed
    waits = replace(RUNS, state=JobState.PENDING, node_names=())
    assert with_move_limits(waits, NO_MOVES, QUIET, NOW_S, NOON) == waits
    other = replace(RUNS, fixed="why")
    assert with_move_limits(other, NO_MOVES, QUIET, NOW_S, NOON).fixed == "why"


def test_after_so_many_changes_within_a_day_a_job_is_left_alone() -> None:
    moves = Moves((NOW_S - DAY_S - 1, NOW_S - DAY_S + 600, NOW_S - 60))
    fixed = with_move_limits(RUNS, moves, TWICE, NOW_S, NOON).fixed
    assert fixed == "it was resized 2 times within a day (MaxResizesPerDay=2); again in 10 min"
    assert with_move_limits(RUNS, moves, TWICE, NOW_S + 600, NOON) == RUNS
    assert with_move_limits(RUNS, moves, Settings(max_resizes_per_day=3), NOW_S, NOON) == RUNS
    assert with_move_limits(replace(RUNS, gives_back="plain jobs wait"), moves, TWICE, NOW_S, NOON).fixed == ""


def test_a_reservation_far_ahead_is_no_need() -> None:
    far = replace(RUNS, cut_s=NOW_S + 86_400.0)
    assert "QuietHours" in with_move_limits(far, NO_MOVES, QUIET, NOW_S, NIGHT).fixed


def test_changes_from_under_a_clock_that_was_ahead_count_from_now() -> None:
    moves = Moves((NOW_S + 1e9, NOW_S + 2e9)).without_times_after(NOW_S)
    assert moves.again_s(2, NOW_S) == 86_400.0


def test_a_life_remembers_changes_that_were_begun_and_what_its_checkpoint_took() -> None:
    life = JobLifecycle(JOB, 0.0, ResizeState.RUNNING, NOW_S)
    asked = advance(life, Wanted(LARGE, "cause", 0, SMALL), NOW_S, LIMITS).life
    assert asked.moves.at_s == (NOW_S,)
    assert advance(life, Preempted("cause"), NOW_S, LIMITS).life.moves.at_s == (NOW_S,)
    assert advance(life, Wanted(LARGE, "time", 0, SMALL, is_due=True), NOW_S, LIMITS).life.moves == NO_MOVES
    waits = JobLifecycle(JOB, 0.0, ResizeState.QUEUED, NOW_S)
    assert advance(waits, Wanted(LARGE, "start", 0, SMALL), NOW_S, LIMITS).life.moves == NO_MOVES
    told = advance(asked, CarriedOut(AskCheckpoint(JOB, 0)), NOW_S + 1, LIMITS).life
    done = advance(told, Acknowledged(0, 1), NOW_S + 31, LIMITS).life
    assert done.state is ResizeState.REQUEUING and done.moves.checkpoint_s == 30.0
    many = JobLifecycle(JOB, 0.0, moves=Moves(tuple(NOW_S + i for i in range(500))))
    assert len(many.moves.with_change(NOW_S + 500).at_s) == 100
    assert many.moves.with_change(NOW_S + 2 * DAY_S).at_s == (NOW_S + 2 * DAY_S,)


def test_starts_of_waiting_jobs_are_no_changes() -> None:
    held = JobLifecycle(JOB, 0.0, ResizeState.PARKED, NOW_S, target=LARGE)
    assert not is_changing(replace(held, origin=replace(SMALL, nodes=())))
    assert is_changing(replace(held, origin=replace(SMALL, nodes=("n1",))))
    assert is_changing(replace(held, state=ResizeState.CHECKPOINTING, origin=None))
    assert not is_changing(replace(held, state=ResizeState.RUNNING, origin=replace(SMALL, nodes=("n1",))))


def test_what_is_under_way_counts_with_the_rates_of_its_checkpoints() -> None:
    model = presets()["llama2-7b"]
    checkpoint_gib = parameters(model) * 14 / 2**30
    assert 80 < checkpoint_gib < 100
    writes = JobLifecycle(1, 0.0, ResizeState.CHECKPOINTING, NOW_S, target=LARGE, moves=Moves((), 10.0))
    known = TrackedJob(lifecycle=writes, profile=Profile(model=model), job=replace(RUNS, gives_back="plain jobs wait"))
    by_name = TrackedJob(lifecycle=replace(writes, job_id=2, state=ResizeState.RUNNING), job=replace(RUNS, job_id=2))
    named = replace(by_name, job=replace(RUNS, job_id=2, directive=Directive(model="Llama2-7B")))
    unknown = TrackedJob(lifecycle=replace(writes, job_id=3, moves=NO_MOVES), profile=Profile(model=model))
    assert write_gib_s(known) == write_gib_s(named) == pytest.approx(checkpoint_gib / 10)
    assert write_gib_s(by_name) is None and write_gib_s(unknown) is None

    caps = remaining_move_caps(
        {1: known, 2: named, 3: unknown}, Settings(max_resizes=4, max_checkpoint_gibps=20.0), NOW_S
    )
    assert (caps.most, caps.under_way, set(caps.urgent_jobs)) == (4, 2, {1})
    assert caps.writing_gib_s == pytest.approx(checkpoint_gib / 10 + 20.0)
    assert caps.rate(2) == pytest.approx(checkpoint_gib / 10) and caps.rate(3) == 20.0
    assert remaining_move_caps({1: known}, Settings(), NOW_S) is NO_CAPS


def test_spans_of_the_day_are_read_or_refused() -> None:
    kind = next(s for s in SETTINGS if s.key == "QuietHours").type
    assert kind.read("08:00-18:00,22:30-06:00") == QUIET.quiet_hours and kind.read("20:00-24:00") == ((1200, 1440),)
    for wrong in ("", "8-18", "08:00", "08:00-08:00", "25:00-26:00", "08:00-24:30", "08:00-18:00;", "aa:bb-cc:dd"):
        with pytest.raises(ValueError, match=r"^"):
            kind.read(wrong)
    count = next(s for s in SETTINGS if s.key == "MaxResizes").type
    assert (count.read("0"), count.read("12")) == (0, 12)
    for wrong in ("-1", "1.5", "many", "100000"):
        with pytest.raises(ValueError, match=r"^"):
            count.read(wrong)

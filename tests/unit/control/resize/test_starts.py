"""Starts that slurmd refused, and start times that others set."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synergyd.control.resize.events import CarriedOut, Observed, Refused
from synergyd.control.resize.instructions import LiftHold, Park, Release
from synergyd.control.resize.launch_failure import AVOID_S, LIFTS, NO_FAILURES, LastStart, after_failure
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState
from synergyd.control.resize.machine import advance
from synergyd.control.resize.start_time import SLACK_S, WrittenStart, after_seeing, after_writing, put_off_until_s
from tests.unit.control.resize.resize_world import FREE, JOB, LARGE, LIMITS, SMALL, World

NOW_S = 10_000.0


def release(world: World, target: object = LARGE) -> None:
    """Synergy decides a start, and Slurm has no room yet."""
    world.slurm.full = True
    if world.life.state is ResizeState.QUEUED:
        world.want(target)  # type: ignore[arg-type]
    while world.life.state is not ResizeState.RELEASED:
        world.round(1)


def start_fails(world: World, target: object = LARGE) -> None:
    """Synergy decides a start, and slurmd refuses it."""
    release(world, target)
    world.slurm.fail_launch(JOB)
    world.round(1)


# -- failed starts -------------------------------------------------------------------------------------------------


def test_the_hold_after_a_start_of_synergy_s_that_failed_is_lifted_and_the_job_starts_anew(world: World) -> None:
    start_fails(world)
    assert world.life.state is ResizeState.QUEUED and ["release", "1"] in world.slurm.calls
    job = world.slurm.jobs[JOB]
    assert job.priority and job.state == "PENDING" and (job.eligible_s or 0) > world.now_s + 30, "parked, not held"
    assert (world.life.failures.nodes, world.life.failures.until_s) == (("n1", "n2"), world.now_s + AVOID_S)
    assert f"its start on n1, n2 failed: tried again (1 of {LIFTS}), not on n1, n2 for 60 s" in world.story
    world.slurm.full = False
    world.want(SMALL)
    world.settle()
    assert world.life.incarnation == 1 and world.life.plan == SMALL.plan


def test_a_start_that_was_seen_running_and_then_failed_is_one_too(world: World) -> None:
    world.want(LARGE)
    world.settle()
    world.slurm.fail_launch(JOB)
    world.round(1)
    assert world.life.failures.count == 1 and world.slurm.jobs[JOB].priority


def test_a_release_whose_answer_was_lost_counts_as_the_start(world: World) -> None:
    world.reach(ResizeState.RESIZED)
    world.slurm.full = True
    world.slurm.set(JOB, state="RUNNING")
    world.slurm.fail_launch(JOB)
    world.tell(world.slurm.observe(JOB))
    assert world.life.state is ResizeState.QUEUED and world.slurm.jobs[JOB].priority
    assert world.life.failures.nodes == LARGE.nodes


def test_a_job_that_fails_again_and_again_is_left_held_by_slurm(world: World) -> None:
    for count in range(1, LIFTS + 1):
        start_fails(world, FREE)
        assert world.life.failures.count == count and world.slurm.jobs[JOB].priority, world.story
    start_fails(world, FREE)
    for _ in range(20):
        world.round(30)
    assert world.slurm.jobs[JOB].priority == 0
    assert sum(call[0] == "release" for call in world.slurm.calls) == LIFTS
    assert world.story[-1] == f"its start failed, as {LIFTS} before: held by Slurm until `scontrol release 1`"


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "BadConstraints"])
def test_a_hold_of_its_user_or_an_admin_stays(world: World, reason: str) -> None:
    world.slurm.set(JOB, priority=0, reason=reason)
    for _ in range(20):
        world.round(30)
    assert world.slurm.jobs[JOB].priority == 0 and world.slurm.calls == []


def test_a_start_that_was_not_synergy_s_is_left_as_slurm_has_it(world: World) -> None:
    world.start()
    world.slurm.fail_launch(JOB)
    for _ in range(5):
        world.round(30)
    assert world.slurm.jobs[JOB].priority == 0 and world.slurm.calls == []
    assert world.story[-1] == "a start that was not Synergy's failed: held by Slurm until `scontrol release 1`"


def test_a_hold_that_could_not_be_lifted_is_tried_again_and_told_once(world: World) -> None:
    world.slurm.refuse = {"release": ("no", False)}
    start_fails(world)
    for _ in range(5):
        world.round(LIMITS.resend_s)
    assert world.life.failures.count == 1 and sum("can't be lifted" in text for text in world.story) == 1
    world.slurm.refuse = {}
    for _ in range(2):
        world.round(LIMITS.resend_s)
    assert world.slurm.jobs[JOB].priority


def test_one_that_somebody_holds_meanwhile_is_not_released(world: World) -> None:
    world.slurm.set(JOB, priority=0, reason="JobHeldUser", restarts=1)
    assert world._carry_out(LiftHold(JOB, 1, 60)) == CarriedOut(LiftHold(JOB, 1, 60))
    world.slurm.set(JOB, reason="launch failed requeued held", restarts=2)
    assert world._carry_out(LiftHold(JOB, 1, 60)) == CarriedOut(LiftHold(JOB, 1, 60))
    assert world.slurm.calls == []


def test_late_answers_about_a_hold_move_nothing() -> None:
    lift = LiftHold(JOB, 1, 60)
    for state in ResizeState:
        life = JobLifecycle(JOB, 0.0, state, target=LARGE)
        for event in (CarriedOut(lift), Refused(lift, "no", True), Refused(lift, "no", False)):
            step = advance(life, event, NOW_S, LIMITS)
            assert not step.instructions and replace(step.life, attempts=0) == life


# -- starts without the GPUs, as Slurm 22.05 makes them at a takeover ---------------------------------------------


def begins_without_gpus(world: World, state: str) -> None:
    """The job was released, and slurmctld has started it on nodes that had not registered."""
    release(world)
    nodes = world.life.target.nodes if world.life.target else ()
    world.slurm.set(JOB, state=state, node_names=nodes, start_s=world.now_s)
    world.round(1)


@pytest.mark.parametrize("state", ["RUNNING", "FAILED"])
def test_a_job_that_slurm_started_without_its_gpus_is_requeued_and_released_again(world: World, state: str) -> None:
    begins_without_gpus(world, state)
    assert f"Slurm started it without its GPUs: requeued (1 of {LIFTS})" in world.story
    target, world.slurm.full = world.life.target, False
    world.settle()
    job = world.slurm.jobs[JOB]
    assert (job.state, job.restarts, world.life.incarnation) == ("RUNNING", 1, 1)
    assert target is not None and world.life.plan == target.plan
    assert sum(call[0] == "requeue" for call in world.slurm.calls) == 1


def test_one_that_always_starts_so_is_let_go(world: World) -> None:
    for _ in range(LIFTS):
        begins_without_gpus(world, "FAILED")
        assert world.life.state is not ResizeState.GONE
    begins_without_gpus(world, "FAILED")
    assert (world.life.state, world.slurm.jobs[JOB].state) == (ResizeState.GONE, "FAILED")
    assert sum(call[0] == "requeue" for call in world.slurm.calls) == LIFTS


def test_a_requeue_for_that_is_tried_again(world: World) -> None:
    world.slurm.refuse["requeue"] = ("Unable to contact slurm controller", True)
    begins_without_gpus(world, "FAILED")
    world.slurm.refuse.clear()
    world.round(3)
    assert world.slurm.jobs[JOB].state == "PENDING" and world.life.state is not ResizeState.GONE


@pytest.mark.parametrize(
    "changes", [{"tres_gpus": 4}, {"partition": "uncounted"}, {"state": "CANCELLED"}, {"state": "COMPLETED"}]
)
def test_one_that_had_its_gpus_or_was_cancelled_is_not(world: World, changes: dict[str, object]) -> None:
    release(world)
    calls = list(world.slurm.calls)
    world.slurm.set(JOB, **{"state": "FAILED", "node_names": ("n1",), "start_s": world.now_s, **changes})
    world.round(1)
    assert world.life.state is ResizeState.GONE and world.slurm.calls == calls


# -- whose start time ----------------------------------------------------------------------------------------------


def parked(seen_s: float | None = None) -> WrittenStart | None:
    """Parked at NOW_S for 900 s, in its incarnation 2; `seen_s`: as Slurm showed it next."""
    return after_seeing(after_writing(None, 2, NOW_S + 900), 2, seen_s)


@pytest.mark.parametrize(
    ("eligible_s", "put_off"),
    [
        (NOW_S + 901, None),
        (NOW_S + 900.4, None),
        (NOW_S + 904, NOW_S + 904),
        (NOW_S + 3600, NOW_S + 3600),
        (NOW_S + 300, NOW_S + 300),  # earlier than parked is the user's word as well
        (NOW_S, None),
        (NOW_S - 5000, None),
        (None, None),
    ],
)
def test_what_differs_from_what_was_written_is_the_user_s(eligible_s: float | None, put_off: float | None) -> None:
    assert put_off_until_s(parked(NOW_S + 901), 2, eligible_s, None, NOW_S) == put_off


def test_slurm_s_own_delay_after_a_requeue_is_nobody_s() -> None:
    assert put_off_until_s(parked(NOW_S + 901), 3, NOW_S + 121, None, NOW_S) is None
    assert put_off_until_s(None, 3, NOW_S + 121, None, NOW_S) is None


def test_before_the_first_parking_was_seen_what_was_there_before_is_not_the_user_s() -> None:
    assert put_off_until_s(parked(), 2, NOW_S + 121, None, NOW_S) is None  # by a daemon that did not see it
    known = after_writing(after_seeing(None, 2, NOW_S + 121), 2, NOW_S + 900)
    assert put_off_until_s(known, 2, NOW_S + 121, None, NOW_S) is None
    assert put_off_until_s(known, 2, NOW_S + 300, None, NOW_S) == NOW_S + 300


def test_the_start_time_of_sbatch_counts_until_synergy_has_written_one() -> None:
    assert put_off_until_s(None, 0, NOW_S + 500, NOW_S + 500, NOW_S) == NOW_S + 500
    assert put_off_until_s(None, 0, NOW_S - 1, NOW_S - 1, NOW_S) is None
    assert put_off_until_s(parked(NOW_S + 900), 2, NOW_S + 900, NOW_S + 900, NOW_S) is None


def test_a_parking_that_was_not_carried_out_leaves_the_one_before() -> None:
    again = after_writing(parked(NOW_S + 900), 2, NOW_S + 1800)
    for eligible_s in (NOW_S + 900, NOW_S + 1800, NOW_S + 1800 + SLACK_S):
        assert put_off_until_s(again, 2, eligible_s, None, NOW_S) is None
    assert put_off_until_s(again, 2, NOW_S + 1400, None, NOW_S) == NOW_S + 1400
    thrice = after_writing(again, 2, NOW_S + 1860)  # sent again, before an answer was seen
    for eligible_s in (NOW_S + 900, NOW_S + 1801, NOW_S + 1861):
        assert put_off_until_s(thrice, 2, eligible_s, None, NOW_S) is None


def test_all_that_is_written_is_remembered(world: World) -> None:
    world.reach(ResizeState.PARKED)
    assert world.life.written_start is not None and world.life.written_start.restarts == 1
    step = advance(world.life, Observed("PENDING", 1, world.now_s + 5), world.now_s, LIMITS)
    assert isinstance(step.instructions[0], Park)
    written = step.life.written_start
    assert written is not None and written.is_ours(world.now_s + LIMITS.park_s)
    resized = JobLifecycle(JOB, 0.0, ResizeState.RESIZED, target=LARGE, written_start=parked(NOW_S + 900))
    released = advance(resized, Refused(Release(JOB), "busy", True), NOW_S, LIMITS).life
    assert released.written_start == resized.written_start


@pytest.mark.parametrize(("restarts", "lifted"), [(2, True), (3, True), (1, False), (4, False)])
def test_a_killed_slurmctld_may_have_forgotten_a_requeue(restarts: int, lifted: bool) -> None:
    """It started incarnation 2 with what it had saved before, and counted the requeue after the failure as the second."""
    failures, _ = after_failure(NO_FAILURES, LastStart(restarts=2), restarts, 100.0, JOB)
    assert failures.lifted is lifted

"""The resize state machine in every state: users, nodes that fail, daemons that die."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Plan

from synergyd.control.clock_set import read_back
from synergyd.control.resize.events import (
    Acknowledged,
    CarriedOut,
    Observed,
    Refused,
    Tick,
    Wanted,
)
from synergyd.control.resize.instructions import Park, Release, Requeue
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState
from synergyd.control.resize.machine import advance
from synergyd.control.resize.mechanism import RESTART
from tests.unit.control.resize.resize_world import JOB, LARGE, LIMITS, OTHER, RESIZING, SMALL, World, has

# -- the usual course ----------------------------------------------------------------------------------------------
# -- in every state: the user, nodes, the daemon -------------------------------------------------------------------


@pytest.mark.parametrize("state", [ResizeState.QUEUED, ResizeState.RUNNING, *RESIZING])
def test_a_job_cancelled_in_any_state_is_gone(world: World, state: ResizeState) -> None:
    _bring(world, state)
    world.slurm.cancel(JOB)
    written = len(world.slurm.calls)
    world.settle()
    assert world.life.state is ResizeState.GONE
    assert f"left the queue while {state}" in world.story[-1] or state is ResizeState.CHECKPOINTING
    assert all(call[0] != "requeue" for call in world.slurm.calls[written:]), "a finished job must not run again"
    written = len(world.slurm.calls)
    for event in (Tick(), Wanted(SMALL, "x"), Acknowledged(5, 5), Observed("RUNNING", 9)):
        world.tell(event)
    assert len(world.slurm.calls) == written and world.life.state is ResizeState.GONE


@pytest.mark.parametrize("state", [ResizeState.RUNNING, ResizeState.CHECKPOINTING, ResizeState.REQUEUING])
@pytest.mark.parametrize("by", ["node failure", "user requeue"])
def test_a_job_requeued_by_others_in_any_running_state_comes_back(world: World, state: ResizeState, by: str) -> None:
    _bring(world, state)
    world.slurm.end(JOB, again=True)
    requeued = list(world.slurm.requeued)
    world.settle()
    assert world.slurm.requeued == requeued, "it is not ended a second time"
    assert world.life.incarnation == 1
    assert world.life.plan == (None if state is ResizeState.RUNNING else LARGE.plan)


@pytest.mark.parametrize("state", [ResizeState.RUNNING, ResizeState.CHECKPOINTING, ResizeState.REQUEUING])
def test_a_job_that_restarted_between_two_observations_is_not_requeued_for_the_old_request(
    world: World, state: ResizeState
) -> None:
    _bring(world, state)
    if state is ResizeState.REQUEUING:
        world.slurm.requeued.clear()
    world.slurm.set(JOB, state="RUNNING", restarts=1)
    world.slurm._ends.clear()
    world.acks[0] = 99
    world.old_report()
    world.settle()
    assert world.slurm.requeued == [] and world.life.incarnation == 1


@pytest.mark.parametrize("state", [ResizeState.PARKED, ResizeState.RESIZED, ResizeState.RELEASED])
def test_a_node_of_the_new_size_fails_after_the_start(world: World, state: ResizeState) -> None:
    _bring(world, state)
    world.settle()
    world.slurm.end(JOB, again=True)
    world.slurm.pass_time(5)
    world.tell(world.slurm.observe(JOB))
    assert world.life.state is ResizeState.QUEUED and world.life.target is None
    world.settle()
    assert world.life.incarnation == 2


@pytest.mark.parametrize("state", [ResizeState.QUEUED, ResizeState.RUNNING, *RESIZING])
@pytest.mark.parametrize("away_s", [0.0, 20.0, 500.0])
def test_a_daemon_killed_in_any_state_goes_on_from_what_it_stored(
    world: World, state: ResizeState, away_s: float
) -> None:
    _bring(world, state)
    world.kill_daemon()
    world.slurm.pass_time(away_s)
    world.settle()
    assert len(world.slurm.requeued) <= 1 and world.life.incarnation <= 1


@pytest.mark.parametrize("state", RESIZING)
def test_a_daemon_that_never_comes_back_leaves_a_job_that_runs(world: World, state: ResizeState) -> None:
    _bring(world, state)
    world.slurm.pass_time(1)
    world.slurm.pass_time(300)
    assert world.slurm.jobs[JOB].state in ("RUNNING", "PENDING")
    world.slurm.pass_time(300)
    assert world.slurm.jobs[JOB].state == "RUNNING"


@pytest.mark.parametrize("state", RESIZING)
def test_a_daemon_killed_before_it_stored_anything_of_the_resize(world: World, state: ResizeState) -> None:
    world.start()
    world.store_away = True
    world.reach(state)
    world.kill_daemon()
    assert world.life.state is ResizeState.RUNNING
    world.settle()


@pytest.mark.parametrize("state", RESIZING)
def test_lost_answers_are_mended_by_sending_again(world: World, state: ResizeState) -> None:
    _bring(world, state)
    world.lose_answers = True
    for _ in range(3):
        world.round(2)
    world.settle()
    assert len(world.slurm.requeued) <= 1
    if state is not ResizeState.CHECKPOINTING:
        assert world.life.plan in (LARGE.plan, SMALL.plan, OTHER.plan, None)


def test_a_lost_answer_to_the_release_is_no_failure(world: World) -> None:
    world.reach(ResizeState.RESIZED)
    world.tell(world._carry_out(Park(JOB, 0)))
    world._carry_out(Release(JOB))  # the daemon dies before it hears of it
    world.kill_daemon()
    world.slurm.pass_time(5)
    world.tell(world.slurm.observe(JOB))
    assert world.life.state is ResizeState.RUNNING and world.life.plan == LARGE.plan and world.life.retry_after_s == 0
    assert "started with its new size" in world.story[-1]


def test_a_release_that_took_effect_is_not_parked_again(world: World) -> None:
    world.reach(ResizeState.RESIZED)
    world._carry_out(Release(JOB))
    world.slurm.full = True
    world.tell(world.slurm.observe(JOB))
    assert world.life.state is ResizeState.RELEASED
    assert world.slurm.jobs[JOB].eligible_s == world.now_s


def test_the_parking_is_renewed_while_the_size_is_not_set(world: World) -> None:
    world.reach(ResizeState.PARKED)
    for left, renewed in ((25.0, False), (15.0, True)):
        step = advance(world.life, Observed("PENDING", 1, world.now_s + left), world.now_s, LIMITS)
        assert step.instructions == ((Park(JOB, LIMITS.park_s),) if renewed else ())


def test_a_job_that_starts_before_its_size_is_complete_runs_on_as_a_plain_one(world: World) -> None:
    world.reach(ResizeState.PARKED)
    world.slurm.pass_time(1000)
    world.tell(world.slurm.observe(JOB))
    assert world.life.state is ResizeState.RUNNING and world.life.plan is None and world.life.target is None
    told = len(world.story)
    world.want(LARGE)
    assert len(world.story) == told, "a job that has just restarted is left alone for a while"


def test_a_released_job_that_does_not_start_waits_for_a_new_decision(world: World) -> None:
    world.slurm.full = True
    world.want(LARGE)
    while world.life.state is ResizeState.RELEASED:
        world.round()
    assert world.life.state is ResizeState.QUEUED and world.life.target is None
    world.slurm.full = False
    world.want(SMALL)
    world.settle()
    assert has(world) == (1, "gres:gpu:2", "n1")


def test_a_suspended_job_is_not_waited_for(world: World) -> None:
    world.start()
    world.want(LARGE)
    world.suspend()
    for _ in range(20):
        world.round()
    assert world.slurm.requeued == [] and world.life.state is ResizeState.RUNNING


def test_a_user_s_hold_in_mid_resize_is_respected(world: World) -> None:
    world.reach(ResizeState.PARKED)
    world.hold()
    for _ in range(40):
        world.round()
    assert world.life.state is ResizeState.QUEUED and world.slurm.jobs[JOB].state == "PENDING"
    world.hold()
    world.settle()


def test_a_size_set_by_half_is_seen(world: World) -> None:
    world.slurm.ignore = {"ReqNodeList"}
    world.start()
    world.want(LARGE)
    world.checkpoint()
    world.settle()
    assert any("read back ReqNodeList empty, wanted n1,n2" in t for t in world.story)
    assert has(world) == (1, "gres:gpu:2", "")


def _bring(world: World, state: ResizeState) -> None:
    if state is ResizeState.QUEUED:
        world.slurm.full = True
        world.round()
    elif state is ResizeState.RUNNING:
        world.start()
    else:
        world.reach(state)
    assert world.life.state is state


# -- validate ------------------------------------------------------------------------------------------------------


# -- a requeue whose end nobody has seen -------------------------------------------------------------------------------


def requeuing() -> JobLifecycle:
    """A job whose requeue was sent at 100 s: its checkpoint is complete."""
    plan = Plan(dp=2, global_batch=8)
    return JobLifecycle(
        JOB, 0.0, ResizeState.REQUEUING, since_s=100.0, sent_s=100.0, target=LARGE, origin=SMALL, plan=plan
    )


def sent_again(life: JobLifecycle) -> Requeue:
    """The requeue as it is sent a minute later, while Slurm still shows the job as running."""
    (instruction,) = advance(life, Tick(), 160.0, LIMITS).instructions
    assert isinstance(instruction, Requeue)
    return instruction


def test_a_requeue_that_slurm_has_taken_is_made_good_even_without_a_place() -> None:
    """A slurmctld that is killed then shows the job as running, though its processes were ended."""
    life = requeuing()
    assert sent_again(life).may_stay, "nothing is known to have ended"
    first = RESTART.instruction(life, LIMITS)
    assert isinstance(first, Requeue)
    taken = advance(life, CarriedOut(first), 101.0, LIMITS).life
    assert (taken.state, sent_again(taken).may_stay) == (ResizeState.REQUEUING, False)
    unanswered = Refused(first, "Connection reset by peer", transient=True, unsure=True)
    assert not sent_again(advance(life, unanswered, 101.0, LIMITS).life).may_stay
    refused = Refused(first, "another job restarts there", transient=True)
    assert sent_again(advance(life, refused, 101.0, LIMITS).life).may_stay
    assert not sent_again(read_back(life, 150.0, LIMITS)).may_stay, "the daemon that sent it is gone"


def test_a_job_that_starts_again_in_the_middle_of_its_requeue_and_fails_is_run_once_more() -> None:
    """Slurm may have started it without its GPUs: its script fails before it trains."""
    life = replace(requeuing(), launched_incarnation=0, ran=SMALL)
    runs = advance(life, Observed("RUNNING", 1), 110.0, LIMITS).life
    assert runs.state is ResizeState.RUNNING
    again = advance(runs, Observed("GONE", 1, failed=True), 120.0, LIMITS)
    assert again.life.state is ResizeState.REQUEUING and again.life.target == SMALL
    assert again.instructions == (Requeue(JOB, 1, failed=True),)

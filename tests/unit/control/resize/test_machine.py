"""The resize state machine: the usual course, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synergyd.control.resize.events import (
    Acknowledged,
    Observed,
    Preempted,
    Refused,
    Unwanted,
    Wanted,
)
from synergyd.control.resize.instructions import Update
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState
from synergyd.control.resize.machine import advance
from tests.unit.control.resize.resize_world import FREE, JOB, LARGE, LIMITS, SMALL, World, has, sent

# -- the usual course ----------------------------------------------------------------------------------------------


def test_a_pending_job_is_started_with_its_size_and_plan(world: World) -> None:
    world.slurm.full = True
    world.want(LARGE)
    world.slurm.full = False
    world.settle()
    assert has(world) == (2, "gres:gpu:2", "n1,n2")
    assert world.life.plan == LARGE.plan
    assert [t.partition(":")[0] for t in world.story] == [
        "start decided",
        "size set and read back",
        "released",
        "started with its new size",
    ]
    assert world.slurm.requeued == [] and world.slurm.signals == []


def test_a_running_job_is_resized_once_its_checkpoint_is_acknowledged(world: World) -> None:
    world.start()
    world.want(LARGE)
    assert world.life.state.name == "CHECKPOINTING" and world.slurm.requeued == []
    world.round(1)
    assert world.slurm.requeued == []
    world.checkpoint()
    assert world.life.state is ResizeState.REQUEUING and world.slurm.requeued == [(JOB, 0)]
    world.settle()
    assert has(world) == (2, "gres:gpu:2", "n1,n2")
    assert world.life.plan == LARGE.plan and world.life.incarnation == 1
    assert world.slurm.requeued == [(JOB, 0)]


def test_a_resize_takes_seconds_of_waiting_not_slurm_s_two_minutes(world: World) -> None:
    world.start()
    world.want(LARGE)
    world.checkpoint()
    asked_s = world.now_s
    while not world.settled:
        world.round(1)
    assert world.now_s - asked_s <= 10


@pytest.mark.parametrize("phase_s", [0.0, 0.2, 0.4, 0.6, 0.8, 0.99])
def test_no_start_follows_an_end_within_the_same_second(world: World, phase_s: float) -> None:
    """slurmd compares whole seconds: such a job is "already killed", and Slurm fails it."""
    world.start()
    world.slurm.pass_time(phase_s)
    world.want(LARGE)
    world.checkpoint()
    for _ in range(40):
        world.round(0.25)
    assert world.settled and world.slurm.jobs[JOB].restarts == 1, world.story
    assert world.now_s < 1000 + 20
    # and one that Slurm requeued itself, and that a decision follows at once
    world.slurm.end(JOB, again=True)
    while world.life.state is not ResizeState.QUEUED:
        world.round(0.25)
    world.want(SMALL)
    for _ in range(20):
        world.round(0.25)
    assert world.settled and world.slurm.jobs[JOB].restarts == 2, world.story


def test_without_acknowledgement_it_is_requeued_after_the_time_out_and_says_so(world: World) -> None:
    world.start()
    world.want(LARGE)
    asked_s = world.now_s
    while not world.slurm.requeued:
        world.round(5)
    assert world.now_s - asked_s == LIMITS.checkpoint_timeout_s
    assert any("no checkpoint acknowledged within 30 s" in t for t in world.story)
    world.settle()
    assert world.life.plan == LARGE.plan


@pytest.mark.parametrize("restarts, count", [(0, 4), (0, 3), (1, 9)])
def test_old_or_foreign_acknowledgements_do_not_count(restarts: int, count: int) -> None:
    life = replace(JobLifecycle(JOB, 0.0, ResizeState.CHECKPOINTING, target=LARGE), acks_at_request=4)
    step = advance(life, Acknowledged(restarts, count), 1.0, LIMITS)
    assert step.life == life and step.instructions == ()


def test_a_job_that_could_never_be_asked_is_not_requeued(world: World) -> None:
    """A daemon that was away longer than the time-out must not take silence for the job's answer."""
    world.start()
    world.lose_instructions = True
    world.want(LARGE)
    world.lose_instructions = False
    world.slurm.pass_time(10 * LIMITS.checkpoint_timeout_s)
    world.kill_daemon()
    world.round()
    assert world.slurm.requeued == [] and world.life.state is ResizeState.RUNNING
    assert "could not be asked" in world.story[-1]
    world.settle()


def test_a_newer_decision_takes_the_request_back_before_the_requeue(world: World) -> None:
    world.start()
    world.want(LARGE)
    world.unwant()
    assert world.life.state is ResizeState.RUNNING and world.life.target is None
    world.checkpoint()  # the one asked for comes nevertheless
    for _ in range(20):
        world.round()
    assert world.slurm.requeued == [] and world.settled


def test_a_preempted_job_waits_for_a_decision_from_its_checkpoint_on(world: World) -> None:
    world.start()
    world.preempt()
    assert world.life.state.name == "CHECKPOINTING" and world.life.stopping and world.slurm.requeued == []
    world.checkpoint()
    assert world.slurm.requeued == [(JOB, 0)]
    world.round(8)
    assert world.life.state is ResizeState.QUEUED and not world.life.stopping
    for _ in range(3):
        world.round(2)
    assert (
        world.slurm.jobs[JOB].state == "PENDING" and sent(world, "update") == 1
    )  # parked, not left to start by itself
    assert (world.slurm.jobs[JOB].eligible_s or 0.0) > world.now_s + LIMITS.park_s / 2
    assert [t.partition(":")[0] for t in world.story[1:]] == [
        "preemption decided",
        "checkpoint acknowledged",
        "requeued",
    ]
    world.want(SMALL)
    world.settle()
    assert has(world) == (1, "gres:gpu:2", "n1") and world.life.incarnation == 1


def test_a_preempted_job_whose_daemon_dies_runs_again_as_a_plain_job(world: World) -> None:
    world.start()
    world.preempt()
    world.checkpoint()
    world.slurm.pass_time(LIMITS.park_s + 130)
    assert world.slurm.jobs[JOB].state == "RUNNING" and world.slurm.jobs[JOB].restarts == 1


def test_preemption_costs_no_work(world: World) -> None:
    """Without a checkpoint the job goes on, and is not asked again at once."""
    world.start()
    world.preempt()
    for _ in range(20):
        world.round()
    assert world.life.state is ResizeState.RUNNING and not world.life.stopping and world.slurm.requeued == []
    assert world.story[-1] == "no checkpoint acknowledged within 30 s: it goes on"
    asked = len(world.slurm.signals)
    again = advance(replace(world.life, retry_after_s=world.now_s + 1), Preempted("more"), world.now_s, LIMITS)
    assert again.life.state is ResizeState.RUNNING and again.instructions == () and len(world.slurm.signals) == asked
    # and each time later
    first_s = world.life.retry_after_s - world.now_s
    while world.life.unanswered_requests < 3:
        world.preempt()
        world.round(LIMITS.checkpoint_timeout_s)
    assert world.life.retry_after_s - world.now_s > 2 * first_s


@pytest.mark.parametrize("state", [ResizeState.PARKED, ResizeState.RESIZED, ResizeState.RELEASED])
def test_a_pending_job_whose_target_is_lost_waits_for_a_new_decision(state: ResizeState) -> None:
    step = advance(JobLifecycle(JOB, 0.0, state, target=LARGE, origin=SMALL), Unwanted("n2 is down"), 1.0, LIMITS)
    assert step.life.state is ResizeState.QUEUED and step.life.target is None and step.life.origin is None
    assert step.instructions == () and step.story == ("waits for a new decision: n2 is down",)


@pytest.mark.parametrize("state", [ResizeState.QUEUED, ResizeState.RUNNING, ResizeState.REQUEUING, ResizeState.GONE])
def test_unwanted_changes_nothing_else(state: ResizeState) -> None:
    life = JobLifecycle(JOB, 0.0, state, target=LARGE)
    assert advance(life, Unwanted("no"), 1.0, LIMITS).life == life


def test_a_job_that_lost_its_node_after_a_refused_update_starts_elsewhere_at_once() -> None:
    """Its larger size was refused, it went back to its old one, and that one's node is down."""
    life = JobLifecycle(JOB, 0.0, ResizeState.RELEASED, target=SMALL, origin=SMALL, retry_after_s=300.0)
    waits = advance(life, Unwanted("n1 can't take jobs now"), 1.0, LIMITS).life
    elsewhere = replace(SMALL, nodes=("n2",))
    started = advance(waits, Wanted(elsewhere, "cause", 0, SMALL), 2.0, LIMITS)
    assert (started.life.state, started.life.target) == (ResizeState.PARKED, elsewhere)


def test_a_new_decision_before_the_start_is_set_instead(world: World) -> None:
    world.slurm.full = True
    world.want(LARGE)
    assert world.life.state is ResizeState.RELEASED
    world.want(LARGE)
    assert sent(world, "update") == 3  # park, size, release; the same again changes nothing
    world.want(SMALL)
    world.settle()
    assert has(world) == (1, "gres:gpu:2", "n1") and world.life.plan == SMALL.plan


# -- refusals ------------------------------------------------------------------------------------------------------


def test_a_refused_size_falls_back_to_the_one_it_had(world: World) -> None:
    world.slurm.refuse["NumNodes=2-2"] = ("Requested partition configuration not available now", False)
    world.start()
    world.want(LARGE)
    world.checkpoint()
    world.settle()
    assert has(world) == (1, "gres:gpu:2", "")
    assert world.slurm.jobs[JOB].num_tasks == 1, "the task count that the refused update left is mended"
    assert world.life.plan is None, "it does not run with the plan that was refused"
    assert any("new size refused" in t and "back to 2 a100 GPUs on one node" in t for t in world.story)
    told = len(world.story)
    world.want(LARGE)
    assert len(world.story) == told, "the same is not tried again at once"


def test_a_refused_start_falls_back_to_the_size_of_its_sbatch(world: World) -> None:
    world.slurm.refuse["NumNodes=2-2"] = ("no", False)
    world.slurm.full = True
    world.want(LARGE)
    world.settle()
    assert has(world) == (1, "gres:gpu:2", "") and world.slurm.jobs[JOB].num_tasks == 1


def test_when_even_its_own_size_is_refused_it_starts_as_slurm_has_it(world: World) -> None:
    world.slurm.refuse["NumNodes="] = ("no", False)
    world.start()
    world.want(LARGE)
    world.checkpoint()
    world.settle()
    assert world.life.plan is None and world.life.incarnation == 1
    assert any("released as Slurm has it" in t for t in world.story)
    assert any("started with the size Slurm had for it" in t for t in world.story)


def test_a_refusal_called_transient_for_ever_does_not_hold_the_job_for_ever(world: World) -> None:
    world.slurm.refuse["NumNodes="] = ("busy", True)
    world.start()
    world.want(LARGE)
    world.checkpoint()
    requeued_s = world.now_s
    world.settle(rounds=60)
    assert world.now_s - requeued_s <= 3 * LIMITS.park_s


def test_a_refused_requeue_leaves_the_job_running_as_it_is(world: World) -> None:
    world.slurm.refuse["requeue"] = ("Requested operation is presently disabled", False)
    world.start()
    world.want(LARGE)
    world.checkpoint()
    for _ in range(LIMITS.attempts):
        world.round()
    assert world.settled and world.life.target is None and world.life.incarnation == 0
    assert "requeue refused, it goes on as it is" in world.story[-1]
    world.want(SMALL)
    assert world.life.state is ResizeState.RUNNING, "not tried again at once"


def test_a_refused_release_ends_when_the_parking_ends(world: World) -> None:
    world.reach(ResizeState.RESIZED)
    world.slurm.refuse["StartTime=now"] = ("Access denied", False)
    world.settle(rounds=30)
    assert world.life.incarnation == 1
    assert any("release refused" in t for t in world.story)


def test_a_checkpoint_that_cannot_be_asked_for_ends_the_resize(world: World) -> None:
    world.slurm.refuse["signal"] = ("Access denied", False)
    world.start()
    world.want(LARGE)
    assert world.settled and "could not be asked for" in world.story[-1]


def test_a_late_refusal_of_an_older_update_is_not_held_against_the_new_one() -> None:
    life = JobLifecycle(JOB, 0.0, ResizeState.PARKED, target=LARGE, origin=SMALL)
    old = Refused(Update(JOB, FREE, LIMITS.park_s), "no", False)
    for _ in range(5):
        life = advance(life, old, 1.0, LIMITS).life
    assert life.attempts == 0 and life.target == LARGE


def test_refusals_while_requeuing_do_not_shorten_the_update_s_tries() -> None:
    life = JobLifecycle(JOB, 0.0, ResizeState.REQUEUING, target=LARGE, attempts=LIMITS.attempts)
    assert advance(life, Observed("PENDING", 1, 100.0), 1.0, LIMITS).life.attempts == 0


def test_the_story_tells_of_a_slurmctld_that_is_away_once(world: World) -> None:
    world.reach(ResizeState.PARKED)
    told = len(world.story)
    world.slurm.away = True
    for _ in range(8):
        world.round()
    assert len(world.story) == told + 1 and "Unable to contact" in world.story[-1]
    world.settle()
    assert world.life.plan == LARGE.plan

"""The resize state machine: a story for each situation, and properties over thousands of random histories."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synergyd.control.events import (
    Acknowledged,
    CarriedOut,
    Observed,
    Preempted,
    Refused,
    ResizeEvent,
    Tick,
    Unwanted,
    Wanted,
)
from synergyd.control.instructions import AskCheckpoint, Instruction, Park, Release, Requeue, Target, Update
from synergyd.control.resize import IN_TRANSIT, JobLifecycle, ResizeState, ResizeTimes, advance, validate
from synergyd.records import Plan, Shape
from tests.unit.control.resize_world import FREE, JOB, LARGE, LIMITS, SMALL, TARGETS, World

RESIZING = (
    ResizeState.CHECKPOINTING,
    ResizeState.REQUEUING,
    ResizeState.HELD,
    ResizeState.RESIZED,
    ResizeState.RELEASED,
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def sent(world: World, verb: str) -> int:
    """How many writes of this kind Slurm got."""
    return sum(call[0] == verb for call in world.slurm.calls)


def has(world: World) -> tuple[int, str, str]:
    """The size that Slurm has for the job."""
    job = world.slurm.jobs[JOB]
    return job.num_nodes, job.tres_per_node, world.slurm.required.get(JOB, "")


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
    assert world.life.plan == LARGE.plan and world.life.restarts == 1
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
    life = replace(JobLifecycle(JOB, 0.0, ResizeState.CHECKPOINTING, target=LARGE), acks_before=4)
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
    assert has(world) == (1, "gres:gpu:2", "n1") and world.life.restarts == 1


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
    while world.life.unanswered < 3:
        world.preempt()
        world.round(LIMITS.checkpoint_timeout_s)
    assert world.life.retry_after_s - world.now_s > 2 * first_s


@pytest.mark.parametrize("state", [ResizeState.HELD, ResizeState.RESIZED, ResizeState.RELEASED])
def test_a_pending_job_whose_target_is_lost_waits_for_a_new_decision(state: ResizeState) -> None:
    step = advance(JobLifecycle(JOB, 0.0, state, target=LARGE, origin=SMALL), Unwanted("n2 is down"), 1.0, LIMITS)
    assert step.life.state is ResizeState.QUEUED and step.life.target is None and step.life.origin is None
    assert step.instructions == () and step.story == ("waits for a new decision: n2 is down",)


@pytest.mark.parametrize("state", [ResizeState.QUEUED, ResizeState.RUNNING, ResizeState.REQUEUING, ResizeState.GONE])
def test_unwanted_changes_nothing_else(state: ResizeState) -> None:
    life = JobLifecycle(JOB, 0.0, state, target=LARGE)
    assert advance(life, Unwanted("no"), 1.0, LIMITS).life == life


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
    assert world.life.plan is None and world.life.restarts == 1
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
    assert world.settled and world.life.target is None and world.life.restarts == 0
    assert "requeue refused, it goes on as it is" in world.story[-1]
    world.want(SMALL)
    assert world.life.state is ResizeState.RUNNING, "not tried again at once"


def test_a_refused_release_ends_when_the_parking_ends(world: World) -> None:
    world.reach(ResizeState.RESIZED)
    world.slurm.refuse["StartTime=now"] = ("Access denied", False)
    world.settle(rounds=30)
    assert world.life.restarts == 1
    assert any("release refused" in t for t in world.story)


def test_a_checkpoint_that_cannot_be_asked_for_ends_the_resize(world: World) -> None:
    world.slurm.refuse["signal"] = ("Access denied", False)
    world.start()
    world.want(LARGE)
    assert world.settled and "could not be asked for" in world.story[-1]


def test_a_late_refusal_of_an_older_update_is_not_held_against_the_new_one() -> None:
    life = JobLifecycle(JOB, 0.0, ResizeState.HELD, target=LARGE, origin=SMALL)
    old = Refused(Update(JOB, FREE, LIMITS.park_s), "no", False)
    for _ in range(5):
        life = advance(life, old, 1.0, LIMITS).life
    assert life.attempts == 0 and life.target == LARGE


def test_refusals_while_requeuing_do_not_shorten_the_update_s_tries() -> None:
    life = JobLifecycle(JOB, 0.0, ResizeState.REQUEUING, target=LARGE, attempts=LIMITS.attempts)
    assert advance(life, Observed("PENDING", 1, 100.0), 1.0, LIMITS).life.attempts == 0


def test_the_story_tells_of_a_slurmctld_that_is_away_once(world: World) -> None:
    world.reach(ResizeState.HELD)
    told = len(world.story)
    world.slurm.away = True
    for _ in range(8):
        world.round()
    assert len(world.story) == told + 1 and "Unable to contact" in world.story[-1]
    world.settle()
    assert world.life.plan == LARGE.plan


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
    assert world.life.restarts == 1
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
    assert world.slurm.requeued == [] and world.life.restarts == 1


@pytest.mark.parametrize("state", [ResizeState.HELD, ResizeState.RESIZED, ResizeState.RELEASED])
def test_a_node_of_the_new_size_fails_after_the_start(world: World, state: ResizeState) -> None:
    _bring(world, state)
    world.settle()
    world.slurm.end(JOB, again=True)
    world.slurm.pass_time(5)
    world.tell(world.slurm.observe(JOB))
    assert world.life.state is ResizeState.QUEUED and world.life.target is None
    world.settle()
    assert world.life.restarts == 2


@pytest.mark.parametrize("state", [ResizeState.QUEUED, ResizeState.RUNNING, *RESIZING])
@pytest.mark.parametrize("away_s", [0.0, 20.0, 500.0])
def test_a_daemon_killed_in_any_state_goes_on_from_what_it_stored(
    world: World, state: ResizeState, away_s: float
) -> None:
    _bring(world, state)
    world.kill_daemon()
    world.slurm.pass_time(away_s)
    world.settle()
    assert len(world.slurm.requeued) <= 1 and world.life.restarts <= 1


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
        assert world.life.plan in (LARGE.plan, None)


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
    world.reach(ResizeState.HELD)
    for left, renewed in ((25.0, False), (15.0, True)):
        step = advance(world.life, Observed("PENDING", 1, world.now_s + left), world.now_s, LIMITS)
        assert step.instructions == ((Park(JOB, LIMITS.park_s),) if renewed else ())


def test_a_job_that_starts_before_its_size_is_complete_runs_on_as_a_plain_one(world: World) -> None:
    world.reach(ResizeState.HELD)
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
    world.reach(ResizeState.HELD)
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


@pytest.mark.parametrize("state", [ResizeState.CHECKPOINTING, ResizeState.REQUEUING, ResizeState.HELD])
def test_a_stored_resize_without_target_is_refused(state: ResizeState) -> None:
    assert validate(JobLifecycle(JOB, 0.0, state)) == f"state {state} without a target"
    assert validate(JobLifecycle(JOB, 0.0, state, target=LARGE)) == ""


def test_negative_counts_are_refused() -> None:
    assert validate(JobLifecycle(JOB, 0.0, attempts=-1)) and validate(JobLifecycle(JOB, 0.0, restarts=-1))


def test_in_transit_are_the_states_of_a_resize() -> None:
    assert frozenset(RESIZING) == IN_TRANSIT


# -- properties ----------------------------------------------------------------------------------------------------

_targets = st.sampled_from([*TARGETS, Target(Shape("v100", 1, 1), ("n9",), Plan())])
_maybe = st.none() | _targets
_times = st.floats(0, 2000)
_lives = st.builds(
    JobLifecycle,
    job_id=st.just(JOB),
    submit_s=st.just(0.0),
    state=st.sampled_from(ResizeState),
    since_s=_times,
    restarts=st.integers(0, 3),
    target=_maybe,
    origin=_maybe,
    sent_s=_times,
    asked_s=_times,
    acks_before=st.integers(0, 3),
    attempts=st.integers(0, 4),
    retry_after_s=_times,
).filter(lambda life: validate(life) == "")
_instructions: st.SearchStrategy[Instruction] = st.one_of(
    st.builds(AskCheckpoint, st.just(JOB), st.integers(0, 3)),
    st.builds(Requeue, st.just(JOB), st.integers(0, 3)),
    st.builds(Park, st.just(JOB), st.just(LIMITS.park_s)),
    st.builds(Update, st.just(JOB), _targets, st.just(LIMITS.park_s)),
    st.builds(Release, st.just(JOB)),
)
_events: st.SearchStrategy[ResizeEvent] = st.one_of(
    st.builds(
        Observed,
        st.sampled_from(["PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "GONE", "", "NEW STATE"]),
        st.integers(0, 4),
        st.none() | _times,
    ),
    st.builds(Wanted, _targets, st.text(max_size=5), st.integers(0, 3), _maybe),
    st.builds(Unwanted, st.text(max_size=5)),
    st.builds(Acknowledged, st.integers(0, 3), st.integers(0, 4)),
    st.builds(CarriedOut, _instructions),
    st.builds(Refused, _instructions, st.text(max_size=5), st.booleans()),
    st.just(Tick()),
)


@settings(max_examples=200, deadline=None)
@given(_lives, _events, _times)
def test_any_event_in_any_valid_life_has_a_sound_answer(life: JobLifecycle, event: ResizeEvent, now_s: float) -> None:
    step = advance(life, event, now_s, LIMITS)
    assert validate(step.life) == ""
    assert (step.life.job_id, step.life.submit_s) == (life.job_id, life.submit_s)
    assert all(i.job_id == JOB for i in step.instructions)
    requeues = [i for i in step.instructions if isinstance(i, Requeue)]
    if requeues:
        assert step.life.state is ResizeState.REQUEUING
        assert [r.restarts for r in requeues] == [life.restarts]
    if life.state is ResizeState.GONE:
        assert step.life == life and not step.instructions
    if step.life.state is not life.state:
        assert step.story, "every move is told"


@settings(max_examples=60, deadline=None)
@given(_lives, _events, _times)
def test_an_event_told_twice_starts_nothing_twice(life: JobLifecycle, event: ResizeEvent, now_s: float) -> None:
    """What the same event at the same time adds is at most the same instruction, which says what should be."""
    once = advance(life, event, now_s, LIMITS)
    again = advance(once.life, event, now_s, LIMITS)
    restarts = {i.restarts for i in (*once.instructions, *again.instructions) if isinstance(i, Requeue)}
    assert len(restarts) <= 1


_Op = Callable[[World], object]
OPERATIONS: dict[str, _Op] = {
    "round": lambda w: w.round(),
    "long round": lambda w: w.round(25),
    "tick": lambda w: w.tell(Tick()),
    "want large": lambda w: w.want(LARGE),
    "want small": lambda w: w.want(SMALL),
    "want free": lambda w: w.want(FREE),
    "preempt": World.preempt,
    "unwant": World.unwant,
    "checkpoint": World.checkpoint,
    "unreported checkpoint": lambda w: w.checkpoint(report=False),
    "old report": World.old_report,
    "deliver": World.deliver,
    "kill daemon": World.kill_daemon,
    "daemon away": lambda w: w.slurm.pass_time(200),
    "cancel": lambda w: w.slurm.cancel(JOB),
    "node fails": lambda w: w.slurm.end(JOB, again=True),
    "job ends": lambda w: w.slurm.end(JOB, again=False),
    "suspend or resume": World.suspend,
    "hold or release": World.hold,
}
SWITCHES = (
    "lose_instructions",
    "lose_answers",
    "delay_instructions",
    "delay_answers",
    "twice",
    "store_away",
    "away",
    "full",
)
# What stays refused after the faults: even then no job may be lost or held for ever.
STUBBORN: dict[str, dict[str, tuple[str, bool]]] = {
    "nothing": {},
    "large": {"NumNodes=2-2": ("no", False)},
    "sizes": {"NumNodes=": ("no", False)},
    "sizes, called transient": {"NumNodes=": ("busy", True)},
    "requeue": {"requeue": ("no", False)},
    "requeue, called transient": {"requeue": ("busy", True)},
    "signal": {"signal": ("no", False)},
    "signal, called transient": {"signal": ("busy", True)},
    "release": {"StartTime=now ": ("no", False)},
    "all updates": {"update": ("no", False)},
    "all updates, called transient": {"update": ("busy", True)},
}
# mostly the usual course, so that histories get far before something happens
_usual = st.sampled_from(["round", "round", "want large", "want small", "preempt", "checkpoint", "round"])
_histories = st.lists(_usual | st.sampled_from([*OPERATIONS, *SWITCHES]), min_size=5, max_size=40)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_histories, st.sampled_from(sorted(STUBBORN)))
def test_whatever_happens_no_job_is_lost_held_for_ever_or_ended_unasked(history: list[str], stubborn: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.slurm.refuse = dict(STUBBORN[stubborn])
        for name in history:
            if name in SWITCHES:
                holder = world.slurm if name in ("away", "full") else world
                setattr(holder, name, not getattr(holder, name))
            else:
                OPERATIONS[name](world)
        world.settle(rounds=150)
        assert len(world.slurm.requeued) == len(set(world.slurm.requeued)), "one incarnation is ended at most once"


@pytest.mark.parametrize("state", RESIZING)
def test_two_faults_in_any_state(tmp_path: Path, state: ResizeState) -> None:
    before = ("kill daemon", "node fails", "daemon away", "hold or release", "suspend or resume")
    after = ("cancel", "kill daemon", "node fails", "away", "full", "daemon away")
    for faults in itertools.product(before, after):
        world = World(tmp_path)
        world.reach(state)
        for name in faults:
            if name in SWITCHES:
                setattr(world.slurm, name, True)
            else:
                OPERATIONS[name](world)
            world.round()
        world.settle(rounds=150)


@pytest.mark.parametrize("park_s", [3.0, 60.0, 900.0])
def test_the_parking_is_renewed_in_time_whatever_its_length(park_s: float) -> None:
    limits = ResizeTimes(park_s=park_s)
    life = JobLifecycle(JOB, 0.0, ResizeState.HELD, target=LARGE)
    renewed = [
        left for left in range(int(park_s) + 1) if advance(life, Observed("PENDING", 0, left), 0.0, limits).instructions
    ]
    assert renewed and max(renewed) <= park_s / 2

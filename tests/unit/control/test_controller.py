"""The controller over all jobs: what each event does, and what holds over ten thousand random histories."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from synergy_core.job_report import Report
from synergy_core.reasons import text_reason
from synergy_core.records import Action, Cell, Cluster, Decision, Directive, Job, JobState, Node, Plan, Shape, Snapshot

from synergyd.control.controller import Controller
from synergyd.control.resize.events import (
    BatchReviewed,
    CarriedOut,
    CheckpointTaken,
    DecisionUnblocked,
    EpochDecided,
    GpuTimeKnown,
    InstructionAnswered,
    JobDecided,
    JobObserved,
    NodesRead,
    Observed,
    QueueRead,
    Refused,
    ReportsReceived,
    SnapshotTaken,
    Tick,
    TimePassed,
)
from synergyd.control.resize.instructions import AskCheckpoint, Park, Release, Requeue, Target, Update
from synergyd.control.resize.lifecycle import (
    JobLifecycle,
    ResizeState,
    ResizeTimes,
    restart_ready_s,
    wait_ends_s,
)
from synergyd.control.resize.machine import advance
from synergyd.control.tracked import KeepReport, Output, ParkAgain, Remember, TellBatch
from tests.unit.control.controller_world import World

SMALL, LARGE = Shape("a100", 1, 2), Shape("a100", 1, 4)
PLAN = Plan(dp=2, global_batch=8)
CELL = Cell(LARGE, Plan(dp=4, global_batch=8), 2.0, 1.0, 2.0, 1.0, 0)
JOB = Job(1, "j", "u", 0, "", JobState.RUNNING, "", 0.0, 0.0, None, 0, SMALL, SMALL, ("n1",), directive=Directive())
RESIZE = Decision(1, Action.RESIZE, CELL, ("n1",), text_reason("why"))


def cluster(used: int = 2) -> Cluster:
    return Cluster((Node("n1", "a100", 4, used), Node("n2", "a100", 4, 0)))


def running(job: Job = JOB, used: int = 2) -> Controller:
    """A controller with one running job that has reported, after an epoch's snapshot at 100 s."""
    controller = Controller(ResizeTimes(), 60.0)
    controller.handle(JobObserved(job.job_id, 0.0, Observed(job.state.value, job.restarts)), 90.0)
    controller.handle(ReportsReceived((Report(1, job.restarts, 5, step_s=1.0, plan=PLAN),), job.restarts), 95.0)
    controller.handle(SnapshotTaken(Snapshot(100.0, cluster(used), (job,)), 60.0), 100.0)
    return controller


def instructions(outputs: list[Output]) -> list[Output]:
    return [o for o in outputs if not isinstance(o, Remember | KeepReport)]


def state(controller: Controller) -> ResizeState:
    return controller.jobs[1].lifecycle.state


def test_a_whole_resize_is_a_chain_of_events_and_instructions() -> None:
    controller = running()
    assert instructions(controller.handle(JobDecided(RESIZE), 100.0)) == [AskCheckpoint(1, 0)]
    assert instructions(controller.handle(InstructionAnswered(CarriedOut(AskCheckpoint(1, 0))), 100.0)) == []
    requeue = Requeue(1, 0, shield=("n1",), may_stay=True, target=Target(LARGE, ("n1",), CELL.plan))
    assert instructions(controller.handle(CheckpointTaken(1, 0, 1), 105.0)) == [requeue]
    pending = JobObserved(1, 0.0, Observed("PENDING", 1, 300.0))
    (update,) = instructions(controller.handle(pending, 110.0))
    assert isinstance(update, Update) and update.target.shape == LARGE
    # its last incarnation has just ended: it is released when Slurm takes it again
    assert instructions(controller.handle(InstructionAnswered(CarriedOut(update)), 110.5)) == []
    assert instructions(controller.handle(TimePassed(1), 112.0)) == [Release(1, first=True)]
    controller.handle(InstructionAnswered(CarriedOut(Release(1, first=True))), 112.0)
    controller.handle(JobObserved(1, 0.0, Observed("RUNNING", 1)), 113.0)
    assert state(controller) is ResizeState.RUNNING and controller.jobs[1].lifecycle.plan == CELL.plan
    events = [entry.event for entry in controller.story(1) if entry.was != entry.state]
    assert events == ["Observed", "Wanted", "Acknowledged", "Observed", "CarriedOut", "CarriedOut", "Observed"]


def test_each_line_of_a_story_names_the_event_that_caused_it() -> None:
    """Not the first of a chain: an update that was read back is no decision."""
    controller = Controller(ResizeTimes(), 60.0)
    job = replace(JOB, state=JobState.PENDING, node_names=(), start_s=None)
    controller.handle(JobObserved(1, 0.0, Observed("PENDING")), 90.0)
    controller.handle(SnapshotTaken(Snapshot(100.0, cluster(0), (job,)), 60.0), 100.0)
    first = controller.handle(JobDecided(replace(RESIZE, action=Action.START)), 100.0)
    (update,) = instructions(first)
    second = controller.handle(InstructionAnswered(CarriedOut(update)), 100.0)  # type: ignore[arg-type]
    events = [o.event for o in (*first, *second) if isinstance(o, Remember)]
    assert events == ["Wanted", "CarriedOut"]


def test_what_others_hold_waits_and_is_done_once_they_have_left() -> None:
    controller = running(used=4)
    assert instructions(controller.handle(JobDecided(RESIZE), 100.0)) == []
    assert controller.jobs[1].blocked_decision == RESIZE and controller.jobs_to_unblock(cluster(4), 101.0) == []
    assert controller.jobs_to_unblock(cluster(2), 101.0) == [1]
    assert instructions(controller.handle(DecisionUnblocked(1, JOB), 101.0)) == [AskCheckpoint(1, 0)]
    assert controller.handle(DecisionUnblocked(1, JOB), 101.0) == []  # once


def test_a_decision_that_waited_is_void_when_its_user_has_changed_the_job_or_an_epoch_has_passed() -> None:
    controller = running(used=4)
    controller.handle(JobDecided(RESIZE), 100.0)
    assert controller.handle(DecisionUnblocked(1, None), 101.0) == [] and controller.jobs[1].blocked_decision is None
    controller.handle(JobDecided(RESIZE), 160.0)
    controller.handle(EpochDecided(()), 160.0)
    assert controller.jobs_to_unblock(cluster(0), 161.0) == []


@pytest.mark.parametrize(
    "change", [{"directive": None}, {"paused": True}, {"held": True}], ids=["no directive", "paused", "held"]
)
def test_who_is_not_to_be_touched_is_not(change: dict[str, object]) -> None:
    job = replace(JOB, **change)  # type: ignore[arg-type]
    for action in Action:
        controller = running(job, used=0)
        cell = None if action is Action.WAIT else CELL
        assert instructions(controller.handle(JobDecided(replace(RESIZE, action=action, cell=cell)), 100.0)) == []


@pytest.mark.parametrize("paused", [False, True])
def test_a_job_that_need_not_make_way_any_more_goes_on(paused: bool) -> None:
    """In the simulator as in the daemon: both are shells over this."""
    controller = running()
    stop = Decision(1, Action.WAIT, None, (), text_reason("others gain more"))
    assert instructions(controller.handle(JobDecided(stop), 100.0)) == [AskCheckpoint(1, 0)]
    controller.handle(SnapshotTaken(Snapshot(160.0, cluster(), (replace(JOB, paused=paused),)), 60.0), 160.0)
    stays = Decision(1, Action.START, replace(CELL, shape=SMALL), ("n1",), text_reason("it may stay"))
    controller.handle(JobDecided(stop if paused else stays), 160.0)
    assert state(controller) is ResizeState.RUNNING and not controller.jobs[1].lifecycle.stopping


def test_a_job_fixed_at_its_own_size_keeps_its_own_degrees() -> None:
    controller = Controller(ResizeTimes(), 60.0)
    job = replace(JOB, state=JobState.PENDING, node_names=(), fixed="its directive says resize=no")
    controller.handle(JobObserved(1, 0.0, Observed("PENDING")), 90.0)
    controller.handle(SnapshotTaken(Snapshot(100.0, cluster(0), (job,)), 60.0), 100.0)
    (update,) = instructions(controller.handle(JobDecided(replace(RESIZE, action=Action.START)), 100.0))
    assert isinstance(update, Update) and update.target.plan is None


def test_who_waits_is_parked_first_by_itself_then_with_the_others() -> None:
    controller = Controller(ResizeTimes(), 60.0)
    job = replace(JOB, state=JobState.PENDING, node_names=())
    wait = JobDecided(Decision(1, Action.WAIT, None, (), text_reason("full")))
    for at_s, wanted in ((100.0, [Park(1, 900.0)]), (160.0, [ParkAgain(1, 900.0)])):
        controller.handle(JobObserved(1, 0.0, Observed("PENDING", 0, at_s)), at_s)
        controller.handle(SnapshotTaken(Snapshot(at_s, cluster(4), (job,)), 60.0), at_s)
        assert instructions(controller.handle(wait, at_s)) == wanted
        controller.handle(InstructionAnswered(CarriedOut(Park(1, 900.0))), at_s)
    assert instructions(controller.handle(replace(wait, schedulable=False), 220.0)) == []
    controller.handle(JobObserved(1, 0.0, Observed("PENDING", 0, 900.0)), 220.0)
    assert instructions(controller.handle(wait, 220.0)) == []  # it is far from starting


def test_a_refused_parking_is_tried_again_as_the_first() -> None:
    controller = Controller(ResizeTimes(), 60.0)
    controller.handle(JobObserved(1, 0.0, Observed("PENDING")), 100.0)
    controller.handle(SnapshotTaken(Snapshot(100.0, cluster(4), (replace(JOB, state=JobState.PENDING),)), 60.0), 100.0)
    controller.handle(InstructionAnswered(Refused(Park(1, 900.0), "away", transient=True)), 100.0)
    wait = JobDecided(Decision(1, Action.WAIT, None, (), text_reason("full")))
    assert instructions(controller.handle(wait, 100.0)) == [Park(1, 900.0)]


def test_what_slurm_calls_a_job_is_told_once() -> None:
    controller = running()
    for at_s in (160.0, 220.0):
        job = replace(JOB, slurm_name="70_3")
        outputs = controller.handle(SnapshotTaken(Snapshot(at_s, cluster(), (job,)), 60.0), at_s)
        lines = [line for o in outputs if isinstance(o, Remember) for line in o.story]
        assert lines == (["Slurm calls it 70_3"] if at_s == 160.0 else [])
    rest = replace(JOB, slurm_name="70_[5-9]")
    assert not controller.handle(SnapshotTaken(Snapshot(280.0, cluster(), (rest,)), 60.0), 280.0)


def test_a_lost_node_gives_up_what_aims_at_it() -> None:
    controller = running()
    controller.handle(JobDecided(RESIZE), 100.0)
    (remember,) = controller.handle(NodesRead(frozenset({"n2"})), 101.0)
    assert isinstance(remember, Remember) and "n1 can't take jobs now" in remember.story[0]
    assert state(controller) is ResizeState.RUNNING


def test_reports_of_another_incarnation_change_nothing() -> None:
    controller = running()
    before = controller.jobs[1].report
    for restarts in (1, 2, 99):
        assert controller.handle(ReportsReceived((Report(1, restarts, 9),), 0), 101.0) == []
    assert (
        controller.handle(ReportsReceived((Report(77, 0, 9),), 0), 101.0) == []
        and controller.handle(ReportsReceived((), 0), 1.0) == []
    )
    assert controller.jobs[1].report == before


def test_what_is_learnt_is_without_the_neighbours_share() -> None:
    speeds = []
    for slowdown, step_s in ((1.0, 0.5), (2.0, 1.0)):
        controller = running()
        controller.jobs[1].slowdown = slowdown
        controller.handle(ReportsReceived((Report(1, 0, 6, step_s=step_s, plan=PLAN),) * 3, 0, (0.5, 0), SMALL), 101.0)
        speeds.append(controller.profiles[1].measured[-1].step_s)
    assert speeds[0] == speeds[1]


def test_a_job_is_told_of_a_better_batch_once_and_the_story_says_so() -> None:
    job = replace(JOB, directive=Directive(global_batch=(8, 64)))
    controller = running(job)
    report = Report(1, 0, 6, step_s=1.0, plan=PLAN, noise_scale=1000.0, rebatching=True)
    controller.handle(ReportsReceived((report,), 0), 101.0)
    better = Cell(SMALL, replace(PLAN, micro_batch=8, global_batch=64), 64.0, 1.0, 64.0, 1.0, 0)
    told = controller.handle(BatchReviewed(1, (better,)), 101.0)
    assert [type(o) for o in told] == [Remember, TellBatch]
    assert [type(o) for o in controller.handle(BatchReviewed(1, (better,)), 161.0)] == [TellBatch]


def test_who_leaves_teaches_how_long_jobs_take_and_is_forgotten() -> None:
    controller = running()
    assert controller.jobs[1].attained_gpu_s == 120.0
    controller.handle(GpuTimeKnown(1, 200.0), 150.0)
    (gone,) = controller.handle(QueueRead(frozenset()), 160.0)
    assert isinstance(gone, Remember) and gone.lifecycle.state is ResizeState.GONE
    assert controller.jobs == {} and list(controller.durations._ended) == [100.0]
    assert controller.handle(TimePassed(1), 161.0) == controller.handle(JobDecided(RESIZE), 161.0) == []


def test_what_was_stored_goes_on_and_the_last_instruction_is_sent_again() -> None:
    controller = running()
    controller.handle(JobDecided(RESIZE), 100.0)
    again = Controller(ResizeTimes(), 60.0)
    report = controller.jobs[1].report
    assert report is not None
    again.restore(
        [controller.jobs[1].lifecycle], controller.profiles, {1: (report, 95.0), 2: (replace(report, job_id=2), 95.0)}
    )
    assert set(again.jobs) == {1} and again.jobs[1].profile == controller.jobs[1].profile
    assert instructions(again.handle(TimePassed(1), 101.0)) == [AskCheckpoint(1, 0)]
    again.handle(JobObserved(2, 0.0, Observed("RUNNING", 0)), 101.0)
    assert again.has_reported(2, 0) and not again.has_reported(2, 1)


def test_validate_finds_what_may_never_be() -> None:
    controller = running()
    assert controller.validate() == ""
    tracked = controller.jobs[1]
    wrong: list[dict[str, Any]] = [
        {"lifecycle": replace(tracked.lifecycle, state=ResizeState.GONE)},
        {"lifecycle": replace(tracked.lifecycle, state=ResizeState.PARKED)},
        {"lifecycle": replace(tracked.lifecycle, job_id=2)},
        {"blocked_decision": replace(RESIZE, job_id=2)},
        {"slowdown": 0.5},
    ]
    for change in wrong:
        controller.jobs[1] = replace(tracked, **change)
        assert controller.validate() != "", change


@pytest.mark.slow
@pytest.mark.timeout(1200)  # 72 s of processor time: a busy machine gives it a part of one core
def test_ten_thousand_random_histories() -> None:
    """Observations, reports, decisions, faults and restarts of the daemon, in any order (controller_world.py asserts)."""
    sent = 0
    for seed in range(10_000):
        world = World(seed)
        try:
            for _ in range(15):
                world.step()
            if seed % 5 == 0:
                world.calm()
        except Exception as error:
            raise AssertionError(f"history {seed}: {error}") from error
        sent += len(world.sent)
    assert sent > 25_000  # else the histories show nothing


def test_a_due_tick_is_never_a_rounding_error_too_early() -> None:
    """A tick at exactly the time that a state names moves it on, whatever floats are summed."""
    times = [0.1 * n + 1e6 / 7 for n in range(0, 4000, 7)]
    for at_s, delay_s in itertools.product(times[:80], (0.1, 1.7, 10.0 * 2 / 30, 10.0 / 3, 7.3)):
        limits = ResizeTimes(restart_delay_s=delay_s, release_timeout_s=delay_s, checkpoint_timeout_s=delay_s)
        resized = JobLifecycle(1, 0.0, ResizeState.RESIZED, at_s, ended_s=at_s)
        assert advance(resized, Tick(), restart_ready_s(resized, limits), limits).instructions == (Release(1),)
        released = JobLifecycle(1, 0.0, ResizeState.RELEASED, at_s)
        assert advance(released, Tick(), wait_ends_s(released, limits), limits).life.state is ResizeState.QUEUED

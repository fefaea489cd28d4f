"""Plans that failed: what is banned for whom, what a job goes back to, and how often."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from synergy_core.accepts import Accepts
from synergy_core.job_report import MAX_RETURNS, EarlyFailure, Fault, Report
from synergy_core.reasons import text_reason
from synergy_core.records import (
    Action,
    Cell,
    Cluster,
    Decision,
    Directive,
    Job,
    JobState,
    Node,
    Plan,
    Profile,
    Shape,
    Snapshot,
)

from synergyd.control.controller import Controller
from synergyd.control.failed_plans import NO_BANS, Bans, FailedPlans, fallback_target, needs_as_much
from synergyd.control.resize.events import JobObserved, Observed, ReportsReceived, SnapshotTaken
from synergyd.control.resize.instructions import AskCheckpoint, Requeue, Target
from synergyd.control.resize.lifecycle import ResizeState, ResizeTimes
from synergyd.control.resize_request import resize_request
from synergyd.control.state.size_changes import SizeChanges
from synergyd.control.tracked import KeepReport, Output, Remember

HAS, ASKED = Shape("a100", 1, 4), Shape("a100", 1, 2)
PLAN = Plan(tp=2, dp=2, global_batch=8)
JOB = Job(1, "gpt-7", "u", 0, "", JobState.RUNNING, "", 0.0, 0.0, None, 0, HAS, ASKED, ("n1",), directive=Directive())
EXIT = EarlyFailure(kind="exit", code=7, number=1, plan=PLAN)
MEMORY = replace(EXIT, kind="memory", code=1)


def cell(plan: Plan, gpu_type: str = "a100") -> Cell:
    return Cell(Shape(gpu_type, 1, plan.gpus), plan, 1.0, 1.0, 1.0, 1.0, 0)


def running(job: Job = JOB, plan: Plan | None = PLAN) -> Controller:
    """A controller with a job that runs with `plan`."""
    controller = Controller(ResizeTimes(), 60.0, size_changes=SizeChanges(assumed=True))
    controller.handle(JobObserved(1, 0.0, Observed("RUNNING", job.restarts)), 90.0)
    controller.jobs[1].lifecycle = replace(controller.jobs[1].lifecycle, plan=plan)
    nodes = (Node("n1", "a100", 4, 4),)
    controller.handle(SnapshotTaken(Snapshot(100.0, Cluster(nodes), (job,)), 60.0), 100.0)
    return controller


def tell(controller: Controller, step: int = 0, failure: EarlyFailure | None = None, **more: Any) -> list[Output]:
    report = Report(1, controller.jobs[1].lifecycle.incarnation, step, step_s=1.0, plan=PLAN, failure=failure)
    return controller.handle(ReportsReceived((report,), report.restarts, **more), 100.0)


def told(outputs: list[Output]) -> str:
    return "\n".join(line for o in outputs if isinstance(o, Remember) for line in o.story)


# -- bans ----------------------------------------------------------------------------------------------------------


def test_a_plan_is_banned_for_its_program_on_its_type() -> None:
    failed_plans = FailedPlans()
    stored = failed_plans.add(JOB, "a100", EXIT, None)
    bans = failed_plans.bans_for(replace(JOB, job_id=2, name="gpt-8"))
    assert bans.is_banned(cell(PLAN)) and bans.is_banned(cell(replace(PLAN, global_batch=64)))
    assert not bans.is_banned(cell(PLAN, "h100")) and not bans.is_banned(cell(replace(PLAN, tp=1, dp=4)))
    others: tuple[dict[str, Any], ...] = (
        {"name": "bert"},
        {"uid": 5},
        {"directive": Directive(model="llama2-7b")},
        {"directive": None},
    )
    assert all(failed_plans.bans_for(replace(JOB, **change)) == NO_BANS for change in others)
    after = FailedPlans()
    after.load({**stored, "job:1": Profile(), "failed:": Profile(), "failed:plan": Profile()})
    assert after.bans_for(JOB) == bans
    assert failed_plans.add(JOB, "a100", EXIT, None) == {}, "known"


def test_out_of_memory_rules_out_all_that_need_as_much() -> None:
    failed_plans = FailedPlans()
    failed_plans.add(JOB, "a100", MEMORY, 1.5)
    bans = failed_plans.bans_for(JOB)
    assert dict(bans.memory) == {"a100": pytest.approx(1.5, rel=0.001)} and bans.failed_plans == frozenset()
    assert bans.is_banned(cell(PLAN)) and bans.is_banned(cell(Plan(tp=1, dp=2, global_batch=8)))
    assert not bans.is_banned(cell(Plan(tp=4, dp=1, global_batch=8)))
    for wrong in (math.inf, math.nan, -1.0, None, 1.2):
        failed_plans.add(JOB, "a100", MEMORY, wrong)
        assert failed_plans.bans_for(JOB) == bans


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({}, True),
        ({"tp": 1}, True),
        ({"micro_batch": 2}, True),
        ({"zero_stage": 0, "dp": 8}, True),
        ({"tp": 4}, False),
        ({"pp": 2}, False),
        ({"dp": 4}, False),  # its optimizer is shared out among more
        ({"recompute": "full"}, False),
        ({"zero_stage": 3}, False),
        ({"precision": "fp8"}, False),
    ],
)
def test_which_plans_surely_need_as_much_memory(change: dict[str, Any], answer: bool) -> None:
    failed = Plan(tp=2, dp=2, global_batch=16)
    assert needs_as_much(replace(failed, **change), failed) is answer


def test_a_program_bans_a_bounded_number_of_plans() -> None:
    failed_plans = FailedPlans()
    for dp in range(1, 100):
        failed_plans.add(JOB, "a100", replace(EXIT, plan=Plan(dp=dp, global_batch=dp)), None)
    assert len(failed_plans.bans_for(JOB).failed_plans) == 16


# -- what a job goes back to ---------------------------------------------------------------------------------------


def test_back_to_what_ran_before_else_to_the_users_own() -> None:
    ran = Target(Shape("a100", 1, 1), (), Plan(global_batch=8))
    assert fallback_target(ran, PLAN, JOB) == ran
    assert fallback_target(None, PLAN, JOB) == fallback_target(Target(HAS, (), PLAN), PLAN, JOB) == Target(ASKED)


def test_a_job_whose_launcher_waits_is_requeued() -> None:
    controller = running()
    outputs = tell(controller, failure=EXIT)
    assert [o for o in outputs if isinstance(o, Requeue)] == [Requeue(1, 0)]
    assert not any(isinstance(o, AskCheckpoint) for o in outputs)
    life = controller.jobs[1].lifecycle
    assert (life.state, life.target, life.returns) == (ResizeState.REQUEUING, Target(ASKED), 1)
    assert "failed within its first steps (its own error, exit code 7)" in told(outputs)
    assert "requeued with 2 a100 GPUs" in told(outputs)
    assert [key for o in outputs if isinstance(o, KeepReport) for key in o.profiles if key.startswith("failed:plan:")]
    assert tell(controller, failure=EXIT)[1:] == [], "said once, whatever its launcher repeats"


def test_what_got_past_its_first_steps_is_gone_back_to() -> None:
    controller = running(plan=PLAN)
    for step in (0, 5, 10):
        tell(controller, step)
    assert controller.jobs[1].lifecycle.ran == Target(HAS, (), PLAN)
    other = replace(EXIT, plan=Plan(tp=4, global_batch=8))
    controller.jobs[1].lifecycle = replace(controller.jobs[1].lifecycle, plan=other.plan)
    tell(controller, 0, other)
    assert controller.jobs[1].lifecycle.target == Target(HAS, (), PLAN)


def test_a_job_that_goes_on_in_place_is_left_alone() -> None:
    controller = running()
    outputs = tell(controller, failure=replace(EXIT, goes_on=True))
    assert not any(isinstance(o, Requeue) for o in outputs) and "started again in place with its own" in told(outputs)
    life = controller.jobs[1].lifecycle
    assert (life.state, life.plan, life.returns) == (ResizeState.RUNNING, None, 1)


def test_a_script_that_is_broken_bans_nothing() -> None:
    controller = running()
    tell(controller, failure=replace(EXIT, goes_on=True))
    assert controller.failed_plans.bans_for(JOB) != NO_BANS
    outputs = tell(controller, failure=EarlyFailure(kind="exit", code=7, number=2))
    assert controller.failed_plans.bans_for(JOB) == Bans() and "under its own arguments" in told(outputs)


def test_a_failure_is_taken_in_only_once_slurm_shows_the_start() -> None:
    """Slurm's own view may be older than the job's word; the launcher repeats itself."""
    controller = running()
    life = controller.jobs[1].lifecycle
    controller.jobs[1].lifecycle = replace(life, state=ResizeState.RELEASED, target=Target(HAS, (), PLAN))
    assert told(tell(controller, failure=EXIT)) == ""
    controller.jobs[1].lifecycle = life
    controller.jobs[1].job = replace(JOB, state=JobState.PENDING, shape=ASKED)
    assert told(tell(controller, failure=EXIT)) == ""
    assert "requeued" in told(tell(controller, failure=EXIT, job=JOB))


def test_a_job_has_a_number_of_returns_and_keeps_its_size_then() -> None:
    controller = running()
    for number in range(1, MAX_RETURNS + 1):
        tell(controller, failure=replace(EXIT, number=number, goes_on=True))
    assert controller.jobs[1].lifecycle.returns == MAX_RETURNS
    outputs = tell(controller, failure=replace(EXIT, number=MAX_RETURNS + 1))
    assert not any(isinstance(o, Requeue) for o in outputs)
    for state in (JobState.RUNNING, JobState.PENDING):
        assert "failed" in controller.decidable_job(replace(JOB, state=state), 100.0).fixed


def test_a_job_whose_checkpoints_load_on_as_many_gpus_alone_keeps_its_size() -> None:
    controller = running()
    tracked = controller.jobs[1]
    tell(controller)
    assert controller.decidable_job(JOB, 100.0).fixed == ""
    tracked.profile = replace(tracked.profile or Profile(), accepts=Accepts(own_size=True))
    assert JOB.shape != JOB.asked
    for state in (JobState.RUNNING, JobState.PENDING):
        assert "at this size alone" in controller.decidable_job(replace(JOB, state=state), 100.0).fixed


@pytest.mark.parametrize(("own_size", "back"), [(False, ASKED), (True, HAS)])
def test_a_size_that_a_job_can_not_leave_is_where_it_goes_back_to(own_size: bool, back: Shape) -> None:
    controller = running()
    tell(controller)
    tracked = controller.jobs[1]
    tracked.profile = replace(tracked.profile or Profile(), accepts=Accepts(own_size=own_size))
    decided = Decision(1, Action.START, Cell(HAS, PLAN, 1.0, 1.0, 1.0, 1.0, 0), ("n1",), text_reason("Starts."))
    asked = resize_request(tracked, decided, JOB, Cluster(())).requested_target
    assert asked is not None and asked.shape == back
    unheard = replace(EXIT, plan=None)
    controller.handle(
        ReportsReceived((Report(1, 0, 0, failure=unheard),), 0), 100.0
    )  # it says nothing of what it accepts
    assert tracked.keeps_size is own_size
    told_now = Report(1, 0, 0, plan=PLAN, failure=replace(EXIT, number=2), accepts=Accepts(own_size=own_size))
    controller.handle(ReportsReceived((told_now,), 0), 100.0)
    target = controller.jobs[1].lifecycle.target
    assert target is not None and target.shape == back


def test_a_job_without_a_plan_left_starts_as_its_user_wrote_it() -> None:
    controller = running()
    controller.jobs[1].out_of_plans = True
    assert "have failed" in controller.decidable_job(replace(JOB, state=JobState.PENDING), 100.0).fixed


def test_one_that_fails_while_its_checkpoint_is_awaited_goes_where_it_was_going() -> None:
    controller = running()
    target = Target(Shape("a100", 2, 4))
    life = replace(controller.jobs[1].lifecycle, state=ResizeState.CHECKPOINTING, target=target)
    controller.jobs[1].lifecycle = life
    assert Requeue(1, 0) in tell(controller, failure=EXIT)
    assert controller.jobs[1].lifecycle.target == target


def test_a_failure_that_is_told_again_and_again_counts_once() -> None:
    controller = running()
    tell(controller, failure=replace(EXIT, number=2))
    before = controller.jobs[1].lifecycle
    for number in (1, 2, 1, 2):
        outputs = tell(controller, failure=replace(EXIT, number=number))
        assert not [o for o in outputs if isinstance(o, Remember)]
    assert controller.jobs[1].lifecycle == before


@pytest.mark.parametrize("trained_resized", [True, False])
def test_a_program_is_blamed_for_an_early_end_unless_it_has_trained_at_another_size(trained_resized: bool) -> None:
    """A slurmctld that has just started may start a job without its GPUs: then srun fails, and the script with it."""
    controller = running()
    tracked, plans = controller.jobs[1], controller.failed_plans
    before = replace(
        tracked.lifecycle,
        requested_target=Target(ASKED),
        ran=Target(HAS if trained_resized else ASKED),
        launched_incarnation=1,
    )
    tracked.lifecycle = before
    assert plans.ban_unresizable(tracked, before) == {} and not plans.bans_for(JOB).script
    tracked.lifecycle = replace(before, launched_incarnation=1, incarnation=2, reruns=1)
    stored = plans.ban_unresizable(tracked, before)
    assert bool(stored) is not trained_resized and plans.bans_for(JOB).script is not trained_resized
    # what an earlier daemon has banned is allowed again as soon as a job of the program trains at another size
    banned = FailedPlans()
    banned.load({key: profile for key, profile in stored.items()})
    tracked.lifecycle = replace(before, ran=Target(HAS))
    lifted = banned.ban_unresizable(tracked, before)
    assert not banned.bans_for(JOB).script and bool(lifted) is bool(stored)


@pytest.mark.parametrize(("kind", "is_banned"), [("oom", True), ("disk", False), ("gpu", False)])
def test_a_plan_is_not_banned_for_what_its_node_lacked(kind: str, is_banned: bool) -> None:
    controller = running()
    report = Report(1, 0, 0, step_s=1.0, plan=PLAN, failure=EXIT, fault=Fault(kind=kind, node="n1"))
    outputs = controller.handle(ReportsReceived((report,), 0), 100.0)
    kept = [key for o in outputs if isinstance(o, KeepReport) for key in o.profiles if key.startswith("failed:")]
    assert bool(kept) == is_banned
    assert "failed within its first steps" in told(outputs)

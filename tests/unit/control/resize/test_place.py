"""A running job's place while it is resized: pure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Plan, Shape

from synergyd.control.resize.events import (
    Acknowledged,
    CarriedOut,
    Hung,
    Observed,
    PlanFailed,
    Preempted,
    Refused,
    ResizeEvent,
    Tick,
    Unwanted,
    Wanted,
)
from synergyd.control.resize.instructions import (
    Instruction,
    LowerShield,
    Release,
    Requeue,
    RestoreNice,
    Target,
    Update,
)
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState, ResizeTimes, Step
from synergyd.control.resize.machine import advance

TIMES = ResizeTimes(restart_delay_s=0.0)
BEFORE = Target(Shape("a100", 1, 4), ("n1",), Plan(dp=4))
AFTER = Target(Shape("a100", 2, 4), ("n1", "n2"), Plan(dp=8))


class Run:
    """One job's life, event by event."""

    def __init__(self) -> None:
        self.life = JobLifecycle(1, 0.0, state=ResizeState.RUNNING, plan=BEFORE.plan)
        self.now_s = 100.0
        self.sent: list[Instruction] = []
        self.story: list[str] = []
        self.tell(Observed("RUNNING", 0, nice=7))

    def tell(self, *events: ResizeEvent) -> Step:
        for event in events:
            step = advance(self.life, event, self.now_s, TIMES)
            self.life, self.sent = step.life, list(step.instructions)
            self.story += step.story
        return step

    def requeue(self, target: Target = AFTER, **changes: object) -> Requeue:
        """Up to the requeue; returns it."""
        self.tell(replace(Wanted(target, "more", present=BEFORE), **changes), Acknowledged(0, 1))  # type: ignore[arg-type]
        assert self.life.state is ResizeState.REQUEUING
        (requeue,) = self.sent
        assert isinstance(requeue, Requeue)
        return requeue

    def released(self) -> None:
        self.requeue()
        self.tell(Observed("PENDING", 1, 900.0, nice=7))
        (update,) = self.sent
        assert isinstance(update, Update)
        self.tell(CarriedOut(update))
        assert self.sent == [Release(1, first=True)]
        self.tell(CarriedOut(self.sent[0]))
        assert self.life.state is ResizeState.RELEASED


def test_a_job_has_its_nodes_kept_and_comes_first_until_it_runs() -> None:
    run = Run()
    assert run.requeue() == Requeue(1, 0, shield=("n1", "n2"), may_stay=True, target=AFTER)
    run = Run()
    run.released()
    assert run.sent == [] and run.life.shielded_nodes == (), "its release has lowered the shield"
    run.tell(Observed("PENDING", 1, 50.0, nice=-2_000_000))
    run.tell(Observed("RUNNING", 1, nice=-2_000_000))
    assert run.sent == [RestoreNice(1, 7)] and run.life.state is ResizeState.RUNNING
    run.tell(Observed("RUNNING", 1, nice=-2_000_000))
    assert run.sent == [RestoreNice(1, 7)], "until Slurm shows it"
    run.tell(Observed("RUNNING", 1, nice=7))
    assert run.sent == [] and not run.life.comes_first
    run.tell(Observed("RUNNING", 1, nice=9))
    assert run.life.nice == 9, "what its user sets is its own"


def test_without_nodes_of_ours_those_that_it_has_are_kept() -> None:
    assert Run().requeue(replace(AFTER, nodes=())).shield == ("n1",)


@pytest.mark.parametrize(
    "event", [Observed("GONE", 1), Unwanted("n2 can't take jobs now"), Observed("RUNNING", 1, nice=7)]
)
def test_the_shield_goes_with_the_window(event: ResizeEvent) -> None:
    run = Run()
    run.requeue()
    run.tell(Observed("PENDING", 1, 900.0, nice=7), event)
    assert LowerShield(1) in run.sent and run.life.shielded_nodes == ()


def test_a_release_whose_answer_is_lost_leaves_no_shield() -> None:
    run = Run()
    run.requeue()
    run.tell(Observed("PENDING", 1, 900.0, nice=7))
    run.tell(CarriedOut(run.sent[0]))
    run.tell(Observed("PENDING", 1, 50.0, nice=-2_000_000))
    assert run.life.state is ResizeState.RELEASED and run.sent == [LowerShield(1)]


def test_a_job_that_would_not_start_again_goes_on_at_once() -> None:
    run = Run()
    requeue = run.requeue()
    run.tell(Refused(requeue, "its place: its partition main is DOWN", False, final=True))
    assert run.life.state is ResizeState.RUNNING and run.sent == [LowerShield(1)]
    assert run.story[-1] == "requeue refused, it goes on as it is: its place: its partition main is DOWN"
    assert run.life.retry_after_s > run.now_s


def test_a_job_that_waits_for_another_s_restart_is_asked_again_soon() -> None:
    run = Run()
    requeue = run.requeue()
    run.tell(Refused(requeue, "its place: n1 kept for job 2", True))
    run.now_s += 2.0
    run.tell(Tick())
    assert run.life.state is ResizeState.REQUEUING and run.sent == [requeue]


@pytest.mark.parametrize(
    "event", [PlanFailed(BEFORE, "its plan failed"), Hung(("n1",), 5, "it hung"), Observed("RUNNING", 0, gpuless=True)]
)
def test_a_job_that_can_not_go_on_is_requeued_whatever_comes_of_it(event: ResizeEvent) -> None:
    run = Run()
    if isinstance(event, Observed):
        run.life = replace(run.life, state=ResizeState.RELEASED)
    run.tell(event)
    (requeue,) = run.sent
    assert isinstance(requeue, Requeue) and not requeue.may_stay
    run.now_s += 60.0
    run.tell(Tick())
    assert isinstance(run.sent[0], Requeue) and not run.sent[0].may_stay


def test_its_time_limit_puts_it_off_for_nothing() -> None:
    assert not Run().requeue(BEFORE, is_due=True).may_stay


def test_one_that_makes_way_has_no_place_to_keep() -> None:
    run = Run()
    run.tell(Preempted("others"), Acknowledged(0, 1))
    assert run.sent == [Requeue(1, 0, may_stay=True)] and not run.life.comes_first


def test_contested_nodes_are_given_up_at_once() -> None:
    run = Run()
    run.released()
    run.tell(Tick(reason="Resources"))
    assert run.sent == [], "nobody has taken them"
    run.tell(Tick(reason="Resources", is_contested=True))
    (update,) = run.sent
    assert isinstance(update, Update) and update.target == replace(AFTER, nodes=())
    run.tell(CarriedOut(update))
    assert run.sent == [Release(1, first=True)]
    run.tell(CarriedOut(run.sent[0]), Tick(reason="Resources", is_contested=True))
    assert run.sent == [] and run.life.state is ResizeState.RELEASED

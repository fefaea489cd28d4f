"""A released job that Slurm does not start: one rung down at a time, never pinned twice to what was refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synergy_core.job_report import Report
from synergy_core.records import Cluster, Directive, Job, JobState, Node, Plan, Shape, Snapshot

from synergyd.control.controller import Controller
from synergyd.control.decidable import decidable_job
from synergyd.control.resize.events import (
    CarriedOut,
    NodesRead,
    Observed,
    Refused,
    ResizeEvent,
    SnapshotTaken,
    Tick,
    Wanted,
)
from synergyd.control.resize.instructions import Release, Target, Update
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState, Step, make_resize_times
from synergyd.control.resize.machine import advance
from synergyd.control.resize.start_refusal import (
    STALE_REASON_S,
    UNSEEN_S,
    Refusal,
    StartAttempt,
    has_room,
    is_refusal,
    is_waiting_its_turn,
    next_try,
)
from synergyd.control.tracked import TrackedJob
from synergyd.settings import Settings
from tests.unit.control.resize.resize_world import LIMITS

PINNED = Target(Shape("a100", 2, 2), ("n1", "n2"), Plan(dp=4, global_batch=8))
RAN = Target(Shape("a100", 1, 2), ("n1",), Plan(dp=2, global_batch=8))
ASKED = Target(Shape("a100", 1, 4))
UNTYPED = Target(Shape("", 1, 4))
OTHERS = replace(PINNED, nodes=("n2", "n3"))
NODES = tuple(Node(f"n{i}", "a100", 4) for i in (1, 2, 3))


def released(life: JobLifecycle, target: Target, now_s: float) -> JobLifecycle:
    """`life`, pending, on its way to `target`: updated and released."""
    life = advance(life, CarriedOut(Update(1, target, LIMITS.park_s)), now_s, LIMITS).life
    step = advance(life, CarriedOut(Release(1)), now_s, LIMITS)
    assert step.life.state is ResizeState.RELEASED, step
    return step.life


def wanted(
    life: JobLifecycle,
    target: Target,
    now_s: float,
    present: Target = ASKED,
    asked: Target = ASKED,
    any_nodes: bool = True,
) -> Step:
    return advance(
        life, Wanted(target, "x", present=present, requested_target=asked, any_nodes=any_nodes), now_s, LIMITS
    )


def refused(life: JobLifecycle, reason: str, now_s: float) -> Step:
    return advance(life, Observed("PENDING", reason=reason), now_s, LIMITS)


@pytest.mark.parametrize(
    "reason",
    [
        "BadConstraints",
        "AssocGrpGRES",
        "AssocGrpNodeLimit",
        "(ReqNodeNotAvail, UnavailableNodes:n1)",
        "PartitionConfig",
    ],
)
def test_a_refused_start_goes_down_the_ladder_to_slurm(reason: str) -> None:
    life, tried, now_s = JobLifecycle(1, 0.0), [PINNED], 100.0
    step = wanted(life, PINNED, now_s)
    while step.life.state is ResizeState.PARKED:
        assert step.life.target is not None
        life = released(step.life, step.life.target, now_s)
        assert refused(life, reason, now_s + STALE_REASON_S - 1).life.state is ResizeState.RELEASED, (
            "a reason of before"
        )
        now_s += STALE_REASON_S
        step = refused(life, reason, now_s)
        tried += [step.life.target] if step.life.target else []
    # other nodes are no answer to a limit of GPUs; it waits for its end as it was submitted, bound to no nodes
    below = {"AssocGrpGRES": [ASKED]}
    assert tried == [PINNED, *below.get(reason, [replace(PINNED, nodes=()), ASKED])]
    assert step.life.state is ResizeState.QUEUED and step.life.left_to_slurm_reason == reason
    assert "left to Slurm" in step.story[0] and reason in step.story[0]
    assert now_s <= 100 + 3 * STALE_REASON_S
    assert wanted(step.life, PINNED, now_s + 1e6).life.state is ResizeState.QUEUED, "for good"
    runs = advance(step.life, Observed("RUNNING"), now_s, LIMITS).life
    if reason.startswith("Assoc"):
        assert runs.left_to_slurm_reason == "", "a limit that was full is nothing of the job's own"
        return
    assert runs.left_to_slurm_reason == reason and wanted(runs, PINNED, now_s + 1e6).life.state is ResizeState.RUNNING


def test_a_job_that_ran_gets_the_size_back_that_it_had() -> None:
    running = replace(JobLifecycle(1, 0.0), state=ResizeState.RUNNING)
    step = wanted(running, PINNED, 0.0, present=RAN)
    step = advance(step.life, Observed("PENDING", restarts=1), 1.0, LIMITS)
    life = released(replace(step.life, ended_s=-10), PINNED, 2.0)
    step = refused(life, "BadConstraints", 10.0)
    assert step.life.target == replace(PINNED, nodes=())
    step = refused(released(step.life, replace(PINNED, nodes=()), 11.0), "BadConstraints", 20.0)
    assert step.life.target == replace(RAN, nodes=())
    started = advance(released(step.life, replace(RAN, nodes=()), 21.0), Observed("RUNNING", 1), 22.0, LIMITS).life
    assert (
        started.plan == RAN.plan
        and started.start_attempt is StartAttempt.AS_DECIDED
        and not started.left_to_slurm_reason
    )


def test_nodes_that_were_refused_are_not_pinned_again() -> None:
    life = released(wanted(JobLifecycle(1, 0.0), PINNED, 0.0).life, PINNED, 0.0)
    life = refused(life, "BadConstraints", 10.0).life
    life = released(life, replace(PINNED, nodes=()), 11.0)
    # others take the GPUs: a new decision, on the same nodes in another order
    life = advance(life, Tick(room=False, reason="Resources"), 11.0 + LIMITS.release_timeout_s, LIMITS).life
    assert life.state is ResizeState.QUEUED and not life.left_to_slurm_reason
    again = wanted(life, replace(PINNED, nodes=("n2", "n1")), 50.0).life
    assert again.target == replace(PINNED, nodes=()) and again.start_attempt is StartAttempt.ANY_NODES
    running = replace(life, state=ResizeState.RUNNING)
    assert wanted(running, PINNED, 50.0, RAN).life == running, "a job that runs is not stopped for them"
    assert wanted(life, OTHERS, 50.0).life.target == OTHERS


def test_a_start_whose_nodes_went_to_others_is_not_bound_to_nodes_again() -> None:
    life = released(wanted(JobLifecycle(1, 0.0), PINNED, 0.0).life, PINNED, 0.0)
    timeout_s = LIMITS.release_timeout_s
    unseen = advance(life, Tick(room=False, reason="None"), timeout_s, LIMITS).life
    assert wanted(unseen, PINNED, 50.0).life.target == PINNED, "Slurm has not looked at it"
    life = advance(life, Tick(room=False, reason="Priority"), timeout_s, LIMITS).life
    assert life.state is ResizeState.QUEUED and not life.refusals and not life.left_to_slurm_reason
    assert wanted(life, OTHERS, 50.0, any_nodes=False).life.target == OTHERS, "some nodes it must not have"
    again = wanted(life, OTHERS, 50.0).life
    assert again.target == replace(OTHERS, nodes=()) and again.start_attempt is StartAttempt.ANY_NODES
    runs = advance(released(again, replace(OTHERS, nodes=()), 51.0), Observed("RUNNING"), 52.0, LIMITS).life
    assert wanted(runs, PINNED, 100.0, again.target).life.target == PINNED


def test_a_limit_that_the_size_asked_for_is_beyond_leaves_the_job_to_slurm_bound_to_no_nodes() -> None:
    own = replace(PINNED, shape=ASKED.shape)
    life = released(wanted(JobLifecycle(1, 0.0), own, 0.0, asked=UNTYPED).life, own, 0.0)
    step = refused(life, "AssocGrpGRES", STALE_REASON_S)
    assert step.life.target == UNTYPED and step.life.start_attempt is StartAttempt.AS_ASKED
    step = refused(released(step.life, UNTYPED, 20.0), "AssocGrpGRES", 20.0 + STALE_REASON_S)
    assert step.life.state is ResizeState.QUEUED and step.life.left_to_slurm_reason == "AssocGrpGRES"
    more = Target(Shape("a100", 2, 4), ("n1", "n2"))
    life = released(wanted(JobLifecycle(1, 0.0), more, 0.0, asked=UNTYPED).life, more, 0.0)
    assert refused(life, "AssocGrpGRES", STALE_REASON_S).life.target == UNTYPED


def test_each_rung_is_waited_for_two_epochs() -> None:
    assert [make_resize_times(Settings(epoch_s=s)).release_timeout_s for s in (1.0, 5.0, 60.0)] == [10.0, 10.0, 120.0]


@pytest.mark.parametrize("reason", ["Resources", "Priority", "None", ""])
def test_a_job_whose_turn_it_is_not_waits_like_a_plain_one_and_for_slurms_first_look(reason: str) -> None:
    life = released(wanted(JobLifecycle(1, 0.0), PINNED, 0.0).life, PINNED, 0.0)
    assert refused(life, reason, 10.0).life == life
    waits_s = LIMITS.release_timeout_s if reason in ("Resources", "Priority") else UNSEEN_S
    assert advance(life, Tick(True, reason), waits_s - 1, LIMITS).life == life
    life = advance(life, Tick(True, reason), waits_s, LIMITS).life
    assert life.target == replace(PINNED, nodes=())
    life = released(life, replace(PINNED, nodes=()), 100.0)
    life = advance(life, Tick(True, reason), 100 + waits_s, LIMITS).life
    life = released(life, ASKED, 200.0)
    step = advance(life, Tick(True, reason), 200 + waits_s, LIMITS)
    assert step.life.left_to_slurm_reason and step.life.state is ResizeState.QUEUED
    # left to Slurm for this start alone: it was not the choice that was wrong
    assert advance(step.life, Observed("RUNNING"), 300.0, LIMITS).life.left_to_slurm_reason == ""


@pytest.mark.parametrize("reason", ["Resources", "Priority", ""])
@pytest.mark.parametrize("asked", [ASKED, UNTYPED])
def test_a_job_that_waits_its_turn_as_submitted_stays_in_slurms_queue(reason: str, asked: Target) -> None:
    """None of a type that its sbatch line does not name is written for it."""
    life = released(wanted(JobLifecycle(1, 0.0), ASKED, 0.0, asked=asked).life, ASKED, 0.0)
    step = advance(life, Tick(False, reason), LIMITS.release_timeout_s, LIMITS)
    assert step.life.state is ResizeState.QUEUED and step.life.left_to_slurm_reason and not step.life.refusals
    assert wanted(step.life, PINNED, 100.0).life == step.life, "nothing takes it out again"
    assert advance(step.life, Observed("RUNNING"), 200.0, LIMITS).life.left_to_slurm_reason == ""


@pytest.mark.parametrize("reason", ["Dependency", "BeginTime", "JobHeldUser", "PartitionDown", "Licenses"])
def test_what_is_not_of_size_or_nodes_is_no_refusal(reason: str) -> None:
    life = released(wanted(JobLifecycle(1, 0.0), PINNED, 0.0).life, PINNED, 0.0)
    assert refused(life, reason, 10.0).life == life
    step = advance(life, Tick(True, reason), LIMITS.release_timeout_s, LIMITS)
    assert step.life.state is ResizeState.QUEUED and not step.life.refusals and not step.life.left_to_slurm_reason


_targets = st.builds(
    Target,
    st.builds(Shape, st.just("a100"), st.integers(1, 2), st.integers(1, 2)),
    st.sampled_from([(), ("n1",), ("n1", "n2")]),
    st.none(),
)


@given(_targets, st.none() | _targets, st.none() | _targets)
def test_the_ladder_ends_and_tries_nothing_twice(tried: Target, origin: Target | None, asked: Target | None) -> None:
    rung, seen, target = StartAttempt.AS_DECIDED, [(tried.shape, tried.nodes)], tried
    while True:
        below, choice = next_try(target, rung, origin, asked)
        assert below > rung
        if choice is None:
            assert below is StartAttempt.LEFT
            return
        assert choice.nodes == () and (choice.shape, choice.nodes) != seen[-1]
        seen.append((choice.shape, choice.nodes))
        rung, target = below, choice


def test_room_is_seen_on_named_nodes_and_on_any() -> None:
    cluster = Cluster((replace(NODES[0], gpus_used=3), NODES[1], replace(NODES[2], up=False)))
    job = _job(JobState.PENDING)

    def room(target: Target, **changes: Any) -> bool:
        return has_room(target, cluster, replace(job, **changes))

    assert not room(PINNED) and room(replace(PINNED, nodes=("n2",)))
    assert not room(replace(PINNED, nodes=("n9", "n2"))) and not room(replace(PINNED, nodes=("n3", "n2")))
    assert room(Target(Shape("a100", 1, 4))) and not room(Target(Shape("a100", 2, 2)))
    assert room(Target(Shape("", 2, 1))) and not room(Target(Shape("v100", 1, 1)))
    whole = Target(Shape("a100", 1, 4))
    assert not room(whole, exclude=("n2",)) and not room(whole, barred=("n2",)) and not room(whole, features="ib")
    inside = Cluster((replace(NODES[0], partitions=("other",)),))
    assert not has_room(whole, inside, job) and has_room(whole, inside, replace(job, partition="main,other"))


# -- what the controller makes of it -------------------------------------------------------------------------------


def _job(state: JobState) -> Job:
    shape = Shape("a100", 1, 2)
    return Job(1, "train", "ann", 1000, "main", state, "", 0.0, None, None, 0, shape, shape, directive=Directive())


def _controller(life: JobLifecycle) -> Controller:
    report = Report(1, 0, 5, plan=Plan())
    return Controller(LIMITS, 15.0, jobs={1: TrackedJob(lifecycle=life, report=report)})


def _look(controller: Controller, now_s: float, nodes: tuple[Node, ...] = NODES) -> list[str]:
    job = _job(JobState.RUNNING)
    outputs = controller.handle(SnapshotTaken(Snapshot(now_s, Cluster(nodes), (job,)), 15.0), now_s)
    assert controller.validate() == ""
    return [type(o).__name__ for o in outputs]


@pytest.mark.parametrize("count", [1, 3])
def test_a_refusal_holds_until_a_node_changes_and_an_hour_at_most(count: int) -> None:
    life = JobLifecycle(
        1, 0.0, ResizeState.RUNNING, refusals=(Refusal(("n1", "n2"), "BadConstraints", 0.0),), refused_starts=count
    )
    shortest_s = 300.0 * 2 ** (count - 1)
    controller = _controller(life)
    changed = (NODES[0], replace(NODES[1], gpus_used=1), NODES[2])
    assert _look(controller, 1.0) == [] and _look(controller, 2.0, changed) == [], "not tried again at every change"
    job = decidable_job(_job(JobState.RUNNING), controller.jobs[1], 2.0)
    assert "Slurm did not start it on n1, n2 (its reason: BadConstraints)" in job.fixed
    assert _look(controller, shortest_s + 1, changed) == ["Remember"]
    assert decidable_job(_job(JobState.RUNNING), controller.jobs[1], shortest_s + 1).fixed == ""
    controller = _controller(life)
    assert _look(controller, 1.0) == [] and _look(controller, 3599.0) == []
    assert _look(controller, 3600.0) == ["Remember"] and controller.jobs[1].lifecycle.refusals == ()


def test_a_job_left_to_slurm_is_touched_no_more() -> None:
    tracked = TrackedJob(lifecycle=JobLifecycle(1, 0.0, left_to_slurm_reason="AssocGrpGRES"))
    pending = decidable_job(_job(JobState.PENDING), tracked, 5.0)
    assert pending.directive is None and "Slurm's reason: AssocGrpGRES" in pending.directive_error
    running = decidable_job(_job(JobState.RUNNING), tracked, 5.0)
    assert running.directive is not None and "AssocGrpGRES" in running.fixed


def test_slurms_words_are_told_apart() -> None:
    assert is_refusal("BadConstraints") and not is_waiting_its_turn("BadConstraints")
    assert is_waiting_its_turn("(Priority)") and not is_refusal("(Priority)")
    assert not is_refusal("JobHeldUser") and not is_waiting_its_turn("JobHeldUser")


def test_a_stored_ladder_reads_back() -> None:
    from synergy_core.wire.codec import decode, encode

    life = JobLifecycle(
        1,
        0.0,
        requested_target=ASKED,
        start_attempt=StartAttempt.AS_ASKED,
        refusals=(Refusal(("n1",), "x", 1.0),),
        refused_starts=2,
        left_to_slurm_reason="y",
    )
    assert decode(JobLifecycle, encode(life)) == life
    old = {k: v for k, v in encode(life).items() if k not in ("asked", "rung", "refusals", "refused", "left")}
    assert decode(JobLifecycle, old) == JobLifecycle(1, 0.0)


_ANY: tuple[ResizeEvent, ...] = (
    Observed("PENDING", reason="BadConstraints"),
    Observed("PENDING", reason="Priority"),
    Tick(True, "Priority"),
    Tick(True, "BadConstraints"),
    Wanted(PINNED, "x", present=RAN, requested_target=ASKED),
)


@given(st.lists(st.tuples(st.sampled_from(_ANY), st.floats(0.5, 40)), max_size=40))
def test_no_history_pins_twice_to_what_was_refused(history: list[tuple[ResizeEvent, float]]) -> None:
    life, now_s, was_refused = JobLifecycle(1, 0.0), 0.0, False
    for event, passed_s in history:
        now_s += passed_s
        step = advance(life, event, now_s, LIMITS)
        was_refused |= step.life.refused_starts > life.refused_starts
        life = step.life
        if was_refused:
            assert life.target is None or life.target.nodes != PINNED.nodes
        if life.state is ResizeState.PARKED and life.target is not None:
            life = released(life, life.target, now_s)


# -- nodes that were lost -------------------------------------------------------------------------------------------


def test_a_node_that_was_lost_is_not_taken_again_for_two_minutes() -> None:
    """It is told once more to end what it ran, and would end the job's next incarnation too."""
    controller = _controller(JobLifecycle(1, 0.0, ResizeState.RUNNING))
    ran = replace(_job(JobState.RUNNING), node_names=("n1", "n2"))
    controller.handle(SnapshotTaken(Snapshot(0.0, Cluster(NODES), (ran,)), 15.0), 0.0)
    all_up, without = frozenset({"n1", "n2", "n3"}), frozenset({"n2", "n3"})
    assert controller.handle(NodesRead(all_up), 1.0) == []
    assert controller.handle(NodesRead(without), 2.0) == [], "it runs: the node does not answer for a moment"
    controller.jobs[1].lifecycle = JobLifecycle(1, 0.0, ResizeState.QUEUED)  # requeued by Slurm
    lost = controller.handle(NodesRead(without), 10.0)
    assert [type(o).__name__ for o in lost] == ["Remember", "RememberNodes"] and controller.handle(
        NodesRead(without), 20.0
    ) == []
    pending, running = _job(JobState.PENDING), _job(JobState.RUNNING)
    for job in (pending, running):
        assert decidable_job(job, controller.jobs[1], 129.0).avoid == ("n1",)
        assert decidable_job(job, controller.jobs[1], 130.0).avoid == ()
    assert decidable_job(ran, controller.jobs[1], 20.0).avoid == (), "it may stay where it is"
    assert len(controller.handle(NodesRead(without), 80.0)) == 1, "as long as it is away, and two minutes from then"
    assert controller.validate() == ""


# -- what must come whatever was refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"left_to_slurm_reason": "BadConstraints"},
        {"retry_after_s": 1e6},
        {"refusals": (Refusal(RAN.nodes, "BadConstraints", 0.0),)},
    ],
)
def test_a_time_limit_that_ends_begins_anew_whatever_was_refused(changes: dict[str, Any]) -> None:
    life = replace(JobLifecycle(1, 0.0, ResizeState.RUNNING, requested_target=ASKED), **changes)
    wants = Wanted(RAN, "its time limit begins anew", present=RAN)
    assert advance(life, wants, 10.0, LIMITS).life == life
    step = advance(life, replace(wants, is_due=True), 10.0, LIMITS)
    assert step.life.state is ResizeState.CHECKPOINTING and step.life.requested_target == ASKED
    assert step.life.target is not None and (step.life.target.nodes == () or "retry_after_s" in changes)


def test_a_size_that_is_refused_below_the_first_rung_goes_back_to_any_nodes() -> None:
    life = replace(
        JobLifecycle(1, 0.0), state=ResizeState.PARKED, target=ASKED, origin=RAN, start_attempt=StartAttempt.AS_ASKED
    )
    for _ in range(LIMITS.attempts):
        life = advance(life, Refused(Update(1, ASKED, LIMITS.park_s), "no", transient=False), 1.0, LIMITS).life
    assert life.target == replace(RAN, nodes=())


def test_what_an_incarnation_was_spared_does_not_keep_the_next_from_starting() -> None:
    life = JobLifecycle(1, 0.0, ResizeState.RUNNING, retry_after_s=1e6, unanswered_requests=4)
    life = advance(life, Observed("PENDING", 1), 10.0, LIMITS).life
    assert wanted(life, PINNED, 20.0).life.state is ResizeState.PARKED

"""The transition table: what it allows is what happens, every row of it is used, and each state sends what its mechanism has for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from synergy_core.records import Plan, Shape

from synergyd.control.resize import events as e
from synergyd.control.resize import instructions as i
from synergyd.control.resize.launch_failure import LIFTS, LastStart, LaunchFailures
from synergyd.control.resize.lifecycle import IN_TRANSIT, JobLifecycle, ResizeState, ResizeTimes, Step, validate
from synergyd.control.resize.machine import TRANSITIONS, advance, find_transition
from synergyd.control.resize.mechanism import RESTART, Answer, ResizeMechanism
from synergyd.control.resize.transition import Situation, Transition, Trigger, always, find_triggers

NOW_S = 10_000.0
TIMES = ResizeTimes(release_timeout_s=20.0)
AT = Situation(now_s=NOW_S, times=TIMES, mechanism=RESTART)
TARGET = i.Target(Shape("a100", 1, 2), ("n1",), Plan(dp=2))
OTHER = i.Target(Shape("a100", 2, 2), ("n1", "n2"))


def lives(state: ResizeState) -> Iterator[JobLifecycle]:
    """Yield lives in `state` that differ in what a transition looks at; only those that validate() takes."""
    for target, origin, (stopping, in_place), asked_s, attempts, age_s in product(
        (None, TARGET),
        (None, i.Target(Shape("a100", 1, 1)), i.Target(Shape("a100", 2, 2), ("n1", "n2"), Plan(dp=4))),
        ((False, False), (True, False), (False, True)),
        (0.0, NOW_S - 1, NOW_S - 5000),
        (0, TIMES.attempts - 1),
        (5.0, 5000.0),
    ):
        life = JobLifecycle(
            job_id=1,
            submit_s=0.0,
            state=state,
            since_s=NOW_S - age_s,
            target=target,
            origin=origin,
            sent_s=NOW_S - 1000,
            asked_s=asked_s,
            attempts=attempts,
            stopping=stopping,
            in_place=in_place,
            orders=1,
        )
        if not validate(life):
            yield life
    began = JobLifecycle(
        1, 0.0, state, NOW_S - 5.0, 1, TARGET, last_start=LastStart(restarts=1), launched_incarnation=0, ran=TARGET
    )
    for reruns, since_s in product((0, 1), (NOW_S - 5.0, NOW_S - 5000.0)):
        yield replace(began, reruns=reruns, since_s=since_s)
    yield replace(
        began, failures=LaunchFailures(restarts=1, lifted=True), since_s=NOW_S - 100.0, requested_target=TARGET
    )
    yield replace(began, target=replace(TARGET, nodes=()), requested_target=TARGET, since_s=NOW_S - 5000.0)
    yield replace(
        began, failures=LaunchFailures(count=LIFTS), requested_target=OTHER, ended_s=NOW_S - 1.0, since_s=NOW_S - 30.0
    )


def happenings(life: JobLifecycle) -> Iterator[e.ResizeEvent]:
    """Yield every kind of event, in its variants."""
    for state, restarts, begin_s in product(
        ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "GONE"), (0, 1, 2), (None, NOW_S - 1, NOW_S + 1e5)
    ):
        yield e.Observed(state, restarts, begin_s)
    for restarts in (0, 1):
        yield e.Observed("PENDING", restarts, NOW_S + 120, launch_failed=True)
        yield e.Observed("RUNNING", restarts, gpuless=True)
        yield e.Observed("GONE", restarts, failed=True)
    yield from (e.Wanted(OTHER, "cause", 0, OTHER), e.Preempted("cause"), e.Unwanted("cause"))
    yield e.Wanted(replace(OTHER, plan=Plan(dp=4)), "cause", 0, TARGET, in_place=True, live=True, grows=True)
    yield from (e.NodesJoined(0, 1), e.NodesJoined(0, 1, "nodes are busy"))
    yield e.NodesLost(0, ("n1",), Plan(dp=2), OTHER)
    yield from (
        e.Acknowledged(0, 1),
        e.RestartedInPlace(0, 1),
        e.PlanFailed(OTHER, "story"),
        e.Hung(("n1",), 5, "story"),
    )
    for room, reason, contested in product((False, True), ("", "Priority", "BadConstraints"), (False, True)):
        yield e.Tick(room, reason, contested)
    yield e.Observed("PENDING", reason="BadConstraints")
    instructions: list[i.Instruction] = [i.LiftHold(1, 0, 60.0), i.Release(1)]
    awaited = RESTART.instruction(life, TIMES)
    for instruction in instructions if awaited is None else [*instructions, awaited]:
        yield e.CarriedOut(instruction)
        for transient, final in product((False, True), (False, True)):
            yield e.Refused(instruction, "error", transient, final)


def test_every_row_is_used() -> None:
    """A row that nothing leads to is no way that a job can take, and must not stand in the documentation."""
    used: set[Transition] = set()
    for state in ResizeState:
        for life in lives(state):
            used |= {row for event in happenings(life) if (row := find_transition(life, event, AT)) is not None}
    unused = [(r.source, r.trigger, r.target, r.when) for r in TRANSITIONS if r not in used]
    assert unused == []


@pytest.mark.parametrize("state", ResizeState)
def test_a_job_goes_where_the_table_says_and_nowhere_else(state: ResizeState) -> None:
    legal = {(r.trigger, r.target) for r in TRANSITIONS if r.source is state}
    for life in lives(state):
        for event in happenings(life):
            after = advance(life, event, NOW_S, TIMES).life
            allowed = {to for on, to in legal if on in find_triggers(event)}
            assert after.state in allowed | {state}, (life, event)
            assert validate(after) == "", (life, event)


def test_nothing_leaves_gone_and_every_state_leads_there() -> None:
    assert all(row.source is not ResizeState.GONE for row in TRANSITIONS)
    left = {row.source for row in TRANSITIONS if row.trigger is Trigger.LEFT_QUEUE}
    assert left == set(ResizeState) - {ResizeState.GONE}


def test_no_row_stands_behind_one_that_always_fits() -> None:
    """It could never be followed."""
    ended: set[tuple[ResizeState, Trigger]] = set()
    for row in TRANSITIONS:
        assert (row.source, row.trigger) not in ended, row
        ended |= {(row.source, row.trigger)} if row.when is always else set()


class _StartsElsewhere:
    """A mechanism that begins otherwise, as one without a requeue would."""

    def first_step(self, life: JobLifecycle) -> ResizeState:
        return ResizeState.REQUEUING

    def instruction(self, life: JobLifecycle, times: ResizeTimes) -> i.Instruction | None:
        return i.Release(life.job_id) if life.state is ResizeState.CHECKPOINTING else None

    def is_delayed(self, life: JobLifecycle, now_s: float, times: ResizeTimes) -> bool:
        return False

    def next_state(self, life: JobLifecycle, answer: Answer) -> ResizeState | None:
        return None


def step_by(mechanism: ResizeMechanism, life: JobLifecycle, event: e.ResizeEvent) -> Step:
    return advance(life, event, NOW_S, TIMES, mechanism=mechanism)


def test_the_mechanism_says_how_a_resize_begins_what_is_sent_and_what_an_answer_means() -> None:
    other = _StartsElsewhere()
    runs = JobLifecycle(1, 0.0, ResizeState.RUNNING)
    assert step_by(RESTART, runs, e.Wanted(OTHER, "cause")).life.state is ResizeState.CHECKPOINTING
    assert step_by(other, runs, e.Wanted(OTHER, "cause")).life.state is ResizeState.RUNNING
    asked = step_by(RESTART, runs, e.Preempted("cause"))
    assert asked.instructions == (i.AskCheckpoint(1, 0),)
    assert step_by(other, runs, e.Preempted("cause")).instructions == (i.Release(1),)
    assert step_by(RESTART, asked.life, e.Acknowledged(0, 1)).life.state is ResizeState.REQUEUING
    assert step_by(other, asked.life, e.Acknowledged(0, 1)).life.state is ResizeState.CHECKPOINTING


def test_states_in_transit_send_an_instruction_but_for_the_one_that_waits_for_slurm() -> None:
    sends = {s for s in ResizeState if RESTART.instruction(JobLifecycle(1, 0.0, s, target=TARGET), TIMES) is not None}
    assert sends == IN_TRANSIT - {ResizeState.RELEASED}

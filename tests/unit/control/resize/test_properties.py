"""The resize state machine: validation, and properties over thousands of random histories."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synergy_core.records import Plan, Shape

from synergyd.control.resize.events import (
    Acknowledged,
    CarriedOut,
    NodesJoined,
    Observed,
    Refused,
    ResizeEvent,
    RestartedInPlace,
    Tick,
    Unwanted,
    Wanted,
)
from synergyd.control.resize.instructions import (
    AskCheckpoint,
    Instruction,
    JoinNodes,
    Park,
    Release,
    Requeue,
    Restart,
    Target,
    Update,
)
from synergyd.control.resize.lifecycle import (
    IN_TRANSIT,
    JobLifecycle,
    ResizeState,
    ResizeTimes,
    validate,
)
from synergyd.control.resize.machine import advance
from tests.unit.control.resize.resize_world import FREE, JOB, LARGE, LIMITS, OTHER, RESIZING, SMALL, TARGETS, World

# -- the usual course ----------------------------------------------------------------------------------------------
# -- validate ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [ResizeState.CHECKPOINTING, ResizeState.REQUEUING, ResizeState.PARKED])
def test_a_stored_resize_without_target_is_refused(state: ResizeState) -> None:
    assert validate(JobLifecycle(JOB, 0.0, state)) == f"state {state} without a target"
    assert validate(JobLifecycle(JOB, 0.0, state, target=LARGE)) == ""


def test_negative_counts_are_refused() -> None:
    assert validate(JobLifecycle(JOB, 0.0, attempts=-1)) and validate(JobLifecycle(JOB, 0.0, incarnation=-1))


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
    incarnation=st.integers(0, 3),
    target=_maybe,
    origin=_maybe,
    sent_s=_times,
    asked_s=_times,
    acks_at_request=st.integers(0, 3),
    attempts=st.integers(0, 4),
    retry_after_s=_times,
    orders=st.integers(0, 3),
    in_place=st.booleans(),
).filter(lambda life: validate(life) == "")
_instructions: st.SearchStrategy[Instruction] = st.one_of(
    st.builds(AskCheckpoint, st.just(JOB), st.integers(0, 3)),
    st.builds(Requeue, st.just(JOB), st.integers(0, 3)),
    st.builds(Park, st.just(JOB), st.just(LIMITS.park_s)),
    st.builds(Update, st.just(JOB), _targets, st.just(LIMITS.park_s)),
    st.builds(Release, st.just(JOB)),
    st.builds(Restart, st.just(JOB), st.integers(0, 3), st.integers(0, 3), st.just(Plan())),
    st.builds(JoinNodes, st.just(JOB), st.integers(0, 3), st.integers(0, 3), st.just(Plan()), st.just(("n1", "n2"))),
)
_events: st.SearchStrategy[ResizeEvent] = st.one_of(
    st.builds(
        Observed,
        st.sampled_from(["PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "GONE", "", "NEW STATE"]),
        st.integers(0, 4),
        st.none() | _times,
    ),
    st.builds(
        Wanted,
        _targets,
        st.text(max_size=5),
        st.integers(0, 3),
        _maybe,
        in_place=st.booleans(),
        live=st.booleans(),
        grows=st.booleans(),
    ),
    st.builds(RestartedInPlace, st.integers(0, 3), st.integers(0, 3)),
    st.builds(NodesJoined, st.integers(0, 3), st.integers(0, 3), st.text(max_size=5)),
    st.builds(Unwanted, st.text(max_size=5)),
    st.builds(Acknowledged, st.integers(0, 3), st.integers(0, 4)),
    st.builds(CarriedOut, _instructions),
    st.builds(Refused, _instructions, st.text(max_size=5), st.booleans()),
    st.just(Tick()),
)


@pytest.mark.slow
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
        assert [r.restarts for r in requeues] == [life.incarnation]
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
    "want another plan": lambda w: w.want(OTHER),
    "restart in place": World.restarts_in_place,
    "grow": World.grow,
    "nodes join": World.nodes_join,
    "nodes can't be had": lambda w: w.nodes_join("Requested nodes are busy"),
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
_usual = st.sampled_from(
    [
        "round",
        "round",
        "want large",
        "want small",
        "want another plan",
        "restart in place",
        "grow",
        "nodes join",
        "preempt",
        "checkpoint",
        "round",
    ]
)
_histories = st.lists(_usual | st.sampled_from([*OPERATIONS, *SWITCHES]), min_size=5, max_size=40)


@pytest.mark.slow
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
    life = JobLifecycle(JOB, 0.0, ResizeState.PARKED, target=LARGE)
    renewed = [
        left for left in range(int(park_s) + 1) if advance(life, Observed("PENDING", 0, left), 0.0, limits).instructions
    ]
    assert renewed and max(renewed) <= park_s / 2

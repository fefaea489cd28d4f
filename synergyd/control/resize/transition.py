"""The parts that the transition table of machine.py is made of: triggers, rows, and what a row may look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from synergy_core.job_report import Report

from synergyd.control.resize import events as e
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState, ResizeTimes, Step
from synergyd.control.resize.mechanism import ResizeMechanism


class Trigger(StrEnum):
    """The kinds of events that rows name, in the words of docs/concepts/resize.md."""

    DECIDED = "start or resize decided"
    PREEMPTED = "preemption decided"
    GIVEN_UP = "target given up"
    ACKNOWLEDGED = "checkpoint acknowledged"
    JOINED = "nodes joined"
    NOT_JOINED = "nodes can't be had"
    RESTARTED_IN_PLACE = "restarted in place"
    NODES_LOST = "goes on without a lost node"
    PLAN_FAILED = "plan failed"
    HUNG = "hung"
    TIME_PASSED = "time-out"
    CARRIED_OUT = "carried out"
    REFUSED = "refused"
    SEEN_PENDING = "seen pending"
    SEEN_RUNNING = "seen running or suspended"
    SEEN_SUSPENDED = "seen suspended"
    LEFT_QUEUE = "left the queue"
    LAUNCH_FAILED = "its start failed"
    NO_GPUS = "started without its GPUs"
    SCRIPT_FAILED = "its script failed before it trained"


_OF_EVENT: dict[type, Trigger] = {
    e.Wanted: Trigger.DECIDED,
    e.Preempted: Trigger.PREEMPTED,
    e.Unwanted: Trigger.GIVEN_UP,
    e.Acknowledged: Trigger.ACKNOWLEDGED,
    e.RestartedInPlace: Trigger.RESTARTED_IN_PLACE,
    e.NodesLost: Trigger.NODES_LOST,
    e.PlanFailed: Trigger.PLAN_FAILED,
    e.Hung: Trigger.HUNG,
    e.Tick: Trigger.TIME_PASSED,
    e.CarriedOut: Trigger.CARRIED_OUT,
    e.Refused: Trigger.REFUSED,
}
_OF_SLURM_STATE = {
    "PENDING": (Trigger.SEEN_PENDING,),
    "RUNNING": (Trigger.SEEN_RUNNING,),
    "SUSPENDED": (Trigger.SEEN_SUSPENDED, Trigger.SEEN_RUNNING),
    "GONE": (Trigger.LEFT_QUEUE,),
}


def find_triggers(event: e.ResizeEvent) -> tuple[Trigger, ...]:
    """Return what `event` is, the most specific first; empty for a state of Slurm's in which nothing is known of the job."""
    if isinstance(event, e.NodesJoined):
        return (Trigger.NOT_JOINED if event.refusal else Trigger.JOINED,)
    if not isinstance(event, e.Observed):
        return (_OF_EVENT[type(event)],)
    special = (
        *(Trigger.LAUNCH_FAILED,) * (event.launch_failed and event.state == "PENDING"),
        *(Trigger.NO_GPUS,) * event.gpuless,
        *(Trigger.SCRIPT_FAILED,) * (event.failed and event.state == "GONE"),
    )
    return (*special, *_OF_SLURM_STATE.get(event.state, ()))


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The time and rules that a transition may look at besides the job and the event."""

    now_s: float
    times: ResizeTimes
    mechanism: ResizeMechanism


@dataclass(frozen=True, kw_only=True)
class Occurrence:
    """An event, and the job before it, as hooks see it. `report`: the job's latest."""

    former_lifecycle: JobLifecycle
    event: e.ResizeEvent
    now_s: float
    report: Report | None


# `Any` is the event: the trigger of a row says of which type it is
Guard = Callable[[JobLifecycle, Any, Situation], bool]
Change = Callable[[JobLifecycle, Any, Situation], Step]


def always(_life: JobLifecycle, _event: object, _at: Situation) -> bool:
    """Return True: the row needs nothing but its trigger."""
    return True


def stay(life: JobLifecycle, _event: object, _at: Situation) -> Step:
    """Return the job as it is."""
    return Step(life)


@dataclass(frozen=True)
class Transition:
    """A row of the table: a job in `source` goes to `target` on `trigger` where `when` holds, changed by `change`.

    `target` None: it stays in its state, whose time goes on. `label`: the trigger in words, where the table says it better.
    """

    source: ResizeState
    trigger: Trigger
    target: ResizeState | None
    change: Change
    when: Guard = always
    label: str = ""

    @property
    def description(self) -> str:
        """Return what leads to the transition, for people."""
        return self.label or self.trigger.value


OnEvent = Callable[[JobLifecycle, e.ResizeEvent, Transition | None, Situation], JobLifecycle]
OnStep = Callable[[Step, Occurrence], Step]


def mechanism_leads_to(state: ResizeState) -> Guard:
    """Return a guard that holds if the job's mechanism takes it to `state` on this answer."""

    def guard(life: JobLifecycle, event: Any, at: Situation) -> bool:
        return at.mechanism.next_state(life, event) is state

    return guard

"""The resize state machine's picture, found by trying every event in every state of synergyd/control/resize/machine.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

NOW_S = 10_000.0
# How an event reads in the picture; a name that is missing here is an error.
WORDS = {
    "Wanted": "start or resize decided",
    "Preempted": "preemption decided",
    "Unwanted": "target given up",
    "Acknowledged": "checkpoint acknowledged",
    "RestartedInPlace": "restarted in place",
    "PlanFailed": "plan failed",
    "Hung": "hung",
    "Tick": "time-out",
    "Observed PENDING": "seen pending",
    "Observed RUNNING": "seen running",
    "Observed SUSPENDED": "seen suspended",
    "Observed GONE": "left the queue",
    "Not started": "not started by Slurm",
    "Launch failed": "its start failed",
    "CarriedOut Update": "size set and read back",
    "CarriedOut Release": "released",
    "Refused AskCheckpoint": "can't be asked",
    "Refused Requeue": "requeue refused",
    "Refused Restart": "can't be told",
    "Refused Update": "update refused",
    "Refused Release": "release refused",
}


def _lives(state: Any) -> Iterator[Any]:
    """Lives in `state` that differ in all that a transition looks at; only those that validate() takes."""
    from synergyd.control.resize.instructions import Target
    from synergyd.control.resize.lifecycle import JobLifecycle, ResizeTimes, validate
    from synergyd.records import Plan, Shape

    targets = (None, Target(Shape("a100", 1, 2), (), Plan(dp=2)))
    origins = (None, Target(Shape("a100", 1, 1)))
    last_try = ResizeTimes().attempts - 1
    for target, origin, (stopping, stays), asked_s, attempts, age_s in product(
        targets,
        origins,
        ((False, False), (True, False), (False, True)),
        (0.0, NOW_S - 1, NOW_S - 5000),
        (0, last_try),
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
            stays=stays,
            orders=1,
        )
        if not validate(life):
            yield life


def _events(life: Any) -> Iterator[tuple[str, Any]]:
    """Every kind of event, in its variants, with its name."""
    from synergyd.control.resize import events as e
    from synergyd.control.resize import instructions as i
    from synergyd.control.resize.lifecycle import ResizeState, ResizeTimes
    from synergyd.records import Shape

    states = ("PENDING", "RUNNING", "SUSPENDED", "GONE")
    for state, restarts, begin_s in product(states, (0, 1), (None, NOW_S - 1, NOW_S + 1e5)):
        yield f"Observed {state}", e.Observed(state, restarts, begin_s)
    for restarts in (0, 1):
        yield "Launch failed", e.Observed("PENDING", restarts, NOW_S + 120, launch_failed=True)
    other = i.Target(Shape("a100", 2, 2))
    yield "Wanted", e.Wanted(other, "cause", 0, other)
    yield "Preempted", e.Preempted("cause")
    yield "Unwanted", e.Unwanted("cause")
    yield "Acknowledged", e.Acknowledged(0, 1)
    yield "RestartedInPlace", e.RestartedInPlace(0, 1)
    yield "PlanFailed", e.PlanFailed(other, "story")
    yield "Hung", e.Hung(("n1",), 5, "story")
    yield "Tick", e.Tick()
    if life.state is ResizeState.RELEASED:  # what Slurm's reason is asked about
        yield "Not started", e.Observed("PENDING", reason="BadConstraints")
        yield "Not started", e.Tick(True, "Priority")
    instructions: list[Any] = [i.AskCheckpoint(1, 0), i.Requeue(1, 0), i.Release(1)]
    if life.target is not None:
        instructions.append(i.Update(1, life.target, ResizeTimes().park_s))
        if life.state is ResizeState.RESTARTING:
            instructions.append(i.Restart(1, 0, life.orders, life.target.plan))
    for instruction in instructions:
        name = type(instruction).__name__
        yield f"CarriedOut {name}", e.CarriedOut(instruction)
        for transient in (False, True):
            yield f"Refused {name}", e.Refused(instruction, "error", transient)


def transitions() -> dict[tuple[str, str], list[str]]:
    """(from, to) -> the events that lead there, in words."""
    from synergyd.control.resize.lifecycle import ResizeState, ResizeTimes
    from synergyd.control.resize.starts import advance

    found: dict[tuple[str, str], list[str]] = {}
    for state in ResizeState:
        for life in _lives(state):
            for name, event in _events(life):
                after = advance(life, event, NOW_S, ResizeTimes()).life.state
                words = found.setdefault((state.value, after.value), []) if after is not state else None
                if words is not None and WORDS[name] not in words:
                    words.append(WORDS[name])
    return found


def picture() -> str:
    """A mermaid diagram. GONE is reached from every state, so one arrow stands for all."""
    from synergyd.control.resize.lifecycle import ResizeState

    lines = ["```mermaid", "stateDiagram-v2", "    direction TB", "    [*] --> QUEUED: first seen"]
    found = transitions()
    for (before, after), words in found.items():
        if after != "GONE":
            lines.append(f"    {before} --> {after}: {' / '.join(sorted(words))}")
    ends = {before for before, after in found if after == "GONE"}
    assert ends == {state.value for state in ResizeState} - {"GONE"}, "not every state ends in GONE"
    lines += ["    RUNNING --> GONE: left the queue (from every state)", "    GONE --> [*]", "```"]
    return "\n".join(lines)


def transitions_table(table: Callable[..., str]) -> str:
    """Every transition, as a table."""
    rows = [(f"{before}", f"{after}", ", ".join(sorted(words))) for (before, after), words in transitions().items()]
    return table(("From", "To", "On"), rows)

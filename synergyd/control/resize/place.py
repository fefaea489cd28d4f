"""A running job's place while it is resized: its nodes are kept for it until it is released, and it comes first in the queue
until it runs again. Pure, over resize.advance.

The nodes are kept by a *shield*: a reservation that no job belongs to, which passes by itself after some minutes. Slurm gives a
requeued job a new age, so `Release` puts it before all others by its Nice, and `RestoreNice` gives it its own again once it runs.
"""

from __future__ import annotations

from dataclasses import replace

from synergyd.control.resize.events import CarriedOut, Observed, ResizeEvent
from synergyd.control.resize.instructions import Instruction, LowerShield, Release, RestoreNice
from synergyd.control.resize.lifecycle import STARTING, ResizeState, Step

#: states in which the shield stands
_SHIELDED = frozenset({ResizeState.REQUEUING, ResizeState.HELD, ResizeState.RESIZED})


def with_place(step: Step, event: ResizeEvent) -> Step:
    """Return `step` with what keeps the job's place, or ends that, after `event`."""
    life, instructions = step.life, list[Instruction](step.instructions)
    if life.shielded and life.state not in _SHIELDED:
        life = replace(life, shielded=())
        if not (isinstance(event, CarriedOut) and isinstance(event.instruction, Release)):  # which has lowered it
            instructions.append(LowerShield(life.job_id))
    if isinstance(event, Observed) and life.state is not ResizeState.GONE:
        if not life.comes_first:
            life = replace(life, nice=event.nice)
        elif event.state in ("RUNNING", "SUSPENDED") and life.state not in {ResizeState.REQUEUING, *STARTING}:
            if event.nice == life.nice:
                life = replace(life, comes_first=False)
            else:
                instructions.append(RestoreNice(life.job_id, life.nice))
    return replace(step, life=life, instructions=tuple(instructions))

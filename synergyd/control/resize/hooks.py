"""The accounts that are kept while a job is resized: its time limit, the start times that Synergy writes, and its place. Pure.

The state machine calls each hook for every event: those of `ON_EVENT` (machine.py) before its transition is followed,
those of `ON_STEP` after. The account of restarts is a hook too (restart_accounting.py).

A running job keeps its place while it is resized. Its nodes are kept by a *shield*: a reservation that no job belongs
to, which passes by itself after some minutes, until the job is released. Slurm gives a requeued job a new age, so
`Release` puts it before all others by its Nice, and `RestoreNice` gives it its own again once it runs.
"""

from __future__ import annotations

from dataclasses import replace

from synergyd.control.resize.events import CarriedOut, Observed, ResizeEvent
from synergyd.control.resize.instructions import Instruction, LiftHold, LowerShield, Park, Release, RestoreNice, Update
from synergyd.control.resize.lifecycle import ON_NODES, STARTING, JobLifecycle, ResizeState, Step, last_start
from synergyd.control.resize.start_time import after_seeing, after_writing
from synergyd.control.resize.transition import Occurrence, Situation, Transition, Trigger

#: states in which the shield stands
_SHIELDED = frozenset({ResizeState.REQUEUING, ResizeState.PARKED, ResizeState.RESIZED})
#: a start that failed has used nothing of the job's time limit
_USE_NO_TIME = frozenset({Trigger.LAUNCH_FAILED, Trigger.NO_GPUS, Trigger.SCRIPT_FAILED})


def account_walltime(life: JobLifecycle, event: ResizeEvent, row: Transition | None, at: Situation) -> JobLifecycle:
    """Return the job with what Slurm shows of its time limit: what it runs until, or what a requeue leaves of it."""
    if not isinstance(event, Observed) or (row is not None and row.trigger in _USE_NO_TIME):
        return life
    walltime = life.walltime.with_limit_seen(event.limit_s)
    if event.state in ("RUNNING", "SUSPENDED"):
        walltime = walltime.with_run(event.ends_s, event.limit_s)
    elif event.state == "PENDING" and life.state is ResizeState.REQUEUING:
        # go by Slurm's clock, unless it differs from the daemon's
        by_slurm = event.queued_s is not None and life.since_s <= event.queued_s <= at.now_s
        ended_s = event.queued_s if event.queued_s is not None and by_slurm else at.now_s
        walltime = walltime.after_requeue(ended_s, at.times.lead_s)
    elif event.state == "PENDING" and life.state in ON_NODES:
        walltime = walltime.after_loss()
    return life if walltime == life.walltime else replace(life, walltime=walltime)


def record_start_times(step: Step, what: Occurrence) -> Step:
    """Return `step` with the start times that were seen, and are about to be written."""
    life, event = step.life, what.event
    written = life.written_start
    if isinstance(event, Observed) and event.state == "PENDING" and life.state is not ResizeState.GONE:
        written = after_seeing(written, event.restarts, event.eligible_s)
    for instruction in step.instructions:
        if isinstance(instruction, Park | Update | LiftHold):
            written = after_writing(written, life.incarnation, what.now_s + instruction.park_s)
        elif isinstance(instruction, Release):
            written = after_writing(written, life.incarnation, what.now_s)
    return step if written is life.written_start else replace(step, life=replace(life, written_start=written))


def record_start(step: Step, what: Occurrence) -> Step:
    """Return `step` with what Synergy let start, if the job was just released."""
    released = step.life.state in (ResizeState.RELEASED, ResizeState.RUNNING)
    if what.former_lifecycle.state is not ResizeState.RESIZED or not released:
        return step
    return replace(step, life=replace(step.life, last_start=last_start(what.former_lifecycle)))


def drop_joined_nodes(step: Step, what: Occurrence) -> Step:
    """Return `step` without the nodes beyond the job's own allocation, if it has been requeued: they have gone with the run."""
    life = step.life
    if not life.joined_nodes or (life.state in ON_NODES and life.incarnation == what.former_lifecycle.incarnation):
        return step
    return replace(step, life=replace(life, joined_nodes=()))


def keep_place(step: Step, what: Occurrence) -> Step:
    """Return `step` with what ends the job's shield and its place before others, if they are needed no more."""
    life, event, instructions = step.life, what.event, list[Instruction](step.instructions)
    if life.shielded_nodes and life.state not in _SHIELDED:
        life = replace(life, shielded_nodes=())
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

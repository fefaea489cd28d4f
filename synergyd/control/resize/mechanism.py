"""How a job gets from one size to another: what is asked of Slurm and of the job in which state, and what the answers mean. Pure.

The state machine (machine.py) knows when to begin, to wait, to try again and to give up. A mechanism knows the steps between.
"""

from __future__ import annotations

from typing import Protocol

from synergyd.control.resize.events import Acknowledged, CarriedOut, NodesJoined, RestartedInPlace
from synergyd.control.resize.instructions import (
    AskCheckpoint,
    Instruction,
    JoinNodes,
    Release,
    Requeue,
    Restart,
    ReturnNodes,
    Update,
)
from synergyd.control.resize.lifecycle import (
    JobLifecycle,
    ResizeState,
    ResizeTimes,
    is_restart_delay_over,
    nodes_to_keep,
    nodes_to_return,
)

Answer = Acknowledged | NodesJoined | RestartedInPlace | CarriedOut


class ResizeMechanism(Protocol):
    """A way to change a job's size, plan or nodes."""

    def first_step(self, life: JobLifecycle) -> ResizeState:
        """Return the state in which a start or resize that was just decided begins."""
        ...

    def instruction(self, life: JobLifecycle, times: ResizeTimes) -> Instruction | None:
        """Return the instruction whose answer moves the job out of its state, or None if it waits for something else."""
        ...

    def is_delayed(self, life: JobLifecycle, now_s: float, times: ResizeTimes) -> bool:
        """Return whether that instruction must not be sent yet."""
        ...

    def next_state(self, life: JobLifecycle, answer: Answer) -> ResizeState | None:
        """Return the state to which `answer` takes the job: its own if the answer is only noted, None if nobody waits for it."""
        ...


class RestartMechanism:
    """Checkpoint, then requeue, update and release; or a restart inside the allocation.

    The latter is for another plan on the same GPUs (in place), or on other nodes beside the first one (live). New ones are brought in
    before the checkpoint, while the job trains, and those that it leaves are given back at the end.
    """

    def first_step(self, life: JobLifecycle) -> ResizeState:
        """Ask a running job for a checkpoint first, and give a pending one its size."""
        return ResizeState.CHECKPOINTING if life.state is ResizeState.RUNNING else ResizeState.PARKED

    def instruction(self, life: JobLifecycle, times: ResizeTimes) -> Instruction | None:
        """Return the request for a checkpoint, the requeue, the restart, the update or the release."""
        match life.state:
            case ResizeState.JOINING if life.target is not None and life.target.plan is not None:
                return JoinNodes(life.job_id, life.incarnation, life.orders, life.target.plan, nodes_to_keep(life))
            case ResizeState.CHECKPOINTING:
                return AskCheckpoint(life.job_id, life.incarnation)
            case ResizeState.REQUEUING:
                target, may_stay = (None, False) if life.must_leave else (life.target, True)
                return Requeue(
                    life.job_id, life.incarnation, shield=life.shielded_nodes, may_stay=may_stay, target=target
                )
            case ResizeState.RESTARTING if life.target is not None and life.target.plan is not None:
                names = nodes_to_keep(life) if life.joined_nodes or nodes_to_return(life) else ()
                return Restart(life.job_id, life.incarnation, life.orders, life.target.plan, names)
            case ResizeState.RETURNING if life.target is not None:
                return ReturnNodes(life.job_id, life.incarnation, nodes_to_keep(life), life.joined_nodes)
            case ResizeState.PARKED if life.target is not None:
                return Update(life.job_id, life.target, times.park_s, life.walltime.grant)
            case ResizeState.RESIZED:
                return Release(life.job_id, life.comes_first)
            case _:
                return None

    def is_delayed(self, life: JobLifecycle, now_s: float, times: ResizeTimes) -> bool:
        """Return whether the release has to wait for the end of the incarnation before to be long enough ago."""
        return life.state is ResizeState.RESIZED and not is_restart_delay_over(life, now_s, times)

    def next_state(self, life: JobLifecycle, answer: Answer) -> ResizeState | None:
        """Return where a checkpoint, a report of the new run, or an instruction that was carried out takes the job."""
        state, target = life.state, life.target
        match answer:
            case NodesJoined(restarts=restarts, number=number) if state is ResizeState.JOINING:
                return ResizeState.CHECKPOINTING if (restarts, number) == (life.incarnation, life.orders) else None
            case CarriedOut(instruction=JoinNodes(restarts=restarts)) if state is ResizeState.JOINING:
                return state if restarts == life.incarnation else None
            case Acknowledged(restarts=restarts, count=count) if state is ResizeState.CHECKPOINTING:
                if restarts != life.incarnation or count <= life.acks_at_request:
                    return None
                stays = life.in_place and target is not None and target.plan is not None
                return ResizeState.RESTARTING if stays else ResizeState.REQUEUING
            case RestartedInPlace(restarts=restarts, number=number) if state is ResizeState.RESTARTING:
                ours = target is not None and restarts == life.incarnation and number >= life.orders
                if not ours:
                    return None
                return ResizeState.RETURNING if nodes_to_return(life) else ResizeState.RUNNING
            case CarriedOut(instruction=ReturnNodes(restarts=restarts)) if state is ResizeState.RETURNING:
                return ResizeState.RUNNING if restarts == life.incarnation else None
            case CarriedOut(instruction=AskCheckpoint(restarts=restarts)) if state is ResizeState.CHECKPOINTING:
                return state if restarts == life.incarnation and not life.asked_s else None
            case CarriedOut(instruction=Requeue(restarts=restarts)) if state is ResizeState.REQUEUING:
                return state if restarts == life.incarnation and not life.must_leave else None
            case CarriedOut(instruction=Update(target=updated)) if state is ResizeState.PARKED:
                return ResizeState.RESIZED if updated == target else None
            case CarriedOut(instruction=Release()) if state is ResizeState.RESIZED:
                return ResizeState.RELEASED
            case _:
                return None


RESTART = RestartMechanism()

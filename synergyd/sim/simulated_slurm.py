"""Slurm as the simulated controller's instructions meet it: checkpoints, requeues and starts that take their time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from synergyd.control.controller import Controller
from synergyd.control.resize.events import (
    CarriedOut,
    CheckpointTaken,
    ControlEvent,
    JobObserved,
    Observed,
    Ticked,
    Unblocked,
)
from synergyd.control.resize.instructions import AskCheckpoint, Instruction, Release, Requeue, Target
from synergyd.control.resize.lifecycle import (
    JobLifecycle,
    ResizeState,
    settles_s,
    wait_ends_s,
)
from synergyd.records import Cluster, Job, Shape
from synergyd.sim.records import Costs
from synergyd.sim.world import ACTION, Live, World


def cluster_now(world: World) -> Cluster:
    """The nodes with what is free of them now."""
    return Cluster(
        tuple(
            replace(node, gpus_used=node.gpus - world.free[node.name], up=node.name not in world.down)
            for node in world.scenario.cluster.nodes
        )
    )


class SimulatedSlurm:
    """`tell` hands the controller an event; `job` is a job's record as of now. `shapes`: what each running job holds."""

    def __init__(
        self,
        costs: Costs,
        controller: Controller,
        tell: Callable[[World, ControlEvent], None],
        job: Callable[[World, Live], Job],
    ) -> None:
        self._costs, self._controller, self._tell, self._job = costs, controller, tell, job
        self.shapes: dict[int, Shape] = {}
        self._released: dict[int, tuple[Target, float]] = {}  # may start from then on, as soon as their nodes are free

    def finished(self, world: World, job_id: int) -> None:
        self.shapes.pop(job_id, None)
        self._released.pop(job_id, None)
        self._start_released(world)

    def _costs_of(self, live: Live) -> Costs:
        return live.job.costs or self._costs

    def moved(self, world: World, lifecycle: JobLifecycle, was: ResizeState) -> None:
        """A job's resize has gone on: what it waits for now is a tick at the right time."""
        if was is ResizeState.RELEASED:
            self._released.pop(lifecycle.job_id, None)
        times, job_id = self._controller.times, lifecycle.job_id
        due_s = {
            ResizeState.RESIZED: settles_s(lifecycle, times),
            ResizeState.RELEASED: wait_ends_s(lifecycle, times),
        }.get(lifecycle.state, -1.0)
        if due_s >= world.now_s:
            world.at(due_s, ACTION, lambda: self._tell(world, Ticked(job_id)))

    def carry_out(self, world: World, instruction: Instruction) -> CarriedOut:
        job_id = instruction.job_id
        match instruction:
            case AskCheckpoint(restarts=restarts):
                world.pause(world.jobs[job_id])
                due_s = world.now_s + self._costs_of(world.jobs[job_id]).checkpoint_s
                world.at(due_s, ACTION, lambda: self._checkpoint_taken(world, job_id, restarts))
            case Requeue():
                world.halt(world.jobs[job_id])
                self.shapes.pop(job_id, None)
                # what is left of the machine comes after this job's own events
                world.at(world.now_s, ACTION, lambda: self._requeued(world, job_id))
            case Release():
                lifecycle = self._controller.jobs[job_id].lifecycle
                if (target := lifecycle.target) is not None:
                    # of a resize that time is part of its requeue
                    waited = lifecycle.origin is None or not lifecycle.origin.nodes
                    grant_s = self._costs_of(world.jobs[job_id]).grant_s if waited else 0.0
                    self._released[job_id] = target, world.now_s + grant_s
                    world.at(world.now_s + grant_s, ACTION, lambda: self._start_released(world))
        return CarriedOut(instruction)

    def _checkpoint_taken(self, world: World, job_id: int, restarts: int) -> None:
        tracked, live = self._controller.jobs.get(job_id), world.jobs.get(job_id)
        lifecycle = tracked.lifecycle if tracked else None
        awaited = lifecycle is not None and lifecycle.state is ResizeState.CHECKPOINTING
        if tracked is None or lifecycle is None or not awaited or lifecycle.restarts != restarts:
            if live is not None and live.grant and live.pace is None and live.restarts == restarts:
                world.resume(live)
            return
        self._tell(world, CheckpointTaken(job_id, restarts, tracked.checkpoints_taken + 1))

    def _requeued(self, world: World, job_id: int) -> None:
        live = world.jobs.get(job_id)
        if live is not None and not live.grant:
            self._tell(world, JobObserved(job_id, live.job.submit_s, Observed("PENDING", live.starts)))
        self._start_released(world)
        if any(tracked.blocked for tracked in self._controller.jobs.values()):
            # its processes end first, as before its own next start
            world.at(world.now_s + self._costs.requeue_s, ACTION, lambda: self._unblock(world))

    def _unblock(self, world: World) -> None:
        """What this epoch decided and could not be done yet is done as soon as others have left its GPUs."""
        jobs = {i: self._job(world, live) for i, live in world.jobs.items() if self._controller.jobs[i].blocked}
        for job_id in self._controller.unblockable(cluster_now(world), world.now_s, jobs):
            self._tell(world, Unblocked(job_id, jobs[job_id]))

    def _start_released(self, world: World) -> None:
        """What Slurm does: released jobs whose nodes are free start."""
        for job_id, (target, from_s) in list(self._released.items()):
            each = target.shape.gpus_per_node
            if world.now_s < from_s or any(name in world.down or world.free[name] < each for name in target.nodes):
                continue
            live, state = world.jobs[job_id], self._controller.jobs[job_id].lifecycle.state
            if state is not ResizeState.RELEASED or live.grant or target.plan is None:
                continue
            del self._released[job_id]
            self.shapes[job_id] = target.shape
            grant = tuple((name, each) for name in target.nodes)
            costs = self._costs_of(live)
            world.begin(live, grant, target.plan, costs.start_s if live.starts else costs.first_start_s)
            self._tell(world, JobObserved(job_id, live.job.submit_s, Observed("RUNNING", live.restarts)))

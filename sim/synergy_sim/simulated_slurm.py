"""Slurm as the simulated controller's instructions meet it: checkpoints, requeues and starts that take their time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from synergy_core.records import Cluster, Job, Shape

from synergy_sim.records import Costs
from synergy_sim.world import ACTION, SimulatedJob, World
from synergyd.control.controller import Controller
from synergyd.control.resize.events import (
    CarriedOut,
    CheckpointTaken,
    ControlEvent,
    DecisionUnblocked,
    JobObserved,
    Observed,
    TimePassed,
)
from synergyd.control.resize.instructions import AskCheckpoint, Instruction, Release, Requeue, Target
from synergyd.control.resize.lifecycle import (
    JobLifecycle,
    ResizeState,
    restart_ready_s,
    wait_ends_s,
)


def cluster_now(world: World) -> Cluster:
    """Return the nodes, each with its GPUs in use now and whether it is up."""
    return Cluster(
        tuple(
            replace(node, gpus_used=node.gpus - world.free[node.name], up=node.name not in world.down)
            for node in world.scenario.cluster.nodes
        )
    )


class SimulatedSlurm:
    """Slurm in the simulation.

    `tell` hands the controller an event; `job` is a job's record as of now. `shapes`: the shape that each running job holds.
    """

    def __init__(
        self,
        costs: Costs,
        controller: Controller,
        tell: Callable[[World, ControlEvent], None],
        job: Callable[[World, SimulatedJob], Job],
    ) -> None:
        self._costs, self._controller, self._tell, self._job = costs, controller, tell, job
        self.shapes: dict[int, Shape] = {}
        self._released: dict[int, tuple[Target, float]] = {}  # may start from then on, as soon as their nodes are free

    def on_finish(self, world: World, job_id: int) -> None:
        self.shapes.pop(job_id, None)
        self._released.pop(job_id, None)
        self._start_released_jobs(world)

    def _find_costs(self, live: SimulatedJob) -> Costs:
        return live.job.costs or self._costs

    def schedule_tick(self, world: World, lifecycle: JobLifecycle, was: ResizeState) -> None:
        """Schedule the tick, if any, that a job waits for now that its resize has gone on."""
        if was is ResizeState.RELEASED:
            self._released.pop(lifecycle.job_id, None)
        times, job_id = self._controller.times, lifecycle.job_id
        due_s = {
            ResizeState.RESIZED: restart_ready_s(lifecycle, times),
            ResizeState.RELEASED: wait_ends_s(lifecycle, times),
        }.get(lifecycle.state, -1.0)
        if due_s >= world.now_s:
            world.schedule_call(due_s, ACTION, lambda: self._tell(world, TimePassed(job_id)))

    def carry_out(self, world: World, instruction: Instruction) -> CarriedOut:
        job_id = instruction.job_id
        match instruction:
            case AskCheckpoint(restarts=restarts):
                world.pause(world.jobs[job_id])
                due_s = world.now_s + self._find_costs(world.jobs[job_id]).checkpoint_s
                world.schedule_call(due_s, ACTION, lambda: self._finish_checkpoint(world, job_id, restarts))
            case Requeue():
                world.halt(world.jobs[job_id])
                self.shapes.pop(job_id, None)
                # the rest of the machine comes after this job's own events
                world.schedule_call(world.now_s, ACTION, lambda: self._finish_requeue(world, job_id))
            case Release():
                lifecycle = self._controller.jobs[job_id].lifecycle
                if (target := lifecycle.target) is not None:
                    # in a resize that time is part of its requeue
                    waited = lifecycle.origin is None or not lifecycle.origin.nodes
                    grant_s = self._find_costs(world.jobs[job_id]).grant_s if waited else 0.0
                    self._released[job_id] = target, world.now_s + grant_s
                    world.schedule_call(world.now_s + grant_s, ACTION, lambda: self._start_released_jobs(world))
        return CarriedOut(instruction)

    def _finish_checkpoint(self, world: World, job_id: int, restarts: int) -> None:
        tracked, live = self._controller.jobs.get(job_id), world.jobs.get(job_id)
        lifecycle = tracked.lifecycle if tracked else None
        awaited = lifecycle is not None and lifecycle.state is ResizeState.CHECKPOINTING
        if tracked is None or lifecycle is None or not awaited or lifecycle.incarnation != restarts:
            if live is not None and live.grant and live.pace is None and live.restarts == restarts:
                world.resume(live)
            return
        self._tell(world, CheckpointTaken(job_id, restarts, tracked.checkpoints_taken + 1))

    def _finish_requeue(self, world: World, job_id: int) -> None:
        live = world.jobs.get(job_id)
        if live is not None and not live.grant:
            self._tell(world, JobObserved(job_id, live.job.submit_s, Observed("PENDING", live.starts)))
        self._start_released_jobs(world)
        if any(tracked.blocked_decision for tracked in self._controller.jobs.values()):
            # its processes end first, as before its own next start
            world.schedule_call(world.now_s + self._costs.requeue_s, ACTION, lambda: self._carry_out_unblocked(world))

    def _carry_out_unblocked(self, world: World) -> None:
        """Do what this epoch decided and could not do yet, as soon as others have left its GPUs."""
        jobs = {
            i: self._job(world, live) for i, live in world.jobs.items() if self._controller.jobs[i].blocked_decision
        }
        for job_id in self._controller.jobs_to_unblock(cluster_now(world), world.now_s, jobs):
            self._tell(world, DecisionUnblocked(job_id, jobs[job_id]))

    def _start_released_jobs(self, world: World) -> None:
        """Start the released jobs whose nodes are free, as Slurm does."""
        for job_id, (target, from_s) in list(self._released.items()):
            each = target.shape.gpus_per_node
            nodes = target.nodes or world.plain.choose_nodes(
                target.shape
            )  # a release without nodes leaves them to Slurm
            if world.now_s < from_s or any(name in world.down or world.free[name] < each for name in nodes):
                continue
            live, state = world.jobs[job_id], self._controller.jobs[job_id].lifecycle.state
            if state is not ResizeState.RELEASED or live.grant or target.plan is None or not nodes:
                continue
            del self._released[job_id]
            self.shapes[job_id] = target.shape
            grant = tuple((name, each) for name in nodes)
            costs = self._find_costs(live)
            world.begin(live, grant, target.plan, costs.start_s if live.starts else costs.first_start_s)
            self._tell(world, JobObserved(job_id, live.job.submit_s, Observed("RUNNING", live.restarts)))

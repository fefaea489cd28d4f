"""Slurm and the jobs' launchers as the simulated controller's instructions meet them.

Checkpoints, requeues and starts take their time, and so do changes without a requeue, where the jobs' costs have them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from synergy_core.job_report import InPlace, Report
from synergy_core.records import Cluster, Job, Shape

from synergy_sim.records import Costs, requested_plan
from synergy_sim.world import ACTION, SimulatedJob, World
from synergyd.control.controller import Controller
from synergyd.control.resize.events import (
    CarriedOut,
    CheckpointTaken,
    ControlEvent,
    DecisionUnblocked,
    JobObserved,
    Observed,
    ReportsReceived,
    TimePassed,
)
from synergyd.control.resize.instructions import (
    AskCheckpoint,
    Instruction,
    JoinNodes,
    Release,
    Requeue,
    Restart,
    ReturnNodes,
    Target,
)
from synergyd.control.resize.lifecycle import (
    JobLifecycle,
    ResizeState,
    restart_ready_s,
    wait_ends_s,
)

JOIN_S = 1.0  # an allocation takes 0.1 s, its step and the launchers' connections the rest (tests.benchmarks.live)


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
        self._launchers: dict[int, InPlace] = {}  # what the launchers of each job's present run have done

    def on_finish(self, world: World, job_id: int) -> None:
        self.forget_run(job_id)
        self._released.pop(job_id, None)
        self.start_released_jobs(world)

    def forget_run(self, job_id: int) -> None:
        """Forget what belongs to a run that is over."""
        self.shapes.pop(job_id, None)
        self._launchers.pop(job_id, None)

    def in_place(self, live: SimulatedJob) -> InPlace | None:
        """Return what the running job's launchers say of its changes without a requeue, or None if they can make none."""
        if self._find_costs(live).live_s is None:
            return None
        return replace(self._launchers.get(live.job_id, InPlace()), live=len(live.grant) > 1, grows=True)

    def _find_costs(self, live: SimulatedJob) -> Costs:
        return live.job.costs or self._costs

    def schedule_tick(self, world: World, lifecycle: JobLifecycle, was: ResizeState) -> None:
        """Schedule the tick, if any, that a job waits for now that its resize has gone on."""
        if was is ResizeState.RELEASED and not lifecycle.left_to_slurm_reason:
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
            case JoinNodes():
                self._join(world, instruction)
            case Restart():
                self._restart(world, instruction)
            case ReturnNodes():
                world.give_back(world.jobs[job_id])
                # the rest of the machine comes after this job's own events
                world.schedule_call(world.now_s, ACTION, lambda: self._use_free_nodes(world))
            case Requeue():
                world.halt(world.jobs[job_id])
                self.forget_run(job_id)
                # the rest of the machine comes after this job's own events
                world.schedule_call(world.now_s, ACTION, lambda: self._finish_requeue(world, job_id))
            case Release():
                lifecycle = self._controller.jobs[job_id].lifecycle
                if (target := lifecycle.target) is not None:
                    # in a resize that time is part of its requeue
                    waited = lifecycle.origin is None or not lifecycle.origin.nodes
                    grant_s = self._find_costs(world.jobs[job_id]).grant_s if waited else 0.0
                    self._released[job_id] = target, world.now_s + grant_s
                    world.schedule_call(world.now_s + grant_s, ACTION, lambda: self.start_released_jobs(world))
        return CarriedOut(instruction)

    def _finish_checkpoint(self, world: World, job_id: int, restarts: int) -> None:
        tracked, live = self._controller.jobs.get(job_id), world.jobs.get(job_id)
        lifecycle = tracked.lifecycle if tracked else None
        awaited = lifecycle is not None and lifecycle.state is ResizeState.CHECKPOINTING
        if tracked is None or lifecycle is None or not awaited or lifecycle.incarnation != restarts:
            if live is not None and live.grant and live.pace is None and live.restarts == restarts:
                world.resume(live)
            return
        self._tell(world, CheckpointTaken(job_id, restarts, tracked.checkpoint_request))

    def _join(self, world: World, order: JoinNodes) -> None:
        """Bring nodes in, at once or not at all; the launchers answer once they are connected."""
        live = world.jobs[order.job_id]
        each, own_gpus = live.grant[0][1], dict(live.grant)
        more = tuple((name, each) for name in order.nodes if name not in own_gpus)
        unavailable = [name for name, gpus in more if name in world.down or world.free[name] < gpus]
        if not unavailable:
            world.join(live, more)
        refusal = f"{', '.join(unavailable)} can't be had" if unavailable else ""
        world.schedule_call(world.now_s + JOIN_S, ACTION, lambda: self._answer(world, order, refusal))

    def _restart(self, world: World, order: Restart) -> None:
        """Start the job's processes again on the ordered nodes.

        Its launchers say so when they train, or, where nodes leave, as soon as the processes on those have ended.
        """
        live, target = world.jobs[order.job_id], self._controller.jobs[order.job_id].lifecycle.target
        costs = self._find_costs(live)
        assert costs.live_s is not None and target is not None
        nodes = order.nodes or tuple(name for name, _ in live.grant)
        world.move(live, nodes, order.plan, costs.live_s)
        self.shapes[order.job_id] = target.shape
        answer_s = min(live.ready_s, world.now_s + costs.requeue_s) if live.beside else live.ready_s
        world.schedule_call(answer_s, ACTION, lambda: self._answer(world, order))

    def _answer(self, world: World, order: JoinNodes | Restart, refusal: str = "") -> None:
        """Report what the job's launchers have done at an order, unless its incarnation is over."""
        live = world.jobs.get(order.job_id)
        if live is None or not live.grant or live.restarts != order.restarts:
            return
        run = self.in_place(live)
        assert run is not None
        if isinstance(order, JoinNodes):
            run = replace(run, joined=order.number, join_refusal=refusal)
        else:
            run = replace(run, order=order.number, number=live.moves)
        self._launchers[order.job_id] = run
        report = Report(order.job_id, order.restarts, step=0, plan=live.plan, silent=True, in_place=run)
        self._tell(world, ReportsReceived((report,), live.restarts))

    def _use_free_nodes(self, world: World) -> None:
        """Start, or carry out, what has waited for nodes that are free now."""
        self.start_released_jobs(world)
        self._carry_out_unblocked(world)

    def _finish_requeue(self, world: World, job_id: int) -> None:
        live = world.jobs.get(job_id)
        if live is not None and not live.grant:
            self._tell(world, JobObserved(job_id, live.job.submit_s, Observed("PENDING", live.starts)))
        self.start_released_jobs(world)
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

    def start_released_jobs(self, world: World) -> None:
        """Start the released jobs whose nodes are free, as Slurm does."""
        for job_id, (target, from_s) in list(self._released.items()):
            each = target.shape.gpus_per_node
            nodes = target.nodes or world.plain.choose_nodes(
                target.shape
            )  # a release without nodes leaves them to Slurm
            if world.now_s < from_s or any(name in world.down or world.free[name] < each for name in nodes):
                continue
            live, lifecycle = world.jobs[job_id], self._controller.jobs[job_id].lifecycle
            # one that is left to Slurm waits in its queue as it was released
            may_start = lifecycle.state is ResizeState.RELEASED or bool(lifecycle.left_to_slurm_reason)
            if not may_start or live.grant or not nodes:
                continue
            del self._released[job_id]
            self.shapes[job_id] = target.shape
            grant = tuple((name, each) for name in nodes)
            costs = self._find_costs(live)
            # without a plan it runs with its user's own arguments
            world.begin(
                live,
                grant,
                target.plan or requested_plan(live.job),
                costs.start_s if live.starts else costs.first_start_s,
            )
            self._tell(world, JobObserved(job_id, live.job.submit_s, Observed("RUNNING", live.restarts)))

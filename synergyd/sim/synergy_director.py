"""Synergy itself in the simulator: the daemon's decisions and the lifecycle's states, over simulated Slurm and time.

`decide`, `SynergyTask`, `arrived`, `gpus_free` and `lifecycle.advance` are the daemon's own. What is simulated is what they talk
to: a checkpoint that takes its time, a requeue, a start once its nodes are free, and reports. As in the daemon,
  - an epoch every `epoch_s`; what is decided there and not yet possible (GPUs still held) is done as soon as they are given
    back in a resize, else decided anew at the next;
  - a job is resized only after its agent has reported in this incarnation;
  - a running job is told of a better batch on the same GPUs in the answer to a report, and goes on without a restart;
  - a resize goes checkpoint, requeue, update, release, start; other jobs' GPUs are spoken for meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from synergyd.control.events import Acknowledged, CarriedOut, Observed, Preempted, ResizeEvent, Tick, Unwanted, Wanted
from synergyd.control.gpus_free import gpus_free
from synergyd.control.in_transit import arrived, under_way
from synergyd.control.instructions import AskCheckpoint, Instruction, Park, Release, Requeue, Target, Update
from synergyd.control.job_durations import JobDurations
from synergyd.control.rebatch import better_batch
from synergyd.control.resize import IN_TRANSIT, JobLifecycle, ResizeState, ResizeTimes, advance
from synergyd.errors import UsageError
from synergyd.links.sharing import slowdowns_of
from synergyd.records import Action, Cell, Cluster, Decision, Job, JobState, Plan, Profile, Report, Shape, Snapshot
from synergyd.scheduler.decide import decide
from synergyd.scheduler.problem.records import Policy, Progress
from synergyd.settings import Settings
from synergyd.sim.belief import asked_shape, directive_of
from synergyd.sim.world import ACTION, Live, World


class Belief(Protocol):
    """Where Cells come from: `belief.Learnt` or `belief.Oracle`."""

    def report(self, live: Live, job: Job, until_s: float, slowdown: float = 1.0) -> bool: ...
    def cells(self, live: Live, job: Job, cluster: Cluster) -> tuple[tuple[Cell, ...], str]: ...
    def progress(self, live: Live) -> Progress: ...
    def known(self) -> dict[int, Profile]: ...
    def forget(self, job_id: int) -> None: ...


@dataclass
class SynergyDirector:
    """Director of one run. `rigid`: jobs keep the size and the batch that their users asked for."""

    settings: Settings
    policy: Policy
    belief: Belief
    rigid: bool = False
    _blocked: list[Decision] = field(default_factory=list)  # of the last epoch, for others still hold their GPUs
    decisions_s: list[float] = field(default_factory=list)  # wall time of each epoch's Cells and decision
    lives: dict[int, JobLifecycle] = field(default_factory=dict)
    lengths: JobDurations = field(default_factory=JobDurations)
    _jobs: dict[int, Job] = field(default_factory=dict)  # as submitted
    _shapes: dict[int, Shape] = field(default_factory=dict)  # of running jobs
    _reported: set[int] = field(default_factory=set)
    _released: dict[int, Target] = field(default_factory=dict)  # may start as soon as their nodes are free
    _acks: dict[int, int] = field(default_factory=dict)
    _slowed: dict[int, float] = field(
        default_factory=dict
    )  # by neighbours on shared links, as the last decision has it

    def limits(self, world: World) -> ResizeTimes:
        return ResizeTimes(
            checkpoint_timeout_s=max(self.settings.checkpoint_timeout_s, 2 * world.scenario.costs.checkpoint_s),
            restart_delay_s=world.scenario.costs.requeue_s,
            release_timeout_s=max(60.0, 2 * world.scenario.epoch_s),
        )

    # -- what the World tells ------------------------------------------------------------------------------------------

    def arrived(self, world: World, live: Live) -> None:
        job = live.job
        asked = asked_shape(job, world.scenario.cluster)
        if asked is None:
            raise UsageError(job.where or job.name, f"{job.gpus} GPUs of one type are more than the cluster has")
        self._jobs[live.job_id] = Job(
            job_id=live.job_id,
            name=job.name,
            user="trace",
            uid=0,
            partition="",
            state=JobState.PENDING,
            reason="",
            submit_s=job.submit_s,
            start_s=None,
            begin_s=None,
            restarts=0,
            shape=asked,
            asked=asked,
            directive=directive_of(job, rigid=self.rigid),
        )
        self.lives[live.job_id] = JobLifecycle(live.job_id, job.submit_s, since_s=world.now_s)

    def moved(self, world: World, live: Live) -> None:
        self._report(world, live)

    def _report(self, world: World, live: Live) -> bool:
        """Takes the reports that are due of a job; whether there were any in this incarnation."""
        if live.pace is None or world.now_s <= live.ready_s:
            return False
        if self.belief.report(live, self._job(world, live), world.now_s, self._slowed.get(live.job_id, 1.0)):
            self._reported.add(live.job_id)
        return live.job_id in self._reported

    def finished(self, world: World, live: Live) -> None:
        self._advance(world, live.job_id, Observed("GONE"))
        for one in (self.lives, self._jobs, self._shapes, self._released, self._acks):
            one.pop(live.job_id, None)
        self._reported.discard(live.job_id)
        self.belief.forget(live.job_id)
        self.lengths.ended(live.gpu_s, live.job.gpus)
        self._start_released(world)

    def lost(self, world: World, live: Live) -> None:
        self._shapes.pop(live.job_id, None)
        self._advance(world, live.job_id, Observed("PENDING", live.starts))

    # -- an epoch ------------------------------------------------------------------------------------------------------

    def epoch(self, world: World) -> None:
        jobs = {live.job_id: self._job(world, live) for live in world.jobs.values()}
        for live in world.running():
            if self._report(world, live):
                jobs[live.job_id] = replace(jobs[live.job_id], fixed="")
        for job_id, life in list(self.lives.items()):
            if life.target and life.state in IN_TRANSIT and set(life.target.nodes) & world.down:
                self._advance(world, job_id, Unwanted("its node can't take jobs now"))
        cluster = self._cluster(world)
        snapshot = Snapshot(world.now_s, cluster, tuple(jobs.values()), self.belief.known())
        began = time.perf_counter()
        offers = {i: self.belief.cells(world.jobs[i], job, cluster) for i, job in jobs.items()}
        decisions = decide(
            arrived(snapshot, under_way(self.lives)),
            self.settings,
            {i: cells for i, (cells, _) in offers.items()},
            {i: why for i, (_, why) in offers.items() if why},
            self._plans(world),
            {i: world.now_s - job.submit_s for i, job in jobs.items()},
            self.policy,
            {i: self._progress(world, live) for i, live in world.jobs.items()},
            self.lengths.typical_s,
        )
        self.decisions_s.append(time.perf_counter() - began)
        self._slowed = slowdowns_of(decisions)
        self._rebatch(world, jobs, offers)
        self._blocked = []
        for decision in decisions:
            life = self.lives[decision.job_id]
            wanted = decision.action in (Action.START, Action.RESIZE) and decision.cell is not None
            if wanted and life.state in (ResizeState.QUEUED, ResizeState.RUNNING):
                if gpus_free(decision, snapshot):
                    self._want(world, decision, jobs[decision.job_id])
                else:
                    self._blocked.append(decision)
            elif decision.action is Action.WAIT and jobs[decision.job_id].state is JobState.RUNNING:
                self._advance(
                    world, decision.job_id, Preempted(decision.action.value, self._acks.get(decision.job_id, 0))
                )

    def _unblock(self, world: World) -> None:
        """What this epoch decided and could not be done yet is done as soon as others have left its GPUs."""
        if not self._blocked:
            return
        cluster = self._cluster(world)
        blocked, self._blocked = self._blocked, []
        for decision in blocked:
            life, live = self.lives.get(decision.job_id), world.jobs.get(decision.job_id)
            if life is None or live is None or life.state not in (ResizeState.QUEUED, ResizeState.RUNNING):
                continue
            job = self._job(world, live)
            if gpus_free(decision, Snapshot(world.now_s, cluster, (job,))):
                self._want(world, decision, job)
            else:
                self._blocked.append(decision)

    def _rebatch(
        self, world: World, jobs: Mapping[int, Job], offers: Mapping[int, tuple[tuple[Cell, ...], str]]
    ) -> None:
        """Jobs go on with another batch on the same GPUs, told in the answer to a report, where that gains enough."""
        for job_id, job in jobs.items():
            live, profile = world.jobs[job_id], self.belief.known().get(job_id)
            if live.plan is None or live.pace is None or job_id not in self._reported or world.now_s <= live.ready_s:
                continue
            if self.lives[job_id].state is not ResizeState.RUNNING:
                continue
            noise = profile.noise_scale if profile is not None else live.pace.noise_scale
            step_s = live.pace.step_s / self._slowed.get(job_id, 1.0)
            told = Report(job_id, job.restarts, 0, step_s=step_s, plan=live.plan, rebatching=True)
            plan = better_batch(job, told, offers[job_id][0], noise)
            if plan is not None:
                world.replan(live, plan)

    def _cluster(self, world: World) -> Cluster:
        return Cluster(
            tuple(
                replace(node, gpus_used=node.gpus - world.free[node.name], up=node.name not in world.down)
                for node in world.scenario.cluster.nodes
            )
        )

    def _progress(self, world: World, live: Live) -> Progress:
        found = self.belief.progress(live)
        if live.grant:
            found = replace(found, attained_gpu_s=found.attained_gpu_s + live.gpus * (world.now_s - live.granted_s))
        return found

    def _job(self, world: World, live: Live) -> Job:
        world.sync(live)
        job = self._jobs[live.job_id]
        if not live.grant:
            return replace(job, restarts=live.starts)
        life = self.lives[live.job_id]
        fixed = "" if live.job_id in self._reported else "its agent has not reported yet"
        if not fixed and world.now_s < life.retry_after_s:
            fixed = "its last resize failed"
        return replace(
            job,
            state=JobState.RUNNING,
            start_s=live.granted_s,
            restarts=live.restarts,
            shape=self._shapes[live.job_id],
            node_names=tuple(name for name, _ in live.grant),
            fixed=fixed,
        )

    def _plans(self, world: World) -> Mapping[int, Plan]:
        return {live.job_id: live.plan for live in world.running() if live.plan is not None}

    # -- acting --------------------------------------------------------------------------------------------------------

    def _want(self, world: World, decision: Decision, job: Job) -> None:
        assert decision.cell is not None
        target = Target(decision.cell.shape, decision.node_names, decision.cell.plan)
        life = self.lives[job.job_id]
        present = Target(job.shape, job.node_names, life.plan)
        acks = self._acks.get(job.job_id, 0)
        self._advance(world, job.job_id, Wanted(target, decision.action.value, acks, present))

    def _advance(self, world: World, job_id: int, event: ResizeEvent) -> None:
        """One event, and all that follows from it at this instant."""
        queue: list[ResizeEvent] = [event]
        limits = self.limits(world)
        while queue:
            life = self.lives.get(job_id)
            if life is None:
                return
            step = advance(life, queue.pop(0), world.now_s, limits)
            self.lives[job_id] = step.life
            if step.life.state is not life.state and life.state is ResizeState.RELEASED:
                self._released.pop(job_id, None)
            for instruction in step.instructions:
                queue.append(self._carry_out(world, instruction))
            if step.life.state is not life.state:
                self._expect(world, step.life, limits)

    def _expect(self, world: World, life: JobLifecycle, limits: ResizeTimes) -> None:
        """The tick that a state waits for."""
        due_s = {
            ResizeState.RESIZED: life.ended_s + limits.restart_delay_s,
            ResizeState.RELEASED: life.since_s + limits.release_timeout_s,
        }
        if life.state in due_s and due_s[life.state] >= world.now_s:
            job_id = life.job_id
            world.at(due_s[life.state], ACTION, lambda: self._advance(world, job_id, Tick()))

    def _carry_out(self, world: World, instruction: Instruction) -> CarriedOut:
        job_id = instruction.job_id
        match instruction:
            case AskCheckpoint(restarts=restarts):
                world.pause(world.jobs[job_id])
                due_s = world.now_s + world.scenario.costs.checkpoint_s
                world.at(due_s, ACTION, lambda: self._acknowledge(world, job_id, restarts))
            case Requeue():
                live = world.jobs[job_id]
                world.halt(live)
                self._shapes.pop(job_id, None)
                self._reported.discard(job_id)
                self._acks.pop(job_id, None)
                # what is left of the machine comes after this job's own events
                world.at(world.now_s, ACTION, lambda: self._requeued(world, job_id))
            case Release():
                target = self.lives[job_id].target
                if target is not None:
                    self._released[job_id] = target
                    world.at(world.now_s, ACTION, lambda: self._start_released(world))
            case Update() | Park():
                pass
        return CarriedOut(instruction)

    def _acknowledge(self, world: World, job_id: int, restarts: int) -> None:
        life = self.lives.get(job_id)
        if life is None or life.state is not ResizeState.CHECKPOINTING or life.restarts != restarts:
            live = world.jobs.get(job_id)
            if live is not None and live.grant and live.pace is None and live.restarts == restarts:
                world.resume(live)
            return
        self._acks[job_id] = self._acks.get(job_id, 0) + 1
        self._advance(world, job_id, Acknowledged(restarts, self._acks[job_id]))

    def _requeued(self, world: World, job_id: int) -> None:
        live = world.jobs.get(job_id)
        if live is not None and not live.grant:
            self._advance(world, job_id, Observed("PENDING", live.starts))
        self._start_released(world)
        if self._blocked:
            # its processes end first, as before its own next start
            world.at(world.now_s + world.scenario.costs.requeue_s, ACTION, lambda: self._unblock(world))

    def _start_released(self, world: World) -> None:
        """What Slurm does: released jobs whose nodes are free start."""
        for job_id, target in list(self._released.items()):
            each = target.shape.gpus_per_node
            if any(name in world.down or world.free[name] < each for name in target.nodes):
                continue
            live = world.jobs[job_id]
            if self.lives[job_id].state is not ResizeState.RELEASED or live.grant or target.plan is None:
                continue
            del self._released[job_id]
            costs = world.scenario.costs
            self._shapes[job_id] = target.shape
            grant = tuple((name, each) for name in target.nodes)
            world.begin(live, grant, target.plan, costs.start_s if live.starts else costs.first_start_s)
            self._advance(world, job_id, Observed("RUNNING", live.restarts))

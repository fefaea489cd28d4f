"""Synergy itself in the simulator: a shell over the daemon's controller, with simulated Slurm, jobs and time around it.

`decide`, `JobPlanner` and `Controller` are the daemon's own. What is simulated is what they talk to: a checkpoint that takes
its time, a requeue, a start once its nodes are free, and reports. As in the daemon,
  - an epoch comes every `epoch_s`; what is decided there and not yet possible (GPUs still held) is done as soon as they are
    given back in a resize, else decided anew at the next;
  - a job is resized only after its agent has reported in this incarnation;
  - a running job is told of a better batch on the same GPUs in the answer to a report, and goes on without a restart.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from synergyd.control.controller import Controller
from synergyd.control.known.node_health import DrainNode, RememberNodes
from synergyd.control.known.progress import with_likely
from synergyd.control.known.size_changes import SizeChanges
from synergyd.control.move_limits import caps_beside, settled
from synergyd.control.resize.events import (
    Answered,
    BatchReviewed,
    ControlEvent,
    Decided,
    EpochDecided,
    GpuTimeKnown,
    JobObserved,
    NodesRead,
    Observed,
    Reported,
    SnapshotTaken,
)
from synergyd.control.resize.instructions import AskCheckpoint
from synergyd.control.resize.lifecycle import times_of
from synergyd.control.tracked import Learnt, ParkAgain, Remember, TellBatch
from synergyd.job_report import Report
from synergyd.records import Cell, Cluster, Job, JobState, Measurement, Plan, Profile, Snapshot
from synergyd.scheduler.decide import decide
from synergyd.scheduler.delayed_starts import watched
from synergyd.scheduler.problem.delays import NO_DELAYS, DelayHistory
from synergyd.scheduler.problem.records import Policy, Progress
from synergyd.settings import Settings
from synergyd.sim.belief import submitted
from synergyd.sim.records import Costs
from synergyd.sim.simulated_slurm import SimulatedSlurm, cluster_now
from synergyd.sim.world import Live, World
from synergyd.task.exchange_choice import with_exchange


class Belief(Protocol):
    """What the jobs report and what is made of it: `belief.LearntBelief` or `belief.OracleBelief`."""

    learns: bool
    lengths: bool

    def reports(self, live: Live, job: Job, until_s: float, stops: bool = False) -> tuple[Report, ...]: ...
    def learn_prior(self, programs: Mapping[int, tuple[tuple[Measurement, ...], ...]]) -> None: ...
    def predicted(self, live: Live, job: Job, profile: Profile) -> tuple[float, int] | None: ...
    def expect(self, jobs: Iterable[tuple[Live, Job, Profile]]) -> None: ...
    def cells(
        self, live: Live, job: Job, profile: Profile, present: Plan | None, cluster: Cluster
    ) -> tuple[tuple[Cell, ...], str]: ...
    def progress(self, live: Live) -> Progress: ...
    def forget(self, job_id: int) -> None: ...


@dataclass
class SynergyDirector:
    """Director of one run. `rigid`: jobs keep the size and the batch that their users asked for."""

    settings: Settings
    policy: Policy
    belief: Belief
    costs: Costs
    rigid: bool = False
    decisions_s: list[float] = field(default_factory=list)  # wall time of each epoch's Cells and decision
    _submitted: dict[int, Job] = field(default_factory=dict)
    _delays: DelayHistory = NO_DELAYS

    def __post_init__(self) -> None:
        timeout_s = max(self.settings.checkpoint_timeout_s, 2 * self.costs.checkpoint_s)
        times = replace(times_of(self.settings), checkpoint_timeout_s=timeout_s, restart_delay_s=self.costs.requeue_s)
        # simulated jobs have an agent
        sizes = SizeChanges(assumed=True)
        self.controller = Controller(times, self.settings.epoch_s, learns=self.belief.learns, size_changes=sizes)
        self._slurm = SimulatedSlurm(self.costs, self.controller, self._run, self._job)

    # -- what the World tells ------------------------------------------------------------------------------------------

    def arrived(self, world: World, live: Live) -> None:
        job = submitted(live, world.scenario.cluster, rigid=self.rigid)
        self._submitted[live.job_id] = with_exchange(job, False, self.settings.comm_options)
        self._run(world, JobObserved(live.job_id, live.job.submit_s, Observed("PENDING")))

    def moved(self, world: World, live: Live) -> None:
        """Takes the reports that are due of a job, at the pace that it has had."""
        if (told := self._reported(world, live)) is not None:
            self._run(world, told)

    def _reported(self, world: World, live: Live, stops: bool = False) -> Reported | None:
        if live.pace is None or world.now_s <= live.ready_s:
            return None
        job = self._job(world, live)
        reports = self.belief.reports(live, job, world.now_s, stops)
        if not reports:
            return None
        return Reported(reports, live.restarts, self.belief.predicted(live, job, self._profile(live)), job.shape)

    def finished(self, world: World, live: Live) -> None:
        self._run(world, GpuTimeKnown(live.job_id, live.gpu_s, tells=self.belief.lengths))
        self._run(world, JobObserved(live.job_id, live.job.submit_s, Observed("GONE")))
        del self._submitted[live.job_id]
        self.belief.forget(live.job_id)
        self._slurm.finished(world, live.job_id)

    def lost(self, world: World, live: Live) -> None:
        self._slurm.shapes.pop(live.job_id, None)
        self._run(world, JobObserved(live.job_id, live.job.submit_s, Observed("PENDING", live.starts)))

    # -- an epoch ------------------------------------------------------------------------------------------------------

    def epoch(self, world: World) -> None:
        for live in world.running():
            self.moved(world, live)
        self._run(world, NodesRead(frozenset(world.free) - world.down))
        jobs = {live.job_id: self._job(world, live) for live in world.jobs.values()}
        snapshot = Snapshot(world.now_s, cluster_now(world), tuple(jobs.values()), self.controller.profiles)
        self._run(world, SnapshotTaken(snapshot, 0.0))
        began = time.perf_counter()
        self.belief.learn_prior(self.controller.shared_profiles.programs())
        believed = self.controller.believed(snapshot.jobs)
        self.belief.expect((world.jobs[i], job, believed[i]) for i, job in jobs.items())
        cells = {i: self._cells(world.jobs[i], job, believed[i], snapshot.cluster) for i, job in jobs.items()}
        deciding = self.controller.deciding(snapshot)
        self._delays = watched(self._delays, deciding, self.policy, self.settings.placement)
        decisions = decide(
            deciding,
            self.settings,
            {i: some for i, (some, _) in cells.items()},
            {i: why for i, (_, why) in cells.items() if why},
            {live.job_id: live.plan for live in world.running() if live.plan is not None},
            self.controller.ages_s(world.now_s),
            self.policy,
            with_likely(
                {i: self._progress(world, live) for i, live in world.jobs.items()},
                jobs.values(),
                self.controller.lengths,
            ),
            self.controller.durations.typical_s,
            caps=caps_beside(self.controller.jobs, self.settings, world.now_s),
            restarts=self.controller.restarts.of(jobs.values(), self.controller.jobs, world.now_s),
            delays=self._delays,
        )
        self.decisions_s.append(time.perf_counter() - began)
        self._run(world, EpochDecided(decisions))
        for job_id, (some, _) in cells.items():
            self._review_batch(world, world.jobs[job_id], some)
        for decision in decisions:
            self._run(world, Decided(decision))

    def _review_batch(self, world: World, live: Live, cells: tuple[Cell, ...]) -> None:
        if live.plan is None or live.pace is None or world.now_s <= live.ready_s:
            return
        if self.controller.reported(live.job_id, live.restarts):
            step_s = live.pace.step_s / self.controller.jobs[live.job_id].slowdown
            report = Report(live.job_id, live.restarts, 0, step_s=step_s, plan=live.plan, rebatching=True)
            self._run(world, BatchReviewed(live.job_id, cells, report, live.pace.noise_scale))

    def _cells(self, live: Live, job: Job, profile: Profile, cluster: Cluster) -> tuple[tuple[Cell, ...], str]:
        report = self.controller.jobs[live.job_id].report
        return self.belief.cells(live, job, profile, report.plan if report else None, cluster)

    def _profile(self, live: Live) -> Profile:
        return self.controller.jobs[live.job_id].profile or Profile()

    def _progress(self, world: World, live: Live) -> Progress:
        progress = self.belief.progress(live)
        running_s = world.now_s - live.granted_s if live.grant else 0.0
        had = progress.attained_gpu_s + live.gpus * running_s
        return replace(progress, attained_gpu_s=had)

    def _job(self, world: World, live: Live) -> Job:
        world.sync(live)
        job = self._submitted[live.job_id]
        if not live.grant:
            return replace(job, restarts=live.starts)
        running = replace(
            job,
            state=JobState.RUNNING,
            start_s=live.granted_s,
            restarts=live.restarts,
            shape=self._slurm.shapes[live.job_id],
            node_names=tuple(name for name, _ in live.grant),
        )
        moves = self.controller.jobs[live.job_id].lifecycle.moves
        minute = int(world.now_s // 60) % 1440  # a trace begins at midnight
        return settled(
            self.controller.as_decided_about(running, world.now_s), moves, self.settings, world.now_s, minute
        )

    def _run(self, world: World, event: ControlEvent) -> None:
        """One event, and all that follows from it at this instant."""
        queue: deque[ControlEvent] = deque([event])
        while queue:
            moved: list[Remember] = []
            for output in self.controller.handle(queue.popleft(), world.now_s):
                match output:
                    case Remember():
                        if output.lifecycle.state is not output.was:
                            moved.append(output)
                    case TellBatch(job_id=job_id, plan=plan):
                        world.replan(world.jobs[job_id], plan)
                    case AskCheckpoint(job_id=job_id):
                        # its agent's state changes, which is told at once
                        if (told := self._reported(world, world.jobs[job_id], stops=True)) is not None:
                            queue.append(told)
                        queue.append(Answered(self._slurm.carry_out(world, output)))
                    case Learnt() | ParkAgain() | RememberNodes() | DrainNode():
                        pass
                    case _:
                        queue.append(Answered(self._slurm.carry_out(world, output)))
            for step in moved:
                self._slurm.moved(world, step.lifecycle, step.was)

"""Synergy itself in the simulator: a shell over the daemon's controller, with simulated Slurm, jobs and time around it.

`decide`, `JobPlanner` and `Controller` are the daemon's own. Their counterparts are simulated: a checkpoint that takes
its time, a requeue, a start once its nodes are free, and reports. As in the daemon,
  - an epoch comes every `epoch_s`; what is decided there and not yet possible (GPUs still held) is done as soon as they are
    given back in a resize, else decided anew at the next;
  - a job is resized only after its agent has reported in this incarnation;
  - a running job is told of a better batch on the same GPUs in the answer to a report, and goes on without a restart.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from synergy_core.job_report import EarlyFailure, Report
from synergy_core.records import Cell, Cluster, Decision, Job, JobState, Measurement, Plan, Profile, Snapshot

from synergy_sim.beside_plain_jobs import beside_plain_jobs
from synergy_sim.placements import DALLY, make_stages
from synergy_sim.records import Costs
from synergy_sim.simulated_forecast import queued_job
from synergy_sim.simulated_slurm import SimulatedSlurm, cluster_now
from synergy_sim.world import SimulatedJob, World
from synergyd.control.controller import Controller
from synergyd.control.epoch import collect_inputs, pump
from synergyd.control.failed_plans import Bans
from synergyd.control.move_limits import with_move_limits
from synergyd.control.resize.events import (
    BatchReviewed,
    ControlEvent,
    EpochDecided,
    GpuTimeKnown,
    InstructionAnswered,
    JobDecided,
    JobObserved,
    NodesRead,
    Observed,
    ReportsReceived,
    SnapshotTaken,
)
from synergyd.control.resize.instructions import AskCheckpoint
from synergyd.control.resize.lifecycle import IN_TRANSIT, make_resize_times
from synergyd.control.state.node_health import DrainNode, RememberNodes
from synergyd.control.state.progress import with_likely
from synergyd.control.state.size_changes import SizeChanges
from synergyd.control.tracked import KeepReport, Output, ParkAgain, Remember, TellBatch
from synergyd.jobmodel.cell_search import CellSearchResult
from synergyd.jobmodel.exchange_choice import with_exchange
from synergyd.scheduler.epoch import EpochInputs, begin, run
from synergyd.scheduler.problem.delays import NO_DELAYS, DelayHistory
from synergyd.scheduler.problem.records import Policy, Progress
from synergyd.scheduler.problem.rules import make_decision_rules
from synergyd.settings import Settings


class Forecast(Protocol):
    """The jobs' reports and what is made of them: `simulated_forecast.LearntForecast` or `simulated_forecast.OracleForecast`."""

    learns: bool
    lengths: bool

    def reports(self, live: SimulatedJob, job: Job, until_s: float, stops: bool = False) -> tuple[Report, ...]: ...
    def learn_prior(self, programs: Mapping[int, tuple[tuple[Measurement, ...], ...]], cluster: Cluster) -> None: ...
    def predict_run(self, live: SimulatedJob, job: Job, profile: Profile) -> tuple[float, int] | None: ...
    def prepare(self, jobs: Iterable[tuple[SimulatedJob, Job, Profile]], cluster: Cluster) -> None: ...
    def cells(
        self, live: SimulatedJob, job: Job, profile: Profile, present: Plan | None, cluster: Cluster, bans: Bans
    ) -> CellSearchResult: ...
    def progress(self, live: SimulatedJob) -> Progress: ...
    def forget(self, job_id: int) -> None: ...


def decide_simulated_epoch(inputs: EpochInputs, settings: Settings, policy: Policy) -> tuple[Decision, ...]:
    """Return what a simulated epoch decides from these inputs: those of a run's own epoch, or of one that a daemon has recorded."""
    return run(make_stages(settings.placement), begin(inputs, make_decision_rules(settings), policy)).decisions


@dataclass
class SynergyDirector:
    """Director of one run. `rigid`: jobs keep the size and the batch that their users asked for."""

    settings: Settings
    policy: Policy
    forecast: Forecast
    costs: Costs
    rigid: bool = False
    decisions_s: list[float] = field(default_factory=list)  # wall time of each epoch's Cells and decision
    _submitted: dict[int, Job] = field(default_factory=dict)
    _delays: DelayHistory = NO_DELAYS

    def __post_init__(self) -> None:
        timeout_s = max(self.settings.checkpoint_timeout_s, 2 * self.costs.checkpoint_s)
        times = replace(
            make_resize_times(self.settings), checkpoint_timeout_s=timeout_s, restart_delay_s=self.costs.requeue_s
        )
        # simulated jobs have an agent
        sizes = SizeChanges(assumed=True)
        self.controller = Controller(
            times, self.settings.epoch_s, learns=self.forecast.learns, live=self.settings.live, size_changes=sizes
        )
        self._slurm = SimulatedSlurm(self.costs, self.controller, self._process, self._job)

    # -- what the World tells ------------------------------------------------------------------------------------------

    def on_arrival(self, world: World, live: SimulatedJob) -> None:
        job = queued_job(live, world.scenario.cluster, rigid=self.rigid)
        self._submitted[live.job_id] = with_exchange(job, False, self.settings.comm_options)
        self._process(world, JobObserved(live.job_id, live.job.submit_s, Observed("PENDING")))

    def on_speed_change(self, world: World, live: SimulatedJob) -> None:
        """Take the reports that a job is due to send, at the pace that it has had."""
        if (received := self._due_reports(world, live)) is not None:
            self._process(world, received)

    def _due_reports(self, world: World, live: SimulatedJob, stops: bool = False) -> ReportsReceived | None:
        if live.pace is None or world.now_s <= live.ready_s:
            return None
        job = self._job(world, live)
        reports = self.forecast.reports(live, job, world.now_s, stops)
        if not reports:
            return None
        run = self._slurm.in_place(live)
        reports = tuple(replace(report, in_place=run) for report in reports)
        return ReportsReceived(
            reports, live.restarts, self.forecast.predict_run(live, job, self._profile(live)), job.shape
        )

    def on_finish(self, world: World, live: SimulatedJob) -> None:
        self._process(world, GpuTimeKnown(live.job_id, live.gpu_s, tells=self.forecast.lengths))
        self._process(world, JobObserved(live.job_id, live.job.submit_s, Observed("GONE")))
        del self._submitted[live.job_id]
        self.forecast.forget(live.job_id)
        self._slurm.on_finish(world, live.job_id)

    def on_node_failure(self, world: World, live: SimulatedJob) -> None:
        self._slurm.forget_run(live.job_id)
        self._process(world, JobObserved(live.job_id, live.job.submit_s, Observed("PENDING", live.starts)))

    def on_out_of_memory(self, world: World, live: SimulatedJob) -> None:
        """Report the failed run as its launcher would, which waits to be requeued."""
        run = self._slurm.in_place(live)
        failure = EarlyFailure(kind="memory", code=1, number=live.moves + 1, plan=live.plan)
        report = Report(live.job_id, live.restarts, step=0, plan=live.plan, failure=failure, in_place=run)
        job = self._job(world, live)
        self._process(world, ReportsReceived((report,), live.restarts, shape=job.shape, job=job))

    def reserved_gpus(self, world: World) -> Mapping[str, int]:
        """Return the GPUs of the targets of jobs that restart, as the daemon's reservations keep them."""
        gpus_by_node: Counter[str] = Counter()
        for live in world.jobs.values():
            life = self.controller.jobs[live.job_id].lifecycle
            if not live.grant and life.target is not None and life.state in IN_TRANSIT:
                for name in life.target.nodes:
                    gpus_by_node[name] += life.target.shape.gpus_per_node
        return gpus_by_node

    # -- an epoch ------------------------------------------------------------------------------------------------------

    def run_epoch(self, world: World) -> None:
        for live in world.running():
            self.on_speed_change(world, live)
        self._slurm.start_released_jobs(world)
        self._process(world, NodesRead(frozenset(world.free) - world.down))
        jobs = beside_plain_jobs(world, {live.job_id: self._job(world, live) for live in world.jobs.values()})
        snapshot = Snapshot(world.now_s, cluster_now(world), tuple(jobs.values()), self.controller.profiles)
        self._process(world, SnapshotTaken(snapshot, 0.0))
        began = time.perf_counter()
        self.forecast.learn_prior(self.controller.shared_profiles.programs(), snapshot.cluster)
        believed = self.controller.believed_profiles(snapshot.jobs)
        self.forecast.prepare(((world.jobs[i], job, believed[i]) for i, job in jobs.items()), snapshot.cluster)
        cells = {i: self._cells(world.jobs[i], job, believed[i], snapshot.cluster) for i, job in jobs.items()}
        inputs = collect_inputs(
            self.controller,
            snapshot,
            cells,
            settings=self.settings,
            observes_delays=self.policy.observes_delays or self.settings.placement == DALLY,
            current_plans={live.job_id: live.plan for live in world.running() if live.plan is not None},
            progress=with_likely(
                {i: self._progress(world, world.jobs[i]) for i in jobs},
                jobs.values(),
                self.controller.lengths,
            ),
            delays=self._delays,
        )
        self._delays = inputs.delays
        decisions = decide_simulated_epoch(inputs, self.settings, self.policy)
        self.decisions_s.append(time.perf_counter() - began)
        self._process(world, EpochDecided(decisions))
        for job_id, one in cells.items():
            self._review_batch(world, world.jobs[job_id], one.cells)
        for decision in decisions:
            self._process(world, JobDecided(decision))

    def _review_batch(self, world: World, live: SimulatedJob, cells: tuple[Cell, ...]) -> None:
        if live.plan is None or live.pace is None or world.now_s <= live.ready_s:
            return
        if self.controller.has_reported(live.job_id, live.restarts):
            step_s = live.pace.step_s / self.controller.jobs[live.job_id].slowdown
            report = Report(live.job_id, live.restarts, 0, step_s=step_s, plan=live.plan, rebatching=True)
            self._process(world, BatchReviewed(live.job_id, cells, report, live.pace.noise_scale))

    def _cells(self, live: SimulatedJob, job: Job, profile: Profile, cluster: Cluster) -> CellSearchResult:
        report = self.controller.jobs[live.job_id].report
        bans = self.controller.failed_plans.bans_for(job)
        return self.forecast.cells(live, job, profile, report.plan if report else None, cluster, bans)

    def _profile(self, live: SimulatedJob) -> Profile:
        return self.controller.jobs[live.job_id].profile or Profile()

    def _progress(self, world: World, live: SimulatedJob) -> Progress:
        progress = self.forecast.progress(live)
        running_s = world.now_s - live.accounted_s if live.grant else 0.0
        had = progress.attained_gpu_s + live.gpus * running_s
        return replace(progress, attained_gpu_s=had)

    def _job(self, world: World, live: SimulatedJob) -> Job:
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
        return with_move_limits(
            self.controller.decidable_job(running, world.now_s), moves, self.settings, world.now_s, minute
        )

    def _process(self, world: World, event: ControlEvent) -> None:
        """Carry `event` to its end at this instant."""
        pump(self.controller, event, _SimulatedShell(self, world))

    def carry_out(self, world: World, output: Output) -> Iterator[ControlEvent]:
        """Carry out one output on the simulated cluster and yield what answers it."""
        match output:
            case TellBatch(job_id=job_id, plan=plan):
                world.replan(world.jobs[job_id], plan)
            case AskCheckpoint(job_id=job_id):
                # its agent's state changes, which is told at once
                if (received := self._due_reports(world, world.jobs[job_id], stops=True)) is not None:
                    yield received
                yield InstructionAnswered(self._slurm.carry_out(world, output))
            case Remember() | KeepReport() | ParkAgain() | RememberNodes() | DrainNode():
                pass
            case _:
                yield InstructionAnswered(self._slurm.carry_out(world, output))

    def follow(self, world: World, step: Remember) -> None:
        """Let the simulated cluster do what follows from a job's new state."""
        self._slurm.schedule_tick(world, step.lifecycle, step.was)


class _SimulatedShell:
    """The simulated cluster around the controller, during one event."""

    def __init__(self, director: SynergyDirector, world: World) -> None:
        self._director, self._world = director, world
        self._moved: list[Remember] = []

    def now_s(self) -> float:
        return self._world.now_s

    def carry_out(self, output: Output) -> Iterator[ControlEvent]:
        if isinstance(output, Remember) and output.lifecycle.state is not output.was:
            self._moved.append(output)
        yield from self._director.carry_out(self._world, output)

    def complete(self) -> None:
        moved, self._moved = self._moved, []
        for step in moved:
            self._director.follow(self._world, step)

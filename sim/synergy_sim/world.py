"""The true course of a simulation: jobs on GPUs, moved from event to event.

Nothing ticks. Between two events every running job moves at a constant pace, so its next event is known exactly: the end
of a stage of its training. The Director decides what runs (`tiresias_reference.py`, `synergy_director.py`).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from synergy_core.errors import UsageError
from synergy_core.records import Plan

from synergy_sim.plain_jobs import PlainJobs
from synergy_sim.records import JobResult, Occupancy, PlacedGpus, Scenario, TraceJob, TrainingSpeed
from synergyd.control.arrivals import EARLIEST, EARLIEST_S, LOOK_S, LOOKS
from synergyd.links.slowdown import Traffic, slowdowns

# Order of events at the same instant: what has happened comes before the decision that must know of it.
STAGE, NODE, ARRIVAL, ACTION, EPOCH, LATE = range(6)
_ALIKE = 1e-6  # slowdowns that differ by less are the same
PROGRESS_S = 3600.0  # simulated seconds between two signs of progress at the latest
STUCK_S = 30 * 24 * 3600.0  # nothing runs and nothing starts for so long: a trace that can't run out


@dataclass
class SimulatedJob:
    """A job that has arrived. `grant` is what it runs on: (node, GPUs) in the order given; `ready_s` when it trains.

    `beside` is what it holds besides: nodes that join it, or that it has left and not given back yet.
    """

    job_id: int
    job: TraceJob
    grant: tuple[tuple[str, int], ...] = ()
    plan: Plan | None = None  # as executed
    pace: TrainingSpeed | None = None  # with what neighbours on shared links cost
    undisturbed_speed: TrainingSpeed | None = None  # with its links to itself
    slowdown: float = 1.0
    stage: int = 0
    progress: float = 0.0
    synced_s: float = 0.0
    ready_s: float = math.inf
    granted_s: float = 0.0
    accounted_s: float = 0.0  # up to when `gpu_s` counts
    started_s: float | None = None
    saved_s: float = 0.0  # when its last checkpoint was asked for, or this incarnation began
    starts: int = 0
    gpu_s: float = 0.0
    idle_s: float = 0.0
    version: int = 0  # events of an older one are void
    moves: int = 0  # changes without a requeue
    beside: tuple[tuple[str, int], ...] = ()

    @property
    def gpus(self) -> int:
        return sum(gpus for _, gpus in self.grant)

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)


class Director(Protocol):
    """The side that decides what runs. The World calls it; it acts through `begin` and `halt`."""

    def on_arrival(self, world: World, live: SimulatedJob) -> None: ...
    def on_speed_change(self, world: World, live: SimulatedJob) -> None:
        """Take note that the job's pace is about to change: this is the last moment at which it can report the one it had."""
        ...

    def on_finish(self, world: World, live: SimulatedJob) -> None: ...
    def on_node_failure(self, world: World, live: SimulatedJob) -> None:
        """Take note that the job's node failed; it has been halted."""
        ...

    def on_out_of_memory(self, world: World, live: SimulatedJob) -> None:
        """Take note that the job's first step has run out of GPU memory; its launcher waits on its GPUs."""
        ...

    def run_epoch(self, world: World) -> None: ...
    def reserved_gpus(self, world: World) -> Mapping[str, int]:
        """Return the free GPUs by node that no plain job may take: jobs restart there."""
        ...


@dataclass
class World:
    """One simulation. `jobs` are those that have arrived and not finished, in order of arrival, without the plain ones."""

    scenario: Scenario
    director: Director
    early: bool = False  # an epoch comes early when a job arrives, or ends while another waits
    rigid: bool = False  # all jobs run as their users asked, like plain ones
    now_s: float = 0.0
    jobs: dict[int, SimulatedJob] = field(default_factory=dict)
    results: dict[int, JobResult] = field(default_factory=dict)
    occupancies: list[Occupancy] = field(default_factory=list)
    goodput: list[tuple[float, float]] = field(default_factory=list)
    # work that was done from the first to the last submission, in seconds at the pace asked for
    usual_work_s: float = 0.0
    gpu_s_per_unit: Callable[[SimulatedJob], float] = field(
        default=lambda live: 1.0
    )  # least GPU seconds of one unit of a job's progress
    # seconds of one unit of a job's progress as its user asked for it
    usual_s: Callable[[SimulatedJob], float] = field(default=lambda live: 0.0)

    def __post_init__(self) -> None:
        self._heap: list[tuple[float, int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.free = {node.name: node.gpus for node in self.scenario.cluster.nodes}
        self.down: set[str] = set()
        self._types = {node.name: node.gpu_type for node in self.scenario.cluster.nodes}
        self._arrivals = iter(enumerate(self.scenario.jobs, start=1))
        self._left = len(self.scenario.jobs)
        self._epoch_at_s: float | None = None
        self._last_epoch_s = -math.inf
        self._changed_s = 0.0
        self.plain = PlainJobs(self)
        submits = [job.submit_s for job in self.scenario.jobs]
        self._arriving_s = min(submits, default=0.0), max(submits, default=0.0)

    def run(self, on_progress: Callable[[int, float], None] | None = None) -> None:
        """Run to the end of the last job. Raises UsageError where the rest of the jobs can never run."""
        for outage in self.scenario.outages:
            self.schedule_call(outage.start_s, NODE, lambda name=outage.node: self._fail_node(name))  # type: ignore[misc]
            self.schedule_call(outage.end_s, NODE, lambda name=outage.node: self._return_node(name))  # type: ignore[misc]
        self._next_arrival()
        reported_s = 0.0
        while self._left:
            time_s, _, _, act = heapq.heappop(self._heap)
            self.now_s = max(self.now_s, time_s)
            before = self._left
            act()
            if self.plain.jobs:
                self.plain.start(self.director.reserved_gpus(self))
            # long after the last job ended, too: an epoch takes its time whether a job ends or not
            if on_progress is not None and (self._left != before or self.now_s >= reported_s + PROGRESS_S):
                reported_s = self.now_s
                on_progress(len(self.scenario.jobs) - self._left, self.now_s)

    def schedule_call(self, time_s: float, kind: int, act: Callable[[], None]) -> None:
        """Call `act` at `time_s`, after the events of a lower kind at that instant."""
        heapq.heappush(self._heap, (time_s, kind, next(self._order), act))

    # -- what directors do -------------------------------------------------------------------------------------------

    def begin(self, live: SimulatedJob, grant: tuple[tuple[str, int], ...], plan: Plan, delay_s: float) -> None:
        """Give GPUs to a job that has none; it trains after `delay_s`."""
        assert not live.grant and grant
        for name, gpus in grant:
            assert self.free[name] >= gpus and name not in self.down, f"{name} has not {gpus} GPUs free"
            self.free[name] -= gpus
        live.grant = grant
        live.plan = live.job.truth.executed_plan(plan)
        live.granted_s = live.accounted_s = live.saved_s = self.now_s
        live.starts += 1
        live.started_s = self.now_s if live.started_s is None else live.started_s
        self._changed_s = self.now_s
        self._begin_run(live, delay_s)

    def _begin_run(self, live: SimulatedJob, delay_s: float) -> None:
        """Start the job's processes, which train after `delay_s`."""
        live.ready_s = live.synced_s = self.now_s + delay_s
        live.idle_s += delay_s
        self._plan_stage(live)
        if self.scenario.topology is not None and delay_s > 0 and len(live.grant) > 1:
            self.schedule_call(live.ready_s, STAGE, self._update_shared_speeds)

    def join(self, live: SimulatedJob, nodes: tuple[tuple[str, int], ...]) -> None:
        """Give a running job free GPUs of more nodes. It goes on as it is until `move`."""
        for name, gpus in nodes:
            assert self.free[name] >= gpus and name not in self.down, f"{name} has not {gpus} GPUs free"
            self.free[name] -= gpus
        self._account(live)
        live.beside += nodes

    def move(self, live: SimulatedJob, nodes: tuple[str, ...], plan: Plan, delay_s: float) -> None:
        """Start a paused job's processes again, on `nodes` of those that it holds. It keeps the others until `give_back`."""
        gpus_by_node = dict((*live.grant, *live.beside))
        self._account(live)
        live.idle_s += max(0.0, self.now_s - live.synced_s)
        live.grant = tuple((name, gpus_by_node.pop(name)) for name in nodes)
        live.beside = tuple(gpus_by_node.items())
        live.plan = live.job.truth.executed_plan(plan)
        live.moves += 1
        self._begin_run(live, delay_s)

    def give_back(self, live: SimulatedJob) -> None:
        """Free the nodes that a running job holds and does not run on."""
        self._account(live)
        for name, gpus in live.beside:
            self.free[name] += gpus
        live.beside = ()
        self._changed_s = self.now_s

    def _account(self, live: SimulatedJob) -> None:
        """Count what the job has held up to now."""
        if live.grant and self.now_s > live.accounted_s:
            holdings = live.grant + live.beside
            self.occupancies.append(Occupancy(live.job_id, live.accounted_s, self.now_s, holdings))
            live.gpu_s += sum(gpus for _, gpus in holdings) * (self.now_s - live.accounted_s)
        live.accounted_s = self.now_s

    def halt(self, live: SimulatedJob) -> None:
        """Take a job's GPUs; its progress is kept as it stands."""
        self.sync(live)
        live.version += 1
        if not live.grant:
            return
        self._account(live)
        # a start cut short counts as far as it came, and so does what passed since it paused
        live.idle_s += self.now_s - live.synced_s if live.pace is None else min(0.0, self.now_s - live.ready_s)
        for name, gpus in live.grant + live.beside:
            self.free[name] += gpus
        live.grant, live.beside, live.plan, live.pace, live.ready_s = (), (), None, None, math.inf
        live.slowdown = 1.0
        self._changed_s = self.now_s
        self._update_shared_speeds()

    def pause(self, live: SimulatedJob) -> None:
        """Stop training (the job writes its checkpoint); the GPUs stay with it."""
        self.sync(live)
        live.version += 1
        live.synced_s, live.saved_s = max(self.now_s, live.ready_s), self.now_s
        live.pace, live.slowdown = None, 1.0
        self._update_shared_speeds()

    def resume(self, live: SimulatedJob) -> None:
        """End a pause that came to nothing."""
        live.idle_s += max(0.0, self.now_s - live.synced_s)
        live.synced_s = max(live.ready_s, self.now_s)
        self._plan_stage(live)

    def replan(self, live: SimulatedJob, plan: Plan) -> None:
        """Train with another batch from the next step on, on the same GPUs."""
        self.sync(live)
        live.plan = live.job.truth.executed_plan(plan)
        live.synced_s = max(self.now_s, live.ready_s)
        self._plan_stage(live)

    def sync(self, live: SimulatedJob) -> None:
        """Bring `progress` up to now."""
        if live.pace is not None and self.now_s > live.synced_s:
            self._count(live)
            live.progress += live.pace.rate * (self.now_s - live.synced_s)
            live.progress = min(live.progress, live.job.truth.end(live.stage))
            live.synced_s = self.now_s

    def _count(self, live: SimulatedJob) -> None:
        """Count the job's training since its last sync in the cluster's throughput."""
        first_s, last_s = self._arriving_s
        seconds = min(self.now_s, last_s) - max(live.synced_s, first_s)
        if live.pace is not None and seconds > 0:
            self.usual_work_s += live.pace.rate * self.usual_s(live) * seconds

    def find_placement(self, live: SimulatedJob) -> PlacedGpus:
        return PlacedGpus(self._types[live.grant[0][0]], tuple(gpus for _, gpus in live.grant))

    def schedule_epoch(self, early: bool = False) -> None:
        """Schedule an epoch at the next point of the period's grid.

        `early`: or as soon as the daemon has seen that a job was submitted, or has ended while another waits (control/arrivals.py).
        """
        period = self.scenario.epoch_s
        # the grid starts one period after zero: nobody decides before there was anything to see
        next_s = max(
            max(1, math.ceil(self.now_s / period - 1e-9)) * period, self.now_s
        )  # a hair beyond a point is at it
        if early:
            looks_s, apart_s = min(LOOK_S, period / LOOKS), min(EARLIEST_S, period / EARLIEST)
            next_s = min(next_s, max(self.now_s + looks_s, self._last_epoch_s + apart_s))
        if self._epoch_at_s is None or next_s < self._epoch_at_s:
            self._epoch_at_s = next_s
            self.schedule_call(next_s, EPOCH, self._run_epoch)

    def running(self) -> Iterator[SimulatedJob]:
        return (live for live in self.jobs.values() if live.grant)

    # -- events --------------------------------------------------------------------------------------------------------

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            job_id, job = arrival
            self.schedule_call(job.submit_s, ARRIVAL, lambda: self._admit_job(job_id, job))

    def _admit_job(self, job_id: int, job: TraceJob) -> None:
        live = SimulatedJob(job_id, job)
        self._changed_s = self.now_s
        self._next_arrival()
        if job.plain:
            self.plain.add(live)
            return
        self.jobs[job_id] = live
        self.director.on_arrival(self, live)
        self.schedule_epoch(self.early)

    def _run_epoch(self) -> None:
        if self._epoch_at_s != self.now_s:
            return
        self._epoch_at_s, self._last_epoch_s = None, self.now_s
        if not self.jobs:
            return
        self.director.run_epoch(self)
        speed = sum(live.pace.rate * self.gpu_s_per_unit(live) for live in self.running() if live.pace is not None)
        self.goodput.append((self.now_s, speed))
        if not any(live.grant for live in self.jobs.values()) and self.now_s - self._changed_s > STUCK_S:
            names = ", ".join(live.job.where or live.job.name for live in list(self.jobs.values())[:3])
            raise UsageError(names, "never starts under this policy", "look at its size and at the cluster's")
        period = self.scenario.epoch_s
        self._epoch_at_s = (math.floor(self.now_s / period + 1e-9) + 1) * period
        self.schedule_call(self._epoch_at_s, EPOCH, self._run_epoch)

    def _plan_stage(self, live: SimulatedJob) -> None:
        """Schedule the end of the present stage."""
        assert live.plan is not None
        truth = (live.job.requested_truth if self.rigid or live.job.plain else None) or live.job.truth
        live.undisturbed_speed = truth.pace(live.stage, self.find_placement(live), live.plan)
        if live.undisturbed_speed is None or live.undisturbed_speed.rate <= 0:
            if live.job.expected_fit is not None and not live.job.plain:
                live.version, live.pace = live.version + 1, None
                version = live.version
                self.schedule_call(live.synced_s, STAGE, lambda: self._run_out_of_memory(live, version))
                return
            raise UsageError(
                live.job.where or live.job.name,
                f"nothing was measured of {live.plan} on {self.find_placement(live)}",
                "the trace's job can't be simulated there",
            )
        self._continue_stage(live)
        self._update_shared_speeds(live)

    def _run_out_of_memory(self, live: SimulatedJob, version: int) -> None:
        """Report that a job does not fit on its GPUs: its first step fails."""
        if live.version == version and live.grant:
            self.director.on_out_of_memory(self, live)

    def _update_shared_speeds(self, but: SimulatedJob | None = None) -> None:
        """Compute the new paces of the jobs whose links others have come to or left. `but` has nothing to report of its pace so far."""
        topology = self.scenario.topology
        if topology is None:
            return
        training = [live for live in self.jobs.values() if live.pace is not None and live.synced_s <= self.now_s]
        traffic = []
        for live in training:
            assert live.undisturbed_speed is not None
            if len(live.grant) > 1 and live.undisturbed_speed.sync_s > 0:
                mb = live.undisturbed_speed.sync_s * 1000.0 / topology.nic.per_mb
                names = tuple(name for name, _ in live.grant)
                traffic.append(
                    Traffic(live.job_id, names, live.undisturbed_speed.step_s - live.undisturbed_speed.sync_s, mb)
                )
        slowdown_by_job = slowdowns(traffic, topology)
        for live in training:
            slowdown = slowdown_by_job[live.job_id].slowdown if live.job_id in slowdown_by_job else 1.0
            if abs(slowdown - live.slowdown) > _ALIKE:
                self.sync(live)
                if live is not but:
                    self.director.on_speed_change(self, live)
                live.slowdown = slowdown
                self._continue_stage(live)

    def _continue_stage(self, live: SimulatedJob) -> None:
        """Continue at the present pace to the end of the stage."""
        assert live.undisturbed_speed is not None
        truth, own = live.job.truth, live.undisturbed_speed
        live.version += 1
        live.pace = replace(own, rate=own.rate / live.slowdown, step_s=own.step_s * live.slowdown)
        needed_s = max(0.0, (truth.end(live.stage) - live.progress) / live.pace.rate)
        exact_s = live.synced_s + needed_s
        end_s, kind = exact_s, STAGE
        if self.scenario.whole_seconds:
            end_s = live.synced_s + round(needed_s)
            # a stage rounded down into a decision's instant was in truth not over when the decision was taken
            kind = LATE if end_s < exact_s else STAGE
        version = live.version
        self.schedule_call(end_s, kind, lambda: self._end_stage(live, version))

    def _end_stage(self, live: SimulatedJob, version: int) -> None:
        if live.version != version:
            return
        truth = live.job.truth
        self._count(live)
        live.progress, live.synced_s = truth.end(live.stage), self.now_s
        if not live.job.plain:
            self.director.on_speed_change(self, live)
        live.stage += 1
        if live.stage < truth.stages:
            self._plan_stage(live)
            return
        live.stage = truth.stages - 1
        live.synced_s, live.pace = self.now_s, None
        end_s = (live.job.costs or self.scenario.costs).end_s
        if end_s <= 0:
            self._end_job(live)
            return
        starts = live.starts
        self._update_shared_speeds()
        self.schedule_call(
            self.now_s + end_s, STAGE, lambda: self._end_job(live) if live.grant and live.starts == starts else None
        )

    def _end_job(self, live: SimulatedJob) -> None:
        """End the job and free its GPUs."""
        among = self.plain.jobs if live.job.plain else self.jobs
        if live.job_id not in among:
            return
        self.halt(live)
        del among[live.job_id]
        self._left -= 1
        assert live.started_s is not None
        self.results[live.job_id] = JobResult(
            live.job, live.started_s, self.now_s, live.restarts + live.moves, live.gpu_s, live.idle_s
        )
        if not live.job.plain:
            self.director.on_finish(self, live)
        if self.early and any(not other.grant for other in self.jobs.values()):
            self.schedule_epoch(early=True)

    def _fail_node(self, name: str) -> None:
        self.down.add(name)
        self._changed_s = self.now_s
        for live in [live for live in self.running() if any(node == name for node, _ in live.grant + live.beside)]:
            every = self.scenario.checkpoint_every_s
            self.sync(live)
            # it wrote its own checkpoint every so often; what came after the last one is lost
            since_s = max(live.ready_s, live.saved_s)
            lost_s = math.fmod(max(0.0, self.now_s - since_s), every)
            if live.pace is not None:
                start = live.job.truth.end(live.stage - 1) if live.stage else 0.0
                live.progress = max(start, live.progress - live.pace.rate * lost_s)
            self.halt(live)
            self.director.on_node_failure(self, live)
        self.schedule_epoch()

    def _return_node(self, name: str) -> None:
        self.down.discard(name)
        self._changed_s = self.now_s
        self.schedule_epoch()


def results_in_order(world: World) -> tuple[JobResult, ...]:
    """Return every job's result, in the trace's order."""
    return tuple(world.results[i] for i in range(1, len(world.scenario.jobs) + 1))

"""A queue, its users, nodes that fail, and a daemon that may be killed: what the controller's property tests drive.

`Slurm` is as small as the instructions need; `World` is a shell like the daemon's: it hands the controller what it sees, keeps
what it is told to remember, and carries instructions out, some of which get lost on the way.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, replace

from synergy_core.job_report import EarlyFailure, Report
from synergy_core.reasons import text_reason
from synergy_core.records import Action, Cell, Cluster, Decision, Directive, Job, JobState, Node, Plan, Shape, Snapshot

from synergyd.control.controller import Controller
from synergyd.control.resize.events import (
    BatchReviewed,
    CarriedOut,
    ControlEvent,
    DecisionUnblocked,
    EpochDecided,
    HealthReviewed,
    InstructionAnswered,
    JobDecided,
    JobObserved,
    NodesRead,
    Observed,
    QueueRead,
    Refused,
    ReportsReceived,
    SnapshotTaken,
    TimePassed,
)
from synergyd.control.resize.instructions import AskCheckpoint, Instruction, LowerShield, Park, Release, Requeue, Update
from synergyd.control.resize.lifecycle import (
    IN_TRANSIT,
    JobLifecycle,
    ResizeState,
    ResizeTimes,
)
from synergyd.control.state.node_health import DrainNode, RememberNodes
from synergyd.control.tracked import KeepReport, ParkAgain, Remember, TellBatch

TIMES = ResizeTimes(checkpoint_timeout_s=30, resend_s=5, park_s=60, release_timeout_s=20, attempts=3, retry_s=20)
EPOCH_S = 15.0
NODES = {"n1": 4, "n2": 4, "n3": 4}
TARGETS = tuple(
    (Cell(Shape("a100", nodes, gpus), Plan(dp=nodes * gpus, global_batch=8), 1.0, 1.0, 1.0, 1.0, 0), names)
    for nodes, gpus, names in ((1, 1, ("n1",)), (1, 2, ("n2",)), (1, 4, ("n3",)), (2, 2, ("n1", "n2")))
)
ASKED = Shape("a100", 1, 2)
PLAIN = 9  # a job with a directive that is wrong: tracked, never to be written to


@dataclass
class Queued:
    """A job in Slurm. `work_s`: how long it runs when it is left alone."""

    state: str = "PENDING"
    restarts: int = 0
    begin_s: float = 0.0
    nodes: tuple[str, ...] = ()
    shape: Shape = ASKED
    required: tuple[str, ...] = ()
    held: bool = False
    ends_s: float = 0.0  # of COMPLETING


class Slurm:
    """Jobs by id. A requeue is COMPLETING for 3 s; a pending job starts when it is eligible and its nodes have room."""

    def __init__(self, jobs: int) -> None:
        self.now_s = 1_000.0
        self.jobs = {i: Queued() for i in (*range(1, jobs + 1), PLAIN)}
        self.down: set[str] = set()
        self.away = False

    def free(self) -> dict[str, int]:
        free = dict(NODES)
        for job in self.jobs.values():
            for name in job.nodes:
                free[name] -= job.shape.gpus_per_node
        return free

    def apply(self, what: Instruction) -> str:
        """What the instruction asks for; "" or why not. As the actuator: each says what should be."""
        job = self.jobs.get(what.job_id)
        if job is None:
            return "it has left the queue"
        match what:
            case AskCheckpoint(restarts=restarts):
                return "" if job.state == "RUNNING" and job.restarts == restarts else "it is not running"
            case Requeue(restarts=restarts):
                if job.restarts == restarts and job.state == "RUNNING":
                    self.end(what.job_id, again=True)
                return ""
            case Park(park_s=park_s) | Update(park_s=park_s):
                if job.state != "PENDING":
                    return "it is not pending"
                job.begin_s = self.now_s + park_s
                if isinstance(what, Update):
                    job.shape, job.required = what.target.shape, what.target.nodes
            case Release():
                if job.state == "PENDING":
                    job.begin_s = self.now_s
        return ""

    def end(self, job_id: int, *, again: bool) -> None:
        job = self.jobs[job_id]
        if not again:
            del self.jobs[job_id]
        elif job.state == "RUNNING":
            job.state, job.nodes, job.restarts, job.ends_s = "COMPLETING", (), job.restarts + 1, self.now_s + 3.0

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for job in self.jobs.values():
            if job.state == "COMPLETING" and self.now_s >= job.ends_s:
                job.state, job.begin_s = "PENDING", self.now_s + 120.0  # Slurm's own delay after a requeue
            if job.state == "PENDING" and job.begin_s <= self.now_s and not job.held:
                free = self.free()
                names = job.required or tuple(n for n in NODES if free[n] >= job.shape.gpus_per_node)[: job.shape.nodes]
                room = all(free[n] >= job.shape.gpus_per_node and n not in self.down for n in names)
                if room and len(names) == job.shape.nodes:
                    job.state, job.nodes = "RUNNING", names


class World:
    """One random history. `check` holds after every event."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.slurm = Slurm(self.random.choice((1, 2, 3)))
        self.controller = Controller(TIMES, EPOCH_S)
        self.stored: dict[int, JobLifecycle] = {}
        self.checkpoints: dict[tuple[int, int], int] = {}
        self.lose = self.refuse = self.forget = False
        self.sent: list[Instruction] = []
        self.slurm.pass_time(1.0)
        self.look()
        for job_id in range(1, len(self.slurm.jobs)):
            self.report(job_id)

    # -- the shell -----------------------------------------------------------------------------------------------------

    def run(self, event: ControlEvent) -> None:
        queue: deque[ControlEvent] = deque([event])
        answered = 0
        while queue:
            answered += 1
            assert answered < 100, f"no end of instructions after {event}"
            for output in self.controller.handle(queue.popleft(), self.slurm.now_s):
                match output:
                    case Remember(lifecycle=lifecycle, story=story):
                        assert all(text and "\n" not in text and "None" not in text for text in story)
                        if lifecycle.state is ResizeState.GONE:
                            self.stored.pop(lifecycle.job_id, None)
                        elif not self.forget:  # else the store is away
                            self.stored[lifecycle.job_id] = lifecycle
                    case KeepReport() | TellBatch() | ParkAgain() | RememberNodes() | DrainNode():
                        assert not isinstance(output, ParkAgain) or output.job_id != PLAIN
                    case _:
                        if (answer := self.send(output)) is not None:
                            queue.append(InstructionAnswered(answer))
            problem = self.controller.validate()
            assert problem == "", (event, problem)

    def send(self, what: Instruction) -> CarriedOut | Refused | None:
        assert what.job_id != PLAIN, "written to a job without a directive"
        gone = what.job_id not in self.controller.jobs
        assert not gone or (isinstance(what, LowerShield) and what.job_id not in self.slurm.jobs), "it is forgotten"
        if isinstance(what, Requeue):
            restarts = self.controller.jobs[what.job_id].lifecycle.incarnation
            assert what.restarts == restarts, "an incarnation that is over was requeued"
        if isinstance(what, Update):
            lifecycle = self.controller.jobs[what.job_id].lifecycle
            assert what.target in (lifecycle.target, lifecycle.origin), "in two resizes at once"
        self.sent.append(what)
        if self.lose:
            return None
        if self.slurm.away or self.refuse:
            return Refused(what, "no answer", transient=self.slurm.away)
        problem = self.slurm.apply(what)
        before = replace(job) if (job := self.slurm.jobs.get(what.job_id)) else None
        assert self.slurm.apply(what) == problem or isinstance(what, Requeue)
        assert self.slurm.jobs.get(what.job_id) == before, f"{what} twice is not once"
        return Refused(what, problem, transient=True) if problem else CarriedOut(what)

    def look(self) -> None:
        """The queue and the nodes are read."""
        for job_id, job in self.slurm.jobs.items():
            begin_s = job.begin_s if job.state == "PENDING" else None
            self.run(JobObserved(job_id, 900.0, Observed(job.state, job.restarts, begin_s)))
        self.run(QueueRead(frozenset(self.slurm.jobs)))
        self.run(NodesRead(frozenset(NODES) - self.slurm.down))

    def cluster(self) -> Cluster:
        free = self.slurm.free()
        return Cluster(tuple(Node(n, "a100", g, g - free[n], n not in self.slurm.down) for n, g in NODES.items()))

    def job(self, job_id: int) -> Job:
        queued = self.slurm.jobs[job_id]
        known = JobState.__members__.get(queued.state, JobState.PENDING)
        directive = None if job_id == PLAIN else Directive()
        return Job(
            job_id, "j", "u", 0, "", known, "", 900.0, None, None, queued.restarts, queued.shape, ASKED,
            queued.nodes, held=queued.held, paused=self.random.random() < 0.05, directive=directive,
        )  # fmt: skip

    def epoch(self) -> None:
        self.look()
        jobs = tuple(self.controller.decidable_job(self.job(i), self.slurm.now_s) for i in self.slurm.jobs)
        self.run(SnapshotTaken(Snapshot(self.slurm.now_s, self.cluster(), jobs), EPOCH_S))
        decisions = tuple(self.decision(job) for job in jobs if self.random.random() < 0.8)
        self.run(EpochDecided(decisions))
        if self.random.random() < 0.2:
            for job in jobs:
                self.run(BatchReviewed(job.job_id, tuple(cell for cell, _ in TARGETS)))
            self.run(HealthReviewed())
        for decision in decisions:
            self.run(JobDecided(decision, schedulable=self.random.random() < 0.9))

    def decision(self, job: Job) -> Decision:
        cell, nodes = self.random.choice(TARGETS)
        action = self.random.choice((Action.START, Action.RESIZE, Action.RESIZE, Action.WAIT, Action.KEEP))
        if job.state is JobState.PENDING and action is Action.RESIZE:
            action = Action.START
        return Decision(job.job_id, action, None if action is Action.WAIT else cell, nodes, text_reason("random"))

    def report(self, job_id: int) -> None:
        job = self.slurm.jobs[job_id]
        key = (job_id, job.restarts)
        asked = any(isinstance(i, AskCheckpoint) and (i.job_id, i.restarts) == key for i in self.sent)
        if asked and self.random.random() < 0.7:
            self.checkpoints[key] = self.checkpoints.get(key, 0) + 1
        stale = self.random.random() < 0.1
        report = Report(
            job_id, max(0, job.restarts - stale), 5, step_s=0.5, plan=Plan(dp=2, global_batch=8), noise_scale=50.0,
            checkpoint_requests=self.checkpoints.get(key, 0), rebatching=True, failure=self.failure(),
        )  # fmt: skip
        self.run(ReportsReceived((report,), job.restarts, None, job.shape))

    def failure(self) -> EarlyFailure | None:
        kind, plan = self.random.choice((("exit", None), ("memory", Plan(dp=2, global_batch=8)), ("", None)))
        if not kind or self.random.random() < 0.5:
            return None
        goes_on = plan is not None and self.random.random() < 0.5
        return EarlyFailure(kind=kind, code=1, number=self.random.choice((1, 2)), plan=plan, goes_on=goes_on)

    def restart(self) -> None:
        """kill -9, and a daemon that goes on from what was stored."""
        reports = {i: (r, 0.0) for i, r in self.controller.reports.items() if self.random.random() < 0.5}
        self.controller = Controller(TIMES, EPOCH_S)
        self.controller.restore(self.stored.values(), {}, reports)

    # -- a history -----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        one = self.random.choice(list(self.slurm.jobs)) if self.slurm.jobs else 0
        match self.random.randrange(14):
            case 0 | 1 | 2:
                self.epoch()
            case 3 | 4:
                self.tick()
            case 5 | 6 | 7 if one and self.slurm.jobs[one].state == "RUNNING":
                self.report(one)
            case 8 if one:  # its user, or a node's failure
                self.slurm.end(one, again=self.random.random() < 0.8)
            case 9 if one:
                self.slurm.jobs[one].held = not self.slurm.jobs[one].held
            case 10:
                self.slurm.down ^= {self.random.choice(tuple(NODES))}
            case 11:
                self.restart()
            case 12:
                fault = self.random.choice(("lose", "refuse", "forget"))
                setattr(self, fault, not getattr(self, fault))
            case 13:
                self.slurm.away = not self.slurm.away
        self.slurm.pass_time(self.random.choice((0.0, 1.0, 5.0, 20.0, 70.0)))

    def tick(self) -> None:
        for job_id in self.controller.in_transit:
            job = self.slurm.jobs.get(job_id)
            begin_s = job.begin_s if job and job.state == "PENDING" else None
            self.run(
                JobObserved(job_id, 900.0, Observed(job.state, job.restarts, begin_s) if job else Observed("GONE"))
            )
            self.run(TimePassed(job_id))
        for job_id in self.controller.jobs_to_unblock(self.cluster(), self.slurm.now_s):
            self.run(
                DecisionUnblocked(job_id, self.controller.jobs[job_id].job if self.random.random() < 0.8 else None)
            )

    def calm(self) -> None:
        """No more faults and no more decisions: everything under way ends in bounded time."""
        self.lose = self.refuse = self.forget = self.slurm.away = False
        self.slurm.down = set()
        for job in self.slurm.jobs.values():
            job.held = False
        for _ in range(30):
            self.look()
            self.tick()
            self.slurm.pass_time(10.0)
        self.look()
        moving = [i for i in self.controller.in_transit if self.controller.jobs[i].lifecycle.state in IN_TRANSIT]
        # what was released waits for GPUs that others keep; nothing else may still be on its way
        for job_id in moving:
            assert self.controller.jobs[job_id].lifecycle.state is ResizeState.RELEASED, self.controller.story(job_id)
        for job_id, job in self.slurm.jobs.items():
            assert job.state != "PENDING" or job.begin_s <= self.slurm.now_s + TIMES.park_s, (job_id, job)

"""A job, its agent, a user, nodes that fail, and a daemon that may be killed: what the lifecycle's property tests drive.

The daemon is `advance` with the real actuator over `FakeSlurm`; it stores what it is about to do, or (a store that is away) does not.
"""

from __future__ import annotations

from pathlib import Path

from synergy_core.records import Directive, Plan, Shape

from synergyd.control.resize.events import (
    Acknowledged,
    CarriedOut,
    NodesJoined,
    Observed,
    Preempted,
    Refused,
    ResizeEvent,
    RestartedInPlace,
    Tick,
    Unwanted,
    Wanted,
)
from synergyd.control.resize.instructions import AskCheckpoint, Instruction, JoinNodes, Requeue, Restart, Target, Update
from synergyd.control.resize.lifecycle import (
    JobLifecycle,
    ResizeState,
    ResizeTimes,
    validate,
)
from synergyd.control.resize.machine import advance
from synergyd.slurm.actuator import Actuator
from synergyd.slurm.parsed.snapshot import SubmittedJob
from tests.unit.slurm.fake_slurm import FakeSlurm, row

JOB = 1
LIMITS = ResizeTimes(
    checkpoint_timeout_s=30, resend_s=5, park_s=60, release_timeout_s=20, attempts=3, retry_s=20, in_place_s=40
)
SMALL = Target(Shape("a100", 1, 2), ("n1",), Plan(dp=2, global_batch=8))
OTHER = Target(SMALL.shape, SMALL.nodes, Plan(tp=2, global_batch=8))  # another plan for the GPUs of SMALL
LARGE = Target(Shape("a100", 2, 2), ("n1", "n2"), Plan(tp=2, dp=2, global_batch=8))
FREE = Target(Shape("a100", 3, 1), (), None)
TARGETS = (SMALL, LARGE, FREE)
RESIZING = (
    ResizeState.JOINING,
    ResizeState.CHECKPOINTING,
    ResizeState.REQUEUING,
    ResizeState.RESTARTING,
    ResizeState.RETURNING,
    ResizeState.PARKED,
    ResizeState.RESIZED,
    ResizeState.RELEASED,
)


class World:
    """Every invariant that holds at each step is asserted as the world moves."""

    def __init__(self, folder: Path, slurm: FakeSlurm | None = None) -> None:
        self.slurm = slurm or FakeSlurm(jobs={JOB: row(JOB)})
        self.slurm.script = "#!/bin/bash\nsrun synergy-launch train.py\n"
        known = SubmittedJob(Directive(), "", Shape("", 1, 2), 8)
        self.actuator = Actuator(self.slurm, folder, "ctl:7321", {JOB: known})
        self.life = self.stored = JobLifecycle(JOB, 0.0)
        self.store_away = False
        self.story: list[str] = []
        self.acks: dict[int, int] = {}  # agent's count of checkpoints by incarnation
        self.asked: dict[int, float] = {}  # when an incarnation was first signalled for the present resize
        self.ordered: list[
            tuple[int, int]
        ] = []  # restarts in place that the job's launchers heard of: (incarnation, number)
        self.joins: list[tuple[int, int]] = []  # orders to bring nodes in that they heard of, likewise
        self.delayed: list[Instruction] = []
        self.late: list[ResizeEvent] = []
        self.lose_instructions = self.lose_answers = self.delay_instructions = self.delay_answers = self.twice = False

    @property
    def now_s(self) -> float:
        return self.slurm.now_s

    # -- the daemon ------------------------------------------------------------------------------------------------

    def tell(self, event: ResizeEvent) -> None:
        """One event and all that follows."""
        assert self.slurm.failed == [], "started in the second of its revocation"
        queue = [event]
        while queue:
            event, before = queue.pop(0), self.life
            step = advance(before, event, self.now_s, LIMITS)
            assert validate(step.life) == "", (event, step)
            for text in step.story:
                assert text and "\n" not in text and "None" not in text
            self.life = step.life
            self.story += step.story
            if not self.store_away:
                self.stored = self.life
            for instruction in step.instructions:
                self._check(before, event, instruction)
                queue += self._send(instruction)

    def _check(self, before: JobLifecycle, event: ResizeEvent, instruction: Instruction) -> None:
        assert instruction.job_id == JOB
        if isinstance(instruction, Requeue):
            assert instruction.restarts == before.incarnation
            if before.state is ResizeState.CHECKPOINTING:
                acknowledged = (
                    isinstance(event, Acknowledged)
                    and event.restarts == before.incarnation
                    and before.acks_at_request < event.count <= self.acks[before.incarnation]
                )
                asked_s = [t for _, r, t in self.slurm.signals if r == before.incarnation and t >= before.since_s]
                timed_out = asked_s and self.now_s - asked_s[0] >= LIMITS.checkpoint_timeout_s
                assert acknowledged or (timed_out and not before.stopping), (before, event)
            else:
                late = before.state is ResizeState.RESTARTING and (
                    self.now_s >= before.since_s + LIMITS.in_place_s or isinstance(event, Refused)
                )
                late |= before.state is ResizeState.RETURNING and isinstance(event, Refused)
                without_gpus = isinstance(event, Observed) and event.gpuless
                assert before.state is ResizeState.REQUEUING or late or without_gpus, before
        if isinstance(instruction, Update):
            assert instruction.target in (self.life.target, self.life.origin)

    def _send(self, instruction: Instruction) -> list[ResizeEvent]:
        if self.lose_instructions:
            return []
        if self.delay_instructions:
            self.delayed.append(instruction)
            return []
        answers: list[ResizeEvent] = [self._carry_out(instruction) for _ in range(1 + self.twice)]
        if self.delay_answers:
            self.late += answers
            return []
        return [] if self.lose_answers else answers

    def _carry_out(self, instruction: Instruction) -> CarriedOut | Refused:
        before = len(self.slurm.requeued)
        answer = self.actuator.carry_out(instruction)
        if isinstance(instruction, Restart) and isinstance(answer, CarriedOut):
            self.ordered.append((instruction.restarts, instruction.number))
        if isinstance(instruction, JoinNodes) and isinstance(answer, CarriedOut):
            self.joins.append((instruction.restarts, instruction.number))
        for _, restarts in self.slurm.requeued[before:]:
            assert isinstance(instruction, Requeue) and restarts == instruction.restarts
        if isinstance(instruction, AskCheckpoint) and isinstance(answer, CarriedOut):
            assert self.slurm.signals[-1][:2] == (JOB, instruction.restarts)
        return answer

    def deliver(self) -> None:
        """What was under way arrives, in order."""
        instructions, self.delayed = self.delayed, []
        for instruction in instructions:
            answer = self._carry_out(instruction)
            self.tell(answer)
        events, self.late = self.late, []
        for event in events:
            self.tell(event)

    def kill_daemon(self) -> None:
        """kill -9: what was not stored, and every answer under way, is lost; what Slurm was told may still arrive."""
        self.life = self.stored
        self.late = []

    def round(self, seconds: float = 5.0) -> None:
        """One turn of the daemon's loop."""
        self.slurm.pass_time(seconds)
        if not self.slurm.away:
            self.tell(self.slurm.observe(JOB))
        self.tell(Tick())

    def want(self, target: Target) -> None:
        job = self.slurm.jobs.get(JOB)
        if job is None or job.state not in ("PENDING", "RUNNING"):
            return
        shape = Shape("a100", job.num_nodes, 2)
        present = Target(shape, job.node_names, self.life.plan)
        acks = self.acks.get(self.life.incarnation, 0)
        if target == OTHER:  # as if it had SMALL
            present = SMALL
        self.tell(
            Wanted(target, "more goodput", acks, present, in_place=target == OTHER or job.num_nodes > 1, live=True)
        )

    def grow(self) -> None:
        """A decision for LARGE, as if the job had SMALL and its launchers can bring nodes in."""
        job = self.slurm.jobs.get(JOB)
        if job is not None and job.state == "RUNNING":
            acks = self.acks.get(self.life.incarnation, 0)
            self.tell(Wanted(LARGE, "more goodput", acks, SMALL, in_place=True, live=True, grows=True))

    def preempt(self) -> None:
        self.tell(Preempted("its GPUs go to others", self.acks.get(self.life.incarnation, 0)))

    def unwant(self) -> None:
        self.tell(Unwanted("a newer decision keeps it"))

    # -- the job and its surroundings ------------------------------------------------------------------------------

    def checkpoint(self, *, report: bool = True) -> None:
        """The running job's agent finishes a checkpoint if it was asked for one, and (`report`) says so."""
        job = self.slurm.jobs.get(JOB)
        if job is None or job.state != "RUNNING":
            return
        if any(r == job.restarts for _, r, _ in self.slurm.signals):
            self.acks[job.restarts] = self.acks.get(job.restarts, 0) + 1
        if report:
            self.tell(Acknowledged(job.restarts, self.acks.get(job.restarts, 0)))

    def restarts_in_place(self) -> None:
        """The running job's launchers follow the order that they heard last, and the new run reports."""
        job = self.slurm.jobs.get(JOB)
        numbers = [n for r, n in self.ordered if job is not None and job.state == "RUNNING" and r == job.restarts]
        if job is not None and numbers:
            self.tell(RestartedInPlace(job.restarts, max(numbers)))

    def nodes_join(self, refusal: str = "") -> None:
        """The running job's launchers answer the order to bring nodes in that they heard last."""
        job = self.slurm.jobs.get(JOB)
        numbers = [n for r, n in self.joins if job is not None and job.state == "RUNNING" and r == job.restarts]
        if job is not None and numbers:
            self.tell(NodesJoined(job.restarts, max(numbers), refusal))

    def old_report(self) -> None:
        """A report of an incarnation that has ended arrives late."""
        for restarts, count in list(self.acks.items())[:1]:
            self.tell(Acknowledged(restarts, count))

    def suspend(self) -> None:
        job = self.slurm.jobs.get(JOB)
        if job is not None and job.state in ("RUNNING", "SUSPENDED"):
            self.slurm.set(JOB, state="SUSPENDED" if job.state == "RUNNING" else "RUNNING")

    def hold(self) -> None:
        job = self.slurm.jobs.get(JOB)
        if job is not None and job.state == "PENDING":
            self.slurm.set(JOB, priority=0 if job.priority else 100)

    def reach(self, state: ResizeState, target: Target = LARGE) -> None:
        """Brings the running job's resize into `state` and no further."""
        self.start()
        assert self.life.state is ResizeState.RUNNING
        if state is ResizeState.JOINING:
            self.grow()
            return
        if state is ResizeState.RETURNING:
            self.slurm.set(JOB, num_nodes=2, node_names=LARGE.nodes)
            target = SMALL
        self.want(OTHER if state is ResizeState.RESTARTING else target)
        if state is ResizeState.CHECKPOINTING:
            return
        self.slurm.pass_time(5)
        self.checkpoint()
        if state in (ResizeState.REQUEUING, ResizeState.RESTARTING):
            return
        if state is ResizeState.RETURNING:
            self.lose_instructions = True
            self.restarts_in_place()
            self.lose_instructions = False
            return
        self.lose_instructions = True
        for _ in range(4):
            self.slurm.pass_time(2)
            self.tell(self.slurm.observe(JOB))
        self.lose_instructions = False
        if state is ResizeState.PARKED:
            return
        self.lose_instructions = state is ResizeState.RESIZED
        update = Update(JOB, target, LIMITS.park_s)
        self.tell(self._carry_out(update))
        self.lose_instructions = False
        assert state in (ResizeState.RESIZED, ResizeState.RELEASED)

    def start(self) -> None:
        """The job starts as a plain one."""
        self.slurm.pass_time(1)
        self.tell(self.slurm.observe(JOB))

    def settle(self, rounds: int = 80) -> None:
        """Faults are over: the daemon's loop and a well-behaved agent go on until the job runs, or is gone, as the machine believes."""
        self.lose_instructions = self.lose_answers = self.delay_instructions = self.delay_answers = self.twice = False
        self.store_away = self.slurm.away = self.slurm.full = False
        job = self.slurm.jobs.get(JOB)
        if job is not None and job.state == "SUSPENDED":
            self.slurm.set(JOB, state="RUNNING")
        if job is not None and job.priority == 0:
            self.slurm.set(JOB, priority=100)
        self.deliver()
        for _ in range(rounds):
            self.round()
            if self.life.state is ResizeState.JOINING:
                self.nodes_join()
            if self.life.state is ResizeState.CHECKPOINTING:
                self.checkpoint()
            if self.life.state is ResizeState.RESTARTING:
                self.restarts_in_place()
            if self.settled:
                return
        raise AssertionError(f"not settled: {self.life} but {self.slurm.jobs.get(JOB)}\n" + "\n".join(self.story[-20:]))

    @property
    def settled(self) -> bool:
        """Slurm and the machine agree that it runs, or that it is gone."""
        job = self.slurm.jobs.get(JOB)
        if job is None:
            return self.life.state is ResizeState.GONE
        return (
            job.state == "RUNNING" and self.life.state is ResizeState.RUNNING and job.restarts == self.life.incarnation
        )


__all__ = ["FREE", "JOB", "LARGE", "LIMITS", "OTHER", "SMALL", "TARGETS", "Observed", "World"]


def sent(world: World, verb: str) -> int:
    """How many writes of this kind Slurm got."""
    return sum(call[0] == verb for call in world.slurm.calls)


def has(world: World) -> tuple[int, str, str]:
    """The size that Slurm has for the job."""
    job = world.slurm.jobs[JOB]
    return job.num_nodes, job.tres_per_node, world.slurm.required.get(JOB, "")

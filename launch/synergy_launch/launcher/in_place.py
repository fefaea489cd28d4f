"""Restarts of a job's processes inside its allocation: the daemon's orders, and crashes of a run that had trained.

An order comes in the answer to a report, after the checkpoint that it builds on. It may name the nodes that the run goes on with: the
launchers of the others end with exit code 0, and the daemon gives their nodes back. A run that had got past its first steps and
ends with an error is started again from its last checkpoint if it has come further than at the crash before of the same kind: a script
that fails at the same step again ends with its own exit code. What comes from outside may end it CRASHES times in WINDOW_S at one step.
Where a node is lost the run goes on with those that are left, as far as its plan can be cut down to them, and the daemon gives the lost
node back before Slurm ends the job for it. On several nodes a run is mended so once its agent has reported a checkpoint: the first node
tells the others.

An order may also name nodes that the job does not have: then they are brought in first (more_nodes.py), while the run goes on.

On several nodes the first one decides for all (group/launcher_group.py); without a connection to each of them nothing is restarted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from synergy_core.errors import SynergyError
from synergy_core.job_report import Fault, InPlace
from synergy_core.node_check import NodeCheck
from synergy_core.records import Plan
from synergy_core.wire.codec import decode
from synergy_core.wire.plan import PLAN_CHECKS
from synergy_core.wire.report import FAILURES, MAX_NODES, ReportAnswer

from synergy_launch.agent.loss_spike import MOST_RETURNS, WITHIN_S
from synergy_launch.agent.settings import MEMORY_DIR
from synergy_launch.launcher.failures import run_history
from synergy_launch.launcher.failures.lost_nodes import ENDED_AS_ASKED, KILLED_CODE, first_cause, largest_fit
from synergy_launch.launcher.failures.plan_guard import HOLD_S, PlanGuard
from synergy_launch.launcher.failures.run_history import Crash
from synergy_launch.launcher.gpus.errors import needs_reset
from synergy_launch.launcher.group.launcher_group import REJOIN_S, LauncherGroup, NextRun
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.launcher.memory.copies import MemoryCopies
from synergy_launch.launcher.more_nodes import JOIN_S, ORPHAN_S, Membership, MoreNodes

CRASHES, WINDOW_S = 3, 3600.0
#: for the end of a run that has its checkpoint; torchrun gives its workers 60 s (TORCH_ELASTIC_SHUTDOWN_TIMEOUT)
LEAVE_S = 75.0
#: Slurm ends or requeues a job that has lost a node when its SlurmdTimeout (300 s unless an admin sets it) is over
LOST_HOLD_S = 900.0
#: a silent node is lost after so long without a step of the run, and so many usual steps: the kernel needs 8 s to call it silent
SILENT_S, SILENT_STEPS = 2.0, 3.0
_TELL_S = 0.5  # the most seconds before the first node ends its run: the others must know that it is to end
_CAUSE_S = 1.0  # seconds in which nodes that failed together say why
#: seconds for nodes whose launchers start late or connect anew, before the first one decides without them
_CREW_S = 10.0
_POLL_S = 0.1
_HURRY_S = 0.02  # while a run stands still for the next one
# For the end of a Slurm step's task after that of its launcher: more than 0.3 s with a load of 3.5 on two processors. Slurm kills what
# still runs on a node that it takes back, and srun, and so the job, ends with that task's code 137.
_STEP_END_S = 2.0
_FROM_OUTSIDE = ("killed", "hang", "oom", "gpu", "network")  # causes that say nothing of the step
_USAGE = 2  # a user's mistake, as in Synergy's own commands and argparse: another try says the same


def may_restart(earlier: Collection[Crash], crash: Crash, most: int = CRASHES) -> bool:
    """Return whether a run is started again after `crash`. `earlier`: the crashes before, of all incarnations.

    Without a step gained since it is started at most `most` times in WINDOW_S; while it gains steps, always. Only crashes of the same
    cause, or of none that is known, are at the same step again. One from outside, by SIGKILL, a signal that stopped the run or a fault of
    a GPU or a network adapter, says nothing of the step. A run that ended itself for a loss spike has the bound of its own agent, and is
    no crash for others.
    """
    if crash.cause == "spike":
        return sum(c.cause == "spike" and abs(crash.at_s - c.at_s) < WITHIN_S for c in earlier) < MOST_RETURNS
    no_further = [c for c in earlier if c.step >= crash.step and c.cause != "spike"]
    late = [c for c in no_further if abs(crash.at_s - c.at_s) < WINDOW_S]  # whichever way a clock was set
    if len(late) >= most:
        return False
    alike = [c for c in no_further if not crash.cause or c.cause in ("", crash.cause)]
    return crash.cause in _FROM_OUTSIDE or not alike


@dataclass(frozen=True)
class Grow:
    """What a first node needs to bring nodes in: `group` makes its side of the connections, `start` asks Slurm for nodes."""

    group: Callable[[], LauncherGroup]
    start: Callable[[int, tuple[str, ...], Membership], MoreNodes]


class Restarts:
    """The restarts in place of one node in one incarnation.

    `folder`: the checkpoint folder, or None where there is none. `crashes`: the most restarts in WINDOW_S after crashes at one
    step. `able` False: no run is started again for an order or a crash. `mends` False: none is after a crash or the loss of a node, unless
    `mends_checkpoints`: then one is once its agent has reported a checkpoint. Give `hear` what the daemon says and `look` the run's status,
    and call `poll` often. Where `is_decided` is true the run is to end. `begin_next_run` says whether another follows, on `allocation`.
    """

    def __init__(
        self,
        allocation: JobAllocation,
        folder: Path | None,
        *,
        crashes: int = CRASHES,
        group: LauncherGroup | None = None,
        able: bool = True,
        mends: bool = True,
        mends_checkpoints: bool = False,
        grow: Grow | None = None,
        member: Membership | None = None,
        memory: MemoryCopies | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.report_part = InPlace() if member is None else InPlace(number=member.run, order=member.order)
        self.memory = memory
        self._member = member  # this node is beside the job's own allocation
        self.allocation, self.group = allocation, group
        self._folder, self._most, self._clock, self._monotonic = folder, crashes, clock, monotonic
        self._able, self._mends, self._grow = able, mends, grow
        self._mends_checkpoints = mends_checkpoints
        self._status: Mapping[str, Any] = {}  # the latest that names a plan
        self._growth: MoreNodes | None = None  # the latest
        self._growths: list[MoreNodes] = []  # those whose allocations have not ended
        # an order to bring nodes in, heard and not begun; set by the reporter's thread
        self._join: ReportAnswer | None = None
        self._heard_join = 0  # the latest such order
        self._alone_since: float | None = None  # the time at which a node beside the allocation lost the first one
        self._order: ReportAnswer | None = None  # heard, and not followed yet; set by the reporter's thread
        self._proposal: Plan | None = None  # a batch heard and not passed on yet; set by the reporter's thread
        self._said_at: float | None = None  # the time when the other nodes were told of it
        self._acknowledged = self._present = 0  # checkpoints on request: of earlier runs, of this one
        self._step, self._step_s = 0, 0.0
        self._stepped_at = 0.0  # the time of the latest step, by `monotonic`
        self._saved: int | None = None
        self._crashes: tuple[Crash, ...] = ()  # crashes of this incarnation: the file may not take them
        self._state: object = None  # the run's state, as it said last
        self._crash: tuple[str, tuple[str, ...]] = ("", ())  # kind and nodes of the latest end that this node knows of
        self._has_told_hang = False
        self._out_of_touch_s: float | None = None  # when a follower lost its connection to the first node
        self._check: NodeCheck | None = None  # of this node, the latest
        self.left = False  # the launcher has ended the run
        self.leaves = False  # this node has left the run for good, by an order
        self._gone: set[int] = set()  # nodes whose loss has been answered, and those that left by an order
        self._leaving: set[int] = set()  # those that left by an order
        self._leaving_at_s = float("-inf")  # when the launcher of one was there last, by `monotonic`
        self._order_before = 0  # the order that was followed before the one at which they left
        self.message = ""
        self.fault: Fault | None = None  # of the latest end, where it is known

    @property
    def can_restart(self) -> bool:
        """Return whether this launcher can restart the job's processes."""
        group = self.group
        alone = group is None and len(self.allocation.nodes) == 1
        together = alone or (group is not None and group.is_connected and not group.lost_ranks - self._gone)
        return self._able and self.allocation.job_id is not None and together

    @property
    def report(self) -> InPlace | None:
        """Return what reports say of the restarts; None where this launcher can't restart anything.

        An order that nodes leave at counts as followed when their launchers are gone, and their tasks of the Slurm step: then Slurm may
        have the nodes. The first node alone follows orders: another one that reports because it is not connected promises none.
        """
        if not self.can_restart or (self._is_follower and not self.report_part.order):
            return None
        here = self._monotonic() < self._leaving_at_s + _STEP_END_S
        answered = self._growth if self._growth is not None and self._growth.is_answered else None
        return replace(
            self.report_part,
            order=self._order_before if here else self.report_part.order,
            live=self.sheds_nodes and not self._is_follower,
            lost_nodes=self._lost_nodes,
            grows=self._grow is not None and not self._is_follower,
            joined=answered.number if answered is not None else 0,
            join_refusal=answered.refusal if answered is not None else "",
            join_granted=answered is not None and answered.is_granted,
        )

    @property
    def _lost_nodes(self) -> tuple[str, ...]:
        """Return the nodes that the run goes on without because their launchers were lost."""
        group = self.group
        if group is None or not group.first:
            return ()
        return tuple(group.members[rank] for rank in sorted(group.lost_ranks & self._gone - self._leaving))[:MAX_NODES]

    @property
    def sheds_nodes(self) -> bool:
        """Return whether an order can have the run go on with fewer nodes."""
        return self.can_restart and len(self.allocation.nodes) > 1

    @property
    def mends(self) -> bool:
        """Return whether a failure is answered by another run, on several nodes for all of them together."""
        return self._mends or (self.group is not None and self.group.mends)

    @property
    def is_mended(self) -> bool:
        """Return whether a failure now would be answered by another run from a checkpoint that the agent has reported."""
        able = self.mends and self.can_restart and self._most > 0
        return able and (self._saved is not None if self.group is None else self.group.mends)

    @property
    def together(self) -> bool:
        """Return whether what follows a failure is decided for all nodes together."""
        return self.can_restart and self.mends

    @property
    def follows(self) -> bool:
        """Return whether another node decides what follows the present run."""
        here = self.group is not None and not self.group.first and self.group.is_connected
        return here and (self.mends or self._word is not None)

    @property
    def is_decided(self) -> bool:
        """Return whether the run is to end and it is known what follows."""
        if self._order is not None:
            if self.group is None or self._said_at is None:
                return self.group is None
            late = self._monotonic() >= self._said_at + _TELL_S
            return late or self.group.is_known_to_all(self.report_part.number + 1)
        return self._word is not None or bool(self.code)

    @property
    def code(self) -> int:
        """Return the exit code with which the first node has ended the job; 0 if it has not ended it, or ended well."""
        return self.group.word.code if self.group is not None and self.group.word is not None else 0

    @property
    def is_broken_elsewhere(self) -> bool:
        """Return whether the run has ended on another node in a way that this node's processes do not know."""
        group = self.group
        if group is None or not group.first or not self.mends:
            return False
        ends = ((code, kind) for _, code, kind in self._ends(group))
        return self.has_lost_node or any(
            code not in ENDED_AS_ASKED and (kind != "hang" or self._saved is not None) for code, kind in ends
        )

    @property
    def has_lost_node(self) -> bool:
        """Return whether a node is lost and nothing has followed from it yet."""
        return self.group is not None and self.group.first and self.mends and bool(self.group.lost_ranks - self._gone)

    @property
    def must_end_at_once(self) -> bool:
        """Return whether the run is over, so that its processes, which may wait for others forever, are not asked first."""
        return (
            self.is_broken_elsewhere
            or bool(self.code)
            or (self._word is not None and self._word.order == self.report_part.order)
        )

    @property
    def acknowledged_checkpoints(self) -> int:
        """Return how many checkpoints on request the earlier runs have completed: the incarnation's count goes on."""
        return self._acknowledged

    def hear(self, answer: ReportAnswer) -> None:
        """Keep the daemon's order, unless it was followed already, or names nodes whose launchers are not there."""
        nodes = self.allocation.nodes
        if answer.joins:
            if self._grow is not None and not self._is_follower and answer.order > self._heard_join:
                self._heard_join, self._join = answer.order, answer
            return
        has_present_nodes = not answer.nodes or (
            answer.nodes[0] == nodes[0] and set(answer.nodes) <= {*nodes, *self._joined_nodes}
        )
        fits = bool(answer.nodes) or answer.plan is None or answer.plan.gpus == self.allocation.world
        is_news = answer.order > self.report_part.order
        if self.can_restart and not self._is_follower and is_news and has_present_nodes and fits:
            self._order = answer

    def poll(self) -> None:
        """Read what the other nodes say, and tell them of an order. Bring nodes in."""
        if self._join is not None:
            self._begin_growth(self._join)
        if self.group is None:
            return
        self._listen(self.group)
        if self.memory is not None:
            self.memory.poll(self.group)
        self._watch_growth(self.group)
        if any(peer.rank in self._leaving for peer in self.group.peers):
            self._leaving_at_s = self._monotonic()
        if self._proposal is not None:
            proposal, self._proposal = self._proposal, None
            self.group.propose_batch(proposal)
        if self._order is not None and self._said_at is None:
            self._said_at = self._monotonic()
            self._tell(self._order.order, self._order.plan, self._order.nodes)

    def wait(self, timeout_s: float) -> None:
        """Wait for what another node says, at most `timeout_s`, and hardly at all while the run stands still for the next one."""
        stands_still = self._order is not None or self._word is not None or self._state == "waiting"
        timeout_s = min(timeout_s, _HURRY_S) if stands_still else timeout_s
        if self.group is not None:
            self.group.wait(timeout_s)
        else:
            time.sleep(timeout_s)

    def share_status(self, own: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the present run's status: `own`, of this node's processes, or on the first node what another one's say.

        Megatron-LM's log, for example, is written on the last node. Other nodes pass theirs on to the first one, which reports it.
        """
        group, number = self.group, self.report_part.number
        if own is not None and group is not None and not group.first and group.is_connected:
            group.pass_on_status(number, own)
        if own is None and group is not None and group.first and group.status is not None and group.status[0] == number:
            own = group.status[1]
        return None if own is None else dict(own)

    @property
    def is_reported_by_first(self) -> bool:
        """Return whether the first node reports what this one's processes say."""
        return self._is_follower and self.group is not None and self.group.is_connected

    def note_check(self, check: NodeCheck) -> None:
        """Keep the check of this node; another node's first node gets it too."""
        self._check = check
        if self.group is not None:
            self.group.own_check = check

    @property
    def node_checks(self) -> tuple[NodeCheck, ...]:
        """Return the latest check of each node that this one knows of: on the first node of all that were checked."""
        others = self.group.checks.values() if self.group is not None else ()
        return (*((self._check,) if self._check is not None else ()), *others)

    def propose(self, plan: Plan) -> None:
        """Have the batch of `plan` proposed on all other nodes, too; called by the reporter's thread."""
        self._proposal = plan

    def take_proposal(self) -> Plan | None:
        """Return the plan whose batch the first node has passed on since the last call, or None."""
        group = self.group
        if group is None or group.first or group.proposal is None:
            return None
        plan, group.proposal = group.proposal, None
        return plan

    def look(self, status: Mapping[str, Any] | None) -> None:
        """Take in the run's present status."""
        if status is None:
            return
        self._state = status.get("state")
        step, saved, requests = (status.get(name) for name in ("step", "checkpoint_step", "checkpoint_requests"))
        if step != self._step:
            self._stepped_at = self._monotonic()
        step_s = status.get("step_s")
        self._step_s = float(step_s) if isinstance(step_s, int | float) else self._step_s
        self._step = step if isinstance(step, int) else self._step
        self._saved = saved if isinstance(saved, int) else self._saved
        self._present = requests if isinstance(requests, int) else self._present
        if self._saved is not None and self.group is not None and self.group.first:
            self.group.mends = self.group.mends or self._mends or self._mends_checkpoints
        if status.get("plan"):
            self._status = status

    def drop_late_order(self) -> None:
        """Note that the run is over: an order that did not end it has come too late."""
        if self._order is not None and not self.left and self._state != "waiting":
            self._order = self._said_at = None

    def answer_hang(self) -> bool:
        """Return whether this node is to end the run, whose processes hang here: it decides, and there is a checkpoint to go back to.

        Another node tells the first one, once.
        """
        if self.follows and self.group is not None:
            if not self._has_told_hang:
                self.group.report_end(self.report_part.number, KILLED_CODE, "hang")
            self._has_told_hang = True
            return False
        return self.together and self._saved is not None

    def cause(self, code: int, *, own: bool, fault: Fault | None = None) -> tuple[int, str]:
        """Return (exit code, kind) of what ended the run on the nodes.

        `own`: this node's processes ended by themselves, with `code`, for `fault` if that is known; another node's message
        counts where it says more. Waits for the other nodes to connect, since one that does not learn of the end would run on alone, and
        for their messages.
        """
        group, self.fault = self.group, fault
        self._crash = ("", self.allocation.nodes[self.allocation.node_rank :][:1] if own else ())
        if group is None or not group.first or not self.mends or code in ENDED_AS_ASKED or not group.expected_ranks:
            return code, ""
        until = self._monotonic() + _CREW_S
        while self._monotonic() < until and not group.is_connected:
            group.wait(_POLL_S)
            self._listen(group, has_ended=True)
        until, present = self._monotonic() + _CAUSE_S, self.report_part.number
        while True:
            ends = {rank: (end[1], end[2]) for rank, end in group.ends.items() if end[0] == present}
            other, kind, rank = first_cause(code, own, ends, group.allocation.node_rank, knows=fault is not None)
            is_clear = other == KILLED_CODE or len(ends) == len(group.expected_ranks - group.lost_ranks)
            if self.has_lost_node or is_clear or self._monotonic() >= until:
                self._crash = (kind, () if rank is None else (group.members[rank],))
                self.fault = group.faults.get(rank) if kind and rank is not None else fault
                return other, kind
            group.wait(_POLL_S)
            self._listen(group, has_ended=True)

    def begin_next_run(self, code: int, guard: PlanGuard) -> bool:
        """Return whether another run follows in the same allocation after this one ended with `code`. Tells the other nodes."""
        if self.follows:
            return self._follow(code, guard)
        self.message = ""
        if (order := self._order) is not None:
            if self._said_at is None:  # it came as the run ended
                self._tell(order.order, order.plan, order.nodes)
            self.message = f"started again in place with another plan, by the daemon's order {order.order}"
            if order.nodes:
                self._keep(order.nodes)
                self.message = f"goes on with {len(order.nodes)} nodes, by the daemon's order {order.order}"
            self._count_new_run(replace(self.report_part, order=order.order))
            self._order = self._said_at = None  # last: the reporter's thread may hear the same order again
            guard.follow(order.plan, self.allocation)
            return True
        plan = guard.plan_file.plan if guard.plan_file else None
        if self.has_lost_node:
            return self._restart_without_lost_nodes(guard)
        if guard.again or (guard.is_past_first_steps and self._restart_after_crash(code, guard)):
            self._tell(self.report_part.order, plan)
            self._count_new_run(self.report_part)
            return True
        if self.group is not None and self.group.first and self.mends:
            self.group.tell(NextRun(0, holds=guard.waits, code=min(code, 255)))
        return False

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _is_follower(self) -> bool:
        return self.group is not None and not self.group.first

    @property
    def _word(self) -> NextRun | None:
        """Return the first node's message if it is about a later run than the present one."""
        word = self.group.word if self.group is not None else None
        return word if word is not None and word.number > self.report_part.number else None

    def _ends(self, group: LauncherGroup) -> list[tuple[int, int, str]]:
        return [end for end in group.ends.values() if end[0] == self.report_part.number]

    def _restart_after_crash(self, code: int, guard: PlanGuard) -> bool:
        """Return whether a run past its first steps, which ended by itself with `code`, is started again."""
        if not self.together or code in (*ENDED_AS_ASKED, _USAGE) or self._saved is None:
            return False
        if self.fault is not None and needs_reset(self.fault.xid):
            self.message = f"{self.fault.describe()}: not started again on a GPU that needs a reset"
            return False
        kind, nodes = self._crash
        crash = Crash(self._step, self._clock(), kind or guard.kind(code))
        history = run_history.read_history(self._folder, self.allocation.job_id or 0)
        if not may_restart({*history.crashes, *self._crashes}, crash, self._most):
            return False
        self._crashes = (*self._crashes, crash)
        run_history.write_history(self._folder, history.with_crash(crash))
        self._report_crash(crash.cause, min(code, 255), nodes if self.group is not None else ())
        self.message = (
            f"{self.report_part.describe_crash()}: started again in place from "
            f"{self._offer_memory() or f'its checkpoint of step {self._saved}'}"
        )
        return True

    def _offer_memory(self) -> str:
        """Have the next run go on from a memory checkpoint that is newer than the one on disk. Return its name; "": there is none."""
        if self.memory is None or self.group is None or not self.group.first:
            return ""
        step = self.memory.offer(self.group, self.report_part.number + 1, self._saved or 0)
        return "" if step is None else f"its memory checkpoint of step {step}"

    def _report_crash(self, cause: str, code: int, nodes: tuple[str, ...]) -> None:
        crashes = self.report_part.crashes + 1
        self.report_part = replace(
            self.report_part, crashes=crashes, code=code, step=self._step, cause=cause if cause in FAILURES else "",
            crash_nodes=nodes[:MAX_NODES],
        )  # fmt: skip

    def _restart_without_lost_nodes(self, guard: PlanGuard) -> bool:
        """Continue after a lost node with the largest plan that fits the remaining nodes.

        If there is none, nothing runs until Slurm sees the loss too.
        """
        group = self.group
        assert group is not None
        absent_ranks = set(self._gone)
        self._gone |= group.lost_ranks
        newly = tuple(sorted(group.members[rank] for rank in group.lost_ranks if rank not in absent_ranks))
        names, lost_names = {group.members[rank] for rank in self._gone}, ", ".join(newly)
        fit = largest_fit(
            group.members, names, guard.plan or _plan_that_shrinks(self._status), self.allocation.processes
        )
        if fit is not None and self._saved is not None and self._most:
            nodes, plan = fit
            self._report_crash("", 0, newly)
            self.allocation = replace(self.allocation, nodes=nodes, node_rank=0)
            checkpoint = self._offer_memory()
            self._tell(self.report_part.order, plan)
            self._count_new_run(self.report_part)
            guard.follow(plan, self.allocation)
            self._end_unused_growths(f"{lost_names} lost meanwhile")  # ordered for a run that is no more
            origin = f" from {checkpoint}" if checkpoint else ""
            self.message = f"{lost_names} lost: started again in place on {', '.join(nodes)}{origin}"
            return True
        group.tell(NextRun(0, holds=True))
        guard.waits, guard.tells = True, False
        self.message = f"{lost_names} lost: waits for Slurm"
        return False

    def _follow(self, code: int, guard: PlanGuard) -> bool:
        """Wait for the message of the node that decides. Return whether another run follows."""
        group = self.group
        assert group is not None
        if self._word is None:
            group.report_end(self.report_part.number, min(code, 255), guard.kind(code), guard.fault)
        well = code in ENDED_AS_ASKED  # other nodes may go on for long
        until, name = self._monotonic() + (float("inf") if well else HOLD_S), group.members[group.allocation.node_rank]
        while not guard.ending and self._is_in_touch(group):
            word = self._word
            if word is not None:
                ordered = word.order > self.report_part.order
                self._mends = self._mends or bool(set(word.nodes) - set(group.allocation.nodes))
                self.report_part = replace(self.report_part, number=word.number, order=word.order)
                self._begin_run()
                if ordered and name not in word.nodes:
                    self.leaves, guard.waits, guard.tells = True, False, False
                    return False
                if name in word.nodes:
                    self.allocation = replace(self.allocation, nodes=word.nodes, node_rank=word.nodes.index(name))
                    guard.follow(word.plan, self.allocation)
                    self.message = ""
                    return True
                until = float("inf")  # left out: its GPUs wait for a later run
            elif group.word is not None and not group.word.number:
                guard.waits, guard.tells = group.word.holds, False
                return False
            if self._monotonic() >= until:
                return False
            group.wait(_POLL_S)
            group.poll()
        return False

    def _is_in_touch(self, group: LauncherGroup) -> bool:
        """Return whether the first node may still say what follows: connected, or not for so short that it may connect anew."""
        if group.is_connected:
            self._out_of_touch_s = None
            return True
        now_s = self._monotonic()
        self._out_of_touch_s = now_s if self._out_of_touch_s is None else self._out_of_touch_s
        return now_s < self._out_of_touch_s + REJOIN_S

    def _tell(self, order: int, plan: Plan | None, nodes: tuple[str, ...] = ()) -> None:
        if self.group is not None and self.group.first:
            self.group.tell(NextRun(self.report_part.number + 1, order, nodes or self.allocation.nodes, plan))

    def _keep(self, nodes: tuple[str, ...]) -> None:
        """Go on with `nodes` alone: the others leave by an order, and are not lost."""
        group = self.group
        assert group is not None
        remaining_ranks = {rank for rank, name in enumerate(group.members) if name in nodes}
        other_ranks = set(range(len(group.members))) - remaining_ranks
        self._leaving = (self._leaving | (other_ranks - self._gone)) - remaining_ranks
        self._gone = (self._gone | other_ranks) - remaining_ranks
        self._order_before, self._leaving_at_s = self.report_part.order, self._monotonic()
        group.lost_ranks = (group.lost_ranks | other_ranks) - remaining_ranks
        group.expected_ranks = remaining_ranks - {0}
        if (growth := self._growth) is not None and set(growth.names) & set(nodes):
            growth.use()
            self._mends = True  # Slurm does not end or requeue a job for the loss of a node beside its allocation
        self.allocation = replace(self.allocation, nodes=nodes, node_rank=0)

    # -- nodes that join -----------------------------------------------------------------------------------------------

    @property
    def _joined_nodes(self) -> tuple[str, ...]:
        """Return the nodes that wait to take part."""
        growth = self._growth
        return growth.names if growth is not None and growth.is_complete and not growth.refusal else ()

    def _begin_growth(self, answer: ReportAnswer) -> None:
        """Ask Slurm for the nodes that `answer` names and the run does not have."""
        self._join = None
        assert self._grow is not None
        if self.group is None:
            self.group = self._grow.group()
        group, have = self.group, self.allocation.nodes
        names = tuple(n for n in answer.nodes if n not in have)
        group.members += tuple(n for n in names if n not in group.members)
        waiting = {group.members.index(name) for name in names}
        self._gone |= waiting
        group.lost_ranks -= waiting  # a node that was lost may come again, and is not missed until it takes part
        group.expected_ranks -= waiting
        self._end_unused_growths("others were asked for")
        self._leaving -= waiting
        step, run = self.allocation.step, self.report_part.number
        member = Membership(
            job_id=self.allocation.job_id or 0, restarts=self.allocation.restarts, step=step, run=run,
            order=self.report_part.order, members=group.members,
        )  # fmt: skip
        self._growth = self._grow.start(answer.order, names, member)
        self._growths.append(self._growth)

    def _end_unused_growths(self, why: str) -> None:
        for growth in self._growths:
            if not growth.used:
                growth.end(why)

    def _listen(self, group: LauncherGroup, *, has_ended: bool = False) -> None:
        """Read what the other nodes say. Take silent ones for lost once the run makes no steps either, or `has_ended`.

        It would make some with the launchers' network alone out of order.
        """
        group.poll()
        now = self._monotonic()
        for rank, since in group.silent_ranks.items():
            still_s = now - max(since, self._stepped_at)
            if still_s > (SILENT_S if has_ended else max(SILENT_S, SILENT_STEPS * self._step_s)):
                group.lost_ranks.add(rank)

    def _watch_growth(self, group: LauncherGroup) -> None:
        """See which nodes have joined, and which of them have gone."""
        for each in self._growths:
            each.poll(frozenset(group.members[rank] for rank in group.ranks))
        self._growths = [each for each in self._growths if not each.is_over]

    def await_first_run(self, guard: PlanGuard) -> bool:
        """Wait, on a node that joins a running job, for the run that it is to take part in. Return whether there is one."""
        group = self.group
        assert group is not None
        until = self._monotonic() + JOIN_S
        while not group.is_connected and self._monotonic() < until and not guard.ending:
            group.wait(_POLL_S)
            group.poll()
        return group.is_connected and self._follow(0, guard)

    @property
    def is_alone(self) -> bool:
        """Return whether this node, which is beside the job's allocation, is not connected to the first one, which has not ended it."""
        group = self.group
        if group is None or group.first or self._member is None:
            return False
        return not (group.is_connected or self.leaves or (group.word is not None and not group.word.number))

    @property
    def is_orphan(self) -> bool:
        """Return whether this node, which is beside the job's allocation, has lost the first one for good."""
        if not self.is_alone:
            self._alone_since = None
            return False
        self._alone_since = self._alone_since or self._monotonic()
        return self._monotonic() >= self._alone_since + ORPHAN_S

    def memory_environment(self) -> dict[str, str]:
        """Return the addition to the environment of the run that starts next, when a memory checkpoint that it goes on from is here."""
        if self.memory is None or self.group is None:
            return {MEMORY_DIR: ""}  # not that of a job in which this one was submitted
        return self.memory.begin_run(self.group, self.allocation, self.report_part.number)

    def close(self, within_s: float = LEAVE_S) -> None:
        """Give the allocations with more nodes back: their launchers have ended with the run, or are made to."""
        if self.memory is not None:
            self.memory.close()
        until = self._monotonic() + within_s
        while any(each.used and not each.is_over for each in self._growths) and self._monotonic() < until:
            if self.group is not None:
                self.group.poll()
            time.sleep(_POLL_S)
        for each in self._growths:
            each.end("the job has ended")

    def _count_new_run(self, report_part: InPlace) -> None:
        self.report_part = replace(report_part, number=report_part.number + 1)
        self._begin_run()

    def _begin_run(self) -> None:
        """Forget what was known of the run before."""
        self._acknowledged, self._present = self._acknowledged + self._present, 0
        self._state, self.left, self._has_told_hang = None, False, False


def _plan_that_shrinks(status: Mapping[str, Any]) -> Plan | None:
    """Return the plan that the run reports, or None if it reports none or keeps its size."""
    accepts = status.get("accepts")
    if not status.get("plan") or (isinstance(accepts, Mapping) and accepts.get("own_size")):
        return None
    try:
        return decode(Plan, status["plan"], "status", PLAN_CHECKS)
    except SynergyError:
        return None

"""The guard against a plan of Synergy's that fails: the run is started again with one that works, in place or by a requeue.

A run that ends within its first steps under a plan that Synergy chose is taken back: to the last plan that ran where that is
for this many GPUs, to the user's own arguments where the size is the user's own, both at once in the same allocation. Else the
daemon is told, which requeues the job with another size, and the step is held open meanwhile: Slurm would call its end a failure.
A run that fails under the user's own arguments, by a fault that no plan can cause (own_fault.py), or after its first steps, ends as it
would without Synergy.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from synergy_core.errors import SynergyError
from synergy_core.job_report import FAULTS_OF_NODES, FIRST_STEPS, MAX_RETURNS, EarlyFailure, Fault, Report
from synergy_core.records import Plan
from synergy_core.wire import report as wire_report
from synergy_core.wire.plan_file import PlanFile

from synergy_launch.launcher.commands.start import fit_plan
from synergy_launch.launcher.failures import run_history
from synergy_launch.launcher.failures.lost_nodes import KILLED_CODE
from synergy_launch.launcher.failures.run_history import RunHistory
from synergy_launch.launcher.gpus.errors import needs_reset
from synergy_launch.launcher.group.meeting import NO_MEETING
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.launcher.script.own_fault import has_refused_options, script_mistake

#: seconds for a run that reports no steps: one that fails later has got past its first steps
UNREPORTED_S = 300.0
#: a run that takes longer to its first step hangs; as the stall detector, which can't know how long a model loads either
FIRST_STEP_S = 1800.0
#: the seconds for which a step is held open for the daemon's requeue: the daemon may be in the middle of an epoch, or just starting
HOLD_S = 90.0
_ASK_AGAIN_S = 2.0
_TAIL_BYTES = 1 << 18  # the end of the error output that is kept: a traceback of each of eight ranks
_NOT_THE_PLANS = (130, 143, NO_MEETING)  # SIGINT, SIGTERM; the nodes could not meet
_WORDS = (
    ("memory", re.compile(rb"out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)),
    ("killed", re.compile(rb"Signal 9 \(SIGKILL\) received by PID")),  # torchrun's words, whose own exit code is 1
    ("nccl", re.compile(rb"NCCL error|nccl(System|Internal|UnhandledCuda|Remote|InvalidUsage)Error|DistBackendError")),
    ("cuda", re.compile(rb"CUDA error|CUBLAS_STATUS_|CUDNN_STATUS_|device-side assert|cudaError")),
)


def failure_kind(code: int, error_output: bytes) -> str:
    """Return what ended a run, by its exit code and the end of its error output: one of wire.report.FAILURES."""
    for kind, words in _WORDS:
        if words.search(error_output):
            return kind
    return "killed" if code == KILLED_CODE else "exit"


class PlanGuard:
    """A guard over the runs of one node of one incarnation.

    `folder`: the checkpoint folder, or None where there is none. `own`: the plan that the script's own options amount to here, where these
    are Megatron-LM's. Call `begin` for a run with `plan_file`'s plan, `look` at its status meanwhile, and ask `conclude` how it ended. If
    `again` is true then, `plan_file` has what to start with instead. If `waits` is true, the daemon is to requeue the job (`hold`); if
    `tells` is true too, this node may tell the daemon so.
    """

    def __init__(
        self,
        allocation: JobAllocation,
        plan_file: PlanFile | None,
        folder: Path | None,
        *,
        first_step_s: float = FIRST_STEP_S,
        monotonic: Callable[[], float] = time.monotonic,
        own: Plan | None = None,
    ) -> None:
        self.plan_file, self._own = plan_file, own
        self.failure: EarlyFailure | None = None
        self.fault: Fault | None = None  # what ended the latest run that has ended, where it is known
        self.again = self.waits = self.tells = False
        self.ending = False  # SIGTERM or SIGINT came
        self.folder, self._allocation, self._first_step_s = folder, allocation, first_step_s
        self._monotonic = monotonic
        self._runs = 0
        self._proven: list[Plan | None] = []  # plans of runs that got past their first steps
        self._history = run_history.read_history(folder, allocation.job_id or 0)
        # a plan file that nobody has replaced since, such as after a node's failure
        if plan_file is not None and plan_file.plan is not None and self.plan in self._history.failed:
            self.plan_file = replace(plan_file, plan=None)
        self.begin()

    @property
    def plan(self) -> Plan | None:
        """Return Synergy's plan that the run has, or None if it runs with the user's own arguments."""
        return fit_plan(self.plan_file.plan if self.plan_file else None, self._allocation.world)[0]

    @property
    def can_take_back(self) -> bool:
        """Return whether there is a plan to take back."""
        return self._allocation.job_id is not None and self.plan is not None

    @property
    def is_past_first_steps(self) -> bool:
        """Return whether this run, or an earlier one with the same plan in the same allocation, has got past its first steps."""
        return self._past or self.plan in self._proven

    @property
    def wants_status(self) -> bool:
        """Return whether the run's status is still of interest."""
        return not self._past

    def follow(self, plan: Plan | None, allocation: JobAllocation | None = None) -> None:
        """Give the next run `plan` (None: the script's own arguments), on `allocation` where it is another."""
        self._allocation = allocation or self._allocation
        if self.plan_file is not None:
            self.plan_file = replace(self.plan_file, plan=plan)
        elif self._allocation.job_id is not None:
            self.plan_file = PlanFile(self._allocation.job_id, plan)

    def kind(self, code: int) -> str:
        """Return the kind of an end with `code`: one of wire.report.FAILURES."""
        if self._hung:
            return "hang"
        return self.fault.kind if self.fault is not None else failure_kind(code, self._tail)

    @property
    def error_output(self) -> bytes:
        """Return the end of the run's error output; empty where it is not read."""
        return self._tail

    def begin(self) -> None:
        """Reset what is known of the run: a new one starts."""
        self._runs += 1
        self._began_s = self._monotonic()
        self._base: Mapping[str, Any] | None = None  # its first status from training
        self._stepped = self._past = self._hung = False
        self._tail, self._fault = b"", ""
        self.again = self.waits = self.tells = False

    def append_output(self, piece: bytes) -> None:
        """Append more of the run's error output, and keep its end."""
        self._tail = (self._tail + piece)[-_TAIL_BYTES:]

    def look(self, status: Mapping[str, Any] | None) -> None:
        """Take in the run's present status: an agent's, or Megatron-LM's log."""
        if self._past or status is None or status.get("state") == "starting":
            return
        step = status.get("step")
        if not isinstance(step, int):
            return
        if self._base is None:
            # a training script's own log has its first line after a step
            self._base, self._stepped = dict(status), "steps_between" in status
        self._stepped = self._stepped or step > int(self._base["step"])
        saved = status.get("checkpoint_step") != self._base.get("checkpoint_step") or status.get("checkpoint_requests")
        if step - int(self._base["step"]) >= FIRST_STEPS or saved:
            self._past = True
            self._proven.append(self.plan)
            if self._allocation.job_id is not None:
                ran = replace(self._read_history(), ran=self.plan, ran_restarts=self._allocation.restarts)
                run_history.write_history(self.folder, ran)
                self._history = ran

    @property
    def has_hung(self) -> bool:
        """Return whether the run's processes were ended because they hung."""
        return self._hung

    def note_hang(self) -> None:
        """Note that the run's processes are ended because they hang."""
        self._hung = True

    def is_hanging(self, *, says_nothing_first: bool = False) -> bool:
        """Return whether the run's first step is overdue. `says_nothing_first`: a missing status means nothing yet."""
        if (
            self._stepped
            or self._past
            or not self.can_take_back
            or self._monotonic() < self._began_s + self._first_step_s
        ):
            return False
        # a run that never had a status may have no agent and still train; an agent writes the status only on the first node
        should = self._allocation.node_rank == 0 and self._history.ran_restarts >= 0 and not says_nothing_first
        speaks = self._base is not None or should
        self._hung = speaks
        return speaks

    def conclude(self, code: int, kind: str = "", *, together: bool = False) -> EarlyFailure | None:
        """Return how the run failed, now that it has ended with `code`; None: it is over.

        `again` or `waits` then say what follows. `kind`: the kind of the end where another node knows it. `together`: all nodes of the job
        are told what follows.
        """
        ended = self.ending or code in (0, *_NOT_THE_PLANS)
        kind = kind or self.kind(code)
        self._past |= kind == "spike"  # the agent has judged steps enough, whatever this node has seen of them
        if ended or self._allocation.job_id is None or self.is_past_first_steps or self._has_got_past():
            self.failure = None
            return None
        plan = self.plan
        kind = wire_report.FAULTS.get(kind, kind)
        if plan is not None and kind == "exit" and (fault := self._own_fault(code, plan)):
            self.failure, self._fault = None, fault
            return None
        plan = None if plan == self._own and not has_refused_options(self._tail) else plan
        failure = EarlyFailure(kind=kind, code=min(code, 255), number=self._runs, plan=plan)
        history = self._read_history()
        if plan is not None and history.returns < MAX_RETURNS:
            spares = self.fault is not None and self.fault.kind in FAULTS_OF_NODES
            self._history = replace(history, returns=history.returns + 1) if spares else history.with_failed(plan)
            if self._allocation.node_rank == 0:
                run_history.write_history(self.folder, self._history)
            self.again, instead = self._plan_in_place(together)
            self.again &= self.fault is None or not needs_reset(self.fault.xid)
            if self.again and self.plan_file is not None:
                self.plan_file = replace(self.plan_file, plan=instead)
                failure = replace(failure, goes_on=True, next_plan=instead)
            self.waits = not self.again and self.plan_file is not None and self.plan_file.is_decided_about
        self.failure = failure
        # without a folder another node can't know how far the run came: it waits for the first node's message
        knows = self._allocation.node_rank == 0 or self._base is not None or self.folder is not None
        self.tells = self.waits and knows
        return failure if knows else None

    def format_outcome(self) -> str:
        """Return what follows from the failure, for the log."""
        failure = self.failure
        if self._fault:
            return f"the script itself is wrong ({self._fault}): the job ends as without Synergy"
        if failure is None or failure.plan is None or (self.waits and not self.tells):
            return ""
        text = f"the plan that Synergy chose failed within its first steps ({failure.kind}, exit code {failure.code})"
        if self.again:
            back = "the last plan that ran" if failure.next_plan else "its own arguments"
            return f"{text}: the script is started again with {back}"
        return f"{text}: the daemon is asked to requeue the job" if self.tells else text

    def _own_fault(self, code: int, plan: Plan) -> str:
        same = self._has_requested_size and plan.cp == 1 and plan.precision != "fp8"
        return script_mistake(code, self._tail, same_degrees=same, adds_options=self._own is not None)

    @property
    def _has_requested_size(self) -> bool:
        return self._allocation.has_size(self.plan_file.asked if self.plan_file else None)

    def _read_history(self) -> RunHistory:
        """Return the run history as it is now: another node of the job may have written it."""
        history = run_history.read_history(self.folder, self._allocation.job_id or 0)
        return history if history.returns >= self._history.returns else self._history

    def _has_got_past(self) -> bool:
        if self._past or self._stepped or self._hung or self._base is not None:
            return self._past
        # another node of the job may have seen progress that this one does not see
        elsewhere = len(self._allocation.nodes) > 1 and self._read_history().ran_restarts == self._allocation.restarts
        return elsewhere or self._monotonic() > self._began_s + UNREPORTED_S

    def _plan_in_place(self, together: bool) -> tuple[bool, Plan | None]:
        """Return whether the run can be started again on these GPUs, and with which plan."""
        here, history = self._allocation, self._history
        if len(here.nodes) > 1 and not together:
            return False, None
        if history.ran is not None and history.ran.gpus == here.world and history.ran not in history.failed:
            return True, history.ran
        return self._has_requested_size, None


def hold(
    failed: Report | None,
    find: Callable[[], tuple[str, int | None]],
    ending: Callable[[], bool],
    most_s: float = HOLD_S,
) -> bool:
    """Tell the daemon of `failed`, and wait for its requeue. Return whether the requeue came: its SIGTERM makes `ending` true.

    `failed` None: another node tells the daemon. `find` returns the daemon's present address and uid. Takes at most `most_s` seconds.
    """
    until, ask_at = time.monotonic() + most_s, 0.0
    while time.monotonic() < until:
        if ending():
            return True
        if time.monotonic() >= ask_at:  # repeat this: a daemon may have to see first that Slurm has started the job
            ask_at = time.monotonic() + _ASK_AGAIN_S
            if failed is not None:
                address, by = find()
                with contextlib.suppress(SynergyError):  # it may be starting again just now
                    wire_report.send(failed, address, by)
        time.sleep(0.1)
    return ending()

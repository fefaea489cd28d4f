"""The reports of a node's launcher to the daemon: the training's status, from its file or from Megatron-LM's log."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from synergy_core.job_report import EarlyFailure, Fault
from synergy_core.records import Plan
from synergy_core.wire.plan_file import PlanFile
from synergy_core.wire.report import ReportAnswer, status_to_report

from synergy_launch.agent import run_folder
from synergy_launch.agent.settings import read_number
from synergy_launch.launcher.failures import idleness
from synergy_launch.launcher.failures.idleness import GpuUse, Idleness
from synergy_launch.launcher.failures.stall_detector import LEAST_S, StallDetector
from synergy_launch.launcher.gpus.samples import GpuSampler
from synergy_launch.launcher.in_place import Restarts
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.launcher.job.plan_source import find_plan_file
from synergy_launch.launcher.reporter import Reporter
from synergy_launch.megatron_lm.supervisor import Supervisor
from synergy_launch.node_check.check_parts import CheckParts

ASK_AGAIN_S = 15.0
#: growth of one pause over the one before: a daemon that comes is found within half of the time for which the run has lasted. At 2
#: it was the whole time: a job that imports for two minutes on a busy machine was found after four
_GROWTH, _LONGEST = 1.5, 20  # the latter times ASK_AGAIN_S
_URGENT = (
    "checkpoint_requests",
    "requested",
    "state",
    "note",
    "stalled_s",
    "failure",
    "spike",
    "idle_s",
    "ended",
    "order",
    "joined",
)
#: between two reports of a run that waits after a checkpoint: the daemon's answer may be an order
_WAITING_S = 0.5


class StatusReports:
    """Reports of one node's run; `poll` is called in the launcher's loop. A job that started without a daemon looks for one.

    An agent writes its status on the first node, Megatron-LM its log on the last one, which reports only where it can't pass its status on
    to the first one; no other node reports. `failure`: the failure of the
    run before this one, in the same incarnation, and `fault` what ended it, where it is known; each report says both. `request` is the
    checkpoint request heard last, counted over the incarnation's runs. `requested` is the latest of them that the processes know.
    """

    def __init__(
        self,
        allocation: JobAllocation,
        plan_file: PlanFile | None,
        run_dir: Path,
        supervisor: Supervisor | None,
        failure: EarlyFailure | None = None,
        restarts: Restarts | None = None,
        fault: Fault | None = None,
    ) -> None:
        self._allocation, self._run_dir, self._supervisor = allocation, run_dir, supervisor
        self._failure, self._restarts, self._fault = failure, restarts, fault
        self.request = 0  # set by the reporter's thread
        self.requested = 0
        reporting_nodes = (0, len(allocation.nodes) - 1) if supervisor else (0,)
        self._reports = allocation.node_rank in reporting_nodes and allocation.job_id is not None
        self._daemon_uid = plan_file.by if plan_file else None
        self._sent: dict[str, object] = {}  # the status that was offered last
        stall_s = read_number(os.environ, "SYNERGY_STALL_S", float, LEAST_S)
        self._stall = StallDetector(time.monotonic(), stall_s)
        idle_s = read_number(os.environ, "SYNERGY_IDLE_S", float, idleness.LEAST_S)
        self._gpus = GpuSampler() if self._reports else None
        self._gpu_use = GpuUse()
        self._idle = Idleness(time.monotonic(), idle_s, gpu=self._busiest_gpu)
        self._sent_at = 0.0
        self._checks = CheckParts()
        self._pauses = pauses_s()
        self._ask_at = time.monotonic() + next(self._pauses)
        self._reporter = self._make_reporter(plan_file.report) if self._reports and plan_file else None

    def poll(self) -> None:
        """Offer a status that has changed, or look for a daemon where there is none yet."""
        if self._restarts is not None and (proposal := self._restarts.take_proposal()) is not None:
            self._propose_batch(proposal)
        if self._is_reported_by_first:
            return
        if self._reporter is not None:
            self._offer(self._reporter, self._stall)
        elif self._reports and time.monotonic() > self._ask_at:
            self._ask_at = time.monotonic() + next(self._pauses)
            self._reporter = self._make_reporter(self._find_address())

    def close(self, failure: EarlyFailure | None = None, fault: Fault | None = None) -> None:
        """Send the last status, how the run failed where it did so early, and what ended it where that is known."""
        self._failure, self._fault = failure or self._failure, fault or self._fault
        if self._reporter is not None:
            if "step" in self._sent or not self._is_reported_by_first:
                self._sent = {}
                self._offer(self._reporter, None, ended=True)
            self._reporter.close()
        if self._gpus is not None:
            self._gpus.close()

    def _busiest_gpu(self) -> float | None:
        """Return the highest utilisation of a GPU, 0 to 100: NVML's where there is one, which costs less than asking a tool."""
        sampled = self._gpus.busiest() if self._gpus is not None else None
        return sampled if sampled is not None else self._gpu_use.ask()

    def _make_reporter(self, address: str) -> Reporter | None:
        if not address:
            return None
        return Reporter(address, find=self._find_address, heard=self._take_answer, by=lambda: self._daemon_uid)

    def _find_address(self) -> str:
        plan_file, _ = find_plan_file(self._allocation.job_id, os.environ)
        if plan_file is None:
            return ""
        self._daemon_uid = plan_file.by
        return plan_file.report

    def _take_answer(self, answer: ReportAnswer) -> None:
        if answer.request:
            self.request = max(self.request, answer.request)
            return
        if answer.order:
            if self._restarts is not None:
                self._restarts.hear(answer)
            return
        self._propose_batch(answer.plan)
        if self._restarts is not None:
            self._restarts.propose(answer.plan)

    @property
    def _is_reported_by_first(self) -> bool:
        return self._restarts is not None and self._restarts.is_reported_by_first

    def _propose_batch(self, plan: Plan) -> None:
        try:
            run_folder.propose_batch(self._run_dir, plan)
        except OSError as error:  # a full or cleaned /tmp must not end the training
            click.echo(f"synergy-launch: {self._run_dir}: batch can't be handed over ({error.strerror})", err=True)

    def _offer(self, reporter: Reporter, stall: StallDetector | None, *, ended: bool = False) -> None:
        job_id, restarts = self._allocation.job_id, self._allocation.restarts
        status = read_status(self._run_dir, self._supervisor)
        status = status if self._restarts is None else self._restarts.share_status(status)
        if status is not None and self._restarts is not None and isinstance(status.get("checkpoint_requests"), int):
            status["checkpoint_requests"] += self._restarts.acknowledged_checkpoints
        if self._failure is not None:
            status = {**(status or {}), "failure": self._failure.number}
        if status is not None and stall is not None:
            status["stalled_s"] = stall.check(status, time.monotonic())
        if stall is not None:
            status = self._with_idle(status)
        if job_id is None:
            return
        # before the training's first status the launcher reports that it is there: the daemon may wait for a run that it has ordered
        silent = {"silent": True} if status is None or set(status) <= {"idle_s"} else {}
        status = {**(status or {}), **silent, **describe_launcher(self._allocation), "requested": self.requested}
        if ended:
            status["ended"] = True
        checks = self._checks.choose(self._restarts.node_checks if self._restarts is not None else (), time.monotonic())
        status["checks"] = [check.node for check in checks]
        in_place = self._restarts.report if self._restarts is not None else None
        status["order"] = in_place.order if in_place is not None else 0
        status["joined"] = in_place.joined if in_place is not None else 0
        asks = (
            in_place is not None and status.get("state") == "waiting" and time.monotonic() >= self._sent_at + _WAITING_S
        )
        if status == self._sent and not asks:
            return
        before, self._sent, self._sent_at = self._sent, status, time.monotonic()
        first_speed = bool(status.get("step_s")) and not before.get("step_s")
        begun = not before
        urgent = first_speed or begun or any(status.get(key) != before.get(key) for key in _URGENT)
        activity = self._gpus.latest if self._gpus is not None else None
        reporter.offer(
            status_to_report(status, job_id, restarts, self._failure, in_place, activity, self._fault, checks),
            urgent=urgent or asks,
        )

    def _with_idle(self, status: dict[str, Any] | None) -> dict[str, Any]:
        """Return the status with the idle time seen from outside; if the run has no status of its own, with the idle time only."""
        moved = None if status is None else (status.get("step"), status.get("state"))
        idle_s = self._idle.check(moved, time.monotonic())
        if idle_s is not None and not self._sent.get("idle_s"):
            text = f"no CPU time and no GPU used for {idle_s:.0f} s: the GPUs of this job do nothing"
            click.echo(f"synergy-launch: {text}", err=True)
        return {**(status or {}), "idle_s": idle_s}


def describe_launcher(allocation: JobAllocation) -> dict[str, Any]:
    """Return what each report of this node's launcher says of the launcher itself."""
    return {"listens": True, "launcher": allocation.launcher}


def pauses_s() -> Iterator[float]:
    """Yield the pauses, in seconds, between two questions for a daemon.

    Each question may cost slurmctld an RPC, and there may never be a daemon.
    """
    pause_s = ASK_AGAIN_S
    while True:
        yield pause_s
        pause_s = min(_GROWTH * pause_s, _LONGEST * ASK_AGAIN_S)


def read_status(run_dir: Path, supervisor: Supervisor | None) -> dict[str, Any] | None:
    """Return the status of the training processes, or None before they have reported any.

    It is what the processes say themselves, or what Megatron-LM's log and the hook in it say.
    """
    status = run_folder.read_status(run_dir)
    if status is not None or supervisor is None:
        return status
    supervisor_status = supervisor.status()
    if supervisor_status is None:
        return None
    inside = run_folder.read_hook_state(run_dir)
    notes = [note for note in (supervisor_status["note"], inside.get("note")) if isinstance(note, str) and note]
    return {**supervisor_status, **inside, "note": ", ".join(notes)}

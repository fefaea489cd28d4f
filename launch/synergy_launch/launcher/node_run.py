"""One node's command from its start to its end: signals, checkpoint requests, Megatron-LM's restarts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO

import click
from synergy_core.wire.plan_file import PlanFile

from synergy_launch.agent import run_folder
from synergy_launch.agent.settings import read_number
from synergy_launch.launcher.commands.start import NodeCommand
from synergy_launch.launcher.failures.faults import FaultFinder, folders_of_run
from synergy_launch.launcher.failures.plan_guard import PlanGuard
from synergy_launch.launcher.failures.stall_detector import StoppedRanks
from synergy_launch.launcher.in_place import LEAVE_S, Restarts
from synergy_launch.launcher.job.allocation import JobAllocation, environment_of_run
from synergy_launch.launcher.job.preemption import give_way
from synergy_launch.launcher.status_reports import StatusReports, read_status
from synergy_launch.megatron_lm import arguments as megatron_arguments
from synergy_launch.megatron_lm.supervisor import Supervisor, find_workers
from synergy_launch.warm_start.client import Child
from synergy_launch.warm_start.starter import Starter

POLL_S = 0.2
# the import names of release 0.1.0 (`from launch import SynergyTask`), which go on working for one release
BRIDGE = Path(__file__).resolve().parents[1] / "bridge"


def run_node(
    command: NodeCommand,
    allocation: JobAllocation,
    plan_file: PlanFile | None,
    run_dir: Path,
    supervisor: Supervisor | None = None,
    guard: PlanGuard | None = None,
    restarts: Restarts | None = None,
    starter: Starter | None = None,
) -> int:
    """Run the node's command to its end: pass signals on, hand checkpoint requests over, report. Return the exit code.

    `supervisor`: the command is Megatron-LM's, which may have no agent of Synergy's in it. Its output is read. If it ended because a
    checkpoint was asked for, it is started again, unless the job was ended meanwhile. `guard` is told how it went. `restarts` says when the
    run is to end so that another one can start. `starter` makes that start short.
    """
    guard, restarts = guard or PlanGuard(allocation, plan_file, None), restarts or Restarts(allocation, None)
    return _NodeRun(command, allocation, run_dir, supervisor, guard, restarts, starter or Starter(())).run(plan_file)


class _NodeRun:
    """The child process and the requests that signals have made of it."""

    def __init__(
        self,
        command: NodeCommand,
        allocation: JobAllocation,
        run_dir: Path,
        supervisor: Supervisor | None,
        guard: PlanGuard,
        restarts: Restarts,
        starter: Starter,
    ) -> None:
        self._starter = starter
        self._command, self._allocation, self._run_dir, self._supervisor = command, allocation, run_dir, supervisor
        self._guard, self._restarts = guard, restarts
        self._stopped = StoppedRanks()
        self._is_mending_noted = False
        self._killed = False  # the child was killed, since the run was over on another node
        self._leaves_until = 0.0  # monotonic; 0: the child was not told to end
        self._errors: threading.Thread | None = None
        self._hold_s = read_number(os.environ, "SYNERGY_HOLD_S", float, 20.0) if supervisor else 0.0
        self._held_until = 0.0  # monotonic; 0: the child runs
        self._child: Child | None = None
        # the same on all nodes
        self._run_name = f"{allocation.job_id} {allocation.restarts} {restarts.report_part.number}"
        self._failed_over = 0  # the latest request that could not be put into the run folder
        self._requests = 0  # checkpoint requests so far: the daemon's, in its answers to reports, and one a SIGUSR2
        self._handed_over = 0  # the requests that are in the run folder

    def run(self, plan_file: PlanFile | None) -> int:
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, self._on_term)
        guard, supervisor, restarts = self._guard, self._supervisor, self._restarts
        faults = self._fault_finder()
        child = self._start()
        before = guard.failure, restarts, guard.fault
        reports = StatusReports(self._allocation, plan_file, self._run_dir, supervisor, *before)
        while True:
            if child.poll() is not None:
                restarts.drop_late_order()
                if restarts.is_decided or restarts.is_broken_elsewhere or not self._resumes(child.returncode):
                    break
                if time.monotonic() >= self._held_until:
                    self._held_until = 0.0
                    self._command = replace(
                        self._command, argv=tuple(megatron_arguments.with_resume(self._command.argv))
                    )
                    child = self._start()
            elif (restarts.is_decided or restarts.is_broken_elsewhere) and not guard.ending:
                restarts.left = True
                self._leave(child, restarts.must_end_at_once)
            elif restarts.is_orphan:
                guard.ending = True
                self._kill(child)
            elif guard.is_hanging(says_nothing_first=supervisor is not None):
                self._kill(child)
            elif restarts.can_restart and self._hangs(child) and restarts.answer_hang():
                guard.note_hang()
                self._kill(child)
            elif supervisor:
                supervisor.ask(self._requests, child, self._command.has_torchrun)
            status = restarts.share_status(read_status(self._run_dir, supervisor))
            restarts.look(status)
            restarts.poll()
            self._note_mending()
            faults.poll()
            if restarts.can_restart:
                self._starter.poll(trains=status is not None and status.get("state") == "training")
            if guard.wants_status:
                guard.look(status)
            self._requests = max(self._requests, reports.request - restarts.acknowledged_checkpoints)
            self._hand_over_requests()
            reports.requested = self._handed_over + restarts.acknowledged_checkpoints
            reports.poll()
            restarts.wait(POLL_S)
        # nobody is left to save; Python takes handlers away before it ends, and a late request would fail the job
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        if self._errors is not None:
            self._errors.join(2.0)  # a grandchild may hold the pipe
        last = restarts.share_status(read_status(self._run_dir, supervisor))
        guard.look(last)
        restarts.look(last)
        status = run_folder.read_status(self._run_dir) or {}
        code: int = child.returncode if child.returncode >= 0 else 128 - child.returncode
        # torchrun's code is 1 for a run that ended well after SIGTERM: the status file knows better
        if guard.ending and status.get("state") == "done" and not status.get("failed"):
            code = 0
        # neither a run that was ended on purpose nor one that was killed for another's end
        by_itself = not (guard.ending or self._killed or restarts.left or guard.has_hung)
        guard.fault = faults.find(code, guard.error_output) if by_itself else None
        faults.close()
        if guard.fault is not None:
            click.echo(f"synergy-launch: {guard.fault.describe()}", err=True)
        failure = None
        if not restarts.is_decided and not restarts.follows:
            code, kind = restarts.cause(code, own=not self._killed, fault=guard.fault)
            guard.fault = restarts.fault
            if not restarts.has_lost_node:
                failure = guard.conclude(code, kind, together=restarts.together)
        reports.close(failure, guard.fault)
        if guard.ending and not restarts.is_orphan:
            give_way(self._allocation)
        shutil.rmtree(self._run_dir, ignore_errors=True)
        return code

    def _fault_finder(self) -> FaultFinder:
        here = self._allocation
        node, run = "".join(here.nodes[here.node_rank :][:1]), self._restarts.report_part.number
        return FaultFinder(node, run, self._run_dir, folders_of_run(self._guard.folder))

    def _start(self) -> Child:
        # ignored across the exec: an unhandled USR2 would kill torchrun and leave its workers behind; they set a handler of their own
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        here = environment_of_run(self._allocation, os.environ)
        environment = {**os.environ, **here, **python_path(os.environ), **self._command.environment}
        output, errors = self._supervisor is not None, self._guard.can_take_back
        child = self._starter.start(self._command.argv, environment, output=output, errors=errors)
        if child.stderr is not None:
            self._errors = threading.Thread(target=self._copy, args=(child.stderr,), name="errors", daemon=True)
            self._errors.start()
        signal.signal(signal.SIGUSR2, self._on_usr2)
        if self._supervisor:
            self._supervisor.follow(child)
        self._child = child
        if self._guard.ending:  # the signal came just before the start
            child.terminate()
        return child

    def _resumes(self, returncode: int) -> bool:
        """Return whether the run goes on, after a hold, because the child that ended left for a checkpoint that was asked for."""
        if self._supervisor is None:
            return False
        if not self._held_until:
            # asked on another node: a rank that leaves takes all others with it
            self._requests = max(self._requests, self._supervisor.read_noted_request(self._run_name))
            if not self._supervisor.has_left_as_asked(returncode, self._requests):
                return False
            self._held_until = time.monotonic() + self._hold_s
        self._supervisor.answer_with_newest(self._requests)
        return not self._guard.ending

    def _copy(self, source: IO[bytes]) -> None:
        """Copy the child's error output to this process's own."""
        with source, contextlib.suppress(OSError):
            while piece := os.read(source.fileno(), 65_536):
                self._guard.append_output(piece)
                with contextlib.suppress(OSError):  # a full disk must not stop the training
                    while piece:
                        piece = piece[os.write(2, piece) :]

    def _ranks(self, child: Child) -> list[int]:
        """Return the run's training processes, or the child where there are none."""
        return (find_workers(child.pid) if self._command.has_torchrun else []) or [child.pid]

    def _hangs(self, child: Child) -> bool:
        """Return whether one of the run's processes has been stopped for long."""
        return self._stopped.check(lambda: self._ranks(child), time.monotonic())

    def _kill(self, child: Child) -> None:
        """Kill the processes of a run that hangs, which may not answer SIGTERM; torchrun then ends by itself."""
        for pid in self._ranks(child):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _leave(self, child: Child, hurries: bool) -> None:
        """End a run that has its checkpoint; kill its processes where they do not end."""
        now = time.monotonic()
        if hurries:
            self._killed = True
            self._kill(child)
            return
        if not self._leaves_until:
            self._leaves_until = now + LEAVE_S
            child.terminate()
        elif now >= self._leaves_until:
            self._kill(child)

    def _hand_over_requests(self) -> None:
        requests = self._requests
        if requests in (self._handed_over, self._failed_over):
            return
        try:
            run_folder.request_checkpoint(self._run_dir, requests)
            self._handed_over = requests
        except OSError as error:  # a full or cleaned /tmp must not end the training
            self._failed_over = requests
            click.echo(f"synergy-launch: {self._run_dir}: checkpoint can't be asked for ({error.strerror})", err=True)
        if self._supervisor is not None:
            self._supervisor.note_request(requests, self._run_name)

    def _note_mending(self) -> None:
        if not self._is_mending_noted and self._restarts.is_mended:
            self._is_mending_noted = True
            with contextlib.suppress(OSError):
                run_folder.note_mending(self._run_dir)

    def _on_usr2(self, _number: int, _frame: FrameType | None) -> None:
        self._requests += 1

    def _on_term(self, number: int, _frame: FrameType | None) -> None:
        self._guard.ending = True
        # Slurm signals every process of the step itself, and a second SIGTERM makes torchrun give up its clean end
        if self._allocation.job_id is None and self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)


def python_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return PYTHONPATH with the folder of the old names at its end, behind all that the user put there."""
    before = environment.get("PYTHONPATH", "")
    if str(BRIDGE) in before.split(os.pathsep):
        return {"PYTHONPATH": before}
    return {"PYTHONPATH": f"{before}{os.pathsep}{BRIDGE}" if before else str(BRIDGE)}

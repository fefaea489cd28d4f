"""A Megatron-LM job from outside: its output is passed on and read, its workers are asked to save and leave.

Megatron-LM saves on SIGTERM (--exit-signal-handler) and ends; one rank that got it is enough. So a checkpoint on request is:
SIGTERM to the workers, not to torchrun, whose own patience is short; wait for a clean end; hold, as the agent does, so that a
requeue loses no step; and start the same command again where none comes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import IO, Any

from synergy_core.kernels import Kernels
from synergy_core.records import Plan

from synergy_launch.megatron_lm import tracker
from synergy_launch.megatron_lm.log_parser import Log, LogLine
from synergy_launch.warm_start.client import Child

_LOOK_S = 5.0
_ASK_AGAIN_S = 1.0
_REQUEST = "synergy-request"  # beside the checkpoints: what the nodes that report were asked for
_SAVING_S = 600.0  # from outside a long save looks like a step that does not end


def find_workers(parent: int) -> list[int]:
    """Return the processes whose parent is `parent`, without those that have ended."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, above = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                if int(above) == parent and state not in ("Z", "X"):
                    pids.append(int(entry.name))
    return sorted(pids)


def has_handler(pid: int, number: int) -> bool:
    """Return whether the process has a handler of its own for the signal."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


class LeaveAnswer(Enum):
    """The outcome of a request to save and leave."""

    ASKED = "asked"
    LATER = "later"  # a process is only starting, and would die of the signal
    NEVER = "never"  # they have Synergy's agent, which takes requests another way
    NOBODY = "nobody"  # no process runs yet, or none any more


def ask_to_leave(parent: int, torchrun: bool) -> LeaveAnswer:
    """Send SIGTERM to the training processes (`parent`'s children where that is torchrun) if they have a handler for it."""
    pids = find_workers(parent) if torchrun else [parent]
    if not pids:
        return LeaveAnswer.NOBODY
    if any(has_handler(p, signal.SIGUSR2) for p in pids):
        return LeaveAnswer.NEVER
    if not all(has_handler(p, signal.SIGTERM) for p in pids):
        return LeaveAnswer.LATER
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)
    return LeaveAnswer.ASKED


class Supervisor:
    """One node's Megatron-LM processes. `folder` ("": none) is where it saves, `tokens` a sample has `seq` tokens."""

    def __init__(
        self,
        plan: Plan | None,
        folder: str,
        seq: int,
        *,
        step_log: str = "",
        resharding: bool = False,
        accepts: Mapping[str, Any] | None = None,
        kernels: Kernels | None = None,
        nodes: int = 1,
        restarts: int = 0,
    ) -> None:
        self.log = Log()
        self.acknowledged = 0  # requests that ended in a checkpoint
        self.state = "training"
        self._asked = 0  # requests that were passed on to the processes
        self._declined = self._tried = 0  # requests that the agent serves; requests for which there were processes
        self._ask_at = 0.0
        self._plan, self._seq, self._step_log = plan, seq, step_log
        self._resharding, self._accepts = resharding, accepts
        self._kernels = asdict(kernels) if kernels else None
        self._folder = Path(folder) if folder else None
        self._nodes, self._restarts = nodes, restarts
        self._saved: int | None = None
        self._looked_at = -_LOOK_S
        self._thread: threading.Thread | None = None

    def follow(self, child: Child) -> None:
        """Copy the child's output to this process's own, and read it."""
        assert child.stdout is not None
        self.log.forget_last_start()
        self.state = "training"
        self._thread = threading.Thread(target=self._copy, args=(child.stdout,), name="megatron-log", daemon=True)
        self._thread.start()

    def note_request(self, requests: int, run: str) -> None:
        """Tell the job's other nodes, on which nobody hears the daemon, that this `run` was asked for its `requests`th checkpoint."""
        if self._folder is None or self._nodes == 1:
            return
        with contextlib.suppress(OSError):
            fresh = self._folder / f".{_REQUEST}-{os.getpid()}"
            fresh.write_text(f"{run} {requests}\n", encoding="ascii")
            fresh.replace(self._folder / _REQUEST)

    def read_noted_request(self, run: str) -> int:
        """Return the latest request that a node of this `run` has noted; 0 where there is none."""
        if self._folder is None or self._nodes == 1:
            return 0
        with contextlib.suppress(OSError, ValueError):
            noted, _, number = (self._folder / _REQUEST).read_text(encoding="ascii").strip().rpartition(" ")
            return int(number) if noted == run else 0
        return 0

    def ask(self, requests: int, child: Child, torchrun: bool) -> None:
        """Make sure that request number `requests` reaches the processes, now or at a later call."""
        now = time.monotonic()
        if requests <= max(self._asked, self._declined) or now < self._ask_at:
            return
        self._ask_at = now + _ASK_AGAIN_S
        if self._folder is None:  # it would leave without saving
            self._declined = requests
            return
        answer = ask_to_leave(child.pid, torchrun)
        if answer is not LeaveAnswer.NOBODY:
            self._tried = requests
        if answer is LeaveAnswer.ASKED:
            self._asked = requests
        elif answer is LeaveAnswer.NEVER:
            self._declined = requests

    def has_left_as_asked(self, code: int, requests: int) -> bool:
        """Return whether the child, which has ended with `code`, was asked to end and its checkpoint exists.

        Then all `requests` up to now are met. Another node's launcher may have asked first: a clean end is then taken for an answer to
        it, or the other node would wait for this one. A run that has reached its last iteration is over, asked or not. A checkpoint older
        than the newest log line does not count.
        """
        if self._thread is not None:
            self._thread.join(2.0)  # a grandchild may hold the pipe
        self._looked_at = -_LOOK_S
        elsewhere = self._nodes > 1 and not self._declined and self._tried < requests
        newest_request = max(self._asked, requests if elsewhere else 0)
        newest, saved = self.log.newest, self._read_tracker()
        ended = newest is not None and max(newest.iteration, saved or 0) >= newest.last
        there = saved is not None and (newest is None or saved >= newest.iteration)
        if code or ended or not there or newest_request <= self.acknowledged:
            self.state = "done" if not code and ended else "failed"
            return False
        self.answer_with_newest(requests)
        self.state = "waiting"
        return True

    def answer_with_newest(self, requests: int) -> None:
        """Count all `requests` up to now as met by the newest checkpoint: no step was trained since."""
        self.acknowledged = self._asked = requests

    def status(self) -> dict[str, Any] | None:
        """Return the status in the form of an agent's status file; None before the first line."""
        newest, plan = self.log.newest, self._plan
        if newest is None:
            return None
        if plan is not None and newest.batch and newest.batch % (plan.dp * plan.micro_batch) == 0:
            plan = replace(plan, global_batch=newest.batch)  # it may have moved since the start
        notes = [
            f"{count} {what} iterations"
            for count, what in ((self.log.nan, "NaN"), (self.log.skipped, "skipped"))
            if count
        ]
        remaining_samples = max(0, newest.last - newest.iteration) * (newest.batch or 0)
        has_sample_count = newest.consumed_samples is not None and newest.batch is not None
        return {
            "step": newest.iteration,
            "step_s": self.log.step_s,
            "steps_between": self.log.every,
            "trained_s": self.log.trained_s,
            "first_step_s": self.log.first_step_s,
            "least_s": _SAVING_S,
            "loss": newest.loss,
            "spike": asdict(self.log.spikes.spike) if self.log.spikes.spike else None,
            "grad_norm": newest.grad_norm,
            "tokens": newest.consumed_samples * self._seq
            if newest.consumed_samples is not None and self._seq
            else None,
            "peak_memory_bytes": self.log.peak_bytes,
            "done": newest.consumed_samples if has_sample_count else None,
            "total": (newest.consumed_samples or 0) + remaining_samples if has_sample_count else None,
            "checkpoint_step": self.checkpoint_step(),
            "checkpoint_requests": self.acknowledged,
            "plan": asdict(plan) if plan else None,
            "restarts": self._restarts,
            "resharding": self._resharding,
            "accepts": self._accepts,
            "kernels": self._kernels,
            "state": self.state,
            "note": ", ".join(notes),
        }

    def checkpoint_step(self) -> int | None:
        """Return the step of the newest checkpoint, by Megatron's own tracker file, looked at every few seconds, else by its log."""
        saved = self._read_tracker()
        return saved if saved is not None else self.log.saved

    def _read_tracker(self) -> int | None:
        now = time.monotonic()
        if self._folder is not None and now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            newest = tracker.newest_iteration(self._folder)
            self._saved = newest if isinstance(newest, int) else self._saved
        return self._saved

    def _copy(self, source: IO[bytes]) -> None:
        with source, contextlib.suppress(OSError):
            while piece := os.read(source.fileno(), 65_536):
                with contextlib.suppress(OSError):  # a full disk must not stop the training's own output
                    _write_all(piece)
                self._keep(self.log.parse_piece(piece))

    def _keep(self, lines: Sequence[LogLine]) -> None:
        if not lines or not self._step_log:
            return
        plan = self._plan or Plan()
        with contextlib.suppress(OSError), Path(self._step_log).open("a", encoding="utf-8") as stream:
            for line in lines:
                entry = {
                    "step": line.iteration,
                    "loss": line.loss,
                    "grad_norm": line.grad_norm,
                    "restarts": self._restarts,
                    "tp": plan.tp,
                    "pp": plan.pp,
                    "dp": plan.dp,
                    "global_batch": line.batch,
                    "time": time.time(),
                }
                stream.write(json.dumps(entry) + "\n")


def _write_all(piece: bytes) -> None:
    while piece:
        piece = piece[os.write(1, piece) :]

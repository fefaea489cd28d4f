"""A light job whose run fails in the way that FAILS says, at the point that FAILS_AT says (start where it is not set).

    start       before the first step, under a plan of Synergy's; with FAILS_ALWAYS under any arguments
    first       at the third step, likewise
    checkpoint  while its first checkpoint is written, likewise
    mid         once, well past its first steps

FAILS_ON: the number of the node (of several) where it fails. Submit it with
light_job.submit(script=Path(failing_job.__file__), before="export FAILS=exit\n").
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from synergy_core.records import Plan
from synergy_launch.agent.agent import Agent
from synergy_launch.agent.settings import AgentSettings

from tests.throwaway import light_job

EXIT_CODE = 7
FIRST, MID = 3, 25  # steps
SIGNALS = {
    "killed": signal.SIGKILL,
    "segmentation": signal.SIGSEGV,
    "bus": signal.SIGBUS,
    "abort": signal.SIGABRT,
    "illegal": signal.SIGILL,
    "arithmetic": signal.SIGFPE,
}
# what training programs print before they end with exit code 1: PyTorch's words, NCCL's, CUDA's
MESSAGES = {
    "memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "nccl": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:268",
    "collective": "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
    "cuda": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "driver": "RuntimeError: Unexpected error from cudaGetDeviceCount(): Error 802: system not yet initialized",
    "loader": "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory.",
    "port": "RuntimeError: The server socket has failed to listen on any local network address. EADDRINUSE",
    "checkpoint": "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    "reshard": "ValueError: Size mismatch between saved torch.Size([512, 64]) and current: torch.Size([256, 64])",
}
#: all ways; "node" is the caller's to do
KINDS = ("exit", "hang", "assertion", "import", "full", "oom_kill", "recursion", *SIGNALS, *MESSAGES)


def main() -> int:
    how, at = os.environ["FAILS"], os.environ.get("FAILS_AT", "start")
    here = os.environ.get("SLURM_NODEID", "0") == os.environ.get("FAILS_ON", os.environ.get("SLURM_NODEID", "0"))
    planned = "SYNERGY_PLAN_JSON" in os.environ or "FAILS_ALWAYS" in os.environ
    if planned and not here and os.environ.get("SLURM_JOB_NUM_NODES", "1") != "1":
        time.sleep(3600)  # as a collective waits for the rank that fails
    if at == "mid" or (planned and here):
        fail_at(at, lambda: fail(how))
    return light_job.main()


def fail_at(at: str, fails: Callable[[], None]) -> None:
    """Arranges for it."""
    if at == "start":
        fails()
    look, start = Agent.look, Agent.start

    def failing_look(agent: Agent, step: int, **figures: Any) -> Any:
        if at == "first" and step == FIRST:
            fails()
        mark = Path(os.environ.get("SYNERGY_CHECKPOINT_DIR", ".")) / "has-failed"
        if at == "mid" and step >= MID and not mark.exists():
            mark.touch()
            fails()
        return look(agent, step, **figures)

    def failing_start(agent: Agent, step: int, save: Callable[..., Any] | None = None, **more: Any) -> Any:
        def failing_save(folder: Path) -> Any:
            fails()
            return save(folder) if save is not None else {}

        return start(agent, step, save=failing_save if at == "checkpoint" else save, **more)

    Agent.look, Agent.start = failing_look, failing_start  # type: ignore[method-assign,assignment]


def fail(how: str) -> None:
    """As training programs do."""
    print(f"fails at {time.time():.2f}", flush=True)
    if how in SIGNALS:
        signal.signal(SIGNALS[how], signal.SIG_DFL) if how != "killed" else None
        os.kill(os.getpid(), SIGNALS[how])
    if how in MESSAGES:
        print(MESSAGES[how], file=sys.stderr)
        sys.exit(1)
    match how:
        case "hang":
            if os.environ.pop("SYNERGY_PLAN_JSON", None) is not None:
                Agent(AgentSettings.from_environment(), Plan()).start(0)
            time.sleep(3600)
        case "assertion":
            raise AssertionError("loss is nan")
        case "import":
            importlib.import_module("a_module_that_is_not_there")
        case "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case "oom_kill":  # as a shell or torchrun passes on what the kernel killed
            os._exit(137)
        case "recursion":
            fail_deeper()
    sys.exit(EXIT_CODE)


def fail_deeper() -> None:
    """Never returns."""
    fail_deeper()


if __name__ == "__main__":
    sys.exit(main())

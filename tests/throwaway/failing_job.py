"""A light job whose run fails under a plan of Synergy's, in the way that FAILS says; with FAILS_ALWAYS under any arguments.

Submit it with light_job.submit(script=Path(failing_job.__file__), before="export FAILS=exit\n").
"""

from __future__ import annotations

import os
import signal
import sys
import time

from synergy_launch.agent.agent import Agent
from synergy_launch.agent.settings import AgentSettings

from synergyd.records import Plan
from tests.throwaway import light_job

EXIT_CODE = 7


def main() -> int:
    if "SYNERGY_PLAN_JSON" in os.environ or "FAILS_ALWAYS" in os.environ:
        print(f"fails at {time.time():.2f}", flush=True)
        fail(os.environ["FAILS"])
    return light_job.main()


def fail(how: str) -> None:
    """As training programs do: messages are PyTorch's."""
    if how == "hang":
        os.environ.pop("SYNERGY_PLAN_JSON", None)
        agent = Agent(AgentSettings.from_environment(), Plan())
        agent.start(0)
        time.sleep(3600)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "memory":
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", file=sys.stderr)
        sys.exit(1)
    if how == "nccl":
        print("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:268", file=sys.stderr)
        sys.exit(1)
    sys.exit(EXIT_CODE)


if __name__ == "__main__":
    sys.exit(main())

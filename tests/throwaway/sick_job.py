"""A light job that is sick in the way that SICK says: slow, hangs or idle.

slow: it says that the node of SICK_ON holds its others up. hangs: its first run's steps stop after a few. idle: it never trains.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from synergy_launch.agent.agent import Agent

from tests.throwaway import light_job

STEPS = 20  # before it hangs: its status, which is written twice a second, then tells how long a step takes


def main() -> int:
    how = os.environ["SICK"]
    if how == "idle":
        time.sleep(3600)
    look = Agent.look

    def sick_look(agent: Agent, step: int, **figures: Any) -> Any:
        if how == "slow":
            agent.status.update(slow_nodes=[os.environ["SICK_ON"]], slow_times=[1.5])
        if how == "hangs" and step == STEPS and agent.settings.restarts == 0:
            print(f"hangs on {os.environ['SLURM_JOB_NODELIST']}", flush=True)
            time.sleep(3600)
        return look(agent, step, **figures)

    Agent.look = sick_look  # type: ignore[method-assign,assignment]
    return light_job.main()


if __name__ == "__main__":
    sys.exit(main())

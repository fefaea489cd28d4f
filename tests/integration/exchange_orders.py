"""What test_comm_in_place runs: `launcher` with a daemon's orders in it, which starts this file again as each rank of the training."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from synergy_core.job_report import Report
from synergy_core.records import Plan
from synergy_core.wire import report
from synergy_core.wire.line import Line
from synergy_core.wire.report import ReportAnswer

PLAN = Plan(dp=2, micro_batch=1, global_batch=8)
#: (what the plan's exchange becomes, from which step on)
ORDERS = (("local:3", 8), ("exact", 26))
STEPS = 40
_STEP_S = 0.2  # so that orders come in time


def launcher() -> None:
    """synergy-launch, each report answered as the daemon would: it asks for a checkpoint, and then orders another plan."""
    from synergy_launch.launcher import status_reports
    from synergy_launch.launcher.command import command
    from synergy_launch.launcher.reporter import Reporter

    asked: list[int] = []

    def send(told: Report, address: str, by: int | None = None, line: Line | None = None) -> ReportAnswer | None:
        number = (told.in_place.order if told.in_place is not None else 0) + 1
        if number > len(ORDERS) or told.step < ORDERS[number - 1][1]:
            return None
        if number not in asked:
            asked.append(number)
            os.kill(os.getpid(), signal.SIGUSR2)
        saved = told.checkpoint_requests >= number
        return ReportAnswer(replace(PLAN, exchange=ORDERS[number - 1][0]), number) if saved else None

    setattr(report, "send", send)  # noqa: B010
    setattr(status_reports, "Reporter", partial(Reporter, every_s=0.2))  # noqa: B010
    command(["--runner", "torchrun", __file__, *sys.argv[2:]])


def rank() -> None:
    """One rank of communicating.trained, which notes each step: what it was told, what was exchanged, and the newest checkpoint."""
    from synergy_launch.agent.agent import Agent
    from torch import distributed

    from tests.integration import communicating

    checkpoints, notes = Path(sys.argv[1]), Path(sys.argv[2])
    look = Agent.after_step

    def after_step(agent: Agent, step: int, **figures: Any) -> bool:
        time.sleep(_STEP_S)
        goes_on = look(agent, step, **figures)
        if agent.settings.rank == 0:
            told = {"told": os.environ.get("SYNERGY_COMM", "exact"), "pid": os.getpid()}
            said = {name: agent.status[name] for name in ("step", "loss", "comm", "checkpoint_step")}
            with notes.open("a") as stream:
                stream.write(json.dumps(told | said) + "\n")
        return goes_on

    setattr(Agent, "after_step", after_step)  # noqa: B010
    communicating.trained("", checkpoints, STEPS)
    if distributed.is_initialized():  # gloo's threads, left running, may abort the process at its end
        distributed.destroy_process_group()


if __name__ == "__main__":
    (launcher if sys.argv[1:2] == ["launcher"] else rank)()

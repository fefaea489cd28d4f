"""A training job that needs no torch: the real agent around steps that only sleep. `agent_job.py LEDGER [STEPS [SECONDS]]`

Every incarnation keeps `LEDGER.alive` locked as long as it lives, and says in LEDGER what it did, one line each:
`overlap|start|saved|end|done RESTARTS STEP PID TIME`. Without STEPS, or with 0, it trains
until it is told to stop; with SECONDS until so long after its first start.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from synergy_core.records import Plan
from synergy_launch.agent.agent import Agent
from synergy_launch.agent.settings import AgentSettings

#: GPU seconds of a step: twice the GPUs are twice as fast, or what it measures would keep it from growing
GPU_STEP_S = 0.8
CHECKPOINT_EVERY = 20  # steps
STALL_S = 25.0  # at the most, as stall.py's calls; not imported: this file also runs alone, in containers


def main() -> int:
    """Trains until it is told to stop; all nodes but the first only wait."""
    ledger = Path(sys.argv[1])
    steps, seconds = (int(word) for word in (*sys.argv[2:4], "0", "0")[:2])
    if os.environ.get("SLURM_PROCID", "0") != "0":
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        while signal.sigtimedwait({signal.SIGTERM}, 0.5) is None and not _done(ledger):
            continue
        return 0
    alive = ledger.with_suffix(".alive").open("w")
    plan = json.loads(os.environ.get("SYNERGY_PLAN_JSON", "{}"))
    # without a plan the job has the size that it asked for
    held = int(os.environ.get("SLURM_GPUS_ON_NODE", "1")) * int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    world = plan.get("tp", 1) * plan.get("pp", 1) * plan["dp"] if "dp" in plan else held
    settings = AgentSettings.from_environment({**os.environ, "WORLD_SIZE": str(world)})
    agent = Agent(settings, settings.plan or Plan(dp=world, global_batch=world))
    agent.install_signals()
    found = agent.find_checkpoint(None)
    step = found.checkpoint.step if found.checkpoint else 0

    def say(what: str) -> None:
        with ledger.open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.write(f"{what} {settings.restarts} {step} {os.getpid()} {time.time():.3f}\n")

    def save(folder: Path) -> Mapping[str, Any]:
        stall("checkpoint.before")
        (folder / "state").write_text(str(step))
        say("saved")
        stall("checkpoint.after")
        return {"kind": "sleep"}

    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say("overlap")
    say("start")
    agent.start(step, save=save, checkpoint_interval=CHECKPOINT_EVERY)
    going, until_s = True, float(ledger.read_text().split()[4]) + seconds if seconds else math.inf
    while going and step < (steps or sys.maxsize) and time.time() < until_s:
        time.sleep(GPU_STEP_S / world)
        step += 1
        going = agent.after_step(step, loss=1.0 / step)
    if going:
        agent.finish()
    say("done" if going else "end")
    return 0


def stall(name: str) -> None:
    """Wait as the calls of stall.py do, where there is no call to stop: in STALLS, while the file `name` exists."""
    folder, until_s = os.environ.get("STALLS"), time.monotonic() + STALL_S
    while folder and Path(folder, name).exists() and time.monotonic() < until_s:
        Path(folder, f"{name}.reached").touch()
        time.sleep(0.05)


def _done(ledger: Path) -> bool:
    return ledger.exists() and "\ndone " in ledger.read_text()


if __name__ == "__main__":
    sys.exit(main())

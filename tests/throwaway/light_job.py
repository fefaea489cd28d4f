"""A job that only pretends to train: the launcher, the agent, checkpoints and reports are real, torch is not needed.

srun synergy-launch --runner python --checkpoint DIR tests/throwaway/light_job.py [STEPS]

STEPS: in all, or +STEPS: more than its checkpoint has. GOES_ON_UNTIL=FILE: beyond them too, until that file is there.
BATCH: its global batch without a plan (8). CRASHES=STEP:TIMES: it ends with exit code 9 at that step, so many
times in all. CHECKPOINT_EVERY: steps; 0: on request alone. LOSES_ABOVE=BATCH: from step 20 on it is told twice that
batch, as if by the daemon, and after ten steps there its loss is no number for good. STALLS=FOLDER: its checkpoints and
its start wait as calls of stall.py do, and it ends at once with exit code 3 where another one of its runs is alive.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from synergy_core.records import Plan
from synergy_launch.agent.agent import Agent
from synergy_launch.agent.run_folder import propose_batch
from synergy_launch.agent.settings import AgentSettings
from synergy_launch.links import link_gate

from tests.throwaway.agent_job import stall
from tests.throwaway.slurm import SlurmCluster

OVERLAP = "overlap"  # a file in the checkpoint folder: two runs were alive at once
#: GPU seconds of a step: twice the GPUs are twice as fast, or what it measures would keep it from growing
GPU_STEP_S = 0.4
BATCH = 8
GRADIENT_BYTES = 50_000_000
MODEL = {"model_type": "gpt2", "n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 64, "vocab_size": 256}


def main() -> int:
    asked = sys.argv[1] if len(sys.argv) > 1 else "100000"
    steps = int(asked)
    environment = dict(os.environ)
    until = environment.get("GOES_ON_UNTIL", "")
    text = environment.pop("SYNERGY_PLAN_JSON", "")
    gpus = int(environment.get("SLURM_GPUS_ON_NODE", "1")) * int(environment.get("SLURM_JOB_NUM_NODES", "1"))
    # one process stands for all of the job's
    # not by Slurm's count: where a node is lost the run goes on with fewer
    plan = (
        Plan(**json.loads(text))
        if text
        else Plan(dp=gpus, micro_batch=1, global_batch=int(environment.get("BATCH", BATCH)))
    )
    step_s = GPU_STEP_S / plan.gpus
    if environment.get("SLURM_NODEID", "0") != "0" or environment.get("RANK", "0") != "0":
        time.sleep(steps * step_s)
        while until and not Path(until).exists():
            time.sleep(step_s)
        return 0
    stall("start.before")
    agent = Agent(AgentSettings.from_environment(environment), plan)
    agent.install_signals()
    alone = be_alone(Path(environment["SYNERGY_CHECKPOINT_DIR"])) if "STALLS" in environment else None
    found = agent.find_checkpoint(None)
    step = found.checkpoint.step if found.checkpoint else 0
    steps += step if asked.startswith("+") else 0

    def save(folder: Path) -> Mapping[str, Any]:
        stall("checkpoint.before")
        (folder / "step").write_text(str(step))
        return {}

    loses_above, above = int(environment.get("LOSES_ABOVE", "0")), 0
    agent.start(
        step,
        save=save,
        checkpoint_interval=int(environment.get("CHECKPOINT_EVERY", "0")),
        resharding=True,
        base_batch=BATCH if loses_above else None,
    )
    gate = link_gate.from_environment(environment)  # on several nodes, where there is an arbiter
    while step < steps or (until and not Path(until).exists()):
        time.sleep(step_s)
        if gate is not None:
            gate.begin(GRADIENT_BYTES)
            time.sleep(step_s)
            gate.end()
        step += 1
        above += bool(loses_above and agent.plan.global_batch > loses_above)
        loss = math.nan if above > 10 else 1.0 / step
        if not agent.after_step(step, loss=loss, tokens=step * BATCH, noise_scale=64.0):
            return 0
        if loses_above and step >= 20 and agent.settings.run_dir is not None:
            propose_batch(agent.settings.run_dir, replace(plan, global_batch=2 * loses_above))
            agent.take_batch()
        crash(environment.get("CRASHES", "0:0"), step, Path(environment.get("SYNERGY_CHECKPOINT_DIR", ".")))
    agent.finish()
    del alone
    return 0


def be_alone(folder: Path) -> TextIO:
    """Lock the run's folder until this process ends; end it where another run holds the lock."""
    folder.mkdir(exist_ok=True)
    lock = (folder / "alive").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        (folder / OVERLAP).touch()
        sys.exit(3)
    return lock


def crash(how: str, step: int, folder: Path) -> None:
    """Ends this process where `how` (STEP:TIMES) says so; how often it has is counted in `folder`."""
    at, _, times = how.partition(":")
    if step != int(at):
        return
    count = folder / "crashes"
    before = len(count.read_text().splitlines()) if count.exists() else 0
    if before < int(times):
        with count.open("a") as stream:
            stream.write(f"{time.time():.3f}\n")
        sys.exit(9)


def submit(
    cluster: SlurmCluster, name: str = "light", *, gpus: int = 4, directive: str | None = "", steps: int = 100_000,
    options: tuple[str, ...] = (), script: Path = Path(__file__), before: str = "", beside: str = "", after: str = "",
    runner: str = "python", **kwargs: Any,
) -> int:  # fmt: skip
    """Submits one such job with `directive` behind its #SYNERGY (None: a plain job). Its output: `output(cluster, job id)`.

    `runner`: with torchrun all ranks but the first wait. `script`: another that takes the same argument, `before` and `after`: lines of the
    batch script before and after it is started, `beside`: what stands behind its command, such as `&`, and the lines that follow.
    """
    folder = cluster.folder / "light"
    folder.mkdir(exist_ok=True)
    config, checkpoint = folder / "config.json", folder / f"checkpoint-{time.monotonic_ns()}"
    config.write_text(json.dumps(MODEL))
    batch = "" if directive is None or "global_batch=" in directive else f" global_batch={BATCH}"
    line = "" if directive is None else (
        f"#SYNERGY model={config}{batch} micro_batch=1 checkpoint={checkpoint} {directive}\n"
    )  # fmt: skip
    batch_script = (
        f"#!/bin/bash\n#SBATCH --gres=gpu:{gpus} --nodes=1 --open-mode=append\n{line}{before}"
        f"srun {'--overlap ' * bool(beside)}synergy-launch --runner {runner} --checkpoint {checkpoint} {script.resolve()} {steps} "
        f"{beside}\n{after}"
    )
    return cluster.sbatch(batch_script, f"--job-name={name}", f"--output={folder}/%j.out", *options, **kwargs)


def output(cluster: SlurmCluster, job_id: int) -> str:
    """What the job has printed so far."""
    path = cluster.folder / "light" / f"{job_id}.out"
    return path.read_text(errors="replace") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())

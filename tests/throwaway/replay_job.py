"""A job of a recorded workload: the launcher, the agent, checkpoints and reports are real, and its steps only sleep.

    srun synergy-launch --runner python --checkpoint DIR replay_job.py SOCKET NAME

How long its steps take, and what they are worth, a PaceServer at SOCKET says (tests/throwaway/replay_truth.py); so this process
needs neither torch nor numpy.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from synergy_core.records import Plan
from synergy_launch.agent.agent import Agent
from synergy_launch.agent.settings import AgentSettings
from synergy_launch.agent.step_timer import StepTimer

QUANTUM_S = 0.25  # of sleep between two looks at what the agent was told; steps that are shorter pass together


@dataclass(frozen=True, kw_only=True)
class ReportAnswer:
    """What the server says of a plan on GPUs. Progress is in `unit` sequences; `ends`, `rates` (units a second) and
    `noise_scales` (sequences) are those of the stages. `plan` is what the job really runs with."""

    plan: Plan
    step_s: float
    unit: float
    ends: tuple[float, ...]
    rates: tuple[float, ...]
    noise_scales: tuple[float | None, ...]
    base_batch: int | None  # smallest batch of a job whose batch may change


def ask(path: str, question: Mapping[str, Any]) -> Any:
    """One question and its answer, as JSON."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(60)
        stream.connect(path)
        stream.sendall(json.dumps(question).encode() + b"\n")
        with stream.makefile() as answer:
            return json.loads(answer.readline())


class ManySteps(StepTimer):
    """Steps that have passed together, each as long as their share."""

    together = 1

    def add(self, seconds: float, round_over: bool = True) -> None:
        super().add(seconds / self.together, round_over)


@dataclass
class Training:
    """One incarnation, on node 0. `step` and `progress` are what a checkpoint holds."""

    path: str
    name: str
    nodes: int
    each: int  # GPUs a node
    restarts: int
    step: int = 0
    progress: float = 0.0
    timer: ManySteps = field(default_factory=ManySteps)

    def say(self, what: str) -> None:
        """A moment for the record of the replay."""
        ask(self.path, {"said": what, "name": self.name, "restarts": self.restarts, "time": time.time()})

    def told(self, plan: Plan | None) -> ReportAnswer:
        """Pace of `plan`; None: of what the job's user asked for."""
        question = {"name": self.name, "restarts": self.restarts, "time": time.time()}
        question |= {"nodes": self.nodes, "each": self.each}
        answer = ask(self.path, {**question, "plan": asdict(plan) if plan else None})
        lists = {key: tuple(value) for key, value in answer.items() if isinstance(value, list)}
        return ReportAnswer(**{**answer, **lists, "plan": Plan(**answer["plan"])})

    def save(self, folder: Path) -> Mapping[str, Any]:
        self.say("saves")
        (folder / "state").write_text(str(self.step))
        return {"progress": self.progress}

    def run(self, environment: Mapping[str, str]) -> bool:
        """True: to the end; False: it was told to stop."""
        world = self.nodes * self.each
        settings = AgentSettings.from_environment({**environment, "WORLD_SIZE": str(world)})
        now = self.told(settings.plan)
        agent = Agent(settings, now.plan)
        agent.install_signals()
        agent._timer = self.timer
        found = agent.find_checkpoint(None).checkpoint
        if found is not None:
            self.step, self.progress = found.step, found.meta["progress"]
        agent.start(self.step, save=self.save, checkpoint_interval=0, base_batch=now.base_batch)
        self.say("trains")
        due = time.monotonic()
        while self.progress < now.ends[-1] * (1 - 1e-9):
            stage = next(i for i, end in enumerate(now.ends) if self.progress < end * (1 - 1e-9))
            together = max(1, round(QUANTUM_S / now.step_s))
            part_s = min(together * now.step_s, (now.ends[stage] - self.progress) / now.rates[stage])
            self.timer.together = max(1, round(part_s / now.step_s))
            due += part_s
            # by the clock and not by the sleeps: a machine that wakes it late makes it no slower
            time.sleep(max(0.0, due - time.monotonic()))
            self.step, self.progress = self.step + self.timer.together, self.progress + part_s * now.rates[stage]
            began = time.monotonic()
            going = agent.after_step(
                self.step,
                loss=None,
                noise_scale=now.noise_scales[stage],
                done=self.progress * now.unit,
                total=now.ends[-1] * now.unit,
            )
            if not going:
                return False
            if (plan := agent.take_batch()) is not None:
                now = self.told(plan)
                agent._timer = self.timer = ManySteps(skip=1)
            due += time.monotonic() - began
        self.say("done")
        agent.finish()
        return True


def main() -> int:
    """Trains on node 0; the others wait for its end."""
    path, name = sys.argv[1:3]
    environment = dict(os.environ)
    done = Path(environment["SYNERGY_CHECKPOINT_DIR"]) / "done"
    if environment.get("SLURM_NODEID", "0") != "0":
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        while signal.sigtimedwait({signal.SIGTERM}, 0.5) is None and not done.exists():
            continue
        return 0
    nodes, each = (int(environment.get(n, "1")) for n in ("SLURM_JOB_NUM_NODES", "SLURM_GPUS_ON_NODE"))
    training = Training(path, name, nodes, each, int(environment.get("SLURM_RESTART_COUNT", "0")))
    if training.run(environment):
        done.touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())

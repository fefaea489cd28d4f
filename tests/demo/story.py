"""What the step logs of the demo's jobs say happened, and whether that is what was claimed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

FEW = 5  # steps


@dataclass(frozen=True)
class Leg:
    """The steps a job trained between two restarts."""

    restarts: int
    tp: int
    pp: int
    dp: int
    first_step: int
    last_step: int
    first_loss: float  # mean of the first FEW steps
    last_loss: float  # mean of the last FEW

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        return f"({self.tp},{self.pp},{self.dp})"


def legs(step_log: Path) -> list[Leg]:
    """The legs of one job, from its step log (one JSON object a step)."""
    runs: list[list[dict[str, Any]]] = []
    lines = step_log.read_text().splitlines() if step_log.exists() else []
    for line in lines:
        try:
            step = json.loads(line)
        except ValueError:
            continue  # the last line may be half written
        if not runs or runs[-1][-1]["restarts"] != step["restarts"]:
            runs.append([])
        runs[-1].append(step)
    return [_leg(run) for run in runs]


def _leg(run: list[dict[str, Any]]) -> Leg:
    first, last = run[0], run[-1]
    # one step's loss, on a batch of two, says little
    begun, ended = (fmean(s["loss"] for s in some) for some in (run[:FEW], run[-FEW:]))
    return Leg(first["restarts"], last["tp"], last["pp"], last["dp"], first["step"], last["step"], begun, ended)


def shrank(run: list[Leg]) -> bool:
    """Whether it went on with fewer GPUs at any of its resizes."""
    return any(after.gpus < before.gpus for before, after in pairwise(run))


def grew(run: list[Leg]) -> bool:
    """Whether it went on with more GPUs at any of its resizes."""
    return any(after.gpus > before.gpus for before, after in pairwise(run))


def faults(name: str, run: list[Leg], largest_jump: float) -> list[str]:
    """What is wrong with a job's run: steps lost or repeated at a resize, or a loss that jumped."""
    wrong = []
    for before, after in pairwise(run):
        if after.first_step != before.last_step + 1:
            wrong.append(f"{name}: step {before.last_step} was followed by step {after.first_step}")
        if abs(after.first_loss - before.last_loss) > largest_jump:
            wrong.append(f"{name}: loss {before.last_loss:.4f} before the resize, {after.first_loss:.4f} after it")
    return wrong

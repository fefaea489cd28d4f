"""Which of a job's steps a launcher runs in, by what squeue shows of them: for launchers of older releases. Pure."""

from __future__ import annotations

import re

_STEP = re.compile(r"[0-9]+([_+][0-9]+)?\.[0-9]+\Z")  # one that srun started
_LAUNCHERS = ("synergy-launch", "synergy-launch.pyz")


def launcher_steps(text: str) -> list[str]:
    """Return the steps that surely run a launcher, from `squeue -s -o "%i %j"`: srun names a step after its program."""
    steps = []
    for line in text.splitlines():
        step, _, name = line.strip().partition(" ")
        if _STEP.match(step) and name.strip() in _LAUNCHERS:
            steps.append(step)
    return steps

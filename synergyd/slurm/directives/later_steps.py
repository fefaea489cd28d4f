"""Lines of a batch script that need all nodes which the job had at its start. Pure.

Slurm sets SLURM_NNODES and the like when the script starts. After nodes have left the running job they are wrong: an `srun` behind the
training's would ask for more nodes than there are.
"""

from __future__ import annotations

import re

from synergyd.slurm.directives.second_run import MAX_SCRIPT

_LAUNCHER = re.compile(r"\bsynergy-launch\b")
_NEEDS_NODES = re.compile(
    r"\b(?:srun|mpirun|mpiexec|torchrun|synergy-launch|pdsh|sbcast)\b|SLURM_\w*(?:NODE|NNODES|NTASKS|NPROCS|TASKS)"
)
_LOOP_END = re.compile(r"\s*done\b")
#: ends the step once the first task has ended
_WAITS = re.compile(r"\bSLURM_WAIT\b|\bsrun\b.*\s(?:-W\s*=?\d|--wait\b)")


def step_after_training(script: str) -> tuple[int, str] | None:
    """Return (line, text) of the first line that would not work with fewer nodes, or None if none is seen.

    A script without a synergy-launch line is one that nothing is known of: its first line is returned.
    """
    lines = [line if not line.lstrip().startswith("#") else "" for line in script[:MAX_SCRIPT].split("\n")]
    starts = [number for number, line in enumerate(lines) if _LAUNCHER.search(line)]
    if not starts:
        return 1, "it has no synergy-launch line"
    last = _last_line(lines, starts[0])
    for number, line in enumerate(lines):
        late = number > last
        if _WAITS.search(line) or (late and (_NEEDS_NODES.search(line) or _LOOP_END.match(line))):
            return number + 1, line.strip()[:80]
    return None


def _last_line(lines: list[str], first: int) -> int:
    """Return the number of the last line of the command that begins on line `first`."""
    last = first
    while lines[last].rstrip().endswith("\\") and last + 1 < len(lines):
        last += 1
    return last

"""The check of this node by a child process that can hang or crash without harm to the launcher."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from synergy_core.node_check import MEASURES, NodeCheck
from synergy_core.wire.node_check import read_check

from synergy_launch.warm_start.client import Child

#: seconds for the child's imports, which a fork of a waiting process has behind it, and for the start of CUDA
READY_S = 60.0
#: seconds for its measurements after that, which take about 2 s
MEASURING_S = 8.0
COMMAND = (sys.executable, "-P", "-m", "synergy_launch.node_check")
LIFE_S = 75  # of a child whose launcher is gone; whole seconds, as alarm(2) counts
_POLL_S = 0.1
_END_S = 1.0  # for the end of a killed child: one that hangs in a driver may stay
_LINE_BYTES = 1 << 16  # of a child's output, at the most
_FIELDS = frozenset({"gpus", "cpus", "device", "throttled", *MEASURES})


def start_python(argv: Sequence[str], environment: Mapping[str, str]) -> Child:
    """Start a command afresh, with its output through a pipe. Raises OSError."""
    return subprocess.Popen(argv, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def check_node(
    node: str,
    environment: Mapping[str, str],
    *,
    command: Sequence[str] = COMMAND,
    start: Callable[[Sequence[str], Mapping[str, str]], Child] = start_python,
    is_ending: Callable[[], bool] = lambda: False,
    poll: Callable[[], None] = lambda: None,
    ready_s: float = READY_S,
    measuring_s: float = MEASURING_S,
) -> NodeCheck | None:
    """Measure this node, called `node` in Slurm. Return the figures, as far as they were measured, or None if nothing was.

    `environment`: that of the training processes. `start` starts the child, with its output through a pipe. `is_ending`: the job is to
    end, so the check is given up. `poll` is called meanwhile, ten times a second. A child that is not ready after `ready_s`, or has not
    finished `measuring_s` after that, is killed.
    """
    try:
        child = start(command, environment)
    except OSError:
        return None
    taken_s, output = time.time(), b""
    due_s, is_ready, is_late = time.monotonic() + ready_s, False, False
    assert child.stdout is not None
    try:
        while not is_ending() and len(output) < _LINE_BYTES:
            poll()
            if select.select([child.stdout], [], [], _POLL_S)[0]:
                piece = os.read(child.stdout.fileno(), _LINE_BYTES)
                if not piece:
                    break
                output += piece
            if not is_ready and b"\n" in output:
                due_s, is_ready = time.monotonic() + measuring_s, True
            if time.monotonic() >= due_s:
                is_late = True
                break
    finally:
        _end(child)
    return parse_output(output, node, taken_s, is_late=is_late)


def parse_output(output: bytes, node: str, taken_s: float, *, is_late: bool = False) -> NodeCheck | None:
    """Return the check that a child's output says, or None if it measured nothing. `is_late`: the child was killed for being late."""
    figures: dict[str, Any] = {}
    begun = ""
    for line in output.decode("ascii", "replace").split("\n")[:-1]:
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(line)
            if isinstance(said, dict):
                begun = said["begins"] if said.get("begins") in MEASURES else ""
                figures |= {name: value for name, value in said.items() if name in _FIELDS and value is not None}
    hung_at = begun if is_late else ""
    if not figures.keys() & MEASURES.keys() and not hung_at:
        return None
    return read_check({**figures, "node": node, "taken_s": taken_s, "hung_at": hung_at})


def _end(child: Child) -> None:
    """Kill the child and what it has started. One that a driver keeps is left to the kernel."""
    for kill in (os.killpg, os.kill):  # until it has its own group there is only itself
        with contextlib.suppress(OSError):
            kill(child.pid, signal.SIGKILL)
    until_s = time.monotonic() + _END_S
    while child.poll() is None and time.monotonic() < until_s:
        time.sleep(_POLL_S / 10)
    if child.stdout is not None:
        child.stdout.close()

"""Which backend reads Slurm: pyslurm where it is there and fits, else the command line, which alone writes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping

from synergyd.errors import UsageError
from synergyd.slurm.client import SlurmError, SlurmReader
from synergyd.slurm.command_line import CommandLine
from synergyd.slurm.pyslurm_reader import PyslurmReader

PREFERENCES = ("auto", "pyslurm", "command line")
PROBE_TIMEOUT_S = 30.0
_PROBE = "import json, pyslurm; print(json.dumps([pyslurm.__version__, list(pyslurm.slurm_api_version())]))"
# libslurm takes these from the process's own environment only
_PROCESS_WIDE = ("SLURM_", "MUNGE_")


def open_reader(environment: Mapping[str, str], prefer: str = "auto") -> tuple[SlurmReader, str]:
    """The reader for this cluster, and a sentence that says why it was chosen.

    `environment` is added to this process's own, as for CommandLine. `prefer` is one of PREFERENCES.
    Raises UsageError when `prefer` is no such word, or is `pyslurm` and that can't be used. A Slurm that is away is no
    error here: the reads say so.
    """
    if prefer not in PREFERENCES:
        raise UsageError("backend", f"{prefer!r} is none", f"one of: {', '.join(PREFERENCES)}")
    command_line = CommandLine(environment)
    if prefer == "command line":
        return command_line, "the command line was asked for"
    why_not = _why_not(environment, command_line)
    if not why_not:
        try:
            reader = PyslurmReader()
            return reader, f"pyslurm imports and is made for Slurm {reader.version()}, which is installed"
        except SlurmError as error:
            why_not = str(error)
    if prefer == "pyslurm":
        raise UsageError("backend pyslurm", why_not, "make it right, or ask for the command line")
    return command_line, f"the command line, since {why_not}"


def _why_not(environment: Mapping[str, str], command_line: CommandLine) -> str:
    """Why pyslurm can't be used for the Slurm that `command_line` is of; '' when it can."""
    if importlib.util.find_spec("pyslurm") is None:
        return "pyslurm is not installed"
    for key, value in environment.items():
        if key.startswith(_PROCESS_WIDE) and os.environ.get(key) != value:
            return f"pyslurm reads only the cluster of this process's own {key}"
    try:
        installed = command_line.version()
    except SlurmError as error:
        return f"Slurm's release is not known ({error})"
    # in a process of its own: where libslurm finds no configuration it ends the process that imports it
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env={**os.environ, **environment},
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"pyslurm was not imported within {PROBE_TIMEOUT_S:g} s"
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return f"pyslurm can't be imported: {last or f'exit {done.returncode}'}"
    try:
        made_for, library = json.loads(done.stdout.decode().strip().rpartition("\n")[2])
        theirs = {major_minor(made_for), major_minor(".".join(str(x) for x in library))}
    except (ValueError, TypeError, AttributeError):
        return "pyslurm does not say which Slurm it is made for"
    if theirs != {major_minor(installed)}:
        return f"pyslurm {made_for} is not made for Slurm {installed}, which is installed"
    return ""


def major_minor(version: str) -> tuple[int, int]:
    """`22.05.8` -> (22, 5). Raises ValueError for other text."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)

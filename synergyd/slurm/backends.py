"""Which backend reads Slurm: pyslurm where it is there and fits, else the command line, which alone writes."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from synergy_core.errors import UsageError

from synergyd.slurm.client import SlurmError, SlurmReader
from synergyd.slurm.command_line import CommandLine
from synergyd.slurm.parsed.rows import JobRow, SlurmNodeRow
from synergyd.slurm.pyslurm_process import PyslurmProcess

PREFERENCES = ("auto", "pyslurm", "command line")
log = logging.getLogger("synergyd")
T = TypeVar("T")
NEWEST_READ = (
    25,
    11,
)  # the release of Slurm whose pyslurm was tried last: in 26.05 `resource_sharing` became two fields
REQUESTS = 2  # counted by slurmctld for one read through pyslurm: what is read, and the partitions beside it


class Fallback:
    """A reader that reads through `first` until a read of it fails for good, then through `second`; logged once.

    A Slurm that is away stays `first`'s.
    """

    def __init__(self, first: PyslurmProcess, second: CommandLine) -> None:
        self._first, self._second = first, second
        self.name = first.name
        self.problem = ""  # why the first is read through no more

    def close(self) -> None:
        """End the process of the first reader."""
        self._first.close()

    def version(self) -> str:
        return self._read(lambda reader: reader.version())

    def jobs(self) -> tuple[JobRow, ...]:
        return self._read(lambda reader: reader.jobs())

    def nodes(self) -> tuple[SlurmNodeRow, ...]:
        return self._read(lambda reader: reader.nodes())

    def _read(self, call: Callable[[SlurmReader], T]) -> T:
        if not self.problem:
            if self._second.pace is not None:  # one limit on the user, whichever way it reads
                self._second.pace.take(REQUESTS)
            try:
                return call(self._first)
            except SlurmError as error:
                if error.transient:
                    raise
                self.problem = f"the command line, since {error}"
                log.warning("reads through %s from now on", self.problem)
                self._first.close()
                self.name = self._second.name
        return call(self._second)


def open_reader(
    environment: Mapping[str, str], prefer: str = "auto", line: CommandLine | None = None
) -> tuple[SlurmReader, str]:
    """Return the reader for this cluster, and a sentence that says why it was chosen.

    `environment` is added to this process's own, as for CommandLine. `prefer` is one of PREFERENCES. `line`: the
    command line of this process, if it has one: its reads and these then keep to one limit of Slurm. Raises
    UsageError when `prefer` is no such word, or is `pyslurm` and that can't be used. A Slurm that is away is no
    error here: the reads say so.
    """
    if prefer not in PREFERENCES:
        raise UsageError("backend", f"{prefer!r} is none", f"one of: {', '.join(PREFERENCES)}")
    command_line = line or CommandLine(environment)
    if prefer == "command line":
        return command_line, "the command line was asked for"
    pyslurm = PyslurmProcess(environment)
    why, fits = _fits(pyslurm, command_line)
    if fits:
        return (pyslurm if prefer == "pyslurm" else Fallback(pyslurm, command_line)), why
    pyslurm.close()
    if prefer == "pyslurm":
        raise UsageError("backend pyslurm", why, "make it right, or ask for the command line")
    return command_line, f"the command line, since {why}"


def reads(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return (the backend that a daemon would read through, why).

    `open_reader` chooses it, and a first read of jobs and nodes tests it. Raises SlurmError if Slurm can't be read.
    """
    reader, why = open_reader(environment)
    if not isinstance(reader, Fallback):
        return reader.name, why
    try:
        reader.jobs()
        reader.nodes()
    finally:
        reader.close()
    return reader.name, reader.problem or why


def _fits(pyslurm: PyslurmProcess, command_line: CommandLine) -> tuple[str, bool]:
    """Return (why pyslurm can or can't be used for the Slurm of `command_line`, whether it can)."""
    if importlib.util.find_spec("pyslurm") is None:
        return "pyslurm is not installed", False
    try:
        slurm_version = command_line.version()
    except SlurmError as error:
        return f"Slurm's release is not known ({error})", False
    try:
        made_for, library = pyslurm.made_for()
    except SlurmError as error:
        return f"pyslurm can't be used: {error.what}", False
    try:
        theirs = {major_minor(made_for), major_minor(library)}
    except ValueError:
        return "pyslurm does not say which Slurm it is made for", False
    if theirs != {major_minor(slurm_version)}:
        return f"pyslurm {made_for} is not made for Slurm {slurm_version}, which is installed", False
    if major_minor(slurm_version) > NEWEST_READ:
        newest = ".".join(f"{number:02d}" for number in NEWEST_READ)
        return f"pyslurm {made_for} can't be used: it is read up to {newest}, and later ones have other fields", False
    return f"pyslurm imports and is made for Slurm {library}, which is installed", True


def major_minor(version: str) -> tuple[int, int]:
    """Return (22, 5) for `22.05.8`. Raises ValueError for other text."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)

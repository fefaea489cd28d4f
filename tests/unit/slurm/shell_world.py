"""Narrow scripts that stand in for Slurm's commands, and remember how they were called."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from synergyd.slurm.columns import JOB_FIELDS, JOB_WIDE
from synergyd.slurm.command_line import CommandLine

WIDE = tuple((name, JOB_WIDE.get(name, width)) for name, width in JOB_FIELDS)


def cut(fields: tuple[tuple[str, int], ...], row: dict[str, str]) -> bytes:
    """One row as Slurm prints it: each field cut and padded to its width in bytes."""
    return b"".join(row[name].encode()[:width].ljust(width) for name, width in fields) + b"\n"


@dataclass
class Shell:
    """A folder on PATH whose commands write down their words and environment, and answer with a file."""

    folder: Path
    backend: CommandLine

    def answers(self, program: str, out: bytes = b"", error: str = "", code: int = 0, *, first: str = "") -> None:
        (self.folder / f"{program}.out").write_bytes(out)
        (self.folder / f"{program}.err").write_text(error)
        path = self.folder / program
        path.write_text(
            f"#!/bin/sh\ncd {shlex.quote(str(self.folder))}\n"
            f"printf '%s\\0' {program} \"$@\" >> log; echo >> log; export -p > environment\n{first}\n"
            f"/bin/cat {program}.out; /bin/cat {program}.err >&2; exit {code}\n"
        )
        path.chmod(0o755)

    @property
    def calls(self) -> list[list[str]]:
        """The words of each call, the program's name first."""
        log = self.folder / "log"
        return [line.split("\0")[:-1] for line in log.read_text().split("\n")[:-1]] if log.exists() else []

    @property
    def environment(self) -> dict[str, str]:
        """Of the last call."""
        lines = (self.folder / "environment").read_text().splitlines()
        return {k: v.strip("'") for k, _, v in (line.removeprefix("export ").partition("=") for line in lines)}

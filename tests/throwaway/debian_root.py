"""A Debian of another release below build/debian, from debootstrap: made once, never written to afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.paths import ROOT

CACHE = ROOT / "build" / "debian"
MIRROR = "http://deb.debian.org/debian"
SCRIPTS = Path("/usr/share/debootstrap/scripts")
MAKING_S = 1500.0  # the most that debootstrap may take


@dataclass(frozen=True)
class DebianRoot:
    """The root folder of Debian's release `suite` with `packages` beside the minimal ones."""

    suite: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return CACHE / self.suite

    def made(self) -> bool:
        """It lies here, with these packages at least."""
        ready = self.folder / ".ready"
        return ready.exists() and {*self.packages} <= {*ready.read_text().split()}

    def why_not(self, programs: Sequence[str] = ("unshare", "chroot")) -> str:
        """What keeps it from being made or entered here, in one line; "" if nothing does."""
        if os.geteuid() != 0:
            return "a chroot needs root"
        lacks = [name for name in programs if shutil.which(name) is None]
        if not self.made() and shutil.which("debootstrap") is None:
            lacks.append("debootstrap")
        if lacks:
            return f"{', '.join(lacks)} not installed here"
        probe = ["unshare", "--mount", "--net", "--pid", "--fork", "true"]
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
        return f"no namespaces here: {done.stderr.strip()}" if done.returncode else ""

    def make(self, timeout_s: float = MAKING_S) -> None:
        """Some minutes, once. Raises RuntimeError with the end of what debootstrap said, TimeoutExpired."""
        if self.made():
            return
        part = self.folder.with_name(f".{self.suite}.{os.getpid()}")
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            # its mounts of /proc and /sys end with the namespace: none is left below `part` for rmtree
            command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "debootstrap", "--variant=minbase"]
            command += [f"--include={','.join(self.packages)}", self.suite, str(part), MIRROR]
            if not (SCRIPTS / self.suite).exists():  # newer than this debootstrap
                command.append(str(SCRIPTS / "sid"))
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
            if done.returncode:
                raise RuntimeError(f"debootstrap failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
            (part / ".ready").write_text("\n".join(sorted(self.packages)) + "\n")
            shutil.rmtree(self.folder, ignore_errors=True)
            part.replace(self.folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)

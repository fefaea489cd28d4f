"""The file by which the job_submit plugin knows that a daemon is there to decide. Stale: new jobs run as plain Slurm jobs."""

from __future__ import annotations

import os
from pathlib import Path

NAME = "heartbeat"


def write(state_dir: Path, now_s: float, grace_s: float) -> None:
    """`<unix seconds> <grace seconds>`: the plugin lets a new job start by itself after the grace. Raises OSError."""
    fresh = state_dir / f".{NAME}.{os.getpid()}"
    fresh.write_text(f"{int(now_s)} {max(1, int(grace_s))}\n")
    fresh.chmod(0o644)
    fresh.replace(state_dir / NAME)


def remove(state_dir: Path) -> None:
    """A daemon that ends, or must not act, says so at once."""
    (state_dir / NAME).unlink(missing_ok=True)

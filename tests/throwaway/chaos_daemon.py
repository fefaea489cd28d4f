"""synergyd as the chaos runner starts it: it says when it has completed an epoch, and its clock can be set wrong.

chaos_daemon.py EPOCHS OFFSET DATABASE: a line `MONOTONIC_S ACTS` of EPOCHS for each completed epoch. On SIGUSR1 its time
of day is wrong by the seconds in file OFFSET from then on.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from pathlib import Path

from synergyd.cli.shared.context import Context, run_command_line
from synergyd.daemon.loop import Daemon
from synergyd.daemon.service import run

_right = time.time
_offset_s = 0.0


def main() -> None:
    """Until SIGTERM, as synergyd itself."""
    epochs, offset = Path(sys.argv[1]), Path(sys.argv[2])
    settings = Context(None, sys.argv[3]).settings

    def set_clock(_number: int, _frame: object) -> None:
        global _offset_s
        _offset_s = float(offset.read_text())

    def completed(daemon: Daemon) -> None:
        with epochs.open("a") as stream:
            stream.write(f"{time.monotonic():.3f} {int(daemon.is_acting)}\n")

    signal.signal(signal.SIGUSR1, set_clock)
    time.time = lambda: _right() + _offset_s
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    raise SystemExit(run(settings, on_epoch=completed))


if __name__ == "__main__":
    run_command_line("synergyd", main)

"""The console on which tables are printed."""

from __future__ import annotations

import os
import sys

from rich.console import Console

PIPED_COLUMNS = 160  # into a file or a pipe no column is cut for a terminal that is not there


def console() -> Console:
    """Return the terminal at its width, or a pipe or file at PIPED_COLUMNS, or what $COLUMNS says."""
    knows_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Console() if knows_width else Console(width=PIPED_COLUMNS)

"""Where tables are printed."""

from __future__ import annotations

import os
import sys

from rich.console import Console

PIPED_COLUMNS = 160  # into a file or a pipe no column is cut for a terminal that is not there


def console() -> Console:
    """The terminal at its width; a pipe or file at PIPED_COLUMNS, or what $COLUMNS says."""
    told = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Console() if told else Console(width=PIPED_COLUMNS)

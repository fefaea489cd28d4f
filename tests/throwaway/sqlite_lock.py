"""A SQLite database that another process keeps locked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT * FROM leader").fetchall()
print("holds it", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked_by_a_reader(path: Path) -> Iterator[None]:
    """Another process reads and ends no transaction: nobody can write."""
    child = subprocess.Popen([sys.executable, "-c", READER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None and child.stdout.readline() == b"holds it\n"
        yield
        child.kill()

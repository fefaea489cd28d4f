"""Checks before a schema change: nobody uses the database, and a copy of a SQLite file is kept."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import inspect, text
from synergy_core.errors import UsageError

from synergyd.store import private_file
from synergyd.store.connect import make_engine, parse_url, plain_errors, show
from synergyd.store.process import has_ended

WATCH_S = 3.0  # a leader renews its lease each second


def refuse_if_used(url: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Raise UsageError if a daemon holds the lease and renews it. Take WATCH_S seconds if a daemon was killed while it held the lease."""
    first = _leader(url)
    if not first or not first.get("pid") or has_ended(str(first.get("process") or "")):
        return
    sleep(WATCH_S)
    if _leader(url) != first:
        where = f"synergyd on {first['host']} (process {first['pid']})"
        raise UsageError(show(parse_url(url)), f"{where} uses this database", "stop it first, and those that stand by")


def _leader(url: str) -> dict[str, object]:
    """Return the leader's row, whatever the schema's revision, or {} if there is none."""
    plain_url = parse_url(url)
    engine = make_engine(plain_url, pooled=False)
    try:
        with plain_errors(plain_url), engine.connect() as connection:
            if not inspect(connection).has_table("leader"):
                return {}
            row = connection.execute(text("SELECT * FROM leader")).mappings().first()
            return dict(row) if row else {}
    finally:
        engine.dispose()


def keep_copy(path: Path, revision: str) -> Path:
    """Copy the SQLite file `path` to a file beside it that only its owner can use, and return the copy's path.

    The copy is whole even while others write. Raises UsageError.
    """
    copy = path.with_name(f"{path.name}.{revision}-{time.strftime('%Y%m%d-%H%M%S')}")
    part = copy.with_name(f".{copy.name}")
    try:
        about = path.stat()
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, private_file.MODE))
        source = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
        target = sqlite3.connect(part)
        try:
            source.backup(target)
        finally:
            source.close()
            target.close()
        os.chown(part, about.st_uid, about.st_gid)
        part.replace(copy)
    except (OSError, sqlite3.Error) as error:
        part.unlink(missing_ok=True)
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            str(copy), f"no copy of the database could be made: {why}", "make room, or --no-copy"
        ) from None
    return copy

"""The statements over what jobs made of their GPUs (synergyd.usage)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from synergyd.store import writes
from synergyd.store.tables import UsageRow
from synergyd.usage import Usage, without_overlaps
from synergyd.wire.codec import clean

_COLUMNS = [getattr(UsageRow, f.name) for f in fields(Usage)]
_JOBS = 500  # of one statement
_AT_ONCE = 1000  # rows in memory


def put(connection: Connection, parts: Iterable[Usage], term: int | None) -> bool:
    """Writes parts over those with the same job and begin; False, and nothing, where a leader after `term` writes them."""
    if term is not None and writes.term(connection) > term:
        return False
    writes.upsert(connection, UsageRow, [_row(p) for p in parts])
    return True


def open_parts(connection: Connection) -> list[Usage]:
    """Those of jobs that held GPUs when they were stored last."""
    return _read(connection, UsageRow.is_open.is_(True))


def of_jobs(connection: Connection, job_ids: Sequence[int], from_s: float) -> list[Usage]:
    """All parts of these jobs that end at `from_s` or later."""
    found: list[Usage] = []
    for some in writes.chunks(sorted(set(job_ids)), _JOBS):
        found += _read(connection, UsageRow.job_id.in_(some), UsageRow.to_s >= from_s)
    return found


def between(connection: Connection, from_s: float, to_s: float, user: str, account: str) -> Iterator[Usage]:
    """Yield the parts that touch the span, by job and begin, of a user and an account where they are named; an open one is taken to go
    on to `to_s`."""
    wanted = [UsageRow.from_s < to_s, (UsageRow.to_s > from_s) | UsageRow.is_open]
    wanted += [UsageRow.user == user] if user else []
    wanted += [UsageRow.account == account] if account else []
    return without_overlaps(_each(connection, *wanted))


def _read(connection: Connection, *wanted: ColumnElement[bool]) -> list[Usage]:
    return list(_each(connection, *wanted))


def _each(connection: Connection, *wanted: ColumnElement[bool]) -> Iterator[Usage]:
    by_begin = select(*_COLUMNS).where(*wanted).order_by(UsageRow.job_id, UsageRow.from_s)
    rows = connection.execute(by_begin, execution_options={"yield_per": _AT_ONCE})
    return (Usage(**row._mapping) for row in rows)


def _row(part: Usage) -> dict[str, Any]:
    row = {f.name: getattr(part, f.name) for f in fields(part)}
    return row | {name: clean(row[name]) for name in ("user", "account", "nodes", "state")}

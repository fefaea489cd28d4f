"""The statements over the use that jobs made of their GPUs (synergy_core.usage)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, delete, select
from synergy_core.usage import Usage, whole_jobs, without_overlaps
from synergy_core.wire.codec import clean

from synergyd.store import writes
from synergyd.store.tables import UsageRow

_COLUMNS = [getattr(UsageRow, f.name) for f in fields(Usage)]
_JOBS = 500  # jobs of one statement
_AT_ONCE = 1000  # rows in memory


def put(connection: Connection, parts: Iterable[Usage], term: int | None) -> bool:
    """Write parts over those with the same job and begin, and delete what lasted no time.

    Write nothing and return False if a leader after `term` writes them.
    """
    if term is not None and writes.term(connection) > term:
        return False
    last = {(p.job_id, p.from_s): p for p in parts}
    ended = [key for key, p in last.items() if p.held_s <= 0 and not p.is_open]
    writes.upsert(connection, UsageRow, [_row(p) for key, p in last.items() if key not in ended])
    for job_id, from_s in ended:
        connection.execute(delete(UsageRow).where(UsageRow.job_id == job_id, UsageRow.from_s == from_s))
    return True


def open_parts(connection: Connection) -> list[Usage]:
    """Return the parts of jobs that held GPUs when they were stored last."""
    return _read(connection, UsageRow.is_open.is_(True))


def of_jobs(connection: Connection, job_ids: Sequence[int], from_s: float) -> list[Usage]:
    """Return all parts of these jobs that end at `from_s` or later, and of allocations beside them."""
    rows: list[Usage] = []
    for some in writes.chunks(sorted(set(job_ids)), _JOBS):
        rows += _read(connection, UsageRow.job_id.in_(some) | UsageRow.of_job.in_(some), UsageRow.to_s >= from_s)
    return rows


def read_between(connection: Connection, from_s: float, to_s: float, user: str, account: str) -> Iterator[Usage]:
    """Yield the parts that touch the span, by job and begin, of `user` and `account` if they are named: of all GPUs that each job had.

    An open part is taken to go on to `to_s`.
    """
    conditions = [UsageRow.from_s < to_s, (UsageRow.to_s > from_s) | UsageRow.is_open]
    conditions += [UsageRow.user == user] if user else []
    conditions += [UsageRow.account == account] if account else []
    return whole_jobs(without_overlaps(_each(connection, *conditions)))


def _read(connection: Connection, *conditions: ColumnElement[bool]) -> list[Usage]:
    return list(_each(connection, *conditions))


def _each(connection: Connection, *conditions: ColumnElement[bool]) -> Iterator[Usage]:
    whole = case((UsageRow.of_job != 0, UsageRow.of_job), else_=UsageRow.job_id)
    by_begin = select(*_COLUMNS).where(*conditions).order_by(whole, UsageRow.job_id, UsageRow.from_s)
    rows = connection.execute(by_begin, execution_options={"yield_per": _AT_ONCE})
    return (Usage(**row._mapping) for row in rows)


def _row(part: Usage) -> dict[str, Any]:
    row = {f.name: getattr(part, f.name) for f in fields(part)}
    return row | {name: clean(row[name]) for name in ("user", "account", "nodes", "state")}

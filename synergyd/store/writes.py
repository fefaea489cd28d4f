"""The statements that write.

Each takes an open connection inside a transaction and any number of rows: the number of statements does not grow with the number
of jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Table, delete, null, select, update
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from synergy_core.accepts import NOTHING_MORE
from synergy_core.notice import Notice
from synergy_core.records import Profile
from synergy_core.steering import Steering
from synergy_core.wire.codec import clean, encode

from synergyd.store.records import (
    Changes,
    EpochRecord,
    KeyedRow,
    RefusedError,
    StoredEvent,
    StoredLifecycle,
    StoredNode,
    StoredReport,
)
from synergyd.store.tables import (
    Base,
    DecisionRow,
    EpochRow,
    EventRow,
    JobFlagRow,
    LeaderRow,
    LifecycleRow,
    NodeTable,
    NoticeRow,
    OwnerRow,
    ProfileRow,
    ReportTable,
    SteeringRow,
)

PAUSED = "paused"
NO_DIRECTIVE = "no_directive"
_IN_LIST = 500  # values of one IN (...): well below SQLite's and PostgreSQL's limits

Row = dict[str, Any]


def insert(connection: Connection, model: type[Base]) -> Any:
    """Return the dialect's INSERT, which knows ON CONFLICT."""
    table = find_table(model)
    return sqlite_insert(table) if connection.dialect.name == "sqlite" else postgresql_insert(table)


def find_table(model: type[Base]) -> Table:
    table = model.__table__
    assert isinstance(table, Table)
    return table


def upsert(connection: Connection, model: type[Base], rows: Sequence[Row]) -> None:
    """Write rows, replacing those with the same primary key. If rows share a key, the last one counts."""
    if not rows:
        return
    keys = [c.name for c in find_table(model).primary_key]
    last = {tuple(row[k] for k in keys): row for row in rows}
    statement = insert(connection, model)
    others = {name: statement.excluded[name] for name in rows[0] if name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=others), list(last.values()))


def apply(connection: Connection, changes: Changes) -> int:
    """Write `changes`. Return the number of rows of state that were left out because a later leader holds the database."""
    fenced = changes.term is not None and term(connection) > changes.term
    _history(connection, changes.history)
    _no_directive(connection, changes.no_directive)
    _write_paused(connection, changes.paused)
    upsert(connection, SteeringRow, [_steering(*x) for x in changes.steering])
    _notices(connection, changes.notices)
    if fenced:
        return (
            len(changes.lifecycles)
            + len(changes.gone)
            + len(changes.profiles)
            + len(changes.reports)
            + len(changes.nodes)
        )
    upsert(connection, LifecycleRow, [_lifecycle(x) for x in changes.lifecycles])
    delete_jobs(connection, LifecycleRow, changes.gone)
    delete_jobs(connection, SteeringRow, changes.gone)
    upsert(connection, ProfileRow, [_profile(*x) for x in changes.profiles])
    upsert(connection, ReportTable, [_report(x) for x in changes.reports])
    upsert(connection, NodeTable, [_node(x) for x in changes.nodes])
    return 0


def delete_jobs(connection: Connection, model: type[Base], job_ids: Iterable[int]) -> None:
    """Delete the rows of these jobs."""
    column = find_table(model).c.job_id
    for part in chunks(sorted(set(job_ids)), _IN_LIST):
        connection.execute(delete(find_table(model)).where(column.in_(part)))


def chunks(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[i : i + size] for i in range(0, len(items), size))


def term(connection: Connection) -> int:
    # shared lock: no new leader can write its term between this look and our commit (SQLite: the whole file is locked)
    return connection.execute(select(LeaderRow.term).where(LeaderRow.id == 1).with_for_update(read=True)).scalar() or 0


def _history(connection: Connection, items: Sequence[KeyedRow]) -> None:
    for is_epoch, run in groupby(items, key=lambda k: isinstance(k.item, EpochRecord)):
        if is_epoch:
            for row in run:
                assert isinstance(row.item, EpochRecord)
                _epoch(connection, row.write_key, row.item)
        else:
            _events(connection, list(run))


def _epoch(connection: Connection, write_key: str, epoch: EpochRecord) -> None:
    if len({d.job_id for d in epoch.decisions}) != len(epoch.decisions):
        raise RefusedError("epoch", "two decisions for one job", "one decision a job")
    row = {
        "write_key": write_key,
        "started_s": _finite(epoch.started_s, "started_s"),
        "duration_s": _finite(epoch.duration_s, "duration_s"),
        "dry_run": epoch.dry_run,
        "jobs": len(epoch.decisions),
        "summary": _json(epoch.summary),
        "present": _json(epoch.present),
        "error": clean(epoch.error),
    }
    statement = insert(connection, EpochRow).values(row).on_conflict_do_nothing(index_elements=["write_key"])
    epoch_id = connection.execute(statement.returning(EpochRow.id)).scalar()
    if epoch_id is None:  # an earlier try got through, decisions and all
        return
    older = update(EpochRow).where(EpochRow.id < epoch_id, EpochRow.present.is_not(None))
    connection.execute(older.values(present=null()))
    if not epoch.decisions:
        return
    upsert(connection, OwnerRow, list(_owners(row["present"] or (), epoch)))
    rows = [
        {
            "epoch_id": epoch_id,
            "job_id": d.job_id,
            "at_s": epoch.started_s,
            "action": d.action.value,
            "cell": _json(d.cell),
            "node_names": _json(d.node_names),
            "why": clean(d.why),
            "reasons": _json(d.reasons),
            "relative_goodput": _number(d.relative_goodput),
            "alternatives": _json(d.alternatives),
            "worth": _json(d.worth) or None,
            "fairness": d.fairness if d.fairness is not None and math.isfinite(d.fairness) else None,
            "sharing": _json(d.sharing),
        }
        for d in epoch.decisions
    ]
    connection.execute(insert(connection, DecisionRow), rows)


def _owners(present: Iterable[Mapping[str, Any]], epoch: EpochRecord) -> Iterable[Row]:
    """Yield the owner rows of the jobs that something was decided about."""
    decided_ids = {d.job_id for d in epoch.decisions}
    for job in present:
        if job.get("job_id") in decided_ids and job.get("user"):
            account = job.get("account", "")
            yield {"job_id": job["job_id"], "user": job["user"], "account": account, "seen_s": epoch.started_s}


def _events(connection: Connection, items: Sequence[KeyedRow]) -> None:
    rows: list[Row] = []
    for row in items:
        assert isinstance(row.item, tuple)
        rows += [_event(row.write_key, seq, e) for seq, e in enumerate(row.item)]
    if rows:
        statement = insert(connection, EventRow)
        connection.execute(statement.on_conflict_do_nothing(index_elements=["write_key", "seq"]), rows)


def _event(write_key: str, seq: int, event: StoredEvent) -> Row:
    return {
        "write_key": write_key,
        "seq": seq,
        "job_id": event.job_id,
        "at_s": _finite(event.at_s, "at_s"),
        "state": clean(event.state),
        "event": clean(event.event),
        "detail": clean(event.detail),
    }


def _lifecycle(x: StoredLifecycle) -> Row:
    return {
        "job_id": x.job_id,
        "submit_s": _finite(x.submit_s, "submit_s"),
        "state": clean(x.state),
        "payload": _json(x.payload),
        "updated_s": _finite(x.updated_s, "updated_s"),
    }


def _profile(key: str, profile: Profile, updated_s: float) -> Row:
    return {
        "key": clean(key),
        "speed": _finite(profile.speed, "speed"),
        "memory": _finite(profile.memory, "memory"),
        "samples": profile.samples,
        "noise_scale": None if profile.noise_scale is None else _finite(profile.noise_scale, "noise_scale"),
        "resharding": profile.resharding,
        "accepts": None if profile.accepts == NOTHING_MORE else _json(profile.accepts),
        "model": _json(profile.model),
        "global_batch": profile.global_batch,
        "measured": _json(profile.measured) or None,
        "restarts": _json(profile.restarts) or None,
        "updated_s": _finite(updated_s, "updated_s"),
    }


def _report(x: StoredReport) -> Row:
    received_s = _finite(x.received_s, "received_s")
    return {"job_id": x.report.job_id, "payload": _json(x.report), "received_s": received_s}


def _node(x: StoredNode) -> Row:
    return {"name": clean(x.name), "payload": _json(x.payload), "updated_s": _finite(x.updated_s, "updated_s")}


def _notices(connection: Connection, notices: Iterable[Notice]) -> None:
    """Put notices into the outbox. One whose key is already there, sent or not, is left out."""
    rows = [
        {"key": clean(n.key), "job_id": n.job_id, "at_s": n.at_s, "payload": _json(n), "done": [], "attempts": 0, "next_s": n.at_s}
        for n in notices
    ]  # fmt: skip
    if rows:
        connection.execute(insert(connection, NoticeRow).on_conflict_do_nothing(index_elements=["key"]), rows)


def _write_paused(connection: Connection, changes: Sequence[tuple[int, bool, float]]) -> None:
    last = {job_id: (on, at_s) for job_id, on, at_s in changes}
    upsert(connection, JobFlagRow, [_flag(j, PAUSED, 0.0, at_s) for j, (on, at_s) in last.items() if on])
    for part in chunks([j for j, (on, _) in last.items() if not on], _IN_LIST):
        connection.execute(delete(JobFlagRow).where(JobFlagRow.flag == PAUSED, JobFlagRow.job_id.in_(part)))


def _no_directive(connection: Connection, changes: Sequence[tuple[int, float, float]]) -> None:
    upsert(connection, JobFlagRow, [_flag(j, NO_DIRECTIVE, submit_s, at_s) for j, submit_s, at_s in changes])


def _steering(job_id: int, steering: Steering, changed_s: float) -> Row:
    return {"job_id": job_id, "payload": _json(steering), "changed_s": _finite(changed_s, "changed_s")}


def _flag(job_id: int, flag: str, submit_s: float, at_s: float) -> Row:
    submit_s, at_s = _finite(submit_s, "submit_s"), _finite(at_s, "at_s")
    return {"job_id": job_id, "flag": flag, "submit_s": submit_s, "at_s": at_s}


def _json(value: object) -> Any:
    """Return `value` as it is stored. Raises RefusedError for what JSON can't hold."""
    try:
        return encode(value)
    except TypeError as error:
        raise RefusedError("store", str(error), "store records, containers, numbers and text") from None


def _finite(value: float, name: str) -> float:
    if not math.isfinite(value):
        raise RefusedError("store", f"{name} is {value}", "only finite numbers are stored")
    return float(value)


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)

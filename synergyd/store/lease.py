"""The rows of a lease: the holder and the stand-bys. Every function runs inside a transaction that has locked the leader's row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields

from sqlalchemy import Connection, delete, select, update
from sqlalchemy.engine import URL
from synergy_core.errors import UsageError

from synergyd.store.connect import show
from synergyd.store.tables import LeaderRow, StandbyRow
from synergyd.store.writes import insert, upsert


@dataclass(frozen=True, kw_only=True)
class LeaseRow:
    """The leader's row. `pid` is 0 when the lease is free."""

    holder: str = ""
    host: str = ""
    pid: int = 0
    term: int = 0
    beat: int = 0
    process: str = ""
    cluster: str = ""


_COLUMNS = tuple(f.name for f in fields(LeaseRow))


class UnchangedSince:
    """The time for which a value has not changed, by the watcher's own clock: no clock of another machine counts."""

    def __init__(self) -> None:
        self._value: object = None
        self._since_s: float | None = None

    def silent_s(self, value: object, now_s: float) -> float:
        """Return the seconds since `value` was first seen. `now_s` is a time after it was read."""
        if self._since_s is None or value != self._value:
            self._value, self._since_s = value, now_s
        return now_s - self._since_s


def lock_row(connection: Connection) -> LeaseRow:
    """Return the leader's row, locked: nobody else can read it for a change until this transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")  # a lease that is granted must outlive a crash
    statement = select(*(getattr(LeaderRow, n) for n in _COLUMNS)).where(LeaderRow.id == 1).with_for_update()
    row = connection.execute(statement).one_or_none()
    if row is None:
        # an empty one first: two daemons that find none must not both lead
        free = {"id": 1, "heartbeat_s": 0.0, **asdict(LeaseRow())}
        connection.execute(insert(connection, LeaderRow).values(free).on_conflict_do_nothing(index_elements=["id"]))
        row = connection.execute(statement).one()
    return LeaseRow(**row._asdict())


def write(connection: Connection, row: LeaseRow, heartbeat_s: float) -> None:
    upsert(connection, LeaderRow, [{"id": 1, "heartbeat_s": heartbeat_s, **asdict(row)}])


def owner(connection: Connection) -> str:
    """Return the cluster of the daemon that led last, or "" if none has led or it did not know its cluster."""
    return connection.execute(select(LeaderRow.cluster).where(LeaderRow.id == 1)).scalar() or ""


def demand_own(url: URL, owner: str, cluster: str) -> None:
    """Raise UsageError if `cluster` is not the `owner` of the database.

    Two clusters in one database would take each other's jobs for their own, and one daemon would stand by for the other.
    """
    if not owner or not cluster or owner == cluster:
        return
    what = f"it holds the jobs of the cluster {owner}, and this is {cluster}"
    apart = "name another file" if url.drivername == "sqlite" else "write ?schema={cluster} behind Database"
    to_do = f"after a rename: UPDATE leader SET cluster = '{cluster}'"  # noqa: S608  of letters, digits, _ and -
    raise UsageError(show(url), what, f"give each cluster its own ({apart}); {to_do}")


def read_acknowledged_term(connection: Connection, holder: str) -> int | None:
    """Return the term of the leader that knows of this stand-by, or None if it is not registered."""
    return connection.execute(select(StandbyRow.acknowledged).where(StandbyRow.holder == holder)).scalar()


def register(connection: Connection, lease: LeaseRow) -> None:
    """Register `lease` as a stand-by: write its row, or the next beat."""
    known_term = read_acknowledged_term(connection, lease.holder)
    row = {
        "holder": lease.holder,
        "host": lease.host,
        "pid": lease.pid,
        "beat": lease.beat,
        "acknowledged": known_term or 0,
    }
    upsert(connection, StandbyRow, [row])


def unregister(connection: Connection, holder: str) -> None:
    connection.execute(delete(StandbyRow).where(StandbyRow.holder == holder))


def acknowledge(connection: Connection, term: int, is_forgotten: Callable[[str, int], bool]) -> frozenset[str]:
    """Acknowledge all stand-bys in the leader's `term`, except those that are `is_forgotten(holder, beat)`, whose rows are deleted.

    Return the holders that stand by.
    """
    standbys = connection.execute(select(StandbyRow.holder, StandbyRow.beat, StandbyRow.acknowledged)).all()
    gone_holders = {holder for holder, beat, _ in standbys if is_forgotten(holder, beat)}
    for holder in gone_holders:
        unregister(connection, holder)
    if any(acknowledged_term != term for holder, _, acknowledged_term in standbys if holder not in gone_holders):
        connection.execute(update(StandbyRow).values(acknowledged=term))
    return frozenset(holder for holder, _, _ in standbys) - gone_holders

"""The rows of a lease: who holds it, who stands by. Every function runs inside a transaction that has locked the leader's row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields

from sqlalchemy import Connection, delete, select, update
from sqlalchemy.engine import URL

from synergyd.errors import UsageError
from synergyd.store.connect import show
from synergyd.store.tables import LeaderRow, StandbyRow
from synergyd.store.writes import insert, upsert


@dataclass(frozen=True, kw_only=True)
class Held:
    """The leader's row. `pid` is 0 when the lease is free."""

    holder: str = ""
    host: str = ""
    pid: int = 0
    term: int = 0
    beat: int = 0
    process: str = ""
    cluster: str = ""


_COLUMNS = tuple(f.name for f in fields(Held))


class Watch:
    """For how long a value has not changed, by the watcher's own clock: no clock of another machine counts."""

    def __init__(self) -> None:
        self._value: object = None
        self._since_s: float | None = None

    def silent_s(self, value: object, now_s: float) -> float:
        """Seconds since `value` was first seen. `now_s`: after it was read."""
        if self._since_s is None or value != self._value:
            self._value, self._since_s = value, now_s
        return now_s - self._since_s


def locked(connection: Connection) -> Held:
    """The row, which nobody else can read to change until this transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")  # a lease that is granted must outlive a crash
    statement = select(*(getattr(LeaderRow, n) for n in _COLUMNS)).where(LeaderRow.id == 1).with_for_update()
    row = connection.execute(statement).one_or_none()
    if row is None:
        # an empty one first: two daemons that find none must not both lead
        free = {"id": 1, "heartbeat_s": 0.0, **asdict(Held())}
        connection.execute(insert(connection, LeaderRow).values(free).on_conflict_do_nothing(index_elements=["id"]))
        row = connection.execute(statement).one()
    return Held(**row._asdict())


def write(connection: Connection, held: Held, heartbeat_s: float) -> None:
    upsert(connection, LeaderRow, [{"id": 1, "heartbeat_s": heartbeat_s, **asdict(held)}])


def owner(connection: Connection) -> str:
    """The cluster of the daemon that has led last; "" where none has, or one that did not know its cluster."""
    return connection.execute(select(LeaderRow.cluster).where(LeaderRow.id == 1)).scalar() or ""


def demand_own(url: URL, owner: str, cluster: str) -> None:
    """Raises UsageError where `cluster` is not the `owner` of the database. Two clusters in one would take each other's jobs for their
    own, and one daemon would stand by for the other."""
    if not owner or not cluster or owner == cluster:
        return
    what = f"it holds the jobs of the cluster {owner}, and this is {cluster}"
    apart = "name another file" if url.drivername == "sqlite" else "write ?schema={cluster} behind Database"
    renamed = f"after a rename: UPDATE leader SET cluster = '{cluster}'"  # noqa: S608  of letters, digits, _ and -
    raise UsageError(show(url), what, f"give each cluster its own ({apart}); {renamed}")


def acknowledged(connection: Connection, holder: str) -> int | None:
    """The term of the leader that knows of this stand-by; None where it is not registered."""
    return connection.execute(select(StandbyRow.acknowledged).where(StandbyRow.holder == holder)).scalar()


def register(connection: Connection, held: Held) -> None:
    """`held` stands by: makes its row, or beats."""
    known = acknowledged(connection, held.holder)
    row = {"holder": held.holder, "host": held.host, "pid": held.pid, "beat": held.beat, "acknowledged": known or 0}
    upsert(connection, StandbyRow, [row])


def unregister(connection: Connection, holder: str) -> None:
    connection.execute(delete(StandbyRow).where(StandbyRow.holder == holder))


def acknowledge(connection: Connection, term: int, forgotten: Callable[[str, int], bool]) -> frozenset[str]:
    """The leader of `term` takes note of all that stand by but for those that are `forgotten` (holder, beat), whose rows go.
    Returns who stands by."""
    found = connection.execute(select(StandbyRow.holder, StandbyRow.beat, StandbyRow.acknowledged)).all()
    gone = {holder for holder, beat, _ in found if forgotten(holder, beat)}
    for holder in gone:
        unregister(connection, holder)
    if any(known != term for holder, _, known in found if holder not in gone):
        connection.execute(update(StandbyRow).values(acknowledged=term))
    return frozenset(holder for holder, _, _ in found) - gone

"""The outbox of notices: what is to be sent, by which ways it has gone out, and when it is tried again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, or_, select, update

from synergyd.errors import UsageError
from synergyd.notice import Notice
from synergyd.store.tables import NoticeRow
from synergyd.wire.codec import decode

MOST_WAITING = 10_000  # notices that wait; beyond it the oldest are given up
FAR_S = 7200.0  # twice the longest time for which a try is put off


@dataclass(frozen=True, kw_only=True)
class WaitingNotice:
    """One that is due. `done`: the ways on which it has gone out; `attempts`: so far."""

    notice: Notice
    done: tuple[str, ...]
    attempts: int


def due(connection: Connection, now_s: float, limit: int) -> list[WaitingNotice]:
    """Those to try now, the least tried first: one that a receiver never takes holds up no other. Also those whose next try is
    further ahead than any is put off: the clock has been set back."""
    columns = NoticeRow.key, NoticeRow.payload, NoticeRow.done, NoticeRow.attempts
    order = NoticeRow.attempts, NoticeRow.at_s
    now = or_(NoticeRow.next_s <= now_s, NoticeRow.next_s > now_s + FAR_S)
    rows = connection.execute(select(*columns).where(now).order_by(*order).limit(limit))
    found = []
    for row in rows:
        try:
            notice = decode(Notice, row.payload, row.key)
        except UsageError:  # damaged: `bound` deletes it, and the others go on
            continue
        found.append(WaitingNotice(notice=notice, done=tuple(row.done), attempts=row.attempts))
    return found


def tried(connection: Connection, key: str, done: Iterable[str], attempts: int, next_s: float | None) -> None:
    """What became of a try; `next_s` None: nothing is left to do."""
    found = update(NoticeRow).where(NoticeRow.key == key)
    connection.execute(found.values(done=list(done), attempts=attempts, next_s=next_s))


def mailed(connection: Connection, job_id: int, since_s: float) -> int:
    """How many of a job's notices since then have gone out as mail."""
    rows = connection.execute(
        select(NoticeRow.done).where(NoticeRow.job_id == job_id, NoticeRow.at_s >= since_s)
    ).scalars()
    return sum("mail" in done for done in rows)


def bound(connection: Connection, older_than_s: float) -> int:
    """Deletes what is old, and what waits beyond MOST_WAITING; returns how many of those there were."""
    connection.execute(delete(NoticeRow).where(NoticeRow.at_s < older_than_s))
    waiting = connection.execute(select(func.count()).where(NoticeRow.next_s.is_not(None))).scalar_one()
    if waiting <= MOST_WAITING:
        return 0
    oldest = (
        select(NoticeRow.key)
        .where(NoticeRow.next_s.is_not(None))
        .order_by(NoticeRow.at_s)
        .limit(waiting - MOST_WAITING)
    )
    connection.execute(delete(NoticeRow).where(NoticeRow.key.in_(oldest)))
    return int(waiting - MOST_WAITING)

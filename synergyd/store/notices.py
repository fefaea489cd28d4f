"""The outbox of notices: what is to be sent, the ways by which it has gone out, and when it is tried again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, or_, select, update
from synergy_core.errors import UsageError
from synergy_core.notice import Notice
from synergy_core.wire.codec import decode

from synergyd.store.tables import NoticeRow

MOST_WAITING = 10_000  # notices that wait; beyond it the oldest are given up
FAR_S = 7200.0  # twice the longest time for which a try is put off


@dataclass(frozen=True, kw_only=True)
class WaitingNotice:
    """A notice that is due. `done_ways`: the ways on which it has gone out; `attempts`: the tries so far."""

    notice: Notice
    done_ways: tuple[str, ...]
    attempts: int


def read_due_notices(connection: Connection, now_s: float, limit: int) -> list[WaitingNotice]:
    """Return at most `limit` notices to try now, the least tried first.

    So one that a receiver never takes holds up no other. Include those whose next try is further ahead than any is put off: the
    clock has been set back.
    """
    columns = NoticeRow.key, NoticeRow.payload, NoticeRow.done, NoticeRow.attempts
    order = NoticeRow.attempts, NoticeRow.at_s
    now = or_(NoticeRow.next_s <= now_s, NoticeRow.next_s > now_s + FAR_S)
    rows = connection.execute(select(*columns).where(now).order_by(*order).limit(limit))
    notices = []
    for row in rows:
        try:
            notice = decode(Notice, row.payload, row.key)
        except UsageError:  # damaged: `prune` deletes it, and the others go on
            continue
        notices.append(WaitingNotice(notice=notice, done_ways=tuple(row.done), attempts=row.attempts))
    return notices


def record_attempt(connection: Connection, key: str, done: Iterable[str], attempts: int, next_s: float | None) -> None:
    """Store the result of a try. If `next_s` is None, nothing is left to do."""
    statement = update(NoticeRow).where(NoticeRow.key == key)
    connection.execute(statement.values(done=list(done), attempts=attempts, next_s=next_s))


def count_mailed(connection: Connection, job_id: int, since_s: float) -> int:
    """Return how many of a job's notices since `since_s` have gone out as mail."""
    rows = connection.execute(
        select(NoticeRow.done).where(NoticeRow.job_id == job_id, NoticeRow.at_s >= since_s)
    ).scalars()
    return sum("mail" in done for done in rows)


def prune(connection: Connection, older_than_s: float) -> int:
    """Delete old notices, and the oldest that wait beyond MOST_WAITING. Return how many of the latter there were."""
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

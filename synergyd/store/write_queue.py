"""The queue of writes while the database is away: history in order, bounded, and the newest of each state.

Not for several threads; synergyd/store/buffer.py guards it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from synergyd.store.records import Changes, EpochRecord, KeyedRow, StoredEvent
from synergyd.store.store import new_key

TRANSACTION_ROWS = 5_000  # history rows written at a time

StateKey = tuple[str, object]


@dataclass(frozen=True)
class DropCounts:
    """The rows that were given up (an epoch counts one for itself and one for each decision)."""

    epochs: int = 0  # no room: epochs go first, oldest first
    events: int = 0  # no room, and no epochs left to drop
    refused: int = 0  # the database would not take the row
    fenced: int = 0  # another daemon leads by now


@dataclass(frozen=True)
class WriteBatch:
    """The content of one transaction. `state` changes carry the leadership term in which each was put."""

    history: tuple[KeyedRow, ...]
    state: tuple[tuple[StateKey, Changes], ...]

    def transactions(self) -> list[Changes]:
        """Return the batch in as few transactions as there are terms: normally one."""
        terms = list(dict.fromkeys(change.term for _, change in self.state)) or [None]
        changes = [merge_changes((c for _, c in self.state if c.term == term), term) for term in terms]
        return [replace(changes[0], history=self.history), *changes[1:]]

    def singly(self) -> Iterable[WriteBatch]:
        """Yield the batch one item at a time."""
        yield from (WriteBatch((row,), ()) for row in self.history)
        yield from (WriteBatch((), (entry,)) for entry in self.state)


def merge_changes(changes: Iterable[Changes], term: int | None) -> Changes:
    """Return many small changes as one, with `term`."""
    names = [f.name for f in fields(Changes) if f.name != "term"]
    rows: dict[str, list[object]] = {name: [] for name in names}
    for change in changes:
        for name in names:
            rows[name] += getattr(change, name)
    return Changes(term=term, **{name: tuple(values) for name, values in rows.items()})  # type: ignore[arg-type]


def size(item: EpochRecord | tuple[StoredEvent, ...]) -> int:
    """Return the number of rows."""
    return 1 + len(item.decisions) if isinstance(item, EpochRecord) else len(item)


class WriteQueue:
    """The queue of writes. `room` bounds the rows of history; state is bounded by the number of jobs."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._history: deque[KeyedRow] = deque()
        self._rows = 0
        self._state: dict[StateKey, Changes] = {}
        self.drop_counts = DropCounts()

    def __len__(self) -> int:
        return self._rows + len(self._state)

    def add(self, item: EpochRecord | tuple[StoredEvent, ...]) -> None:
        self._history.append(KeyedRow(new_key(), item))
        self._rows += size(item)
        if self._rows > self._room:
            self._drop(EpochRecord)
        if self._rows > self._room:
            self._drop(tuple)

    def _drop(self, kind: type) -> None:
        """Drop the oldest items of this kind until the rest fits."""
        rows_to_keep: deque[KeyedRow] = deque()
        count = 0
        for row in self._history:
            if self._rows - count > self._room and isinstance(row.item, kind):
                count += size(row.item)
            else:
                rows_to_keep.append(row)
        self._history, self._rows = rows_to_keep, self._rows - count
        if kind is EpochRecord:
            self.drop_counts = replace(self.drop_counts, epochs=self.drop_counts.epochs + count)
        else:
            self.drop_counts = replace(self.drop_counts, events=self.drop_counts.events + count)

    def put(self, key: StateKey, change: Changes) -> None:
        self._state[key] = change

    def state(self) -> list[Changes]:
        return list(self._state.values())

    def take(self) -> WriteBatch | None:
        """Return the content of the next transaction, which stays here until `remove_written`, or None if nothing waits.

        State goes with the last of the history, so that it never gets ahead of the story that led there.
        """
        if not self._history and not self._state:
            return None
        history: list[KeyedRow] = []
        rows = 0
        for row in self._history:
            if history and rows + size(row.item) > TRANSACTION_ROWS:
                break
            history.append(row)
            rows += size(row.item)
        whole = len(history) == len(self._history)
        return WriteBatch(tuple(history), tuple(self._state.items()) if whole else ())

    def remove_written(self, batch: WriteBatch) -> None:
        """Remove what `batch` holds. A state that was put anew meanwhile stays."""
        keys = {row.write_key for row in batch.history}
        if keys:
            self._history = deque(k for k in self._history if k.write_key not in keys)
            self._rows = sum(size(k.item) for k in self._history)
        for key, change in batch.state:
            if self._state.get(key) is change:
                del self._state[key]

    def count(self, *, refused: int = 0, fenced: int = 0) -> None:
        was = self.drop_counts
        self.drop_counts = replace(was, refused=was.refused + refused, fenced=was.fenced + fenced)


def batch_rows(batch: WriteBatch) -> int:
    return sum(size(k.item) for k in batch.history) + len(batch.state)

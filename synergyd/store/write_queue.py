"""What waits to be written while the database is away: history in order, bounded, and the newest of each state.

Not for several threads; synergyd/store/buffer.py guards it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from synergyd.store.records import Changes, EpochRecord, Keyed, StoredEvent
from synergyd.store.store import new_key

TRANSACTION_ROWS = 5_000  # history rows written at a time

StateKey = tuple[str, object]


@dataclass(frozen=True)
class Dropped:
    """What was given up, in rows (an epoch counts one for itself and one for each decision)."""

    epochs: int = 0  # no room: epochs go first, oldest first
    events: int = 0  # no room, and no epochs left to drop
    refused: int = 0  # the database would not take the row
    fenced: int = 0  # another daemon leads by now


@dataclass(frozen=True)
class WriteBatch:
    """One transaction's worth. `state` changes carry the leadership term in which each was put."""

    history: tuple[Keyed, ...]
    state: tuple[tuple[StateKey, Changes], ...]

    def transactions(self) -> list[Changes]:
        """The batch in as few transactions as there are terms: normally one."""
        terms = list(dict.fromkeys(change.term for _, change in self.state)) or [None]
        made = [merged((c for _, c in self.state if c.term == term), term) for term in terms]
        return [replace(made[0], history=self.history), *made[1:]]

    def singly(self) -> Iterable[WriteBatch]:
        """The same, one item at a time."""
        yield from (WriteBatch((keyed,), ()) for keyed in self.history)
        yield from (WriteBatch((), (entry,)) for entry in self.state)


def merged(changes: Iterable[Changes], term: int | None) -> Changes:
    """Many small changes as one."""
    names = [f.name for f in fields(Changes) if f.name != "term"]
    rows: dict[str, list[object]] = {name: [] for name in names}
    for change in changes:
        for name in names:
            rows[name] += getattr(change, name)
    return Changes(term=term, **{name: tuple(found) for name, found in rows.items()})  # type: ignore[arg-type]


def size(item: EpochRecord | tuple[StoredEvent, ...]) -> int:
    """Rows."""
    return 1 + len(item.decisions) if isinstance(item, EpochRecord) else len(item)


class WriteQueue:
    """`room` bounds the rows of history; state is bounded by the number of jobs."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._history: deque[Keyed] = deque()
        self._rows = 0
        self._state: dict[StateKey, Changes] = {}
        self.dropped = Dropped()

    def __len__(self) -> int:
        return self._rows + len(self._state)

    def add(self, item: EpochRecord | tuple[StoredEvent, ...]) -> None:
        self._history.append(Keyed(new_key(), item))
        self._rows += size(item)
        if self._rows > self._room:
            self._drop(EpochRecord)
        if self._rows > self._room:
            self._drop(tuple)

    def _drop(self, kind: type) -> None:
        """Drops the oldest items of this kind until the rest fits."""
        kept: deque[Keyed] = deque()
        lost = 0
        for keyed in self._history:
            if self._rows - lost > self._room and isinstance(keyed.item, kind):
                lost += size(keyed.item)
            else:
                kept.append(keyed)
        self._history, self._rows = kept, self._rows - lost
        if kind is EpochRecord:
            self.dropped = replace(self.dropped, epochs=self.dropped.epochs + lost)
        else:
            self.dropped = replace(self.dropped, events=self.dropped.events + lost)

    def put(self, key: StateKey, change: Changes) -> None:
        self._state[key] = change

    def state(self) -> list[Changes]:
        return list(self._state.values())

    def take(self) -> WriteBatch | None:
        """The next transaction's worth, which stays here until `written`; None if nothing waits.

        State goes with the last of the history: what it says never gets ahead of the story that led there.
        """
        if not self._history and not self._state:
            return None
        history: list[Keyed] = []
        rows = 0
        for keyed in self._history:
            if history and rows + size(keyed.item) > TRANSACTION_ROWS:
                break
            history.append(keyed)
            rows += size(keyed.item)
        whole = len(history) == len(self._history)
        return WriteBatch(tuple(history), tuple(self._state.items()) if whole else ())

    def written(self, batch: WriteBatch) -> None:
        """Takes out what `batch` holds; a state that was put anew meanwhile stays."""
        keys = {keyed.write_key for keyed in batch.history}
        if keys:
            self._history = deque(k for k in self._history if k.write_key not in keys)
            self._rows = sum(size(k.item) for k in self._history)
        for key, change in batch.state:
            if self._state.get(key) is change:
                del self._state[key]

    def count(self, *, refused: int = 0, fenced: int = 0) -> None:
        was = self.dropped
        self.dropped = replace(was, refused=was.refused + refused, fenced=was.fenced + fenced)


def batch_rows(batch: WriteBatch) -> int:
    return sum(size(k.item) for k in batch.history) + len(batch.state)

"""The daemon's view of the store, in which a database that is away for a while stops nothing.

Reads come from memory, which `refresh` fills once an epoch. Writes go into a bounded queue, which `flush` empties. Both
return at once while the back-off runs. History (epochs, events) is written in order, each item once. For a lifecycle,
profile, report or flag only the newest value waits, so that an outage of any length needs no more room than there are
jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from synergy_core.errors import SynergyError, UnavailableError
from synergy_core.notice import Notice
from synergy_core.records import Profile
from synergy_core.would_have import WouldHave

from synergyd.store.records import (
    Changes,
    EpochRecord,
    RefusedError,
    StoredEvent,
    StoredLifecycle,
    StoredNode,
    StoredReport,
    StoredState,
)
from synergyd.store.store import Store
from synergyd.store.write_queue import DropCounts, StateKey, WriteBatch, WriteQueue, batch_rows

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0


class BufferedStore:
    """A wrapper around `open_store` (a callable that returns a Store or raises). May be used from several threads.

    `clock` counts seconds, monotonic. `term` gives the leadership term of this daemon (synergyd/store/leader.py),
    None to go without. `room` bounds the rows of history that wait. A UsageError of the first opening (wrong URL,
    schema missing) is raised from `refresh` or `flush`; once the store was open, any fault is an outage,
    which `is_healthy` and `problem` tell.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        clock: Callable[[], float],
        *,
        term: Callable[[], int | None] = lambda: None,
        room: int = 50_000,
    ) -> None:
        self._open = open_store
        self._clock = clock
        self._term = term
        self._io = threading.Lock()  # one thread at a time talks to the database
        self._store: Store | None = None
        self._was_open = False
        self._lock = threading.Lock()  # guards the queue and the memory; never held while talking to the database
        self._room = room
        self._waiting = WriteQueue(room)
        self._memory = _Memory(StoredState())
        self._loaded = False
        self._healthy = False
        self._problem = ""
        self._failures = 0
        self._written_s = clock()
        self._outages = 0
        self._fenced_term = -1
        self._retry_at = float("-inf")

    @property
    def is_healthy(self) -> bool:
        """Return whether the last exchange with the database succeeded."""
        return self._healthy

    @property
    def is_loaded(self) -> bool:
        """Return whether `state` was read from the database at least once. Before that it holds only what was put since the start."""
        return self._loaded

    @property
    def lag(self) -> int:
        """Return the number of rows that wait to be written."""
        with self._lock:
            return len(self._waiting)

    @property
    def lag_s(self) -> float:
        """Return the age in seconds of the oldest unsaved row, or 0 if there is none."""
        return max(0.0, self._clock() - self._written_s) if self.lag else 0.0

    @property
    def problem(self) -> str:
        """Return what went wrong last, in one line, or "" while all is well."""
        return self._problem

    @property
    def outages(self) -> int:
        """Return how often the database went away or was found damaged since the start."""
        return self._outages

    @property
    def fenced_term(self) -> int:
        """Return the latest term in which the database refused writes because a later term had begun, or -1 if there is none."""
        return self._fenced_term

    @property
    def drop_counts(self) -> DropCounts:
        """Return what was given up since the start."""
        return self._waiting.drop_counts

    @property
    def retry_in_s(self) -> float:
        """Return the seconds until the database is tried again, or 0 if that is now."""
        return max(0.0, self._retry_at - self._clock())

    @property
    def state(self) -> StoredState:
        """Return a copy of what the daemon works from: the last read with everything that was put since. Take it once an epoch."""
        with self._lock:
            return self._memory.copy()

    # Writes go into the queue: they never fail and never wait for the database

    def save_epoch(self, epoch: EpochRecord) -> None:
        with self._lock:
            self._waiting.add(epoch)

    def append_events(self, events: Sequence[StoredEvent]) -> None:
        if events:
            with self._lock:
                self._waiting.add(tuple(events))

    def put_lifecycles(self, lifecycles: Iterable[StoredLifecycle]) -> None:
        for x in lifecycles:
            self._put(("lifecycle", x.job_id), Changes(lifecycles=(x,), term=self._term()))

    def delete_lifecycles(self, job_ids: Iterable[int]) -> None:
        for job_id in job_ids:
            self._put(("lifecycle", job_id), Changes(gone=(job_id,), term=self._term()))

    def put_profiles(self, profiles: Mapping[str, Profile], updated_s: float) -> None:
        for key, profile in profiles.items():
            self._put(("profile", key), Changes(profiles=((key, profile, updated_s),), term=self._term()))

    def put_reports(self, reports: Iterable[StoredReport]) -> None:
        for x in reports:
            self._put(("report", x.report.job_id), Changes(reports=(x,), term=self._term()))

    def put_nodes(self, nodes: Iterable[StoredNode]) -> None:
        for x in nodes:
            self._put(("node", x.name), Changes(nodes=(x,), term=self._term()))

    def put_would_have(self, rows: Iterable[WouldHave]) -> None:
        for x in rows:
            self._put(("would_have", (x.job_id, x.submit_s)), Changes(would_have=(x,)))

    def put_notices(self, notices: Iterable[Notice]) -> None:
        for x in notices:
            if self.lag < self._room:  # while the database is away; what happened is in the job's story all the same
                self._put(("notice", x.key), Changes(notices=(x,)))

    def set_paused(self, job_id: int, paused: bool, at_s: float) -> None:
        self._put(("paused", job_id), Changes(paused=((job_id, paused, at_s),)))

    def add_no_directive(self, submissions: Iterable[tuple[int, float]], at_s: float) -> None:
        for job_id, submit_s in submissions:
            self._put(("no_directive", (job_id, submit_s)), Changes(no_directive=((job_id, submit_s, at_s),)))

    def _put(self, key: StateKey, change: Changes) -> None:
        with self._lock:
            self._waiting.put(key, change)
            self._memory.take(change)

    # Talks with the database

    def refresh(self) -> bool:
        """Write what waits, then read lifecycles, profiles, flags, reports, steering and nodes (six statements).

        Return False and leave everything as it was if the database is away. Raises UsageError only at the first opening.
        """
        with self._io:
            store = self._flush_if_due()
            if store is None:
                return False
            try:
                read = store.read_state()
            except SynergyError as error:
                self._note_failure(error)
                return False
            with self._lock:
                self._memory = _Memory(read)
                for change in self._waiting.state():  # put while we were reading
                    self._memory.take(change)
            self._loaded = True
            if read.unreadable:
                self._problem = read.unreadable[0]
            return True

    def flush(self) -> bool:
        """Write what waits. Return False if some of it still waits, because the database is away or the back-off runs."""
        with self._io:
            return self._flush_if_due() is not None

    def would_have(self, since_s: float) -> list[WouldHave]:
        """Call `Store.would_have`. Return nothing while the database is away."""
        with self._io:
            store = self._flush_if_due()
            try:
                return store.would_have(since_s) if store is not None else []
            except SynergyError as error:
                self._note_failure(error)
                return []

    def prune(self, older_than_s: float) -> int:
        """Call `Store.prune`. Return 0 while the database is away."""
        with self._io:
            store = self._flush_if_due()
            if store is None:
                return 0
            try:
                return store.prune(older_than_s)
            except SynergyError as error:
                self._note_failure(error)
                return 0

    def close(self) -> bool:
        """Write what waits, whatever the back-off says, and close the store. Return False if something could not be written."""
        with self._io:
            self._retry_at = float("-inf")
            try:
                is_empty = not len(self._waiting) or self._flush_if_due() is not None
            except SynergyError:
                is_empty = False
            if self._store is not None:
                self._store.close()
                self._store = None
            return is_empty

    def _flush_if_due(self) -> Store | None:
        """Return the open store once nothing waits any more, or None."""
        if self._clock() < self._retry_at:
            return None
        refusal = ""
        try:
            if self._store is None:
                self._store = self._open()
                self._was_open = True
            while batch := self._take():
                refusal = self._write(self._store, batch) or refusal
        except SynergyError as error:
            self._note_failure(error)
            if not self._was_open and not isinstance(error, UnavailableError):
                raise
            return None
        self._healthy, self._failures, self._problem = True, 0, refusal
        self._written_s = self._clock()
        return self._store

    def _note_failure(self, error: SynergyError) -> None:
        wait = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self._failures, 16))
        self._healthy, self._problem = False, str(error)
        self._outages += self._failures == 0
        self._failures += 1
        self._retry_at = self._clock() + wait
        if self._store is not None and (not isinstance(error, UnavailableError) or self._failures > 1):
            # the file or schema was removed under us, or a session keeps an old setting: the next opening looks anew
            self._store.close()
            self._store = None

    def _take(self) -> WriteBatch | None:
        with self._lock:
            return self._waiting.take()

    def _write(self, store: Store, batch: WriteBatch) -> str:
        """Write one batch, item by item if the database refuses it whole. Return the last refusal ("" if none)."""
        refusal = ""
        try:
            self._apply(store, batch)
        except RefusedError:
            for item in batch.singly():
                try:
                    self._apply(store, item)
                except RefusedError as error:
                    refusal = str(error)
                    with self._lock:
                        self._waiting.count(refused=batch_rows(item))
                        self._waiting.remove_written(item)
        return refusal

    def _apply(self, store: Store, batch: WriteBatch) -> None:
        fenced_count = 0
        for changes in batch.transactions():
            refused_count = store.apply(changes)
            if refused_count and changes.term is not None:
                self._fenced_term = max(self._fenced_term, changes.term)
            fenced_count += refused_count
        with self._lock:
            self._waiting.count(fenced=fenced_count)
            self._waiting.remove_written(batch)


class _Memory:
    """The data as last read, with every change since."""

    def __init__(self, read: StoredState) -> None:
        self._lifecycles = dict(read.lifecycles)
        self._profiles = dict(read.profiles)
        self._paused = set(read.paused)
        self._no_directive = set(read.no_directive)
        self._reports = dict(read.reports)
        self._nodes = dict(read.nodes)
        self._unreadable = read.unreadable
        self._steering = dict(read.steering)

    def take(self, change: Changes) -> None:
        for x in change.lifecycles:
            self._lifecycles[x.job_id] = x
        for job_id in change.gone:
            for by_job in (self._lifecycles, self._steering, self._reports):
                by_job.pop(job_id, None)
            self._profiles.pop(f"job:{job_id}", None)
        for key, profile, _ in change.profiles:
            self._profiles[key] = profile
        for report in change.reports:
            self._reports[report.report.job_id] = report
        for node in change.nodes:
            self._nodes[node.name] = node
        for job_id, on, _ in change.paused:
            (self._paused.add if on else self._paused.discard)(job_id)
        for job_id, submit_s, _ in change.no_directive:
            self._no_directive.add((job_id, submit_s))

    def copy(self) -> StoredState:
        return StoredState(
            dict(self._lifecycles),
            dict(self._profiles),
            frozenset(self._paused),
            frozenset(self._no_directive),
            dict(self._reports),
            dict(self._nodes),
            self._unreadable,
            dict(self._steering),
        )

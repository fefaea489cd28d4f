"""The store: explicit methods over one database, each a transaction of its own.

Every method raises UnavailableError while the database is away, UsageError if its set-up is wrong (schema, rights), and
RefusedError if it will not take this very row. The daemon wraps it in synergyd.store.buffer.BufferedStore.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, delete, exists, func, or_, select
from sqlalchemy.engine import URL
from synergy_core.notice import Notice
from synergy_core.records import Profile
from synergy_core.steering import Steering
from synergy_core.usage import Usage
from synergy_core.would_have import WouldHave

from synergyd.store import lease, notices, reads, schema, usage, writes
from synergyd.store.connect import make_engine, parse_url, plain_errors, show, sqlite_path
from synergyd.store.notices import WaitingNotice
from synergyd.store.records import (
    Changes,
    EpochRecord,
    KeyedRow,
    LeaderRecord,
    Recording,
    StoredDecision,
    StoredEvent,
    StoredExpected,
    StoredLifecycle,
    StoredNode,
    StoredReport,
    StoredState,
)
from synergyd.store.tables import (
    EpochRow,
    EventRow,
    ExpectedRow,
    JobFlagRow,
    LifecycleRow,
    NodeTable,
    OwnerRow,
    ProfileRow,
    ReportTable,
    SteeringRow,
    UsageRow,
    WouldHaveRow,
)

_PRUNED = ("job:", "like:", "kernels:", "failed:", "length:", "resizes:")  # kinds of profiles that age
_PRUNE_EPOCHS = 200  # a transaction: readers of SQLite wait for no longer than that takes


def open_store(url: str, *, create: bool = False, cluster: str = "") -> Store:
    """Open the Store on the database at `url`. Check its schema and, if `cluster` is named, that no other cluster owns the database.

    With `create`, a SQLite database that is missing or empty gets its schema here; one that is behind does not.
    PostgreSQL's comes from `synergyctl db upgrade` alone. Raises UsageError (URL, driver, folder, schema missing or
    behind, another cluster's) or UnavailableError (can't be reached).
    """
    plain_url = parse_url(url)
    is_sqlite = plain_url.drivername == "sqlite"
    if create and is_sqlite and sqlite_path(plain_url) is not None and schema.revision(url) is None:
        schema.upgrade(url)
    engine = make_engine(plain_url)
    try:
        with plain_errors(plain_url):
            if create and is_sqlite and sqlite_path(plain_url) is None:
                with engine.execution_options(writes=True).begin() as connection:
                    schema.upgrade_on(connection, show(plain_url))
            with engine.connect() as connection:
                schema.check(connection, show(plain_url))
                if cluster:
                    lease.demand_own(plain_url, lease.owner(connection), cluster)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine, plain_url)


class Store:
    """The store on one database. Open it with `open_store`; close it with `close` or a `with` block. May be used from several threads."""

    def __init__(self, engine: Engine, url: URL) -> None:
        self._engine = engine
        self._writer = engine.execution_options(writes=True)
        self._url = url

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._engine.dispose()

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def where(self) -> str:
        """Return the database for messages, without user and password."""
        return show(self._url)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with plain_errors(self._url), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with plain_errors(self._url), self._writer.begin() as connection:
            yield connection

    # Whole epochs

    def apply(self, changes: Changes) -> int:
        """Write `changes` in one transaction. Return the number of rows of state that were left out because somebody else leads.

        History under a write key that is already there is not written again, so that a transaction whose end was not
        heard can be tried again. At most 12 statements plus 3 an epoch, however many jobs (deletes: one per 500 jobs).
        """
        with self._writing() as connection:
            return writes.apply(connection, changes)

    def read_state(self) -> StoredState:
        """Return everything that an epoch starts from, in six statements."""
        with self._reading() as connection:
            return reads.read_state(connection)

    # Epochs and decisions

    def save_epoch(self, epoch: EpochRecord, write_key: str = "") -> None:
        """Add an epoch with its decisions. A second call with the same `write_key` does nothing."""
        self.apply(Changes(history=(KeyedRow(write_key or new_key(), epoch),)))

    def latest_epoch(self) -> EpochRecord | None:
        """Return the epoch that started last, its decisions by job id."""
        with self._reading() as connection:
            return reads.latest_epoch(connection)

    def epochs_since(self, after_id: int, since_s: float) -> list[tuple[int, float, dict[str, Any]]]:
        """Return (id, start, summary) of the epochs after `after_id` and since `since_s`, oldest first."""
        with self._reading() as connection:
            return reads.epochs_since(connection, after_id, since_s)

    def last_decision(self, job_id: int) -> StoredDecision | None:
        return next(iter(self.decisions_of(job_id, 1)), None)

    def decisions_of(self, job_id: int, limit: int = 20) -> list[StoredDecision]:
        """Return the job's last `limit` decisions, newest first."""
        with self._reading() as connection:
            return reads.decisions_of(connection, job_id, limit)

    # The story of a job

    def append_events(self, events: Sequence[StoredEvent], write_key: str = "") -> None:
        """Add events in order. A second call with the same `write_key` does nothing."""
        self.apply(Changes(history=(KeyedRow(write_key or new_key(), tuple(events)),)))

    def find_job_id(self, name: str, *, beginning: bool = False) -> int | None:
        """Return the id of the job that Slurm gave this name last, or None if there was none. A scan of all stories."""
        with self._reading() as connection:
            return reads.find_job_id(connection, name, beginning=beginning)

    def story(self, job_id: int) -> list[StoredEvent]:
        """Return the job's events in the order in which they happened."""
        with self._reading() as connection:
            return reads.story(connection, job_id)

    def recording(self) -> Recording:
        """Return the past of the whole queue, in eight statements however many jobs."""
        with self._reading() as connection:
            return reads.recording(connection)

    def owner(self, job_id: int) -> tuple[str, str] | None:
        """Return (user, account) of a job that something was decided about, even after it is gone."""
        with self._reading() as connection:
            return reads.owner(connection, job_id)

    def version(self) -> tuple[object, ...]:
        """Return a value that changes whenever the output of `synergyctl status` does."""
        with self._reading() as connection:
            return reads.version(connection)

    # Lifecycles

    def put_lifecycles(self, lifecycles: Iterable[StoredLifecycle]) -> None:
        self.apply(Changes(lifecycles=tuple(lifecycles)))

    def lifecycles(self) -> dict[int, StoredLifecycle]:
        """Return the lifecycles by job id."""
        with self._reading() as connection:
            return reads.lifecycles(connection)

    def lifecycle(self, job_id: int) -> StoredLifecycle | None:
        with self._reading() as connection:
            return reads.lifecycle(connection, job_id)

    def delete_lifecycles(self, job_ids: Iterable[int]) -> None:
        self.apply(Changes(gone=tuple(job_ids)))

    # Profiles

    def put_profiles(self, profiles: Mapping[str, Profile], updated_s: float) -> None:
        """Store profiles under keys such as `job:123` or `model:gpt-mini/a100`."""
        self.apply(Changes(profiles=tuple((k, p, updated_s) for k, p in profiles.items())))

    def profiles(self) -> dict[str, Profile]:
        """Return the profiles by key."""
        with self._reading() as connection:
            return reads.profiles(connection)

    def profile(self, key: str) -> Profile | None:
        with self._reading() as connection:
            return reads.profile(connection, key)

    # Facts about a job beyond Slurm's

    def set_paused(self, job_id: int, paused: bool, at_s: float) -> None:
        self.apply(Changes(paused=((job_id, paused, at_s),)))

    def set_steering(self, job_id: int, steering: Steering, at_s: float) -> None:
        self.apply(Changes(steering=((job_id, steering, at_s),)))

    def steering(self, job_id: int) -> Steering | None:
        """Return what the job's owner has set, or None for nothing."""
        with self._reading() as connection:
            return reads.steering(connection, job_id)

    def paused_jobs(self) -> frozenset[int]:
        """Return the ids of paused jobs."""
        with self._reading() as connection:
            return frozenset(job_id for job_id, _ in reads.flags(connection, writes.PAUSED))

    def add_no_directive(self, submissions: Iterable[tuple[int, float]], at_s: float) -> None:
        """Remember that the script of each (job id, submit time) was read and holds no directive."""
        self.apply(Changes(no_directive=tuple((job_id, submit_s, at_s) for job_id, submit_s in submissions)))

    def no_directive(self) -> frozenset[tuple[int, float]]:
        """Return the (job id, submit time) of scripts that were read and hold no directive."""
        with self._reading() as connection:
            return frozenset(reads.flags(connection, writes.NO_DIRECTIVE))

    def put_reports(self, reports: Iterable[StoredReport]) -> None:
        self.apply(Changes(reports=tuple(reports)))

    def report(self, job_id: int) -> StoredReport | None:
        """Return the latest report of the job."""
        with self._reading() as connection:
            return reads.report(connection, job_id)

    def reports(self) -> dict[int, StoredReport]:
        """Return the latest reports by job id."""
        with self._reading() as connection:
            return reads.reports(connection)

    def put_nodes(self, nodes: Iterable[StoredNode]) -> None:
        self.apply(Changes(nodes=tuple(nodes)))

    def nodes(self) -> dict[str, StoredNode]:
        """Return what is remembered of bad nodes, by name."""
        with self._reading() as connection:
            return reads.nodes(connection)

    # The account of a dry run

    def put_would_have(self, rows: Iterable[WouldHave]) -> None:
        self.apply(Changes(would_have=tuple(rows)))

    def would_have(self, since_s: float) -> list[WouldHave]:
        """Return the accounts of jobs that were seen in a dry run at `since_s` or later, by job id."""
        with self._reading() as connection:
            return reads.would_have(connection, since_s)

    # The use that jobs made of their GPUs, and notices

    def put_usage(self, parts: Iterable[Usage], term: int | None = None) -> bool:
        """Store parts of usage. Return False if a leader after `term` writes them."""
        with self._writing() as connection:
            return usage.put(connection, parts, term)

    def open_usage(self) -> list[Usage]:
        with self._reading() as connection:
            return usage.open_parts(connection)

    def usage_seen_s(self) -> float | None:
        """Return the time until which GPU hours have been kept, or None if they never were."""
        with self._reading() as connection:
            return connection.execute(select(func.max(UsageRow.to_s))).scalar()

    def usage_of(self, job_ids: Sequence[int], from_s: float = 0.0) -> list[Usage]:
        """Return the usage of these jobs that ends at `from_s` or later."""
        with self._reading() as connection:
            return usage.of_jobs(connection, job_ids, from_s)

    def usage_between(self, from_s: float, to_s: float, user: str = "", account: str = "") -> Iterator[Usage]:
        """Yield every usage that touches the span, whole, of `user` and `account` if they are named.

        Rows are read as they are asked for.
        """
        with self._reading() as connection:
            yield from usage.read_between(connection, from_s, to_s, user, account)

    def prune_usage(self, older_than_s: float) -> int:
        with self._writing() as connection:
            return connection.execute(delete(UsageRow).where(UsageRow.to_s < older_than_s)).rowcount

    def put_expected(self, made_s: float, jobs: Sequence[object], errors: Mapping[str, object]) -> None:
        """Store the forecast of the queue in the place of the last one. `jobs`: encoded."""
        with self._writing() as connection:
            writes.upsert(connection, ExpectedRow, [{"id": 1, "made_s": made_s, "jobs": jobs, "errors": errors}])

    def expected(self) -> StoredExpected | None:
        """Return the last forecast of the queue."""
        with self._reading() as connection:
            return reads.expected(connection)

    def put_notices(self, notices: Iterable[Notice]) -> None:
        self.apply(Changes(notices=tuple(notices)))

    def due_notices(self, now_s: float, limit: int) -> list[WaitingNotice]:
        """Return the notices that are due, the least tried first, then the oldest."""
        with self._reading() as connection:
            return notices.read_due_notices(connection, now_s, limit)

    def record_notice_attempt(self, key: str, done: Iterable[str], attempts: int, next_s: float | None) -> None:
        """Store the result of a try of a notice. If `next_s` is None, nothing is left to do for it."""
        with self._writing() as connection:
            notices.record_attempt(connection, key, done, attempts, next_s)

    def count_mailed(self, job_id: int, since_s: float) -> int:
        """Return how many notices of the job since `since_s` have gone out as mail."""
        with self._reading() as connection:
            return notices.count_mailed(connection, job_id, since_s)

    def prune_notices(self, older_than_s: float) -> int:
        """Delete the notices that are done and old. Return how many others had to be given up."""
        with self._writing() as connection:
            return notices.prune(connection, older_than_s)

    def leader(self) -> LeaderRecord | None:
        """Return the daemon that leads or led last, or None if nobody ever did."""
        with self._reading() as connection:
            return reads.leader(connection)

    # Upkeep

    def prune(self, older_than_s: float) -> int:
        """Delete history from before the instant `older_than_s` (seconds since 1970). Return the number of rows deleted.

        Covers epochs with their decisions (not counted one by one), events, reports, nodes, profiles of the kinds in `_PRUNED` and marks of
        scripts without directive. Jobs that have a lifecycle keep their story, report and profile; pauses stay.
        """
        count = 0
        old = (
            select(EpochRow.id)
            .where(EpochRow.started_s < older_than_s)
            .order_by(EpochRow.started_s)
            .limit(_PRUNE_EPOCHS)
        )
        while True:
            with self._writing() as connection:
                ids = connection.execute(old).scalars().all()
                if ids:
                    connection.execute(delete(EpochRow).where(EpochRow.id.in_(ids)))
            count += len(ids)
            if len(ids) < _PRUNE_EPOCHS:
                break
        with self._writing() as connection:
            live = reads.lifecycles(connection)
            passing = or_(*(ProfileRow.key.startswith(kind) for kind in _PRUNED))
            old_profiles = (passing, ProfileRow.updated_s < older_than_s)
            keys = connection.execute(select(ProfileRow.key).where(*old_profiles)).scalars().all()
            stale = [k for k in keys if not (k[:4] == "job:" and k[4:].isdecimal() and int(k[4:]) in live)]
            for part in writes.chunks(stale, 500):
                count += connection.execute(delete(ProfileRow).where(ProfileRow.key.in_(part))).rowcount
            for statement in (
                delete(EventRow).where(
                    EventRow.at_s < older_than_s, ~exists().where(LifecycleRow.job_id == EventRow.job_id)
                ),
                delete(ReportTable).where(
                    ReportTable.received_s < older_than_s, ~exists().where(LifecycleRow.job_id == ReportTable.job_id)
                ),
                delete(SteeringRow).where(
                    SteeringRow.changed_s < older_than_s, ~exists().where(LifecycleRow.job_id == SteeringRow.job_id)
                ),
                delete(OwnerRow).where(
                    OwnerRow.seen_s < older_than_s, ~exists().where(LifecycleRow.job_id == OwnerRow.job_id)
                ),
                delete(NodeTable).where(NodeTable.updated_s < older_than_s),
                delete(WouldHaveRow).where(WouldHaveRow.to_s < older_than_s),
                delete(JobFlagRow).where(JobFlagRow.flag == writes.NO_DIRECTIVE, JobFlagRow.at_s < older_than_s),
            ):
                count += connection.execute(statement).rowcount
        return count


def new_key() -> str:
    """Return a write key that nobody else has."""
    return uuid.uuid4().hex

"""One writer: of several daemons on one database the one that holds its lock leads.

PostgreSQL: a session's advisory lock on a connection of its own, gone with the connection. SQLite: a lock on a file
beside the database, gone with the process. The lock decides; the row in table `leader` tells others who leads, and
its term keeps a daemon that lost the lock from overwriting later what the next one wrote (synergyd/store/records.py,
Changes.term).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.exc import SQLAlchemyError

from synergyd.errors import SynergyError, UnavailableError, UsageError
from synergyd.store.connect import make_engine, parse_url, plain_errors, show, sqlite_path
from synergyd.store.tables import LeaderRow
from synergyd.store.writes import upsert

LOCK_KEY = 0x53594E4552475900  # of pg_try_advisory_lock: any number that others do not use


class _Lock(Protocol):
    """What one daemon at a time can hold, with a transaction to write the row in."""

    @property
    def held(self) -> bool: ...

    def acquire(self) -> bool:
        """True if it is held now, newly or still. Raises if that can't be found out."""

    def release(self) -> None: ...

    def lost(self) -> None:
        """The row could not be written: what that says about the lock."""

    def transaction(self) -> AbstractContextManager[Connection]: ...


class Leader:
    """Asks for leadership; call `try_lead` once an epoch, from one thread.

    `clock` is the time of day, in seconds. `away` is True while the database can't be asked: with PostgreSQL
    leadership is lost then. A daemon that led until the database went away may go on meanwhile: no other can get the
    lock through the same absent database (a network split between one daemon and the database is the exception; the
    term keeps the store right).
    """

    def __init__(self, url: str, *, clock: Callable[[], float], host: str = "", pid: int | None = None) -> None:
        self._url = parse_url(url)
        self._clock = clock
        self._host = host or socket.gethostname()
        self._pid = os.getpid() if pid is None else pid
        self._holder = uuid.uuid4().hex
        self._term: int | None = None
        self._problem = ""
        self._answered = False  # the database, ever
        self._led = False  # by its last answer
        self._lock: _Lock
        if self._url.drivername != "sqlite":
            self._lock = _AdvisoryLock(make_engine(self._url, pooled=False))
        else:
            path = sqlite_path(self._url)
            if path is None:
                raise UsageError(show(self._url), "a database in memory has no leader", "name a file")
            self._lock = _FileLock(path.resolve(), lambda: make_engine(self._url, pooled=False))

    @property
    def leads(self) -> bool:
        """As of the last `try_lead`."""
        return self._lock.held and self._term is not None

    @property
    def acts(self) -> bool:
        """It leads, or it led by the database's last answer and the database is away: nobody else gets the lock through it."""
        return self.leads or (self.away and self._led and self._term is not None)

    @property
    def away(self) -> bool:
        """The database could not be asked at the last `try_lead`."""
        return bool(self._problem)

    @property
    def problem(self) -> str:
        """One line: why it could not be asked ("" if it could)."""
        return self._problem

    @property
    def term(self) -> int | None:
        """The term in which this daemon led last; None if it never did."""
        return self._term

    def try_lead(self) -> bool:
        """True if this daemon leads now: takes the lock if it is free, and proves by a heartbeat that it still has it.

        Raises UsageError if leading was never possible here (no permission, schema missing). An absent database is False and
        `away`, and so is any fault of one that has answered before: who mends it need not start the daemon again.
        """
        self._problem = ""
        had = self._lock.held
        try:
            try:
                self._ask()
            except UnavailableError:
                if not had or self._lock.held:
                    raise
                self._ask()  # only our old connection was broken: the lock is free, or another's
        except SynergyError as error:
            if isinstance(error, UsageError) and not self._answered:
                self._lock.release()
                raise
            self._problem = str(error)
        return self.leads

    def _ask(self) -> None:
        with plain_errors(self._url):
            if not self._lock.acquire():
                self._answered, self._led = True, False
                return
            try:
                self._term = self._write_row(self._pid)
                self._answered = self._led = True
            except BaseException:
                self._lock.lost()
                if self._term is None:
                    self._lock.release()
                raise

    def release(self) -> None:
        """Gives the lock back, so that another daemon leads at its next try."""
        if self.leads:
            # the row is for show; the lock is what counts
            with contextlib.suppress(SynergyError), plain_errors(self._url):
                self._write_row(pid=0)
        self._lock.release()

    def _write_row(self, pid: int) -> int:
        """Writes the heartbeat; returns the term, a new one if somebody else led in between."""
        with self._lock.transaction() as connection:
            row = connection.execute(
                select(LeaderRow.holder, LeaderRow.term).where(LeaderRow.id == 1).with_for_update()
            ).one_or_none()
            term = 1 if row is None else row.term + (row.holder != self._holder)
            upsert(
                connection,
                LeaderRow,
                [
                    {
                        "id": 1,
                        "holder": self._holder,
                        "host": self._host,
                        "pid": pid,
                        "heartbeat_s": self._clock(),
                        "term": term,
                    }
                ],
            )
            return int(term)


class _AdvisoryLock:
    """PostgreSQL. As good as its connection: when that breaks, the server gives the lock to the next who asks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None

    @property
    def held(self) -> bool:
        return self._connection is not None

    def acquire(self) -> bool:
        if self._connection is not None:
            return True  # the heartbeat that follows goes over the same connection and proves it
        connection = self._engine.connect()
        try:
            with connection.begin():
                if connection.engine.url.host:  # lets the server notice a daemon's machine that is gone
                    for name, value in (("idle", 10), ("interval", 5), ("count", 3)):
                        connection.execute(text(f"SET tcp_keepalives_{name} = {value:d}"))
                got = connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": LOCK_KEY}).scalar()
        except BaseException:
            _close(connection)
            raise
        if not got:
            _close(connection)
            return False
        self._connection = connection
        return True

    def release(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(SQLAlchemyError), self._connection.begin():
                self._connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": LOCK_KEY})
            self.lost()

    def lost(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            _close(connection)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        assert self._connection is not None
        with self._connection.begin():
            yield self._connection


class _FileLock:
    """SQLite: `<database>.leader`, locked by this process and by nothing that it starts."""

    def __init__(self, database: Path, engine: Callable[[], Engine]) -> None:
        self._path = database.with_name(database.name + ".leader")
        self._make_engine = engine
        self._file: int | None = None

    @property
    def held(self) -> bool:
        return self._file is not None

    def acquire(self) -> bool:
        if self._file is not None and not self._in_place(self._file):
            self.release()  # somebody removed the file: its lock keeps nobody out any more
        if self._file is not None:
            return True
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            right = "run synergyd as the user who owns the database's folder"
            raise UsageError(str(self._path), f"can't be locked: {error.strerror}", right) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        if not self._in_place(file):
            os.close(file)
            return False
        self._file = file
        return True

    def _in_place(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self._path.stat())
        except OSError:
            return False

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def lost(self) -> None:
        """A busy or full database says nothing about a lock on a file."""

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        engine = self._make_engine()
        try:
            with engine.execution_options(writes=True).begin() as connection:
                yield connection
        finally:
            engine.dispose()


def _close(connection: Connection) -> None:
    """Closes for good, whatever state the connection is in."""
    with contextlib.suppress(SQLAlchemyError):
        connection.invalidate()
    with contextlib.suppress(SQLAlchemyError):
        connection.close()

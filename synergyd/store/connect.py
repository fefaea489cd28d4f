"""Database URLs, engines, and the meaning of a database's errors: the only module that tells the two dialects apart."""

from __future__ import annotations

import contextlib
import functools
import re
import sqlite3
import string
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import NullPool, StaticPool
from synergy_core.errors import NoDatabaseError, SetupError, SynergyError, UnavailableError, UsageError

from synergyd.store import private_file
from synergyd.store.records import RefusedError

RIGHT_URL = "write sqlite:////path/synergy.db or postgresql+psycopg://user:password@host/database"
UPGRADE = "run: synergyctl db upgrade"
ONLY_DAEMON = "the daemon's user alone may open it; others ask the REST service, synergyrestd"
_SCHEMA = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}\Z")
BUSY_S = 5.0  # how long a connection attempt or another process's SQLite lock is waited for
STATEMENT_MS = 30_000
ANSWER_S = 35.0  # a server that is stopped, or a network that takes packets and does not hand them on, ends no statement itself
IDLE_MS = 4_000  # a daemon that is stopped in the middle of a transaction must not keep its locks: below leader.TERM_S


def parse_url(url: str) -> URL:
    """Return the URL, checked and with its driver spelt out.

    Raises UsageError; the text of a wrong URL is not repeated, since it may hold a password.
    """
    try:
        if not url.isprintable():
            raise ValueError("control characters")
        parsed = make_url(url.strip())
    except (ArgumentError, ValueError):
        raise UsageError("database URL", "can't be read as a URL", RIGHT_URL) from None
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if parsed.host:
            raise UsageError(
                show(parsed), "a SQLite URL has no host", "write three slashes and the path: sqlite:////path"
            )
        if parsed.query:
            raise UsageError(show(parsed), "a SQLite URL takes no ?options", "write sqlite:////path alone")
        return parsed.set(drivername="sqlite")
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        if not parsed.database:
            raise UsageError(show(parsed), "the URL names no database", RIGHT_URL)
        schema = parsed.query.get("schema", "main")
        if not isinstance(schema, str) or not _SCHEMA.match(schema):
            right = "write ?schema= once, with a name of letters, digits, _ and - such as a cluster's"
            raise UsageError(show(parsed), "?schema= names no schema", right)
        return parsed.set(drivername="postgresql+psycopg")
    raise UsageError("database URL", f"unknown kind {parsed.drivername!r}", RIGHT_URL)


def show(url: URL) -> str:
    """Return the URL for messages, without user, password and options."""
    if url.drivername.startswith("sqlite"):
        return f"sqlite:///{url.database or ':memory:'}"
    port = f":{url.port}" if url.port else ""
    host = url.host or str(url.query.get("host", ""))
    schema = namespace(url)
    return f"{url.drivername}://{host}{port}/{url.database or ''}{f'?schema={schema}' if schema else ''}"


def namespace(url: URL) -> str:
    """Return the PostgreSQL schema that holds this cluster's tables if the URL names one with `?schema=`, else ""."""
    name = url.query.get("schema", "")
    return name if isinstance(name, str) and _SCHEMA.match(name) else ""


def make_namespace(connection: Connection, url: URL) -> None:
    """Create the schema that the URL names if it is missing."""
    name = namespace(url)
    exists = connection.exec_driver_sql("SELECT 1 FROM pg_namespace WHERE nspname = %s", (name,)).first() if name else 1
    if exists is None:
        connection.exec_driver_sql(f'CREATE SCHEMA "{name}"')  # holds only letters, digits, _ and -


def sqlite_path(url: URL) -> Path | None:
    """Return the file of a SQLite URL, or None for a database in memory or one that is not SQLite."""
    if not url.drivername.startswith("sqlite") or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database))


def file_exists(url: URL, path: Path) -> bool:
    """Return whether the SQLite file exists. Raises UsageError if it can't: no folder, no rights, a folder itself."""
    try:
        if not path.parent.is_dir():
            raise SetupError(show(url), f"there is no folder {path.parent}", "make it, or name another file")
        if path.is_dir():
            raise SetupError(show(url), "is a folder", "name a file in it")
        return path.exists()
    except OSError as error:
        raise SetupError(show(url), f"can't be looked at: {error.strerror}", ONLY_DAEMON) from None


def make_engine(
    url: URL, *, create: bool = False, migrating: bool = False, pooled: bool = True, answer_s: float = ANSWER_S
) -> Engine:
    """Return an engine with the time limits and transaction habits that Synergy relies on. It connects to nothing yet.

    A missing SQLite file is made only with `create`. `answer_s` is the longest wait for one answer, in seconds.
    Raises UsageError for a missing driver, folder or file.
    """
    if url.drivername == "sqlite":
        return _sqlite(url, create, migrating, min(answer_s, BUSY_S))
    return _postgresql(url, migrating, pooled, answer_s)


def _sqlite(url: URL, create: bool, migrating: bool, busy_s: float) -> Engine:
    path = sqlite_path(url)
    if path is None:
        engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        if not file_exists(url, path) and not create:
            raise NoDatabaseError(show(url), "there is no such database yet", f"start synergyd, or {UPGRADE}")
        if create:
            with contextlib.suppress(OSError):  # SQLite says it below
                private_file.create(path)
        uri = f"file:{quote(str(path.absolute()))}?mode=rw"

        def connect() -> sqlite3.Connection:
            return sqlite3.connect(uri, uri=True, timeout=busy_s, check_same_thread=False)

        # opened anew for each transaction, so that a file put in its place (a restored copy) is seen
        engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver's guess
        if not migrating:  # a migration rebuilds tables, which must not cascade
            connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        # A writer takes the lock at once: a read that later turns into a write can fail without waiting.
        writes = migrating or connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql(url: URL, migrating: bool, pooled: bool, answer_s: float) -> Engine:
    limits: dict[str, object] = {
        "connect_timeout": int(min(answer_s, BUSY_S)),
        "tcp_user_timeout": 10_000,  # ms; a network that swallows packets must not stop the daemon's loop
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "application_name": "synergy",
    }
    limits = {k: v for k, v in limits.items() if k not in url.query}
    schema, url = namespace(url), url.difference_update_query(["schema"])
    try:
        if pooled:
            engine = create_engine(url, connect_args=limits, pool_pre_ping=True, pool_size=2, pool_timeout=BUSY_S)
        else:
            engine = create_engine(url, connect_args=limits, poolclass=NullPool)
    except ModuleNotFoundError:
        raise UsageError(
            show(url), "the driver psycopg is not installed", "run: pip install 'synergy-slurm[postgresql]'"
        ) from None
    except ImportError as error:  # psycopg without libpq
        raise UsageError(
            show(url), f"the driver psycopg does not load: {error}", "pip install 'psycopg[binary]'"
        ) from None

    if schema:

        @event.listens_for(engine, "connect", insert=True)  # before SQLAlchemy asks for the current one
        def on_first(connection: Any, _record: object) -> None:
            connection.execute(f'SET search_path = "{schema}"')
            connection.commit()

    if migrating:
        return engine

    @event.listens_for(engine, "do_connect")
    def do_connect(_dialect: object, _record: object, arguments: Any, options: Any) -> Any:
        return _answering(answer_s).connect(*arguments, **options)

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        connection.execute(f"SET statement_timeout = {min(STATEMENT_MS, int(answer_s * 1000)):d}")
        connection.commit()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        if connection.get_execution_options().get("writes"):
            connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_MS:d}")

    return engine


@functools.cache
def _answering(answer_s: float) -> Any:
    """Return a psycopg Connection class that gives up on an answer after `answer_s` seconds.

    libpq has no such limit.
    """
    import psycopg

    class Answering(psycopg.Connection[Any]):
        def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
            return super().wait(self._in_time(gen), *args, **options)

        def _in_time(self, gen: Any) -> Generator[Any, Any, Any]:
            """Check after each `interval` (0.1 s) whether to go on waiting, as psycopg itself does."""
            end_s = time.monotonic() + answer_s
            try:
                request = next(gen)
                while True:
                    ready = yield request
                    if not ready and time.monotonic() > end_s:
                        self.close()
                        raise psycopg.OperationalError(f"no answer within {answer_s:g} s")
                    request = gen.send(ready)
            except StopIteration as done:
                return done.value

    return Answering


@contextmanager
def plain_errors(url: URL) -> Iterator[None]:
    """Translate what SQLAlchemy and the drivers raise into UnavailableError, RefusedError or UsageError, one line each."""
    try:
        yield
    except SynergyError:
        raise
    except (SQLAlchemyError, sqlite3.Error, UnicodeError, OverflowError) as error:
        raise translate(url, error) from error


_NOT_LET_IN = ('" does not exist', "password authentication failed", "no password supplied", "no pg_hba.conf entry")


def translate(url: URL, error: Exception) -> SynergyError:
    """Return the error that tells the user what `error` means.

    The database is away (UnavailableError), this row is refused (RefusedError), or the set-up is wrong (UsageError).
    """
    where = show(url)
    cause = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    message = _driver_message(cause)
    low = message.lower()
    if isinstance(cause, sqlite3.DatabaseError) and not isinstance(cause, sqlite3.IntegrityError | sqlite3.DataError):
        if "not a database" in low or "malformed" in low:
            return SetupError(where, message, "restore the file from a copy, or name another")
        if "readonly" in low:
            return SetupError(where, "no permission to write", "run this as the user that synergyd runs as")
        if "unable to open" in low:
            return SetupError(where, "can't be opened", ONLY_DAEMON)
        if "no such table" in low or "no such column" in low:
            return SetupError(where, message, UPGRADE)
    state = str(getattr(cause, "sqlstate", "") or "")
    if state in ("42P01", "42703", "3F000"):  # undefined table, column, schema
        return SetupError(where, message, UPGRADE)
    if state == "42501":
        return SetupError(where, message, "grant it, or use the role that owns the tables")
    if not state and any(words in low for words in _NOT_LET_IN):  # a refused connection carries no state
        return SetupError(where, message, "correct the Database setting, or make that role and database")
    if state in ("25006",):  # a standby of PostgreSQL: it may become the primary
        return UnavailableError(where, message)
    if isinstance(error, (OperationalError, InterfaceError, PoolTimeout, sqlite3.OperationalError)):
        return UnavailableError(where, message)
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return UnavailableError(where, message)
    if isinstance(error, (IntegrityError, DataError, UnicodeError, OverflowError)) or isinstance(
        cause, (ValueError, TypeError, OverflowError)
    ):
        return RefusedError(where, message)
    return SetupError(where, message)


def _driver_message(cause: BaseException) -> str:
    """Return the driver's message on one line, without blank lines and repeated spaces, or the error's class name if it is empty."""
    lines = [" ".join(line.split()) for line in str(cause).splitlines()]
    text = "; ".join(line for line in lines if line.strip(string.whitespace))
    return text or type(cause).__name__

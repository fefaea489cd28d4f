"""After the first success nothing that happens to the database ends the daemon: what waits is written when it is mended."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from synergy_core.errors import SynergyError, UsageError

from synergyd.store import connect, schema
from synergyd.store.buffer import LAST_RETRY_S, BufferedStore
from synergyd.store.leader import Leader
from synergyd.store.records import StoredEvent
from synergyd.store.store import open_store
from tests.throwaway.postgres import Postgres
from tests.unit.store.store_world import Clock, lifecycle

pytest_plugins = ("tests.throwaway.fixtures_postgres",)


class Database:
    """What the daemon holds of one database, and its rounds."""

    def __init__(self, url: str, *, create: bool) -> None:
        self.url, self.clock = url, Clock()
        self.leader = Leader(url, clock=self.clock)
        self.store = BufferedStore(lambda: open_store(url, create=create), self.clock, term=lambda: self.leader.term)
        self.rounds = 0

    def round(self) -> None:
        """What an epoch does, in the service's order."""
        self.leader.try_lead()
        self.store.refresh()
        self.rounds += 1
        self.store.append_events([StoredEvent(1, float(self.rounds), "RUNNING", str(self.rounds))])
        self.store.put_lifecycles([lifecycle(1, f"S{self.rounds}")])
        self.store.flush()
        self.store.prune(1.0)
        self.clock.now += LAST_RETRY_S

    def story(self) -> list[str]:
        with open_store(self.url) as store:
            return [e.event for e in store.story(1)]


def run_sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def garbage(path: Path) -> None:
    path.write_bytes(b"garbage " * 1000)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwritten_in_the_middle(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))


def renamed(path: Path) -> None:
    path.rename(path.with_name("other.db"))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere/x.db")


def a_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/full")


def folder_gone(path: Path) -> None:
    path.parent.rename(path.parent.with_name("gone"))


def tables_dropped(path: Path) -> None:
    run_sql(path, "DROP TABLE leader", "DROP TABLE events", "DROP TABLE lifecycles")


def older_schema(path: Path) -> None:
    run_sql(path, "UPDATE alembic_version SET version_num = '0001'", "DROP TABLE leader")


def newer_schema(path: Path) -> None:
    run_sql(path, "UPDATE alembic_version SET version_num = 'ffff'", "ALTER TABLE leader RENAME COLUMN pid TO task")


FILE_FAULTS: list[Callable[[Path], None]] = [
    garbage, emptied, halved, overwritten_in_the_middle, renamed, a_folder, a_link_to_nowhere, a_device, folder_gone,
    tables_dropped, older_schema, newer_schema,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("create", [True, False], ids=["own file", "named file"])
@pytest.mark.parametrize("fault", FILE_FAULTS)
def test_no_fault_of_a_file_ends_the_daemon(
    fault: Callable[[Path], None], create: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BUSY_S", 0.01)
    folder = tmp_path / "state"
    folder.mkdir()
    path = folder / "x.db"
    open_store(f"sqlite:///{path}", create=True).close()
    database = Database(f"sqlite:///{path}", create=create)
    database.round()
    assert database.leader.is_leading and database.store.is_healthy
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    fault(path)
    for _ in range(3):
        database.round()
        assert database.leader.is_leading
    again = bool(database.store.problem)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    shutil.copy(copy, path)
    database.round()
    database.round()
    assert database.store.is_healthy and database.leader.is_leading and not database.leader.is_database_away
    # what was written into a file that is gone is gone with it; what waited is there
    assert database.story() == [str(n) for n in range(1, 7)] if again else database.story()[-1] == "6"
    assert again <= database.store.outages <= 1 and database.leader.is_leading
    database.store.close()
    database.leader.release()


def test_a_wrong_set_up_is_still_raised_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Database(f"sqlite:///{tmp_path / 'none.db'}", create=False).round()
    garbage(tmp_path / "x.db")
    with pytest.raises(UsageError):
        Database(f"sqlite:///{tmp_path / 'x.db'}", create=True).round()


def _ran(_rows: object) -> None:
    """What a statement gives back is nobody's business."""


def locked_out(server: Postgres, name: str) -> Callable[[], None]:
    server.run("ALTER ROLE daemon PASSWORD 'another'")
    server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'daemon'")
    return lambda: _ran(server.run("ALTER ROLE daemon PASSWORD 'secret'"))


def rights_revoked(server: Postgres, name: str) -> Callable[[], None]:
    server.run("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM daemon", name)
    return lambda: _ran(server.run("GRANT ALL ON ALL TABLES IN SCHEMA public TO daemon", name))


def may_not_connect(server: Postgres, name: str) -> Callable[[], None]:
    server.run("ALTER ROLE daemon NOLOGIN")
    server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'daemon'")
    return lambda: _ran(server.run("ALTER ROLE daemon LOGIN"))


def database_renamed(server: Postgres, name: str) -> Callable[[], None]:
    server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'daemon'")
    server.run(f"ALTER DATABASE {name} RENAME TO elsewhere")
    return lambda: _ran(server.run(f"ALTER DATABASE elsewhere RENAME TO {name}"))


def table_renamed(server: Postgres, name: str) -> Callable[[], None]:
    server.run("ALTER TABLE leader RENAME TO before", name)
    return lambda: _ran(server.run("ALTER TABLE before RENAME TO leader", name))


def read_only(server: Postgres, name: str) -> Callable[[], None]:
    server.run(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'daemon'")
    return lambda: _ran(server.run(f"ALTER DATABASE {name} RESET default_transaction_read_only"))


def stopped(server: Postgres, name: str) -> Callable[[], None]:
    server.stop()
    return server.start


@pytest.mark.postgres
@pytest.mark.parametrize(
    "fault", [locked_out, rights_revoked, may_not_connect, database_renamed, table_renamed, read_only, stopped]
)
def test_no_fault_of_a_server_ends_the_daemon(
    fault: Callable[[Postgres, str], Callable[[], None]], postgres_server: Postgres, postgres_database: str
) -> None:
    name = postgres_database.rpartition("/")[2]
    open_store_for(postgres_server, postgres_database, name)
    url = f"postgresql+psycopg://daemon:secret@127.0.0.1:{postgres_server.port}/{name}"
    database = Database(url, create=False)
    database.round()
    assert database.leader.is_leading and database.store.is_healthy
    mend = fault(postgres_server, name)
    for _ in range(3):
        try:
            database.round()
        except SynergyError as error:
            pytest.fail(f"it ended: {error}")
    mend()
    for _ in range(3):
        database.round()
    assert database.store.is_healthy and database.leader.is_leading
    assert database.story() == [str(n) for n in range(1, 8)]
    database.store.close()
    database.leader.release()


def open_store_for(server: Postgres, url: str, name: str) -> None:
    """The schema, made by the server's owner, and a role that may use it."""
    schema.upgrade(url)
    if not server.run("SELECT 1 FROM pg_roles WHERE rolname = 'daemon'"):
        server.run("CREATE ROLE daemon LOGIN PASSWORD 'secret'")
    server.run("GRANT ALL ON ALL TABLES IN SCHEMA public TO daemon", name)
    server.run("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO daemon", name)

"""The store's contract on a real PostgreSQL, and what only a server can do: crash, cut a session off, refuse a role."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from synergy_core.errors import UsageError
from synergy_sim.cli.simulate import simulate_verb

from synergyd.store import connect, schema
from synergyd.store.buffer import BufferedStore
from synergyd.store.leader import TERM_S, Leader
from synergyd.store.records import StoredEvent
from synergyd.store.store import open_store
from tests.throwaway.postgres import Postgres, PostgresMissing, programs
from tests.throwaway.proxy import Proxy
from tests.unit.cli.test_simulate_database import gone, profile
from tests.unit.store.store_world import Clock, lifecycle
from tests.unit.store.test_contract import StoreContract

pytest_plugins = ["tests.throwaway.fixtures_postgres"]
pytestmark = pytest.mark.postgres


@pytest.fixture
def server(postgres_server: Postgres) -> Iterator[Postgres]:
    """The server, running before the test and after it."""
    postgres_server.start()
    yield postgres_server
    postgres_server.start()


class TestPostgresql(StoreContract):
    @pytest.fixture
    def url(self, postgres_database: str) -> str:
        return postgres_database

    @pytest.fixture
    def outage(self, server: Postgres) -> Callable[[], Callable[[], None]]:
        def take_away() -> Callable[[], None]:
            server.stop()
            return server.start

        return take_away


def test_crash_after_crash_loses_nothing(server: Postgres, postgres_database: str) -> None:
    """The server is killed again and again, at any moment of a write, while a daemon writes on."""
    schema.upgrade(postgres_database)
    clock = Clock()
    buffer = BufferedStore(lambda: open_store(postgres_database), clock)
    assert buffer.refresh()
    done = threading.Event()
    crashes = 0

    def crash() -> None:
        nonlocal crashes
        while not done.wait(0.05):
            server.stop()
            crashes += 1
            server.start()

    saboteur = threading.Thread(target=crash)
    saboteur.start()
    expected: list[StoredEvent] = []
    try:
        while crashes < 8:
            # as an epoch would, and not as fast as a processor can: the buffer keeps 50,000 events at the most
            time.sleep(0.002)
            n = len(expected)
            expected.append(StoredEvent(1, float(n), "RUNNING", f"step {n}"))
            buffer.append_events([expected[-1]])
            buffer.put_lifecycles([lifecycle(1, f"S{n}")])
            clock.now += 0.5
            buffer.flush()
    finally:
        done.set()
        saboteur.join()
    clock.now += 120.0
    assert buffer.flush()
    with open_store(postgres_database) as store:
        assert store.story(1) == expected
        assert store.lifecycles()[1].state == f"S{len(expected) - 1}"
    buffer.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_two_upgrades_at_once(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db" if kind == "sqlite" else request.getfixturevalue("postgres_database")
    code = (
        "import sys; from synergyd.store import schema; schema.needed_revision(); print('ready', flush=True);"
        " sys.stdin.readline(); schema.upgrade(sys.argv[1])"
    )
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    children = [subprocess.Popen([sys.executable, "-c", code, url], text=True, **pipes) for _ in range(2)]
    assert [child.stdout.readline() for child in children if child.stdout] == ["ready\n"] * 2
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    assert [(child.communicate()[1], child.returncode) for child in children] == [("", 0)] * 2
    open_store(url).close()


def test_leadership_outlives_the_server_s_crash(server: Postgres, postgres_database: str) -> None:
    schema.upgrade(postgres_database)
    one, two = Leader(postgres_database, clock=Clock()), Leader(postgres_database, clock=Clock())
    assert one.try_lead() and not two.try_lead() and one.try_lead()
    server.stop()
    one.try_lead()
    assert one.is_database_away and one.problem.startswith("postgresql+psycopg://127.0.0.1")
    assert not two.try_lead() and two.is_database_away
    server.start()
    assert (
        one.try_lead() and one.term == 1 and not one.is_database_away
    )  # nobody led in between: its writes are still good
    server.stop()
    server.start()
    assert not two.try_lead() and not two.is_database_away
    one.release()
    assert two.try_lead() and two.term == 2
    two.release()


def test_a_session_that_is_cut_off_is_made_anew(server: Postgres, postgres_database: str) -> None:
    schema.upgrade(postgres_database)
    leader = Leader(postgres_database, clock=Clock())
    assert leader.try_lead()
    server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'synergy'")
    assert leader.try_lead() and not leader.is_database_away and leader.term == 1
    leader.release()


def test_a_daemon_stopped_inside_a_transaction_does_not_keep_the_lease_s_row(
    server: Postgres, postgres_database: str
) -> None:
    schema.upgrade(postgres_database)
    now = Clock()
    one, two = (Leader(postgres_database, clock=Clock(), elapsed=now) for _ in range(2))
    assert one.try_lead() and not two.try_lead() and one.try_lead()
    engine = connect.make_engine(connect.parse_url(postgres_database), pooled=False)
    with engine.execution_options(writes=True).connect() as connection:
        connection.execute(text("SELECT * FROM leader FOR UPDATE"))
        began_s = time.monotonic()
        now.now += TERM_S
        while two.try_lead() or two.is_database_away:
            now.now += TERM_S
            assert time.monotonic() < began_s + 60.0
        assert time.monotonic() > began_s + 2.0  # it was in the way
        connection.invalidate()
    engine.dispose()
    one.release()
    two.release()


def test_a_server_that_hangs_is_waited_for_no_longer_than_told(server: Postgres, postgres_database: str) -> None:
    schema.upgrade(postgres_database)
    with Proxy(server.port) as proxy:
        url = connect.parse_url(postgres_database.replace(f":{server.port}/", f":{proxy.port}/"))
        engine = connect.make_engine(url, answer_s=3.0)
        with engine.connect() as connection:
            proxy.silence()
            with pytest.raises(OperationalError, match=r"no answer within 3 s"):
                connection.execute(text("SELECT 1"))
        proxy.mend()
        with engine.connect() as connection:
            assert connection.execute(text("SELECT 1")).scalar() == 1
        engine.dispose()


def test_a_session_cut_off_between_two_epochs_is_not_noticed(server: Postgres, postgres_database: str) -> None:
    schema.upgrade(postgres_database)
    with open_store(postgres_database) as store:
        store.append_events([StoredEvent(1, 1.0, "RUNNING", "a")])
        server.stop()
        server.start()
        store.append_events([StoredEvent(1, 2.0, "RUNNING", "b")])
        assert len(store.story(1)) == 2


def test_a_statement_that_hangs_is_given_up(
    server: Postgres, postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema.upgrade(postgres_database)
    monkeypatch.setattr(connect, "STATEMENT_MS", 2000)
    clock = Clock()
    with open_store(postgres_database) as other, other.engine.connect() as connection:
        connection.execute(text("LOCK TABLE lifecycles"))
        buffer = BufferedStore(lambda: open_store(postgres_database), clock)
        buffer.put_lifecycles([lifecycle(1)])
        assert not buffer.flush() and "statement timeout" in buffer.problem
        connection.rollback()
        clock.now += 1.0
        assert buffer.flush()
        buffer.close()


def test_unix_socket(server: Postgres, postgres_database: str) -> None:
    name = postgres_database.rpartition("/")[2]
    schema.upgrade(server.url(name, socket=True))
    open_store(postgres_database).close()


def test_create_is_for_sqlite_alone(postgres_database: str) -> None:
    with pytest.raises(
        UsageError, match=rf"no schema, revision {schema.needed_revision()} is needed; run: synergyctl db upgrade"
    ):
        open_store(postgres_database, create=True)
    assert schema.revision(postgres_database) is None


def test_what_the_admin_is_told(server: Postgres, postgres_database: str) -> None:
    schema.upgrade(postgres_database)
    url = connect.parse_url(postgres_database)
    wrong = url.set(password="hidden-secret").render_as_string(hide_password=False)
    with pytest.raises(UsageError) as refused:
        open_store(wrong)
    assert "password authentication failed" in str(refused.value)
    with pytest.raises(UsageError) as absent:
        open_store(url.set(database="nowhere").render_as_string(hide_password=False))
    assert 'database "nowhere" does not exist' in str(absent.value)
    for error in (refused, absent):
        assert (
            "\n" not in str(error.value)
            and "secret" not in str(error.value)
            and server.password not in str(error.value)
            and "correct the Database setting" in str(error.value)
        )


def test_a_role_without_rights(server: Postgres, postgres_database: str) -> None:
    schema.upgrade(postgres_database)
    url = connect.parse_url(postgres_database)
    server.run("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    server.run("GRANT SELECT ON alembic_version, lifecycles TO guest", database=url.database or "")
    with open_store(url.set(username="guest", password="guest").render_as_string(hide_password=False)) as store:
        assert store.lifecycles() == {}
        with pytest.raises(UsageError, match=r"permission denied for table events; grant it"):
            store.append_events([StoredEvent(1, 1.0, "RUNNING", "a")])


def test_a_recorded_queue_is_replayed_from_it(postgres_database: str) -> None:
    schema.upgrade(postgres_database)
    with open_store(postgres_database) as store:
        gone(store, 11, 60, 700, 1000, profile())
        gone(store, 12, 60, 700, 1000)
    done = CliRunner().invoke(simulate_verb, ["--from-database", postgres_database, "--policy", "fifo", "--json", "-"])
    assert (done.exit_code, json.loads(done.stdout)["policies"]["fifo"]["avg_jct_s"]) == (0, 60 + 30 + 500)
    assert "1 of 2 recorded jobs are left out: 1 left without a measured step" in done.stderr


def test_the_server_leaves_no_trace() -> None:
    try:
        server = Postgres()
    except PostgresMissing as missing:
        pytest.skip(str(missing))
    process = server._process
    assert server.running and process is not None
    server.stop(clean=True)
    server.start()
    assert server.run("SELECT 1") == [(1,)]
    process = server._process
    assert process is not None
    server.close()
    assert process.poll() is not None and not server.folder.exists()


def test_no_server_programs_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PostgresMissing, match=r"not installed \(Debian: apt-get install postgresql\)"):
        programs(tmp_path)

"""Opening: wrong URLs, folders and files get one line each, and never the password."""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from synergy_core.errors import SynergyError, UnavailableError, UsageError

from synergyd.cli.shared.context import run_command_line
from synergyd.cli.synergyctl import cli
from synergyd.daemon import service
from synergyd.settings import Settings
from synergyd.store import connect, schema
from synergyd.store.connect import parse_url, show
from synergyd.store.leader import Leader
from synergyd.store.records import StoredEvent
from synergyd.store.store import open_store


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "can't be read as a URL"),
        ("synergy.db", "can't be read as a URL"),
        ("postgresql://u:s3cret@host:port/db", "can't be read as a URL"),
        ("mysql://u:s3cret@host/db", "unknown kind 'mysql'"),
        ("postgresql+psycopg2://u:s3cret@host/db", "unknown kind 'postgresql+psycopg2'"),
        ("postgresql+nope://u:s3cret@host/db", "unknown kind 'postgresql+nope'"),
        ("sqlite+aiosqlite:///x.db", "unknown kind 'sqlite+aiosqlite'"),
        ("postgresql://u:s3cret@host", "names no database"),
        ("sqlite://folder/x.db", "a SQLite URL has no host"),
        ("sqlite:////tmp/x.db?mode=ro", "takes no ?options"),
        ("sqlite:////no/such/folder/x.db", "there is no folder /no/such/folder"),
        ("sqlite:////tmp", "is a folder"),
        ("sqlite:////tmp/x\x00.db", "can't be read as a URL"),
    ],
)
@pytest.mark.parametrize("create", [False, True])
def test_wrong_url(url: str, message: str, create: bool) -> None:
    for act in (lambda: open_store(url, create=create), lambda: schema.upgrade(url), lambda: schema.revision(url)):
        with pytest.raises(UsageError) as caught:
            act()
        assert message in str(caught.value) and "s3cret" not in str(caught.value)


def test_drivers_are_spelt_out_and_secrets_hidden() -> None:
    for name in ("postgresql", "postgres", "postgresql+psycopg"):
        url = parse_url(f"{name}://u:s3cret@h:5433/db?password=s3cret")
        assert url.drivername == "postgresql+psycopg" and show(url) == "postgresql+psycopg://h:5433/db"
    assert show(parse_url("sqlite:////a/b.db")) == "sqlite:////a/b.db"


def test_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError, match="psycopg is not installed; run: pip install 'synergy-slurm"):
        open_store("postgresql://u@h/db")


def test_nobody_answers() -> None:
    with socket.socket() as taken:  # bound, not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"postgresql://u:s3cret@127.0.0.1:{taken.getsockname()[1]}/db"
        for act in (open_store, schema.upgrade, schema.revision):
            with pytest.raises(UnavailableError) as caught:
                act(url)
            text = str(caught.value)
            assert "refused" in text and "s3cret" not in text and "\n" not in text and "\\n" not in text


def test_sqlite_is_created_only_when_asked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with pytest.raises(UsageError, match="no such database yet; start synergyd, or run: synergyctl db upgrade"):
        open_store(url)
    assert schema.revision(url) is None and not (tmp_path / "x.db").exists()
    open_store(url, create=True).close()
    open_store(url).close()
    assert schema.revision(url) == schema.needed_revision()


def test_an_empty_sqlite_file(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with pytest.raises(
        UsageError, match=f"has no schema, revision {schema.needed_revision()} is needed; run: synergyctl db upgrade"
    ):
        open_store(url)
    open_store(url, create=True).close()


def test_not_a_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("a note, and long enough not to be taken for an empty file\n" * 40)
    for create in (False, True):
        with pytest.raises(UsageError, match="file is not a database"):
            open_store(f"sqlite:///{tmp_path / 'x.db'}", create=create)


def test_in_memory() -> None:
    for url in ("sqlite://", "sqlite:///:memory:"):
        with open_store(url, create=True) as store:
            store.append_events([StoredEvent(1, 1.0, "RUNNING", "a")])
            assert len(store.story(1)) == 1
    with pytest.raises(UsageError, match="has no schema"):
        open_store("sqlite://")


@contextmanager
def somebody_else() -> Iterator[None]:
    """As a user who owns nothing (root may do everything)."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that everybody may enter; pytest's own are the owner's alone."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_who_may_only_read_can_read(shared_folder: Path) -> None:
    url = f"sqlite:///{shared_folder / 'x.db'}"
    with open_store(url, create=True) as store:
        store.append_events([StoredEvent(1, 1.0, "RUNNING", "a")])
    (shared_folder / "x.db").chmod(0o444)
    shared_folder.chmod(0o555)
    with somebody_else(), open_store(url) as store:
        assert len(store.story(1)) == 1
        with pytest.raises(UsageError, match="no permission to write; run this as the user that synergyd runs as"):
            store.append_events([StoredEvent(1, 1.0, "RUNNING", "a")])
        with pytest.raises(UsageError, match="no permission to write"):
            Leader(url, clock=lambda: 0.0).try_lead()
    shared_folder.chmod(0o755)


def test_who_may_not_even_look(shared_folder: Path) -> None:
    url = f"sqlite:///{shared_folder / 'x.db'}"
    open_store(url, create=True).close()
    (shared_folder / "x.db").chmod(0)
    with somebody_else():
        for act in (open_store, schema.revision, schema.upgrade):
            with pytest.raises(UsageError, match="can't be opened; the daemon's user alone"):
                act(url)
    shared_folder.chmod(0)
    with somebody_else():
        for act in (open_store, schema.revision, schema.upgrade):
            with pytest.raises(UsageError, match="can't be looked at: Permission denied"):
                act(url)
    shared_folder.chmod(0o755)


@pytest.mark.parametrize("verb", [("status",), ("pause", "7"), ("explain", "7")])
def test_a_user_without_the_rest_service_is_told_of_it(
    shared_folder: Path, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    conf = shared_folder / "slurm.conf"
    conf.write_text(f"#SYNERGY StateDir={shared_folder}/state\n")
    service.prepare_state_dir(settings := Settings(state_dir=shared_folder / "state"))
    open_store(settings.database_url(), create=True).close()
    argv = ["--conf", str(conf), *verb]
    with suppress(SystemExit):  # imports what a Python in root's home shows to root alone
        run_command_line("synergyctl", lambda: cli(argv, standalone_mode=False))
    capsys.readouterr()
    with somebody_else(), pytest.raises(SystemExit) as ended:
        run_command_line("synergyctl", lambda: cli(argv, standalone_mode=False))
    told = capsys.readouterr().err
    assert ended.value.code == 1 and told.count("\n") == 1
    assert told.endswith("its database is its admin's alone; ask the cluster's admin to start synergyrestd\n")


def test_a_folder_that_may_not_be_written(shared_folder: Path) -> None:
    shared_folder.chmod(0o555)
    with somebody_else(), pytest.raises(UsageError, match="can't be opened; the daemon's user alone"):
        open_store(f"sqlite:///{shared_folder / 'x.db'}", create=True)
    shared_folder.chmod(0o755)


def test_a_busy_database_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "BUSY_S", 0.01)
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with open_store(url, create=True) as store:
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert store.story(1) == []  # a writer does not keep readers out
        with pytest.raises(UnavailableError, match="database is locked") as caught:
            store.append_events([StoredEvent(1, 1.0, "RUNNING", "a")])
        assert isinstance(caught.value, SynergyError)
        other.close()

"""Nobody but its owner can open a SQLite database of Synergy's, whatever the umask and whoever made it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from synergyd.cli import doctor, first_start
from synergyd.cli.shared.context import Context
from synergyd.daemon import service
from synergyd.settings import Settings
from synergyd.store import private_file, schema
from synergyd.store.before_upgrade import keep_copy
from synergyd.store.store import open_store


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_it_is_made_private_and_so_are_its_journal_and_copies(tmp_path: Path) -> None:
    path = tmp_path / "synergy.db"
    open_store(f"sqlite:///{path}", create=True).close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("CREATE TABLE x (a)")
    assert {p.name: mode(p) for p in tmp_path.iterdir()} == {"synergy.db": 0o600, "synergy.db-journal": 0o600}
    connection.close()
    path.chmod(0o644)
    assert mode(keep_copy(path, "0007")) == 0o600


def test_what_an_earlier_version_made_is_closed_at_the_start(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    settings = Settings(state_dir=state_dir)
    service.prepare_state_dir(settings)
    assert mode(state_dir) == mode(state_dir / "plans") == 0o711
    open_store(settings.database_url(), create=True).close()
    ours = ["synergy.db", "synergy.db-journal", "synergy.db-wal", "synergy.db.0007-20260101-000000", ".synergy.db.part"]
    for name in [*ours, "heartbeat", "synergy.dbx"]:
        (state_dir / name).touch()
        (state_dir / name).chmod(0o644)
    (tmp_path / "other").touch()
    (tmp_path / "other").chmod(0o644)
    (state_dir / "synergy.db.link").symlink_to(tmp_path / "other")
    os.link(tmp_path / "other", state_dir / "synergy.db.hard")
    state_dir.chmod(0o755)
    told = first_start.database(settings, "")
    assert told.ok is False and f"chmod 600 {state_dir}/synergy.db" in told.right
    context = Context()
    context.settings = settings
    assert [f.ok for f in doctor._database(context)] == [False]
    service.prepare_state_dir(settings)
    assert {name: mode(state_dir / name) for name in ours} == dict.fromkeys(ours, 0o600)
    assert {mode(p) for p in (tmp_path / "other", state_dir / "heartbeat", state_dir / "synergy.dbx")} == {0o644}
    assert mode(state_dir) == 0o751
    (state_dir / "synergy.db.hard").unlink()
    assert first_start.database(settings, "").ok and not doctor._database(context)


def test_an_upgrade_closes_it_too(tmp_path: Path) -> None:
    path = tmp_path / "synergy.db"
    path.touch(0o666)
    schema.upgrade(f"sqlite:///{path}")
    private_file.tighten(path)
    assert mode(path) == 0o600


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////var/lib/synergy/synergy.db", Path("/var/lib/synergy/synergy.db")),
        ("sqlite+pysqlite:///x.db", Path("x.db")),
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
        ("postgresql+psycopg://user@host/db", None),
    ],
)
def test_the_file_of_a_url(url: str, path: Path | None) -> None:
    assert private_file.sqlite_file(url) == path

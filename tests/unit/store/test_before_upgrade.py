"""`synergyctl db upgrade` of a database that is in use, and the copy that it keeps."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from alembic import command
from click.testing import CliRunner
from synergy_core.errors import UsageError

from synergyd.cli.db import db
from synergyd.cli.shared.context import Context
from synergyd.store import schema
from synergyd.store.before_upgrade import keep_copy, refuse_if_used
from synergyd.store.connect import make_engine, parse_url
from synergyd.store.process import this_process

RELEASE_0_1 = "0005"  # the schema of release 0.1.0


def database(folder: Path, revision: str = RELEASE_0_1) -> tuple[Path, str]:
    """An older release's database with one profile-less epoch in it."""
    path = folder / "synergy.db"
    url = f"sqlite:///{path}"
    engine = make_engine(parse_url(url), create=True, migrating=True, pooled=False)
    with engine.begin() as connection:
        made = schema.config()
        made.attributes["connection"] = connection
        command.upgrade(made, revision)
    engine.dispose()
    return path, url


def lead(path: Path, **changed: object) -> None:
    """Writes the leader's row."""
    with sqlite3.connect(path) as connection:
        columns = {row[1]: 0 if row[2] != "VARCHAR" else "" for row in connection.execute("PRAGMA table_info(leader)")}
        row: dict[str, object] = {name: "x" if "CHAR" in str(value) else value for name, value in columns.items()}
        row |= {"id": 1, "host": "head", "pid": 4711, "heartbeat_s": 1.0} | {
            k: v for k, v in changed.items() if k in columns
        }
        names = ",".join(row)
        connection.execute(f"REPLACE INTO leader ({names}) VALUES ({','.join('?' * len(row))})", list(row.values()))  # noqa: S608
    connection.close()


@pytest.mark.parametrize("revision", [RELEASE_0_1, "head"])
def test_a_daemon_at_work_stops_it(tmp_path: Path, revision: str) -> None:
    path, url = database(tmp_path, revision)
    lead(path, beat=1)
    with pytest.raises(UsageError, match=r"synergyd on head \(process 4711\) uses this database"):
        refuse_if_used(url, sleep=lambda _: lead(path, beat=2, heartbeat_s=2.0))


def test_one_that_was_killed_does_not(tmp_path: Path) -> None:
    path, url = database(tmp_path, "head")
    asked: list[float] = []
    lead(path)
    refuse_if_used(url, sleep=asked.append)
    assert asked  # it was watched
    lead(path, pid=0)
    refuse_if_used(url, sleep=lambda _: pytest.fail("a lease that was given back needs no watching"))
    here = " ".join(this_process().split()[:2])
    lead(path, process=f"{here} {2**22 - 1} 1")  # no process has this number
    refuse_if_used(url, sleep=lambda _: pytest.fail("it has ended for certain"))


def test_an_older_database_is_copied_and_upgraded(tmp_path: Path) -> None:
    path, url = database(tmp_path)
    path.chmod(0o640)
    done = CliRunner().invoke(db, ["upgrade", "--existing", "--url", url], obj=Context())
    assert done.exit_code == 0, done.output
    (copy,) = tmp_path.glob("synergy.db.0005-*")
    assert copy.stat().st_mode & 0o777 == path.stat().st_mode & 0o777 == 0o600
    assert (schema.revision(f"sqlite:///{copy}"), schema.revision(url)) == (RELEASE_0_1, schema.needed_revision())
    CliRunner().invoke(db, ["upgrade", "--url", url], obj=Context())
    assert len(list(tmp_path.glob("synergy.db.0005-*"))) == 1  # nothing was older


def test_existing_makes_no_database(tmp_path: Path) -> None:
    done = CliRunner().invoke(db, ["upgrade", "--existing", "--url", f"sqlite:///{tmp_path}/synergy.db"], obj=Context())
    assert done.exit_code == 0 and "no schema to upgrade" in done.output and not any(tmp_path.iterdir())


def test_without_room_for_the_copy_nothing_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, url = database(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "replace", full)
    done = CliRunner().invoke(db, ["upgrade", "--url", url], obj=Context())
    assert isinstance(done.exception, UsageError) and "No space left" in str(done.exception)
    assert schema.revision(url) == RELEASE_0_1 and [p.name for p in tmp_path.iterdir()] == ["synergy.db"]
    with pytest.raises(UsageError):
        keep_copy(path, "x")


def test_a_copy_goes_through_no_link_that_lies_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = database(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "20260101-000000")
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / f".{path.name}.{RELEASE_0_1}-20260101-000000").symlink_to(other)
    with pytest.raises(UsageError, match="no copy of the database could be made"):
        keep_copy(path, RELEASE_0_1)
    assert other.read_text() == "kept"

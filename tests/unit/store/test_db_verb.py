"""`synergyctl db`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from synergy_core.errors import UsageError

from synergyd.cli.db import db
from synergyd.settings import Settings
from synergyd.store import schema

HEAD = schema.needed_revision()


class Context:
    """What the main group gives its verbs: settings, read only when asked for."""

    cluster = ""

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings

    @property
    def settings(self) -> Settings:
        assert self._settings is not None, "slurm.conf must not be read when --url is given"
        return self._settings


def test_upgrade_and_current(tmp_path: Path) -> None:
    context, runner = Context(Settings(state_dir=tmp_path)), CliRunner()
    where = f"sqlite:///{tmp_path}/synergy.db"
    before = runner.invoke(db, ["current"], obj=context)
    assert before.exit_code == 1 and not (tmp_path / "synergy.db").exists()
    assert before.output == (
        f"{where}: the database has no schema, revision {HEAD} is needed; run: synergyctl db upgrade\n"
    )
    made = runner.invoke(db, ["upgrade"], obj=context)
    assert (made.exit_code, made.output) == (0, f"{where}: schema created, revision {HEAD}\n")
    again = runner.invoke(db, ["upgrade"], obj=context)
    assert (again.exit_code, again.output) == (0, f"{where}: schema is at revision {HEAD} already\n")
    after = runner.invoke(db, ["current"], obj=context)
    assert (after.exit_code, after.output) == (0, f"{where}: schema is at revision {HEAD}, as needed\n")


def test_upgrade_from_an_older_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "upgrade", lambda url: ("0001", "0002"))
    result = CliRunner().invoke(db, ["upgrade", "--url", f"sqlite:///{tmp_path}/x.db"], obj=Context(None))
    assert result.output == f"sqlite:///{tmp_path}/x.db: schema upgraded from revision 0001 to 0002\n"


def test_url_option_needs_no_settings(tmp_path: Path) -> None:
    result = CliRunner().invoke(db, ["upgrade", "--url", f"sqlite:///{tmp_path}/x.db"], obj=Context(None))
    assert result.exit_code == 0 and (tmp_path / "x.db").exists()


def test_wrong_url_is_a_usage_error() -> None:
    result = CliRunner().invoke(db, ["upgrade", "--url", ""], obj=Context(None))
    assert isinstance(result.exception, UsageError) and "can't be read as a URL" in str(result.exception)


def test_help() -> None:
    for words in ([], ["upgrade"], ["current"]):
        result = CliRunner().invoke(db, [*words, "--help"])
        assert result.exit_code == 0 and len(result.output.splitlines()) > 6

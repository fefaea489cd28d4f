"""What synergyctl says to a user who may neither open the database nor start anything: one line, and nothing that only root can do."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from synergy_core.wire import munge

from synergyd.cli import synergyctl
from tests.unit.cli.test_rest_client import nobodys

#: words of advice that an ordinary user can't follow
ROOTS = re.compile(r"(?<![-/])\broot\b|db upgrade|start synergyd\b|runs as|chmod|systemctl|make it")
VERBS = (("status",), ("usage",), ("explain", "5"), ("pause", "5"), ("resume", "5"), ("set", "5", "max_gpus=4"))
Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run synergyctl as an ordinary user: (exit code, the line that it says)."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(munge, "encode", lambda payload, socket="": "MUNGE:none:")

    def run(*words: str, settings: str = "") -> tuple[int, str]:
        conf = tmp_path / "slurm.conf"
        conf.write_text(f"SlurmctldHost=localhost\n#SYNERGY StateDir={tmp_path / 'state'} {settings}\n")
        monkeypatch.setattr(sys, "argv", ["synergyctl", "--conf", str(conf), *words])
        with pytest.raises(SystemExit) as ended:
            synergyctl.main()
        said = capsys.readouterr()
        assert said.out == "" and len(said.err.splitlines()) == 1, said
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.err

    return run


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_a_login_node_without_database_and_service(ask: Ask, words: tuple[str, ...]) -> None:
    code, line = ask(*words)
    assert code == 1 and not ROOTS.search(line)
    assert "REST service does not run here" in line and "ask the cluster's admin" in line


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_a_database_that_is_not_for_this_user(ask: Ask, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "synergy.db").write_bytes(b"")  # no schema: only the daemon's user can make one
    code, line = ask(*words)
    assert code == 1 and not ROOTS.search(line)
    assert "ask the cluster's admin" in line


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
@pytest.mark.parametrize("way", ["port", "socket"])
def test_a_service_that_has_ended(ask: Ask, tmp_path: Path, words: tuple[str, ...], way: str) -> None:
    (tmp_path / "state").mkdir()
    if way == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "state" / "rest.sock"))
    code, line = ask(*words, settings=f"RestPort={nobodys()}" if way == "port" else "")
    assert code == 1 and not ROOTS.search(line)
    assert "REST service does not answer" in line and "ask the cluster's admin" in line


def test_a_database_that_the_user_names_is_the_users(ask: Ask, tmp_path: Path) -> None:
    code, line = ask("--database", f"sqlite:///{tmp_path}/mine.db", "status")
    assert code == 2 and "db upgrade" in line

"""What the packages without libraries of their own hold; synergyctl's needs the network and is built by make test-deb."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from packages.contents import HERE, PACKAGES, maintainer
from packages.deb import SCRIPTS, build
from synergyd import __version__
from tests.paths import ROOT

pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed here")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """synergy-launch and synergyd, unpacked one over the other; their control files in DEBIAN-NAME."""
    folder = tmp_path_factory.mktemp("deb")
    for name in ("synergy-launch", "synergyd"):
        package = build(PACKAGES[name], folder, 1.8e9)
        assert package.name == f"{name}_{__version__}_all.deb"
        for words in (["-x", str(package), str(folder / "root")], ["-e", str(package), str(folder / f"DEBIAN-{name}")]):
            subprocess.run(["dpkg-deb", *words], check=True)
    return folder


def test_each_has_man_pages_completion_and_a_changelog(tree: Path) -> None:
    share = tree / "root/usr/share"
    for name in ("synergy-launch", "synergyd", "synergyrestd"):
        assert (share / f"man/man1/{name}.1.gz").exists()
        assert "_COMPLETE=bash_complete" in (share / f"bash-completion/completions/{name}").read_text()
        assert (share / f"zsh/vendor-completions/_{name}").read_text().startswith(f"#compdef {name}")
    for name in ("synergy-launch", "synergyd"):
        assert {"changelog.gz", "changelog.Debian.gz", "copyright"} <= {
            p.name for p in (share / "doc" / name).iterdir()
        }


def test_files_are_roots_and_nobody_elses_to_write(tree: Path) -> None:
    listed = "".join(
        subprocess.run(["dpkg-deb", "-c", str(p)], capture_output=True, text=True, check=True).stdout
        for p in tree.glob("*.deb")
    )
    rows = [line.split() for line in listed.splitlines()]
    assert {row[1] for row in rows} == {"root/root"}
    assert {row[0] for row in rows} <= {"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"}
    assert [row[5] for row in rows if "__pycache__" in row[5] or row[5].endswith(".pyc")] == []


def test_units_start_what_the_package_installs(tree: Path) -> None:
    for name in ("synergyd", "synergyrestd"):
        unit = (tree / f"root/lib/systemd/system/{name}.service").read_text()
        assert f"\nExecStart=/usr/bin/{name}\n" in unit and "/usr/local" not in unit and "Install as" not in unit
        assert os.access(tree / f"root/usr/bin/{name}", os.X_OK)
    assert (tree / "DEBIAN-synergyd/conffiles").read_text() == "/etc/default/synergyd\n"
    assert (tree / "root/usr/share/synergy/synergy.lua").read_bytes() == (
        ROOT / "slurm_plugins/synergy.lua"
    ).read_bytes()


def test_the_launcher_runs_in_the_users_python_with_its_own_click_last(tree: Path, tmp_path: Path) -> None:
    """The installed folder is where the shell script says; here the entry is run as that script runs it."""
    entry = tree / "root/usr/lib/synergy-launch/synergy-launch"
    assert f"exec python3 /{entry.relative_to(tree / 'root')} " in (HERE / "synergy-launch.sh").read_text()
    (tmp_path / "train.py").write_text(
        "import os, sys, synergy_launch\nprint(synergy_launch.__file__)\nprint(os.environ['PYTHONPATH'])\n"
        "print('click' in sys.modules, [p for p in sys.path if p.endswith('click')])\n"
    )
    mine = tmp_path / "mine"
    mine.mkdir()
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(mine), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-S", str(entry), "--runner", "python", str(tmp_path / "train.py")]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    library = entry.parent
    assert done.stdout.splitlines()[0] == str(library / "synergy_launch/__init__.py")
    assert done.stdout.splitlines()[1].split(os.pathsep)[:2] == [str(mine), str(library)]
    assert done.stdout.splitlines()[2] == "False []"  # the user's script sees no click of ours


def test_the_users_own_launcher_goes_before_for_the_script_too(tree: Path, tmp_path: Path) -> None:
    """PYTHONSAFEPATH: Python puts the script's folder nowhere."""
    own = tmp_path / "synergy_launch/launcher"
    own.mkdir(parents=True)
    for folder in (own, own.parent):
        (folder / "__init__.py").touch()
    (own / "command.py").write_text("import os\ndef main(): print('own', os.environ['PYTHONPATH'])\n")
    entry = tree / "root/usr/lib/synergy-launch/synergy-launch"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    for more in ({}, {"PYTHONSAFEPATH": "1"}):
        done = subprocess.run(
            [sys.executable, "-S", str(entry)], env={**environment, **more}, capture_output=True, text=True, check=False
        )
        assert done.stdout == f"own {tmp_path}\n", done.stderr


def test_the_builder_is_named_in_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEBFULLNAME", raising=False)
    monkeypatch.delenv("DEBEMAIL", raising=False)
    assert maintainer().endswith("invalid>")
    monkeypatch.setenv("DEBFULLNAME", "Ann Admin")
    monkeypatch.setenv("DEBEMAIL", "ann@example.org")
    assert maintainer() == "Ann Admin <ann@example.org>"
    monkeypatch.setenv("DEBFULLNAME", "Ann\nDepends: x")
    with pytest.raises(SystemExit, match="DEBFULLNAME"):
        maintainer()


@pytest.mark.parametrize("script", sorted(p.name for p in HERE.iterdir() if p.suffix[1:] in SCRIPTS))
def test_maintainer_scripts_are_sh(script: str) -> None:
    text = (HERE / script).read_text()
    assert text.startswith("#!/bin/sh\nset -e\n")
    assert subprocess.run(["sh", "-n", str(HERE / script)], check=False).returncode == 0


def test_the_same_sources_give_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    again = build(PACKAGES["synergyd"], tmp_path, 1.8e9)
    assert again.read_bytes() == (tree / again.name).read_bytes()
